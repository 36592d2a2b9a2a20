//! Reads the parts of blobs that a request needs: a whole blob, or the index of a sliced blob and
//! the slices that cover the request's addresses.
//!
//! A sliced blob that the memory does not have costs two sequential round trips: the index, then
//! all slices in parallel. A small blob costs one.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::Semaphore;

use super::memory::{BlobRange, Memory, Opened};
use crate::cache::{Kind, Ready};
use crate::debuginfo::{
    BlobFault, MAX_WHOLE_BYTES, OpenCache, Slice, SliceIndex, SlicedCache, SymCaches,
};
use crate::domain::{Arch, Cause, Missing};
use crate::ports::{BlobStore, Fault};
use crate::symbolicate::{LookupCache, ReadCounts};
use crate::unwind::ModuleCfi;

/// The maximum number of slices of one blob that are read at a time.
const SLICES_IN_FLIGHT: usize = 16;

/// The maximum number of slices of one request that are read and decompressed at a time, over all
/// blobs. It limits the memory that they use in addition to [`HELD_BYTES`]. A whole blob counts as
/// several ([`BYTES_IN_FLIGHT`]).
const ALL_SLICES_IN_FLIGHT: usize = 64;

/// Blobs up to this size, in bytes, are read whole: a second round trip would take longer than the
/// additional bytes.
const SMALL_BLOB: u64 = 256 << 10;

/// The size of the slices that a request holds whole, in bytes. Beyond it, a request holds only the
/// parts of slices that its frames need, because thousands of frames may need thousands of slices.
/// The instance's memory, which has its own limit, keeps the rest.
const HELD_BYTES: usize = 16 << 20;

/// The size of the whole caches that a request holds, decompressed, in bytes: two of the largest. A
/// cache beyond it has no room. Most requests have none, because most kinds are sliced.
const HELD_WHOLE_BYTES: usize = 256 << 20;

/// The stored bytes of a whole blob that count as much as a slice while they are read.
const BYTES_IN_FLIGHT: u64 = 256 << 10;

/// A cache that was loaded for lookups.
#[derive(Clone, Debug)]
pub(super) enum LoadedCache {
    /// The whole blob.
    Whole(OpenCache),
    /// The slices that cover the addresses of the request.
    Sliced(SlicedCache),
}

/// Why a blob cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("the blob does not exist")]
    Gone,
    #[error("the request has no room for the cache")]
    NoRoom,
    #[error(transparent)]
    Damaged(#[from] BlobFault),
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl ReadError {
    /// Returns the reason for callers if the blob is sound, but the request has no room for it.
    pub(super) fn no_room(&self) -> Option<Missing> {
        let limit = HELD_WHOLE_BYTES as u64;
        let detail = "the caches of the other modules take all memory that a request may use: send \
                      the stack traces in several requests";
        matches!(self, Self::NoRoom).then(|| Missing::new(Cause::TooLarge { limit }, detail))
    }
}

/// Opens blobs for one request, and counts the reads.
#[derive(Debug)]
pub(super) struct Opening<'a> {
    /// The bucket of derived caches.
    caches: &'a dyn BlobStore,
    /// The memory of this instance.
    memory: &'a Memory,
    reads: AtomicU64,
    bytes: AtomicU64,
    memory_hits: AtomicU64,
    held: AtomicUsize,
    /// The whole caches that take room, by the paths of their blobs.
    held_whole: Mutex<BTreeMap<String, usize>>,
    in_flight: Semaphore,
}

impl<'a> Opening<'a> {
    pub(super) fn new(caches: &'a dyn BlobStore, memory: &'a Memory) -> Self {
        Self {
            caches,
            memory,
            reads: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            memory_hits: AtomicU64::new(0),
            held: AtomicUsize::new(0),
            held_whole: Mutex::default(),
            in_flight: Semaphore::new(ALL_SLICES_IN_FLIGHT),
        }
    }

    /// Returns the number of reads, of bytes read, and of hits of the memory so far.
    pub(super) fn counts(&self) -> ReadCounts {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ReadCounts {
            reads: count(&self.reads),
            bytes: count(&self.bytes),
            memory_hits: count(&self.memory_hits),
        }
    }

    /// Opens the parts of a blob that are needed to look up addresses. `needed` returns the
    /// addresses for an object of an architecture.
    pub(super) async fn open(
        &self,
        kind: Kind,
        ready: &Ready,
        needed: impl Fn(Arch) -> Vec<u64>,
    ) -> Result<LoadedCache, ReadError> {
        let opened = match ready.blob.index {
            None => self.read_whole(kind, ready).await,
            Some(_) => self.read_slices(kind, ready, needed).await,
        };
        if opened.is_err() {
            self.memory.forget_index(&ready.blob.path);
        }
        opened
    }

    async fn read_whole(&self, kind: Kind, ready: &Ready) -> Result<LoadedCache, ReadError> {
        // The stored size is the compressed size. If it exceeds the limit, so does the content.
        if ready.blob.bytes > MAX_WHOLE_BYTES {
            return Err(BlobFault::TooLarge(ready.blob.bytes).into());
        }
        let part = BlobRange {
            path: ready.blob.path.clone(),
            slice: None,
        };
        let open = async {
            // The semaphore is never closed.
            let _permits = self
                .in_flight
                .acquire_many(permits_of(ready.blob.bytes))
                .await
                .ok();
            let blob = self.read(&part.path, None).await?;
            // A small blob may be large when it is decompressed.
            self.hold_whole(&part.path, OpenCache::raw_bytes(&blob)?)?;
            Ok(Opened::Whole(OpenCache::open(kind, ready, blob)?))
        };
        let opened = self.open_once(&part, open).await?;
        match opened {
            Opened::Whole(cache) => {
                // What this instance remembers takes room, too.
                self.hold_whole(&part.path, cache.raw_length())?;
                Ok(LoadedCache::Whole(cache))
            }
            Opened::Slice(_) => Err(BlobFault::Mismatch("layout").into()),
        }
    }

    /// Reserves the memory of a whole cache, once.
    fn hold_whole(&self, path: &str, raw_bytes: u64) -> Result<(), ReadError> {
        let held = self.held_whole.lock();
        let mut held = held.unwrap_or_else(PoisonError::into_inner);
        hold_whole(&mut held, path, raw_bytes)
    }

    async fn read_slices(
        &self,
        kind: Kind,
        ready: &Ready,
        needed: impl Fn(Arch) -> Vec<u64>,
    ) -> Result<LoadedCache, ReadError> {
        let path = &ready.blob.path;
        let at = ready.blob.index.ok_or(BlobFault::Mismatch("layout"))?;
        let whole = OnceLock::new();
        let index = self.memory.index(path, async {
            let end = at.offset.saturating_add(at.length);
            let bytes = match ready.blob.bytes {
                ..=SMALL_BLOB => {
                    let blob = self.read(path, None).await?;
                    let bytes = range_of(&blob, at.offset..end);
                    let _ = whole.set(blob);
                    bytes
                }
                _ => self.read(path, Some(at.offset..end)).await?,
            };
            Ok::<_, ReadError>(SliceIndex::open(kind, ready, &bytes)?)
        });
        let index = index.await?;
        let mut addresses: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for address in needed(index.arch()) {
            if let Some(number) = index.slice_of(address) {
                addresses.entry(number).or_default().push(address);
            }
        }
        let (index_ref, whole) = (&index, whole.get());
        let slices = stream::iter(addresses)
            .map(async |(number, addresses)| {
                let slice = self.read_slice(path, index_ref, number, whole).await?;
                Ok::<_, ReadError>((number, self.held(slice, &addresses)))
            })
            .buffered(SLICES_IN_FLIGHT)
            .try_collect()
            .await?;
        Ok(LoadedCache::Sliced(SlicedCache { index, slices }))
    }

    async fn read_slice(
        &self,
        path: &str,
        index: &SliceIndex,
        number: u32,
        whole: Option<&Bytes>,
    ) -> Result<Slice, ReadError> {
        let part = BlobRange {
            path: path.to_owned(),
            slice: Some(number),
        };
        let open = async {
            // The semaphore is never closed.
            let _permit = self.in_flight.acquire().await.ok();
            let range = index.range(number).unwrap_or_default();
            let frame = match whole {
                Some(blob) => range_of(blob, range),
                None => self.read(path, Some(range)).await?,
            };
            Ok(Opened::Slice(index.open_slice(number, &frame)?))
        };
        match self.open_once(&part, open).await? {
            Opened::Slice(slice) => Ok(slice),
            Opened::Whole(_) => Err(BlobFault::Mismatch("layout").into()),
        }
    }

    /// Returns the part of a slice that the request holds.
    fn held(&self, slice: Slice, addresses: &[u64]) -> Slice {
        if try_hold(&self.held, slice.memory_bytes(), HELD_BYTES) {
            slice
        } else {
            slice.picked(addresses)
        }
    }

    /// Opens a blob range, unless the memory has it.
    async fn open_once(
        &self,
        part: &BlobRange,
        open: impl Future<Output = Result<Opened, ReadError>>,
    ) -> Result<Opened, ReadError> {
        let mut is_remembered = true;
        let open = async {
            is_remembered = false;
            open.await
        };
        let opened = self.memory.opened(part, open).await;
        self.memory_hits
            .fetch_add(u64::from(is_remembered), Ordering::Relaxed);
        opened
    }

    async fn read(&self, path: &str, range: Option<Range<u64>>) -> Result<Bytes, ReadError> {
        let bytes = self.caches.get(path, range).await?.ok_or(ReadError::Gone)?;
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

/// Returns how many permits the read of a whole blob of this size takes.
fn permits_of(bytes: u64) -> u32 {
    let permits = bytes.div_ceil(BYTES_IN_FLIGHT);
    let permits = permits.clamp(1, ALL_SLICES_IN_FLIGHT as u64);
    u32::try_from(permits).unwrap_or(1)
}

/// Adds bytes to those that a request holds. Returns `false` if there would be more than `most`:
/// then they are not added, so that smaller slices and caches still have room.
fn try_hold(held: &AtomicUsize, bytes: usize, most: usize) -> bool {
    let with = |held: usize| {
        let all = held.checked_add(bytes);
        all.filter(|all| *all <= most)
    };
    held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with)
        .is_ok()
}

/// Returns whether a blob that is not in the memory takes two rounds: its index, then its slices.
pub(super) fn takes_two_rounds(ready: &Ready) -> bool {
    ready.blob.index.is_some() && ready.blob.bytes > SMALL_BLOB
}

/// Returns a range of a blob, truncated to the blob's length.
fn range_of(blob: &Bytes, range: Range<u64>) -> Bytes {
    let within = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(blob.len());
    let (start, end) = (within(range.start), within(range.end));
    blob.slice(start.min(end)..end)
}

impl LoadedCache {
    /// Returns the cache to look addresses up in; `None` if its kind does not match the record.
    pub(super) fn lookup_cache(&self, kind: Kind) -> Option<LookupCache<'_>> {
        match (self, kind) {
            (Self::Whole(cache), Kind::PpdbCache) => cache.ppdb_cache().map(LookupCache::Ppdb),
            _ => self.sym_caches().map(LookupCache::Sym),
        }
    }

    /// Returns the SymCaches; `None` if this is not a SymCache.
    pub(super) fn sym_caches(&self) -> Option<SymCaches<'_>> {
        match self {
            Self::Whole(cache) => Some(cache.sym_cache()?.into()),
            Self::Sliced(cache) => Some(cache.sym_caches()),
        }
    }

    /// Returns the slices that were read; `None` if the cache has none.
    pub(super) fn sliced(&self) -> Option<&SlicedCache> {
        match self {
            Self::Sliced(cache) => Some(cache),
            Self::Whole(_) => None,
        }
    }

    /// Returns the unwind information; `None` if there is none.
    pub(super) fn cfi(&self) -> Option<ModuleCfi> {
        let parts = match self {
            Self::Whole(cache) => {
                let records = cache.cfi().filter(|records| !records.is_empty())?;
                vec![(0..u64::MAX, records)]
            }
            Self::Sliced(cache) if cache.index.is_empty() => return None,
            Self::Sliced(cache) => {
                let parts = cache.cfi();
                parts
                    .map(|(addresses, records)| (addresses, records.clone()))
                    .collect()
            }
        };
        Some(ModuleCfi(parts))
    }
}

/// Reserves the memory of a whole cache, unless it is reserved already.
fn hold_whole(
    held: &mut BTreeMap<String, usize>,
    path: &str,
    raw_bytes: u64,
) -> Result<(), ReadError> {
    let bytes = usize::try_from(raw_bytes.min(MAX_WHOLE_BYTES)).unwrap_or(usize::MAX);
    let left = HELD_WHOLE_BYTES.saturating_sub(held.values().sum());
    if held.contains_key(path) {
        return Ok(());
    }
    if bytes > left {
        return Err(ReadError::NoRoom);
    }
    held.insert(path.to_owned(), bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_that_is_too_large_to_be_held_takes_no_room_from_others() {
        let held = AtomicUsize::new(0);
        let hold = |bytes| try_hold(&held, bytes, HELD_BYTES);
        assert!(hold(HELD_BYTES - 2));
        assert!(!hold(HELD_BYTES) && !hold(usize::MAX));
        assert!(hold(2));
        assert!(!hold(1));
    }

    #[test]
    fn a_request_has_room_for_two_of_the_largest_whole_caches() {
        let mut held = BTreeMap::new();
        let mut hold = |path, bytes| hold_whole(&mut held, path, bytes);
        assert!(hold("a", MAX_WHOLE_BYTES).is_ok());
        assert!(hold("b", u64::MAX).is_ok(), "it cannot be opened");
        assert!(hold("a", MAX_WHOLE_BYTES).is_ok(), "it is held already");
        let refused = hold("c", 1).unwrap_err().no_room().unwrap();
        assert!(
            matches!(refused.cause, Cause::TooLarge { .. }),
            "{refused:?}"
        );
        assert_eq!(ReadError::Gone.no_room(), None);
    }

    #[test]
    fn a_large_whole_blob_is_read_alone() {
        assert_eq!([0, 1, 256 << 10].map(permits_of), [1, 1, 1]);
        assert_eq!(permits_of((256 << 10) + 1), 2);
        assert_eq!([16 << 20, MAX_WHOLE_BYTES].map(permits_of), [64, 64]);
    }
}
