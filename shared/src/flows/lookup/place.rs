//! The places that may have a cache, and the items that were loaded for them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::health::Health;
use super::items::ItemQuery;
use crate::cache::{
    Entry, Item, ItemKey, Kind, ModuleKey, PlaceRecord, PlaceState, Sought, Stored,
};
use crate::domain::{Candidate, Cause, Location, ModuleId, ObjectId, Scope, SourceKey, Timestamp};

/// For how long an instance may answer without the sources of a new upload. A warm request whose
/// modules are ready makes no call within this time.
const SOURCES_LIFETIME: Duration = Duration::from_secs(20);

/// What a protocol looks for.
#[derive(Clone, Debug)]
pub(in crate::flows) struct Lookup {
    /// The places that may have it, in the order of precedence.
    pub(in crate::flows) places: Vec<CachePlace>,
    /// Whether all places are read, even if a cached entry cannot be beaten.
    pub(in crate::flows) reads_all: bool,
    /// Further items to load in the same round.
    pub(in crate::flows) further: Vec<ItemKey>,
    /// Whether the entries of the sources on the symbol servers among the places are loaded in the
    /// same round, unless a cached entry cannot be beaten.
    pub(in crate::flows) reads_sources: bool,
}

/// A place where a cache may be found, and the keys of the items to load for it.
#[derive(Clone, Debug)]
pub(in crate::flows) struct CachePlace {
    pub(in crate::flows) module: ModuleKey,
    pub(in crate::flows) kind: Kind,
    pub(in crate::flows) entry: ItemKey,
    /// For uploads: the item that exists if the module has files.
    presence: Option<ItemKey>,
    /// For uploads: the item that refers from the module's code id to the debug id under which its
    /// files are.
    alias: Option<ItemKey>,
}

/// The loaded items by key.
#[derive(Debug, Default)]
pub(in crate::flows) struct Items(pub(super) HashMap<ItemKey, LoadedItem>);

/// An item that was loaded.
#[derive(Clone, Debug)]
pub(super) enum LoadedItem {
    /// It does not exist.
    Absent,
    Present(Arc<Stored>),
}

impl LoadedItem {
    fn stored(&self) -> Option<&Arc<Stored>> {
        match self {
            Self::Absent => None,
            Self::Present(stored) => Some(stored),
        }
    }
}

impl From<Option<Arc<Stored>>> for LoadedItem {
    fn from(loaded: Option<Arc<Stored>>) -> Self {
        loaded.map_or(Self::Absent, Self::Present)
    }
}

impl CachePlace {
    /// Returns the place of an entry. Nothing refers from it to another place.
    pub(in crate::flows) fn new(module: ModuleKey, kind: Kind) -> Self {
        let is_upload = module.source.is_uploads();
        Self {
            entry: module.entry(kind),
            presence: is_upload.then(|| module.presence()),
            alias: None,
            module,
            kind,
        }
    }

    /// Returns the place of an entry of a module that a request identifies by these ids.
    ///
    /// The uploads may refer from the code id to the debug id of the files: to that of the module
    /// if the request has none, or to another one, because some clients compute debug ids
    /// differently.
    pub(in crate::flows) fn of(object: &ObjectId, module: ModuleKey, kind: Kind) -> Self {
        let by_code = ModuleId::of(None, object.code_id.as_ref());
        let by_code = by_code.filter(|_| module.source.is_uploads());
        let alias = by_code.map(|id| ModuleKey::uploads(module.scope.clone(), &id).alias());
        Self {
            alias,
            ..Self::new(module, kind)
        }
    }

    /// Returns the place of the sources of the same module.
    pub(in crate::flows) fn of_sources(&self) -> Self {
        Self {
            entry: ItemKey {
                sort: Kind::Sources.to_string(),
                ..self.entry.clone()
            },
            kind: Kind::Sources,
            alias: None,
            ..self.clone()
        }
    }

    /// Returns the place of one source file, at its location in a source.
    pub(in crate::flows) fn of_source_file(
        scope: Scope,
        source: SourceKey,
        location: Location,
    ) -> Self {
        let sought = Sought::source_file(location);
        Self::new(ModuleKey::server(scope, source, &sought), Kind::Sources)
    }

    /// Returns whether this is a symbol server that may have sources of the module.
    pub(in crate::flows) fn may_serve_sources(&self) -> bool {
        let sought = self.module.sought();
        sought.is_some_and(|sought| sought.may_yield(Kind::Sources))
    }

    /// Leaves the presence out. Without it, the place looks as if it had files.
    pub(in crate::flows) fn without_presence(self) -> Self {
        Self {
            presence: None,
            ..self
        }
    }

    pub(in crate::flows) fn is_uploads(&self) -> bool {
        self.module.source.is_uploads()
    }

    /// Returns the query for the presence; `None` for a symbol server.
    pub(super) fn presence_query(&self) -> Option<ItemQuery> {
        self.presence.as_ref().map(|key| self.query(key))
    }

    pub(super) fn query(&self, key: &ItemKey) -> ItemQuery {
        let query = ItemQuery::of(&self.module, key.clone());
        match self.kind {
            Kind::Sources => ItemQuery {
                valid_for: SOURCES_LIFETIME,
                ..query
            },
            _ => query,
        }
    }

    /// Returns all items of the place.
    pub(super) fn queries(&self) -> impl Iterator<Item = ItemQuery> {
        let keys = [
            Some(&self.entry),
            self.presence.as_ref(),
            self.alias.as_ref(),
        ];
        keys.into_iter().flatten().map(|key| self.query(key))
    }

    fn state<'i>(&self, items: &'i Items, health: &Health, now: Timestamp) -> PlaceState<'i> {
        PlaceState {
            kind: self.kind,
            record: items.record(self),
            is_uploads: self.is_uploads(),
            may_have_files: items.has_files(self),
            circuit: health.open_circuit(&self.module.source, now),
        }
    }
}

impl Items {
    /// Returns an item, if it was loaded and exists.
    pub(in crate::flows) fn item(&self, key: &ItemKey) -> Option<&Item> {
        self.0.get(key)?.stored().map(|stored| &stored.item)
    }

    /// Returns the stored record of an entry.
    pub(in crate::flows) fn stored(&self, place: &CachePlace) -> Option<&Arc<Stored>> {
        self.0.get(&place.entry)?.stored()
    }

    /// Returns the entry of a place.
    pub(in crate::flows) fn entry(&self, place: &CachePlace) -> Option<&Entry> {
        self.stored(place)?.item.entry()
    }

    /// Returns whether the place may have files for its kind: not if its presence item was read,
    /// and does not exist or says that no file has them.
    pub(in crate::flows) fn has_files(&self, place: &CachePlace) -> bool {
        let presence = place.presence.as_ref().and_then(|key| self.0.get(key));
        match presence {
            None => true,
            Some(LoadedItem::Absent) => false,
            Some(LoadedItem::Present(stored)) => match &stored.item {
                Item::Presence(presence) => place.kind != Kind::Sources || presence.has_sources,
                _ => true,
            },
        }
    }

    /// Returns the module that the alias with this key refers to.
    pub(in crate::flows) fn target(&self, alias: &ItemKey) -> Option<&ModuleKey> {
        match self.item(alias)? {
            Item::Alias(alias) => Some(&alias.target),
            _ => None,
        }
    }

    /// Returns whether the entry of a place was read, and does not exist.
    pub(in crate::flows) fn lacks(&self, place: &CachePlace) -> bool {
        matches!(self.0.get(&place.entry), Some(LoadedItem::Absent))
    }

    fn record(&self, place: &CachePlace) -> PlaceRecord<'_> {
        match self.0.get(&place.entry) {
            None => PlaceRecord::Unread,
            Some(LoadedItem::Absent) => PlaceRecord::Absent,
            Some(LoadedItem::Present(stored)) => match &stored.item {
                Item::Newer { .. } => PlaceRecord::Newer,
                item => item.entry().map_or(PlaceRecord::Absent, PlaceRecord::Entry),
            },
        }
    }
}

impl Lookup {
    pub(in crate::flows) fn of(places: Vec<CachePlace>) -> Self {
        Self {
            places,
            reads_all: false,
            further: Vec::new(),
            reads_sources: false,
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
            .map(|place| place.state(items, health, now))
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
            let is_followed = is_by_code || !items.has_files(place);
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
