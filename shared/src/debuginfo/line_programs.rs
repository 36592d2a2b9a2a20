//! Line programs as linkers leave them: parts of discarded functions are mended before `symbolic` reads them.
//!
//! A linker that discards one of several equal functions leaves its part of the line program, with addresses from zero.
//! Where such a part sets its address twice, `gimli` takes the second one for a tombstone and drops all rows up to *and
//! with* the end of the sequence; what `symbolic` then takes for one sequence spans the discarded part and the next
//! sequence, and hides every function between the two. Seen in C++ programs built by GCC 12 with `-g` and linked by
//! GNU ld: in the Debian package `ceph-osd`, a quarter of all code had neither lines nor inlined calls.
//!
//! The remedy: an address that is lower than the one before it ends the sequence. Instructions keep their sizes.
//!
//! Source of the format: DWARF 5, section 6.2 (and 6.2.4 of DWARF 2 to 4 for the headers).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use symbolic::debuginfo::dwarf::{Dwarf, DwarfDebugSession, DwarfError, DwarfSection, Endian};
use symbolic::debuginfo::elf::ElfObject;

const LNS_SET_BASIC_BLOCK: u8 = 7;
const LNE_END_SEQUENCE: u8 = 1;
const LNE_SET_ADDRESS: u8 = 2;

/// Sections of a debug file that are large, and compressed as a rule.
const LARGE_SECTIONS: [&str; 8] = [
    "debug_info",
    "debug_str",
    "debug_line",
    "debug_ranges",
    "debug_rnglists",
    "debug_line_str",
    "debug_str_offsets",
    "debug_addr",
];

/// Threads that decompress sections.
const THREADS: usize = 2;

/// Opens a debug session on an object whose line programs are mended.
pub(super) fn debug_session<'d>(
    object: &ElfObject<'d>,
) -> Result<DwarfDebugSession<'d>, DwarfError> {
    let load_address = i64::try_from(object.load_address()).unwrap_or_default();
    let mended = Mended {
        object,
        decompressed: Mutex::new(decompressed(object)),
    };
    DwarfDebugSession::parse(&mended, object.symbol_map(), load_address, object.kind())
}

/// An object with mended line programs.
struct Mended<'a, 'd> {
    object: &'a ElfObject<'d>,
    /// Sections that nobody has asked for yet.
    decompressed: Mutex<Sections<'d>>,
}

type Sections<'d> = HashMap<&'static str, DwarfSection<'d>>;

/// Decompresses the large sections side by side, the largest first: one after the other that takes a fifth of the time that a
/// large file takes in all.
fn decompressed<'d>(object: &ElfObject<'d>) -> Sections<'d> {
    let length = |name: &str| object.raw_section(name).map(|section| section.data.len());
    let mut names = LARGE_SECTIONS;
    names.sort_by_key(|name| std::cmp::Reverse(length(name)));
    let left = Mutex::new(names.into_iter());
    let sections = Mutex::new(HashMap::new());
    let decompress = || {
        loop {
            // A lock that is taken in the head of a loop would be held in its body.
            let next = lock(&left).next();
            let Some(name) = next else { break };
            if let Some(section) = object.section(name) {
                lock(&sections).insert(name, section);
            }
        }
    };
    thread::scope(|scope| {
        // Without more threads this one does it all.
        for _ in 1..THREADS {
            let _ = thread::Builder::new().spawn_scoped(scope, decompress);
        }
        decompress();
    });
    sections
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'d> Dwarf<'d> for Mended<'_, 'd> {
    fn endianity(&self) -> Endian {
        self.object.endianity()
    }

    fn raw_section(&self, name: &str) -> Option<DwarfSection<'d>> {
        self.object.raw_section(name)
    }

    fn section(&self, name: &str) -> Option<DwarfSection<'d>> {
        let decompressed = lock(&self.decompressed).remove(name);
        let mut section = decompressed.or_else(|| self.object.section(name))?;
        if name == "debug_line" {
            let little_endian = self.object.endianity() == Endian::Little;
            let faults = faults(&section.data, little_endian);
            if !faults.is_empty() {
                let data = section.data.to_mut();
                for at in faults {
                    mend(data, at);
                }
            }
        }
        Some(section)
    }
}

/// Replaces the instruction at `at`, a `DW_LNE_set_address`, by the end of a sequence and instructions without meaning.
fn mend(data: &mut [u8], at: usize) {
    let Some(length) = data.get(at + 1).map(|length| usize::from(*length)) else {
        return;
    };
    if let Some(instruction) = data.get_mut(at..at + 2 + length) {
        instruction.fill(LNS_SET_BASIC_BLOCK);
        instruction[..3].copy_from_slice(&[0, 1, LNE_END_SEQUENCE]);
    }
}

/// Returns where addresses are set that are lower than those before them, in all line programs of a section.
///
/// What cannot be read ends the search in that program, or in the section.
fn faults(data: &[u8], little_endian: bool) -> Vec<usize> {
    let mut faults = Vec::new();
    let mut reader = Reader {
        data,
        at: 0,
        little_endian,
    };
    while reader.at < data.len() {
        let Some(end) = reader.program(&mut faults) else {
            break;
        };
        reader.at = end;
    }
    faults
}

struct Reader<'a> {
    data: &'a [u8],
    at: usize,
    little_endian: bool,
}

impl Reader<'_> {
    /// Reads one program; returns where the next one begins.
    fn program(&mut self, faults: &mut Vec<usize>) -> Option<usize> {
        let short = self.unsigned(4)?;
        let (length, offset_size) = if short == 0xffff_ffff {
            (self.unsigned(8)?, 8)
        } else {
            (short, 4)
        };
        let end = self
            .at
            .checked_add(usize::try_from(length).ok()?)
            .filter(|end| *end <= self.data.len())?;
        // What is wrong with one program does not concern the next.
        let _ = self.instructions(end, offset_size, faults);
        Some(end)
    }

    fn instructions(
        &mut self,
        end: usize,
        offset_size: usize,
        faults: &mut Vec<usize>,
    ) -> Option<()> {
        let version = self.unsigned(2)?;
        if !(2..=5).contains(&version) {
            return None;
        }
        if version >= 5 {
            self.unsigned(2)?; // sizes of addresses and segment selectors
        }
        let header_length = usize::try_from(self.unsigned(offset_size)?).ok()?;
        let begin = self.at.checked_add(header_length)?;
        let step = self.unsigned(1)?;
        if version >= 4 {
            self.unsigned(1)?; // operations in an instruction: one, but on VLIW machines
        }
        self.unsigned(2)?; // default_is_stmt, line_base
        let line_range = self.unsigned(1)?;
        let opcode_base = self.byte()?;
        if line_range == 0 || opcode_base <= LNS_SET_BASIC_BLOCK {
            return None;
        }
        let operands = self
            .data
            .get(self.at..self.at + usize::from(opcode_base) - 1)?;

        self.at = begin;
        let mut address = 0_u64;
        while self.at < end {
            let at = self.at;
            match self.byte()? {
                0 => {
                    let length = usize::try_from(self.leb128()?).ok()?;
                    let next = self.at.checked_add(length).filter(|next| *next <= end)?;
                    let is_short = self.at == at + 2;
                    match self.byte()? {
                        LNE_END_SEQUENCE => address = 0,
                        LNE_SET_ADDRESS => {
                            let set = self.unsigned(length.checked_sub(1)?)?;
                            if set < address && is_short {
                                faults.push(at);
                                address = 0;
                            } else {
                                address = set;
                            }
                        }
                        _ => {}
                    }
                    self.at = next;
                }
                special if special >= opcode_base => {
                    address =
                        address.wrapping_add(u64::from(special - opcode_base) / line_range * step);
                }
                2 => address = address.wrapping_add(self.leb128()?.wrapping_mul(step)),
                8 => {
                    address = address.wrapping_add(u64::from(255 - opcode_base) / line_range * step)
                }
                9 => address = address.wrapping_add(self.unsigned(2)?),
                standard => {
                    for _ in 0..*operands.get(usize::from(standard) - 1)? {
                        self.leb128()?;
                    }
                }
            }
        }
        Some(())
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.data.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn unsigned(&mut self, size: usize) -> Option<u64> {
        let bytes = self
            .data
            .get(self.at..self.at.checked_add(size)?)
            .filter(|bytes| bytes.len() <= 8)?;
        self.at += size;
        let digit = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        Some(if self.little_endian {
            bytes.iter().rev().fold(0, digit)
        } else {
            bytes.iter().fold(0, digit)
        })
    }

    /// Reads a number of either kind; of a signed one only the length is of use.
    fn leb128(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                break;
            }
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program of version 4 with these instructions.
    fn program(instructions: &[u8]) -> Vec<u8> {
        let mut rest = vec![1, 1, 1, 0xfb, 14, 13]; // one byte an instruction, line_base -5, line_range 14, opcode_base 13
        rest.extend([0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0]); // operands, and empty tables
        let mut unit = vec![4, 0];
        unit.extend((rest.len() as u32).to_le_bytes());
        unit.extend(rest);
        unit.extend(instructions);
        let mut program = (unit.len() as u32).to_le_bytes().to_vec();
        program.extend(unit);
        program
    }

    fn set_address(address: u64) -> Vec<u8> {
        [&[0, 9, LNE_SET_ADDRESS][..], &address.to_le_bytes()].concat()
    }

    const END: [u8; 3] = [0, 1, LNE_END_SEQUENCE];

    #[test]
    fn an_address_that_falls_ends_the_sequence() {
        // Eight bytes of a discarded function, set to zero once more; then a function that is there.
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
        mend(&mut section, at);
        assert_eq!(
            (section.len(), &section[at..at + 12]),
            (before, &[0, 1, 1, 7, 7, 7, 7, 7, 7, 7, 7, 2][..])
        );
        assert!(faults(&section, true).is_empty());
    }

    #[test]
    fn what_is_in_order_is_left_alone() {
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
    fn what_is_cut_short_or_absurd_ends_the_search() {
        let section = program(&[set_address(0x10), set_address(0)].concat());
        assert_eq!(faults(&section, true).len(), 1);
        for length in 0..section.len() {
            assert!(faults(&section[..length], true).is_empty(), "{length}");
        }
        for at in 0..section.len() {
            let mut section = section.clone();
            section[at] = 0xff;
            for fault in faults(&section, true) {
                mend(&mut section, fault);
            }
        }
    }
}
