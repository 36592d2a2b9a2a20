//! The queues of build requests.

use serde::{Deserialize, Serialize};

/// A queue of build requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Queue {
    /// A reader is waiting for the entry.
    Eager,
    /// A DIF was uploaded or removed.
    Uploads,
    /// No reader is waiting: the entry is to be improved or rebuilt.
    Refresh,
}

impl Queue {
    /// Returns its name for logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Eager => "eager",
            Self::Uploads => "uploads",
            Self::Refresh => "refresh",
        }
    }
}
