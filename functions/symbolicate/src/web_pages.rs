//! Requests of web pages of other origins (WHATWG Fetch, "HTTP CORS protocol").
//!
//! One route has clients that are web pages: that of Mozilla's symbolication API. Pages may be
//! hostile, and the local stack lets anyone enter who reaches it. Only the pages that the API names
//! may read responses, and only those of that route.

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use symdepot::api::entrance::Entrance;
use symdepot::api::mozilla::is_allowed_page;

use crate::operation::Operation;

/// The route whose clients may be web pages.
const OPERATION: Operation = Operation::SymbolicateJobs;

/// The maximum length of the list of headers that a page wants to send. Browsers list those that
/// every server accepts with it, and there are about a dozen of these.
const MAX_LIST_BYTES: usize = 256;

/// How long a browser remembers what a page may send, in seconds: a day, the most that Firefox
/// accepts.
const MAX_AGE: HeaderValue = HeaderValue::from_static("86400");

/// A request to the route that web pages may use.
pub(crate) struct RequestOfPage {
    is_preflight: bool,
    /// The origin of the page, if it may read the response.
    origin: Option<HeaderValue>,
    /// The headers that the page wants to send.
    headers: Option<HeaderValue>,
}

impl RequestOfPage {
    /// Returns a request to that route; `None` if it is to another one.
    pub(crate) fn of(request: &lambda_http::Request) -> Option<Self> {
        let path = Entrance::of(request.uri().path()).path;
        if OPERATION.path() != Some(&*path) {
            return None;
        }
        let origin = request.headers().get(header::ORIGIN);
        let is_allowed = |origin: &&HeaderValue| origin.to_str().is_ok_and(is_allowed_page);
        let names = request
            .headers()
            .get(header::ACCESS_CONTROL_REQUEST_HEADERS);
        Some(Self {
            is_preflight: request.method() == Method::OPTIONS,
            origin: origin.filter(is_allowed).cloned(),
            headers: names.filter(|names| is_list_of_names(names)).cloned(),
        })
    }

    /// Returns the response to a preflight, by which a browser asks what a page may send; `None` if
    /// the request is none. A browser sends no credential with it, and none is needed: the response
    /// depends on the page alone.
    pub(crate) fn preflight(&self) -> Option<Response> {
        if !self.is_preflight {
            return None;
        }
        let mut response = StatusCode::NO_CONTENT.into_response();
        response.extensions_mut().insert(OPERATION);
        let headers = response.headers_mut();
        self.let_read(headers);
        if self.origin.is_some() {
            let post = HeaderValue::from_static("POST");
            headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, post);
            headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
            if let Some(names) = &self.headers {
                headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
            }
        }
        Some(response)
    }

    /// Lets the page read a response with these headers, if it may.
    pub(crate) fn let_read(&self, headers: &mut HeaderMap) {
        headers.append(header::VARY, HeaderValue::from_static("origin"));
        if let Some(origin) = &self.origin {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        }
    }
}

/// Returns whether a header is a list of names of headers, of a bounded length.
fn is_list_of_names(list: &HeaderValue) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_, ".contains(byte);
    list.len() <= MAX_LIST_BYTES && list.as_bytes().iter().all(is_part)
}

#[cfg(test)]
mod tests {
    use axum::http::Request;
    use lambda_http::Body;

    use super::*;

    const PROFILER: &str = "https://profiler.firefox.com";

    fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> RequestOfPage {
        try_request(method, path, headers).unwrap()
    }

    fn try_request(method: &str, path: &str, headers: &[(&str, &str)]) -> Option<RequestOfPage> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        RequestOfPage::of(&request.body(Body::Empty).unwrap())
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let names = headers.keys().map(|name| name.as_str());
        let mut names: Vec<&str> = names.filter(|name| name.starts_with("access")).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_preflight_of_an_allowed_page_is_answered_with_what_it_may_send() {
        let headers = [
            ("origin", PROFILER),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "content-type, user-agent"),
        ];
        for path in ["/symbolicate/v5", "/t/x/scope/acme/symbolicate/v5"] {
            let response = request("OPTIONS", path, &headers).preflight().unwrap();
            assert_eq!(response.status(), StatusCode::NO_CONTENT);
            let headers = response.headers();
            for (name, value) in [
                ("access-control-allow-origin", PROFILER),
                ("access-control-allow-methods", "POST"),
                ("access-control-allow-headers", "content-type, user-agent"),
                ("access-control-max-age", "86400"),
                ("vary", "origin"),
            ] {
                assert_eq!(headers[name], value, "{name}");
            }
        }
        assert!(
            request("POST", "/symbolicate/v5", &headers)
                .preflight()
                .is_none()
        );
    }

    #[test]
    fn a_page_that_is_not_allowed_learns_nothing_from_a_preflight() {
        for origin in [
            "https://evil.example",
            "null",
            "http://localhost.evil.example",
        ] {
            let headers = [("origin", origin), ("access-control-request-headers", "x")];
            let response = request("OPTIONS", "/symbolicate/v5", &headers).preflight();
            let response = response.unwrap();
            assert_eq!(names(response.headers()), Vec::<&str>::new(), "{origin}");
            assert_eq!(response.headers()["vary"], "origin");
        }
    }

    #[test]
    fn a_long_or_strange_list_of_headers_is_not_repeated() {
        let long = "x".repeat(MAX_LIST_BYTES + 1);
        for list in [long.as_str(), "a<b", "a\tb", "*", "a:b"] {
            let headers = [
                ("origin", PROFILER),
                ("access-control-request-headers", list),
            ];
            let response = request("OPTIONS", "/symbolicate/v5", &headers).preflight();
            let response = response.unwrap();
            assert!(
                !response
                    .headers()
                    .contains_key("access-control-allow-headers"),
                "{list}"
            );
        }
    }

    #[test]
    fn no_other_route_is_for_web_pages() {
        for path in [
            "/symbolicate",
            "/symbolicate/v4",
            "/symbolicate/v5/x",
            "/tokens",
            "/",
        ] {
            let headers = [("origin", PROFILER)];
            assert!(try_request("OPTIONS", path, &headers).is_none(), "{path}");
        }
    }
}
