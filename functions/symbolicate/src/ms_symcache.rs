//! Microsoft's SymCache protocol over HTTP: headers in, redirects and statuses out.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use symdepot::api::symcache_http::{self, Route, SymCacheRequest};
use symdepot::flows::ms_symcache::SymCacheResponse;

use crate::deadline::in_time;
use crate::door;
use crate::extract::RequestContext;
use crate::failure::Failure;
use crate::operation::Operation;
use crate::routes::{self, Verb};
use crate::summary::{Outcome, Requested};

/// Serves the paths of Microsoft's SymCache protocol, which the router cannot distinguish. The
/// response says that it is one of this protocol, unless the path is not.
pub(crate) async fn serve(
    call: RequestContext,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let asked = match Route::of(uri.path()) {
        Route::Other => return Err(routes::no_such_route(&uri)),
        Route::Nothing => None,
        Route::File(asked) => Some(asked),
    };
    let response = match asked {
        _ if !Verb::Get.serves(&method) => {
            Ok(routes::no_such_method_of(Verb::Get, method, uri).await)
        }
        None => Ok(StatusCode::NOT_FOUND.into_response()),
        Some(asked) => {
            let invocation = Arc::clone(&call.invocation);
            let served = Box::pin(serve_file(call, &method, &headers, asked));
            in_time(&invocation, served).await?
        }
    };
    Ok((Extension(Operation::MsSymCache), response).into_response())
}

async fn serve_file(
    call: RequestContext,
    method: &Method,
    headers: &HeaderMap,
    asked: SymCacheRequest,
) -> Result<Response, Failure> {
    door::entitled(&call.caller, Operation::MsSymCache)?;
    let asked = SymCacheRequest {
        scope: call.caller.scope_for(None)?,
        ..asked
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
    let answer = call
        .service
        .ms_sym_cache(&call.invocation, &asked, present, may_be_put_off)
        .await?;
    let outcome = Outcome(answer.name());
    let requested = Requested(asked.debug_id.to_string());
    let noted = (Extension(outcome), Extension(requested));
    Ok((noted, response(answer, method)).into_response())
}

/// Returns the response of the protocol.
fn response(answer: SymCacheResponse, method: &Method) -> Response {
    match answer {
        // Content-Length is not that of the file: the gateway sets it from the empty body.
        SymCacheResponse::File { content_type, .. } if *method == Method::HEAD => {
            [(header::CONTENT_TYPE, content_type)].into_response()
        }
        SymCacheResponse::File { url, content_type } => {
            let headers = [
                (header::CONTENT_TYPE, content_type),
                (header::LOCATION, url),
            ];
            (StatusCode::FOUND, headers).into_response()
        }
        SymCacheResponse::NotModified => StatusCode::NOT_MODIFIED.into_response(),
        SymCacheResponse::Nothing => StatusCode::NOT_FOUND.into_response(),
        SymCacheResponse::Pending(after) => later(StatusCode::NOT_FOUND, after),
        SymCacheResponse::Unknown(after) => later(StatusCode::SERVICE_UNAVAILABLE, after),
    }
}

fn later(status: StatusCode, after: Duration) -> Response {
    (status, [(header::RETRY_AFTER, after.as_secs().to_string())]).into_response()
}
