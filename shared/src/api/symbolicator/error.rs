//! Errors in requests.

use std::borrow::Cow;

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
    #[error("the part {name} is invalid: {}", shortened(&in_words_of_the_api(cause)))]
    Part {
        /// The name of the part.
        name: String,
        /// The problem.
        cause: String,
    },
    /// A body or a file is compressed, and cannot be decompressed.
    #[error("{what} cannot be decompressed: {}", shortened(cause))]
    Broken {
        /// What is broken: the body, the part of a form, or the file.
        what: &'static str,
        /// The problem.
        cause: String,
    },
    /// A request refers to a file in a place that is not allowed.
    #[error("the storage_url is invalid: {}", shortened(cause))]
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

    /// Returns the body of the response. What it quotes of the request is shortened.
    pub fn body(&self) -> ErrorBody {
        let at = |path: &str, cause: &str| match path {
            "" => shortened(cause).into_owned(),
            path => format!("{}: {}", shortened(path), shortened(cause)),
        };
        let causes = match self {
            RequestError::Syntax { cause } | RequestError::Query { cause } => vec![at("", cause)],
            RequestError::Schema { path, cause } => vec![at(path, &in_words_of_the_api(cause))],
            RequestError::Sources { path, cause } => vec![at(path, cause)],
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

/// The maximum size of a path or a cause in a response, in bytes before they are escaped. Both may
/// repeat texts of the request, such as the value of a field or the name of a register, and a
/// request may be as large as a response.
const TEXT_BYTES: usize = 1024;

/// Returns a text without its middle, if it is long: it begins with what is wrong, and ends with
/// what is expected.
fn shortened(text: &str) -> Cow<'_, str> {
    if text.len() <= TEXT_BYTES {
        return Cow::Borrowed(text);
    }
    let half = (TEXT_BYTES - ELLIPSIS.len()) / 2;
    let start = &text[..text.floor_char_boundary(half)];
    let end = &text[text.ceil_char_boundary(text.len() - half)..];
    Cow::Owned([start, ELLIPSIS, end].concat())
}

/// What stands for what is left out of a text.
const ELLIPSIS: &str = "…";

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::symbolicator::parse_request;

    #[test]
    fn a_long_text_of_a_request_is_shortened_in_the_error() {
        let long = |text: &str| text.repeat((1 << 20) / text.len());
        for text in ["x", "é", "\u{1f600}", r"\u0001", r#"\""#] {
            let long = long(text);
            for (body, is_named, is_expected) in [
                (
                    format!(r#"{{"options": {{"frame_order": "{long}"}}}}"#),
                    "options.frame_order: unknown variant `",
                    "`, expected `callee_first` or `caller_first` at line 1 column ",
                ),
                (
                    format!(
                        r#"{{"stacktraces": [{{"frames": [], "registers": {{"{long}": -1}}}}]}}"#
                    ),
                    "stacktraces[0].registers.",
                    " at line 1 column ",
                ),
            ] {
                let error = parse_request(body.as_bytes()).unwrap_err();
                assert_eq!(error.status(), 422);
                let ErrorBody { detail, causes } = error.body();
                assert_eq!(detail, "the body is JSON, but not a valid request");
                let [cause] = &causes[..] else {
                    panic!("{causes:?}");
                };
                assert!(cause.starts_with(is_named), "{cause}");
                assert!(cause.contains(is_expected), "{cause}");
                assert!(cause.contains(ELLIPSIS), "{cause}");
                assert!(cause.len() <= 2 * TEXT_BYTES + 2, "{} bytes", cause.len());
                let sent = serde_json::to_vec(&error.body()).unwrap();
                assert!(sent.len() <= 16 * 1024, "{} bytes", sent.len());
            }
            let part = RequestError::Part {
                name: "options".to_owned(),
                cause: format!("unknown variant `{long}`, expected `a`"),
            };
            let detail = part.body().detail;
            assert!(
                detail.starts_with("the part options is invalid: unknown variant `"),
                "{detail}"
            );
            assert!(detail.ends_with("`, expected `a`"), "{detail}");
            assert!(detail.len() <= 2 * TEXT_BYTES, "{} bytes", detail.len());
        }
    }

    #[test]
    fn a_text_within_the_limit_is_not_shortened() {
        let text = "a".repeat(TEXT_BYTES);
        assert_eq!(shortened(&text), text);
        let longer = format!("{text}a");
        assert_eq!(shortened(&longer).len(), TEXT_BYTES - 1);
    }
}
