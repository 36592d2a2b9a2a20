//! Access tokens: issues, lists and revokes them.

use axum::Json;
use axum::body::Body;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use symdepot::api::tokens::{TokenList, parse_token_request};

use crate::extract::{NoQuery, RequestContext, read_body};
use crate::failure::Failure;

/// Serves `POST /tokens`. The response has the token, so no cache may keep it.
pub(crate) async fn issue(
    call: RequestContext,
    _: NoQuery,
    body: Body,
) -> Result<Response, Failure> {
    let request = parse_token_request(&read_body(body).await?)?;
    let issued = call
        .service
        .issue_token(&call.invocation, call.caller.grants(), request)
        .await?;
    let no_store = [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    Ok((StatusCode::CREATED, no_store, Json(issued)).into_response())
}

/// Serves `GET /tokens`.
pub(crate) async fn list(call: RequestContext, _: NoQuery) -> Result<Json<TokenList>, Failure> {
    let grants = call.caller.grants();
    let listed = call.service.tokens(&call.invocation, grants);
    Ok(Json(listed.await?))
}

/// Serves `DELETE /tokens/{id}`.
pub(crate) async fn revoke(
    call: RequestContext,
    _: NoQuery,
    id: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, Failure> {
    let unknown = || Failure::new(StatusCode::NOT_FOUND, "no valid token has this id");
    let Path(id) = id.map_err(|_| unknown())?;
    let grants = call.caller.grants();
    let revoked = call.service.revoke_token(&call.invocation, grants, &id);
    if revoked.await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(unknown())
    }
}
