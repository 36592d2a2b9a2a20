//! Errors of SQS.

use http::StatusCode;

use crate::iam::Refusal;
use crate::queues::QueueError;

/// Resolves when the endpoint closes.
pub(super) type Closed = tokio::sync::watch::Receiver<bool>;

/// An error in SQS's format.
#[derive(Debug)]
pub(super) struct SqsError {
    pub(super) status: StatusCode,
    /// `__type`.
    pub(super) shape: String,
    /// The code of the query protocol.
    pub(super) code: String,
    pub(super) message: String,
}

impl SqsError {
    /// Returns an error of SQS's own model.
    pub(super) fn modelled(shape: &str, code: &str, message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            shape: format!("com.amazonaws.sqs#{shape}"),
            code: code.to_owned(),
            message: message.into(),
        }
    }

    /// Returns an error that is common to all services.
    pub(super) fn new(code: &str, message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            shape: format!("com.amazon.coral.service#{code}"),
            code: code.to_owned(),
            message: message.into(),
        }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        let mut error = Self::new("InvalidParameterValueException", message);
        "InvalidParameterValue".clone_into(&mut error.code);
        error
    }

    /// Returns the shape's name alone, as in the entries of a batch.
    pub(super) fn name(&self) -> &str {
        self.shape.rsplit('#').next().unwrap_or(&self.shape)
    }
}

impl From<Refusal> for SqsError {
    fn from(refusal: Refusal) -> Self {
        let (shape, code) = match refusal {
            Refusal::Denied(_) => ("AccessDeniedException", "AccessDenied"),
            Refusal::UnknownKey => ("InvalidClientTokenId", "InvalidClientTokenId"),
            Refusal::Unsigned => ("MissingAuthenticationToken", "MissingAuthenticationToken"),
        };
        Self {
            status: StatusCode::FORBIDDEN,
            code: code.to_owned(),
            ..Self::new(shape, refusal.to_string())
        }
    }
}

impl From<QueueError> for SqsError {
    fn from(error: QueueError) -> Self {
        let message = error.to_string();
        match error {
            QueueError::NoSuchQueue(_) => Self::modelled(
                "QueueDoesNotExist",
                "AWS.SimpleQueueService.NonExistentQueue",
                message,
            ),
            QueueError::InvalidReceipt(_) => {
                Self::modelled("ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", message)
            }
            QueueError::NotInFlight => Self::modelled(
                "MessageNotInflight",
                "AWS.SimpleQueueService.MessageNotInflight",
                message,
            ),
            QueueError::InvalidContents(_) => {
                Self::modelled("InvalidMessageContents", "InvalidMessageContents", message)
            }
            QueueError::TooLong { .. } | QueueError::InvalidParameter(_) => Self::invalid(message),
            QueueError::Database(_) => Self {
                status: StatusCode::INTERNAL_SERVER_ERROR,
                ..Self::new("InternalFailure", message)
            },
        }
    }
}
