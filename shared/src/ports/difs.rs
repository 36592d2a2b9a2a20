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
    /// Returns the etag and size of the DIF at a location.
    async fn stat(&self, location: &Location) -> Result<DifStat, DifError>;

    /// Reads a range of the DIF whose bytes have this etag. Returns exactly as many bytes as the
    /// range has.
    ///
    /// Fails with [`DifError::Changed`] if the location has other bytes now.
    async fn read(
        &self,
        location: &Location,
        etag: &str,
        range: Range<u64>,
    ) -> Result<Bytes, DifError>;
}

/// Lists the DIFs of a source that supports listing: the uploads.
#[async_trait]
pub trait DifListing: Debug + Send + Sync {
    /// Lists at most 1,000 DIFs in byte order of their locations, starting after `after`.
    async fn list(&self, after: Option<&Location>) -> Result<DifPage, Fault>;
}

/// One page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DifPage {
    /// The DIFs, in byte order of their locations.
    pub difs: Vec<ListedDif>,
    /// Whether there are more after the last one.
    pub more: bool,
}

/// A DIF in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedDif {
    /// The location.
    pub location: Location,
    /// The etag of the bytes.
    pub etag: String,
    /// When it was written.
    pub modified_at: Timestamp,
}

/// The DIF at a location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DifStat {
    /// The etag of the bytes.
    pub etag: String,
    /// The size in bytes.
    pub size: u64,
}

/// Why a DIF cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DifError {
    /// The reason may be cached.
    #[error("{}", .0.detail)]
    Missing(Missing),
    /// The location has other bytes than the requested ones.
    #[error("the file changed while it was being read")]
    Changed,
    /// An operation failed, which says nothing about the DIF.
    #[error(transparent)]
    Fault(#[from] Fault),
}
