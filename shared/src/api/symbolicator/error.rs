//! Errors in requests.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Why a request is rejected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    /// The body is not JSON.
    #[error("the body is not JSON")]
    Syntax {
        /// The problem, with its line and column.
        cause: String,
    },
    /// The body is JSON, but not a valid request.
    #[error("the body is JSON, but not a valid request")]
    Schema {
        /// The field, as in `stacktraces[0].frames[3].instruction_addr`; empty for the whole body.
        path: String,
        /// The problem.
        cause: String,
    },
    /// The query of the URL is invalid.
    #[error("the query of the URL is invalid")]
    Query {
        /// The problem, with its parameter.
        cause: String,
    },
    /// The sources of the request exceed a limit.
    #[error("the sources of the request exceed their limits")]
    Sources {
        /// The source, as in `sources[3]`; `sources` for all of them.
        path: String,
        /// The limit, and what exceeds it.
        cause: String,
    },
    /// A part of a form is invalid.
    #[error("the part {name} is invalid: {}", in_words_of_the_api(cause))]
    Part {
        /// The name of the part.
        name: String,
        /// The problem.
        cause: String,
    },
    /// A body or a file is compressed, and cannot be decompressed.
    #[error("{what} cannot be decompressed: {cause}")]
    Broken {
        /// What is broken: the body, the part of a form, or the file.
        what: &'static str,
        /// The problem.
        cause: String,
    },
    /// A request refers to a file in a place that is not allowed.
    #[error("the storage_url is invalid: {cause}")]
    StorageUrl {
        /// The problem.
        cause: String,
    },
    /// The body or a part of a form exceeds its limit.
    #[error("{what} has more than {limit} bytes")]
    TooLong {
        /// What exceeds the limit.
        what: &'static str,
        /// The limit, in bytes after decompression.
        limit: usize,
    },
    /// The request exceeds a limit.
    #[error("the request has more than {limit} {what}: split it into several requests")]
    TooLarge {
        /// What exceeds the limit.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

/// The body of every error response.
///
/// ```
/// use symdepot::api::symbolicator::{ErrorBody, parse_request};
///
/// let error = parse_request(br#"{"stacktraces": [{"frames": [{}]}]}"#).unwrap_err();
/// assert_eq!(error.status(), 422);
/// assert_eq!(
///     serde_json::to_value(error.body()).unwrap(),
///     serde_json::json!({
///         "detail": "the body is JSON, but not a valid request",
///         "causes": ["stacktraces[0].frames[0]: missing field `instruction_addr` at line 1 column 31"],
///     }),
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ErrorBody {
    /// The problem.
    pub detail: String,
    /// The causes, the most immediate first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
}

impl RequestError {
    /// Returns the HTTP status of the response.
    pub fn status(&self) -> u16 {
        match self {
            RequestError::Syntax { .. }
            | RequestError::Query { .. }
            | RequestError::Part { .. }
            | RequestError::Broken { .. }
            | RequestError::StorageUrl { .. }
            | RequestError::Sources { .. } => 400,
            RequestError::TooLarge { .. } | RequestError::TooLong { .. } => 413,
            RequestError::Schema { .. } => 422,
        }
    }

    /// Returns the body of the response.
    pub fn body(&self) -> ErrorBody {
        let causes = match self {
            RequestError::Syntax { cause } | RequestError::Query { cause } => vec![cause.clone()],
            RequestError::Schema { path, cause } if path.is_empty() => {
                vec![in_words_of_the_api(cause)]
            }
            RequestError::Schema { path, cause } => {
                vec![format!("{path}: {}", in_words_of_the_api(cause))]
            }
            RequestError::Sources { path, cause } => vec![format!("{path}: {cause}")],
            RequestError::TooLarge { .. }
            | RequestError::TooLong { .. }
            | RequestError::StorageUrl { .. }
            | RequestError::Broken { .. }
            | RequestError::Part { .. } => Vec::new(),
        };
        ErrorBody {
            detail: self.to_string(),
            causes,
        }
    }
}

/// The type of a source that only the service itself makes, as the parser lists it among the types.
const TYPE_OF_THE_SERVICE: &str = ", `sourcelink`";

/// How a parser begins what it expects in the place of an object; the name of a type follows.
const OBJECTS: [&str; 3] = ["struct variant ", "struct ", "internally tagged enum "];

/// What a parser expects in the place of one of several names.
const NAMES: [&str; 2] = ["string or map", "map with a single key"];

/// Returns what a parser says of a field, without what is only known in this program: the names of
/// its types, and the type of a source that no request may define.
fn in_words_of_the_api(cause: &str) -> String {
    let Some((found, expected)) = cause.split_once(", expected ") else {
        return cause.to_owned();
    };
    let object = OBJECTS
        .iter()
        .find_map(|prefix| expected.strip_prefix(*prefix));
    let name = NAMES
        .iter()
        .find_map(|prefix| expected.strip_prefix(*prefix));
    let expected = match (object, name) {
        (Some(object), _) => {
            let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | ':');
            format!("an object{}", object.trim_start_matches(is_name))
        }
        (None, Some(rest)) => format!("a string{rest}"),
        (None, None) => expected.replace(TYPE_OF_THE_SERVICE, ""),
    };
    format!("{found}, expected {expected}")
}
