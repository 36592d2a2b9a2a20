//! The guard of every port: it refuses requests that a browser sends on behalf of a web page.
//!
//! The stack listens on the loopback interface, and its keys are public. A browser on the same
//! machine can reach it for every page that a developer visits. The guard therefore checks the
//! headers that a browser sets and that a page cannot change:
//!
//! - `Host`. A page whose name resolves to 127.0.0.1 (DNS rebinding) sends this name. The request
//!   is refused with 421 unless the name is a loopback name with the port of the connection, or one
//!   that the stack was started with.
//! - `Origin`. It names the page of another site, or of another port of this machine: 403. Requests
//!   of the gateway's own origin are allowed on all ports.
//! - `Sec-Fetch-Site`, if there is no `Origin`, as with images and frames: 403 if the page is of
//!   another site, unless the user follows a link.
//! - `OPTIONS` with `Access-Control-Request-Method`: a CORS preflight, by which a browser asks
//!   whether a page may send more than a form can: 403.
//!
//! `Guard::strip_cors` removes all `Access-Control-*` headers from a response, so that no page of
//! another origin can read it. Command-line tools and SDKs send none of these headers except a
//! loopback `Host`.
//!
//! There is one exception: a template may name pages that call one path of its HTTP API
//! ([`WebPages`]). Pages of this machine may call it, too, from any port. The function decides what
//! these pages may read.
//!
//! Sources: RFC 9110, sections 7.2 (`Host`) and 15.5.20 (421); WHATWG Fetch, sections "`Origin`
//! header" and "HTTP CORS protocol"; W3C Fetch Metadata Request Headers, section 2.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::Authority;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;

use crate::template::WebPages;

/// The names of the loopback interface.
const LOOPBACK: [&str; 3] = ["127.0.0.1", "localhost", "[::1]"];

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Refuses requests of web pages. Clones share the same settings.
///
/// The default guard accepts the loopback names only, and no page.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    names: Arc<[HostName]>,
    gateway: Option<u16>,
    pages: Option<Arc<WebPages>>,
}

/// A host name under which a stack answers, in addition to those of the loopback interface:
/// `devbox.example`, `[fd00::5]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(String);

/// The error for a text that is not a host name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a host name; expected a name or an address without scheme, port and path")]
pub struct InvalidHostName(String);

impl std::str::FromStr for HostName {
    type Err = InvalidHostName;

    fn from_str(text: &str) -> Result<Self, InvalidHostName> {
        let parsed = text.parse::<Authority>();
        match parsed {
            Ok(authority) if authority.host() == text && !text.is_empty() => {
                Ok(Self(text.to_ascii_lowercase()))
            }
            _ => Err(InvalidHostName(text.to_owned())),
        }
    }
}

impl Guard {
    /// Returns the guard of a stack that also answers under `names`, whose gateway listens on port
    /// `gateway`, and whose HTTP API these pages may call.
    pub fn new(names: &[HostName], gateway: u16, pages: Option<WebPages>) -> Self {
        Self {
            names: names.into(),
            gateway: Some(gateway),
            pages: pages.map(Arc::new),
        }
    }

    /// Refuses a request on `port` that a web page may have sent.
    pub(crate) fn check<B>(&self, port: u16, request: &Request<B>) -> Result<(), Refusal> {
        let headers = request.headers();
        let host = self.host(port, request)?;
        if self.is_for_page(port, request) {
            return Ok(());
        }
        let is_preflight = *request.method() == Method::OPTIONS
            && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        if is_preflight {
            return Err(Refusal::foreign(
                "refused a CORS preflight: a web page of another origin may not send requests to the local stack",
            ));
        }
        let mut origins = headers.get_all(header::ORIGIN).iter().peekable();
        if origins.peek().is_none() {
            return if is_foreign_part(request.method(), headers) {
                let message = "refused: the request is for a part of another site's web page (Sec-Fetch-Site)";
                Err(Refusal::foreign(message))
            } else {
                Ok(())
            };
        }
        for origin in origins {
            if !self.is_own(port, &host, origin) {
                let message = format!(
                    "refused: the request is from a web page of the origin {}; only the gateway's own origin may send requests",
                    String::from_utf8_lossy(origin.as_bytes())
                );
                return Err(Refusal::foreign(message));
            }
        }
        Ok(())
    }

    /// Returns whether a web page may send a request and read the response, if the function lets
    /// it: a page that the template names, or one of this machine, on their path of the gateway.
    pub(crate) fn is_for_page<B>(&self, port: u16, request: &Request<B>) -> bool {
        let mut origins = request.headers().get_all(header::ORIGIN).iter();
        let (Some(origin), None) = (origins.next(), origins.next()) else {
            return false;
        };
        let Some(pages) = self.pages.as_ref().filter(|_| self.gateway == Some(port)) else {
            return false;
        };
        let is_allowed = |origin: &str| {
            let named = pages.origins.iter().any(|page| page == origin);
            named || is_of_this_machine(origin)
        };
        request.uri().path().ends_with(&pages.path) && origin.to_str().is_ok_and(is_allowed)
    }

    /// Returns the host of a request. Fails if it is not a name of this stack.
    fn host<B>(&self, port: u16, request: &Request<B>) -> Result<Authority, Refusal> {
        let misdirected = |host: &str| {
            Refusal::misdirected(format!(
                "refused: the request is for host {host:?}, but this is 127.0.0.1:{port}. Use 127.0.0.1:{port} or \
                 localhost:{port} (in S3, with the bucket in the path), or start the stack with --host-name and the host's name"
            ))
        };
        let mut values = request.headers().get_all(header::HOST).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return Err(misdirected(""));
        };
        let text = String::from_utf8_lossy(value.as_bytes());
        let host = text.parse::<Authority>().map_err(|_| misdirected(&text))?;
        if !self.is_here(port, &host) {
            return Err(misdirected(&text));
        }
        // An authority in the request target would take precedence over `Host`.
        match request.uri().authority() {
            Some(other) if !self.is_here(port, other) => Err(misdirected(other.as_str())),
            _ => Ok(host),
        }
    }

    /// Returns whether an authority names this machine and `port`, or is a name that the stack was
    /// started with. Such a name may have any port, because a tunnel or a proxy has a port of its
    /// own.
    fn is_here(&self, port: u16, authority: &Authority) -> bool {
        let name = authority.host();
        if authority.as_str().contains('@') {
            return false;
        }
        let is_ours = authority.port_u16().unwrap_or(80) == port && is_loopback(name);
        is_ours
            || self
                .names
                .iter()
                .any(|known| known.0.eq_ignore_ascii_case(name))
    }

    /// Returns whether an origin is the gateway's.
    fn is_own(&self, port: u16, host: &Authority, origin: &HeaderValue) -> bool {
        let Some(gateway) = self.gateway else {
            return false;
        };
        let Ok(origin) = origin.to_str() else {
            return false;
        };
        let Some((scheme, authority)) = origin.split_once("://") else {
            return false;
        };
        // Under a name of its own, a proxy in front of the stack may terminate TLS.
        if port == gateway && authority.eq_ignore_ascii_case(host.as_str()) {
            return matches!(scheme, "http" | "https");
        }
        let Ok(authority) = authority.parse::<Authority>() else {
            return false;
        };
        scheme == "http"
            && is_loopback(authority.host())
            && authority.port_u16().unwrap_or(80) == gateway
    }

    /// Removes the headers of a response that would let pages of other origins read it.
    pub(crate) fn strip_cors(headers: &mut HeaderMap) {
        let names: Vec<HeaderName> = headers
            .keys()
            .filter(|name| name.as_str().starts_with("access-control-"))
            .cloned()
            .collect();
        for name in names {
            headers.remove(name);
        }
    }
}

fn is_loopback(name: &str) -> bool {
    LOOPBACK
        .iter()
        .any(|loopback| loopback.eq_ignore_ascii_case(name))
}

/// Returns whether an origin is that of a page on this machine, from any port.
fn is_of_this_machine(origin: &str) -> bool {
    let local = origin.strip_prefix("http://");
    let local = local.and_then(|authority| authority.parse::<Authority>().ok());
    let is_local = |authority: Authority| {
        let name = authority.host();
        matches!(name, "localhost" | "127.0.0.1") && !authority.as_str().contains('@')
    };
    local.is_some_and(is_local)
}

/// Returns whether a request without an `Origin` loads a part of another site's page. A link that
/// the user follows does not.
fn is_foreign_part(method: &Method, headers: &HeaderMap) -> bool {
    let is = |name: &HeaderName, value: &str| headers.get(name).is_some_and(|is| is == value);
    match headers.get(&SEC_FETCH_SITE) {
        None => false,
        Some(site) if site == "none" || site == "same-origin" => false,
        Some(_) => {
            let is_followed = matches!(*method, Method::GET | Method::HEAD)
                && is(&SEC_FETCH_MODE, "navigate")
                && is(&SEC_FETCH_DEST, "document");
            !is_followed
        }
    }
}

/// A refused request: the status and the message of its response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    status: StatusCode,
    message: String,
}

impl Refusal {
    fn foreign(message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::FORBIDDEN,
            message: message.into(),
        }
    }

    fn misdirected(message: String) -> Self {
        Self {
            status: StatusCode::MISDIRECTED_REQUEST,
            message,
        }
    }

    /// Returns the response: JSON with a `message`, which the SDKs of DynamoDB and SQS show.
    pub(crate) fn response(&self) -> Response<Full<Bytes>> {
        tracing::warn!(status = self.status.as_u16(), reason = %self.message, "request refused");
        let body = serde_json::json!({ "message": self.message }).to_string();
        let mut response = Response::new(Full::new(Bytes::from(body)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        // The request's body is not read.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        response
    }
}

#[cfg(test)]
mod tests {
    /// The origin of a page.
    const PAGE: &str = "https://pages.example";

    use super::*;

    fn get(headers: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::get("/");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    fn status(guard: &Guard, port: u16, headers: &[(&str, &str)]) -> u16 {
        match guard.check(port, &get(headers)) {
            Ok(()) => 200,
            Err(refusal) => refusal.status.as_u16(),
        }
    }

    #[test]
    fn a_host_name_that_the_stack_was_started_with_is_accepted_at_every_port() {
        let guard = Guard::new(&["devbox.example".parse().unwrap()], 3021, None);
        for (host, origin, expected) in [
            ("devbox.example", None, 200),
            ("DevBox.example:8443", None, 200),
            (
                "devbox.example:8443",
                Some("https://devbox.example:8443"),
                200,
            ),
            (
                "devbox.example:8443",
                Some("https://devbox.example:9000"),
                403,
            ),
            (
                "devbox.example:8443",
                Some("ftp://devbox.example:8443"),
                403,
            ),
            ("other.devbox.example", None, 421),
            ("127.0.0.1:3021", Some("http://localhost:3021"), 200),
            ("127.0.0.1:3021", Some("https://localhost:3021"), 403),
        ] {
            let mut headers = vec![("host", host)];
            headers.extend(origin.map(|origin| ("origin", origin)));
            assert_eq!(
                status(&guard, 3021, &headers),
                expected,
                "{host} {origin:?}"
            );
        }
        // The other ports serve no pages.
        let headers = [
            ("host", "devbox.example:8444"),
            ("origin", "https://devbox.example:8444"),
        ];
        assert_eq!(status(&guard, 3022, &headers), 403);
    }

    #[test]
    fn pages_of_the_template_and_of_this_machine_may_call_one_path_of_the_gateway_alone() {
        let pages = WebPages {
            path: "/names/v5".to_owned(),
            origins: vec![PAGE.to_owned()],
        };
        let guard = Guard::new(&[], 3021, Some(pages));
        let send = |path: &str, port: u16, origin: &str, is_preflight: bool| {
            let host = format!("127.0.0.1:{port}");
            let mut headers = vec![("host", host.as_str()), ("origin", origin)];
            if is_preflight {
                headers.push(("access-control-request-method", "POST"));
            }
            let mut request = get(&headers);
            *request.uri_mut() = path.parse().unwrap();
            if is_preflight {
                *request.method_mut() = Method::OPTIONS;
            }
            let is_for_page = guard.is_for_page(port, &request);
            let is_accepted = guard.check(port, &request).is_ok();
            assert_eq!(is_for_page, is_accepted, "{path} {port} {origin}");
            is_accepted
        };
        for is_preflight in [false, true] {
            for origin in [PAGE, "http://localhost:4242", "http://127.0.0.1:3022"] {
                for path in ["/names/v5", "/scope/acme/names/v5"] {
                    assert!(send(path, 3021, origin, is_preflight), "{origin} {path}");
                    assert!(!send(path, 3022, origin, is_preflight), "{origin} {path}");
                }
                for path in ["/names", "/names/v5/x", "/x?/names/v5", "/"] {
                    assert!(!send(path, 3021, origin, is_preflight), "{origin} {path}");
                }
            }
            for origin in [
                "null",
                "http://pages.example",
                "https://pages.example.evil.example",
                "https://localhost",
                "http://localhost.evil.example",
                "http://localhost:80@evil.example",
                "http://localhost@127.0.0.1",
                "http://127.0.0.1.evil.example",
            ] {
                assert!(!send("/names/v5", 3021, origin, is_preflight), "{origin}");
            }
        }
        // The host is that of the stack, whatever the origin is.
        let rebound = [("host", "evil.example:3021"), ("origin", PAGE)];
        let mut request = get(&rebound);
        *request.uri_mut() = "/names/v5".parse().unwrap();
        let refusal = guard.check(3021, &request).unwrap_err();
        assert_eq!(refusal.status, StatusCode::MISDIRECTED_REQUEST);
    }

    #[test]
    fn the_target_of_a_request_may_not_name_another_host_than_its_header() {
        let guard = Guard::default();
        let mut request = get(&[("host", "127.0.0.1:3022")]);
        *request.uri_mut() = "http://evil.example:3022/".parse().unwrap();
        let refusal = guard.check(3022, &request).unwrap_err();
        assert_eq!(refusal.status, StatusCode::MISDIRECTED_REQUEST);
        *request.uri_mut() = "http://localhost:3022/".parse().unwrap();
        assert_eq!(guard.check(3022, &request), Ok(()));
    }

    #[test]
    fn a_host_name_has_no_scheme_port_or_path() {
        for name in ["devbox.example", "10.0.0.7", "[fd00::5]"] {
            assert!(name.parse::<HostName>().is_ok(), "{name}");
        }
        for text in [
            "",
            "http://devbox",
            "devbox:3021",
            "me@devbox",
            "dev/box",
            "a b",
        ] {
            assert!(text.parse::<HostName>().is_err(), "{text}");
        }
    }
}
