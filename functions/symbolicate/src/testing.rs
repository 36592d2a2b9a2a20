//! The function in a test: one event, one response, over any stores.

use axum::http::{HeaderMap, HeaderValue, header};
use serde_json::Value;
use symdepot::flows::HttpService;
use symdepot::flows::Invocation;
use symdepot::runtime::Traces;

use crate::handler::{self, Panicked, RoutedService};
use crate::reply::Reply;

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
    service: HttpService,
    invocation: Invocation,
    event: &Value,
) -> Result<Answer, serde_json::Error> {
    let request = lambda_http::request::from_str(&event.to_string())?;
    let service = RoutedService::new(service);
    // What the gateway makes of it.
    let traces = Traces::default();
    let handled = handler::handle(&service, &traces, invocation, request);
    Ok(match handled.await {
        Err(Panicked) => Answer {
            status: 500,
            headers: HeaderMap::new(),
            body: br#"{"message":"Internal Server Error"}"#.to_vec(),
        },
        Ok(Reply::Json(json)) => Answer {
            status: 200,
            headers: [(
                header::CONTENT_TYPE,
                HeaderValue::from_static("application/json"),
            )]
            .into_iter()
            .collect(),
            body: json.text().as_bytes().to_vec(),
        },
        Ok(Reply::Whole(whole)) => Answer {
            status: u16::try_from(whole.status_code).unwrap_or_default(),
            headers: whole.headers,
            body: whole.body.map(|body| body.to_vec()).unwrap_or_default(),
        },
    })
}
