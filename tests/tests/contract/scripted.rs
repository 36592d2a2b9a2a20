//! Responses that emulators do not produce on demand: truncated responses, keys left out of a
//! batch, conflicts. A server on loopback sends them from a script.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use symdepot::adapters::aws::{DynamoRecords, QueueUrls, S3Blobs, S3Difs, SqsQueues};
use symdepot::cache::{
    Alias, Converter, Item, ItemKey, Kind, ModuleKey, Queue, Revision, Stored, Token,
};
use symdepot::domain::{Cause, Location, Scope, SourceKey};
use symdepot::ports::{
    BlobStore, Consistency, Created, DifError, DifReader, Fault, FaultKind, QueueMessage, Queues,
    RecordStore, Segment,
};

use crate::backends::clients;
use crate::script::{Request, Script, answer};

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

/// Returns an S3 error response to `HeadObject` or `HeadBucket`, which has a status and no body.
fn refused_head(status: &str) -> String {
    answer(status, "", 0, "")
}

/// Returns an error response of DynamoDB or SQS.
fn refused_json(status: &str, code: &str) -> String {
    let body =
        json!({"__type": format!("com.amazonaws#{code}"), "message": "scripted"}).to_string();
    let headers = "content-type: application/x-amz-json-1.0\r\n";
    answer(status, headers, body.len(), &body)
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

async fn difs(script: &Script) -> S3Difs {
    S3Difs::new(clients(&script.url, "local").await.s3, "uploads")
}

/// Returns the kind of a store's fault; panics if the error says that the DIF is missing.
fn fault(error: DifError) -> FaultKind {
    match error {
        DifError::Fault(error) => error.kind(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn each_of_250_keys_is_requested_once_in_batches_of_100() {
    let nothing = dynamodb(&json!({"Responses": {}, "UnprocessedKeys": {}}));
    let script = Script::play(vec![nothing; 3]).await;
    let keys: Vec<ItemKey> = (0..250).map(|number| key(&number.to_string())).collect();
    let loaded = records(&script)
        .await
        .load(&keys, Consistency::Strong)
        .await;
    assert_eq!(loaded.unwrap(), vec![None; 250]);
    let asked: Vec<Vec<String>> = script.asked().await.iter().map(sorts).collect();
    let mut sizes: Vec<usize> = asked.iter().map(Vec::len).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [50, 100, 100]);
    let different: BTreeSet<String> = asked.into_iter().flatten().collect();
    assert_eq!(different.len(), 250);
}

/// Returns the sort keys that a `BatchGetItem` requests.
fn sorts(request: &Request) -> Vec<String> {
    let body: Value = serde_json::from_str(&request.body).unwrap();
    let keys = body["RequestItems"]["records"]["Keys"].as_array().unwrap();
    let sort = |key: &Value| key["sort"]["S"].as_str().unwrap().to_owned();
    keys.iter().map(sort).collect()
}

#[tokio::test]
async fn a_nonexistent_key_is_absent_and_a_denied_one_is_a_fault() {
    let script = Script::play(vec![
        refused("404 Not Found", "NoSuchKey"),
        refused("403 Forbidden", "AccessDenied"),
        refused("403 Forbidden", "AllAccessDisabled"),
    ])
    .await;
    let blobs = blobs(&script).await;
    assert_eq!(blobs.get("a", None).await.unwrap(), None);
    for _ in 0..2 {
        let error = blobs.get("a", None).await.unwrap_err();
        assert_eq!(error.kind(), FaultKind::Denied, "{error}");
    }

    let script = Script::play(vec![
        // The key does not exist, and its bucket does.
        refused_head("404 Not Found"),
        answer("200 OK", "", 0, ""),
        // The response to the key is 404, but access to its bucket is denied.
        refused_head("404 Not Found"),
        refused_head("403 Forbidden"),
        refused_head("403 Forbidden"),
    ])
    .await;
    let difs = difs(&script).await;
    let location = Location::new("global/a");
    let absent = difs.stat(&location).await.unwrap_err();
    assert!(
        matches!(&absent, DifError::Missing(missing) if missing.cause == Cause::NotFound),
        "{absent:?}"
    );
    for _ in 0..2 {
        let denied = fault(difs.stat(&location).await.unwrap_err());
        assert_eq!(denied, FaultKind::Denied);
    }

    let denied = refused_json("400 Bad Request", "AccessDeniedException");
    let script = Script::play(vec![denied; 2]).await;
    let records = records(&script).await;
    let loaded = records.load(&[key("a")], Consistency::Strong).await;
    assert_eq!(loaded.unwrap_err().kind(), FaultKind::Denied);
    let found = records.query("p").await;
    assert_eq!(found.unwrap_err().kind(), FaultKind::Denied);
}

/// The number of attempts that the SDK makes.
const ATTEMPTS: usize = 3;

#[tokio::test]
async fn persistent_throttling_is_a_transient_fault_and_never_an_absence() {
    let s3 = refused("503 Slow Down", "SlowDown");
    let head = refused_head("503 Slow Down");
    let table = |code| refused_json("400 Bad Request", code);
    let location = Location::new("global/a");
    tokio::join!(
        throttled(s3.clone(), async |script| {
            blobs(&script).await.get("a", None).await.map(drop)
        }),
        throttled(s3.clone(), async |script| {
            let body = Bytes::from_static(b"x");
            blobs(&script).await.create("a", body).await.map(drop)
        }),
        throttled(s3.clone(), async |script| {
            blobs(&script).await.list("", None).await.map(drop)
        }),
        throttled(head, async |script| {
            store_error(difs(&script).await.stat(&location).await)
        }),
        throttled(s3, async |script| {
            store_error(difs(&script).await.read(&location, "e", 0..1).await)
        }),
        throttled(
            table("ProvisionedThroughputExceededException"),
            async |script| {
                let keys = [key("a")];
                let records = records(&script).await;
                records.load(&keys, Consistency::Strong).await.map(drop)
            }
        ),
        throttled(table("ThrottlingException"), async |script| {
            records(&script).await.query("p").await.map(drop)
        }),
        throttled(table("RequestLimitExceeded"), async |script| {
            records(&script)
                .await
                .page(Segment::WHOLE, None)
                .await
                .map(drop)
        }),
        throttled(
            table("ProvisionedThroughputExceededException"),
            async |script| {
                let next = Stored {
                    revision: Revision::from_random(1),
                    item: Item::Alias(Alias { target: module() }),
                };
                let records = records(&script).await;
                records.replace(&key("a"), None, &next).await.map(drop)
            }
        ),
        throttled(table("ThrottlingException"), async |script| {
            let expected = Revision::from_random(1);
            let records = records(&script).await;
            records.remove(&key("a"), &expected).await.map(drop)
        }),
        throttled(table("RequestThrottled"), async |script| {
            queues(&script)
                .await
                .send(&[message()], Duration::ZERO)
                .await
        }),
    );
}

/// Panics unless a call that is always throttled is attempted as often as the SDK allows, and then
/// fails with a transient fault.
async fn throttled(answer: String, call: impl AsyncFnOnce(Script) -> Result<(), Fault>) {
    let script = Script::play(vec![answer.clone(); ATTEMPTS]).await;
    let requests = script.requests();
    let error = call(script).await.unwrap_err();
    assert_eq!(error.kind(), FaultKind::Transient, "{error}: {answer}");
    assert_eq!(requests.lock().await.len(), ATTEMPTS, "{error}");
}

/// Returns the fault of a store; panics if the error is about a DIF.
fn store_error<T>(result: Result<T, DifError>) -> Result<(), Fault> {
    match result {
        Ok(_) => Ok(()),
        Err(DifError::Fault(error)) => Err(error),
        Err(other) => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_throttled_call_is_retried() {
    let script = Script::play(vec![
        refused("503 Slow Down", "SlowDown"),
        answer("200 OK", "etag: \"e\"\r\n", 1, "x"),
    ])
    .await;
    let got = blobs(&script).await.get("a", None).await.unwrap();
    assert_eq!(got.as_deref(), Some(&b"x"[..]));
    let throttled = refused_json("400 Bad Request", "ProvisionedThroughputExceededException");
    let found = dynamodb(&json!({"Responses": {"records": [stored("a")]}, "UnprocessedKeys": {}}));
    let script = Script::play(vec![throttled, found]).await;
    let records = records(&script).await;
    let loaded = records.load(&[key("a")], Consistency::Strong).await;
    assert!(loaded.unwrap()[0].is_some());
}

async fn queues(script: &Script) -> SqsQueues {
    let urls = QueueUrls {
        eager: format!("{}/eager", script.url),
        uploads: format!("{}/uploads", script.url),
        refresh: format!("{}/refresh", script.url),
    };
    SqsQueues::new(clients(&script.url, "local").await.sqs, urls)
}

fn module() -> ModuleKey {
    ModuleKey {
        scope: Scope::Global,
        source: SourceKey::Uploads,
        id: "debug_id:a".to_owned(),
    }
}

fn message() -> QueueMessage {
    let (kinds, build_request) = (Kind::DERIVED.to_vec(), Token::from_random(7));
    QueueMessage::new(
        Queue::Eager,
        module(),
        kinds,
        build_request,
        Converter::CURRENT,
    )
}

#[tokio::test]
async fn unprocessed_keys_are_requested_again_with_strong_consistency() {
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
async fn keys_that_stay_unprocessed_are_a_transient_fault() {
    let nothing = dynamodb(&json!({"Responses": {}, "UnprocessedKeys": left_out(&["a"])}));
    let script = Script::play(vec![nothing; 6]).await;
    let error = records(&script)
        .await
        .load(&[key("a")], Consistency::Eventual)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), FaultKind::Transient);
    assert_eq!(script.asked().await.len(), 6);
}

#[tokio::test]
async fn a_truncated_response_is_retried() {
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
async fn three_truncated_responses_are_a_transient_fault() {
    let script = Script::play(vec![answer("200 OK", "etag: \"e\"\r\n", 10, "01234"); 3]).await;
    assert_eq!(
        blobs(&script)
            .await
            .get("a", None)
            .await
            .unwrap_err()
            .kind(),
        FaultKind::Transient
    );
    assert_eq!(script.asked().await.len(), 3);
}

#[tokio::test]
async fn a_conflict_between_conditional_writes_is_retried() {
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
async fn a_persistent_conflict_is_a_transient_fault() {
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
    assert_eq!(error.kind(), FaultKind::Transient);
}

#[tokio::test]
async fn an_archived_dif_is_missing_and_any_other_403_is_a_fault() {
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
        matches!(&denied, DifError::Fault(error) if error.kind() == FaultKind::Denied),
        "{denied:?}"
    );
    for request in script.asked().await {
        assert!(
            request.head.contains("if-match: \"e\"") && request.head.contains("range: bytes=0-0"),
            "{request:?}"
        );
    }
}
