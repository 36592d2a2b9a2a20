//! Tests of all formats, all containers and hostile files, with the fixtures of the project.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Read, Write as _};
use std::path::PathBuf;

use serde_json::Value;
use symbolic::cfi::CfiCache;
use symbolic::common::CpuFamily;
use symbolic::debuginfo::{Archive, Object};
use symbolic::symcache::SymCacheConverter;

use super::derive::kind::OtherFiles;
use super::*;
use crate::cache::{
    BlobRef, Converter, DeriveJob, Derived, Kind, Ready, ReleaseNumbers, current_version,
};
use crate::debuginfo::derive::dwarf;
use crate::domain::{
    Cause, DebugId, FileType, Inspection, Missing, Rank, Timestamp, Written, WrittenFile,
};

/// The dSYM of the sample for `arm64`.
const MACH_DEBUG: &str = "macho/arm64/crash.dSYM/Contents/Resources/DWARF/crash";

const ROOM: RoomLimit = RoomLimit {
    bytes: 4 << 20,
    budget: 5 << 20,
};

pub(super) fn fixture(name: &str) -> Vec<u8> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../tests/fixtures", name]
        .iter()
        .collect();
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn manifest() -> Vec<Value> {
    serde_json::from_slice(&fixture("manifest.json")).unwrap()
}

pub(super) fn text<'a>(entry: &'a Value, field: &str) -> Option<&'a str> {
    entry[field].as_str()
}

/// A DIF that was opened.
pub(super) struct Opened {
    dif: Vec<u8>,
    unpacked: Vec<u8>,
    layout: Layout,
    pub(super) inspection: Inspection,
}

impl Opened {
    fn new(dif: Vec<u8>, partial: bool, room: RoomLimit) -> Self {
        let written = if partial {
            Written::InPart
        } else {
            Written::Whole
        };
        Self::written(dif, &written, room)
    }

    /// Opens files that complete each other. An auxiliary file has an id.
    pub(super) fn together(files: &[(&[u8], Option<DebugId>)]) -> Self {
        let (mut all, mut places) = (Vec::new(), Vec::new());
        for (bytes, id) in files {
            places.push(WrittenFile {
                offset: all.len() as u64,
                length: bytes.len() as u64,
                id: *id,
            });
            all.extend_from_slice(bytes);
            let alignment = MemberPlace::ALIGNMENT as usize;
            all.resize(all.len().next_multiple_of(alignment), 0);
        }
        Self::written(all, &Written::Together(places), ROOM)
    }

    fn written(dif: Vec<u8>, written: &Written, room: RoomLimit) -> Self {
        let mut unpacked = Vec::new();
        let mut layout = unpack(&dif, written, &mut unpacked, room).unwrap();
        let inspection = inspect(&mut layout, DifBytes::complete(&dif, &unpacked));
        Self {
            dif,
            unpacked,
            layout,
            inspection,
        }
    }

    fn of(name: &str) -> Self {
        Self::new(fixture(name), false, ROOM)
    }

    pub(super) fn derive(&self, object: usize, kind: Kind) -> Result<Derived, Failure> {
        let features = &self.inspection.objects[object].features;
        let job = DeriveJob::of(kind, features, &ReleaseNumbers::CURRENT);
        derive(
            &self.layout,
            DifBytes::complete(&self.dif, &self.unpacked),
            object,
            job,
            2,
        )
    }

    fn open(&self, object: usize, kind: Kind) -> OpenCache {
        let derived = self.derive(object, kind);
        let derived =
            derived.unwrap_or_else(|failure| panic!("{:?} {kind}: {failure:?}", self.inspection));
        OpenCache::open(kind, &self.ready(object, &derived), derived.blob).unwrap()
    }

    /// Derives a cache and opens all of its slices.
    pub(super) fn sliced(&self, object: usize, kind: Kind) -> SlicedCache {
        let derived = self.derive(object, kind).unwrap();
        let ready = self.ready(object, &derived);
        let offset = ready.blob.index.unwrap().offset as usize;
        let index = SliceIndex::open(kind, &ready, &derived.blob[offset..]).unwrap();
        let slices = (0..index.len() as u32).map(|number| {
            let range = index.range(number).unwrap();
            let frame = &derived.blob[range.start as usize..range.end as usize];
            (number, index.open_slice(number, frame).unwrap())
        });
        SlicedCache {
            slices: slices.collect(),
            index,
        }
    }

    fn ready(&self, object: usize, derived: &Derived) -> Ready {
        let meta = &self.inspection.objects[object];
        let rank = Rank::of(&meta.features, derived.kind.purpose());
        Ready {
            version: current_version(derived.kind),
            blob: BlobRef {
                path: String::new(),
                bytes: derived.blob.len() as u64,
                checksum: derived.checksum,
                index: index_of(&derived.blob),
            },
            quality: rank.quality(),
            rank,
            features: meta.features.clone(),
            arch: meta.arch.clone(),
            file_type: meta.file_type,
            made_from: Vec::new(),
            lacks: None,
            derived_at: Timestamp::from_secs(0),
            converter: Converter::CURRENT,
        }
    }

    fn missing(&self, object: usize, kind: Kind) -> Missing {
        match self.derive(object, kind) {
            Err(Failure::Missing(missing)) => missing,
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the file type of an entry in the manifest.
fn expected_type(entry: &Value) -> FileType {
    match (text(entry, "format").unwrap(), text(entry, "kind").unwrap()) {
        ("elf", "debug") => FileType::ElfDebug,
        ("elf", _) => FileType::ElfCode,
        ("macho", "debug") => FileType::MachDebug,
        ("macho", _) => FileType::MachCode,
        ("wasm", _) => FileType::WasmCode,
        ("pe", _) => FileType::Pe,
        ("pdb", _) => FileType::Pdb,
        ("portablepdb", _) => FileType::PortablePdb,
        ("breakpad", _) => FileType::Breakpad,
        ("sourcebundle", _) => FileType::SourceBundle,
        other => panic!("{other:?}"),
    }
}

pub(super) fn debug_files() -> Vec<Value> {
    let is_debug_file =
        |entry: &Value| !matches!(text(entry, "kind"), Some("container" | "hostile"));
    manifest().into_iter().filter(is_debug_file).collect()
}

#[test]
fn inspection_agrees_with_other_tools_for_every_format() {
    for entry in debug_files() {
        let file = text(&entry, "file").unwrap();
        let opened = Opened::of(file);
        assert_eq!(opened.inspection.skipped, Vec::<String>::new(), "{file}");
        let one = std::slice::from_ref(&entry);
        let expected = entry["objects"].as_array().map_or(one, Vec::as_slice);
        assert_eq!(opened.inspection.objects.len(), expected.len(), "{file}");
        for (index, (meta, expected)) in opened.inspection.objects.iter().zip(expected).enumerate()
        {
            assert_eq!(meta.index, index);
            let debug_id = meta.debug_id.map(|id| id.to_string());
            if file == "elf/no-build-id.so" {
                assert!(debug_id.is_some(), "the id is computed from its code");
            } else {
                assert_eq!(debug_id.as_deref(), text(expected, "debug_id"), "{file}");
            }
            assert_eq!(
                meta.code_id.as_ref().map(|id| id.as_str()),
                text(expected, "code_id"),
                "{file}"
            );
            // A split companion has code and DWARF, so it cannot be distinguished from a module
            // with debug information.
            assert_eq!(meta.file_type, expected_type(&entry), "{file}");
            if entry["objects"].is_null() {
                let has = |feature: &str| {
                    entry["features"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .any(|has| has == feature)
                };
                assert_eq!(meta.features.has_debug_info, has("debug"), "{file}");
                let misread = file == "macho/x86_64/crash.dSYM/Contents/Resources/DWARF/crash";
                assert_eq!(
                    meta.features.has_unwind_info,
                    has("unwind") && !misread,
                    "{file}"
                );
                assert_eq!(meta.features.has_sources, has("sources"), "{file}");
            }
        }
    }
}

#[test]
fn every_container_yields_the_files_that_were_put_into_it() {
    for entry in manifest()
        .into_iter()
        .filter(|entry| text(entry, "kind") == Some("container"))
    {
        let file = text(&entry, "file").unwrap();
        let opened = Opened::of(file);
        let mut expected = Vec::new();
        for held in entry["holds"].as_array().unwrap() {
            for mut object in Opened::of(held.as_str().unwrap()).inspection.objects {
                object.index = expected.len();
                let is_elf = object.file_type.is_elf();
                object.is_accompanied = is_elf && opened.layout.members.len() > 1;
                expected.push(object);
            }
        }
        assert_eq!(opened.inspection.objects, expected, "{file}");
        assert!(
            opened
                .layout
                .members
                .iter()
                .all(|member| member.fault.is_none()),
            "{file}"
        );
        for (object, meta) in expected.iter().enumerate() {
            for kind in Kind::derived_from(meta.file_type) {
                opened
                    .derive(object, *kind)
                    .unwrap_or_else(|failure| panic!("{file} {object} {kind}: {failure:?}"));
            }
        }
    }
    let several = Opened::of("containers/several.zip");
    let [text] = several.inspection.skipped.as_slice() else {
        panic!("{:?}", several.inspection.skipped)
    };
    assert!(
        text.contains("not a debug information file: it begins with"),
        "{text}"
    );
    assert!(
        Opened::of("containers/crash.dSYM.zip")
            .inspection
            .skipped
            .is_empty(),
        "the property list is not reported"
    );
}

#[test]
fn a_file_outside_a_container_is_not_copied() {
    let opened = Opened::of("elf/crash.debug");
    assert!(opened.unpacked.is_empty());
    assert_eq!(opened.layout.unpacked_bytes, 0);
}

/// Returns the SymCache that `symbolic` makes from an object.
pub(super) fn raw_sym_cache(object: &Object<'_>) -> blob::AlignedBytes {
    let mut raw = Vec::new();
    let mut converter = SymCacheConverter::new();
    converter.process_object(object).unwrap();
    converter.serialize(&mut raw).unwrap();
    blob::AlignedBytes::copied(&raw).unwrap()
}

#[test]
fn every_sym_cache_and_cfi_cache_equals_the_one_of_symbolic() {
    for entry in debug_files() {
        let file = text(&entry, "file").unwrap();
        let opened = Opened::of(file);
        let archive = Archive::parse(&opened.dif).unwrap();
        for (index, object) in archive.objects().enumerate() {
            let object = object.unwrap();
            if matches!(object, Object::PortablePdb(_) | Object::SourceBundle(_)) {
                assert_eq!(
                    opened.missing(index, Kind::SymCache).cause,
                    Cause::Unsupported
                );
                assert_eq!(
                    opened.missing(index, Kind::CfiCache).cause,
                    Cause::Unsupported
                );
                continue;
            }
            let cache = opened.sliced(index, Kind::SymCache);
            let expected = raw_sym_cache(&object);
            assert_eq!(cache.sym_caches().arch(), object.arch());
            // Files that `dwarf` and `pdb` read are compared in their own tests.
            let is_pdb = matches!(object, Object::Pdb(_));
            if !is_pdb && dwarf::Program::of(&object, &OtherFiles::default(), 1).is_none() {
                slices::tests::assert_same(&cache.sym_caches(), expected.as_slice(), file);
            }

            let cfi = opened.sliced(index, Kind::CfiCache);
            let Ok(expected) = CfiCache::from_object(&object) else {
                assert!(
                    quirks::eh_frame_is_misread(&object) && cfi.index.is_empty(),
                    "{file}"
                );
                continue;
            };
            let has_unwind_info = opened.inspection.objects[index].features.has_unwind_info;
            assert_eq!(!cfi.index.is_empty(), has_unwind_info, "{file}");
            // Of these, `frames` and `pe_frames` read more than `symbolic`; they are compared in
            // their own tests.
            let family = object.arch().cpu_family();
            let reads_more = matches!(object, Object::Elf(_) | Object::Pe(_))
                && matches!(
                    family,
                    CpuFamily::Amd64 | CpuFamily::Intel32 | CpuFamily::Arm64
                );
            if !reads_more {
                slices::tests::assert_same_cfi(&cfi, expected.as_slice(), file);
            }
        }
    }
}

#[test]
fn frames_agree_with_llvm_symbolizer() {
    for (file, oracle) in [
        ("elf/crash.debug", "elf-crash.debug"),
        ("elf/crash.zstd.debug", "elf-crash.debug"),
        ("elf/crash-arm64.debug", "elf-crash-arm64.debug"),
        (
            "macho/arm64/crash.dSYM/Contents/Resources/DWARF/crash",
            "macho-arm64-crash.dSYM",
        ),
        ("pe/x64/crash.pdb", "pe-x64-crash.pdb"),
        ("wasm/crash.wasm", "wasm-crash.wasm"),
    ] {
        let opened = Opened::of(file);
        let cache = opened.sliced(0, Kind::SymCache);
        let cache = cache.sym_caches();
        let oracle = fixture(&format!("expected/{oracle}.llvm-symbolizer.json"));
        let oracle: Value = serde_json::from_slice(&oracle).unwrap();
        let mut compared = 0;
        for at in oracle["frames"].as_array().unwrap() {
            let address =
                u64::from_str_radix(at["address"].as_str().unwrap().trim_start_matches("0x"), 16)
                    .unwrap();
            let expected = at["frames"].as_array().unwrap();
            if expected
                .iter()
                .any(|frame| frame["file"].is_null() || frame["line"] == 0)
            {
                continue;
            }
            let lines = |path: &str, line: u64| {
                format!("{}:{line}", path.rsplit(['/', '\\']).next().unwrap())
            };
            let expected: Vec<String> = expected
                .iter()
                .map(|frame| {
                    lines(
                        frame["file"].as_str().unwrap(),
                        frame["line"].as_u64().unwrap(),
                    )
                })
                .collect();
            let found: Vec<String> = cache
                .lookup(address)
                .map(|at| lines(&at.file().unwrap().full_path(), at.line().into()))
                .collect();
            // The tools infer the places of inlined calls in a PDB in different ways.
            let frames = if file.ends_with(".pdb") {
                1
            } else {
                expected.len()
            };
            assert_eq!(
                (&found[..frames], found.len()),
                (&expected[..frames], expected.len()),
                "{file} at {address:#x}"
            );
            compared += 1;
        }
        assert!(compared > 50, "{file}: {compared}");
    }
}

/// The answer for an address: pairs of mangled name and `file:line`, the innermost first.
type Frames = Vec<(String, String)>;

/// Reads the answers of llvm-symbolizer for a program of the zoo. Each holds up to the next
/// address.
fn zoo_oracle(program: &str) -> Vec<(u64, Frames)> {
    let listing = String::from_utf8(fixture(&format!("zoo/{program}.expected"))).unwrap();
    let answers = listing.lines().map(|line| {
        let mut parts = line.split("  ");
        let address = parts.next().unwrap().trim_start_matches("0x");
        let frames = parts.map(|frame| {
            let (name, place) = frame.rsplit_once(' ').unwrap();
            (name.to_owned(), place.to_owned())
        });
        let frames = frames.filter(|(name, place)| (&**name, &**place) != ("?", "?:0"));
        (u64::from_str_radix(address, 16).unwrap(), frames.collect())
    });
    answers.collect()
}

/// Returns whether two names belong to the same function. A constructor has several names at one
/// address.
fn is_same_name(found: &str, expected: &str) -> bool {
    let plain = |name: &str| name.replace("C1E", "C2E");
    plain(found) == plain(expected)
}

#[test]
fn objects_beyond_the_limit_of_a_file_are_ignored() {
    const MACHINES: u32 = 40;
    // A fat Mach-O file with many architectures. Each has a processor, a variant, an offset, a size
    // and an alignment.
    let program = fixture("macho/arm64/crash");
    let (at, size) = (8 + MACHINES * 20, program.len() as u32);
    let words = [0xcafe_babe, MACHINES].into_iter();
    let entries = (0..MACHINES).flat_map(|machine| [0x0100_000c, machine, at, size, 0]);
    let mut fat: Vec<u8> = words.chain(entries).flat_map(u32::to_be_bytes).collect();
    fat.extend_from_slice(&program);
    let mut archive = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
    for number in 0..252 {
        let options = zip::write::SimpleFileOptions::default();
        archive.start_file(number.to_string(), options).unwrap();
        archive.write_all(&fat).unwrap();
    }
    let dif = archive.finish().unwrap().into_inner();
    let room = RoomLimit {
        bytes: 1 << 30,
        budget: 1 << 30,
    };
    let inspection = Opened::new(dif, false, room).inspection;
    assert_eq!(inspection.objects.len(), 10_000);
    let skipped = inspection.skipped.join("\n");
    assert_eq!(
        skipped.matches("more than the limit of 10000").count(),
        2,
        "{skipped}"
    );
}

#[test]
fn an_architecture_on_which_the_parser_panics_does_not_affect_the_others() {
    const FILE: &str = "macho/fat/crash";
    const NAME: &[u8] = b"__TEXT\0\0";
    let expected = Opened::of(FILE).inspection;
    let mut dif = fixture(FILE);
    // The second architecture of the header: a processor, a variant and an offset.
    let begin: [u8; 4] = dif[36..40].try_into().unwrap();
    let begin = u32::from_be_bytes(begin) as usize;
    let mut names = dif[begin..].windows(NAME.len());
    let segment = begin + names.position(|name| name == NAME).unwrap();
    // The address of its code, which is lower than the offset of its code: their difference
    // overflows, which is a panic if overflows are checked, as in tests.
    dif[segment + 16..segment + 24].fill(0);
    dif[segment + 32] = 16;
    let inspection = Opened::new(dif, false, ROOM).inspection;
    assert_eq!(inspection.objects.len(), expected.objects.len());
    assert_eq!(inspection.objects[0], expected.objects[0]);
    assert_eq!(inspection.objects[1].debug_id, expected.objects[1].debug_id);
}

#[test]
fn a_file_that_is_not_linked_is_ignored_with_advice() {
    const E_TYPE: usize = 16;
    let mut dif = fixture("elf/checksum");
    dif[E_TYPE] = 1;
    let opened = Opened::new(dif, false, ROOM);
    assert!(opened.inspection.objects.is_empty());
    let skipped = format!("{:?}", opened.inspection.skipped);
    assert!(
        skipped.contains("upload what is linked from it"),
        "{skipped}"
    );
}

#[test]
fn the_zoo_has_the_same_answers_as_llvm_symbolizer() {
    let mut table = String::new();
    for program in zoo() {
        let opened = Opened::of(&format!("zoo/{program}"));
        let cache = opened.sliced(0, Kind::SymCache);
        let cache = cache.sym_caches();
        let oracle = zoo_oracle(&program);
        let (mut names, mut lines, mut chains, mut all) = (0, 0, 0, 0);
        let mut differences = String::new();
        let ends = oracle.iter().skip(1).map(|(next, _)| next - 1);
        let ends: Vec<u64> = ends.chain(oracle.last().map(|(start, _)| *start)).collect();
        for ((start, expected), last) in oracle.iter().zip(ends) {
            for address in [*start, last] {
                let found: Frames = cache
                    .lookup(address)
                    .map(|at| {
                        let path = at.file().map(|file| file.full_path());
                        let path = path.filter(|path| !path.is_empty());
                        let file = path.as_deref().and_then(|path| path.rsplit('/').next());
                        let place = format!("{}:{}", file.unwrap_or("?"), at.line());
                        (at.function().name().to_owned(), place)
                    })
                    .collect();
                let both = || found.iter().zip(expected);
                let has_names = found.is_empty() == expected.is_empty()
                    && both().all(|(found, expected)| is_same_name(&found.0, &expected.0));
                let has_line =
                    found.first().map(|frame| &frame.1) == expected.first().map(|frame| &frame.1);
                let is_same = found.len() == expected.len()
                    && both().all(|(found, expected)| found.1 == expected.1);
                if !(has_names && has_line && is_same) {
                    let _ = writeln!(
                        differences,
                        "  {address:#x} {found:?}, by llvm {expected:?}"
                    );
                }
                all += 1;
                names += usize::from(has_names);
                lines += usize::from(has_line);
                chains += usize::from(has_names && is_same);
            }
        }
        let _ = writeln!(
            table,
            "{program}: of {all} {names} names, {lines} lines, {chains} chains"
        );
        table.push_str(&differences);
    }
    // The differences: llvm-symbolizer gives padding in a PE file, and addresses between sections,
    // the name of the function before them. It gives entry points of functions on PowerPC, which
    // have no row, the line of the row before them. Functions whose symbols were stripped have no
    // name in `mach-stripped`; it has those of the file with all symbols.
    insta::assert_snapshot!(table, @r#"
    at-zero: of 86 86 names, 86 lines, 86 chains
    below-headers: of 86 86 names, 86 lines, 86 chains
    cold-parts: of 108 108 names, 108 lines, 108 chains
    discarded: of 10 10 names, 10 lines, 10 chains
    dwz: of 186 186 names, 186 lines, 186 chains
    kernel-module: of 146 145 names, 145 lines, 145 chains
      0x15f [], by llvm [("_ZN4shopL8complainEi", "shop.cpp:22")]
    kernel-module-arm64: of 140 140 names, 140 lines, 140 chains
    kernel-module-riscv64: of 136 136 names, 136 lines, 136 chains
    labels: of 108 108 names, 108 lines, 108 chains
    lines-only: of 80 80 names, 80 lines, 80 chains
    lines-only-O0: of 122 122 names, 122 lines, 122 chains
    longer-symbol: of 6 6 names, 6 lines, 6 chains
    lto: of 132 132 names, 132 lines, 132 chains
    mach-stripped: of 22 12 names, 12 lines, 12 chains
      0x488 [], by llvm [("_ZN4shop6Basket3sumEPKNS_4ItemEi", "?:0")]
      0x527 [], by llvm [("_ZN4shop6Basket3sumEPKNS_4ItemEi", "?:0")]
      0x528 [], by llvm [("_ZN4shopL4overIZNS_4sellEPKNS_4ItemEiE3$_0EEiS3_iT_", "?:0")]
      0x56b [], by llvm [("_ZN4shopL4overIZNS_4sellEPKNS_4ItemEiE3$_0EEiS3_iT_", "?:0")]
      0x56c [], by llvm [("_ZN4shopL5twiceEi", "?:0")]
      0x57b [], by llvm [("_ZN4shopL5twiceEi", "?:0")]
      0x5a4 [], by llvm [("_ZN4shopL8complainEi", "?:0")]
      0x5bf [], by llvm [("_ZN4shopL8complainEi", "?:0")]
      0x658 [], by llvm [("Player_Land", "?:0")]
      0x658 [], by llvm [("Player_Land", "?:0")]
    mach-symbols: of 22 22 names, 22 lines, 22 chains
    mingw-labels.exe: of 6 6 names, 6 lines, 6 chains
    mingw-lines.exe: of 74 71 names, 71 lines, 71 chains
      0x1044 [], by llvm [("_ZN4shop4sellEPKNS_4ItemEi", "?:0")]
      0x104f [], by llvm [("_ZN4shop4sellEPKNS_4ItemEi", "?:0")]
      0x108f [], by llvm [("_ZN4shopL4overIZNS_4sellEPKNS_4ItemEiE3$_0EEiS3_iT_", "shop.cpp:57")]
    mingw-symbols.exe: of 14 14 names, 14 lines, 14 chains
    mingw.exe: of 80 73 names, 73 lines, 73 chains
      0x1044 [], by llvm [("_ZN4shop4sellEPKNS_4ItemEi", "?:0")]
      0x104f [], by llvm [("_ZN4shop4sellEPKNS_4ItemEi", "?:0")]
      0x108f [], by llvm [("_ZN4shopL4overIZNS_4sellEPKNS_4ItemEiE3$_0EEiS3_iT_", "shop.cpp:57")]
      0x109f [], by llvm [("_ZN4shopL5twiceEi", "shop.cpp:49")]
      0x10bf [], by llvm [("run", "shop.cpp:77")]
      0x10e1 [], by llvm [("_ZN4shopL8complainEi", "?:0")]
      0x10ef [], by llvm [("_ZN4shopL8complainEi", "?:0")]
    pieces: of 40 40 names, 40 lines, 40 chains
    ppc64-symbols: of 14 14 names, 14 lines, 14 chains
    ppc64le: of 98 98 names, 94 lines, 94 chains
      0x102d0 [("_ZN4shopL4overIZNS_4sellEPKNS_4ItemEiE3$_0EEiS3_iT_", "?:0")], by llvm [("_ZN4shopL4overIZNS_4sellEPKNS_4ItemEiE3$_0EEiS3_iT_", "shop.cpp:0")]
      0x102d7 [("_ZN4shopL4overIZNS_4sellEPKNS_4ItemEiE3$_0EEiS3_iT_", "?:0")], by llvm [("_ZN4shopL4overIZNS_4sellEPKNS_4ItemEiE3$_0EEiS3_iT_", "shop.cpp:0")]
      0x104c4 [("_ZN4shopL8complainEi", "?:0")], by llvm [("_ZN4shopL8complainEi", "shop.cpp:0")]
      0x104cb [("_ZN4shopL8complainEi", "?:0")], by llvm [("_ZN4shopL8complainEi", "shop.cpp:0")]
    relative: of 6 6 names, 6 lines, 6 chains
    resolver: of 6 6 names, 6 lines, 6 chains
    riscv64: of 92 92 names, 92 lines, 92 chains
    sections: of 40 40 names, 40 lines, 40 chains
    shared-5.zip: of 74 74 names, 74 lines, 74 chains
    shared.zip: of 74 74 names, 74 lines, 74 chains
    split-alone: of 116 116 names, 116 lines, 116 chains
    split-late.zip: of 118 118 names, 118 lines, 118 chains
    split-many.zip: of 358 358 names, 358 lines, 358 chains
    split-packaged-4.zip: of 118 118 names, 118 lines, 118 chains
    split-packaged.zip: of 156 156 names, 156 lines, 156 chains
    split-single.zip: of 118 118 names, 118 lines, 118 chains
    split-types.zip: of 102 102 names, 102 lines, 102 chains
    symbols-apart.zip: of 108 108 names, 108 lines, 108 chains
    symbols-within: of 26 26 names, 26 lines, 26 chains
    thumb: of 80 80 names, 80 lines, 80 chains
    thumb-assembly: of 92 92 names, 92 lines, 92 chains
    thunks: of 40 40 names, 40 lines, 40 chains
    xen-note: of 88 88 names, 88 lines, 88 chains
    "#);
}

/// The compiler ran in `app`, a relative name, and the file is in no other folder.
#[test]
fn a_relative_working_directory_is_in_a_path_once() {
    let opened = Opened::of("zoo/relative");
    let cache = opened.sliced(0, Kind::SymCache);
    let cache = cache.sym_caches();
    let paths: BTreeSet<String> = zoo_oracle("relative")
        .iter()
        .flat_map(|(address, _)| cache.lookup(*address))
        .filter_map(|at| Some(at.file()?.full_path()))
        .collect();
    assert_eq!(paths, ["app/resolver.cpp".to_owned()].into());
}

#[test]
fn a_symbol_that_is_not_utf_8_is_shown_with_a_replacement() {
    let mut program = fixture("zoo/resolver");
    let name = b"\0choose\0";
    let at = program.windows(name.len()).position(|it| it == name);
    program[at.unwrap() + 4] = 0xff;
    let opened = Opened::new(program, false, ROOM);
    let cache = opened.sliced(0, Kind::SymCache);
    let address = zoo_oracle("resolver")[0].0;
    let cache = cache.sym_caches();
    let mut found = cache.lookup(address);
    assert_eq!(found.next().unwrap().function().name(), "cho\u{fffd}se");
}

/// Changes bytes at random places, in headers as well as in relocations.
#[test]
fn a_kernel_module_with_random_changes_is_read_or_refused() {
    // This fixture has no compressed sections: a changed size could claim any amount of memory,
    // which only the limits of the parser process can handle.
    let module = fixture("zoo/kernel-module-arm64");
    let mut drawn = 0x9e37_79b9_u64;
    let mut draw = |most: usize| {
        drawn = drawn
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (drawn >> 33) as usize % most
    };
    let mut read = 0;
    for _ in 0..400 {
        let mut changed = module.clone();
        // The headers of sections are at the end.
        for _ in 0..3 {
            let at = match draw(2) {
                0 => draw(changed.len()),
                _ => changed.len() - 1 - draw(32 * 64),
            };
            changed[at] = draw(256) as u8;
        }
        let opened = Opened::new(changed, false, ROOM);
        for object in &opened.inspection.objects {
            for kind in [Kind::SymCache, Kind::CfiCache] {
                read += usize::from(opened.derive(object.index, kind).is_ok());
            }
        }
    }
    assert!(read > 100, "{read}");
}

#[test]
fn architectures_that_symbolic_does_not_know_have_names() {
    let arch = |file: &str| Opened::of(file).inspection.objects[0].arch.clone();
    let programs = ["zoo/riscv64", "zoo/ppc64le", "zoo/thumb", "elf/crash-arm64"];
    assert_eq!(programs.map(arch), ["riscv64", "ppc64", "arm", "arm64"]);
}

#[test]
fn machines_that_only_their_headers_name_have_names_too() {
    const E_MACHINE: usize = 18;
    let arch = |machine: u16| {
        let mut program = fixture("zoo/riscv64");
        program[E_MACHINE..E_MACHINE + 2].copy_from_slice(&machine.to_le_bytes());
        let opened = Opened::new(program, false, ROOM);
        opened.inspection.objects[0].arch.clone()
    };
    // The numbers are those of the registry of ELF machines.
    let machines = [22, 258, 43, 243].map(arch);
    assert_eq!(machines, ["s390x", "loongarch64", "sparc64", "riscv64"]);
}

#[test]
fn functions_of_a_stripped_thumb_program_begin_at_even_addresses() {
    let mut program = fixture("zoo/thumb");
    // Without sections of debug information, only symbols are left.
    let names: Vec<usize> = program
        .windows(7)
        .enumerate()
        .filter(|(_, bytes)| bytes == b".debug_")
        .map(|(at, _)| at)
        .collect();
    for at in names {
        program[at..at + 7].copy_from_slice(b".absent");
    }
    let elf = goblin::elf::Elf::parse(&program).unwrap();
    let headers = elf.program_headers.iter();
    let loaded = headers.filter(|header| header.p_type == goblin::elf::program_header::PT_LOAD);
    let load_address = loaded.map(|header| header.p_vaddr).min().unwrap();
    let functions: Vec<(u64, String)> = elf
        .syms
        .iter()
        .filter(|symbol| symbol.is_function() && symbol.st_size > 0)
        .map(|symbol| {
            assert_eq!(symbol.st_value % 2, 1, "the symbol of Thumb code is odd");
            let name = elf.strtab.get_at(symbol.st_name).unwrap();
            (symbol.st_value - 1 - load_address, name.to_owned())
        })
        .collect();
    assert!(functions.len() > 3, "{functions:?}");
    let opened = Opened::new(program.clone(), false, ROOM);
    assert!(!opened.inspection.objects[0].features.has_debug_info);
    let cache = opened.sliced(0, Kind::SymCache);
    let cache = cache.sym_caches();
    for (address, name) in functions {
        let found = cache.lookup(address).next().unwrap();
        let function = found.function();
        assert_eq!(
            (function.name(), u64::from(function.entry_pc())),
            (&*name, address)
        );
    }
}

#[test]
fn the_trampoline_of_a_stripped_libc_has_its_name() {
    /// `mov.w r7, #173; svc 0`
    const TRAMPOLINE: &[u8; 6] = b"\x4f\xf0\xad\x07\x00\xdf";
    let program = fixture("zoo/thumb");
    let elf = goblin::elf::Elf::parse(&program).unwrap();
    let section = |kind| {
        let mut sections = elf.section_headers.iter();
        sections.find(|section| section.sh_type == kind).unwrap()
    };
    let symbols = section(goblin::elf::section_header::SHT_SYMTAB);
    let names = elf.section_headers[symbols.sh_link as usize].sh_offset;
    let load_address = elf.program_headers.iter().map(|header| header.p_vaddr);
    let load_address = load_address.filter(|address| *address > 0).min().unwrap();
    let is_large = |symbol: &goblin::elf::Sym| symbol.is_function() && symbol.st_size >= 16;
    let mut functions = elf.syms.iter().enumerate();
    let mut with_long_name = |bytes: usize| {
        let found = functions.find(|(_, symbol)| {
            let name = elf.strtab.get_at(symbol.st_name).unwrap();
            is_large(symbol) && name.len() >= bytes
        });
        found.expect("the program has another function")
    };
    let (_, user) = with_long_name("sigaction".len());
    let (number, stripped) = with_long_name(1);

    let mut libc = program.clone();
    for (at, _) in program
        .windows(7)
        .enumerate()
        .filter(|(_, bytes)| bytes == b".debug_")
    {
        libc[at..at + 7].copy_from_slice(b".absent");
    }
    let name = names as usize + user.st_name;
    libc[name..name + 10].copy_from_slice(b"sigaction\0");
    // Without a section, a symbol is undefined.
    let entry = symbols.sh_offset as usize + number * symbols.sh_entsize as usize;
    libc[entry + 14..entry + 16].fill(0);
    let code = &elf.section_headers[stripped.st_shndx];
    let address = stripped.st_value & !1;
    let at = (address - code.sh_addr + code.sh_offset) as usize;
    libc[at..at + TRAMPOLINE.len()].copy_from_slice(TRAMPOLINE);

    let opened = Opened::new(libc, false, ROOM);
    let cache = opened.sliced(0, Kind::SymCache);
    let cache = cache.sym_caches();
    let at = |offset: u64| {
        let found = cache.lookup(address - load_address + offset).next();
        found.map(|found| {
            (
                found.function().name().to_owned(),
                found.function().entry_pc(),
            )
        })
    };
    let entry = u32::try_from(address - load_address).unwrap();
    let trampoline = Some(("__default_rt_sa_restorer".to_owned(), entry));
    assert_eq!(
        [at(0), at(5), at(6)],
        [trampoline.clone(), trampoline, None]
    );
}

/// The programs of the zoo.
pub(super) fn zoo() -> Vec<String> {
    let files = std::fs::read_dir("../tests/fixtures/zoo").unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names
        .filter_map(|name| name.strip_suffix(".expected").map(str::to_owned))
        .collect();
    names.sort();
    names
}

#[test]
fn a_portable_pdb_is_looked_up_by_method_and_offset() {
    let opened = Opened::of("dotnet/Ledger.pdb");
    let cache = opened.open(0, Kind::PpdbCache);
    let cache = cache.ppdb_cache().unwrap();
    let oracle: Value = serde_json::from_slice(&fixture("expected/dotnet-Ledger.json")).unwrap();
    for frame in oracle["frames"].as_array().unwrap() {
        let number = |field: &str| {
            u32::from_str_radix(frame[field].as_str().unwrap().trim_start_matches("0x"), 16)
                .unwrap()
        };
        let Some(line) = frame["line"].as_u64() else {
            continue;
        };
        let found = cache
            .lookup(number("function_id"), number("il_offset"))
            .unwrap();
        assert_eq!(
            (found.file_name, u64::from(found.line)),
            (frame["file"].as_str().unwrap(), line)
        );
    }
    assert_eq!(opened.missing(0, Kind::SymCache).cause, Cause::Unsupported);
    assert_eq!(
        Opened::of("pe/x64/crash.exe")
            .missing(0, Kind::PpdbCache)
            .cause,
        Cause::Unsupported
    );
}

#[test]
fn a_file_without_unwind_information_has_a_cache_without_slices() {
    assert!(
        Opened::of("elf/crash.debug")
            .sliced(0, Kind::CfiCache)
            .index
            .is_empty()
    );
}

#[test]
fn other_files_are_ignored_with_a_reason_that_a_user_understands() {
    for (file, reason) in [
        ("hostile/empty", "empty file"),
        (
            "hostile/text.txt",
            "not a debug information file: it begins with ",
        ),
        ("hostile/elf-magic-then-garbage", "cannot be read as elf: "),
        (
            "hostile/cut-short.pdb",
            "the file is cut short: it has 9000 of 94208 bytes, upload it again",
        ),
        (
            "hostile/macho-fat-of-4-billion",
            "not a debug information file",
        ),
        (
            "hostile/zip-magic-then-garbage.zip",
            "the zip archive is broken: ",
        ),
        (
            "hostile/wasm-endless-section.wasm",
            "cannot be read as wasm: ",
        ),
        ("hostile/nothing-of-use.zip", ": "),
        ("hostile/no-module.sym", "not a debug information file"),
    ] {
        let opened = Opened::of(file);
        assert_eq!(opened.inspection.objects, [], "{file}");
        let skipped = opened.inspection.skipped.join("\n");
        assert!(skipped.contains(reason), "{file}: {skipped}");
    }
}

#[test]
fn an_object_file_of_windows_is_ignored_with_advice() {
    // Microsoft, "PE Format": COFF file header; winnt.h: ANON_OBJECT_HEADER_BIGOBJ.
    let plain = [&[0x64, 0x86, 2, 0][..], &[0; 16], b".text\0\0\0"].concat();
    let class_id = b"\xc7\xa1\xba\xd1\xee\xba\xa9\x4b\xaf\x20\xfa\xf6\x6a\xa4\xdc\xb8";
    let big = [
        &[0, 0, 0xff, 0xff, 2, 0, 0x64, 0x86, 0, 0, 0, 0][..],
        class_id,
    ]
    .concat();
    for object in [plain, big] {
        let opened = Opened::new(object, false, ROOM);
        assert_eq!(
            opened.inspection.skipped,
            [
                "an object file of Windows (COFF), which is not linked: upload the PDB of what is linked from it"
            ]
        );
    }
}

#[test]
fn a_webassembly_component_is_ignored_with_advice() {
    let component = b"\0asm\x0d\0\x01\0\x01\x08\0asm\x01\0\0\0";
    let opened = Opened::new(component.to_vec(), false, ROOM);
    assert_eq!(opened.inspection.objects, []);
    let skipped = &opened.inspection.skipped[0];
    assert!(skipped.contains("upload the core module"), "{skipped}");
}

#[test]
fn breakpad_records_may_be_in_any_order_and_functions_without_names() {
    let symbols = "MODULE Linux x86_64 11111111111111111111111111111111A app\n\
                   FUNC 1000 10 0 main\nFILE 0 /src/a.cpp\n1000 10 7 0\n\
                   FUNC 1010 10 0\n1010 10 8 0\n";
    let opened = Opened::new(symbols.into(), false, ROOM);
    let cache = opened.sliced(0, Kind::SymCache);
    let cache = cache.sym_caches();
    for (address, name, line) in [(0x1004, "main", 7), (0x1014, "", 8)] {
        let found = cache.lookup(address).next().unwrap();
        assert_eq!((found.function().name(), found.line()), (name, line));
        assert_eq!(found.file().unwrap().full_path(), "/src/a.cpp");
    }
}

#[test]
fn an_object_without_an_id_is_listed_and_reported() {
    let opened = Opened::of("hostile/id-of-nothing.sym");
    let [object] = opened.inspection.objects.as_slice() else {
        panic!()
    };
    assert_eq!((object.debug_id, &object.code_id), (None, &None));
    let skipped = &opened.inspection.skipped[0];
    assert!(
        skipped.contains("neither a debug id nor a code id"),
        "{skipped}"
    );
    assert!(skipped.contains("its first line (MODULE)"), "{skipped}");
    assert!(!skipped.contains("build-id"), "{skipped}");
}

#[test]
fn a_mach_o_file_without_a_uuid_is_not_advised_to_have_a_build_id() {
    let mut dif = fixture(MACH_DEBUG);
    // `struct uuid_command` of `mach-o/loader.h`: its number, and its size.
    let command = [0x1b, 0, 0, 0, 24, 0, 0, 0];
    let at = dif.windows(8).position(|words| words == command).unwrap();
    dif[at] = 0x7f;
    let opened = Opened::new(dif, false, ROOM);
    let skipped = &opened.inspection.skipped[0];
    assert!(skipped.contains("unless -no_uuid is given"), "{skipped}");
    assert!(!skipped.contains("build-id"), "{skipped}");
}

#[test]
fn a_truncated_mach_o_file_has_its_ids_and_a_reason_why_nothing_is_derived() {
    for file in [MACH_DEBUG, "macho/arm64/crash", "macho/fat/crash"] {
        let complete = Opened::of(file);
        let mut dif = fixture(file);
        dif.pop();
        let opened = Opened::new(dif, false, ROOM);
        assert_eq!(opened.inspection.skipped, Vec::<String>::new(), "{file}");
        let ids = |opened: &Opened| -> Vec<Option<DebugId>> {
            let objects = opened.inspection.objects.iter();
            objects.map(|object| object.debug_id).collect()
        };
        assert_eq!(ids(&opened), ids(&complete), "{file}");
        for object in opened.inspection.objects {
            let fault = object.fault.unwrap_or_else(|| panic!("{file}"));
            assert!(
                fault.detail.starts_with("the file is cut short"),
                "{fault:?}"
            );
        }
    }
}

#[test]
fn a_truncated_file_has_its_ids_and_a_reason_why_nothing_is_derived() {
    let opened = Opened::of("hostile/cut-short.debug");
    let [object] = opened.inspection.objects.as_slice() else {
        panic!("{:?}", opened.inspection)
    };
    assert_eq!(
        object.debug_id.unwrap().to_string(),
        "10311f21-a03f-9405-1950-37650303f4a9"
    );
    assert_eq!(object.arch, "arm64");
    assert!(!object.features.has_debug_info);
    let missing = opened.missing(0, Kind::SymCache);
    assert_eq!(missing.cause, Cause::Malformed);
    assert!(
        missing.detail.contains("13116 of 26232 bytes"),
        "{}",
        missing.detail
    );
}

#[test]
fn a_truncated_executable_has_its_ids() {
    for (file, object) in [
        ("macho/arm64/crash", 0),
        ("macho/fat/crash", 1),
        ("pe/x64/crash.exe", 0),
        ("elf/inventory", 0),
    ] {
        let whole = Opened::of(file);
        let mut half = fixture(file);
        half.truncate(half.len() * 3 / 4);
        let half = Opened::new(half, false, ROOM);
        let (whole, half) = (
            &whole.inspection.objects[object],
            &half.inspection.objects[object],
        );
        assert_eq!(
            (half.debug_id, &half.code_id, &half.arch),
            (whole.debug_id, &whole.code_id, &whole.arch),
            "{file}"
        );
    }
}

/// Returns a compressed debug file that ends with a megabyte of incompressible bytes.
fn compressed_and_large(format: &str) -> Vec<u8> {
    let mut dif = fixture("elf/crash-arm64.debug");
    let mut noise = 1u64;
    dif.extend(
        std::iter::repeat_with(|| {
            noise = noise
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (noise >> 56) as u8
        })
        .take(1 << 20),
    );
    let level = flate2::Compression::fast();
    let mut out = Vec::new();
    match format {
        "gzip" => flate2::read::GzEncoder::new(&*dif, level)
            .read_to_end(&mut out)
            .map(drop)
            .unwrap(),
        "zlib" => flate2::read::ZlibEncoder::new(&*dif, level)
            .read_to_end(&mut out)
            .map(drop)
            .unwrap(),
        _ => out = zstd::encode_all(&*dif, 1).unwrap(),
    }
    out
}

#[test]
fn a_truncated_compressed_file_has_its_ids() {
    for (file, mut dif) in
        ["gzip", "zlib", "zstd"].map(|format| (format, compressed_and_large(format)))
    {
        dif.truncate(dif.len() * 3 / 4);
        let opened = Opened::new(dif, false, ROOM);
        let [object] = opened.inspection.objects.as_slice() else {
            panic!("{file}: {:?}", opened.inspection)
        };
        assert_eq!(
            object.debug_id.unwrap().to_string(),
            "10311f21-a03f-9405-1950-37650303f4a9"
        );
        let missing = opened.missing(0, Kind::SymCache);
        assert!(
            missing.detail.contains("stream is broken after"),
            "{}",
            missing.detail
        );
    }
}

#[test]
fn a_decompression_bomb_is_too_large_and_leaves_room_for_other_files() {
    for file in ["hostile/bomb-32-mib.gz", "hostile/bomb-1-gib.zst"] {
        let opened = Opened::of(file);
        assert!(opened.layout.out_of_room, "{file}");
        assert_eq!(opened.layout.unpacked_bytes, 1 << 20, "{file}");
        assert!(opened.unpacked.len() as u64 <= ROOM.bytes, "{file}");
        let code_id = opened.inspection.objects[0].code_id.as_ref().unwrap();
        assert_eq!(
            code_id.as_str(),
            "211f31103fa00594195037650303f4a9fb6672dd",
            "{file}: its header is valid"
        );
        assert_eq!(
            opened.missing(0, Kind::SymCache).cause,
            Cause::TooLarge { limit: ROOM.budget },
            "{file}"
        );
    }
    let small = RoomLimit {
        bytes: 20_000,
        budget: 30_000,
    };
    let opened = Opened::new(fixture("containers/crash-arm64.debug.gz"), false, small);
    assert_eq!(
        opened.inspection.objects[0]
            .code_id
            .as_ref()
            .unwrap()
            .as_str(),
        "211f31103fa00594195037650303f4a9fb6672dd"
    );
    assert_eq!(
        opened.missing(0, Kind::SymCache).cause,
        Cause::TooLarge { limit: 30_000 }
    );
}

#[test]
fn an_archive_with_a_file_that_does_not_fit_yields_the_others() {
    let room = RoomLimit {
        bytes: 60_000,
        budget: 60_000,
    };
    let opened = Opened::new(fixture("containers/several.zip"), false, room);
    let outcomes: Vec<bool> = opened
        .layout
        .objects
        .iter()
        .map(|found| found.fault.is_none())
        .collect();
    assert!(
        outcomes.contains(&true) && opened.layout.out_of_room,
        "{outcomes:?} {:?}",
        opened.inspection
    );
}

#[test]
fn names_in_an_archive_are_not_used_as_paths() {
    let opened = Opened::of("hostile/outside-its-folder.zip");
    assert_eq!(
        opened.inspection.objects[0].debug_id,
        Opened::of("elf/checksum").inspection.objects[0].debug_id
    );
}

#[test]
fn a_file_with_holes_has_its_ids_and_no_features() {
    for file in [
        "elf/crash.debug",
        "macho/arm64/crash",
        "pe/x64/crash.exe",
        "breakpad/crash.sym",
        "elf/inventory",
    ] {
        let whole = Opened::of(file);
        let mut holes = fixture(file);
        let ends = 4096.min(holes.len() / 3);
        let tail = holes.len() - ends;
        holes[ends..tail].fill(0);
        let partial = Opened::new(holes, true, ROOM);
        let [object] = partial.inspection.objects.as_slice() else {
            panic!("{file}: {:?}", partial.inspection)
        };
        assert_eq!(
            object.code_id, whole.inspection.objects[0].code_id,
            "{file}"
        );
        assert!(
            object.debug_id.is_none() || object.debug_id == whole.inspection.objects[0].debug_id,
            "{file}"
        );
        assert_eq!(
            object.features,
            crate::domain::Features::default(),
            "{file}"
        );
        assert_eq!(partial.missing(0, Kind::SymCache).cause, Cause::Malformed);
    }
}

#[test]
fn a_truncated_compressed_file_has_the_ids_at_its_beginning() {
    let mut holes = compressed_and_large("zstd");
    let half = holes.len() / 2;
    holes[half..].fill(0);
    let partial = Opened::new(holes, true, ROOM);
    assert_eq!(
        partial.inspection.objects.len(),
        1,
        "{:?}",
        partial.inspection
    );
    let archive = Opened::new(fixture("containers/several.zip"), true, ROOM);
    assert_eq!(
        archive.inspection.skipped,
        ["an archive of which only parts were read"]
    );
}

#[test]
fn an_id_that_holes_may_have_changed_is_not_reported() {
    let mut holes = fixture("elf/no-build-id.so");
    let (third, len) = (holes.len() / 3, holes.len());
    holes[third..len - third].fill(0);
    let partial = Opened::new(holes, true, ROOM);
    assert!(
        partial.inspection.objects.is_empty(),
        "{:?}",
        partial.inspection
    );
}

#[test]
fn damaged_files_are_malformed_or_derived_without_a_panic() {
    for file in [
        "hostile/bits-flipped.debug",
        "hostile/absurd-numbers.sym",
        "hostile/deep-names.so",
    ] {
        let opened = Opened::of(file);
        assert_eq!(opened.inspection.objects.len(), 1, "{file}");
        for kind in [Kind::SymCache, Kind::CfiCache] {
            if let Err(failure) = opened.derive(0, kind) {
                assert!(
                    matches!(&failure, Failure::Missing(missing) if missing.cause == Cause::Malformed),
                    "{failure:?}"
                );
            }
        }
    }
}

#[test]
fn a_cache_with_a_cycle_of_inlined_calls_is_refused() {
    let dif = fixture("elf/crash.debug");
    let object = Object::parse(&dif).unwrap();
    let (id, raw) = (object.debug_id(), raw_sym_cache(&object));
    let word =
        |at: usize| u32::from_ne_bytes(raw.as_slice()[at..at + 4].try_into().unwrap()) as usize;
    let (files, functions, locations, ranges) = (word(44), word(48), word(52), word(56));
    let start = (80 + files * 24).next_multiple_of(8) + functions * 16;
    assert!(locations > ranges, "the cache has inlined calls");
    let changed = |at: usize, number: u32| {
        let mut bad = blob::AlignedBytes::zeroed(raw.as_slice().len() as u64).unwrap();
        bad.as_mut_slice().copy_from_slice(raw.as_slice());
        bad.as_mut_slice()[at..at + 4].copy_from_slice(&number.to_ne_bytes());
        slices::validate(bad.as_slice(), Some(id))
    };
    assert_eq!(slices::validate(raw.as_slice(), Some(id)), Ok(()));
    assert!(changed(start + 12, 0).is_err(), "a cycle");
    assert!(changed(start, files as u32).is_err(), "no such file");
    assert!(
        changed(start + 8, functions as u32).is_err(),
        "no such function"
    );
    assert!(changed(52, ranges as u32 - 1).is_err(), "too few locations");
    assert!(changed(8, 7).is_err(), "the id of another object");
}

#[test]
fn a_layout_can_be_passed_to_another_process() {
    let opened = Opened::of("containers/several.zip");
    let there = serde_json::to_value(&opened.layout).unwrap();
    assert_eq!(
        serde_json::from_value::<Layout>(there).unwrap(),
        opened.layout
    );
}
