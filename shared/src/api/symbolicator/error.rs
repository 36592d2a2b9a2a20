//! What is wrong with a request.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Why a request is not answered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    /// The body is not JSON.
    #[error("the body is not JSON")]
    Syntax {
        /// What is wrong, and at which line and column.
        cause: String,
    },
    /// The body is JSON, and does not say what a request must say.
    #[error("the body is JSON, but no request")]
    Schema {
        /// The field, as in `stacktraces[0].frames[3].instruction_addr`; empty for the whole body.
        path: String,
        /// What is wrong with it.
        cause: String,
    },
    /// The query of the URL is wrong.
    #[error("the query of the URL is wrong")]
    Query {
        /// What is wrong, and with which parameter.
        cause: String,
    },
    /// A source that the request lists has more of something than it may have.
    #[error("the sources of the request are beyond their limits")]
    Sources {
        /// Which of them, as in `sources[3]`; `sources` for all of them.
        path: String,
        /// What there is too much of, and how much there may be.
        cause: String,
    },
    /// The request asks for more than one request may ask for.
    #[error("the request has more {what} than the {limit} that one request may have; send several")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much there may be.
        limit: usize,
    },
}

/// The body of every answer that is an error.
///
/// ```
/// use symdepot::api::symbolicator::{ErrorBody, parse_request};
///
/// let error = parse_request(br#"{"stacktraces": [{"frames": [{}]}]}"#).unwrap_err();
/// assert_eq!(error.status(), 422);
/// assert_eq!(
///     serde_json::to_value(error.body()).unwrap(),
///     serde_json::json!({
///         "detail": "the body is JSON, but no request",
///         "causes": ["stacktraces[0].frames[0]: missing field `instruction_addr` at line 1 column 31"],
///     }),
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What is wrong.
    pub detail: String,
    /// What that came of, the nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
}

impl RequestError {
    /// Returns the HTTP status that it is answered with.
    pub fn status(&self) -> u16 {
        match self {
            RequestError::Syntax { .. }
            | RequestError::Query { .. }
            | RequestError::Sources { .. } => 400,
            RequestError::TooLarge { .. } => 413,
            RequestError::Schema { .. } => 422,
        }
    }

    /// Returns the body that it is answered with.
    pub fn body(&self) -> ErrorBody {
        let causes = match self {
            RequestError::Syntax { cause } | RequestError::Query { cause } => vec![cause.clone()],
            RequestError::Schema { path, cause } if path.is_empty() => vec![cause.clone()],
            RequestError::Schema { path, cause } | RequestError::Sources { path, cause } => {
                vec![format!("{path}: {cause}")]
            }
            RequestError::TooLarge { .. } => Vec::new(),
        };
        ErrorBody {
            detail: self.to_string(),
            causes,
        }
    }
}
