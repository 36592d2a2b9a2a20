//! Uploads: which of a client's files the service needs, and how to send them.

use axum::Json;
use axum::body::Body;
use symdepot::api::uploads::{UploadsAnswer, parse_uploads};

use crate::extract::{RequestContext, UploadsQuery, read_body};
use crate::failure::Failure;

/// Serves `POST /uploads`.
pub(crate) async fn request_uploads(
    call: RequestContext,
    UploadsQuery(query): UploadsQuery,
    body: Body,
) -> Result<Json<UploadsAnswer>, Failure> {
    let request = parse_uploads(&read_body(body).await?)?;
    let named = request.named_scope(query.named_scope())?;
    let scope = call.caller.scope_for(named)?;
    let answer = call
        .service
        .request_uploads(&call.invocation, &scope, &request);
    Ok(Json(answer.await?))
}
