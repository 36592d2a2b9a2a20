//! Benchmarks of the service on real input: Debian's C library, its largest C++ program and its
//! Java virtual machine, compared with an independent tool and with plain `symbolic`.
//!
//! 1. [`packages`]: downloads the debug files from Debian with `apt-get download` into a directory
//!    that is kept.
//! 2. [`deriving`]: derives their caches with symdepot's parser process and with a plain process
//!    ([`plain`]), and compares time and memory.
//! 3. [`agreement`]: symbolicates random addresses in functions with a stack and with
//!    `eu-addr2line` ([`oracle`]).
//! 4. [`slices`], [`backtraces`], [`latency`], [`warm`] and [`startup`]: measure what cold stacks
//!    read, both random and real ones, and the time of requests, warm frames and starts.
//!
//! Each number is printed when it is known, and all numbers as one table at the end ([`report`]).

pub mod agreement;
pub mod backtraces;
pub mod deriving;
pub mod latency;
pub mod oracle;
pub mod packages;
pub mod plain;
pub mod program;
pub mod report;
pub mod slices;
pub mod startup;
pub mod warm;

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use anstyle::Style;
use packages::JVM;
use program::Program;
use report::Report;
use symdepot::ports::ParseError;

use crate::stack::{Binaries, LocalStack, Options, StackError, checkout};

/// The maximum time of the stack for the largest file.
pub(crate) const PATIENCE: Duration = Duration::from_secs(900);

const TITLE: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();

/// Compares the service on real debug files with eu-addr2line and plain symbolic.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Where downloads are kept (default: target/bench-real in the checkout).
    #[arg(long)]
    pub cache: Option<PathBuf>,
    /// The number of random addresses in each program.
    #[arg(long, default_value_t = 1000)]
    pub addresses: usize,
    /// The random seed.
    #[arg(long, default_value_t = 20_240_229)]
    pub seed: u64,
    /// The number of derivations of each file; the median is reported.
    #[arg(long, default_value_t = 3)]
    pub runs: usize,
    /// The number of warm requests.
    #[arg(long, default_value_t = 2000)]
    pub requests: usize,
    /// The number of cold requests, and of starts of each function.
    #[arg(long, default_value_t = 20)]
    pub cold: usize,
    /// Only derives, which takes a minute.
    #[arg(long)]
    pub deriving_only: bool,
    /// Only uploads, and measures what cold stacks read: a few minutes.
    #[arg(long, conflicts_with = "deriving_only")]
    pub stacks_only: bool,
    /// Only measures warm frames, in memory: a minute.
    #[arg(long, conflicts_with_all = ["deriving_only", "stacks_only"])]
    pub frames_only: bool,
    /// Also writes the numbers to this file, as Markdown.
    #[arg(long)]
    pub markdown: Option<PathBuf>,
}

/// Why the measurements cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A tool is not installed.
    #[error("{tool} is not installed; on Debian: apt-get install {package}")]
    MissingTool {
        /// The tool.
        tool: &'static str,
        /// The package that contains it.
        package: &'static str,
    },
    /// A tool cannot be started.
    #[error("cannot run {tool}: {source}")]
    Tool {
        /// The tool.
        tool: String,
        /// Why.
        source: std::io::Error,
    },
    /// A tool failed.
    #[error("{command} failed ({status}): {said}{hint}")]
    ToolFailed {
        /// The command.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// Its standard error.
        said: String,
        /// What to do.
        hint: &'static str,
    },
    /// A package lacks an expected file.
    #[error("{package} does not contain: {wanted}")]
    NotInPackage {
        /// The package.
        package: String,
        /// What was expected.
        wanted: String,
    },
    /// A file cannot be read or written.
    #[error("cannot use {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A debug file cannot be read.
    #[error("cannot read {}: {reason}", path.display())]
    Dif {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The output of a tool or a function has an unexpected form.
    #[error("unexpected content in {what}: {found}")]
    Answer {
        /// What was read.
        what: &'static str,
        /// Its content.
        found: String,
    },
    /// The stack.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// symdepot's parser failed.
    #[error("the parser failed: {0}")]
    Parser(#[from] ParseError),
}

impl BenchError {
    pub(crate) fn dif(path: impl Into<PathBuf>, reason: String) -> Self {
        let path = path.into();
        Self::Dif { path, reason }
    }

    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}

/// Takes all measurements.
///
/// # Errors
/// See [`BenchError`]. A number that misses its target is no error, but is marked in the report.
pub async fn run(arguments: &Arguments) -> Result<Report, BenchError> {
    let binaries = Binaries::from_env()?;
    packages::check_tools()?;
    let cache = arguments
        .cache
        .clone()
        .unwrap_or_else(|| checkout().join("target/bench-real"));
    let mut report = Report::default();
    report.environment = report::environment();

    say("downloads", &format!("kept in {}", cache.display()));
    let mut programs = Vec::new();
    for source in packages::SOURCES {
        let files = packages::files(&cache, source)?;
        report.environment.push(files.version.clone());
        programs.push((Program::read(source.name, &files.debug)?, files));
    }

    if arguments.frames_only {
        if let Some((program, _)) = programs.last() {
            warm::measure(program, arguments.seed, &mut report)?;
        }
        return Ok(report);
    }
    if !arguments.stacks_only {
        derive_all(&binaries, &programs, arguments, &mut report).await?;
    }
    if arguments.deriving_only {
        return Ok(report);
    }

    let folder = tempfile::TempDir::new_in(&cache).map_err(BenchError::file(&cache))?;
    let stack = LocalStack::start(Options::new(binaries.clone(), folder.path())).await?;
    say(
        "the stack",
        &format!(
            "{} in an empty directory",
            stack.client().addresses().gateway
        ),
    );
    for (program, files) in &programs {
        deriving::through_the_stack(&stack, program, &files.debug, &mut report).await?;
    }
    if !arguments.stacks_only {
        for (program, _) in &programs {
            agreement::of_program(
                stack.client(),
                program,
                arguments.addresses,
                arguments.seed,
                &mut report,
            )
            .await?;
        }
    }
    if let Some((program, _)) = programs.last() {
        slices::measure(stack.client(), program, arguments.seed, &mut report).await?;
    }
    // Some versions of Debian do not have this package.
    match packages::files(&cache, JVM) {
        Ok(files) => {
            report.environment.push(files.version.clone());
            let machine = Program::read(JVM.name, &files.debug)?;
            deriving::through_the_stack(&stack, &machine, &files.debug, &mut report).await?;
            slices::measure(stack.client(), &machine, arguments.seed, &mut report).await?;
            backtraces::measure(stack.client(), &machine, &cache, &mut report).await?;
        }
        Err(error) => detail(&format!("backtraces skipped: {error}")),
    }
    if !arguments.stacks_only {
        if let Some((program, _)) = programs.last() {
            latency::measure(&stack, program, arguments, &mut report).await?;
            warm::measure(program, arguments.seed, &mut report)?;
        }
        latency::ms_symcache(&stack, arguments.requests, &mut report).await?;
        startup::measure(&stack, &binaries, arguments.cold, &mut report).await?;
    }
    stack.stop().await?;
    Ok(report)
}

/// Derives the caches of every program with symdepot's parser and with a plain process; for the
/// last one also those of its stripped file.
async fn derive_all(
    binaries: &Binaries,
    programs: &[(Program, packages::Files)],
    arguments: &Arguments,
    report: &mut Report,
) -> Result<(), BenchError> {
    say(
        "deriving",
        &format!(
            "symdepot's parser process and a plain process, {} times each",
            arguments.runs
        ),
    );
    for (program, files) in programs {
        deriving::against_plain(
            binaries,
            &program.name,
            &files.debug,
            arguments.runs,
            report,
        )
        .await?;
        deriving::on_one_core(
            binaries,
            &program.name,
            &files.debug,
            arguments.runs,
            report,
        )
        .await?;
    }
    if let Some((program, files)) = programs.last() {
        deriving::against_plain(
            binaries,
            &format!("{} (program)", program.name),
            &files.program,
            arguments.runs,
            report,
        )
        .await?;
    }
    Ok(())
}

/// Prints a heading.
pub(crate) fn say(what: &str, how: &str) {
    anstream::println!("\n{TITLE}{what}{TITLE:#} {DIM}{how}{DIM:#}");
}

/// Prints a detail.
pub(crate) fn detail(text: &str) {
    anstream::println!("  {text}");
}

/// Returns the percentile of the values, by nearest rank.
pub(crate) fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
        .get((sorted.len() * percent).div_ceil(100).saturating_sub(1))
        .copied()
        .unwrap_or(0.0)
}
