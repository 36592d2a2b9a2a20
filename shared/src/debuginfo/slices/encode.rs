//! Encodes slices as a blob. Several threads cut the slices, compress them, and open each one as a
//! check.

use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::{fmt, thread};

use symbolic::symcache::{SymCache, SymCacheConverter};
use xxhash_rust::xxh3::xxh3_64;
use zstd::zstd_safe::{CParameter, compress_bound};

use super::cfi::{CfiCutter, CfiSource};
use super::cut::{Bounds, Cut, Cutter};
use super::index::SliceRef;
use super::open::{MAX_SLICE_BYTES, open_raw};
use super::sound::{sound_tables, validate};
use super::{index, raw};
use crate::cache::Kind;
use crate::debuginfo::blob;
use crate::debuginfo::blob::{AlignedBytes, BlobFault, Contents, Footer, ZSTD_LEVEL, unfiled};
use crate::debuginfo::failure::{Failure, chain, malformed};
use crate::debuginfo::workers::side_by_side;
use crate::domain::{Arch, DebugId};

/// The minimum match length of zstd for slices, in bytes. Their tables consist of four-byte
/// numbers. The default of the compression level for this size is one byte more and makes blobs up
/// to 2 % larger.
pub(in crate::debuginfo) const MIN_MATCH: u32 = 4;

/// The maximum number of slices that wait for compression.
pub(in crate::debuginfo) const WAITING_SLICES: usize = 4;

/// A compressed slice.
pub(in crate::debuginfo) struct EncodedSlice {
    start: u32,
    raw_length: u64,
    frame: Vec<u8>,
    hash: u64,
}

/// Cuts a SymCache, and encodes the slices as a blob.
pub(in crate::debuginfo) fn encode(
    raw: &[u8],
    contents: &Contents,
    bounds: Bounds,
    workers: usize,
) -> Result<Vec<u8>, Failure> {
    let tables = sound_tables(raw, contents.debug_id).map_err(|problem| cannot_load(&problem))?;
    encode_shared(Cutter::new(tables, bounds), workers, contents)
}

/// Cuts unwind information, and encodes the slices as a blob.
pub(in crate::debuginfo) fn encode_cfi(
    unwinding: &CfiSource,
    contents: &Contents,
    bounds: Bounds,
    workers: usize,
) -> Result<Vec<u8>, Failure> {
    encode_shared(CfiCutter::new(unwinding, bounds), workers, contents)
}

pub(in crate::debuginfo) fn cannot_load(problem: &dyn fmt::Display) -> Failure {
    malformed(format!("the derived cache cannot be loaded: {problem}"))
}

/// Encodes slices. One thread cuts; another compresses and checks each slice.
pub(in crate::debuginfo) fn encode_cuts(
    cutter: impl Iterator<Item = Cut>,
    contents: &Contents,
) -> Result<Vec<u8>, Failure> {
    let encoded = thread::scope(|scope| {
        let (cuts, received) = sync_channel(WAITING_SLICES);
        let encode = move || encode_slices(&received, contents);
        let encoding = thread::Builder::new().spawn_scoped(scope, encode)?;
        for cut in cutter {
            // The receiver is dropped only if the other thread failed; that thread returns the
            // error.
            if cuts.send(cut).is_err() {
                break;
            }
        }
        drop(cuts);
        encoding.join().unwrap_or_else(|panic| resume_unwind(panic))
    })?;
    Ok(assemble(encoded, contents))
}

/// Cuts a plain SymCache with other bounds than the current ones, to measure their cost. Returns
/// the blob.
///
/// # Errors
///
/// What is wrong with the SymCache.
pub fn cut(plain: &[u8], bounds: Bounds) -> Result<Vec<u8>, String> {
    let aligned = AlignedBytes::copied(plain).map_err(|fault| fault.to_string())?;
    let cache = SymCache::parse(aligned.as_slice()).map_err(|error| chain(&error))?;
    let debug_id = Some(cache.debug_id()).filter(|id| !id.is_nil());
    let contents = unfiled(Kind::SymCache, cache.arch(), debug_id);
    encode(aligned.as_slice(), &contents, bounds, 2).map_err(|failure| match failure {
        Failure::Missing(missing) => missing.detail,
        Failure::OutOfMemory => "out of memory".to_owned(),
    })
}

/// Cuts unwind information with the smallest bounds, and parses each slice. Returns the number of
/// slices.
#[cfg(any(test, feature = "testing"))]
pub(in crate::debuginfo) fn recut(unwinding: &CfiSource) -> usize {
    let bounds = Bounds {
        ranges: 1,
        raw_bytes: 1,
    };
    let cuts: Vec<Cut> = CfiCutter::new(unwinding, bounds).collect();
    for cut in &cuts {
        super::CfiRecords::parse(&*cut.raw).expect("what was cut is parsed");
    }
    cuts.len()
}

pub(in crate::debuginfo) fn encode_slices(
    cuts: &Receiver<Cut>,
    contents: &Contents,
) -> Result<Vec<EncodedSlice>, Failure> {
    let mut encoder = SliceEncoder::new()?;
    cuts.iter()
        .map(|cut| encoder.encode(cut, contents))
        .collect()
}

/// Encodes slices with this number of workers. A worker cuts a slice while it holds the lock, and
/// compresses and checks the slice after it has released the lock.
fn encode_shared(
    cutter: impl Iterator<Item = Cut> + Send,
    workers: usize,
    contents: &Contents,
) -> Result<Vec<u8>, Failure> {
    let encoded = encode_in_parallel(cutter, workers, contents, || |cut| [cut])?;
    Ok(assemble(encoded, contents))
}

/// Encodes the slices of all groups with this number of workers, for [`assemble`]. A worker takes a
/// group while it holds the lock, and cuts it after it has released the lock. `cutter` is called
/// once per worker and returns a function from a group to its slices.
pub(in crate::debuginfo) fn encode_in_parallel<G, S, C>(
    groups: impl Iterator<Item = G> + Send,
    workers: usize,
    contents: &Contents,
    cutter: impl Fn() -> C + Sync,
) -> Result<Vec<EncodedSlice>, Failure>
where
    S: IntoIterator<Item = Cut>,
    C: FnMut(G) -> S,
{
    let groups = Mutex::new(groups.enumerate());
    let mut encoded = side_by_side(workers, || {
        let (mut cut, mut encoder) = (cutter(), SliceEncoder::new()?);
        let mut encoded = Vec::new();
        loop {
            let next = groups.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((number, group)) = next else {
                return Ok::<_, Failure>(encoded);
            };
            for cut in cut(group) {
                encoded.push((number, encoder.encode(cut, contents)?));
            }
        }
    })?;
    // One worker has encoded all slices of a group, in their order.
    encoded.sort_by_key(|(number, _)| *number);
    Ok(encoded.into_iter().map(|(_, slice)| slice).collect())
}

/// Compresses slices, and opens each one like a reader.
pub(in crate::debuginfo) struct SliceEncoder {
    compressor: zstd::bulk::Compressor<'static>,
    /// Memory for a copy of a slice whose own memory is not aligned. The system would have to clear
    /// new memory for each.
    words: Vec<u64>,
    /// Memory for a compressed slice.
    room: Vec<u8>,
}

impl SliceEncoder {
    fn new() -> Result<Self, Failure> {
        let mut compressor = zstd::bulk::Compressor::new(ZSTD_LEVEL)?;
        compressor.set_parameter(CParameter::MinMatch(MIN_MATCH))?;
        Ok(Self {
            compressor,
            words: Vec::new(),
            room: Vec::new(),
        })
    }

    fn encode(&mut self, cut: Cut, contents: &Contents) -> Result<EncodedSlice, Failure> {
        let Cut { start, raw } = cut;
        let raw_length = raw.len() as u64;
        if raw_length > MAX_SLICE_BYTES {
            return Err(malformed(format!(
                "the slice at {start:#x} has {raw_length} bytes; the limit is {MAX_SLICE_BYTES}"
            )));
        }
        // The compressor needs as much room as the slice has.
        self.room.clear();
        self.room.reserve(compress_bound(raw.len()));
        self.compressor.compress_to_buffer(&raw, &mut self.room)?;
        let frame = self.room.clone();
        try_out(start, &raw, &mut self.words, contents).map_err(|fault| cannot_load(&fault))?;
        Ok(EncodedSlice {
            start,
            raw_length,
            hash: xxh3_64(&frame),
            frame,
        })
    }
}

/// Returns the first bytes of a SymCache: magic, version, debug id, architecture.
pub(in crate::debuginfo) fn head(arch: Arch, debug_id: Option<DebugId>) -> Vec<u8> {
    let mut converter = SymCacheConverter::new();
    converter.set_arch(arch);
    converter.set_debug_id(debug_id.unwrap_or_default());
    let mut empty = Vec::new();
    // Writing to memory does not fail.
    let _ = converter.serialize(&mut empty);
    empty.truncate(raw::HEAD_BYTES);
    empty
}

/// Returns the first addresses of the ranges of a SymCache.
#[cfg(test)]
pub(in crate::debuginfo) fn starts_of(raw: &[u8]) -> Vec<u32> {
    let tables = super::raw::SymCacheTables::read(raw).expect("a SymCache");
    tables.ranges.to_vec()
}

/// Opens a decompressed slice like a reader. In a SymCache, looks up its first address; `words` is
/// the memory for an aligned copy, if one is needed.
fn try_out(
    start: u32,
    raw: &[u8],
    words: &mut Vec<u64>,
    contents: &Contents,
) -> Result<(), BlobFault> {
    const CALLS: usize = 1024;
    if contents.kind != Kind::SymCache {
        return open_raw(AlignedBytes::copied(raw)?, contents).map(drop);
    }
    let aligned = if raw.as_ptr().addr().is_multiple_of(align_of::<u64>()) {
        raw
    } else {
        aligned_copy(raw, words)?
    };
    validate(aligned, contents.debug_id).map_err(BlobFault::Cache)?;
    let cache = SymCache::parse(aligned).map_err(|error| BlobFault::Cache(chain(&error)))?;
    for location in cache.lookup(start.into()).take(CALLS) {
        let _ = (
            location.function().name(),
            location.file().map(|file| file.full_path()),
        );
    }
    Ok(())
}

/// Copies bytes to aligned memory.
fn aligned_copy<'w>(raw: &[u8], words: &'w mut Vec<u64>) -> Result<&'w [u8], BlobFault> {
    let more = raw.len().div_ceil(8).saturating_sub(words.len());
    let room = words.try_reserve(more);
    room.map_err(|_| BlobFault::TooLarge(raw.len() as u64))?;
    words.resize(words.len() + more, 0);
    let aligned: &mut [u8] = bytemuck::cast_slice_mut(words);
    let aligned = aligned.get_mut(..raw.len()).unwrap_or_default();
    aligned.copy_from_slice(raw);
    Ok(aligned)
}

/// Puts a blob together.
pub(in crate::debuginfo) fn assemble(encoded: Vec<EncodedSlice>, contents: &Contents) -> Vec<u8> {
    let length: usize = encoded.iter().map(|slice| slice.frame.len()).sum();
    let mut blob = Vec::with_capacity(length + encoded.len() * 17 + blob::FOOTER_BYTES);
    let mut slices = Vec::with_capacity(encoded.len());
    for EncodedSlice {
        start,
        raw_length,
        frame,
        hash,
    } in encoded
    {
        slices.push(SliceRef {
            start,
            offset: blob.len() as u64,
            length: frame.len() as u64,
            raw_length,
            hash,
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
