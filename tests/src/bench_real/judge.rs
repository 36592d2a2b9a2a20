//! Judges differences between answers of symdepot and of `symbolic` by `eu-addr2line` and
//! `llvm-symbolizer`.
//!
//! Each difference belongs to a class of [decision
//! 0014](../../../docs/decisions/0014-what-a-file-says-is-answered.md), or to none. A class says in
//! what the two answers differ. Only this is compared with the tools, since these have differences
//! of their own: both report the line of an earlier row where no row covers an address, and
//! `eu-addr2line` does not use the symbol table for the name of a part of a function.

use std::collections::{BTreeMap, HashMap, HashSet};

use symbolic::debuginfo::{FileFormat, Object};

use super::agreement::{bare, normalized};
use super::answers::{Answer, Difference, Frame};
use super::oracle::{self, Said, base_name};
use super::program::Program;
use super::report::{Report, Row};
use super::{BenchError, detail};

/// The number of differences of each class that are compared with the tools.
const JUDGED: usize = 400;

/// Examples that are printed for each class.
const EXAMPLES: usize = 2;

/// The percentage of the compared differences of a class in which a tool must agree with symdepot.
///
/// In `libc`, `ceph-osd` and `libjvm` it is 100. A mistake in a rule of symdepot would concern most
/// differences of its class, and `symbolic` is right in none. The rest is room for addresses where
/// functions or sequences of rows overlap: there each tool uses another one.
const FLOOR: f64 = 95.0;

/// In what answers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    OmittedLine,
    Label,
    OutsideOfCode,
    CallWithoutLine,
    PartName,
    CallInPart,
    Directory,
    Other,
}

impl Class {
    fn text(self) -> &'static str {
        match self {
            Self::OmittedLine => "a line that symbolic omits",
            Self::Label => "a label, or Thumb code",
            Self::OutsideOfCode => "outside of code",
            Self::CallWithoutLine => "an inlined call without a line",
            Self::PartName => "the name of a part of a function",
            Self::CallInPart => "an inlined call without a line in a part of a function",
            Self::Directory => "a relative directory, which symbolic repeats",
            Self::Other => "of no class",
        }
    }
}

/// The names of all symbols at an even address and the odd one after it.
type Symbols = HashMap<u64, HashSet<String>>;

/// Counts the differences by class, and compares a sample of each class with the tools. Returns how
/// many belong to no class, and are not right by the tools.
///
/// # Errors
/// A tool fails.
pub(super) fn judge(
    program: &Program,
    object: &Object<'_>,
    differences: &[Difference],
    group: &str,
    report: &mut Report,
) -> Result<usize, BenchError> {
    let mut symbols = Symbols::new();
    for symbol in object.symbols() {
        let names = symbols.entry(even(symbol.address)).or_default();
        names.extend(symbol.name().map(str::to_owned));
    }
    let mut classes: BTreeMap<Class, Vec<&Difference>> = BTreeMap::new();
    for difference in differences {
        let class = class_of(difference, &symbols);
        classes.entry(class).or_default().push(difference);
    }
    // The tools read other formats differently, or not at all.
    let is_judged = object.file_format() == FileFormat::Elf;
    let mut unexplained = 0;
    for (class, differences) in classes {
        let every = differences.len().div_ceil(JUDGED);
        let sample: Vec<&Difference> = differences.iter().step_by(every).copied().collect();
        let agreed = if is_judged {
            Some(agreement(program, class, &sample, &symbols)?)
        } else {
            None
        };
        let count = differences.len();
        add(group, class, (count, sample.len()), agreed, report);
        for difference in differences.iter().take(EXAMPLES) {
            detail(&format!("    {difference}"));
        }
        if class == Class::Other {
            // Those that were not compared are as right as the sample.
            let wrong = sample.len() - agreed.map_or(0, |agreed| agreed.with_ours);
            unexplained += (count * wrong).div_ceil(sample.len());
        }
    }
    Ok(unexplained)
}

/// In how many differences of a sample one of the tools agrees with an answer.
#[derive(Clone, Copy, Debug)]
struct Agreed {
    with_ours: usize,
    with_theirs: usize,
}

fn agreement(
    program: &Program,
    class: Class,
    sample: &[&Difference],
    symbols: &Symbols,
) -> Result<Agreed, BenchError> {
    let addresses = sample.iter().map(|at| at.address + program.load_address);
    let addresses: Vec<u64> = addresses.collect();
    let said = [
        oracle::ask(&program.debug, &addresses)?,
        oracle::ask_llvm(&program.debug, &addresses)?,
    ];
    let count = |of: fn(&Difference) -> &Answer| {
        let agrees = |(at, difference): &(usize, &&Difference)| {
            let mut said = said.iter().map(|said| &said[*at]);
            said.any(|said| is_right(class, of(difference), said, symbols))
        };
        sample.iter().enumerate().filter(agrees).count()
    };
    Ok(Agreed {
        with_ours: count(|at| &at.ours),
        with_theirs: count(|at| &at.theirs),
    })
}

/// Adds the number of differences of a class to the report.
fn add(
    group: &str,
    class: Class,
    (count, sample): (usize, usize),
    agreed: Option<Agreed>,
    report: &mut Report,
) {
    let Some(agreed) = agreed else {
        return report.add(group, Row::new(class.text(), count.to_string()));
    };
    let value = format!(
        "{count}; of {sample}, a tool agrees with symdepot in {}, with symbolic in {}",
        agreed.with_ours, agreed.with_theirs
    );
    let percent = 100.0 * agreed.with_ours as f64 / sample as f64;
    let row = Row::new(class.text(), value);
    let row = row.target(format!("≥ {FLOOR} % right"), percent >= FLOOR);
    report.require(group, row);
}

/// Returns the even address under which symbols are listed. An odd one may stand for Thumb code,
/// or, on other machines, for itself.
fn even(address: u64) -> u64 {
    address & !1
}

/// Returns the class of a difference.
fn class_of(Difference { ours, theirs, .. }: &Difference, symbols: &Symbols) -> Class {
    let is_symbol = |frame: &Frame| {
        let names = symbols.get(&even(frame.entry.into()));
        names.is_some_and(|names| names.contains(&frame.name))
    };
    let is_bare = |frame: &Frame| frame.path.is_none() && frame.line == 0;
    let has_other_part = |ours: &[Frame], theirs: &[Frame]| match (ours, theirs) {
        ([inner @ .., ours], [others @ .., theirs]) => {
            inner == others
                && (&ours.path, ours.line) == (&theirs.path, theirs.line)
                && is_symbol(ours)
        }
        _ => false,
    };
    let theirs = without_repetition(ours, theirs);
    match (ours.as_slice(), theirs.as_slice()) {
        (ours, theirs) if ours == theirs => Class::Directory,
        ([ours, outer @ ..], [theirs, others @ ..])
            if is_bare(theirs) && !is_bare(ours) && ours.name == theirs.name && outer == others =>
        {
            Class::OmittedLine
        }
        ([ours], []) if is_symbol(ours) => Class::Label,
        ([], [theirs]) if is_bare(theirs) => Class::OutsideOfCode,
        ([ours, outer @ ..], theirs) if is_bare(ours) && outer == theirs && !outer.is_empty() => {
            Class::CallWithoutLine
        }
        (ours, theirs) if has_other_part(ours, theirs) => Class::PartName,
        ([ours, outer @ ..], theirs) if is_bare(ours) && has_other_part(outer, theirs) => {
            Class::CallInPart
        }
        _ => Class::Other,
    }
}

/// Returns an answer of `symbolic` with the paths of ours where they differ only in that it repeats
/// the relative directory in which the compiler ran. Frames are compared from the outermost on.
fn without_repetition(ours: &[Frame], theirs: &[Frame]) -> Answer {
    let mut theirs = theirs.to_vec();
    for (ours, theirs) in ours.iter().rev().zip(theirs.iter_mut().rev()) {
        let (Some(our_path), Some(their_path)) = (&ours.path, &theirs.path) else {
            continue;
        };
        let repeated = their_path.strip_suffix(our_path.trim_start_matches("./"));
        let repeated = repeated.map(|directory| directory.trim_start_matches("./"));
        let is_repeated = |directory: &str| {
            let directory = directory.trim_end_matches("./");
            !directory.is_empty() && our_path.trim_start_matches("./").starts_with(directory)
        };
        if repeated.is_some_and(is_repeated) {
            theirs.path = Some(our_path.clone());
        }
    }
    theirs
}

/// Returns whether a tool agrees with an answer in what differs in a class.
fn is_right(class: Class, answer: &Answer, said: &Said, symbols: &Symbols) -> bool {
    let pairs = || answer.iter().zip(&said.frames);
    let is_known = said.frames.iter().any(|frame| frame.function.is_some());
    let inner = pairs().next();
    let outer = answer.last().zip(said.frames.last());
    let is_same_place = |(frame, said): (&Frame, &oracle::Frame)| {
        is_same_function(frame, said, symbols) && line_of(frame) == said.line
    };
    match class {
        Class::OmittedLine => inner.is_some_and(is_same_place),
        Class::Label | Class::OutsideOfCode => match inner {
            Some((frame, said)) => {
                let line = line_of(frame);
                is_same_symbol(frame, said, symbols) && (line.is_none() || line == said.line)
            }
            None => answer.is_empty() && !is_known,
        },
        Class::CallInPart => {
            let both = [Class::CallWithoutLine, Class::PartName];
            both.map(|class| is_right(class, answer, said, symbols)) == [true, true]
        }
        Class::CallWithoutLine => {
            let same_names = pairs().all(|(frame, said)| is_same_function(frame, said, symbols));
            let same_calls = pairs()
                .skip(1)
                .all(|(frame, said)| line_of(frame) == said.line);
            answer.len() == said.frames.len() && same_names && same_calls
        }
        Class::PartName => outer.is_some_and(|(frame, said)| is_same_symbol(frame, said, symbols)),
        Class::Directory | Class::Other => {
            inner.map_or(answer.is_empty() && !is_known, is_same_place)
        }
    }
}

/// Returns whether a frame has the name of a symbol that a tool has, or another name of that
/// symbol.
fn is_same_symbol(frame: &Frame, said: &oracle::Frame, symbols: &Symbols) -> bool {
    fn without_version(name: &str) -> &str {
        name.split('@').next().unwrap_or(name)
    }
    let Some(theirs) = said.function.as_deref().map(without_version) else {
        return false;
    };
    let ours = without_version(&frame.name);
    let aliases = symbols.get(&even(frame.entry.into())).into_iter().flatten();
    let has_both = || {
        let aliases: HashSet<&str> = aliases.map(|name| without_version(name)).collect();
        aliases.contains(ours) && aliases.contains(theirs)
    };
    ours == theirs || has_both()
}

/// Like [`is_same_symbol`], but parts and copies of a function count as the function, and a tool
/// may have no more than the last component of its name.
fn is_same_function(frame: &Frame, said: &oracle::Frame, symbols: &Symbols) -> bool {
    let is_bare = said
        .function
        .as_deref()
        .is_some_and(|theirs| bare(&normalized(&frame.name)) == bare(&normalized(theirs)));
    is_bare || is_same_symbol(frame, said, symbols)
}

fn line_of(frame: &Frame) -> Option<(String, u64)> {
    let path = frame.path.as_deref()?;
    let line = u64::from(frame.line);
    (line > 0).then(|| (base_name(path).to_owned(), line))
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

    fn symbols() -> Symbols {
        let names = ["f.cold", "f_alias.cold@@V1"].map(str::to_owned);
        HashMap::from([(16, HashSet::from(names))])
    }

    fn class(ours: &[Frame], theirs: &[Frame]) -> Class {
        let difference = Difference {
            address: 17,
            ours: ours.to_vec(),
            theirs: theirs.to_vec(),
        };
        class_of(&difference, &symbols())
    }

    #[test]
    fn a_difference_is_explained_only_by_what_the_file_says() {
        let (cold, call) = (frame("f.cold", 7), frame("g", 3));
        let alone = [cold.clone()];
        assert_eq!(class(&alone, &[frame("f.cold", 0)]), Class::OmittedLine);
        let called = [call.clone(), cold.clone()];
        let without_line = [frame("g", 0), cold.clone()];
        assert_eq!(class(&called, &without_line), Class::OmittedLine);
        let chains = [[call.clone(), cold.clone()], [call.clone(), frame("f", 7)]];
        assert_eq!(class(&chains[0], &chains[1]), Class::PartName);
        assert_eq!(class(&without_line, &alone), Class::CallWithoutLine);
        assert_eq!(class(&without_line, &[frame("f", 7)]), Class::CallInPart);
        assert_eq!(class(&without_line, &[frame("f", 8)]), Class::Other);
        assert_eq!(class(&[], &[frame("x", 0)]), Class::OutsideOfCode);
        assert_eq!(class(&[frame("f.cold", 0)], &[]), Class::Label);
        assert_eq!(class(&alone, &[]), Class::Label);
        for (ours, theirs) in [
            (vec![], vec![cold.clone()]),
            (vec![frame("f", 7)], vec![]),
            (vec![frame("f", 7)], vec![cold.clone()]),
            (vec![frame("f.cold", 8)], vec![cold.clone()]),
            (vec![call, cold.clone()], vec![cold]),
        ] {
            assert_eq!(class(&ours, &theirs), Class::Other, "{ours:?} {theirs:?}");
        }
    }

    #[test]
    fn a_directory_that_is_repeated_explains_a_difference_of_paths_alone() {
        let at = |path: &str, line| Frame {
            path: Some(path.to_owned()),
            ..frame("f", line)
        };
        let ours = [at("./csu/a.c", 1)];
        for theirs in ["./csu/./csu/a.c", "csu/csu/a.c"] {
            assert_eq!(class(&ours, &[at(theirs, 1)]), Class::Directory, "{theirs}");
        }
        for (theirs, line) in [("./csu/./csu/a.c", 2), ("./other/./csu/a.c", 1), ("b.c", 1)] {
            assert_eq!(class(&ours, &[at(theirs, line)]), Class::Other, "{theirs}");
        }
    }

    fn said(frames: &[(&str, u64)]) -> Said {
        let frame = |(name, line): &(&str, u64)| oracle::Frame {
            function: Some((*name).to_owned()),
            line: (*line > 0).then(|| ("b.c".to_owned(), *line)),
        };
        Said {
            frames: frames.iter().map(frame).collect(),
        }
    }

    fn right(class: Class, answer: &[Frame], frames: &[(&str, u64)]) -> bool {
        is_right(class, &answer.to_vec(), &said(frames), &symbols())
    }

    #[test]
    fn a_name_of_a_part_is_right_only_if_it_is_that_of_the_symbol() {
        let part = [frame("_ZN1a1gEi", 3), frame("f.cold", 7)];
        assert!(right(
            Class::PartName,
            &part,
            &[("other", 4), ("f.cold", 7)]
        ));
        assert!(right(Class::PartName, &part, &[("f_alias.cold@@V1", 7)]));
        assert!(!right(Class::PartName, &part, &[("f", 7)]));
        assert!(!right(Class::PartName, &[], &[("f.cold", 7)]));
        assert!(!right(Class::PartName, &part, &[]));
    }

    #[test]
    fn a_line_of_a_symbol_is_right_only_if_function_and_line_are() {
        let line = [frame("_ZN1a1gEi", 3)];
        assert!(right(Class::OmittedLine, &line, &[("g", 3)]));
        assert!(right(Class::Other, &line, &[("_ZN1a1gEi", 3), ("h", 1)]));
        for wrong in [&[("f", 3)][..], &[("g", 4)], &[("g", 0)], &[]] {
            assert!(!right(Class::OmittedLine, &line, wrong), "{wrong:?}");
            assert!(!right(Class::Other, &line, wrong), "{wrong:?}");
        }
    }

    #[test]
    fn a_call_without_a_line_is_right_only_if_the_whole_chain_is() {
        let chain = [frame("g", 0), frame("f.cold", 7)];
        // The tools report the line of an earlier row.
        assert!(right(
            Class::CallWithoutLine,
            &chain,
            &[("g", 99), ("f.cold", 7)]
        ));
        for wrong in [
            &[("f.cold", 7)][..],
            &[("g", 99), ("f.cold", 8)],
            &[("h", 99), ("f.cold", 7)],
            &[("g", 99), ("h", 1), ("f.cold", 7)],
        ] {
            assert!(!right(Class::CallWithoutLine, &chain, wrong), "{wrong:?}");
        }
    }

    #[test]
    fn a_call_in_a_part_is_right_only_if_the_chain_and_the_name_of_the_part_are() {
        let chain = [frame("g", 0), frame("f.cold", 7)];
        assert!(right(
            Class::CallInPart,
            &chain,
            &[("g", 99), ("f.cold", 7)]
        ));
        for wrong in [
            // The name of the function instead of that of its part.
            &[("g", 99), ("f", 7)][..],
            &[("h", 99), ("f.cold", 7)],
            &[("g", 99), ("f.cold", 8)],
            &[("f.cold", 7)],
        ] {
            assert!(!right(Class::CallInPart, &chain, wrong), "{wrong:?}");
        }
    }

    #[test]
    fn no_name_is_right_only_if_the_tool_has_none() {
        for class in [Class::OutsideOfCode, Class::Label, Class::Other] {
            assert!(right(class, &[], &[]));
            assert!(!right(class, &[], &[("f", 0)]));
        }
        assert!(right(Class::Label, &[frame("f.cold", 0)], &[("f.cold", 0)]));
        assert!(!right(Class::Label, &[frame("f.cold", 0)], &[("g", 0)]));
        assert!(right(Class::Label, &[frame("f.cold", 7)], &[("f.cold", 7)]));
        assert!(!right(
            Class::Label,
            &[frame("f.cold", 7)],
            &[("f.cold", 8)]
        ));
    }
}
