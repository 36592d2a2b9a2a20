//! Sources: the places where DIFs are found, and the DIFs in them.

use std::fmt;

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};

/// Names a source in keys and messages: `uploads`; for a configured symbol server its id, `#`, and a fingerprint of what
/// decides what is found there, so that a mended configuration forgets its misses; for one that a request defines `##` and a
/// keyed hash of all of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SourceKey(pub(super) String);

impl SourceKey {
    /// Returns the key of the bucket that users upload to.
    pub fn uploads() -> Self {
        Self("uploads".to_owned())
    }

    /// Tells whether a request defines it.
    pub fn is_defined(&self) -> bool {
        self.0.contains("##")
    }

    /// Returns the id under which the source is configured, and shown.
    pub fn id(&self) -> &str {
        self.0.split('#').next().unwrap_or_default()
    }

    /// Tells whether uploads and removals announce themselves, so that nobody need look for changes.
    pub fn is_uploads(&self) -> bool {
        self.0 == "uploads"
    }

    /// Returns the text that keys and messages carry.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where in its source a DIF is: for uploads, the key in the bucket.
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

    /// Returns its last segment; of an address decoded, and without a query.
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

/// One state of one DIF: where it is, and the etag of its bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DifRef {
    /// Where the DIF is.
    pub location: Location,
    /// The etag its source gave for these bytes.
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
