//! What a protocol looks for: the places that may have it, and the states of these places.

use super::health::Health;
use super::loaded::Items;
use super::places::CachePlace;
use super::read_through::ItemQuery;
use crate::cache::{Entry, ItemKey, PlaceState};
use crate::domain::{Candidate, Cause, Timestamp};

/// What a protocol looks for.
#[derive(Clone, Debug)]
pub(in crate::flows) struct Lookup {
    /// The places that may have it, in the order of precedence.
    pub(in crate::flows) places: Vec<CachePlace>,
    /// Whether all places are read, even if a remembered entry cannot be beaten.
    pub(in crate::flows) reads_all: bool,
    /// Further items to load in the same round.
    pub(in crate::flows) further: Vec<ItemKey>,
    /// Whether the entries of the sources on the symbol servers among the places are loaded in the
    /// same round, unless a remembered entry cannot be beaten.
    pub(in crate::flows) reads_source_code: bool,
}

impl Lookup {
    pub(in crate::flows) fn of(places: Vec<CachePlace>) -> Self {
        Self {
            places,
            reads_all: false,
            further: Vec::new(),
            reads_source_code: false,
        }
    }

    /// Returns the candidates of all entries.
    pub(in crate::flows) fn candidates(&self, items: &Items) -> Vec<Candidate> {
        let entries = self.places.iter().filter_map(|place| items.entry(place));
        entries
            .flat_map(|entry| entry.candidates().to_vec())
            .collect()
    }

    /// Returns the file that was found although no cache can be made from its type, if that is why
    /// an entry is missing. Of several, the first one in the order of precedence.
    pub(in crate::flows) fn unsupported<'i>(&self, items: &'i Items) -> Option<&'i Candidate> {
        let is_unsupported = |entry: &&Entry| {
            let placeholder = entry.missing();
            placeholder.is_some_and(|placeholder| placeholder.missing.cause == Cause::Unsupported)
        };
        let entries = self.places.iter().filter_map(|place| items.entry(place));
        entries
            .filter(is_unsupported)
            .flat_map(Entry::candidates)
            .find(|candidate| candidate.features().is_some())
    }

    /// Returns the states of the places, without the circuits of their sources.
    pub(in crate::flows) fn states<'i>(
        &self,
        items: &'i Items,
        now: Timestamp,
    ) -> Vec<PlaceState<'i>> {
        self.states_with(items, &Health::default(), now)
    }

    pub(super) fn states_with<'i>(
        &self,
        items: &'i Items,
        health: &Health,
        now: Timestamp,
    ) -> Vec<PlaceState<'i>> {
        let places = self.places.iter();
        places
            .map(|place| state(place, items, health, now))
            .collect()
    }

    /// Adds the targets of the aliases that were read, each after the place that refers to it. A
    /// place of a debug id refers to another one only if it has no files itself. Returns the items
    /// to load for them.
    pub(super) fn follow_aliases(&mut self, items: &Items) -> Vec<ItemQuery> {
        let mut queries = Vec::new();
        let mut at = 0;
        while let Some(place) = self.places.get_mut(at) {
            at += 1;
            let is_read = |alias: &mut ItemKey| items.0.contains_key(alias);
            let Some(alias) = place.alias.take_if(is_read) else {
                continue;
            };
            let is_by_code = alias.partition == place.entry.partition;
            let is_followed = is_by_code || !items.may_have_files(place);
            let Some(target) = items.target(&alias).filter(|_| is_followed) else {
                continue;
            };
            let target = CachePlace::new(target.clone(), place.kind);
            if self.places.iter().all(|known| known.entry != target.entry) {
                queries.extend(target.queries());
                self.places.insert(at, target);
                at += 1;
            }
        }
        queries
    }
}

fn state<'i>(
    place: &CachePlace,
    items: &'i Items,
    health: &Health,
    now: Timestamp,
) -> PlaceState<'i> {
    PlaceState {
        kind: place.kind,
        record: items.record(place),
        is_uploads: place.is_uploads(),
        may_have_files: items.may_have_files(place),
        circuit: health.open_circuit(&place.module.source, now),
    }
}
