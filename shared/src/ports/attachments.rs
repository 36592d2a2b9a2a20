//! Files that requests refer to instead of sending them: in a bucket of the service, and on hosts
//! that the operator allows.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use url::Url;

use super::Fault;
use crate::domain::SignedPut;

/// The bucket that clients write attachments to. Each is written once, by a request that the
/// service has signed.
#[async_trait]
pub trait Attachments: fmt::Debug + Send + Sync {
    /// Signs a request that writes a file of exactly this length, unless it exists.
    async fn sign_upload(
        &self,
        path: &str,
        bytes: u64,
        lifetime: Duration,
    ) -> Result<SignedPut, Fault>;

    /// Reads a range of a file, which is truncated at the end of the file; `None` if the file does
    /// not exist.
    async fn read(&self, path: &str, range: Range<u64>) -> Result<Option<Bytes>, Fault>;

    /// Removes a file, if it exists.
    async fn remove(&self, path: &str) -> Result<(), Fault>;
}

/// Reads files from other hosts. Redirects are not followed.
#[async_trait]
pub trait RemoteFiles: fmt::Debug + Send + Sync {
    /// Reads a range of a file, or its beginning if the host does not support ranges. In this case,
    /// a file of more than `most` bytes is refused. A part that begins anywhere else is refused,
    /// too; the length of the file is what the host states.
    async fn read(
        &self,
        file: &RemoteFile,
        range: Range<u64>,
        most: u64,
    ) -> Result<RemotePart, RemoteFailure>;
}

/// A file on another host.
#[derive(Clone, PartialEq, Eq)]
pub struct RemoteFile {
    /// The address.
    pub url: Url,
    /// The bearer token to send to the host.
    pub token: Option<String>,
}

/// The path, the query and the token may be secret.
impl fmt::Debug for RemoteFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteFile")
            .field("host", &self.url.host_str())
            .finish_non_exhaustive()
    }
}

/// A part of a file on another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemotePart {
    /// Where the part begins.
    pub start: u64,
    /// The part.
    pub bytes: Bytes,
    /// The length of the whole file.
    pub length: u64,
}

/// Why a file on another host cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteFailure {
    /// The host does not have it, or refuses it. Another attempt would fail, too.
    #[error("{0}")]
    Absent(String),
    /// The host cannot be reached, or fails. Another attempt may succeed.
    #[error("{0}")]
    Unreachable(String),
}
