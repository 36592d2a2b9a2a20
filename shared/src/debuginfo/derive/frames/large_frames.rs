//! The rules of functions of Mach-O files whose frames are too large for the compact form of unwind
//! information, which of the machines that are read here only x86-64 has.
//!
//! A frame of more than two thousand bytes does not fit into the encoding of a function without a
//! frame pointer. The encoding then says where in the function the instruction is that reserves the
//! stack, from which the size has to be read. `symbolic` does not do it, and writes the rule of a
//! function that has no frame. That rule is replaced here. It is left out if the instruction is
//! another one.
//!
//! Source: `mach-o/compact_unwind_encoding.h` of LLVM and Apple.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;

use goblin::mach::MachO;
use symbolic::cfi::AsciiCfiWriter;
use symbolic::common::CpuFamily;
use symbolic::debuginfo::Object;
use symbolic::debuginfo::dwarf::Dwarf as _;
use symbolic::debuginfo::macho::MachObject;

use crate::debuginfo::failure::{Failure, chain, malformed};

/// The bits of an encoding that say which form it has.
const MODE: u32 = 0x0f00_0000;
/// The form of a large frame (`UNWIND_X86_64_MODE_STACK_IND`).
const LARGE: u32 = 0x0300_0000;

/// The registers that a function may save, by their numbers in an encoding, from one on.
const REGISTERS: [&str; 6] = ["rbx", "r12", "r13", "r14", "r15", "rbp"];

/// The beginning of an instruction that subtracts a number of four bytes from `rsp`.
const SUBTRACT: [u8; 3] = [0x48, 0x81, 0xec];

/// What precedes the address in the first line of a record.
const INIT: &[u8] = b"STACK CFI INIT ";
/// The rules that `symbolic` writes for a function without a frame.
const WITHOUT_FRAME: &[u8] = b" .cfa: $rsp 8 + .ra: .cfa -8 + ^\n";

/// The rules of functions by their addresses; `None` if they are not known.
pub(super) struct LargeFrames(BTreeMap<u32, Option<String>>);

impl LargeFrames {
    /// Reads the rules of the functions of a file; `None` if the file has no large frames.
    pub(super) fn of(mach: &MachObject<'_>) -> Option<Self> {
        // Records that were read from DWARF may have the same first line.
        if mach.arch().cpu_family() != CpuFamily::Amd64 || mach.raw_section("debug_frame").is_some()
        {
            return None;
        }
        let section = mach.raw_section("unwind_info")?;
        let large = CompactSection(&section.data).encodings()?.into_iter();
        let mut large = large
            .filter(|(_, encoding)| encoding & MODE == LARGE)
            .peekable();
        large.peek()?;
        let parsed = MachO::parse(mach.data(), 0).ok()?;
        let code = |start: u32| {
            let address = mach.load_address().checked_add(start.into())?;
            parsed.segments.iter().find_map(|segment| {
                let at = usize::try_from(address.checked_sub(segment.vmaddr)?).ok()?;
                segment.data.get(at..).filter(|code| !code.is_empty())
            })
        };
        let rules = large.map(|(start, encoding)| {
            let rules = code(start).and_then(|code| rules_of(encoding, code));
            (start, rules)
        });
        Some(Self(rules.collect()))
    }

    /// Writes the records of the file, with these rules.
    pub(super) fn write(&self, file: &Object<'_>, out: &mut dyn io::Write) -> Result<(), Failure> {
        let lines = LineWriter {
            frames: self,
            out,
            line: Vec::new(),
        };
        let written = AsciiCfiWriter::new(lines).process(file);
        written.map_err(|error| malformed(chain(&error)))
    }

    /// Returns the rules of the function that a line is the record of, if the line says that it has
    /// no frame but it has a large one. The second value is the line without its rules.
    fn wrong<'l>(&self, line: &'l [u8]) -> Option<(Option<&str>, &'l [u8])> {
        let place = line.strip_suffix(WITHOUT_FRAME)?;
        let digits = place
            .strip_prefix(INIT)?
            .split(|byte| *byte == b' ')
            .next()?;
        let start = u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        Some((self.0.get(&start)?.as_deref(), place))
    }
}

/// Passes records on line by line.
struct LineWriter<'f, 'o> {
    frames: &'f LargeFrames,
    out: &'o mut (dyn io::Write + 'o),
    /// The beginning of the line that is being written.
    line: Vec<u8>,
}

impl io::Write for LineWriter<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(bytes.len(), |end| end + 1);
        self.line.extend_from_slice(&bytes[..taken]);
        if end.is_some() {
            match self.frames.wrong(&self.line) {
                None => self.out.write_all(&self.line)?,
                Some((None, _)) => {}
                Some((Some(rules), place)) => {
                    self.out.write_all(place)?;
                    self.out.write_all(format!(" {rules}\n").as_bytes())?;
                }
            }
            self.line.clear();
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Returns the rules of a function with a large frame, given its encoding and its code. They are
/// those of its body, as for all functions with compact unwind information.
fn rules_of(encoding: u32, code: &[u8]) -> Option<String> {
    let field = |first: u32, bits: u32| (encoding >> first) & ((1 << bits) - 1);
    let number_at = field(16, 8) as usize;
    let instruction = code.get(number_at.checked_sub(SUBTRACT.len())?..)?;
    let number = instruction.strip_prefix(&SUBTRACT)?.first_chunk()?;
    // What was pushed is counted in words, with the return address.
    let size = u64::from(u32::from_le_bytes(*number)) + 8 * u64::from(field(13, 3));
    let mut rules = format!(".cfa: $rsp {size} + .ra: .cfa -8 + ^");
    let saved = saved_registers(field(10, 3) as usize, field(0, 10))?;
    let words = (2..=saved.len() + 1).rev();
    for (register, words) in saved.iter().zip(words) {
        // Writing to a string does not fail.
        let _ = write!(rules, " ${register}: .cfa -{} + ^", 8 * words);
    }
    Some(rules)
}

/// Returns the registers that a function saves, in the order of their addresses, given their count
/// and their permutation. Each digit of the permutation, of which the first is the most significant
/// one, selects one of the registers that are left; it is below the number of these.
fn saved_registers(count: usize, mut permutation: u32) -> Option<Vec<&'static str>> {
    let mut left = REGISTERS.to_vec();
    let mut digits = vec![0; count];
    for (number, digit) in digits.iter_mut().enumerate().rev() {
        let choices = u32::try_from(left.len().checked_sub(number)?).ok()?;
        *digit = permutation.checked_rem(choices)?;
        permutation /= choices;
    }
    let selected = digits.into_iter().map(|digit| {
        let digit = digit as usize;
        (digit < left.len()).then(|| left.remove(digit))
    });
    selected.collect()
}

/// A section with compact unwind information.
struct CompactSection<'a>(&'a [u8]);

impl CompactSection<'_> {
    /// Returns the encodings of all functions, by their addresses. Of several at one address, the
    /// last one counts.
    fn encodings(&self) -> Option<BTreeMap<u32, u32>> {
        /// The first words of pages, which say which form they have.
        const REGULAR: u32 = 2;
        const COMPRESSED: u32 = 3;
        let (common, common_count) = (self.word(4)?, self.word(8)?);
        let (index, pages) = (self.word(20)? as usize, self.word(24)? as usize);
        // No entry is shorter. Malformed pages may be the same ones.
        let most = self.0.len() / 4;
        let mut encodings = BTreeMap::new();
        let mut count = 0;
        for number in 0..pages {
            // Its first address, its offset, and the offset of other information.
            let at = index + 12 * number;
            let (first, page) = (self.word(at)?, self.word(at + 4)? as usize);
            if page == 0 {
                continue; // the end
            }
            let kind = self.word(page)?;
            let (entries, length) = (self.half(page + 4)?, self.half(page + 6)?);
            count += length;
            if count > most {
                return None;
            }
            for number in 0..length {
                let (start, encoding) = match kind {
                    REGULAR => {
                        let at = page + entries + 8 * number;
                        (self.word(at)?, self.word(at + 4)?)
                    }
                    COMPRESSED => {
                        let entry = self.word(page + entries + 4 * number)?;
                        let (offset, encoding) = (entry & 0x00ff_ffff, entry >> 24);
                        let at = match encoding.checked_sub(common_count) {
                            None => common as usize + 4 * encoding as usize,
                            Some(own) => page + self.half(page + 8)? + 4 * own as usize,
                        };
                        (first.checked_add(offset)?, self.word(at)?)
                    }
                    _ => return None,
                };
                encodings.insert(start, encoding);
            }
        }
        Some(encodings)
    }

    /// Returns the number of four bytes at an offset.
    fn word(&self, at: usize) -> Option<u32> {
        let bytes = self.0.get(at..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    }

    /// Returns the number of two bytes at an offset.
    fn half(&self, at: usize) -> Option<usize> {
        let bytes = self.0.get(at..)?.first_chunk()?;
        Some(u16::from_le_bytes(*bytes).into())
    }
}

#[cfg(test)]
mod tests {
    use symbolic::common::Arch;
    use symbolic::debuginfo::macho::{CompactCfiOp, CompactUnwindInfoIter, CompactUnwindOp};

    use super::{rules_of, saved_registers};

    /// Returns the registers that `symbolic` reads of a small frame, in the order of their
    /// addresses.
    fn of_small_frame(count: u32, permutation: u32) -> Vec<&'static str> {
        // `UNWIND_X86_64_MODE_STACK_IMMD`
        let encoding = 0x0200_0000 | (count << 10) | permutation;
        let words: [u32; 17] = [
            1, 0, 0, 0, 0, 28, 2, // two pages in the index
            0x1000, 52, 0, 0x1010, 0, 0, // the second one is the end
            2, 0x1_0008, 0x1000, encoding, // a regular page with one entry
        ];
        let section: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        let mut entries = CompactUnwindInfoIter::new(&section, true, Arch::Amd64).unwrap();
        let entry = entries.next().unwrap().unwrap();
        let CompactUnwindOp::CfiOps(rules) = entry.instructions(&entries) else {
            panic!("{entry:?}");
        };
        let saved = rules.filter_map(|rule| match rule {
            CompactCfiOp::RegisterAt {
                dest_reg,
                offset_from_src,
                ..
            } => Some((offset_from_src, dest_reg.name(&entries)?)),
            CompactCfiOp::RegisterIs { .. } => None,
        });
        let mut saved: Vec<_> = saved.filter(|(_, name)| *name != "rip").collect();
        saved.sort_unstable();
        saved.into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn registers_are_encoded_as_those_of_small_frames() {
        let counts = [
            (0, 1),
            (1, 6),
            (2, 30),
            (3, 120),
            (4, 360),
            (5, 720),
            (6, 720),
        ];
        for (count, permutations) in counts {
            for permutation in 0..permutations {
                let found = saved_registers(count as usize, permutation).unwrap();
                let expected = of_small_frame(count, permutation);
                assert_eq!(found, expected, "{count} {permutation}");
            }
        }
        assert_eq!(saved_registers(7, 0), None);
    }

    #[test]
    fn the_size_of_a_frame_is_in_the_instruction_that_reserves_it() {
        let code = [0x53, 0x48, 0x81, 0xec, 0x90, 0x13, 0, 0];
        let rules = ".cfa: $rsp 5024 + .ra: .cfa -8 + ^ $rbx: .cfa -16 + ^";
        assert_eq!(rules_of(0x0304_4400, &code).as_deref(), Some(rules));
        // Another place, another instruction, and code that is cut.
        assert_eq!(rules_of(0x0303_4400, &code), None);
        assert_eq!(rules_of(0x0302_4400, &code), None);
        assert_eq!(rules_of(0x0304_4400, &code[1..]), None);
        assert_eq!(rules_of(0x0304_4400, &code[..7]), None);
    }
}
