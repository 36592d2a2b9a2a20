//! Requests to S3 that are signed for clients.
//!
//! The length of the body and the condition of a request are among its signed headers, so S3
//! refuses a body of another length, and a second one (Amazon S3 API reference, "Authenticating
//! Requests: Using Query Parameters"; `PutObject`).

use std::time::Duration;

use aws_sdk_s3::Client;
use aws_sdk_s3::presigning::{PresignedRequest, PresigningConfig};

use super::error::store_error;
use crate::domain::SignedPut;
use crate::ports::{Fault, FaultKind};

/// Signs the request that creates an object of exactly this many bytes, unless it exists.
pub(super) async fn sign_create(
    client: &Client,
    bucket: &str,
    key: &str,
    bytes: u64,
    lifetime: Duration,
) -> Result<SignedPut, Fault> {
    let context = || format!("S3 presigned PutObject of {key} in {bucket}");
    let request = client
        .put_object()
        .bucket(bucket)
        .key(key)
        .content_length(length(bytes, context)?)
        .if_none_match("*")
        .presigned(valid_for(lifetime, context)?)
        .await;
    let request = request.map_err(|error| store_error(context(), &error))?;
    Ok(signed_put(&request))
}

/// Returns a number of bytes as the SDK wants it.
pub(super) fn length(bytes: u64, context: impl Fn() -> String) -> Result<i64, Fault> {
    i64::try_from(bytes).map_err(|error| Fault::new(FaultKind::Bug, context()).caused_by(error))
}

/// Returns the settings of a signature that is valid from now on for this time.
pub(super) fn valid_for(
    lifetime: Duration,
    context: impl Fn() -> String,
) -> Result<PresigningConfig, Fault> {
    let lifetime = PresigningConfig::expires_in(lifetime);
    lifetime.map_err(|error| Fault::new(FaultKind::Bug, context()).caused_by(error))
}

/// Returns a signed request with the headers that its client must send.
pub(super) fn signed_put(request: &PresignedRequest) -> SignedPut {
    let headers = request
        .headers()
        .filter(|(name, _)| !name.eq_ignore_ascii_case("host"));
    SignedPut {
        url: request.uri().to_owned(),
        headers: headers
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
    }
}
