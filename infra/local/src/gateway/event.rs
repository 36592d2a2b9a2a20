//! The event of payload format 2.0 that a function receives for a request.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, COOKIE, HOST, HeaderValue, USER_AGENT};
use http::{HeaderMap, request};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use time::OffsetDateTime;

use crate::template::{DEFAULT_ROUTE, PATHS};
use crate::{dates, identity};

/// The event.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Event<'a> {
    version: &'static str,
    route_key: String,
    raw_path: Cow<'a, str>,
    raw_query_string: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cookies: Vec<String>,
    headers: BTreeMap<&'a str, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    query_string_parameters: BTreeMap<String, String>,
    request_context: Context<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    is_base64_encoded: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Context<'a> {
    account_id: &'static str,
    api_id: &'static str,
    domain_name: String,
    domain_prefix: String,
    http: Http<'a>,
    request_id: &'a str,
    route_key: String,
    stage: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    authorizer: Option<Authorizer>,
    time: String,
    time_epoch: u64,
}

/// What the authorizer of IAM found.
#[derive(Debug, Serialize)]
struct Authorizer {
    iam: Principal,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Principal {
    account_id: &'static str,
    user_arn: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Http<'a> {
    method: &'a str,
    path: Cow<'a, str>,
    protocol: &'static str,
    source_ip: String,
    user_agent: String,
}

impl<'a> Event<'a> {
    /// Returns the event of a request that a principal of the account has signed.
    pub(super) fn of_operator(mut self) -> Self {
        self.request_context.authorizer = Some(Authorizer {
            iam: Principal {
                account_id: identity::ACCOUNT,
                user_arn: format!("arn:aws:iam::{}:user/operator", identity::ACCOUNT),
            },
        });
        self
    }

    pub(super) fn new(
        parts: &'a request::Parts,
        body: &Bytes,
        peer: SocketAddr,
        request_id: &'a str,
        trace_id: &str,
    ) -> Self {
        // HTTP APIs decode the path; function URLs do not.
        let path = percent_decode_str(parts.uri.path()).decode_utf8_lossy();
        let query = parts.uri.query().unwrap_or_default();
        let host = parts.headers.get(HOST).map(lossy).unwrap_or_default();
        let name = host
            .rsplit_once(':')
            .map_or(host.as_str(), |(name, _)| name)
            .to_owned();
        let port = host
            .rsplit_once(':')
            .map_or("80", |(_, port)| port)
            .to_owned();
        let mut headers: BTreeMap<&str, String> = BTreeMap::new();
        for (key, value) in &parts.headers {
            if key == COOKIE {
                continue;
            }
            let value = lossy(value);
            headers
                .entry(key.as_str())
                .and_modify(|joined| {
                    joined.push(',');
                    joined.push_str(&value);
                })
                .or_insert(value);
        }
        headers.insert("x-amzn-trace-id", trace_id.to_owned());
        headers.insert("x-forwarded-for", peer.ip().to_string());
        headers.insert("x-forwarded-port", port);
        headers.insert("x-forwarded-proto", "http".to_owned());
        headers
            .entry("content-length")
            .or_insert_with(|| body.len().to_string());
        let cookies = parts
            .headers
            .get_all(COOKIE)
            .iter()
            .flat_map(|value| {
                lossy(value)
                    .split(';')
                    .map(|cookie| cookie.trim().to_owned())
                    .collect::<Vec<_>>()
            })
            .filter(|cookie| !cookie.is_empty())
            .collect();
        let now = OffsetDateTime::now_utc();
        let (body, is_base64_encoded) = text_or_base64(&parts.headers, body);
        let route_key = route_key(parts.uri.path());
        Self {
            version: "2.0",
            route_key: route_key.clone(),
            raw_path: path.clone(),
            raw_query_string: query,
            cookies,
            headers,
            query_string_parameters: query_parameters(query),
            request_context: Context {
                account_id: identity::ACCOUNT,
                api_id: "local",
                domain_prefix: name.split('.').next().unwrap_or_default().to_owned(),
                domain_name: name,
                http: Http {
                    method: parts.method.as_str(),
                    path,
                    protocol: "HTTP/1.1",
                    source_ip: peer.ip().to_string(),
                    user_agent: parts.headers.get(USER_AGENT).map(lossy).unwrap_or_default(),
                },
                request_id,
                route_key,
                stage: "$default",
                authorizer: None,
                time: dates::common_log(now),
                time_epoch: dates::epoch_millis(now),
            },
            body,
            is_base64_encoded,
        }
    }
}

/// Returns the key of the route of a path. A gateway compares the path as it was sent, without
/// decoding it. A segment in braces stands for any segment, and one with a plus for all that
/// follow.
fn route_key(path: &str) -> String {
    let sent: Vec<&str> = path.split('/').collect();
    let matches = |route: &&&str| {
        let mut left = sent.iter();
        let mut segments = route.split('/');
        let all = segments.all(|segment| match left.next() {
            None => false,
            Some(_) if segment.ends_with("+}") => {
                left.by_ref().for_each(drop);
                true
            }
            Some(sent) => segment.starts_with('{') || segment == *sent,
        });
        all && left.next().is_none()
    };
    match PATHS.iter().find(matches) {
        Some(route) => format!("ANY {route}"),
        None => DEFAULT_ROUTE.to_owned(),
    }
}

/// Returns the decoded query parameters; values of the same name are joined by commas.
pub(crate) fn query_parameters(query: &str) -> BTreeMap<String, String> {
    let decode = |text: &str| {
        percent_decode_str(&text.replace('+', " "))
            .decode_utf8_lossy()
            .into_owned()
    };
    let mut parameters: BTreeMap<String, String> = BTreeMap::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decode(value);
        parameters
            .entry(decode(name))
            .and_modify(|joined| {
                joined.push(',');
                joined.push_str(&value);
            })
            .or_insert(value);
    }
    parameters
}

/// Returns the body as in an event, and whether it is in base64. A body of a text type that is not
/// compressed is not.
fn text_or_base64(headers: &HeaderMap, body: &Bytes) -> (Option<String>, bool) {
    if body.is_empty() {
        return (None, false);
    }
    let content_type = headers
        .get(CONTENT_TYPE)
        .map(lossy)
        .unwrap_or_default()
        .to_ascii_lowercase();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let is_text = essence.starts_with("text/")
        || [
            "application/json",
            "application/javascript",
            "application/xml",
        ]
        .contains(&essence)
        || essence.ends_with("+json")
        || essence.ends_with("+xml");
    if is_text
        && !headers.contains_key(CONTENT_ENCODING)
        && let Ok(text) = std::str::from_utf8(body)
    {
        return (Some(text.to_owned()), false);
    }
    (Some(BASE64_STANDARD.encode(body)), true)
}

fn lossy(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

#[cfg(test)]
mod tests {
    use http::Request;
    use serde_json::Value;

    use super::*;

    fn parts(request: request::Builder) -> request::Parts {
        request.body(()).unwrap().into_parts().0
    }

    fn event(parts: &request::Parts, body: &str) -> Value {
        let body = Bytes::from(body.to_owned());
        let peer = SocketAddr::from(([127, 0, 0, 1], 50_000));
        serde_json::to_value(Event::new(parts, &body, peer, "id", "Root=1-2-3")).unwrap()
    }

    #[test]
    fn headers_of_one_name_are_joined_and_cookies_are_separate() {
        let parts = parts(
            Request::get("http://localhost/x")
                .header("Host", "localhost:3021")
                .header("X-Twice", "one")
                .header("X-Twice", "two")
                .header("Cookie", "a=1; b=2")
                .header("Cookie", "c=3"),
        );
        let event = event(&parts, "");
        assert_eq!(event["headers"]["x-twice"], "one,two");
        assert_eq!(event["cookies"], serde_json::json!(["a=1", "b=2", "c=3"]));
        assert!(event["headers"].get("cookie").is_none());
        assert_eq!(event["headers"]["x-forwarded-port"], "3021");
        assert_eq!(event["requestContext"]["domainName"], "localhost");
        assert!(event.get("body").is_none());
    }

    #[test]
    fn an_event_names_the_route_of_the_path_as_it_was_sent() {
        for (path, expected) in [
            ("/tokens", "ANY /tokens"),
            ("/tokens/a", "ANY /tokens/{id}"),
            ("/tokens/a/b", "$default"),
            ("/%74okens", "$default"),
            ("/rollout", "ANY /rollout"),
            ("/scope/a/b", "ANY /scope/{proxy+}"),
            ("/t", "$default"),
            ("/other", "$default"),
            ("/", "$default"),
        ] {
            assert_eq!(route_key(path), expected, "{path}");
        }
    }

    #[test]
    fn the_path_is_given_decoded_and_the_query_raw_and_decoded() {
        let event = event(&parts(Request::get("/a%20b?x=1&x=2&y=a+b%26c&z")), "");
        assert_eq!(event["rawPath"], "/a b");
        assert_eq!(event["requestContext"]["http"]["path"], "/a b");
        assert_eq!(event["rawQueryString"], "x=1&x=2&y=a+b%26c&z");
        assert_eq!(
            event["queryStringParameters"],
            serde_json::json!({ "x": "1,2", "y": "a b&c", "z": "" })
        );
        assert_eq!(event["version"], "2.0");
        assert_eq!(event["routeKey"], "$default");
    }

    #[test]
    fn text_stays_text_and_everything_else_becomes_base64() {
        let typed =
            |content_type: &str| parts(Request::post("/").header("content-type", content_type));
        let json = event(&typed("application/json; charset=utf-8"), "{}");
        assert_eq!(
            (json["body"].as_str(), json["isBase64Encoded"].as_bool()),
            (Some("{}"), Some(false))
        );
        for binary in [
            "application/octet-stream",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
        ] {
            let event = event(&typed(binary), "{}");
            assert_eq!(
                (event["body"].as_str(), event["isBase64Encoded"].as_bool()),
                (Some("e30="), Some(true))
            );
        }
        let compressed = Request::post("/")
            .header("content-type", "text/plain")
            .header("content-encoding", "gzip");
        assert_eq!(event(&parts(compressed), "{}")["isBase64Encoded"], true);
    }
}
