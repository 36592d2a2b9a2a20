//! What a build is asked to make of an object, and what it made.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::Kind;
use crate::domain::{DebugId, FormatVersion, Rank};

/// A cache to derive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeriveJob {
    /// Its kind.
    pub kind: Kind,
    /// How well the object serves that kind.
    pub rank: Rank,
}

/// A PDB to transcode into Microsoft's SymCache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transcoding {
    /// The file name of the PDB, which its SymCache is called after.
    pub pdb: String,
    /// Identity of the PDB.
    pub debug_id: DebugId,
    /// The version that its SymCache is to have.
    pub version: FormatVersion,
}

/// A derived cache: the bytes of its blob, loaded once from these bytes as a reader would.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derived {
    /// The kind.
    pub kind: Kind,
    /// The blob.
    pub blob: Bytes,
    /// xxh3-64 of the blob.
    pub checksum: u64,
    /// What is not in it although the DIF has it, or says that another file does: for a human.
    pub lacks: Option<String>,
}
