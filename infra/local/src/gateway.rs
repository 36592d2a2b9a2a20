//! API Gateway in front of the function that answers the HTTP API: a request becomes an event, the function's answer a response.
//!
//! Sources: API Gateway developer guide, "Working with AWS Lambda proxy integrations for HTTP APIs" (payload format 2.0) and
//! "Quotas for HTTP APIs". What is kept of them:
//!
//! - bodies over 10 MB, and events over Lambda's 6 MB, are answered 413; an answer takes at most 30 s, else 503;
//! - a function's error, a malformed answer and an answer over 6 MB are 500, without a word of what went wrong;
//! - request headers are lower case and joined by commas, cookies apart; bodies that are not text are in base64;
//! - `multiValueHeaders` of an answer has no effect in format 2.0.
//!
//! Paths under `/_local/` are the stack's own ([`crate::control`]). The path goes to the function as it was sent.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, COOKIE, HOST, HeaderName, HeaderValue, SET_COOKIE, USER_AGENT};
use http::{HeaderMap, Request, Response, StatusCode, request};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::control::Control;
use crate::functions::calendar::Moment;
use crate::functions::{Functions, trace_id};
use crate::identity;

/// Most bytes of a request's body.
pub const MAX_BODY: usize = 10 * 1024 * 1024;

/// Most bytes of a response's body.
pub const MAX_RESPONSE: usize = 6 * 1024 * 1024;

/// How long a function may take to answer.
pub const INTEGRATION_TIMEOUT: Duration = Duration::from_secs(30);

/// A body over the limit is read to this point, so that its sender gets to read the answer.
const MAX_DRAINED: usize = 1024 * 1024 * 1024;

type Answer = Response<Full<Bytes>>;

/// The gateway: which function answers, and the controls.
#[derive(Clone, Debug)]
pub struct Gateway {
    /// The functions.
    pub functions: Functions,
    /// The one that answers the HTTP API; without it every path is 404.
    pub function: Option<String>,
    /// What answers under `/_local/`.
    pub control: Control,
    /// [`INTEGRATION_TIMEOUT`], unless a test has less patience.
    pub timeout: Duration,
}

/// Serves `listener` until `shutdown`.
pub async fn serve(listener: TcpListener, gateway: Gateway, shutdown: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => return,
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let gateway = gateway.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let gateway = gateway.clone();
                async move { Ok::<_, Infallible>(gateway.answer(request, peer).await) }
            });
            let _ = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

impl Gateway {
    async fn answer(&self, request: Request<Incoming>, peer: SocketAddr) -> Answer {
        let (parts, body) = request.into_parts();
        if parts.uri.path().strip_prefix("/_local").is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
            return self.control.answer(&parts).await;
        }
        let Some(function) = &self.function else {
            return message(StatusCode::NOT_FOUND, "Not Found");
        };
        let body = match collect(body).await {
            Ok(Some(body)) => body,
            Ok(None) => return message(StatusCode::PAYLOAD_TOO_LARGE, "Request Entity Too Large"),
            Err(error) => {
                tracing::debug!(%error, "a request ended in the middle");
                return message(StatusCode::BAD_REQUEST, "Bad Request");
            }
        };
        let request_id = Uuid::new_v4().to_string();
        let trace_id = trace_id();
        let event = Event::new(&parts, &body, peer, &request_id, &trace_id);
        let payload = match serde_json::to_vec(&event) {
            Ok(payload) => Bytes::from(payload),
            Err(error) => {
                tracing::error!(%error, "cannot write an event");
                return message(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error");
            }
        };
        let invoked = self.functions.invoke_as(function, payload, Uuid::new_v4().to_string(), trace_id);
        let Ok(answer) = tokio::time::timeout(self.timeout, invoked).await else {
            tracing::warn!(path = parts.uri.path(), "no answer within {:?}", self.timeout);
            return message(StatusCode::SERVICE_UNAVAILABLE, "Service Unavailable");
        };
        let mut response = match answer.outcome {
            Ok(bytes) => response(&bytes).unwrap_or_else(|error| {
                tracing::warn!(request_id = %answer.request_id, "the function's answer is no response: {error}");
                message(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error")
            }),
            Err(error) if error.is_event_too_large() => {
                message(StatusCode::PAYLOAD_TOO_LARGE, "Request Entity Too Large")
            }
            Err(_) => message(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error"),
        };
        if let Ok(id) = HeaderValue::from_str(&request_id) {
            response.headers_mut().insert("apigw-requestid", id);
        }
        response
    }
}

/// A request as a function gets it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Event<'a> {
    version: &'static str,
    route_key: &'static str,
    raw_path: &'a str,
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
    route_key: &'static str,
    stage: &'static str,
    time: String,
    time_epoch: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Http<'a> {
    method: &'a str,
    path: &'a str,
    protocol: &'static str,
    source_ip: String,
    user_agent: String,
}

impl<'a> Event<'a> {
    fn new(
        parts: &'a request::Parts,
        body: &Bytes,
        peer: SocketAddr,
        request_id: &'a str,
        trace_id: &str,
    ) -> Self {
        let query = parts.uri.query().unwrap_or_default();
        let host = parts.headers.get(HOST).map(lossy).unwrap_or_default();
        let name = host.rsplit_once(':').map_or(host.as_str(), |(name, _)| name).to_owned();
        let port = host.rsplit_once(':').map_or("80", |(_, port)| port).to_owned();
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
        headers.entry("content-length").or_insert_with(|| body.len().to_string());
        let cookies = parts
            .headers
            .get_all(COOKIE)
            .iter()
            .flat_map(|value| lossy(value).split(';').map(|cookie| cookie.trim().to_owned()).collect::<Vec<_>>())
            .filter(|cookie| !cookie.is_empty())
            .collect();
        let now = Moment::now();
        let (body, is_base64_encoded) = text_or_base64(&parts.headers, body);
        Self {
            version: "2.0",
            route_key: "$default",
            raw_path: parts.uri.path(),
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
                    path: parts.uri.path(),
                    protocol: "HTTP/1.1",
                    source_ip: peer.ip().to_string(),
                    user_agent: parts.headers.get(USER_AGENT).map(lossy).unwrap_or_default(),
                },
                request_id,
                route_key: "$default",
                stage: "$default",
                time: now.common_log(),
                time_epoch: now.millis(),
            },
            body,
            is_base64_encoded,
        }
    }
}

/// Decoded parameters; values of the same name are joined by commas.
pub(crate) fn query_parameters(query: &str) -> BTreeMap<String, String> {
    let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
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

/// The body as an event has it, and whether it is in base64: it is not if its type is text and it is not compressed.
fn text_or_base64(headers: &HeaderMap, body: &Bytes) -> (Option<String>, bool) {
    if body.is_empty() {
        return (None, false);
    }
    let content_type = headers.get(CONTENT_TYPE).map(lossy).unwrap_or_default().to_ascii_lowercase();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let is_text = essence.starts_with("text/")
        || ["application/json", "application/javascript", "application/xml"].contains(&essence)
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

/// A function's answer in format 2.0.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FunctionResponse {
    status_code: u16,
    #[serde(default)]
    headers: Option<BTreeMap<String, Value>>,
    #[serde(default)]
    cookies: Option<Vec<String>>,
    #[serde(default)]
    body: Option<String>,
    #[serde(default)]
    is_base64_encoded: Option<bool>,
}

/// The response that a function's answer stands for. Valid JSON without a status code is itself the body of a 200.
fn response(answer: &Bytes) -> Result<Answer, String> {
    // Parsed straight into its shape: a large body in a generic value would be copied twice.
    let parsed: FunctionResponse = match serde_json::from_slice(answer) {
        Ok(parsed) => parsed,
        Err(_) => {
            let value: Value = serde_json::from_slice(answer).map_err(|error| format!("not JSON: {error}"))?;
            if value.get("statusCode").is_some() {
                return Err("its fields do not have the types of payload format 2.0".to_owned());
            }
            let mut response = Response::new(Full::new(answer.clone()));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            return Ok(response);
        }
    };
    let status = StatusCode::from_u16(parsed.status_code)
        .ok()
        .filter(|status| !status.is_informational())
        .ok_or_else(|| format!("{} is no status", parsed.status_code))?;
    let body = parsed.body.unwrap_or_default();
    let body = if parsed.is_base64_encoded.unwrap_or(false) {
        Bytes::from(BASE64_STANDARD.decode(&body).map_err(|error| format!("its body is not base64: {error}"))?)
    } else {
        Bytes::from(body)
    };
    if body.len() > MAX_RESPONSE {
        return Err(format!("its body has {} bytes, more than {MAX_RESPONSE}", body.len()));
    }
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    for (name, value) in parsed.headers.unwrap_or_default() {
        let text = match value {
            Value::String(text) => text,
            Value::Number(number) => number.to_string(),
            Value::Bool(value) => value.to_string(),
            other => return Err(format!("header {name} is {other}")),
        };
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("{name:?} is no header name"))?;
        if is_of_the_connection(&name) {
            continue;
        }
        let value = HeaderValue::from_str(&text).map_err(|_| format!("header {name} has the bad value {text:?}"))?;
        headers.append(name, value);
    }
    for cookie in parsed.cookies.unwrap_or_default() {
        let value = HeaderValue::from_str(&cookie).map_err(|_| format!("{cookie:?} is no cookie"))?;
        headers.append(SET_COOKIE, value);
    }
    headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("text/plain;charset=UTF-8"));
    Ok(response)
}

/// Headers that are not the function's to set.
fn is_of_the_connection(name: &HeaderName) -> bool {
    ["connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"]
        .contains(&name.as_str())
}

/// The whole body; `None` if it is over the limit.
async fn collect(mut body: Incoming) -> Result<Option<Bytes>, hyper::Error> {
    let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut collected = BytesMut::with_capacity(declared.min(MAX_BODY));
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        length += data.len();
        if length > MAX_DRAINED {
            break;
        }
        if length <= MAX_BODY {
            collected.extend_from_slice(&data);
        }
    }
    Ok((length <= MAX_BODY).then(|| collected.freeze()))
}

/// The gateway's own answer.
fn message(status: StatusCode, text: &str) -> Answer {
    let body = serde_json::json!({ "message": text }).to_string();
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn lossy(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

#[cfg(test)]
mod tests {
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
    fn headers_of_one_name_are_joined_and_cookies_stand_apart() {
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
    fn the_query_is_given_raw_and_decoded() {
        let event = event(&parts(Request::get("/a%20b?x=1&x=2&y=a+b%26c&z")), "");
        assert_eq!(event["rawPath"], "/a%20b");
        assert_eq!(event["rawQueryString"], "x=1&x=2&y=a+b%26c&z");
        assert_eq!(event["queryStringParameters"], serde_json::json!({ "x": "1,2", "y": "a b&c", "z": "" }));
        assert_eq!(event["version"], "2.0");
        assert_eq!(event["routeKey"], "$default");
    }

    #[test]
    fn text_stays_text_and_everything_else_becomes_base64() {
        let typed = |content_type: &str| parts(Request::post("/").header("content-type", content_type));
        let json = event(&typed("application/json; charset=utf-8"), "{}");
        assert_eq!((json["body"].as_str(), json["isBase64Encoded"].as_bool()), (Some("{}"), Some(false)));
        for binary in ["application/octet-stream", "application/x-www-form-urlencoded", "multipart/form-data"] {
            let event = event(&typed(binary), "{}");
            assert_eq!((event["body"].as_str(), event["isBase64Encoded"].as_bool()), (Some("e30="), Some(true)));
        }
        let compressed = Request::post("/").header("content-type", "text/plain").header("content-encoding", "gzip");
        assert_eq!(event(&parts(compressed), "{}")["isBase64Encoded"], true);
    }

    fn answer(json: &str) -> Result<Answer, String> {
        response(&Bytes::from(json.to_owned()))
    }

    #[test]
    fn an_answer_sets_status_headers_and_cookies() {
        let json = r#"{"statusCode":201,"headers":{"X-A":"b","X-N":7,"Connection":"close"},"cookies":["a=1","b=2"],"body":"hi"}"#;
        let response = answer(json).unwrap();
        assert_eq!(response.status(), 201);
        assert_eq!(response.headers()["x-a"], "b");
        assert_eq!(response.headers()["x-n"], "7");
        assert!(!response.headers().contains_key("connection"));
        assert_eq!(response.headers()["content-type"], "text/plain;charset=UTF-8");
        assert_eq!(response.headers().get_all("set-cookie").iter().count(), 2);
    }

    #[test]
    fn json_without_a_status_is_the_body_of_a_200() {
        let response = answer(r#"{"hello":[1]}"#).unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "application/json");
    }

    #[test]
    fn answers_that_are_no_response_say_why() {
        assert!(answer("nonsense").unwrap_err().contains("not JSON"));
        assert!(answer(r#"{"statusCode":42}"#).unwrap_err().contains("42 is no status"));
        assert!(answer(r#"{"statusCode":200,"body":5}"#).unwrap_err().contains("types"));
        let not_base64 = r#"{"statusCode":200,"body":"%%","isBase64Encoded":true}"#;
        assert!(answer(not_base64).unwrap_err().contains("not base64"));
        let long = format!(r#"{{"statusCode":200,"body":"{}"}}"#, "x".repeat(MAX_RESPONSE + 1));
        assert!(answer(&long).unwrap_err().contains("more than"));
    }
}
