//! Candidates: the DIFs considered for a module, and what became of them.

use serde::{Deserialize, Serialize};

use super::{Cause, Features, Location, Missing, SourceKey};

/// A DIF considered for a module.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Candidate {
    /// The source it was looked for in.
    pub source: SourceKey,
    /// Where in the source it is.
    pub location: Location,
    /// What became of it.
    pub download: Download,
    /// Its size in bytes, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// How long fetching it took, in milliseconds, where it was fetched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Why nothing can be derived from it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// What became of a candidate.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Download {
    /// It is there, and offers this.
    Ok {
        /// What it offers.
        features: Features,
    },
    /// It cannot be parsed.
    Malformed,
    /// The source refuses to hand it out.
    NoPerm {
        /// What the source said.
        details: String,
    },
    /// It is not there.
    NotFound,
    /// The source failed.
    Error {
        /// How it failed.
        details: String,
    },
}

impl Download {
    /// Returns what became of a candidate that cannot be had.
    pub fn failed(missing: &Missing) -> Self {
        let details = || missing.detail.clone();
        match missing.cause {
            Cause::NotFound => Self::NotFound,
            Cause::PermissionDenied => Self::NoPerm { details: details() },
            Cause::Malformed | Cause::Crashed => Self::Malformed,
            Cause::DownloadFailed
            | Cause::Timeout
            | Cause::Unsupported
            | Cause::TooLarge { .. } => Self::Error { details: details() },
        }
    }
}
