//! Auxiliary files: maps that complete the SymCache of a debug file, and from which nothing is
//! derived alone.
//!
//! | File | Maps | Its id |
//! |---|---|---|
//! | UUID map | a Mach-O file to its symbol map | the UUID of the Mach-O file, in the name |
//! | symbol map | hidden names to names | a UUID of its own, in the name |
//! | line map | lines of generated C++ to lines of C# | the debug id of the debug file, in the contents or the name |
//!
//! Sources: Apple, Technical Note TN2151, "Bitcode"; `symsorter` and the *unified* layout, for
//! names; `symbolic-il2cpp` (MIT), for line maps.

use serde::{Deserialize, Serialize};

use super::{DebugId, FileType};

/// An auxiliary file in a DIF, or the DIF itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuxiliaryFile {
    /// Its type.
    pub file_type: FileType,
    /// The id, as far as it is known without the name of the DIF.
    pub id: AuxiliaryId,
    /// The id of the symbol map that a UUID map refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symbol_map: Option<DebugId>,
}

/// Where the id of an auxiliary file is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuxiliaryId {
    /// From its contents, or from its name in an archive.
    Known(DebugId),
    /// From the name of the DIF only, which is this file.
    InName,
}

/// The last folders or the extensions by which the name of an auxiliary file shows its type.
const EXTENSIONS: [(&str, FileType); 4] = [
    (".plist", FileType::UuidMap),
    (".bcsymbolmap", FileType::BcSymbolMap),
    (".il2cpp", FileType::Il2Cpp),
    (".json", FileType::Il2Cpp),
];
const UNIFIED: [(&str, FileType); 3] = [
    ("uuidmap", FileType::UuidMap),
    ("bcsymbolmap", FileType::BcSymbolMap),
    ("il2cpp", FileType::Il2Cpp),
];

/// Extensions of compressed files, which may follow.
const COMPRESSED: [&str; 3] = [".gz", ".zst", ".zlib"];

impl AuxiliaryFile {
    /// Returns the type that the path of a file suggests, and the id in it, if there is one.
    ///
    /// The forms are `<id>.plist`, `<id>.bcsymbolmap`, `<id>.il2cpp` and `<id>.json`, and those of
    /// the unified layout: `<first two digits>/<the rest>/<uuidmap, bcsymbolmap or il2cpp>`.
    pub fn named(path: &str) -> Option<(FileType, Option<DebugId>)> {
        let stem = COMPRESSED
            .iter()
            .find_map(|extension| path.strip_suffix(extension));
        let path = stem.unwrap_or(path);
        let mut segments = path.rsplit(['/', '\\']);
        let name = segments.next()?;
        if let Some((_, file_type)) = UNIFIED.iter().find(|(what, _)| *what == name) {
            let (rest, head) = (segments.next()?, segments.next()?);
            return Some((*file_type, id(&format!("{head}{rest}"))));
        }
        let of_extension = |(extension, file_type): &(&str, FileType)| {
            let stem = name.strip_suffix(extension)?;
            Some((*file_type, id(stem)))
        };
        EXTENSIONS.iter().find_map(of_extension)
    }

    /// Returns the id, given the path of the DIF.
    ///
    /// # Errors
    ///
    /// The reason why there is no id, or no certain one.
    pub fn id_at(&self, path: &str) -> Result<DebugId, String> {
        let named = Self::named(path).filter(|(file_type, _)| *file_type == self.file_type);
        let named = named.and_then(|(_, id)| id);
        let (what, form) = match self.file_type {
            FileType::UuidMap => ("UUID map", "<UUID of the Mach-O file>.plist"),
            FileType::BcSymbolMap => ("symbol map", "<UUID>.bcsymbolmap"),
            _ => ("line map", "<debug id>.il2cpp"),
        };
        match (self.id, named) {
            (AuxiliaryId::Known(id), Some(named)) if named.uuid() != id.uuid() => Err(format!(
                "a {what} of {id}, although its name has the id {named}"
            )),
            (AuxiliaryId::Known(id), _) | (AuxiliaryId::InName, Some(id)) => Ok(id),
            (AuxiliaryId::InName, None) => {
                Err(format!("a {what} whose id is not known: name it {form}"))
            }
        }
    }
}

/// Reads a UUID with or without dashes, and perhaps an age. The forty digits of the build id of an
/// ELF file are not read as a UUID with an age.
fn id(text: &str) -> Option<DebugId> {
    const UUID_DIGITS: usize = 32;
    const MAX_DIGITS: usize = 39;
    let digits = text.bytes().filter(|byte| *byte != b'-').count();
    let id: DebugId = match digits {
        UUID_DIGITS => text.parse().ok()?,
        ..=MAX_DIGITS if text.contains('-') => text.parse().ok()?,
        ..=MAX_DIGITS => DebugId::from_breakpad(text).ok()?,
        _ => return None,
    };
    (!id.is_nil()).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_an_auxiliary_file_is_in_its_name_or_in_its_folders() {
        let uuid: DebugId = "2d10c42f-591d-3265-b147-78ba0868073f".parse().unwrap();
        let aged = DebugId::from_parts(uuid.uuid(), 10);
        let (uuid_map, symbol_map) = (FileType::UuidMap, FileType::BcSymbolMap);
        let line_map = FileType::Il2Cpp;
        for (path, named) in [
            (
                "global/2D10C42F-591D-3265-B147-78BA0868073F.plist",
                Some((uuid_map, Some(uuid))),
            ),
            (
                "a\\2d10c42f591d3265b14778ba0868073f.bcsymbolmap.zst",
                Some((symbol_map, Some(uuid))),
            ),
            (
                "global/2d/10c42f591d3265b14778ba0868073f/uuidmap",
                Some((uuid_map, Some(uuid))),
            ),
            (
                "2d/10c42f591d3265b14778ba0868073fa/il2cpp",
                Some((line_map, Some(aged))),
            ),
            (
                "2d10c42f-591d-3265-b147-78ba0868073f-a.il2cpp",
                Some((line_map, Some(aged))),
            ),
            // A build id, which is not a debug id.
            (
                "ac/456ebc487ff425367208b89f51ad48c2e1c0ffee/il2cpp",
                Some((line_map, None)),
            ),
            ("global/mapping.json", Some((line_map, None))),
            ("Info.plist", Some((uuid_map, None))),
            (
                "00000000000000000000000000000000.plist",
                Some((uuid_map, None)),
            ),
            ("il2cpp", None),
            ("global/crash.debug", None),
            ("", None),
        ] {
            assert_eq!(AuxiliaryFile::named(path), named, "{path}");
        }
    }

    #[test]
    fn the_name_of_a_file_gives_an_id_only_to_its_own_type() {
        let file = |file_type| AuxiliaryFile {
            file_type,
            id: AuxiliaryId::InName,
            symbol_map: None,
        };
        let path = "2d10c42f-591d-3265-b147-78ba0868073f.plist";
        assert!(file(FileType::UuidMap).id_at(path).is_ok());
        let reason = file(FileType::BcSymbolMap).id_at(path).unwrap_err();
        assert!(reason.contains("name it <UUID>.bcsymbolmap"), "{reason}");
        let of_another = AuxiliaryFile {
            id: AuxiliaryId::Known(DebugId::from_parts(uuid::Uuid::from_u128(7), 0)),
            ..file(FileType::UuidMap)
        };
        assert!(of_another.id_at(path).unwrap_err().contains("although"));
        assert!(of_another.id_at("global/map").is_ok());
    }
}
