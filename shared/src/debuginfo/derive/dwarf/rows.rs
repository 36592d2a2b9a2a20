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

use super::input::Section;

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

/// Passes the rows of a program to `take`, up to its end or to the first error.
pub(super) fn each_row(
    program: &IncompleteLineProgram<Section<'_>>,
    mut take: impl FnMut(ProgramRow),
) {
    let mut state = LineMachine::of(program.header());
    let mut input = program.header().raw_program_buf();
    // As with `gimli`, the rows before an error count.
    while !input.is_empty() && state.step(&mut input, &mut take).is_ok() {}
}

/// The state of a program, and what its instructions do to it.
struct LineMachine<'h, 'i> {
    header: &'h LineProgramHeader<Section<'i>>,
    /// By special opcode, the number of operations and lines that it advances.
    special: [(u8, i16); 256],
    is_repaired: bool,
    highest: u64,
    row: ProgramRow,
    operation: u64,
    /// Whether rows are dropped because their address is that of discarded code.
    is_tombstone: bool,
    /// The address as the repair computes it: it does not know of discarded code.
    unchecked: u64,
}

const FIRST_ROW: ProgramRow = ProgramRow {
    address: 0,
    file: 1,
    line: 1,
    is_end: false,
};

impl<'h, 'i> LineMachine<'h, 'i> {
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
            is_repaired: header.opcode_base() > LNS_SET_BASIC_BLOCK,
            highest: u64::MAX
                .checked_shr(64_u32.saturating_sub(bits))
                .unwrap_or_default(),
            row: FIRST_ROW,
            operation: 0,
            is_tombstone: false,
            unchecked: 0,
        }
    }

    fn step(
        &mut self,
        input: &mut Section<'i>,
        take: &mut impl FnMut(ProgramRow),
    ) -> Result<(), Error> {
        let opcode = input.read_u8()?;
        if opcode >= self.header.opcode_base() {
            let (operations, lines) = self.special[usize::from(opcode)];
            self.advance_line(lines.into());
            self.advance(operations.into())?;
            self.emit(take);
            return Ok(());
        }
        match gimli::DwLns(opcode) {
            gimli::DwLns(0) => return self.extended(input, take),
            gimli::DW_LNS_copy => self.emit(take),
            gimli::DW_LNS_advance_pc => self.advance(input.read_uleb128()?)?,
            gimli::DW_LNS_advance_line => self.advance_line(input.read_sleb128()?),
            gimli::DW_LNS_set_file => self.row.file = input.read_uleb128()?,
            gimli::DW_LNS_set_column | gimli::DW_LNS_set_isa => input.skip_leb128()?,
            gimli::DW_LNS_negate_stmt
            | gimli::DW_LNS_set_basic_block
            | gimli::DW_LNS_set_prologue_end
            | gimli::DW_LNS_set_epilogue_begin => {}
            gimli::DW_LNS_const_add_pc => self.advance(self.special[255].0.into())?,
            gimli::DW_LNS_fixed_advance_pc => {
                let bytes = u64::from(input.read_u16()?);
                self.unchecked = self.unchecked.wrapping_add(bytes);
                if !self.is_tombstone {
                    self.add(bytes)?;
                    self.operation = 0;
                }
            }
            _ => {
                let mut lengths = *self.header.standard_opcode_lengths();
                lengths.skip(usize::from(opcode) - 1)?;
                for _ in 0..lengths.read_u8()? {
                    input.skip_leb128()?;
                }
            }
        }
        Ok(())
    }

    /// Executes an instruction that begins with its length.
    fn extended(
        &mut self,
        input: &mut Section<'i>,
        take: &mut impl FnMut(ProgramRow),
    ) -> Result<(), Error> {
        let before = input.len();
        let length =
            usize::try_from(input.read_uleb128()?).map_err(|_| Error::UnsupportedOffset)?;
        let is_short = before - input.len() == 1;
        let mut rest = input.split(length)?;
        match gimli::DwLne(rest.read_u8()?) {
            gimli::DW_LNE_end_sequence => self.end(take),
            gimli::DW_LNE_set_address => {
                let address = rest.read_address(self.header.address_size())?;
                if address < self.unchecked && is_short && self.is_repaired {
                    self.end(take);
                    return Ok(());
                }
                self.unchecked = address;
                self.is_tombstone = address < self.row.address || address >= self.highest - 1;
                if !self.is_tombstone {
                    self.row.address = address;
                    self.operation = 0;
                }
            }
            gimli::DW_LNE_define_file if self.header.version() <= 4 => {
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

    fn emit(&self, take: &mut impl FnMut(ProgramRow)) {
        if !self.is_tombstone {
            take(self.row);
        }
    }

    fn end(&mut self, take: &mut impl FnMut(ProgramRow)) {
        self.row.is_end = true;
        self.emit(take);
        self.row = FIRST_ROW;
        self.operation = 0;
        self.is_tombstone = false;
        self.unchecked = 0;
    }

    fn advance_line(&mut self, lines: i64) {
        self.row.line = match u64::try_from(lines) {
            Ok(lines) => self.row.line.wrapping_add(lines),
            Err(_) => self.row.line.saturating_sub(lines.unsigned_abs()),
        };
    }

    fn advance(&mut self, operations: u64) -> Result<(), Error> {
        let encoding = self.header.line_encoding();
        let step = u64::from(encoding.minimum_instruction_length);
        self.unchecked = self.unchecked.wrapping_add(operations.wrapping_mul(step));
        if self.is_tombstone {
            return Ok(());
        }
        // A machine may have several operations in an instruction.
        let instructions = match u64::from(encoding.maximum_operations_per_instruction) {
            0 | 1 => operations,
            most => {
                let operation = self.operation.wrapping_add(operations);
                self.operation = operation % most;
                operation / most
            }
        };
        self.add(instructions.wrapping_mul(step))
    }

    fn add(&mut self, bytes: u64) -> Result<(), Error> {
        let address = self.row.address.checked_add(bytes);
        let address = address.filter(|address| *address <= self.highest);
        self.row.address = address.ok_or(Error::AddressOverflow)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use gimli::{DebugLine, DebugLineOffset, EndianSlice, RunTimeEndian};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::line_programs::repair;
    use super::super::line_programs::tests::{program, set_address};
    use super::*;

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
            1 => (0_u8..0x80).prop_map(|discriminator| vec![0, 2, 4, discriminator]),
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
            let mut rows = Vec::new();
            each_row(&opened(&section), |row| rows.push(row));
            prop_assert_eq!(rows, by_gimli(&section));
        }
    }
}
