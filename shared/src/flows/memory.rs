//! What a warm instance remembers between requests: items for seconds, opened caches up to a number of bytes.
//!
//! A warm request whose modules are all ready makes no call at all. What this instance changes itself it forgets at once.

use std::sync::Arc;
use std::time::Duration;

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tokio::time::Instant;

use super::Invocation;
use crate::cache::{Entry, Item, ItemKey};
use crate::debuginfo::{OpenCache, Slice, SliceIndex};
use crate::symbolicate::NameMemory;

/// Items that are remembered; some hundred bytes each.
const MAX_ITEMS: usize = 20_000;

/// Demangled names that are remembered, in bytes.
const MAX_NAME_BYTES: u64 = 10 << 20;

/// A ready entry is believed for at most this long: what its owner removed is out of every answer within a minute.
const READY_LIFETIME: Duration = Duration::from_secs(45);

/// A placeholder, or the absence of an item, is believed for at most this long: uploads come at any time.
const MISS_LIFETIME: Duration = Duration::from_secs(2);

/// What a warm instance remembers.
#[derive(Debug)]
pub struct Memory {
    items: Cache<ItemKey, Remembered>,
    opened: Cache<Part, Opened, ByBytes>,
    indexes: Cache<String, SliceIndex, ByBytes>,
    names: NameMemory,
}

#[derive(Clone, Debug)]
struct Remembered {
    item: Option<Arc<Item>>,
    until: Instant,
}

/// What of a blob is opened: a slice, or all of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Part {
    /// The path of the blob.
    pub(super) path: String,
    /// The number of the slice; `None` for a whole blob.
    pub(super) slice: Option<u32>,
}

/// What was opened.
#[derive(Clone, Debug)]
pub(super) enum Opened {
    /// A whole blob.
    Whole(OpenCache),
    /// A slice.
    Slice(Slice),
}

#[derive(Clone, Debug)]
struct ByBytes;

impl Weighter<Part, Opened> for ByBytes {
    fn weight(&self, part: &Part, opened: &Opened) -> u64 {
        let bytes = match opened {
            Opened::Whole(cache) => cache.memory_bytes(),
            Opened::Slice(slice) => slice.memory_bytes(),
        };
        (size_of::<Part>() + part.path.len() + bytes) as u64
    }
}

impl Weighter<String, SliceIndex> for ByBytes {
    fn weight(&self, path: &String, index: &SliceIndex) -> u64 {
        (path.len() + index.memory_bytes()) as u64
    }
}

/// Returns a cache of `max_bytes`. One large program may be most of it: it must not be cut into shards that are too small for it.
fn by_bytes<K, V>(max_bytes: u64) -> Cache<K, V, ByBytes>
where
    K: Eq + std::hash::Hash,
    V: Clone,
    ByBytes: Weighter<K, V> + Clone,
{
    let options = quick_cache::OptionsBuilder::new()
        .estimated_items_capacity(1_000)
        .weight_capacity(max_bytes)
        .shards(1)
        .build();
    match options {
        Ok(options) => Cache::with_options(
            options,
            ByBytes,
            Default::default(),
            quick_cache::sync::DefaultLifecycle::default(),
        ),
        Err(_) => Cache::with_weighter(1_000, max_bytes, ByBytes),
    }
}

impl Memory {
    /// Returns an empty memory that keeps opened caches of `max_bytes` in all, their indexes included.
    pub fn new(max_bytes: u64) -> Self {
        // An index is what makes its slices of use: slices must not crowd it out.
        let of_indexes = max_bytes / 8;
        Self {
            items: Cache::new(MAX_ITEMS),
            opened: by_bytes(max_bytes - of_indexes),
            indexes: by_bytes(of_indexes),
            names: NameMemory::new(MAX_NAME_BYTES),
        }
    }

    /// Returns what is remembered of a key: the item, or that there is none; `None` where nothing is.
    pub(super) fn item(&self, key: &ItemKey) -> Option<Option<Arc<Item>>> {
        let remembered = self.items.get(key)?;
        (Instant::now() < remembered.until).then_some(remembered.item)
    }

    /// Remembers what was read just now. What is about to change is not remembered.
    pub(super) fn remember(&self, invocation: &Invocation, key: ItemKey, item: Option<Arc<Item>>) {
        let lifetime = match item.as_deref() {
            Some(Item::Entry(entry)) if is_unsettled(entry) => return,
            Some(Item::Entry(entry)) if entry.ready().is_some() => READY_LIFETIME,
            Some(Item::Alias(_) | Item::Source(_) | Item::Wanted(_)) => READY_LIFETIME,
            _ => MISS_LIFETIME,
        };
        let until = Instant::now() + invocation.jittered(lifetime);
        self.items.insert(key, Remembered { item, until });
    }

    /// Forgets an item, because this instance changed it or was told that it is wrong.
    pub(super) fn forget(&self, key: &ItemKey) {
        self.items.remove(key);
    }

    /// Returns what is opened of a blob; opens it with `open` where it is not remembered.
    ///
    /// Of several callers at a time, one opens it and the others wait for it.
    pub(super) async fn opened<E>(
        &self,
        part: &Part,
        open: impl Future<Output = Result<Opened, E>>,
    ) -> Result<Opened, E> {
        self.opened.get_or_insert_async(part, open).await
    }

    /// Returns the index of a blob by its path; opens it with `open` where it is not remembered.
    pub(super) async fn index<E>(
        &self,
        path: &str,
        open: impl Future<Output = Result<SliceIndex, E>>,
    ) -> Result<SliceIndex, E> {
        self.indexes.get_or_insert_async(path, open).await
    }

    /// Forgets the index of a blob that is not what its record says.
    pub(super) fn forget_index(&self, path: &str) {
        self.indexes.remove(path);
    }

    /// Returns the demangled names that are remembered.
    pub(super) fn names(&self) -> &NameMemory {
        &self.names
    }

    /// Returns how many bytes of opened caches are remembered.
    pub fn bytes(&self) -> u64 {
        self.opened.weight() + self.indexes.weight()
    }
}

/// Tells whether somebody is at work on an entry that has nothing to show yet, or something to take back.
fn is_unsettled(entry: &Entry) -> bool {
    entry.suspect().is_some()
        || (entry.ready().is_none() && (entry.ask().is_some() || entry.lease().is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Applied, Change, Kind, Lane, ModuleKey, Policy, apply};
    use crate::domain::{Cause, Missing, ModuleId, Scope};

    fn invocation() -> Invocation {
        Invocation::new(
            "1".to_owned(),
            Duration::from_secs(1000),
            Duration::from_secs(9),
            [1; 32],
        )
    }

    fn entry(changes: impl FnOnce(&Invocation) -> Vec<Change>) -> (ItemKey, Option<Arc<Item>>) {
        let invocation = invocation();
        let id = ModuleId::Debug("502fc0a5-1ec1-3e47-9998-684fa139dca7".parse().unwrap());
        let module = ModuleKey::uploads(Scope::Global, &id);
        let mut entry = Entry::new(module.clone(), Kind::SymCache, invocation.now());
        for change in changes(&invocation) {
            match apply(&entry, &change, invocation.now(), &Policy::default()) {
                Ok(Applied::Changed(next)) => entry = next,
                other => panic!("{other:?}"),
            }
        }
        (
            module.entry(Kind::SymCache),
            Some(Arc::new(Item::Entry(entry))),
        )
    }

    fn take(invocation: &Invocation, token: &crate::cache::Token) -> Change {
        Change::TakeLease {
            holder: "1".to_owned(),
            token: token.clone(),
            deadline: invocation.deadline(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_miss_is_believed_for_two_seconds_at_most() {
        let failed = entry(|invocation| {
            let (token, missing) = (invocation.token(), Missing::new(Cause::NotFound, "no"));
            vec![
                take(invocation, &token),
                Change::Fail {
                    token,
                    missing,
                    seen: crate::cache::Seen::default(),
                },
            ]
        });
        for (key, item) in [failed, (ItemKey::request("1"), None)] {
            let memory = Memory::new(1000);
            memory.remember(&invocation(), key.clone(), item.clone());
            assert_eq!(memory.item(&key), Some(item));
            tokio::time::advance(MISS_LIFETIME).await;
            assert_eq!(memory.item(&key), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_about_to_change_is_not_remembered() {
        let asked = entry(|invocation| {
            vec![Change::Ask {
                id: invocation.token(),
                lane: Lane::Eager,
            }]
        });
        let leased = entry(|invocation| vec![take(invocation, &invocation.token())]);
        for (key, item) in [asked, leased] {
            let memory = Memory::new(1000);
            memory.remember(&invocation(), key.clone(), item);
            assert_eq!(memory.item(&key), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_forgotten_is_read_again() {
        let memory = Memory::new(1000);
        let key = ItemKey::request("1");
        memory.remember(&invocation(), key.clone(), None);
        memory.forget(&key);
        assert_eq!(memory.item(&key), None);
    }

    #[tokio::test]
    async fn a_cache_that_cannot_be_opened_is_not_remembered() {
        let memory = Memory::new(1000);
        let part = Part {
            path: "path".to_owned(),
            slice: None,
        };
        for attempt in 0..2 {
            let opened = memory
                .opened(&part, async { Err::<Opened, i32>(attempt) })
                .await;
            assert_eq!(opened.unwrap_err(), attempt, "each attempt reads anew");
        }
        assert_eq!(memory.bytes(), 0);
    }
}
