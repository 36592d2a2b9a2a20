//! Sources that requests define: buckets of S3, and Sentry.

use serde_json::{Value, json};
use symdepot_tests::stack::{Addresses, Options};

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

/// The uploads bucket, which the role of the functions may read, as a source. The operator may use
/// the role for it; a request may not, whatever it defines.
#[tokio::test]
async fn the_role_of_the_functions_serves_configured_sources_and_no_request() {
    let folder = "of-the-operator";
    let source = |addresses: &Addresses, more: Value| {
        let mut source = json!({
            "type": "s3", "id": "bucket", "bucket": addresses.uploads(), "prefix": folder,
            "region": ["us-east-1", addresses.s3],
        });
        let more = more.as_object().unwrap().clone();
        source.as_object_mut().unwrap().extend(more);
        source
    };
    let first = Running::start_with(that_allows_definitions).await;
    let key = format!("{folder}{DEBUG_FILE}");
    let upload = async |running: &Running| {
        let uploaded = running.client().upload(&key, bytes_of("elf/crash.debug"));
        uploaded.await.unwrap();
    };
    upload(&first).await;
    let addresses = first.client().addresses();
    // Without keys, the request is not signed.
    let (refused, candidates) = symbolicated(&first, source(addresses, json!({}))).await;
    assert_ne!(refused["modules"][0]["debug_status"], "found");
    assert_eq!(
        candidates[0]["download"]["status"], "noperm",
        "{candidates:#?}"
    );
    let role = "arn:aws:iam::123456789012:role/symbols";
    for more in [
        json!({"aws_credentials_provider": "container"}),
        json!({"role_arn": role}),
        json!({"role_arn": role, "external_id": "guessed"}),
    ] {
        let mut request = crash::sample();
        request["sources"] = json!([source(addresses, more)]);
        let reply = first.client().symbolicate("", &request).await.unwrap();
        let reply = reply.expect(422, "a role in a request").unwrap();
        assert!(reply.text.contains("are not lent"), "{}", reply.text);
    }

    // Another stack, whose functions have the same role, has the bucket in its operator's list.
    let sources = json!([source(
        addresses,
        json!({"aws_credentials_provider": "container"})
    )]);
    let second = Running::start_with(|options| {
        options
            .variable("ALLOW_PRIVATE_SOURCES", 1)
            .variable("SOURCES", sources)
    })
    .await;
    let mut request = crash::sample();
    request["options"] = json!({"dif_candidates": true});
    let completed = second.client().completed_at_last(&request).await.unwrap();
    crash::assert_symbolicated(&completed);
    let location = format!("s3://{}/{key}", addresses.uploads());
    let candidates = completed["modules"][0]["candidates"].as_array().unwrap();
    let found = candidates
        .iter()
        .find(|candidate| candidate["location"] == location);
    assert_eq!(
        found.unwrap()["download"]["status"],
        "ok",
        "{candidates:#?}"
    );
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
        {"id": "43", "symbolType": "sourcebundle"},
    ]);
    let server = SymbolServer::start([
        (query.as_str(), listing.to_string().into_bytes()),
        ("/files/?id=42", bytes_of("elf/crash.debug")),
        ("/files/?id=43", bytes_of("bundle/crash.src.zip")),
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
    let file = |id: u32| format!("sentry://project_debug_file/{id}");
    assert_eq!(locations, [&file(42), &file(43)]);
    assert_eq!(completed["modules"][0]["features"]["has_sources"], true);
    assert_eq!(server.asked_for("/files/?id=41"), 0);

    // A server that has no listing is a candidate, too.
    let elsewhere = format!("{}nowhere/", server.url());
    let (completed, candidates) = symbolicated(&running, source(elsewhere)).await;
    assert_eq!(completed["modules"][0]["debug_status"], "missing");
    assert_eq!(candidates.len(), 1, "{candidates:#?}");
    assert_eq!(candidates[0]["download"]["status"], "notfound");
}
