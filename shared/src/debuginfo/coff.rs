//! Object files of Windows (COFF), whose sections `symbolic` does not read. With `-gsplit-dwarf`,
//! a compiler for MinGW writes its `.dwo` files in this format.
//!
//! Sources: Microsoft, "PE Format": COFF file header, section table, COFF string table; winnt.h,
//! `ANON_OBJECT_HEADER_BIGOBJ`.

use std::borrow::Cow;

use symbolic::debuginfo::dwarf::{Dwarf, DwarfSection, Endian};

use super::reader;

/// The machines of programs for Windows: x86 with 32 and 64 bits, and Arm with 32 and 64 bits.
const MACHINES: [[u8; 2]; 4] = [[0x4c, 0x01], [0x64, 0x86], [0xc4, 0x01], [0x64, 0xaa]];

/// The start of the header for many sections: two signatures and the version.
const BIG: [u8; 6] = [0, 0, 0xff, 0xff, 2, 0];

/// The class id in the header for many sections. The machine and the time come before it.
const BIG_CLASS_ID: [u8; 16] = [
    0xc7, 0xa1, 0xba, 0xd1, 0xee, 0xba, 0xa9, 0x4b, 0xaf, 0x20, 0xfa, 0xf6, 0x6a, 0xa4, 0xdc, 0xb8,
];

/// The size of a section header, in bytes.
const SECTION_BYTES: usize = 40;

/// The maximum number of sections that are read. A file with split units has about ten.
const MAX_SECTIONS: usize = 1 << 16;

/// Returns whether a file begins like an object file of Windows. The format has no magic number
/// other than its machine. An object file has sections and no optional header, and is not text.
pub(super) fn is_coff_object(data: &[u8]) -> bool {
    if data.starts_with(&BIG) {
        return data.get(12..28) == Some(&BIG_CLASS_ID);
    }
    let Some((header, _)) = data.split_first_chunk::<20>() else {
        return false;
    };
    let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let (sections, optional_header) = (half(2), half(16));
    MACHINES.contains(&[header[0], header[1]]) && sections > 0 && optional_header == 0
}

/// An object file of Windows.
pub(super) struct CoffObject<'d> {
    data: &'d [u8],
    /// The headers of the sections.
    headers: &'d [u8],
    /// The string table, with the names of more than eight bytes. Those of DWARF are longer.
    strings: &'d [u8],
}

impl<'d> CoffObject<'d> {
    /// Returns `None` if a file is not an object file of Windows.
    pub(super) fn parse(data: &'d [u8]) -> Option<Self> {
        if !is_coff_object(data) {
            return None;
        }
        // The size of the header, the place and the size of the number of sections, the place of
        // the symbol table, and the size of a symbol.
        let (header, count_at, count_bytes, symbols_at, symbol_bytes) = if data.starts_with(&BIG) {
            (56, 44, 4, 48, 20)
        } else {
            (20, 2, 2, 8, 18)
        };
        let count = number_at(data, count_at, count_bytes)?.min(MAX_SECTIONS);
        let headers = data.get(header..)?;
        let end = headers.len().min(count * SECTION_BYTES);
        // The string table is behind the symbol table, whose place and number of symbols are in
        // the header.
        let symbols = number_at(data, symbols_at, 4)?;
        let symbol_count = number_at(data, symbols_at + 4, 4)?;
        let strings = symbol_count
            .checked_mul(symbol_bytes)
            .and_then(|bytes| data.get(symbols.checked_add(bytes)?..));
        Some(Self {
            data,
            headers: headers.get(..end)?,
            strings: strings.unwrap_or_default(),
        })
    }

    /// Returns whether a section has a name, which is given without the dot before it. The name in
    /// the header is a slash and the offset of the name in the string table.
    fn is_named(&self, header: &[u8], name: &str) -> bool {
        let named = || {
            let digits = header.get(..8)?.strip_prefix(b"/")?;
            let digits = digits.split(|byte| *byte == 0).next()?;
            let offset: usize = std::str::from_utf8(digits).ok()?.parse().ok()?;
            let text = self.strings.get(offset..)?.strip_prefix(b".")?;
            text.strip_prefix(name.as_bytes())?.first()
        };
        named() == Some(&0)
    }
}

impl<'d> Dwarf<'d> for CoffObject<'d> {
    fn endianity(&self) -> Endian {
        Endian::Little
    }

    fn raw_section(&self, name: &str) -> Option<DwarfSection<'d>> {
        let mut headers = self.headers.chunks_exact(SECTION_BYTES);
        let header = headers.find(|header| self.is_named(header, name))?;
        let (length, start) = (number_at(header, 16, 4)?, number_at(header, 20, 4)?);
        let data = self.data.get(start..start.checked_add(length)?)?;
        Some(DwarfSection {
            address: 0,
            offset: start as u64,
            align: 1,
            data: Cow::Borrowed(data),
        })
    }
}

/// Returns the number of some bytes at a place.
fn number_at(data: &[u8], at: usize, bytes: usize) -> Option<usize> {
    usize::try_from(reader::number_at(data, at as u64, bytes, true)?).ok()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns an object file for 64-bit x86 with these sections, whose names are given without the
    /// dot before them.
    pub(in crate::debuginfo) fn coff_of(sections: &[(&str, Vec<u8>)], is_big: bool) -> Vec<u8> {
        let count = u32::try_from(sections.len()).unwrap();
        let header = if is_big { 56 } else { 20 };
        let (mut contents, mut headers) = (Vec::new(), Vec::new());
        let mut strings = vec![0; 4];
        let first = header + SECTION_BYTES * sections.len();
        for (name, bytes) in sections {
            let mut section = format!("/{}", strings.len()).into_bytes();
            section.resize(16, 0);
            section.extend((bytes.len() as u32).to_le_bytes());
            section.extend(((first + contents.len()) as u32).to_le_bytes());
            section.resize(SECTION_BYTES, 0);
            headers.extend(section);
            contents.extend(bytes);
            strings.extend(format!(".{name}\0").into_bytes());
        }
        // There are no symbols before the strings.
        let symbols = ((first + contents.len()) as u32).to_le_bytes();
        let begin = if is_big {
            let machine_and_time = [0x64, 0x86, 0, 0, 0, 0];
            let count = count.to_le_bytes();
            let parts = [&BIG[..], &machine_and_time, &BIG_CLASS_ID, &[0; 16], &count];
            [&parts.concat()[..], &symbols, &[0; 4]].concat()
        } else {
            let count = (count as u16).to_le_bytes();
            [&[0x64, 0x86][..], &count, &[0; 4], &symbols, &[0; 8]].concat()
        };
        assert_eq!(begin.len(), header);
        [begin, headers, contents, strings].concat()
    }

    #[test]
    fn the_sections_of_an_object_file_are_found_by_their_long_names() {
        let sections = [
            ("debug_info.dwo", b"units".to_vec()),
            ("debug_str.dwo", b"strings".to_vec()),
        ];
        for is_big in [false, true] {
            let file = coff_of(&sections, is_big);
            assert!(is_coff_object(&file));
            let object = CoffObject::parse(&file).unwrap();
            let data = |name: &str| Some(object.raw_section(name)?.data.into_owned());
            assert_eq!(data("debug_info.dwo"), Some(b"units".to_vec()));
            assert_eq!(data("debug_str.dwo"), Some(b"strings".to_vec()));
            for absent in ["debug_info", "debug_info.dwo2", "debug_line.dwo"] {
                assert_eq!(data(absent), None, "{absent}");
            }
            // A file that is cut short has fewer sections, or none.
            for end in 0..file.len() {
                let cut = CoffObject::parse(&file[..end]);
                let section = cut.and_then(|object| object.raw_section("debug_str.dwo"));
                let is_right = |found: DwarfSection<'_>| found.data == &b"strings"[..];
                assert!(section.is_none_or(is_right), "{end}");
            }
        }
    }
}
