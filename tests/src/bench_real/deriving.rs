//! Deriving caches: time and memory of symdepot's parser process, and of the whole function,
//! compared with a plain process.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use symdepot::adapters::parser::{ParserLimits, ProcessDeriver};
use symdepot::adapters::scratch::ScratchSpace;
use symdepot::cache::{BuildNumbers, DeriveJob, Kind};
use symdepot::domain::Written;
use symdepot::ports::{Deriver, ParseError};
use symdepot::runtime::parser;

use super::plain::{self, Work};
use super::program::Program;
use super::report::{Report, Row, bytes, ratio};
use super::{BenchError, PATIENCE, percentile};
use crate::stack::{Binaries, LocalStack, Process};

/// Limits that no file of this benchmark reaches.
const LIMITS: ParserLimits = ParserLimits {
    memory_bytes: 16 << 30,
    cpu_seconds: 900,
    needs_sandbox: true,
};

/// The size of the chunks in which a file is passed to the parser.
const CHUNK: usize = 8 << 20;

/// The measurements of symdepot's parser process.
struct Ours {
    took: Duration,
    peak_bytes: u64,
    /// The size of the SymCache's blob.
    symcache_bytes: u64,
}

/// Derives the caches of a file repeatedly, alternating between symdepot's parser process and a
/// plain process, and compares the medians.
///
/// # Errors
/// One of them fails.
pub async fn against_plain(
    binaries: &Binaries,
    name: &str,
    path: &Path,
    runs: usize,
    report: &mut Report,
) -> Result<(), BenchError> {
    let (mut plain_runs, mut our_runs) = (Vec::new(), Vec::new());
    for _ in 0..runs.max(1) {
        plain_runs.push(plain::in_own_process(plain::PLAIN, path)?);
        our_runs.push(ours(binaries, path).await?);
    }
    let median = |seconds: Vec<f64>| percentile(&seconds, 50);
    let plain_time = median(
        plain_runs
            .iter()
            .map(|(_, took)| took.as_secs_f64())
            .collect(),
    );
    let plain_peak = median(
        plain_runs
            .iter()
            .map(|(work, _)| work.peak_bytes as f64)
            .collect(),
    );
    let our_time = median(our_runs.iter().map(|run| run.took.as_secs_f64()).collect());
    let our_peak = median(our_runs.iter().map(|run| run.peak_bytes as f64).collect());
    let work = plain_runs
        .first()
        .map(|(work, _)| *work)
        .unwrap_or_default();

    let group = format!("Deriving {name}");
    let Work {
        symcache, cficache, ..
    } = work;
    let shrinks =
        |sizes: plain::Sizes| format!("{} → {}", bytes(sizes.raw), bytes(sizes.compressed));
    report.add(&group, Row::new("SymCache, raw → zstd", shrinks(symcache)));
    report.add(&group, Row::new("CFI cache, raw → zstd", shrinks(cficache)));
    let stored = our_runs.first().map_or(0, |run| run.symcache_bytes);
    let share = stored as f64 / symcache.raw.max(1) as f64;
    report.add(
        &group,
        Row::new(
            format!(
                "SymCache in slices: {}, relative to the plain one",
                bytes(stored)
            ),
            ratio(share),
        )
        .target("≤ 0.35 ×", share <= 0.35),
    );
    report.add(
        &group,
        Row::new("plain symbolic, one process", format!("{plain_time:.2} s")),
    );
    report.add(
        &group,
        Row::new("symdepot's parser process", format!("{our_time:.2} s")),
    );
    let time = our_time / plain_time;
    // Only large files have the strict targets: for a small file, several threads do not pay off,
    // and its memory does not matter. A small file with unwind information has no target, because
    // symdepot parses that information, and plain `symbolic` leaves it to the unwinder.
    let is_large = plain_time >= 1.0;
    let row = Row::new("time, relative to plain", ratio(time));
    report.add(
        &group,
        match (is_large, cficache.raw) {
            (true, _) => row.target("≤ 0.40 ×", time <= 0.40),
            (false, 0) => row.target("≤ 1.1 ×", time <= 1.1),
            (false, _) => row,
        },
    );
    report.add(
        &group,
        Row::new("peak memory, plain", bytes(plain_peak as u64)),
    );
    report.add(
        &group,
        Row::new(
            "peak memory, symdepot's parser process",
            bytes(our_peak as u64),
        ),
    );
    let memory = our_peak / plain_peak;
    let row = Row::new("peak memory, relative to plain", ratio(memory));
    report.add(
        &group,
        match is_large {
            true => row.target("≤ 0.70 ×", memory <= 0.70),
            false => row,
        },
    );
    Ok(())
}

/// Derives the caches of a file on one core in three ways: by symdepot's parser process, by a plain
/// process, and by a process that does the same work as symdepot's sequentially. symdepot repairs
/// line programs, which plain `symbolic` does not, and therefore has more to convert.
///
/// # Errors
/// One of them fails, or the process cannot be limited to one core.
pub async fn on_one_core(
    binaries: &Binaries,
    name: &str,
    path: &Path,
    runs: usize,
    report: &mut Report,
) -> Result<(), BenchError> {
    let cores = Cores::one()?;
    let (mut plain_runs, mut turn_runs, mut our_runs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs.max(1) {
        let seconds = |took: (_, Duration)| took.1.as_secs_f64();
        plain_runs.push(seconds(plain::in_own_process(plain::PLAIN, path)?));
        turn_runs.push(seconds(plain::in_own_process(plain::IN_TURN, path)?));
        our_runs.push(ours(binaries, path).await?.took.as_secs_f64());
    }
    drop(cores);
    let [plain, turn, ours] = [plain_runs, turn_runs, our_runs].map(|runs| percentile(&runs, 50));
    let group = format!("Deriving {name} on one core");
    for (what, seconds) in [
        ("plain symbolic, one process", plain),
        ("the same work, sequentially, one process", turn),
        ("symdepot's parser process", ours),
    ] {
        report.add(&group, Row::new(what, format!("{seconds:.2} s")));
    }
    let time = ours / plain;
    let row = Row::new("time, relative to plain", ratio(time));
    report.add(
        &group,
        match plain >= 1.0 {
            true => row.target("≤ 0.60 ×", time <= 0.60),
            false => row,
        },
    );
    let same_work = ours / turn;
    let row = Row::new(
        "time, relative to the same work, sequentially",
        ratio(same_work),
    );
    // The margin is for starting a process and passing the blobs: this overhead does not shrink
    // with the work.
    report.add(&group, row.target("≤ 1.15 ×", same_work <= 1.15));
    Ok(())
}

/// Limits this process and its children to fewer cores while this value lives.
struct Cores(CpuSet);

impl Cores {
    /// Uses the first of the available cores.
    fn one() -> Result<Self, BenchError> {
        let all = sched_getaffinity(None).map_err(no_core)?;
        let first = (0..CpuSet::MAX_CPU).find(|core| all.is_set(*core));
        let mut one = CpuSet::new();
        one.set(first.unwrap_or_default());
        Self::set(&one)?;
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

/// Derives the caches of a file as the function does: a file in scratch space, a parser process,
/// blobs through a pipe. The time is from the start of the parser until the last blob is received.
async fn ours(binaries: &Binaries, path: &Path) -> Result<Ours, BenchError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let data = std::fs::read(path).map_err(BenchError::file(path))?;
    let size = data.len() as u64;
    let deriver = ProcessDeriver::new(
        binaries.get("derive"),
        LIMITS,
        ScratchSpace::new(folder, 4 * size + (1 << 30)),
    );
    let mut dif = deriver.reserve(size)?;
    let data = bytes::Bytes::from(data);
    for at in (0..data.len()).step_by(CHUNK) {
        dif.write_at(at as u64, data.slice(at..data.len().min(at + CHUNK)))
            .await
            .map_err(ParseError::from)?;
    }
    drop(data);

    let mut symcache_bytes = 0;
    let began = Instant::now();
    let mut session = deriver.open(dif, Written::Whole).await?;
    let inspection = session.inspect().await?;
    for (index, object) in inspection.objects.iter().enumerate() {
        let job = |kind: &Kind| DeriveJob::of(*kind, &object.features, &BuildNumbers::CURRENT);
        let jobs: Vec<DeriveJob> = Kind::derived_from(object.file_type)
            .iter()
            .map(job)
            .collect();
        for answer in session.derive(index, &jobs).await? {
            let derived = answer.map_err(|missing| BenchError::Dif {
                path: path.to_owned(),
                reason: missing.detail,
            })?;
            if derived.kind == Kind::SymCache {
                symcache_bytes += derived.blob.len() as u64;
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
    let peak_bytes = family
        .iter()
        .find(is_parser)
        .map_or(0, |process| process.memory().1);
    Ok(Ours {
        took,
        peak_bytes,
        symcache_bytes,
    })
}

/// Uploads a debug file to a stack, and measures the whole invocation.
///
/// # Errors
/// The upload is not applied.
pub async fn through_the_stack(
    stack: &LocalStack,
    program: &Program,
    debug: &Path,
    report: &mut Report,
) -> Result<(), BenchError> {
    let client = stack.client();
    let key = format!("global/bench/{}.debug", program.name);
    let before = client.blobs().await?;
    client.end_functions().await?;
    client.clear_stats().await?;
    let began = Instant::now();
    client.upload_file(&key, debug).await?;
    let uploaded = began.elapsed();
    client.idle(PATIENCE).await?;
    let ready = began.elapsed();
    let explained = client.explain(&key).await?;
    if explained.body["state"] != "applied" {
        return Err(BenchError::Answer {
            what: "the state of an upload",
            found: explained.text,
        });
    }
    let stats = client.stats().await?;
    let derive = stats.function("derive");
    let group = format!("Uploading {}", program.name);
    report.add(
        &group,
        Row::new("the upload", format!("{:.2} s", uploaded.as_secs_f64())),
    );
    report.add(
        &group,
        Row::new(
            "from its start until crashes are symbolicated",
            format!("{:.2} s", ready.as_secs_f64()),
        ),
    );
    report.add(
        &group,
        Row::new(
            "the function: fetch, derive, publish",
            format!("{:.2} s", derive.duration_ms.max / 1000.0),
        ),
    );
    report.add(
        &group,
        Row::new(
            "peak memory of function and parser together",
            bytes(derive.max_rss),
        ),
    );
    report.add(
        &group,
        Row::new("AWS calls of the function", stats.aws_calls().to_string()),
    );
    for (path, size) in client
        .blobs()
        .await?
        .iter()
        .filter(|blob| !before.contains(blob))
    {
        let kind = path.split('/').nth(1).unwrap_or_default();
        report.add(
            &group,
            Row::new(format!("blob of the {kind}"), bytes(*size)),
        );
    }
    Ok(())
}
