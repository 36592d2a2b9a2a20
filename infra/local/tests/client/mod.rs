//! A plain HTTP client.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// Sends a request to `base` (`http://127.0.0.1:…`) over a connection of its own.
pub(crate) async fn send(base: &str, request: Request<Bytes>) -> Response<Bytes> {
    let address = base.strip_prefix("http://").unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let (mut parts, body) = request.into_parts();
    parts
        .headers
        .entry("host")
        .or_insert_with(|| address.parse().unwrap());
    let response = sender
        .send_request(Request::from_parts(parts, Full::new(body)))
        .await
        .unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    drop(sender);
    let _ = connection.await;
    Response::from_parts(parts, body)
}

/// Sends a request without headers or body; returns the status and the JSON body.
pub(crate) async fn ask(base: &str, method: &str, path: &str) -> (u16, Value) {
    let response = send(
        base,
        Request::builder()
            .method(method)
            .uri(path)
            .body(Bytes::new())
            .unwrap(),
    )
    .await;
    let json = serde_json::from_slice(response.body()).unwrap_or_default();
    (response.status().as_u16(), json)
}
