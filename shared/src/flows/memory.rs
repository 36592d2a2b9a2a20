//! What a warm instance remembers between requests: items, and opened caches up to a number of bytes.
//!
//! An item is believed for a time after it was read. What was read of the uploads of a scope is believed for longer, as
//! long as the [`Generation`] of that scope stands: it is read again at most every two seconds, and if it is the one that
//! was read *before* the item, nothing was uploaded or removed since. So a warm request whose modules are ready makes no
//! call at all, and one with modules without an upload, or with symbols alone, reads one item for each
//! scope.
//!
//! The monotonic clock may stand still while the sandbox is frozen, and the wall clock may be set back. A time is over
//! when either of them says so.
//!
//! What this instance changes itself it forgets at once.

use std::sync::Arc;
use std::time::Duration;

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tokio::time::Instant;

use super::Invocation;
use crate::cache::{Entry, Generation, Item, ItemKey, Ready, Stored, Token};
use crate::debuginfo::{OpenCache, Slice, SliceIndex};
use crate::domain::{DebugId, Quality, Scope, Timestamp};
use crate::symbolicate::NameMemory;

/// Items that are remembered; some hundred bytes each.
const MAX_ITEMS: usize = 20_000;

/// Scopes whose generation is remembered.
const MAX_SCOPES: usize = 1_000;

/// PDBs that Microsoft's clients asked for.
const MAX_ASKED: usize = 10_000;

/// Demangled names that are remembered, in bytes.
const MAX_NAME_BYTES: u64 = 10 << 20;

/// A ready entry that nothing could be better than is believed for at most this long before its scope's generation is asked
/// for: what its owner removed is out of every answer within a minute.
const READY_LIFETIME: Duration = Duration::from_secs(45);

/// A generation is believed for this long, and so is whatever no generation vouches for: an upload is seen by every
/// instance after this time.
const GENERATION_LIFETIME: Duration = Duration::from_secs(2);

/// A generation that was read beside an item, and not before it, vouches for the item only if it began this long ago.
/// Else the change might lie between the two reads. The clocks of two functions differ by less.
const SETTLED_AFTER: Duration = Duration::from_secs(300);

/// What a warm instance remembers.
#[derive(Debug)]
pub struct Memory {
    items: Cache<ItemKey, Remembered>,
    generations: Cache<Scope, KnownGeneration>,
    /// The longest that an item is believed, whatever generation stands.
    max_age: Duration,
    opened: Cache<BlobRange, Opened, CachedBytes>,
    indexes: Cache<String, SliceIndex, CachedBytes>,
    names: NameMemory,
    asked: Cache<(Scope, DebugId), ()>,
}

/// A moment, by both clocks.
#[derive(Clone, Copy, Debug)]
struct Moment {
    monotonic: Instant,
    since_epoch: Duration,
}

impl Moment {
    fn now(invocation: &Invocation) -> Self {
        Self {
            monotonic: Instant::now(),
            since_epoch: invocation.since_epoch(),
        }
    }

    /// Returns the time since then, by the clock that says more.
    fn elapsed(&self, invocation: &Invocation) -> Duration {
        let by_wall_clock = invocation.since_epoch().saturating_sub(self.since_epoch);
        self.monotonic.elapsed().max(by_wall_clock)
    }
}

#[derive(Clone, Debug)]
struct Remembered {
    stored: Option<Arc<Stored>>,
    read: Moment,
    /// How long it is believed without a look at the generation.
    lifetime: Duration,
    /// The generation that vouches for it.
    vouched_by: Option<(Scope, SeenGeneration)>,
}

#[derive(Clone, Debug)]
struct KnownGeneration {
    seen: SeenGeneration,
    read: Moment,
}

/// Which generation was read of a scope; `None` where nothing was ever uploaded to it.
pub(super) type SeenGeneration = Option<Token>;

/// How an item was read.
#[derive(Clone, Debug)]
pub(super) enum ReadBy {
    /// Strongly consistent, after this generation of its scope was read.
    After(Scope, SeenGeneration),
    /// Strongly consistent, at the same time as this generation of its scope.
    Beside(Scope, Option<Generation>),
    /// In another way: no generation vouches for it.
    Otherwise,
}

impl ReadBy {
    fn vouched_by(self, now: Timestamp) -> Option<(Scope, SeenGeneration)> {
        match self {
            Self::After(scope, seen) => Some((scope, seen)),
            Self::Beside(scope, None) => Some((scope, None)),
            Self::Beside(scope, Some(generation)) => {
                let is_settled = now.since(generation.began_at) >= SETTLED_AFTER;
                is_settled.then_some((scope, Some(generation.change)))
            }
            Self::Otherwise => None,
        }
    }
}

/// What is remembered of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Recalled {
    /// It is believed: the item, or that there is none.
    Believed(Option<Arc<Stored>>),
    /// It is believed if the generation of its scope is still the same.
    Doubtful,
    /// Nothing that could be believed.
    Unknown,
}

/// What of a blob is opened: a slice, or all of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct BlobRange {
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
struct CachedBytes;

impl Weighter<BlobRange, Opened> for CachedBytes {
    fn weight(&self, part: &BlobRange, opened: &Opened) -> u64 {
        let bytes = match opened {
            Opened::Whole(cache) => cache.memory_bytes(),
            Opened::Slice(slice) => slice.memory_bytes(),
        };
        (size_of::<BlobRange>() + part.path.len() + bytes) as u64
    }
}

impl Weighter<String, SliceIndex> for CachedBytes {
    fn weight(&self, path: &String, index: &SliceIndex) -> u64 {
        (path.len() + index.memory_bytes()) as u64
    }
}

/// Returns a cache of `max_bytes`. One large program may be most of it: it must not be cut into shards that are too small for it.
fn by_bytes<K, V>(max_bytes: u64) -> Cache<K, V, CachedBytes>
where
    K: Eq + std::hash::Hash,
    V: Clone,
    CachedBytes: Weighter<K, V> + Clone,
{
    let options = quick_cache::OptionsBuilder::new()
        .estimated_items_capacity(1_000)
        .weight_capacity(max_bytes)
        .shards(1)
        .build();
    match options {
        Ok(options) => Cache::with_options(
            options,
            CachedBytes,
            Default::default(),
            quick_cache::sync::DefaultLifecycle::default(),
        ),
        Err(_) => Cache::with_weighter(1_000, max_bytes, CachedBytes),
    }
}

impl Memory {
    /// Returns an empty memory that keeps opened caches of `max_bytes` in all, their indexes included, and believes no
    /// item for longer than `max_age`.
    pub fn new(max_bytes: u64, max_age: Duration) -> Self {
        // An index is what makes its slices of use: slices must not crowd it out.
        let of_indexes = max_bytes / 8;
        Self {
            items: Cache::new(MAX_ITEMS),
            generations: Cache::new(MAX_SCOPES),
            max_age,
            opened: by_bytes(max_bytes - of_indexes),
            indexes: by_bytes(of_indexes),
            names: NameMemory::new(MAX_NAME_BYTES),
            asked: Cache::new(MAX_ASKED),
        }
    }

    /// Returns what is remembered of an item.
    pub(super) fn recall(&self, invocation: &Invocation, key: &ItemKey) -> Recalled {
        let Some(remembered) = self.items.get(key) else {
            return Recalled::Unknown;
        };
        let age = remembered.read.elapsed(invocation);
        if age < remembered.lifetime {
            return Recalled::Believed(remembered.stored);
        }
        match &remembered.vouched_by {
            Some((scope, seen)) if age < self.max_age => match self.generation(invocation, scope) {
                Some(current) if current == *seen => Recalled::Believed(remembered.stored),
                Some(_) => Recalled::Unknown,
                None => Recalled::Doubtful,
            },
            _ => Recalled::Unknown,
        }
    }

    /// Returns the generation of a scope, where it was read a moment ago.
    pub(super) fn generation(
        &self,
        invocation: &Invocation,
        scope: &Scope,
    ) -> Option<SeenGeneration> {
        let known = self.generations.get(scope)?;
        (known.read.elapsed(invocation) < GENERATION_LIFETIME).then_some(known.seen)
    }

    /// Returns the generation of a scope as it was read last, however long ago.
    pub(super) fn last_generation(&self, scope: &Scope) -> Option<SeenGeneration> {
        self.generations.get(scope).map(|known| known.seen)
    }

    /// Remembers which generation of a scope was read just now.
    pub(super) fn remember_generation(
        &self,
        invocation: &Invocation,
        scope: Scope,
        seen: SeenGeneration,
    ) {
        let read = Moment::now(invocation);
        self.generations
            .insert(scope, KnownGeneration { seen, read });
    }

    /// Remembers what was read just now. What is about to change is not remembered.
    pub(super) fn remember(
        &self,
        invocation: &Invocation,
        key: ItemKey,
        stored: Option<Arc<Stored>>,
        read_by: ReadBy,
    ) {
        let now = invocation.now();
        let item = stored.as_deref().map(|stored| &stored.item);
        let entry = item.and_then(Item::entry);
        if entry.is_some_and(is_unsettled) {
            self.forget(&key);
            return;
        }
        let vouched_by = read_by.vouched_by(now);
        // What somebody is at work on changes without a change of the uploads.
        let vouched_by = vouched_by.filter(|_| entry.is_none_or(is_idle));
        let lifetime = match item {
            Some(Item::Entry(entry)) if is_ready_for_long(entry) => {
                invocation.jittered(READY_LIFETIME)
            }
            Some(Item::Alias(_) | Item::Source(_) | Item::Wanted(_)) => {
                invocation.jittered(READY_LIFETIME)
            }
            // A server does not announce what it has: what it said stands until it is asked again.
            Some(Item::Entry(entry)) if !entry.module().source.is_uploads() => {
                let placeholder = entry.missing();
                placeholder.map_or(GENERATION_LIFETIME, |placeholder| {
                    placeholder.retry_at.since(now).min(self.max_age)
                })
            }
            _ if vouched_by.is_some() => Duration::ZERO,
            _ => GENERATION_LIFETIME,
        };
        let remembered = Remembered {
            stored,
            read: Moment::now(invocation),
            lifetime,
            vouched_by,
        };
        self.items.insert(key, remembered);
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
        part: &BlobRange,
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

    /// Notes that a client of a scope asked for the SymCache of a PDB; tells whether one did before.
    pub(super) fn note_asking(&self, scope: &Scope, pdb: DebugId) -> bool {
        let key = (scope.clone(), pdb);
        let is_known = self.asked.get(&key).is_some();
        self.asked.insert(key, ());
        is_known
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

/// Tells whether an entry is ready, and no upload could make it better: the next file of the module is likely to be on its
/// way where there are only symbols so far, or where another file has more.
fn is_ready_for_long(entry: &Entry) -> bool {
    let is_upload = entry.module().source.is_uploads();
    let ready = entry.ready();
    let is_complete = |ready: &Ready| ready.quality == Quality::Preferred && ready.lacks.is_none();
    ready.is_some_and(|ready| !is_upload || is_complete(ready))
}

/// Tells whether somebody is at work on an entry that has nothing to show yet, or something to take back.
fn is_unsettled(entry: &Entry) -> bool {
    entry.suspect().is_some() || (entry.ready().is_none() && !is_idle(entry))
}

/// Tells whether nobody is at work on an entry, or was asked to be.
fn is_idle(entry: &Entry) -> bool {
    entry.build_request().is_none() && entry.lease().is_none()
}

#[cfg(test)]
mod tests;
