//! The Lambda runtime API of one function process.
//!
//! Source: AWS Lambda developer guide, "Using the Lambda runtime API for custom runtimes" (version
//! 2018-06-01). Each process has a listener of its own, as each sandbox has, so a request does not
//! need to identify its process. A web page that tries all ports of 127.0.0.1 finds the listener.
//! The guard ([`crate::guard`]) refuses it; otherwise it would receive events.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use super::error::FunctionError;
use crate::connections::{Connection, accept};
use crate::functions::quotas::MAX_ANSWER;
use crate::guard::Guard;

/// An event for a process.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) request_id: String,
    pub(super) deadline_ms: u64,
    pub(super) function_arn: Arc<str>,
    pub(super) trace_id: String,
    pub(super) payload: Bytes,
}

/// A request of a process.
#[derive(Debug)]
pub(super) enum Asked {
    /// The process waits for an event. Dropping the sender refuses the request.
    Next(oneshot::Sender<Event>),
    /// The process has finished the invocation `request_id`. The sender receives whether this
    /// invocation was open.
    Finished {
        request_id: String,
        outcome: Result<Bytes, FunctionError>,
        open: oneshot::Sender<bool>,
    },
    /// The process could not initialize.
    InitFailed(FunctionError),
}

/// Serves requests on `listener` until this future is dropped; each request is sent to `asked`.
pub(super) async fn serve(listener: TcpListener, asked: mpsc::Sender<Asked>) {
    let until_dropped = std::future::pending();
    accept(
        listener,
        until_dropped,
        |Connection { stream, port, .. }| {
            let asked = asked.clone();
            let service = service_fn(move |request| {
                let asked = asked.clone();
                async move {
                    // Web pages are refused here; a function process uses 127.0.0.1.
                    if let Err(refusal) = Guard::default().check(port, &request) {
                        return Ok::<_, Infallible>(refusal.response());
                    }
                    Ok(answer(request, &asked).await)
                }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            async move {
                let _ = connection.await;
            }
        },
    )
    .await;
}

async fn answer(request: Request<Incoming>, asked: &mpsc::Sender<Asked>) -> Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    let Some(path) = parts.uri.path().strip_prefix("/2018-06-01/runtime/") else {
        return refusal(
            StatusCode::NOT_FOUND,
            "NotFound",
            "the runtime API has no such path",
        );
    };
    let segments: Vec<&str> = path.split('/').collect();
    match (&parts.method, segments.as_slice()) {
        (&Method::GET, ["invocation", "next"]) => next(asked).await,
        (&Method::POST, ["invocation", id, "response"]) => {
            let outcome = match collect(body, MAX_ANSWER).await {
                Ok(Some(bytes)) => Ok(bytes),
                Ok(None) => Err(FunctionError::answer_too_large()),
                Err(()) => {
                    return refusal(
                        StatusCode::BAD_REQUEST,
                        "BodyReadFailed",
                        "the body ended early",
                    );
                }
            };
            finished((*id).to_owned(), outcome, asked).await
        }
        (&Method::POST, ["invocation", id, "error"]) => {
            let error = reported(&parts.headers, body).await;
            finished((*id).to_owned(), Err(error), asked).await
        }
        (&Method::POST, ["init", "error"]) => {
            let error = reported(&parts.headers, body).await;
            let _ = asked.send(Asked::InitFailed(error)).await;
            accepted()
        }
        _ => refusal(
            StatusCode::NOT_FOUND,
            "NotFound",
            "the runtime API has no such path",
        ),
    }
}

async fn next(asked: &mpsc::Sender<Asked>) -> Response<Full<Bytes>> {
    let (sender, receiver) = oneshot::channel();
    let _ = asked.send(Asked::Next(sender)).await;
    let Ok(event) = receiver.await else {
        let message = "the last event has no response yet, or the process is being ended";
        return refusal(StatusCode::FORBIDDEN, "InvalidStateTransition", message);
    };
    Response::builder()
        .header("content-type", "application/json")
        .header("lambda-runtime-aws-request-id", event.request_id)
        .header("lambda-runtime-deadline-ms", event.deadline_ms)
        .header(
            "lambda-runtime-invoked-function-arn",
            event.function_arn.as_ref(),
        )
        .header("lambda-runtime-trace-id", event.trace_id)
        .body(Full::new(event.payload))
        .unwrap_or_else(|_| {
            refusal(
                StatusCode::INTERNAL_SERVER_ERROR,
                "BadEvent",
                "the event has an invalid header",
            )
        })
}

async fn finished(
    request_id: String,
    outcome: Result<Bytes, FunctionError>,
    asked: &mpsc::Sender<Asked>,
) -> Response<Full<Bytes>> {
    let too_large = matches!(&outcome, Err(error) if error.is_answer_too_large());
    let (open, was_open) = oneshot::channel();
    let _ = asked
        .send(Asked::Finished {
            request_id,
            outcome,
            open,
        })
        .await;
    match was_open.await {
        Ok(true) if too_large => {
            let message = format!("Exceeded maximum allowed payload size ({MAX_ANSWER} bytes).");
            refusal(
                StatusCode::PAYLOAD_TOO_LARGE,
                "RequestEntityTooLarge",
                &message,
            )
        }
        Ok(true) => accepted(),
        _ => refusal(
            StatusCode::BAD_REQUEST,
            "InvalidRequestID",
            "Invalid request ID",
        ),
    }
}

/// Reads the error in a request's body: `{"errorMessage", "errorType"}`.
async fn reported(headers: &HeaderMap, body: Incoming) -> FunctionError {
    let bytes = collect(body, MAX_ANSWER)
        .await
        .ok()
        .flatten()
        .unwrap_or_default();
    let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let field = |name: &str| {
        value
            .get(name)
            .and_then(serde_json::Value::as_str)
            .map(str::to_owned)
    };
    let header = || {
        headers
            .get("lambda-runtime-function-error-type")?
            .to_str()
            .ok()
            .map(str::to_owned)
    };
    let error_type = field("errorType")
        .or_else(header)
        .unwrap_or_else(|| "Unhandled".to_owned());
    let message =
        field("errorMessage").unwrap_or_else(|| String::from_utf8_lossy(&bytes).into_owned());
    FunctionError::reported(error_type, message)
}

/// Returns the whole body; `None` if it is longer than `limit`. A body that is too long is read to
/// its end, because a client may not read the response before it has written its body.
async fn collect(body: Incoming, limit: usize) -> Result<Option<Bytes>, ()> {
    let declared = body.size_hint().lower();
    if declared <= u64::try_from(limit).unwrap_or(u64::MAX) {
        let mut body = Limited::new(body, limit);
        let mut collected = bytes::BytesMut::with_capacity(usize::try_from(declared).unwrap_or(0));
        loop {
            match body.frame().await {
                None => return Ok(Some(collected.freeze())),
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        collected.extend_from_slice(data);
                    }
                }
                Some(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
                    return Ok(None);
                }
                Some(Err(_)) => return Err(()),
            }
        }
    }
    let mut body = body;
    while let Some(frame) = body.frame().await {
        frame.map_err(drop)?;
    }
    Ok(None)
}

fn accepted() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(br#"{"status":"OK"}"#)));
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}

fn refusal(status: StatusCode, error_type: &str, message: &str) -> Response<Full<Bytes>> {
    let body = json!({ "errorMessage": message, "errorType": error_type }).to_string();
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    /// Requests an event with these headers and returns the first line of the response.
    async fn ask(port: u16, headers: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let request = format!(
            "GET /2018-06-01/runtime/invocation/next HTTP/1.1\r\n{headers}connection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.lines().next().unwrap_or_default().to_owned()
    }

    /// An event contains a client's complete request (docs/security.md, F13).
    #[tokio::test]
    async fn no_web_page_gets_an_event() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, mut asked) = mpsc::channel(8);
        let server = tokio::spawn(serve(listener, sender));
        for (headers, status) in [
            (format!("host: evil.example:{port}\r\n"), 421),
            (
                format!("host: 127.0.0.1:{port}\r\norigin: http://127.0.0.1:{port}\r\n"),
                403,
            ),
            (
                format!("host: 127.0.0.1:{port}\r\nsec-fetch-site: cross-site\r\n"),
                403,
            ),
        ] {
            let line = ask(port, &headers).await;
            assert!(line.contains(&status.to_string()), "{headers}: {line}");
        }
        assert!(asked.try_recv().is_err());

        let function = format!("host: 127.0.0.1:{port}\r\n");
        let give = async {
            let Some(Asked::Next(next)) = asked.recv().await else {
                panic!("the function did not request an event");
            };
            let event = Event {
                request_id: "id".to_owned(),
                deadline_ms: 0,
                function_arn: "arn".into(),
                trace_id: "trace".to_owned(),
                payload: Bytes::from_static(b"{}"),
            };
            next.send(event).unwrap();
        };
        let (line, ()) = tokio::join!(ask(port, &function), give);
        assert!(line.contains("200"), "{line}");
        server.abort();
    }
}
