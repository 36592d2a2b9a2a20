//! The store of blobs, written once each.

use std::fmt::Debug;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::Fault;
use crate::domain::Timestamp;

/// The most blobs that one call removes (S3 API reference, `DeleteObjects`).
pub const MAX_DELETES: usize = 1000;

/// Immutable bytes by path.
#[async_trait]
pub trait BlobStore: Debug + Send + Sync {
    /// Reads a blob, or a range of it; `None` where there is no such blob.
    ///
    /// A range that ends beyond the blob is cut to it; one that begins beyond it is empty.
    async fn get(&self, path: &str, range: Option<Range<u64>>) -> Result<Option<Bytes>, Fault>;

    /// Writes a blob unless there is one already. An error may mean that it landed.
    async fn create(&self, path: &str, body: Bytes) -> Result<Created, Fault>;

    /// Removes blobs, at most [`MAX_DELETES`] a call; those that are not there count as removed. Returns the blobs that
    /// could not be removed.
    ///
    /// After an error some of them may have been removed.
    async fn delete_many(&self, paths: &[String]) -> Result<Vec<NotDeleted>, Fault>;

    /// Lists the blobs under a prefix in byte order, beginning behind `after`; at most 1,000.
    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<BlobPage, Fault>;

    /// Returns a URL by which anybody can read the blob for a while, as this type of content where one is given.
    async fn presign(
        &self,
        path: &str,
        lifetime: Duration,
        content_type: Option<&str>,
    ) -> Result<String, Fault>;
}

/// What became of a create-only write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// It was written.
    New,
    /// There was one already, and it stands.
    AlreadyThere,
}

/// A blob that could not be removed.
#[derive(Debug)]
pub struct NotDeleted {
    /// Its path.
    pub path: String,
    /// Why.
    pub error: Fault,
}

/// One page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobPage {
    /// The blobs, in byte order of their paths.
    pub blobs: Vec<BlobSummary>,
    /// Whether there are more behind the last one.
    pub more: bool,
}

/// What a listing says of a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobSummary {
    /// Its path.
    pub path: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// The etag of its bytes.
    pub etag: String,
    /// When it was written.
    pub modified_at: Timestamp,
}
