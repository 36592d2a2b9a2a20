//! Reads units: their functions, the calls inlined into these functions, and the names of both.
//!
//! The rules follow `symbolic` (`symbolic_debuginfo::dwarf`, MIT), which is the oracle:
//!
//! - A function has the name of the symbol at its first address. If there is no such symbol, it has
//!   the name in its entry. Of several symbols, the one with the name in the entry is used;
//!   `symbolic` uses the first. A later range of the function has the name of its own symbol, if
//!   there is one; here `symbolic` uses the name of the function.
//! - An address range belongs to the first function that has it.
//! - A function without addresses was discarded, together with everything that is inlined into it.
//!
//! An inlined call lies in the call around its entry, even if the outer call has other addresses or
//! none: in DWARF 2 an entry can have only one address range. `symbolic` ignores an inlined call
//! whose outer call does not cover it; `llvm-symbolizer` reports both calls.
//!
//! Sources of the format: DWARF 5, sections 3.3 (subroutines), 2.17 (addresses), 3.1 (units).

use foldhash::{HashMap, HashMapExt, HashSet, HashSetExt};
use gimli::{Reader as _, UnitOffset};
use symbolic::common::Language;

use super::current_unit::{CurrentUnit, ReadEntry, number};
use super::flatten::{Flattener, Inlined, Out};
use super::input::{Section, Unit};
use super::lines::{LineRows, Row, low_half};
use super::loose::each_loose_row;
use super::names::language_of;
use super::object::{GivenAddresses, Object};
use super::open_entries::{Call, Context, Inside, OpenCall, OpenFunction};
use super::ranges::{covers, join};
use super::related::RelatedUnits;
use super::shapes::{Depths, Role, Shape, Shapes};
use super::steps::Attribute;
use super::tables::{Loose, Numbers, RangeBody, TextRef, UnitFile, UnitFunction, UnitTables};
use crate::debuginfo::slices::{NOWHERE, RawLocation};

/// The number of function ranges, half a megabyte of them, at which they are joined for the first
/// time.
const COVERED: usize = 1 << 15;

/// Reads units into tables.
pub(super) struct EntryReader<'o> {
    object: Object<'o>,
    tables: UnitTables,
    seen: HashSet<(u64, u64)>,
    calls: Numbers<RawLocation>,
    files: Numbers<UnitFile>,
    inlined: Numbers<UnitFunction>,
    lines: LineRows,
    shapes: Shapes,
    flattener: Flattener,
    ranges: Vec<(u64, u64)>,
    /// The addresses of the unit, as far as it lists them.
    of_unit: Vec<(u64, u64)>,
    /// The addresses of all functions of the unit.
    covered: Vec<(u64, u64)>,
    /// The number of `covered` ranges at which they are joined.
    room_for_covered: usize,
    contexts: Vec<Context>,
    open: Vec<OpenFunction>,
    spare: Vec<OpenFunction>,
    open_calls: Vec<OpenCall>,
    open_call_ranges: Vec<(u64, u64)>,
}

impl<'o> EntryReader<'o> {
    pub(super) fn new(object: Object<'o>) -> Self {
        Self {
            object,
            tables: UnitTables::default(),
            seen: HashSet::new(),
            calls: Numbers::new(),
            files: Numbers::new(),
            inlined: Numbers::new(),
            lines: LineRows::default(),
            shapes: Shapes::default(),
            flattener: Flattener::default(),
            ranges: Vec::new(),
            of_unit: Vec::new(),
            covered: Vec::new(),
            room_for_covered: COVERED,
            contexts: Vec::new(),
            open: Vec::new(),
            spare: Vec::new(),
            open_calls: Vec::new(),
            open_call_ranges: Vec::new(),
        }
    }

    /// Reads some units as one run. If a unit cannot be read to its end, the tables hold the
    /// functions before the error.
    pub(super) fn read<'i>(
        &mut self,
        run: u32,
        units: &RelatedUnits<'i>,
        numbers: std::ops::Range<usize>,
    ) -> UnitTables
    where
        'o: 'i,
    {
        self.tables.run = run;
        self.seen.clear();
        self.files.clear();
        self.inlined.clear();
        for number in numbers {
            let read = match units.unit(number) {
                Ok(Some(unit)) => self.unit_or_split(units, unit),
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = read {
                self.tables.counts.add_unread(error);
            }
        }
        self.tables.take_contents()
    }

    /// Reads a unit. If the unit is a skeleton, reads the split unit that it stands for.
    fn unit_or_split<'i>(
        &mut self,
        units: &RelatedUnits<'i>,
        unit: &Unit<'i>,
    ) -> Result<(), gimli::Error>
    where
        'o: 'i,
    {
        if self.object.is_discarded(unit)? {
            return Ok(());
        }
        let Some(id) = unit.dwo_id else {
            return self.unit(units, unit);
        };
        let Some(split) = self.object.split.unit(id, unit, &units.dwarf) else {
            self.tables.counts.add_absent(|| {
                let name = unit.dwo_name().ok()?;
                let name = units.dwarf.attr_string(unit, name?).ok()?;
                Some(format!("{} (id {:016x})", name.to_string_lossy(), id.0))
            });
            return self.unit(units, unit);
        };
        match split.unit(0)? {
            Some(unit) => self.unit(&split, unit),
            None => Ok(()),
        }
    }

    fn unit<'i>(&mut self, units: &RelatedUnits<'i>, unit: &Unit<'i>) -> Result<(), gimli::Error> {
        let mut entries = unit.entries();
        let Some(root) = entries.next_dfs()? else {
            return Err(gimli::Error::MissingUnitDie);
        };
        let addresses = GivenAddresses {
            low: root.attr_value(gimli::DW_AT_low_pc),
            high: root.attr_value(gimli::DW_AT_high_pc),
            ranges: root.attr_value(gimli::DW_AT_ranges),
        };
        // Those before an error count: there are at most too many loose rows.
        self.object
            .read_ranges(&units.dwarf, unit, addresses, &mut self.of_unit)
            .unwrap_or_default();
        join(&mut self.of_unit);
        let producer = root.attr_value(gimli::DW_AT_producer);
        let producer = producer.and_then(|value| units.dwarf.attr_string(unit, value).ok());
        let directory = match unit.comp_dir {
            Some(directory) if std::str::from_utf8(directory.slice()).is_ok() => {
                Some(self.tables.keep(directory.slice()))
            }
            Some(_) => None,
            None => Some(TextRef::EMPTY),
        };
        let mut current = CurrentUnit {
            units,
            unit,
            language: language_of(root.attr_value(gimli::DW_AT_language)).unwrap_or_default(),
            prefers_entries: producer.is_some_and(|producer| producer.slice() == b"Dart VM"),
            name_in_shared: self.object.name_in_shared,
            directory,
            files: Vec::new(),
            names: HashMap::new(),
            languages: HashMap::new(),
            inlined: HashMap::new(),
        };
        let mut lines = std::mem::take(&mut self.lines);
        match &unit.line_program {
            Some(program) => lines.read(program, self.object.first_code, self.object.address_bits),
            None => lines = LineRows::default(),
        }
        let read = self.entries(&mut current, &lines);
        self.loose(&mut current, &lines);
        self.lines = lines;
        read
    }

    fn entries(
        &mut self,
        current: &mut CurrentUnit<'_, '_>,
        lines: &LineRows,
    ) -> Result<(), gimli::Error> {
        self.covered.clear();
        self.room_for_covered = COVERED;
        self.contexts.clear();
        self.open.clear();
        self.open_calls.clear();
        self.open_call_ranges.clear();
        self.shapes.clear();
        let mut shapes = std::mem::take(&mut self.shapes);
        let mut depths = Depths {
            next: 0,
            lowest: isize::MAX,
        };
        let read = self.walk(current, lines, &mut shapes, &mut depths);
        // The functions around an error are incomplete.
        let left = match &read {
            Ok(()) => isize::MIN,
            Err(_) => depths.lowest,
        };
        self.leave_until(left, current, lines);
        self.shapes = shapes;
        read
    }

    /// Reads all entries. The lowest of `depths` is that of the entries since others were left.
    /// Most entries need not be left, so this is done when it matters.
    fn walk<'i>(
        &mut self,
        current: &mut CurrentUnit<'_, 'i>,
        lines: &LineRows,
        shapes: &mut Shapes,
        depths: &mut Depths,
    ) -> Result<(), gimli::Error> {
        let (unit, encoding) = (current.unit, current.unit.encoding());
        let mut input = current.bytes_from(unit.header.header_size())?;
        let end = unit.header.length_including_self();
        loop {
            let skipped = shapes.leap(input.slice(), depths, self.discarded());
            input.skip(skipped)?;
            if input.is_empty() {
                return Ok(());
            }
            let offset = UnitOffset(end - input.len());
            let depth = depths.next;
            let code = input.read_uleb128()?;
            if code == 0 {
                depths.next -= 1;
                continue;
            }
            depths.lowest = depth.min(depths.lowest);
            let shape = shapes.of(code, unit)?;
            depths.next += isize::from(shape.has_children);
            if shape.role == Role::None {
                shapes.skip(shape, &mut input, encoding)?;
                continue;
            }
            self.leave_until(depths.lowest, current, lines);
            depths.lowest = isize::MAX;
            let inside = self.contexts.last().and_then(|context| context.inside);
            let is_function = shape.role == Role::Function;
            let mut entry = ReadEntry::default();
            let inside = match (is_function, inside) {
                (true, _) if shape.has_addresses => {
                    self.attributes(current, (shapes, shape), &mut input, &mut entry)?;
                    self.function(current, offset, &entry, shapes)
                }
                (false, Some(inside)) => {
                    self.attributes(current, (shapes, shape), &mut input, &mut entry)?;
                    self.inlined_call(current, offset, &entry, inside, shapes)
                }
                (_, _) => {
                    shapes.skip(shape, &mut input, encoding)?;
                    if !is_function || !shape.has_children {
                        continue;
                    }
                    None
                }
            };
            self.contexts.push(Context {
                depth,
                inside,
                is_function,
            });
        }
    }

    /// Returns the depth of the entry around, if inlined calls in it are not read; all entries with
    /// a greater depth that follow are in it. If they are read, returns the greatest depth.
    fn discarded(&self) -> isize {
        match self.contexts.last() {
            Some(context) if context.inside.is_some() => isize::MAX,
            Some(context) => context.depth,
            None => isize::MIN,
        }
    }

    /// Leaves the entries that do not contain an entry of this depth.
    fn leave_until(&mut self, depth: isize, current: &mut CurrentUnit<'_, '_>, lines: &LineRows) {
        while let Some(context) = self.contexts.pop_if(|context| context.depth >= depth) {
            self.leave(context, current, lines);
        }
    }

    /// Reads the attributes that are needed of an entry, and its addresses into `self.ranges`.
    fn attributes<'i>(
        &mut self,
        current: &CurrentUnit<'_, 'i>,
        (shapes, shape): (&Shapes, Shape),
        input: &mut Section<'i>,
        entry: &mut ReadEntry<'i>,
    ) -> Result<(), gimli::Error> {
        let unit = current.unit;
        let mut addresses = GivenAddresses::default();
        shapes.read(
            shape,
            input,
            unit.encoding(),
            |attribute, value| match attribute {
                Attribute::LowAddress => addresses.low = Some(value),
                Attribute::HighAddress => addresses.high = Some(value),
                Attribute::Ranges => addresses.ranges = Some(value),
                Attribute::CallFile => entry.call_file = number(value),
                Attribute::CallLine => entry.call_line = number(value).unwrap_or_default(),
                attribute => entry.names.take(attribute, value),
            },
        )?;
        let dwarf = &current.units.dwarf;
        self.object
            .read_ranges(dwarf, unit, addresses, &mut self.ranges)
    }

    /// Begins a function. Returns `None` if it has no addresses, or if earlier functions have all
    /// of its ranges.
    fn function<'i>(
        &mut self,
        current: &mut CurrentUnit<'_, 'i>,
        offset: UnitOffset,
        entry: &ReadEntry<'i>,
        shapes: &mut Shapes,
    ) -> Option<Inside> {
        self.covered.extend_from_slice(&self.ranges);
        if self.covered.len() >= self.room_for_covered {
            // Many functions may have the same ranges. Joining them limits the memory.
            join(&mut self.covered);
            self.room_for_covered = 2 * self.covered.len().max(COVERED);
        }
        let seen = &mut self.seen;
        self.ranges
            .retain(|(begin, end)| seen.insert((*begin, end - begin)));
        if self.ranges.is_empty() {
            return None;
        }
        let language = current.language_of(entry).unwrap_or(current.language);
        let mut open = self.spare.pop().unwrap_or_default();
        open.language = language;
        // A range that was split off has the name of its own symbol. Without a symbol, it has the
        // name of the first range, which begins at the entry point.
        let mut name = None;
        let mut name_in_entry = None;
        for (begin, end) in &self.ranges {
            let symbols: &[u32] = if current.prefers_entries {
                &[]
            } else {
                self.object.symbols_at(*begin)
            };
            let own = match (symbols, name) {
                // Most functions have one symbol: their entries need no name.
                ([only], _) => TextRef::of_symbol(*only as usize),
                ([], Some(name)) => name,
                _ => {
                    let in_entry = *name_in_entry.get_or_insert_with(|| {
                        current.name_of(offset, entry, shapes, &mut self.tables)
                    });
                    let bytes = current.bytes_of(in_entry, &self.tables);
                    let named = self.object.symbols.named(symbols, bytes);
                    named.map_or(in_entry, |number| TextRef::of_symbol(number as usize))
                }
            };
            name.get_or_insert(own);
            open.ranges.push((*begin, *end));
            open.names.push(own);
        }
        open.starts.set(&open.ranges);
        let count = open.inlined.len().max(open.ranges.len());
        open.inlined.resize_with(count, Vec::new);
        self.open.push(open);
        Some(Inside {
            function: self.open.len() - 1,
            inline_depth: 0,
            language,
        })
    }

    /// Adds an inlined call to the ranges of its function that it lies in, together with the calls
    /// around it that do not cover its addresses.
    fn inlined_call<'i>(
        &mut self,
        current: &mut CurrentUnit<'_, 'i>,
        offset: UnitOffset,
        entry: &ReadEntry<'i>,
        inside: Inside,
        shapes: &mut Shapes,
    ) -> Option<Inside> {
        let language = current.language_of(entry).unwrap_or(inside.language);
        let target = entry.names.target();
        let known = target.and_then(|target| current.inlined.get(&target).copied());
        let function = match known {
            Some((known, function)) if known == language => function,
            _ => {
                let name = current.name_of(offset, entry, shapes, &mut self.tables);
                let function = UnitFunction {
                    name,
                    entry: NOWHERE,
                    language,
                };
                let function = self.inlined.of(function, &mut self.tables.functions);
                if let Some(target) = target.filter(|target| *target != offset) {
                    current.inlined.insert(target, (language, function));
                }
                function
            }
        };
        let call = Call {
            function,
            file: entry.call_file.map_or(NOWHERE, |file| {
                current.file(file, &mut self.files, &mut self.tables)
            }),
            line: low_half(entry.call_line),
        };
        let open = self.open.get_mut(inside.function)?;
        for range @ (begin, end) in &self.ranges {
            // GCC writes ranges of a function that overlap: each is answered with its own calls.
            for number in open.starts.holding(*begin).take(MAX_OVERLAPPING) {
                let Some(inlined) = open.inlined.get_mut(number) else {
                    continue;
                };
                let mut add = |call: Call, depth| {
                    inlined.push(Inlined {
                        start: *begin,
                        depth,
                        end: *end,
                        function: call.function,
                        file: call.file,
                        line: call.line,
                    });
                };
                add(call, inside.inline_depth);
                let around = self.open_calls.iter().rev().take(MAX_ELSEWHERE);
                for (outer, depth) in around.zip((0..inside.inline_depth).rev()) {
                    if covers(&self.open_call_ranges[outer.ranges.clone()], range) {
                        break;
                    }
                    add(outer.call, depth);
                }
            }
        }
        let first = self.open_call_ranges.len();
        self.open_call_ranges.extend_from_slice(&self.ranges);
        self.open_call_ranges[first..].sort_unstable();
        self.open_calls.push(OpenCall {
            call,
            ranges: first..self.open_call_ranges.len(),
        });
        Some(Inside {
            inline_depth: inside.inline_depth + 1,
            language,
            ..inside
        })
    }

    /// Leaves an entry: an inlined call, or a function, which is now complete.
    fn leave(&mut self, context: Context, current: &mut CurrentUnit<'_, '_>, lines: &LineRows) {
        if context.inside.is_none() {
            return;
        }
        if !context.is_function {
            if let Some(call) = self.open_calls.pop() {
                self.open_call_ranges.truncate(call.ranges.start);
            }
            return;
        }
        let Some(mut open) = self.open.pop() else {
            return;
        };
        let ranges = open.ranges.drain(..).zip(open.names.drain(..));
        for ((range, name), inlined) in ranges.zip(&mut open.inlined) {
            self.body(range, (name, open.language), inlined, current, lines);
            inlined.clear();
        }
        self.spare.push(open);
    }

    /// Adds one address range of a function.
    fn body(
        &mut self,
        (begin, end): (u64, u64),
        (name, language): (TextRef, Language),
        inlined: &mut [Inlined],
        current: &mut CurrentUnit<'_, '_>,
        lines: &LineRows,
    ) {
        let Some((start, stop)) = self.object.relative(begin, end) else {
            return;
        };
        let moved = |address: u64| address.wrapping_sub(self.object.load_address);
        for call in &mut *inlined {
            (call.start, call.end) = (moved(call.start), moved(call.end));
        }
        let function = u32::try_from(self.tables.functions.len()).unwrap_or(NOWHERE);
        self.tables.functions.push(UnitFunction {
            name,
            entry: start,
            language,
        });
        let rows = lines.between(begin, end);
        let mut last = None;
        for row in rows {
            if last.replace(row.file) != Some(row.file) {
                current.file(row.file.into(), &mut self.files, &mut self.tables);
            }
        }
        let first = self.tables.ranges.len();
        // Calls in different functions are different.
        self.calls.clear_often();
        let mut out = Out {
            ranges: &mut self.tables.ranges,
            calls: &mut self.tables.calls,
            numbers: &mut self.calls,
        };
        let ends = (start.into(), stop.into());
        let of_function = rows.iter().map(|row| Row {
            address: moved(row.address),
            file: current.known_file(row.file),
            ..*row
        });
        self.flattener
            .flatten(ends, function, inlined, of_function, &mut out);
        let count = self.tables.ranges.len() - first;
        self.tables.bodies.push(RangeBody {
            start,
            end: stop,
            first: u32::try_from(first).unwrap_or(NOWHERE),
            count: u32::try_from(count).unwrap_or_default(),
        });
    }

    /// Keeps the rows that no function of the unit covers.
    fn loose(&mut self, current: &mut CurrentUnit<'_, '_>, lines: &LineRows) {
        join(&mut self.covered);
        let Self {
            object,
            tables,
            files,
            covered,
            of_unit,
            ..
        } = self;
        each_loose_row(lines, covered, of_unit, |row| {
            let file = current.file(row.file.into(), files, tables);
            if let Some((start, end)) = object.relative(row.address, row.end()) {
                tables.keep_loose(Loose {
                    start,
                    end,
                    file,
                    line: row.line,
                });
            }
        });
    }
}

/// The maximum number of outer calls that are added with an inlined call because they do not cover
/// its addresses.
const MAX_ELSEWHERE: usize = 16;

/// The maximum number of ranges of a function to which one inlined call is added because they
/// overlap.
const MAX_OVERLAPPING: usize = 4;
