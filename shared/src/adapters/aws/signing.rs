//! Requests to S3 that are signed for clients.
//!
//! The length of the body and the condition of a request are among its signed headers, so S3
//! refuses a body of another length, and a second one (Amazon S3 API reference, "Authenticating
//! Requests: Using Query Parameters"; `PutObject`).

use std::time::Duration;

use aws_sdk_s3::Client;
use aws_sdk_s3::presigning::{PresignedRequest, PresigningConfig};
use url::Url;

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

/// Returns a signed request with the headers that its client must send. The SDK adds others, for
/// example the trace of the function's invocation.
pub(super) fn signed_put(request: &PresignedRequest) -> SignedPut {
    let signed = signed_headers(request.uri());
    let headers = request.headers();
    let headers = headers.filter(|(name, _)| signed.contains(&name.to_ascii_lowercase()));
    SignedPut {
        url: request.uri().to_owned(),
        headers: headers
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
    }
}

/// Returns the names of the signed headers but `Host`, which every client sends.
fn signed_headers(uri: &str) -> Vec<String> {
    let url = Url::parse(uri).ok();
    let mut parameters = url.iter().flat_map(Url::query_pairs);
    let names = parameters.find(|(name, _)| name == "X-Amz-SignedHeaders");
    let names = names
        .map(|(_, names)| names.into_owned())
        .unwrap_or_default();
    let names = names
        .split(';')
        .filter(|name| !matches!(*name, "" | "host"));
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signed_headers_are_those_in_the_address() {
        let uri = "https://a.test/k?x-id=PutObject&X-Amz-SignedHeaders=content-length%3Bhost%3Bif-none-match&X-Amz-Signature=0";
        assert_eq!(signed_headers(uri), ["content-length", "if-none-match"]);
        assert_eq!(signed_headers("https://a.test/k"), Vec::<String>::new());
    }
}
