//! Candidates, as responses show them for a module.

use serde::{Deserialize, Serialize, Serializer};

use crate::domain::{self, Features, Location, SourceKey};

/// A DIF that was considered for a module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct CandidateReport {
    /// The source; on the wire, its id.
    #[serde(serialize_with = "id")]
    #[cfg_attr(feature = "openapi", schemars(with = "String"))]
    pub source: SourceKey,
    /// The location in the source.
    pub location: Location,
    /// The result of the download.
    pub download: DownloadStatus,
    /// The result of deriving unwind information from it, if that was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwind: Option<Derivation>,
    /// The result of deriving names and lines from it, if that was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debug: Option<Derivation>,
}

/// The result of downloading a candidate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(tag = "status", rename_all = "lowercase")]
pub enum DownloadStatus {
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

/// The result of deriving a cache from a candidate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(tag = "status", rename_all = "lowercase")]
pub enum Derivation {
    /// The cache was derived.
    Ok,
    /// It cannot be parsed.
    Malformed {
        /// What is wrong with it, if known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        details: Option<String>,
    },
    /// Any other failure.
    Error {
        /// The failure.
        details: String,
    },
}

fn id<S: Serializer>(source: &SourceKey, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(source.id())
}

impl From<&domain::Candidate> for CandidateReport {
    fn from(candidate: &domain::Candidate) -> Self {
        let domain::Candidate {
            source,
            location,
            download,
            size: _,
            duration_ms: _,
            fault,
        } = candidate;
        let malformed = |details: &String| Derivation::Malformed {
            details: Some(details.clone()),
        };
        Self {
            source: source.clone(),
            location: location.clone(),
            download: match download {
                domain::Download::Ok { features } => DownloadStatus::Ok {
                    features: features.clone(),
                },
                domain::Download::Malformed => DownloadStatus::Malformed,
                domain::Download::NoPerm { details } => DownloadStatus::NoPerm {
                    details: details.clone(),
                },
                domain::Download::NotFound => DownloadStatus::NotFound,
                domain::Download::Error { details } => DownloadStatus::Error {
                    details: details.clone(),
                },
            },
            unwind: None,
            debug: fault.as_ref().map(malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_one_word_on_the_wire() {
        let candidate = domain::Candidate {
            source: SourceKey::Uploads,
            location: Location::new("global/app.debug"),
            download: domain::Download::NoPerm {
                details: "access denied".to_owned(),
            },
            size: Some(7),
            duration_ms: Some(8),
            fault: None,
        };
        let wire = CandidateReport {
            debug: Some(Derivation::Malformed { details: None }),
            ..CandidateReport::from(&candidate)
        };
        insta::assert_json_snapshot!(wire, @r#"
        {
          "source": "uploads",
          "location": "global/app.debug",
          "download": {
            "status": "noperm",
            "details": "access denied"
          },
          "debug": {
            "status": "malformed"
          }
        }
        "#);
    }
}
