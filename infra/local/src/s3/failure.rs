//! Errors of S3 operations, with the codes of the protocol.

use std::error::Error;

use s3s::{S3Error, S3ErrorCode, s3_error};

use crate::database::DatabaseError;
use crate::queues::QueueError;

/// An S3 error to which other errors convert.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) S3Error);

impl Failure {
    /// Returns an error of the stack itself, not of the request.
    pub(crate) fn internal(error: impl Error + Send + Sync + 'static) -> Self {
        let mut failure = S3Error::with_message(
            S3ErrorCode::InternalError,
            format!("the local stack failed: {error}"),
        );
        failure.set_source(Box::new(error));
        Self(failure)
    }

    pub(crate) fn incomplete(announced: u64, received: u64) -> Self {
        s3_error!(
            IncompleteBody,
            "the request declares {announced} bytes, but its body has {received}"
        )
        .into()
    }

    pub(crate) fn too_large(limit: u64) -> Self {
        s3_error!(
            EntityTooLarge,
            "a request may have at most {limit} bytes; upload larger objects in parts"
        )
        .into()
    }
}

/// Returns the error for a body that ends with an error. s3s reports a payload that does not match
/// its signed hash in the text of the error only.
pub(crate) fn body_failure(error: Box<dyn Error + Send + Sync>) -> Failure {
    let text = error.to_string();
    let mut failure = if text.contains("Sha256Mismatch") {
        let mut failure = S3Error::with_message(
            S3ErrorCode::Custom("XAmzContentSHA256Mismatch".into()),
            "the provided 'x-amz-content-sha256' header does not match what was computed",
        );
        failure.set_status_code(http::StatusCode::BAD_REQUEST);
        failure
    } else if text.contains("SignatureMismatch") {
        s3_error!(
            SignatureDoesNotMatch,
            "the signature of a chunk does not match the computed signature"
        )
    } else {
        s3_error!(IncompleteBody, "the body ended with an error: {text}")
    };
    failure.set_source(error);
    Failure(failure)
}

impl From<Failure> for S3Error {
    fn from(failure: Failure) -> Self {
        failure.0
    }
}

impl From<S3Error> for Failure {
    fn from(error: S3Error) -> Self {
        Self(error)
    }
}

impl From<DatabaseError> for Failure {
    fn from(error: DatabaseError) -> Self {
        Self::internal(error)
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::internal(error)
    }
}

impl From<QueueError> for Failure {
    fn from(error: QueueError) -> Self {
        Self::internal(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::internal(error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::internal(error)
    }
}
