//! Whether an object has unwind information: the entry of a function, not only a section for them.

use gimli::RunTimeEndian;
use symbolic::debuginfo::Object;
use symbolic::debuginfo::dwarf::{Dwarf as _, Endian};
use symbolic::debuginfo::elf::ElfObject;

use crate::debuginfo::derive::{frames, pe_frames};
use crate::debuginfo::quirks::eh_frame_is_misread;

/// Returns whether a CFI cache of an object has records.
pub(super) fn has_unwind_info(object: &Object<'_>) -> bool {
    match object {
        Object::Elf(elf) => is_in_elf(elf),
        Object::Pe(pe) => {
            let eh_frame = pe_frames::eh_frame(pe);
            let has_functions = eh_frame.is_some_and(|section| {
                frames::has_functions(&section.data, RunTimeEndian::Little, false)
            });
            has_functions || pe.has_unwind_info()
        }
        Object::MachO(mach) if !mach.has_unwind_info() => {
            let compressed = frames::compressed_in_mach(mach);
            compressed.is_some_and(|section| {
                frames::has_functions(&section.data, RunTimeEndian::Little, true)
            })
        }
        _ => object.has_unwind_info() && !eh_frame_is_misread(object),
    }
}

/// Firmware has an `.eh_frame` with nothing but its end, or none that the linker kept. A section
/// that is compressed cannot be read here, and counts as one that has entries.
fn is_in_elf(elf: &ElfObject<'_>) -> bool {
    let endian = match elf.endianity() {
        Endian::Little => RunTimeEndian::Little,
        Endian::Big => RunTimeEndian::Big,
    };
    let has_functions = |name: &str, is_debug_frame: bool| {
        let section = elf.raw_section(name);
        section.is_some_and(|found| frames::has_functions(&found.data, endian, is_debug_frame))
    };
    has_functions("eh_frame", false) || has_functions("debug_frame", true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::debuginfo::derive::pe_frames::tests::{ENTRIES, with_eh_frame};
    use crate::debuginfo::tests::fixture;

    /// Returns whether a program has unwind information if its `.eh_frame` has these bytes at an
    /// offset.
    fn is_unwound(at: usize, bytes: &[u8]) -> bool {
        let mut dif = fixture("elf/crash");
        let start = at + section(&dif).0;
        dif[start..start + bytes.len()].copy_from_slice(bytes);
        has_unwind_info(&Object::parse(&dif).unwrap())
    }

    /// Returns where the `.eh_frame` of a program begins, and the length of its first entry.
    fn section(dif: &[u8]) -> (usize, usize) {
        let Object::Elf(elf) = Object::parse(dif).unwrap() else {
            panic!("it is an ELF file");
        };
        let section = elf.raw_section("eh_frame").unwrap();
        let length = u32::from_le_bytes(section.data[..4].try_into().unwrap());
        (section.offset as usize, 4 + length as usize)
    }

    #[test]
    fn a_section_without_the_entry_of_a_function_is_no_unwind_information() {
        const END: [u8; 4] = [0; 4];
        assert!(is_unwound(0, &[]));
        assert!(!is_unwound(0, &END));
        // What the entries of functions have in common.
        let (_, shared) = section(&fixture("elf/crash"));
        assert!(!is_unwound(shared, &END));
        // What cannot be read is for its reader to judge.
        assert!(is_unwound(0, &[0xf0, 0xff, 0xff, 0xff]));
    }

    #[test]
    fn a_debug_frame_may_have_no_entry_either() {
        const SHARED: [u8; 12] = [8, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0];
        const FUNCTION: [u8; 12] = [8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
        let has = |section: &[u8]| frames::has_functions(section, RunTimeEndian::Little, true);
        assert!(!has(&[]));
        assert!(!has(&[0; 8]));
        assert!(!has(&SHARED));
        assert!(has(&[SHARED, FUNCTION].concat()));
    }

    #[test]
    fn a_program_for_32_bit_windows_may_be_unwound_without_a_pdb() {
        for (entries, expected) in [(&ENTRIES[..], true), (&[0_u8; 4][..], false)] {
            let dif = with_eh_frame(entries);
            let object = Object::parse(&dif).unwrap();
            assert_eq!(has_unwind_info(&object), expected);
        }
    }
}
