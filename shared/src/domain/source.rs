//! Sources, where DIFs are found, and references to the DIFs in them.

use std::fmt;

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};

/// The name of a source in keys and messages.
///
/// - `uploads` for the uploads.
/// - For a configured symbol server: its id, `#`, and a fingerprint of the settings that determine
///   which DIFs are found. A corrected setting therefore invalidates the cached misses.
/// - For a server that a request defines: its id, `##`, and a keyed hash of the whole definition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SourceKey(pub(super) String);

impl SourceKey {
    /// Returns the key of the uploads.
    pub fn uploads() -> Self {
        Self("uploads".to_owned())
    }

    /// Returns whether a request defines the source.
    pub fn is_defined(&self) -> bool {
        self.0.contains("##")
    }

    /// Returns the id of the source, under which it is configured and shown.
    pub fn id(&self) -> &str {
        self.0.split('#').next().unwrap_or_default()
    }

    /// Returns whether the source is the uploads. Uploads announce every change, so no probes are
    /// needed.
    pub fn is_uploads(&self) -> bool {
        self.0 == "uploads"
    }

    /// Returns the text for keys and messages.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The location of a DIF in its source: for uploads, the key in the bucket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
