//! Interleavings that broke earlier versions of the protocol. Their numbers are those of
//! docs/protocol.md.

mod builds;
mod findings;
mod generations;
mod sweeps;
mod uploads;

use std::time::Duration;

use serde_json::Value;
use symdepot::adapters::faulty::Operation;
use symdepot::cache::{Entry, Kind, ModuleKey, Queue, Revision, Stored};
use symdepot::domain::Scope;
use symdepot::flows::requests::CallState;
use symdepot::flows::symbolicate::SymbolicateOutcome;
use symdepot::ports::{QueueMessage, RecordStore};
use symdepot_tests::harness::{World, sample_crash};

use crate::CRASH;
use crate::health::request_builds;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The first call for a request, which does not wait and is not stored.
const FIRST_CALL: CallState<'_> = CallState::first("a request", &Scope::Global, Duration::ZERO);

/// The frames of the sample crash, including inlined calls.
const FRAMES: usize = 13;

fn entry(world: &World, kind: Kind) -> Entry {
    world.entry("global", CRASH, kind).unwrap()
}

fn made_from(world: &World) -> String {
    entry(world, Kind::SymCache).ready().unwrap().made_from[0]
        .location
        .to_string()
}

/// Requests the names of the sample crash without waiting. Returns the message with the build
/// request.
async fn requested_build(world: &World) -> QueueMessage {
    let answer = world
        .answer(&sample_crash(), &Scope::Global, Duration::ZERO)
        .await
        .unwrap();
    assert!(matches!(answer, SymbolicateOutcome::Pending));
    world.queues.drain().remove(0).message
}

/// Requests the build of an entry, as a reader does. Returns the message with the build request.
async fn request_build_of(world: &World, module: ModuleKey, queue: Queue) -> QueueMessage {
    request_builds(world, &module, &[Kind::SymCache], queue).await
}

/// Does something just before the next call of an operation, after skipping `skipped` calls.
fn before_next<F>(
    world: &World,
    operation: Operation,
    skipped: u64,
    work: impl FnOnce(World) -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let inner = world.clone();
    let nth = world.faults.calls(operation) + 1 + skipped;
    world.faults.interrupt(operation, nth, move || work(inner));
}

/// Replaces the SymCache entry with one that a release of another version would have written.
async fn rewrite(world: &World, debug_id: &str, change: impl FnOnce(&mut Value)) {
    let key = world.module("global", debug_id).entry(Kind::SymCache);
    let stored = world.records.peek(&key).unwrap();
    let mut item = serde_json::to_value(&stored.item).unwrap();
    change(&mut item);
    let next = Stored {
        revision: Revision::from_random(world.calls()),
        item: serde_json::from_value(item).unwrap(),
    };
    world
        .records
        .replace(&key, Some(&stored.revision), &next)
        .await
        .unwrap();
}
