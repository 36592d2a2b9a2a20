//! Detects truncated files by the sizes in their headers.
//!
//! `symbolic` reads the existing part of such a file. The caches would seem complete but lack
//! symbols.

use super::elf_record::{ElfRecord, Width};
use crate::debuginfo::reader::number_at;

/// Describes how a file is truncated. Returns `None` if it is complete, or if its format does not
/// tell.
pub(super) fn cut_short(data: &[u8]) -> Option<String> {
    let end = elf_end(data)
        .or_else(|| pdb_end(data))
        .or_else(|| pe_end(data))
        .or_else(|| mach_end(data))
        .or_else(|| fat_end(data))?;
    let found = data.len() as u64;
    (end > found)
        .then(|| format!("the file is cut short: it has {found} of {end} bytes, upload it again"))
}

/// Returns the end of an ELF file according to its section headers. Source: System V ABI, "ELF
/// header" and "Sections".
fn elf_end(data: &[u8]) -> Option<u64> {
    const SHT_NULL: u64 = 0;
    const SHT_NOBITS: u64 = 8;
    let header = ElfRecord::read(data)?;
    let section_header_bytes = if header.is_64 { 64 } else { 40 };
    let table = header.field(0x20, 0x28, Width::Address)?;
    let entry_size = header.field(0x2e, 0x3a, Width::Half)?;
    // There are no section headers, or this is not an ELF header.
    if table == 0 || entry_size != section_header_bytes {
        return None;
    }
    let count = header.field(0x30, 0x3c, Width::Half)?;
    let mut end = table.saturating_add(entry_size.saturating_mul(count));
    for index in 0..count {
        let Some(section) = ElfRecord::at(data, header, table.saturating_add(index * entry_size))
        else {
            break;
        };
        let (Some(kind), Some(offset), Some(size)) = (
            section.field(4, 4, Width::Word),
            section.field(0x10, 0x18, Width::Address),
            section.field(0x14, 0x20, Width::Address),
        ) else {
            break;
        };
        if kind != SHT_NULL && kind != SHT_NOBITS {
            end = end.max(offset.saturating_add(size));
        }
    }
    Some(end)
}

/// Returns the end of a PDB according to its superblock. Source: LLVM, "The MSF File Format".
fn pdb_end(data: &[u8]) -> Option<u64> {
    if !data.starts_with(b"Microsoft C/C++ MSF 7.00\r\n\x1aDS\0\0\0") {
        return None;
    }
    let word = |at| number_at(data, at, 4, true);
    Some(word(32)? * word(40)?)
}

/// Returns the end of a PE file according to its sections. The bytes that only fill the last one up
/// may be missing. Source: Microsoft, "PE Format", "Section Table (Section Headers)".
fn pe_end(data: &[u8]) -> Option<u64> {
    const SECTION_BYTES: u64 = 40;
    if !data.starts_with(b"MZ") {
        return None;
    }
    let half = |at| number_at(data, at, 2, true);
    let word = |at| number_at(data, at, 4, true);
    let header = word(0x3c)?;
    if word(header)? != u64::from(u32::from_le_bytes(*b"PE\0\0")) {
        return None;
    }
    let sections = header + 24 + half(header + 20)?;
    let table = (0..half(header + 6)?).map(|index| sections + index * SECTION_BYTES);
    let ends = table.map_while(|at| {
        let (in_memory, in_file) = (word(at + 8)?, word(at + 16)?);
        let bytes = match in_memory {
            0 => in_file,
            _ => in_memory.min(in_file),
        };
        Some(match bytes {
            0 => 0,
            _ => word(at + 20)? + bytes,
        })
    });
    ends.max()
}

/// The maximum number of load commands, or of architectures, that are read.
const MAX_RECORDS: u64 = 10_000;

/// Returns the end of a Mach-O file according to its segments and its symbol table. Source: Apple,
/// `mach-o/loader.h`.
fn mach_end(data: &[u8]) -> Option<u64> {
    const LC_SEGMENT: u64 = 0x1;
    const LC_SYMTAB: u64 = 0x2;
    const LC_SEGMENT_64: u64 = 0x19;
    let file = MachFile::read(data)?;
    let mut at = if file.is_64 { 32 } else { 28 };
    let mut end = file.word(20)?.saturating_add(at);
    for _ in 0..file.word(16)?.min(MAX_RECORDS) {
        let (Some(command), Some(size)) = (file.word(at), file.word(at + 4)) else {
            break;
        };
        let ends = match command {
            LC_SEGMENT => [file.range_end(at + 32, at + 36, 1), None],
            LC_SEGMENT_64 => [file.wide_range_end(at + 40, at + 48), None],
            LC_SYMTAB => {
                let symbol_bytes = if file.is_64 { 16 } else { 12 };
                [
                    file.range_end(at + 8, at + 12, symbol_bytes),
                    file.range_end(at + 16, at + 20, 1),
                ]
            }
            _ => [None; 2],
        };
        end = ends.into_iter().flatten().fold(end, u64::max);
        at = at.saturating_add(size.max(8));
    }
    Some(end)
}

/// Returns the end of the architectures of a fat Mach-O file. Source: Apple, `mach-o/fat.h`.
fn fat_end(data: &[u8]) -> Option<u64> {
    const ENTRY_BYTES: u64 = 20;
    if !data.starts_with(&[0xca, 0xfe, 0xba, 0xbe]) {
        return None;
    }
    let file = MachFile {
        data,
        is_64: false,
        is_big_endian: true,
    };
    let entries = (0..file.word(4)?.min(MAX_RECORDS)).map(|index| 8 + index * ENTRY_BYTES);
    let ends = entries.map_while(|at| file.word(at + 12).map(|_| at));
    ends.filter_map(|at| file.range_end(at + 8, at + 12, 1))
        .max()
}

/// The fields of a Mach-O file.
#[derive(Clone, Copy)]
struct MachFile<'a> {
    data: &'a [u8],
    is_64: bool,
    is_big_endian: bool,
}

impl<'a> MachFile<'a> {
    fn read(data: &'a [u8]) -> Option<Self> {
        let (is_64, is_big_endian) = match data.get(..4)? {
            [0xce, 0xfa, 0xed, 0xfe] => (false, false),
            [0xcf, 0xfa, 0xed, 0xfe] => (true, false),
            [0xfe, 0xed, 0xfa, 0xce] => (false, true),
            [0xfe, 0xed, 0xfa, 0xcf] => (true, true),
            _ => return None,
        };
        Some(Self {
            data,
            is_64,
            is_big_endian,
        })
    }

    /// Returns the 32-bit field at an offset.
    fn word(self, at: u64) -> Option<u64> {
        number_at(self.data, at, 4, !self.is_big_endian)
    }

    /// Returns the 64-bit field at an offset.
    fn wide(self, at: u64) -> Option<u64> {
        number_at(self.data, at, 8, !self.is_big_endian)
    }

    /// Returns the end of a range of the file, of which two 32-bit fields have the start and the
    /// number of elements; `None` if it is empty.
    fn range_end(self, start: u64, count: u64, element_bytes: u64) -> Option<u64> {
        let (start, count) = (self.word(start)?, self.word(count)?);
        (count > 0).then(|| start + count * element_bytes)
    }

    /// Returns the end of a range of the file, of which two 64-bit fields have the start and the
    /// size; `None` if it is empty.
    fn wide_range_end(self, start: u64, size: u64) -> Option<u64> {
        let (start, size) = (self.wide(start)?, self.wide(size)?);
        (size > 0).then(|| start.saturating_add(size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A little-endian 64-bit ELF file with one section.
    fn elf(kind: u32, offset: u64, size: u64) -> Vec<u8> {
        let mut file = vec![0; 128];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[0x28] = 64;
        file[0x3a] = 64;
        file[0x3c] = 1;
        file[64 + 4..64 + 8].copy_from_slice(&kind.to_le_bytes());
        file[64 + 0x18..64 + 0x20].copy_from_slice(&offset.to_le_bytes());
        file[64 + 0x20..64 + 0x28].copy_from_slice(&size.to_le_bytes());
        file
    }

    #[test]
    fn a_section_beyond_the_end_shows_that_a_file_is_truncated() {
        assert_eq!(cut_short(&elf(1, 100, 28)), None);
        let reason = cut_short(&elf(1, 100, 29)).unwrap();
        assert!(reason.contains("128 of 129 bytes"), "{reason}");
        assert!(cut_short(&elf(1, u64::MAX, 29)).is_some());
        assert!(cut_short(&elf(1, 0, 0)[..100]).is_some());
    }

    #[test]
    fn a_section_without_bytes_may_lie_anywhere() {
        assert_eq!(cut_short(&elf(8, 1 << 40, 1 << 40)), None);
    }

    #[test]
    fn a_pdb_with_fewer_pages_than_its_header_says_is_truncated() {
        let mut pdb = b"Microsoft C/C++ MSF 7.00\r\n\x1aDS\0\0\0".to_vec();
        pdb.extend([64, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
        pdb.resize(128, 0);
        assert_eq!(cut_short(&pdb), None);
        assert!(cut_short(&pdb[..127]).is_some());
    }

    /// A PE file of 300 bytes with a section.
    fn pe(in_memory: u32, in_file: u32, from: u32) -> Vec<u8> {
        let mut file = b"MZ".to_vec();
        file.resize(0x3c, 0);
        file.extend(0x40_u32.to_le_bytes());
        file.extend(b"PE\0\0\0\0\x01\0");
        file.resize(0x40 + 24, 0);
        file.extend(*b".text\0\0\0");
        for field in [in_memory, 0x1000, in_file, from] {
            file.extend(field.to_le_bytes());
        }
        file.resize(300, 0);
        file
    }

    #[test]
    fn a_section_of_a_pe_file_beyond_the_end_shows_that_it_is_truncated() {
        for complete in [
            pe(100, 100, 200),
            pe(90, 512, 200),
            pe(512, 0, 0),
            pe(0, 100, 200),
        ] {
            assert_eq!(cut_short(&complete), None);
        }
        let reason = cut_short(&pe(101, 512, 200)).unwrap();
        assert!(reason.contains("300 of 301 bytes"), "{reason}");
        assert!(cut_short(&pe(0, 101, 200)).is_some());
        assert!(cut_short(&pe(u32::MAX, u32::MAX, u32::MAX)).is_some());
    }

    /// A little-endian 64-bit Mach-O file of 200 bytes with a segment and a symbol table.
    fn mach(segment: [u64; 2], symbols: [u32; 4]) -> Vec<u8> {
        let words = |words: &[u32]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        let mut file = words(&[0xfeed_facf, 0, 0, 0, 2, 72 + 24, 0, 0]);
        file.extend(words(&[0x19, 72]));
        file.extend([0; 32]);
        file.extend(segment.into_iter().flat_map(u64::to_le_bytes));
        file.extend([0; 16]);
        file.extend(words(&[0x2, 24]));
        file.extend(words(&symbols));
        file.resize(200, 0);
        file
    }

    #[test]
    fn a_segment_or_symbols_beyond_the_end_show_that_a_mach_o_file_is_truncated() {
        let reason = |segment, symbols| cut_short(&mach(segment, symbols));
        let complete = reason([100, 100], [136, 4, 150, 50]);
        assert_eq!(complete, None);
        for (segment, symbols, end) in [
            ([100, 101], [0, 0, 0, 0], "201"),
            ([0, 0], [137, 4, 0, 0], "201"),
            ([0, 0], [0, 0, 150, 51], "201"),
            ([u64::MAX, 1], [0, 0, 0, 0], "18446744073709551615"),
        ] {
            let reason = reason(segment, symbols).unwrap();
            let expected = format!("it has 200 of {end} bytes");
            assert!(reason.contains(&expected), "{reason}");
        }
        // What has no bytes may lie anywhere.
        assert_eq!(reason([1 << 40, 0], [1 << 30, 0, 1 << 30, 0]), None);
        let commands = &mach([0, 0], [0, 0, 0, 0])[..100];
        assert!(cut_short(commands).unwrap().contains("100 of 128 bytes"));
    }

    #[test]
    fn an_architecture_beyond_the_end_shows_that_a_fat_file_is_truncated() {
        let mut fat: Vec<u8> = [0xcafe_babe_u32, 2, 1, 0, 64, 10, 0, 2, 0, 80, 20, 0]
            .into_iter()
            .flat_map(u32::to_be_bytes)
            .collect();
        fat.resize(100, 0);
        assert_eq!(cut_short(&fat), None);
        let reason = cut_short(&fat[..99]).unwrap();
        assert!(reason.contains("99 of 100 bytes"), "{reason}");
    }

    #[test]
    fn other_formats_have_no_truncation_check() {
        assert_eq!(cut_short(b"MODULE Linux x86_64 0 a"), None);
        assert_eq!(cut_short(b"\x7fELF"), None);
    }
}
