//! Signs the requests by which clients write to the uploads bucket, and joins the parts of large
//! files.
//!
//! The SHA-256 of a part is in its signature, so S3 refuses other bytes. Which upload in parts was
//! begun, and which parts are stored, is read from S3.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::error::ProvideErrorMetadata;
use aws_sdk_s3::operation::list_parts::ListPartsOutput;
use aws_sdk_s3::types::{ChecksumAlgorithm, CompletedMultipartUpload, CompletedPart, Part};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::blobs::MAX_PARTS;
use super::difs::S3Difs;
use super::error::{status, store_error};
use super::signing::{length, sign_create, signed_put, valid_for};
use crate::domain::{Location, SignedPut};
use crate::ports::{Created, Fault, FaultKind, UploadGate, UploadInParts, UploadPart};

/// S3 responds only after it has joined the parts.
const JOIN_TIMEOUT: Duration = Duration::from_secs(20);

impl S3Difs {
    /// Returns the id of the upload in parts that was begun first at a location.
    async fn begun(&self, location: &Location) -> Result<Option<String>, Fault> {
        let listed = self
            .client
            .list_multipart_uploads()
            .bucket(&self.bucket)
            .prefix(location.as_str())
            .send()
            .await;
        let listed = listed
            .map_err(|error| store_error(self.context("ListMultipartUploads", location), &error))?;
        // The uploads of a key are listed in the order of their beginnings.
        let mut uploads = listed.uploads.unwrap_or_default().into_iter();
        let first = uploads.find(|upload| upload.key.as_deref() == Some(location.as_str()));
        Ok(first.and_then(|upload| upload.upload_id))
    }

    async fn stored_parts(
        &self,
        location: &Location,
        id: &str,
    ) -> Result<HashMap<UploadPart, String>, Fault> {
        let context = || self.context("ListParts", location);
        let mut stored = HashMap::new();
        let mut after = None;
        loop {
            let page = self
                .client
                .list_parts()
                .bucket(&self.bucket)
                .key(location.as_str())
                .upload_id(id)
                .set_part_number_marker(after)
                .send()
                .await;
            let page = page.map_err(|error| store_error(context(), &error))?;
            let next = next_page(&page);
            stored.extend(page.parts().iter().filter_map(stored_part));
            if next.is_none() || stored.len() >= MAX_PARTS {
                return Ok(stored);
            }
            after = next;
        }
    }
}

/// Returns a part with its etag; `None` if it was stored without a checksum, which no
/// request that was signed here does.
fn stored_part(part: &Part) -> Option<(UploadPart, String)> {
    let sha256 = STANDARD.decode(part.checksum_sha256()?).ok()?;
    let stored = UploadPart {
        number: part.part_number()?.try_into().ok()?,
        bytes: part.size()?.try_into().ok()?,
        sha256: sha256.try_into().ok()?,
    };
    Some((stored, part.e_tag()?.to_owned()))
}

fn number(part: &UploadPart) -> i32 {
    i32::try_from(part.number).unwrap_or(i32::MAX)
}

/// Returns the settings of a call that joins parts. All attempts share the time, which is almost
/// that of the function.
fn patient() -> aws_sdk_s3::config::Builder {
    let timeout = TimeoutConfig::builder()
        .read_timeout(JOIN_TIMEOUT)
        .operation_timeout(JOIN_TIMEOUT);
    aws_sdk_s3::config::Builder::new().timeout_config(timeout.build())
}

fn next_page(page: &ListPartsOutput) -> Option<String> {
    let next = page.next_part_number_marker.clone();
    next.filter(|_| page.is_truncated == Some(true))
}

#[async_trait]
impl UploadGate for S3Difs {
    async fn sign_create(
        &self,
        location: &Location,
        bytes: u64,
        lifetime: Duration,
    ) -> Result<SignedPut, Fault> {
        sign_create(
            &self.client,
            &self.bucket,
            location.as_str(),
            bytes,
            lifetime,
        )
        .await
    }

    async fn begin_parts(&self, location: &Location) -> Result<UploadInParts, Fault> {
        const OPERATION: &str = "CreateMultipartUpload";
        let (id, stored) = match self.begun(location).await? {
            Some(id) => {
                let stored = self.stored_parts(location, &id).await?;
                (id, stored)
            }
            None => {
                let begun = self
                    .client
                    .create_multipart_upload()
                    .bucket(&self.bucket)
                    .key(location.as_str())
                    .checksum_algorithm(ChecksumAlgorithm::Sha256)
                    .send()
                    .await;
                let context = || self.context(OPERATION, location);
                let begun = begun.map_err(|error| store_error(context(), &error))?;
                let without_id =
                    || Fault::new(FaultKind::Bug, context()).caused_by("the response lacks an id");
                (begun.upload_id.ok_or_else(without_id)?, HashMap::new())
            }
        };
        Ok(UploadInParts {
            location: location.clone(),
            id,
            stored,
        })
    }

    async fn sign_part(
        &self,
        upload: &UploadInParts,
        part: &UploadPart,
        lifetime: Duration,
    ) -> Result<SignedPut, Fault> {
        let location = &upload.location;
        let context = || self.context("presigned UploadPart", location);
        let request = self
            .client
            .upload_part()
            .bucket(&self.bucket)
            .key(location.as_str())
            .upload_id(&upload.id)
            .part_number(number(part))
            .content_length(length(part.bytes, context)?)
            .checksum_sha256(STANDARD.encode(part.sha256))
            .presigned(valid_for(lifetime, context)?)
            .await;
        let request = request.map_err(|error| store_error(context(), &error))?;
        Ok(signed_put(&request))
    }

    async fn join_parts(
        &self,
        upload: &UploadInParts,
        parts: &[UploadPart],
    ) -> Result<Created, Fault> {
        let location = &upload.location;
        let parts = parts.iter().map(|part| {
            CompletedPart::builder()
                .part_number(number(part))
                .set_e_tag(upload.stored.get(part).cloned())
                .checksum_sha256(STANDARD.encode(part.sha256))
                .build()
        });
        let parts = CompletedMultipartUpload::builder().set_parts(Some(parts.collect()));
        let joined = self
            .client
            .complete_multipart_upload()
            .bucket(&self.bucket)
            .key(location.as_str())
            .upload_id(&upload.id)
            .if_none_match("*")
            .multipart_upload(parts.build())
            .customize()
            .config_override(patient())
            .send()
            .await;
        match joined {
            Ok(_) => Ok(Created::New),
            // Another client with the same file was faster, with the same parts or in one request.
            // What is left of this upload is removed by a lifecycle rule of the bucket: this
            // function may not remove anything that a client has sent.
            Err(error) if status(&error) == Some(412) || error.code() == Some("NoSuchUpload") => {
                Ok(Created::AlreadyThere)
            }
            Err(error) => {
                let context = self.context("CompleteMultipartUpload", location);
                Err(store_error(context, &error))
            }
        }
    }
}
