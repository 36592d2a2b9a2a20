//! Blobs in a bucket. They are created with `If-None-Match: *`, so that no blob is written twice.

use std::ops::Range;
use std::str::Utf8Error;
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::presigning::PresigningConfig;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{
    ChecksumAlgorithm, CompletedMultipartUpload, CompletedPart, Delete, EncodingType,
    ObjectIdentifier,
};
use bytes::Bytes;
use futures::stream::{StreamExt, TryStreamExt};
use percent_encoding::percent_decode_str;

use super::error::{refused_error, status, store_error};
use super::get_object::{Got, get_object, unquoted};
use crate::adapters::backoff::pause;
use crate::domain::Timestamp;
use crate::ports::{BlobPage, BlobStore, BlobSummary, Created, Fault, FaultKind, NotDeleted};

/// A larger blob is sent in parts, so that a failure repeats one part and not the whole blob.
const WHOLE_MAX_BYTES: usize = 64 << 20;

/// The size of a part, unless there would be more than [`MAX_PARTS`].
const PART_BYTES: usize = 16 << 20;

/// The most parts of one upload (S3 user guide, "Amazon S3 multipart upload limits").
pub(super) const MAX_PARTS: usize = 10_000;

/// The maximum number of parts that are sent concurrently.
const PARTS_IN_PARALLEL: usize = 4;

/// Attempts before a conflict between conditional writes is returned to the caller.
const CONFLICT_ATTEMPTS: u32 = 4;

/// S3 responds only after the whole body was sent. This is the timeout for a small body; each
/// mebibyte adds a second, for slow connections. `symbolicate` writes small blobs, and has less
/// than half a minute for them: a connection may have died while its sandbox was frozen.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(5);

/// S3 responds only after it has joined the parts.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// The most keys of one listing (S3 API reference, `ListObjectsV2`, `max-keys`).
const LIST_MAX_KEYS: i32 = 1000;

/// Blobs in a bucket of S3.
#[derive(Clone, Debug)]
pub struct S3Blobs {
    client: Client,
    bucket: String,
}

impl S3Blobs {
    /// Returns the blobs in this bucket.
    pub fn new(client: Client, bucket: impl Into<String>) -> Self {
        Self {
            client,
            bucket: bucket.into(),
        }
    }

    fn context(&self, operation: &str, path: &str) -> String {
        format!("S3 {operation} of {path} in {}", self.bucket)
    }

    async fn create_whole(&self, path: &str, body: &Bytes) -> Result<Created, Attempt> {
        let sent = self
            .client
            .put_object()
            .bucket(&self.bucket)
            .key(path)
            .if_none_match("*")
            .body(ByteStream::from(body.clone()))
            .customize()
            .config_override(with_timeout(time_to_send(body.len())))
            .send()
            .await;
        match sent {
            Ok(_) => Ok(Created::New),
            Err(error) => judge(&error, || self.context("PutObject", path)),
        }
    }

    async fn create_in_parts(&self, path: &str, body: &Bytes) -> Result<Created, Attempt> {
        let begun = self
            .client
            .create_multipart_upload()
            .bucket(&self.bucket)
            .key(path)
            // S3 keeps the checksums of the parts only if the upload has their algorithm.
            .checksum_algorithm(ChecksumAlgorithm::Crc32)
            .send()
            .await;
        let begun = begun
            .map_err(|error| store_error(self.context("CreateMultipartUpload", path), &error))?;
        let Some(upload) = begun.upload_id else {
            let context = self.context("CreateMultipartUpload", path);
            return Err(Fault::new(FaultKind::Bug, context)
                .caused_by("the response has no upload id")
                .into());
        };
        let created = match self.send_parts(path, &upload, body).await {
            Ok(parts) => self.complete(path, &upload, parts).await,
            Err(error) => Err(error.into()),
        };
        if !matches!(created, Ok(Created::New)) {
            self.abort(path, &upload).await;
        }
        created
    }

    async fn send_parts(
        &self,
        path: &str,
        upload: &str,
        body: &Bytes,
    ) -> Result<Vec<CompletedPart>, Fault> {
        let part_bytes = PART_BYTES.max(body.len().div_ceil(MAX_PARTS));
        let sends: Vec<_> = (0..body.len())
            .step_by(part_bytes)
            .zip(1..)
            .map(|(start, number)| {
                let part = body.slice(start..body.len().min(start + part_bytes));
                self.send_part(path, upload, number, part)
            })
            .collect();
        futures::stream::iter(sends)
            .buffered(PARTS_IN_PARALLEL)
            .try_collect()
            .await
    }

    async fn send_part(
        &self,
        path: &str,
        upload: &str,
        number: i32,
        part: Bytes,
    ) -> Result<CompletedPart, Fault> {
        let timeout = time_to_send(part.len());
        let sent = self
            .client
            .upload_part()
            .bucket(&self.bucket)
            .key(path)
            .upload_id(upload)
            .part_number(number)
            .checksum_algorithm(ChecksumAlgorithm::Crc32)
            .body(ByteStream::from(part))
            .customize()
            .config_override(with_timeout(timeout))
            .send()
            .await;
        let sent = sent.map_err(|error| store_error(self.context("UploadPart", path), &error))?;
        Ok(CompletedPart::builder()
            .part_number(number)
            .set_e_tag(sent.e_tag)
            .set_checksum_crc32(sent.checksum_crc32)
            .build())
    }

    async fn complete(
        &self,
        path: &str,
        upload: &str,
        parts: Vec<CompletedPart>,
    ) -> Result<Created, Attempt> {
        let sent = self
            .client
            .complete_multipart_upload()
            .bucket(&self.bucket)
            .key(path)
            .upload_id(upload)
            .if_none_match("*")
            .multipart_upload(
                CompletedMultipartUpload::builder()
                    .set_parts(Some(parts))
                    .build(),
            )
            .customize()
            .config_override(with_timeout(JOIN_TIMEOUT))
            .send()
            .await;
        match sent {
            Ok(_) => Ok(Created::New),
            // The SDK retried a request that had succeeded, so the multipart upload no longer
            // exists.
            Err(error) if error.code() == Some("NoSuchUpload") && self.exists(path).await? => {
                Ok(Created::AlreadyThere)
            }
            Err(error) => judge(&error, || self.context("CompleteMultipartUpload", path)),
        }
    }

    /// Deletes the parts that were sent. If this fails, the bucket's lifecycle rule deletes them
    /// later.
    async fn abort(&self, path: &str, upload: &str) {
        let _ = self
            .client
            .abort_multipart_upload()
            .bucket(&self.bucket)
            .key(path)
            .upload_id(upload)
            .send()
            .await;
    }

    async fn exists(&self, path: &str) -> Result<bool, Fault> {
        match self
            .client
            .head_object()
            .bucket(&self.bucket)
            .key(path)
            .send()
            .await
        {
            Ok(_) => Ok(true),
            Err(error) if status(&error) == Some(404) => Ok(false),
            Err(error) => Err(store_error(self.context("HeadObject", path), &error)),
        }
    }
}

#[async_trait]
impl BlobStore for S3Blobs {
    async fn get(&self, path: &str, range: Option<Range<u64>>) -> Result<Option<Bytes>, Fault> {
        let is_empty = range.as_ref().is_some_and(Range::is_empty);
        // A header cannot express an empty range. Reading one byte also shows whether the blob
        // exists.
        let range = range.map(|range| {
            if is_empty {
                range.start..range.start.saturating_add(1)
            } else {
                range
            }
        });
        match get_object(&self.client, &self.bucket, path, range.as_ref(), None).await? {
            Got::Bytes(_) if is_empty => Ok(Some(Bytes::new())),
            Got::Bytes(bytes) => Ok(Some(bytes)),
            Got::BeyondEnd => Ok(Some(Bytes::new())),
            Got::Absent => Ok(None),
            unexpected @ (Got::Changed | Got::Archived) => {
                let cause = format!(
                    "S3 reports the blob as {unexpected:?}; remove lifecycle rules that archive blobs"
                );
                Err(Fault::new(FaultKind::Denied, self.context("GetObject", path)).caused_by(cause))
            }
        }
    }

    async fn create(&self, path: &str, body: Bytes) -> Result<Created, Fault> {
        let mut conflicts = 0;
        loop {
            let created = match body.len() {
                ..=WHOLE_MAX_BYTES => self.create_whole(path, &body).await,
                _ => self.create_in_parts(path, &body).await,
            };
            match created {
                Ok(created) => return Ok(created),
                Err(Attempt::Failed(error)) => return Err(error),
                Err(Attempt::Conflict(error)) => {
                    conflicts += 1;
                    if conflicts == CONFLICT_ATTEMPTS {
                        return Err(error);
                    }
                }
            }
            pause(conflicts).await;
        }
    }

    async fn delete_many(&self, paths: &[String]) -> Result<Vec<NotDeleted>, Fault> {
        let Some(first) = paths.first() else {
            return Ok(Vec::new());
        };
        let context = || {
            let count = paths.len();
            self.context("DeleteObjects", &format!("{count} blobs from {first} on"))
        };
        let bug = |error| Fault::new(FaultKind::Bug, context()).caused_by(error);
        let identifiers = paths
            .iter()
            .map(|path| ObjectIdentifier::builder().key(path).build());
        let identifiers: Result<Vec<_>, _> = identifiers.collect();
        let delete = Delete::builder()
            .set_objects(Some(identifiers.map_err(bug)?))
            // The response then names only the blobs that were not removed.
            .quiet(true)
            .build()
            .map_err(bug)?;
        let answer = self
            .client
            .delete_objects()
            .bucket(&self.bucket)
            .delete(delete)
            .send()
            .await
            .map_err(|error| store_error(context(), &error))?;
        let refused = answer.errors.unwrap_or_default().into_iter();
        let refused = refused.filter(|refused| refused.code() != Some("NoSuchKey"));
        Ok(refused
            .map(|refused| {
                let path = refused.key.unwrap_or_default();
                let context = self.context("DeleteObjects", &path);
                let (code, message) = (refused.code.as_deref(), refused.message.as_deref());
                NotDeleted {
                    error: refused_error(context, code, message),
                    path,
                }
            })
            .collect())
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<BlobPage, Fault> {
        let context = || self.context("ListObjectsV2", prefix);
        let listed = self
            .client
            .list_objects_v2()
            .bucket(&self.bucket)
            .prefix(prefix)
            .set_start_after(after.map(str::to_owned))
            .max_keys(LIST_MAX_KEYS)
            // A key may contain characters that XML does not allow.
            .encoding_type(EncodingType::Url)
            .send()
            .await
            .map_err(|error| store_error(context(), &error))?;
        let is_encoded = listed.encoding_type == Some(EncodingType::Url);
        let mut blobs = Vec::new();
        for object in listed.contents.unwrap_or_default() {
            let key = object.key.unwrap_or_default();
            let decoded = if is_encoded { decode(&key) } else { Ok(key) };
            blobs.push(BlobSummary {
                path: decoded
                    .map_err(|error| Fault::new(FaultKind::Bug, context()).caused_by(error))?,
                bytes: object
                    .size
                    .and_then(|bytes| u64::try_from(bytes).ok())
                    .unwrap_or_default(),
                etag: object.e_tag.as_deref().map(unquoted).unwrap_or_default(),
                modified_at: Timestamp::from_secs(
                    object
                        .last_modified
                        .and_then(|at| u64::try_from(at.secs()).ok())
                        .unwrap_or_default(),
                ),
            });
        }
        Ok(BlobPage {
            blobs,
            more: listed.is_truncated.unwrap_or_default(),
        })
    }

    async fn presign(
        &self,
        path: &str,
        lifetime: Duration,
        content_type: Option<&str>,
    ) -> Result<String, Fault> {
        let context = || self.context("presigned GetObject", path);
        let lifetime = PresigningConfig::expires_in(lifetime)
            .map_err(|error| Fault::new(FaultKind::Bug, context()).caused_by(error))?;
        let presigned = self
            .client
            .get_object()
            .bucket(&self.bucket)
            .key(path)
            .set_response_content_type(content_type.map(str::to_owned))
            .presigned(lifetime)
            .await;
        Ok(presigned
            .map_err(|error| store_error(context(), &error))?
            .uri()
            .to_owned())
    }
}

/// How an attempt to create a blob failed.
enum Attempt {
    /// Another conditional write was in progress. S3 requires a retry, of a multipart upload from
    /// its beginning.
    Conflict(Fault),
    Failed(Fault),
}

impl From<Fault> for Attempt {
    fn from(error: Fault) -> Self {
        Self::Failed(error)
    }
}

fn judge<E>(error: &SdkError<E>, context: impl Fn() -> String) -> Result<Created, Attempt>
where
    E: std::error::Error + ProvideErrorMetadata + 'static,
{
    match status(error) {
        Some(412) => Ok(Created::AlreadyThere),
        Some(409) => Err(Attempt::Conflict(store_error(context(), error))),
        _ => Err(Attempt::Failed(store_error(context(), error))),
    }
}

/// Decodes a key with `encoding-type=url`, where a plus sign means a space.
fn decode(key: &str) -> Result<String, Utf8Error> {
    Ok(percent_decode_str(&key.replace('+', " "))
        .decode_utf8()?
        .into_owned())
}

/// Returns how long sending a body of this many bytes may take, with the response to it.
fn time_to_send(bytes: usize) -> Duration {
    let mebibytes = u64::try_from(bytes >> 20).unwrap_or(u64::MAX);
    UPLOAD_TIMEOUT.saturating_add(Duration::from_secs(mebibytes))
}

fn with_timeout(timeout: Duration) -> aws_sdk_s3::config::Builder {
    let timeout = TimeoutConfig::builder().read_timeout(timeout);
    aws_sdk_s3::config::Builder::new().timeout_config(timeout.build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_of_a_body_grows_with_its_size() {
        let seconds = [0, 8 << 10, 16 << 20, 64 << 20].map(|bytes| time_to_send(bytes).as_secs());
        assert_eq!(seconds, [5, 5, 21, 69]);
    }

    #[test]
    fn a_key_is_decoded_as_s3_encodes_it() {
        assert_eq!(
            decode("derived/a+b%20c%2Bd%25/%C3%A4%EF%BF%BF").unwrap(),
            "derived/a b c+d%/ä\u{ffff}"
        );
        assert!(decode("%ff").is_err());
    }
}
