//! Handles the requests of `symbolicate`: one function per route, and errors as JSON.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use symdepot::api::explain::{ExplainError, ExplainQuery};
use symdepot::api::symbolicator::{self as api, ErrorBody, Query, RequestError};
use symdepot::api::{limits, symcache_http};
use symdepot::domain::Scope;
use symdepot::flows::plain::{MAX_PLAIN_BYTES, Plain};
use symdepot::flows::symbolicate::{Kept, SymbolicateOutcome, Symbolicator};
use symdepot::flows::{self, Invocation, ms_symcache};
use tower::ServiceExt;
use tracing::Instrument;
use uuid::Uuid;

type App = State<Arc<Symbolicator>>;
type Now = Extension<Arc<Invocation>>;

/// Returns the router of all routes.
pub(crate) fn router(symbolicator: Arc<Symbolicator>) -> Router {
    Router::new()
        .route("/symbolicate", post(symbolicate))
        .route("/requests/{id}", get(continue_request))
        .route("/explain", get(explain))
        .route("/symcache", get(symcache))
        .route("/rollout", get(rollout))
        .route("/wanted", get(wanted))
        .route("/healthcheck", get(|| async { "ok" }))
        .fallback(by_shape)
        .method_not_allowed_fallback(no_such_method)
        .with_state(symbolicator)
}

/// Serves one request, in a span with the invocation's id.
///
/// A response may repeat text of the request, for example a header: `nosniff` keeps browsers from
/// interpreting it as another type.
pub(crate) async fn handle(
    router: Router,
    invocation: Invocation,
    request: lambda_http::Request,
) -> Response {
    let span = tracing::info_span!("invocation", request_id = invocation.request_id());
    let mut request = request.map(|body| match body {
        lambda_http::Body::Text(text) => Body::from(text),
        lambda_http::Body::Binary(bytes) => Body::from(bytes),
        _ => Body::empty(),
    });
    request.extensions_mut().insert(Arc::new(invocation));
    let mut response = match router.oneshot(request).instrument(span).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    let no_guesses = HeaderValue::from_static("nosniff");
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, no_guesses);
    response
}

async fn symbolicate(
    State(symbolicator): App,
    Extension(invocation): Now,
    RawQuery(query): RawQuery,
    body: Body,
) -> Result<Response, Failure> {
    let query = Query::parse(&query.unwrap_or_default(), Query::OF_REQUESTS)?;
    let too_large = RequestError::TooLarge {
        what: "bytes",
        limit: limits::BODY_BYTES,
    };
    let body = axum::body::to_bytes(body, limits::BODY_BYTES)
        .await
        .map_err(|_| too_large)?;
    let id = Uuid::parse_str(invocation.token().as_str()).unwrap_or_default();
    let kept = Kept {
        wait: symbolicator.wait(&invocation, query.timeout),
        id: &id.to_string(),
        body: Some(&body),
    };
    let answer = answer(&symbolicator, &invocation, &query.scope, &body, kept).await?;
    Ok(answer.unwrap_or_else(|| pending(id)))
}

async fn continue_request(
    State(symbolicator): App,
    Extension(invocation): Now,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, Failure> {
    let query = Query::parse(&query.unwrap_or_default(), Query::OF_REQUESTS)?;
    let unknown = || {
        Failure::new(
            StatusCode::NOT_FOUND,
            "no request has this id, or it has expired: send it again",
        )
    };
    let id = Uuid::parse_str(&id).map_err(|_| unknown())?;
    let (scope, body) = symbolicator
        .kept_request(&invocation, &id.to_string())
        .await?
        .ok_or_else(unknown)?;
    let kept = Kept {
        wait: symbolicator.wait(&invocation, query.timeout),
        id: &id.to_string(),
        body: None,
    };
    let answer = answer(&symbolicator, &invocation, &scope, &body, kept).await?;
    Ok(answer.unwrap_or_else(|| pending(id)))
}

fn pending(id: Uuid) -> Response {
    Json(api::Response::pending(id)).into_response()
}

/// Returns the response to a request; `None` while it is pending.
async fn answer(
    symbolicator: &Symbolicator,
    invocation: &Invocation,
    scope: &Scope,
    body: &[u8],
    kept: Kept<'_>,
) -> Result<Option<Response>, Failure> {
    let request = api::parse_request(body)?;
    match symbolicator
        .answer(invocation, &request, scope, kept)
        .await?
    {
        SymbolicateOutcome::Pending => {
            tracing::info!(
                waited_ms = u64::try_from(invocation.elapsed().as_millis()).unwrap_or(u64::MAX),
                "pending"
            );
            Ok(None)
        }
        SymbolicateOutcome::Completed(completed, stats) => {
            let body = serde_json::to_vec(&api::Response::Completed(*completed))
                .map_err(Failure::internal)?;
            if body.len() > limits::ANSWER_BYTES {
                return Err(flows::Error::TooLarge { bytes: body.len() }.into());
            }
            let handler_us = u64::try_from(invocation.elapsed().as_micros()).unwrap_or(u64::MAX);
            let (frames, modules, reads) = (stats.frames, stats.modules, stats.reads);
            tracing::info!(
                stacktraces = stats.stacktraces,
                frames = frames.total(),
                symbolicated = frames.symbolicated,
                missing_symbol = frames.missing_symbol,
                unknown_image = frames.unknown_image,
                missing = frames.missing,
                malformed = frames.malformed,
                inlined = stats.inlined,
                truncated = stats.truncated,
                dropped = stats.dropped,
                modules = modules.total(),
                modules_unused = modules.unused,
                modules_found = modules.found,
                reads = reads.reads,
                read_bytes = reads.bytes,
                remembered = reads.remembered,
                answer_bytes = stats.answer_bytes,
                handler_us,
                "completed"
            );
            Ok(Some(
                ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
            ))
        }
    }
}

async fn explain(
    State(symbolicator): App,
    Extension(invocation): Now,
    RawQuery(query): RawQuery,
) -> Result<Response, Failure> {
    match ExplainQuery::parse(&query.unwrap_or_default())? {
        ExplainQuery::Upload { keys } => match symbolicator.explain_upload(&keys).await? {
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
        } => {
            let explained = symbolicator
                .explain_module(&invocation, &module, source.as_deref(), &scope)
                .await?;
            Ok(Json(explained).into_response())
        }
    }
}

/// Redirects to the SymCache of a module, for tools that read such files.
async fn symcache(
    State(symbolicator): App,
    Extension(invocation): Now,
    RawQuery(query): RawQuery,
) -> Result<Response, Failure> {
    let ExplainQuery::Module {
        module,
        source: None,
        scope,
    } = ExplainQuery::parse(&query.unwrap_or_default())?
    else {
        let detail = "use ?debug_id=…, optionally with &scope=…: the response is the best SymCache of all sources";
        return Err(Failure::new(StatusCode::BAD_REQUEST, detail));
    };
    match symbolicator
        .plain_sym_cache(&invocation, &module, &scope)
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

async fn rollout(
    State(symbolicator): App,
    Extension(invocation): Now,
) -> Result<Response, Failure> {
    Ok(Json(symbolicator.rollout(&invocation).await?).into_response())
}

async fn wanted(State(symbolicator): App, RawQuery(query): RawQuery) -> Result<Response, Failure> {
    let query = Query::parse(&query.unwrap_or_default(), Query::OF_LISTS)?;
    Ok(Json(symbolicator.wanted(&query.scope, query.page).await?).into_response())
}

/// Serves the paths of Microsoft's SymCache protocol, which the router cannot distinguish.
async fn by_shape(
    State(symbolicator): App,
    Extension(invocation): Now,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let asked = match symcache_http::Route::of(uri.path()) {
        symcache_http::Route::Other => return Err(no_such_route(&uri)),
        _ if !matches!(method, Method::GET | Method::HEAD) => {
            return Err(no_such_method(method, uri).await);
        }
        symcache_http::Route::Nothing => return Ok(StatusCode::NOT_FOUND.into_response()),
        symcache_http::Route::File(asked) => asked,
    };
    let values = |name: &str| {
        let values = headers.get_all(name).into_iter();
        values.map(|value| value.to_str().unwrap_or_default())
    };
    let present = match asked.present(values(symcache_http::IF_VERSION_EXCEEDS)) {
        Ok(present) => present,
        Err(bad) => return Ok((StatusCode::BAD_REQUEST, bad.to_string()).into_response()),
    };
    let [as_written, as_read] = symcache_http::ALLOW_RETRY_AFTER.map(values);
    let may_be_put_off = asked.may_be_put_off(as_written.chain(as_read));
    let answer = symbolicator
        .ms_sym_cache(&invocation, &asked, present, may_be_put_off)
        .await?;
    tracing::info!(
        pdb = asked.name,
        debug_id = %asked.debug_id,
        version = %asked.version,
        answer = answer.name(),
        "Microsoft SymCache request served"
    );
    Ok(match answer {
        // Content-Length is not that of the file: the gateway sets it from the empty body.
        ms_symcache::SymCacheResponse::File { content_type, .. } if method == Method::HEAD => {
            [(header::CONTENT_TYPE, content_type)].into_response()
        }
        ms_symcache::SymCacheResponse::File { url, content_type } => {
            let headers = [
                (header::CONTENT_TYPE, content_type),
                (header::LOCATION, url),
            ];
            (StatusCode::FOUND, headers).into_response()
        }
        ms_symcache::SymCacheResponse::NotModified => StatusCode::NOT_MODIFIED.into_response(),
        ms_symcache::SymCacheResponse::Nothing => StatusCode::NOT_FOUND.into_response(),
        ms_symcache::SymCacheResponse::Pending(after) => later(StatusCode::NOT_FOUND, after),
        ms_symcache::SymCacheResponse::Unknown(after) => {
            later(StatusCode::SERVICE_UNAVAILABLE, after)
        }
    })
}

fn later(status: StatusCode, after: Duration) -> Response {
    (status, [(header::RETRY_AFTER, after.as_secs().to_string())]).into_response()
}

fn no_such_route(uri: &Uri) -> Failure {
    let routes = "POST /symbolicate, GET /requests/{id}, GET /explain?key=…, GET /explain?debug_id=…, GET /symcache?debug_id=…, GET /rollout, GET /wanted, GET /v3.1.0/{pdb}/{id}/{age}, GET /healthcheck";
    Failure::new(
        StatusCode::NOT_FOUND,
        format!("no such route: {}; the routes are {routes}", uri.path()),
    )
}

async fn no_such_method(method: Method, uri: Uri) -> Failure {
    Failure::new(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("{} does not support {method}", uri.path()),
    )
}

/// An error response: a status, and a JSON body with the reason.
#[derive(Debug)]
struct Failure {
    status: StatusCode,
    body: ErrorBody,
}

impl Failure {
    fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            body: ErrorBody {
                detail: detail.into(),
                causes: Vec::new(),
            },
        }
    }

    fn internal(error: impl std::error::Error) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    }
}

impl From<RequestError> for Failure {
    fn from(error: RequestError) -> Self {
        let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::BAD_REQUEST);
        Self {
            status,
            body: error.body(),
        }
    }
}

impl From<ExplainError> for Failure {
    fn from(error: ExplainError) -> Self {
        Self {
            status: StatusCode::from_u16(error.status()).unwrap_or(StatusCode::BAD_REQUEST),
            body: error.body(),
        }
    }
}

impl From<flows::Error> for Failure {
    fn from(error: flows::Error) -> Self {
        let status =
            StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let causes =
            std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
        let body = ErrorBody {
            detail: error.to_string(),
            causes: causes.map(ToString::to_string).collect(),
        };
        if status.is_server_error() {
            tracing::error!(error = error.name(), detail = body.detail, causes = ?body.causes, "request failed");
        }
        Self { status, body }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, Json(self.body)).into_response()
    }
}
