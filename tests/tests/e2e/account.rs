//! An account that runs few functions at a time, as new accounts do.

use std::collections::BTreeMap;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::Running;
use crate::symbol_server::SymbolServer;

/// What a new account runs at a time.
const RUNS: usize = 10;

const REQUESTS: usize = 50;

/// Returns a crash in a module that only a symbol server may know.
fn crash(number: usize) -> Value {
    json!({
        "modules": [{
            "type": "pe", "debug_id": format!("c01d0000-0000-4000-8000-{number:012x}-1"),
            "debug_file": "cold.pdb", "code_id": "5ab380779000", "code_file": "cold.exe",
            "image_addr": "0x1000", "image_size": 4096,
        }],
        "stacktraces": [{"frames": [{"instruction_addr": "0x1100"}]}],
    })
}

#[tokio::test]
async fn requests_that_wait_leave_a_new_account_room_to_build() {
    let server = SymbolServer::start([]).await;
    let running =
        Running::start_with(|options| server.sought_by(options).account_concurrency(RUNS)).await;
    let client = running.client();
    let replies = join_all((0..REQUESTS).map(|number| {
        let crash = crash(number);
        async move { client.symbolicate("timeout=25", &crash).await.unwrap() }
    }))
    .await;
    let mut ended: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
    for (number, reply) in replies.iter().enumerate() {
        ended.entry(reply.status).or_default().push(number);
    }
    // Beyond the limit, Lambda refuses an invocation at once.
    let statuses: Vec<u16> = ended.keys().copied().collect();
    assert_eq!(statuses, [200, 503], "{ended:?}");
    let accepted = &ended[&200];
    assert!(accepted.len() >= RUNS, "{ended:?}");

    // The builds of all that were accepted are made.
    running.idle().await;
    let stats = client.stats().await.unwrap();
    assert_eq!(stats.dead_letters(), 0, "{stats:#?}");
    client.clear_stats().await.unwrap();
    for number in accepted {
        let completed = client.symbolicate("timeout=0", &crash(*number)).await;
        let completed = completed.unwrap().expect(200, "a crash").unwrap();
        assert_eq!(completed.body["status"], "completed", "{}", completed.text);
    }
    let stats = client.stats().await.unwrap();
    assert_eq!(stats.function("derive").invocations, 0, "{stats:#?}");
}
