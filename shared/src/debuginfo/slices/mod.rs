//! Sliced blobs: a SymCache or a CFI cache cut into slices that can be read one by one. Version 2 of both kinds.
//!
//! A stack of thirty frames needs thirty places of a SymCache of a hundred megabytes. So the address space is cut, and each *slice* is
//! a whole SymCache of its own, of the ranges from its first address to that of the next: `symbolic` looks up in it as in
//! any other. A slice of a CFI cache is a Breakpad symbol file of the records that it needs. Only the cutting is ours.
//!
//! ```text
//! slices   a zstd frame each, in the order of their addresses; decompresses to a SymCache (see `raw`), or to records (see `cfi`)
//! index    where each slice begins, how long it is, how to know it (see `index`)
//! footer   112 bytes, as that of a whole blob (see `super::blob`), but for
//!    27    1  one: it is sliced
//!    28    4  the number of slices; none where there is nothing to look up
//!    80    8  the length of all slices together, decompressed
//!    88    8  the length of the index
//!    96    8  xxh3-64 of the index
//! ```
//!
//! The record says where the index begins; its checksum is that of index and footer, which are read at once. The index has
//! the checksums of the slices. So whatever is read is known by what was read before, from the record on.
//!
//! An example: three functions, at `0x10`, `0x20` and `0x30`, cut after every second range:
//!
//! ```text
//! slice 0  ranges 0x10, 0x20; both functions, their files, their names
//! slice 1  range  0x30; one function, its file, its name
//! index    10 <length> <raw length> <hash>, 20 <length> <raw length> <hash>       (0x30 is 0x20 after 0x10)
//! ```
//!
//! A lookup of `0x25` finds slice 0, the last one that begins at or before it, reads and opens that, and has `symbolic` look up
//! `0x25` in it. One of `0x05` finds no slice, and nothing is read.

mod cfi;
mod cut;
mod index;
mod join;
mod raw;
#[cfg(test)]
pub(super) mod tests;

use std::fmt;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use symbolic::symcache::{SYMCACHE_VERSION, SymCache, SymCacheConverter};
use xxhash_rust::xxh3::xxh3_64;
use zstd::zstd_safe::CParameter;

use self::cfi::CfiCutter;
use self::cut::Cutter;
use self::index::SliceRef;
use self::join::JoinedSlices;
use super::blob::{self, AlignedBytes, BlobFault, Contents, Footer, ZSTD_LEVEL};
use super::build::{Failure, malformed};
use super::inspect::chain;
use super::workers::side_by_side;
use crate::cache::{Converter, IndexRef, Kind, Ready, current_version};
use crate::domain::{Arch, DebugId, Features, FileType};

pub use self::cfi::CfiRecords;
pub(super) use self::cfi::CfiSource;
pub use self::cut::Bounds;
pub(super) use self::cut::Cut;
pub(super) use self::raw::{
    NOWHERE, RawFile, RawFunction, RawLocation, SymCacheTables, write_string,
};

impl Bounds {
    /// How large slices are: `docs/performance.md` has the measurements that decided it.
    pub const CURRENT: Self = Self {
        ranges: 2200,
        raw_bytes: 256 << 10,
    };
}

/// The most that a slice may hold, in bytes: one range alone may need as many names as it likes.
const MAX_SLICE_BYTES: u64 = 64 << 20;

/// The shortest repetition that zstd looks for in slices, in bytes: their tables are of numbers of four. One byte more, as its level has
/// it for texts of that size, stores up to 2 % more.
const MIN_MATCH: u32 = 4;

/// Slices that may wait to be compressed.
const WAITING_SLICES: usize = 4;

/// A slice that is sealed.
struct EncodedSlice {
    start: u32,
    raw_length: u64,
    frame: Vec<u8>,
}

/// Cuts a SymCache, and seals the slices as a blob.
pub(super) fn encode(raw: &[u8], contents: &Contents, bounds: Bounds) -> Result<Vec<u8>, Failure> {
    let tables = sound_tables(raw, contents.debug_id).map_err(|problem| cannot_load(&problem))?;
    encode_cuts(Cutter::new(tables, bounds), contents)
}

/// Cuts unwind information, and seals the slices as a blob.
pub(super) fn encode_cfi(
    unwinding: &CfiSource,
    contents: &Contents,
    bounds: Bounds,
) -> Result<Vec<u8>, Failure> {
    encode_cuts(CfiCutter::new(unwinding, bounds), contents)
}

fn cannot_load(problem: &dyn fmt::Display) -> Failure {
    malformed(format!(
        "what was derived cannot be loaded again: {problem}"
    ))
}

/// Seals slices. One thread cuts; another compresses, and opens each slice.
fn encode_cuts(cutter: impl Iterator<Item = Cut>, contents: &Contents) -> Result<Vec<u8>, Failure> {
    let encoded = thread::scope(|scope| {
        let (cuts, received) = sync_channel(WAITING_SLICES);
        let encode = move || encode_slices(&received, contents);
        let encoding = thread::Builder::new().spawn_scoped(scope, encode)?;
        for cut in cutter {
            // Nobody listens any more only if the other thread failed: it says why.
            if cuts.send(cut).is_err() {
                break;
            }
        }
        drop(cuts);
        encoding.join().unwrap_or_else(|panic| resume_unwind(panic))
    })?;
    Ok(assemble(encoded, contents))
}

/// Cuts a plain SymCache within other bounds than the current ones: to see what they would cost. Returns the blob.
///
/// # Errors
///
/// What is wrong with the SymCache.
pub fn cut(plain: &[u8], bounds: Bounds) -> Result<Vec<u8>, String> {
    let aligned = AlignedBytes::copied(plain).map_err(|fault| fault.to_string())?;
    let cache = SymCache::parse(aligned.as_slice()).map_err(|error| chain(&error))?;
    let debug_id = Some(cache.debug_id()).filter(|id| !id.is_nil());
    let contents = unfiled(Kind::SymCache, cache.arch(), debug_id);
    encode(aligned.as_slice(), &contents, bounds).map_err(|failure| match failure {
        Failure::Missing(missing) => missing.detail,
        Failure::OutOfMemory => "there is not enough memory".to_owned(),
    })
}

/// Returns what a blob says that is made of no DIF.
pub(super) fn unfiled(kind: Kind, arch: Arch, debug_id: Option<DebugId>) -> Contents {
    Contents {
        kind,
        version: current_version(kind),
        converter: Converter::CURRENT,
        arch,
        debug_id,
        rank: 0,
        file_type: FileType::Breakpad,
        features: Features::default(),
    }
}

/// Cuts unwind information within the smallest bounds, and parses each slice. Returns how many there are.
#[cfg(any(test, feature = "testing"))]
pub(super) fn recut(unwinding: &CfiSource) -> usize {
    let bounds = Bounds {
        ranges: 1,
        raw_bytes: 1,
    };
    let cuts: Vec<Cut> = CfiCutter::new(unwinding, bounds).collect();
    for cut in &cuts {
        CfiRecords::parse(&*cut.raw).expect("what was cut is parsed");
    }
    cuts.len()
}

fn encode_slices(cuts: &Receiver<Cut>, contents: &Contents) -> Result<Vec<EncodedSlice>, Failure> {
    let mut encoder = SliceEncoder::new()?;
    cuts.iter()
        .map(|cut| encoder.encode(cut, contents))
        .collect()
}

/// Seals slices of parts, as a blob, with so many workers. `cutter` returns what makes the slices of a part, by its number, for one
/// worker.
pub(super) fn encode_in_parallel<C: FnMut(usize) -> Vec<Cut>>(
    parts: usize,
    workers: usize,
    contents: &Contents,
    cutter: impl Fn() -> C + Sync,
) -> Result<Vec<u8>, Failure> {
    let next = AtomicUsize::new(0);
    let work = || {
        let (mut cut, mut encoder) = (cutter(), SliceEncoder::new()?);
        let mut encoded = Vec::new();
        loop {
            let part = next.fetch_add(1, Ordering::Relaxed);
            if part >= parts {
                return Ok::<_, Failure>(encoded);
            }
            for cut in cut(part) {
                encoded.push(encoder.encode(cut, contents)?);
            }
        }
    };
    let mut encoded = side_by_side(workers, work)?;
    encoded.sort_unstable_by_key(|slice| slice.start);
    Ok(assemble(encoded, contents))
}

/// Compresses slices, and checks each as a reader will that has decompressed it.
struct SliceEncoder {
    compressor: zstd::bulk::Compressor<'static>,
}

impl SliceEncoder {
    fn new() -> Result<Self, Failure> {
        let mut compressor = zstd::bulk::Compressor::new(ZSTD_LEVEL)?;
        compressor.set_parameter(CParameter::MinMatch(MIN_MATCH))?;
        Ok(Self { compressor })
    }

    fn encode(&mut self, cut: Cut, contents: &Contents) -> Result<EncodedSlice, Failure> {
        let Cut { start, raw } = cut;
        let raw_length = raw.len() as u64;
        if raw_length > MAX_SLICE_BYTES {
            return Err(malformed(format!(
                "what there is at {start:#x} takes {raw_length} bytes"
            )));
        }
        let frame = self.compressor.compress(&raw)?;
        try_out(start, &raw, contents).map_err(|fault| cannot_load(&fault))?;
        Ok(EncodedSlice {
            start,
            raw_length,
            frame,
        })
    }
}

/// Returns what a SymCache begins with: magic, version, debug id, architecture.
pub(super) fn head(arch: Arch, debug_id: DebugId) -> Vec<u8> {
    let mut converter = SymCacheConverter::new();
    converter.set_arch(arch);
    converter.set_debug_id(debug_id);
    let mut empty = Vec::new();
    // Writing to memory does not fail.
    let _ = converter.serialize(&mut empty);
    empty.truncate(raw::HEAD_BYTES);
    empty
}

/// Returns the first addresses of the ranges of a SymCache.
#[cfg(test)]
pub(super) fn starts_of(raw: &[u8]) -> Vec<u32> {
    let tables = SymCacheTables::read(raw).expect("a SymCache");
    tables.ranges.to_vec()
}

/// Opens a slice, and looks up its first address, as a reader will that has decompressed it.
fn try_out(start: u32, raw: &[u8], contents: &Contents) -> Result<(), BlobFault> {
    const CALLS: usize = 1024;
    let slice = open_raw(AlignedBytes::copied(raw)?, contents)?;
    if let Some(cache) = slice.sym_cache() {
        for location in cache.lookup(start.into()).take(CALLS) {
            let _ = (
                location.function().name(),
                location.file().map(|file| file.full_path()),
            );
        }
    }
    Ok(())
}

fn open_raw(raw: AlignedBytes, contents: &Contents) -> Result<Slice, BlobFault> {
    match contents.kind {
        Kind::SymCache => {
            validate(raw.as_slice(), contents.debug_id).map_err(BlobFault::Cache)?;
            Ok(Slice::Sym(Arc::new(raw)))
        }
        Kind::CfiCache => CfiRecords::parse(raw.as_slice())
            .map(Slice::Cfi)
            .map_err(BlobFault::Cache),
        Kind::PpdbCache | Kind::MsSymCache(_) => Err(BlobFault::Mismatch("layout")),
    }
}

fn assemble(encoded: Vec<EncodedSlice>, contents: &Contents) -> Vec<u8> {
    let length: usize = encoded.iter().map(|slice| slice.frame.len()).sum();
    let mut blob = Vec::with_capacity(length + encoded.len() * 17 + blob::FOOTER_BYTES);
    let mut slices = Vec::with_capacity(encoded.len());
    for EncodedSlice {
        start,
        raw_length,
        frame,
    } in encoded
    {
        slices.push(SliceRef {
            start,
            offset: blob.len() as u64,
            length: frame.len() as u64,
            raw_length,
            hash: xxh3_64(&frame),
        });
        blob.extend_from_slice(&frame);
    }
    let index = index::write(&slices);
    let footer = Footer {
        slices: Some(u32::try_from(slices.len()).unwrap_or(u32::MAX)),
        raw_length: slices.iter().map(|slice| slice.raw_length).sum(),
        length: index.len() as u64,
        hash: xxh3_64(&index),
    };
    blob.extend_from_slice(&index);
    blob.extend_from_slice(&blob::footer(contents, &footer));
    blob
}

/// Checks a SymCache so far that no lookup in it can go wrong; else says what is wrong with it.
pub(super) fn validate(raw: &[u8], debug_id: Option<DebugId>) -> Result<(), String> {
    sound_tables(raw, debug_id).map(|_| ())
}

fn sound_tables(raw: &[u8], debug_id: Option<DebugId>) -> Result<SymCacheTables<'_>, String> {
    let cache = SymCache::parse(raw).map_err(|error| chain(&error))?;
    if cache.version() != SYMCACHE_VERSION {
        return Err(format!("it is a SymCache of version {}", cache.version()));
    }
    if Some(cache.debug_id()).filter(|id| !id.is_nil()) != debug_id {
        return Err(format!("it is the SymCache of {}", cache.debug_id()));
    }
    SymCacheTables::read(raw)
        .filter(|tables| tables.validate().is_some())
        .ok_or_else(|| "its inlined calls do not add up".to_owned())
}

/// Returns how long a SymCache is that begins with these bytes; `None` where its header is not whole.
pub(super) fn length_of(begin: &[u8]) -> Option<u64> {
    (begin.len() == raw::HEADER_BYTES)
        .then(|| SymCacheTables::length_of(begin))
        .flatten()
}

/// Returns where the index of a blob is, its footer included; `None` for a whole one.
pub fn index_of(blob: &[u8]) -> Option<IndexRef> {
    let (_, footer) = blob::split_footer(blob).ok()?;
    footer.slices?;
    let length = footer.length.checked_add(blob::FOOTER_BYTES as u64)?;
    Some(IndexRef {
        offset: (blob.len() as u64).checked_sub(length)?,
        length,
    })
}

/// Returns the checksum that a record carries: of index and footer, or of the whole blob where it is not sliced.
pub fn checksum(blob: &[u8]) -> u64 {
    let index = index_of(blob).and_then(|index| blob.get(usize::try_from(index.offset).ok()?..));
    xxh3_64(index.unwrap_or(blob))
}

/// Returns the checksum of a blob that is none of ours, by which its record knows it.
pub fn checksum_of_all(blob: &[u8]) -> u64 {
    xxh3_64(blob)
}

/// Tells whether all bytes of a blob are what its record says.
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
    contents: Arc<Contents>,
    slices: Arc<[SliceRef]>,
}

impl SliceIndex {
    /// Checks an index, its footer included, against the record that names its blob, and opens it.
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

    /// Opens the index of a blob of which there is no record yet.
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
            .ok_or(BlobFault::Footer("its index does not add up"))?;
        Ok(Self {
            contents: Arc::new(contents),
            slices: slices.into(),
        })
    }

    /// Opens an index that nothing vouches for.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn unchecked(index: &[u8], count: u32, frames: u64) -> Option<Self> {
        Some(Self {
            contents: Arc::new(unfiled(Kind::SymCache, Arch::Unknown, None)),
            slices: index::read(index, count, frames, MAX_SLICE_BYTES)?.into(),
        })
    }

    /// Returns the architecture of the object.
    pub fn arch(&self) -> Arch {
        self.contents.arch
    }

    /// Returns the number of the slice that answers for an address; `None` where there is nothing.
    pub fn slice_of(&self, address: u64) -> Option<u32> {
        let address = u32::try_from(address).ok()?;
        let after = self.slices.partition_point(|slice| slice.start <= address);
        u32::try_from(after.checked_sub(1)?).ok()
    }

    /// Returns where a slice is in its blob.
    pub fn range(&self, slice: u32) -> Option<Range<u64>> {
        Some(self.slices.get(slice as usize)?.range())
    }

    /// Checks a slice against the index, and opens it.
    pub fn open_slice(&self, slice: u32, frame: &[u8]) -> Result<Slice, BlobFault> {
        let slice = self.slices.get(slice as usize);
        let slice = slice.ok_or(BlobFault::Footer("there is no such slice"))?;
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

    /// Returns the SymCache that was cut into a blob, as other tools read it. It answers the same, byte by byte it is another.
    pub fn join(&self, blob: &[u8]) -> Result<Vec<u8>, BlobFault> {
        let mut joined = JoinedSlices::default();
        for (number, slice) in (0..).zip(&*self.slices) {
            let range = slice.range();
            let frame = usize::try_from(range.start)
                .ok()
                .zip(usize::try_from(range.end).ok())
                .and_then(|(start, end)| blob.get(start..end));
            let slice = self.open_slice(number, frame.unwrap_or_default())?;
            joined.add(&slice).ok_or(BlobFault::Mismatch("kind"))?;
        }
        Ok(joined.finish(self))
    }

    /// Returns how many bytes all slices have, decompressed.
    pub fn raw_bytes(&self) -> u64 {
        self.slices.iter().map(|slice| slice.raw_length).sum()
    }

    /// Returns how many slices there are.
    pub fn len(&self) -> usize {
        self.slices.len()
    }

    /// Tells whether there is nothing to look up.
    pub fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    /// Returns what it costs to keep it in memory, in bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.slices) + size_of::<Contents>()
    }

    /// Returns the addresses that a slice answers for.
    fn addresses(&self, slice: u32) -> Option<Range<u64>> {
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
}

impl Slice {
    /// Returns the SymCache in it. Costs the parsing of a header.
    fn sym_cache(&self) -> Option<SymCache<'_>> {
        match self {
            Self::Sym(raw) => SymCache::parse(raw.as_slice()).ok(),
            Self::Cfi(_) => None,
        }
    }

    /// Returns what of it some addresses are looked up in: a little of a SymCache, all of the rest.
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

/// A sliced cache, and those of its slices that are needed.
#[derive(Clone, Debug)]
pub struct SlicedCache {
    /// The index.
    pub index: SliceIndex,
    /// Slices by their numbers.
    pub slices: Vec<(u32, Slice)>,
}

impl SlicedCache {
    /// Returns what can be looked up in.
    pub fn sym_caches(&self) -> super::SymCaches<'_> {
        let batches = self.slices.iter().filter_map(|(number, slice)| {
            Some((self.index.addresses(*number)?, slice.sym_cache()?))
        });
        super::SymCaches::of(self.index.arch(), batches)
    }

    /// Returns the unwind information, by the addresses that each slice answers for.
    pub fn cfi(&self) -> impl Iterator<Item = (Range<u64>, &CfiRecords)> {
        self.slices
            .iter()
            .filter_map(|(number, slice)| match slice {
                Slice::Cfi(records) => Some((self.index.addresses(*number)?, records)),
                Slice::Sym(_) => None,
            })
    }
}
