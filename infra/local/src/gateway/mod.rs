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
//! Paths under `/_local/` are the stack's own ([`crate::control`]). The path goes to the function as it was sent. Requests
//! of web pages are refused ([`crate::guard`]): neither functions nor controls see them.

mod event;
mod response;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use event::Event;
pub(crate) use event::query_parameters;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use response::response;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::control::Control;
use crate::functions::{Functions, trace_id};
use crate::guard::Guard;

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
    /// What refuses the requests of web pages.
    pub guard: Guard,
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
        let port = match stream.local_addr() {
            Ok(address) => address.port(),
            Err(error) => {
                tracing::debug!(%error, "a connection broke off");
                continue;
            }
        };
        let gateway = gateway.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let gateway = gateway.clone();
                async move {
                    if let Err(refusal) = gateway.guard.check(port, &request) {
                        return Ok::<_, Infallible>(refusal.response());
                    }
                    let mut answer = gateway.answer(request, peer).await;
                    Guard::seal(answer.headers_mut());
                    Ok(answer)
                }
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
        if parts
            .uri
            .path()
            .strip_prefix("/_local")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        {
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
        let invoked =
            self.functions
                .invoke_as(function, payload, Uuid::new_v4().to_string(), trace_id);
        let Ok(answer) = tokio::time::timeout(self.timeout, invoked).await else {
            tracing::warn!(
                path = parts.uri.path(),
                "no answer within {:?}",
                self.timeout
            );
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

/// The whole body; `None` if it is over the limit.
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

/// The gateway's own answer.
fn message(status: StatusCode, text: &str) -> Answer {
    let body = serde_json::json!({ "message": text }).to_string();
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
