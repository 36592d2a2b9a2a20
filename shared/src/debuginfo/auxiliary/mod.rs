//! Auxiliary files: recognizes and reads the maps that complete SymCaches.
//!
//! `line_map` reads the maps from generated C++ to C#. `symbolic` reads the other two. All readers
//! have limits, so that a hostile map costs bounded memory. A map that cannot be read is ignored
//! with its reason, and the SymCache is derived without it.

mod limits;
mod line_map;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use symbolic::common::{clean_path, join_path};
use symbolic::debuginfo::macho::{BcSymbolMap, UuidMapping};
use symbolic::symcache::transform::{SourceLocation, Transformer};

use self::limits::{MAX_MAP_BYTES, MAX_NAMES, MAX_UUID_MAP_BYTES, MAX_UUID_MAP_TAGS, check_size};
pub(super) use self::line_map::{LineMap, SourceLine};
use super::layout::{FoundObject, Layout, Member};
use super::panics;
use crate::domain::{AuxiliaryFile, AuxiliaryId, DebugId, FileType};

/// Returns the type of auxiliary files that a file begins like.
fn begins_like(head: &[u8]) -> Option<FileType> {
    if BcSymbolMap::test(head) {
        return Some(FileType::BcSymbolMap);
    }
    const XML: [&[u8]; 3] = [b"<?xml", b"<!DOCTYPE plist", b"<plist"];
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    match head.trim_ascii_start() {
        [b'{', ..] => Some(FileType::Il2Cpp),
        text if XML.iter().any(|begin| text.starts_with(begin)) => Some(FileType::UuidMap),
        _ => None,
    }
}

/// Returns whether a file in a container or a folder may be an auxiliary file, by its path and its
/// first bytes. There may be other property lists and other JSON.
pub fn may_be_auxiliary(name: &str, head: &[u8]) -> bool {
    let Some(file_type) = begins_like(head) else {
        return false;
    };
    match AuxiliaryFile::named(name) {
        _ if name.is_empty() => true,
        Some((named, Some(_))) => named == file_type,
        // The contents may have the id.
        Some((FileType::Il2Cpp, None)) => file_type == FileType::Il2Cpp && !name.ends_with(".json"),
        _ => file_type == FileType::BcSymbolMap,
    }
}

/// Reads the facts about a member that may be an auxiliary file; `None` if it is no such file.
///
/// # Errors
///
/// The reason why it is ignored. It does not quote the file.
pub(super) fn read(member: &Member, data: &[u8]) -> Option<Result<AuxiliaryFile, String>> {
    let file_type = begins_like(data)?;
    let read = panics::caught(|| read_as(file_type, member, data));
    Some(read.unwrap_or_else(Err))
}

fn read_as(file_type: FileType, member: &Member, data: &[u8]) -> Result<AuxiliaryFile, String> {
    let (what, within, symbol_map) = match file_type {
        FileType::UuidMap => {
            let symbol_map = symbol_map_of(data)?;
            ("UUID map", None, Some(symbol_map))
        }
        FileType::BcSymbolMap => {
            names(data)?;
            ("symbol map", None, None)
        }
        _ => ("line map", LineMap::read(data)?.debug_id(), None),
    };
    let named = if member.name.is_empty() {
        member.id
    } else {
        AuxiliaryFile::named(&member.name)
            .filter(|(named, _)| *named == file_type)
            .and_then(|(_, id)| id)
    };
    if let (Some(named), Some(within)) = (named, within)
        && named.uuid() != within.uuid()
    {
        return Err(format!(
            "a {what} of {within}, although its name has the id {named}"
        ));
    }
    let id = match within.or(named) {
        Some(id) => AuxiliaryId::Known(id),
        None if member.name.is_empty() => AuxiliaryId::InName,
        None => return Err(format!("a {what} without a UUID in its name")),
    };
    Ok(AuxiliaryFile {
        file_type,
        id,
        symbol_map,
    })
}

/// Reads the id of the symbol map from a UUID map.
fn symbol_map_of(data: &[u8]) -> Result<DebugId, String> {
    check_size(data, MAX_UUID_MAP_BYTES, "property list")?;
    if data.iter().filter(|byte| **byte == b'<').count() > MAX_UUID_MAP_TAGS {
        return Err(format!("XML of more than {MAX_UUID_MAP_TAGS} tags"));
    }
    // The first id is that of the Mach-O file, which is not part of the bytes.
    let map = UuidMapping::parse_plist(DebugId::nil(), data);
    let symbol_map = map.map(|map| map.original_uuid());
    let symbol_map = symbol_map.ok().filter(|id| !id.is_nil());
    symbol_map.ok_or_else(|| "XML that is not a UUID map: it has no DBGOriginalUUID".to_owned())
}

/// Reads a symbol map.
pub(super) fn names(data: &[u8]) -> Result<BcSymbolMap<'_>, String> {
    check_size(data, MAX_MAP_BYTES, "symbol map")?;
    if data.iter().filter(|byte| **byte == b'\n').count() > MAX_NAMES {
        return Err(format!("a symbol map of more than {MAX_NAMES} names"));
    }
    BcSymbolMap::parse(data).map_err(|error| format!("a symbol map that cannot be read: {error}"))
}

/// The members that complete the SymCache of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MapMembers {
    pub(super) symbol_map: Option<usize>,
    pub(super) line_map: Option<usize>,
    /// The id of the symbol map, according to a UUID map.
    symbol_map_id: Option<DebugId>,
}

impl MapMembers {
    /// Finds the members that complete an object.
    pub(super) fn of(layout: &Layout, object: &FoundObject) -> Self {
        let Some(id) = object.meta.debug_id.filter(|id| !id.is_nil()) else {
            return Self::default();
        };
        let with_id = |file_type, id: DebugId| {
            let files = layout.auxiliary.iter();
            files.filter(move |found| {
                let is_it = |known: DebugId| known.uuid() == id.uuid();
                found.file_type == file_type && found.id.is_some_and(is_it)
            })
        };
        let named = || with_id(FileType::UuidMap, id).filter_map(|found| found.symbol_map);
        let symbol_map = |id| Some(with_id(FileType::BcSymbolMap, id).next()?.member);
        let line_map = with_id(FileType::Il2Cpp, id).next();
        Self {
            symbol_map: if object.meta.hides_names {
                named().find_map(symbol_map)
            } else {
                None
            },
            line_map: line_map.map(|found| found.member),
            symbol_map_id: named().next(),
        }
    }

    /// Describes the names that an object hides, if its symbol map is missing, and how to provide
    /// it.
    pub(super) fn lack(&self, object: &FoundObject) -> Option<String> {
        if !object.meta.hides_names || self.symbol_map.is_some() {
            return None;
        }
        let id = object.meta.debug_id.unwrap_or_default();
        Some(match self.symbol_map_id {
            Some(map) => {
                format!("its names are hidden: upload its symbol map, {map}.bcsymbolmap")
            }
            None => format!(
                "its names are hidden: upload its UUID map, {id}.plist (in Contents/Resources of \
                 the dSYM), and the symbol map that this names (<UUID>.bcsymbolmap)"
            ),
        })
    }
}

/// The maps that complete a SymCache.
#[derive(Debug, Default)]
pub(super) struct Maps<'d> {
    names: Option<BcSymbolMap<'d>>,
    pub(super) lines: Option<LineMap>,
}

impl<'d> Maps<'d> {
    /// Reads maps. One that cannot be read is left out: its inspection reported the reason.
    pub(super) fn read(symbol_map: Option<&'d [u8]>, line_map: Option<&[u8]>) -> Self {
        Self {
            names: symbol_map.and_then(|data| names(data).ok()),
            lines: line_map.and_then(|data| LineMap::read(data).ok()),
        }
    }

    /// Returns the name that a hidden name stands for, and any other name unchanged.
    pub(super) fn name<'n>(&self, name: Cow<'n, str>) -> Cow<'n, str>
    where
        'd: 'n,
    {
        let Some(names) = &self.names else {
            return name;
        };
        match name {
            Cow::Borrowed(name) => Cow::Borrowed(names.resolve(name)),
            Cow::Owned(name) => Cow::Owned(names.resolve(&name).to_owned()),
        }
    }
}

/// Returns the path by which a line map knows a file, given its compilation directory, directory
/// and name.
pub(super) fn path_of([compilation, directory, name]: [&str; 3]) -> String {
    let directory = join_path(compilation, directory);
    let path = join_path(&directory, name);
    clean_path(&path).into_owned()
}

/// Replaces lines of generated C++ by lines of C# in the converter of `symbolic`.
pub(super) struct MapLines<'m>(pub(super) &'m LineMap);

impl Transformer for MapLines<'_> {
    fn transform_source_location<'f>(
        &'f mut self,
        mut location: SourceLocation<'f>,
    ) -> SourceLocation<'f> {
        let file = &location.file;
        let text = |text: &Option<Cow<'f, str>>| text.as_deref().unwrap_or_default().to_owned();
        let path = path_of([
            &text(&file.comp_dir),
            &text(&file.directory),
            file.name.as_ref(),
        ]);
        if let Some(SourceLine { file, line }) = self.0.find(&path, location.line) {
            location.file.name = self.0.file(file).into();
            location.file.comp_dir = None;
            location.file.directory = None;
            location.line = line;
        }
        location
    }
}
