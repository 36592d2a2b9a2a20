//! The routes that report on the service: `GET /rollout`, `GET /explain`.

use reqwest::Method;
use serde_json::{Value, json};
use symdepot_tests::stack::Reply;

use crate::symbol_server::{DEBUG_FILE, SymbolServer};
use crate::{Running, bytes_of, crash};

/// Sends a GET request.
pub(crate) async fn get(running: &Running, path: &str) -> Reply {
    let client = running.client();
    let request = client.request(Method::GET, path);
    client.send("GET request", request).await.unwrap()
}

/// Sends a GET request and returns the body of the response, which must have status 200.
async fn response_to(running: &Running, path: &str) -> Value {
    get(running, path).await.expect(200, path).unwrap().body
}

#[tokio::test]
async fn the_rollout_route_reports_the_last_prune_run_and_an_estimate() {
    let running = Running::start().await;
    let client = running.client();
    let before = response_to(&running, "/rollout").await;
    assert_eq!(before["estimate"], "unknown", "{before:#}");
    assert!(before["reason"].is_string(), "{before:#}");
    assert!(before["pass"].is_null(), "{before:#}");

    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    let report = client.prune(false).await.unwrap();
    let rollout = response_to(&running, "/rollout").await;
    assert_eq!(
        (&rollout["pass"], &report["pass"]),
        (&1.into(), &1.into()),
        "{rollout:#} {report:#}"
    );
    assert!(rollout["at"].is_u64() && rollout["age_seconds"].is_u64());
    assert_eq!(rollout["uploads"], 1, "{rollout:#}");
    assert_eq!(rollout["estimate"], "complete", "{rollout:#}");
    let blobs = client.blobs().await.unwrap();
    for (kind, current) in [("symcache", 1), ("cficache", 1), ("ppdbcache", 0)] {
        let of_kind = blobs.iter().filter(|(path, _)| path.contains(kind));
        let bytes: u64 = of_kind.map(|(_, bytes)| bytes).sum();
        let of_kind = &rollout["kinds"][kind];
        assert_eq!(of_kind["current"], current, "{kind}: {of_kind:#}");
        assert_eq!(of_kind["bytes"], bytes, "{kind}: {of_kind:#}");
        for none in ["behind", "dif_gone", "unbuilt", "older", "in_queue"] {
            assert_eq!(of_kind[none], 0, "{kind}: {of_kind:#}");
        }
        assert_eq!(of_kind["failed"], json!({}), "{kind}: {of_kind:#}");
    }
}

#[tokio::test]
async fn explain_returns_every_record_that_a_request_would_read() {
    let debug_file = bytes_of("elf/crash.debug");
    let server = SymbolServer::start([(DEBUG_FILE, debug_file.clone())]).await;
    let running = Running::start_with(|options| server.sought_by(options)).await;
    let client = running.client();
    // The uploaded program has only symbols; the symbol server has the debug file.
    running.upload("global/crash", bytes_of("elf/crash")).await;
    crash::assert_symbolicated(&running.sample_answer().await);
    running.idle().await;

    client.clear_stats().await.unwrap();
    let explained = response_to(&running, &explain_sample()).await;
    let stats = client.stats().await.unwrap();
    assert_eq!(
        (stats.aws_calls(), stats.calls("dynamodb", "BatchGetItem")),
        (1, 1),
        "one read and no other call: {stats:#?}"
    );
    let records = explained.as_array().unwrap();
    let field = |record: &Value, name: &str| record[name].as_str().unwrap().to_owned();
    let states: Vec<[String; 3]> = records
        .iter()
        .map(|record| ["source", "kind", "state"].map(|name| field(record, name)))
        .collect();
    let company = states[4][0].clone();
    let expected = [
        ["uploads", "cficache", "use"],
        ["uploads", "ppdbcache", "absent"],
        ["uploads", "sources", "absent"],
        ["uploads", "symcache", "use"],
        [&*company, "cficache", "use"],
        [&*company, "ppdbcache", "absent"],
        [&*company, "sources", "missing"],
        [&*company, "symcache", "use"],
    ];
    assert_eq!(states, expected);
    assert!(company.starts_with("company#"), "{company}");
    assert!(records.iter().all(|record| record["scope"] == "global"));

    let uploads = &records[3]["record"];
    assert_eq!(uploads["ready"]["quality"], "fallback", "{uploads:#}");
    let candidate = &uploads["candidates"][0];
    assert_eq!(candidate["location"], "global/crash", "{uploads:#}");
    assert_eq!(candidate["size"], bytes_of("elf/crash").len());

    let served = &records[7]["record"];
    assert_eq!(served["ready"]["quality"], "preferred", "{served:#}");
    let candidates = served["candidates"].as_array().unwrap();
    let is_debug_file = |candidate: &&Value| field(candidate, "location").ends_with(DEBUG_FILE);
    let candidate = candidates.iter().find(is_debug_file).unwrap();
    assert_eq!(candidate["download"]["status"], "ok", "{candidate:#}");
    assert_eq!(candidate["size"], debug_file.len(), "{candidate:#}");
    let others = candidates.iter().filter(|other| !is_debug_file(other));
    for other in others {
        assert_eq!(other["download"]["status"], "not_found", "{other:#}");
        assert!(other["duration_ms"].is_u64(), "{other:#}");
    }
}

#[tokio::test]
async fn explain_filters_by_source_and_lists_the_sources_for_an_unknown_one() {
    let server = SymbolServer::start([]).await;
    let running = Running::start_with(|options| server.sought_by(options)).await;
    let alone = response_to(&running, &format!("{}&source=uploads", explain_sample())).await;
    let alone = alone.as_array().unwrap();
    assert_eq!(alone.len(), 4, "{alone:#?}");
    assert!(alone.iter().all(|record| record["source"] == "uploads"));
    // Nothing was uploaded, and no request has caused a build.
    let is_absent = |record: &Value| record["state"] == "absent" && record.get("record").is_none();
    assert!(alone.iter().all(is_absent), "{alone:#?}");

    let reply = get(&running, &format!("{}&source=unheard-of", explain_sample())).await;
    let reply = reply.expect(422, "an unknown source").unwrap();
    let detail = reply.body["detail"].as_str().unwrap();
    for name in ["unheard-of", "uploads", "company"] {
        assert!(detail.contains(name), "{detail}");
    }
}

#[tokio::test]
async fn explain_without_an_id_says_which_parameters_to_send() {
    let running = Running::start().await;
    for path in [
        "/explain",
        "/explain?",
        "/explain?scope=global&source=uploads",
    ] {
        let reply = get(&running, path).await;
        assert_eq!(reply.status, 400, "{path}: {}", reply.text);
        let causes = reply.body["causes"].to_string();
        for wanted in ["?key=", "?debug_id=", "?code_id="] {
            assert!(causes.contains(wanted), "{path}: {}", reply.text);
        }
    }
}

#[tokio::test]
async fn explain_reports_the_duration_of_a_download() {
    let server = SymbolServer::start([(DEBUG_FILE, bytes_of("elf/crash.debug"))]).await;
    let running = Running::start_with(|options| server.sought_by(options)).await;
    crash::assert_symbolicated(&running.sample_answer().await);
    running.idle().await;
    let explained = response_to(&running, &explain_sample()).await;
    let records = explained.as_array().unwrap().iter();
    let candidates = records.flat_map(|record| record["record"]["candidates"].as_array());
    let mut fetched = candidates
        .flatten()
        .filter(|candidate| candidate["download"]["status"] == "ok");
    let candidate = fetched.next().unwrap();
    assert!(candidate["duration_ms"].is_u64(), "{candidate:#}");
}

/// Returns the `/explain` request for the sample's module, with all identifiers that a symbol
/// server needs.
fn explain_sample() -> String {
    let module = crash::sample_module();
    let names = ["debug_id", "code_id", "type", "code_file", "debug_file"];
    let pairs = names.map(|name| format!("{name}={}", module[name].as_str().unwrap()));
    format!("/explain?{}", pairs.join("&"))
}
