//! A record store with latency: every call takes time, during which other tasks run.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use symdepot::cache::{ItemKey, Revision, Stored};
use symdepot::ports::{Consistency, Cursor, Fault, Page, RecordStore, Removed, Replaced, Segment};

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
