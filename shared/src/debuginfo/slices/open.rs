//! Opens sliced blobs: first the index, then single slices.

use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use symbolic::symcache::SymCache;
use xxhash_rust::xxh3::xxh3_64;

use super::cfi_records::CfiRecords;
use super::index::SliceRef;
use super::sources::{FoundLines, SourceChunks};
use super::{SymCacheTables, cut, index, validate};
use crate::cache::{IndexRef, Kind, Ready};
use crate::debuginfo::blob;
use crate::debuginfo::blob::{AlignedBytes, BlobFault, Contents};
use crate::debuginfo::open::SymCaches;
use crate::domain::Arch;

/// The maximum size of a slice, decompressed, in bytes. [`Bounds`](super::Bounds) does not limit a
/// slice of a single range.
pub(in crate::debuginfo) const MAX_SLICE_BYTES: u64 = 64 << 20;

pub(in crate::debuginfo) fn open_raw(
    raw: AlignedBytes,
    contents: &Contents,
) -> Result<Slice, BlobFault> {
    match contents.kind {
        Kind::SymCache => {
            validate(raw.as_slice(), contents.debug_id).map_err(BlobFault::Cache)?;
            Ok(Slice::Sym(Arc::new(raw)))
        }
        Kind::CfiCache => CfiRecords::parse(raw.as_slice())
            .map(Slice::Cfi)
            .map_err(BlobFault::Cache),
        Kind::SourceCode => SourceChunks::parse(raw.as_slice())
            .map(Slice::SourceCode)
            .map_err(BlobFault::Cache),
        Kind::PpdbCache | Kind::MsSymCache(_) => Err(BlobFault::Mismatch("layout")),
    }
}

/// Returns the place of the index of a blob, including the footer; `None` if the blob is not
/// sliced.
pub fn index_of(blob: &[u8]) -> Option<IndexRef> {
    let (_, footer) = blob::split_footer(blob).ok()?;
    footer.slices?;
    let length = footer.length.checked_add(blob::FOOTER_BYTES as u64)?;
    Some(IndexRef {
        offset: (blob.len() as u64).checked_sub(length)?,
        length,
    })
}

/// Returns the checksum for the record: of index and footer, or of the whole blob if it is not
/// sliced.
pub fn checksum(blob: &[u8]) -> u64 {
    let index = index_of(blob).and_then(|index| blob.get(usize::try_from(index.offset).ok()?..));
    xxh3_64(index.unwrap_or(blob))
}

/// Returns the checksum for the record of a blob in a foreign format: it covers all bytes.
pub fn checksum_of_all(blob: &[u8]) -> u64 {
    xxh3_64(blob)
}

/// Returns whether all bytes of a blob match its record.
pub fn is_sound(kind: Kind, ready: &Ready, blob: &[u8]) -> bool {
    if blob.len() as u64 != ready.blob.bytes {
        return false;
    }
    let Some(at) = ready.blob.index else {
        return checksum_of_all(blob) == ready.blob.checksum;
    };
    let part = |range: Range<u64>| {
        let (from, to) = (
            usize::try_from(range.start).ok()?,
            usize::try_from(range.end).ok()?,
        );
        blob.get(from..to)
    };
    let index = part(at.offset..ready.blob.bytes).map(|index| SliceIndex::open(kind, ready, index));
    let Some(Ok(index)) = index else {
        return false;
    };
    index
        .slices
        .iter()
        .all(|slice| part(slice.range()).is_some_and(|frame| xxh3_64(frame) == slice.hash))
}

/// The index of a sliced blob. Cheap to clone.
#[derive(Clone)]
pub struct SliceIndex {
    pub(super) contents: Arc<Contents>,
    pub(super) slices: Arc<[SliceRef]>,
}

impl SliceIndex {
    /// Verifies an index with its footer against the record of the blob, and opens it.
    pub fn open(kind: Kind, ready: &Ready, bytes: &[u8]) -> Result<Self, BlobFault> {
        let at = ready.blob.index.ok_or(BlobFault::Mismatch("layout"))?;
        let found = bytes.len() as u64;
        if found != at.length {
            return Err(BlobFault::Size {
                expected: at.length,
                found,
            });
        }
        if xxh3_64(bytes) != ready.blob.checksum {
            return Err(BlobFault::Checksum);
        }
        let index = Self::read(bytes, at.offset)?;
        blob::check(&index.contents, kind, ready)?;
        Ok(index)
    }

    /// Opens the index of a blob that has no record yet.
    pub fn of_blob(blob: &[u8]) -> Result<Self, BlobFault> {
        let at = index_of(blob).ok_or(BlobFault::Footer("it is not sliced"))?;
        let bytes = usize::try_from(at.offset)
            .ok()
            .and_then(|at| blob.get(at..));
        Self::read(bytes.unwrap_or_default(), at.offset)
    }

    fn read(bytes: &[u8], frames: u64) -> Result<Self, BlobFault> {
        let (contents, footer) = blob::split_footer(bytes)?;
        let count = footer.slices.ok_or(BlobFault::Footer("it is not sliced"))?;
        let index = &bytes[..bytes.len() - blob::FOOTER_BYTES];
        if (index.len() as u64, xxh3_64(index)) != (footer.length, footer.hash) {
            return Err(BlobFault::Checksum);
        }
        let slices = index::read(index, count, frames, MAX_SLICE_BYTES)
            .ok_or(BlobFault::Footer("its index is inconsistent"))?;
        Ok(Self {
            contents: Arc::new(contents),
            slices: slices.into(),
        })
    }

    /// Opens an index without verifying a checksum.
    #[cfg(any(test, feature = "testing"))]
    pub(in crate::debuginfo) fn unchecked(index: &[u8], count: u32, frames: u64) -> Option<Self> {
        Some(Self {
            contents: Arc::new(blob::unfiled(Kind::SymCache, Arch::Unknown, None)),
            slices: index::read(index, count, frames, MAX_SLICE_BYTES)?.into(),
        })
    }

    /// Returns the architecture of the object.
    pub fn arch(&self) -> Arch {
        self.contents.arch
    }

    /// Returns the number of the slice that covers an address; `None` if no slice does.
    pub fn slice_of(&self, address: u64) -> Option<u32> {
        let address = u32::try_from(address).ok()?;
        let after = self.slices.partition_point(|slice| slice.start <= address);
        u32::try_from(after.checked_sub(1)?).ok()
    }

    /// Returns the byte range of a slice in its blob.
    pub fn range(&self, slice: u32) -> Option<Range<u64>> {
        Some(self.slices.get(slice as usize)?.range())
    }

    /// Verifies a slice against the index, and opens it.
    pub fn open_slice(&self, slice: u32, frame: &[u8]) -> Result<Slice, BlobFault> {
        let slice = self.slices.get(slice as usize);
        let slice = slice.ok_or(BlobFault::Footer("it has no such slice"))?;
        let found = frame.len() as u64;
        if found != slice.length {
            return Err(BlobFault::Size {
                expected: slice.length,
                found,
            });
        }
        if xxh3_64(frame) != slice.hash {
            return Err(BlobFault::Checksum);
        }
        open_raw(blob::decompress(frame, slice.raw_length)?, &self.contents)
    }

    /// Returns the total size of all slices, decompressed, in bytes.
    pub fn raw_bytes(&self) -> u64 {
        self.slices.iter().map(|slice| slice.raw_length).sum()
    }

    /// Returns the number of slices.
    pub fn len(&self) -> usize {
        self.slices.len()
    }

    /// Returns whether the cache has no slices.
    pub fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    /// Returns what it costs to keep it in memory, in bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.slices) + size_of::<Contents>()
    }

    /// Returns the addresses that a slice covers.
    pub(super) fn addresses(&self, slice: u32) -> Option<Range<u64>> {
        let start = self.slices.get(slice as usize)?.start;
        let next = self.slices.get(slice as usize + 1);
        let end = next.map_or(u64::from(u32::MAX) + 1, |next| next.start.into());
        Some(start.into()..end)
    }
}

impl fmt::Debug for SliceIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SliceIndex")
            .field("contents", &self.contents)
            .field("slices", &self.slices.len())
            .finish()
    }
}

/// A slice, open for lookups. Cheap to clone: clones share the bytes.
#[derive(Clone)]
pub enum Slice {
    /// A SymCache.
    Sym(Arc<AlignedBytes>),
    /// Unwind information.
    Cfi(CfiRecords),
    /// Source lines.
    SourceCode(SourceChunks),
}

impl Slice {
    /// Returns the SymCache in the slice. Parses its header on every call.
    pub(super) fn sym_cache(&self) -> Option<SymCache<'_>> {
        match self {
            Self::Sym(raw) => SymCache::parse(raw.as_slice()).ok(),
            Self::Cfi(_) | Self::SourceCode(_) => None,
        }
    }

    /// Returns a slice reduced to what lookups of these addresses need. Only SymCaches are reduced.
    pub fn picked(&self, addresses: &[u64]) -> Self {
        let Self::Sym(raw) = self else {
            return self.clone();
        };
        let tables = SymCacheTables::read(raw.as_slice());
        let picked = tables.map(|tables| cut::picked(tables, addresses));
        match picked.map(|picked| AlignedBytes::copied(&picked)) {
            Some(Ok(picked)) => Self::Sym(Arc::new(picked)),
            Some(Err(_)) | None => self.clone(),
        }
    }

    /// Returns what it costs to keep it in memory, in bytes.
    pub fn memory_bytes(&self) -> usize {
        match self {
            Self::Sym(raw) => raw.memory_bytes() + size_of::<AlignedBytes>(),
            Self::Cfi(records) => records.memory_bytes(),
            Self::SourceCode(chunks) => chunks.memory_bytes(),
        }
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slice")
            .field("bytes", &self.memory_bytes())
            .finish()
    }
}

/// A sliced cache with the slices that were loaded.
#[derive(Clone, Debug)]
pub struct SlicedCache {
    /// The index.
    pub index: SliceIndex,
    /// The loaded slices with their numbers.
    pub slices: Vec<(u32, Slice)>,
}

impl SlicedCache {
    /// Returns the slices for address lookups.
    pub fn sym_caches(&self) -> SymCaches<'_> {
        let batches = self.slices.iter().filter_map(|(number, slice)| {
            Some((self.index.addresses(*number)?, slice.sym_cache()?))
        });
        SymCaches::of(self.index.arch(), batches)
    }

    /// Returns the unwind information of each slice, with the addresses that the slice covers.
    pub fn cfi(&self) -> impl Iterator<Item = (Range<u64>, &CfiRecords)> {
        self.slices
            .iter()
            .filter_map(|(number, slice)| match slice {
                Slice::Cfi(records) => Some((self.index.addresses(*number)?, records)),
                Slice::Sym(_) | Slice::SourceCode(_) => None,
            })
    }

    /// Returns these lines of a source file, as far as the loaded slices have them.
    pub fn source_lines(&self, path: &str, lines: RangeInclusive<u32>) -> FoundLines {
        let mut found = FoundLines::default();
        for (_, slice) in &self.slices {
            if let Slice::SourceCode(chunks) = slice {
                chunks.find(path, &lines, &mut found);
            }
        }
        found.lines.sort_by_key(|(number, _)| *number);
        found.lines.dedup_by_key(|(number, _)| *number);
        found
    }
}
