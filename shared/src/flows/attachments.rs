//! Attachments: crash files in our bucket or on allowed hosts, which requests refer to.
//!
//! 1. The client asks for an attachment of a size, and receives a signed request and a storage URL.
//! 2. It writes the file, once and with exactly this size.
//! 3. A request of the same scope refers to it. The path of an attachment begins with a hash of the
//!    scope, so another scope finds nothing.
//! 4. When the request is answered or stored, the file is removed. A lifecycle rule of the bucket
//!    removes what no request referred to.

use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::HttpService;
use super::{Error, Invocation};
use crate::api::crash::attachment::{AttachmentId, AttachmentOffer, StorageUrl, UploadRequest};
use crate::api::crash::form::decompressed;
use crate::api::symbolicator::RequestError;
use crate::domain::Scope;
use crate::ports::{Fault, RemoteFailure, RemoteFile, RemotePart};

/// The time within which a client must begin to write an attachment.
const UPLOAD_LIFETIME: Duration = Duration::from_secs(15 * 60);

/// The time that is reserved at the end of an invocation for walking the stacks of a file, and for
/// the response.
const RESERVE: Duration = Duration::from_secs(5);

/// How long a file on another host may take beyond the timeout of the request. Clients that wait
/// for their timeout and a second, as Sentry does, still receive the response.
const BEYOND_TIMEOUT: Duration = Duration::from_millis(500);

/// A file on another host may take this long, however short the timeout of the request is: no
/// later call continues the read.
const MIN_READ_TIME: Duration = Duration::from_secs(5);

/// Why an attachment cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum AttachmentError {
    /// It does not exist in this scope, or its host refuses it.
    #[error("{0}")]
    Absent(String),
    /// Its host cannot be reached, or the time was up.
    #[error("{0}")]
    Unreachable(String),
    /// The request is invalid.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A store failed.
    #[error(transparent)]
    Store(#[from] Error),
}

impl From<Fault> for AttachmentError {
    fn from(fault: Fault) -> Self {
        Self::Store(fault.into())
    }
}

impl From<RemoteFailure> for AttachmentError {
    fn from(failure: RemoteFailure) -> Self {
        match failure {
            RemoteFailure::Absent(detail) => Self::Absent(detail),
            RemoteFailure::Unreachable(detail) => Self::Unreachable(detail),
        }
    }
}

/// A file that a request refers to.
#[derive(Debug)]
pub struct Attachment<'a> {
    service: &'a HttpService,
    /// The invocation that reads it. It limits the time for all parts together.
    invocation: &'a Invocation,
    place: AttachmentPlace,
    /// The time of the invocation at which its client may hang up, if it is on another host.
    until: Option<Duration>,
}

#[derive(Debug)]
enum AttachmentPlace {
    Own { path: String, bytes: u64 },
    Remote(RemoteFile),
}

impl HttpService {
    /// Returns how a client stores an attachment of exactly this size.
    pub async fn offer_attachment(
        &self,
        invocation: &Invocation,
        scope: &Scope,
        bytes: u64,
    ) -> Result<AttachmentOffer, Error> {
        let id = AttachmentId {
            uuid: invocation.uuid(),
            bytes,
        };
        let path = path(scope, id);
        let signed = self.attachments.sign_upload(&path, bytes, UPLOAD_LIFETIME);
        let signed = signed.await?;
        Ok(AttachmentOffer {
            storage_url: StorageUrl::Own(id).to_string(),
            upload: UploadRequest {
                method: "PUT".to_owned(),
                url: signed.url,
                headers: signed.headers,
                expires_in: UPLOAD_LIFETIME.as_secs(),
            },
        })
    }

    /// Returns the file that a request of a scope refers to. The token is for the hosts of others.
    pub fn attachment<'a>(
        &'a self,
        invocation: &'a Invocation,
        scope: &Scope,
        url: StorageUrl,
        token: Option<String>,
    ) -> Attachment<'a> {
        let place = match url {
            StorageUrl::Own(id) => AttachmentPlace::Own {
                path: path(scope, id),
                bytes: id.bytes,
            },
            StorageUrl::Remote(url) => AttachmentPlace::Remote(RemoteFile { url, token }),
        };
        Attachment {
            service: self,
            invocation,
            place,
            until: None,
        }
    }
}

/// Returns the path of an attachment. Names of tenants may have any characters, so they are hashed.
fn path(scope: &Scope, id: AttachmentId) -> String {
    let scope = format!("{:x}", Sha256::digest(scope.as_str()));
    format!("{}/{id}", &scope[..32])
}

impl Attachment<'_> {
    /// Limits the time of a file on another host by the timeout of the request: its client hangs up
    /// soon after, and repeats the request while this one is still being read.
    #[must_use]
    pub fn within(self, timeout: Duration) -> Self {
        let is_remote = matches!(self.place, AttachmentPlace::Remote(_));
        let until = timeout.max(MIN_READ_TIME) + BEYOND_TIMEOUT;
        Self {
            until: is_remote.then_some(until),
            ..self
        }
    }

    /// Reads the beginning of the file, of at most this many bytes; all of it if the host cannot
    /// send a part, up to `most` bytes.
    pub(super) async fn begin(&self, bytes: u64, most: u64) -> Result<RemotePart, AttachmentError> {
        self.part(0, bytes, most).await
    }

    /// Returns the length of the file, if it is known before it is read.
    pub(super) fn length(&self) -> Option<u64> {
        match &self.place {
            AttachmentPlace::Own { bytes, .. } => Some(*bytes),
            AttachmentPlace::Remote(_) => None,
        }
    }

    /// Reads a part of the file. The file must have it.
    pub(super) async fn read(&self, start: u64, end: u64) -> Result<Bytes, AttachmentError> {
        let read = self.part(start, end, end - start).await?;
        let is_complete = read.start == start && read.bytes.len() as u64 == end - start;
        if is_complete {
            Ok(read.bytes)
        } else {
            let detail = "the file of the storage_url has changed while it was read";
            Err(AttachmentError::Absent(detail.to_owned()))
        }
    }

    /// Returns the time that is left for reading the file.
    fn time_left(&self) -> Duration {
        let of_invocation = self.invocation.time_left().saturating_sub(RESERVE);
        let elapsed = self.invocation.elapsed();
        let of_client = self.until.map(|until| until.saturating_sub(elapsed));
        of_client.map_or(of_invocation, |of_client| of_client.min(of_invocation))
    }

    /// Reads a part of the file in the time that is left. A host that sends a byte at a time keeps
    /// every time limit of the HTTP client, so the whole read has one.
    async fn part(&self, start: u64, end: u64, most: u64) -> Result<RemotePart, AttachmentError> {
        let time = self.time_left();
        let read = tokio::time::timeout(time, self.part_of_place(start, end, most));
        read.await.unwrap_or_else(|_| {
            let (place, advice) = match &self.place {
                AttachmentPlace::Own { .. } => ("the store of attachments", ""),
                AttachmentPlace::Remote(file) => {
                    let host = file.url.host_str().unwrap_or_default();
                    (host, ", with a longer timeout if it has less than 25 s")
                }
            };
            let detail =
                format!("{place} did not send the file in time: send the request again{advice}");
            Err(AttachmentError::Unreachable(detail))
        })
    }

    async fn part_of_place(
        &self,
        start: u64,
        end: u64,
        most: u64,
    ) -> Result<RemotePart, AttachmentError> {
        match &self.place {
            AttachmentPlace::Own { path, bytes } => {
                let read = self.service.attachments.read(path, start..end.min(*bytes));
                let absent = || {
                    let detail = "no file is stored at this storage_url in this scope: it was not written yet, or was \
                                  removed because a request used it, or is older than a day";
                    AttachmentError::Absent(detail.to_owned())
                };
                Ok(RemotePart {
                    start,
                    bytes: read.await?.ok_or_else(absent)?,
                    length: *bytes,
                })
            }
            AttachmentPlace::Remote(file) => {
                let read = self.service.remote_files.read(file, start..end, most);
                Ok(read.await?)
            }
        }
    }

    /// Reads the whole file, decompressed if it is compressed. `what` names it in errors.
    ///
    /// # Errors
    ///
    /// [`AttachmentError`], also if the file has more than `limit` bytes, compressed or not.
    pub async fn whole(&self, what: &'static str, limit: usize) -> Result<Bytes, AttachmentError> {
        let most = limit as u64;
        let begin = self.begin(most, most).await?;
        self.rest(begin, what, limit).await
    }

    /// Reads what follows the beginning of a file.
    pub(super) async fn rest(
        &self,
        begin: RemotePart,
        what: &'static str,
        limit: usize,
    ) -> Result<Bytes, AttachmentError> {
        let RemotePart { bytes, length, .. } = begin;
        if length > limit as u64 {
            return Err(RequestError::TooLong { what, limit }.into());
        }
        let read = bytes.len() as u64;
        let whole = if read < length {
            let rest = self.read(read, length).await?;
            [bytes, rest].concat().into()
        } else {
            bytes
        };
        Ok(match decompressed(what, &whole, limit)? {
            std::borrow::Cow::Borrowed(_) => whole,
            std::borrow::Cow::Owned(file) => file.into(),
        })
    }

    /// Removes the file if it is ours. If this fails, the bucket's lifecycle rule removes it.
    pub async fn remove(self) {
        if let AttachmentPlace::Own { path, .. } = &self.place
            && let Err(error) = self.service.attachments.remove(path).await
        {
            tracing::warn!(%error, "cannot remove an attachment; it expires after a day");
        }
    }
}
