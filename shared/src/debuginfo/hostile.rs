//! Entry points for fuzzing. Each takes arbitrary bytes as an uploaded file, or as the content of a
//! blob whose checksums are valid, and panics if the result would do harm. `tests/fuzz` has the
//! targets.

use std::hint::black_box;

use symbolic::debuginfo::elf::ElfObject;
use symbolic::symcache::SymCache;

use super::auxiliary::{self, LineMap};
use super::blob::{self, AlignedBytes, FOOTER_BYTES};
use super::derive::pdb_links::{LinkStreams, PdbLinks};
use super::slices::{
    self, CfiRecords, CfiSource, FoundLines, SliceIndex, SourceChunks, source_addresses,
};
use super::{DifBytes, Member, MemberPlace, RoomLimit, caught, derive, inspect, unpack};
use crate::cache::{DeriveJob, Kind, ReleaseNumbers};
use crate::domain::{CompanionId, DebugId, FileType, Written};

/// The maximum number of inlined calls that are followed at an address.
const CALLS: usize = 1000;

/// Returns whether an id that is written can be read again. An id of PDB 2.0 with an age of 0 is
/// written without the age and then cannot be read. A builder that derives a cache of such a file
/// detects this when it opens the cache.
fn is_written(id: Option<DebugId>) -> bool {
    id.is_none_or(|id| id.to_string().parse() == Ok(id))
}

/// Reads bytes as a footer with a valid checksum.
pub fn footer(bytes: &[u8]) {
    let mut footer = bytes.to_vec();
    footer.resize(FOOTER_BYTES, 0);
    blob::correct_footer(&mut footer);
    if let Ok((contents, read)) = blob::split_footer(&footer) {
        if !is_written(contents.debug_id) {
            return;
        }
        // A footer that is read and written again is the same, except for bytes that no reader
        // reads.
        let written = blob::footer(&contents, &read);
        let again = blob::split_footer(&written).expect("a footer that was written can be read");
        assert_eq!(again, (contents, read));
    }
    let _ = black_box(blob::open_unchecked(&footer));
}

/// Reads the first eight bytes as the length of all frames, and the others as an index.
pub fn index(bytes: &[u8]) {
    let Some((frames, index)) = bytes.split_first_chunk() else {
        return;
    };
    let frames = u64::from_le_bytes(*frames);
    // A slice takes at least eleven bytes.
    for count in 0..=u32::try_from(index.len() / 11 + 1).unwrap_or(u32::MAX) {
        let Some(index) = SliceIndex::unchecked(index, count, frames) else {
            continue;
        };
        assert_eq!(index.len() as u64, u64::from(count));
        let mut end = 0;
        for number in 0..count {
            let range = index.range(number).expect("the number is below the count");
            assert_eq!(range.start, end);
            assert!(range.end <= frames);
            end = range.end;
        }
        for address in [0, 1, 0x1000, u64::from(u32::MAX), u64::MAX] {
            assert!(index.slice_of(address).is_none_or(|number| number < count));
        }
    }
}

/// Reads bytes as a SymCache, looks up addresses in it, and cuts it into slices.
pub fn slice(bytes: &[u8]) {
    let Ok(aligned) = AlignedBytes::copied(bytes) else {
        return;
    };
    let Ok(cache) = SymCache::parse(aligned.as_slice()) else {
        return;
    };
    let id = Some(cache.debug_id()).filter(|id| !id.is_nil());
    if !is_written(id) || slices::validate(aligned.as_slice(), id).is_err() {
        return;
    }
    let addresses: Vec<u64> = (0..64)
        .map(|n| n * 7)
        .chain([u32::MAX.into(), 1 << 40])
        .collect();
    for address in &addresses {
        for location in cache.lookup(*address).take(CALLS) {
            black_box((
                location.function().name(),
                location.file().map(|file| file.full_path()),
            ));
        }
    }
    if let Ok(blob) = slices::cut(
        bytes,
        slices::Bounds {
            ranges: 3,
            raw_bytes: 1 << 16,
        },
    ) {
        let index = SliceIndex::of_blob(&blob).expect("a blob that was encoded has an index");
        let _ = black_box(index.join(&blob));
    }
}

/// Reads the bytes before and after the first zero as the two streams of a PDB that link to source
/// files, and looks up the files that they name.
pub fn source_links(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let (srcsrv, source_link) = (parts.next(), parts.next());
    let streams = LinkStreams::with(srcsrv.unwrap_or_default(), source_link.unwrap_or_default());
    let mut links = PdbLinks::parse(&streams);
    let text = String::from_utf8_lossy(bytes);
    for path in text
        .split(['\n', '*', '"'])
        .take(256)
        .chain(["", "C:\\src\\a.c"])
    {
        if let Some((folder, name)) = links.link_of(path) {
            let link = format!("{folder}/{name}");
            assert!(link.starts_with("http://") || link.starts_with("https://"));
        }
    }
}

/// Reads bytes as a slice of source lines, and looks up lines in it.
pub fn source_slice(bytes: &[u8]) {
    let Ok(chunks) = SourceChunks::parse(bytes) else {
        return;
    };
    let text = String::from_utf8_lossy(bytes);
    let paths = text.split('"').take(64);
    for path in paths.chain(["", "/src/main.c"]) {
        for line in [1, 256, u32::MAX] {
            let lines = line.saturating_sub(5)..=line.saturating_add(5);
            let mut found = FoundLines::default();
            chunks.find(path, &lines, &mut found);
            assert!(found.lines.iter().all(|(number, _)| lines.contains(number)));
            assert!(source_addresses(path, lines).count() <= 3);
        }
    }
}

/// Reads bytes as auxiliary files of each type, and looks up names and lines in them.
pub fn map(bytes: &[u8]) {
    let member = Member {
        name: String::new(),
        place: MemberPlace::Whole,
        id: None,
        fault: None,
    };
    if let Some(Ok(file)) = auxiliary::read(&member, bytes) {
        assert_eq!(
            file.symbol_map.is_some(),
            file.file_type == FileType::UuidMap
        );
        assert!(is_written(file.symbol_map));
    }
    if let Ok(names) = auxiliary::names(bytes) {
        for name in [
            "__hidden#0_",
            "__hidden#18446744073709551615_",
            "__hidden#_",
        ] {
            black_box(names.resolve(name));
        }
    }
    if let Ok(lines) = LineMap::read(bytes) {
        let text = String::from_utf8_lossy(bytes);
        for path in text.split('"').take(64) {
            for line in [0, 1, 50, 1000, u32::MAX] {
                black_box(lines.find(path, line).map(|found| lines.file(found.file)));
            }
        }
    }
}

/// Reads bytes as an uploaded file: unpacks it, reads its ids, and derives its caches.
pub fn dif(bytes: &[u8]) {
    const ROOM: u64 = 16 << 20;
    let (mut unpacked, limit) = (
        Vec::new(),
        RoomLimit {
            bytes: ROOM,
            budget: ROOM,
        },
    );
    // A panic of a parser is an accepted result. A room in memory cannot fail in another way.
    let Ok(Ok(mut layout)) = caught(|| unpack(bytes, &Written::Whole, &mut unpacked, limit)) else {
        return;
    };
    let bytes = DifBytes::complete(bytes, &unpacked);
    let inspection = inspect(&mut layout, bytes);
    for object in inspection.objects.iter().take(3) {
        for kind in Kind::DERIVED {
            let job = DeriveJob::of(kind, &object.features, &ReleaseNumbers::CURRENT);
            let _ = black_box(derive(&layout, bytes, object.index, job, 1));
        }
    }
}

/// The bytes after each section in the input of [`dwarf()`].
const SECTION_END: [u8; 4] = [0xf1, 0x9a, 0x03, 0x5e];

/// The sections in the input of [`dwarf()`], in order.
const SECTIONS: [&str; 19] = [
    ".debug_abbrev",
    ".debug_info",
    ".debug_line",
    ".debug_str",
    ".debug_line_str",
    ".debug_rnglists",
    ".debug_ranges",
    ".debug_addr",
    ".debug_str_offsets",
    ".debug_abbrev.dwo",
    ".debug_info.dwo",
    ".debug_str.dwo",
    ".debug_str_offsets.dwo",
    ".debug_rnglists.dwo",
    ".debug_line.dwo",
    ".debug_cu_index",
    ".gnu_debugaltlink",
    ".debug_loc.dwo",
    ".debug_loclists.dwo",
];

/// Reads bytes as the sections of a program and of its companions, and derives a SymCache from
/// them. A panic is a bug of this crate, not of a parser.
pub fn dwarf(bytes: &[u8]) {
    let elf = elf_of(bytes);
    super::derive::dwarf::derive_beside_itself(&elf);
    if let Ok(elf) = ElfObject::parse(&elf) {
        let ids = [
            super::derive::dwarf::needs(&elf, None),
            super::derive::dwarf::completes(&elf),
        ];
        assert!(
            ids.iter()
                .all(|ids| ids.len() <= CompanionId::MAX_UNITS + 1)
        );
    }
}

/// Returns sections as input for [`dwarf()`].
#[cfg(test)]
pub(super) fn sections(data: impl Fn(&str) -> Vec<u8>) -> Vec<u8> {
    let with_end = |name: &&str| [&*data(name), &SECTION_END].concat();
    SECTIONS.iter().flat_map(with_end).collect()
}

/// Returns an ELF file for x86-64 with these sections, and code from 0x1000 on. Source: the ELF
/// specification (gABI).
pub(super) fn elf_of(bytes: &[u8]) -> Vec<u8> {
    const HEADER: usize = 64;
    const PROGBITS: u64 = 1;
    const STRTAB: u64 = 3;
    const NOBITS: u64 = 8;
    const ALLOCATED_CODE: u64 = 2 | 4;
    let mut rest = bytes;
    let mut sections = Vec::new();
    for name in SECTIONS {
        let end = rest
            .windows(SECTION_END.len())
            .position(|bytes| bytes == SECTION_END);
        let (section, next) = match end {
            Some(end) => (&rest[..end], &rest[end + SECTION_END.len()..]),
            None => (rest, &[][..]),
        };
        rest = next;
        if !section.is_empty() {
            sections.push((name, section));
        }
    }
    let mut file = vec![0; HEADER];
    file[..20].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0");
    let mut names = b"\0.text\0.shstrtab\0".to_vec();
    // The fields are name and type, flags, address, offset, size, link and info (none), alignment
    // (one byte), and entry size.
    let header = |name: u64, kind: u64, [flags, address, offset, size]: [u64; 4]| {
        [name | kind << 32, flags, address, offset, size, 0, 1, 0]
    };
    let text = [ALLOCATED_CODE, 0x1000, 0, 0x10_0000];
    let mut headers = vec![[0; 8], header(1, NOBITS, text)];
    for (name, data) in sections {
        let (at, length) = (names.len() as u64, data.len() as u64);
        names.extend_from_slice(name.as_bytes());
        names.push(0);
        let place = [0, 0, file.len() as u64, length];
        headers.push(header(at, PROGBITS, place));
        file.extend_from_slice(data);
    }
    let place = [0, 0, file.len() as u64, names.len() as u64];
    headers.push(header(7, STRTAB, place));
    file.extend_from_slice(&names);
    let table = file.len() as u64;
    file[0x28..0x30].copy_from_slice(&table.to_le_bytes());
    let count = headers.len() as u16;
    file[0x34..0x36].copy_from_slice(&64_u16.to_le_bytes());
    file[0x3a..0x3c].copy_from_slice(&64_u16.to_le_bytes());
    file[0x3c..0x3e].copy_from_slice(&count.to_le_bytes());
    file[0x3e..0x40].copy_from_slice(&(count - 1).to_le_bytes());
    for header in headers {
        file.extend(header.iter().flat_map(|word| word.to_le_bytes()));
    }
    file
}

/// Reads bytes as unwind information and looks up addresses in it.
pub fn cfi_slice(bytes: &[u8]) {
    if let Ok(records) = CfiRecords::parse(bytes) {
        for address in (0..64).map(|n| n * 7) {
            black_box(records.cover(address));
        }
        let parsed = CfiSource::Parsed(records);
        let cuts = slices::recut(&parsed);
        // Records that are passed as text are cut into the same number of slices.
        let unwinding = CfiSource::of(|out| Ok(out.write_all(bytes)?)).expect("it was parsed");
        assert_eq!(slices::recut(&unwinding), cuts);
    }
}
