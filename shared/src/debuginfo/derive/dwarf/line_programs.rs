//! Repairs line programs in which a linker left sequences of discarded functions.
//!
//! When a linker discards one of several equal functions, it leaves the sequence of that function
//! in the line program, with addresses from zero. If such a sequence sets its address twice,
//! `gimli` takes the second address for a tombstone and drops all rows up to *and including* the
//! end of the sequence. `symbolic` then sees one sequence that spans the discarded one and the
//! next, and that hides every function between the two. Seen in C++ programs built by GCC 12 with
//! `-g` and linked by GNU ld: in the Debian package `ceph-osd`, a quarter of all code had neither
//! lines nor inlined calls.
//!
//! The repair: an address that is lower than the one before it ends the sequence. Instructions keep
//! their sizes.
//!
//! Source of the format: DWARF 5, section 6.2 (and 6.2.4 of DWARF 2 to 4 for the headers).

use std::borrow::Cow;

use crate::debuginfo::reader::ByteReader;

const LNS_SET_BASIC_BLOCK: u8 = 7;
const LNE_END_SEQUENCE: u8 = 1;
const LNE_SET_ADDRESS: u8 = 2;

/// Repairs all line programs of a section.
pub(super) fn repair(section: &mut Cow<'_, [u8]>, little_endian: bool) {
    let faults = faults(section, little_endian);
    if !faults.is_empty() {
        let data = section.to_mut();
        for at in faults {
            end_sequence(data, at);
        }
    }
}

/// Replaces the instruction at `at`, a `DW_LNE_set_address`, with the end of a sequence and
/// instructions without effect.
fn end_sequence(data: &mut [u8], at: usize) {
    let Some(length) = data.get(at + 1).map(|length| usize::from(*length)) else {
        return;
    };
    if let Some(instruction) = data.get_mut(at..at + 2 + length) {
        instruction.fill(LNS_SET_BASIC_BLOCK);
        instruction[..3].copy_from_slice(&[0, 1, LNE_END_SEQUENCE]);
    }
}

/// Returns the offsets of instructions that set a lower address than the one before, in all line
/// programs of a section.
///
/// An error in a program ends the search in that program. An error in its length ends the search.
fn faults(data: &[u8], little_endian: bool) -> Vec<usize> {
    let mut faults = Vec::new();
    let mut reader = ByteReader::new(data, little_endian);
    while reader.at < data.len() {
        let Some(end) = program(&mut reader, &mut faults) else {
            break;
        };
        reader.at = end;
    }
    faults
}

/// Searches one program. Returns the offset of the next one.
fn program(reader: &mut ByteReader<'_>, faults: &mut Vec<usize>) -> Option<usize> {
    let (length, offset_size) = reader.initial_length()?;
    let end = reader
        .at
        .checked_add(usize::try_from(length).ok()?)
        .filter(|end| *end <= reader.data.len())?;
    // An error in one program does not affect the next.
    let _ = instructions(reader, end, offset_size, faults);
    Some(end)
}

fn instructions(
    reader: &mut ByteReader<'_>,
    end: usize,
    offset_size: usize,
    faults: &mut Vec<usize>,
) -> Option<()> {
    let version = reader.unsigned(2)?;
    if !(2..=5).contains(&version) {
        return None;
    }
    if version >= 5 {
        reader.unsigned(2)?; // sizes of addresses and segment selectors
    }
    let header_length = usize::try_from(reader.unsigned(offset_size)?).ok()?;
    let begin = reader.at.checked_add(header_length)?;
    let step = reader.unsigned(1)?;
    if version >= 4 {
        reader.unsigned(1)?; // operations per instruction: one, except on VLIW machines
    }
    reader.unsigned(2)?; // default_is_stmt, line_base
    let line_range = reader.unsigned(1)?;
    let opcode_base = reader.byte()?;
    if line_range == 0 || opcode_base <= LNS_SET_BASIC_BLOCK {
        return None;
    }
    let operands = reader
        .data
        .get(reader.at..reader.at + usize::from(opcode_base) - 1)?;

    reader.at = begin;
    let mut address = 0_u64;
    while reader.at < end {
        let at = reader.at;
        match reader.byte()? {
            0 => {
                let length = usize::try_from(reader.leb128()?).ok()?;
                let next = reader.at.checked_add(length).filter(|next| *next <= end)?;
                let is_short = reader.at == at + 2;
                match reader.byte()? {
                    LNE_END_SEQUENCE => address = 0,
                    LNE_SET_ADDRESS => {
                        let set = reader.unsigned(length.checked_sub(1)?)?;
                        if set < address && is_short {
                            faults.push(at);
                            address = 0;
                        } else {
                            address = set;
                        }
                    }
                    _ => {}
                }
                reader.at = next;
            }
            special if special >= opcode_base => {
                address =
                    address.wrapping_add(u64::from(special - opcode_base) / line_range * step);
            }
            2 => address = address.wrapping_add(reader.leb128()?.wrapping_mul(step)),
            8 => address = address.wrapping_add(u64::from(255 - opcode_base) / line_range * step),
            9 => address = address.wrapping_add(reader.unsigned(2)?),
            standard => {
                for _ in 0..*operands.get(usize::from(standard) - 1)? {
                    reader.leb128()?;
                }
            }
        }
    }
    Some(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A program of version 4 with these instructions.
    pub(in super::super) fn program(instructions: &[u8]) -> Vec<u8> {
        let mut rest = vec![1, 1, 1, 0xfb, 14, 13]; // one byte per instruction, line_base -5, line_range 14, opcode_base 13
        rest.extend([0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0]); // operands, and empty tables
        let mut unit = vec![4, 0];
        unit.extend((rest.len() as u32).to_le_bytes());
        unit.extend(rest);
        unit.extend(instructions);
        let mut program = (unit.len() as u32).to_le_bytes().to_vec();
        program.extend(unit);
        program
    }

    pub(in super::super) fn set_address(address: u64) -> Vec<u8> {
        [&[0, 9, LNE_SET_ADDRESS][..], &address.to_le_bytes()].concat()
    }

    const END: [u8; 3] = [0, 1, LNE_END_SEQUENCE];

    #[test]
    fn a_decreasing_address_ends_the_sequence() {
        // A discarded function of eight bytes, whose address is set to zero twice; then a live
        // function.
        let discarded = [
            set_address(0),
            vec![1, 2, 8, 1],
            set_address(0),
            vec![2, 4, 1],
            END.to_vec(),
        ]
        .concat();
        let live = [set_address(0x7e_3f00), vec![1, 2, 0x10], END.to_vec()].concat();
        let mut section = [
            program(&[discarded, live].concat()),
            program(&set_address(9)),
        ]
        .concat();
        let found = faults(&section, true);
        let at = section
            .windows(3)
            .rposition(|bytes| bytes == [2, 4, 1])
            .unwrap()
            - 11;
        assert_eq!(found, [at]);
        let before = section.len();
        end_sequence(&mut section, at);
        assert_eq!(
            (section.len(), &section[at..at + 12]),
            (before, &[0, 1, 1, 7, 7, 7, 7, 7, 7, 7, 7, 2][..])
        );
        assert!(faults(&section, true).is_empty());
    }

    #[test]
    fn a_valid_line_program_is_not_changed() {
        let sequence = [
            set_address(0x1000),
            vec![1, 0x4b, 8, 9, 4, 0],
            set_address(0x2000),
            vec![1],
            END.to_vec(),
        ]
        .concat();
        let section = program(&[sequence.clone(), sequence].concat());
        assert!(faults(&section, true).is_empty());
    }

    #[test]
    fn truncated_or_invalid_programs_end_the_search() {
        let section = program(&[set_address(0x10), set_address(0)].concat());
        assert_eq!(faults(&section, true).len(), 1);
        for length in 0..section.len() {
            assert!(faults(&section[..length], true).is_empty(), "{length}");
        }
        for at in 0..section.len() {
            let mut section = section.clone();
            section[at] = 0xff;
            for fault in faults(&section, true) {
                end_sequence(&mut section, fault);
            }
        }
    }
}
