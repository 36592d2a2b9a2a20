//! Crash files over HTTP while a store fails: the status says whose fault it is, and the file that
//! the request refers to stays.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use symdepot::adapters::faulty::{How, Operation};
use symdepot::domain::Scope;
use symdepot_tests::harness::{World, fixture};

use crate::continued::{body, post};

const TIME: Duration = Duration::from_secs(29);

/// A world with the program of the minidump, its debug file and its sources.
async fn world() -> World {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.upload("global/crash", "elf/crash").await;
    world
        .upload("global/crash.src.zip", "bundle/crash.src.zip")
        .await;
    world
}

/// Stores a file as a client does. Returns the body of a request that refers to it.
async fn stored(world: &World, file: &Bytes) -> Value {
    let invocation = world.invocation(TIME);
    let symbolicator = world.symbolicator();
    let offer = symbolicator.offer_attachment(&invocation, &Scope::Global, file.len() as u64);
    let offer = offer.await.unwrap();
    let path = offer.upload.url.strip_prefix("memory://attachments/");
    let (path, _) = path.unwrap().split_once('?').unwrap();
    world.attachments.blobs.overwrite(path, file.clone());
    let storage_url = offer.storage_url;
    json!({"symbolicate": {"type": "minidump", "storage_url": storage_url}})
}

/// Each read of a walk, of the names and of the source lines fails once.
#[tokio::test(start_paused = true)]
async fn a_fault_of_a_store_is_a_503_and_the_attachment_stays_until_a_request_is_answered() {
    let world = world().await;
    let dump = fixture("minidump/crash.dmp");
    let there = || world.attachments.blobs.paths().len();
    let send = async |request: &Value| {
        let content = ("application/json", &*serde_json::to_vec(request).unwrap());
        post(&world, "/symbolicate-any?timeout=0", content).await
    };
    let reads = [Operation::Load, Operation::GetBlob];
    let calls = || reads.map(|operation| world.faults.calls(operation));
    let before = calls();
    let expected = send(&stored(&world, &dump).await).await;
    let after = calls();
    assert_eq!(body(&expected)["status"], "completed", "{expected:?}");
    assert_eq!(there(), 0);
    let records = world.records.items();
    for (at, operation) in reads.into_iter().enumerate() {
        let calls = after[at] - before[at];
        // Of blobs: unwind information, names, and lines.
        assert!(calls >= [1, 3][at], "{operation:?}: {calls} calls");
        for nth in 1..=calls {
            for how in [How::Before, How::Throttled, How::Denied] {
                let what = format!("{operation:?} number {nth}: {how:?}");
                let request = stored(&world, &dump).await;
                let done = world.faults.calls(operation);
                world.faults.fail(operation, done + nth, how);
                let failed = send(&request).await;
                world.faults.heal();
                assert_eq!(failed.status, 503, "{what}: {failed:?}");
                assert_eq!(there(), 1, "{what}: the file is removed");
                assert_eq!(world.records.items(), records, "{what}");
                assert_eq!(send(&request).await, expected, "{what}");
                assert_eq!(there(), 0, "{what}: the file is not removed");
            }
        }
    }
}
