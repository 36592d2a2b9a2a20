//! The build id of an ELF file, which is in a note of its owner `GNU`.
//!
//! `symbolic` takes the first note of the same type, of any owner. Kernels for Xen have such notes
//! before that of the build id: all of them would have one id.
//!
//! Sources: the ELF specification (gABI), "Note Section"; the manual of GNU ld, `--build-id`.

use goblin::container::Ctx;
use goblin::elf::Elf;
use goblin::elf::header::Header;
use goblin::elf::note::NT_GNU_BUILD_ID;
use goblin::elf::program_header::{PT_NOTE, ProgramHeader};
use symbolic::common::{CodeId, DebugId, Uuid};
use symbolic::debuginfo::elf::ElfObject;

const OWNER: &[u8] = b"GNU\0";

/// Returns the code id and the debug id of an ELF file. Without a build id in a segment of notes,
/// they are those that `symbolic` finds.
pub(super) fn ids(elf: &ElfObject<'_>) -> (Option<CodeId>, DebugId) {
    match ids_by_note(elf.data()) {
        Some((code_id, debug_id)) => (Some(code_id), debug_id),
        None => (elf.code_id(), elf.debug_id()),
    }
}

/// Returns the ids that a build id stands for: the debug id is its first sixteen bytes as a GUID.
fn ids_by_note(elf: &[u8]) -> Option<(CodeId, DebugId)> {
    let header = Elf::parse_header(elf).ok()?;
    let context = Ctx::new(header.container().ok()?, header.endianness().ok()?);
    let build_id = build_id(elf, &header, context)?;
    let mut guid = [0; 16];
    let length = build_id.len().min(guid.len());
    guid.get_mut(..length)?.copy_from_slice(&build_id[..length]);
    if context.is_little_endian() {
        guid[..4].reverse();
        guid[4..6].reverse();
        guid[6..8].reverse();
    }
    let debug_id = DebugId::from_uuid(Uuid::from_bytes(guid));
    Some((CodeId::from_binary(build_id), debug_id))
}

fn build_id<'d>(elf: &'d [u8], header: &Header, context: Ctx) -> Option<&'d [u8]> {
    let offset = usize::try_from(header.e_phoff).ok()?;
    let headers = ProgramHeader::parse(elf, offset, header.e_phnum.into(), context).ok()?;
    let mut segments = headers.iter().filter(|header| header.p_type == PT_NOTE);
    segments.find_map(|segment| {
        let start = usize::try_from(segment.p_offset).ok()?;
        let end = start.checked_add(usize::try_from(segment.p_filesz).ok()?)?;
        let alignment = if segment.p_align == 8 { 8 } else { 4 };
        in_notes(elf.get(start..end)?, alignment, context.is_little_endian())
    })
}

fn in_notes(mut notes: &[u8], alignment: usize, is_little: bool) -> Option<&[u8]> {
    loop {
        let (words, rest) = notes.split_first_chunk::<12>()?;
        let (words, _) = words.as_chunks::<4>();
        let word = |index: usize| {
            let word = *words.get(index)?;
            Some(if is_little {
                u32::from_le_bytes(word)
            } else {
                u32::from_be_bytes(word)
            })
        };
        let (name, length) = (word(0)? as usize, word(1)? as usize);
        let begin = name.checked_next_multiple_of(alignment.min(4))?;
        // With eight bytes, the description is aligned from the start of the note.
        let begin = match alignment {
            8 => (begin + 12).next_multiple_of(8) - 12,
            _ => begin,
        };
        let description = rest.get(begin..begin.checked_add(length)?)?;
        if word(2)? == NT_GNU_BUILD_ID && rest.get(..name)? == OWNER && length > 0 {
            return Some(description);
        }
        let next = (begin + length + 12).checked_next_multiple_of(alignment)?;
        notes = notes.get(next..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::debuginfo::tests::fixture;

    /// Returns a note with a name of four bytes.
    fn note(owner: &[u8], kind: u32, description: &[u8]) -> Vec<u8> {
        let length = (description.len() as u32).to_le_bytes();
        let mut note = [
            &4_u32.to_le_bytes()[..],
            &length,
            &kind.to_le_bytes(),
            owner,
        ]
        .concat();
        note.extend(description);
        note.resize(note.len().next_multiple_of(4), 0);
        note
    }

    #[test]
    fn a_note_of_the_same_type_and_another_owner_is_no_build_id() {
        let xen = note(b"Xen\0", NT_GNU_BUILD_ID, &[0x80, 0xff, 0xff, 0xff, 1]);
        let gnu = note(OWNER, NT_GNU_BUILD_ID, &[7; 20]);
        let notes = [xen.clone(), gnu].concat();
        assert_eq!(in_notes(&notes, 4, true), Some(&[7; 20][..]));
        assert_eq!(in_notes(&xen, 4, true), None);
    }

    #[test]
    fn notes_that_end_early_have_no_build_id() {
        let notes = [
            note(b"Xen\0", NT_GNU_BUILD_ID, &[1; 8]),
            note(OWNER, NT_GNU_BUILD_ID, &[7; 20]),
        ];
        let notes = notes.concat();
        for length in 0..notes.len() {
            assert_eq!(in_notes(&notes[..length], 4, true), None, "{length}");
        }
        let mut absurd = notes;
        absurd[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(in_notes(&absurd, 4, true), None);
    }

    #[test]
    fn a_file_with_a_note_of_another_owner_has_the_ids_of_its_build_id_also_if_it_is_cut_short() {
        let dif = fixture("zoo/xen-note");
        let build_id = "013c11648d53c16fa8b869f1926208461c42236d";
        let debug_id = "64113c01-538d-6fc1-a8b8-69f192620846".parse().unwrap();
        let elf = ElfObject::parse(&dif).unwrap();
        assert_ne!(elf.code_id(), Some(CodeId::new(build_id.to_owned())));
        assert_eq!(
            ids(&elf),
            (Some(CodeId::new(build_id.to_owned())), debug_id)
        );
        let headers = crate::debuginfo::inspect::headers::read(&dif[..dif.len() / 2], 0).unwrap();
        assert_eq!(headers.code_id.unwrap().as_str(), build_id);
        assert_eq!(headers.debug_id, Some(debug_id));
    }

    #[test]
    fn the_ids_of_a_program_are_those_that_symbolic_reads() {
        for file in [
            "elf/crash",
            "elf/inventory",
            "elf/crash-arm64",
            "zoo/ppc64le",
        ] {
            let dif = fixture(file);
            let elf = ElfObject::parse(&dif).unwrap();
            let expected = elf.code_id().map(|id| (id, elf.debug_id()));
            assert_eq!(ids_by_note(&dif), expected, "{file}");
        }
    }
}
