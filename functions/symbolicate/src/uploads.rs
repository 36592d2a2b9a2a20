//! Uploads: which of a client's files the service needs, and how to send them.

use axum::Json;
use axum::body::Body;
use symdepot::api::limits;
use symdepot::api::symbolicator::RequestError;
use symdepot::api::uploads::{UploadsAnswer, parse_uploads};

use crate::extract::Call;
use crate::failure::Failure;

/// Serves `POST /uploads`.
pub(crate) async fn request_uploads(
    call: Call,
    body: Body,
) -> Result<Json<UploadsAnswer>, Failure> {
    let body = axum::body::to_bytes(body, limits::BODY_BYTES).await;
    let body = body.map_err(|_| RequestError::TooLong {
        what: "the body",
        limit: limits::BODY_BYTES,
    })?;
    let request = parse_uploads(&body)?;
    let answer = call
        .symbolicator
        .request_uploads(&call.invocation, &request);
    Ok(Json(answer.await?))
}
