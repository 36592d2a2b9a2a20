//! Sources: the places where DIFs are found, and the DIFs in them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Names a source in keys and messages: `uploads`, or what identifies a configured one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SourceKey(String);

impl SourceKey {
    /// Returns the key of the bucket that users upload to.
    pub fn uploads() -> Self {
        Self("uploads".to_owned())
    }

    /// Tells whether uploads and removals announce themselves, so that nobody need look for changes.
    pub fn announces_changes(&self) -> bool {
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
