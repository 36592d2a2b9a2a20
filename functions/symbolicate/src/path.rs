//! The path of a request, as its client sent it.
//!
//! An HTTP API decodes the path of an event. `lambda_http` parses the decoded path as part of a URL:
//! it collapses `..`, and takes `?` and `#` for the begin of a query and of a fragment. The path is
//! therefore taken from the event, and encoded again, before routes are matched.

use axum::http::Uri;
use axum::http::uri::PathAndQuery;
use lambda_http::RequestExt;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// What a path may not contain (RFC 3986, section 3.3), and `%`, because the path is decoded.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@');

/// Restores the path and the query of a request.
pub(crate) fn restore(request: &mut lambda_http::Request) {
    let path = request.raw_http_path();
    if !path.starts_with('/') {
        return;
    }
    let query = if path.contains(['?', '#']) {
        // What is in the URI begins with a part of the path, or is missing.
        request.query_string_parameters().to_query_string()
    } else {
        request.uri().query().unwrap_or_default().to_owned()
    };
    let mut text = utf8_percent_encode(path, ENCODED).to_string();
    if !query.is_empty() {
        text.push('?');
        text.push_str(&query);
    }
    if let Ok(restored) = PathAndQuery::try_from(text) {
        *request.uri_mut() = Uri::from(restored);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the path and the query that the router sees of an event.
    fn restored(raw_path: &str, raw_query: &str) -> String {
        let event = json!({
            "version": "2.0", "routeKey": "$default", "rawPath": raw_path, "rawQueryString": raw_query,
            "headers": {"host": "abc.execute-api.eu-central-1.amazonaws.com"}, "isBase64Encoded": false,
            "requestContext": {
                "accountId": "1", "apiId": "abc", "domainName": "abc", "domainPrefix": "abc",
                "requestId": "1", "routeKey": "$default", "stage": "$default",
                "time": "12/Mar/2020:19:03:58 +0000", "timeEpoch": 1,
                "http": {"method": "GET", "path": raw_path, "protocol": "HTTP/1.1", "sourceIp": "1.2.3.4", "userAgent": "a"}
            }
        });
        let mut request = lambda_http::request::from_str(&event.to_string()).unwrap();
        restore(&mut request);
        request.uri().to_string()
    }

    #[test]
    fn a_decoded_path_is_matched_as_it_was_sent() {
        for (raw_path, raw_query, expected) in [
            ("/explain", "key=a%2Fb", "/explain?key=a%2Fb"),
            ("/v3.1.0/a b.pdb/1/1", "", "/v3.1.0/a%20b.pdb/1/1"),
            ("/v3.1.0/100%20.pdb/1/1", "", "/v3.1.0/100%2520.pdb/1/1"),
            ("/v3.1.0/a?b.pdb/1/1", "x=1&y", "/v3.1.0/a%3Fb.pdb/1/1?"),
            ("/v3.1.0/a#b.pdb/1/1", "x=1", "/v3.1.0/a%23b.pdb/1/1?x=1"),
            ("/v3.1.0/ü.pdb/1/1", "", "/v3.1.0/%C3%BC.pdb/1/1"),
            ("/v3.1.0/a\n.pdb/1/1", "", "/v3.1.0/a%0A.pdb/1/1"),
        ] {
            let path = restored(raw_path, raw_query);
            assert!(path.starts_with(expected), "{raw_path}: {path}");
        }
    }

    #[test]
    fn dot_segments_do_not_lead_to_another_route() {
        for raw_path in ["/o/../explain", "/./explain", "/v3.1.0/../explain"] {
            assert_eq!(restored(raw_path, ""), raw_path);
        }
    }
}
