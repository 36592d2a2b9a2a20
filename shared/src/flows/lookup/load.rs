//! Loads the items of lookups, and selects among their entries.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::finder::CacheFinder;
use super::health::Health;
use super::loaded::{Items, LoadedItem};
use super::lookups::Lookup;
use super::places::CachePlace;
use super::read_through::ItemQuery;
use crate::cache::{
    Capabilities, Criteria, Decision, ItemKey, Preference, Selection, UnreadableBlobs, decide,
    select,
};
use crate::domain::SourceKey;
use crate::flows::memory::Recalled;
use crate::ports::{Consistency, Fault};

/// How well a remembered entry serves a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RememberedState {
    Usable,
    /// No other place can have a better one.
    Unbeatable,
}

/// A round of lookups of a request: how it loads, and how it selects.
pub(in crate::flows) struct LookupRound<'a> {
    finder: CacheFinder<'a>,
    consistency: Consistency,
    criteria: Criteria<'a>,
}

impl<'a> CacheFinder<'a> {
    /// Begins a round of a request that has reported these blobs as unreadable. If there are any,
    /// an entry from the instance's memory, or an outdated one, may be from before the report.
    pub(in crate::flows) fn round(
        self,
        capabilities: &'a Capabilities,
        unreadable: &'a UnreadableBlobs,
        may_wait: bool,
        consistency: Consistency,
    ) -> LookupRound<'a> {
        let (finder, consistency) = if unreadable.is_empty() {
            (self, consistency)
        } else {
            let finder = Self::without_memory(self.service, self.invocation);
            (finder, Consistency::Strong)
        };
        let criteria = Criteria {
            capabilities,
            preference: Preference::BestDif,
            unreadable,
            may_wait,
            now: self.invocation.now(),
        };
        LookupRound {
            finder,
            consistency,
            criteria,
        }
    }
}

impl LookupRound<'_> {
    /// Loads the items of lookups, like [`CacheFinder::load`].
    pub(in crate::flows) async fn load(&self, lookups: &mut [&mut Lookup]) -> Result<Items, Fault> {
        let Self {
            finder,
            consistency,
            criteria,
        } = self;
        finder.load(lookups, criteria, *consistency).await
    }

    /// Selects among the loaded entries of each lookup.
    pub(in crate::flows) async fn select<'i>(
        &self,
        lookups: &[&Lookup],
        items: &'i Items,
    ) -> Result<Vec<Selection<'i>>, Fault> {
        self.finder.select(lookups, items, &self.criteria).await
    }
}

impl CacheFinder<'_> {
    /// Loads the items of lookups in one round of reads, and the targets of aliases in a second
    /// one. The targets are added to the places of the lookups.
    pub(in crate::flows) async fn load(
        &self,
        lookups: &mut [&mut Lookup],
        criteria: &Criteria<'_>,
        consistency: Consistency,
    ) -> Result<Items, Fault> {
        let queries = lookups.iter();
        let queries = queries.flat_map(|lookup| self.queries(lookup, criteria));
        let mut items = Items::default();
        self.load_into(&mut items, queries.collect(), consistency)
            .await?;
        let behind_aliases = lookups.iter_mut();
        let behind_aliases = behind_aliases.flat_map(|lookup| lookup.follow_aliases(&items));
        let behind_aliases: Vec<ItemQuery> = behind_aliases.collect();
        if !behind_aliases.is_empty() {
            self.load_into(&mut items, behind_aliases, consistency)
                .await?;
        }
        Ok(items)
    }

    /// Loads the entries of these places again, from the store.
    pub(in crate::flows) async fn reload<'p>(
        &self,
        items: &mut Items,
        places: impl Iterator<Item = &'p CachePlace>,
    ) -> Result<(), Fault> {
        let queries: Vec<ItemQuery> = places.map(|place| place.query(&place.entry)).collect();
        for query in &queries {
            self.service.memory.forget(&query.key);
        }
        self.load_into(items, queries, Consistency::Strong).await
    }

    /// Loads the items that say which of these places may have files.
    pub(in crate::flows) async fn load_presences(
        &self,
        places: impl Iterator<Item = &CachePlace>,
    ) -> Result<Items, Fault> {
        let queries = places.filter_map(CachePlace::presence_query).collect();
        let mut items = Items::default();
        self.load_into(&mut items, queries, Consistency::Strong)
            .await?;
        Ok(items)
    }

    async fn load_into(
        &self,
        items: &mut Items,
        mut queries: Vec<ItemQuery>,
        consistency: Consistency,
    ) -> Result<(), Fault> {
        queries.sort_by(|a, b| a.key.cmp(&b.key));
        queries.dedup_by(|a, b| a.key == b.key);
        let loaded = if self.may_use_memory {
            self.load_items(&queries, consistency).await?
        } else {
            let keys: Vec<ItemKey> = queries.iter().map(|query| query.key.clone()).collect();
            self.invocation
                .note(|notes| notes.record_reads += keys.len());
            let loaded = self.service.records.load(&keys, consistency).await?;
            loaded
                .into_iter()
                .map(|stored| stored.map(Arc::new))
                .collect()
        };
        let keys = queries.into_iter().map(|query| query.key);
        let loaded = loaded.into_iter().map(LoadedItem::from);
        items.0.extend(keys.zip(loaded));
        Ok(())
    }

    /// Returns the items to load for a lookup.
    ///
    /// The items of a place whose remembered entry is ready are limited to that entry. If no build
    /// can beat a remembered entry, only places that take precedence over it are searched besides.
    fn queries(&self, lookup: &Lookup, criteria: &Criteria<'_>) -> Vec<ItemQuery> {
        let states = lookup.places.iter();
        let states: Vec<Option<RememberedState>> = states
            .map(|place| self.remembered_state(place, criteria))
            .collect();
        let mut each = states.iter();
        let unbeatable = each.position(|state| *state == Some(RememberedState::Unbeatable));
        let unbeatable = unbeatable.filter(|_| !lookup.reads_all);
        let further = lookup.further.iter().cloned().map(ItemQuery::alone);
        let mut queries: Vec<ItemQuery> = further.collect();
        for (at, place) in lookup.places.iter().enumerate() {
            let is_searched = unbeatable
                .is_none_or(|best| at == best || may_beat(&lookup.places, at, best, criteria));
            match &states[at] {
                _ if !is_searched => {}
                None => queries.extend(place.queries()),
                Some(_) => queries.push(place.query(&place.entry)),
            }
        }
        if lookup.reads_source_code && unbeatable.is_none() {
            let servers = lookup.places.iter();
            let servers = servers.filter(|place| place.may_serve_source_code());
            queries.extend(servers.map(|place| ItemQuery::alone(place.of_source_code().entry)));
        }
        queries
    }

    /// Returns how well a remembered entry serves as it is; `None` if it does not.
    fn remembered_state(
        &self,
        place: &CachePlace,
        criteria: &Criteria<'_>,
    ) -> Option<RememberedState> {
        let Self {
            service,
            invocation,
            may_use_memory: true,
        } = self
        else {
            return None;
        };
        let Recalled::Valid(Some(stored)) = service.memory.recall(invocation, &place.entry) else {
            return None;
        };
        let entry = stored.item.entry()?;
        match decide(Some(entry), criteria.capabilities, criteria.now) {
            Decision::Use(ready) if criteria.is_unbeatable(ready) => {
                Some(RememberedState::Unbeatable)
            }
            Decision::Use(_) => Some(RememberedState::Usable),
            _ => None,
        }
    }

    /// Selects among the loaded entries of each lookup.
    pub(in crate::flows) async fn select<'i>(
        &self,
        lookups: &[&Lookup],
        items: &'i Items,
        criteria: &Criteria<'_>,
    ) -> Result<Vec<Selection<'i>>, Fault> {
        let select_all = |health: &Health| -> Vec<Selection<'i>> {
            let lookups = lookups.iter();
            let states = lookups.map(|lookup| lookup.states_with(items, health, criteria.now));
            states.map(|states| select(&states, criteria)).collect()
        };
        let selections = select_all(&Health::default());
        let mut servers: BTreeSet<&SourceKey> = BTreeSet::new();
        for (lookup, selection) in lookups.iter().zip(&selections) {
            let unrequested = selection
                .for_later_readers
                .iter()
                .chain(&selection.to_improve);
            let unrequested = unrequested.filter(|place| !place.is_requested());
            let places = selection.waits_for.iter().chain(unrequested);
            let sources = places.map(|place| &lookup.places[place.at].module.source);
            servers.extend(sources.filter(|source| !source.is_uploads()));
        }
        let health = self.health_of(servers).await?;
        Ok(if health.is_empty() {
            selections
        } else {
            select_all(&health)
        })
    }
}

/// Returns whether the place at `at` may have a state that is preferred over the one at `best`,
/// which no build can beat.
fn may_beat(places: &[CachePlace], at: usize, best: usize, criteria: &Criteria<'_>) -> bool {
    match criteria.preference {
        Preference::BestDif => at < best,
        // An upload may have a higher version than is made here, or the same one in a scope that
        // takes precedence.
        Preference::HighestVersion { .. } => {
            places[at].is_uploads() && places[at].kind >= places[best].kind
        }
    }
}
