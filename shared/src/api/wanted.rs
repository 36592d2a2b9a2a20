//! The answer of `GET /wanted`: PDBs that clients of Microsoft's protocol requested, and that this
//! service cannot convert.

use serde::{Deserialize, Serialize};

use crate::domain::{DebugId, FormatVersion, Timestamp};

/// The wanted SymCaches of a scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct WantedList {
    /// The PDBs.
    pub wanted: Vec<WantedPdb>,
    /// The number of further ones, on the next pages.
    pub more: usize,
}

/// A PDB whose SymCache is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct WantedPdb {
    /// The file name of the PDB.
    pub pdb: String,
    /// The debug id.
    #[cfg_attr(
        feature = "openapi",
        schemars(with = "crate::domain::schema::DebugIdText")
    )]
    pub debug_id: DebugId,
    /// The debug id as symbol servers and tools write it: GUID and age, in hex.
    pub id: String,
    /// The highest version that was requested.
    pub version: FormatVersion,
    /// The approximate number of requests.
    pub asked: u64,
    /// When it was first requested.
    pub first_at: Timestamp,
    /// When it was last requested.
    pub last_at: Timestamp,
}
