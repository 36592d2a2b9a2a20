//! Attachments in a bucket: clients write them by presigned requests.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_s3::Client;
use aws_sdk_s3::presigning::PresigningConfig;
use bytes::Bytes;

use super::S3Blobs;
use super::error::store_error;
use crate::ports::{Attachments, BlobStore, Fault, FaultKind, SignedUpload};

/// Attachments in a bucket of S3.
#[derive(Clone, Debug)]
pub struct S3Attachments {
    client: Client,
    bucket: String,
    blobs: S3Blobs,
}

impl S3Attachments {
    /// Returns the attachments in this bucket.
    pub fn new(client: Client, bucket: impl Into<String>) -> Self {
        let bucket = bucket.into();
        Self {
            blobs: S3Blobs::new(client.clone(), bucket.clone()),
            client,
            bucket,
        }
    }
}

#[async_trait]
impl Attachments for S3Attachments {
    /// The length and `If-None-Match: *` are among the signed headers, so S3 refuses a body of
    /// another length, and a second body (Amazon S3 API reference, "Authenticating Requests: Using
    /// Query Parameters"; `PutObject`).
    async fn sign_upload(
        &self,
        path: &str,
        bytes: u64,
        lifetime: Duration,
    ) -> Result<SignedUpload, Fault> {
        let context = || format!("S3 presigned PutObject of {path} in {}", self.bucket);
        let bug = |error| Fault::new(FaultKind::Bug, context()).caused_by(error);
        let lifetime = PresigningConfig::expires_in(lifetime).map_err(bug)?;
        let length = i64::try_from(bytes)
            .map_err(|error| Fault::new(FaultKind::Bug, context()).caused_by(error))?;
        let presigned = self
            .client
            .put_object()
            .bucket(&self.bucket)
            .key(path)
            .if_none_match("*")
            .content_length(length)
            .presigned(lifetime)
            .await
            .map_err(|error| store_error(context(), &error))?;
        let headers: BTreeMap<String, String> = presigned
            .headers()
            .filter(|(name, _)| !name.eq_ignore_ascii_case("host"))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        Ok(SignedUpload {
            url: presigned.uri().to_owned(),
            headers,
        })
    }

    async fn read(&self, path: &str, range: Range<u64>) -> Result<Option<Bytes>, Fault> {
        self.blobs.get(path, Some(range)).await
    }

    async fn remove(&self, path: &str) -> Result<(), Fault> {
        let blobs: &dyn BlobStore = &self.blobs;
        blobs.delete(path).await
    }
}
