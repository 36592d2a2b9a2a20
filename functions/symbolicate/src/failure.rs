//! Errors as responses: a status, and a JSON body with the reason.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use symdepot::api::caller::ScopeError;
use symdepot::api::explain::ExplainError;
use symdepot::api::symbolicator::{ErrorBody, RequestError};
use symdepot::flows;
use symdepot::flows::attachments::AttachmentError;

/// An error response: a status, and a JSON body with the reason.
#[derive(Debug)]
pub(crate) struct Failure {
    status: StatusCode,
    body: ErrorBody,
    /// The name of the error in the log, if the service failed.
    error: Option<&'static str>,
}

impl Failure {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            body: ErrorBody {
                detail: detail.into(),
                causes: Vec::new(),
            },
            error: None,
        }
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the response to a request for which there was no time left.
    pub(crate) fn time_is_up() -> Self {
        Self {
            error: Some("TimeIsUp"),
            ..Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "the time of the function was up before there was a response; send the request again",
            )
        }
    }

    pub(crate) fn internal(error: impl std::error::Error) -> Self {
        Self {
            error: Some("Internal"),
            ..Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
        }
    }
}

impl From<RequestError> for Failure {
    fn from(error: RequestError) -> Self {
        let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::BAD_REQUEST);
        Self {
            status,
            body: error.body(),
            error: None,
        }
    }
}

impl From<ExplainError> for Failure {
    fn from(error: ExplainError) -> Self {
        Self {
            status: StatusCode::from_u16(error.status()).unwrap_or(StatusCode::BAD_REQUEST),
            body: error.body(),
            error: None,
        }
    }
}

impl From<ScopeError> for Failure {
    fn from(error: ScopeError) -> Self {
        let status = match error {
            ScopeError::Contradiction { .. } | ScopeError::QueryAndBody { .. } => {
                StatusCode::BAD_REQUEST
            }
            ScopeError::NotGranted(_) => StatusCode::FORBIDDEN,
        };
        Self::new(status, error.to_string())
    }
}

impl From<AttachmentError> for Failure {
    fn from(error: AttachmentError) -> Self {
        match error {
            AttachmentError::Absent(detail) => Self::new(StatusCode::NOT_FOUND, detail),
            AttachmentError::Unreachable(detail) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
            }
            AttachmentError::Request(error) => error.into(),
            AttachmentError::Store(error) => error.into(),
        }
    }
}

impl From<flows::Error> for Failure {
    fn from(error: flows::Error) -> Self {
        let status =
            StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let causes =
            std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
        let body = ErrorBody {
            detail: error.to_string(),
            causes: causes.map(ToString::to_string).collect(),
        };
        let error = Some(error.name());
        Self {
            status,
            body,
            error,
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let Self {
            status,
            body,
            error,
        } = self;
        if status.is_server_error() {
            tracing::error!(error, detail = body.detail, causes = ?body.causes, "request failed");
        }
        (status, Json(body)).into_response()
    }
}
