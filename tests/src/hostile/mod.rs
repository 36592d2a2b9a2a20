//! Thousands of malicious files, each parsed in the process in which `derive` parses uploads.
//!
//! A file is a mutated fixture ([`mutate`]), possibly mutated inside its container, or a generated
//! bomb ([`made`]). Each file must give a result: the derived caches, or the reason why there are
//! none. The test fails at a *death*: a parser that ended for a reason other than a limit.

pub mod made;
pub mod mutate;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use nix::sys::resource::{UsageWho, getrusage};
use rand::SeedableRng;
use rand::rngs::StdRng;
use symdepot::adapters::parser::{ParserLimits, ProcessDeriver};
use symdepot::adapters::scratch::ScratchSpace;
use symdepot::cache::{DeriveJob, Kind, ReleaseNumbers};
use symdepot::domain::{Cause, Missing, Written};
use symdepot::ports::{Deriver, ParseError};

/// The limits of a parser.
pub const LIMITS: ParserLimits = ParserLimits {
    memory_bytes: 512 << 20,
    cpu_seconds: 10,
    needs_seccomp: true,
};

/// Scratch space of each parser, in bytes.
const SCRATCH_BYTES: u64 = 256 << 20;

/// The number of objects of a file that are derived.
const OBJECTS: usize = 3;

/// The number of files parsed concurrently.
const AT_A_TIME: usize = 4;

/// The results of all files.
#[derive(Debug, Default)]
pub struct Report {
    /// The number of parsed files.
    pub files: usize,
    /// The number of derived caches, and of failures by cause.
    pub outcomes: BTreeMap<String, usize>,
    /// The longest time for a file, and its name.
    pub longest: (Duration, String),
    /// The peak memory of a parser in bytes: resident, including mapped files.
    pub peak_bytes: u64,
    /// Files over which a parser ended for a reason other than a limit, and how.
    pub deaths: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (longest, which) = &self.longest;
        writeln!(f, "files                {:>9}", self.files)?;
        for (what, count) in &self.outcomes {
            writeln!(f, "  {what:18} {count:>9}")?;
        }
        writeln!(
            f,
            "longest time         {:>7} ms  {which}",
            longest.as_millis()
        )?;
        writeln!(
            f,
            "peak memory          {:>7} MB",
            self.peak_bytes / 1_000_000
        )?;
        writeln!(f, "deaths               {:>9}", self.deaths.len())?;
        for death in self.deaths.iter().take(20) {
            writeln!(f, "  {death}")?;
        }
        Ok(())
    }
}

/// The result of one file.
struct Parsed {
    name: String,
    took: Duration,
    outcomes: Vec<&'static str>,
    death: Option<String>,
}

/// Parses this many hostile files with the program `derive`. The same `seed` gives the same files;
/// `progress` receives the number of parsed files.
///
/// # Panics
///
/// If there is no directory for scratch space.
pub async fn run(derive: &Path, files: usize, seed: u64, progress: impl Fn(usize)) -> Report {
    let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("no scratch space: {error}"));
    // Each parser has its own scratch space, so that no file fails because of another one.
    let deriver = || {
        let scratch = ScratchSpace::new(folder.path(), SCRATCH_BYTES);
        ProcessDeriver::new(derive, LIMITS, scratch)
    };
    let mut chance = StdRng::seed_from_u64(seed);
    let originals = mutate::originals();
    let made = made::all().into_iter();
    let mutated = (0..).map(move |number| mutate::mutated(&originals, number, &mut chance));
    let parsed = stream::iter(made.chain(mutated).take(files))
        .map(|(name, bytes)| parse(deriver(), name, bytes))
        .buffer_unordered(AT_A_TIME);
    let mut report = Report::default();
    let mut parsed = std::pin::pin!(parsed);
    while let Some(Parsed {
        name,
        took,
        outcomes,
        death,
    }) = parsed.next().await
    {
        report.files += 1;
        for outcome in outcomes {
            *report.outcomes.entry(outcome.to_owned()).or_default() += 1;
        }
        report
            .deaths
            .extend(death.map(|death| format!("{name}: {death}")));
        if took > report.longest.0 {
            report.longest = (took, name);
        }
        progress(report.files);
    }
    let children = getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0, |usage| usage.max_rss());
    report.peak_bytes = children.unsigned_abs() * 1024;
    report
}

async fn parse(deriver: ProcessDeriver, name: String, bytes: Vec<u8>) -> Parsed {
    let began = Instant::now();
    let (answers, mut death) = match derived(&deriver, bytes).await {
        Ok(answers) => (answers, None),
        Err(ParseError::Missing(missing)) => (vec![Err(missing)], None),
        Err(ParseError::Fault(error)) => (Vec::new(), Some(error.to_string())),
    };
    let mut dead = answers.iter().filter_map(|answer| answer.as_ref().err());
    let dead = dead.rfind(|missing| is_death(missing));
    death = death.or(dead.map(|missing| missing.detail.clone()));
    let outcomes: Vec<&str> = if answers.is_empty() {
        vec!["ignored"]
    } else {
        answers.iter().map(outcome).collect()
    };
    Parsed {
        name,
        took: began.elapsed(),
        outcomes,
        death,
    }
}

async fn derived(
    deriver: &ProcessDeriver,
    bytes: Vec<u8>,
) -> Result<Vec<Result<(), Missing>>, ParseError> {
    let mut scratch = deriver.reserve(bytes.len() as u64)?;
    scratch.write_at(0, Bytes::from(bytes)).await?;
    let mut parser = deriver.open(scratch, Written::Whole).await?;
    let inspection = parser.inspect().await?;
    let mut answers = Vec::new();
    for object in inspection.objects.iter().take(OBJECTS) {
        let kinds = Kind::derived_from(object.file_type).iter().copied();
        let jobs =
            kinds.map(|kind| DeriveJob::of(kind, &object.features, &ReleaseNumbers::CURRENT));
        let jobs: Vec<DeriveJob> = jobs.collect();
        let derived = parser.derive(object.index, &jobs).await?;
        answers.extend(derived.into_iter().map(|derived| derived.map(drop)));
    }
    Ok(answers)
}

/// Returns whether a parser ended for a reason other than a limit.
fn is_death(missing: &Missing) -> bool {
    let ended = [
        "the parser crashed",
        "the parser aborted",
        "the parser made a system call",
    ];
    missing.cause == Cause::Crashed || ended.iter().any(|how| missing.detail.starts_with(how))
}

fn outcome(answer: &Result<(), Missing>) -> &'static str {
    let Err(missing) = answer else {
        return "derived";
    };
    match missing.cause {
        Cause::Malformed => "malformed",
        Cause::TooLarge { .. } => "too large",
        Cause::Unsupported => "unsupported",
        Cause::Crashed => "crashed",
        Cause::NotFound => "nothing to derive",
        Cause::Timeout | Cause::DownloadFailed | Cause::PermissionDenied => "unavailable",
    }
}
