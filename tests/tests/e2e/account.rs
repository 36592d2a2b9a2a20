//! The service in a new account, which runs ten functions at a time.

use std::time::Duration;

use futures::future::{join, join_all};
use reqwest::Method;
use symdepot_tests::made_up::MadeUp;
use symdepot_tests::stack::{Client, until};

use crate::{PATIENCE, Running};

/// The concurrent executions of a new account.
const RUNS: usize = 10;

/// The time in which the first build is made. If requests held their runs for as long as they may
/// wait, it would begin after 25 s.
const FIRST_BUILD: Duration = Duration::from_secs(20);

/// The time from one request of a client to the next.
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
