//! The order in which the locations of a module are tried.

use crate::cache::ServerSearch;
use crate::domain::{FileType, Location, ObjectType};

/// Returns the locations of a module in the order in which they are tried: those of the files of
/// its platform first. Others are rare, such as DWARF for a program of Windows.
///
/// The list itself is part of the keys of entries, so its order stays.
pub(super) fn likely_first(sought: &ServerSearch) -> Vec<&(FileType, Location)> {
    let mut locations: Vec<_> = sought.locations.iter().collect();
    locations.sort_by_key(|(file_type, _)| is_foreign(*file_type, sought.object_type));
    locations
}

/// Returns whether files of this type belong to another platform than a module.
fn is_foreign(file_type: FileType, object_type: ObjectType) -> bool {
    use FileType::{ElfCode, ElfDebug, MachCode, MachDebug, Pdb, Pe, PortablePdb};
    match object_type {
        ObjectType::Elf => matches!(file_type, MachCode | MachDebug | Pe | Pdb | PortablePdb),
        ObjectType::Macho => matches!(file_type, ElfCode | ElfDebug | Pe | Pdb | PortablePdb),
        ObjectType::Pe | ObjectType::PeDotnet => {
            matches!(file_type, ElfCode | ElfDebug | MachCode | MachDebug)
        }
        ObjectType::Wasm | ObjectType::Unknown => false,
    }
}
