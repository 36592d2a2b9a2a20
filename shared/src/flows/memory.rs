//! The memory of a warm instance: items, opened blobs up to a number of bytes, demangled names, and
//! what access tokens grant.
//!
//! An item is valid for a time after it was read. Items about the uploads of a scope stay valid for
//! longer, while the [`Generation`] of the scope is unchanged. The generation is read again at most
//! every two seconds. If it is the one that was read *before* the item, no file was uploaded or
//! removed since. So a warm request whose modules are ready makes no call at all. A request with
//! modules that have no upload, or whose uploads have only symbols, reads one item per scope.
//!
//! An item expires as soon as one of two clocks says so (`Moment`).
//!
//! An item that this instance changes is forgotten at once.

use std::sync::Arc;
use std::time::Duration;

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::Invocation;
use super::known_tokens::KnownTokens;
use super::moment::Moment;
use crate::cache::{Entry, Generation, Item, ItemKey, Kind, Ready, Stored, Token};
use crate::debuginfo::{OpenCache, Slice, SliceIndex};
use crate::domain::{DebugId, Quality, Scope, Timestamp};
use crate::symbolicate::NameMemory;

/// The maximum number of remembered items; each takes some hundred bytes.
const MAX_ITEMS: usize = 20_000;

/// The maximum number of scopes whose generation is remembered.
const MAX_SCOPES: usize = 1_000;

/// The maximum number of PDBs for which the requests of Microsoft's clients are remembered.
const MAX_REQUESTED: usize = 10_000;

/// The maximum number of requests of which it is remembered when they were last `pending`.
const MAX_PENDING_REQUESTS: usize = 1_000;

/// The maximum size of the remembered demangled names, in bytes.
const MAX_NAME_BYTES: u64 = 10 << 20;

/// How long a ready entry that no upload can improve is valid before the generation of its scope is
/// checked. It ensures that a removed file disappears from all responses within a minute.
const READY_LIFETIME: Duration = Duration::from_secs(45);

/// How long a generation is valid, and any item that no generation validates. After this time,
/// every instance sees a new upload.
const GENERATION_LIFETIME: Duration = Duration::from_secs(2);

/// A generation that was read in parallel with an item validates the item only if it began at least
/// this long ago. Otherwise the change might lie between the two reads. The clocks of two functions
/// differ by less than this.
const SETTLED_AFTER: Duration = Duration::from_secs(300);

/// The memory of an instance.
#[derive(Debug)]
pub struct Memory {
    items: Cache<ItemKey, Remembered>,
    generations: Cache<Scope, KnownGeneration>,
    /// The maximum age of a remembered item, even if the generation is unchanged.
    max_age: Duration,
    opened: Cache<BlobRange, Opened, WeighBytes>,
    indexes: Cache<String, SliceIndex, WeighBytes>,
    names: NameMemory,
    requested: Cache<(Scope, DebugId), ()>,
    /// When requests were last answered `pending`, by their ids.
    pending: Cache<String, Moment>,
    tokens: KnownTokens,
}

#[derive(Clone, Debug)]
struct Remembered {
    stored: Option<Arc<Stored>>,
    read: Moment,
    /// How long it is valid without a check of the generation.
    lifetime: Duration,
    /// The scope and the generation that validate it.
    validated_by: Option<(Scope, SeenGeneration)>,
}

#[derive(Clone, Debug)]
struct KnownGeneration {
    seen: SeenGeneration,
    read: Moment,
}

/// The generation of a scope as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SeenGeneration {
    /// There is none, because no upload was ever processed in the scope.
    NoUploads,
    /// The last change of the scope's uploads.
    Change(Token),
}

impl SeenGeneration {
    /// Returns the generation that was read; `None` if it does not exist.
    pub(super) fn of(read: Option<&Generation>) -> Self {
        read.map_or(Self::NoUploads, |generation| {
            Self::Change(generation.change.clone())
        })
    }
}

/// How an item was read.
#[derive(Clone, Debug)]
pub(super) enum ReadBy {
    /// With strong consistency, after this generation of its scope was read.
    AfterGeneration(Scope, SeenGeneration),
    /// With strong consistency, in parallel with this generation of its scope.
    WithGeneration(Scope, Option<Generation>),
    /// In another way: no generation validates it.
    Unvalidated,
}

/// When and how an item was read.
#[derive(Clone, Debug)]
pub(super) struct ItemRead {
    /// The time before the call to the store. A later change may be missing.
    at: Moment,
    by: ReadBy,
}

impl ReadBy {
    /// Returns this, with the time before the call to the store.
    pub(super) fn at(self, at: Moment) -> ItemRead {
        ItemRead { at, by: self }
    }

    fn validated_by(self, now: Timestamp) -> Option<(Scope, SeenGeneration)> {
        match self {
            Self::AfterGeneration(scope, seen) => Some((scope, seen)),
            Self::WithGeneration(scope, None) => Some((scope, SeenGeneration::NoUploads)),
            Self::WithGeneration(scope, Some(generation)) => {
                let is_settled = now.since(generation.began_at) >= SETTLED_AFTER;
                is_settled.then_some((scope, SeenGeneration::Change(generation.change)))
            }
            Self::Unvalidated => None,
        }
    }
}

/// What the memory has of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Recalled {
    /// Valid: the item, or `None` if it does not exist.
    Valid(Option<Arc<Stored>>),
    /// Valid if the generation of its scope is unchanged.
    NeedsValidation,
    /// Not remembered, or expired.
    Unknown,
}

/// A part of a blob that is opened: a slice or the whole blob.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct BlobRange {
    /// The path of the blob.
    pub(super) path: String,
    /// The number of the slice; `None` for a whole blob.
    pub(super) slice: Option<u32>,
}

/// An opened blob range.
#[derive(Clone, Debug)]
pub(super) enum Opened {
    /// A whole blob.
    Whole(OpenCache),
    /// A slice.
    Slice(Slice),
}

#[derive(Clone, Debug)]
struct WeighBytes;

impl Weighter<BlobRange, Opened> for WeighBytes {
    fn weight(&self, part: &BlobRange, opened: &Opened) -> u64 {
        let bytes = match opened {
            Opened::Whole(cache) => cache.memory_bytes(),
            Opened::Slice(slice) => slice.memory_bytes(),
        };
        (size_of::<BlobRange>() + part.path.len() + bytes) as u64
    }
}

impl Weighter<String, SliceIndex> for WeighBytes {
    fn weight(&self, path: &String, index: &SliceIndex) -> u64 {
        (path.len() + index.memory_bytes()) as u64
    }
}

/// Returns a cache of `max_bytes`. It has one shard, because a single large program may take most
/// of it.
fn by_bytes<K, V>(max_bytes: u64) -> Cache<K, V, WeighBytes>
where
    K: Eq + std::hash::Hash,
    V: Clone,
    WeighBytes: Weighter<K, V> + Clone,
{
    let options = quick_cache::OptionsBuilder::new()
        .estimated_items_capacity(1_000)
        .weight_capacity(max_bytes)
        .shards(1)
        .build();
    match options {
        Ok(options) => Cache::with_options(
            options,
            WeighBytes,
            Default::default(),
            quick_cache::sync::DefaultLifecycle::default(),
        ),
        Err(_) => Cache::with_weighter(1_000, max_bytes, WeighBytes),
    }
}

impl Memory {
    /// Returns an empty memory. It keeps up to `max_bytes` of opened blobs, with their indexes, and
    /// no item is valid for longer than `max_age`.
    pub fn new(max_bytes: u64, max_age: Duration) -> Self {
        // A slice is useless without its index, so indexes have their own share, from which slices
        // cannot evict them.
        let of_indexes = max_bytes / 8;
        Self {
            items: Cache::new(MAX_ITEMS),
            generations: Cache::new(MAX_SCOPES),
            max_age,
            opened: by_bytes(max_bytes - of_indexes),
            indexes: by_bytes(of_indexes),
            names: NameMemory::new(MAX_NAME_BYTES),
            requested: Cache::new(MAX_REQUESTED),
            pending: Cache::new(MAX_PENDING_REQUESTS),
            tokens: KnownTokens::default(),
        }
    }

    /// Returns what this instance knows of access tokens.
    pub(super) fn tokens(&self) -> &KnownTokens {
        &self.tokens
    }

    /// Returns what the memory has of an item.
    pub(super) fn recall(&self, invocation: &Invocation, key: &ItemKey) -> Recalled {
        self.recall_for(invocation, key, Duration::ZERO)
    }

    /// Returns what the memory has of an item, which is valid for `valid_for` or longer.
    pub(super) fn recall_for(
        &self,
        invocation: &Invocation,
        key: &ItemKey,
        valid_for: Duration,
    ) -> Recalled {
        let Some(remembered) = self.items.get(key) else {
            return Recalled::Unknown;
        };
        let age = remembered.read.elapsed(invocation);
        if age < remembered.lifetime.max(valid_for) {
            return Recalled::Valid(remembered.stored);
        }
        match &remembered.validated_by {
            Some((scope, seen)) if age < self.max_age => match self.generation(invocation, scope) {
                Some(current) if current == *seen => Recalled::Valid(remembered.stored),
                Some(_) => Recalled::Unknown,
                None => Recalled::NeedsValidation,
            },
            _ => Recalled::Unknown,
        }
    }

    /// Returns the generation of a scope, if it was read within the last two seconds.
    pub(super) fn generation(
        &self,
        invocation: &Invocation,
        scope: &Scope,
    ) -> Option<SeenGeneration> {
        let known = self.generations.get(scope)?;
        (known.read.elapsed(invocation) < GENERATION_LIFETIME).then_some(known.seen)
    }

    /// Returns the generation of a scope as it was last read, however long ago.
    pub(super) fn last_generation(&self, scope: &Scope) -> Option<SeenGeneration> {
        self.generations.get(scope).map(|known| known.seen)
    }

    /// Remembers the generation of a scope, whose read began at this time.
    pub(super) fn remember_generation(&self, read: Moment, scope: Scope, seen: SeenGeneration) {
        self.generations
            .insert(scope, KnownGeneration { seen, read });
    }

    /// Remembers an item that was read, but not an entry that is about to change.
    pub(super) fn remember(
        &self,
        invocation: &Invocation,
        key: ItemKey,
        stored: Option<Arc<Stored>>,
        read: ItemRead,
    ) {
        let now = read.at.time();
        let item = stored.as_deref().map(|stored| &stored.item);
        let entry = item.and_then(Item::entry);
        if entry.is_some_and(is_unsettled) {
            self.forget(&key);
            return;
        }
        let validated_by = read.by.validated_by(now);
        // An entry with a pending build changes without a new generation.
        let validated_by = validated_by.filter(|_| entry.is_none_or(is_idle));
        let lifetime = match item {
            Some(Item::Entry(entry)) if is_unlikely_to_improve(entry) => {
                invocation.jittered(READY_LIFETIME)
            }
            Some(Item::Alias(_) | Item::Source(_) | Item::Wanted(_)) => {
                invocation.jittered(READY_LIFETIME)
            }
            // Symbol servers send no events. A placeholder is valid until the next attempt is due.
            Some(Item::Entry(entry)) if !entry.module().source.is_uploads() => {
                let placeholder = entry.missing();
                placeholder.map_or(GENERATION_LIFETIME, |placeholder| {
                    placeholder.retry_at.since(now).min(self.max_age)
                })
            }
            _ if validated_by.is_some() => Duration::ZERO,
            _ => GENERATION_LIFETIME,
        };
        let remembered = Remembered {
            stored,
            read: read.at,
            lifetime,
            validated_by,
        };
        self.items.insert(key, remembered);
    }

    /// Removes an item that this instance changed, or that turned out to be wrong.
    pub(super) fn forget(&self, key: &ItemKey) {
        self.items.remove(key);
    }

    /// Returns an opened blob range; calls `open` if it is not remembered.
    ///
    /// Concurrent calls for the same range are single-flight: one opens it, and the others wait.
    pub(super) async fn opened<E>(
        &self,
        part: &BlobRange,
        open: impl Future<Output = Result<Opened, E>>,
    ) -> Result<Opened, E> {
        self.opened.get_or_insert_async(part, open).await
    }

    /// Returns the index of a blob by its path; calls `open` if it is not remembered.
    pub(super) async fn index<E>(
        &self,
        path: &str,
        open: impl Future<Output = Result<SliceIndex, E>>,
    ) -> Result<SliceIndex, E> {
        self.indexes.get_or_insert_async(path, open).await
    }

    /// Removes the index of a blob that does not match its record.
    pub(super) fn forget_index(&self, path: &str) {
        self.indexes.remove(path);
    }

    /// Records that a client of a scope requested the SymCache of a PDB. Returns whether one did so
    /// before.
    pub(super) fn note_request(&self, scope: &Scope, pdb: DebugId) -> bool {
        let key = (scope.clone(), pdb);
        let is_known = self.requested.get(&key).is_some();
        self.requested.insert(key, ());
        is_known
    }

    /// Records that a request is answered `pending` now.
    pub(super) fn note_pending(&self, invocation: &Invocation, id: &str) {
        self.pending.insert(id.to_owned(), Moment::now(invocation));
    }

    /// Returns the time since this instance last answered a request with `pending`, if it did.
    pub(super) fn since_pending(&self, invocation: &Invocation, id: &str) -> Option<Duration> {
        let noted = self.pending.get(id)?;
        Some(noted.elapsed(invocation))
    }

    /// Returns the remembered demangled names.
    pub(super) fn names(&self) -> &NameMemory {
        &self.names
    }

    /// Returns the size of the opened blobs and indexes, in bytes.
    pub fn bytes(&self) -> u64 {
        self.opened.weight() + self.indexes.weight()
    }
}

/// Returns whether an entry is ready and no upload is likely to improve it. If it has only symbols,
/// or lacks information that another file has, the next file of the module may arrive soon. Of a
/// SymCache in Microsoft's format, a newer version may arrive.
fn is_unlikely_to_improve(entry: &Entry) -> bool {
    let is_upload = entry.module().source.is_uploads();
    let has_versions = matches!(entry.kind(), Kind::MsSymCache(_));
    let is_complete = |ready: &Ready| {
        ready.quality == Quality::Preferred && ready.lacks.is_none() && !has_versions
    };
    let ready = entry.ready();
    ready.is_some_and(|ready| !is_upload || is_complete(ready))
}

/// Returns whether an entry is about to change: it is suspect, or it has no ready state and a build
/// of it is pending.
fn is_unsettled(entry: &Entry) -> bool {
    entry.suspect().is_some() || (entry.ready().is_none() && !is_idle(entry))
}

/// Returns whether no build of an entry is in progress or requested.
fn is_idle(entry: &Entry) -> bool {
    entry.build_request().is_none() && entry.lease().is_none()
}

#[cfg(test)]
mod tests;
