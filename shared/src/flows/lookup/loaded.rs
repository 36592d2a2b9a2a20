//! The items that were loaded for places.

use std::collections::HashMap;
use std::sync::Arc;

use super::places::CachePlace;
use crate::cache::{Entry, Item, ItemKey, Kind, ModuleKey, PlaceRecord, Stored};

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
    pub(in crate::flows) fn may_have_files(&self, place: &CachePlace) -> bool {
        let presence = place.presence.as_ref().and_then(|key| self.0.get(key));
        match presence {
            None => true,
            Some(LoadedItem::Absent) => false,
            Some(LoadedItem::Present(stored)) => match &stored.item {
                Item::Presence(presence) => place.kind != Kind::SourceCode || presence.has_sources,
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

    /// Returns the record of a place, as a selection sees it.
    pub(super) fn record(&self, place: &CachePlace) -> PlaceRecord<'_> {
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
