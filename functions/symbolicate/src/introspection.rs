//! Handles the requests about what is stored: uploads, modules and SymCaches; and about the
//! service.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use symdepot::api::explain::{ExplainQuery, SymCacheQuery};
use symdepot::flows;
use symdepot::flows::plain::{MAX_PLAIN_BYTES, Plain};

use crate::extract::{ListQuery, NoQuery, RequestContext, Subject, SymCacheSubject};
use crate::failure::Failure;

pub(crate) async fn explain(
    call: RequestContext,
    Subject(query): Subject,
) -> Result<Response, Failure> {
    match query {
        ExplainQuery::Upload { keys, .. } => match call.service.explain_upload(&keys).await? {
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
                .service
                .explain_module(&call.invocation, &module, source.as_deref(), &scope)
                .await?;
            Ok(Json(explained).into_response())
        }
    }
}

/// Redirects to the SymCache of a module, for tools that read such files.
pub(crate) async fn symcache(
    call: RequestContext,
    SymCacheSubject(SymCacheQuery { module, scope, .. }): SymCacheSubject,
) -> Result<Response, Failure> {
    match call
        .service
        .plain_sym_cache(&call.invocation, &module, &scope)
        .await?
    {
        Plain::At(url) => Ok((StatusCode::FOUND, [(header::LOCATION, url)]).into_response()),
        Plain::Nowhere(states) => {
            let states = states.iter();
            let states =
                states.map(|record| format!("{} in {}", record.state.as_str(), record.place()));
            let states: Vec<_> = states.collect();
            let states = if states.is_empty() {
                "no source is searched for this module".to_owned()
            } else {
                states.join(", ")
            };
            let detail = format!(
                "no SymCache of this module is ready ({states}); GET /explain with the same query shows why, and POST /symbolicate requests a build if a source has a file"
            );
            Err(Failure::new(StatusCode::NOT_FOUND, detail))
        }
        Plain::TooLarge(bytes) => Err(Failure::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!(
                "the slices of the SymCache have {bytes} bytes; the limit for joining them is {MAX_PLAIN_BYTES}: POST /symbolicate reads single slices"
            ),
        )),
    }
}

pub(crate) async fn rollout(call: RequestContext, _: NoQuery) -> Result<Response, Failure> {
    let report = call.service.rollout(&call.invocation).await?;
    Ok(Json(report).into_response())
}

pub(crate) async fn wanted(
    call: RequestContext,
    ListQuery(query): ListQuery,
) -> Result<Response, Failure> {
    let wanted = call.service.wanted(&query.scope, query.page).await?;
    Ok(Json(wanted).into_response())
}

pub(crate) async fn about(_: NoQuery) -> Response {
    Json(flows::about::about()).into_response()
}
