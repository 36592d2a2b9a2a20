//! What no emulator does when asked: answers cut short, keys left out of a batch, conflicts. A server on loopback
//! plays them from a script.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use symdepot::adapters::aws::{DynamoRecords, S3Blobs, S3Difs};
use symdepot::cache::ItemKey;
use symdepot::domain::{Cause, Location};
use symdepot::ports::{
    BlobStore, Consistency, Created, DifError, DifReader, RecordStore, StoreErrorKind,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::backends::clients;

/// Answers one request after another from a script, and keeps what was asked. It ends with the test.
struct Script {
    url: String,
    requests: Arc<Mutex<Vec<Request>>>,
    _task: JoinSet<()>,
}

#[derive(Clone, Debug)]
struct Request {
    head: String,
    body: String,
}

impl Script {
    async fn play(answers: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let kept = requests.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            for answer in answers {
                let (mut connection, _) = listener.accept().await.unwrap();
                kept.lock().await.push(read_request(&mut connection).await);
                connection.write_all(answer.as_bytes()).await.unwrap();
                connection.shutdown().await.unwrap();
            }
        });
        Self {
            url,
            requests,
            _task: task,
        }
    }

    async fn asked(&self) -> Vec<Request> {
        self.requests.lock().await.clone()
    }
}

async fn read_request(connection: &mut TcpStream) -> Request {
    let mut bytes = Vec::new();
    loop {
        connection.read_buf(&mut bytes).await.unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let head = head.to_ascii_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
            return Request {
                head,
                body: body.to_owned(),
            };
        }
    }
}

/// Returns an HTTP answer that announces `length` bytes and ends with its connection.
fn answer(status: &str, headers: &str, length: usize, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{headers}connection: close\r\n\r\n{body}"
    )
}

fn dynamodb(body: &Value) -> String {
    let body = body.to_string();
    answer(
        "200 OK",
        "content-type: application/x-amz-json-1.0\r\n",
        body.len(),
        &body,
    )
}

fn refused(status: &str, code: &str) -> String {
    let body = format!(
        "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>scripted</Message></Error>"
    );
    answer(
        status,
        "content-type: application/xml\r\n",
        body.len(),
        &body,
    )
}

fn key(sort: &str) -> ItemKey {
    ItemKey {
        partition: "p".to_owned(),
        sort: sort.to_owned(),
    }
}

fn stored(sort: &str) -> Value {
    json!({
        "partition": {"S": "p"}, "sort": {"S": sort}, "revision": {"S": "01"}, "schema": {"N": "1"}, "type": {"S": "alias"},
        "target": {"M": {"scope": {"S": "global"}, "source": {"S": "uploads"}, "module": {"S": sort}}},
    })
}

fn left_out(sorts: &[&str]) -> Value {
    let keys: Vec<_> = sorts
        .iter()
        .map(|sort| json!({"partition": {"S": "p"}, "sort": {"S": sort}}))
        .collect();
    json!({"records": {"Keys": keys, "ConsistentRead": true}})
}

async fn records(script: &Script) -> DynamoRecords {
    DynamoRecords::new(clients(&script.url, "local").await.dynamodb, "records")
}

async fn blobs(script: &Script) -> S3Blobs {
    S3Blobs::new(clients(&script.url, "local").await.s3, "caches")
}

#[tokio::test]
async fn keys_that_a_batch_left_out_are_asked_for_again_as_strongly() {
    let script = Script::play(vec![
        dynamodb(&json!({"Responses": {"records": [stored("b")]}, "UnprocessedKeys": left_out(&["a", "c"])})),
        dynamodb(&json!({"Responses": {}, "UnprocessedKeys": left_out(&["a", "c"])})),
        dynamodb(&json!({"Responses": {"records": [stored("a")]}, "UnprocessedKeys": {}})),
    ])
    .await;
    let loaded = records(&script)
        .await
        .load(&[key("a"), key("b"), key("c")], Consistency::Strong)
        .await
        .unwrap();
    assert_eq!(
        loaded.iter().map(Option::is_some).collect::<Vec<_>>(),
        [true, true, false]
    );
    let asked = script.asked().await;
    assert_eq!(asked.len(), 3);
    for request in &asked[1..] {
        let body: Value = serde_json::from_str(&request.body).unwrap();
        assert_eq!(body["RequestItems"], left_out(&["a", "c"]));
    }
}

#[tokio::test]
async fn a_table_that_answers_nothing_again_and_again_is_taken_for_throttled() {
    let nothing = dynamodb(&json!({"Responses": {}, "UnprocessedKeys": left_out(&["a"])}));
    let script = Script::play(vec![nothing; 6]).await;
    let error = records(&script)
        .await
        .load(&[key("a")], Consistency::Eventual)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Transient);
    assert_eq!(script.asked().await.len(), 6);
}

#[tokio::test]
async fn an_answer_cut_short_is_asked_for_again() {
    let script = Script::play(vec![
        answer("200 OK", "etag: \"e\"\r\n", 10, "01234"),
        answer("200 OK", "etag: \"e\"\r\n", 10, "0123456789"),
    ])
    .await;
    let got = blobs(&script).await.get("a", None).await.unwrap();
    assert_eq!(got.as_deref(), Some(&b"0123456789"[..]));
    assert_eq!(script.asked().await.len(), 2);
}

#[tokio::test]
async fn an_answer_cut_short_three_times_fails_for_now() {
    let script = Script::play(vec![answer("200 OK", "etag: \"e\"\r\n", 10, "01234"); 3]).await;
    assert_eq!(
        blobs(&script)
            .await
            .get("a", None)
            .await
            .unwrap_err()
            .kind(),
        StoreErrorKind::Transient
    );
    assert_eq!(script.asked().await.len(), 3);
}

#[tokio::test]
async fn a_conflict_between_conditional_writes_is_tried_again() {
    let script = Script::play(vec![
        refused("409 Conflict", "ConditionalRequestConflict"),
        answer("200 OK", "etag: \"e\"\r\n", 0, ""),
    ])
    .await;
    assert_eq!(
        blobs(&script)
            .await
            .create("a", Bytes::from_static(b"x"))
            .await
            .unwrap(),
        Created::New
    );
    for request in script.asked().await {
        assert!(request.head.contains("if-none-match: *"), "{request:?}");
    }
}

#[tokio::test]
async fn a_conflict_that_does_not_end_fails_for_now() {
    let script = Script::play(vec![
        refused("409 Conflict", "ConditionalRequestConflict");
        4
    ])
    .await;
    let error = blobs(&script)
        .await
        .create("a", Bytes::from_static(b"x"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Transient);
}

#[tokio::test]
async fn a_dif_in_an_archive_is_refused_by_its_source_and_any_other_403_is_ours() {
    let script = Script::play(vec![
        refused("403 Forbidden", "InvalidObjectState"),
        refused("403 Forbidden", "AccessDenied"),
    ])
    .await;
    let difs = S3Difs::new(clients(&script.url, "local").await.s3, "uploads");
    let read = async || {
        difs.read(&Location::new("global/a"), "e", 0..1)
            .await
            .unwrap_err()
    };
    let archived = read().await;
    assert!(
        matches!(&archived, DifError::Missing(missing) if missing.cause == Cause::PermissionDenied),
        "{archived:?}"
    );
    let denied = read().await;
    assert!(
        matches!(&denied, DifError::Store(error) if error.kind() == StoreErrorKind::Denied),
        "{denied:?}"
    );
    for request in script.asked().await {
        assert!(
            request.head.contains("if-match: \"e\"") && request.head.contains("range: bytes=0-0"),
            "{request:?}"
        );
    }
}
