//! Deriving caches: time and memory of symdepot's parser process, and of the whole function,
//! compared with a plain process and with `llvm-gsymutil`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use symdepot::debuginfo::{FileEnds, needless_ranges};

use super::parser_process::{self, Cores, Made};
use super::plain::{self, Work};
use super::program::Program;
use super::report::{Report, Row, bytes, ratio};
use super::{BenchError, PATIENCE, detail, percentile};
use crate::stack::{Binaries, LocalStack};

/// The names of `llvm-gsymutil` on Debian.
const GSYMUTIL: [&str; 2] = ["llvm-gsymutil", "llvm-gsymutil-19"];

/// The bytes at each end of an upload that are read first, and the smallest part that is left out,
/// as in `flows/fetch.rs`.
const END_BYTES: usize = 1 << 20;

/// The targets of a file, relative to the plain process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Targets {
    /// Of the time.
    pub time: Option<f64>,
    /// Of the peak memory.
    pub memory: Option<f64>,
    /// Of the processor time.
    pub processor: Option<f64>,
    /// Of the stored bytes, relative to the plain SymCache.
    pub stored: Option<f64>,
}

/// Derives the caches of a file repeatedly, alternating between symdepot's parser process and a
/// plain process, and compares the medians. Returns the median time of the former.
///
/// # Errors
/// One of them fails.
pub async fn against_plain(
    binaries: &Binaries,
    (name, path): (&str, &Path),
    targets: Targets,
    runs: usize,
    report: &mut Report,
) -> Result<Duration, BenchError> {
    let (mut plain_runs, mut our_runs) = (Vec::new(), Vec::new());
    for _ in 0..runs.max(1) {
        plain_runs.push(plain::in_own_process(plain::PLAIN, path)?);
        our_runs.push(parser_process::run(binaries, path).await?);
    }
    let of_plain = |of: fn(&(Work, Duration)) -> f64| median(plain_runs.iter().map(of));
    let ours = |of: fn(&Made) -> f64| median(our_runs.iter().map(of));
    let plain_time = of_plain(|(_, took)| took.as_secs_f64());
    let our_time = ours(|made| made.took.as_secs_f64());
    let group = format!("Deriving {name}");
    if let (Some((work, _)), Some(made)) = (plain_runs.first(), our_runs.first()) {
        add_sizes(report, &group, work, made, targets.stored);
    }
    for (what, seconds) in [
        ("plain symbolic, one process", plain_time),
        ("symdepot's parser process", our_time),
    ] {
        report.add(&group, Row::new(what, format!("{seconds:.2} s")));
    }
    let compared = [
        ("time", our_time / plain_time, targets.time),
        (
            "processor time",
            ours(|made| made.processor.as_secs_f64())
                / of_plain(|(work, _)| work.processor_seconds),
            targets.processor,
        ),
        (
            "peak memory",
            ours(|made| made.peak_bytes as f64) / of_plain(|(work, _)| work.peak_bytes as f64),
            targets.memory,
        ),
    ];
    for (what, value, target) in compared {
        add_ratio(
            report,
            &group,
            &format!("{what}, relative to plain"),
            value,
            target,
        );
    }
    let peak = ours(|made| made.peak_bytes as f64) as u64;
    report.add(&group, Row::new("peak memory", bytes(peak)));
    Ok(Duration::from_secs_f64(our_time))
}

/// Adds the sizes of the caches.
fn add_sizes(report: &mut Report, group: &str, work: &Work, made: &Made, target: Option<f64>) {
    let Work {
        symcache, cficache, ..
    } = work;
    let shrinks =
        |sizes: &plain::Sizes| format!("{} → {}", bytes(sizes.raw), bytes(sizes.compressed));
    report.add(group, Row::new("SymCache, raw → zstd", shrinks(symcache)));
    report.add(group, Row::new("CFI cache, raw → zstd", shrinks(cficache)));
    let stored = made.symcache.len() as u64;
    let what = format!(
        "SymCache in slices: {}, relative to the plain one",
        bytes(stored)
    );
    let share = stored as f64 / symcache.raw.max(1) as f64;
    add_ratio(report, group, &what, share, target);
}

fn add_ratio(report: &mut Report, group: &str, what: &str, value: f64, target: Option<f64>) {
    let row = Row::new(what, ratio(value));
    report.add(
        group,
        match target {
            Some(most) => row.target(format!("≤ {most:.3} ×").replace("0 ×", " ×"), value <= most),
            None => row,
        },
    );
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    percentile(&values.collect::<Vec<_>>(), 50)
}

/// Derives the caches of a file on one core in three ways: by symdepot's parser process, by a plain
/// process, and by a process that does the same work as symdepot's sequentially. symdepot repairs
/// line programs, which plain `symbolic` does not, and therefore has more to convert.
///
/// # Errors
/// One of them fails.
pub async fn on_one_core(
    binaries: &Binaries,
    (name, path): (&str, &Path),
    target: Option<f64>,
    runs: usize,
    report: &mut Report,
) -> Result<(), BenchError> {
    let cores = Cores::first(1)?;
    let (mut plain_runs, mut turn_runs, mut our_runs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs.max(1) {
        let seconds = |took: (_, Duration)| took.1.as_secs_f64();
        plain_runs.push(seconds(plain::in_own_process(plain::PLAIN, path)?));
        turn_runs.push(seconds(plain::in_own_process(plain::IN_TURN, path)?));
        our_runs.push(
            parser_process::run(binaries, path)
                .await?
                .took
                .as_secs_f64(),
        );
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
    let what = "time, relative to plain";
    add_ratio(report, &group, what, ours / plain, target);
    // The margin is for starting a process and passing the blobs: this overhead does not shrink
    // with the work.
    let what = "time, relative to the same work, sequentially";
    add_ratio(report, &group, what, ours / turn, Some(1.15));
    Ok(())
}

/// Compares the time of symdepot's parser process with that of `llvm-gsymutil`, which makes another
/// lookup format of the same debug information, with as many threads as there are cores.
///
/// # Errors
/// The tool fails. That it is not installed is no error.
pub fn against_gsymutil(
    (name, path): (&str, &Path),
    ours: Duration,
    runs: usize,
    report: &mut Report,
) -> Result<(), BenchError> {
    let is_installed = |tool: &&&str| {
        let mut tried = Command::new(tool);
        tried
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        tried.status().is_ok_and(|status| status.success())
    };
    let Some(tool) = GSYMUTIL.iter().find(is_installed) else {
        detail("llvm-gsymutil skipped: it is not installed; on Debian: apt-get install llvm");
        return Ok(());
    };
    let failed = |source| BenchError::Tool {
        tool: (*tool).to_owned(),
        source,
    };
    let out = path.with_extension("gsym");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut seconds = Vec::new();
    for _ in 0..runs.max(1) {
        let began = Instant::now();
        let mut command = Command::new(tool);
        command.arg(format!("--num-threads={cores}")).arg("--quiet");
        command
            .arg("--convert")
            .arg(path)
            .arg("--out-file")
            .arg(&out);
        let output = command.output().map_err(failed)?;
        seconds.push(began.elapsed().as_secs_f64());
        if !output.status.success() {
            return Err(BenchError::ToolFailed {
                command: format!("{command:?}"),
                status: output.status,
                said: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
                hint: "",
            });
        }
    }
    std::fs::remove_file(&out).map_err(BenchError::file(&out))?;
    let group = format!("Deriving {name}");
    let theirs = percentile(&seconds, 50);
    report.add(&group, Row::new(*tool, format!("{theirs:.2} s")));
    let what = format!("time, relative to {tool}");
    add_ratio(
        report,
        &group,
        &what,
        ours.as_secs_f64() / theirs,
        Some(0.18),
    );
    Ok(())
}

/// Adds the share of an uploaded file that is fetched, and the least that this share can be: that
/// of the sections that are read, and of what lies between sections.
///
/// # Errors
/// The file cannot be read.
pub fn fetched(
    (name, path): (&str, &Path),
    target: f64,
    report: &mut Report,
) -> Result<(), BenchError> {
    let file = std::fs::read(path).map_err(BenchError::file(path))?;
    let size = file.len() as u64;
    let end = END_BYTES.min(file.len());
    let (head, tail) = (&file[..end], &file[file.len() - end..]);
    let needless = needless_ranges(FileEnds { head, tail, size });
    let needless: Vec<u64> = needless
        .iter()
        .map(|range| range.end - range.start)
        .collect();
    let left_out = needless
        .iter()
        .filter(|length| **length >= END_BYTES as u64);
    let fetched = size - left_out.sum::<u64>();
    let read = size - needless.iter().sum::<u64>();
    let share = |part: u64| part as f64 / size.max(1) as f64;
    let group = format!("Fetching an upload of {name}");
    let what = format!("{} of {}", bytes(fetched), bytes(size));
    let row = Row::new(what, format!("{:.4} ×", share(fetched)));
    let is_met = share(fetched) <= target;
    report.add(&group, row.target(format!("≤ {target:.2} ×"), is_met));
    let what = format!("sections that are read: {}", bytes(read));
    report.add(&group, Row::new(what, format!("{:.4} ×", share(read))));
    Ok(())
}

/// Returns a copy of a file with plain sections, which is kept beside it.
///
/// # Errors
/// `objcopy` fails.
pub fn with_plain_sections(path: &Path) -> Result<PathBuf, BenchError> {
    let plain = path.with_extension("plain.debug");
    if plain.is_file() {
        return Ok(plain);
    }
    let part = path.with_extension("part");
    let mut command = Command::new("objcopy");
    command
        .arg("--decompress-debug-sections")
        .arg(path)
        .arg(&part);
    let status = command.status().map_err(|source| BenchError::Tool {
        tool: "objcopy".to_owned(),
        source,
    })?;
    if !status.success() {
        return Err(BenchError::ToolFailed {
            command: format!("{command:?}"),
            status,
            said: String::new(),
            hint: "",
        });
    }
    std::fs::rename(&part, &plain).map_err(BenchError::file(&plain))?;
    Ok(plain)
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
