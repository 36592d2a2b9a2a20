//! Compares the SymCaches that symdepot derives with those of plain `symbolic`, address by address.
//!
//! The oracle is the SymCache that `symbolic` makes of the same file, after its line programs were
//! repaired: the same functions, inlined calls, files and lines at random addresses in functions.
//! Differences are counted by class, and a sample of each class is compared with other tools
//! (`judge`).

use std::path::Path;

use symbolic::common::ByteView;
use symbolic::debuginfo::Object;
use symbolic::symcache::SymCache;
use symdepot::debuginfo::{SliceIndex, symcache_by_symbolic};

use super::oracle::base_name;
use super::parser_process::{self, Cores};
use super::program::Program;
use super::report::{Report, Row};
use super::{BenchError, judge, say};
use crate::bench_plots::plot::thousands;
use crate::stack::Binaries;

/// One frame of the answer at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) name: String,
    /// The entry point of the function.
    pub(super) entry: u32,
    pub(super) path: Option<String>,
    pub(super) line: u32,
}

/// The frames at an address, the innermost first.
pub(super) type Answer = Vec<Frame>;

/// An address with different answers.
pub(super) struct Difference {
    pub(super) address: u64,
    pub(super) ours: Answer,
    pub(super) theirs: Answer,
}

/// The totals over all programs.
#[derive(Debug, Default)]
pub struct Totals {
    /// The number of compared addresses.
    compared: usize,
    /// The number of programs.
    programs: usize,
    /// The number of differences that belong to no class.
    unexplained: usize,
}

impl Totals {
    /// Adds the totals to the report. All programs must be available for a million addresses.
    pub fn add_to(&self, report: &mut Report) {
        let group = "Answers, compared with symbolic";
        let million = Row::new("addresses", thousands(self.compared));
        report.add(
            group,
            million.target("≥ 1,000,000", self.compared >= 1_000_000),
        );
        let programs = Row::new("programs", self.programs.to_string());
        report.add(group, programs.target("8", self.programs >= 8));
        let unexplained = Row::new("differences of no class", self.unexplained.to_string());
        report.require(group, unexplained.target("0", self.unexplained == 0));
    }
}

/// Compares a program at random addresses.
///
/// # Errors
/// The program cannot be derived.
pub async fn of_program(
    binaries: &Binaries,
    (name, path): (&str, &Path),
    (count, seed): (usize, u64),
    totals: &mut Totals,
    report: &mut Report,
) -> Result<(), BenchError> {
    let heading = format!(
        "{} random addresses in functions of {name}",
        thousands(count)
    );
    say("answers", &heading);
    let blob = parser_process::run(binaries, path).await?.symcache;
    let on_one_core = {
        let _cores = Cores::first(1)?;
        parser_process::run(binaries, path).await?.symcache
    };
    let view = ByteView::open(path).map_err(BenchError::file(path))?;
    let plain = symcache_by_symbolic(&view);
    let plain = plain.map_err(|failure| BenchError::dif(path, format!("{failure:?}")))?;
    let unreadable = |reason: String| BenchError::dif(path, reason);
    let index = SliceIndex::of_blob(&blob).map_err(|fault| unreadable(fault.to_string()))?;
    let joined = index
        .join(&blob)
        .map_err(|fault| unreadable(fault.to_string()))?;
    let (ours, theirs) = (parsed(&joined), parsed(&plain));
    let (ours, theirs) = (ours.map_err(unreadable)?, theirs.map_err(unreadable)?);

    let program = Program::read(name, path)?;
    let addresses = program.addresses(count, seed);
    let mut differences = Vec::new();
    for address in &addresses {
        let (ours, theirs) = (answer(&ours, *address), answer(&theirs, *address));
        if ours != theirs {
            differences.push(Difference {
                address: *address,
                ours,
                theirs,
            });
        }
    }
    let group = format!("Answers for {name}, compared with symbolic");
    let is_same = on_one_core == blob;
    let same = if is_same { "yes" } else { "no" };
    let same = Row::new("the blob of one core is that of all cores", same);
    report.require(&group, same.target("yes", is_same));
    let equal = addresses.len() - differences.len();
    let share = 100.0 * equal as f64 / addresses.len().max(1) as f64;
    report.add(
        &group,
        Row::new(
            format!("equal answers at {} addresses", thousands(addresses.len())),
            format!("{share:.3} %"),
        ),
    );
    totals.compared += addresses.len();
    totals.programs += 1;
    let object = Object::parse(&view).map_err(|error| unreadable(error.to_string()))?;
    totals.unexplained += judge::judge(&program, &object, &differences, &group, report)?;
    Ok(())
}

fn parsed(bytes: &[u8]) -> Result<SymCache<'_>, String> {
    SymCache::parse(bytes).map_err(|error| error.to_string())
}

fn answer(cache: &SymCache<'_>, address: u64) -> Answer {
    let frames = cache.lookup(address).map(|location| {
        let function = location.function();
        Frame {
            name: function.name().to_owned(),
            entry: function.entry_pc(),
            path: location.file().map(|file| file.full_path()),
            line: location.line(),
        }
    });
    frames.collect()
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |answer: &Answer| {
            let frames = answer.iter().take(3).map(|frame| {
                let file = frame.path.as_deref().map_or("–", base_name);
                let name: String = frame.name.chars().take(60).collect();
                format!("{name} {file}:{}", frame.line)
            });
            frames.collect::<Vec<_>>().join(" < ")
        };
        let (ours, theirs) = (shown(&self.ours), shown(&self.theirs));
        write!(
            f,
            "{:#x}  symdepot: {ours}  symbolic: {theirs}",
            self.address
        )
    }
}
