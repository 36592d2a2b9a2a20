//! Candidates: the DIFs that were considered for a module, with their results.

use serde::{Deserialize, Serialize};

use super::{Cause, Features, Location, Missing, SourceKey, UnsupportedSource};

/// A DIF that was considered for a module.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Candidate {
    /// The source.
    pub source: SourceKey,
    /// The location in the source.
    pub location: Location,
    /// The result.
    pub download: Download,
    /// The size in bytes, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The duration of the download in milliseconds, if it was downloaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Why nothing can be derived from it, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

impl Candidate {
    /// The location of the candidate of a source that has no file for a module, as in Symbolicator.
    pub const NOTHING_LISTED: &str = "No object files listed on this source";

    /// Returns the candidate for a location without a usable file.
    pub fn absent(source: &SourceKey, location: Location, missing: &Missing) -> Self {
        Self {
            source: source.clone(),
            location,
            download: Download::failed(missing),
            size: None,
            duration_ms: None,
            fault: None,
        }
    }

    /// Returns the candidate of a source that has no file for a module.
    pub fn nothing_listed(source: &SourceKey) -> Self {
        let location = Location::new(Self::NOTHING_LISTED);
        Self::absent(source, location, &Missing::not_found())
    }

    /// Returns the candidate of a source that is not searched, because its type is not supported.
    pub fn not_searched(source: &UnsupportedSource) -> Self {
        let UnsupportedSource { id, source_type } = source;
        let key = SourceKey::Defined {
            id: id.clone(),
            hash: String::new(),
        };
        let detail =
            format!("it was not searched: no sources of the type {source_type:?} are supported");
        let missing = Missing::new(Cause::Unsupported, detail);
        Self::absent(&key, Location::new(Self::NOTHING_LISTED), &missing)
    }

    /// Returns the features of the file; `None` if it could not be fetched or parsed.
    pub fn features(&self) -> Option<&Features> {
        match &self.download {
            Download::Ok { features } => Some(features),
            Download::Malformed
            | Download::NoPerm { .. }
            | Download::NotFound
            | Download::Error { .. } => None,
        }
    }
}

/// The result for a candidate.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Download {
    /// It exists, and has these features.
    Ok {
        /// The features.
        features: Features,
    },
    /// It cannot be parsed.
    Malformed,
    /// The source denied access to it.
    NoPerm {
        /// The response of the source.
        details: String,
    },
    /// It does not exist.
    NotFound,
    /// The source failed.
    Error {
        /// The failure.
        details: String,
    },
}

impl Download {
    /// Returns the result for a candidate that is missing for this reason.
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
