//! What requests and builds cost, counted by the stack: calls of AWS, invocations, starts of processes.

use futures::future::join_all;

use crate::crash;
use crate::{Running, bytes_of};

#[tokio::test]
async fn a_warm_request_makes_no_call_at_all() {
    let running = Running::start().await;
    let client = running.client();
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    crash::assert_symbolicated(&client.completed("", &crash::sample()).await.unwrap());
    client.clear_stats().await.unwrap();
    for _ in 0..5 {
        crash::assert_symbolicated(&client.completed("", &crash::sample()).await.unwrap());
    }
    let stats = client.stats().await.unwrap();
    assert_eq!(stats.aws_calls(), 0, "{stats:#?}");
    assert_eq!(
        (
            stats.function("symbolicate").invocations,
            stats.function("symbolicate").cold_starts
        ),
        (5, 0)
    );
}

#[tokio::test]
async fn functions_that_were_ended_start_again() {
    let running = Running::start().await;
    let client = running.client();
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    for _ in 0..3 {
        client.end_functions().await.unwrap();
        client.clear_stats().await.unwrap();
        crash::assert_symbolicated(&client.completed("", &crash::sample()).await.unwrap());
        let stats = client.stats().await.unwrap();
        let symbolicate = stats.function("symbolicate");
        assert_eq!(symbolicate.cold_starts, 1);
        assert!(
            symbolicate.init_ms.p50 > 0.0 && symbolicate.init_ms.max >= symbolicate.init_ms.p50,
            "{symbolicate:?}"
        );
        // The record, and the cache.
        assert_eq!(
            (
                stats.calls("dynamodb", "BatchGetItem"),
                stats.calls("s3", "GetObject")
            ),
            (1, 1),
            "{stats:#?}"
        );
        assert_eq!(stats.aws_calls(), 2, "{stats:#?}");
        assert_eq!(stats.function("derive").invocations, 0, "{stats:#?}");
    }
}

#[tokio::test]
async fn an_upload_is_fetched_once_and_derived_once() {
    let running = Running::start().await;
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    let stats = running.client().stats().await.unwrap();
    assert_eq!(stats.function("derive").invocations, 1, "{stats:#?}");
    assert_eq!(stats.calls("s3", "GetObject"), 1, "{stats:#?}");
    assert_eq!(
        stats.calls("s3", "PutObject"),
        running.client().blobs().await.unwrap().len() as u64,
        "{stats:#?}"
    );
}

#[tokio::test]
async fn requests_for_one_missing_entry_make_one_derivation() {
    let running = Running::start_with(|options| options.variable("DERIVED_MAX_UNUSED", 0)).await;
    let client = running.client();
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    let report = client.prune(false).await.unwrap();
    assert!(report["retired"].as_u64() >= Some(1), "{report:#}");
    assert_eq!(client.blobs().await.unwrap(), []);
    client.clear_stats().await.unwrap();

    let request = crash::sample();
    let answers = join_all((0..6).map(|_| client.completed("", &request))).await;
    for answer in answers {
        crash::assert_symbolicated(&answer.unwrap());
    }
    running.idle().await;
    let stats = client.stats().await.unwrap();
    assert!(
        stats.function("symbolicate").cold_starts >= 2,
        "one instance alone proves nothing: {stats:#?}"
    );
    assert_eq!(stats.calls("sqs", "SendMessage"), 1, "{stats:#?}");
    assert_eq!(stats.function("derive").invocations, 1, "{stats:#?}");
    let blobs = client.blobs().await.unwrap();
    assert_eq!(
        stats.calls("s3", "PutObject"),
        blobs.len() as u64,
        "{stats:#?}"
    );
    assert_eq!(
        blobs
            .iter()
            .filter(|(path, _)| path.contains("/symcache/"))
            .count(),
        1,
        "{blobs:#?}"
    );
}

#[tokio::test]
async fn requests_for_what_nobody_has_ask_for_one_build() {
    let running = Running::start().await;
    let client = running.client();
    let request = crash::sample();
    for answer in join_all((0..6).map(|_| client.completed("", &request))).await {
        crash::assert_nothing_found(&answer.unwrap(), "missing");
    }
    running.idle().await;
    let stats = client.stats().await.unwrap();
    assert_eq!(
        (
            stats.calls("sqs", "SendMessage"),
            stats.function("derive").invocations
        ),
        (1, 1),
        "{stats:#?}"
    );
    assert_eq!(stats.calls("s3", "PutObject"), 0, "{stats:#?}");
}
