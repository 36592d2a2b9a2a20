//! The query of a URL.

use std::time::Duration;

use percent_encoding::percent_decode_str;

use super::RequestError;
use crate::domain::{ResponseFormat, Scope};

/// A parsed query.
///
/// ```
/// use std::time::Duration;
/// use symdepot::api::symbolicator::Query;
///
/// let query = Query::parse("timeout=5&scope=acme%20inc", Query::OF_REQUESTS)?;
/// assert_eq!(query.timeout, Some(Duration::from_secs(5)));
/// assert_eq!(query.scope.as_str(), "acme inc");
/// # Ok::<(), symdepot::api::symbolicator::RequestError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// How long to wait before the response is `pending`; `None` for the default.
    pub timeout: Option<Duration>,
    /// The scope whose caches are read and filled.
    pub scope: Scope,
    /// Whether the query names the scope.
    pub names_scope: bool,
    /// The page of a list, from 1.
    pub page: usize,
    /// The schema of the answer.
    pub format: ResponseFormat,
}

impl Query {
    /// The parameters of requests to symbolicate.
    pub const OF_REQUESTS: &'static [&'static str] = &["timeout", "scope"];

    /// The parameters of requests with a minidump.
    pub const OF_MINIDUMPS: &'static [&'static str] = &["timeout", "scope", "format"];

    /// The parameters of lists.
    pub const OF_LISTS: &'static [&'static str] = &["scope", "page"];

    /// The parameters of requests for uploads.
    pub const OF_UPLOADS: &'static [&'static str] = &["scope"];

    /// The parameters of requests that have none.
    pub const NONE: &'static [&'static str] = &[];

    /// Returns the scope that the query names.
    pub fn named_scope(&self) -> Option<Scope> {
        self.names_scope.then(|| self.scope.clone())
    }

    /// Parses the part of a URL after the question mark, which may have these parameters.
    ///
    /// # Errors
    ///
    /// [`RequestError::Query`] for an invalid value, and for a repeated or unknown parameter.
    /// Unknown parameters are rejected because a misspelled `scope` would silently read the global
    /// scope.
    pub fn parse(query: &str, parameters: &[&str]) -> Result<Self, RequestError> {
        let error = |cause: String| RequestError::Query { cause };
        let (mut timeout, mut scope, mut page, mut format) = (None, None, None, None);
        for (name, value) in encoded_pairs(query) {
            let name = decode(name)?;
            if !parameters.contains(&name.as_str()) {
                return Err(error(format!(
                    "{name}: unknown parameter; {}",
                    expected(parameters)
                )));
            }
            let twice = match name.as_str() {
                "timeout" => {
                    let value = decode(value)?;
                    // `parse` accepts a plus sign, which is not a digit.
                    let seconds = if value.starts_with('+') {
                        None
                    } else {
                        value.parse().ok()
                    };
                    let seconds = seconds.ok_or_else(|| {
                        error(format!("timeout: {value:?} is not a number of seconds"))
                    })?;
                    timeout.replace(Duration::from_secs(seconds)).is_some()
                }
                "scope" => {
                    let value = decode(value)?.parse::<Scope>();
                    scope
                        .replace(value.map_err(|cause| error(format!("scope: {cause}")))?)
                        .is_some()
                }
                "page" => {
                    let value = decode(value)?;
                    let number = value.parse().ok().filter(|number| *number > 0);
                    let number = number
                        .ok_or_else(|| error(format!("page: {value:?} is not a page number")))?;
                    page.replace(number).is_some()
                }
                "format" => {
                    let value = decode(value)?;
                    let named = ResponseFormat::of_name(&value).ok_or_else(|| {
                        error(format!(
                            "format: {value:?} is neither symbolicator nor stackwalk"
                        ))
                    })?;
                    format.replace(named).is_some()
                }
                _ => false,
            };
            if twice {
                return Err(error(format!("{name}: given more than once")));
            }
        }
        Ok(Self {
            timeout,
            names_scope: scope.is_some(),
            scope: scope.unwrap_or_default(),
            page: page.unwrap_or(1),
            format: format.unwrap_or_default(),
        })
    }
}

/// Says which parameters a query may have.
fn expected(parameters: &[&str]) -> String {
    match parameters {
        [] => "this request has no parameters".to_owned(),
        known => format!("expected {}", known.join(" and ")),
    }
}

/// Parses a query into pairs of name and value, in order.
pub(in crate::api) fn query_pairs(query: &str) -> Result<Vec<(String, String)>, RequestError> {
    encoded_pairs(query)
        .map(|(name, value)| Ok((decode(name)?, decode(value)?)))
        .collect()
}

/// Parses a query into pairs of name and value, with plus signs taken literally, as in a path that
/// was pasted.
pub(in crate::api) fn pasted_pairs(query: &str) -> Result<Vec<(String, String)>, RequestError> {
    encoded_pairs(query)
        .map(|(name, value)| Ok((decode(name)?, decode_percent(value)?)))
        .collect()
}

fn encoded_pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// Decodes a name or a value of a form: `%20` and `+` are spaces.
fn decode(text: &str) -> Result<String, RequestError> {
    decode_percent(&text.replace('+', " "))
}

/// Decodes a name or a value, with plus signs taken literally.
fn decode_percent(text: &str) -> Result<String, RequestError> {
    match percent_decode_str(text).decode_utf8() {
        Ok(decoded) => Ok(decoded.into_owned()),
        Err(_) => Err(RequestError::Query {
            cause: format!("{text:?} is not UTF-8 after percent-decoding"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_has_a_timeout_and_a_scope() {
        let check = |query: &str, timeout: Option<u64>, scope: &str| {
            let parsed = Query::parse(query, Query::OF_REQUESTS).unwrap();
            assert_eq!(
                (parsed.timeout, parsed.scope.as_str()),
                (timeout.map(Duration::from_secs), scope),
                "{query}"
            );
        };
        check("", None, "global");
        check("timeout=0", Some(0), "global");
        check("&scope=acme&", None, "acme");
        check(
            "time%6fut=18446744073709551615&scope=a%2Bb+c",
            Some(u64::MAX),
            "a+b c",
        );
        check("scope=global", None, "global");
    }

    #[test]
    fn an_invalid_query_is_a_bad_request() {
        for query in [
            "timeout=soon",
            "timeout=",
            "timeout",
            "timeout=-1",
            "timeout=%2B1",
            "timeout=1.5",
            "timeout=18446744073709551616",
            "timeout=1&timeout=2",
            "scope=",
            "scope=a%2Fb",
            "scope=a%0a",
            "scope=%ff",
            "scope=a&scope=a",
            "scpoe=a",
            "page=2",
            "format=stackwalk",
            "scope=a&flag",
        ] {
            let error = Query::parse(query, Query::OF_REQUESTS).unwrap_err();
            assert_eq!(error.status(), 400, "{query}");
        }
    }

    #[test]
    fn a_request_without_parameters_refuses_every_one() {
        assert!(Query::parse("", Query::NONE).is_ok());
        for query in ["scope=acme", "timeout=1", "x", "%73cope=acme"] {
            let error = Query::parse(query, Query::NONE).unwrap_err();
            let cause = error.body().causes.join(": ");
            assert_eq!(error.status(), 400, "{query}");
            assert!(cause.ends_with("this request has no parameters"), "{cause}");
        }
    }

    #[test]
    fn an_answer_to_a_minidump_has_a_format() {
        let format = |query| Query::parse(query, Query::OF_MINIDUMPS).map(|query| query.format);
        assert_eq!(format(""), Ok(ResponseFormat::Symbolicator));
        assert_eq!(
            format("format=symbolicator"),
            Ok(ResponseFormat::Symbolicator)
        );
        assert_eq!(
            format("format=stackwalk&timeout=0"),
            Ok(ResponseFormat::Stackwalk)
        );
        for query in [
            "format=",
            "format=Stackwalk",
            "format=stackwalk&format=stackwalk",
        ] {
            assert_eq!(format(query).unwrap_err().status(), 400, "{query}");
        }
    }
}
