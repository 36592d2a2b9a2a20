//! API Gateway in front of the function of the HTTP API: it turns a request into an event, and the
//! function's result into a response.
//!
//! Sources: API Gateway developer guide, "Working with AWS Lambda proxy integrations for HTTP APIs"
//! (payload format 2.0) and "Quotas for HTTP APIs". The gateway imitates:
//!
//! - a request target that is not a path or an address is answered with 400;
//! - a request line and headers over 10,240 bytes together are answered with 431;
//! - bodies over 10 MB and events over Lambda's 6 MB are answered with 413; a response that takes
//!   longer than 30 s is replaced by 503;
//! - a function's error, a malformed result and a result over 6 MB are answered with 500 and
//!   without details;
//! - names of request headers are lower case, values of one name are joined by commas, and cookies
//!   are separate; bodies that are not text are in base64;
//! - `multiValueHeaders` of a result has no effect in format 2.0.
//!
//! The authorizers of the template are not imitated: no request is refused here for its credential,
//! except for a wrong value of the header [`OPERATOR_HEADER`]. With the right value, a request is
//! passed on as one whose signature AWS has verified.
//!
//! One thing is deliberately different: AWS decodes an encoded slash (`%2F`) before it passes the
//! path on, so that a function cannot tell a name with a slash from two names. Such a path is
//! answered with 404 here, so that the fault of its client is noticed before it is used with AWS.
//!
//! Paths under `/_local/` are the stack's own ([`crate::control`]). Requests of web pages are
//! refused ([`crate::guard`]) before they reach functions or controls.

mod event;
mod response;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use event::Event;
pub(crate) use event::query_parameters;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode, request};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use response::response;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::response::Answer;
use crate::connections::{Connection, accept};
use crate::control::Control;
use crate::functions::{Functions, trace_id};
use crate::guard::Guard;

/// The header of requests of the operator. AWS verifies a signature instead.
pub const OPERATOR_HEADER: &str = "x-local-operator";

/// The response to a request with another key than that of this stack.
const OTHER_KEY: &str = "the operator key is not that of this stack, which has another one after each start: read it again in stack.json in its data folder";

/// The maximum size of the request line and the headers together.
///
/// AWS does not document the response; clients have reported 431. Its documents speak of the values
/// of headers; here, their names count, too.
const MAX_HEAD: usize = 10_240;

/// The maximum size of a request's body.
const MAX_BODY: usize = 10 * 1024 * 1024;

/// The timeout of a function's response.
pub const INTEGRATION_TIMEOUT: Duration = Duration::from_secs(30);

/// A body over the limit is read up to this size, so that its sender can receive the response.
const MAX_DRAINED: usize = 1024 * 1024 * 1024;

/// The configuration of the gateway.
#[derive(Clone, Debug)]
pub struct Gateway {
    /// The functions.
    pub functions: Functions,
    /// The function of the HTTP API; without it every path is 404.
    pub function: Option<String>,
    /// Serves the paths under `/_local/`.
    pub control: Control,
    /// Refuses requests of web pages.
    pub guard: Guard,
    /// The value of the header [`OPERATOR_HEADER`] in requests of the operator.
    pub operator_key: String,
    /// [`INTEGRATION_TIMEOUT`]; tests may use a shorter one.
    pub timeout: Duration,
}

/// Serves `listener` until `shutdown`.
pub async fn serve(listener: TcpListener, gateway: Gateway, shutdown: CancellationToken) {
    accept(
        listener,
        shutdown.cancelled_owned(),
        |Connection { stream, port, peer }| {
            let gateway = gateway.clone();
            let service = service_fn(move |request| {
                let gateway = gateway.clone();
                async move {
                    if let Err(refusal) = gateway.guard.check(port, &request) {
                        return Ok::<_, Infallible>(refusal.response());
                    }
                    let is_for_page = gateway.guard.is_for_page(port, &request);
                    let mut answer = gateway.answer(request, peer).await;
                    if !is_for_page {
                        Guard::strip_cors(answer.headers_mut());
                    }
                    Ok(answer)
                }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service);
            async move {
                let _ = connection.await;
            }
        },
    )
    .await;
}

impl Gateway {
    async fn answer(&self, request: Request<Incoming>, peer: SocketAddr) -> Answer {
        let (mut parts, body) = request.into_parts();
        // `OPTIONS *` and `CONNECT host:port` have no path, so no event can be made of them.
        if !parts.uri.path().starts_with('/') {
            return message(StatusCode::BAD_REQUEST, "Bad Request");
        }
        let is_operator = match parts.headers.remove(OPERATOR_HEADER) {
            None => false,
            Some(key) if key.as_bytes() == self.operator_key.as_bytes() => true,
            // Each start has another key.
            Some(_) => return message(StatusCode::UNAUTHORIZED, OTHER_KEY),
        };
        if parts
            .uri
            .path()
            .strip_prefix("/_local")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        {
            return self.control.answer(&parts).await;
        }
        if head_bytes(&parts) > MAX_HEAD {
            let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            return message(status, "Request Header Fields Too Large");
        }
        if has_encoded_slash(parts.uri.path()) {
            let text = "The path has an encoded slash (%2F), and no segment of a path contains one";
            return message(StatusCode::NOT_FOUND, text);
        }
        let Some(function) = &self.function else {
            return message(StatusCode::NOT_FOUND, "Not Found");
        };
        let body = match collect(body).await {
            Ok(Some(body)) => body,
            Ok(None) => return message(StatusCode::PAYLOAD_TOO_LARGE, "Request Entity Too Large"),
            Err(error) => {
                tracing::debug!(%error, "request body ended early");
                return message(StatusCode::BAD_REQUEST, "Bad Request");
            }
        };
        let request_id = Uuid::new_v4().to_string();
        let trace_id = trace_id();
        let mut event = Event::new(&parts, &body, peer, &request_id, &trace_id);
        if is_operator {
            event = event.of_operator();
        }
        let payload = match serde_json::to_vec(&event) {
            Ok(payload) => Bytes::from(payload),
            Err(error) => {
                tracing::error!(%error, "cannot serialize event");
                return message(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error");
            }
        };
        let invoked =
            self.functions
                .invoke_as(function, payload, Uuid::new_v4().to_string(), trace_id);
        let Ok(answer) = tokio::time::timeout(self.timeout, invoked).await else {
            // The path may have an access token.
            tracing::warn!(
                method = %parts.method,
                timeout = ?self.timeout,
                "function did not respond in time"
            );
            return message(StatusCode::SERVICE_UNAVAILABLE, "Service Unavailable");
        };
        let mut response = match answer.outcome {
            Ok(bytes) => response(&bytes).unwrap_or_else(|error| {
                tracing::warn!(request_id = %answer.request_id, %error, "invalid function response");
                message(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error")
            }),
            Err(error) if error.is_event_too_large() => {
                message(StatusCode::PAYLOAD_TOO_LARGE, "Request Entity Too Large")
            }
            Err(error) if error.is_throttled() => {
                message(StatusCode::SERVICE_UNAVAILABLE, "Service Unavailable")
            }
            Err(_) => message(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error"),
        };
        if let Ok(id) = HeaderValue::from_str(&request_id) {
            response.headers_mut().insert("apigw-requestid", id);
        }
        response
    }
}

/// Returns the size of the request line, and of the names and values of the headers, in bytes.
fn head_bytes(parts: &request::Parts) -> usize {
    let target = parts.uri.path_and_query().map_or(0, |it| it.as_str().len());
    let line = parts.method.as_str().len() + target + "  HTTP/1.1".len();
    let headers = parts.headers.iter();
    line + headers
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum::<usize>()
}

fn has_encoded_slash(path: &str) -> bool {
    path.to_ascii_lowercase().contains("%2f")
}

/// Returns the whole body; `None` if it is over the limit.
async fn collect(mut body: Incoming) -> Result<Option<Bytes>, hyper::Error> {
    let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut collected = BytesMut::with_capacity(declared.min(MAX_BODY));
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
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

/// Returns a response of the gateway itself.
fn message(status: StatusCode, text: &str) -> Answer {
    let body = serde_json::json!({ "message": text }).to_string();
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
