//! Stores with latency: every call takes time, during which other tasks run.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use symdepot::cache::{ItemKey, Revision, Stored};
use symdepot::ports::{
    BlobPage, BlobStore, Consistency, Created, Cursor, Fault, NotDeleted, Page, RecordStore,
    Removed, Replaced, Segment,
};

/// A record store with latency. The clock must be paused.
#[derive(Debug)]
pub(super) struct DistantRecords {
    pub(super) inner: Arc<dyn RecordStore>,
    /// The latency of a call.
    pub(super) latency: Duration,
}

/// Waits for the latency of a call. The clock must be paused.
pub async fn travel(latency: Duration) {
    if !latency.is_zero() {
        tokio::time::sleep(latency).await;
    }
}

impl DistantRecords {
    async fn travel(&self) {
        travel(self.latency).await;
    }
}

#[async_trait]
impl RecordStore for DistantRecords {
    async fn load(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
    ) -> Result<Vec<Option<Stored>>, Fault> {
        self.travel().await;
        self.inner.load(keys, consistency).await
    }

    async fn query(&self, partition: &str) -> Result<Vec<(ItemKey, Stored)>, Fault> {
        self.travel().await;
        self.inner.query(partition).await
    }

    async fn replace(
        &self,
        key: &ItemKey,
        expected: Option<&Revision>,
        next: &Stored,
    ) -> Result<Replaced, Fault> {
        self.travel().await;
        self.inner.replace(key, expected, next).await
    }

    async fn remove(&self, key: &ItemKey, expected: &Revision) -> Result<Removed, Fault> {
        self.travel().await;
        self.inner.remove(key, expected).await
    }

    async fn page(&self, segment: Segment, after: Option<&Cursor>) -> Result<Page, Fault> {
        self.travel().await;
        self.inner.page(segment, after).await
    }
}

/// A store of blobs whose reads have latency. The clock must be paused.
#[derive(Debug)]
pub(super) struct DistantBlobs {
    pub(super) inner: Arc<dyn BlobStore>,
    /// The latency of a read.
    pub(super) latency: Duration,
}

#[async_trait]
impl BlobStore for DistantBlobs {
    async fn get(&self, path: &str, range: Option<Range<u64>>) -> Result<Option<Bytes>, Fault> {
        travel(self.latency).await;
        self.inner.get(path, range).await
    }

    async fn create(&self, path: &str, body: Bytes) -> Result<Created, Fault> {
        self.inner.create(path, body).await
    }

    async fn delete_many(&self, paths: &[String]) -> Result<Vec<NotDeleted>, Fault> {
        self.inner.delete_many(paths).await
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<BlobPage, Fault> {
        self.inner.list(prefix, after).await
    }

    async fn presign(
        &self,
        path: &str,
        lifetime: Duration,
        content_type: Option<&str>,
    ) -> Result<String, Fault> {
        self.inner.presign(path, lifetime, content_type).await
    }
}
