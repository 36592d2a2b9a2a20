//! The state of an upload.

use serde::{Deserialize, Serialize};

/// The state of an upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum UploadState {
    /// Its event is being processed.
    Pending,
    /// It is filed under its modules.
    Applied,
    /// It serves no module.
    Ignored {
        /// The reason.
        reason: String,
    },
    /// The file was removed.
    Gone,
}
