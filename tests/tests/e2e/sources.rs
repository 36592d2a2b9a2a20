//! Sources that requests define: buckets of S3, and Sentry.

use serde_json::{Value, json};
use symdepot_tests::stack::Options;

use crate::symbol_server::{DEBUG_FILE, SymbolServer};
use crate::{Running, bytes_of, crash};

fn that_allows_definitions(options: Options) -> Options {
    options
        .variable("ALLOW_PRIVATE_SOURCES", 1)
        .variable("ALLOW_REQUEST_SOURCES", 1)
        .variable("REQUEST_SOURCES_SECRET", "a secret of more than 32 letters")
}

/// Returns the response to the sample crash with this source, and the candidates of its module.
async fn symbolicated(running: &Running, source: Value) -> (Value, Vec<Value>) {
    let mut request = crash::sample();
    request["sources"] = json!([source]);
    request["options"] = json!({"dif_candidates": true});
    let completed = running.client().completed_at_last(&request).await.unwrap();
    let candidates = completed["modules"][0]["candidates"].as_array().cloned();
    (completed, candidates.unwrap_or_default())
}

#[tokio::test]
async fn a_bucket_of_s3_is_searched_with_the_keys_of_the_request() {
    let running = Running::start_with(that_allows_definitions).await;
    let client = running.client();
    // Another tenant's folder: no request of these tests reads it as an upload.
    let key = format!("symbols{DEBUG_FILE}");
    client
        .upload(&key, bytes_of("elf/crash.debug"))
        .await
        .unwrap();
    let addresses = client.addresses();
    let bucket = addresses.uploads();
    let source = |secret_key: &str| {
        json!({
            "type": "s3", "id": "bucket", "bucket": bucket, "prefix": "symbols", "region": ["us-east-1", addresses.s3],
            "access_key": "local", "secret_key": secret_key, "name": "Our bucket",
        })
    };
    let (completed, candidates) = symbolicated(&running, source("local")).await;
    crash::assert_symbolicated(&completed);
    let found = candidates
        .iter()
        .find(|candidate| candidate["download"]["status"] == "ok");
    let location = format!("s3://{bucket}/symbols{DEBUG_FILE}");
    assert_eq!(found.unwrap()["location"], location, "{candidates:#?}");

    let (refused, candidates) = symbolicated(&running, source("guessed")).await;
    assert_ne!(refused["modules"][0]["debug_status"], "found");
    let download = &candidates[0]["download"];
    assert_eq!(download["status"], "noperm", "{candidates:#?}");
    let details = download["details"].as_str().unwrap();
    assert!(details.contains("s3:ListBucket"), "{details}");
    assert!(!details.contains("X-Amz"), "{details}");
}

#[tokio::test]
async fn sentry_lists_the_files_of_a_module_by_both_ids() {
    let module = crash::sample_module();
    let (debug_id, code_id) = (&module["debug_id"], &module["code_id"]);
    let query = format!(
        "/files/?debug_id={}&code_id={}",
        debug_id.as_str().unwrap(),
        code_id.as_str().unwrap()
    );
    let listing = json!([
        {"id": "41", "symbolType": "proguard"},
        {"id": "42", "symbolType": "elf", "objectName": "crash.debug"},
    ]);
    let server = SymbolServer::start([
        (query.as_str(), listing.to_string().into_bytes()),
        ("/files/?id=42", bytes_of("elf/crash.debug")),
    ])
    .await;
    let running = Running::start_with(that_allows_definitions).await;
    let source = |url: String| json!({"type": "sentry", "id": "sentry:project", "url": url, "token": "sesame"});
    let api = format!("{}files/", server.url());
    let (completed, candidates) = symbolicated(&running, source(api)).await;
    crash::assert_symbolicated(&completed);
    let locations: Vec<&Value> = candidates
        .iter()
        .map(|candidate| &candidate["location"])
        .collect();
    assert_eq!(locations, ["sentry://project_debug_file/42"]);
    assert_eq!(server.asked_for("/files/?id=41"), 0);

    // A server that has no listing is a candidate, too.
    let elsewhere = format!("{}nowhere/", server.url());
    let (completed, candidates) = symbolicated(&running, source(elsewhere)).await;
    assert_eq!(completed["modules"][0]["debug_status"], "missing");
    assert_eq!(candidates.len(), 1, "{candidates:#?}");
    assert_eq!(candidates[0]["download"]["status"], "notfound");
}
