//! The function in a test: one event, one response, over any stores.

use axum::http::HeaderMap;
use lambda_http::IntoResponse;
use serde_json::Value;
use symdepot::flows::Invocation;
use symdepot::flows::symbolicate::Symbolicator;

use crate::handler::{self, Service};

/// A response of the function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Vec<u8>,
}

/// Returns the response to an event of the gateway.
///
/// # Errors
///
/// The event is no event of an HTTP API.
pub async fn answer(
    symbolicator: Symbolicator,
    invocation: Invocation,
    event: &Value,
) -> Result<Answer, serde_json::Error> {
    let request = lambda_http::request::from_str(&event.to_string())?;
    let service = Service::new(symbolicator);
    let reply = handler::handle(&service, invocation, request).await;
    let (parts, body) = reply.into_response().await.into_parts();
    Ok(Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: body.to_vec(),
    })
}
