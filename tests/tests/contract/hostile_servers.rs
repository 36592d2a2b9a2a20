//! Symbol servers that misbehave before a file arrives, or instead of it. Each request fails with
//! what happened, in time and in bounded memory, and the next request to the same server succeeds.

use std::time::Duration;

use serde_json::{Value, json};
use symdepot::adapters::http::{HttpServers, TimeLimits};
use symdepot::domain::{Cause, ConfiguredSource, HttpSource, Missing};
use symdepot::ports::{ListQuery, SymbolServers};
use symdepot_tests::hostile_server::{Behavior, HostileServer};

use crate::fetching::fetch;

/// A time limit for an answer that tests can wait for.
const ANSWER: Duration = Duration::from_millis(800);

/// What a request says that reached this limit.
const LATE: &str = "did not answer within 0.8 s";

/// The pause between two bytes of a slow response: much shorter than the limit for silence.
const PAUSE: Duration = Duration::from_millis(20);

/// Returns a client with this limit. The others stay as they are, so that a busy machine does not
/// reach them first.
fn impatient() -> HttpServers {
    HttpServers::new(true).with_time_limits(TimeLimits {
        answer: ANSWER,
        ..TimeLimits::default()
    })
}

fn source(json: Value) -> HttpSource {
    let ConfiguredSource(source) = serde_json::from_value(json).unwrap();
    source
}

/// Lists the files of a module.
async fn list(servers: &HttpServers, url: &str) -> Result<usize, Missing> {
    let source = source(json!({"type": "sentry", "id": "sentry", "url": url, "token": "sesame"}));
    let key = source.configured_key();
    let query = ListQuery {
        key: &key,
        source: &source,
        debug_id: None,
        code_id: None,
    };
    let listed = servers.list(query).await;
    listed
        .map(|files| files.len())
        .map_err(|failure| failure.missing)
}

fn good() -> (&'static str, Behavior) {
    ("/good", Behavior::file("", b"file"))
}

#[tokio::test]
async fn a_head_that_arrives_byte_by_byte_is_a_timeout() {
    let head = b"HTTP/1.1 200 OK\r\nx-never-ends: ".to_vec();
    let slow = Behavior::Endless(head, b"a".to_vec(), PAUSE);
    let server = HostileServer::start(vec![("/slow", slow), good()])
        .await
        .unwrap();
    let source = source(json!({"type": "http", "id": "a", "url": server.url()}));
    let (slow, good) = (
        format!("{}/slow", server.url()),
        format!("{}/good", server.url()),
    );
    let missing = fetch(&impatient(), &source, &slow).await.unwrap_err();
    assert_eq!(missing.cause, Cause::Timeout, "{missing:?}");
    assert!(missing.detail.contains(LATE), "{missing:?}");
    assert_eq!(server.asked().len(), 1, "a timeout is not retried");
    let servers = HttpServers::new(true);
    assert_eq!(fetch(&servers, &source, &good).await.unwrap(), b"file");
}

/// Each redirect is answered within the limit, but not all together.
#[tokio::test]
async fn redirects_share_one_time_limit() {
    let hop = b"HTTP/1.1 302 Found\r\nlocation: /next\r\ncontent-length: 0\r\n\r\n";
    let late = Behavior::Late(hop.to_vec(), ANSWER * 3 / 8);
    let server = HostileServer::start(vec![("/", late)]).await.unwrap();
    let url = server.url();
    let source = source(json!({"type": "http", "id": "a", "url": url}));
    let missing = fetch(&impatient(), &source, &format!("{url}/a"))
        .await
        .unwrap_err();
    assert_eq!(missing.cause, Cause::Timeout);
    assert!(missing.detail.contains(LATE), "{missing:?}");
}

#[tokio::test]
async fn a_listing_that_is_slow_endless_or_too_long_fails_with_the_reason() {
    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";
    let entry = br#"{"id": "1", "symbolType": "elf"},"#;
    let million = [&b"["[..], &entry.repeat(1_000_000), br#"{"id": "1"}]"#].concat();
    let length = million.len() as u64;
    let server = HostileServer::start(vec![
        (
            "/slow",
            Behavior::Endless(HEAD.to_vec(), b"[".to_vec(), PAUSE),
        ),
        (
            "/endless",
            Behavior::Endless(HEAD.to_vec(), entry.repeat(1000), Duration::ZERO),
        ),
        ("/million", Behavior::file("", &million)),
        (
            "/deep",
            Behavior::file("", "[".repeat(1_000_000).as_bytes()),
        ),
        (
            "/good",
            Behavior::file("", br#"[{"id": "7", "symbolType": "elf"}]"#),
        ),
    ])
    .await
    .unwrap();
    let (servers, impatient) = (HttpServers::new(true), impatient());
    let too_long = "longer than 1048576 bytes";
    for (path, client, cause, says) in [
        ("slow", &impatient, Cause::Timeout, LATE),
        ("endless", &servers, Cause::Malformed, too_long),
        ("million", &servers, Cause::Malformed, too_long),
        (
            "deep",
            &servers,
            Cause::DownloadFailed,
            "the listing is malformed",
        ),
    ] {
        let before = server.sent();
        let missing = list(client, &format!("{}/{path}/", server.url())).await;
        let missing = missing.unwrap_err();
        assert_eq!(missing.cause, cause, "{path}: {missing:?}");
        assert!(missing.detail.contains(says), "{path}: {missing:?}");
        // What is not read is not sent, except into the buffers of the connection.
        assert!(server.sent() - before < length / 2, "{path}");
        let good = list(&servers, &format!("{}/good/", server.url())).await;
        assert_eq!(good.unwrap(), 1, "after {path}");
    }
}

#[tokio::test]
async fn a_length_that_is_wrong_and_a_range_that_was_not_requested_fail() {
    let response = |status: &str, headers: &str| Behavior::response(status, headers, b"file");
    let server = HostileServer::start(vec![
        ("/short", response("200 OK", "content-length: 400\r\n")),
        (
            "/two",
            response("200 OK", "content-length: 4\r\ncontent-length: 5\r\n"),
        ),
        ("/negative", response("200 OK", "content-length: -4\r\n")),
        (
            "/huge",
            response("200 OK", "content-length: 99999999999999999999\r\n"),
        ),
        (
            "/chunks",
            response("200 OK", "transfer-encoding: chunked\r\n"),
        ),
        (
            "/range",
            response(
                "206 Partial Content",
                "content-length: 4\r\ncontent-range: bytes 0-3/9\r\n",
            ),
        ),
        good(),
    ])
    .await
    .unwrap();
    let servers = HttpServers::new(true);
    let source = source(json!({"type": "http", "id": "a", "url": server.url()}));
    for (path, says) in [
        ("short", "closed the connection while sending"),
        ("two", "cannot be reached"),
        ("negative", "cannot be reached"),
        ("huge", "cannot be reached"),
        ("chunks", "closed the connection while sending"),
        ("range", "206 Partial Content"),
    ] {
        let location = format!("{}/{path}", server.url());
        let missing = fetch(&servers, &source, &location).await.unwrap_err();
        assert_eq!(missing.cause, Cause::DownloadFailed, "{path}: {missing:?}");
        assert!(missing.detail.contains(says), "{path}: {missing:?}");
        let location = format!("{}/good", server.url());
        assert_eq!(
            fetch(&servers, &source, &location).await.unwrap(),
            b"file",
            "after {path}"
        );
    }
    // More bytes than announced do not belong to the file.
    let long = HostileServer::start(vec![("/", response("200 OK", "content-length: 2\r\n"))]);
    let long = long.await.unwrap();
    let source = self::source(json!({"type": "http", "id": "a", "url": long.url()}));
    let location = format!("{}/a", long.url());
    assert_eq!(fetch(&servers, &source, &location).await.unwrap(), b"fi");
}

/// A bucket at a private endpoint, which the operator allowed, may not redirect to another private
/// address.
#[tokio::test]
async fn a_signed_address_of_a_bucket_cannot_redirect_to_another_private_address() {
    let other = HostileServer::start(vec![good()]).await.unwrap();
    let port = other.url().rsplit(':').next().unwrap().to_owned();
    for target in [
        other.url().to_owned(),
        format!("http://localhost:{port}"),
        format!("http://[::1]:{port}"),
        "http://169.254.169.254/latest/meta-data".to_owned(),
        "http://10.0.0.1".to_owned(),
    ] {
        let redirect = Behavior::redirect(&format!("{target}/good"));
        let server = HostileServer::start(vec![("/redirect", redirect), good()]);
        let server = server.await.unwrap();
        let source = source(json!({
            "type": "s3", "id": "a", "bucket": "symbols", "region": ["us-east-1", server.url()],
            "access_key": "AKIA", "secret_key": "sesame", "is_private": true,
        }));
        let servers = HttpServers::new(false);
        let refused = fetch(&servers, &source, "s3://symbols/redirect")
            .await
            .unwrap_err();
        assert_eq!(
            refused.cause,
            Cause::PermissionDenied,
            "{target}: {refused:?}"
        );
        assert!(
            refused.detail.contains("private network"),
            "{target}: {refused:?}"
        );
        assert!(!refused.detail.contains("X-Amz"), "{target}: {refused:?}");
        assert!(
            server.asked()[0].contains("X-Amz-Signature="),
            "{:?}",
            server.asked()
        );
        let found = fetch(&servers, &source, "s3://symbols/good").await;
        assert_eq!(found.unwrap(), b"file", "after {target}");
    }
    assert_eq!(other.asked(), [""; 0]);
}
