//! Flat tables with the contents of a run of units. They refer to texts in the sections instead of
//! copying them, where possible.

use std::borrow::Cow;

use foldhash::{HashMap, HashMapExt};
use symbolic::common::Language;
use symbolic::debuginfo::Symbol;

use crate::debuginfo::slices::{NOWHERE, RawLocation};

/// A reference to a text. The highest byte gives the source, the next three bytes the number of the
/// run, and the lower half an offset or a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::debuginfo::derive) struct TextRef(u64);

const IN_DEBUG_STR: u64 = 1;
const IN_LINE_STR: u64 = 2;
const IN_RUN: u64 = 3;
const IN_SYMBOL: u64 = 4;
const SOURCE_SHIFT: u32 = 56;
const RUN_SHIFT: u32 = 32;

impl TextRef {
    pub(in crate::debuginfo::derive) const EMPTY: Self = Self(0);
    /// No text, as opposed to the empty text.
    pub(in crate::debuginfo::derive) const NONE: Self = Self(u64::MAX);

    pub(super) fn in_debug_str(offset: usize) -> Self {
        Self::of(IN_DEBUG_STR, offset)
    }

    pub(super) fn in_line_str(offset: usize) -> Self {
        Self::of(IN_LINE_STR, offset)
    }

    pub(super) fn of_symbol(number: usize) -> Self {
        Self::of(IN_SYMBOL, number)
    }

    fn in_run(run: u32, offset: usize) -> Self {
        let run = u64::from(run & 0xff_ffff) << RUN_SHIFT;
        Self(Self::of(IN_RUN, offset).0 | run)
    }

    /// Returns a reference to a text in a source. An offset that is too large refers to no text,
    /// like an offset beyond the end.
    fn of(source: u64, offset: usize) -> Self {
        let offset = u32::try_from(offset).unwrap_or(NOWHERE);
        Self(source << SOURCE_SHIFT | u64::from(offset))
    }

    fn source(self) -> u64 {
        self.0 >> SOURCE_SHIFT
    }

    /// Returns the number of the run.
    fn run(self) -> usize {
        (self.0 >> RUN_SHIFT & 0xff_ffff) as usize
    }

    /// Returns the offset or number.
    fn at(self) -> usize {
        (self.0 & u64::from(NOWHERE)) as usize
    }

    /// Returns a text that is in a section or in the texts of its run. A text in another source is
    /// empty.
    pub(super) fn bytes_in(self, [debug_str, line_str, of_run]: [&[u8]; 3]) -> &[u8] {
        match self.source() {
            IN_DEBUG_STR => terminated(debug_str, self.at()),
            IN_LINE_STR => terminated(line_str, self.at()),
            IN_RUN => terminated(of_run, self.at()),
            _ => &[],
        }
    }
}

/// The sources of texts.
pub(in crate::debuginfo::derive) struct Texts<'a> {
    pub(in crate::debuginfo::derive) debug_str: &'a [u8],
    pub(in crate::debuginfo::derive) line_str: &'a [u8],
    pub(in crate::debuginfo::derive) symbols: &'a [Symbol<'a>],
    pub(in crate::debuginfo::derive) runs: &'a [UnitTables],
}

impl<'a> Texts<'a> {
    /// Returns a text, or the empty text if the reference is invalid.
    pub(super) fn get(&self, text: TextRef) -> Cow<'a, str> {
        if text.source() == IN_SYMBOL {
            let symbol = self.symbols.get(text.at());
            let name = symbol.and_then(|symbol| symbol.name.as_deref());
            return name.unwrap_or_default().into();
        }
        let run = self.runs.get(text.run());
        let of_run = run.map_or(&[][..], UnitTables::texts);
        String::from_utf8_lossy(text.bytes_in([self.debug_str, self.line_str, of_run]))
    }
}

fn terminated(section: &[u8], at: usize) -> &[u8] {
    let rest = section.get(at..).unwrap_or_default();
    let end = memchr::memchr(0, rest);
    end.and_then(|end| rest.get(..end)).unwrap_or_default()
}

/// A function. The entry point of an inlined function is [`NOWHERE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::debuginfo::derive) struct UnitFunction {
    pub(in crate::debuginfo::derive) name: TextRef,
    pub(in crate::debuginfo::derive) entry: u32,
    pub(in crate::debuginfo::derive) language: Language,
}

/// Compilation directory, directory, name.
pub(in crate::debuginfo::derive) type UnitFile = [TextRef; 3];

/// A range, which extends to the next one. The numbers in its location refer to the tables of the
/// same run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::debuginfo::derive) struct Placed {
    pub(in crate::debuginfo::derive) start: u32,
    pub(in crate::debuginfo::derive) location: RawLocation,
}

/// The location of a gap.
pub(in crate::debuginfo::derive) const NOTHING: RawLocation = [NOWHERE; 4];

impl Placed {
    /// Returns whether it is a gap.
    pub(in crate::debuginfo::derive) fn is_nothing(&self) -> bool {
        self.location == NOTHING
    }
}

/// One address range of a function, and the indices of its [`UnitTables::ranges`], the last of
/// which is a gap.
#[derive(Clone, Copy, Debug)]
pub(in crate::debuginfo::derive) struct RangeBody {
    pub(in crate::debuginfo::derive) start: u32,
    pub(in crate::debuginfo::derive) end: u32,
    pub(in crate::debuginfo::derive) first: u32,
    pub(in crate::debuginfo::derive) count: u32,
}

/// A row of a line program that lies in no function of its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loose {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) file: u32,
    pub(super) line: u32,
}

/// The number of units, and the numbers of those that cannot be read or are not available.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) units: usize,
    pub(super) unread: usize,
    /// The error of the first unit that cannot be read.
    pub(super) problem: Option<gimli::Error>,
    /// The number of units in files that are not available.
    pub(super) absent: usize,
    /// The name and id of the first of these files.
    pub(super) absent_file: Option<String>,
}

impl Counts {
    /// Adds the counts of later units.
    pub(super) fn add(&mut self, other: Self) {
        self.units += other.units;
        self.unread += other.unread;
        self.problem = self.problem.or(other.problem);
        self.absent += other.absent;
        self.absent_file = self.absent_file.take().or(other.absent_file);
    }

    /// Counts a unit in a file that is not available.
    pub(super) fn add_absent(&mut self, file: impl FnOnce() -> Option<String>) {
        self.absent += 1;
        if self.absent_file.is_none() {
            self.absent_file = file();
        }
    }

    /// Counts a unit that cannot be read.
    pub(super) fn add_unread(&mut self, problem: gimli::Error) {
        self.unread += 1;
        self.problem.get_or_insert(problem);
    }
}

/// The contents of one run of units.
#[derive(Debug, Default)]
pub(in crate::debuginfo::derive) struct UnitTables {
    pub(in crate::debuginfo::derive) run: u32,
    pub(super) counts: Counts,
    pub(in crate::debuginfo::derive) bodies: Vec<RangeBody>,
    pub(in crate::debuginfo::derive) ranges: Vec<Placed>,
    pub(super) loose: Vec<Loose>,
    pub(in crate::debuginfo::derive) functions: Vec<UnitFunction>,
    pub(in crate::debuginfo::derive) files: Vec<UnitFile>,
    /// The places of files on source servers, by the number of the file: name, directory, revision.
    pub(in crate::debuginfo::derive) links: HashMap<u32, [TextRef; 3]>,
    /// Inlined calls: the location of each, and the number of the call around it, which is lower
    /// than its own.
    pub(in crate::debuginfo::derive) calls: Vec<RawLocation>,
    /// Texts that the other sources do not have, each terminated by a zero byte.
    texts: Vec<u8>,
}

impl UnitTables {
    pub(in crate::debuginfo::derive) fn new(run: u32) -> Self {
        Self {
            run,
            ..Self::default()
        }
    }

    /// Stores a text. Returns a reference to it.
    pub(in crate::debuginfo::derive) fn keep(&mut self, text: &[u8]) -> TextRef {
        let at = self.texts.len();
        self.texts.extend_from_slice(text);
        self.texts.push(0);
        TextRef::in_run(self.run, at)
    }

    /// Returns the location in the function into which a location is inlined.
    pub(super) fn outermost(&self, mut location: RawLocation) -> RawLocation {
        while let Some(around) = self.calls.get(location[3] as usize) {
            location = *around;
        }
        location
    }

    /// Returns whether a location is in a function of which no line is known there, but may be in a
    /// call that was inlined into it.
    pub(super) fn is_without_line(&self, location: RawLocation) -> bool {
        let [file, _, function, _] = self.outermost(location);
        file == NOWHERE && function != NOWHERE
    }

    /// Returns the stored texts.
    pub(super) fn texts(&self) -> &[u8] {
        &self.texts
    }

    /// Stores a row that lies in no function. A row that continues the last one extends it.
    pub(super) fn keep_loose(&mut self, row: Loose) {
        match self.loose.last_mut() {
            Some(last) if (last.end, last.file, last.line) == (row.start, row.file, row.line) => {
                last.end = row.end;
            }
            _ => self.loose.push(row),
        }
    }

    /// Returns the contents, in no more memory than they need. The memory of the large tables is
    /// kept for the next run: tables that grow are copied, and the system clears their new memory.
    pub(super) fn take_contents(&mut self) -> Self {
        fn taken<T: Copy>(table: &mut Vec<T>) -> Vec<T> {
            let contents = table.to_vec();
            table.clear();
            contents
        }
        let Self {
            run,
            counts,
            bodies,
            ranges,
            loose,
            functions,
            files,
            links,
            calls,
            texts,
        } = self;
        Self {
            run: *run,
            counts: std::mem::take(counts),
            bodies: taken(bodies),
            ranges: taken(ranges),
            loose: taken(loose),
            functions: taken(functions),
            files: std::mem::take(files),
            links: std::mem::take(links),
            calls: taken(calls),
            texts: std::mem::take(texts),
        }
    }

    /// Frees memory that is reserved and not used.
    pub(in crate::debuginfo::derive) fn shrink(&mut self) {
        self.bodies.shrink_to_fit();
        self.ranges.shrink_to_fit();
        self.loose.shrink_to_fit();
        self.functions.shrink_to_fit();
        self.calls.shrink_to_fit();
    }
}

/// Assigns numbers to values. Equal values have the same number.
#[derive(Debug)]
pub(in crate::debuginfo::derive) struct Numbers<T>(HashMap<T, u32>);

impl<T: Copy + Eq + std::hash::Hash> Numbers<T> {
    pub(in crate::debuginfo::derive) fn new() -> Self {
        Self(HashMap::new())
    }

    /// Returns the index of a value in a table, and adds the value if it is new.
    pub(in crate::debuginfo::derive) fn of(&mut self, thing: T, table: &mut Vec<T>) -> u32 {
        *self.0.entry(thing).or_insert_with(|| {
            let number = u32::try_from(table.len()).unwrap_or(NOWHERE);
            table.push(thing);
            number
        })
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Like [`Self::clear`], for a map that rarely has many values: clearing takes time for each
    /// place in it.
    pub(in crate::debuginfo::derive) fn clear_often(&mut self) {
        const MAX_KEPT: usize = 1 << 10;
        if self.0.capacity() > MAX_KEPT {
            self.0 = HashMap::new();
        } else {
            self.0.clear();
        }
    }
}
