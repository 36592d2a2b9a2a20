//! Sliced caches: what a request reads of a large one, and what happens if one cannot be read.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};
use symbolic::symcache::SymCache;
use symdepot::adapters::faulty::Operation;
use symdepot::cache::{Item, ItemKey, Kind, Queue, Revision, Stored, current_version};
use symdepot::domain::{ObjectId, Scope};
use symdepot::flows::plain::Plain;
use symdepot::flows::symbolicate::SymbolicateOutcome;
use symdepot::ports::{RecordStore, Replaced};
use symdepot::symbolicate::Stats;
use symdepot_tests::harness::{
    Crash, World, fixture, fixture_text, function_names, in_module, sample_crash,
};

const DEBUG_ID: &str = "502fc0a5-1ec1-3e47-9998-684fa139dca7";

/// The number of functions in the large module.
const FUNCTIONS: u64 = 120_000;

/// The size of each of them, in bytes; it has two lines.
const FUNCTION_BYTES: u64 = 32;

/// A Breakpad file with so many functions that their SymCache has many slices.
fn large_file() -> Vec<u8> {
    let mut text = "MODULE Linux x86_64 502FC0A51EC13E479998684FA139DCA70 large\n".to_owned();
    for file in 0..300 {
        let _ = writeln!(text, "FILE {file} /build/large/src/part_{file}/source.cc");
    }
    for number in 0..FUNCTIONS {
        let (start, half, file) = (number * FUNCTION_BYTES, FUNCTION_BYTES / 2, number % 300);
        let _ = writeln!(text, "FUNC {start:x} {FUNCTION_BYTES:x} 0 {}", name(number));
        let _ = writeln!(text, "{start:x} {half:x} 7 {file}");
        let _ = writeln!(text, "{:x} {half:x} 8 {file}", start + half);
    }
    text.into_bytes()
}

fn name(function: u64) -> String {
    format!("large::part_{}::function_{function}", function % 300)
}

fn names(functions: &[u64]) -> Vec<String> {
    functions.iter().map(|function| name(*function)).collect()
}

/// A crash in these functions.
fn crash(functions: &[u64]) -> Crash {
    let addresses: Vec<u64> = functions
        .iter()
        .map(|function| function * FUNCTION_BYTES + 4)
        .collect();
    in_module(json!({"type": "elf", "debug_id": DEBUG_ID}), &addresses)
}

/// Functions that are far apart.
fn spread(count: u64) -> Vec<u64> {
    (0..count).map(|n| n * 7919 % FUNCTIONS).collect()
}

async fn with_a_large_module(memory_bytes: u64) -> World {
    let world = World::with(|settings| settings.memory_cache_bytes = memory_bytes);
    let event = world.put("global/large.sym", large_file());
    world.deliver(&event).await.unwrap();
    world.settle().await;
    world
}

/// Answers a request at once. Returns the names and the cost.
async fn answered(instance: &World, crash: &Crash) -> (Vec<String>, Stats) {
    let answer = instance.answer(crash, &Scope::Global, Duration::ZERO).await;
    match answer {
        Ok(SymbolicateOutcome::Completed(completed, stats)) => (function_names(&completed), stats),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_stack_reads_the_index_and_its_slices_and_the_next_one_nothing() {
    let world = with_a_large_module(64 << 20).await;
    let blob = blob_bytes(&world);
    assert!(blob > 3 << 19, "{blob}");
    let functions = spread(30);
    let names = names(&functions);
    let instance = world.another_instance();
    let (found, stats) = answered(&instance, &crash(&functions)).await;
    assert_eq!(found, names);
    // The index, and at most one slice per frame.
    assert!((2..=31).contains(&stats.reads.reads), "{stats:?}");
    // A slice of 2,000 ranges has about 20 KB in this module.
    assert!(stats.reads.bytes < 31 * (24 << 10), "{stats:?}");
    assert!(stats.reads.bytes * 3 < blob, "{stats:?} of {blob}");
    let (found, again) = answered(&instance, &crash(&functions)).await;
    assert_eq!(found, names);
    assert_eq!((again.reads.reads, again.reads.bytes), (0, 0));
    assert_eq!(again.reads.memory_hits, stats.reads.reads - 1);
    // Further frames of the same module need no index.
    let (found, other) = answered(&instance, &crash(&[functions[0] + 1])).await;
    assert_eq!(
        (found, other.reads.reads),
        (vec![name(functions[0] + 1)], 0)
    );
}

#[tokio::test(start_paused = true)]
async fn frames_that_are_close_together_read_one_slice() {
    let world = with_a_large_module(64 << 20).await;
    let functions: Vec<u64> = (15_000..15_030).collect();
    let (found, stats) = answered(&world.another_instance(), &crash(&functions)).await;
    assert_eq!(found, names(&functions));
    assert!((2..=3).contains(&stats.reads.reads), "{stats:?}");
}

#[tokio::test(start_paused = true)]
async fn slices_that_do_not_fit_into_memory_are_read_again_with_the_same_response() {
    let world = with_a_large_module(300 << 10).await;
    let instance = world.another_instance();
    for round in 0..4 {
        let functions: Vec<u64> = spread(30)
            .iter()
            .map(|number| (number + round * 500) % FUNCTIONS)
            .collect();
        let (found, _) = answered(&instance, &crash(&functions)).await;
        assert_eq!(found, names(&functions));
        assert!(instance.service().memory.bytes() <= 300 << 10);
    }
}

#[tokio::test(start_paused = true)]
async fn a_slice_that_contradicts_its_index_is_never_used_and_built_again() {
    let world = with_a_large_module(64 << 20).await;
    let functions = spread(30);
    let path = blob_path(&world);
    let mut damaged = world.caches.peek(&path).unwrap().to_vec();
    damaged[..200_000].fill(7);
    world.caches.overwrite(&path, damaged);
    let instance = world.another_instance();
    let answer = instance.symbolicate(&crash(&functions)).await;
    assert_eq!(function_names(&answer), names(&functions));
    assert_ne!(blob_path(&world), path, "it was derived again");
}

#[tokio::test(start_paused = true)]
async fn an_index_that_contradicts_its_record_is_never_used_and_built_again() {
    for damage in ["bits", "length"] {
        let world = with_a_large_module(64 << 20).await;
        let path = blob_path(&world);
        let mut damaged = world.caches.peek(&path).unwrap().to_vec();
        let end = damaged.len();
        match damage {
            "bits" => damaged[end - 300] ^= 1,
            _ => damaged.truncate(end - 40),
        }
        world.caches.overwrite(&path, damaged);
        let answer = world.another_instance().symbolicate(&crash(&[7])).await;
        assert_eq!(function_names(&answer), [name(7)], "{damage}");
        assert_ne!(blob_path(&world), path, "{damage}: it was derived again");
    }
}

/// Replaces the only cache of a kind with one of the earlier version: a whole blob.
pub(crate) async fn make_whole(world: &World, kind: Kind) {
    let (key, stored) = record(world, kind);
    let golden = format!("golden/{kind}-v1");
    let mut ready: Value =
        serde_json::from_str(&fixture_text(&format!("{golden}.ready.json"))).unwrap();
    let mut item = serde_json::to_value(&stored.item).unwrap();
    ready["made_from"] = item["ready"]["made_from"].take();
    let path = ready["blob"]["path"].as_str().unwrap().to_owned();
    item["ready"] = ready;
    let older = Stored {
        revision: Revision::from_random(7),
        item: serde_json::from_value(item).unwrap(),
    };
    let replaced = world
        .records
        .replace(&key, Some(&stored.revision), &older)
        .await;
    assert_eq!(replaced.unwrap(), Replaced::Done);
    world
        .caches
        .overwrite(&path, fixture(&format!("{golden}.blob")));
}

#[tokio::test(start_paused = true)]
async fn a_cache_of_the_earlier_version_is_used_at_once_and_refreshed_later() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let (expected, _) = answered(&world.another_instance(), &sample_crash()).await;
    make_whole(&world, Kind::SymCache).await;
    let (found, stats) = answered(&world.another_instance(), &sample_crash()).await;
    assert_eq!(found, expected);
    assert_eq!(stats.reads.reads, 1);
    let sent = world.queues.sent();
    assert_eq!((sent.len(), sent[0].message.queue), (1, Queue::Refresh));
    world.settle().await;
    assert_eq!(ready(&world)["version"], current_version(Kind::SymCache));
    let entry = world.entry("global", crate::CRASH, Kind::SymCache).unwrap();
    assert_eq!(
        entry.older().unwrap().version,
        1,
        "for releases that cannot read slices"
    );
    let (found, _) = answered(&world.another_instance(), &sample_crash()).await;
    assert_eq!(found, expected);
    world.check();
}

/// The record has the size: a blob that is too large for memory is not read.
#[tokio::test(start_paused = true)]
async fn a_blob_with_too_large_a_size_in_its_record_is_not_read() {
    const TOO_LARGE: u64 = 1 << 30;
    let world = with_a_large_module(64 << 20).await;
    let amend = async |change: fn(&mut Value)| {
        let (key, stored) = record(&world, Kind::SymCache);
        let mut item = serde_json::to_value(&stored.item).unwrap();
        change(&mut item["ready"]["blob"]);
        let next = Stored {
            revision: Revision::from_random(world.calls()),
            item: serde_json::from_value(item).unwrap(),
        };
        let replaced = world.records.replace(&key, Some(&stored.revision), &next);
        assert_eq!(replaced.await.unwrap(), Replaced::Done);
    };
    amend(|blob| blob["bytes"] = TOO_LARGE.into()).await;
    let reads = world.faults.calls(Operation::GetBlob);
    let module = ObjectId {
        debug_id: Some(DEBUG_ID.parse().unwrap()),
        ..ObjectId::default()
    };
    let instance = world.another_instance();
    let invocation = world.invocation(Duration::from_secs(29));
    let service = instance.service();
    let plain = service.plain_sym_cache(&invocation, &module, &Scope::Global);
    assert_eq!(plain.await.unwrap(), Plain::TooLarge(TOO_LARGE));
    // As if it were a whole blob.
    amend(|blob| blob["index"] = Value::Null).await;
    let crash = crash(&[1]);
    let answer = instance.answer(&crash, &Scope::Global, Duration::ZERO);
    assert!(matches!(answer.await.unwrap(), SymbolicateOutcome::Pending));
    assert_eq!(world.faults.calls(Operation::GetBlob), reads);
}

/// Returns the record of the only cache of a kind.
fn record(world: &World, kind: Kind) -> (ItemKey, Stored) {
    let is_it = |item: &Item| matches!(item, Item::Entry(entry) if entry.kind() == kind);
    let mut items = world.records.items().into_iter();
    items.find(|(_, stored)| is_it(&stored.item)).unwrap()
}

/// Returns the fields of the ready SymCache, as they are stored.
fn ready(world: &World) -> Value {
    let (_, stored) = record(world, Kind::SymCache);
    serde_json::to_value(stored.item).unwrap()["ready"].take()
}

fn blob_path(world: &World) -> String {
    ready(world)["blob"]["path"].as_str().unwrap().to_owned()
}

fn blob_bytes(world: &World) -> u64 {
    ready(world)["blob"]["bytes"].as_u64().unwrap()
}

/// Requests the SymCache of the large module. Returns the path that the response redirects to.
async fn plain_path(world: &World) -> String {
    let module = ObjectId {
        debug_id: Some(DEBUG_ID.parse().unwrap()),
        ..ObjectId::default()
    };
    let invocation = world.invocation(Duration::from_secs(29));
    let service = world.service();
    let found = service.plain_sym_cache(&invocation, &module, &Scope::Global);
    match found.await.unwrap() {
        Plain::At(url) => {
            let path = url.strip_prefix("memory://blobs/").unwrap();
            path.split('?').next().unwrap().to_owned()
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_plain_symcache_of_a_module_is_joined_once_and_removed_later() {
    let world = with_a_large_module(64 << 20).await;
    let path = plain_path(&world).await;
    let plain = world.caches.peek(&path).unwrap();
    let plain = plain.to_vec();
    assert_eq!(
        plain.as_ptr() as usize % 8,
        0,
        "SymCaches are read at aligned addresses"
    );
    let cache = SymCache::parse(&plain).unwrap();
    for function in spread(1000) {
        let found = cache.lookup(function * FUNCTION_BYTES + 4).next().unwrap();
        assert_eq!(found.function().name(), name(function));
    }
    let reads = world.caches.calls().of("get");
    assert_eq!(plain_path(&world).await, path);
    assert_eq!(
        world.caches.calls().of("get"),
        reads,
        "the plain SymCache exists already"
    );
    world.pass(Duration::from_secs(700)).await;
    assert_ne!(plain_path(&world).await, path);
    world.pass(Duration::from_secs(2 * 3600)).await;
    world.prune().await.unwrap();
    assert!(world.caches.peek(&path).is_none(), "no record names it");
    assert!(world.caches.peek(&blob_path(&world)).is_some());
}
