//! HTTP symbol servers: their definitions, and the locations of a module's files.

mod glob;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use percent_encoding::utf8_percent_encode;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use url::Url;

use self::glob::Glob;
use super::{
    Access, Cause, CompanionId, FileType, FilteredType, Location, Missing, ObjectId, RESERVED,
    S3Access, SourceLayout,
};
use crate::domain::source::SourceKey;

/// The definition of a symbol server that speaks HTTP: where it is, how files are requested, and
/// which ones it may have.
///
/// Its JSON form is in `domain/definition.rs`.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpSource {
    /// The id, by which requests refer to it and under which candidates are shown.
    pub id: String,
    /// The base URL, without a query.
    pub url: Url,
    /// The query of the URL, which is sent with each request and usually contains credentials. It
    /// is not part of locations, nor of the key of a configured source.
    pub query: Option<String>,
    /// The headers that are sent with each request, usually credentials.
    pub headers: BTreeMap<String, String>,
    /// How its files are requested.
    pub access: Access,
    /// The layout of its files.
    pub layout: SourceLayout,
    /// The filters.
    pub filters: Filters,
    /// Whether its files are public. If so, its entries are global, and its misses are cached
    /// longer.
    pub is_public: bool,
    /// Whether its own address may be in a private network. Applies to configured sources only.
    pub is_private: bool,
    /// Settings that a client sent, and that have no effect here.
    pub without_effect: WithoutEffect,
}

/// Settings of a source that have no effect here. Responses say so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WithoutEffect {
    /// The client wants certificates of the server to be accepted even if they are invalid.
    pub accept_invalid_certs: bool,
    /// The server has an index of its files. All possible locations are requested instead.
    pub has_index: bool,
}

/// Limits what is requested from a source. An empty filter allows everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Filters {
    /// Only files of these types. In requests, other texts are types of which there are no files.
    pub filetypes: Vec<FilteredType>,
    /// Only modules whose code file or debug file has a path that matches one of these: `*` matches
    /// any text, `?` any character, `[a-z]` one of these, `[!a-z]` any other one, and `**/` any
    /// number of folders. Case and the kind of slash do not matter.
    pub path_patterns: PathPatterns,
    /// Only modules with a checksum of their debug file.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub requires_checksum: bool,
}

/// Patterns of paths, compiled when they are parsed.
#[derive(Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(from = "Vec<String>", into = "Vec<String>")]
pub struct PathPatterns {
    texts: Vec<String>,
    matchers: Arc<[Glob]>,
}

/// The maximum size of a path that is compared with patterns, in bytes. A longer one matches none:
/// paths in Windows have at most 32,767 characters.
const MATCHED_PATH_BYTES: usize = 32 * 1024;

/// Headers that control the connection or the meaning of a response, which only the HTTP client may
/// set. They are defined in RFC 9110 and RFC 9112; further ones begin with `if-` and `proxy-`.
const CONNECTION_HEADERS: [&str; 13] = [
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
const CONNECTION_HEADERS_BEGIN: [&str; 2] = ["if-", "proxy-"];

/// Why the definition of a source is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSource {
    /// The id is invalid or reserved.
    #[error(
        "invalid source id {0:?}: use 1 to 256 bytes without control characters; `uploads` and `sourcelink` are reserved"
    )]
    Id(String),
    /// The URL is invalid.
    #[error("invalid url of source {id}: {problem}")]
    Address {
        /// The source.
        id: String,
        /// The problem.
        problem: String,
    },
    /// A bucket, or the access to it, is invalid.
    #[error("invalid source {id}: {problem}")]
    Bucket {
        /// The source.
        id: String,
        /// The problem.
        problem: String,
    },
    /// A header contains characters that HTTP does not allow.
    #[error("the name or value of header {name:?} of {id} has characters that HTTP does not allow")]
    Header {
        /// The source.
        id: String,
        /// The name of the header.
        name: String,
    },
    /// A header is reserved for the HTTP client.
    #[error("the header {name:?} of source {id} is reserved for the HTTP client: remove it")]
    ConnectionHeader {
        /// The source.
        id: String,
        /// The name of the header.
        name: String,
    },
    /// The operator's list has a field that does not exist.
    #[error("source {id} has the unknown field `{field}`")]
    UnknownField {
        /// The source.
        id: String,
        /// The field, with the object that it is in.
        field: String,
    },
    /// The operator's list has a filter with a file type that does not exist.
    #[error(
        "source {id} has the unknown file type `{name}` in its filters; expected one of {known}",
        known = FilteredType::KNOWN
    )]
    UnknownFileType {
        /// The source.
        id: String,
        /// The type.
        name: String,
    },
    /// The definition exceeds a limit.
    #[error("{id} has more than {limit} {what}")]
    TooMuch {
        /// The source.
        id: String,
        /// What exceeds its limit.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

/// Returns whether a header is reserved for the HTTP client.
pub(super) fn shapes_the_connection(header: &str) -> bool {
    let header = header.to_ascii_lowercase();
    CONNECTION_HEADERS.contains(&header.as_str())
        || CONNECTION_HEADERS_BEGIN
            .iter()
            .any(|begin| header.starts_with(begin))
}

impl HttpSource {
    /// The maximum length of an id, in bytes.
    pub const MAX_ID_BYTES: usize = 256;

    /// The maximum length of a URL with its query, in bytes.
    pub const MAX_URL_BYTES: usize = 2048;

    /// The maximum number of headers, and the maximum total bytes of their names and values.
    pub const MAX_HEADERS: usize = 16;
    /// See [`HttpSource::MAX_HEADERS`].
    pub const MAX_HEADER_BYTES: usize = 8 << 10;

    /// The maximum number of path patterns, and the maximum length of one, in bytes.
    pub const MAX_PATTERNS: usize = 32;
    /// See [`HttpSource::MAX_PATTERNS`].
    pub const MAX_PATTERN_BYTES: usize = 256;

    /// Returns the size of all `path_patterns` together, in bytes.
    pub(crate) fn pattern_bytes(&self) -> usize {
        self.filters
            .path_patterns
            .texts
            .iter()
            .map(String::len)
            .sum()
    }

    /// Checks the source against the limits above. They bound the cost of storing the source and of
    /// matching modules against it.
    ///
    /// # Errors
    ///
    /// [`InvalidSource::TooMuch`] names the first limit that is exceeded.
    pub fn check_limits(&self) -> Result<(), InvalidSource> {
        let query_bytes = self.query.as_ref().map_or(0, |query| query.len() + 1);
        let header_bytes = |(name, value): (&String, &String)| name.len() + value.len();
        let patterns = &self.filters.path_patterns.texts;
        for (count, what, limit) in [
            (
                self.url.as_str().len() + query_bytes,
                "bytes in its url",
                Self::MAX_URL_BYTES,
            ),
            (self.headers.len(), "headers", Self::MAX_HEADERS),
            (
                self.headers.iter().map(header_bytes).sum(),
                "bytes in its headers",
                Self::MAX_HEADER_BYTES,
            ),
            (patterns.len(), "path_patterns", Self::MAX_PATTERNS),
            (
                patterns.iter().map(String::len).max().unwrap_or_default(),
                "bytes in one of its path_patterns",
                Self::MAX_PATTERN_BYTES,
            ),
        ] {
            if count > limit {
                let id = self.id.clone();
                return Err(InvalidSource::TooMuch { id, what, limit });
            }
        }
        Ok(())
    }

    /// Refuses filters with file types that this release does not know.
    pub(super) fn check_file_types(&self) -> Result<(), InvalidSource> {
        let mut filetypes = self.filters.filetypes.iter();
        let unknown = filetypes.find_map(|filtered| match filtered {
            FilteredType::Unknown(name) => Some(name.clone()),
            FilteredType::Dif(_) | FilteredType::Unused(_) => None,
        });
        match unknown {
            Some(name) => Err(InvalidSource::UnknownFileType {
                id: self.id.clone(),
                name,
            }),
            None => Ok(()),
        }
    }

    /// Returns the source without query and headers. Its key and its locations stay the same.
    #[must_use]
    pub fn without_credentials(self) -> Self {
        Self {
            query: None,
            headers: BTreeMap::new(),
            access: self.access.without_credentials(),
            ..self
        }
    }

    /// Adds to the reason of a failed download which settings of the source have no effect here.
    pub fn explain_settings(&self, missing: &mut Missing) {
        let WithoutEffect {
            accept_invalid_certs,
            has_index,
        } = self.without_effect;
        if missing.cause != Cause::DownloadFailed {
            return;
        }
        if accept_invalid_certs {
            missing.explain(
                "; `accept_invalid_certs` has no effect: the certificates of servers are always verified",
            );
        }
        if has_index {
            missing.explain("; `has_index` has no effect: all possible locations are requested");
        }
    }

    /// Returns the source without these headers and parameters of its query. Headers are compared
    /// without regard to case.
    #[must_use]
    pub fn without_parameters(mut self, names: &[String]) -> Self {
        self.headers
            .retain(|header, _| !names.iter().any(|name| name.eq_ignore_ascii_case(header)));
        if let Some(query) = self.query.take() {
            let is_kept = |parameter: &&str| {
                let name = parameter.split('=').next();
                !names.iter().any(|dropped| Some(dropped.as_str()) == name)
            };
            let kept: Vec<&str> = query.split('&').filter(is_kept).collect();
            self.query = (!kept.is_empty()).then(|| kept.join("&"));
        }
        self
    }

    /// Returns whether requests to the source contain credentials.
    pub fn has_credentials(&self) -> bool {
        self.query.is_some() || !self.headers.is_empty() || self.access.has_credentials()
    }

    /// Returns a URL with the query that is sent to this source.
    pub fn with_query(&self, url: &Url) -> Url {
        let mut url = url.clone();
        if self.query.is_some() {
            url.set_query(self.query.as_deref());
        }
        url
    }

    /// Returns whether a URL can be a location of the source: below the base URL, and without a
    /// fragment or credentials. Only links may have a query.
    pub fn is_above(&self, url: &Url) -> bool {
        let base = self.url.path().trim_end_matches('/');
        let below = url.path().strip_prefix(base);
        let is_its_own = match &self.access {
            Access::Links { below } => below.matches(url),
            _ => url.query().is_none(),
        };
        is_same_origin(url, &self.url)
            && below.is_some_and(|below| below.starts_with('/'))
            && is_its_own
            && url.fragment().is_none()
            && url.username().is_empty()
            && url.password().is_none()
    }

    /// Returns whether the source lists the files of a module, instead of having them at locations
    /// that can be computed.
    pub fn lists_files(&self) -> bool {
        matches!(self.access, Access::Sentry { .. })
    }

    /// Returns the possible locations of a module's DIFs, in a fixed order;
    /// none if the source lists its files.
    pub fn locations(&self, module: &ObjectId) -> Vec<(FileType, Location)> {
        if self.lists_files() || !self.filters.let_through(module) {
            return Vec::new();
        }
        let mut locations: Vec<(FileType, Location)> = Vec::new();
        for file_type in module.object_type.file_types().iter().copied() {
            for location in self.locations_of(file_type, module) {
                if !locations.iter().any(|(_, known)| *known == location) {
                    locations.push((file_type, location));
                }
            }
        }
        locations
    }

    /// Returns the location of a source file of a module, by the path in its debug information;
    /// `None` if the source has no such files. A filter of file types that omits source bundles
    /// leaves source files out, too.
    pub fn source_file(&self, module: &ObjectId, path: &str) -> Option<Location> {
        // The filters take longer than the layout.
        let path = self.layout.source_file(module, path)?;
        if !self.offers_source_files(module) {
            return None;
        }
        let segments = path.split('/');
        let encoded = segments.map(|segment| utf8_percent_encode(segment, RESERVED).to_string());
        let encoded: Vec<String> = encoded.collect();
        let mut url = self.url.clone();
        let base = url.path().trim_end_matches('/').to_owned();
        url.set_path(&format!("{base}/{}", encoded.join("/")));
        Some(Location::new(url))
    }

    /// Returns whether the filters let source files of a module through. Whether the source has a
    /// file depends on its path, too.
    pub fn offers_source_files(&self, module: &ObjectId) -> bool {
        let filetypes = &self.filters.filetypes;
        let is_wanted =
            filetypes.is_empty() || filetypes.contains(&FilteredType::Dif(FileType::SourceBundle));
        is_wanted && self.access == Access::Http && self.filters.let_through(module)
    }

    /// Returns whether the source may have a line map of a module.
    pub fn may_have_line_map(&self, module: &ObjectId) -> bool {
        let has_location = || !self.locations_of(FileType::Il2Cpp, module).is_empty();
        module.may_be_of_unity() && (self.lists_files() || has_location())
    }

    /// Returns the possible locations of a module's file of one type; none if the source does not
    /// offer the type. The filter of paths is not applied.
    pub fn locations_of(&self, file_type: FileType, module: &ObjectId) -> Vec<Location> {
        let filetypes = &self.filters.filetypes;
        let is_wanted = filetypes.is_empty() || filetypes.contains(&FilteredType::Dif(file_type));
        if self.lists_files() || !is_wanted || !self.layout.has(file_type) {
            return Vec::new();
        }
        let paths = self.layout.paths(file_type, module).into_iter();
        paths.map(|path| Location::new(self.at(&path))).collect()
    }

    /// Returns the possible locations of a companion of a module; none if the source lists its
    /// files, or its filter of file types leaves out debug files. The filter of paths is not
    /// applied.
    pub fn companion_locations(&self, id: &CompanionId, module: &ObjectId) -> Vec<Location> {
        let filetypes = &self.filters.filetypes;
        let is_wanted =
            filetypes.is_empty() || filetypes.contains(&FilteredType::Dif(FileType::ElfDebug));
        if self.lists_files() || !is_wanted {
            return Vec::new();
        }
        let paths = self.layout.companion_paths(id, module).into_iter();
        paths.map(|path| Location::new(self.at(&path))).collect()
    }

    /// Returns whether the filters let a module through of which only ids are known.
    pub fn allows_ids_alone(&self) -> bool {
        self.filters.let_through(&ObjectId::default())
    }

    /// Returns the URL of a path.
    fn at(&self, path: &str) -> String {
        let mut url = self.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path.split('/'));
        }
        url.into()
    }
}

/// Returns whether two addresses have the same scheme, host and port. Unlike [`Url::origin`], this
/// also works for custom schemes.
fn is_same_origin(a: &Url, b: &Url) -> bool {
    (a.scheme(), a.host(), a.port_or_known_default())
        == (b.scheme(), b.host(), b.port_or_known_default())
}

impl Filters {
    fn let_through(&self, module: &ObjectId) -> bool {
        if self.requires_checksum && module.debug_checksum.is_none() {
            return false;
        }
        if self.path_patterns.matchers.is_empty() {
            return true;
        }
        let paths = module.code_file.iter().chain(&module.debug_file);
        let paths = paths.filter(|path| path.len() <= MATCHED_PATH_BYTES);
        let paths: Vec<String> = paths.map(|path| normal(path)).collect();
        let matches = |matcher: &Glob| paths.iter().any(|path| matcher.matches(path));
        self.path_patterns.matchers.iter().any(matches)
    }
}

/// Returns a path or a pattern in the form in which they are compared.
fn normal(path: &str) -> String {
    path.replace('\\', "/").to_lowercase()
}

impl From<Vec<String>> for PathPatterns {
    fn from(texts: Vec<String>) -> Self {
        // A matcher takes some kilobytes. A source with more or longer patterns is refused
        // ([`HttpSource::check_limits`]).
        let counted = texts.iter().take(HttpSource::MAX_PATTERNS);
        let counted = counted.filter(|text| text.len() <= HttpSource::MAX_PATTERN_BYTES);
        Self {
            matchers: counted.map(|text| Glob::new(&normal(text))).collect(),
            texts,
        }
    }
}

impl From<PathPatterns> for Vec<String> {
    fn from(patterns: PathPatterns) -> Self {
        patterns.texts
    }
}

impl PartialEq for PathPatterns {
    fn eq(&self, other: &Self) -> bool {
        self.texts == other.texts
    }
}

impl Eq for PathPatterns {}

impl fmt::Debug for PathPatterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.texts.fmt(f)
    }
}

/// Omits headers and query, which contain credentials.
impl fmt::Debug for HttpSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSource")
            .field("id", &self.id)
            .field("url", &self.url.as_str())
            .field("layout", &self.layout)
            .field("filters", &self.filters)
            .field("is_public", &self.is_public)
            .field("is_private", &self.is_private)
            .finish_non_exhaustive()
    }
}

impl HttpSource {
    /// Returns the key of this symbol server, if it is configured.
    pub fn configured_key(&self) -> SourceKey {
        let Self {
            id,
            url,
            layout,
            filters,
            is_public,
            is_private,
            without_effect: _,
            // Credentials do not affect what is found, and do not belong in a key.
            headers: _,
            query: _,
            access,
        } = self;
        let url = match access {
            Access::Http | Access::Gcs(_) => url.to_string(),
            Access::S3(S3Access {
                region,
                endpoint,
                credentials: _,
            }) => {
                let endpoint = endpoint.as_ref().map_or("", Url::as_str);
                format!("{url} {region} {endpoint}")
            }
            Access::Sentry { api } => api.to_string(),
            Access::Links { below } => format!("{url} {below}"),
        };
        // Add a fifth value only if it is set, so that the keys of other sources do not change.
        let text = if *is_private {
            serde_json::to_string(&(url, layout, filters, is_public, is_private))
        } else {
            serde_json::to_string(&(url, layout, filters, is_public))
        };
        let text = text.expect("these values have no maps with keys that are not texts");
        let fingerprint = format!("{:x}", Sha256::digest(text));
        SourceKey::Configured {
            id: id.clone(),
            fingerprint: fingerprint[..16].to_owned(),
        }
    }

    /// Returns the key of this symbol server, if a request defines it. `hash` is a keyed hash of
    /// its whole definition.
    pub fn defined_key(&self, hash: String) -> SourceKey {
        let id = self.id.clone();
        SourceKey::Defined { id, hash }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{CodeId, ObjectType};

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
    fn a_source_is_searched_only_for_what_its_filters_allow() {
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
        assert_eq!(
            found("{}"),
            [
                FileType::ElfCode,
                FileType::ElfDebug,
                FileType::SourceBundle
            ]
        );
        assert_eq!(
            found(r#"{"filetypes": ["elf_debug"]}"#),
            [FileType::ElfDebug]
        );
        assert_eq!(found(r#"{"path_patterns": ["*/app/*.EXE"]}"#).len(), 3);
        assert_eq!(
            found(r#"{"path_patterns": ["c:/windows/*", "?:/program*"]}"#).len(),
            3
        );
        assert_eq!(found(r#"{"path_patterns": ["c:/windows/*"]}"#), []);
    }

    #[test]
    fn a_path_that_no_system_has_matches_no_pattern() {
        let source = source(
            r#"{"type": "http", "id": "a", "url": "http://x", "filters": {"path_patterns": ["*"]}}"#,
        )
        .unwrap();
        let locations = |bytes: usize| {
            let code_file = Some("a".repeat(bytes));
            let module = ObjectId {
                code_file,
                ..module()
            };
            source.locations(&module).len()
        };
        assert_eq!(locations(MATCHED_PATH_BYTES), 3);
        assert_eq!(locations(MATCHED_PATH_BYTES + 1), 0);
    }

    #[test]
    fn an_invalid_source_is_refused_with_the_reason() {
        let check = |json: &str, want: &str| {
            let problem = source(json).unwrap_err();
            assert!(problem.contains(want), "{json}: {problem}");
        };
        check(r#"{"type": "http", "id": "a"}"#, "missing field `url`");
        check(
            r#"{"type": "http", "id": "uploads", "url": "http://x"}"#,
            "`uploads` and `sourcelink` are reserved",
        );
        check(
            r#"{"type": "http", "id": "a\u0007b", "url": "http://x"}"#,
            "invalid source id",
        );
        check(
            r#"{"type": "http", "id": "a", "url": "http://x", "filters": {"filetypes": [5]}}"#,
            "expected the type of a file",
        );
        check(
            r#"{"type": "http", "id": "a", "url": "file:///etc"}"#,
            "must begin with http://",
        );
        check(
            r#"{"type": "http", "id": "a", "url": "http://me:secret@x"}"#,
            "in `headers`",
        );
        check(
            r#"{"type": "http", "id": "a", "url": "http://x", "headers": {"a b": "c"}}"#,
            "HTTP does not allow",
        );
    }

    /// As Sentry sends them.
    #[test]
    fn unknown_fields_are_ignored_in_requests_and_errors_in_the_operators_list() {
        let json = r#"{
            "type": "http", "id": "sentry:microsoft", "name": "Microsoft", "platforms": ["native"],
            "url": "https://symbols.test/", "is_public": true, "has_index": false, "accept_invalid_certs": true,
            "layout": {"type": "symstore", "casing": "default", "more": 1},
            "filters": {"filetypes": ["pe", "uuidmap", "bcsymbolmap", "il2cpp", "proguard"], "path_patterns": ["?:/windows/**"],
                "requires_checksum": true}
        }"#;
        let source = source(json).unwrap();
        assert_eq!(source.id, "sentry:microsoft");
        assert!(source.without_effect.accept_invalid_certs && source.filters.requires_checksum);
        let again = serde_json::to_string(&source).unwrap();
        assert_eq!(serde_json::from_str::<HttpSource>(&again).unwrap(), source);
        let configured = |json: &str| {
            let parsed = serde_json::from_str::<crate::domain::ConfiguredSource>(json);
            parsed
                .map(|source| source.0)
                .map_err(|error| error.to_string())
        };
        assert_eq!(configured(&again).unwrap(), source);
        assert!(
            configured(json)
                .unwrap_err()
                .contains("the unknown field `name`")
        );
        let nested =
            r#"{"type": "http", "id": "a", "url": "http://x", "filters": {"path_pattern": []}}"#;
        assert!(
            configured(nested)
                .unwrap_err()
                .contains("`filters.path_pattern`")
        );
    }

    #[test]
    fn an_unknown_file_type_matches_no_file_in_requests_and_is_an_error_in_the_operators_list() {
        let filtered = |types: &str| {
            format!(
                r#"{{"type": "http", "id": "a", "url": "http://x", "filters": {{"filetypes": {types}}}}}"#
            )
        };
        for (types, expected) in [
            (
                r#"["elf_debug", "dartsymbolmap"]"#,
                vec![FileType::ElfDebug],
            ),
            (r#"["dartsymbolmap"]"#, vec![]),
        ] {
            let json = filtered(types);
            let source = source(&json).unwrap();
            let locations = source.locations(&module()).into_iter();
            let found: Vec<FileType> = locations.map(|(file_type, _)| file_type).collect();
            assert_eq!(found, expected, "{types}");
            let again = serde_json::to_string(&source).unwrap();
            assert_eq!(serde_json::from_str::<HttpSource>(&again).unwrap(), source);
            let configured = serde_json::from_str::<crate::domain::ConfiguredSource>(&json);
            let problem = configured.unwrap_err().to_string();
            assert!(
                problem.contains("unknown file type `dartsymbolmap`"),
                "{problem}"
            );
        }
    }

    #[test]
    fn each_file_type_that_messages_name_is_known() {
        for name in FilteredType::KNOWN.split(", ") {
            let json = name.replace('`', "\"");
            let parsed: FilteredType = serde_json::from_str(&json).unwrap();
            assert!(!matches!(parsed, FilteredType::Unknown(_)), "{name}");
        }
    }

    #[test]
    fn a_source_that_requires_a_checksum_is_searched_only_with_one() {
        let source = source(
            r#"{"type": "http", "id": "a", "url": "http://x", "filters": {"requires_checksum": true}}"#,
        )
        .unwrap();
        assert_eq!(source.locations(&module()), []);
        let with_checksum = ObjectId {
            debug_checksum: Some("SHA256:00".to_owned()),
            ..module()
        };
        assert_eq!(source.locations(&with_checksum).len(), 3);
    }

    #[test]
    fn a_filter_of_auxiliary_types_allows_no_debug_file() {
        let source = source(
            r#"{"type": "http", "id": "a", "url": "http://x", "filters": {"filetypes": ["il2cpp"]}}"#,
        );
        assert_eq!(source.unwrap().locations(&module()), []);
    }

    #[test]
    fn parameters_of_events_are_dropped_and_others_stay() {
        let json = r#"{"type": "http", "id": "a", "url": "http://x.test/?sig=1&_last_upload=7&b",
            "headers": {"X-Sentry-Event-Id": "e", "authorization": "sesame"}}"#;
        let names = ["x-sentry-event-id".to_owned(), "_last_upload".to_owned()];
        let source = source(json).unwrap().without_parameters(&names);
        assert_eq!(source.query.as_deref(), Some("sig=1&b"));
        assert_eq!(source.headers.keys().collect::<Vec<_>>(), ["authorization"]);
        let only = r#"{"type": "http", "id": "a", "url": "http://x.test/?_last_upload=7"}"#;
        let only: HttpSource = serde_json::from_str(only).unwrap();
        assert!(!only.without_parameters(&names).has_credentials());
    }

    /// Finding F10 in `docs/security.md`.
    #[test]
    fn a_header_that_shapes_the_connection_is_refused_by_name() {
        for name in [
            "Host",
            "Content-Length",
            "content-encoding",
            "Transfer-Encoding",
            "Connection",
            "Upgrade",
            "TE",
            "Trailer",
            "Expect",
            "Range",
            "If-None-Match",
            "if-range",
            "Accept-Encoding",
            "Proxy-Authorization",
            "Keep-Alive",
            "HTTP2-Settings",
        ] {
            let json = format!(
                r#"{{"type": "http", "id": "a", "url": "http://x", "headers": {{"{name}": "1"}}}}"#
            );
            let problem = source(&json).unwrap_err();
            assert!(
                problem.contains(name) && problem.contains("is reserved for the HTTP client"),
                "{problem}"
            );
        }
        for name in ["Authorization", "User-Agent", "X-Api-Key", "Cookie"] {
            let json = format!(
                r#"{{"type": "http", "id": "a", "url": "http://x", "headers": {{"{name}": "1"}}}}"#
            );
            assert!(source(&json).is_ok(), "{name}");
        }
    }

    /// Finding F10 in `docs/security.md`.
    #[test]
    fn a_source_that_exceeds_a_limit_is_refused_with_the_limit() {
        let checked = |rest: serde_json::Value| {
            let mut json = serde_json::json!({"type": "http", "id": "a", "url": "http://x.test/"});
            json.as_object_mut()
                .unwrap()
                .extend(rest.as_object().unwrap().clone());
            let source: HttpSource = serde_json::from_value(json).unwrap();
            source.check_limits().map_err(|error| error.to_string())
        };
        let url = |bytes: usize| {
            let filler = "x".repeat(bytes - "http://x.test/?".len());
            serde_json::json!({"url": format!("http://x.test/?{filler}")})
        };
        let headers = |count: usize, bytes: usize| {
            let headers = (0..count).map(|number| (format!("x-{number:02}"), "v".repeat(bytes)));
            serde_json::json!({"headers": headers.collect::<BTreeMap<_, _>>()})
        };
        let patterns = |count: usize, bytes: usize| {
            let patterns = vec!["p".repeat(bytes); count];
            serde_json::json!({"filters": {"path_patterns": patterns}})
        };
        for (good, bad, says) in [
            (url(2048), url(2049), "more than 2048 bytes in its url"),
            (headers(16, 8), headers(17, 8), "more than 16 headers"),
            (
                headers(2, 4092),
                headers(2, 4093),
                "more than 8192 bytes in its headers",
            ),
            (
                patterns(32, 256),
                patterns(33, 1),
                "more than 32 path_patterns",
            ),
            (
                patterns(1, 256),
                patterns(1, 257),
                "more than 256 bytes in one of its path_patterns",
            ),
        ] {
            assert_eq!(checked(good), Ok(()));
            let problem = checked(bad).unwrap_err();
            assert!(problem.contains(says), "{problem}");
        }
    }

    /// Finding F11 in `docs/security.md`.
    #[test]
    fn a_query_is_a_credential_and_not_part_of_a_location() {
        let json = r#"{"type": "http", "id": "a", "url": "http://x.test/s/?sv=1&sig=sesame#f"}"#;
        let source = source(json).unwrap();
        for (_, location) in source.locations(&module()) {
            assert!(
                location.as_str().starts_with("http://x.test/s/aa/"),
                "{location}"
            );
            assert!(!location.as_str().contains('?'), "{location}");
        }
        assert!(!format!("{source:?}").contains("sesame"), "{source:?}");
        let asked = source.with_query(&Url::parse("http://x.test/s/aa/bb").unwrap());
        assert_eq!(asked.as_str(), "http://x.test/s/aa/bb?sv=1&sig=sesame");
        // The query survives the form in which definitions are stored.
        let again: HttpSource =
            serde_json::from_value(serde_json::to_value(&source).unwrap()).unwrap();
        assert_eq!(again, source);
        let without = source.clone().without_credentials();
        assert_eq!(
            (without.query.as_ref(), without.headers.len()),
            (None, 0),
            "{without:?}"
        );
        assert_eq!(without.configured_key(), source.configured_key());
    }

    /// Finding F19 in `docs/security.md`.
    #[test]
    fn only_paths_below_its_address_are_locations_of_a_source() {
        let source =
            source(r#"{"type": "http", "id": "a", "url": "https://x.test/s/?sig=1"}"#).unwrap();
        let is_above = |url: &str| source.is_above(&Url::parse(url).unwrap());
        for good in ["https://x.test/s/a/b", "https://x.test:443/s/a%20b"] {
            assert!(is_above(good), "{good}");
        }
        for bad in [
            "http://x.test/s/a",
            "https://x.test:444/s/a",
            "https://y.test/s/a",
            "https://x.test/s",
            "https://x.test/secret/a",
            "https://x.test/s/../a",
            "https://x.test/s/%2e%2e/a",
            "https://x.test/s/a?sig=1",
            "https://x.test/s/a#f",
            "https://me:secret@x.test/s/a",
        ] {
            assert!(!is_above(bad), "{bad}");
        }
    }

    #[test]
    fn settings_that_affect_the_files_change_the_key_and_credentials_do_not() {
        let key = |rest: &str| {
            let json = format!(r#"{{"type": "http", "id": "a", "url": "http://x/"{rest}}}"#);
            source(&json).unwrap().configured_key()
        };
        let plain = key("");
        assert_eq!(plain.id(), "a");
        // The beginning of the SHA-256 of this JSON, without the line break:
        //
        //     ["http://x/",{"type":"native","casing":"default"},
        //     {"filetypes":[],"path_patterns":[]},false]
        assert_eq!(plain.to_string(), "a#bf32e8a180bca4a2");
        for other in [
            r#", "is_public": true"#,
            r#", "layout": {"type": "ssqp"}"#,
            r#", "filters": {"filetypes": ["pdb"]}"#,
            r#", "is_private": true"#,
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
