//! Finds the parts of a large ELF file that neither inspection nor derivation reads, so that they
//! need not be fetched, and the part that may arrive last, while the file is already parsed.
//!
//! The parts that are not needed are location lists, macros and indexes of the debug information,
//! and code and data of a program with a build id. Without a build id, the ids of a program are a
//! hash of its code.
//!
//! Sources: System V ABI, "ELF header" and "Sections"; DWARF 5, section 7.

use std::ops::Range;

use super::elf_record::{ElfRecord, Width};

/// Sections that are never read, also in split files.
const NEEDLESS: [&str; 11] = [
    ".debug_aranges",
    ".debug_gnu_pubnames",
    ".debug_gnu_pubtypes",
    ".debug_loc",
    ".debug_loclists",
    ".debug_macinfo",
    ".debug_macro",
    ".debug_names",
    ".debug_pubnames",
    ".debug_pubtypes",
    ".gdb_index",
];

/// Sections of programs that are not needed if there is a build id. In smaller files, the code of
/// libc is searched for the trampolines of signals (`debuginfo::trampolines`).
const CONTENTS: [&str; 4] = [".data", ".data.rel.ro", ".rodata", ".text"];

/// The section with the units of a program.
const UNITS: &str = ".debug_info";

const BUILD_ID: &str = ".note.gnu.build-id";

/// The types of sections without bytes in the file: `SHT_NULL` and `SHT_NOBITS`.
const WITHOUT_BYTES: [u64; 2] = [0, 8];

/// The flag of sections that are in the memory of the program.
const SHF_ALLOC: u64 = 2;

/// The type of object files that are not linked: `ET_REL`. Relocations change their sections.
const ET_REL: u64 = 1;

/// The maximum number of section headers that are read.
const MAX_SECTIONS: u64 = 10_000;

/// The maximum number of bytes of a name that are read: more than any name above has. All names of
/// a malformed file may begin in a long text without a zero byte.
const MAX_NAME_BYTES: usize = 32;

/// The beginning and the end of a file, with the size of the file.
#[derive(Clone, Copy, Debug)]
pub struct FileEnds<'a> {
    /// The first bytes.
    pub head: &'a [u8],
    /// The last bytes.
    pub tail: &'a [u8],
    /// The size of the file.
    pub size: u64,
}

/// A section, by its header.
struct FileSection<'a> {
    name: &'a [u8],
    kind: u64,
    /// Whether it is in the memory of the program.
    is_loaded: bool,
    range: Range<u64>,
}

/// Returns the ranges of a file that need not be fetched, in ascending order. There are none if the
/// file is not an ELF file, or if its section headers are not in its ends.
pub fn needless_ranges(ends: FileEnds<'_>) -> Vec<Range<u64>> {
    let Some(sections) = sections(ends) else {
        return Vec::new();
    };
    let has_build_id = sections.iter().any(|section| section.is(BUILD_ID));
    let is_needless = |section: &&FileSection<'_>| {
        let is_one_of = |names: &[&str]| names.iter().any(|name| section.is(name));
        is_one_of(&NEEDLESS) || (has_build_id && is_one_of(&CONTENTS))
    };
    let (mut needless, needed): (Vec<_>, Vec<_>) = sections.iter().partition(is_needless);
    needless.sort_by_key(|section| section.range.start);
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for section in needless {
        let begin = ranges.last().map_or(0, |last| last.end);
        ranges.push(section.range.start.max(begin)..section.range.end.max(begin));
    }
    // Sections of a malformed file may overlap. Bytes that any needed section has are needed.
    let with_bytes = needed
        .into_iter()
        .filter(|section| !WITHOUT_BYTES.contains(&section.kind));
    for needed in with_bytes {
        ranges = ranges
            .into_iter()
            .flat_map(|range| without(range, &needed.range))
            // An empty range would become two with each section.
            .filter(|range| !range.is_empty())
            .collect();
    }
    ranges.retain(|range| !range.is_empty());
    ranges
}

/// Returns the range of `.debug_info` in a file. It is read in order, and everything else in the
/// file before it, so it may arrive last. Returns `None` if there is no such section, if another
/// section overlaps it, or if the section headers are not in the ends of the file.
pub fn units_range(ends: FileEnds<'_>) -> Option<Range<u64>> {
    let sections = sections(ends)?;
    let is_units = |section: &&FileSection<'_>| {
        let has_bytes = !WITHOUT_BYTES.contains(&section.kind);
        section.name == UNITS.as_bytes() && has_bytes && !section.is_loaded
    };
    let (units, others): (Vec<_>, Vec<_>) = sections.iter().partition(is_units);
    let [units] = units[..] else { return None };
    let mut others = others
        .into_iter()
        .filter(|section| !WITHOUT_BYTES.contains(&section.kind));
    let is_apart = others
        .all(|other| other.range.end <= units.range.start || units.range.end <= other.range.start);
    (is_apart && units.range.end <= ends.size).then(|| units.range.clone())
}

/// Returns the parts of a range outside another range.
fn without(range: Range<u64>, other: &Range<u64>) -> [Range<u64>; 2] {
    let before = range.start..range.end.min(other.start).max(range.start);
    let after = range.start.max(other.end).min(range.end)..range.end;
    if other.is_empty() || other.end <= range.start || range.end <= other.start {
        [range.clone(), range.end..range.end]
    } else {
        [before, after]
    }
}

impl FileSection<'_> {
    /// Returns whether the section has bytes, and has this name or the name of its variant in a
    /// split file.
    fn is(&self, name: &str) -> bool {
        let own = self.name.strip_suffix(b".dwo").unwrap_or(self.name);
        own == name.as_bytes() && !WITHOUT_BYTES.contains(&self.kind)
    }
}

/// Reads the section headers; `None` if they, or their names, are not in the ends of the file.
fn sections(ends: FileEnds<'_>) -> Option<Vec<FileSection<'_>>> {
    let header = ElfRecord::read(ends.head)?;
    if header.field(0x10, 0x10, Width::Half)? == ET_REL {
        return None;
    }
    let table = header.field(0x20, 0x28, Width::Address)?;
    let entry_bytes = header.field(0x2e, 0x3a, Width::Half)?;
    let count = header.field(0x30, 0x3c, Width::Half)?;
    let names = header.field(0x32, 0x3e, Width::Half)?;
    let expected_bytes = if header.is_64 { 64 } else { 40 };
    if entry_bytes != expected_bytes || count == 0 || count > MAX_SECTIONS {
        return None;
    }
    let record = |index: u64| {
        let at = table.checked_add(index * entry_bytes)?;
        let bytes = ends.bytes(at..at.checked_add(entry_bytes)?)?;
        let record = ElfRecord::at(bytes, header, 0)?;
        let offset = record.field(0x10, 0x18, Width::Address)?;
        let size = record.field(0x14, 0x20, Width::Address)?;
        let kind = record.field(4, 4, Width::Word)?;
        let name = record.field(0, 0, Width::Word)?;
        let is_loaded = record.field(8, 8, Width::Address)? & SHF_ALLOC > 0;
        Some((name, kind, is_loaded, offset..offset.checked_add(size)?))
    };
    let (.., names) = record(names)?;
    let names = ends.bytes(names)?;
    let section = |index| {
        let (name, kind, is_loaded, range) = record(index)?;
        let name = names.get(usize::try_from(name).ok()?..)?;
        let name = name.get(..MAX_NAME_BYTES).unwrap_or(name);
        let name = name.split(|byte| *byte == 0).next()?;
        Some(FileSection {
            name,
            kind,
            is_loaded,
            range,
        })
    };
    (0..count).map(section).collect()
}

impl<'a> FileEnds<'a> {
    /// Returns the bytes of a range of the file; `None` if the range is not in one of the ends.
    fn bytes(&self, range: Range<u64>) -> Option<&'a [u8]> {
        let within = |bytes: &'a [u8], begin: u64| {
            let start = usize::try_from(range.start.checked_sub(begin)?).ok()?;
            let end = usize::try_from(range.end.checked_sub(begin)?).ok()?;
            bytes.get(start..end)
        };
        let tail_begin = self.size.checked_sub(self.tail.len() as u64)?;
        within(self.head, 0).or_else(|| within(self.tail, tail_begin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::debuginfo::tests::fixture;

    /// Returns the sections of a file, by `goblin`.
    fn known(file: &[u8]) -> Vec<(String, Range<u64>)> {
        let elf = goblin::elf::Elf::parse(file).unwrap();
        let sections = elf.section_headers.iter();
        let sections = sections.map(|section| {
            let name = elf.shdr_strtab.get_at(section.sh_name).unwrap();
            let range = section.sh_offset..section.sh_offset + section.sh_size;
            (name.to_owned(), range)
        });
        sections.collect()
    }

    fn needless(file: &[u8], end_bytes: usize) -> Vec<Range<u64>> {
        let end_bytes = end_bytes.min(file.len());
        needless_ranges(FileEnds {
            head: &file[..end_bytes],
            tail: &file[file.len() - end_bytes..],
            size: file.len() as u64,
        })
    }

    #[test]
    fn code_and_lists_of_locations_are_needless() {
        let program = fixture("zoo/lines-only");
        let text = known(&program)
            .into_iter()
            .find(|(name, _)| name == ".text");
        assert!(needless(&program, 4096).contains(&text.unwrap().1));
        let names = |file: &[u8]| -> Vec<String> {
            let ranges = needless(file, file.len());
            let known = known(file).into_iter();
            let known = known.filter(|(_, range)| ranges.contains(range) && !range.is_empty());
            known.map(|(name, _)| name).collect()
        };
        let names = names(&fixture("zoo/cold-parts"));
        assert!(names.contains(&".text".to_owned()), "{names:?}");
        let is_debug = |name: &String| name.starts_with(".debug_");
        assert!(names.iter().any(is_debug), "{names:?}");
    }

    #[test]
    fn everything_is_needed_if_the_ends_do_not_have_the_headers() {
        let program = fixture("zoo/lines-only");
        assert_eq!(needless(&program, 64), []);
        assert_eq!(needless(b"MODULE Linux x86_64 0 a", 10), []);
        assert_eq!(needless(&fixture("zoo/kernel-module"), 1 << 20), []);
    }

    #[test]
    fn a_range_that_a_needed_section_overlaps_is_needed() {
        assert_eq!(without(0..10, &(3..5)), [0..3, 5..10]);
        assert_eq!(without(0..10, &(0..10)), [0..0, 10..10]);
        assert_eq!(without(5..10, &(0..7)), [5..5, 7..10]);
        assert_eq!(without(5..10, &(12..17)), [5..10, 10..10]);
        assert_eq!(without(5..10, &(7..7)), [5..10, 10..10]);
    }

    /// Returns an ELF file with sections of these names and types, each of sixteen bytes.
    fn with_sections(sections: &[(&str, u32)]) -> Vec<u8> {
        const HEADER_BYTES: usize = 64;
        const EACH: usize = 16;
        let names = sections
            .iter()
            .flat_map(|(name, _)| [name.as_bytes(), b"\0"].concat());
        let names: Vec<u8> = names.collect();
        let contents = HEADER_BYTES + names.len();
        let table = contents + EACH * sections.len();
        let mut file = vec![0; table];
        file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        file[0x10] = 2; // ET_EXEC
        file[0x28..0x30].copy_from_slice(&(table as u64).to_le_bytes());
        file[0x3a] = HEADER_BYTES as u8;
        let count = sections.len() as u16 + 1;
        file[0x3c..0x3e].copy_from_slice(&count.to_le_bytes());
        file[HEADER_BYTES..contents].copy_from_slice(&names);
        let header = |name: usize, kind: u32, offset: usize, size: usize| {
            let mut header = [0; HEADER_BYTES];
            header[..4].copy_from_slice(&(name as u32).to_le_bytes());
            header[4..8].copy_from_slice(&kind.to_le_bytes());
            header[0x18..0x20].copy_from_slice(&(offset as u64).to_le_bytes());
            header[0x20..0x28].copy_from_slice(&(size as u64).to_le_bytes());
            header
        };
        // The first section has the names.
        file.extend(header(names.len() - 1, 3, HEADER_BYTES, names.len()));
        let mut name_at = 0;
        for (number, (name, kind)) in sections.iter().enumerate() {
            file.extend(header(name_at, *kind, contents + EACH * number, EACH));
            name_at += name.len() + 1;
        }
        file
    }

    #[test]
    fn a_file_with_many_sections_has_no_more_ranges_than_needless_sections() {
        let mut sections = vec![(".kept", 1); 200];
        sections[70] = (".debug_loclists", 1);
        sections[130] = (".debug_macro", 1);
        let file = with_sections(&sections);
        let ranges = needless(&file, file.len());
        let lengths: Vec<u64> = ranges.iter().map(|range| range.end - range.start).collect();
        assert_eq!(lengths, [16, 16]);
    }

    /// The time for a file is limited although each of its names may be as long as the file.
    #[test]
    fn of_a_long_name_only_the_beginning_is_read() {
        let long = format!(".debug_macro{}", "x".repeat(1 << 12));
        let file = with_sections(&[
            (long.as_str(), 1),
            (".debug_loclists", 1),
            (long.as_str(), 1),
        ]);
        let ends = FileEnds {
            head: &file,
            tail: &file,
            size: file.len() as u64,
        };
        let sections = sections(ends).unwrap();
        let lengths: Vec<usize> = sections.iter().map(|section| section.name.len()).collect();
        assert_eq!(lengths, [0, MAX_NAME_BYTES, 15, MAX_NAME_BYTES]);
        assert_eq!(needless(&file, file.len()).len(), 1);
    }

    #[test]
    fn no_known_name_is_as_long_as_the_beginning_that_is_read() {
        let known = NEEDLESS.iter().chain(&CONTENTS).chain([&UNITS, &BUILD_ID]);
        let longest = known.map(|name| name.len() + ".dwo".len()).max();
        assert!(longest.is_some_and(|longest| longest < MAX_NAME_BYTES));
    }

    #[test]
    fn a_section_without_bytes_needs_none() {
        let names = [".debug_loclists", ".bss"];
        let lengths = |kinds: [u32; 2]| {
            let sections: Vec<_> = names.into_iter().zip(kinds).collect();
            let mut file = with_sections(&sections);
            // `.bss` begins where `.debug_loclists` does.
            let at = file.len() - 64 + 0x18;
            let before = file.len() - 128 + 0x18;
            file.copy_within(before..before + 8, at);
            needless(&file, file.len()).len()
        };
        assert_eq!(lengths([1, 8]), 1);
        assert_eq!(lengths([1, 1]), 0);
    }

    fn units(file: &[u8]) -> Option<Range<u64>> {
        units_range(FileEnds {
            head: file,
            tail: file,
            size: file.len() as u64,
        })
    }

    #[test]
    fn the_units_of_a_file_are_one_section_that_no_other_overlaps() {
        let program = fixture("elf/crash.zlib.debug");
        let mut known = known(&program).into_iter();
        let section = known.find(|(name, _)| name == ".debug_info");
        assert_eq!(units(&program), section.map(|(_, range)| range));
        let names = |names: [&'static str; 2]| units(&with_sections(&names.map(|name| (name, 1))));
        assert!(names([".debug_info", ".debug_str"]).is_some());
        assert_eq!(names([".debug_info.dwo", ".debug_str.dwo"]), None);
        assert_eq!(names([".debug_info", ".debug_info"]), None);
        let mut file = with_sections(&[(".debug_info", 1), (".debug_str", 1)]);
        // `.debug_str` begins one byte before the end of `.debug_info`.
        let at = file.len() - 64 + 0x18;
        file[at] -= 1;
        assert_eq!(units(&file), None);
        assert_eq!(units(b"MODULE Linux x86_64 0 a"), None);
        // The flags of `.debug_info` say that it is code.
        let mut file = with_sections(&[(".debug_info", 1), (".debug_str", 1)]);
        let at = file.len() - 2 * 64 + 8;
        file[at] = 0x6;
        assert_eq!(units(&file), None);
    }

    #[test]
    fn headers_with_random_changes_give_ranges_within_order() {
        let program = fixture("zoo/cold-parts");
        let mut drawn = 7_u64;
        let mut draw = |most: usize| {
            drawn = drawn
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (drawn >> 33) as usize % most
        };
        for _ in 0..2000 {
            let mut changed = program.clone();
            for _ in 0..3 {
                let at = match draw(2) {
                    0 => draw(64),
                    _ => changed.len() - 1 - draw(40 * 64),
                };
                changed[at] = draw(256) as u8;
            }
            let ranges = needless(&changed, 8192);
            if let Some(units) = units(&changed) {
                assert!(units.start <= units.end && units.end <= changed.len() as u64);
            }
            let ascend = ranges.windows(2).all(|pair| pair[0].end <= pair[1].start);
            assert!(ascend && ranges.iter().all(|range| range.start < range.end));
        }
    }
}
