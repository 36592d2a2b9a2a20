//! CFI caches in slices: unwind information as Breakpad records, cut by address.
//!
//! The records overlap, and what the stack walker's parser drops or shortens for it depends on their order in the file. So the
//! whole is parsed by that parser, once; what it leaves is written anew, each record into every slice that it reaches into. A slice
//! is a Breakpad symbol file of such records alone, and never empty, which would be none.
//!
//! Of a `MODULE` record nothing is kept: the walker reads none, and the footer has what it says.
//!
//! Source of the format: Breakpad's `docs/symbol_files.md`, "STACK CFI records" and "STACK WIN records".

use std::fmt::{self, Write as _};
use std::io::Read;
use std::sync::Arc;

use breakpad_symbols::SymbolFile;
use breakpad_symbols::fuzzing_private_exports::{StackInfoWin, WinStackThing};

use super::cut::{Bounds, Cut};

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

/// A record with those that belong to it: where it is in its table, and what it is about.
#[derive(Clone, Copy)]
struct Record {
    start: u32,
    end: u64,
    table: Table,
    number: usize,
}

#[derive(Clone, Copy)]
enum Table {
    Cfi,
    FrameData,
    Fpo,
}

/// Returns all records by where they begin: no module has code beyond 4 GB.
fn records_of(file: &SymbolFile) -> Vec<Record> {
    let cfi = file.cfi_stack_info.ranges_values();
    let cfi = cfi.map(|(_, info)| (info.init.address, info.size));
    let frame_data = file.win_stack_framedata_info.ranges_values();
    let frame_data = frame_data.map(|(_, info)| (info.address, info.size));
    let fpo = file.win_stack_fpo_info.ranges_values();
    let fpo = fpo.map(|(_, info)| (info.address, info.size));
    let of_table = |table| {
        move |(number, (start, size)): (usize, (u64, u32))| {
            Some(Record {
                start: u32::try_from(start).ok()?,
                end: start + u64::from(size),
                table,
                number,
            })
        }
    };
    let cfi = cfi.enumerate().filter_map(of_table(Table::Cfi));
    let frame_data = frame_data
        .enumerate()
        .filter_map(of_table(Table::FrameData));
    let fpo = fpo.enumerate().filter_map(of_table(Table::Fpo));
    let mut records: Vec<Record> = cfi.chain(frame_data).chain(fpo).collect();
    records.sort_by_key(|record| record.start);
    records
}

/// Writes a record as it is in a file.
fn write(file: &SymbolFile, record: Record, text: &mut String) {
    let Record { table, number, .. } = record;
    let win = match table {
        Table::FrameData => &file.win_stack_framedata_info,
        Table::Fpo => &file.win_stack_fpo_info,
        Table::Cfi => {
            if let Some((_, info)) = file.cfi_stack_info.ranges_values().as_slice().get(number) {
                let (start, rules) = (info.init.address, &info.init.rules);
                let _ = writeln!(text, "STACK CFI INIT {start:x} {:x} {rules}", info.size);
                for more in &info.add_rules {
                    let _ = writeln!(text, "STACK CFI {:x} {}", more.address, more.rules);
                }
            }
            return;
        }
    };
    if let Some((_, info)) = win.ranges_values().as_slice().get(number) {
        // Writing to memory does not fail.
        let _ = write_win(info, text);
    }
}

/// Writes a record of frame data or frame pointer omission.
fn write_win(info: &StackInfoWin, text: &mut String) -> fmt::Result {
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
    file: &'a SymbolFile,
    records: Vec<Record>,
    bounds: Bounds,
    /// The number of records that are cut already.
    done: usize,
    /// Those of them that reach into the next slice.
    reaching: Vec<Record>,
}

impl<'a> CfiCutter<'a> {
    pub(super) fn new(records: &'a CfiRecords, bounds: Bounds) -> Self {
        Self {
            file: &records.file,
            records: records_of(&records.file),
            bounds,
            done: 0,
            reaching: Vec::new(),
        }
    }

    /// Forgets what does not reach an address.
    fn reach(&mut self, address: u32) {
        self.reaching.retain(|record| record.end > address.into());
    }
}

impl Iterator for CfiCutter<'_> {
    type Item = Cut;

    fn next(&mut self) -> Option<Cut> {
        let start = self.records.get(self.done)?.start;
        self.reach(start);
        let mut text = String::new();
        for record in &self.reaching {
            write(self.file, *record, &mut text);
        }
        let (first, mut last) = (self.done, start);
        while let Some(record) = self.records.get(self.done).copied() {
            // What begins at one address is in one slice.
            let is_full =
                self.done - first >= self.bounds.ranges || text.len() >= self.bounds.raw_bytes;
            if is_full && record.start > last {
                break;
            }
            write(self.file, record, &mut text);
            last = record.start;
            self.reaching.push(record);
            self.done += 1;
        }
        Some(Cut {
            start,
            raw: text.into_bytes(),
        })
    }
}
