//! Merges all ranges of an object in address order: functions, symbols outside of functions, and
//! gaps.
//!
//! At an address with several candidates, the rules follow `symbolic` (`symbolic_symcache::writer`,
//! MIT), which is the oracle:
//!
//! - Of several functions, the one that was read last is used, unless it has no line there.
//! - A symbol is used where there is no function.
//! - The end of a function or symbol begins a gap if nothing else begins there.
//!
//! Five rules go beyond `symbolic`:
//!
//! - A symbol has the lines that no function covers.
//! - A symbol with a size that is longer than the function in it continues behind the function. GHC
//!   writes functions that cover only their entry code.
//! - Labels are used outside of functions.
//! - Neither the start nor the end of a symbol divides a function.
//! - Where a function ends within another one, that one continues. GNU `as` writes functions that
//!   reach into the next one: on Thumb, their addresses are odd, and on RISC-V, the linker may have
//!   made them shorter.

use std::collections::{BTreeMap, VecDeque};
use std::iter::Peekable;

use foldhash::{HashSet, HashSetExt};

use super::symbols::Symbols;
use super::tables::{Loose, Placed, RangeBody, UnitTables};
use crate::debuginfo::slices::{NOWHERE, RawLocation};

/// A range, which extends to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::debuginfo::derive) struct MergedRange {
    pub(super) start: u32,
    pub(super) what: What,
}

/// The content of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Nothing,
    /// A range in the tables of a run, to which the numbers in its location refer.
    Range {
        run: u32,
        location: RawLocation,
    },
    Symbol(u32),
    /// A row in the tables of a run, shown with the name of a symbol. Its place is the number of
    /// the file in the tables of the run, and the line.
    Line {
        symbol: u32,
        run: u32,
        place: [u32; 2],
    },
}

/// An address range of a function, with its run.
#[derive(Clone, Copy, Debug)]
struct OfRun {
    body: RangeBody,
    run: u32,
    /// Its position in the order in which all ranges were read.
    order: u32,
}

/// Merges the tables of several runs. Adjacent ranges with the same content become one. Returns
/// the ranges in groups of `group` ranges, the last of which may have fewer.
///
/// An address range that several functions have belongs to the first of them.
pub(super) fn merge<'r>(
    runs: &'r [UnitTables],
    symbols: &'r Symbols<'_>,
    group: usize,
) -> impl Iterator<Item = Vec<MergedRange>> + Send + use<'r> {
    let mut seen = HashSet::new();
    let is_first = |body: &RangeBody| seen.insert((body.start, body.end));
    merge_functions(FunctionRanges::of(runs, is_first), symbols, group)
}

/// Like [`merge()`], but functions with the same address range are treated as if they overlapped.
pub(in crate::debuginfo::derive) fn merge_all<'r>(
    runs: &'r [UnitTables],
    symbols: &'r Symbols<'_>,
    group: usize,
) -> impl Iterator<Item = Vec<MergedRange>> + Send + use<'r> {
    merge_functions(FunctionRanges::of(runs, |_| true), symbols, group)
}

fn merge_functions<'r>(
    functions: FunctionRanges<'r>,
    symbols: &'r Symbols<'_>,
    group: usize,
) -> impl Iterator<Item = Vec<MergedRange>> + Send + use<'r> {
    let loose = loose(functions.runs);
    Groups {
        ranges: with_symbols(functions, symbols).peekable(),
        loose,
        merged: VecDeque::new(),
        group: group.max(1),
    }
}

/// Merged ranges in address order, group by group. No group is made before it is needed, so that
/// several workers can encode groups while the next one is made, and memory holds few of them.
struct Groups<I: Iterator<Item = MergedRange>> {
    /// The ranges of functions, and symbols outside of functions.
    ranges: Peekable<I>,
    /// The rows that no function covers, each with its run.
    loose: Vec<(u32, Loose)>,
    /// Ranges that are in no group yet. The last one may still change.
    merged: VecDeque<MergedRange>,
    /// The number of ranges in a group.
    group: usize,
}

impl<I: Iterator<Item = MergedRange>> Iterator for Groups<I> {
    type Item = Vec<MergedRange>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.merged.len() <= self.group
            && let Some(range) = self.ranges.next()
        {
            self.push(range);
            if let What::Symbol(symbol) = range.what {
                let end = self.ranges.peek().map_or(NOWHERE, |next| next.start);
                self.push_lines(symbol, (range.start, end));
            }
        }
        let count = self.merged.len().min(self.group);
        (count > 0).then(|| self.merged.drain(..count).collect())
    }
}

impl<I: Iterator<Item = MergedRange>> Groups<I> {
    fn push(&mut self, range: MergedRange) {
        if self.merged.back().map(|last| last.what) != Some(range.what) {
            self.merged.push_back(range);
        }
    }

    /// Adds the lines of a symbol within the range in which the symbol is used.
    fn push_lines(&mut self, symbol: u32, (start, end): (u32, u32)) {
        // The symbol without a line.
        let without_line = |start| MergedRange {
            start,
            what: What::Symbol(symbol),
        };
        let mut at = start;
        let first = self.loose.partition_point(|(_, row)| row.end <= start);
        for number in first..self.loose.len() {
            let (run, row) = self.loose[number];
            if row.start >= end {
                break;
            }
            if at < row.start {
                self.push(without_line(at));
            }
            at = row.start.max(at);
            let place = [row.file, row.line];
            self.replace_at(at, What::Line { symbol, run, place });
            at = row.end;
        }
        if at < end {
            self.push(without_line(at));
        }
    }

    /// Adds a range that begins at an address, or replaces the content of the last range if that
    /// begins there.
    fn replace_at(&mut self, start: u32, what: What) {
        match self.merged.back_mut() {
            Some(last) if last.start == start => last.what = what,
            _ => self.merged.push_back(MergedRange { start, what }),
        }
    }
}

/// Returns the rows that no function covers in address order, each with its run. Where rows
/// overlap, the one that begins first is used; at the same address, the one of the first run.
fn loose(runs: &[UnitTables]) -> Vec<(u32, Loose)> {
    let mut all: Vec<_> = runs
        .iter()
        .flat_map(|tables| tables.loose.iter().map(|row| (tables.run, *row)))
        .collect();
    all.sort_by_key(|(run, row)| (row.start, *run));
    let mut end = 0;
    all.retain_mut(|(_, row)| {
        row.start = row.start.max(end);
        let is_new = row.start < row.end;
        if is_new {
            end = row.end;
        }
        is_new
    });
    all
}

/// The ranges of all functions, in address order.
struct FunctionRanges<'r> {
    runs: &'r [UnitTables],
    /// The functions, by address.
    bodies: Vec<OfRun>,
    /// The number of functions whose ranges are in `current`, or were.
    taken: usize,
    current: Ranges<'r>,
    /// The last range of `current`. It is replaced if another one begins there.
    last: Option<MergedRange>,
}

/// Ranges of functions.
enum Ranges<'r> {
    /// The ranges of one function.
    Alone(RangesOf<'r>),
    /// The ranges of several functions that overlap, sorted by address and, at one address, by the
    /// order in which they were read.
    Group(std::vec::IntoIter<(u32, Placed)>),
}

impl<'r> FunctionRanges<'r> {
    /// Takes those functions of all runs that count.
    fn of(runs: &'r [UnitTables], mut counts: impl FnMut(&RangeBody) -> bool) -> Self {
        let mut bodies = Vec::new();
        for tables in runs {
            for body in &tables.bodies {
                if counts(body) {
                    let order = u32::try_from(bodies.len()).unwrap_or(u32::MAX);
                    let run = tables.run;
                    bodies.push(OfRun {
                        body: *body,
                        run,
                        order,
                    });
                }
            }
        }
        bodies.sort_unstable_by_key(|of_run| (of_run.body.start, of_run.order));
        Self {
            runs,
            bodies,
            taken: 0,
            current: Ranges::Group(Vec::new().into_iter()),
            last: None,
        }
    }

    /// Returns the next range, with its run.
    fn next_range(&mut self) -> Option<(u32, Placed)> {
        loop {
            let next = match &mut self.current {
                Ranges::Alone(ranges) => ranges.next(),
                Ranges::Group(ranges) => ranges.next(),
            };
            if next.is_some() {
                return next;
            }
            self.current = self.next_group()?;
        }
    }

    /// Takes the next function, together with those that overlap it.
    fn next_group(&mut self) -> Option<Ranges<'r>> {
        let (first, rest) = self.bodies.get(self.taken..)?.split_first()?;
        let mut end = first.body.end;
        let overlapping = rest.iter().take_while(|next| {
            let overlaps = next.body.start < end;
            end = end.max(next.body.end);
            overlaps
        });
        let count = overlapping.count();
        self.taken += 1 + count;
        if count == 0 {
            return Some(Ranges::Alone(ranges_of(self.runs, first)));
        }
        let overlapping = std::iter::once(first).chain(rest.iter().take(count));
        let ranges = overlapping
            .flat_map(|of_run| ranges_of(self.runs, of_run).map(|range| (of_run.order, range)));
        Some(Ranges::Group(of_overlapping(ranges.collect()).into_iter()))
    }
}

impl Iterator for FunctionRanges<'_> {
    type Item = MergedRange;

    fn next(&mut self) -> Option<MergedRange> {
        let runs = self.runs;
        let is_without_line = |run: u32, placed: Placed| {
            let tables = runs.get(run as usize);
            tables.is_some_and(|tables| tables.is_without_line(placed.location))
        };
        while let Some((run, placed)) = self.next_range() {
            let what = if placed.is_nothing() {
                What::Nothing
            } else {
                What::Range {
                    run,
                    location: placed.location,
                }
            };
            let entry = MergedRange {
                start: placed.start,
                what,
            };
            match &mut self.last {
                Some(last) if last.start == placed.start => {
                    let counts = match what {
                        What::Nothing => false,
                        _ => last.what == What::Nothing || !is_without_line(run, placed),
                    };
                    if counts {
                        *last = entry;
                    }
                }
                last => {
                    if let Some(last) = last.replace(entry) {
                        return Some(last);
                    }
                }
            }
        }
        self.last.take()
    }
}

/// The ranges of one function, with its run.
struct RangesOf<'r> {
    run: u32,
    ranges: std::slice::Iter<'r, Placed>,
}

impl Iterator for RangesOf<'_> {
    type Item = (u32, Placed);

    fn next(&mut self) -> Option<Self::Item> {
        Some((self.run, *self.ranges.next()?))
    }
}

fn ranges_of<'r>(runs: &'r [UnitTables], of_run: &OfRun) -> RangesOf<'r> {
    let OfRun { body, run, .. } = *of_run;
    let ranges = runs.get(run as usize).map_or(&[][..], |tables| {
        let first = body.first as usize;
        let ranges = tables.ranges.get(first..first + body.count as usize);
        ranges.expect("a body names ranges of its tables")
    });
    RangesOf {
        run,
        ranges: ranges.iter(),
    }
}

/// Returns the ranges of functions that overlap, each of which has its function's position in the
/// order in which they were read, sorted by address and, at one address, by this position. A gap
/// behind a function is left only where no other one continues.
fn of_overlapping(mut ranges: Vec<(u32, (u32, Placed))>) -> Vec<(u32, Placed)> {
    ranges.sort_by_key(|(order, (_, placed))| (placed.start, *order));
    let mut sorted = Vec::with_capacity(ranges.len());
    // The current range of each function that has begun and not ended.
    let mut current = BTreeMap::new();
    for at_once in ranges.chunk_by(|(_, (_, one)), (_, (_, other))| one.start == other.start) {
        let mut gap = None;
        let begun = sorted.len();
        for (order, range) in at_once {
            if range.1.is_nothing() {
                current.remove(order);
                gap = Some(*range);
            } else {
                current.insert(order, *range);
                sorted.push(*range);
            }
        }
        if let Some((run, gap)) = gap.filter(|_| sorted.len() == begun) {
            let continued = current.last_key_value().map(|(_, (run, placed))| {
                let start = gap.start;
                (*run, Placed { start, ..*placed })
            });
            sorted.push(continued.unwrap_or((run, gap)));
        }
    }
    sorted
}

/// Returns the ranges of functions and, outside of functions, the starts and ends of symbols. Where
/// a function ends before the symbol around its end, the symbol continues.
fn with_symbols<'r>(
    functions: FunctionRanges<'r>,
    symbols: &'r Symbols<'_>,
) -> impl Iterator<Item = MergedRange> + Send + use<'r> {
    let symbols: &'r Symbols<'r> = symbols;
    let mut functions = functions.peekable();
    let mut starts = symbols.starts().peekable();
    let mut ends = symbols.ends().into_iter().peekable();
    let mut in_function = false;
    // The symbol at the current address, also within functions, if it has a size.
    let mut around = None;
    std::iter::from_fn(move || {
        loop {
            let of_symbol = [starts.peek().map(|(start, _)| *start), ends.peek().copied()];
            let of_symbol = of_symbol.into_iter().flatten().min();
            let is_before = |entry: &MergedRange| of_symbol.is_none_or(|at| entry.start < at);
            if let Some(entry) = functions.next_if(is_before) {
                in_function = entry.what != What::Nothing;
                let what = match around {
                    Some(number) if !in_function => What::Symbol(number),
                    _ => entry.what,
                };
                return Some(MergedRange { what, ..entry });
            }
            let start = of_symbol?;
            let function = functions.next_if(|entry| entry.start == start);
            let symbol = starts.next_if(|(at, _)| *at == start);
            let symbol = symbol.map(|(_, number)| number);
            // If no symbol begins, one ends.
            around = symbol.filter(|number| symbols.has_size(*number));
            let is_end = ends.next_if_eq(&start).is_some();
            let function = function.map(|entry| entry.what);
            in_function = function.map_or(in_function, |what| what != What::Nothing);
            let symbol = symbol.filter(|_| !in_function);
            let what = match (function, symbol) {
                (None | Some(What::Nothing), Some(number)) => What::Symbol(number),
                (Some(what), _) => what,
                (None, None) if is_end && !in_function => What::Nothing,
                // The start or the end of a symbol within a function.
                (None, None) => continue,
            };
            return Some(MergedRange { start, what });
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use symbolic::common::{Language, Name};
    use symbolic::debuginfo::function_builder::FunctionBuilder;
    use symbolic::debuginfo::{FileInfo, Symbol};
    use symbolic::symcache::{SymCache, SymCacheConverter};

    use super::*;
    use crate::debuginfo::blob::AlignedBytes;
    use crate::debuginfo::derive::dwarf::flatten::{Flattener, Out};
    use crate::debuginfo::derive::dwarf::lines::Row;
    use crate::debuginfo::derive::dwarf::tables::{NOTHING, Numbers, TextRef, UnitFunction};

    const ADDRESSES: std::ops::Range<u64> = 0x100..0x160;

    /// The start and the size of a function or symbol.
    type Extent = (u64, u64);

    /// A function: its extent, the number of bytes before its first row, and the sizes of its rows.
    type Described = (Extent, u64, Vec<u64>);

    fn rows((extent, gap, sizes): &Described) -> Vec<Row> {
        let mut address = extent.0 + gap;
        let row = |(line, size): (u32, &u64)| {
            let row = Row {
                address,
                size: *size,
                file: 0,
                line,
            };
            address += size;
            row
        };
        (1..).zip(sizes).map(row).collect()
    }

    /// Returns the answer of `symbolic` for each address: the name and line of a function, or the
    /// name of a symbol.
    fn by_symbolic(functions: &[Described], symbols: &[Symbol<'_>]) -> Vec<Vec<(String, u32)>> {
        let mut converter = SymCacheConverter::new();
        let mut seen = HashSet::new();
        for (number, described) in functions.iter().enumerate() {
            let (start, size) = described.0;
            if !seen.insert((start, size)) {
                continue;
            }
            let name = Name::from(format!("f{number}"));
            let mut builder = FunctionBuilder::new(name, b"", start, size);
            for row in rows(described) {
                let file = FileInfo::from_filename(b"a.c");
                builder.add_leaf_line(row.address, Some(row.size), file, row.line.into());
            }
            converter.process_symbolic_function(&builder.finish());
        }
        for symbol in symbols {
            converter.process_symbolic_symbol(symbol);
        }
        let mut raw = Vec::new();
        converter.serialize(&mut raw).unwrap();
        let raw = AlignedBytes::copied(&raw).unwrap();
        let cache = SymCache::parse(raw.as_slice()).unwrap();
        let at = |address| {
            let locations = cache.lookup(address);
            let shown =
                locations.map(|location| (location.function().name().to_owned(), location.line()));
            shown.collect()
        };
        ADDRESSES.map(at).collect()
    }

    /// Returns the answer of the last function that covers an address, as if there were no other.
    fn of_last(functions: &[Described], address: u64) -> Vec<(String, u32)> {
        let mut seen = HashSet::new();
        let counted = functions.iter().enumerate();
        let mut counted = counted.filter(|(_, described)| seen.insert(described.0));
        let covers = |((start, size), ..): &Described| (*start..start + size).contains(&address);
        let last = counted.by_ref().filter(|(_, it)| covers(it)).last();
        last.map_or(Vec::new(), |(number, described)| {
            let alone = by_symbolic(std::slice::from_ref(described), &[]);
            let answer = alone[(address - ADDRESSES.start) as usize].iter();
            let named = answer.map(|(_, line)| (format!("f{number}"), *line));
            named.collect()
        })
    }

    fn by_merging(functions: &[Described], symbols: Symbols<'_>) -> Vec<Vec<(String, u32)>> {
        // Two functions per run, so that a function is also merged with an equal one in another
        // run.
        let runs: Vec<UnitTables> = (0..)
            .zip(functions.chunks(2))
            .map(|(run, functions)| {
                let mut tables = UnitTables::new(run);
                for described in functions {
                    let ((start, size), function) = (described.0, tables.functions.len() as u32);
                    let first = tables.ranges.len() as u32;
                    let number = run as usize * 2 + function as usize;
                    let name = tables.keep(format!("f{number}").as_bytes());
                    let (entry, language) = (start as u32, Language::Unknown);
                    tables.functions.push(UnitFunction {
                        name,
                        entry,
                        language,
                    });
                    let mut out = Out {
                        ranges: &mut tables.ranges,
                        calls: &mut tables.calls,
                        numbers: &mut Numbers::new(),
                    };
                    let extent = (start, start + size);
                    let rows = rows(described).into_iter();
                    Flattener::default().flatten(extent, function, &mut [], rows, &mut out);
                    tables.bodies.push(RangeBody {
                        start: start as u32,
                        end: (start + size) as u32,
                        first,
                        count: tables.ranges.len() as u32 - first,
                    });
                }
                tables
            })
            .collect();
        let entries: Vec<MergedRange> = merge(&runs, &symbols, 3).flatten().collect();
        assert!(entries.windows(2).all(|pair| pair[0].start < pair[1].start));
        let texts = crate::debuginfo::derive::dwarf::tables::Texts {
            debug_str: &[],
            line_str: &[],
            symbols: symbols.all(),
            runs: &runs,
        };
        let at = |address: u64| {
            let after = entries.partition_point(|entry| u64::from(entry.start) <= address);
            let what = after.checked_sub(1).map(|at| entries[at].what);
            match what {
                None | Some(What::Nothing) => Vec::new(),
                Some(What::Symbol(number)) => {
                    vec![(
                        texts.get(TextRef::of_symbol(number as usize)).into_owned(),
                        0,
                    )]
                }
                Some(What::Line { .. }) => panic!("no row lies outside of functions"),
                Some(What::Range { run, location }) => {
                    let tables = &runs[run as usize];
                    let [_, line, function, _] = location;
                    let name = texts.get(tables.functions[function as usize].name);
                    vec![(name.into_owned(), line)]
                }
            }
        };
        ADDRESSES.map(at).collect()
    }

    /// Linkers merge functions with the same code. Of those without lines, the first is used, also
    /// in the calls that were inlined into it.
    #[test]
    fn a_function_without_lines_has_one_name_throughout() {
        let mut tables = UnitTables::new(0);
        for function in 0..2 {
            let first = tables.ranges.len() as u32;
            let bare = [NOWHERE, 0, function, NOWHERE];
            let call = tables.calls.len() as u32;
            tables.calls.push(bare);
            let called = [0, 7, 2, call];
            for (start, location) in [
                (0x100, bare),
                (0x104, called),
                (0x108, bare),
                (0x110, NOTHING),
            ] {
                tables.ranges.push(Placed { start, location });
            }
            tables.bodies.push(RangeBody {
                start: 0x100,
                end: 0x110,
                first,
                count: 4,
            });
        }
        let symbols = Symbols::new(Vec::new(), Vec::new());
        let merged = merge_all(std::slice::from_ref(&tables), &symbols, 8).flatten();
        let functions = merged.map(|range| match range.what {
            What::Range { location, .. } => {
                let [_, _, function, _] = tables.outermost(location);
                (range.start, Some(function))
            }
            _ => (range.start, None),
        });
        let expected = [
            (0x100, Some(0)),
            (0x104, Some(0)),
            (0x108, Some(0)),
            (0x110, None),
        ];
        assert_eq!(functions.collect::<Vec<_>>(), expected);
    }

    proptest! {
        /// Functions that overlap, that several runs have, or that begin without a row; symbols
        /// inside and outside of functions, and without a size.
        #[test]
        fn each_address_has_the_same_answer_as_in_symbolic(
            functions in vec(((0x100_u64..0x140, 1_u64..24), 0_u64..4, vec(1_u64..9, 0..5)), 0..7),
            symbols in vec((0x100_u64..0x150, 0_u64..20), 0..6),
        ) {
            let mut symbols: Vec<Symbol<'_>> = symbols
                .iter()
                .enumerate()
                .map(|(number, (address, size))| Symbol {
                    name: Some(format!("s{number}").into()),
                    address: *address,
                    size: *size,
                })
                .collect();
            symbols.sort_by_key(|symbol| symbol.size == 0);
            let sized = symbols.partition_point(|symbol| symbol.size > 0);
            // In `symbolic`, a symbol within a function divides it, and so does the end of another
            // function. A symbol that is longer than a function ends with it.
            let of_functions = by_symbolic(&functions, &[]).into_iter().zip(ADDRESSES);
            let of_functions = of_functions.map(|(of_all, address)| if of_all.is_empty() { of_last(&functions, address) } else { of_all });
            let of_both = by_symbolic(&functions, &symbols);
            let mut of_sized = by_symbolic(&[], &symbols);
            for answer in &mut of_sized {
                let is_sized = |(name, _): &(String, u32)| {
                    let mut sized = symbols[..sized].iter();
                    sized.any(|symbol| symbol.name.as_deref() == Some(&**name))
                };
                answer.retain(is_sized);
            }
            let answers = of_functions.zip(of_both).zip(of_sized);
            let expected: Vec<_> = answers
                .map(|((of_function, of_both), of_sized)| {
                    let all = [of_function, of_both, of_sized];
                    all.into_iter().find(|answer| !answer.is_empty()).unwrap_or_default()
                })
                .collect();
            let symbols = Symbols::new(symbols, Vec::new()).with_sizes(sized);
            prop_assert_eq!(by_merging(&functions, symbols), expected);
        }
    }

    #[test]
    fn a_symbol_with_a_size_continues_behind_its_function() {
        let functions: [Described; 1] = [((0x100, 4), 0, vec![4])];
        let symbol = |name: &'static str, address, size| Symbol {
            name: Some(name.into()),
            address,
            size,
        };
        let both = || vec![symbol("long", 0x100, 12), symbol("inner", 0x102, 1)];
        let at = |answers: &[Vec<(String, u32)>], address: u64| {
            let answer = answers[(address - ADDRESSES.start) as usize].first();
            answer.map(|(name, _)| name.clone())
        };
        let long = || vec![symbol("long", 0x100, 12)];
        let found = by_merging(&functions, Symbols::new(long(), Vec::new()).with_sizes(1));
        assert_eq!(at(&found, 0x103).as_deref(), Some("f0"));
        assert_eq!(at(&found, 0x104).as_deref(), Some("long"));
        assert_eq!(at(&found, 0x10b).as_deref(), Some("long"));
        assert_eq!(at(&found, 0x10c), None);
        // Where the format gives no sizes, they are estimates, which may include other functions.
        let found = by_merging(&functions, Symbols::new(long(), Vec::new()));
        assert_eq!(at(&found, 0x104), None);
        // As elsewhere, the end of any symbol begins a gap.
        let found = by_merging(&functions, Symbols::new(both(), Vec::new()).with_sizes(2));
        assert_eq!(at(&found, 0x104), None);
    }
}
