//! Maps in debug files: what completes the names or the lines of a module.

use std::path::Path;

use symdepot::domain::{DebugId, FileType, Inspection};

/// A map in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundMap {
    pub(crate) file_type: FileType,
    /// The id of the module that it completes; that of a symbol map is its own.
    pub(crate) id: DebugId,
    /// The id of the symbol map to which a UUID map refers.
    pub(crate) symbol_map: Option<DebugId>,
}

/// Returns the maps in a file whose ids are known, which may be from its path.
pub(crate) fn of_file(path: &Path, inspection: &Inspection) -> Vec<FoundMap> {
    let path = path.to_string_lossy();
    let maps = inspection.auxiliary.iter().filter_map(|file| {
        Some(FoundMap {
            file_type: file.file_type,
            id: file.id_at(&path).ok()?,
            symbol_map: file.symbol_map,
        })
    });
    maps.collect()
}
