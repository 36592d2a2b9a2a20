//! Reads ids from headers alone, for files that cannot be parsed as a whole.
//!
//! The headers of ELF and Mach-O files are reduced to the part with the id, which `symbolic` then
//! reads.

use symbolic::debuginfo::ObjectKind;
use symbolic::debuginfo::elf::ElfObject;
use symbolic::debuginfo::macho::MachObject;

use super::build_id;
use crate::domain::{Arch, CodeId, DebugId, FileType};

/// The size of the part of a file that is searched for headers and notes.
const HEADER_BYTES: usize = 1 << 20;

/// The maximum number of load commands that are read.
const MAX_LOAD_COMMANDS: u32 = 10_000;

/// The size of an `LC_UUID` load command.
const UUID_COMMAND_BYTES: usize = 24;

/// The contents of an object's headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Headers {
    pub(super) debug_id: Option<DebugId>,
    pub(super) code_id: Option<CodeId>,
    pub(super) arch: Arch,
    pub(super) file_type: FileType,
}

/// Reads the ids of the object with an index; `None` if the headers do not have them.
pub(super) fn read(data: &[u8], index: usize) -> Option<Headers> {
    if let Some(slice) = fat_architecture(data, index) {
        return mach(slice);
    }
    if index > 0 {
        return None;
    }
    elf(data).or_else(|| pe(data)).or_else(|| mach(data))
}

/// Reads the ids of an ELF file. The build id is in a note that a program header refers to. Section
/// headers are not used: they are at the end of the file and may be missing.
fn elf(data: &[u8]) -> Option<Headers> {
    if !data.starts_with(b"\x7fELF") {
        return None;
    }
    let mut header = data.get(..data.len().min(HEADER_BYTES))?.to_vec();
    let is_64 = *header.get(4)? == 2;
    // Offset of the section headers; their number and the index of their names.
    let without_sections = if is_64 {
        [0x28..0x30, 0x3c..0x40]
    } else {
        [0x20..0x24, 0x30..0x34]
    };
    for field in without_sections {
        header.get_mut(field)?.fill(0);
    }
    let object = ElfObject::parse(&header).ok()?;
    let (code_id, debug_id) = build_id::ids(&object);
    let is_debug = matches!(object.kind(), ObjectKind::Debug);
    Some(Headers {
        debug_id: Some(debug_id).filter(|id| !id.is_nil()),
        code_id: Some(code_id?),
        arch: object.arch(),
        file_type: if is_debug {
            FileType::ElfDebug
        } else {
            FileType::ElfCode
        },
    })
}

/// Reads the ids of a Mach-O file. The UUID is in a load command.
fn mach(data: &[u8]) -> Option<Headers> {
    const LC_UUID: u32 = 0x1b;
    let (header_bytes, is_big_endian) = match data.get(..4)? {
        [0xce, 0xfa, 0xed, 0xfe] => (28, false),
        [0xcf, 0xfa, 0xed, 0xfe] => (32, false),
        [0xfe, 0xed, 0xfa, 0xce] => (28, true),
        [0xfe, 0xed, 0xfa, 0xcf] => (32, true),
        _ => return None,
    };
    let from = if is_big_endian {
        u32::from_be_bytes
    } else {
        u32::from_le_bytes
    };
    let to = if is_big_endian {
        u32::to_be_bytes
    } else {
        u32::to_le_bytes
    };
    let word = |at: usize| Some(from(data.get(at..at.checked_add(4)?)?.try_into().ok()?));

    let mut at = header_bytes;
    let mut uuid = None;
    for _ in 0..word(16)?.min(MAX_LOAD_COMMANDS) {
        let size = word(at + 4)? as usize;
        let command = data.get(at..at.checked_add(size.max(8))?)?;
        if word(at)? == LC_UUID && size == UUID_COMMAND_BYTES {
            uuid = Some(command);
            break;
        }
        at += size.max(8);
    }

    let mut header = data.get(..header_bytes)?.to_vec();
    header.get_mut(16..20)?.copy_from_slice(&to(1));
    header
        .get_mut(20..24)?
        .copy_from_slice(&to(UUID_COMMAND_BYTES as u32));
    header.extend_from_slice(uuid?);
    let object = MachObject::parse(&header).ok()?;
    let is_debug = matches!(object.kind(), ObjectKind::Debug);
    Some(Headers {
        debug_id: Some(object.debug_id()).filter(|id| !id.is_nil()),
        code_id: object.code_id(),
        arch: object.arch(),
        file_type: if is_debug {
            FileType::MachDebug
        } else {
            FileType::MachCode
        },
    })
}

/// Returns the existing bytes of an architecture of a fat Mach-O file.
fn fat_architecture(data: &[u8], index: usize) -> Option<&[u8]> {
    if !data.starts_with(&[0xca, 0xfe, 0xba, 0xbe]) {
        return None;
    }
    let word =
        |at: usize| Some(u32::from_be_bytes(data.get(at..at + 4)?.try_into().ok()?) as usize);
    if index >= word(4)? {
        return None;
    }
    let entry = 8 + index * 20;
    let (start, size) = (word(entry + 8)?, word(entry + 12)?);
    data.get(start..start.saturating_add(size).min(data.len()))
}

/// Reads the ids of a PE file. The code id is in the headers; the debug id is in the CodeView
/// record, if there is one.
///
/// Microsoft, "PE Format": COFF file header, optional header, "The .debug Section".
fn pe(data: &[u8]) -> Option<Headers> {
    const IMAGE_DEBUG_TYPE_CODEVIEW: u32 = 2;
    const PORTABLE_PDB_MINOR_VERSION: u16 = 0x504d;
    let half = |at: usize| {
        Some(u16::from_le_bytes(
            data.get(at..at.checked_add(2)?)?.try_into().ok()?,
        ))
    };
    let word = |at: usize| {
        Some(u32::from_le_bytes(
            data.get(at..at.checked_add(4)?)?.try_into().ok()?,
        ))
    };
    if !data.starts_with(b"MZ") {
        return None;
    }
    let coff = word(0x3c)? as usize;
    if data.get(coff..coff.checked_add(4)?)? != b"PE\0\0" {
        return None;
    }
    let optional = coff + 24;
    let directories = match half(optional)? {
        0x10b => optional + 96,
        0x20b => optional + 112,
        _ => return None,
    };
    let sections = optional + usize::from(half(coff + 20)?);
    let to_offset = |address: u32| {
        (0..usize::from(half(coff + 6)?))
            .map(|section| sections + section * 40)
            .find_map(|section| {
                let (size, start, raw) =
                    (word(section + 8)?, word(section + 12)?, word(section + 20)?);
                let distance = address
                    .checked_sub(start)
                    .filter(|distance| *distance < size)?;
                Some(raw as usize + distance as usize)
            })
    };
    let debug_id = || {
        let directory = to_offset(word(directories + 48)?)?;
        let entries = word(directories + 52)? as usize / 28;
        let entry = (0..entries.min(64))
            .map(|entry| directory + entry * 28)
            .find(|entry| word(entry + 12) == Some(IMAGE_DEBUG_TYPE_CODEVIEW))?;
        let record = word(entry + 24)? as usize;
        let guid = data
            .get(record..record.checked_add(24)?)?
            .strip_prefix(b"RSDS")?
            .get(..16)?;
        let is_portable = half(entry + 10)? == PORTABLE_PDB_MINOR_VERSION;
        let age = if is_portable {
            word(entry + 4)?
        } else {
            word(record + 20)?
        };
        DebugId::from_guid_age(guid, age)
            .ok()
            .filter(|id| !id.is_nil())
    };
    Some(Headers {
        debug_id: debug_id(),
        code_id: Some(CodeId::new(format!(
            "{:08x}{:x}",
            word(coff + 8)?,
            word(optional + 56)?
        ))),
        arch: match half(coff + 4)? {
            0x014c => Arch::X86,
            0x8664 => Arch::Amd64,
            0xaa64 => Arch::Arm64,
            0x01c0 | 0x01c4 => Arch::Arm,
            _ => Arch::Unknown,
        },
        file_type: FileType::Pe,
    })
}
