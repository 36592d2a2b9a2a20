//! Entry records: what is cached under one key, and who is at work on it.
//!
//! The fields can be read everywhere and written only by [`super::apply`].

use serde::{Deserialize, Serialize};

use super::{Converter, Kind, ModuleKey, Policy, Token};
use crate::domain::{Candidate, DifRef, Features, FileType, Missing, Quality, Rank, Timestamp};

/// What is cached for one kind of one module: bytes, a reason why there are none, and who is at work on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// Whose it is.
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::cache) dirty: Option<Token>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::cache) considered: Vec<DifRef>,
    #[serde(default)]
    pub(in crate::cache) attempts: u32,
    #[serde(default)]
    pub(in crate::cache) releases: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::cache) not_before: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::cache) suspect: Option<Suspect>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::cache) lost_at: Option<Timestamp>,
    pub(in crate::cache) last_used_at: Timestamp,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::cache) candidates: Vec<Candidate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::cache) probes: Option<Probes>,
}

/// A derived cache that its builder has loaded, and the blob that holds it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ready {
    /// The generation of the kind's format.
    pub version: u32,
    /// Where the blob is, and how to know it.
    pub blob: BlobRef,
    /// Whether something better may turn up.
    pub quality: Quality,
    /// How well the DIF serves this kind.
    pub rank: Rank,
    /// What the object offers that it was made from.
    pub features: Features,
    /// The architecture of that object, as `symbolic` names it.
    pub arch: String,
    /// The type of that DIF.
    pub file_type: FileType,
    /// The DIFs it was made from, the main one first.
    pub made_from: Vec<DifRef>,
    /// What is not in it although the DIF has it, or says that another file does: for a human.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lacks: Option<String>,
    /// When it was published.
    pub derived_at: Timestamp,
    /// What made it.
    pub converter: Converter,
}

/// A blob, and how to know that what was read is what was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlobRef {
    /// Its path in the caches bucket.
    pub path: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// xxh3-64 of the whole blob.
    pub checksum: u64,
    /// Where its index is, if it has one that can be read alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<IndexRef>,
}

/// Where in a blob its index is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IndexRef {
    /// The offset of its first byte.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// Why there is nothing, or nothing newer, and when to try again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Placeholder {
    /// Why.
    #[serde(flatten)]
    pub missing: Missing,
    /// From when on another attempt may be made.
    pub retry_at: Timestamp,
    /// What failed.
    pub converter: Converter,
    /// How often in a row it failed for this cause before.
    #[serde(default)]
    pub repeats: u32,
    /// The token of the build that left it; none on those of builds before this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,
}

/// The right to build, until a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lease {
    /// The request id of who builds.
    pub holder: String,
    /// What tells this lease from every other.
    pub token: Token,
    /// When it ends unless it is extended.
    pub until: Timestamp,
    /// The entry's dirty mark when the lease was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty: Option<Token>,
}

/// A build was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BuildRequest {
    /// What tells this ask from every other.
    pub id: Token,
    /// The queue its message waits in.
    #[serde(rename = "lane")]
    pub queue: Queue,
    /// When it was asked.
    pub at: Timestamp,
}

/// A queue of builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Queue {
    /// Somebody waits.
    Eager,
    /// Something was uploaded or removed.
    Uploads,
    /// Nobody waits.
    Refresh,
}

/// When something better than what is ready was looked for, where nobody would tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Probes {
    /// When it was looked for last.
    pub at: Timestamp,
    /// How often in a row nothing better was found.
    pub fruitless: u32,
}

/// A blob that a reader could not read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Suspect {
    /// Its path.
    pub blob: String,
    /// When it was met.
    pub at: Timestamp,
    /// The change by which a builder said that the blob is as it was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disputed: Option<Token>,
}

impl Entry {
    /// Returns the entry of which nothing is known yet.
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

    /// Returns whose it is.
    pub fn module(&self) -> &ModuleKey {
        &self.module
    }

    /// Returns its kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the newest state that was published.
    pub fn ready(&self) -> Option<&Ready> {
        self.ready.as_ref()
    }

    /// Returns the ready state of a lower version, kept for a build that reads only that.
    pub fn older(&self) -> Option<&Ready> {
        self.older.as_ref()
    }

    /// Returns why there is nothing, or nothing newer.
    pub fn missing(&self) -> Option<&Placeholder> {
        self.missing.as_ref()
    }

    /// Returns the lease, live or dead.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// Returns the lease that holds at `now`.
    pub fn live_lease(&self, now: Timestamp) -> Option<&Lease> {
        self.lease.as_ref().filter(|lease| now < lease.until)
    }

    /// Returns what was asked for, and not answered yet.
    pub fn build_request(&self) -> Option<&BuildRequest> {
        self.build_request.as_ref()
    }

    /// Returns what was asked for and not answered yet, if its message is not taken for lost.
    pub fn live_request(&self, now: Timestamp) -> Option<&BuildRequest> {
        let stands = |build_request: &&BuildRequest| {
            now.since(build_request.at) < Policy::request_lifetime(build_request.queue)
        };
        self.build_request.as_ref().filter(stands)
    }

    /// Returns the mark of the last upload or removal that concerns it.
    pub fn dirty(&self) -> Option<&Token> {
        self.dirty.as_ref()
    }

    /// Returns the DIFs that the last build ranked.
    pub fn considered(&self) -> &[DifRef] {
        &self.considered
    }

    /// Returns how many holders took the lease without coming back.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Returns the time before which no lease is given.
    pub fn not_before(&self) -> Option<Timestamp> {
        self.not_before
    }

    /// Returns the blob that a reader could not read.
    pub fn suspect(&self) -> Option<&Suspect> {
        self.suspect.as_ref()
    }

    /// Returns when it was last read, give or take an hour.
    pub fn last_used_at(&self) -> Timestamp {
        self.last_used_at
    }

    /// Returns when something better was looked for; `None` where nobody need look.
    pub fn probes(&self) -> Option<Probes> {
        self.probes
    }

    /// Returns the DIFs that were tried, and what became of them.
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }
}
