//! Reads bytes from S3 and separates expected outcomes from errors.

use std::ops::Range;

use aws_sdk_s3::Client;
use aws_sdk_s3::error::ProvideErrorMetadata;
use aws_sdk_s3::primitives::{ByteStream, ByteStreamError};
use bytes::{Bytes, BytesMut};

use super::error::{status, store_error};
use crate::adapters::backoff::pause;
use crate::ports::{Fault, FaultKind};

/// Attempts to read a body before the caller receives the error. The SDK retries requests only
/// until their responses begin.
const BODY_ATTEMPTS: u32 = 3;

/// The most bytes to reserve before they have arrived, whatever length a response announces.
const MAX_RESERVED: usize = 64 << 20;

/// The outcome of a read.
#[derive(Debug)]
pub(super) enum Got {
    /// The bytes; fewer than requested where the range ends beyond them.
    Bytes(Bytes),
    /// The key does not exist.
    Absent,
    /// The bytes have another etag than the requested one.
    Changed,
    /// The range begins beyond the bytes.
    BeyondEnd,
    /// The storage class does not permit reads.
    Archived,
}

/// Reads the bytes of a key, or a non-empty range of them, if their etag is `etag`.
pub(super) async fn get_object(
    client: &Client,
    bucket: &str,
    key: &str,
    range: Option<&Range<u64>>,
    etag: Option<&str>,
) -> Result<Got, Fault> {
    let context = || format!("S3 GetObject of {key} in {bucket}");
    let mut failures = 0;
    loop {
        let sent = client
            .get_object()
            .bucket(bucket)
            .key(key)
            .set_range(range.map(header))
            .set_if_match(etag.map(quoted))
            .send()
            .await;
        let output = match sent {
            Ok(output) => output,
            Err(error) => {
                return match (status(&error), error.code()) {
                    (Some(404), Some("NoSuchKey")) => Ok(Got::Absent),
                    (Some(412), _) => Ok(Got::Changed),
                    (Some(416), _) => Ok(Got::BeyondEnd),
                    (Some(403), Some("InvalidObjectState")) => Ok(Got::Archived),
                    _ => Err(store_error(context(), &error)),
                };
            }
        };
        match collect(output.body, output.content_length).await {
            Ok(bytes) => return Ok(Got::Bytes(bytes)),
            Err(error) => {
                failures += 1;
                if failures == BODY_ATTEMPTS {
                    return Err(Fault::new(FaultKind::Transient, context()).caused_by(error));
                }
            }
        }
        pause(failures).await;
    }
}

/// Returns an etag as it is written in headers.
fn quoted(etag: &str) -> String {
    format!("\"{etag}\"")
}

/// Returns an etag as it is written in events.
pub(super) fn unquoted(etag: &str) -> String {
    etag.trim_matches('"').to_owned()
}

/// Returns a non-empty range as the `Range` header of RFC 9110, section 14.2, which includes the
/// last byte.
fn header(range: &Range<u64>) -> String {
    // Lengths are signed in S3's own model, and some servers reject larger numbers.
    let capped = |offset: u64| offset.min(i64::MAX as u64);
    format!(
        "bytes={}-{}",
        capped(range.start),
        capped(range.end.saturating_sub(1))
    )
}

async fn collect(mut body: ByteStream, announced: Option<i64>) -> Result<Bytes, ByteStreamError> {
    let announced = announced
        .and_then(|length| usize::try_from(length).ok())
        .unwrap_or_default();
    let mut bytes = BytesMut::with_capacity(announced.min(MAX_RESERVED));
    while let Some(chunk) = body.try_next().await? {
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_header_includes_its_last_byte() {
        assert_eq!(header(&(0..1)), "bytes=0-0");
        assert_eq!(header(&(10..u64::MAX)), "bytes=10-9223372036854775807");
    }

    #[test]
    fn quotes_around_an_etag_are_removed_and_added() {
        assert_eq!(
            unquoted(&quoted("9b2cf535f27731c974343645a3985328-3")),
            "9b2cf535f27731c974343645a3985328-3"
        );
        assert_eq!(unquoted("bare"), "bare");
    }
}
