//! Entry records: the state that is cached under one key, and the lease of the builder.
//!
//! All code can read the fields; only [`super::apply`] writes them.

use serde::{Deserialize, Serialize};

use super::{ModuleKey, Policy, Token};
use crate::domain::{
    Candidate, Converter, DifRef, Features, FileType, Kind, Missing, Quality, Queue, Rank,
    Timestamp,
};

/// The cache entry of one kind of one module: its ready states, its placeholder and its lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// The module of the entry.
    pub(in crate::cache) module: ModuleKey,
    pub(in crate::cache) kind: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::cache) ready: Option<Ready>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::cache) older: Option<Ready>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::cache) missing: Option<Placeholder>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::cache) lease: Option<Lease>,
    #[serde(default, rename = "ask", skip_serializing_if = "Option::is_none")]
    pub(in crate::cache) build_request: Option<BuildRequest>,
    /// The mark of the last upload or removal that concerns the entry. A build whose lease has
    /// another one has not seen that change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::cache) dirty: Option<Token>,
    /// The DIFs that the last build ranked, whether it used them or not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::cache) considered: Vec<DifRef>,
    /// The converter of the last build, if that left DIFs to a newer release.
    #[serde(default, rename = "left_by", skip_serializing_if = "Option::is_none")]
    pub(in crate::cache) deferred_by: Option<Converter>,
    /// How many holders took the lease without returning a result.
    #[serde(default)]
    pub(in crate::cache) attempts: u32,
    /// How often in a row the lease was released without a result. The back-off grows with it.
    #[serde(default)]
    pub(in crate::cache) releases: u32,
    /// The end of the back-off, before which no lease is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::cache) not_before: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::cache) suspect: Option<Suspect>,
    /// When a blob was last replaced because it was lost or could not be read, which is limited to
    /// once an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::cache) lost_at: Option<Timestamp>,
    pub(in crate::cache) last_used_at: Timestamp,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::cache) candidates: Vec<Candidate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::cache) probes: Option<Probes>,
}

/// A derived cache, and the blob that holds it. Its builder has loaded it, except Microsoft's
/// SymCaches, whose bytes are opaque.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ready {
    /// The version of the kind's format.
    pub version: u32,
    /// The path, size and checksum of the blob.
    pub blob: BlobRef,
    /// Whether a better DIF may be found later.
    pub quality: Quality,
    /// How well the DIF serves this kind.
    pub rank: Rank,
    /// The features of the object that it was made from.
    pub features: Features,
    /// The architecture of that object, as `symbolic` names it.
    pub arch: String,
    /// The file type of that DIF.
    pub file_type: FileType,
    /// The DIFs that it was made from, the main one first.
    pub made_from: Vec<DifRef>,
    /// What the cache lacks although the DIF has it or refers to another file for it. Shown to
    /// people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lacks: Option<String>,
    /// When it was published.
    pub derived_at: Timestamp,
    /// The converter that derived it.
    pub converter: Converter,
}

/// A reference to a blob, with what a reader needs to verify its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlobRef {
    /// The path in the caches bucket.
    pub path: String,
    /// The size in bytes.
    pub bytes: u64,
    /// xxh3-64 of the whole blob.
    pub checksum: u64,
    /// Where the index is, if the blob has one that can be read alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<IndexRef>,
}

/// The position of the index in a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IndexRef {
    /// The offset of the first byte.
    pub offset: u64,
    /// The length in bytes.
    pub length: u64,
}

/// A negative cache entry: why there is no state or no newer one, and when to retry.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Placeholder {
    /// The reason.
    #[serde(flatten)]
    pub missing: Missing,
    /// When a build may be requested again.
    pub retry_at: Timestamp,
    /// The converter that failed.
    pub converter: Converter,
    /// The number of earlier consecutive failures with the same cause.
    #[serde(default)]
    pub repeats: u32,
    /// The token of the build that wrote it. Absent on placeholders that were written before this
    /// field existed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,
}

/// The right to build an entry until a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lease {
    /// The request id of the builder.
    pub holder: String,
    /// The unique token of the lease.
    pub token: Token,
    /// When the lease expires unless it is extended.
    pub until: Timestamp,
    /// The entry's dirty mark at the time when the lease was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty: Option<Token>,
}

/// A request to build an entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BuildRequest {
    /// The unique id of the build request.
    pub id: Token,
    /// The queue of its message.
    #[serde(rename = "lane")]
    pub queue: Queue,
    /// When the build was requested.
    pub at: Timestamp,
}

/// The probes for a better DIF in a source that does not announce new files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Probes {
    /// When the last probe was made.
    pub at: Timestamp,
    /// The number of consecutive probes that found nothing better.
    pub fruitless: u32,
}

/// A blob that a reader could not read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Suspect {
    /// The path of the blob.
    pub blob: String,
    /// When the reader reported it.
    pub at: Timestamp,
    /// The [`Dispute`](super::Change::Dispute) of a builder that found the blob intact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disputed: Option<Token>,
}

impl Entry {
    /// Returns an empty entry.
    pub fn new(module: ModuleKey, kind: Kind, now: Timestamp) -> Self {
        Self {
            module,
            kind,
            ready: None,
            older: None,
            missing: None,
            lease: None,
            build_request: None,
            dirty: None,
            considered: Vec::new(),
            deferred_by: None,
            attempts: 0,
            releases: 0,
            not_before: None,
            suspect: None,
            lost_at: None,
            last_used_at: now,
            candidates: Vec::new(),
            probes: None,
        }
    }

    /// Returns the module.
    pub fn module(&self) -> &ModuleKey {
        &self.module
    }

    /// Returns the kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the newest published state.
    pub fn ready(&self) -> Option<&Ready> {
        self.ready.as_ref()
    }

    /// Returns the ready state of a lower version, which is kept for older releases.
    pub fn older(&self) -> Option<&Ready> {
        self.older.as_ref()
    }

    /// Returns why there is no state or no newer one.
    pub fn missing(&self) -> Option<&Placeholder> {
        self.missing.as_ref()
    }

    /// Returns the lease, live or expired.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// Returns the lease if it has not expired.
    pub fn live_lease(&self, now: Timestamp) -> Option<&Lease> {
        self.lease.as_ref().filter(|lease| now < lease.until)
    }

    /// Returns the pending build request.
    pub fn build_request(&self) -> Option<&BuildRequest> {
        self.build_request.as_ref()
    }

    /// Returns whether this is the id of the pending build request.
    pub fn is_requested_by(&self, id: &Token) -> bool {
        self.build_request
            .as_ref()
            .is_some_and(|build_request| build_request.id == *id)
    }

    /// Returns the states that a reader may use: the current one, then that of an older version.
    pub fn states(&self) -> impl Iterator<Item = &Ready> {
        self.ready.iter().chain(&self.older)
    }

    /// Returns the pending build request, unless its message is assumed to be lost.
    pub fn live_request(&self, now: Timestamp) -> Option<&BuildRequest> {
        let is_live = |build_request: &&BuildRequest| {
            now.since(build_request.at) < Policy::request_lifetime(build_request.queue)
        };
        self.build_request.as_ref().filter(is_live)
    }

    /// Returns whether the message of the pending build request is lost, whatever its queue is, and
    /// no reader has requested the build again.
    pub fn has_lost_request(&self, now: Timestamp) -> bool {
        let longest = Policy::request_lifetime(Queue::Refresh);
        let build_request = self.build_request.as_ref();
        build_request.is_some_and(|build_request| now.since(build_request.at) >= longest)
            && self.live_lease(now).is_none()
    }

    /// Returns the mark of the last upload or removal that concerns the entry.
    pub fn dirty(&self) -> Option<&Token> {
        self.dirty.as_ref()
    }

    /// Returns the DIFs that the last build ranked.
    pub fn considered(&self) -> &[DifRef] {
        &self.considered
    }

    /// Returns whether the last build deferred DIFs to releases with this converter: a newer
    /// release wrote their items, or made the ready state, which an older one does not replace.
    pub fn defers_files_to(&self, converter: Converter) -> bool {
        self.deferred_by.is_some_and(|by| by < converter)
    }

    /// Returns how many holders took the lease without returning a result.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Returns the end of the back-off, before which no lease is given.
    pub fn not_before(&self) -> Option<Timestamp> {
        self.not_before
    }

    /// Returns the blob that a reader could not read.
    pub fn suspect(&self) -> Option<&Suspect> {
        self.suspect.as_ref()
    }

    /// Returns when the entry was last used, with an accuracy of an hour.
    pub fn last_used_at(&self) -> Timestamp {
        self.last_used_at
    }

    /// Returns the probes for a better DIF; `None` if no probes are needed.
    pub fn probes(&self) -> Option<Probes> {
        self.probes
    }

    /// Returns the candidates of the last build, with their results.
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }
}
