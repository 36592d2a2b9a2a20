//! Benchmarks of the service on real input: Debian's C library, its largest C++ program, its Java
//! virtual machine and programs of other compilers, compared with independent tools and with plain
//! `symbolic`.
//!
//! 1. [`packages`]: downloads the debug files from Debian with `apt-get download` into a directory
//!    that is kept.
//!    [`mod@inputs`] lists all programs; some of them are built.
//! 2. [`deriving`]: derives their caches with symdepot's parser process ([`parser_process`]) and
//!    with a plain process ([`plain`]), and compares time and memory. [`speed_up`]: the same with
//!    each number of cores.
//! 3. [`answers`]: compares the derived SymCaches with those of `symbolic` at a million addresses.
//!    `judge` compares the differences with other tools.
//! 4. [`agreement`]: symbolicates random addresses in functions with a stack and with
//!    `eu-addr2line` ([`oracle`]).
//! 5. [`crash_files`]: measures what the walk of a minidump reads.
//! 6. [`slices`], [`backtraces`], [`latency`], [`warm`] and [`startup`]: measure what cold stacks
//!    read, both random and real ones, and the time of requests, warm frames and starts.
//!
//! Each number is printed when it is known, and all numbers as one table at the end ([`report`]).

pub mod agreement;
pub mod answers;
pub mod arriving;
pub mod backtraces;
pub mod crash_files;
pub mod deriving;
pub mod first_request;
pub mod inputs;
mod judge;
pub mod latency;
pub mod oracle;
pub mod packages;
pub mod parser_process;
pub mod plain;
pub mod program;
pub mod report;
pub mod slices;
pub mod speed_up;
pub mod startup;
pub mod warm;

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anstyle::Style;
use deriving::Targets;
use inputs::{CEPH, INPUTS, Input, LIBC};
use packages::JVM;
use program::Program;
use report::Report;
use speed_up::SpeedUp;
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
    /// The number of random addresses in each program at which SymCaches are compared with those of
    /// symbolic.
    #[arg(long, default_value_t = 130_000)]
    pub answers: usize,
    /// Includes Debian's kernel, which is a download of 1 GB.
    #[arg(long)]
    pub kernel: bool,
    /// Where the plot of the speed-up is written (default: docs/plots in the checkout).
    #[arg(long)]
    pub plots: Option<PathBuf>,
    /// Only derives, which takes some minutes.
    #[arg(long)]
    pub deriving_only: bool,
    /// The programs to derive or to compare, by name, with `--deriving-only` or `--answers-only`
    /// (default: all).
    #[arg(long = "only", value_name = "PROGRAM")]
    pub only: Vec<String>,
    /// Only compares SymCaches with those of symbolic: some minutes.
    #[arg(long, conflicts_with = "deriving_only")]
    pub answers_only: bool,
    /// Only uploads, and measures what cold stacks read: a few minutes.
    #[arg(long, conflicts_with = "deriving_only")]
    pub stacks_only: bool,
    /// Only measures warm frames, in memory: a minute.
    #[arg(long, conflicts_with_all = ["deriving_only", "stacks_only"])]
    pub frames_only: bool,
    /// Only measures crash files and requests of one program: a minute.
    #[arg(long, conflicts_with_all = ["deriving_only", "answers_only", "stacks_only", "frames_only"])]
    pub requests_only: bool,
    /// Also writes the numbers to this file, as Markdown.
    #[arg(long)]
    pub markdown: Option<PathBuf>,
}

impl Arguments {
    /// Returns whether a program is one of those to derive or to compare.
    fn includes(&self, name: &str) -> bool {
        let is_limited = self.deriving_only || self.answers_only;
        !is_limited || self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
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
    /// Answers are wrong, or depend on the number of cores.
    #[error("wrong: {}", .0.join("; "))]
    Wrong(Vec<String>),
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
/// [`Report::wrong`] has what is wrong.
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
    let needed = packages::SOURCES.into_iter();
    for source in needed.filter(|source| arguments.includes(source.name)) {
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
    if !arguments.stacks_only && !arguments.requests_only {
        let inputs = inputs(&cache, arguments, &mut report);
        if !arguments.answers_only {
            derive_all(&binaries, &programs, &inputs, arguments, &mut report).await?;
        }
        if !arguments.deriving_only {
            compare_answers(&binaries, &inputs, arguments, &mut report).await?;
        }
    }
    if arguments.deriving_only || arguments.answers_only {
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
    if let Some((program, files)) = programs.last() {
        let file = (program, files.program.as_path());
        let (runs, seed) = (arguments.cold, arguments.seed);
        crash_files::measure(stack.client(), file, runs, seed, &mut report).await?;
    }
    if arguments.requests_only {
        if let Some((program, files)) = programs.last() {
            deriving::through_the_stack(&stack, program, &files.debug, &mut report).await?;
            requests(stack, &binaries, program, arguments, &mut report).await?;
        }
        return Ok(report);
    }
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
    if arguments.stacks_only {
        stack.stop().await?;
        return Ok(report);
    }
    latency::ms_symcache(&stack, arguments.requests, &mut report).await?;
    startup::measure(&stack, &binaries, arguments.cold, &mut report).await?;
    if let Some((program, _)) = programs.last() {
        warm::measure(program, arguments.seed, &mut report)?;
        requests(stack, &binaries, program, arguments, &mut report).await?;
    }
    Ok(report)
}

/// Measures requests to a stack, which it stops, and to `symdepot serve` with the same data.
async fn requests(
    stack: LocalStack,
    binaries: &Binaries,
    program: &Program,
    arguments: &Arguments,
    report: &mut Report,
) -> Result<(), BenchError> {
    let in_handler = latency::measure(&stack, program, arguments, report).await?;
    let folder = stack.options().folder().to_owned();
    stack.stop().await?;
    let stack = LocalStack::start(Options::of_one_program(binaries.clone(), folder)).await?;
    latency::in_one_program(&stack, program, arguments, in_handler, report).await?;
    stack.stop().await?;
    Ok(())
}

/// Returns the debug files of all programs that are available.
fn inputs(cache: &Path, arguments: &Arguments, report: &mut Report) -> Vec<(Input, PathBuf)> {
    let mut files = Vec::new();
    for input in INPUTS
        .into_iter()
        .filter(|input| arguments.includes(input.name))
    {
        say(input.name, input.what);
        if let Some((path, version)) = input.file(cache, arguments.kernel) {
            if !report.environment.contains(&version) {
                report.environment.push(version);
            }
            files.push((input, path));
        }
    }
    files
}

/// Compares the SymCaches of all programs with those of symbolic.
async fn compare_answers(
    binaries: &Binaries,
    inputs: &[(Input, PathBuf)],
    arguments: &Arguments,
    report: &mut Report,
) -> Result<(), BenchError> {
    let mut totals = answers::Totals::default();
    for (input, path) in inputs {
        let program = (input.name, path.as_path());
        let addresses = (arguments.answers, arguments.seed);
        answers::of_program(binaries, program, addresses, &mut totals, report).await?;
    }
    totals.add_to(report);
    Ok(())
}

/// Derives the caches of every program with symdepot's parser and with a plain process, those of
/// some also on one core; for `ceph-osd` also those of its program and of its debug file with plain
/// sections.
async fn derive_all(
    binaries: &Binaries,
    programs: &[(Program, packages::Files)],
    inputs: &[(Input, PathBuf)],
    arguments: &Arguments,
    report: &mut Report,
) -> Result<(), BenchError> {
    let runs = arguments.runs;
    let how = format!("symdepot's parser process and a plain process, {runs} times each");
    say("deriving", &how);
    let mut speed_ups = Vec::new();
    for (input, path) in inputs {
        let (name, targets) = (input.name, input.targets());
        let file = (name, path.as_path());
        let took = deriving::against_plain(binaries, file, targets, runs, report).await?;
        arriving::compare(binaries, file, runs, report).await?;
        let target = match name {
            CEPH => Some(0.34),
            LIBC | "ldb" => None,
            _ => continue,
        };
        deriving::on_one_core(binaries, file, target, runs, report).await?;
        if name == CEPH {
            deriving::against_gsymutil(file, took, runs, report)?;
            deriving::fetched(file, 0.90, report)?;
            let plain = deriving::with_plain_sections(path)?;
            let file = ("ceph-osd, plain sections", plain.as_path());
            let targets = Targets {
                time: Some(0.14),
                ..Targets::default()
            };
            deriving::against_plain(binaries, file, targets, runs, report).await?;
        }
    }
    let ceph = programs.iter().find(|(program, _)| program.name == CEPH);
    if let Some((program, files)) = ceph {
        let name = format!("{} (program)", program.name);
        let file = (name.as_str(), files.program.as_path());
        let targets = Targets {
            time: Some(0.80),
            memory: Some(1.15),
            ..Targets::default()
        };
        deriving::against_plain(binaries, file, targets, runs, report).await?;
        let how = (runs, arguments.seed);
        first_request::measure(binaries, program, &files.debug, how, report).await?;
    }
    for (input, path) in inputs {
        let file = (input.name, path.as_path());
        speed_ups.push(SpeedUp::of(binaries, file, runs, report).await?);
    }
    let default = || checkout().join("docs/plots");
    let folder = arguments.plots.clone().unwrap_or_else(default);
    speed_up::write(&folder.join("speed-up.svg"), &speed_ups)
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
