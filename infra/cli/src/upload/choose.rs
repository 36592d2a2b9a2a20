//! Which files are worth sending, and what identifies them.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use symdepot::api::uploads::FileToUpload;
use symdepot::domain::{
    CompanionId, FileType, Inspection, Location, MsSymCacheName, ObjectMeta, Scope, upload_key,
};

use crate::inspection;

/// A file to upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    pub(super) path: PathBuf,
    /// Its name for the service.
    name: String,
    /// Its size in bytes.
    pub(super) bytes: u64,
    /// Its SHA-256 in hex.
    sha256: String,
    /// The ids of its objects, debug ids first; those of a companion or of a map, by which others
    /// find it.
    pub(super) ids: Vec<String>,
}

impl Chosen {
    /// Returns the question whether the service has the file.
    pub(super) fn to_look_up(&self) -> FileToUpload {
        FileToUpload {
            name: self.name.clone(),
            size: None,
            parts: Vec::new(),
            sha256: Some(self.sha256.clone()),
            ids: self.ids.clone(),
        }
    }
}

/// Returns how a file is uploaded; fails with the reason if no request could use it.
pub(super) fn choose(path: &Path) -> Result<Chosen, String> {
    let location = Location::new(path.to_string_lossy());
    let (name, ids) = match MsSymCacheName::of(&location) {
        Some(name) => (name.path(), vec![name.debug_id.to_string()]),
        None if MsSymCacheName::is_suggested_by(&location) => {
            return Err("a SymCache is found by its path: keep it at app.pdb/<GUID><age>/app.pdb-v3.1.0.symcache".to_owned());
        }
        None => {
            let inspection = inspection::inspect(path, false)?.inspection;
            (
                name_of(&location, &inspection),
                ids_of(&location, &inspection)?,
            )
        }
    };
    let (bytes, sha256) = digest(path).map_err(|error| error.to_string())?;
    // The service refuses a whole request for one file that cannot have a key, in any scope.
    let id = ids.first().map(String::as_str).unwrap_or_default();
    upload_key(&Scope::Global, &name, id, &sha256).map_err(|error| error.to_string())?;
    Ok(Chosen {
        path: path.to_owned(),
        name,
        bytes,
        sha256,
        ids,
    })
}

/// Returns the name of a file for the service. That of a map has its id, which may be in the names
/// of its folders here.
fn name_of(location: &Location, inspection: &Inspection) -> String {
    let name = location.file_name();
    let mut maps = inspection.auxiliary.iter();
    let unnamed = maps.find(|map| map.id_at(&name).is_err());
    let named = unnamed.and_then(|map| Some((map.file_type, map.id_at(location.as_str()).ok()?)));
    match named {
        None => name,
        Some((FileType::UuidMap, id)) => format!("{id}.plist"),
        Some((FileType::BcSymbolMap, id)) => format!("{id}.bcsymbolmap"),
        Some((_, id)) => format!("{id}.il2cpp"),
    }
}

/// Returns the ids by which requests find what is in a file.
fn ids_of(location: &Location, inspection: &Inspection) -> Result<Vec<String>, String> {
    let usable = |object: &&ObjectMeta| {
        let ObjectMeta { features, .. } = object;
        features.has_symbols
            || features.has_debug_info
            || features.has_unwind_info
            || features.has_sources
    };
    let objects: Vec<&ObjectMeta> = inspection.objects.iter().filter(usable).collect();
    let debug_ids = objects.iter().filter_map(|object| object.debug_id);
    let debug_ids = debug_ids.map(|id| id.to_string());
    let code_ids = objects.iter().filter_map(|object| object.code_id.as_ref());
    let code_ids = code_ids.map(ToString::to_string);
    let companions = inspection.completes.iter().map(|id| match id {
        CompanionId::Unit(id) => id.clone(),
        CompanionId::Shared(id) => id.to_string(),
        CompanionId::SymbolMap(id) => id.to_string(),
    });
    let (mut maps, mut unnamed) = (Vec::new(), None);
    for map in &inspection.auxiliary {
        match map.id_at(location.as_str()) {
            Ok(id) => maps.push(id.to_string()),
            Err(reason) => unnamed = unnamed.or(Some(reason)),
        }
    }
    let mut ids: Vec<String> = Vec::new();
    for id in debug_ids.chain(code_ids).chain(companions).chain(maps) {
        if !id.is_empty() && !ids.contains(&id) {
            ids.push(id);
        }
    }
    if ids.is_empty() {
        Err(unnamed.unwrap_or_else(|| why_not(inspection)))
    } else {
        Ok(ids)
    }
}

/// Returns why no request could use a file.
fn why_not(inspection: &Inspection) -> String {
    // What an object without any id lacks besides does not matter. It is listed as skipped.
    let has_id = |object: &&ObjectMeta| object.debug_id.is_some() || object.code_id.is_some();
    let with_ids = inspection.objects.iter().filter(has_id);
    let mut advice = with_ids.filter_map(inspection::advice);
    match (advice.next(), inspection.skipped.first()) {
        (Some(advice), _) => advice.to_string(),
        (None, Some(reason)) => reason.clone(),
        (None, None) if inspection.objects.is_empty() => {
            "it contains no debug information file".to_owned()
        }
        (None, None) => "it has no id by which a request could find it".to_owned(),
    }
}

/// Returns the size of a file and its SHA-256 in hex.
fn digest(path: &Path) -> io::Result<(u64, String)> {
    let mut hasher = Sha256::new();
    let bytes = io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok((bytes, hex::encode(hasher.finalize())))
}

#[cfg(test)]
mod tests {
    use symdepot::domain::{AuxiliaryFile, AuxiliaryId, Features};

    use super::*;

    /// Returns an inspection of one ELF file without a build id.
    fn without_build_id(debug_id: Option<&str>, has_debug_info: bool) -> Inspection {
        let object = ObjectMeta {
            index: 0,
            debug_id: debug_id.map(|id| id.parse().unwrap()),
            code_id: None,
            file_type: FileType::ElfDebug,
            arch: "arm".to_owned(),
            features: Features {
                has_debug_info,
                ..Features::default()
            },
            is_accompanied: false,
            needs: Vec::new(),
            hides_names: false,
            fault: None,
        };
        let skipped = debug_id.is_none().then(|| "it has no id".to_owned());
        Inspection {
            objects: vec![object],
            skipped: skipped.into_iter().collect(),
            completes: Vec::new(),
            auxiliary: Vec::new(),
        }
    }

    #[test]
    fn a_file_is_skipped_for_its_true_reason() {
        // A debug file without code, from which no id is computed.
        let location = Location::new("build/app.debug");
        let ids_of = |inspection: &Inspection| ids_of(&location, inspection);
        let reason = ids_of(&without_build_id(None, true)).unwrap_err();
        assert_eq!(reason, "it has no id");
        let id = "502fc0a5-1ec1-3e47-9998-684fa139dca7";
        let reason = ids_of(&without_build_id(Some(id), false)).unwrap_err();
        assert!(reason.contains("is stripped"), "{reason}");
        let ids = ids_of(&without_build_id(Some(id), true)).unwrap();
        assert_eq!(ids, [id]);
    }

    /// Returns an inspection of a map whose id is in its name alone.
    fn of_map(file_type: FileType) -> Inspection {
        let map = AuxiliaryFile {
            file_type,
            id: AuxiliaryId::InName,
            symbol_map: None,
        };
        Inspection {
            objects: Vec::new(),
            skipped: Vec::new(),
            completes: Vec::new(),
            auxiliary: vec![map],
        }
    }

    #[test]
    fn a_map_is_sent_under_a_name_with_its_id() {
        let id = "2d10c42f-591d-3265-b147-78ba0868073f";
        let of_symsorter = "2d/10c42f591d3265b14778ba0868073f";
        let in_upper_case = "2D10C42F-591D-3265-B147-78BA0868073F.plist";
        for (path, file_type, name) in [
            (
                format!("a.dSYM/{in_upper_case}"),
                FileType::UuidMap,
                in_upper_case.to_owned(),
            ),
            (
                format!("{of_symsorter}/uuidmap"),
                FileType::UuidMap,
                format!("{id}.plist"),
            ),
            (
                format!("{of_symsorter}/bcsymbolmap"),
                FileType::BcSymbolMap,
                format!("{id}.bcsymbolmap"),
            ),
            (
                format!("{of_symsorter}/il2cpp"),
                FileType::Il2Cpp,
                format!("{id}.il2cpp"),
            ),
        ] {
            let (location, map) = (Location::new(path), of_map(file_type));
            assert_eq!(name_of(&location, &map), name, "{location}");
            assert_eq!(ids_of(&location, &map).unwrap(), [id], "{location}");
        }
        let (location, map) = (Location::new("build/map"), of_map(FileType::BcSymbolMap));
        assert_eq!(name_of(&location, &map), "map");
        let reason = ids_of(&location, &map).unwrap_err();
        assert!(reason.contains("name it <UUID>.bcsymbolmap"), "{reason}");
    }
}
