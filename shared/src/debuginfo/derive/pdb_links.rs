//! Links to source files in PDBs. They become part of the SymCache, as the path of each file on its
//! source server.
//!
//! Two streams of a PDB may have links. `srcsrv` computes addresses from variables: Microsoft,
//! "Language Specification 1" of the source server. `sourcelink` maps paths to addresses:
//! dotnet/designs, "Source Link", "Source Link JSON Schema". Commands in `srcsrv`, which a debugger
//! would execute, are ignored.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::io::Cursor;

use serde::Deserialize;
use srcsrv::{SourceRetrievalMethod, SrcSrvStream};
use symbolic::common::{SourceLinkMappings, clean_path, join_path};
use symbolic::debuginfo::pdb::pdb::PDB;
use symbolic::debuginfo::{FileInfo, Object};
use symbolic::symcache::transform::{SourceLocation, Transformer};

use crate::domain::link_target;

/// The maximum size of a stream, in bytes. A larger one is ignored.
const MAX_STREAM_BYTES: usize = 64 << 20;

/// The maximum length of a line of `srcsrv`, in bytes, and the maximum number of values that one
/// of its variables may be composed of. A stream that exceeds one of them is ignored: each variable
/// may consist of others, so that a few short lines could describe a text of any length.
const MAX_LINE_BYTES: usize = 8 << 10;
const MAX_VALUES: usize = 4096;

/// The streams of a PDB that may have links.
pub(in crate::debuginfo) struct LinkStreams {
    srcsrv: Vec<u8>,
    source_link: Vec<u8>,
}

/// Adds links to the files of a SymCache.
pub(in crate::debuginfo) struct PdbLinks<'a> {
    srcsrv: Option<SrcSrvStream<'a>>,
    source_link: SourceLinkMappings,
    /// The links that were computed, by the path of the file: folder and name.
    known: HashMap<String, Option<(String, String)>>,
}

/// The place of a file on a source server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SourcePlace {
    pub(super) folder: Option<String>,
    pub(super) name: String,
    pub(super) revision: Option<String>,
}

/// The JSON of Source Link.
#[derive(Default, Deserialize)]
struct SourceLink {
    #[serde(default)]
    documents: BTreeMap<String, String>,
}

impl LinkStreams {
    /// Returns the streams of an object; `None` if it has none.
    pub(super) fn of(object: &Object<'_>) -> Option<Self> {
        let Object::Pdb(pdb) = object else {
            return None;
        };
        let mut pdb = PDB::open(Cursor::new(pdb.data())).ok()?;
        let mut stream = |name: &[u8]| {
            let stream = pdb.named_stream(name).ok();
            let stream = stream.filter(|stream| stream.len() <= MAX_STREAM_BYTES);
            stream.map_or_else(Vec::new, |stream| stream.to_vec())
        };
        let streams = Self {
            srcsrv: stream(b"srcsrv"),
            source_link: stream(b"sourcelink"),
        };
        let has_any = !streams.srcsrv.is_empty() || !streams.source_link.is_empty();
        has_any.then_some(streams)
    }

    /// Returns the streams with these contents, for tests and fuzzing.
    #[cfg(any(test, feature = "testing"))]
    pub(in crate::debuginfo) fn with(srcsrv: &[u8], source_link: &[u8]) -> Self {
        Self {
            srcsrv: srcsrv.to_vec(),
            source_link: source_link.to_vec(),
        }
    }
}

impl<'a> PdbLinks<'a> {
    /// Parses the streams. What is malformed has no links.
    pub(in crate::debuginfo) fn parse(streams: &'a LinkStreams) -> Self {
        let source_link: SourceLink =
            serde_json::from_slice(&streams.source_link).unwrap_or_default();
        let documents = source_link.documents.iter();
        let documents = documents.map(|(path, link)| (path.as_str(), link.as_str()));
        Self {
            srcsrv: if is_modest(&streams.srcsrv) {
                SrcSrvStream::parse(&streams.srcsrv).ok()
            } else {
                None
            },
            source_link: SourceLinkMappings::new(documents),
            known: HashMap::new(),
        }
    }

    /// Returns the place of a file on a source server.
    pub(super) fn of_file(&mut self, folder: &str, name: &str) -> Option<SourcePlace> {
        let path = join_path(folder, name);
        let in_perforce = self.in_perforce(&path);
        in_perforce.or_else(|| {
            let (folder, name) = self.link_of(&path)?;
            Some(SourcePlace {
                folder: Some(folder.to_owned()),
                name: name.to_owned(),
                revision: None,
            })
        })
    }

    /// Returns the path and the revision of a file in Perforce: variables 3 and 4, which SDKs of
    /// Perforce write as the path in the depot, and the number of the change.
    fn in_perforce(&self, path: &str) -> Option<SourcePlace> {
        let stream = self.srcsrv.as_ref()?;
        let system = stream.version_control_description()?;
        if !system.eq_ignore_ascii_case("perforce") {
            return None;
        }
        let values = stream.source_and_raw_var_values_for_path(path, "");
        let (_, values) = values.ok()??;
        let depot_path = values.get("var3")?.trim_start_matches("//");
        let file = FileInfo::from_path(depot_path.as_bytes());
        let revision = values.get("var4").filter(|revision| !revision.is_empty());
        let folder = file.dir_str();
        Some(SourcePlace {
            folder: Some(folder.into_owned()).filter(|folder| !folder.is_empty()),
            name: file.name_str().into_owned(),
            revision: revision.cloned(),
        })
    }

    /// Returns the link of a file, as a folder and a name.
    pub(in crate::debuginfo) fn link_of(&mut self, path: &str) -> Option<(&str, &str)> {
        if !self.known.contains_key(path) {
            let link = self.compute(path);
            self.known.insert(path.to_owned(), link);
        }
        let (folder, name) = self.known.get(path)?.as_ref()?;
        Some((folder, name))
    }

    fn compute(&self, path: &str) -> Option<(String, String)> {
        let by_source_link = self.source_link.resolve(path);
        let by_server = || {
            let method = self.srcsrv.as_ref()?.source_for_path(path, "").ok()??;
            match method {
                SourceRetrievalMethod::Download { url } => Some(url),
                _ => None,
            }
        };
        let link: String = link_target(&by_source_link.or_else(by_server)?)?.into();
        // Readers of SymCaches resolve dots in paths, which would change some queries.
        let (folder, name) = link
            .rsplit_once('/')
            .filter(|_| clean_path(&link) == link)?;
        Some((folder.to_owned(), name.to_owned()))
    }
}

/// Returns whether the variables of a `srcsrv` stream have short values.
fn is_modest(stream: &[u8]) -> bool {
    let lines = || stream.split(|byte| *byte == b'\n');
    let variables = lines().take_while(|line| !line.starts_with(b"SRCSRV: source files"));
    let references = |line: &[u8]| {
        let marks = line.iter().filter(|byte| **byte == b'%').count();
        marks.div_ceil(2).max(1)
    };
    let values = variables
        .map(references)
        .try_fold(1_usize, usize::checked_mul);
    values.is_some_and(|values| values <= MAX_VALUES)
        && lines().all(|line| line.len() <= MAX_LINE_BYTES)
}

impl Transformer for PdbLinks<'_> {
    fn transform_source_location<'f>(
        &'f mut self,
        mut location: SourceLocation<'f>,
    ) -> SourceLocation<'f> {
        let file = &mut location.file;
        // `symbolic` knows the paths of files in Perforce.
        if file.srcsrv_name.is_none() {
            let folder = file.directory.as_deref().unwrap_or_default();
            let path = join_path(folder, &file.name);
            if let Some((folder, name)) = self.link_of(&path) {
                file.srcsrv_dir = Some(Cow::Borrowed(folder));
                file.srcsrv_name = Some(Cow::Borrowed(name));
            }
        }
        location
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Mozilla writes it.
    const SRCSRV: &str = r"SRCSRV: ini ------------------------------------------------
VERSION=2
INDEXVERSION=2
VERCTRL=http
SRCSRV: variables ------------------------------------------
HGSERVER=https://hg.test/central
SRCSRVVERCTRL=http
HTTP_EXTRACT_TARGET=%hgserver%/raw-file/%var3%/%var2%
SRCSRVTRG=%http_extract_target%
SRCSRV: source files ---------------------------------------
C:\build\src\a.cpp*src/a.cpp*0123abc
C:\build\src\b.cpp*../b.cpp*0123abc
C:\build\src\c.cpp*c.cpp?x=/../*0123abc
SRCSRV: end ------------------------------------------------
";

    fn link(streams: &LinkStreams, path: &str) -> Option<String> {
        let mut links = PdbLinks::parse(streams);
        let (folder, name) = links.link_of(path)?;
        Some(format!("{folder}/{name}"))
    }

    #[test]
    fn a_source_server_gives_the_address_of_a_file() {
        let streams = LinkStreams::with(SRCSRV.as_bytes(), b"");
        let at = |path: &str| link(&streams, path);
        let expected = "https://hg.test/central/raw-file/0123abc/src/a.cpp";
        assert_eq!(at(r"C:\build\src\a.cpp").unwrap(), expected);
        assert_eq!(at(r"c:\BUILD\src\a.cpp").unwrap(), expected);
        let normal = "https://hg.test/central/raw-file/b.cpp";
        assert_eq!(at(r"C:\build\src\b.cpp").unwrap(), normal);
        assert_eq!(at(r"C:\build\src\c.cpp"), None);
        assert_eq!(at(r"C:\build\src\unknown.cpp"), None);
    }

    #[test]
    fn a_command_of_a_source_server_is_ignored() {
        let with_command = SRCSRV.replace("SRCSRVVERCTRL=http", "SRCSRVCMD=cmd /c evil.exe");
        let streams = LinkStreams::with(with_command.as_bytes(), b"");
        assert_eq!(link(&streams, r"C:\build\src\a.cpp"), None);
    }

    #[test]
    fn variables_that_multiply_are_not_evaluated() {
        let doubled = (0..40).map(|at| format!("V{at}=%v{}%%v{}%\n", at + 1, at + 1));
        let doubled: String = doubled.collect();
        let bomb = SRCSRV.replace("HGSERVER=https:", &format!("{doubled}HGSERVER=%v0%https:"));
        let long = SRCSRV.replace("hg.test", &"x".repeat(9 << 10));
        for stream in [bomb, long] {
            let streams = LinkStreams::with(stream.as_bytes(), b"");
            assert_eq!(link(&streams, r"C:\build\src\a.cpp"), None);
        }
    }

    #[test]
    fn source_link_maps_paths_to_addresses() {
        let json = br#"{"documents": {"C:\\src\\*": "https://git.test/raw/1/*", "C:\\x.c": "file:///etc/passwd"}}"#;
        let streams = LinkStreams::with(SRCSRV.as_bytes(), json);
        let at = |path: &str| link(&streams, path);
        assert_eq!(at(r"C:\src\a\b.c").unwrap(), "https://git.test/raw/1/a/b.c");
        assert_eq!(at(r"C:\x.c"), None);
        assert!(at(r"C:\build\src\a.cpp").is_some());
    }

    #[test]
    fn malformed_streams_have_no_links() {
        let endless = SRCSRV.replace("SRCSRVTRG=%http", "SRCSRVTRG=%srcsrvtrg%%http");
        for srcsrv in ["", "SRCSRV: ini --\n", &SRCSRV[..200], &endless] {
            for json in ["", "{", "[]", r#"{"documents": []}"#] {
                let streams = LinkStreams::with(srcsrv.as_bytes(), json.as_bytes());
                assert_eq!(
                    link(&streams, r"C:\build\src\a.cpp"),
                    None,
                    "{srcsrv}{json}"
                );
            }
        }
    }
}
