//! CFI caches in slices: unwind information as Breakpad records, cut by address.
//!
//! Records may overlap. Which of them the parser of the stack walker drops or shortens depends on
//! their order in the file. If there are only `STACK CFI` records, the parser drops each one that
//! begins inside a preceding one, in address order. These are read line by line while they are
//! written, so the text is never in memory as a whole. If there are other records, that parser
//! reads the whole text once. The remaining records are then written into slices; a record is in
//! every slice that it overlaps. A slice is a Breakpad symbol file with only such records. It is
//! never empty, because the parser rejects an empty file.
//!
//! `MODULE` records are dropped: the walker does not read them, and the footer has their contents.
//!
//! Source of the format: Breakpad's `docs/symbol_files.md`, "STACK CFI records" and "STACK WIN
//! records".

use std::borrow::Cow;
use std::io::{self, Write};

use breakpad_symbols::SymbolFile;
use breakpad_symbols::fuzzing_private_exports::{StackInfoWin, WinStackThing};
use foldhash::fast::RandomState;
use indexmap::IndexSet;

use super::cfi_records::CfiRecords;
use super::cut::{Bounds, Cut};
use crate::debuginfo::failure::{Failure, malformed};
use crate::debuginfo::limits::{MAX_RAW_BYTES, too_large};

/// A `STACK CFI INIT` record with its `STACK CFI` records, or a `STACK WIN` record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    start: u32,
    size: u32,
    place: RecordPlace,
}

impl Record {
    /// Returns the record, or `None` if it covers no address or begins beyond 4 GB, where no module
    /// has code.
    fn of(start: u64, size: u32, place: RecordPlace) -> Option<Self> {
        let start = u32::try_from(start).ok().filter(|_| size > 0)?;
        Some(Self { start, size, place })
    }

    fn end(&self) -> u64 {
        u64::from(self.start) + u64::from(self.size)
    }
}

/// The place of a record: its number in a table, or its lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordPlace {
    Cfi(u32),
    FrameData(u32),
    Fpo(u32),
    Lines { first: u32, count: u32 },
}

/// Unwind information before it is cut.
#[derive(Debug)]
pub(in crate::debuginfo) enum CfiSource {
    /// As lines of the records that the parser would keep.
    Lines(CfiLines),
    /// As parsed.
    Parsed(CfiRecords),
}

impl CfiSource {
    /// Reads the Breakpad symbol file that `write` writes. It is read line by line if the result is
    /// the same as with the parser. Otherwise `write` is called again and the parser reads the
    /// whole text.
    pub(in crate::debuginfo) fn of(
        write: impl Fn(&mut dyn Write) -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        let mut reader = LineReader::default();
        let written = write(&mut reader);
        if !reader.is_stuck {
            written?;
        }
        if let Some(lines) = reader.finish() {
            return Ok(Self::Lines(lines));
        }
        let mut text = SymbolFileText::default();
        write(&mut text)?;
        let parsed = CfiRecords::parse(&*text.0);
        parsed.map(Self::Parsed).map_err(malformed)
    }

    /// Returns all records as text.
    #[cfg(test)]
    pub(in crate::debuginfo) fn text(&self) -> String {
        let mut text = Vec::new();
        for record in &*self.records() {
            self.write(record, &mut text);
        }
        String::from_utf8(text).expect("records are ASCII")
    }

    /// Returns all records, sorted by their first address.
    fn records(&self) -> Cow<'_, [Record]> {
        match self {
            Self::Lines(lines) => Cow::Borrowed(&lines.records),
            Self::Parsed(parsed) => Cow::Owned(records_of(parsed.file())),
        }
    }

    /// Writes a record in the format of a symbol file.
    fn write(&self, record: &Record, text: &mut Vec<u8>) {
        let written = match self {
            Self::Lines(lines) => lines.write(record, text),
            Self::Parsed(parsed) => write(parsed.file(), record.place, text),
        };
        written.expect("writing to memory does not fail");
    }
}

/// A Breakpad symbol file as text, no larger than a raw cache may be.
#[derive(Debug, Default)]
struct SymbolFileText(Vec<u8>);

impl Write for SymbolFileText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        append(&mut self.0, bytes, 0)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Appends to a part of a text that follows `before` other bytes; fails beyond the size limit.
fn append(text: &mut Vec<u8>, bytes: &[u8], before: u64) -> io::Result<()> {
    if before + (text.len() + bytes.len()) as u64 > MAX_RAW_BYTES {
        return Err(too_large(MAX_RAW_BYTES));
    }
    let room = text.try_reserve(bytes.len());
    room.map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    text.extend_from_slice(bytes);
    Ok(())
}

/// `STACK CFI` records as lines. A program has few distinct rules, so each is stored once.
#[derive(Debug, Default)]
pub(in crate::debuginfo) struct CfiLines {
    rules: IndexSet<Box<str>, RandomState>,
    lines: Vec<Line>,
    records: Vec<Record>,
}

/// The rules that apply from an address on.
#[derive(Clone, Copy, Debug)]
struct Line {
    address: u32,
    rules: u32,
}

impl CfiLines {
    fn write(&self, record: &Record, text: &mut Vec<u8>) -> io::Result<()> {
        let RecordPlace::Lines { first, count } = record.place else {
            return Ok(());
        };
        let lines = self.lines.iter().skip(first as usize).take(count as usize);
        for (number, line) in lines.enumerate() {
            let rules = self.rules.get_index(line.rules as usize);
            let rules = rules.map(AsRef::as_ref).unwrap_or_default();
            match number {
                0 => writeln!(
                    text,
                    "STACK CFI INIT {:x} {:x} {rules}",
                    line.address, record.size
                )?,
                _ => writeln!(text, "STACK CFI {:x} {rules}", line.address)?,
            }
        }
        Ok(())
    }
}

/// Collects the lines of records in the order in which they are in a symbol file. The functions
/// return `None` for a line that only the parser can read.
#[derive(Debug, Default)]
pub(in crate::debuginfo) struct LineCollector {
    lines: CfiLines,
    current: CurrentRecord,
}

/// The record that lines belong to.
#[derive(Debug, Default)]
enum CurrentRecord {
    #[default]
    None,
    /// A record without addresses below 4 GB, which is dropped.
    Skipped,
    Counted(Record),
}

impl LineCollector {
    /// Returns the number of these rules.
    pub(in crate::debuginfo) fn rules(&mut self, rules: &str) -> Option<u32> {
        let known = &mut self.lines.rules;
        let number = known.get_index_of(rules);
        let number = number.unwrap_or_else(|| known.insert_full(rules.into()).0);
        u32::try_from(number).ok()
    }

    /// Begins a record with its first line, whose rules have a number.
    pub(in crate::debuginfo) fn begin(&mut self, start: u64, size: u64, rules: u32) -> Option<()> {
        let size = u32::try_from(size).ok()?;
        let first = u32::try_from(self.lines.lines.len()).ok()?;
        let record = Record::of(start, size, RecordPlace::Lines { first, count: 1 });
        if let Some(record) = &record {
            let address = record.start;
            self.lines.lines.push(Line { address, rules });
        }
        self.replace(record.map_or(CurrentRecord::Skipped, CurrentRecord::Counted));
        Some(())
    }

    /// Adds a line to the current record.
    pub(in crate::debuginfo) fn add(&mut self, address: u64, rules: u32) -> Option<()> {
        match &mut self.current {
            CurrentRecord::None => return None,
            CurrentRecord::Skipped => {}
            CurrentRecord::Counted(record) => {
                if let RecordPlace::Lines { count, .. } = &mut record.place {
                    *count += 1;
                }
                let address = u32::try_from(address).ok()?;
                self.lines.lines.push(Line { address, rules });
            }
        }
        Some(())
    }

    /// Adds the lines of several collectors, which follow these. They take no more memory than they
    /// need.
    pub(in crate::debuginfo) fn append_all(&mut self, later: Vec<Self>) -> Option<()> {
        let lines = later.iter().map(|later| later.lines.lines.len()).sum();
        let records = later.iter().map(|later| later.lines.records.len() + 1);
        self.lines.lines.reserve_exact(lines);
        self.lines.records.reserve_exact(records.sum());
        later.into_iter().try_for_each(|later| self.append(later))
    }

    /// Adds the lines that follow these.
    fn append(&mut self, later: Self) -> Option<()> {
        let Self { lines, current } = later;
        let numbers: Vec<u32> = lines
            .rules
            .iter()
            .map(|rules| self.rules(rules))
            .collect::<Option<_>>()?;
        let before = u32::try_from(self.lines.lines.len()).ok()?;
        u32::try_from(self.lines.lines.len() + lines.lines.len()).ok()?;
        self.lines.lines.extend(lines.lines.iter().map(|line| {
            Line {
                rules: numbers
                    .get(line.rules as usize)
                    .copied()
                    .unwrap_or(u32::MAX),
                ..*line
            }
        }));
        let moved = |mut record: Record| {
            if let RecordPlace::Lines { first, .. } = &mut record.place {
                *first += before;
            }
            record
        };
        self.replace(CurrentRecord::None);
        self.lines
            .records
            .extend(lines.records.into_iter().map(moved));
        self.current = match current {
            CurrentRecord::Counted(record) => CurrentRecord::Counted(moved(record)),
            other => other,
        };
        Some(())
    }

    /// Stores the current record and begins the next one.
    fn replace(&mut self, next: CurrentRecord) {
        if let CurrentRecord::Counted(record) = std::mem::replace(&mut self.current, next) {
            self.lines.records.push(record);
        }
    }

    /// Returns the lines of the records that the parser would keep.
    pub(in crate::debuginfo) fn finish(mut self) -> CfiLines {
        self.replace(CurrentRecord::None);
        let mut lines = self.lines;
        let records = &mut lines.records;
        records.sort_by_key(|record| (record.start, record.end()));
        let mut end = 0;
        records.retain(|record| {
            let counts = u64::from(record.start) >= end;
            end = if counts { record.end() } else { end };
            counts
        });
        lines
    }
}

/// Reads lines while they are written. Writing fails on a line that needs the parser: a record
/// other than `STACK CFI` and a first `MODULE` record, or a line that can be read in more than one
/// way.
#[derive(Debug, Default)]
struct LineReader {
    collector: LineCollector,
    /// The beginning of the line that is being written.
    line: Vec<u8>,
    /// The bytes of the preceding lines.
    bytes: u64,
    /// Whether a line needs the parser.
    is_stuck: bool,
}

impl Write for LineReader {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for bytes in bytes.split_inclusive(|byte| *byte == b'\n') {
            match (self.line.is_empty(), bytes.ends_with(b"\n")) {
                (_, false) => append(&mut self.line, bytes, self.bytes)?,
                (true, true) => self.read_whole(bytes)?,
                (false, true) => {
                    append(&mut self.line, bytes, self.bytes)?;
                    let line = std::mem::take(&mut self.line);
                    self.read_whole(&line)?;
                }
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LineReader {
    fn read_whole(&mut self, line: &[u8]) -> io::Result<()> {
        if self.read(line).is_none() {
            self.is_stuck = true;
            return Err(io::Error::other("this line needs the parser"));
        }
        self.bytes += line.len() as u64;
        if self.bytes > MAX_RAW_BYTES {
            Err(too_large(MAX_RAW_BYTES))
        } else {
            Ok(())
        }
    }

    /// Reads a line; `None` if it needs the parser.
    fn read(&mut self, line: &[u8]) -> Option<()> {
        let line = std::str::from_utf8(line).ok()?;
        if self.bytes == 0 && line.starts_with("MODULE ") {
            return Some(());
        }
        let fields = line.strip_suffix('\n')?.strip_prefix("STACK CFI ")?;
        let collector = &mut self.collector;
        match fields.strip_prefix("INIT ") {
            Some(fields) => {
                let (start, rest) = hexadecimal(fields)?;
                let (size, rules) = hexadecimal(rest)?;
                let rules = are_rules(rules).then(|| collector.rules(rules))??;
                collector.begin(start, size, rules)
            }
            None => {
                let (address, rules) = hexadecimal(fields)?;
                let rules = are_rules(rules).then(|| collector.rules(rules))??;
                collector.add(address, rules)
            }
        }
    }

    /// Returns the lines of the records that the parser would keep, or `None` if a line was not
    /// read.
    fn finish(self) -> Option<CfiLines> {
        (!self.is_stuck && self.line.is_empty()).then(|| self.collector.finish())
    }
}

/// Reads a hexadecimal number and the space after it. Returns the number and the remaining text.
fn hexadecimal(text: &str) -> Option<(u64, &str)> {
    let (digits, rest) = text.split_once(' ')?;
    // `from_str_radix` also accepts a sign.
    let is_number = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = u64::from_str_radix(digits, 16).ok()?;
    is_number.then_some((number, rest))
}

/// Returns whether the parser would read these rules unchanged.
fn are_rules(rules: &str) -> bool {
    !rules.is_empty() && !rules.starts_with(' ') && !rules.contains('\r')
}

/// Returns all records, sorted by their first address.
fn records_of(file: &SymbolFile) -> Vec<Record> {
    let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let cfi = file.cfi_stack_info.ranges_values().enumerate();
    let cfi = cfi.filter_map(|(at, (_, info))| {
        Record::of(info.init.address, info.size, RecordPlace::Cfi(number(at)))
    });
    let frame_data = file.win_stack_framedata_info.ranges_values().enumerate();
    let frame_data = frame_data.filter_map(|(at, (_, info))| {
        Record::of(info.address, info.size, RecordPlace::FrameData(number(at)))
    });
    let fpo = file.win_stack_fpo_info.ranges_values().enumerate();
    let fpo = fpo.filter_map(|(at, (_, info))| {
        Record::of(info.address, info.size, RecordPlace::Fpo(number(at)))
    });
    let mut records: Vec<Record> = cfi.chain(frame_data).chain(fpo).collect();
    records.sort_by_key(|record| record.start);
    records
}

/// Writes a record of a table in the format of a symbol file.
fn write(file: &SymbolFile, place: RecordPlace, text: &mut Vec<u8>) -> io::Result<()> {
    let (win, number) = match place {
        RecordPlace::FrameData(number) => (&file.win_stack_framedata_info, number),
        RecordPlace::Fpo(number) => (&file.win_stack_fpo_info, number),
        RecordPlace::Cfi(number) => {
            let all = file.cfi_stack_info.ranges_values().as_slice();
            if let Some((_, info)) = all.get(number as usize) {
                let (start, rules) = (info.init.address, &info.init.rules);
                writeln!(text, "STACK CFI INIT {start:x} {:x} {rules}", info.size)?;
                for more in &info.add_rules {
                    writeln!(text, "STACK CFI {:x} {}", more.address, more.rules)?;
                }
            }
            return Ok(());
        }
        RecordPlace::Lines { .. } => return Ok(()),
    };
    match win.ranges_values().as_slice().get(number as usize) {
        Some((_, info)) => write_win(info, text),
        None => Ok(()),
    }
}

/// Writes a record of frame data or frame pointer omission.
fn write_win(info: &StackInfoWin, text: &mut Vec<u8>) -> io::Result<()> {
    let kind = match info.program_string_or_base_pointer {
        WinStackThing::ProgramString(_) => 4,
        WinStackThing::AllocatesBasePointer(_) => 0,
    };
    write!(text, "STACK WIN {kind} {:x}", info.address)?;
    for number in [
        info.size,
        info.prologue_size,
        info.epilogue_size,
        info.parameter_size,
        info.saved_register_size,
        info.local_size,
        info.max_stack_size,
    ] {
        write!(text, " {number:x}")?;
    }
    match &info.program_string_or_base_pointer {
        WinStackThing::ProgramString(program) => writeln!(text, " 1 {program}"),
        WinStackThing::AllocatesBasePointer(it_does) => {
            writeln!(text, " 0 {}", u8::from(*it_does))
        }
    }
}

/// Cuts unwind information into slices, in the order of their addresses.
pub(super) struct CfiCutter<'a> {
    unwinding: &'a CfiSource,
    records: Cow<'a, [Record]>,
    bounds: Bounds,
    /// The number of records that were already cut.
    done: usize,
    /// Cut records that may overlap the next slice.
    reaching: Vec<Record>,
}

impl<'a> CfiCutter<'a> {
    pub(super) fn new(unwinding: &'a CfiSource, bounds: Bounds) -> Self {
        Self {
            unwinding,
            records: unwinding.records(),
            bounds,
            done: 0,
            reaching: Vec::new(),
        }
    }

    /// Drops the records that end at or before an address.
    fn reach(&mut self, address: u32) {
        self.reaching.retain(|record| record.end() > address.into());
    }
}

impl Iterator for CfiCutter<'_> {
    type Item = Cut;

    fn next(&mut self) -> Option<Cut> {
        let start = self.records.get(self.done)?.start;
        self.reach(start);
        let mut raw = Vec::new();
        for record in &self.reaching {
            self.unwinding.write(record, &mut raw);
        }
        let (first, mut last) = (self.done, start);
        while let Some(record) = self.records.get(self.done).copied() {
            // Records that begin at the same address are in the same slice.
            let is_full =
                self.done - first >= self.bounds.ranges || raw.len() >= self.bounds.raw_bytes;
            if is_full && record.start > last {
                break;
            }
            self.unwinding.write(&record, &mut raw);
            last = record.start;
            self.reaching.push(record);
            self.done += 1;
        }
        Some(Cut { start, raw })
    }
}
