//! Plain `symbolic`: the same caches of the same file, derived sequentially in one process.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use symbolic::cfi::CfiCache;
use symbolic::common::ByteView;
use symbolic::debuginfo::Object;
use symbolic::symcache::SymCacheConverter;

use super::BenchError;

/// The subcommand with which this program runs [`derive()`].
pub const PLAIN: &str = "plain";

/// The subcommand with which this program runs [`derive_in_turn`].
pub const IN_TURN: &str = "in-turn";

/// The compression level of blobs.
pub const ZSTD_LEVEL: i32 = 3;

/// The results of a plain process: sizes in bytes, and the time.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Work {
    /// From opening the file to the last compressed byte, in seconds.
    pub seconds: f64,
    /// The processor time of the process until then, in seconds.
    pub processor_seconds: f64,
    /// The peak resident memory of the process, including the file.
    pub peak_bytes: u64,
    /// The SymCache.
    pub symcache: Sizes,
    /// The CFI cache.
    pub cficache: Sizes,
}

/// Sizes of one cache in bytes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Sizes {
    /// Uncompressed.
    pub raw: u64,
    /// Compressed.
    pub compressed: u64,
}

/// Derives the caches of a file in this process.
///
/// # Errors
/// [`BenchError::Dif`] if `symbolic` fails.
pub fn derive(path: &Path) -> Result<Work, BenchError> {
    let began = Instant::now();
    let unreadable = |reason: String| BenchError::Dif {
        path: path.to_owned(),
        reason,
    };
    let view = ByteView::open(path).map_err(BenchError::file(path))?;
    let object = Object::parse(&view).map_err(|error| unreadable(error.to_string()))?;
    let symcache =
        compressed(&symcache(&object).map_err(unreadable)?).map_err(BenchError::file(path))?;
    let cfi = CfiCache::from_object(&object).map_err(|error| unreadable(error.to_string()))?;
    let cficache = compressed(cfi.as_slice()).map_err(BenchError::file(path))?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(Work {
        seconds,
        processor_seconds: own_processor_seconds(),
        peak_bytes: own_peak(),
        symcache,
        cficache,
    })
}

/// Returns the SymCache of an object.
///
/// # Errors
/// The error of `symbolic`.
pub fn symcache(object: &Object<'_>) -> Result<Vec<u8>, String> {
    let mut converter = SymCacheConverter::new();
    converter
        .process_object(object)
        .map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    converter
        .serialize(&mut bytes)
        .map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// Returns the SymCache of a file.
///
/// # Errors
/// [`BenchError::Dif`] if `symbolic` fails.
pub fn symcache_of(path: &Path) -> Result<Vec<u8>, BenchError> {
    let view = ByteView::open(path).map_err(BenchError::file(path))?;
    let object = Object::parse(&view).map_err(|error| BenchError::dif(path, error.to_string()))?;
    symcache(&object).map_err(|reason| BenchError::dif(path, reason))
}

/// Derives the caches of a file in this process sequentially, with all the work that symdepot's
/// parser process does.
///
/// # Errors
/// [`BenchError::Dif`] if the file cannot be read.
pub fn derive_in_turn(path: &Path) -> Result<Work, BenchError> {
    let began = Instant::now();
    let view = ByteView::open(path).map_err(BenchError::file(path))?;
    let blobs = symdepot::debuginfo::derive_in_turn(&view);
    let blobs = blobs.map_err(|failure| BenchError::dif(path, format!("{failure:?}")))?;
    let sizes = blobs.map(|blob| Sizes {
        raw: 0,
        compressed: blob.len() as u64,
    });
    Ok(Work {
        seconds: began.elapsed().as_secs_f64(),
        processor_seconds: own_processor_seconds(),
        peak_bytes: own_peak(),
        symcache: sizes[0],
        cficache: sizes[1],
    })
}

/// Derives the caches of a file in its own process: this program with a subcommand. Returns the
/// results, and the time from the start of the process to its end.
///
/// # Errors
/// The process cannot be started, or fails.
pub fn in_own_process(command: &str, path: &Path) -> Result<(Work, Duration), BenchError> {
    let failed = |source| BenchError::Tool {
        tool: "this program".to_owned(),
        source,
    };
    let began = Instant::now();
    let output = std::process::Command::new(std::env::current_exe().map_err(failed)?)
        .arg(command)
        .arg(path)
        .output()
        .map_err(failed)?;
    let took = began.elapsed();
    let work = serde_json::from_slice(&output.stdout).map_err(|error| BenchError::Answer {
        what: "the output of the plain process",
        found: format!("{error}; {}", String::from_utf8_lossy(&output.stderr)),
    })?;
    Ok((work, took))
}

fn compressed(raw: &[u8]) -> std::io::Result<Sizes> {
    let compressed = zstd::bulk::compress(raw, ZSTD_LEVEL)?;
    Ok(Sizes {
        raw: raw.len() as u64,
        compressed: compressed.len() as u64,
    })
}

fn own_processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Source: `man 5 proc_pid_status`, VmHWM.
fn own_peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes =
        line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}
