//! What a build derives from an object, and the result.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Converter, Kind, ReleaseNumbers};
use crate::domain::{DebugId, Features, FormatVersion, Rank};

/// A cache to derive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeriveJob {
    /// The kind.
    pub kind: Kind,
    /// How well the object serves the kind.
    pub rank: Rank,
    /// The version of the kind's format.
    pub version: u32,
    /// The converter, which the cache names.
    pub converter: Converter,
}

impl DeriveJob {
    /// Returns the job to derive a kind from an object with these features, as a release with these
    /// numbers makes it.
    pub fn of(kind: Kind, features: &Features, numbers: &ReleaseNumbers) -> Self {
        Self {
            kind,
            rank: Rank::of(features, kind.purpose()),
            version: numbers.version(kind),
            converter: numbers.converter,
        }
    }
}

/// A PDB to transcode into a Microsoft SymCache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transcoding {
    /// The file name of the PDB, after which the SymCache is named.
    pub pdb: String,
    /// The debug id of the PDB.
    pub debug_id: DebugId,
    /// The version of the SymCache to make.
    pub version: FormatVersion,
}

/// A derived cache: the bytes of its blob, which the builder has loaded once as a reader would.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derived {
    /// The kind.
    pub kind: Kind,
    /// The blob.
    pub blob: Bytes,
    /// xxh3-64 of the blob.
    pub checksum: u64,
    /// What the cache lacks although the DIF has it or refers to another file for it. Shown to
    /// people.
    pub lacks: Option<String>,
}
