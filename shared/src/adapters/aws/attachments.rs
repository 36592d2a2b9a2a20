//! Attachments in a bucket: clients write them by presigned requests.

use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_s3::Client;
use bytes::Bytes;

use super::S3Blobs;
use super::signing::sign_create;
use crate::domain::SignedPut;
use crate::ports::{Attachments, BlobStore, Fault};

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
    async fn sign_upload(
        &self,
        path: &str,
        bytes: u64,
        lifetime: Duration,
    ) -> Result<SignedPut, Fault> {
        sign_create(&self.client, &self.bucket, path, bytes, lifetime).await
    }

    async fn read(&self, path: &str, range: Range<u64>) -> Result<Option<Bytes>, Fault> {
        self.blobs.get(path, Some(range)).await
    }

    async fn remove(&self, path: &str) -> Result<(), Fault> {
        let blobs: &dyn BlobStore = &self.blobs;
        blobs.delete(path).await
    }
}
