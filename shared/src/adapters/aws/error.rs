//! Classifies errors of the SDK by what the caller does next. This is the only place that does.

use std::error::Error;

use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::operation::RequestId;

use crate::domain::chain;
use crate::ports::{Fault, FaultKind};

/// Converts an error of the SDK into a fault. `context` is `<service> <operation> of <what>`.
pub(super) fn store_error<E>(context: impl Into<String>, error: &SdkError<E>) -> Fault
where
    E: Error + ProvideErrorMetadata + 'static,
{
    Fault::new(kind(error), context).caused_by(describe(error))
}

/// Converts the refusal of one item of a batch into a fault. Such an item has no status of its own.
pub(super) fn refused_error(
    context: impl Into<String>,
    code: Option<&str>,
    message: Option<&str>,
) -> Fault {
    let message = message.unwrap_or("no message");
    let cause = format!("{}: {message}", code.unwrap_or("no code"));
    // The status 200 is that of the batch: the item's code alone decides.
    Fault::new(kind_of_answer(code, 200), context).caused_by(cause)
}

/// Returns the HTTP status of the response, if there was one.
pub(super) fn status<E>(error: &SdkError<E>) -> Option<u16> {
    error
        .raw_response()
        .map(|response| response.status().as_u16())
}

fn kind<E: Error + ProvideErrorMetadata + 'static>(error: &SdkError<E>) -> FaultKind {
    match error {
        SdkError::ServiceError(refused) if is_too_large(refused.err()) => FaultKind::TooLarge,
        SdkError::ServiceError(refused) => {
            kind_of_answer(refused.err().code(), refused.raw().status().as_u16())
        }
        SdkError::TimeoutError(_) | SdkError::ResponseError(_) => FaultKind::Transient,
        // Credentials are resolved while a request is dispatched.
        SdkError::DispatchFailure(_) if chain(error).contains("redentials") => FaultKind::Denied,
        SdkError::DispatchFailure(failure) if failure.is_user() => FaultKind::Bug,
        SdkError::DispatchFailure(_) => FaultKind::Transient,
        _ => FaultKind::Bug,
    }
}

/// Returns whether DynamoDB rejects an item because of its size. Its code alone does not say so
/// (DynamoDB API reference, `PutItem`: "Item size has exceeded the maximum allowed size").
fn is_too_large(error: &impl ProvideErrorMetadata) -> bool {
    let says = |message: &str| message.to_ascii_lowercase().contains("size has exceeded");
    error.code() == Some("ValidationException") && error.message().is_some_and(says)
}

/// Classifies an error response, by its code where the code is more specific than the status.
fn kind_of_answer(code: Option<&str>, status: u16) -> FaultKind {
    match (code.unwrap_or_default(), status) {
        (
            "ProvisionedThroughputExceededException"
            | "RequestLimitExceeded"
            | "RequestTimeout"
            | "RequestTimeoutException"
            | "SlowDown"
            | "TooManyRequestsException"
            | "InternalServerError"
            | "InternalError"
            | "ServiceUnavailable"
            // Concurrent conditional writes.
            | "ConditionalRequestConflict"
            | "OperationAborted"
            | "ReplicatedWriteConflictException"
            // The bytes were damaged in transit.
            | "BadDigest"
            | "XAmzContentChecksumMismatch"
            | "XAmzContentSHA256Mismatch"
            | "IncompleteBody",
            _,
        ) => FaultKind::Transient,
        (code, _) if code.contains("Throttl") => FaultKind::Transient,
        (
            "AccessDenied"
            | "AccessDeniedException"
            | "ExpiredToken"
            | "ExpiredTokenException"
            | "InvalidClientTokenId"
            | "IncompleteSignature"
            | "MissingAuthenticationToken"
            | "UnrecognizedClientException",
            _,
        ) => FaultKind::Denied,
        (_, 401 | 403) => FaultKind::Denied,
        (_, 501) => FaultKind::Bug,
        (_, 408 | 429 | 500..) => FaultKind::Transient,
        _ => FaultKind::Bug,
    }
}

/// Describes an error on one line: the service's code, message and request id, or else the chain of
/// causes.
fn describe<E: Error + ProvideErrorMetadata + 'static>(error: &SdkError<E>) -> String {
    let SdkError::ServiceError(refused) = error else {
        return chain(error);
    };
    let says = match refused.err().code() {
        Some(code) => format!(
            "{code}: {}",
            refused.err().message().unwrap_or("no message")
        ),
        // A response that could not be parsed: its causes say why.
        None => chain(refused.err()),
    };
    let request = error.request_id().unwrap_or("unknown");
    format!(
        "{says} (status {}, request {request})",
        refused.raw().status().as_u16()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_response_decides_what_the_caller_does_next() {
        use FaultKind::{Bug, Denied, Transient};
        for (code, status, kind) in [
            (
                Some("ProvisionedThroughputExceededException"),
                400,
                Transient,
            ),
            (Some("ThrottlingException"), 400, Transient),
            (Some("KmsThrottled"), 400, Transient),
            (Some("SlowDown"), 503, Transient),
            (Some("ConditionalRequestConflict"), 409, Transient),
            (None, 500, Transient),
            (None, 503, Transient),
            (Some("AccessDenied"), 403, Denied),
            (Some("AccessDeniedException"), 400, Denied),
            (Some("ExpiredToken"), 400, Denied),
            (None, 403, Denied),
            (Some("NoSuchBucket"), 404, Bug),
            (Some("ResourceNotFoundException"), 400, Bug),
            (Some("ValidationException"), 400, Bug),
            (Some("NotImplemented"), 501, Bug),
        ] {
            assert_eq!(kind_of_answer(code, status), kind, "{code:?} {status}");
        }
    }
}
