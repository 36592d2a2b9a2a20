//! Microsoft's protocol for SymCaches over HTTP, which WPA and TraceProcessor use.
//!
//! ```text
//! GET [/prefix]/v<major>.<minor>.<patch>/<pdb name>/<pdb id>[/<age>]
//! ```
//!
//! The prefix is empty or `/symcache`. Before it, the path may have the prefixes of all protocols
//! ([`super::entrance`]): clients are configured with a base URL and cannot send headers of their
//! own. The age is decimal, and 1 if omitted. A path that does not
//! follow this form names no file: clients treat 404 as final and retry everything else.
//!
//! Source: Microsoft's sample server for SymCaches, `README.md`, "SymCache HTTP Protocol". Where
//! the sample's code differs, both forms are accepted: the header that allows `Retry-After` has two
//! names.

use percent_encoding::percent_decode_str;

use crate::domain::{DebugId, FormatVersion, Scope};

/// The media type of the files.
const MEDIA_TYPE: &str = "application/vnd.ms-symcache";

/// The header with the version that the client has.
pub const IF_VERSION_EXCEEDS: &str = "if-version-exceeds";

/// The headers that say that a client will retry: the name in the protocol, and the name in the
/// sample's code. Either is enough.
pub const ALLOW_RETRY_AFTER: [&str; 2] = ["allow-retry-after", "accept-retry-after"];

/// The last version whose clients retry only if they say so. Clients of later versions always
/// retry.
const LAST_THAT_WAITS: FormatVersion = FormatVersion {
    major: 3,
    minor: 1,
    patch: 0,
};

/// The maximum length of a Windows file name, in bytes.
const MAX_NAME_BYTES: usize = 255;

/// The parsed path of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// The path does not belong to this protocol.
    Other,
    /// No such file can exist: 404.
    Nothing,
    /// A file.
    File(SymCacheRequest),
}

/// A requested file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymCacheRequest {
    /// The scope of the request: the global one, unless its caller or its path say otherwise.
    pub scope: Scope,
    /// The requested version.
    pub version: FormatVersion,
    /// The file name of the PDB, as it was sent.
    pub name: String,
    /// The debug id of the PDB.
    pub debug_id: DebugId,
}

impl Route {
    /// Parses a path in the percent-encoded form in which it was sent.
    pub fn of(path: &str) -> Self {
        let path = path.strip_prefix('/').unwrap_or(path);
        let path = path.strip_suffix('/').unwrap_or(path);
        let segments: Vec<&str> = path.split('/').collect();
        let rest = match segments.as_slice() {
            ["symcache", rest @ ..] => rest,
            rest => rest,
        };
        let Some(version) = rest
            .first()
            .and_then(|first| first.strip_prefix(['v', 'V']))
        else {
            return Self::Other;
        };
        if !version.starts_with(|c: char| c.is_ascii_digit()) {
            return Self::Other;
        }
        let asked = || {
            let (name, id, age) = match rest.get(1..)? {
                [name, id] => (name, id, "1".to_owned()),
                [name, id, age] => (name, id, decoded(age)?),
                _ => return None,
            };
            Some(SymCacheRequest {
                scope: Scope::Global,
                version: version
                    .parse()
                    .ok()
                    .filter(|version| *version >= FormatVersion::FIRST)?,
                name: decoded(name).filter(|name| is_file_name(name))?,
                debug_id: debug_id(&decoded(id)?, &age)?,
            })
        };
        asked().map_or(Self::Nothing, Self::File)
    }
}

fn decoded(segment: &str) -> Option<String> {
    let decoded = percent_decode_str(segment).decode_utf8().ok()?;
    Some(decoded.into_owned())
}

/// Returns whether a text is a valid Windows file name without folders.
fn is_file_name(name: &str) -> bool {
    let is_forbidden = |c: char| c.is_control() || "/\\:*?\"<>|".contains(c);
    !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && !name.contains(is_forbidden)
        && !name.contains("..")
        && !name.ends_with(['.', ' '])
}

/// Parses a GUID in any form that .NET writes, and a decimal age.
fn debug_id(guid: &str, age: &str) -> Option<DebugId> {
    let bare = [('{', '}'), ('(', ')')]
        .into_iter()
        .find_map(|(open, close)| guid.strip_prefix(open)?.strip_suffix(close));
    let digits = bare.unwrap_or(guid);
    let is_whole = match bare {
        Some(_) => digits.len() == 36,
        None => matches!(digits.len(), 32 | 36),
    };
    let guid = is_whole
        .then(|| uuid::Uuid::try_parse(digits).ok())
        .flatten()?;
    if !age.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let id = DebugId::from_parts(guid, age.parse().ok()?);
    (!guid.is_nil()).then_some(id)
}

impl SymCacheRequest {
    /// Returns whether the client honors `Retry-After`, given the values of its
    /// [`ALLOW_RETRY_AFTER`] headers.
    pub fn may_be_put_off<'a>(&self, values: impl IntoIterator<Item = &'a str>) -> bool {
        let says_so = |value: &str| value.trim().eq_ignore_ascii_case("true");
        self.version > LAST_THAT_WAITS || values.into_iter().any(says_so)
    }

    /// Parses the version that the client has, from all values of [`IF_VERSION_EXCEEDS`].
    pub fn present<'a>(
        &self,
        values: impl IntoIterator<Item = &'a str>,
    ) -> Result<Option<FormatVersion>, BadPresent> {
        let mut values = values.into_iter();
        let Some(value) = values.next() else {
            return Ok(None);
        };
        // The gateway joins repeated headers into one.
        if values.next().is_some() || value.contains(',') {
            return Err(BadPresent::Several);
        }
        let present: FormatVersion = value
            .trim()
            .parse()
            .map_err(|_| BadPresent::Unreadable(value.to_owned()))?;
        if present.major == 0 {
            return Err(BadPresent::Unsupported(present));
        }
        if present >= self.version {
            return Err(BadPresent::NotLess);
        }
        Ok(Some(present))
    }
}

/// Why the version that a client has is invalid. The response is a 400 with this text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPresent {
    /// The header is repeated.
    #[error("Only one If-Version-Exceeds header is permitted.")]
    Several,
    /// The value is not a version.
    #[error("The If-Version-Exceeds header value {0:?} is not a valid version.")]
    Unreadable(String),
    /// No file has this version.
    #[error("The If-Version-Exceeds header value {0} is an unsupported version number.")]
    Unsupported(FormatVersion),
    /// The version is not lower than the requested one.
    #[error("The If-Version-Exceeds header value must be less than the requested version.")]
    NotLess,
}

/// Returns the `Content-Type` of a file of this version.
pub fn content_type(version: FormatVersion) -> String {
    format!("{MEDIA_TYPE}; version={version}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: &str = "ee78a075f42847b888239eed88fa9c34";
    const D: &str = "ee78a075-f428-47b8-8823-9eed88fa9c34";

    fn file(path: &str) -> SymCacheRequest {
        match Route::of(path) {
            Route::File(asked) => asked,
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn every_form_of_an_id_is_parsed_to_the_same_id() {
        let expected = file(&format!("/v3.1.0/a.pdb/{N}/1"));
        assert_eq!(expected.debug_id.to_string(), format!("{D}-1"));
        assert_eq!(expected.version.to_string(), "3.1.0");
        for path in [
            format!("/v3.1.0/a.pdb/{N}"),
            format!("/v3.1.0/a.pdb/{N}/"),
            format!("/V3.1.0/a.pdb/{N}/1/"),
            format!("/v3.1.0/a.pdb/{D}/01"),
            format!("/v3.1.0/a.pdb/{}/1", N.to_uppercase()),
            format!("/v3.1.0/a.pdb/%7B{D}%7D/1"),
            format!("/v3.1.0/a.pdb/({D})/1"),
            format!("/symcache/v3.1.0/a.pdb/{N}/1"),
        ] {
            assert_eq!(file(&path), expected, "{path}");
        }
    }

    #[test]
    fn the_age_is_decimal() {
        let id = |age: &str| file(&format!("/v3.1.0/a.pdb/{N}/{age}")).debug_id;
        assert_eq!(id("10").appendix(), 10);
        assert_eq!(id("4294967295").appendix(), u32::MAX);
        assert_eq!(id("0").appendix(), 0);
    }

    #[test]
    fn names_are_decoded_once() {
        let name = |name: &str| file(&format!("/v3.1.0/{name}/{N}")).name;
        assert_eq!(name("my%20app.pdb"), "my app.pdb");
        assert_eq!(name("a+b.pdb"), "a+b.pdb");
        assert_eq!(name("%E6%97%A5.pdb"), "日.pdb");
        assert_eq!(name("50%25.pdb"), "50%.pdb");
    }

    #[test]
    fn an_impossible_file_name_is_rejected() {
        let name = |name: &str| format!("/v3.1.0/{name}/{N}/1");
        let id = |id: &str| format!("/v3.1.0/a.pdb/{id}/1");
        let age = |age: &str| format!("/v3.1.0/a.pdb/{N}/{age}");
        let version = |version: &str| format!("/v{version}/a.pdb/{N}/1");
        for path in [
            name("..%2Fa.pdb"),
            name("..%5Ca.pdb"),
            name(".."),
            name("%2e%2e"),
            name("a..pdb"),
            name("."),
            name("a%00.pdb"),
            name("a%0a.pdb"),
            name("C%3Aa.pdb"),
            name("a.pdb%20"),
            name("a.pdb."),
            name(""),
            name("%ff.pdb"),
            name(&"a".repeat(256)),
            name("a%2Fb.pdb"),
            name("a*.pdb"),
            id(""),
            id(&N[1..]),
            id(&format!("{N}1")),
            id("g"),
            id(&"0".repeat(32)),
            id(&format!("{{{N}}}")),
            id(&format!("({D}")),
            id(&format!("urn:uuid:{D}")),
            age("a"),
            age("-1"),
            age("+1"),
            age("4294967296"),
            age("1/2"),
            age("%2e"),
            version("3.1"),
            version("3.1.x"),
            version("3.1.0-rc"),
            version("2.9.9"),
            version("0.0.0"),
            version("3.256.0"),
            version("65536.0.0"),
            version("3.1.0.0"),
            "/v3.1.0".to_owned(),
            "/v3.1.0/a.pdb".to_owned(),
            format!("/v3.1.0/x/a.pdb/{N}/1"),
        ] {
            assert_eq!(Route::of(&path), Route::Nothing, "{path}");
        }
    }

    #[test]
    fn paths_of_other_protocols_are_not_handled() {
        for path in [
            "/",
            "",
            "/symbolicate",
            "/version",
            "/v",
            "/symcache",
            "/scope/acme",
            "/x/v3.1.0/a.pdb",
        ] {
            assert_eq!(Route::of(path), Route::Other, "{path}");
        }
    }

    #[test]
    fn a_client_that_retries_says_so_or_is_recent_enough() {
        let may = |version: &str, values: &[&str]| {
            file(&format!("/v{version}/a.pdb/{N}")).may_be_put_off(values.iter().copied())
        };
        for (version, values, expected) in [
            ("3.1.0", &[][..], false),
            ("3.0.5", &[], false),
            ("3.1.0", &["true"], true),
            ("3.1.0", &["TRUE"], true),
            ("3.1.0", &["True "], true),
            ("3.1.0", &["1"], false),
            ("3.1.0", &["yes"], false),
            ("3.1.0", &["false"], false),
            ("3.1.0", &[""], false),
            ("3.1.0", &["false", "true"], true),
            ("3.1.1", &[], true),
            ("3.2.0", &["false"], true),
            ("4.0.0", &[], true),
        ] {
            assert_eq!(may(version, values), expected, "{version} {values:?}");
        }
    }

    #[test]
    fn a_client_has_the_version_below_the_one_it_requests() {
        let asked = file(&format!("/v3.2.0/a.pdb/{N}"));
        let present = |values: &[&str]| asked.present(values.iter().copied());
        assert_eq!(present(&[]), Ok(None));
        assert_eq!(present(&["3.1.0"]), Ok("3.1.0".parse().ok()));
        assert_eq!(present(&["2.0.0"]), Ok("2.0.0".parse().ok()));
        for (values, status) in [
            (&["3.2.0"][..], "must be less"),
            (&["4.0.0"], "must be less"),
            (&["abc"], "not a valid version"),
            (&["x3.0.0y"], "not a valid version"),
            (&["3.256.0"], "not a valid version"),
            (&[""], "not a valid version"),
            (&["0.9.0"], "unsupported"),
            (&["3.0.0", "3.1.0"], "Only one"),
            (&["3.0.0, 3.1.0"], "Only one"),
        ] {
            let problem = present(values).unwrap_err().to_string();
            assert!(problem.contains(status), "{values:?}: {problem}");
        }
    }
}
