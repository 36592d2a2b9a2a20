//! Tests the runs of units, and compares derived SymCaches with the oracle `symbolic`.

use std::collections::{BTreeMap, HashSet};
use std::io::Write as _;

use symbolic::debuginfo::{Archive, Object};
use symbolic::symcache::{SourceLocation, SymCache};

use super::*;
use crate::cache::Kind;
use crate::debuginfo::blob::AlignedBytes;
use crate::debuginfo::derive::kind::Derive as _;
use crate::debuginfo::derive::symcache::Sym;
use crate::debuginfo::slices::SliceIndex;
use crate::debuginfo::tests::{debug_files, fixture, text, zoo};
use crate::debuginfo::{blob, hostile, kernel_module};

/// Calls `show` with the ELF object of a fixture.
fn with_object(name: &str, show: impl FnOnce(&ElfObject<'_>)) {
    let dif = fixture(name);
    match Object::parse(&dif).unwrap() {
        Object::Elf(elf) => show(&elf),
        other => panic!("{name}: {other:?}"),
    }
}

/// Returns the units of an object in runs.
fn runs_of<'d>(elf: &ElfObject<'d>, run_bytes: usize) -> Units<'d> {
    let abbreviations = elf.section(sections::FIRST).unwrap().data;
    Units::of(elf, &abbreviations, run_bytes, None).unwrap()
}

#[test]
fn runs_are_whole_units_and_form_the_section_with_every_compression() {
    for name in [
        "elf/crash.debug",
        "elf/crash.zlib.debug",
        "elf/crash.zstd.debug",
        "elf/crash-arm64.debug",
    ] {
        with_object(name, |elf| {
            let section = elf.section(units::SECTION).unwrap().data;
            let runs: Vec<_> = runs_of(elf, 1).map(Result::unwrap).collect();
            assert!(runs.len() > 1, "{name} has one unit");
            assert_eq!(runs.concat(), &*section, "{name}");
            for run in &runs {
                let length = u32::from_le_bytes(*run.first_chunk().unwrap());
                assert_eq!(length as usize + 4, run.len(), "{name}");
            }
            let all: Vec<_> = runs_of(elf, usize::MAX).collect();
            assert_eq!(all.len(), 1);
        });
    }
}

/// Compresses the sections of a 64-bit Mach-O file with DWARF, as Go does.
fn with_compressed_sections(mut dif: Vec<u8>) -> Vec<u8> {
    const SEGMENT_64: u32 = 0x19;
    let number = |dif: &[u8], at: usize| u32::from_le_bytes(*dif[at..].first_chunk().unwrap());
    let long = |dif: &[u8], at: usize| u64::from_le_bytes(*dif[at..].first_chunk().unwrap());
    let mut command = 32;
    for _ in 0..number(&dif, 16) {
        let (kind, size) = (number(&dif, command), number(&dif, command + 4) as usize);
        let sections = match kind {
            SEGMENT_64 => number(&dif, command + 64) as usize,
            _ => 0,
        };
        for section in (0..sections).map(|number| command + 72 + number * 80) {
            let Some(name) = dif[section..section + 14].strip_prefix(b"__debug") else {
                continue;
            };
            let name = [b"__zdebug", name].concat();
            let (at, length) = (
                number(&dif, section + 48) as usize,
                long(&dif, section + 40),
            );
            let mut packed = [&b"ZLIB"[..], &length.to_be_bytes()].concat();
            let plain = &dif[at..at + length as usize];
            let mut zlib = flate2::write::ZlibEncoder::new(&mut packed, Default::default());
            zlib.write_all(plain).unwrap();
            zlib.finish().unwrap();
            // The place in memory is as far from that of the segment as the place in the file.
            let end = dif.len() as u64;
            let address = long(&dif, command + 24) + (end - long(&dif, command + 40));
            dif[section..section + name.len()].copy_from_slice(&name);
            dif[section + 32..section + 40].copy_from_slice(&address.to_le_bytes());
            dif[section + 40..section + 48].copy_from_slice(&(packed.len() as u64).to_le_bytes());
            dif[section + 48..section + 52].copy_from_slice(&(end as u32).to_le_bytes());
            dif.extend(packed);
        }
        command += size;
    }
    dif
}

#[test]
fn a_mach_o_file_whose_sections_are_compressed_has_the_same_cache() {
    let plain = fixture("macho/arm64/crash.dSYM/Contents/Resources/DWARF/crash");
    let compressed = with_compressed_sections(plain.clone());
    let blob_of = |dif: &[u8]| {
        let object = Object::parse(dif).unwrap();
        let Object::MachO(mach) = &object else {
            panic!()
        };
        assert!(has_units(mach));
        let contents = blob::unfiled(Kind::SymCache, object.arch(), Some(object.debug_id()));
        let encoded = Sym::encode(&object, &OtherFiles::default(), 2, &contents);
        (object.has_debug_info(), encoded.unwrap().blob)
    };
    let ((plain_by_symbolic, plain), (by_symbolic, compressed)) =
        (blob_of(&plain), blob_of(&compressed));
    assert!(plain_by_symbolic && !by_symbolic);
    assert_eq!(compressed, plain);
}

/// One frame of the answer for an address.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    name: String,
    language: String,
    entry: u32,
    path: Option<String>,
    line: u32,
}

/// Returns the frames at an address, the innermost first.
fn answers(cache: &SymCache<'_>, address: u64) -> Vec<Answer> {
    let answer = |location: SourceLocation<'_, '_>| {
        let function = location.function();
        Answer {
            name: function.name().to_owned(),
            language: function.language().to_string(),
            entry: function.entry_pc(),
            path: location.file().map(|file| file.full_path()),
            line: location.line(),
        }
    };
    cache.lookup(address).map(answer).collect()
}

/// Returns the addresses at which the answer of a SymCache may change.
fn starts(cache: &SymCache<'_>, raw: &[u8]) -> Vec<u64> {
    assert!(cache.version() > 0);
    slices::starts_of(raw).into_iter().map(u64::from).collect()
}

/// Returns the difference between an answer and that of `symbolic`, if it is an intended one.
fn difference(
    found: &[Answer],
    expected: &[Answer],
    image: &CodeSymbols<'_>,
) -> Option<&'static str> {
    let symbol = |answer: &Answer, name: &str| {
        let all = image.functions.iter().chain(&image.labels);
        let mut there = all.filter(|symbol| symbol.address == u64::from(answer.entry));
        there.any(|symbol| symbol.name.as_deref() == Some(name))
    };
    let expected = &without_directories(found, expected)[..];
    match (found, expected) {
        (found, expected) if found == expected => Some("a directory as a file"),
        ([.., found], [expected]) if is_bare(expected) && expected.entry == found.entry + 1 => {
            (found.name == expected.name).then_some("Thumb code")
        }
        ([found], [expected]) if is_bare(expected) && !is_bare(found) => {
            let named = Answer {
                path: None,
                line: 0,
                ..found.clone()
            };
            (named == *expected).then_some("a line that symbolic omits")
        }
        ([found], []) if symbol(found, &found.name) => {
            if is_bare(found) {
                Some("a label, or Thumb code")
            } else {
                Some("the line of a label")
            }
        }
        ([], [expected]) if is_bare(expected) => Some("no code"),
        ([found, others @ ..], expected) if is_bare(found) && others == expected => {
            (!others.is_empty()).then_some("a call without a line")
        }
        (found, expected) if is_undecorated(found, expected) => Some("a name of a PE file"),
        (found, expected) if found.len() > expected.len() => {
            let inner = [found.first()?, expected.first()?];
            let [place, expected_place] = inner.map(|answer| (&answer.path, answer.line));
            let is_same_function = found.last()?.name == expected.last()?.name;
            (is_same_function && place == expected_place).then_some("a call outside of its caller")
        }
        (found, expected) if found.len() == expected.len() => {
            let (last, inner) = found.split_last()?;
            let (expected, others) = expected.split_last()?;
            let renamed = Answer {
                name: expected.name.clone(),
                ..last.clone()
            };
            let is_named = inner == others && renamed == *expected && symbol(last, &last.name);
            is_named.then_some("the name of a split range")
        }
        _ => None,
    }
}

fn is_bare(answer: &Answer) -> bool {
    answer.path.is_none() && answer.line == 0
}

/// Returns an expected answer without the directories that `symbolic` has for the callers of
/// inlined calls without a file.
fn without_directories(found: &[Answer], expected: &[Answer]) -> Vec<Answer> {
    let mut expected = expected.to_vec();
    let pairs = found.iter().rev().zip(expected.iter_mut().rev());
    for (_, expected) in pairs.filter(|(found, expected)| is_bare(found) && expected.line == 0) {
        expected.path = None;
    }
    expected
}

/// Returns whether only an underscore in front of names is missing in the expected answer:
/// `symbolic` takes it for a decoration of MSVC.
fn is_undecorated(found: &[Answer], expected: &[Answer]) -> bool {
    let is_alike = |(found, expected): (&Answer, &Answer)| {
        let name = found.name.strip_prefix('_').unwrap_or(&found.name);
        let named = Answer {
            name: name.to_owned(),
            ..found.clone()
        };
        found == expected || named == *expected
    };
    found.len() == expected.len() && found.iter().zip(expected).all(is_alike)
}

const SMALL: Bounds = Bounds {
    ranges: 7,
    raw_bytes: 1 << 20,
};

const SHORT: Bounds = Bounds {
    ranges: 2200,
    raw_bytes: 1000,
};

/// The sizes of runs, the numbers of workers and the sizes of slices with which objects are
/// encoded. The first two differ only in the number of workers, and so do the next two, whose runs
/// have different sizes.
const WAYS: [(usize, usize, Bounds); 6] = [
    (1, 1, SMALL),
    (1, 3, SMALL),
    (2_000, 1, SMALL),
    (2_000, 3, SMALL),
    (usize::MAX, 2, SHORT),
    (usize::MAX, 1, Bounds::CURRENT),
];

/// Encodes an object in all [`WAYS`]. Returns `None` if its format cannot contain DWARF.
fn encoded_in_all_ways<'d>(
    file: &str,
    object: &Object<'d>,
    other: &OtherFiles<'_, 'd>,
) -> Option<Vec<EncodedCache>> {
    let debug_id = Some(object.debug_id()).filter(|id| !id.is_nil());
    let contents = blob::unfiled(Kind::SymCache, object.arch(), debug_id);
    let encoded = WAYS.map(|(run_bytes, workers, bounds)| {
        let program = Program::of(object, other, workers)?;
        Some(encode_runs(program, run_bytes, workers, &contents, bounds).unwrap())
    });
    let encoded: Vec<_> = encoded.into_iter().collect::<Option<_>>()?;
    for pair in [&encoded[..2], &encoded[2..4]] {
        assert!(
            pair[0].blob == pair[1].blob,
            "{file}: the blob depends on the number of workers"
        );
    }
    Some(encoded)
}

/// Compares a SymCache with an expected one at each address at which the answer of one of them may
/// change, and before it. Returns the number of addresses. An address with another answer is passed
/// to `differs`.
fn compare(
    found: &AlignedBytes,
    expected: &AlignedBytes,
    mut differs: impl FnMut(u64, &[Answer], &[Answer]),
) -> usize {
    let [(found, found_raw), (expected, expected_raw)] =
        [found, expected].map(|raw| (SymCache::parse(raw.as_slice()).unwrap(), raw.as_slice()));
    let mut addresses = starts(&expected, expected_raw);
    addresses.extend(starts(&found, found_raw));
    addresses.sort_unstable();
    addresses.dedup();
    for start in &addresses {
        for address in [start.saturating_sub(1), *start] {
            let (found, expected) = (answers(&found, address), answers(&expected, address));
            if found != expected {
                differs(address, &found, &expected);
            }
        }
    }
    2 * addresses.len()
}

/// Returns the names and bytes of all debug files that `symbolic` can read without another file.
/// Kernel modules are linked.
fn readable_by_symbolic() -> Vec<(String, Vec<u8>)> {
    let listed = debug_files().into_iter();
    let listed = listed.map(|entry| text(&entry, "file").unwrap().to_owned());
    let zoo = zoo().into_iter().filter(|name| !name.ends_with(".zip"));
    let all = listed.chain(zoo.map(|name| format!("zoo/{name}")));
    let with_bytes = all.map(|file| {
        let dif = fixture(&file);
        let linked = kernel_module::linked(&dif).unwrap();
        (file, linked.unwrap_or(dif))
    });
    with_bytes.collect()
}

/// Programs for which `symbolic` has wrong lines or none: of discarded functions, of units without
/// an address, of code at address zero or below the first segment, of functions that overlap, and
/// with a directory twice; or wrong names: of functions in other sections than
/// `__text`, and of stripped functions. They are compared with `llvm-symbolizer` at each
/// instruction (`the_zoo_has_the_same_answers_as_llvm_symbolizer`).
const WRONG_IN_SYMBOLIC: [&str; 9] = [
    "zoo/at-zero",
    "zoo/below-headers",
    "zoo/discarded",
    "zoo/mach-stripped",
    "zoo/mach-symbols",
    "zoo/relative",
    "zoo/resolver",
    "zoo/sections",
    "zoo/thumb-assembly",
];

#[test]
fn functions_that_32_bits_do_not_reach_are_reported() {
    let lacks_of = |file: &str| {
        let dif = fixture(file);
        let object = Object::parse(&dif).unwrap();
        let contents = blob::unfiled(Kind::SymCache, object.arch(), Some(object.debug_id()));
        let encoded = Sym::encode(&object, &OtherFiles::default(), 2, &contents);
        encoded.unwrap().lacks
    };
    let lacks = lacks_of("zoo/far").unwrap();
    assert!(lacks.contains("more than 4 GiB above it"), "{lacks}");
    assert_eq!(lacks_of("zoo/below-headers"), None);
}

/// Compares with the oracle. For every size of runs and slices and every number of workers, each
/// address has the same answer as in `symbolic`, which reads the whole file at once. The
/// exceptions, which decision 0014 explains, are listed here.
#[test]
fn every_address_of_every_fixture_has_the_same_answer_as_in_symbolic() {
    let (mut compared, mut differences, mut unknown) = (0, BTreeMap::new(), Vec::new());
    for (file, dif) in readable_by_symbolic() {
        for object in Archive::parse(&dif).unwrap().objects() {
            let object = object.unwrap();
            let Some(encoded) = encoded_in_all_ways(&file, &object, &OtherFiles::default()) else {
                continue;
            };
            let image = CodeSymbols::of(&object);
            let mut plain = Vec::new();
            Sym::write(&object, None, &mut plain).unwrap();
            let plain = AlignedBytes::copied(&plain).unwrap();
            for EncodedCache { blob, .. } in encoded {
                compared +=
                    compare(
                        &joined(&blob),
                        &plain,
                        |address, found, expected| match difference(found, expected, &image) {
                            _ if WRONG_IN_SYMBOLIC.contains(&&*file) => {
                                let class = "wrong in symbolic";
                                *differences.entry((file.clone(), class)).or_insert(0) += 1;
                            }
                            Some(class) => {
                                *differences.entry((file.clone(), class)).or_insert(0) += 1;
                            }
                            None => unknown.push(format!(
                                "{file} at {address:#x}: {found:#?} for {expected:#?}"
                            )),
                        },
                    );
            }
        }
    }
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
    assert!(compared > 10_000, "{compared}");
    let differences: Vec<_> = differences
        .iter()
        .map(|((file, difference), count)| format!("{file}: {difference}, {count} times"))
        .collect();
    insta::assert_snapshot!(differences.join("\n"), @r"
    elf/checksum: no code, 18 times
    elf/crash.debug: no code, 18 times
    elf/crash.zlib.debug: no code, 18 times
    elf/crash.zstd.debug: no code, 18 times
    elf/threads: no code, 18 times
    macho/arm64/crash: no code, 12 times
    macho/arm64/crash.dSYM/Contents/Resources/DWARF/crash: no code, 18 times
    macho/fat/crash: no code, 24 times
    macho/fat/crash.dSYM/Contents/Resources/DWARF/crash: no code, 36 times
    macho/x86_64/crash: no code, 12 times
    macho/x86_64/crash.dSYM/Contents/Resources/DWARF/crash: no code, 18 times
    zoo/at-zero: wrong in symbolic, 42 times
    zoo/below-headers: wrong in symbolic, 462 times
    zoo/discarded: wrong in symbolic, 96 times
    zoo/labels: the line of a label, 96 times
    zoo/lines-only: a line that symbolic omits, 108 times
    zoo/lines-only-O0: a line that symbolic omits, 612 times
    zoo/longer-symbol: the line of a label, 24 times
    zoo/mach-stripped: wrong in symbolic, 72 times
    zoo/mach-symbols: wrong in symbolic, 60 times
    zoo/mingw-labels.exe: a label, or Thumb code, 36 times
    zoo/mingw-lines.exe: a label, or Thumb code, 12 times
    zoo/mingw-lines.exe: the line of a label, 108 times
    zoo/mingw-lines.exe: the name of a split range, 516 times
    zoo/mingw-symbols.exe: a label, or Thumb code, 84 times
    zoo/mingw.exe: a name of a PE file, 684 times
    zoo/pieces: a call outside of its caller, 60 times
    zoo/pieces: a directory as a file, 48 times
    zoo/ppc64-symbols: a label, or Thumb code, 84 times
    zoo/ppc64le: a line that symbolic omits, 24 times
    zoo/relative: wrong in symbolic, 36 times
    zoo/resolver: wrong in symbolic, 12 times
    zoo/sections: wrong in symbolic, 228 times
    zoo/split-alone: a line that symbolic omits, 612 times
    zoo/symbols-within: a label, or Thumb code, 84 times
    zoo/thumb: Thumb code, 84 times
    zoo/thumb-assembly: wrong in symbolic, 180 times
    ");
}

fn elf(bytes: &[u8]) -> ElfObject<'_> {
    ElfObject::parse(bytes).unwrap()
}

/// Calls `show` with the first file of an archive, and with the others, which complete it.
fn with_companions(name: &str, show: impl for<'d> FnOnce(&Object<'d>, &OtherFiles<'_, 'd>)) {
    let mut archive = zip::ZipArchive::new(io::Cursor::new(fixture(name))).unwrap();
    let members = (0..archive.len()).map(|number| {
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut archive.by_index(number).unwrap(), &mut bytes).unwrap();
        bytes
    });
    let members: Vec<Vec<u8>> = members.collect();
    let (program, others) = members.split_first().unwrap();
    let object = Object::parse(program).unwrap();
    let split = others.iter().filter(|other| is_companion(&elf(other)));
    let other = OtherFiles {
        split: split.map(Vec::as_slice).collect(),
        symbols: others
            .iter()
            .find(|other| elf(other).code_id() == object.code_id())
            .map(Vec::as_slice),
        with_build_id: &|id| {
            let has_id = |other: &&Vec<u8>| {
                let code_id = elf(other).code_id();
                code_id.is_some_and(|code_id| code_id.as_str() == id) || is_supplementary(other, id)
            };
            others.iter().find(has_id).map(Vec::as_slice)
        },
        ..OtherFiles::default()
    };
    show(&object, &other);
}

/// `symbolic` does not read companions. What they say is held to llvm-symbolizer by
/// `the_zoo_has_the_same_answers_as_llvm_symbolizer`, with one size of runs and slices.
#[test]
fn programs_with_companions_have_the_same_answers_for_any_number_of_workers() {
    let archives = zoo().into_iter().filter(|name| name.ends_with(".zip"));
    let archives: Vec<_> = archives.collect();
    assert!(archives.len() > 6, "{archives:?}");
    for file in archives {
        with_companions(&format!("zoo/{file}"), |object, other| {
            let encoded = encoded_in_all_ways(&file, object, other).unwrap();
            let alone = encoded_in_all_ways(&file, object, &OtherFiles::default()).unwrap();
            assert!(encoded[0].blob != alone[0].blob, "{file} has no companion");
            let expected = joined(&encoded[0].blob);
            for EncodedCache { blob, lacks } in &encoded {
                assert_eq!(*lacks, None, "{file}");
                let compared = compare(&joined(blob), &expected, |address, found, expected| {
                    panic!("{file} at {address:#x}: {found:#?} for {expected:#?}");
                });
                assert!(compared > 20, "{file}: {compared}");
            }
        });
    }
}

/// Derives a SymCache from an object.
fn encoded(dif: &[u8], run_bytes: usize) -> Result<EncodedCache, Failure> {
    let object = Object::parse(dif).unwrap();
    let debug_id = Some(object.debug_id());
    let contents = blob::unfiled(Kind::SymCache, object.arch(), debug_id);
    let other = OtherFiles::default();
    let program = Program::of(&object, &other, 2).unwrap();
    encode_runs(program, run_bytes, 2, &contents, Bounds::CURRENT)
}

/// Returns the SymCache that the slices of a blob form together.
fn joined(blob: &[u8]) -> AlignedBytes {
    let joined = SliceIndex::of_blob(blob).unwrap().join(blob).unwrap();
    AlignedBytes::copied(&joined).unwrap()
}

/// Returns the number of ranges in a blob.
fn ranges(blob: &[u8]) -> usize {
    slices::starts_of(joined(blob).as_slice()).len()
}

#[test]
fn an_unreadable_unit_loses_its_functions_and_is_reported() {
    const UNIT_VERSION: usize = 4;
    let dif = fixture("elf/crash.debug");
    let whole = encoded(&dif, 1).unwrap();
    assert_eq!(whole.lacks, None);
    let (at, starts) = {
        let object = Object::parse(&dif).unwrap();
        let Object::Elf(elf) = &object else { panic!() };
        let section = elf.raw_section(units::SECTION).unwrap();
        let runs = runs_of(elf, 1).map(|run| run.unwrap().len());
        let starts = runs.scan(0, |end, length| {
            let start = *end;
            *end += length;
            Some(start)
        });
        (section.offset as usize, starts.collect::<Vec<_>>())
    };
    for run_bytes in [1, usize::MAX] {
        let mut bad = dif.clone();
        bad[at + starts[1] + UNIT_VERSION] = 0x77;
        let encoded = encoded(&bad, run_bytes).unwrap();
        let units = starts.len();
        let lacks = encoded.lacks.unwrap();
        let expected = format!("1 of the {units} units of its debug information cannot be read");
        assert!(lacks.starts_with(&expected), "{lacks}");
        let left = ranges(&encoded.blob);
        assert!(left < ranges(&whole.blob) && left > 100, "{left}");
    }
    let mut bad = dif;
    for start in starts {
        bad[at + start + UNIT_VERSION] = 0x77;
    }
    match encoded(&bad, 1) {
        Err(Failure::Missing(missing)) => {
            assert!(missing.detail.contains("corrupted dwarf"), "{missing:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_call_without_a_file_attribute_has_no_file() {
    // `DW_AT_call_file`, `DW_FORM_data1`, `DW_AT_call_line`, `DW_FORM_data1`.
    const NAMED: [u8; 4] = [0x58, 0x0b, 0x59, 0x0b];
    const CALL_COLUMN: u8 = 0x57;
    let dif = fixture("elf/crash.debug");
    let mut unnamed = dif.clone();
    let Object::Elf(elf) = &Object::parse(&dif).unwrap() else {
        panic!()
    };
    let abbreviations = elf.raw_section("debug_abbrev").unwrap();
    let named = abbreviations.data.windows(NAMED.len());
    let named = named.enumerate().filter(|(_, bytes)| *bytes == NAMED);
    let named: Vec<usize> = named.map(|(at, _)| at).collect();
    assert_eq!(named.len(), 9);
    for at in named {
        unnamed[abbreviations.offset as usize + at] = CALL_COLUMN;
    }
    let answered = |dif: &[u8]| -> Vec<Vec<Answer>> {
        let joined = joined(&encoded(dif, usize::MAX).unwrap().blob);
        let cache = SymCache::parse(joined.as_slice()).unwrap();
        let ranges = slices::starts_of(joined.as_slice()).into_iter();
        ranges.map(|at| answers(&cache, at.into())).collect()
    };
    let calls = |answered: &[Vec<Answer>]| {
        let callers = answered.iter().filter_map(|chain| chain.get(1..));
        let callers: Vec<&Answer> = callers.flatten().collect();
        let without = callers.iter().filter(|caller| caller.path.is_none());
        (callers.len(), without.count())
    };
    let (named, unnamed) = (answered(&dif), answered(&unnamed));
    let (callers, without) = calls(&unnamed);
    assert_eq!(calls(&named), (callers, 0));
    assert!(without > callers / 3, "{without} of {callers}");
    let paths = |answered: &[Vec<Answer>]| -> HashSet<String> {
        let paths = answered.iter().flatten();
        paths.filter_map(|answer| answer.path.clone()).collect()
    };
    assert!(
        paths(&unnamed).is_subset(&paths(&named)),
        "a directory is not a file"
    );
}

#[test]
fn missing_companions_are_reported_by_name() {
    let lacks = |dif: &[u8]| encoded(dif, usize::MAX).unwrap().lacks.unwrap();
    insta::assert_snapshot!(lacks(&fixture("zoo/split-alone")), @"inlined calls and names of 2 of 2 units are in split DWARF files, the first in shop.dwo (id b2ba7b9c6f282e2c): upload the program's .dwp, or its .dwo files");
    let mut archive = zip::ZipArchive::new(io::Cursor::new(fixture("zoo/shared.zip"))).unwrap();
    let mut program = Vec::new();
    io::Read::read_to_end(&mut archive.by_index(0).unwrap(), &mut program).unwrap();
    insta::assert_snapshot!(lacks(&program), @"some names are in the shared file shared (build id b7960ddcedd4e2e125922e00f0888450ce10f0ac): upload that file too, or configure a symbol server that has it");
}

/// Returns the sections of a program of the zoo as input for [`hostile::dwarf`].
fn hostile_seed(name: &str) -> Vec<u8> {
    let dif = fixture(name);
    let object = Object::parse(&dif).unwrap();
    let Object::Elf(elf) = &object else { panic!() };
    hostile::sections(|name| {
        let section = elf.section(name.trim_start_matches('.'));
        section.map_or(Vec::new(), |section| section.data.into_owned())
    })
}

#[test]
fn sections_copied_into_a_new_file_can_be_read() {
    let lacks = |encoded: EncodedCache| (ranges(&encoded.blob) > 20).then_some(encoded.lacks);
    for name in ["zoo/lines-only", "zoo/cold-parts", "zoo/labels"] {
        let elf = hostile::elf_of(&hostile_seed(name));
        let derived = derive_beside_itself(&elf).unwrap().unwrap();
        assert_eq!(lacks(derived), Some(None), "{name}");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(400))]

    /// The reader terminates and does not panic, whatever the bytes are.
    #[test]
    fn mutated_sections_are_read_or_refused(
        program in 0_usize..3,
        changes in proptest::collection::vec((0.0..1.0, proptest::prelude::any::<u8>()), 1..24),
    ) {
        let mut bytes = hostile_seed(["zoo/cold-parts", "zoo/labels", "zoo/ppc64le"][program]);
        for (place, byte) in changes {
            let at = (place * bytes.len() as f64) as usize;
            bytes[at] = byte;
        }
        hostile::dwarf(&bytes);
    }
}

#[test]
fn a_unit_with_a_wrong_length_extends_to_the_end_of_the_section() {
    for length in [u32::MAX - 0x20, 4000, u32::MAX] {
        let mut info = length.to_le_bytes().to_vec();
        info.resize(300, 7);
        let runs: Vec<_> = Units::of_section(&info).map(Result::unwrap).collect();
        assert_eq!(runs, [&*info], "{length:#x}");
    }
    assert_eq!(Units::of_section(&[]).count(), 0);
}
