//! The listing of Sentry's API for debug information files.
//!
//! Source: Sentry, "List a Project's Debug Information Files", with the parameters `debug_id` and
//! `code_id`. The response is a JSON array; a file is downloaded by its `id`.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Url;
use serde::Deserialize;

use super::addresses::FileAddress;
use crate::domain::{FileType, Location};
use crate::ports::ListQuery;

/// The maximum size of a listing, in bytes.
pub(super) const MAX_LISTING_BYTES: usize = 1 << 20;

/// The maximum number of files of a listing that are considered.
pub(super) const MAX_FILES: usize = 100;

/// A file in a listing.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListedFile {
    id: ListedId,
    #[serde(default)]
    symbol_type: Option<String>,
}

/// The id of a file. Sentry sends strings; some compatible servers send numbers.
#[derive(Deserialize)]
#[serde(untagged)]
enum ListedId {
    Text(String),
    Number(u64),
}

/// Returns the address of the listing of a module's files.
pub(super) fn listing(api: &Url, query: ListQuery<'_>) -> FileAddress {
    let mut sent = query.source.with_query(api);
    {
        let mut parameters = sent.query_pairs_mut();
        if let Some(debug_id) = query.debug_id {
            parameters.append_pair("debug_id", &debug_id.to_string());
        }
        if let Some(code_id) = query.code_id {
            parameters.append_pair("code_id", code_id.as_str());
        }
    }
    FileAddress {
        sent,
        shown: api.clone(),
    }
}

/// Parses a listing. Files of other types are left out.
///
/// # Errors
///
/// The reason why it is not a listing. It quotes nothing of it.
pub(super) fn files(base: &Url, text: &str) -> Result<Vec<(FileType, Location)>, String> {
    let listed: Vec<ListedFile> = serde_json::from_str(text)
        .map_err(|error| format!("the listing is malformed at line {}", error.line()))?;
    let file = |file: ListedFile| {
        let id = match file.id {
            ListedId::Text(id) => id,
            ListedId::Number(id) => id.to_string(),
        };
        let id = utf8_percent_encode(&id, NON_ALPHANUMERIC);
        let base = base.as_str().trim_end_matches('/');
        let location = Location::new(format!("{base}/{id}"));
        Some((file_type(file.symbol_type.as_deref()?)?, location))
    };
    Ok(listed
        .into_iter()
        .take(MAX_FILES)
        .filter_map(file)
        .collect())
}

/// Returns the type of DIFs that a listing calls by this name. Whether an ELF or Mach-O file has
/// code or debug information only shows when it is read.
fn file_type(name: &str) -> Option<FileType> {
    Some(match name {
        "elf" => FileType::ElfDebug,
        "macho" => FileType::MachDebug,
        "pe" => FileType::Pe,
        "pdb" => FileType::Pdb,
        "portablepdb" => FileType::PortablePdb,
        "wasm" => FileType::WasmDebug,
        "breakpad" => FileType::Breakpad,
        "uuidmap" => FileType::UuidMap,
        "bcsymbolmap" => FileType::BcSymbolMap,
        "il2cpp" => FileType::Il2Cpp,
        "sourcebundle" => FileType::SourceBundle,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_names_files_by_id_and_leaves_out_other_types() {
        let base = Url::parse("sentry://project_debug_file/").unwrap();
        let text = r#"[
            {"id": "7", "symbolType": "elf", "objectName": "crash.debug", "size": 1},
            {"id": 8, "symbolType": "breakpad"},
            {"id": "9", "symbolType": "proguard"},
            {"id": "../a?b", "symbolType": "pdb"},
            {"id": "1", "symbolType": "uuidmap"},
            {"id": "2", "symbolType": "bcsymbolmap"},
            {"id": "3", "symbolType": "il2cpp"},
            {"id": "4", "symbolType": "sourcebundle"},
            {"id": "10"}
        ]"#;
        let files = files(&base, text).unwrap();
        let at = |text: &str| Location::new(format!("sentry://project_debug_file/{text}"));
        assert_eq!(
            files,
            [
                (FileType::ElfDebug, at("7")),
                (FileType::Breakpad, at("8")),
                (FileType::Pdb, at("%2E%2E%2Fa%3Fb")),
                (FileType::UuidMap, at("1")),
                (FileType::BcSymbolMap, at("2")),
                (FileType::Il2Cpp, at("3")),
                (FileType::SourceBundle, at("4")),
            ]
        );
    }

    #[test]
    fn the_number_of_files_from_a_listing_is_limited() {
        let base = Url::parse("sentry://project_debug_file/").unwrap();
        let many = vec![r#"{"id": "1", "symbolType": "elf"}"#; 1000].join(",");
        assert_eq!(files(&base, &format!("[{many}]")).unwrap().len(), MAX_FILES);
        let error = files(&base, r#"{"detail": "sesame"}"#).unwrap_err();
        assert!(!error.contains("sesame"), "{error}");
    }
}
