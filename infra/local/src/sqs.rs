//! The wire protocol of SQS (AWS JSON 1.0) over [`Queues`].
//!
//! - Queue URLs are `http://127.0.0.1:<port>/000000000000/<name>`; only the last segment is
//!   evaluated.
//! - The signature names the signer, who must be allowed by the template to do this. It is not
//!   verified, because the keys are public; a request without one is that of a client (`local`).
//! - Queues are created from the template, not by requests.
//!
//! Source: Amazon SQS API reference, and the service's Smithy model for the names of errors.

mod attributes;
mod error;
mod fields;
mod moves;
mod operations;

use std::future::Future;

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use uuid::Uuid;

use self::error::{Closed, SqsError};
use self::fields::arn;
use self::operations::Caller;
use crate::endpoint;
use crate::iam::{Access, calls_of_sqs};
use crate::identity::LOCAL;
use crate::latency::Traffic;
use crate::meter::{Counted, Service, access_key};
use crate::queues::Queues;

/// The maximum size of a request. Ten messages of 1 MiB with all characters escaped are longer, but
/// AWS accepts less.
const MAX_REQUEST_BYTES: usize = 16 * 1024 * 1024;

const TRACE_HEADER: HeaderName = HeaderName::from_static("x-amzn-trace-id");

/// Serves SQS requests on `listener` until `shutdown` resolves and the requests in progress are
/// complete.
pub async fn serve(
    listener: TcpListener,
    queues: Queues,
    traffic: impl Into<Traffic>,
    shutdown: impl Future<Output = ()> + Send,
) {
    let (closing, closed) = tokio::sync::watch::channel(false);
    let shutdown = async move {
        shutdown.await;
        // Long polls end with the endpoint.
        closing.send_replace(true);
    };
    let traffic: Traffic = traffic.into();
    let access = traffic.access.clone();
    endpoint::serve(listener, Service::Sqs, traffic, shutdown, move |request| {
        let (queues, closed, access) = (queues.clone(), closed.clone(), access.clone());
        async move { Ok(answer(queues, closed, &access, request).await) }
    })
    .await;
}

async fn answer(
    queues: Queues,
    closed: Closed,
    access: &Access,
    request: Request<Counted<Incoming>>,
) -> Response<Full<Bytes>> {
    let (status, body, code) = match handle(queues, closed, access, request).await {
        Ok(body) => (StatusCode::OK, body, None),
        Err(error) => {
            let body = json!({ "__type": error.shape, "message": error.message });
            (error.status, body, Some(error.code))
        }
    };
    let mut response = Response::new(Full::from(body.to_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/x-amz-json-1.0"),
    );
    if let Ok(id) = HeaderValue::from_str(&Uuid::new_v4().to_string()) {
        headers.insert("x-amzn-requestid", id);
    }
    // The code of the query protocol, by which some SDKs still distinguish errors.
    if let Some(code) = code
        && let Ok(code) = HeaderValue::from_str(&format!("{code};Sender"))
    {
        headers.insert("x-amzn-query-error", code);
    }
    response
}

async fn handle(
    queues: Queues,
    closed: Closed,
    access: &Access,
    request: Request<Counted<Incoming>>,
) -> Result<Value, SqsError> {
    let (parts, body) = request.into_parts();
    let operation = parts
        .headers
        .get("x-amz-target")
        .and_then(|target| target.to_str().ok())
        .and_then(|target| target.strip_prefix("AmazonSQS."))
        .unwrap_or_default()
        .to_owned();
    let host = parts
        .headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok())
        .map_or_else(|| "127.0.0.1".to_owned(), str::to_owned);
    let body = Limited::new(body, MAX_REQUEST_BYTES)
        .collect()
        .await
        .map_err(|error| {
            SqsError::new(
                "RequestEntityTooLarge",
                format!("cannot read the body: {error}"),
            )
        })?
        .to_bytes();
    let input: Value = if body.is_empty() {
        json!({})
    } else {
        serde_json::from_slice(&body).map_err(|error| {
            SqsError::new(
                "SerializationException",
                format!("the body is not JSON: {error}"),
            )
        })?
    };
    let asked = calls_of_sqs::asked(&operation, &input, arn);
    let signer = access_key(&parts.headers, &parts.uri).unwrap_or(LOCAL.access_key_id);
    access.check(Some(signer), &asked)?;
    let caller = Caller {
        host: &host,
        trace: trace_header(&parts.headers),
    };
    operations::perform(&queues, closed, caller, &operation, &input).await
}

/// The maximum length of a trace header that is kept with a message.
const MAX_TRACE_HEADER: usize = 1024;

/// Returns the trace of a request, which SQS keeps with the messages that it sends (Amazon SQS
/// developer guide, "Sending the AWS X-Ray trace header through Amazon SQS").
fn trace_header(headers: &HeaderMap) -> Option<&str> {
    let header = headers.get(TRACE_HEADER)?.to_str().ok()?;
    (header.len() <= MAX_TRACE_HEADER && header.contains("Root=")).then_some(header)
}
