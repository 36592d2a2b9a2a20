//! Stored requests, the sources that requests define, and the PDBs that clients want.

use serde::{Deserialize, Serialize};

use crate::domain::{DebugId, FormatVersion, Scope, SourceKey, Timestamp};

/// A PDB whose SymCache a client requested, and that is neither stored nor can be made here. An
/// operator who has Microsoft's tool can make and upload it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The scope of the request.
    pub scope: Scope,
    /// The file name of the PDB in the last request.
    pub pdb: String,
    /// The debug id of the PDB.
    pub debug_id: DebugId,
    /// The highest version that a client requested.
    pub version: FormatVersion,
    /// The number of requests. Requests to one instance in quick succession count once.
    pub asked: u64,
    /// When it was first requested.
    pub first_at: Timestamp,
    /// When it was last requested.
    pub last_at: Timestamp,
    /// When the store may delete the item.
    pub expires_at: Timestamp,
}

/// A source that a request defined. `derive` reads the definition from here, because messages carry
/// no credentials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceDefinition {
    /// The key of the source.
    pub key: SourceKey,
    /// The encrypted definition.
    #[serde(rename = "sealed")]
    pub encrypted: String,
    /// A keyed hash of the credentials in it that are replaced from time to time, and so are not
    /// part of the key; empty if there are none.
    #[serde(default, rename = "passing", skip_serializing_if = "String::is_empty")]
    pub passing_credentials: String,
    /// When the store may delete the item.
    pub expires_at: Timestamp,
}

/// A request whose response was `pending`. Any instance can continue it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingRequest {
    /// The id in the response.
    pub id: String,
    /// The scope of the request.
    pub scope: Scope,
    /// The body of the request.
    pub body: RequestBody,
    /// Whether the body is encrypted because it contains credentials.
    #[serde(default, rename = "sealed", skip_serializing_if = "std::ops::Not::not")]
    pub encrypted: bool,
    /// When the store may delete the item.
    pub expires_at: Timestamp,
}

/// The body of a stored request: the JSON if it fits into the item, or else a reference to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestBody {
    /// The JSON.
    Inline(String),
    /// The path of a blob that contains the JSON.
    Blob(String),
}
