//! The listing of Sentry's API for debug information files.
//!
//! Source: Sentry, "List a Project's Debug Information Files", with the parameters `debug_id` and
//! `code_id`. The response is a JSON array; a file is downloaded by its `id`.

use std::fmt;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Url;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::file_urls::FileAddress;
use crate::domain::{FileType, Location};
use crate::ports::ListQuery;

/// The maximum size of a listing, in bytes.
pub(super) const MAX_LISTING_BYTES: usize = 1 << 20;

/// The maximum number of files of a listing that are considered.
pub(super) const MAX_FILES: usize = 100;

/// The maximum length of the id of a file, in bytes. Those of Sentry are short numbers; a location
/// contains the id, and entries contain locations.
const MAX_ID_BYTES: usize = 256;

/// The first files of a listing. What cannot be read as a file is left out.
struct FirstFiles(Vec<ListedFile>);

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

impl<'de> Deserialize<'de> for FirstFiles {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(FirstFilesVisitor)
    }
}

struct FirstFilesVisitor;

impl<'de> Visitor<'de> for FirstFilesVisitor {
    type Value = FirstFiles;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of files")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<FirstFiles, A::Error> {
        let mut files = Vec::new();
        while let Some(element) = elements.next_element::<Value>()? {
            if files.len() < MAX_FILES {
                files.extend(ListedFile::deserialize(element).ok());
            }
        }
        Ok(FirstFiles(files))
    }
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

/// Parses a listing. Files of other types or with long ids, and what cannot be read, are left out.
///
/// # Errors
///
/// The reason why it is not a listing. It quotes nothing of it.
pub(super) fn files(base: &Url, text: &str) -> Result<Vec<(FileType, Location)>, String> {
    let FirstFiles(listed) = serde_json::from_str::<FirstFiles>(text)
        .map_err(|error| format!("the listing is malformed at line {}", error.line()))?;
    let file = |file: ListedFile| {
        let id = match file.id {
            ListedId::Text(id) => id,
            ListedId::Number(id) => id.to_string(),
        };
        if id.len() > MAX_ID_BYTES {
            return None;
        }
        let id = utf8_percent_encode(&id, NON_ALPHANUMERIC);
        let base = base.as_str().trim_end_matches('/');
        let location = Location::new(format!("{base}/{id}"));
        Some((file_type(file.symbol_type.as_deref()?)?, location))
    };
    Ok(listed.into_iter().filter_map(file).collect())
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
    fn what_cannot_be_read_in_a_listing_does_not_hide_its_other_files() {
        let base = Url::parse("sentry://project_debug_file/").unwrap();
        let at = |text: &str| Location::new(format!("sentry://project_debug_file/{text}"));
        let text = r#"[
            null, 7, "elf", [], [{"id": "2", "symbolType": "elf"}], {},
            {"id": null}, {"id": -1, "symbolType": "elf"}, {"id": "3", "symbolType": 5},
            {"id": "1", "symbolType": "breakpad"}
        ]"#;
        assert_eq!(files(&base, text).unwrap(), [(FileType::Breakpad, at("1"))]);
        for no_list in ["", "{}", "null", "[", r#"[{"id": "1"}"#, "[] []", "<html>"] {
            let error = files(&base, no_list).unwrap_err();
            assert!(error.starts_with("the listing is malformed"), "{no_list}");
        }
    }

    #[test]
    fn files_with_ids_of_more_than_256_bytes_are_left_out() {
        let base = Url::parse("sentry://project_debug_file/").unwrap();
        let (longest, too_long) = ("A".repeat(256), "A".repeat(257));
        let text = format!(
            r#"[{{"id": "{too_long}", "symbolType": "elf"}}, {{"id": "{longest}", "symbolType": "elf"}}]"#
        );
        let location = Location::new(format!("sentry://project_debug_file/{longest}"));
        let files = files(&base, &text).unwrap();
        assert_eq!(files, [(FileType::ElfDebug, location)]);
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
