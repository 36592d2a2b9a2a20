//! Runs symdepot's parser process as the `derive` function does, and measures it.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use symdepot::adapters::parser::{ParserLimits, ProcessDeriver};
use symdepot::adapters::scratch::ScratchSpace;
use symdepot::cache::{DeriveJob, Kind, ReleaseNumbers};
use symdepot::domain::{ObjectMeta, Written};
use symdepot::ports::{Deriver, ParseError};
use symdepot::runtime::parser;

use super::BenchError;
use crate::stack::{Binaries, Process};

/// Limits that no file of this benchmark reaches.
const LIMITS: ParserLimits = ParserLimits {
    memory_bytes: 16 << 30,
    cpu_seconds: 900,
    needs_seccomp: true,
};

/// The size of the chunks in which a file is passed to the parser.
const CHUNK: usize = 8 << 20;

/// What symdepot's parser process made of a file, and what it took.
#[derive(Debug)]
pub struct Made {
    /// From the start of the parser until the last blob is received.
    pub took: Duration,
    /// The processor time of the process, of all its threads.
    pub processor: Duration,
    /// The peak resident memory of the process.
    pub peak_bytes: u64,
    /// The blob of the first SymCache.
    pub symcache: Bytes,
}

/// Limits this process and its children to fewer cores while this value lives.
#[derive(Debug)]
pub struct Cores(CpuSet);

impl Cores {
    /// Uses the first of the available cores, this many.
    ///
    /// # Errors
    /// The system does not allow it.
    pub fn first(count: usize) -> Result<Self, BenchError> {
        let all = sched_getaffinity(None).map_err(no_core)?;
        let available = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core));
        let mut first = CpuSet::new();
        available.take(count).for_each(|core| first.set(core));
        Self::set(&first)?;
        Ok(Self(all))
    }

    /// Sets the cores of all threads, because each of them may start a process, which inherits
    /// them.
    fn set(cores: &CpuSet) -> Result<(), BenchError> {
        let tasks = Path::new("/proc/self/task");
        for task in std::fs::read_dir(tasks).map_err(BenchError::file(tasks))? {
            let name = task.map_err(BenchError::file(tasks))?.file_name();
            let id = name.to_str().and_then(|name| name.parse().ok());
            sched_setaffinity(id.and_then(Pid::from_raw), cores).map_err(no_core)?;
        }
        Ok(())
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        // This restores the earlier state, which was possible before.
        let _ = Self::set(&self.0);
    }
}

fn no_core(errno: Errno) -> BenchError {
    BenchError::Tool {
        tool: "this program on one core".to_owned(),
        source: errno.into(),
    }
}

/// Returns symdepot's deriver, with scratch space for a file of `size` bytes beside that file.
pub fn deriver(binaries: &Binaries, path: &Path, size: u64) -> ProcessDeriver {
    let folder = path.parent().unwrap_or(Path::new("."));
    let scratch = ScratchSpace::new(folder, 4 * size + (1 << 30));
    ProcessDeriver::new(binaries.get("derive"), LIMITS, scratch)
}

/// Returns the jobs to derive all caches of an object.
pub fn jobs_of(object: &ObjectMeta) -> Vec<DeriveJob> {
    let job = |kind: &Kind| DeriveJob::of(*kind, &object.features, &ReleaseNumbers::CURRENT);
    let kinds = Kind::derived_from(object.file_type).iter();
    kinds.map(job).collect()
}

/// Derives the caches of a file as the function does: a file in scratch space, a parser process,
/// blobs through a pipe. The time is from the start of the parser until the last blob is received.
///
/// # Errors
/// The parser fails.
pub async fn run(binaries: &Binaries, path: &Path) -> Result<Made, BenchError> {
    let data = std::fs::read(path).map_err(BenchError::file(path))?;
    let size = data.len() as u64;
    let deriver = deriver(binaries, path, size);
    let mut dif = deriver.reserve(size)?;
    let data = Bytes::from(data);
    for at in (0..data.len()).step_by(CHUNK) {
        dif.write_at(at as u64, data.slice(at..data.len().min(at + CHUNK)))
            .await
            .map_err(ParseError::from)?;
    }
    drop(data);

    let mut symcache = Bytes::new();
    let began = Instant::now();
    let mut session = deriver.open(dif, Written::Whole).await?;
    let inspection = session.inspect().await?;
    for (index, object) in inspection.objects.iter().enumerate() {
        for answer in session.derive(index, &jobs_of(object)).await? {
            let derived = answer.map_err(|missing| BenchError::Dif {
                path: path.to_owned(),
                reason: missing.detail,
            })?;
            if derived.kind == Kind::SymCache && symcache.is_empty() {
                symcache = derived.blob;
            }
        }
    }
    let took = began.elapsed();
    let is_parser = |process: &&Process| {
        process
            .arguments
            .get(1)
            .is_some_and(|argument| argument == parser::COMMAND)
    };
    let family = Process::tree(std::process::id());
    let process = family.iter().find(is_parser);
    Ok(Made {
        took,
        processor: process.map_or(Duration::ZERO, Process::cpu_time),
        peak_bytes: process.map_or(0, |process| process.memory().1),
        symcache,
    })
}
