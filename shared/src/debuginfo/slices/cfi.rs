//! CFI caches in slices: unwind information as Breakpad records, cut by address.
//!
//! The records overlap, and what the stack walker's parser drops or shortens for it depends on
//! their order in the file. Of `STACK CFI` records alone, it drops those that begin within one that
//! comes before by address: they are read line by line while they are written, and never a text as
//! a whole. Where there are others, the whole is parsed by that parser, once. Either way what is
//! left is written again, and a record is in every slice that it reaches into. A slice is a
//! Breakpad symbol file of such records alone, and never empty, which would be none.
//!
//! Of a `MODULE` record nothing is kept: the walker reads none, and the footer has what it says.
//!
//! Source of the format: Breakpad's `docs/symbol_files.md`, "STACK CFI records" and "STACK WIN
//! records".

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;

use breakpad_symbols::SymbolFile;
use breakpad_symbols::fuzzing_private_exports::{StackInfoWin, WinStackThing};
use foldhash::fast::RandomState;
use indexmap::IndexSet;

use super::cut::{Bounds, Cut};
use crate::debuginfo::failure::{Failure, malformed};
use crate::debuginfo::limits::{MAX_RAW_BYTES, too_large};

/// Unwind information that the stack walker reads. Cheap to clone.
#[derive(Clone)]
pub struct CfiRecords {
    file: Arc<SymbolFile>,
    bytes: usize,
}

impl CfiRecords {
    /// Parses the records of a Breakpad symbol file, if there are any.
    pub(in crate::debuginfo) fn parse(mut records: impl Read) -> Result<Self, String> {
        let mut first = [0];
        let read = records
            .read(&mut first)
            .map_err(|error| error.to_string())?;
        let file = match read {
            // Nothing at all would be an error of the parser.
            0 => SymbolFile::parse(&b"INFO nothing\n"[..], |_| ()),
            _ => SymbolFile::parse(first.chain(records), |_| ()),
        };
        let file = file.map_err(|error| error.to_string())?;
        Ok(Self {
            bytes: memory_bytes(&file),
            file: Arc::new(file),
        })
    }

    /// Returns what the stack walker asks.
    pub fn file(&self) -> &SymbolFile {
        &self.file
    }

    /// Tells whether there is none.
    pub fn is_empty(&self) -> bool {
        self.file.cfi_stack_info.is_empty()
            && self.file.win_stack_framedata_info.is_empty()
            && self.file.win_stack_fpo_info.is_empty()
    }

    /// Tells whether there is unwind information for an address, relative to the module.
    pub fn cover(&self, address: u64) -> bool {
        self.file.cfi_stack_info.get(address).is_some()
            || self.file.win_stack_framedata_info.get(address).is_some()
            || self.file.win_stack_fpo_info.get(address).is_some()
    }

    /// Returns about what it costs to keep them in memory, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes
    }
}

impl fmt::Debug for CfiRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CfiRecords")
            .field("bytes", &self.bytes)
            .finish()
    }
}

/// Returns about what a file of records takes in memory, in bytes.
fn memory_bytes(file: &SymbolFile) -> usize {
    let cfi = file.cfi_stack_info.ranges_values().map(|(_, info)| {
        let rules = info.add_rules.iter();
        let rules = rules.map(|more| size_of_val(more) + more.rules.len());
        size_of_val(info) + info.init.rules.len() + rules.sum::<usize>()
    });
    let frame_data = file.win_stack_framedata_info.ranges_values();
    let fpo = file.win_stack_fpo_info.ranges_values();
    let win = frame_data.chain(fpo).map(|(_, info)| {
        let program = match &info.program_string_or_base_pointer {
            WinStackThing::ProgramString(program) => program.len(),
            WinStackThing::AllocatesBasePointer(_) => 0,
        };
        size_of_val(info) + program
    });
    size_of::<SymbolFile>() + cfi.chain(win).sum::<usize>()
}

/// A record with those that belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    start: u32,
    size: u32,
    place: RecordPlace,
}

impl Record {
    /// Returns a record that may be cut: one that is about nothing, or begins where no module has
    /// code, beyond 4 GB, is none.
    fn of(start: u64, size: u32, place: RecordPlace) -> Option<Self> {
        let start = u32::try_from(start).ok().filter(|_| size > 0)?;
        Some(Self { start, size, place })
    }

    fn end(&self) -> u64 {
        u64::from(self.start) + u64::from(self.size)
    }
}

/// Where a record is: its number in a table, or its lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordPlace {
    Cfi(u32),
    FrameData(u32),
    Fpo(u32),
    Lines { first: u32, count: u32 },
}

/// Unwind information that is to be cut.
#[derive(Debug)]
pub(in crate::debuginfo) enum CfiSource {
    /// As lines: those of the records that count.
    Lines(CfiLines),
    /// As parsed.
    Parsed(CfiRecords),
}

impl CfiSource {
    /// Reads the Breakpad symbol file that `write` writes: line by line where that is the same.
    /// Else it is written once more.
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

    /// Returns all records by where they begin.
    fn records(&self) -> Cow<'_, [Record]> {
        match self {
            Self::Lines(lines) => Cow::Borrowed(&lines.records),
            Self::Parsed(parsed) => Cow::Owned(records_of(&parsed.file)),
        }
    }

    /// Writes a record as it is in a file.
    fn write(&self, record: &Record, text: &mut Vec<u8>) {
        let written = match self {
            Self::Lines(lines) => lines.write(record, text),
            Self::Parsed(parsed) => write(&parsed.file, record.place, text),
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

/// Appends to a part of a text that comes after so many bytes.
fn append(text: &mut Vec<u8>, bytes: &[u8], before: u64) -> io::Result<()> {
    if before + (text.len() + bytes.len()) as u64 > MAX_RAW_BYTES {
        return Err(too_large(MAX_RAW_BYTES));
    }
    let room = text.try_reserve(bytes.len());
    room.map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    text.extend_from_slice(bytes);
    Ok(())
}

/// `STACK CFI` records as lines. A program has few different rules: each is here once.
#[derive(Debug, Default)]
pub(in crate::debuginfo) struct CfiLines {
    rules: IndexSet<Box<str>, RandomState>,
    lines: Vec<Line>,
    records: Vec<Record>,
}

/// From an address on, these rules hold.
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

/// Reads lines while they are written. Writing fails where there is something else than `STACK CFI`
/// records, but for a first `MODULE` record, or where it takes the parser to tell what a line says.
#[derive(Debug, Default)]
struct LineReader {
    lines: CfiLines,
    current: CurrentRecord,
    /// The begin of the line that is being written.
    line: Vec<u8>,
    /// Bytes of the lines before it.
    bytes: u64,
    /// Whether a line could not be read.
    is_stuck: bool,
}

/// The record that lines belong to.
#[derive(Debug, Default)]
enum CurrentRecord {
    #[default]
    None,
    /// One that does not count.
    Skipped,
    Counted(Record),
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
            return Err(io::Error::other("no line that is read"));
        }
        self.bytes += line.len() as u64;
        match self.bytes > MAX_RAW_BYTES {
            true => Err(too_large(MAX_RAW_BYTES)),
            false => Ok(()),
        }
    }

    /// Reads a line; `None` if it cannot.
    fn read(&mut self, line: &[u8]) -> Option<()> {
        let line = std::str::from_utf8(line).ok()?;
        if self.bytes == 0 && line.starts_with("MODULE ") {
            return Some(());
        }
        let fields = line.strip_suffix('\n')?.strip_prefix("STACK CFI ")?;
        match fields.strip_prefix("INIT ") {
            Some(fields) => {
                let (start, rest) = hexadecimal(fields)?;
                let (size, rules) = hexadecimal(rest)?;
                are_rules(rules).then_some(())?;
                let size = u32::try_from(size).ok()?;
                let first = u32::try_from(self.lines.lines.len()).ok()?;
                let place = RecordPlace::Lines { first, count: 1 };
                let record = Record::of(start, size, place);
                if let Some(record) = &record {
                    self.keep(record.start, rules)?;
                }
                self.begin(record.map_or(CurrentRecord::Skipped, CurrentRecord::Counted));
            }
            None => {
                let (address, rules) = hexadecimal(fields)?;
                are_rules(rules).then_some(())?;
                match &mut self.current {
                    CurrentRecord::None => return None,
                    CurrentRecord::Skipped => {}
                    CurrentRecord::Counted(record) => {
                        if let RecordPlace::Lines { count, .. } = &mut record.place {
                            *count += 1;
                        }
                        self.keep(address.try_into().ok()?, rules)?;
                    }
                }
            }
        }
        Some(())
    }

    fn keep(&mut self, address: u32, rules: &str) -> Option<()> {
        let known = &mut self.lines.rules;
        let number = known.get_index_of(rules);
        let number = number.unwrap_or_else(|| known.insert_full(rules.into()).0);
        let rules = u32::try_from(number).ok()?;
        self.lines.lines.push(Line { address, rules });
        Some(())
    }

    /// Begins the next record, and keeps the one before.
    fn begin(&mut self, next: CurrentRecord) {
        if let CurrentRecord::Counted(record) = std::mem::replace(&mut self.current, next) {
            self.lines.records.push(record);
        }
    }

    /// Returns the lines of the records that count, if all were read.
    fn finish(mut self) -> Option<CfiLines> {
        if self.is_stuck || !self.line.is_empty() {
            return None;
        }
        self.begin(CurrentRecord::None);
        let mut lines = self.lines;
        let records = &mut lines.records;
        records.sort_by_key(|record| (record.start, record.end()));
        let mut end = 0;
        records.retain(|record| {
            let counts = u64::from(record.start) >= end;
            end = if counts { record.end() } else { end };
            counts
        });
        Some(lines)
    }
}

/// Reads a number and the space behind it. Returns what follows, too.
fn hexadecimal(text: &str) -> Option<(u64, &str)> {
    let (digits, rest) = text.split_once(' ')?;
    // A sign would be read as well.
    let is_number = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = u64::from_str_radix(digits, 16).ok()?;
    is_number.then_some((number, rest))
}

/// Tells whether these are rules that can be read in one way only.
fn are_rules(rules: &str) -> bool {
    !rules.is_empty() && !rules.starts_with(' ') && !rules.contains('\r')
}

/// Returns all records by where they begin.
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

/// Writes a record of a table as it is in a file.
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
    /// The number of records that are cut already.
    done: usize,
    /// Those of them that reach into the next slice.
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

    /// Forgets what does not reach an address.
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
            // What begins at one address is in one slice.
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
