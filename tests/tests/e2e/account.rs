//! The service in a new account, which runs ten functions at a time.

use std::time::Duration;

use futures::future::{join, join_all};
use local_stack::latency::Latency;
use reqwest::Method;
use symdepot_tests::made_up::MadeUp;
use symdepot_tests::stack::{Client, until};

use crate::{PATIENCE, Running};

/// The concurrent executions of a new account.
const RUNS: usize = 10;

/// The time in which the first build is made. If requests held their runs for as long as they may
/// wait, it would begin after 25 s.
const FIRST_BUILD: Duration = Duration::from_secs(20);

/// The time from a response to the next request of its client.
const PACE: Duration = Duration::from_secs(1);

/// Sends a crash in this module until the account runs it, and continues it until it is complete.
async fn completed(client: &Client, module: MadeUp) {
    let mut pace = tokio::time::interval(PACE);
    let mut pending = None;
    let answer = loop {
        pace.tick().await;
        let request = match &pending {
            None => client
                .request(Method::POST, "/symbolicate")
                .json(&module.crash()),
            Some(id) => client.request(Method::GET, &format!("/requests/{id}")),
        };
        let reply = client.send("a crash", request).await.unwrap();
        pace.reset();
        if reply.status == 503 {
            continue;
        }
        let body = reply.expect(200, "a crash").unwrap().body;
        match body["request_id"].as_str() {
            Some(id) => pending = Some(id.to_owned()),
            None => break body,
        }
    };
    module.assert_symbolicated(&answer);
}

#[tokio::test]
async fn fifty_cold_requests_leave_runs_of_a_new_account_to_their_builds() {
    let running = Running::start_with(|options| {
        options
            .account_concurrency(RUNS)
            .variable("DERIVED_MAX_UNUSED", 0)
    })
    .await;
    let client = running.client();
    let modules: Vec<MadeUp> = (0..50).map(|number| MadeUp::new(number, 3)).collect();
    for module in &modules {
        client.upload(&module.key(), module.file()).await.unwrap();
    }
    running.idle().await;
    let report = client.prune(false).await.unwrap();
    assert!(report["retired"].as_u64() >= Some(50), "{report:#}");
    client.clear_stats().await.unwrap();
    let requests = join_all(modules.iter().map(|module| completed(client, *module)));
    let first_build = until("the first build", FIRST_BUILD, async || {
        let stats = client.stats().await.unwrap();
        (stats.function("derive").invocations > 0).then_some(())
    });
    let ended = tokio::time::timeout(PATIENCE, join(requests, first_build)).await;
    ended.expect("all requests end").1.unwrap();
    let stats = client.stats().await.unwrap();
    assert!(stats.function("derive").invocations >= 50, "{stats:#?}");
}

/// The latency of the services while files are processed, so that there are always some in process.
const SLOW: Latency = Latency {
    dynamodb: Duration::from_millis(20),
    s3: Duration::from_millis(20),
    sqs: Duration::from_millis(20),
};

#[tokio::test]
async fn a_large_upload_leaves_runs_of_a_new_account_to_requests() {
    let running = Running::start_with(|options| {
        options
            .account_concurrency(RUNS)
            .event_concurrency(2 * RUNS)
            .latency(SLOW)
    })
    .await;
    let client = running.client();
    let known = MadeUp::new(0, 3);
    client.upload(&known.key(), known.file()).await.unwrap();
    running.idle().await;
    let modules: Vec<MadeUp> = (1..=30).map(|number| MadeUp::new(number, 3)).collect();
    for module in &modules {
        client.upload(&module.key(), module.file()).await.unwrap();
    }
    let mut in_process = 0;
    loop {
        let request = client
            .request(Method::POST, "/symbolicate")
            .json(&known.crash());
        let reply = client.send("a crash", request).await.unwrap();
        known.assert_symbolicated(&reply.expect(200, "a crash").unwrap().body);
        let uploads = client.stats().await.unwrap().queue("UploadsQueue");
        in_process = in_process.max(uploads.in_flight);
        if uploads.visible + uploads.in_flight == 0 {
            break;
        }
    }
    assert_eq!(in_process, 2, "the limit of the uploads queue");
    let dead = client.stats().await.unwrap().queue("UploadsQueue").dead;
    assert_eq!(dead, 0);
}
