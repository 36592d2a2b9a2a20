//! An HTTP/1.1 server on a listener. It refuses requests of web pages, counts all others, delays
//! the responses to functions, and closes every connection when the endpoint ends.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, EXPECT};
use http::{HeaderValue, Request, Response};
use http_body_util::Either;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;

use crate::connections::{Connection, accept};
use crate::guard::Guard;
use crate::latency::Traffic;
use crate::meter::{Counted, Service};

/// How long requests in progress may take after the shutdown.
const LAST_REQUESTS: Duration = Duration::from_secs(5);

/// The reason why a connection is closed without a response.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Broken(pub(crate) Box<dyn std::error::Error + Send + Sync>);

/// Returns whether a request asks for the interim response `100 Continue`, which hyper sends only
/// if there is a body. S3 sends it without one, too. botocore does not use a connection correctly
/// after it has waited for it without receiving it, so that one is closed.
fn expects_without_body<B: Body>(request: &Request<B>) -> bool {
    request.headers().contains_key(EXPECT) && request.body().is_end_stream()
}

/// Answers requests with `handler` until `shutdown` resolves.
pub(crate) async fn serve<H, F, B>(
    listener: TcpListener,
    service: Service,
    traffic: Traffic,
    shutdown: impl Future<Output = ()> + Send,
    handler: H,
) where
    H: Fn(Request<Counted<Incoming>>) -> F + Clone + Send + 'static,
    F: Future<Output = Result<Response<B>, Broken>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let graceful = GracefulShutdown::new();
    let mut connections = accept(listener, shutdown, |Connection { stream, port, .. }| {
        let (traffic, handler) = (traffic.clone(), handler.clone());
        let answer = service_fn(move |request: Request<Incoming>| {
            if let Err(refusal) = traffic.guard.check(port, &request) {
                let refused = Ok(refusal.response().map(Either::Right));
                return futures::future::Either::Left(std::future::ready(refused));
            }
            let expects_without_body = expects_without_body(&request);
            let call = traffic.meter.begin(service, &request);
            let latency = traffic.latency.of(service);
            let answer = handler(request.map(|body| call.request(body)));
            futures::future::Either::Right(async move {
                let answered = answer.await;
                if call.is_function() && !latency.is_zero() {
                    // Tokio's timer has a resolution of one millisecond and fires up to two
                    // milliseconds late.
                    async_io::Timer::at((call.begun() + latency).into_std()).await;
                }
                match answered {
                    Ok(mut response) => {
                        Guard::strip_cors(response.headers_mut());
                        if expects_without_body {
                            let close = HeaderValue::from_static("close");
                            response.headers_mut().insert(CONNECTION, close);
                        }
                        Ok(call.response(response).map(Either::Left))
                    }
                    Err(error) => {
                        call.failed();
                        Err(error)
                    }
                }
            })
        });
        let connection =
            graceful.watch(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
        async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection failed");
            }
        }
    })
    .await;
    if tokio::time::timeout(LAST_REQUESTS, graceful.shutdown())
        .await
        .is_err()
    {
        tracing::debug!("endpoint closed with requests in progress");
    }
    connections.shutdown().await;
}
