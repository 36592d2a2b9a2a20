//! Reading DIFs from a source.

use std::fmt::Debug;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;

use super::Fault;
use crate::domain::{Location, Missing, Timestamp};

/// Reads the DIFs of one source.
#[async_trait]
pub trait DifReader: Debug + Send + Sync {
    /// Returns what is at a location now.
    async fn stat(&self, location: &Location) -> Result<DifStat, DifError>;

    /// Reads a range of the DIF whose bytes have this etag. The answer has exactly the length of the range.
    ///
    /// [`DifError::Changed`] where other bytes are there now.
    async fn read(
        &self,
        location: &Location,
        etag: &str,
        range: Range<u64>,
    ) -> Result<Bytes, DifError>;
}

/// Lists the DIFs of a source that can be listed: the bucket that users upload to.
#[async_trait]
pub trait DifListing: Debug + Send + Sync {
    /// Lists DIFs in byte order of their locations, beginning behind `after`; at most 1,000.
    async fn list(&self, after: Option<&Location>) -> Result<DifPage, Fault>;
}

/// One page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DifPage {
    /// The DIFs, in byte order of their locations.
    pub difs: Vec<ListedDif>,
    /// Whether there are more behind the last one.
    pub more: bool,
}

/// What a listing says of a DIF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedDif {
    /// Where it is.
    pub location: Location,
    /// Identity of its bytes.
    pub etag: String,
    /// When it was written.
    pub modified_at: Timestamp,
}

/// What is at a location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DifStat {
    /// Identity of the bytes.
    pub etag: String,
    /// Their number.
    pub size: u64,
}

/// Why a DIF cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DifError {
    /// For a reason that is worth remembering.
    #[error("{}", .0.detail)]
    Missing(Missing),
    /// Other bytes are there now than those asked for.
    #[error("the file was changed while it was read")]
    Changed,
    /// For a fault of ours.
    #[error(transparent)]
    Store(#[from] Fault),
}
