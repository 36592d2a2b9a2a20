//! Stored requests, the sources that requests define, and the PDBs that clients want.

use serde::{Deserialize, Serialize};

use crate::domain::{DebugId, FormatVersion, ResponseFormat, Scope, SourceKey, Timestamp};

/// The prefix of the blobs with the bodies of requests and their answers. A rule of the bucket
/// removes them.
const REQUESTS: &str = "requests/";

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
    /// What the body contains.
    #[serde(default, skip_serializing_if = "RequestStage::is_symbolicate")]
    pub stage: RequestStage,
    /// The schema of the answer.
    #[serde(default, skip_serializing_if = "ResponseFormat::is_default")]
    pub format: ResponseFormat,
    /// The body of the request.
    pub body: RequestBody,
    /// Whether the body is encrypted because it contains credentials.
    #[serde(default, rename = "sealed", skip_serializing_if = "std::ops::Not::not")]
    pub encrypted: bool,
    /// When the client sent the request; unknown if an earlier release stored it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_at: Option<Timestamp>,
    /// The answer, once a call that continues the request has completed it. Earlier releases ignore
    /// and may drop it: they answer from the body again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<StoredAnswer>,
    /// When the store may delete the item.
    pub expires_at: Timestamp,
}

/// The complete answer to a stored request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredAnswer {
    /// The path of the blob that contains it, as JSON.
    pub path: String,
    /// Its size in bytes. The blob has another size if two calls completed the request at the same
    /// time: that of the first one stays.
    pub bytes: u64,
}

/// How far a stored request has come, and so what its body contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestStage {
    /// Stack traces to symbolicate: the request as it was received.
    #[default]
    Symbolicate,
    /// Stack traces to symbolicate, with what a crash file says besides.
    CrashFile,
    /// A minidump whose stacks are not walked yet.
    Minidump,
}

impl StoredAnswer {
    /// Returns the path of the blob with the answer to a request.
    pub fn path_of(id: &str) -> String {
        format!("{REQUESTS}{id}.json")
    }
}

impl RequestStage {
    /// Returns the path of the blob with the body of a request. Each stage has its own, because
    /// blobs never change.
    pub fn path(self, id: &str) -> String {
        match self {
            Self::Symbolicate | Self::CrashFile => format!("{REQUESTS}{id}"),
            Self::Minidump => format!("{REQUESTS}{id}.dmp"),
        }
    }

    fn is_symbolicate(&self) -> bool {
        *self == Self::Symbolicate
    }
}

/// The body of a stored request if it fits into the item, or else a reference to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestBody {
    /// The body.
    Inline(String),
    /// The path of a blob that contains the body.
    Blob(String),
}
