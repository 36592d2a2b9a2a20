//! Blobs in memory.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Bound, Range};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::Calls;
use crate::domain::Timestamp;
use crate::ports::{
    BlobPage, BlobStore, BlobSummary, Created, Fault, FaultKind, MAX_DELETES, NotDeleted,
};

/// The most blobs of one listing.
const PAGE_BLOBS: usize = 1000;

/// Blobs in memory. `Display` prints the whole state.
#[derive(Debug, Default)]
pub struct MemoryBlobs {
    state: Mutex<BlobState>,
}

#[derive(Debug, Default)]
struct BlobState {
    blobs: BTreeMap<String, Blob>,
    now: Timestamp,
    calls: Calls,
}

#[derive(Debug)]
struct Blob {
    body: Bytes,
    /// The etag of the body, once a listing has needed it.
    etag: OnceLock<String>,
    modified_at: Timestamp,
}

impl Blob {
    fn new(body: Bytes, modified_at: Timestamp) -> Self {
        Self {
            body,
            etag: OnceLock::new(),
            modified_at,
        }
    }
}

impl MemoryBlobs {
    /// Returns an empty store whose clock is at the epoch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the modification time of blobs that are written from now on.
    pub fn set_now(&self, now: Timestamp) {
        self.lock().now = now;
    }

    /// Writes a blob even if it exists. No flow does this; it simulates a broken disk.
    pub fn overwrite(&self, path: &str, body: impl Into<Bytes>) {
        let mut state = self.lock();
        let blob = Blob::new(body.into(), state.now);
        state.blobs.insert(path.to_owned(), blob);
    }

    /// Returns the paths of all blobs, in byte order; not counted as a call.
    pub fn paths(&self) -> Vec<String> {
        self.lock().blobs.keys().cloned().collect()
    }

    /// Returns when a blob was last written, if it exists; not counted as a call.
    pub fn modified_at(&self, path: &str) -> Option<Timestamp> {
        self.lock().blobs.get(path).map(|blob| blob.modified_at)
    }

    /// Returns a blob; not counted as a call.
    pub fn peek(&self, path: &str) -> Option<Bytes> {
        self.lock().blobs.get(path).map(|blob| blob.body.clone())
    }

    /// Removes a blob; not counted as a call.
    pub fn lose(&self, path: &str) {
        self.lock().blobs.remove(path);
    }

    /// Returns the whole state as readable text.
    pub fn state(&self) -> String {
        self.to_string()
    }

    /// Returns how often each operation was called.
    pub fn calls(&self) -> Calls {
        self.lock().calls.clone()
    }

    fn lock(&self) -> MutexGuard<'_, BlobState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self, operation: &'static str) -> MutexGuard<'_, BlobState> {
        let mut state = self.lock();
        state.calls.count(operation);
        state
    }
}

#[async_trait]
impl BlobStore for MemoryBlobs {
    async fn get(&self, path: &str, range: Option<Range<u64>>) -> Result<Option<Bytes>, Fault> {
        let state = self.call("get");
        Ok(state.blobs.get(path).map(|blob| match range {
            Some(range) => slice(&blob.body, &range),
            None => blob.body.clone(),
        }))
    }

    async fn create(&self, path: &str, body: Bytes) -> Result<Created, Fault> {
        let mut state = self.call("create");
        if state.blobs.contains_key(path) {
            return Ok(Created::AlreadyThere);
        }
        let blob = Blob::new(body, state.now);
        state.blobs.insert(path.to_owned(), blob);
        Ok(Created::New)
    }

    async fn delete_many(&self, paths: &[String]) -> Result<Vec<NotDeleted>, Fault> {
        if paths.is_empty() {
            return Ok(Vec::new());
        }
        let mut state = self.call("delete_many");
        if paths.len() > MAX_DELETES {
            let context = format!("removing {} blobs in one call", paths.len());
            return Err(Fault::new(FaultKind::Bug, context));
        }
        for path in paths {
            state.blobs.remove(path);
        }
        Ok(Vec::new())
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<BlobPage, Fault> {
        let state = self.call("list");
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let mut under = state
            .blobs
            .range::<str, _>((start, Bound::Unbounded))
            .take_while(|(path, _)| path.starts_with(prefix))
            .map(|(path, blob)| BlobSummary {
                path: path.clone(),
                bytes: blob.body.len() as u64,
                etag: blob.etag.get_or_init(|| etag(&blob.body)).clone(),
                modified_at: blob.modified_at,
            });
        let blobs = under.by_ref().take(PAGE_BLOBS).collect();
        Ok(BlobPage {
            blobs,
            more: under.next().is_some(),
        })
    }

    async fn presign(
        &self,
        path: &str,
        lifetime: Duration,
        content_type: Option<&str>,
    ) -> Result<String, Fault> {
        drop(self.call("presign"));
        let seconds = lifetime.as_secs();
        let content_type = content_type.map(|content_type| format!("&type={content_type}"));
        let content_type = content_type.unwrap_or_default();
        Ok(format!(
            "memory://blobs/{path}?seconds={seconds}{content_type}"
        ))
    }
}

/// Returns the bytes of a range, as far as they exist.
fn slice(body: &Bytes, range: &Range<u64>) -> Bytes {
    let clamp = |offset: u64| {
        usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(body.len())
    };
    let (start, end) = (clamp(range.start), clamp(range.end));
    body.slice(start..end.max(start))
}

/// Returns the etag of bytes.
pub(super) fn etag(body: &[u8]) -> String {
    format!("{:x}", Sha256::digest(body))[..32].to_owned()
}

impl fmt::Display for MemoryBlobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        state
            .blobs
            .iter()
            .try_for_each(|(path, blob)| writeln!(f, "{path} ({} bytes)", blob.body.len()))
    }
}
