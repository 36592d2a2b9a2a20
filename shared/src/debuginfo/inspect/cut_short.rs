//! Detects truncated files by the sizes in their headers.
//!
//! `symbolic` reads the existing part of such a file. The caches would seem complete but lack
//! symbols.

use super::elf_record::{ElfRecord, Width};

/// Describes how a file is truncated. Returns `None` if it is complete, or if its format does not
/// tell.
pub(super) fn cut_short(data: &[u8]) -> Option<String> {
    let end = elf_end(data).or_else(|| pdb_end(data))?;
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
    let word = |at: usize| {
        Some(u64::from(u32::from_le_bytes(
            data.get(at..at + 4)?.try_into().ok()?,
        )))
    };
    Some(word(32)? * word(40)?)
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

    #[test]
    fn other_formats_have_no_truncation_check() {
        assert_eq!(cut_short(b"MODULE Linux x86_64 0 a"), None);
        assert_eq!(cut_short(b"\x7fELF"), None);
    }
}
