//! The rows of a unit's line program, by sequence.
//!
//! The rules follow `symbolic` (`symbolic_debuginfo::dwarf`, MIT), which is the oracle:
//!
//! - Rows at address zero are ignored, and so are rows with a lower address than the row before.
//! - Of several rows at one address, the last is used.
//! - A row extends to the next row.

use gimli::IncompleteLineProgram;

use super::input::Section;
use super::rows::each_row;

/// Returns the low 32 bits of a line number, which is what SymCaches store.
pub(super) fn low_half(number: u64) -> u32 {
    (number & u64::from(u32::MAX)) as u32
}

/// A row of a line program. It covers `size` bytes from its address on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) file: u64,
    pub(super) line: u32,
}

#[derive(Debug)]
struct Sequence {
    start: u64,
    end: u64,
    /// The largest end of this sequence and those before it.
    reaches: u64,
    first: usize,
    count: usize,
}

/// The rows of a line program.
#[derive(Debug, Default)]
pub(super) struct LineRows {
    rows: Vec<Row>,
    sequences: Vec<Sequence>,
}

impl LineRows {
    /// Reads a line program up to its end or to the first error. Code begins at `first_code`:
    /// sequences that end before it belong to functions that the linker discarded.
    pub(super) fn read(&mut self, program: &IncompleteLineProgram<Section<'_>>, first_code: u64) {
        self.rows.clear();
        self.sequences.clear();
        let mut last_address = 0;
        let mut first = 0;
        each_row(program, |row| {
            let address = row.address;
            if address == 0 {
                return;
            }
            let open = self.rows.len() > first;
            if open
                && let Some(last) = self.rows.last_mut()
                && address >= last.address
            {
                last.size = address - last.address;
            }
            if row.is_end {
                let end = match address < last_address {
                    true => last_address.saturating_add(1),
                    false => address,
                };
                first = self.close(first, end, first_code);
                last_address = 0;
            } else if address >= last_address {
                let row = Row {
                    address,
                    // A row that no row and no end of a sequence follows covers one byte.
                    size: 1,
                    file: row.file,
                    line: low_half(row.line),
                };
                match self.rows.last_mut() {
                    Some(last) if open && last.address == address => *last = row,
                    _ => self.rows.push(row),
                }
                last_address = address;
            }
        });
        self.close(first, last_address.saturating_add(1), first_code);
        self.sequences.sort_by_key(|sequence| sequence.start);
        let mut reaches = 0;
        for sequence in &mut self.sequences {
            reaches = sequence.end.max(reaches);
            sequence.reaches = reaches;
        }
    }

    /// Ends a sequence. Returns the index of the first row of the next one.
    fn close(&mut self, first: usize, end: u64, first_code: u64) -> usize {
        match self.rows.get(first) {
            Some(_) if end <= first_code => self.rows.truncate(first),
            Some(row) => self.sequences.push(Sequence {
                start: row.address,
                end,
                reaches: end,
                first,
                count: self.rows.len() - first,
            }),
            None => {}
        }
        self.rows.len()
    }

    /// Returns the rows between two addresses, including the row that covers the first address. All
    /// are from one sequence: the first that ends after `start`.
    pub(super) fn between(&self, start: u64, end: u64) -> &[Row] {
        let sequence = self
            .sequences
            .partition_point(|sequence| sequence.reaches <= start);
        let Some(sequence) = self.sequences.get(sequence) else {
            return &[];
        };
        if sequence.start >= end {
            return &[];
        }
        let rows = self
            .rows
            .get(sequence.first..sequence.first + sequence.count);
        let rows = rows.expect("a sequence names its rows");
        let from = rows.partition_point(|row| row.address <= start);
        let to = rows.partition_point(|row| row.address < end);
        rows.get(from.saturating_sub(1)..to).unwrap_or_default()
    }

    /// Returns the rows, sequence by sequence.
    pub(super) fn all(&self) -> impl Iterator<Item = &Row> {
        self.sequences.iter().flat_map(|sequence| {
            let rows = self
                .rows
                .get(sequence.first..sequence.first + sequence.count);
            rows.expect("a sequence names its rows")
        })
    }
}
