//! Symbol servers that are asked over HTTP: where they are, and which files of a module they may have.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use url::Url;

use super::{FileType, Location, ObjectId, SourceLayout};

/// A symbol server.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Definition", into = "Definition")]
pub struct HttpSource {
    /// What requests name it by, and what its candidates are shown under.
    pub id: String,
    /// Where its paths begin.
    pub url: Url,
    /// What is sent with each request: credentials, as a rule.
    pub headers: BTreeMap<String, String>,
    /// How it names its files.
    pub layout: SourceLayout,
    /// What it is asked for.
    pub filters: Filters,
    /// Whether what it has is for everybody: then its entries are global, and its misses are remembered for longer.
    pub is_public: bool,
}

/// What a source is asked for. What is empty lets everything through.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filters {
    /// Only DIFs of these types.
    #[serde(default)]
    pub filetypes: Vec<FileType>,
    /// Only modules whose code or debug file has a path like one of these: `*` for any text, `?` for any letter; neither
    /// case nor the kind of slash matters.
    #[serde(default)]
    pub path_patterns: Vec<String>,
}

/// A source as it is written down.
#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Definition {
    Http(HttpDefinition),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpDefinition {
    id: String,
    url: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    layout: SourceLayout,
    #[serde(default)]
    filters: Filters,
    #[serde(default)]
    is_public: bool,
}

/// Why a text does not define a source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSource {
    /// The id cannot be told from others.
    #[error(
        "the id {0:?} is not one: 1 to 64 letters, digits, or any of `:_.-`, and not `uploads`"
    )]
    Id(String),
    /// The address is none.
    #[error("the url of {id} is not one: {problem}")]
    Address {
        /// The source.
        id: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A header cannot be sent.
    #[error("the header {name:?} of {id} cannot be sent")]
    Header {
        /// The source.
        id: String,
        /// The name of the header.
        name: String,
    },
}

impl TryFrom<Definition> for HttpSource {
    type Error = InvalidSource;

    fn try_from(Definition::Http(definition): Definition) -> Result<Self, InvalidSource> {
        let HttpDefinition {
            id,
            url,
            headers,
            layout,
            filters,
            is_public,
        } = definition;
        let sound = |c: char| c.is_ascii_alphanumeric() || ":_.-".contains(c);
        if id.is_empty() || id.len() > 64 || !id.chars().all(sound) || id == "uploads" {
            return Err(InvalidSource::Id(id));
        }
        let address = |problem: String| InvalidSource::Address {
            id: id.clone(),
            problem,
        };
        let url = Url::parse(&url).map_err(|error| address(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
            return Err(address(
                "it begins neither with http:// nor with https://".to_owned(),
            ));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(address(
                "it contains credentials; send them in `headers`".to_owned(),
            ));
        }
        let header = |(name, value): &(&String, &String)| {
            let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
            let is_sound = !name.is_empty()
                && name.chars().all(token)
                && !value.contains(|c: char| c.is_control());
            !is_sound
        };
        if let Some((name, _)) = headers.iter().find(header) {
            return Err(InvalidSource::Header {
                name: name.clone(),
                id,
            });
        }
        Ok(Self {
            id,
            url,
            headers,
            layout,
            filters,
            is_public,
        })
    }
}

impl From<HttpSource> for Definition {
    fn from(source: HttpSource) -> Self {
        let HttpSource {
            id,
            url,
            headers,
            layout,
            filters,
            is_public,
        } = source;
        Self::Http(HttpDefinition {
            id,
            url: url.into(),
            headers,
            layout,
            filters,
            is_public,
        })
    }
}

impl HttpSource {
    /// Returns where the DIFs of a module may be, in the order in which they are tried.
    pub fn locations(&self, module: &ObjectId) -> Vec<(FileType, Location)> {
        if !self.filters.let_through(module) {
            return Vec::new();
        }
        let wanted = |file_type: &FileType| {
            let filetypes = &self.filters.filetypes;
            filetypes.is_empty() || filetypes.contains(file_type)
        };
        let mut locations: Vec<(FileType, Location)> = Vec::new();
        for file_type in module
            .object_type
            .file_types()
            .iter()
            .copied()
            .filter(wanted)
        {
            for path in self.layout.paths(file_type, module) {
                let location = Location::new(self.at(&path));
                if !locations.iter().any(|(_, known)| *known == location) {
                    locations.push((file_type, location));
                }
            }
        }
        locations
    }

    /// Returns the address of a path.
    fn at(&self, path: &str) -> String {
        let mut url = self.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path.split('/'));
        }
        url.into()
    }
}

impl Filters {
    fn let_through(&self, module: &ObjectId) -> bool {
        if self.path_patterns.is_empty() {
            return true;
        }
        let normal = |path: &str| path.replace('\\', "/").to_lowercase();
        let paths: Vec<String> = module
            .code_file
            .iter()
            .chain(&module.debug_file)
            .map(|path| normal(path))
            .collect();
        self.path_patterns.iter().any(|pattern| {
            let pattern = normal(pattern);
            paths
                .iter()
                .any(|path| wildmatch::WildMatch::new(&pattern).matches(path))
        })
    }
}

/// Headers are not shown: they hold credentials.
impl fmt::Debug for HttpSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSource")
            .field("id", &self.id)
            .field("url", &self.url.as_str())
            .field("layout", &self.layout)
            .field("filters", &self.filters)
            .field("is_public", &self.is_public)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{CodeId, ObjectType, SourceKey};

    fn source(json: &str) -> Result<HttpSource, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    fn module() -> ObjectId {
        ObjectId {
            code_id: Some(CodeId::new("aabbccdd".to_owned())),
            code_file: Some("C:\\Program Files\\App\\my app.exe".to_owned()),
            object_type: ObjectType::Elf,
            ..ObjectId::default()
        }
    }

    #[test]
    fn paths_are_joined_to_the_address_and_encoded() {
        let at = |url: &str| {
            let source =
                source(&format!(r#"{{"type": "http", "id": "a", "url": "{url}"}}"#)).unwrap();
            source.locations(&module()).remove(0).1.as_str().to_owned()
        };
        assert_eq!(at("http://symbols.test"), "http://symbols.test/aa/bbccdd");
        assert_eq!(
            at("https://symbols.test/a/b/"),
            "https://symbols.test/a/b/aa/bbccdd"
        );
        let symstore = source(
            r#"{"type": "http", "id": "a", "url": "http://symbols.test/x", "layout": {"type": "symstore"}}"#,
        );
        assert_eq!(
            symstore.unwrap().locations(&module())[0].1.as_str(),
            "http://symbols.test/x/my%20app.exe/elf-buildid-aabbccdd/my%20app.exe"
        );
    }

    #[test]
    fn a_source_is_asked_only_for_what_its_filters_let_through() {
        let found = |filters: &str| {
            let json = format!(
                r#"{{"type": "http", "id": "a", "url": "http://symbols.test", "filters": {filters}}}"#
            );
            let locations = source(&json).unwrap().locations(&module());
            locations
                .into_iter()
                .map(|(file_type, _)| file_type)
                .collect::<Vec<_>>()
        };
        assert_eq!(found("{}"), [FileType::ElfCode, FileType::ElfDebug]);
        assert_eq!(
            found(r#"{"filetypes": ["elf_debug"]}"#),
            [FileType::ElfDebug]
        );
        assert_eq!(found(r#"{"path_patterns": ["*/app/*.EXE"]}"#).len(), 2);
        assert_eq!(
            found(r#"{"path_patterns": ["c:/windows/*", "?:/program*"]}"#).len(),
            2
        );
        assert_eq!(found(r#"{"path_patterns": ["c:/windows/*"]}"#), []);
    }

    #[test]
    fn what_defines_no_source_is_refused_with_the_reason() {
        let check = |json: &str, want: &str| {
            let problem = source(json).unwrap_err();
            assert!(problem.contains(want), "{json}: {problem}");
        };
        check(
            r#"{"type": "s3", "id": "a", "bucket": "b"}"#,
            "unknown variant `s3`",
        );
        check(r#"{"type": "http", "id": "a"}"#, "missing field `url`");
        check(
            r#"{"type": "http", "id": "a", "url": "http://x", "has_index": true}"#,
            "has_index",
        );
        check(
            r#"{"type": "http", "id": "uploads", "url": "http://x"}"#,
            "not `uploads`",
        );
        check(
            r#"{"type": "http", "id": "a#b", "url": "http://x"}"#,
            "not one",
        );
        check(
            r#"{"type": "http", "id": "a", "url": "file:///etc"}"#,
            "neither with http",
        );
        check(
            r#"{"type": "http", "id": "a", "url": "http://me:secret@x"}"#,
            "in `headers`",
        );
        check(
            r#"{"type": "http", "id": "a", "url": "http://x", "headers": {"a b": "c"}}"#,
            "cannot be sent",
        );
    }

    #[test]
    fn whatever_decides_what_is_found_changes_the_key_and_credentials_do_not() {
        let key = |rest: &str| {
            let json = format!(r#"{{"type": "http", "id": "a", "url": "http://x/"{rest}}}"#);
            SourceKey::configured(&source(&json).unwrap())
        };
        let plain = key("");
        assert_eq!(plain.id(), "a");
        // printf '["http://x/",{"type":"native","casing":"default"},{"filetypes":[],"path_patterns":[]},false]' | sha256sum
        assert_eq!(plain.as_str(), "a#bf32e8a180bca4a2");
        for other in [
            r#", "is_public": true"#,
            r#", "layout": {"type": "ssqp"}"#,
            r#", "filters": {"filetypes": ["pdb"]}"#,
        ] {
            assert_ne!(key(other), plain, "{other}");
        }
        assert_eq!(key(r#", "headers": {"authorization": "secret"}"#), plain);
        let secret = source(
            r#"{"type": "http", "id": "a", "url": "http://x", "headers": {"authorization": "secret"}}"#,
        );
        assert!(!format!("{:?}", secret.unwrap()).contains("secret"));
    }
}
