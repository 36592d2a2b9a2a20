//! Runs of units: what they hold; and what is derived of them, beside the oracle.

use symbolic::debuginfo::{Archive, Object};
use symbolic::symcache::{SourceLocation, SymCache};

use super::super::blob::AlignedBytes;
use super::super::build::Derive as _;
use super::super::slices::SliceIndex;
use super::super::symcache::Sym;
use super::super::tests::{debug_files, fixture, text};
use super::*;
use crate::cache::Kind;

/// Calls what is to be shown with the ELF object in a fixture.
fn with_object(name: &str, show: impl FnOnce(&ElfObject<'_>)) {
    let dif = fixture(name);
    match Object::parse(&dif).unwrap() {
        Object::Elf(elf) => show(&elf),
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn runs_are_whole_units_and_together_the_section_however_it_is_compressed() {
    for name in [
        "elf/crash.debug",
        "elf/crash.zlib.debug",
        "elf/crash.zstd.debug",
        "elf/crash-arm64.debug",
    ] {
        with_object(name, |elf| {
            let section = elf.section(units::SECTION).unwrap().data;
            let runs: Vec<_> = Units::of(elf, 1).unwrap().map(Result::unwrap).collect();
            assert!(runs.len() > 1, "{name} has one unit");
            assert_eq!(runs.concat(), &*section, "{name}");
            for run in &runs {
                let length = u32::from_le_bytes(*run.first_chunk().unwrap());
                assert_eq!(length as usize + 4, run.len(), "{name}");
            }
            let all: Vec<_> = Units::of(elf, usize::MAX).unwrap().collect();
            assert_eq!(all.len(), 1);
        });
    }
}

/// What an address is answered with, the innermost function first.
fn answers(cache: &SymCache<'_>, address: u64) -> Vec<String> {
    let answer = |location: SourceLocation<'_, '_>| {
        let (function, file) = (location.function(), location.file());
        let path = file.map(|file| file.full_path());
        let (name, language, entry) = (function.name(), function.language(), function.entry_pc());
        let line = location.line();
        format!("{name} {language} {entry:#x} {path:?} {line}")
    };
    cache.lookup(address).map(answer).collect()
}

/// Returns the addresses at which a SymCache may answer something else than before them.
fn starts(cache: &SymCache<'_>, raw: &[u8]) -> Vec<u64> {
    assert!(cache.version() > 0);
    slices::starts_of(raw).into_iter().map(u64::from).collect()
}

/// The oracle: whatever the size of runs and of slices and the number of workers, each address is answered as `symbolic`
/// answers it, which reads the whole file by itself.
#[test]
fn every_address_of_every_fixture_is_answered_as_symbolic_does() {
    let mut compared = 0;
    for entry in debug_files() {
        let file = text(&entry, "file").unwrap();
        let dif = fixture(file);
        for object in Archive::parse(&dif).unwrap().objects() {
            let object = object.unwrap();
            let Object::Elf(elf) = &object else { continue };
            let mut plain = Vec::new();
            Sym::write(&object, &mut plain).unwrap();
            let plain = AlignedBytes::copied(&plain).unwrap();
            let expected = SymCache::parse(plain.as_slice()).unwrap();
            let debug_id = Some(object.debug_id()).filter(|id| !id.is_nil());
            let contents = slices::unfiled(Kind::SymCache, object.arch(), debug_id);
            let mut blobs = Vec::new();
            for (run_bytes, workers, bounds) in [
                (
                    1,
                    1,
                    Bounds {
                        ranges: 7,
                        raw_bytes: 1 << 20,
                    },
                ),
                (
                    1,
                    3,
                    Bounds {
                        ranges: 7,
                        raw_bytes: 1 << 20,
                    },
                ),
                (
                    usize::MAX,
                    2,
                    Bounds {
                        ranges: 2200,
                        raw_bytes: 1000,
                    },
                ),
                (usize::MAX, 1, Bounds::CURRENT),
            ] {
                let blob = seal_runs(elf, run_bytes, workers, &contents, bounds).unwrap();
                let index = SliceIndex::of_blob(&blob).unwrap();
                let joined = AlignedBytes::copied(&index.join(&blob).unwrap()).unwrap();
                let found = SymCache::parse(joined.as_slice()).unwrap();
                let mut addresses = starts(&expected, plain.as_slice());
                addresses.extend(starts(&found, joined.as_slice()));
                addresses.sort_unstable();
                addresses.dedup();
                for address in addresses {
                    for address in [address.saturating_sub(1), address] {
                        assert_eq!(
                            answers(&found, address),
                            answers(&expected, address),
                            "{file} at {address:#x}, runs of {run_bytes}"
                        );
                        compared += 1;
                    }
                }
                blobs.push(blob);
            }
            assert!(
                blobs[0] == blobs[1],
                "{file}: as many bytes for any number of workers"
            );
        }
    }
    assert!(compared > 10_000, "{compared}");
}

#[test]
fn a_unit_whose_length_lies_is_what_is_left_of_the_section() {
    for length in [u32::MAX - 0x20, 4000, u32::MAX] {
        let mut info = length.to_le_bytes().to_vec();
        info.resize(300, 7);
        let runs: Vec<_> = Units::of_section(&info).map(Result::unwrap).collect();
        assert_eq!(runs, [&*info], "{length:#x}");
    }
    assert_eq!(Units::of_section(&[]).count(), 0);
}
