//! The sizes of one program's SymCache, cut with several bounds.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use symbolic::common::ByteView;
use symbolic::debuginfo::Object;
use symdepot::debuginfo::{Bounds, SliceIndex, cut, index_of};

use crate::bench_real::program::Program;
use crate::bench_real::{BenchError, percentile, plain};

/// Frames of a stack.
const FRAMES: usize = 30;

/// Blobs up to this length are read in one call, as in `flows/opening.rs`.
const READ_AT_ONCE: u64 = 256 << 10;

/// The compared maximum numbers of ranges in a slice. The bound of bytes is proportional: 131 bytes
/// per range, as now.
pub const RANGES: [usize; 9] = [250, 500, 1000, 2200, 4000, 8000, 16_000, 32_000, 64_000];

/// The compared maximum numbers of bytes in a slice, at the current bound of ranges. The last one
/// is no bound.
pub const RAW_BYTES: [usize; 5] = [64 << 10, 128 << 10, 256 << 10, 512 << 10, usize::MAX];

/// The compared levels of zstd.
pub const LEVELS: [i32; 5] = [1, 3, 6, 9, 19];

/// The measurements of a program.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The size of the debug file, in bytes.
    pub dif: u64,
    /// The size of the plain SymCache, in bytes.
    pub plain: u64,
    /// The processor time of deriving the plain SymCache.
    pub derived: Duration,
    /// The size of the SymCache as one frame, as version 1 of the kind stored it.
    pub whole: u64,
    /// By maximum number of ranges in a slice, as in [`RANGES`].
    pub by_ranges: Vec<Sizes>,
    /// By maximum number of bytes in a slice, as in [`RAW_BYTES`].
    pub by_bytes: Vec<Sizes>,
    /// By level, as in [`LEVELS`], with the current bounds.
    pub by_level: Vec<Level>,
    /// By level, with half as many ranges and bytes.
    pub by_level_of_half: Vec<Level>,
}

/// The results of one pair of bounds, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// The bounds.
    pub bounds: Bounds,
    /// The number of slices.
    pub slices: usize,
    /// The size of the blob.
    pub stored: u64,
    /// The size of its index, with the footer.
    pub index: u64,
    /// The size of the longest slice, compressed.
    pub longest: u64,
    /// Bytes read for a cold stack of random frames, index and slices; the median.
    pub read: u64,
    /// The maximum of these.
    pub most_read: u64,
    /// The processor time of cutting, compressing and checking.
    pub took: Duration,
}

/// The results of one level of zstd.
#[derive(Clone, Copy, Debug)]
pub struct Level {
    /// The size of the blob, in bytes.
    pub stored: u64,
    /// Bytes read for a cold stack of random frames; the median.
    pub read: u64,
    /// The processor time of compressing alone.
    pub took: Duration,
}

impl Measured {
    /// Measures a program with this many random stacks.
    ///
    /// # Errors
    /// [`BenchError::Dif`] if it has no SymCache, or its SymCache cannot be cut.
    pub fn of(program: &Program, stacks: usize, seed: u64) -> Result<Self, BenchError> {
        let unreadable = |reason: String| BenchError::Dif {
            path: program.debug.clone(),
            reason,
        };
        let began = processor_time();
        let view = ByteView::open(&program.debug).map_err(BenchError::file(&program.debug))?;
        let object = Object::parse(&view).map_err(|error| unreadable(error.to_string()))?;
        let symcache = plain::symcache(&object).map_err(unreadable)?;
        let derived = since(began);
        let whole = zstd::bulk::compress(&symcache, plain::ZSTD_LEVEL)
            .map_err(BenchError::file(&program.debug))?
            .len();
        let addresses = program.addresses(stacks * FRAMES, seed);
        let sizes = |bounds: Bounds| -> Result<(Vec<u8>, Sizes), BenchError> {
            let began = processor_time();
            let blob = cut(&symcache, bounds).map_err(unreadable)?;
            let took = since(began);
            let sizes = Sizes::of(&blob, bounds, took, &addresses).map_err(unreadable)?;
            Ok((blob, sizes))
        };
        let levels = |bounds| -> Result<Vec<Level>, BenchError> {
            let (blob, _) = sizes(bounds)?;
            let level = |level: &i32| Level::of(&blob, *level, &addresses);
            let levels: std::io::Result<_> = LEVELS.iter().map(level).collect();
            levels.map_err(|error| unreadable(error.to_string()))
        };
        Ok(Self {
            dif: view.len() as u64,
            plain: symcache.len() as u64,
            derived,
            whole: whole as u64,
            by_ranges: RANGES
                .iter()
                .map(|ranges| Ok(sizes(in_proportion(*ranges))?.1))
                .collect::<Result<_, BenchError>>()?,
            by_bytes: RAW_BYTES
                .iter()
                .map(|raw_bytes| {
                    let bounds = Bounds {
                        raw_bytes: *raw_bytes,
                        ..Bounds::CURRENT
                    };
                    Ok(sizes(bounds)?.1)
                })
                .collect::<Result<_, BenchError>>()?,
            by_level: levels(Bounds::CURRENT)?,
            by_level_of_half: levels(in_proportion(Bounds::CURRENT.ranges / 2))?,
        })
    }

    /// Returns the results of the current bounds.
    pub fn current(&self) -> Option<&Sizes> {
        self.by_ranges
            .iter()
            .find(|sizes| sizes.bounds == Bounds::CURRENT)
    }
}

impl Sizes {
    fn of(blob: &[u8], bounds: Bounds, took: Duration, addresses: &[u64]) -> Result<Self, String> {
        let index = SliceIndex::of_blob(blob).map_err(|fault| fault.to_string())?;
        let at = index_of(blob).ok_or("the blob has no index")?;
        let length = |slice| {
            index
                .range(slice)
                .map_or(0, |range| range.end - range.start)
        };
        let stored = blob.len() as u64;
        let reads = reads(&index, addresses, stored, at.length, length);
        let count = u32::try_from(index.len()).unwrap_or(u32::MAX);
        Ok(Self {
            bounds,
            slices: index.len(),
            stored,
            index: at.length,
            longest: (0..count).map(length).max().unwrap_or(0),
            read: percentile(&reads, 50) as u64,
            most_read: percentile(&reads, 100) as u64,
            took,
        })
    }
}

impl Level {
    /// Compresses the slices of a blob with another level.
    fn of(blob: &[u8], level: i32, addresses: &[u64]) -> std::io::Result<Self> {
        let missing = || std::io::Error::other("a slice is outside the blob");
        let index = SliceIndex::of_blob(blob).map_err(std::io::Error::other)?;
        let index_length = index_of(blob).ok_or_else(missing)?.length;
        let mut lengths = Vec::with_capacity(index.len());
        let mut compressor = zstd::bulk::Compressor::new(level)?;
        let mut took = Duration::ZERO;
        for slice in 0..u32::try_from(index.len()).unwrap_or(u32::MAX) {
            let range = index.range(slice).ok_or_else(missing)?;
            let frame = usize::try_from(range.start)
                .ok()
                .zip(usize::try_from(range.end).ok())
                .and_then(|(start, end)| blob.get(start..end));
            let raw = zstd::stream::decode_all(frame.ok_or_else(missing)?)?;
            let began = processor_time();
            let compressed = compressor.compress(&raw)?;
            took += since(began);
            lengths.push(compressed.len() as u64);
        }
        let stored = index_length + lengths.iter().sum::<u64>();
        let length = |slice| lengths.get(slice as usize).copied().unwrap_or(0);
        let reads = reads(&index, addresses, stored, index_length, length);
        Ok(Self {
            stored,
            read: percentile(&reads, 50) as u64,
            took,
        })
    }
}

/// Returns the bytes read for each cold stack: index and slices, or all of a short blob.
fn reads(
    index: &SliceIndex,
    addresses: &[u64],
    stored: u64,
    index_length: u64,
    length: impl Fn(u32) -> u64,
) -> Vec<f64> {
    let read = |stack: &[u64]| {
        if stored <= READ_AT_ONCE {
            return stored as f64;
        }
        let slices = stack.iter().filter_map(|address| index.slice_of(*address));
        let slices: BTreeSet<u32> = slices.collect();
        (index_length + slices.into_iter().map(&length).sum::<u64>()) as f64
    };
    addresses.chunks(FRAMES).map(read).collect()
}

/// Returns bounds with this many ranges, and a proportional number of bytes.
fn in_proportion(ranges: usize) -> Bounds {
    let Bounds {
        ranges: now,
        raw_bytes,
    } = Bounds::CURRENT;
    Bounds {
        ranges,
        raw_bytes: raw_bytes * ranges / now,
    }
}

/// Returns the processor time of this process. Other load on the machine affects it less than
/// wall-clock time.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

fn since(began: Duration) -> Duration {
    processor_time().saturating_sub(began)
}
