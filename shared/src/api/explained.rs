//! The answer of `GET /explain`: the state of an upload, or the entries that a request for a module
//! would read.

use serde::{Deserialize, Serialize};

use super::advice::WrittenAdvice;
use crate::domain::{
    Candidate, Cause, CodeId, CompanionId, Converter, DebugId, DifRef, Features, FileType, Kind,
    Location, Quality, Queue, Scope, Sequencer, SourceKey, Timestamp, UploadState,
};

/// What a request for a module would do with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EntryUse {
    /// It uses the derived cache.
    Use,
    /// It uses the derived cache, and starts a search for a better file.
    UseAndUpgrade,
    /// It uses the derived cache of a lower version while a newer one is built.
    UseOlder,
    /// It answers that there is no usable file.
    Missing,
    /// It waits for a build that is requested or in progress.
    Wait,
    /// It requests a build.
    Build,
    /// It reads nothing: there is no file that the kind could be made of.
    Absent,
    /// No request has searched the source yet, so it would.
    Unknown,
}

impl EntryUse {
    /// Returns its name in responses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Use => "use",
            Self::UseAndUpgrade => "use_and_upgrade",
            Self::UseOlder => "use_older",
            Self::Missing => "missing",
            Self::Wait => "wait",
            Self::Build => "build",
            Self::Absent => "absent",
            Self::Unknown => "unknown",
        }
    }
}

/// The state of an entry that a request for a module would read, whether it exists or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Explained {
    /// The scope.
    pub scope: Scope,
    /// The source of its DIFs.
    pub source: SourceKey,
    /// The id of the module: `debug_id:…` or `code_id:…`.
    pub module: String,
    /// The kind.
    pub kind: Kind,
    /// What a request would do with it.
    pub state: EntryUse,
    /// What it lacks, and what to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<WrittenAdvice>,
    /// The latest time until which a request would wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_until: Option<Timestamp>,
    /// When the open circuit of its source becomes half-open. Until then, a request does not wait
    /// for the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub circuit_open_until: Option<Timestamp>,
    /// The record; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<ExplainedRecord>,
}

/// The contents of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ExplainedRecord {
    /// The newest state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<ExplainedState>,
    /// The state of a lower version, kept for an older release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older: Option<ExplainedState>,
    /// Why there is no state or no newer one, and when to retry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<ExplainedPlaceholder>,
    /// The current lease, or an expired one that was not released.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<ExplainedLease>,
    /// The build request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build_request: Option<ExplainedBuildRequest>,
    /// The number of holders that vanished.
    pub attempts: u32,
    /// The end of the back-off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// When it was last used, give or take an hour.
    pub last_used_at: Timestamp,
    /// The DIFs that were tried, with their sizes and durations.
    pub candidates: Vec<Candidate>,
}

/// A state in a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", schemars(rename = "ExplainedCache"))]
pub struct ExplainedState {
    /// The version of the format.
    pub version: u32,
    /// The converter that derived it.
    pub converter: Converter,
    /// Whether a better DIF may be found later.
    pub quality: Quality,
    /// The size of its blob.
    pub bytes: u64,
    /// The type of the DIF that it was made from.
    pub file_type: FileType,
    /// The architecture.
    pub arch: String,
    /// The DIFs that it was made from.
    pub made_from: Vec<DifRef>,
    /// What it lacks although the DIF has it or refers to another file for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lacks: Option<String>,
    /// When it was published.
    pub derived_at: Timestamp,
}

/// A placeholder in a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ExplainedPlaceholder {
    /// The cause.
    #[serde(flatten)]
    pub cause: Cause,
    /// The details, for people.
    pub detail: String,
    /// When a build may be requested again.
    pub retry_at: Timestamp,
    /// The converter that failed.
    pub converter: Converter,
    /// The number of earlier consecutive failures with the same cause.
    pub repeats: u32,
}

/// A lease in a record, without the token, which is the right to publish.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ExplainedLease {
    /// The request id of the builder.
    pub holder: String,
    /// When the lease expires unless it is extended.
    pub until: Timestamp,
    /// Whether it is live now.
    pub is_live: bool,
}

/// A build request in a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ExplainedBuildRequest {
    /// The queue of its message.
    pub queue: Queue,
    /// When the build was requested.
    pub at: Timestamp,
}

impl Explained {
    /// Returns the place of its files, as text.
    pub fn place(&self) -> String {
        place_text(&self.scope, &self.source)
    }
}

/// Returns the place of files, as text.
pub fn place_text(scope: &Scope, source: &SourceKey) -> String {
    if source.is_uploads() {
        format!("the uploads of {scope}")
    } else {
        source.id().to_owned()
    }
}

/// The state of an upload, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ExplainedUpload {
    /// Its key in the uploads bucket.
    pub key: String,
    /// The scope; absent if the key names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// The state.
    #[serde(flatten)]
    pub state: UploadState,
    /// What it lacks, or what else is important about it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<WrittenAdvice>,
    /// A note about the modules that it does not serve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The etag of the bytes that this describes.
    pub etag: String,
    /// The sequencer of its last event.
    pub sequencer: Sequencer,
    /// Its size in bytes.
    pub size: u64,
    /// Its objects, at most the first thousand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<ExplainedObject>,
    /// The ids of companions in this upload, as other objects have them in their `needs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub completes: Vec<CompanionId>,
    /// The number of objects that are not listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub further_objects: Option<usize>,
    /// What was skipped in the file, and why. The last line says so if the list is incomplete.
    #[serde(default, rename = "passed_over", skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// The number of failed attempts to read it, including one that is in progress.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts: u32,
    /// When the last attempt began, or its result was written.
    pub at: Timestamp,
}

/// One object in an upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ExplainedObject {
    /// The debug id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schemars(with = "Option<crate::domain::schema::DebugIdText>")
    )]
    pub debug_id: Option<DebugId>,
    /// The code id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schemars(with = "Option<crate::domain::schema::CodeIdText>")
    )]
    pub code_id: Option<CodeId>,
    /// The file type.
    pub file_type: FileType,
    /// The architecture.
    pub arch: String,
    /// The features.
    pub features: Features,
    /// The ids of the companions that it needs: ids of split units, one of which identifies a
    /// package, the build id of a shared file, and the id of a symbol map.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<CompanionId>,
    /// Whether its names are hidden: a symbol map has them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hides_names: bool,
    /// Whether the caches that it is for are made of it; of the first 250 objects of an applied
    /// upload.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<CacheOfObject>,
    /// What it lacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<WrittenAdvice>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A cache that an object of an upload is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct CacheOfObject {
    /// The kind.
    pub kind: Kind,
    /// Whether it is made of the upload.
    #[serde(flatten)]
    pub usage: CacheUsage,
}

/// Whether a cache is made of an upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum CacheUsage {
    /// It is made of this upload, or of another one with the same bytes.
    Used,
    /// It is made of another upload with the same id.
    OtherUpload {
        /// The key of that upload.
        made_from: Location,
    },
    /// It could not be made of this upload.
    Failed {
        /// The reason.
        detail: String,
    },
    /// It is not made of such files, such as unwind information of a machine that is not unwound.
    Unsupported {
        /// The reason.
        detail: String,
    },
    /// Its build is requested or in progress.
    Pending,
    /// It is not stored; the next request for it has it built.
    Unbuilt,
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    /// Reads an answer as a client does, and writes it as the service does.
    fn written_again<T: DeserializeOwned + Serialize>(answer: &Value) -> Value {
        let read: T = serde_json::from_value(answer.clone()).unwrap();
        serde_json::to_value(read).unwrap()
    }

    #[test]
    fn a_client_reads_what_the_service_writes() {
        let module = json!({
            "scope": "global", "source": "uploads", "module": "code_id:12", "kind": "symcache",
            "state": "missing",
            "record": {
                "missing": {
                    "cause": "too_large", "limit": 5, "detail": "why", "retry_at": 9,
                    "converter": 3, "repeats": 1,
                },
                "build_request": {"queue": "eager", "at": 7}, "attempts": 0, "last_used_at": 8,
                "candidates": [],
            },
        });
        assert_eq!(written_again::<Explained>(&module), module);
        let features = json!({
            "has_debug_info": true, "has_unwind_info": false, "has_symbols": true,
            "has_sources": false,
        });
        let object = json!({
            "code_id": "12", "file_type": "elf_code", "arch": "x86_64", "features": features,
            "caches": [
                {"kind": "cficache", "state": "used"},
                {"kind": "symcache", "state": "other_upload", "made_from": "global/b"},
            ],
            "advice": {"cause": "shared_id", "detail": "why", "next_step": "what"},
        });
        let upload = json!({
            "key": "global/a", "scope": "global", "state": "ignored", "reason": "why",
            "etag": "1", "sequencer": "01", "size": 1, "objects": [object], "at": 2,
        });
        assert_eq!(written_again::<ExplainedUpload>(&upload), upload);
    }
}
