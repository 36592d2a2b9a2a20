//! Downloads: the bytes of a successful response, and the identity of these bytes.

use std::time::Duration;

use futures::stream::StreamExt;
use reqwest::Response;
use reqwest::header::{CONTENT_LENGTH, ETAG, HeaderValue, LAST_MODIFIED};
use sha2::{Digest, Sha256};

use super::attempts::Answer;
use super::ranges::{self, FileBytes, RangedFile};
use crate::domain::{Cause, Location, Missing};
use crate::ports::{Concerns, IncomingDif, ServerFailure};

/// The maximum length of an identity that is kept as the server states it, in bytes. An entry has
/// room for those of all files that were considered.
const MAX_ETAG_BYTES: usize = 256;

/// Converts a successful response into a download.
pub(super) fn download(answer: Answer, location: &Location, silence: Duration) -> IncomingDif {
    let ranged = RangedFile::of(&answer, silence);
    let response = answer.response;
    let header = |name| {
        let value: Option<&HeaderValue> = response.headers().get(name);
        value
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned)
    };
    let etag = header(ETAG).unwrap_or_else(|| {
        format!(
            "{}/{}",
            header(LAST_MODIFIED).unwrap_or_default(),
            header(CONTENT_LENGTH).unwrap_or_default()
        )
    });
    IncomingDif {
        etag: short(etag),
        size: response.content_length(),
        body: ranges::body(ranged, whole(response, location.clone())),
    }
}

/// Returns the body of a response.
fn whole(response: Response, location: Location) -> FileBytes {
    // Inside of the client's own errors, decoders have an I/O error, connections another one.
    let is_of_the_decoder = |error: &reqwest::Error| {
        let first = std::error::Error::source(error);
        let mut causes = std::iter::successors(first, |cause| cause.source());
        let cause = causes.find(|cause| !cause.is::<reqwest::Error>());
        cause.is_some_and(|cause| cause.is::<std::io::Error>())
    };
    let body = response.bytes_stream().map(move |bytes| {
        bytes.map_err(|error| {
            let (cause, what) = match () {
                () if error.is_timeout() => (Cause::Timeout, "stopped sending"),
                () if is_of_the_decoder(&error) => (
                    Cause::Malformed,
                    "sent a body that does not match its Content-Encoding, or ended it early, for",
                ),
                () => (Cause::DownloadFailed, "closed the connection while sending"),
            };
            ServerFailure {
                missing: Missing::new(cause, format!("the server {what} {location}")),
                retry_after: None,
                concerns: Concerns::Location,
            }
        })
    });
    body.boxed()
}

/// Returns an identity, or the checksum of a long one.
fn short(etag: String) -> String {
    if etag.len() <= MAX_ETAG_BYTES {
        etag
    } else {
        format!("sha256/{:x}", Sha256::digest(&etag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_long_etag_is_replaced_by_its_checksum() {
        let longest = "a".repeat(256);
        assert_eq!(short(longest.clone()), longest);
        // From `sha256sum`.
        let checksum = "e8d95cc2b4bc198c54b40bd214df958afb65f5e73d2c2eafe0593cf5c635c1f0";
        assert_eq!(short("a".repeat(257)), format!("sha256/{checksum}"));
    }
}
