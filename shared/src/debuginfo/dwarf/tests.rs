//! Runs of units: what they hold, and which files have none.

use symbolic::debuginfo::Object;

use super::super::tests::fixture;
use super::*;

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

#[test]
fn a_function_that_an_earlier_run_had_is_left_out() {
    with_object("elf/crash.debug", |elf| {
        let (runs, units) = Runs::open(elf, usize::MAX).unwrap();
        let info: Vec<_> = units.map(Result::unwrap).collect();
        let info = Cow::from(info.concat());
        let mut seen = HashSet::new();
        let first = runs.read(info.clone(), &mut seen).unwrap();
        assert_eq!(first.functions().len(), seen.len());
        assert!(!seen.is_empty());
        let again = runs.read(info, &mut seen).unwrap();
        assert!(again.functions().is_empty());
    });
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
