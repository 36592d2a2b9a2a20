//! The cost of a minidump of many threads, in calls of the stores.

use std::time::Duration;

use symdepot::api::crash::ReadCrash;
use symdepot::api::crash::form::CrashFields;
use symdepot::api::crash::stackwalk::StackwalkReport;
use symdepot::api::limits;
use symdepot::api::symbolicator::Response;
use symdepot::domain::Scope;
use symdepot::flows::Error;
use symdepot::flows::minidump::{MinidumpRequest, WalkOutcome};
use symdepot::flows::requests::{CallState, RequestToStore};
use symdepot::flows::symbolicate::SymbolicateOutcome;
use symdepot::unwind::MAX_FRAMES;
use symdepot_tests::harness::World;
use symdepot_tests::made_up::{MadeUp, MadeUpCrash};
use tokio::time::Instant;

const ID: &str = "a-dump";
const TIME: Duration = Duration::from_secs(29);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The latency of a read of a blob.
const LATENCY: Duration = Duration::from_millis(10);

const MODULES: u32 = 20;
const THREADS: usize = 30;
const FRAMES: usize = 30;

/// Enough functions for several slices of each cache, and for caches that are not read whole.
const SOME_FUNCTIONS: usize = 6_000;
const MANY_FUNCTIONS: usize = 40_000;

async fn walk(world: &World, file: &[u8]) -> Option<ReadCrash> {
    let invocation = world.invocation(TIME);
    let request = MinidumpRequest {
        file: file.to_vec().into(),
        fields: &CrashFields::default(),
        call: CallState::first(ID, &Scope::Global, Duration::ZERO),
    };
    let walked = world.service().walk_minidump(&invocation, request);
    match Box::pin(walked).await.unwrap() {
        WalkOutcome::Walked(report, _) => Some(*report),
        WalkOutcome::Pending => None,
        WalkOutcome::Failed(message) => panic!("{message}"),
    }
}

/// Answers a minidump whose modules are ready; panics unless all frames have their names.
async fn answer(world: &World, crash: &MadeUpCrash<'_>) {
    let report = walk(world, &crash.dump()).await.unwrap();
    let body = serde_json::to_vec(&report).unwrap();
    let call = CallState::first(ID, &Scope::Global, Duration::ZERO)
        .storing(RequestToStore::crash_file(&report, &body));
    let invocation = world.invocation(TIME);
    let service = world.service();
    let answer = service.answer_crash(&invocation, &report, call);
    let SymbolicateOutcome::Completed(completed, _) = Box::pin(answer).await.unwrap() else {
        panic!("not finished");
    };
    let answer = serde_json::to_value(Response::Completed(*completed)).unwrap();
    assert!(crash.is_symbolicated(&answer), "{answer:#}");
}

async fn upload(world: &World, modules: &[MadeUp]) {
    for module in modules {
        let event = world.put(&module.key(), module.file());
        world.deliver(&event).await.unwrap();
    }
    world.settle().await;
}

#[tokio::test(start_paused = true)]
async fn thirty_threads_in_twenty_modules_cost_two_reads_of_records_and_three_rounds_of_blobs() {
    let modules = (1..=MODULES).map(|at| MadeUp::new(at, SOME_FUNCTIONS));
    assert_cost(&modules.collect::<Vec<_>>()).await;
}

#[tokio::test(start_paused = true)]
async fn the_indexes_of_large_caches_of_both_kinds_are_read_in_one_round() {
    let modules = (1..=2).map(|at| MadeUp::new(at, MANY_FUNCTIONS));
    let reads = assert_cost(&modules.collect::<Vec<_>>()).await;
    assert!(reads > 4 * 2, "the caches are read whole: {reads} reads");
}

/// Panics if an instance without caches needs more for a crash in these modules than two reads of
/// records and three dependent rounds of reads of blobs, or needs anything for it again. Returns
/// the number of reads of blobs.
async fn assert_cost(modules: &[MadeUp]) -> u64 {
    let world = World::new();
    upload(&world, modules).await;
    let crash = MadeUpCrash {
        modules,
        unreached: 0,
        threads: THREADS,
        frames: FRAMES,
    };
    let instance = world.instance_with_distant_blobs(LATENCY);
    let calls = || (world.records.calls(), world.caches.calls());
    let before = calls();
    let began = Instant::now();
    answer(&instance, &crash).await;
    let rounds = began.elapsed().as_millis().div_ceil(LATENCY.as_millis());
    let after = calls();
    let loads = after.0.of("load") - before.0.of("load");
    assert!(loads <= 2, "{loads} reads of records");
    assert!(rounds <= 3, "{rounds} dependent rounds of reads of blobs");
    let reads = after.1.of("get") - before.1.of("get");
    assert!(reads >= 2 * modules.len() as u64, "{reads} reads of blobs");

    // The same instance needs nothing for the same crash.
    answer(&instance, &crash).await;
    let again = calls();
    assert_eq!(again.0.total() - after.0.total(), 0);
    assert_eq!(again.1.total() - after.1.total(), 0);
    reads
}

#[tokio::test(start_paused = true)]
async fn of_twenty_modules_that_are_not_built_each_is_requested_once_when_a_walk_reaches_it() {
    let world = World::new();
    let modules: Vec<MadeUp> = (1..=MODULES).map(|at| MadeUp::new(at, 200)).collect();
    upload(&world, &modules).await;
    world.pass(8 * DAY).await;
    world.prune().await.unwrap();
    // The frames are in the first 12 modules. The stacks point into the others, too.
    let crash = MadeUpCrash {
        modules: &modules,
        unreached: 8,
        threads: 4,
        frames: FRAMES,
    };
    let file = crash.dump();
    let instance = world.another_instance();
    let mut requested = Vec::new();
    let mut rounds = 0;
    while walk(&instance, &file).await.is_none() {
        let sent = world.queues.sent();
        requested.extend(sent.iter().map(|sent| sent.message.module.id.clone()));
        world.settle().await;
        rounds += 1;
        assert!(rounds <= 40, "{requested:?}");
    }
    let mut expected: Vec<String> = modules[..12]
        .iter()
        .map(|module| world.module("global", &module.debug_id()).id)
        .collect();
    requested.sort();
    expected.sort();
    assert_eq!(requested, expected);
}

/// 131,072 frames: as many as a minidump may have, and several times what a response may have.
#[tokio::test(start_paused = true)]
async fn a_minidump_of_more_frames_than_a_response_holds_keeps_those_of_the_thread_that_crashed() {
    const MAX_THREADS: usize = 512;
    let world = World::new();
    let modules = [MadeUp::new(1, SOME_FUNCTIONS)];
    upload(&world, &modules).await;
    let crash = MadeUpCrash {
        modules: &modules,
        unreached: 0,
        threads: MAX_THREADS,
        frames: MAX_FRAMES,
    };
    let report = walk(&world, &crash.dump()).await.unwrap();
    let lengths = report.request.stacktraces.iter();
    let frames: usize = lengths.map(|stacktrace| stacktrace.frames.len()).sum();
    assert_eq!(frames, limits::FRAMES);

    let invocation = world.invocation(TIME);
    let service = world.service();
    let call = CallState::first(ID, &Scope::Global, Duration::ZERO);
    // A client that sends these threads itself can send them in several requests.
    let whole = service.answer(&invocation, &report.request, call);
    let whole = Box::pin(whole).await;
    assert!(matches!(whole, Err(Error::TooLarge { .. })), "{whole:?}");

    let answer = service.answer_crash(&invocation, &report, call);
    let SymbolicateOutcome::Completed(completed, stats) = Box::pin(answer).await.unwrap() else {
        panic!("not finished");
    };
    assert_eq!(stats.shortened, MAX_THREADS - 1);
    assert_eq!(completed.stacktraces.len(), MAX_THREADS);
    let mut shown = 0;
    for (thread, (found, walked)) in completed
        .stacktraces
        .iter()
        .zip(&report.request.stacktraces)
        .enumerate()
    {
        let crashed = thread == 0;
        assert_eq!(found.is_requesting, Some(crashed));
        assert_eq!(found.frames.len() == MAX_FRAMES, crashed, "thread {thread}");
        // They are the innermost ones, with their names. Callers have the addresses of their calls,
        // which end where they return to.
        for (at, (found, walked)) in found.frames.iter().zip(&walked.frames).enumerate() {
            let after = walked.instruction_addr.0 - found.frame.instruction_addr.0;
            assert_eq!(after, u64::from(at > 0), "thread {thread}, frame {at}");
            assert!(found.frame.function.is_some(), "{found:?}");
        }
        shown += found.frames.len();
    }
    assert!(shown < frames, "{shown} frames");
    // Not many fewer than there is room for.
    let room = limits::ANSWER_BYTES / 2..=limits::ANSWER_BYTES;
    assert!(room.contains(&stats.answer_bytes), "{stats:?}");

    // In the schema of `minidump-stackwalk`, there is room for fewer.
    let report = ReadCrash {
        stackwalk: Some(StackwalkReport::default()),
        ..report
    };
    let answer = service.answer_crash(&invocation, &report, call);
    let SymbolicateOutcome::Completed(completed, stats) = Box::pin(answer).await.unwrap() else {
        panic!("not finished");
    };
    assert_eq!(stats.shortened, MAX_THREADS - 1);
    let lengths = completed.stacktraces.iter().map(|one| one.frames.len());
    let shown: usize = lengths.sum();
    let room = limits::STACKWALK_FRAMES - MAX_THREADS..=limits::STACKWALK_FRAMES;
    assert!(room.contains(&shown), "{shown} frames");
}
