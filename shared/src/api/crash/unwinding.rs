//! How the modules of a minidump were unwound.

use serde::{Deserialize, Serialize};

use crate::domain::{Candidate, Features, Location, Missing, SourceKey};

/// The unwind information that a walk needed of a module, and where it was searched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleUnwinding {
    /// Why there is none, if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<Missing>,
    /// The features of the file that it is from.
    pub features: Features,
    /// The candidates, if the response lists them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<Candidate>,
    /// The candidate that was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<(SourceKey, Location)>,
}
