//! Serves a request, from the event of the gateway to the reply: it is let in (`door.rs`), the
//! router chooses the function of its route (`routes.rs`), and the log and the trace say what
//! became of it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use lambda_http::aws_lambda_events::apigw::ApiGatewayV2httpResponse;
use lambda_http::lambda_runtime::Diagnostic;
use serde::Serialize;
use serde_json::value::RawValue;
use symdepot::api::caller::Caller;
use symdepot::flows::{Invocation, Symbolicator};
use symdepot::runtime::Traces;
use tower::ServiceExt;
use tracing::Instrument;

use crate::summary::{self, RequestFacts, ResponseFacts};
use crate::{door, path, routes};

/// The service, with its routes.
pub(crate) struct Service {
    symbolicator: Arc<Symbolicator>,
    router: Router,
}

impl Service {
    pub(crate) fn new(symbolicator: Symbolicator) -> Self {
        let symbolicator = Arc::new(symbolicator);
        Self {
            router: routes::router(Arc::clone(&symbolicator)),
            symbolicator,
        }
    }
}

/// A handler panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Panicked;

impl From<Panicked> for Diagnostic {
    /// Does not repeat the message of the panic, which may quote a file.
    fn from(Panicked: Panicked) -> Self {
        Self {
            error_type: "Panic".to_owned(),
            error_message: "the handler panicked; the log says where (`panicked`)".to_owned(),
        }
    }
}

/// Serves one request, in a span with the invocation's id.
///
/// # Errors
///
/// [`Panicked`]: the invocation is an error, so that alarms and deployments see it. The gateway
/// responds with 500.
pub(crate) async fn handle(
    service: &Service,
    traces: &Traces,
    invocation: Invocation,
    mut request: lambda_http::Request,
) -> Result<Reply, Panicked> {
    path::restore(&mut request);
    let received = RequestFacts::of(&request);
    let span = tracing::info_span!("invocation", request_id = invocation.request_id());
    let traceparent = request.headers().get("traceparent");
    traces.begin_request(&invocation, traceparent.and_then(|text| text.to_str().ok()));
    let invocation = Arc::new(invocation);
    // A panic leaves the state of this instance as a request does that was dropped.
    let served = AssertUnwindSafe(service.serve(&invocation, request)).catch_unwind();
    let served = served.instrument(span.clone()).await;
    let (caller, response, has_panicked) = match served {
        Ok(Served::Answered(caller, response)) => (Some(caller), response, false),
        Ok(Served::Refused(response)) => {
            // It is not traced.
            invocation.discard_trace();
            (None, response, false)
        }
        Err(_) => {
            let response = StatusCode::INTERNAL_SERVER_ERROR.into_response();
            (None, response, true)
        }
    };
    let (reply, sent) = Reply::of(response).await;
    let caller = caller.as_deref().and_then(Caller::name);
    let summary = summary::summary(received, caller, sent, &invocation);
    span.in_scope(|| summary.log());
    traces.end(&invocation, || summary.span());
    traces.flush(&invocation).instrument(span).await;
    if has_panicked {
        Err(Panicked)
    } else {
        Ok(reply)
    }
}

/// What became of a request.
enum Served {
    /// Its caller was let in, and this is the response.
    Answered(Arc<Caller>, Response),
    /// Its caller was not let in.
    Refused(Response),
}

impl Service {
    async fn serve(
        &self,
        invocation: &Arc<Invocation>,
        mut request: lambda_http::Request,
    ) -> Served {
        let caller = match door::admit(&self.symbolicator, invocation, &mut request).await {
            Ok(caller) => caller,
            Err(refused) => return Served::Refused(refused),
        };
        let mut request = request.map(|body| match body {
            lambda_http::Body::Text(text) => Body::from(text),
            lambda_http::Body::Binary(bytes) => Body::from(bytes),
            _ => Body::empty(),
        });
        let extensions = request.extensions_mut();
        extensions.insert(Arc::clone(invocation));
        extensions.insert(Arc::clone(&caller));
        match self.router.clone().oneshot(request).await {
            Ok(response) => Served::Answered(caller, response),
            Err(never) => match never {},
        }
    }
}

/// A result of the function.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Reply {
    /// A result without a status code: the gateway makes it the body of a response with status 200
    /// and the type of JSON (API Gateway developer guide, "Lambda proxy integrations for HTTP
    /// APIs"). Such a body is neither encoded here nor decoded there.
    Json(Arc<JsonBody>),
    /// A response with its body in base64, text too: a result then has four thirds of the body's
    /// bytes, and never the multiple that an escaped string may have.
    Whole(Box<ApiGatewayV2httpResponse>),
}

/// The JSON of a response with status 200 and no further headers.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct JsonBody(pub(crate) Box<RawValue>);

impl JsonBody {
    pub(crate) fn text(&self) -> &str {
        self.0.get()
    }
}

impl Reply {
    /// Also returns what the log says of the response.
    async fn of(response: Response) -> (Self, ResponseFacts) {
        let (mut parts, body) = response.into_parts();
        let mut extensions = std::mem::take(&mut parts.extensions);
        if let Some(json) = extensions.remove::<Arc<JsonBody>>() {
            let sent = ResponseFacts {
                status: parts.status,
                bytes: json.text().len(),
                extensions,
            };
            return (Self::Json(json), sent);
        }
        let mut bytes_sent = 0;
        let body = match axum::body::to_bytes(body, usize::MAX).await {
            Ok(bytes) if bytes.is_empty() => None,
            Ok(bytes) => {
                bytes_sent = bytes.len();
                Some(lambda_http::Body::Binary(bytes.into()))
            }
            Err(error) => {
                tracing::error!(%error, "a response ended early");
                parts.status = StatusCode::INTERNAL_SERVER_ERROR;
                None
            }
        };
        // A response to a browser may repeat text of the request: `nosniff` keeps the browser from
        // interpreting it as another type. It never interprets the type of JSON.
        let no_guesses = HeaderValue::from_static("nosniff");
        parts
            .headers
            .insert(header::X_CONTENT_TYPE_OPTIONS, no_guesses);
        let mut whole = Box::<ApiGatewayV2httpResponse>::default();
        whole.status_code = parts.status.as_u16().into();
        whole.headers = parts.headers;
        whole.is_base64_encoded = body.is_some();
        whole.body = body;
        let sent = ResponseFacts {
            status: parts.status,
            bytes: bytes_sent,
            extensions,
        };
        (Self::Whole(whole), sent)
    }
}
