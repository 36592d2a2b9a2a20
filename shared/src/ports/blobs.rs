//! The store of blobs. Each blob is written once.

use std::fmt::Debug;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::Fault;
use crate::domain::Timestamp;

/// The maximum number of blobs that one call removes (S3 API reference, `DeleteObjects`).
pub const MAX_DELETES: usize = 1000;

/// A store of immutable bytes by path.
#[async_trait]
pub trait BlobStore: Debug + Send + Sync {
    /// Reads a blob or a range of it; `None` if the blob does not exist.
    ///
    /// A range that ends beyond the blob is truncated; one that begins beyond it is empty.
    async fn get(&self, path: &str, range: Option<Range<u64>>) -> Result<Option<Bytes>, Fault>;

    /// Writes a blob unless it exists. The write may have succeeded even if an error is returned.
    async fn create(&self, path: &str, body: Bytes) -> Result<Created, Fault>;

    /// Removes blobs, at most [`MAX_DELETES`] per call. A blob that does not exist counts as
    /// removed. Returns the blobs that could not be removed.
    ///
    /// After an error, some of them may have been removed.
    async fn delete_many(&self, paths: &[String]) -> Result<Vec<NotDeleted>, Fault>;

    /// Lists at most 1,000 blobs with a prefix in byte order, starting after `after`.
    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<BlobPage, Fault>;

    /// Returns a presigned URL for reading the blob, with this content type if one is given.
    async fn presign(
        &self,
        path: &str,
        lifetime: Duration,
        content_type: Option<&str>,
    ) -> Result<String, Fault>;
}

impl dyn BlobStore + '_ {
    /// Removes a blob. A blob that does not exist counts as removed.
    pub async fn delete(&self, path: &str) -> Result<(), Fault> {
        let failed = self.delete_many(&[path.to_owned()]).await?;
        let failed = failed.into_iter().next();
        failed.map_or(Ok(()), |failed| Err(failed.error))
    }
}

/// The result of a create-only write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// The blob was written.
    New,
    /// The blob existed and was not changed.
    AlreadyThere,
}

/// A blob that could not be removed.
#[derive(Debug)]
pub struct NotDeleted {
    /// The path.
    pub path: String,
    /// The reason.
    pub error: Fault,
}

/// One page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobPage {
    /// The blobs, in byte order of their paths.
    pub blobs: Vec<BlobSummary>,
    /// Whether there are more after the last one.
    pub more: bool,
}

/// A blob in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobSummary {
    /// The path.
    pub path: String,
    /// The size in bytes.
    pub bytes: u64,
    /// The etag of the bytes.
    pub etag: String,
    /// When it was written.
    pub modified_at: Timestamp,
}
