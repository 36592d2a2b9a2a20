//! The gateway over HTTP, in front of the probe function.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue panics")]

mod client;
mod project;

use std::time::Duration;

use bytes::Bytes;
use client::{ask, send};
use http::{Request, Response};
use local_stack::stack::{Options, Running, Stack};
use project::write_project;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn start(change: impl FnOnce(&mut Options)) -> (Running, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let (template, functions) = write_project(folder.path());
    let mut options = Options::new(template, functions, folder.path().join("data"));
    change(&mut options);
    (Stack::start(options).await.unwrap(), folder)
}

async fn get(running: &Running, path: &str) -> Response<Bytes> {
    send(
        &running.addresses().gateway,
        Request::get(path).body(Bytes::new()).unwrap(),
    )
    .await
}

fn json_of(response: &Response<Bytes>) -> Value {
    serde_json::from_slice(response.body()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_becomes_an_event_of_payload_format_two() {
    let (running, _folder) = start(|_| {}).await;
    let request = Request::post("/echo/a%20b?x=1&x=2")
        .header("content-type", "application/json")
        .header("user-agent", "test/1")
        .header("X-Several", "one")
        .header("X-Several", "two")
        .header("cookie", "a=1; b=2")
        .body(Bytes::from_static(br#"{"hello":1}"#))
        .unwrap();
    let response = send(&running.addresses().gateway, request).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/json");
    assert!(response.headers().contains_key("apigw-requestid"));
    let event = json_of(&response);
    assert_eq!(event["version"], "2.0");
    assert_eq!(event["routeKey"], "$default");
    assert_eq!(event["rawPath"], "/echo/a b");
    assert_eq!(event["rawQueryString"], "x=1&x=2");
    assert_eq!(event["queryStringParameters"], json!({ "x": "1,2" }));
    assert_eq!(event["cookies"], json!(["a=1", "b=2"]));
    assert_eq!(event["headers"]["x-several"], "one,two");
    assert_eq!(event["headers"]["content-length"], "11");
    assert_eq!(event["headers"]["x-forwarded-for"], "127.0.0.1");
    assert_eq!(event["body"], r#"{"hello":1}"#);
    assert_eq!(event["isBase64Encoded"], false);
    let context = &event["requestContext"];
    assert_eq!(context["http"]["method"], "POST");
    assert_eq!(context["http"]["path"], "/echo/a b");
    assert_eq!(context["http"]["sourceIp"], "127.0.0.1");
    assert_eq!(context["http"]["userAgent"], "test/1");
    assert_eq!(context["stage"], "$default");
    assert_eq!(context["accountId"], "000000000000");
    assert!(context["timeEpoch"].as_u64().unwrap() > 1_600_000_000_000);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_result_of_a_function_becomes_a_response() {
    let (running, _folder) = start(|_| {}).await;
    let response = get(&running, "/status/418").await;
    assert_eq!(response.status(), 418);
    assert_eq!(response.headers()["x-probe"], "yes");
    let cookies: Vec<_> = response.headers().get_all("set-cookie").iter().collect();
    assert_eq!(cookies, ["a=1", "b=2"]);
    assert_eq!(response.body().as_ref(), b"told");

    assert_eq!(
        get(&running, "/binary").await.body().as_ref(),
        [0x00, 0xff, 0x10]
    );

    let plain = get(&running, "/plain").await;
    assert_eq!(
        (plain.status().as_u16(), json_of(&plain)),
        (200, json!({ "hello": "world" }))
    );
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_key_of_another_start_is_refused_with_where_to_read_the_right_one() {
    let (running, _folder) = start(|_| {}).await;
    let request = Request::get("/plain")
        .header("x-local-operator", "of an earlier start")
        .body(Bytes::new())
        .unwrap();
    let response = send(&running.addresses().gateway, request).await;
    assert_eq!(response.status(), 401);
    let message = json_of(&response)["message"].to_string();
    assert!(message.contains("read it again in stack.json"), "{message}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_that_fails_is_an_internal_error_without_details() {
    let (running, _folder) = start(|_| {}).await;
    for path in ["/error", "/crash", "/large"] {
        let response = get(&running, path).await;
        assert_eq!(response.status(), 500, "{path}");
        assert_eq!(
            json_of(&response),
            json!({ "message": "Internal Server Error" }),
            "{path}"
        );
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_that_exceeds_the_integration_timeout_is_unavailable() {
    let (running, _folder) =
        start(|options| options.integration_timeout = Duration::from_millis(200)).await;
    let response = get(&running, "/hang").await;
    assert_eq!(response.status(), 503);
    assert_eq!(
        json_of(&response),
        json!({ "message": "Service Unavailable" })
    );
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_over_the_limits_are_refused() {
    let (running, _folder) = start(|_| {}).await;
    let post = |bytes: usize| {
        let body = Bytes::from(vec![b'x'; bytes]);
        send(
            &running.addresses().gateway,
            Request::post("/status/200").body(body).unwrap(),
        )
    };
    // First over the gateway's own limit; then under it, but in base64 over Lambda's.
    for bytes in [10 * 1024 * 1024 + 1, 5 * 1024 * 1024] {
        let response = post(bytes).await;
        assert_eq!(response.status(), 413, "{bytes}");
        assert_eq!(
            json_of(&response),
            json!({ "message": "Request Entity Too Large" })
        );
    }
    assert_eq!(post(4 * 1024 * 1024).await.status(), 200);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_request_line_and_long_headers_are_refused_together() {
    let (running, _folder) = start(|_| {}).await;
    for (in_query, in_header, expected) in [
        (0, 9_000, 200),
        (9_000, 0, 200),
        (0, 10_240, 431),
        (10_240, 0, 431),
        (6_000, 6_000, 431),
    ] {
        let request = Request::get(format!("/echo?long={}", "x".repeat(in_query)))
            .header("x-long", "x".repeat(in_header))
            .body(Bytes::new())
            .unwrap();
        let response = send(&running.addresses().gateway, request).await;
        let shown = format!("{in_query} bytes of query, {in_header} bytes of header");
        assert_eq!(response.status(), expected, "{shown}");
    }
    running.stop().await;
}

/// Sends a request line as it is, and returns the first line of the response.
async fn status_line(running: &Running, request_line: &str) -> String {
    let gateway = &running.addresses().gateway;
    let address = gateway.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{request_line}\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await.unwrap();
    let response = String::from_utf8_lossy(&response).into_owned();
    response.lines().next().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_target_without_a_path_is_a_bad_request() {
    let (running, _folder) = start(|_| {}).await;
    for request_line in ["OPTIONS * HTTP/1.1", "GET * HTTP/1.1"] {
        let status = status_line(&running, request_line).await;
        assert_eq!(status, "HTTP/1.1 400 Bad Request", "{request_line}");
    }
    let address = format!("GET {}/plain HTTP/1.1", running.addresses().gateway);
    assert_eq!(status_line(&running, &address).await, "HTTP/1.1 200 OK");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_with_an_encoded_slash_is_not_found_in_place_of_another_path() {
    let (running, _folder) = start(|_| {}).await;
    for path in ["/scope/a%2Fb/healthcheck", "//scope/a%2fb/x", "/echo%2Fa"] {
        let response = get(&running, path).await;
        assert_eq!(response.status(), 404, "{path}");
        let message = json_of(&response)["message"].to_string();
        assert!(message.contains("%2F"), "{message}");
    }
    // The function sees an encoded percent sign as one.
    let twice = get(&running, "/echo/a%252Fb").await;
    assert_eq!(json_of(&twice)["rawPath"], "/echo/a%2Fb");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_response_to_an_unknown_control_path_lists_the_existing_ones() {
    let (running, _folder) = start(|_| {}).await;
    let (status, answer) = ask(&running.addresses().gateway, "GET", "/_local/nonsense").await;
    assert_eq!(status, 404);
    assert!(
        answer["paths"]
            .as_array()
            .unwrap()
            .iter()
            .any(|path| path.as_str().unwrap().contains("/_local/idle"))
    );
    assert_eq!(get(&running, "/_localhost").await.status(), 200);
    running.stop().await;
}
