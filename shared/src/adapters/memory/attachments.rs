//! Attachments in memory.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::MemoryBlobs;
use crate::domain::SignedPut;
use crate::ports::{
    Attachments, BlobStore, Fault, RemoteFailure, RemoteFile, RemoteFiles, RemotePart,
};

/// A bucket of attachments in memory.
#[derive(Debug, Default)]
pub struct MemoryAttachments {
    /// The files. Tests write them as a client does after it has received a signed upload.
    pub blobs: Arc<MemoryBlobs>,
}

#[async_trait]
impl Attachments for MemoryAttachments {
    async fn sign_upload(
        &self,
        path: &str,
        bytes: u64,
        lifetime: Duration,
    ) -> Result<SignedPut, Fault> {
        let lifetime = lifetime.as_secs();
        Ok(SignedPut {
            url: format!("memory://attachments/{path}?seconds={lifetime}"),
            headers: BTreeMap::from([("content-length".to_owned(), bytes.to_string())]),
        })
    }

    async fn read(&self, path: &str, range: Range<u64>) -> Result<Option<Bytes>, Fault> {
        self.blobs.get(path, Some(range)).await
    }

    async fn remove(&self, path: &str) -> Result<(), Fault> {
        let blobs: &dyn BlobStore = &*self.blobs;
        blobs.delete(path).await
    }
}

/// Hosts with files in memory.
#[derive(Debug, Default)]
pub struct MemoryRemoteFiles {
    /// The files, by their addresses.
    pub files: BTreeMap<String, Bytes>,
    /// Whether the hosts support ranges.
    pub without_ranges: bool,
}

#[async_trait]
impl RemoteFiles for MemoryRemoteFiles {
    async fn read(
        &self,
        file: &RemoteFile,
        range: Range<u64>,
        most: u64,
    ) -> Result<RemotePart, RemoteFailure> {
        let absent = || RemoteFailure::Absent("the host answered 404".to_owned());
        let bytes = self.files.get(file.url.as_str()).ok_or_else(absent)?;
        let length = bytes.len() as u64;
        if self.without_ranges && length > most {
            return Err(RemoteFailure::Absent("the file is too large".to_owned()));
        }
        let range = if self.without_ranges {
            0..length
        } else {
            range.start.min(length)..range.end.min(length)
        };
        let clamp = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        Ok(RemotePart {
            start: range.start,
            bytes: bytes.slice(clamp(range.start)..clamp(range.end)),
            length,
        })
    }
}
