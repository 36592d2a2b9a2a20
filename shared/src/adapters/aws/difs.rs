//! DIFs in the uploads bucket. A range is read only if the file still has the requested etag.

use std::ops::Range;

use async_trait::async_trait;
use aws_sdk_s3::Client;
use bytes::Bytes;

use super::blobs::S3Blobs;
use super::error::{status, store_error};
use super::get_object::{Got, get_object, unquoted};
use crate::domain::{Cause, Location, Missing};
use crate::ports::{
    BlobStore, BlobSummary, DifError, DifListing, DifPage, DifReader, DifStat, Fault, FaultKind,
    ListedDif,
};

/// The DIFs in the uploads bucket. A location is a key.
#[derive(Clone, Debug)]
pub struct S3Difs {
    pub(super) client: Client,
    pub(super) bucket: String,
}

impl S3Difs {
    /// Returns the DIFs in this bucket.
    pub fn new(client: Client, bucket: impl Into<String>) -> Self {
        Self {
            client,
            bucket: bucket.into(),
        }
    }

    pub(super) fn context(&self, operation: &str, location: &Location) -> String {
        format!("S3 {operation} of {location} in {}", self.bucket)
    }

    /// Returns the error for an absent key, after checking that the bucket exists: `HeadObject`
    /// does not distinguish the two.
    async fn absent(&self, location: &Location) -> DifError {
        match self.client.head_bucket().bucket(&self.bucket).send().await {
            Ok(_) => DifError::Missing(gone(location)),
            Err(error) if status(&error) == Some(404) => {
                let cause = format!("the bucket {} does not exist", self.bucket);
                Fault::new(FaultKind::Bug, self.context("HeadObject", location))
                    .caused_by(cause)
                    .into()
            }
            Err(error) => store_error(format!("S3 HeadBucket of {}", self.bucket), &error).into(),
        }
    }
}

#[async_trait]
impl DifReader for S3Difs {
    async fn stat(&self, location: &Location) -> Result<DifStat, DifError> {
        let head = match self
            .client
            .head_object()
            .bucket(&self.bucket)
            .key(location.as_str())
            .send()
            .await
        {
            Ok(head) => head,
            Err(error) if status(&error) == Some(404) => return Err(self.absent(location).await),
            Err(error) => {
                return Err(store_error(self.context("HeadObject", location), &error).into());
            }
        };
        match (head.e_tag, head.content_length.map(u64::try_from)) {
            (Some(etag), Some(Ok(size))) => Ok(DifStat {
                etag: unquoted(&etag),
                size,
            }),
            _ => {
                let error = Fault::new(FaultKind::Bug, self.context("HeadObject", location));
                Err(error.caused_by("the response lacks etag or length").into())
            }
        }
    }

    async fn read(
        &self,
        location: &Location,
        etag: &str,
        range: Range<u64>,
    ) -> Result<Bytes, DifError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        match get_object(
            &self.client,
            &self.bucket,
            location.as_str(),
            Some(&range),
            Some(etag),
        )
        .await?
        {
            Got::Bytes(bytes) if bytes.len() as u64 == range.end - range.start => Ok(bytes),
            Got::Bytes(_) | Got::BeyondEnd => {
                let error = Fault::new(FaultKind::Bug, self.context("GetObject", location));
                Err(error
                    .caused_by(format!("the range {range:?} ends beyond the file"))
                    .into())
            }
            Got::Changed => Err(DifError::Changed),
            Got::Absent => Err(DifError::Missing(gone(location))),
            // The only refusal that certainly concerns this file and not our permissions.
            Got::Archived => Err(DifError::Missing(Missing::new(
                Cause::PermissionDenied,
                format!(
                    "{location} is archived; restore it to a storage class with immediate access"
                ),
            ))),
        }
    }
}

#[async_trait]
impl DifListing for S3Difs {
    async fn list(&self, after: Option<&Location>) -> Result<DifPage, Fault> {
        let bucket = S3Blobs::new(self.client.clone(), &*self.bucket);
        let page = bucket.list("", after.map(Location::as_str)).await?;
        let listed = |blob: BlobSummary| ListedDif {
            location: Location::new(blob.path),
            etag: blob.etag,
            modified_at: blob.modified_at,
        };
        Ok(DifPage {
            difs: page.blobs.into_iter().map(listed).collect(),
            more: page.more,
        })
    }
}

fn gone(location: &Location) -> Missing {
    Missing::new(
        Cause::NotFound,
        format!("{location} is not in the uploads bucket"),
    )
}
