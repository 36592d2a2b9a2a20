//! The reply of the function: a response in the form that the gateway receives.

use std::sync::Arc;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use lambda_http::aws_lambda_events::apigw::ApiGatewayV2httpResponse;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::summary::ResponseFacts;

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
    pub(crate) async fn of(response: Response) -> (Self, ResponseFacts) {
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
