//! Compares the SymCaches that symdepot derives with those of plain `symbolic`, address by address.
//!
//! The oracle is the SymCache that `symbolic` makes of the same file, after its line programs were
//! repaired: the same functions, inlined calls, files and lines at random addresses in functions.
//! Differences are sorted into the classes of
//! [decision 0014](../../../docs/decisions/0014-what-a-file-says-is-answered.md), and counted. A
//! sample of each class is compared with `eu-addr2line`, as the judge.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use symbolic::common::ByteView;
use symbolic::debuginfo::{FileFormat, Object};
use symbolic::symcache::SymCache;
use symdepot::debuginfo::{SliceIndex, symcache_by_symbolic};

use super::agreement::{bare, normalized};
use super::oracle::{self, Said, base_name};
use super::parser_process::{self, Cores};
use super::program::Program;
use super::report::{Report, Row};
use super::{BenchError, detail, say};
use crate::bench_plots::plot::thousands;
use crate::stack::Binaries;

/// The number of addresses of each class that are compared with the tool.
const JUDGED: usize = 400;

/// Examples that are printed for each class.
const EXAMPLES: usize = 2;

/// One frame of the answer at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Frame {
    name: String,
    entry: u32,
    path: Option<String>,
    line: u32,
}

/// The frames at an address, the innermost first.
type Answer = Vec<Frame>;

/// An address with different answers.
struct Difference {
    address: u64,
    ours: Answer,
    theirs: Answer,
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
        report.add(group, unexplained.target("0", self.unexplained == 0));
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
    report.add(&group, same.target("yes", is_same));
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
    totals.unexplained += classify(&program, &object, differences, &group, report)?;
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

/// Counts the differences by class, and compares a sample of each class with the tool. Returns how
/// many belong to no class, and are not right by the tool.
fn classify(
    program: &Program,
    object: &Object<'_>,
    differences: Vec<Difference>,
    group: &str,
    report: &mut Report,
) -> Result<usize, BenchError> {
    let mut symbols: HashMap<u64, HashSet<String>> = HashMap::new();
    for symbol in object.symbols() {
        let names = symbols.entry(symbol.address & !1).or_default();
        names.extend(symbol.name().map(str::to_owned));
    }
    let mut classes: BTreeMap<&'static str, Vec<Difference>> = BTreeMap::new();
    for difference in differences {
        let class = class_of(&difference, &symbols).unwrap_or(NO_CLASS);
        classes.entry(class).or_default().push(difference);
    }
    let mut unexplained = 0;
    for (class, differences) in classes {
        let count = differences.len();
        let judged = judge(program, object, &differences)?;
        let value = match &judged {
            Some(judged) => format!(
                "{count}; of {}, eu-addr2line agrees with symdepot in {}, with symbolic in {}",
                judged.sample, judged.with_ours, judged.with_theirs
            ),
            None => count.to_string(),
        };
        report.add(group, Row::new(class, value));
        for difference in differences.iter().take(EXAMPLES) {
            detail(&format!("    {difference}"));
        }
        if class == NO_CLASS {
            // Those that were not compared are as right as the sample.
            let (sample, right) = judged.map_or((1, 0), |judged| (judged.sample, judged.with_ours));
            unexplained += (count * (sample - right)).div_ceil(sample.max(1));
        }
    }
    Ok(unexplained)
}

const NO_CLASS: &str = "of no class";

/// Returns the class of a difference; `None` if it has none.
fn class_of(
    Difference { ours, theirs, .. }: &Difference,
    symbols: &HashMap<u64, HashSet<String>>,
) -> Option<&'static str> {
    let is_symbol = |frame: &Frame| {
        let names = symbols.get(&u64::from(frame.entry));
        names.is_some_and(|names| names.contains(&frame.name))
    };
    let is_bare = |frame: &Frame| frame.path.is_none() && frame.line == 0;
    match (ours.as_slice(), theirs.as_slice()) {
        ([ours], [theirs]) if is_bare(theirs) && !is_bare(ours) => {
            (ours.name == theirs.name).then_some("the line of a symbol without an entry")
        }
        ([ours], []) if is_bare(ours) && is_symbol(ours) => Some("a label, or Thumb code"),
        ([], [theirs]) if is_bare(theirs) => Some("outside of code"),
        ([ours, outer @ ..], theirs) if is_bare(ours) && outer == theirs && !outer.is_empty() => {
            Some("an inlined call without a line")
        }
        (ours, theirs) if ours.len() == theirs.len() => {
            let ((ours, inner), (theirs, others)) = (ours.split_last()?, theirs.split_last()?);
            let is_renamed = inner == others
                && (&ours.path, ours.line) == (&theirs.path, theirs.line)
                && is_symbol(ours);
            is_renamed.then_some("the name of a part of a function")
        }
        _ => None,
    }
}

/// What the tool says about the differences of a class.
struct Judged {
    sample: usize,
    with_ours: usize,
    with_theirs: usize,
}

/// Compares a sample of differences with the tool; `None` if it cannot read the file.
fn judge(
    program: &Program,
    object: &Object<'_>,
    differences: &[Difference],
) -> Result<Option<Judged>, BenchError> {
    if object.file_format() != FileFormat::Elf {
        return Ok(None);
    }
    let every = differences.len().div_ceil(JUDGED).max(1);
    let sample: Vec<&Difference> = differences.iter().step_by(every).collect();
    let addresses = sample.iter().map(|at| at.address + program.load_address);
    let said = oracle::ask(&program.debug, &addresses.collect::<Vec<_>>())?;
    let agrees = |of: fn(&Difference) -> &Answer| {
        let pairs = sample.iter().zip(&said);
        pairs.filter(|(at, said)| is_equal(of(at), said)).count()
    };
    Ok(Some(Judged {
        sample: sample.len(),
        with_ours: agrees(|at| &at.ours),
        with_theirs: agrees(|at| &at.theirs),
    }))
}

/// Returns whether an answer has the innermost function and line that the tool has.
fn is_equal(answer: &Answer, said: &Said) -> bool {
    let first = answer.first();
    let name = first.map(|frame| normalized(&frame.name));
    let line = first.and_then(|frame| {
        let line = u64::from(frame.line);
        let path = frame.path.as_deref()?;
        (line > 0).then(|| (base_name(path).to_owned(), line))
    });
    let theirs = said.frames.first();
    let their_name = theirs.and_then(|frame| frame.function.as_deref().map(normalized));
    let is_named = match (&name, &their_name) {
        (Some(name), Some(theirs)) => bare(name) == bare(theirs),
        (name, theirs) => name.is_none() && theirs.is_none(),
    };
    is_named && line == theirs.and_then(|frame| frame.line.clone())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(name: &str, line: u32) -> Frame {
        Frame {
            name: name.to_owned(),
            entry: 16,
            path: (line > 0).then(|| "/a/b.c".to_owned()),
            line,
        }
    }

    fn class(ours: &[Frame], theirs: &[Frame]) -> Option<&'static str> {
        let symbols = HashMap::from([(16, HashSet::from(["f.cold".to_owned()]))]);
        let difference = Difference {
            address: 17,
            ours: ours.to_vec(),
            theirs: theirs.to_vec(),
        };
        class_of(&difference, &symbols)
    }

    #[test]
    fn a_difference_is_explained_only_by_what_the_file_says() {
        let (cold, call) = (frame("f.cold", 7), frame("g", 3));
        let alone = [cold.clone()];
        assert_eq!(
            class(&alone, &[frame("f.cold", 0)]),
            Some("the line of a symbol without an entry")
        );
        assert_eq!(
            class(
                &[call.clone(), cold.clone()],
                &[call.clone(), frame("f", 7)]
            ),
            Some("the name of a part of a function")
        );
        assert_eq!(
            class(&[frame("g", 0), cold.clone()], &alone),
            Some("an inlined call without a line")
        );
        assert_eq!(class(&[], &[frame("x", 0)]), Some("outside of code"));
        assert_eq!(
            class(&[frame("f.cold", 0)], &[]),
            Some("a label, or Thumb code")
        );
        for (ours, theirs) in [
            (vec![], vec![cold.clone()]),
            (vec![cold.clone()], vec![]),
            (vec![frame("f", 7)], vec![cold.clone()]),
            (vec![frame("f.cold", 8)], vec![cold.clone()]),
            (vec![call, cold.clone()], vec![cold]),
        ] {
            assert_eq!(class(&ours, &theirs), None, "{ours:?} {theirs:?}");
        }
    }

    #[test]
    fn the_judge_compares_the_innermost_function_and_line() {
        let said = |name: &str, line: u64| Said {
            frames: vec![oracle::Frame {
                function: Some(name.to_owned()),
                line: Some(("b.c".to_owned(), line)),
            }],
        };
        let answer = vec![frame("_ZN1a1gEi", 3), frame("f", 7)];
        assert!(is_equal(&answer, &said("g", 3)));
        assert!(is_equal(&answer, &said("_ZN1a1gEi", 3)));
        assert!(!is_equal(&answer, &said("f", 3)));
        assert!(!is_equal(&answer, &said("g", 4)));
        assert!(!is_equal(&Vec::new(), &said("g", 3)));
    }
}
