//! Handles the requests that continue a pending request.

use std::sync::Arc;

use axum::Extension;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::value::RawValue;
use symdepot::api::crash::ReadCrash;
use symdepot::api::symbolicator as api;
use symdepot::flows::minidump::decode_dump;
use symdepot::flows::requests::{CallState, FinishedAnswer, FoundRequest, RequestStage};
use uuid::Uuid;

use crate::crash_files;
use crate::crashes::{Crash, redirect};
use crate::extract::{ContinuedQuery, RequestContext};
use crate::failure::Failure;
use crate::reply::JsonBody;
use crate::summary::COMPLETED;

pub(crate) async fn continue_request(
    call: RequestContext,
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
    let id = id.ok_or_else(unknown)?.to_string();
    // One of another scope is as unknown as one that does not exist.
    let may_see = |found: &FoundRequest| {
        let is_named = query
            .named_scope()
            .is_none_or(|named| named == *found.scope());
        is_named && call.caller.may_see(found.scope())
    };
    let found = call
        .service
        .find_request(&call.invocation, &id)
        .await?
        .filter(may_see)
        .ok_or_else(unknown)?;
    if let Some(answer) = call.service.finished_answer(&found).await? {
        return finished(answer);
    }
    let body = call.service.stored_body(&found).await?;
    let body = body.ok_or_else(unknown)?;
    let now = call.invocation.now();
    let state = || CallState::continued(&found, now, call.wait_limit(&query));
    let crash = match found.stage() {
        RequestStage::Symbolicate => Crash::InRequest(Box::new(api::parse_request(&body)?)),
        RequestStage::CrashFile => Crash::FromFile(Box::new(parse_crash(&body)?)),
        RequestStage::Minidump => {
            let dump = decode_dump(&body)?;
            return crash_files::walk(&call, state(), dump).await;
        }
    };
    call.respond_to_crash(state(), crash).await
}

/// The response with a stored answer.
fn finished(answer: FinishedAnswer) -> Result<Response, Failure> {
    match answer {
        FinishedAnswer::Body(body) => {
            let body: Box<RawValue> = serde_json::from_slice(&body).map_err(Failure::internal)?;
            let body = Arc::new(JsonBody(body));
            Ok((Extension(COMPLETED), Extension(body)).into_response())
        }
        FinishedAnswer::Url(url) => Ok(redirect(url, Extension(COMPLETED))),
    }
}

/// Parses the crash in a stored request.
fn parse_crash(body: &[u8]) -> Result<ReadCrash, Failure> {
    serde_json::from_slice(body).map_err(Failure::internal)
}
