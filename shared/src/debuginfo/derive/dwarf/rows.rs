//! Executes line programs, and passes on their rows.
//!
//! The rows are those that `gimli` returns for a repaired program (see [`line_programs`] for the
//! fault and the repair). This reader ends a sequence where the repair would, so the section is
//! neither searched for faults before nor copied, and it computes only addresses, files and lines.
//!
//! Source of the format: DWARF 5, section 6.2.5.
//!
//! [`line_programs`]: super::line_programs

use gimli::{Error, IncompleteLineProgram, LineProgramHeader, Reader as _};

use super::input::{Section, short_number};

/// The largest opcode base with which no instruction can replace the one that sets an address, so
/// that the program is not repaired.
const LNS_SET_BASIC_BLOCK: u8 = 7;

/// A row, or the end of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProgramRow {
    pub(super) address: u64,
    pub(super) file: u64,
    pub(super) line: u64,
    pub(super) is_end: bool,
}

/// Takes the rows of a program.
pub(super) trait TakeRows {
    fn take(&mut self, row: ProgramRow);

    /// Returns an address: a sequence whose first row is the next one, and is below it, is not
    /// needed.
    fn needed_from(&self) -> u64;
}

/// Takes the address of the first row.
#[derive(Default)]
struct FirstRow(Option<u64>);

impl TakeRows for FirstRow {
    fn take(&mut self, row: ProgramRow) {
        self.0.get_or_insert(row.address);
    }

    fn needed_from(&self) -> u64 {
        0
    }
}

/// Passes the rows of a program to `rows`, up to its end or to the first error, except those of
/// sequences that are not needed.
pub(super) fn each_row(program: &IncompleteLineProgram<Section<'_>>, rows: &mut impl TakeRows) {
    let instructions = Instructions::of(program.header());
    let mut machine = LineMachine::new(&instructions);
    let mut input = program.header().raw_program_buf();
    // As with `gimli`, the rows before an error count.
    loop {
        machine.advance_fast(&mut input, rows);
        if input.is_empty() || machine.step(&mut input, rows).is_err() {
            return;
        }
    }
}

/// What the instructions of a program mean.
struct Instructions<'h, 'i> {
    header: &'h LineProgramHeader<Section<'i>>,
    /// By special opcode, the number of operations and lines that it advances.
    special: [(u8, i16); 256],
    /// The number of bytes by which an operation advances the address.
    operation_bytes: u64,
    /// The number of operations in an instruction of the machine.
    operations: u64,
    is_repaired: bool,
    highest: u64,
}

impl<'h, 'i> Instructions<'h, 'i> {
    fn of(header: &'h LineProgramHeader<Section<'i>>) -> Self {
        let encoding = header.line_encoding();
        let mut special = [(0, 0); 256];
        for (opcode, entry) in (0..=u8::MAX).zip(&mut special) {
            let adjusted = opcode.wrapping_sub(header.opcode_base());
            let line = adjusted.checked_rem(encoding.line_range);
            let line = i16::from(encoding.line_base) + i16::from(line.unwrap_or_default());
            let operations = adjusted.checked_div(encoding.line_range);
            *entry = (operations.unwrap_or_default(), line);
        }
        let bits = 8 * u32::from(header.address_size());
        Self {
            header,
            special,
            operation_bytes: encoding.minimum_instruction_length.into(),
            operations: u64::from(encoding.maximum_operations_per_instruction).max(1),
            is_repaired: header.opcode_base() > LNS_SET_BASIC_BLOCK,
            highest: u64::MAX
                .checked_shr(64_u32.saturating_sub(bits))
                .unwrap_or_default(),
        }
    }

    /// Returns the address after some bytes, unless it is too high.
    fn after(&self, address: u64, bytes: u64) -> Option<u64> {
        let address = address.checked_add(bytes);
        address.filter(|address| *address <= self.highest)
    }
}

/// The state of a program.
#[derive(Clone, Copy)]
struct LineMachine<'p, 'h, 'i> {
    instructions: &'p Instructions<'h, 'i>,
    row: ProgramRow,
    operation: u64,
    /// Whether rows are dropped because their address is that of discarded code.
    is_tombstone: bool,
    /// The address as the repair computes it: it does not know of discarded code.
    unchecked: u64,
    /// The number of sequences before this one.
    ended: usize,
    /// Whether it was found out if this sequence is needed.
    is_examined: bool,
}

const FIRST_ROW: ProgramRow = ProgramRow {
    address: 0,
    file: 1,
    line: 1,
    is_end: false,
};

impl<'p, 'h, 'i> LineMachine<'p, 'h, 'i> {
    fn new(instructions: &'p Instructions<'h, 'i>) -> Self {
        Self {
            instructions,
            row: FIRST_ROW,
            operation: 0,
            is_tombstone: false,
            unchecked: 0,
            ended: 0,
            is_examined: false,
        }
    }

    /// Executes the most frequent instructions, up to the first other one, which [`Self::step`]
    /// executes. That includes instructions with large numbers and with errors.
    fn advance_fast(&mut self, input: &mut Section<'i>, rows: &mut impl TakeRows) {
        let instructions = self.instructions;
        if self.is_tombstone || instructions.operations > 1 {
            return;
        }
        let opcode_base = instructions.header.opcode_base();
        let after = |address: u64, operations: u64| {
            let bytes = operations.wrapping_mul(instructions.operation_bytes);
            instructions.after(address, bytes)
        };
        let data = input.slice();
        let (mut at, mut row) = (0, self.row);
        while let Some(opcode) = data.get(at).copied() {
            let next = if opcode >= opcode_base {
                let (operations, lines) = instructions.special[usize::from(opcode)];
                let Some(address) = after(row.address, operations.into()) else {
                    break;
                };
                row.address = address;
                row.line = moved(row.line, lines.into());
                rows.take(row);
                Some(at + 1)
            } else {
                match gimli::DwLns(opcode) {
                    gimli::DwLns(0) => after_discriminator(data, at + 1),
                    gimli::DW_LNS_copy => {
                        rows.take(row);
                        Some(at + 1)
                    }
                    gimli::DW_LNS_advance_pc => {
                        short_number(data, at + 1).and_then(|(operations, next)| {
                            row.address = after(row.address, operations)?;
                            Some(next)
                        })
                    }
                    gimli::DW_LNS_advance_line => {
                        short_signed(data, at + 1).map(|(lines, next)| {
                            row.line = moved(row.line, lines);
                            next
                        })
                    }
                    gimli::DW_LNS_set_file => short_number(data, at + 1).map(|(file, next)| {
                        row.file = file;
                        next
                    }),
                    gimli::DW_LNS_set_column => short_number(data, at + 1).map(|(_, next)| next),
                    gimli::DW_LNS_negate_stmt
                    | gimli::DW_LNS_set_prologue_end
                    | gimli::DW_LNS_set_epilogue_begin => Some(at + 1),
                    gimli::DW_LNS_const_add_pc => {
                        let (operations, _) = instructions.special[255];
                        after(row.address, operations.into()).map(|address| {
                            row.address = address;
                            at + 1
                        })
                    }
                    _ => None,
                }
            };
            match next {
                Some(next) => at = next,
                None => break,
            }
        }
        // Without tombstones, both addresses move by the same number of bytes.
        let bytes = row.address.wrapping_sub(self.row.address);
        self.unchecked = self.unchecked.wrapping_add(bytes);
        self.row = row;
        // There are as many bytes: they were read.
        let _ = input.skip(at);
    }

    fn step(&mut self, input: &mut Section<'i>, rows: &mut impl TakeRows) -> Result<(), Error> {
        let opcode = input.read_u8()?;
        let header = self.instructions.header;
        if opcode >= header.opcode_base() {
            let (operations, lines) = self.instructions.special[usize::from(opcode)];
            self.row.line = moved(self.row.line, lines.into());
            self.advance(operations.into())?;
            self.emit(rows);
            return Ok(());
        }
        match gimli::DwLns(opcode) {
            gimli::DwLns(0) => return self.extended(input, rows),
            gimli::DW_LNS_copy => self.emit(rows),
            gimli::DW_LNS_advance_pc => self.advance(input.read_uleb128()?)?,
            gimli::DW_LNS_advance_line => {
                self.row.line = moved(self.row.line, input.read_sleb128()?);
            }
            gimli::DW_LNS_set_file => self.row.file = input.read_uleb128()?,
            gimli::DW_LNS_set_column | gimli::DW_LNS_set_isa => input.skip_leb128()?,
            gimli::DW_LNS_negate_stmt
            | gimli::DW_LNS_set_basic_block
            | gimli::DW_LNS_set_prologue_end
            | gimli::DW_LNS_set_epilogue_begin => {}
            gimli::DW_LNS_const_add_pc => {
                let (operations, _) = self.instructions.special[255];
                self.advance(operations.into())?;
            }
            gimli::DW_LNS_fixed_advance_pc => {
                let bytes = u64::from(input.read_u16()?);
                self.unchecked = self.unchecked.wrapping_add(bytes);
                if !self.is_tombstone {
                    self.add(bytes)?;
                    self.operation = 0;
                }
            }
            _ => {
                let mut lengths = *header.standard_opcode_lengths();
                lengths.skip(usize::from(opcode) - 1)?;
                for _ in 0..lengths.read_u8()? {
                    input.skip_leb128()?;
                }
            }
        }
        Ok(())
    }

    /// Executes an instruction that begins with its length.
    fn extended(&mut self, input: &mut Section<'i>, rows: &mut impl TakeRows) -> Result<(), Error> {
        let header = self.instructions.header;
        let before = input.len();
        let length =
            usize::try_from(input.read_uleb128()?).map_err(|_| Error::UnsupportedOffset)?;
        let is_short = before - input.len() == 1;
        let mut rest = input.split(length)?;
        match gimli::DwLne(rest.read_u8()?) {
            gimli::DW_LNE_end_sequence => self.end(rows),
            gimli::DW_LNE_set_address => {
                let address = rest.read_address(header.address_size())?;
                if address < self.unchecked && is_short && self.instructions.is_repaired {
                    self.end(rows);
                    return Ok(());
                }
                self.unchecked = address;
                self.is_tombstone =
                    address < self.row.address || address >= self.instructions.highest - 1;
                if !self.is_tombstone {
                    self.row.address = address;
                    self.operation = 0;
                    self.skip_unneeded(input, rows.needed_from());
                }
            }
            gimli::DW_LNE_define_file if header.version() <= 4 => {
                rest.read_null_terminated_slice()?;
                for _ in 0..3 {
                    rest.read_uleb128()?;
                }
            }
            gimli::DW_LNE_set_discriminator => drop(rest.read_uleb128()?),
            _ => {}
        }
        Ok(())
    }

    /// Skips the sequence if it is not needed: functions that the linker discarded have low
    /// addresses. If that cannot be determined, its rows are passed on.
    fn skip_unneeded(&mut self, input: &mut Section<'i>, needed_from: u64) {
        // A sequence is examined once, so that this takes no more than twice the time.
        if self.row.address >= needed_from || std::mem::replace(&mut self.is_examined, true) {
            return;
        }
        let (mut ahead, mut rest, mut first) = (*self, *input, FirstRow::default());
        loop {
            ahead.advance_fast(&mut rest, &mut first);
            let is_needed = first.0.is_some_and(|begin| begin >= needed_from);
            // Of discarded code, the end has no row.
            let is_open = !ahead.is_tombstone && !is_needed && !rest.is_empty();
            if !is_open || ahead.step(&mut rest, &mut first).is_err() {
                return;
            }
            if ahead.ended > self.ended {
                (*self, *input) = (ahead, rest);
                return;
            }
        }
    }

    fn emit(&self, rows: &mut impl TakeRows) {
        if !self.is_tombstone {
            rows.take(self.row);
        }
    }

    fn end(&mut self, rows: &mut impl TakeRows) {
        self.row.is_end = true;
        self.emit(rows);
        *self = Self {
            ended: self.ended + 1,
            ..Self::new(self.instructions)
        };
    }

    fn advance(&mut self, operations: u64) -> Result<(), Error> {
        let step = self.instructions.operation_bytes;
        self.unchecked = self.unchecked.wrapping_add(operations.wrapping_mul(step));
        if self.is_tombstone {
            return Ok(());
        }
        // A machine may have several operations in an instruction.
        let instructions = match self.instructions.operations {
            1 => operations,
            most => {
                let operation = self.operation.wrapping_add(operations);
                self.operation = operation % most;
                operation / most
            }
        };
        self.add(instructions.wrapping_mul(step))
    }

    fn add(&mut self, bytes: u64) -> Result<(), Error> {
        let address = self.instructions.after(self.row.address, bytes);
        self.row.address = address.ok_or(Error::AddressOverflow)?;
        Ok(())
    }
}

fn moved(line: u64, lines: i64) -> u64 {
    match u64::try_from(lines) {
        Ok(lines) => line.wrapping_add(lines),
        Err(_) => line.saturating_sub(lines.unsigned_abs()),
    }
}

/// Like [`short_number`], for a signed number.
#[inline]
fn short_signed(data: &[u8], at: usize) -> Option<(i64, usize)> {
    let (number, next) = short_number(data, at)?;
    let unused = match next - at {
        1 => i64::BITS - 7,
        _ => i64::BITS - 14,
    };
    Some((number.cast_signed() << unused >> unused, next))
}

/// Returns the place behind an instruction that sets a discriminator, of which `at` is the length.
#[inline]
fn after_discriminator(data: &[u8], at: usize) -> Option<usize> {
    const SET: u8 = gimli::DW_LNE_set_discriminator.0;
    match *data.get(at..)? {
        [2, SET, last, ..] if last < 0x80 => Some(at + 3),
        [3, SET, _, last, ..] if last < 0x80 => Some(at + 4),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use gimli::{DebugLine, DebugLineOffset, EndianSlice, RunTimeEndian};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::debuginfo::derive::dwarf::line_programs::repair;
    use crate::debuginfo::derive::dwarf::line_programs::tests::{program, set_address};
    use crate::debuginfo::derive::dwarf::lines::{LineRows, SequenceReader};

    const ADDRESS_BYTES: u8 = 8;

    fn opened(section: &[u8]) -> IncompleteLineProgram<Section<'_>> {
        let lines = DebugLine::from(EndianSlice::new(section, RunTimeEndian::Little));
        lines
            .program(DebugLineOffset(0), ADDRESS_BYTES, None, None)
            .unwrap()
    }

    /// Returns the rows of `gimli` for the repaired program.
    fn by_gimli(section: &[u8]) -> Vec<ProgramRow> {
        let mut section = Cow::Borrowed(section);
        repair(&mut section, true);
        let mut rows = opened(&section).rows();
        let mut read = Vec::new();
        while let Ok(Some((_, row))) = rows.next_row() {
            read.push(ProgramRow {
                address: row.address(),
                file: row.file_index(),
                line: row.line().map_or(0, |line| line.get()),
                is_end: row.end_sequence(),
            });
        }
        read
    }

    /// Keeps all rows.
    #[derive(Default)]
    struct Taken(Vec<ProgramRow>);

    impl TakeRows for Taken {
        fn take(&mut self, row: ProgramRow) {
            self.0.push(row);
        }

        fn needed_from(&self) -> u64 {
            0
        }
    }

    /// Passes on all rows, including those that are not needed.
    struct Whole<'r, R>(&'r mut R);

    impl<R: TakeRows> TakeRows for Whole<'_, R> {
        fn take(&mut self, row: ProgramRow) {
            self.0.take(row);
        }

        fn needed_from(&self) -> u64 {
            0
        }
    }

    /// Takes rows that are needed if their sequence begins at an address or after it.
    struct After(u64, Vec<u64>);

    impl TakeRows for After {
        fn take(&mut self, row: ProgramRow) {
            self.1.push(row.address);
        }

        fn needed_from(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn no_row_of_discarded_code_is_passed_on() {
        // Advances the address by one byte and the line by one, and ends the sequence.
        const ROWS: [u8; 6] = [33, 33, 33, 0, 1, 1];
        let sequence = |address| [&set_address(address)[..], &ROWS].concat();
        // A large function that was discarded ends where code is.
        let large = [&set_address(0)[..], &[33, 2, 0x80, 4], &ROWS].concat();
        let sequences = [sequence(0x10), large, sequence(0xff), sequence(0x20)];
        let section = program(&sequences.concat());
        let mut rows = After(0x100, Vec::new());
        each_row(&opened(&section), &mut rows);
        assert_eq!(rows.1, [0x100, 0x101, 0x102, 0x102]);
        let mut lines = LineRows::default();
        lines.read(&opened(&section), Some(0x100), u64::MAX);
        let kept: Vec<u64> = lines.all().map(|row| row.address).collect();
        assert_eq!(kept, [0x100, 0x101, 0x102]);
    }

    #[test]
    fn the_lowest_bit_of_an_address_on_mips_is_not_kept() {
        // Each row advances the address by one byte and the line by one.
        const ROWS: [u8; 7] = [33, 33, 33, 33, 0, 1, 1];
        let section = program(&[&set_address(0x101)[..], &ROWS].concat());
        let mut lines = LineRows::default();
        lines.read(&opened(&section), None, !1);
        let kept: Vec<_> = lines.all().map(|row| (row.address, row.line)).collect();
        assert_eq!(kept, [(0x102, 3), (0x104, 5)]);
    }

    /// One instruction. Addresses often decrease, and some are those of discarded code.
    fn instruction() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            4 => (13_u8..=255).prop_map(|special| vec![special]),
            2 => (0_u64..0x400).prop_map(set_address),
            1 => (u64::MAX - 3..=u64::MAX).prop_map(set_address),
            2 => Just(vec![0, 1, 1]),
            1 => Just(vec![1]),
            1 => (2_u8..6, 0_u8..0x80).prop_map(|(opcode, operand)| vec![opcode, operand]),
            1 => prop_oneof![6_u8..9, 10_u8..12].prop_map(|opcode| vec![opcode]),
            1 => any::<[u8; 2]>().prop_map(|[low, high]| vec![9, low, high]),
            1 => (0_u8..0x80).prop_map(|isa| vec![12, isa]),
            1 => (2_u8..6, vec(0x80_u8..=255, 0..3), 0_u8..0x80)
                .prop_map(|(opcode, low, high)| [vec![opcode], low, vec![high]].concat()),
            1 => (0_u8..0x80).prop_map(|discriminator| vec![0, 2, 4, discriminator]),
            1 => (0x80_u8..=255, 0_u8..0x80).prop_map(|(low, high)| vec![0, 3, 4, low, high]),
            1 => vec(any::<u8>(), 1..4).prop_map(|bytes| [vec![0, bytes.len() as u8 + 1, 0x81], bytes].concat()),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn rows_are_those_that_gimli_reads_from_the_repaired_program(
            instructions in vec(instruction(), 0..60),
            cut in 0_usize..40,
        ) {
            let mut instructions = instructions.concat();
            instructions.truncate(instructions.len().saturating_sub(cut.saturating_sub(30)));
            let section = program(&instructions);
            let mut rows = Taken::default();
            each_row(&opened(&section), &mut rows);
            prop_assert_eq!(rows.0, by_gimli(&section));
        }

        #[test]
        fn what_is_kept_does_not_depend_on_whether_discarded_code_is_skipped(
            instructions in vec(instruction(), 0..60),
            first_code in 0_u64..0x400,
        ) {
            let section = program(&instructions.concat());
            let (mut kept, mut all) = (LineRows::default(), LineRows::default());
            kept.read(&opened(&section), Some(first_code), u64::MAX);
            let mut reader = SequenceReader::new(&mut all, Some(first_code));
            each_row(&opened(&section), &mut Whole(&mut reader));
            reader.finish();
            prop_assert_eq!(kept, all);
        }
    }
}
