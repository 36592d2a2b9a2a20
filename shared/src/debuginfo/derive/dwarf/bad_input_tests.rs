//! Tests that debug information with excessive counts or circular references is read in bounded
//! time and memory: an excess costs at most what it affects.

use symbolic::symcache::SymCache;

use super::*;
use crate::debuginfo::blob::AlignedBytes;
use crate::debuginfo::hostile;
use crate::debuginfo::slices::SliceIndex;

/// The first address of the code of [`hostile::elf_of`].
pub(super) const CODE: u64 = 0x1000;

/// The sections of a program with one unit of DWARF 4, for 64-bit little-endian machines.
#[derive(Default)]
pub(super) struct Sections {
    abbreviations: Vec<u8>,
    entries: Vec<u8>,
    ranges: Vec<u8>,
    line: Vec<u8>,
    /// The entries of the symbol table, and their names.
    symbols: (Vec<u8>, Vec<u8>),
}

/// The type and binding of the symbol of a global function.
pub(super) const GLOBAL_FUNCTION: u8 = 0x12;

/// The codes of abbreviations in [`Sections::new`].
const UNIT: u8 = 1;
const BY_ADDRESS: u8 = 2;
const BY_RANGES: u8 = 3;
const BY_REFERENCE: u8 = 4;

impl Sections {
    /// Returns sections without functions. A unit has a line program. A function has a name and
    /// one range, a name and a list of ranges, or a reference and one range.
    pub(super) fn new() -> Self {
        const NAME: [u8; 2] = [0x03, 0x08]; // a text in place
        const LOW: [u8; 2] = [0x11, 0x01]; // an address
        const HIGH: [u8; 2] = [0x12, 0x06]; // four bytes
        const RANGES: [u8; 2] = [0x55, 0x17]; // an offset
        const LINES: [u8; 2] = [0x10, 0x17]; // an offset
        const ORIGIN: [u8; 2] = [0x31, 0x13]; // an offset in the unit, of four bytes
        const SUBPROGRAM: u8 = 0x2e;
        let abbreviation = |code: u8, tag: u8, children: u8, attributes: &[[u8; 2]]| {
            let attributes = attributes.iter().flatten().copied();
            [code, tag, children]
                .into_iter()
                .chain(attributes)
                .chain([0, 0])
                .collect::<Vec<u8>>()
        };
        let abbreviations = [
            abbreviation(UNIT, 0x11, 1, &[LINES, LOW]),
            abbreviation(BY_ADDRESS, SUBPROGRAM, 0, &[NAME, LOW, HIGH]),
            abbreviation(BY_RANGES, SUBPROGRAM, 0, &[NAME, RANGES]),
            abbreviation(BY_REFERENCE, SUBPROGRAM, 0, &[ORIGIN, LOW, HIGH]),
        ];
        let mut entries = vec![UNIT];
        entries.extend([0; 4]);
        entries.extend(CODE.to_le_bytes());
        Self {
            abbreviations: abbreviations.concat(),
            entries,
            line: line_program(14, &[]),
            ..Self::default()
        }
    }

    /// Returns the offset of the next entry in its unit.
    pub(super) fn next(&self) -> u32 {
        const HEADER: usize = 11;
        (HEADER + self.entries.len()) as u32
    }

    pub(super) fn add_by_address(&mut self, name: &str, address: u64, size: u32) {
        self.entries.push(BY_ADDRESS);
        self.entries.extend(name.bytes().chain([0]));
        self.entries.extend(address.to_le_bytes());
        self.entries.extend(size.to_le_bytes());
    }

    pub(super) fn add_by_reference(&mut self, target: u32, address: u64) {
        self.entries.push(BY_REFERENCE);
        self.entries.extend(target.to_le_bytes());
        self.entries.extend(address.to_le_bytes());
        self.entries.extend(16_u32.to_le_bytes());
    }

    /// Adds a function with ranges of 16 bytes.
    pub(super) fn add_by_ranges(&mut self, name: &str, addresses: &[u64]) {
        let list = self.ranges.len() as u32;
        for address in addresses {
            // Relative to the address of the unit.
            self.ranges.extend((address - CODE).to_le_bytes());
            self.ranges.extend((address - CODE + 16).to_le_bytes());
        }
        self.ranges.extend([0; 16]);
        self.entries.push(BY_RANGES);
        self.entries.extend(name.bytes().chain([0]));
        self.entries.extend(list.to_le_bytes());
    }

    /// Adds ranges to the entry of the unit, which so far has nothing but its line program and its
    /// address, [`CODE`]. Must come before all functions.
    pub(super) fn list_ranges_of_unit(&mut self, ranges: &[(u64, u64)]) {
        const AFTER_ADDRESS: usize = 7;
        let list = self.ranges.len() as u32;
        for (begin, end) in ranges {
            self.ranges.extend((begin - CODE).to_le_bytes());
            self.ranges.extend((end - CODE).to_le_bytes());
        }
        self.ranges.extend([0; 16]);
        let attribute = [0x55, 0x17];
        self.abbreviations
            .splice(AFTER_ADDRESS..AFTER_ADDRESS, attribute);
        self.entries.extend(list.to_le_bytes());
    }

    /// Sets the opcodes of the line program.
    pub(super) fn set_lines(&mut self, opcodes: &[u8]) {
        self.line = line_program(14, opcodes);
    }

    /// Adds a symbol with this type and binding.
    pub(super) fn add_symbol(&mut self, name: &str, info: u8, address: u64, size: u64) {
        let (entries, names) = &mut self.symbols;
        if names.is_empty() {
            // The empty name, and the symbol that every table begins with.
            names.push(0);
            entries.extend([0; 24]);
        }
        entries.extend((names.len() as u32).to_le_bytes());
        // The code is in the first section.
        entries.extend([info, 0, 1, 0]);
        entries.extend(address.to_le_bytes());
        entries.extend(size.to_le_bytes());
        names.extend(name.bytes().chain([0]));
    }

    /// Derives a SymCache, and returns the functions and lines at some addresses in the code. What
    /// is lacking, too.
    pub(super) fn answers(mut self, addresses: &[u64]) -> (Vec<(String, u32)>, Option<String>) {
        self.entries.push(0);
        self.abbreviations.push(0);
        let body = [&[4, 0, 0, 0, 0, 0, 8], &*self.entries].concat();
        let info = [&(body.len() as u32).to_le_bytes(), &*body].concat();
        let input = hostile::sections(|name| match name {
            ".debug_abbrev" => self.abbreviations.clone(),
            ".debug_info" => info.clone(),
            ".debug_ranges" => self.ranges.clone(),
            ".debug_line" => self.line.clone(),
            _ => Vec::new(),
        });
        let elf = with_symbols(hostile::elf_of(&input), &self.symbols);
        let EncodedCache { blob, lacks } = derive_beside_itself(&elf).unwrap().unwrap();
        let joined = SliceIndex::of_blob(&blob).unwrap().join(&blob).unwrap();
        let joined = AlignedBytes::copied(&joined).unwrap();
        let cache = SymCache::parse(joined.as_slice()).unwrap();
        let answer = |address: &u64| {
            let location = cache.lookup(*address).next();
            location.map_or((String::new(), 0), |location| {
                (location.function().name().to_owned(), location.line())
            })
        };
        (addresses.iter().map(answer).collect(), lacks)
    }
}

/// Adds a symbol table to a file of [`hostile::elf_of`], if there are symbols.
fn with_symbols(mut elf: Vec<u8>, (symbols, names): &(Vec<u8>, Vec<u8>)) -> Vec<u8> {
    const HEADER: usize = 64;
    const SYMTAB: u64 = 2;
    const STRTAB: u64 = 3;
    if symbols.is_empty() {
        return elf;
    }
    let table = u64::from_le_bytes(*elf[0x28..].first_chunk().unwrap()) as usize;
    let count = u16::from_le_bytes(*elf[0x3c..].first_chunk().unwrap());
    // The headers are the last part of the file. The new ones have no names.
    let mut headers = elf.split_off(table);
    assert_eq!(headers.len(), usize::from(count) * HEADER);
    let (at, after) = (elf.len() as u64, (elf.len() + symbols.len()) as u64);
    elf.extend_from_slice(symbols);
    elf.extend_from_slice(names);
    let (symbols, names) = (symbols.len() as u64, names.len() as u64);
    let of_symbols = [SYMTAB << 32, 0, 0, at, symbols, u64::from(count) + 1, 1, 24];
    let of_names = [STRTAB << 32, 0, 0, after, names, 0, 1, 0];
    for header in [of_symbols, of_names] {
        headers.extend(header.iter().flat_map(|word| word.to_le_bytes()));
    }
    let table = elf.len() as u64;
    elf.extend(headers);
    elf[0x28..0x30].copy_from_slice(&table.to_le_bytes());
    elf[0x3c..0x3e].copy_from_slice(&(count + 2).to_le_bytes());
    elf
}

/// Returns a number in the variable-length encoding of DWARF.
pub(super) fn leb128(mut number: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

fn named(name: &str) -> (String, u32) {
    (name.to_owned(), 0)
}

#[test]
fn functions_that_refer_to_each_other_in_circles_end() {
    let mut sections = Sections::new();
    let (first, length) = (sections.next(), 17);
    // The first refers to itself, the second and the third to each other, and the others to the
    // next of a long chain whose end has a name.
    sections.add_by_reference(first, CODE);
    sections.add_by_reference(first + 2 * length, CODE + 16);
    sections.add_by_reference(first + length, CODE + 32);
    for link in 3..40 {
        sections.add_by_reference(first + (link + 1) * length, CODE + u64::from(link) * 16);
    }
    sections.add_by_address("end", CODE + 40 * 16, 16);
    let at = |number: u64| CODE + number * 16 + 8;
    let addresses = [0, 1, 2, 3, 39, 40].map(at);
    let (answers, lacks) = sections.answers(&addresses);
    // A chain of more than sixteen references is not followed to its end.
    let expected = ["", "", "", "", "end", "end"].map(named);
    assert_eq!((answers, lacks), (expected.to_vec(), None));
}

#[test]
fn abbreviations_by_the_million_are_read_and_one_beyond_the_limit_costs_its_unit() {
    let with_abbreviations = |count: u32, code: u32| {
        let mut sections = Sections::new();
        for code in 5..count {
            // A function with one range, and no name.
            sections.abbreviations.extend(leb128(code));
            let attributes = [0x2e, 0, 0x11, 0x01, 0x12, 0x06, 0, 0];
            sections.abbreviations.extend(attributes);
        }
        sections.add_by_address("before", CODE, 16);
        sections.add_by_address("between", CODE + 48, 16);
        sections.entries.extend(leb128(code));
        sections.entries.extend((CODE + 16).to_le_bytes());
        sections.entries.extend(16_u32.to_le_bytes());
        sections.add_by_address("after", CODE + 32, 16);
        sections.answers(&[CODE + 8, CODE + 40])
    };
    let whole = ["before", "after"].map(named);
    assert_eq!(
        with_abbreviations(1_000_000, 999_999),
        (whole.to_vec(), None)
    );
    let (answers, lacks) = with_abbreviations(1_100_000, 1_099_999);
    assert_eq!(answers, ["before", ""].map(named));
    assert!(lacks.unwrap().starts_with("1 of the 1 units"));
}

#[test]
fn functions_that_share_a_list_of_many_ranges_have_each_range_once() {
    const FUNCTIONS: usize = 300;
    const RANGES: u64 = 20_000;
    let mut sections = Sections::new();
    for range in 0..RANGES {
        let begin = CODE + range * 8;
        // Relative to the address of the unit.
        sections.ranges.extend((begin - CODE).to_le_bytes());
        sections.ranges.extend((begin - CODE + 4).to_le_bytes());
    }
    sections.ranges.extend([0; 16]);
    for function in 0..FUNCTIONS {
        sections.entries.push(BY_RANGES);
        sections
            .entries
            .extend(format!("f{function}").bytes().chain([0]));
        sections.entries.extend([0; 4]);
    }
    let addresses = [CODE + 9, CODE + 8 * RANGES - 5, CODE + 13];
    let (answers, lacks) = sections.answers(&addresses);
    // Six million ranges in all; the first function has them.
    let expected = ["f0", "f0", ""].map(named);
    assert_eq!((answers, lacks), (expected.to_vec(), None));
}

/// Returns a line program of version 4 with these opcodes.
fn line_program(line_range: u8, opcodes: &[u8]) -> Vec<u8> {
    // One byte is the length of an instruction; one operation; the default; the base of lines -5.
    let fields = [1, 1, 1, 0xfb, line_range, 13];
    let lengths = [0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1];
    // No directories, one file.
    let tables = b"\0a.c\0\0\0\0\0";
    let header = [&fields[..], &lengths, tables].concat();
    let body = [&(header.len() as u32).to_le_bytes(), &*header, opcodes].concat();
    let body = [&[4, 0], &*body].concat();
    [&(body.len() as u32).to_le_bytes(), &*body].concat()
}

/// Sets the address.
fn set_address(address: u64) -> Vec<u8> {
    [&[0, 9, 2][..], &address.to_le_bytes()].concat()
}

#[test]
fn a_line_program_that_never_ends_gives_its_lines_to_the_functions() {
    const ROWS: usize = 500_000;
    // Each row is one byte, and one line, further: (1 - (-5)) + 14 * 1 + 13.
    let opcodes = [set_address(CODE), vec![33; ROWS]].concat();
    let mut sections = Sections::new();
    sections.add_by_address("f", CODE, 0x8_0000);
    sections.line = line_program(14, &opcodes);
    let (answers, lacks) = sections.answers(&[CODE + 1, CODE + 400_000]);
    let expected = [("f".to_owned(), 2), ("f".to_owned(), 400_001)];
    assert_eq!((answers, lacks), (expected.to_vec(), None));
    // Rows that never move take no memory: of several at one address, the last counts.
    let mut sections = Sections::new();
    sections.add_by_address("f", CODE, 16);
    // The same address, and one line further.
    let opcodes = [set_address(CODE), vec![19; ROWS]].concat();
    sections.line = line_program(14, &opcodes);
    let (answers, _) = sections.answers(&[CODE + 1]);
    assert_eq!(answers, [("f".to_owned(), 1 + ROWS as u32)]);
}
