//! Sources, where DIFs are found, and references to the DIFs in them.

use std::fmt;

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};

/// The key of a source, in keys of items and in messages. Its text is `uploads`, or begins with
/// the id of the source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(from = "String", into = "String")]
pub enum SourceKey {
    /// The uploads; `uploads` as text. They announce every change, so no probes are needed.
    Uploads,
    /// A configured symbol server; `id#fingerprint` as text.
    Configured {
        /// The id, under which the server is configured and shown.
        id: String,
        /// A fingerprint of the settings that determine which DIFs are found. A corrected setting
        /// therefore invalidates the cached misses.
        fingerprint: String,
    },
    /// A symbol server that a request defines; `id##hash` as text.
    Defined {
        /// The id that the request gives it.
        id: String,
        /// A keyed hash of the whole definition: clients without the credentials in the definition
        /// cannot obtain the key.
        hash: String,
    },
}

/// The text of [`SourceKey::Uploads`], which is also the id of the uploads.
const UPLOADS: &str = "uploads";

/// The id of sources that consist of links to source files. Their files are shown as candidates
/// under it, as in Symbolicator.
pub const SOURCE_LINK_ID: &str = "sourcelink";

impl SourceKey {
    /// Returns whether a request defines the source.
    pub fn is_defined(&self) -> bool {
        matches!(self, Self::Defined { .. })
    }

    /// Returns the id of the source, under which it is configured and shown.
    pub fn id(&self) -> &str {
        match self {
            Self::Uploads => UPLOADS,
            Self::Configured { id, .. } | Self::Defined { id, .. } => id,
        }
    }

    /// Returns whether the source is the uploads.
    pub fn is_uploads(&self) -> bool {
        *self == Self::Uploads
    }
}

impl From<String> for SourceKey {
    fn from(text: String) -> Self {
        if text == UPLOADS {
            return Self::Uploads;
        }
        if let Some((id, hash)) = text.split_once("##") {
            return Self::Defined {
                id: unescaped(id),
                hash: hash.to_owned(),
            };
        }
        let (id, fingerprint) = text.split_once('#').unwrap_or((&text, ""));
        Self::Configured {
            id: unescaped(id),
            fingerprint: fingerprint.to_owned(),
        }
    }
}

/// Returns an id without the character that separates it from the rest of a key. Keys of ids
/// without it are unchanged.
fn escaped(id: &str) -> String {
    id.replace('%', "%25").replace('#', "%23")
}

fn unescaped(id: &str) -> String {
    id.replace("%23", "#").replace("%25", "%")
}

impl From<SourceKey> for String {
    fn from(key: SourceKey) -> Self {
        key.to_string()
    }
}

impl fmt::Display for SourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uploads => f.write_str(UPLOADS),
            Self::Configured { id, fingerprint } if fingerprint.is_empty() => {
                f.write_str(&escaped(id))
            }
            Self::Configured { id, fingerprint } => write!(f, "{}#{fingerprint}", escaped(id)),
            Self::Defined { id, hash } => write!(f, "{}##{hash}", escaped(id)),
        }
    }
}

/// The location of a DIF in its source: for uploads, the key in the bucket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Location(String);

impl Location {
    /// Returns the location with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the last segment; that of a URL is decoded, and has no query.
    pub fn file_name(&self) -> String {
        let url = url::Url::parse(&self.0).ok();
        let path = url.as_ref().map_or(self.0.as_str(), url::Url::path);
        let last = path.rsplit('/').next().unwrap_or_default();
        match url {
            Some(_) => percent_decode_str(last).decode_utf8_lossy().into_owned(),
            None => last.to_owned(),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A DIF with specific bytes: its location, and the etag of the bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct DifRef {
    /// The location.
    pub location: Location,
    /// The etag that the source assigned to these bytes.
    pub etag: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_source_is_its_text() {
        for (text, id, is_defined) in [
            ("uploads", "uploads", false),
            ("mozilla#bf32e8a180bca4a2", "mozilla", false),
            ("mine##0123456789abcdef", "mine", true),
            ("of-an-older-release", "of-an-older-release", false),
            ("%2323 100%25 %23##01", "#23 100% #", true),
        ] {
            let key = SourceKey::from(text.to_owned());
            assert_eq!((key.id(), key.is_defined()), (id, is_defined));
            assert_eq!(key.is_uploads(), text == "uploads");
            assert_eq!(key.to_string(), text);
            assert_eq!(serde_json::to_string(&key).unwrap(), format!("{text:?}"));
        }
    }

    #[test]
    fn a_file_name_is_the_last_segment_of_a_key_or_an_address() {
        for (location, expected) in [
            ("global/a/my app.pdb", "my app.pdb"),
            ("global/50%25.pdb", "50%25.pdb"),
            ("http://x.test/a/my%20app.pdb", "my app.pdb"),
            ("https://x.test/a/app.pdb?x=/y", "app.pdb"),
            ("app.pdb", "app.pdb"),
        ] {
            assert_eq!(Location::new(location).file_name(), expected);
        }
    }
}
