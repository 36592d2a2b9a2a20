//! The rows of a unit's line program, by sequence.
//!
//! The rules follow `symbolic` (`symbolic_debuginfo::dwarf`, MIT), which is the oracle:
//!
//! - Rows at address zero are ignored, unless code begins there, and so are rows with a lower
//!   address than the row before.
//! - Of several rows at one address, the last is used.
//! - A row extends to the next row.

use gimli::IncompleteLineProgram;

use super::input::Section;
use super::rows::{ProgramRow, TakeRows, each_row};
use crate::debuginfo::slices::NOWHERE;

/// Returns the low 32 bits of a line number, which is what SymCaches store.
pub(super) fn low_half(number: u64) -> u32 {
    (number & u64::from(u32::MAX)) as u32
}

/// A row of a line program. It covers `size` bytes from its address on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) file: u32,
    pub(super) line: u32,
}

impl Row {
    /// Returns the address behind it.
    pub(super) fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Sequence {
    start: u64,
    end: u64,
    /// The largest end of this sequence and those before it.
    reaches: u64,
    first: usize,
    count: usize,
}

/// The rows of a line program.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LineRows {
    rows: Vec<Row>,
    sequences: Vec<Sequence>,
    /// Sequences that begin at address zero, by their ends. At most one of them is of code at this
    /// address: linkers move the sequences of all discarded functions there.
    at_zero: Vec<Sequence>,
}

impl LineRows {
    /// Reads a line program up to its end or to the first error. Code begins at `first_code`, if
    /// that is known: sequences that begin before it belong to functions that the linker discarded,
    /// even if they end behind it. Addresses of code have the bits `address_bits`.
    pub(super) fn read(
        &mut self,
        program: &IncompleteLineProgram<Section<'_>>,
        first_code: Option<u64>,
        address_bits: u64,
    ) {
        let mut reader = SequenceReader::new(self, first_code);
        reader.address_bits = address_bits;
        each_row(program, &mut reader);
        reader.finish();
    }

    /// Returns the rows between two addresses, including the row that covers the first address. All
    /// are from one sequence: the first that ends after `start`.
    pub(super) fn between(&self, start: u64, end: u64) -> &[Row] {
        let sequence = self
            .sequences
            .partition_point(|sequence| sequence.reaches <= start);
        let sequence = self.sequences.get(sequence);
        let sequence = sequence.filter(|sequence| sequence.start < end);
        let Some(sequence) = sequence.or_else(|| self.at_zero(start, end)) else {
            return &[];
        };
        let rows = self
            .rows
            .get(sequence.first..sequence.first + sequence.count);
        let rows = rows.expect("a sequence names its rows");
        let from = rows.partition_point(|row| row.address <= start);
        let to = rows.partition_point(|row| row.address < end);
        rows.get(from.saturating_sub(1)..to).unwrap_or_default()
    }

    /// Returns the sequence from address zero on that a function between two addresses belongs to.
    fn at_zero(&self, start: u64, end: u64) -> Option<&Sequence> {
        match (start, &self.at_zero[..]) {
            // The sequence of a discarded function is as long as that function.
            (0, all) => all.iter().find(|sequence| sequence.end >= end),
            (_, [only]) => Some(only).filter(|only| start < only.end),
            (_, _) => None,
        }
    }

    /// Returns the rows, sequence by sequence, except those from address zero on.
    pub(super) fn all(&self) -> impl Iterator<Item = &Row> {
        self.sequences.iter().flat_map(|sequence| {
            let rows = self
                .rows
                .get(sequence.first..sequence.first + sequence.count);
            rows.expect("a sequence names its rows")
        })
    }
}

/// Takes rows into [`LineRows`].
pub(super) struct SequenceReader<'l> {
    lines: &'l mut LineRows,
    first_code: Option<u64>,
    /// The bits of addresses that are kept.
    address_bits: u64,
    /// The address of the first row of the current sequence, also if the row is not kept.
    begin: Option<u64>,
    /// The index of the first row of the current sequence that is kept.
    first: usize,
    last_address: u64,
}

impl<'l> SequenceReader<'l> {
    /// Replaces the rows of `lines`.
    pub(super) fn new(lines: &'l mut LineRows, first_code: Option<u64>) -> Self {
        lines.at_zero.clear();
        lines.rows.clear();
        lines.sequences.clear();
        Self {
            lines,
            first_code,
            address_bits: u64::MAX,
            begin: None,
            first: 0,
            last_address: 0,
        }
    }

    /// Ends a sequence.
    fn close(&mut self, end: u64) {
        let LineRows {
            rows,
            sequences,
            at_zero,
        } = &mut *self.lines;
        let begin = self.begin.take();
        match rows.get(self.first) {
            Some(_) if begin < self.first_code => rows.truncate(self.first),
            Some(row) => {
                let list = match row.address {
                    0 => at_zero,
                    _ => sequences,
                };
                list.push(Sequence {
                    start: row.address,
                    end,
                    reaches: end,
                    first: self.first,
                    count: rows.len() - self.first,
                });
            }
            None => {}
        }
        self.first = rows.len();
        self.last_address = 0;
    }

    /// Ends the last sequence, and sorts all.
    pub(super) fn finish(mut self) {
        self.close(self.last_address.saturating_add(1));
        self.lines.at_zero.sort_by_key(|sequence| sequence.end);
        let sequences = &mut self.lines.sequences;
        sequences.sort_by_key(|sequence| sequence.start);
        let mut reaches = 0;
        for sequence in sequences {
            reaches = sequence.end.max(reaches);
            sequence.reaches = reaches;
        }
    }
}

impl TakeRows for SequenceReader<'_> {
    fn take(&mut self, row: ProgramRow) {
        let address = row.address & self.address_bits;
        self.begin.get_or_insert(address);
        if address == 0 && !row.is_end && self.first_code != Some(0) {
            return;
        }
        let rows = &mut self.lines.rows;
        let mut last = if rows.len() > self.first {
            rows.last_mut()
        } else {
            None
        };
        if let Some(last) = &mut last
            && address >= last.address
        {
            last.size = address - last.address;
        }
        if row.is_end {
            let end = if address < self.last_address {
                self.last_address.saturating_add(1)
            } else {
                address
            };
            self.close(end);
        } else if address >= self.last_address {
            let row = Row {
                address,
                // A row that no row and no end of a sequence follows covers one byte.
                size: 1,
                file: u32::try_from(row.file).unwrap_or(NOWHERE),
                line: low_half(row.line),
            };
            match last {
                Some(last) if last.address == address => *last = row,
                _ => rows.push(row),
            }
            self.last_address = address;
        }
    }

    fn needed_from(&self) -> u64 {
        match self.begin {
            None => self.first_code.unwrap_or_default(),
            Some(_) => 0,
        }
    }
}
