//! Tests: slices have the same answers as the whole cache, and changed blobs are refused.

use std::io::Write;
use std::sync::Arc;

use breakpad_symbols::{FrameWalker, SimpleModule, SymbolFile};
use proptest::collection::vec;
use proptest::prelude::*;
use symbolic::cfi::CfiCache;
use symbolic::debuginfo::Archive;
use symbolic::symcache::{SourceLocation, SymCache};
use xxhash_rust::xxh3::xxh3_64;

use super::cfi::CfiCutter;
use super::cut::Cutter;
use super::*;
use crate::cache::{BlobRef, Converter, Kind, Ready};
use crate::debuginfo::SymCaches;
use crate::debuginfo::blob;
use crate::debuginfo::blob::{AlignedBytes, BlobFault, Contents};
use crate::debuginfo::failure::Failure;
use crate::debuginfo::tests::{debug_files, fixture, raw_sym_cache, text};
use crate::domain::{Arch, DebugId, Features, FileType, Quality, Rank, Timestamp};

/// Returns the result of a lookup as text, the outermost call last.
fn told<'a, 'b>(locations: impl Iterator<Item = SourceLocation<'a, 'b>>) -> Vec<String>
where
    'a: 'b,
{
    let tell = |location: SourceLocation<'a, 'b>| {
        let function = location.function();
        let (name, entry, language) = (function.name(), function.entry_pc(), function.language());
        let file = location.file();
        let path = file.as_ref().map(|file| file.full_path());
        let server = file.as_ref().and_then(|file| file.full_srcsrv_path());
        let revision = file
            .as_ref()
            .and_then(|file| file.srcsrv_revision().map(str::to_owned));
        let line = location.line();
        format!("{name} {entry:#x} {language} {path:?}:{line} {server:?} {revision:?}")
    };
    locations.map(tell).collect()
}

/// Asserts that the slices and the whole have the same answers at the start of each range, at its
/// neighbours, and at the ends of the address space.
pub(in crate::debuginfo) fn assert_same(slices: &SymCaches<'_>, raw: &[u8], what: &str) {
    let whole = SymCache::parse(raw).unwrap();
    let starts = SymCacheTables::read(raw).unwrap().ranges;
    let ends = [0, u64::from(u32::MAX), u64::from(u32::MAX) + 1, u64::MAX];
    let near = |start: u64| [start.saturating_sub(1), start, start + 1];
    let addresses = starts.iter().flat_map(|start| near((*start).into()));
    for address in addresses.chain(ends) {
        assert_eq!(
            told(slices.lookup(address)),
            told(whole.lookup(address)),
            "{what}: {address:#x}"
        );
    }
}

/// A frame with made-up registers and memory. Records what the walker sets in its caller.
struct Frame {
    instruction: u64,
    told: Vec<String>,
}

fn made_up(what: &impl std::hash::Hash) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish() >> 20
}

impl FrameWalker for Frame {
    fn get_instruction(&self) -> u64 {
        self.instruction
    }
    fn has_grand_callee(&self) -> bool {
        true
    }
    fn get_grand_callee_parameter_size(&self) -> u32 {
        8
    }
    fn get_register_at_address(&self, address: u64) -> Option<u64> {
        Some(made_up(&address))
    }
    fn get_callee_register(&self, name: &str) -> Option<u64> {
        Some(made_up(&name))
    }
    fn set_caller_register(&mut self, name: &str, value: u64) -> Option<()> {
        self.told.push(format!("{name} {value:x}"));
        Some(())
    }
    fn clear_caller_register(&mut self, name: &str) {
        self.told.push(format!("{name} unknown"));
    }
    fn set_cfa(&mut self, value: u64) -> Option<()> {
        self.told.push(format!("cfa {value:x}"));
        Some(())
    }
    fn set_ra(&mut self, value: u64) -> Option<()> {
        self.told.push(format!("ra {value:x}"));
        Some(())
    }
}

/// Returns the caller of a frame as the walker sets it.
fn unwound(records: &SymbolFile, instruction: u64) -> (Option<()>, Vec<String>) {
    let mut frame = Frame {
        instruction,
        told: Vec::new(),
    };
    let walked = records.walk_frame(&SimpleModule::default(), &mut frame);
    // The walker sets registers in the order of a map with a random seed.
    frame.told.sort();
    (walked, frame.told)
}

/// Asserts that frames are unwound in the same way by the slices and by the whole, at each address
/// where a rule begins or ends, and at its neighbours. Returns the number of frames that were
/// unwound.
pub(in crate::debuginfo) fn assert_same_cfi(
    slices: &SlicedCache,
    whole: &[u8],
    what: &str,
) -> usize {
    let whole = CfiRecords::parse(whole).unwrap();
    let file = whole.file();
    let cfi = file
        .cfi_stack_info
        .ranges_values()
        .flat_map(|(range, info)| {
            let rules = info.add_rules.iter().map(|more| more.address);
            rules.chain([range.start, range.end])
        });
    let frame_data = file.win_stack_framedata_info.ranges_values();
    let fpo = file.win_stack_fpo_info.ranges_values();
    let win = frame_data.chain(fpo);
    let win = win.flat_map(|(range, _)| [range.start, range.end]);
    let near = |address: u64| {
        [
            address.saturating_sub(1),
            address,
            address.saturating_add(1),
        ]
    };
    let mut walked = 0;
    for address in cfi.chain(win).flat_map(near).chain([0, u32::MAX.into()]) {
        let slice = slices.cfi().find(|(range, _)| range.contains(&address));
        let expected = unwound(file, address);
        walked += usize::from(expected.0.is_some());
        let found = slice.map_or((None, Vec::new()), |(_, slice)| {
            assert_eq!(
                slice.cover(address),
                whole.cover(address),
                "{what}: {address:#x}"
            );
            unwound(slice.file(), address)
        });
        assert_eq!(found, expected, "{what}: {address:#x}");
    }
    walked
}

/// Records that overlap, repeat and shorten each other, of all three types.
pub(in crate::debuginfo) const OVERLAPPING: &str = "\
MODULE windows x86 000102030405060708090A0B0C0D0E0F1 crash.pdb
STACK CFI INIT 1000 100 .cfa: $esp 4 + .ra: .cfa 4 - ^
STACK CFI 1010 .cfa: $esp 8 +
STACK CFI 1080 .cfa: $esp 16 + $ebx: .cfa 8 - ^
STACK CFI INIT 1040 10 .cfa: $esp 99 + .ra: .cfa 4 - ^
STACK CFI INIT 900 8 .cfa: $esp 4 + .ra: .cfa 4 - ^
STACK CFI INIT 1100 20 .cfa: $ebp 8 + .ra: .cfa 4 - ^
STACK WIN 4 1000 200 1 0 8 0 10 0 1 $T0 $ebp = $eip $T0 4 + ^ = $ebp $T0 ^ = $esp $T0 8 + =
STACK WIN 4 1020 1e0 1 0 8 0 10 0 1 $T0 $ebp = $eip $T0 8 + ^ = $ebp $T0 ^ = $esp $T0 c + =
STACK WIN 4 1020 1e0 1 0 8 0 10 0 1 $T0 $ebp = $eip $T0 8 + ^ = $ebp $T0 ^ = $esp $T0 c + =
STACK WIN 4 1010 40 1 0 8 0 10 0 1 $T0 $ebp = $eip $T0 16 + ^ = $ebp $T0 ^ = $esp $T0 20 + =
STACK WIN 0 1000 800 0 0 4 4 20 0 0 1
STACK WIN 0 1400 400 0 0 4 0 20 0 0 0
STACK WIN 4 1700 10 1 0 8 0 10 0 0 1
STACK WIN 0 1900 10 0 0 4 0 20 0 0 1
";

/// Writes a Breakpad symbol file in small writes, as formatting does.
fn written(text: &[u8]) -> impl Fn(&mut dyn Write) -> Result<(), Failure> {
    move |out| {
        text.chunks(7)
            .try_for_each(|batch| out.write_all(batch))
            .map_err(Failure::from)
    }
}

fn unwinding(text: &[u8]) -> CfiSource {
    CfiSource::of(written(text)).unwrap()
}

#[test]
fn slices_unwind_frames_like_the_whole_cache() {
    let mut walked = 0;
    let mut as_lines = 0;
    let mut check = |text: &[u8], what: &str| {
        let read = unwinding(text);
        as_lines += usize::from(matches!(read, CfiSource::Lines(_)));
        let parsed = CfiSource::Parsed(CfiRecords::parse(text).unwrap());
        let contents = Contents {
            kind: Kind::CfiCache,
            ..contents(None, Arch::X86)
        };
        for ranges in [1, 2, 7, 100] {
            let bounds = Bounds {
                ranges,
                ..Bounds::CURRENT
            };
            let blob = encode_cfi(&read, &contents, bounds, 2).unwrap();
            assert!(
                blob == encode_cfi(&parsed, &contents, bounds, 1).unwrap(),
                "{what}"
            );
            let opened = open(&contents, &blob).unwrap();
            walked += assert_same_cfi(&opened, text, &format!("{what} by {ranges}"));
        }
    };
    check(OVERLAPPING.as_bytes(), "overlapping");
    // In another order, the parser drops other records.
    let mut lines: Vec<&str> = OVERLAPPING.lines().collect();
    lines[8..].reverse();
    check((lines.join("\n") + "\n").as_bytes(), "reversed");
    for entry in debug_files() {
        let file = text(&entry, "file").unwrap();
        let dif = fixture(file);
        for object in Archive::parse(&dif).unwrap().objects() {
            if let Ok(cache) = CfiCache::from_object(&object.unwrap()) {
                check(cache.as_slice(), file);
            }
        }
    }
    assert!(walked > 1000, "{walked}");
    assert!(as_lines > 10, "{as_lines}");
}

/// Breakpad records in any order, which may overlap, repeat, be empty or lie beyond 4 GB.
fn any_records() -> impl Strategy<Value = String> {
    let address = prop_oneof![8 => 0..64_u64, 1 => 0xffff_fff0..0x1_0000_0010_u64];
    let rules = prop_oneof![
        Just(".cfa: $rsp 8 +"),
        Just(".cfa: $rsp 16 + .ra: .cfa -8 + ^")
    ];
    let more = (0..64_u64, rules.clone());
    let record = (address, 0..24_u32, rules, vec(more, 0..3));
    vec(record, 0..24).prop_map(|records| {
        let mut text = String::new();
        for (start, size, rules, more) in records {
            text += &format!("STACK CFI INIT {start:x} {size:x} {rules}\n");
            for (address, rules) in more {
                text += &format!("STACK CFI {address:x} {rules}\n");
            }
        }
        text
    })
}

proptest! {
    #[test]
    fn lines_read_without_the_parser_are_cut_into_the_same_records(text in any_records()) {
        let read = unwinding(text.as_bytes());
        prop_assert!(matches!(read, CfiSource::Lines(_)));
        let parsed = CfiRecords::parse(text.as_bytes()).unwrap();
        let expected: Vec<_> = parsed.file().cfi_stack_info.ranges_values().cloned().collect();
        let expected: Vec<_> = expected
            .into_iter()
            .filter(|(range, _)| range.start <= u32::MAX.into())
            .collect();
        let mut found = Vec::new();
        let bounds = Bounds { ranges: 1, raw_bytes: 1 };
        for cut in CfiCutter::new(&read, bounds) {
            let slice = CfiRecords::parse(&*cut.raw).unwrap();
            found.extend(slice.file().cfi_stack_info.ranges_values().cloned());
        }
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn an_ambiguous_line_is_left_to_the_parser() {
    let init = "STACK CFI INIT 10 20 .cfa: $rsp 8 +\n";
    for text in [
        "STACK WIN 0 20 8 0 0 0 0 0 0 0 1\n",
        "STACK CFI 10 .cfa: $rsp 8 +\n",
        "STACK CFI INIT 10 20 .cfa: $rsp 8 +",
        "STACK CFI INIT 10 20 .cfa: $rsp 8 +\r\n",
        "STACK CFI INIT 10 20  .cfa: $rsp 8 +\n",
        "STACK CFI INIT  10 20 .cfa: $rsp 8 +\n",
        "STACK CFI INIT +10 20 .cfa: $rsp 8 +\n",
        "STACK CFI INIT 10 20 \n",
        "STACK CFI INIT 10 123456789 .cfa: $rsp 8 +\n",
        "PUBLIC 10 0 name\n",
        "\n",
    ] {
        let is_lines = |text: &str| {
            matches!(
                CfiSource::of(written(text.as_bytes())),
                Ok(CfiSource::Lines(_))
            )
        };
        assert!(!is_lines(text), "{text}");
        assert!(is_lines(init));
        assert!(is_lines(&format!("MODULE linux x86_64 0 a\n{init}")));
        assert!(!is_lines(&format!("{init}MODULE linux x86_64 0 a\n")));
    }
}

#[test]
fn a_record_is_in_every_slice_that_it_overlaps() {
    let text = "STACK CFI INIT 10 100 .cfa: $rsp 8 +\nSTACK WIN 0 20 8 0 0 0 0 0 0 0 1\n\
                STACK WIN 0 30 8 0 0 0 0 0 0 0 1\nSTACK WIN 0 200 8 0 0 0 0 0 0 0 1\n";
    let records = unwinding(text.as_bytes());
    let bounds = Bounds {
        ranges: 1,
        raw_bytes: 1 << 20,
    };
    let cuts: Vec<(u32, String)> = CfiCutter::new(&records, bounds)
        .map(|cut| (cut.start, String::from_utf8(cut.raw).unwrap()))
        .collect();
    let reaching = "STACK CFI INIT 10 100 .cfa: $rsp 8 +\n";
    let fpo = |start: &str| format!("STACK WIN 0 {start} 8 0 0 0 0 0 0 0 1\n");
    assert_eq!(
        cuts,
        [
            (0x10, reaching.to_owned()),
            (0x20, format!("{reaching}{}", fpo("20"))),
            (0x30, format!("{reaching}{}", fpo("30"))),
            (0x200, fpo("200")),
        ]
    );
}

#[test]
fn malformed_unwind_information_is_refused() {
    for text in ["STACK CFI INIT zz", "STACK WIN 4 1 2", "FUNC"] {
        assert!(CfiRecords::parse(text.as_bytes()).is_err(), "{text}");
    }
    assert!(!CfiRecords::parse(&b""[..]).unwrap().cover(0));
}

fn contents(debug_id: Option<DebugId>, arch: Arch) -> Contents {
    Contents {
        kind: Kind::SymCache,
        version: 2,
        converter: Converter::CURRENT,
        arch,
        debug_id,
        rank: 0,
        file_type: FileType::ElfDebug,
        features: Features::default(),
    }
}

fn ready(contents: &Contents, blob: &[u8]) -> Ready {
    Ready {
        version: contents.version,
        blob: BlobRef {
            path: String::new(),
            bytes: blob.len() as u64,
            checksum: checksum(blob),
            index: index_of(blob),
        },
        quality: Quality::Preferred,
        rank: Rank::of(&Features::default(), crate::domain::Purpose::Debug),
        features: Features::default(),
        arch: contents.arch.name().to_owned(),
        file_type: contents.file_type,
        made_from: Vec::new(),
        lacks: None,
        derived_at: Timestamp::default(),
        converter: Converter::CURRENT,
    }
}

/// Opens a blob and all of its slices.
fn open(contents: &Contents, blob: &[u8]) -> Result<SlicedCache, BlobFault> {
    open_kind(contents.kind, &ready(contents, blob), blob)
}

fn open_as(ready: &Ready, blob: &[u8]) -> Result<SlicedCache, BlobFault> {
    open_kind(Kind::SymCache, ready, blob)
}

fn open_kind(kind: Kind, ready: &Ready, blob: &[u8]) -> Result<SlicedCache, BlobFault> {
    let at = ready
        .blob
        .index
        .ok_or(BlobFault::Footer("it is not sliced"))?;
    let index = SliceIndex::open(
        kind,
        ready,
        blob.get(at.offset as usize..).unwrap_or_default(),
    )?;
    let mut slices = Vec::new();
    for number in 0..index.len() as u32 {
        let range = index.range(number).unwrap();
        let frame = blob
            .get(range.start as usize..range.end as usize)
            .unwrap_or_default();
        slices.push((number, index.open_slice(number, frame)?));
    }
    Ok(SlicedCache { index, slices })
}

/// The SymCache of elf/crash.debug, and the contents of its footer.
fn sample() -> (AlignedBytes, Contents) {
    let dif = fixture("elf/crash.debug");
    let object = symbolic::debuginfo::Object::parse(&dif).unwrap();
    let contents = contents(Some(object.debug_id()), object.arch());
    (raw_sym_cache(&object), contents)
}

const SMALL: Bounds = Bounds {
    ranges: 7,
    raw_bytes: 1 << 20,
};

#[test]
fn every_lookup_in_slices_equals_the_lookup_in_the_whole() {
    let mut compared = 0;
    for entry in debug_files() {
        let file = text(&entry, "file").unwrap();
        let dif = fixture(file);
        let Ok(archive) = Archive::parse(&dif) else {
            continue;
        };
        for object in archive.objects() {
            let object = object.unwrap();
            let raw = raw_sym_cache(&object);
            let id = Some(object.debug_id()).filter(|id| !id.is_nil());
            let contents = contents(id, object.arch());
            for ranges in [1, 7, 100, Bounds::CURRENT.ranges] {
                let bounds = Bounds {
                    ranges,
                    ..Bounds::CURRENT
                };
                let blob = encode(raw.as_slice(), &contents, bounds, 2).unwrap();
                let opened = open(&contents, &blob).unwrap();
                let what = format!("{file} by {ranges}");
                assert_same(&opened.sym_caches(), raw.as_slice(), &what);
                let joined = opened.index.join(&blob).unwrap();
                let joined = AlignedBytes::copied(&joined).unwrap();
                validate(joined.as_slice(), id).unwrap();
                // Entries that no range needs are dropped.
                assert!(joined.as_slice().len() <= raw.as_slice().len(), "{what}");
                let joined = SymCache::parse(joined.as_slice()).unwrap();
                assert_same(&joined.into(), raw.as_slice(), &what);
                compared += 1;
            }
        }
    }
    assert!(compared > 40, "{compared}");
}

#[test]
fn a_selection_of_a_slice_answers_the_same_for_its_addresses() {
    let (raw, _) = sample();
    let whole = SymCache::parse(raw.as_slice()).unwrap();
    let slice = Slice::Sym(Arc::new(AlignedBytes::copied(raw.as_slice()).unwrap()));
    let starts = SymCacheTables::read(raw.as_slice()).unwrap().ranges;
    for few in starts.chunks(3) {
        let near = |start: &u32| [u64::from(*start).saturating_sub(1), (*start).into()];
        let addresses: Vec<u64> = few.iter().flat_map(near).collect();
        let picked = slice.picked(&addresses);
        assert!(picked.memory_bytes() * 5 < slice.memory_bytes());
        for address in addresses {
            let found = told(picked.sym_cache().unwrap().lookup(address));
            assert_eq!(found, told(whole.lookup(address)), "{address:#x}");
        }
    }
    assert_eq!(
        told(slice.picked(&[0]).sym_cache().unwrap().lookup(0)),
        Vec::<String>::new()
    );
}

#[test]
fn a_missing_slice_has_no_answer() {
    let (raw, contents) = sample();
    let blob = encode(raw.as_slice(), &contents, SMALL, 2).unwrap();
    let all = open(&contents, &blob).unwrap();
    let whole = SymCache::parse(raw.as_slice()).unwrap();
    let (mut without, all) = (all.clone(), all.sym_caches());
    let gone = without.slices.remove(1).0;
    let addresses = without.index.addresses(gone).unwrap();
    let without = without.sym_caches();
    for address in addresses.start - 20..addresses.end + 20 {
        let expected = if addresses.contains(&address) {
            Vec::new()
        } else {
            told(whole.lookup(address))
        };
        assert_eq!(told(without.lookup(address)), expected, "{address:#x}");
        assert_eq!(told(all.lookup(address)), told(whole.lookup(address)));
    }
}

#[test]
fn an_index_leads_to_the_slice_of_an_address() {
    let (raw, contents) = sample();
    let blob = encode(raw.as_slice(), &contents, SMALL, 2).unwrap();
    let index = open(&contents, &blob).unwrap().index;
    let first = index.addresses(0).unwrap();
    assert_eq!(index.slice_of(first.start - 1), None);
    assert_eq!(index.slice_of(first.start), Some(0));
    assert_eq!(index.slice_of(first.end - 1), Some(0));
    assert_eq!(index.slice_of(first.end), Some(1));
    assert_eq!(
        index.slice_of(u32::MAX.into()),
        Some(index.len() as u32 - 1)
    );
    assert_eq!(index.slice_of(1 << 32), None);
    assert_eq!(index.range(index.len() as u32), None);
}

#[test]
fn slices_keep_to_their_bounds_and_start_at_aligned_addresses() {
    let (raw, contents) = sample();
    let ranges = SymCacheTables::read(raw.as_slice()).unwrap().ranges.len();
    let count = |bounds| {
        let blob = encode(raw.as_slice(), &contents, bounds, 2).unwrap();
        let opened = open(&contents, &blob).unwrap();
        for (_, slice) in &opened.slices {
            let Slice::Sym(raw) = slice else { panic!() };
            assert_eq!(raw.as_slice().as_ptr() as usize % 8, 0);
        }
        opened.slices.len()
    };
    assert_eq!(count(SMALL), ranges.div_ceil(7));
    let by_bytes = Bounds {
        ranges: usize::MAX >> 8,
        raw_bytes: 2000,
    };
    let tables = SymCacheTables::read(raw.as_slice()).unwrap();
    // The cutter notices that a slice is full only after it has added one range too many.
    let longest = Cutter::new(
        tables,
        Bounds {
            ranges: 1,
            ..by_bytes
        },
    )
    .map(|cut| cut.raw.len())
    .max();
    for cut in Cutter::new(tables, by_bytes) {
        assert!(cut.raw.len() < 2000 + longest.unwrap(), "{}", cut.raw.len());
    }
    assert!(count(by_bytes) > 1);
}

#[test]
fn a_cache_without_ranges_has_no_slices() {
    let (raw, contents) = sample();
    let tables = SymCacheTables::read(raw.as_slice()).unwrap();
    let nothing = SymCacheTables {
        files: &[],
        functions: &[],
        calls: &[],
        locations: &[],
        ranges: &[],
        strings: &[],
        ..tables
    };
    let empty = nothing.written();
    let aligned = AlignedBytes::copied(&empty).unwrap();
    let blob = encode(aligned.as_slice(), &contents, Bounds::CURRENT, 2).unwrap();
    assert_eq!(blob.len(), blob::FOOTER_BYTES);
    let opened = open(&contents, &blob).unwrap();
    assert!(opened.index.is_empty() && opened.index.slice_of(7).is_none());
    assert_eq!(told(opened.sym_caches().lookup(7)), Vec::<String>::new());
}

#[test]
fn a_slice_or_an_index_of_another_blob_is_refused() {
    let (raw, contents) = sample();
    let blob = encode(raw.as_slice(), &contents, SMALL, 2).unwrap();
    let good = open(&contents, &blob).unwrap();
    let frame = |number| {
        let range = good.index.range(number).unwrap();
        &blob[range.start as usize..range.end as usize]
    };
    assert!(good.index.open_slice(0, frame(0)).is_ok());
    assert!(good.index.open_slice(0, frame(1)).is_err());
    assert!(good.index.open_slice(u32::MAX, frame(1)).is_err());
    // The other blob has the same size and a valid footer, so only the record distinguishes them.
    let mut other = contents.clone();
    other.rank = 9;
    let of_another = encode(raw.as_slice(), &other, SMALL, 2).unwrap();
    assert_eq!(of_another.len(), blob.len());
    let fault = open_as(&ready(&contents, &blob), &of_another).unwrap_err();
    assert_eq!(fault, BlobFault::Checksum);
    let newer = Ready {
        version: 3,
        ..ready(&contents, &blob)
    };
    assert_eq!(
        open_as(&newer, &blob).unwrap_err(),
        BlobFault::Mismatch("version")
    );
    let of_other_arch = Ready {
        arch: "x86".to_owned(),
        ..ready(&contents, &blob)
    };
    assert_eq!(
        open_as(&of_other_arch, &blob).unwrap_err(),
        BlobFault::Mismatch("architecture")
    );
}

#[test]
fn the_footer_has_the_documented_layout() {
    let (raw, contents) = sample();
    let blob = encode(raw.as_slice(), &contents, SMALL, 2).unwrap();
    let slices = open(&contents, &blob).unwrap().slices.len() as u32;
    let footer = &blob[blob.len() - 112..];
    assert_eq!(&footer[..8], b"SYMDEPOT");
    assert_eq!(footer[27], 1);
    assert_eq!(footer[28..32], slices.to_le_bytes());
    let at = index_of(&blob).unwrap();
    assert_eq!(at.offset + at.length, blob.len() as u64);
    assert_eq!(footer[88..96], (at.length - 112).to_le_bytes());
    let index = &blob[at.offset as usize..blob.len() - 112];
    assert_eq!(footer[96..104], xxh3_64(index).to_le_bytes());
    assert!(
        blob::open_unchecked(&blob).is_err(),
        "a sliced blob is not a whole blob"
    );
}

proptest! {
    #[test]
    fn every_flipped_bit_is_detected_and_none_panics(at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let (raw, contents) = sample();
        let blob = encode(raw.as_slice(), &contents, SMALL, 2).unwrap();
        let good = ready(&contents, &blob);
        let mut bad = blob.clone();
        bad[at.index(blob.len())] ^= 1 << bit;
        prop_assert!(open_as(&good, &bad).is_err());
        // The same holds if the record was made from the changed blob: if it opens, lookups are
        // identical.
        if let Ok(opened) = open(&contents, &bad) {
            assert_same(&opened.sym_caches(), raw.as_slice(), "a flipped bit");
        }
    }

    #[test]
    fn a_truncated_blob_is_refused(length in any::<prop::sample::Index>()) {
        let (raw, contents) = sample();
        let blob = encode(raw.as_slice(), &contents, SMALL, 2).unwrap();
        let bad = &blob[..length.index(blob.len())];
        prop_assert!(open_as(&ready(&contents, &blob), bad).is_err());
        prop_assert!(open(&contents, bad).is_err());
    }

    #[test]
    fn hostile_tables_are_refused_or_answer_without_panic(at in any::<prop::sample::Index>(), number in any::<u32>()) {
        let (raw, contents) = sample();
        let mut bad = AlignedBytes::copied(raw.as_slice()).unwrap();
        let at = at.index(raw.as_slice().len() / 4) * 4;
        bad.as_mut_slice()[at..at + 4].copy_from_slice(&number.to_ne_bytes());
        if let Ok(blob) = encode(bad.as_slice(), &contents, SMALL, 2) {
            let opened = open(&contents, &blob).unwrap();
            assert_same(&opened.sym_caches(), bad.as_slice(), "hostile tables");
        }
    }
}
