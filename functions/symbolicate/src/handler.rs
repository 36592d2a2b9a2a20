//! Handles the requests of `symbolicate`: one function per route.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, IntoResponseParts, Response};
use axum::{Extension, Json, Router};
use futures::FutureExt;
use lambda_http::aws_lambda_events::apigw::ApiGatewayV2httpResponse;
use lambda_http::lambda_runtime::Diagnostic;
use serde::Serialize;
use serde_json::value::RawValue;
use symdepot::api::caller::Caller;
use symdepot::api::crash::CrashFile;
use symdepot::api::explain::ExplainQuery;
use symdepot::api::limits;
use symdepot::api::symbolicator::{self as api, RequestError};
use symdepot::domain::Scope;
use symdepot::flows::Symbolicator;
use symdepot::flows::minidump::kept_dump;
use symdepot::flows::plain::{MAX_PLAIN_BYTES, Plain};
use symdepot::flows::requests::{
    FinishedAnswer, FoundRequest, KeptRequest, RequestStage, RequestToKeep,
};
use symdepot::flows::symbolicate::{Kept, SymbolicateOutcome};
use symdepot::flows::{self, Invocation};
use symdepot::runtime::Traces;
use tower::ServiceExt;
use tracing::Instrument;
use uuid::Uuid;

use crate::answer::CrashAnswer;
use crate::crash_files::{self, RequestState};
use crate::extract::{
    Call, ContinuedQuery, ListQuery, NoQuery, RequestQuery, Subject, SymCacheSubject,
};
use crate::failure::Failure;
use crate::summary::{self, COMPLETED, PENDING, Received, Sent};
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
    let received = Received::of(&request);
    let span = tracing::info_span!("invocation", request_id = invocation.request_id());
    let traceparent = request.headers().get("traceparent");
    traces.begin_request(&invocation, traceparent.and_then(|text| text.to_str().ok()));
    let invocation = Arc::new(invocation);
    // A panic leaves the state of this instance as a request does that was dropped.
    let answer = AssertUnwindSafe(service.answer(&invocation, request)).catch_unwind();
    let answered = answer.instrument(span.clone()).await;
    let has_panicked = answered.is_err();
    let internal_error = |_| (None, StatusCode::INTERNAL_SERVER_ERROR.into_response());
    let (caller, response) = answered.unwrap_or_else(internal_error);
    let (reply, sent) = Reply::of(response).await;
    if caller.is_none() && !has_panicked {
        // A request that was refused is not traced.
        invocation.discard_trace();
    }
    let caller = caller.as_deref().and_then(Caller::name);
    let summary = summary::summary(received, caller, sent, &invocation);
    span.in_scope(|| summary.log());
    traces.end(&invocation, || summary.span());
    traces.flush(&invocation).instrument(span).await;
    match has_panicked {
        true => Err(Panicked),
        false => Ok(reply),
    }
}

impl Service {
    /// Returns the response to a request, and its caller if it was let in.
    async fn answer(
        &self,
        invocation: &Arc<Invocation>,
        mut request: lambda_http::Request,
    ) -> (Option<Arc<Caller>>, Response) {
        let caller = match door::admit(&self.symbolicator, invocation, &mut request).await {
            Ok(caller) => caller,
            Err(refused) => return (None, refused),
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
            Ok(response) => (Some(caller), response),
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
pub(crate) struct JsonBody(Box<RawValue>);

impl JsonBody {
    pub(crate) fn text(&self) -> &str {
        self.0.get()
    }
}

impl Reply {
    /// Also returns what the log says of the response.
    async fn of(response: Response) -> (Self, Sent) {
        let (mut parts, body) = response.into_parts();
        let mut extensions = std::mem::take(&mut parts.extensions);
        if let Some(json) = extensions.remove::<Arc<JsonBody>>() {
            let sent = Sent {
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
        let sent = Sent {
            status: parts.status,
            bytes: bytes_sent,
            extensions,
        };
        (Self::Whole(whole), sent)
    }
}

pub(crate) async fn symbolicate(
    call: Call,
    RequestQuery(query): RequestQuery,
    body: Body,
) -> Result<Response, Failure> {
    let too_large = RequestError::TooLarge {
        what: "bytes",
        limit: limits::BODY_BYTES,
    };
    let body = axum::body::to_bytes(body, limits::BODY_BYTES)
        .await
        .map_err(|_| too_large)?;
    let mut request = api::parse_request(&body)?;
    let scraping = &mut request.scraping;
    let body = match call.symbolicator.drop_unusable_headers(scraping) {
        true => serde_json::to_vec(&request)
            .map_err(Failure::internal)?
            .into(),
        false => body,
    };
    let asked = Asked {
        id: call.invocation.uuid(),
        scope: &query.scope,
        wait: call.symbolicator.wait(&call.invocation, query.timeout),
        age: Duration::ZERO,
        found: None,
    };
    let body = Some(RequestToKeep::received(&body));
    call.answer(asked, Crash::Sent(Box::new(request)), body)
        .await
}

pub(crate) async fn continue_request(
    call: Call,
    id: Result<Path<String>, PathRejection>,
    ContinuedQuery(query): ContinuedQuery,
) -> Result<Response, Failure> {
    let unknown = || {
        Failure::new(
            StatusCode::NOT_FOUND,
            "no request has this id, or it has expired: send it again",
        )
    };
    let id = id.ok().and_then(|Path(id)| Uuid::parse_str(&id).ok());
    let id = id.ok_or_else(unknown)?;
    // One of another scope is as unknown as one that does not exist.
    let may_see = |found: &FoundRequest| {
        let is_named = query
            .named_scope()
            .is_none_or(|named| named == *found.scope());
        is_named && call.caller.may_see(found.scope())
    };
    let found = call
        .symbolicator
        .find_request(&call.invocation, &id.to_string())
        .await?
        .filter(may_see)
        .ok_or_else(unknown)?;
    if let Some(answer) = call.symbolicator.finished_answer(&found).await? {
        return finished(answer);
    }
    let KeptRequest {
        scope,
        stage,
        body,
        age,
    } = call
        .symbolicator
        .kept_request(&call.invocation, &found)
        .await?
        .ok_or_else(unknown)?;
    let crash = match stage {
        RequestStage::Symbolicate => Crash::Sent(Box::new(api::parse_request(&body)?)),
        RequestStage::CrashFile => Crash::Read(Box::new(crash_files::stored(&body)?)),
        RequestStage::Minidump => {
            let query = api::Query { scope, ..query };
            let state = RequestState {
                id,
                found: Some(&found),
                age,
            };
            return crash_files::walk(&call, &query, state, kept_dump(&body)?).await;
        }
    };
    let asked = Asked {
        id,
        scope: &scope,
        wait: call.symbolicator.wait(&call.invocation, query.timeout),
        age,
        found: Some(&found),
    };
    call.answer(asked, crash, None).await
}

/// The response with a stored answer.
fn finished(answer: FinishedAnswer) -> Result<Response, Failure> {
    match answer {
        FinishedAnswer::Sent(body) => {
            let body: Box<RawValue> = serde_json::from_slice(&body).map_err(Failure::internal)?;
            let body = Arc::new(JsonBody(body));
            Ok((Extension(COMPLETED), Extension(body)).into_response())
        }
        FinishedAnswer::At(url) => Ok(elsewhere(url, Extension(COMPLETED))),
    }
}

/// The response that refers to an answer that is too large to be sent.
fn elsewhere(url: String, noted: impl IntoResponseParts) -> Response {
    (StatusCode::SEE_OTHER, noted, [(header::LOCATION, url)]).into_response()
}

pub(crate) fn pending(id: Uuid) -> Response {
    (Extension(PENDING), Json(api::Response::pending(id))).into_response()
}

/// The stack traces to symbolicate.
pub(crate) enum Crash {
    /// Those of a request. They are answered as a whole.
    Sent(Box<api::Request>),
    /// Those that were read from a file.
    Read(Box<CrashFile>),
}

/// A crash to symbolicate: the id that its client receives, whose caches it reads, how long it
/// waits for builds, how long it has been pending, and what is stored of it if this call continues
/// it.
pub(crate) struct Asked<'a> {
    pub(crate) id: Uuid,
    pub(crate) scope: &'a Scope,
    pub(crate) wait: Duration,
    pub(crate) age: Duration,
    pub(crate) found: Option<&'a FoundRequest>,
}

impl Call {
    /// Returns the response for a crash. `body` is stored while it is pending; `None` if it is
    /// stored already.
    pub(crate) async fn answer(
        &self,
        Asked {
            id,
            scope,
            wait,
            age,
            found,
        }: Asked<'_>,
        crash: Crash,
        body: Option<RequestToKeep<'_>>,
    ) -> Result<Response, Failure> {
        let Self {
            symbolicator,
            invocation,
            ..
        } = self;
        let id_text = id.to_string();
        let kept = Kept {
            wait,
            id: &id_text,
            body,
            age,
        };
        let (outcome, report) = match crash {
            Crash::Sent(request) => {
                let answer = symbolicator.answer(invocation, &request, scope, kept);
                (answer.await?, None)
            }
            Crash::Read(report) => {
                let answer = symbolicator.answer_crash(invocation, &report, scope, kept);
                (answer.await?, Some(report))
            }
        };
        match outcome {
            SymbolicateOutcome::Pending => Ok(pending(id)),
            SymbolicateOutcome::Completed(completed, mut stats) => {
                let answer = match report {
                    Some(report) => {
                        let order = report.request.options.frame_order;
                        CrashAnswer::to_file(*completed, order, report.stackwalk)
                    }
                    None => CrashAnswer::to_request(*completed),
                };
                let body = JsonBody(answer.write(&mut stats)?);
                let noted = (Extension(COMPLETED), Extension(stats));
                if body.text().len() > limits::SENT_ANSWER_BYTES {
                    let body = Box::<str>::from(body.0).into_string().into_bytes();
                    let stored = symbolicator.store_answer(invocation, &id_text, found, body);
                    stored.await?;
                    let url = symbolicator.answer_url(&id_text).await?;
                    return Ok(elsewhere(url, noted));
                }
                if found.is_some() {
                    let bytes = body.text().as_bytes().to_vec();
                    let stored = symbolicator.store_answer(invocation, &id_text, found, bytes);
                    if let Err(error) = stored.await {
                        tracing::warn!(%error, "cannot store an answer; the next call computes it again");
                    }
                }
                Ok((noted, Extension(Arc::new(body))).into_response())
            }
        }
    }

    /// Returns the response for a crash that was read from a file. It is stored while it is
    /// pending.
    pub(crate) async fn answer_file(
        &self,
        asked: Asked<'_>,
        report: CrashFile,
    ) -> Result<Response, Failure> {
        let body = serde_json::to_vec(&report).map_err(Failure::internal)?;
        let body = Some(RequestToKeep::crash_file(&report, &body));
        let crash = Crash::Read(Box::new(report));
        self.answer(asked, crash, body).await
    }
}

pub(crate) async fn explain(call: Call, Subject(query): Subject) -> Result<Response, Failure> {
    match query {
        ExplainQuery::Upload { keys, .. } => match call.symbolicator.explain_upload(&keys).await? {
            Some(upload) => Ok(Json(upload).into_response()),
            None => Err(Failure::new(
                StatusCode::NOT_FOUND,
                format!(
                    "no event of {} has arrived; if it was uploaded a moment ago, try again, otherwise check that the key is right and begins with its scope (global/…)",
                    keys.join(" or ")
                ),
            )),
        },
        ExplainQuery::Module {
            module,
            source,
            scope,
            ..
        } => {
            let explained = call
                .symbolicator
                .explain_module(&call.invocation, &module, source.as_deref(), &scope)
                .await?;
            Ok(Json(explained).into_response())
        }
    }
}

/// Redirects to the SymCache of a module, for tools that read such files.
pub(crate) async fn symcache(
    call: Call,
    SymCacheSubject(query): SymCacheSubject,
) -> Result<Response, Failure> {
    let ExplainQuery::Module { module, scope, .. } = query else {
        return Err(Failure::new(
            StatusCode::BAD_REQUEST,
            "the query names no module",
        ));
    };
    match call
        .symbolicator
        .plain_sym_cache(&call.invocation, &module, &scope)
        .await?
    {
        Plain::At(url) => Ok((StatusCode::FOUND, [(header::LOCATION, url)]).into_response()),
        Plain::Nowhere(states) => {
            let states = states.iter();
            let states = states.map(|record| format!("{} in {}", record.state, record.place()));
            let states: Vec<_> = states.collect();
            let states = match states.is_empty() {
                true => "no source is searched for this module".to_owned(),
                false => states.join(", "),
            };
            let detail = format!(
                "no SymCache of this module is ready ({states}); GET /explain with the same query shows why, and POST /symbolicate requests a build if a source has a file"
            );
            Err(Failure::new(StatusCode::NOT_FOUND, detail))
        }
        Plain::TooLarge(bytes) => Err(Failure::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!(
                "the slices of the SymCache have {bytes} bytes; the limit for joining them is {MAX_PLAIN_BYTES}"
            ),
        )),
    }
}

pub(crate) async fn rollout(call: Call, _: NoQuery) -> Result<Response, Failure> {
    let report = call.symbolicator.rollout(&call.invocation).await?;
    Ok(Json(report).into_response())
}

pub(crate) async fn wanted(call: Call, ListQuery(query): ListQuery) -> Result<Response, Failure> {
    let wanted = call.symbolicator.wanted(&query.scope, query.page).await?;
    Ok(Json(wanted).into_response())
}

pub(crate) async fn about(_: NoQuery) -> Response {
    Json(flows::about::about()).into_response()
}
