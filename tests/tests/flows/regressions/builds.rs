//! Builds: who requests them, who holds the lease, and what happens if a build does not finish.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use symdepot::adapters::faulty::{How, Operation};
use symdepot::adapters::memory::MemoryBlobs;
use symdepot::api::symbolicator::{Completed, parse_request};
use symdepot::cache::{ItemKey, Kind, Queue, Revision, Stored};
use symdepot::domain::{Cause, Location, Scope};
use symdepot::flows::HttpService;
use symdepot::flows::memory::Memory;
use symdepot::flows::symbolicate::SymbolicateOutcome;
use symdepot::ports::{Consistency, Cursor, Fault, Page, RecordStore, Removed, Replaced, Segment};
use symdepot_tests::harness::{Crash, World, fixture, function_names, in_module, sample_crash};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{
    FIRST_CALL, FRAMES, HOUR, before_next, entry, made_from, request_build_of, requested_build,
    rewrite,
};
use crate::requests::cold;
use crate::{CHECKSUM, CRASH, CRASH_ARM64};

#[tokio::test(start_paused = true)]
async fn r02_a_write_that_succeeded_without_a_response_is_recognised_after_a_touch() {
    let prepare = async || {
        let world = World::new();
        world.upload("global/crash", "elf/crash").await;
        world.pass(2 * HOUR).await;
        let event = world.put("global/crash.debug", fixture("elf/crash.debug"));
        (world, event)
    };
    let (world, event) = prepare().await;
    let before = world.faults.calls(Operation::Replace);
    world.deliver(&event).await.unwrap();
    let writes = world.faults.calls(Operation::Replace) - before;
    let (goal, derived) = (world.summary(), world.derivations.derived());
    for nth in 1..=writes {
        let (world, event) = prepare().await;
        let write = world.faults.calls(Operation::Replace) + nth;
        world.faults.fail(Operation::Replace, write, How::After);
        before_next(&world, Operation::Replace, nth - 1, |world| async move {
            // Between the write and the read that resolves its unknown outcome, a reader uses the
            // entry.
            before_next(&world, Operation::Load, 0, |world| async move {
                let _ = world
                    .another_instance()
                    .answer(&sample_crash(), &Scope::Global, Duration::ZERO)
                    .await
                    .unwrap();
            });
        });
        if world.deliver(&event).await.is_err() {
            world.deliver(&event).await.unwrap();
        }
        world.settle().await;
        world.check();
        assert_eq!(
            (world.summary(), world.derivations.derived()),
            (goal.clone(), derived),
            "write {nth}"
        );
    }
}

/// The best file cannot be read, so a second build would not find that nothing is left to do.
#[tokio::test(start_paused = true)]
async fn a_builder_that_takes_a_lease_late_does_not_repeat_what_another_one_has_built() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.upload("global/z.debug", "elf/crash.zlib.debug").await;
    world.pass(8 * 24 * HOUR).await;
    world.prune().await.unwrap();
    // No event reports this change.
    let changed = Location::new("global/crash.debug");
    world.uploads.put(&changed, fixture("elf/checksum"));
    let (message, derived) = (requested_build(&world).await, world.derivations.derived());
    // Between the read of the entries and the write of the lease, another builder is faster.
    let same = message.clone();
    before_next(&world, Operation::Replace, 0, |world| async move {
        world.serve(&same).await.unwrap();
    });
    world.serve(&message).await.unwrap();
    assert_eq!(world.derivations.derived() - derived, 2);
    assert_eq!(made_from(&world), "global/z.debug");
    for kind in [Kind::CfiCache, Kind::SymCache] {
        assert_eq!(
            (entry(&world, kind).lease(), entry(&world, kind).attempts()),
            (None, 0)
        );
    }
    world.check();
}

/// The other build might fail to read the best file, so a further one would not find that nothing
/// is left to do.
#[tokio::test(start_paused = true)]
async fn a_reader_that_requests_a_build_late_uses_what_another_one_has_built() {
    let world = cold().await;
    let message = requested_build(&world).await;
    let derived = world.derivations.derived();
    // The build request expires, and its message is late.
    world.pass(Duration::from_secs(31)).await;
    // Between the read of the entry and the write of another build request, a build ends.
    before_next(&world, Operation::Replace, 0, |world| async move {
        world.serve(&message).await.unwrap();
    });
    let wait = Duration::from_secs(25);
    let reader = world.another_instance();
    let answer = reader.answer(&sample_crash(), &Scope::Global, wait).await;
    let Ok(SymbolicateOutcome::Completed(completed, _)) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(function_names(&completed).len(), FRAMES);
    assert!(world.queues.sent().is_empty());
    assert_eq!(world.derivations.derived() - derived, 2);
    assert_eq!(entry(&world, Kind::SymCache).build_request(), None);
}

#[tokio::test(start_paused = true)]
async fn r02_a_client_that_repeats_a_successful_write_does_not_block_its_own_build() {
    let world = cold().await;
    let message = requested_build(&world).await;
    let derived = world.derivations.derived();
    world.faults.fail_always(Operation::Replace, How::Repeated);
    world
        .faults
        .fail_always(Operation::CreateBlob, How::Repeated);
    world.serve(&message).await.unwrap();
    world.faults.heal();
    world.check();
    assert_eq!(
        (made_from(&world), world.derivations.derived() - derived),
        ("global/crash.debug".to_owned(), 2)
    );
    assert!(world.queues.sent().is_empty() && entry(&world, Kind::SymCache).lease().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_build_goes_on_while_the_extension_of_its_leases_waits_for_the_store() {
    let world = cold().await;
    let message = requested_build(&world).await;
    world.derivations.take(Duration::from_secs(30));
    // Two leases are taken, and each is extended after 20 s.
    let writes = world.faults.calls(Operation::Replace);
    for nth in [3, 4] {
        let extension = writes + nth;
        world.faults.fail(Operation::Replace, extension, How::Slow);
    }
    let began = Instant::now();
    world.serve(&message).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(40));
    assert_eq!(made_from(&world), "global/crash.debug");
    assert!(world.queues.sent().is_empty());
    world.check();
}

/// The ready state was made from many files with long keys.
#[tokio::test(start_paused = true)]
async fn a_state_for_which_the_record_has_no_room_fails_and_its_build_is_not_repeated() {
    const MAX_ITEM_BYTES: usize = 400 * 1024;
    let key = format!("global/{}", "d".repeat(900));
    let size = |item: &Value| serde_json::to_vec(item).unwrap().len();
    let built_with = async |key_bytes: usize| {
        let world = World::new();
        world.upload("global/crash", "elf/crash").await;
        let mut before = 0;
        rewrite(&world, CRASH, |entry| {
            entry["ready"]["version"] = 0.into();
            let long = json!({"location": "x".repeat(key_bytes), "etag": "1"});
            let made_from = entry["ready"]["made_from"].as_array_mut();
            made_from.unwrap().push(long);
            before = size(entry);
        })
        .await;
        let event = world.put(&key, fixture("elf/crash.debug"));
        world.deliver(&event).await.unwrap();
        (world, before)
    };
    let (world, before) = built_with(0).await;
    assert_eq!(made_from(&world), key);
    let stored = world
        .records
        .peek(&world.module("global", CRASH).entry(Kind::SymCache));
    let after = size(&serde_json::to_value(&stored.unwrap().item).unwrap());

    let (world, _) = built_with(MAX_ITEM_BYTES + 100 - after).await;
    let entry = entry(&world, Kind::SymCache);
    assert_eq!(entry.missing().unwrap().missing.cause, Cause::Malformed);
    assert_eq!((entry.lease(), entry.build_request()), (None, None));
    assert!(before < after && entry.ready().is_some());
}

#[tokio::test(start_paused = true)]
async fn r03_a_message_that_meets_the_lease_of_a_killed_builder_is_resent_after_its_end() {
    let world = cold().await;
    let message = requested_build(&world).await;
    world.derivations.take(Duration::from_secs(100));
    tokio::time::timeout(Duration::from_secs(5), world.serve(&message))
        .await
        .unwrap_err();
    let until = entry(&world, Kind::SymCache).lease().unwrap().until;
    world.pass(Duration::from_secs(1)).await;
    world.derivations.take(Duration::ZERO);
    world.serve(&message).await.unwrap();
    let sent = world.queues.sent();
    assert_eq!(
        sent.len(),
        1,
        "a message that could not be processed is retried"
    );
    assert!(!sent[0].delay.is_zero() && sent[0].delay <= Duration::from_secs(62));
    world.settle().await;
    assert!(
        world.now() <= until.plus(Duration::from_secs(10)),
        "a killed holder delays others by at most a minute"
    );
    assert_eq!(made_from(&world), "global/crash.debug");
    assert_eq!(entry(&world, Kind::SymCache).attempts(), 0);
}

#[tokio::test(start_paused = true)]
async fn r04_a_build_is_requested_until_it_is_done() {
    let world = cold().await;
    let message = requested_build(&world).await;
    let seen = Arc::new(std::sync::Mutex::new(None));
    let noted = seen.clone();
    before_next(&world, Operation::CreateBlob, 1, move |world| async move {
        *noted.lock().unwrap() = Some(entry(&world, Kind::SymCache));
    });
    world.serve(&message).await.unwrap();
    let during = seen.lock().unwrap().take().unwrap();
    assert_eq!(
        (
            during
                .build_request()
                .map(|build_request| &build_request.id),
            during.ready()
        ),
        (Some(&message.build_request), None)
    );
    assert_eq!(entry(&world, Kind::SymCache).build_request(), None);
}

#[tokio::test(start_paused = true)]
async fn leases_are_released_together_and_their_entries_are_not_read_again() {
    let world = cold().await;
    let message = requested_build(&world).await;
    let calls = Arc::new(std::sync::Mutex::new(None));
    let noted = calls.clone();
    let [loads, writes] = [Operation::Load, Operation::Replace];
    before_next(&world, Operation::CreateBlob, 0, move |world| async move {
        let before = (world.faults.calls(loads), world.faults.calls(writes));
        *noted.lock().unwrap() = Some(before);
    });
    let first = world.faults.calls(Operation::CreateBlob) + 1;
    world.faults.fail(Operation::CreateBlob, first, How::Before);
    world.serve(&message).await.unwrap_err();
    let (loads_before, writes_before) = calls.lock().unwrap().take().unwrap();
    assert_eq!(world.faults.calls(loads), loads_before);
    assert_eq!(world.faults.calls(writes), writes_before + 2);
    for kind in [Kind::CfiCache, Kind::SymCache] {
        let entry = entry(&world, kind);
        assert_eq!((entry.lease(), entry.attempts()), (None, 0), "{kind}");
    }
    world.pass(HOUR).await;
    world.serve(&message).await.unwrap();
    assert_eq!(made_from(&world), "global/crash.debug");
}

#[tokio::test(start_paused = true)]
async fn each_extension_of_a_lease_writes_its_entry_once_and_does_not_read_it() {
    let calls_of_build = async |takes: Duration| {
        let world = cold().await;
        let message = requested_build(&world).await;
        world.derivations.take(takes);
        let operations = [Operation::Load, Operation::Replace];
        let before = operations.map(|operation| world.faults.calls(operation));
        world.serve(&message).await.unwrap();
        assert_eq!(made_from(&world), "global/crash.debug");
        let after = operations.map(|operation| world.faults.calls(operation));
        [after[0] - before[0], after[1] - before[1]]
    };
    let [loads, writes] = calls_of_build(Duration::ZERO).await;
    // Two leases are extended every 20 s.
    let extended = calls_of_build(Duration::from_secs(70)).await;
    assert_eq!(extended, [loads, writes + 2 * 3]);
}

#[tokio::test(start_paused = true)]
async fn r18_a_crash_that_waits_does_not_queue_behind_the_uploads() {
    let world = World::new();
    let event = world.put("global/crash.debug", fixture("elf/crash.debug"));
    // The event was applied up to its marks, whose build requests are in the uploads queue. Then
    // its function was killed.
    before_next(&world, Operation::ReadDif, 0, |world| async move {
        world.faults.fail(
            Operation::Query,
            world.faults.calls(Operation::Query) + 2,
            How::Before,
        );
    });
    world.deliver(&event).await.unwrap_err();
    assert_eq!(
        entry(&world, Kind::SymCache).build_request().unwrap().queue,
        Queue::Uploads
    );
    let message = requested_build(&world).await;
    assert_eq!(message.queue, Queue::Eager);
    world.serve(&message).await.unwrap();
    assert_eq!(made_from(&world), "global/crash.debug");
}

#[tokio::test(start_paused = true)]
async fn r23_a_build_that_is_released_repeatedly_is_not_given_up_as_crashed() {
    let world = World::new();
    world.upload("global/crash", "elf/crash").await;
    let healthy = entry(&world, Kind::SymCache).ready().cloned();
    let event = world.put("global/crash.debug", fixture("elf/crash.debug"));
    for attempt in 1..=5 {
        world.derivations.fail_next(1);
        world.deliver(&event).await.unwrap_err();
        let entry = entry(&world, Kind::SymCache);
        assert_eq!(
            (entry.ready().cloned(), entry.missing(), entry.lease()),
            (healthy.clone(), None, None)
        );
        assert_eq!(entry.attempts(), 0, "attempt {attempt}");
        world.pass(Duration::from_secs(64)).await;
    }
    world.deliver(&event).await.unwrap();
    world.settle().await;
    assert_eq!(made_from(&world), "global/crash.debug");
}

#[tokio::test(start_paused = true)]
async fn r26_a_build_request_whose_response_is_lost_sends_its_message_once() {
    for how in [How::After, How::Repeated] {
        let world = cold().await;
        world.faults.fail(
            Operation::Replace,
            world.faults.calls(Operation::Replace) + 1,
            how,
        );
        let message = requested_build(&world).await;
        assert_eq!(world.queues.calls().of("send"), 1, "{how:?}");
        assert_eq!(
            entry(&world, Kind::SymCache).build_request().unwrap().id,
            message.build_request,
            "{how:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn r27_two_builders_that_each_hold_half_of_the_kinds_both_finish() {
    let world = cold().await;
    let message = requested_build(&world).await;
    // The first builder has the lease of one kind. Before it takes the other lease, a second
    // builder tries to take the first one.
    let second = message.clone();
    before_next(&world, Operation::Replace, 1, move |world| async move {
        world.serve(&second).await.unwrap();
    });
    world.serve(&message).await.unwrap();
    world.settle().await;
    world.check();
    for kind in [Kind::CfiCache, Kind::SymCache] {
        let entry = entry(&world, kind);
        assert!(entry.ready().is_some(), "{kind}");
        assert_eq!(
            (entry.lease(), entry.build_request(), entry.missing()),
            (None, None, None),
            "{kind}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn r27_two_messages_at_a_time_for_one_module_derive_it_once() {
    let world = cold().await;
    let derived = world.derivations.derived();
    world.derivations.take(Duration::from_secs(90));
    let message = requested_build(&world).await;
    let (first, second) = tokio::join!(world.serve(&message), world.serve(&message));
    first.unwrap();
    second.unwrap();
    world.settle().await;
    assert_eq!(
        (
            world.derivations.derived() - derived,
            world.queues.sent().len()
        ),
        (2, 0)
    );
    assert_eq!(made_from(&world), "global/crash.debug");
}

#[tokio::test(start_paused = true)]
async fn r10_a_reader_of_the_wrong_bucket_removes_nothing() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let before = entry(&world, Kind::SymCache);
    let made_from = before.ready().map(|ready| &ready.made_from);
    let derived = world.derivations.derived();
    let named = |completed: &Completed| {
        let names = function_names(completed);
        names.iter().filter(|name| *name != "?").count()
    };
    let wrong = HttpService {
        caches: Arc::new(MemoryBlobs::new()),
        memory: Arc::new(Memory::new(1 << 20, HOUR)),
        ..world.service().clone()
    };
    for _ in 0..3 {
        let (invocation, crash) = (world.invocation(Duration::from_secs(29)), sample_crash());
        let answer = wrong.answer(&invocation, &crash, FIRST_CALL);
        let named = match answer.await.unwrap() {
            SymbolicateOutcome::Pending => 0,
            SymbolicateOutcome::Completed(completed, _) => named(&completed),
        };
        assert_eq!(named, 0);
        // A reader of the intact blob is served all the time.
        let right = world.another_instance();
        let answer = right.answer(&crash, &Scope::Global, Duration::ZERO);
        assert!(
            matches!(answer.await.unwrap(), SymbolicateOutcome::Completed(completed, _) if function_names(&completed).len() == FRAMES)
        );
        world.settle().await;
        world.check();
        // A blob that the builder finds intact is built again once, and the state stays.
        assert_eq!(
            entry(&world, Kind::SymCache)
                .ready()
                .map(|ready| &ready.made_from),
            made_from
        );
        assert!(world.derivations.derived() <= derived + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn r10_if_too_many_blobs_seem_lost_none_is_removed_or_rebuilt() {
    let world = World::with(|settings| settings.max_losses_per_hour = 1);
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.upload("global/checksum", "elf/checksum").await;
    let symcache = |id| world.entry("global", id, Kind::SymCache).unwrap();
    let path_of = |id| symcache(id).ready().unwrap().blob.path.clone();
    let (first, second) = (path_of(CRASH), path_of(CHECKSUM));
    let other = in_module(json!({"type": "elf", "debug_id": CHECKSUM}), &[0x1000]);
    world.caches.lose(&first);
    world.caches.lose(&second);
    for crash in [&sample_crash(), &other] {
        let instance = world.another_instance();
        let answer = instance.answer(crash, &Scope::Global, Duration::ZERO).await;
        assert!(matches!(answer, Ok(SymbolicateOutcome::Pending)));
    }
    let messages = world.queues.drain();
    assert_eq!(messages.len(), 2);
    world.serve(&messages[0].message).await.unwrap();
    assert_ne!(path_of(CRASH), first, "one may be lost");
    let (derived, before) = (world.derivations.derived(), symcache(CHECKSUM));
    let refused = world.serve(&messages[1].message).await.unwrap_err();
    assert_eq!(refused.name(), "Doubtful");
    assert!(refused.to_string().contains("CACHES_BUCKET"), "{refused}");
    let after = symcache(CHECKSUM);
    assert_eq!(
        (after.ready(), after.suspect()),
        (before.ready(), before.suspect())
    );
    assert_eq!(world.derivations.derived(), derived);
    // An hour later it may be rebuilt again.
    world.pass(HOUR).await;
    world.serve(&messages[1].message).await.unwrap();
    assert_ne!(path_of(CHECKSUM), second);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn r13_a_file_that_exceeds_the_time_of_a_function_is_given_up_with_a_reason() {
    let world = cold().await;
    let message = requested_build(&world).await;
    world.derivations.take(Duration::from_secs(16 * 60));
    world.serve(&message).await.unwrap();
    assert_eq!(world.queues.sent(), [], "it is not tried again");
    let given_up = entry(&world, Kind::SymCache);
    let placeholder = given_up.missing().unwrap();
    assert_eq!(placeholder.missing.cause, Cause::Malformed);
    assert!(
        placeholder.missing.detail.ends_with("and was not complete"),
        "{}",
        placeholder.missing.detail
    );
    assert_eq!((given_up.lease(), given_up.build_request()), (None, None));
    let derived = world.derivations.derived();
    let answer = world.another_instance().symbolicate(&sample_crash()).await;
    assert!(function_names(&answer).iter().all(|name| name == "?"));
    assert_eq!(
        (world.derivations.derived(), world.queues.sent()),
        (derived, vec![])
    );
}

#[tokio::test(start_paused = true)]
async fn r13_a_file_that_kills_its_parser_each_time_is_given_up_after_a_few_attempts() {
    let world = cold().await;
    let message = requested_build(&world).await;
    let derived = world.derivations.derived();
    world.derivations.kill_next(u64::MAX);
    world.serve(&message).await.unwrap();
    world.settle().await;
    for kind in [Kind::CfiCache, Kind::SymCache] {
        let given_up = entry(&world, kind);
        assert_eq!(given_up.missing().unwrap().missing.cause, Cause::Crashed);
        assert_eq!(
            (given_up.lease(), given_up.build_request()),
            (None, None),
            "{kind}"
        );
    }
    let attempts = u64::from(world.settings.policy.max_attempts);
    assert_eq!(world.derivations.derived() - derived, 2 * attempts);
    let answer = world.another_instance().symbolicate(&sample_crash()).await;
    assert!(function_names(&answer).iter().all(|name| name == "?"));
    assert_eq!(world.derivations.derived() - derived, 2 * attempts);
}

/// Records that let all other tasks run before each call.
#[derive(Debug)]
struct Yielding(Arc<dyn RecordStore>);

#[async_trait]
impl RecordStore for Yielding {
    async fn load(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
    ) -> Result<Vec<Option<Stored>>, Fault> {
        tokio::task::yield_now().await;
        self.0.load(keys, consistency).await
    }

    async fn query(&self, partition: &str) -> Result<Vec<(ItemKey, Stored)>, Fault> {
        tokio::task::yield_now().await;
        self.0.query(partition).await
    }

    async fn replace(
        &self,
        key: &ItemKey,
        expected: Option<&Revision>,
        next: &Stored,
    ) -> Result<Replaced, Fault> {
        tokio::task::yield_now().await;
        self.0.replace(key, expected, next).await
    }

    async fn remove(&self, key: &ItemKey, expected: &Revision) -> Result<Removed, Fault> {
        tokio::task::yield_now().await;
        self.0.remove(key, expected).await
    }

    async fn page(&self, segment: Segment, after: Option<&Cursor>) -> Result<Page, Fault> {
        tokio::task::yield_now().await;
        self.0.page(segment, after).await
    }
}

/// A crash in many modules that no source has.
fn crash_in_modules(count: u64) -> Crash {
    let place = |at: u64| format!("{:#x}", 0x1_0000_0000 * (at + 1));
    let module = |at: u64| {
        let debug_id = format!("{:08x}-2222-3333-4444-555555555555", at + 1);
        json!({"type": "elf", "debug_id": debug_id, "image_addr": place(at), "image_size": 4096})
    };
    let modules: Vec<_> = (0..count).map(module).collect();
    let frames: Vec<_> = (0..count)
        .map(|at| json!({"instruction_addr": place(at)}))
        .collect();
    let body = json!({"stacktraces": [{"frames": frames}], "modules": modules});
    parse_request(body.to_string().as_bytes()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn r16_many_readers_of_many_entries_at_once_send_one_message_for_each_entry() {
    const READERS: u64 = 200;
    const MODULES: u64 = 30;
    let world = World::new();
    for at in 0..MODULES {
        let file = format!(
            "MODULE Linux x86_64 {:08X}2222333344445555555555550 made-up\nFUNC 0 10 0 f\n",
            at + 1
        );
        let event = world.put(&format!("global/{at}.sym"), file);
        world.deliver(&event).await.unwrap();
    }
    world.pass(8 * 24 * HOUR).await;
    world.prune().await.unwrap();
    assert_eq!(
        (world.entries(), world.queues.sent()),
        (Vec::new(), Vec::new())
    );
    let written = world.records.calls().of("replace");
    let crash = crash_in_modules(MODULES);
    let records: Arc<dyn RecordStore> = Arc::new(Yielding(world.records.clone()));
    let mut readers = JoinSet::new();
    for _ in 0..READERS {
        let reader = HttpService {
            records: records.clone(),
            memory: Arc::new(Memory::new(1 << 20, HOUR)),
            ..world.service().clone()
        };
        let (world, crash) = (world.clone(), crash.clone());
        readers.spawn(async move {
            let invocation = world.invocation(Duration::from_secs(29));
            let answer = reader.answer(&invocation, &crash, FIRST_CALL);
            matches!(Box::pin(answer).await.unwrap(), SymbolicateOutcome::Pending)
        });
    }
    assert!(readers.join_all().await.into_iter().all(|pending| pending));
    let tried = world.records.calls().of("replace") - written;
    assert!(tried > MODULES, "no write lost a race");
    assert!(tried <= READERS * MODULES, "{tried} writes");
    let mut requests: Vec<String> = world
        .queues
        .sent()
        .iter()
        .map(|sent| sent.message.build_request.to_string())
        .collect();
    let mut stand: Vec<String> = world
        .entries()
        .iter()
        .map(|entry| entry.build_request().unwrap().id.to_string())
        .collect();
    requests.sort();
    stand.sort();
    assert_eq!((requests.len() as u64, &requests), (MODULES, &stand));
    world.settle().await;
    let answer = world.answer(&crash, &Scope::Global, Duration::ZERO).await;
    assert!(matches!(answer.unwrap(), SymbolicateOutcome::Completed(..)));
    // A call sends ten of them.
    assert_eq!(world.queues.calls().of("send"), MODULES / 10);
}

/// Records that a reader could not read the SymCache of a module, which was already replaced a
/// moment ago.
async fn suspect_soon_after_a_replacement(world: &World, debug_id: &str) {
    let entry = world.entry("global", debug_id, Kind::SymCache).unwrap();
    let blob = entry.ready().unwrap().blob.path.clone();
    rewrite(world, debug_id, |entry| {
        entry["suspect"] = json!({"blob": blob, "at": world.now()});
        entry["lost_at"] = json!(world.now());
    })
    .await;
}

/// The whole blob may exceed the memory that a parser leaves.
#[tokio::test(start_paused = true)]
async fn a_large_blob_that_readers_suspect_is_judged_by_its_length() {
    const BYTES: usize = 129 << 20;
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let path_of = |world: &World| {
        let entry = entry(world, Kind::SymCache);
        entry.ready().unwrap().blob.path.clone()
    };
    let before = path_of(&world);
    world.caches.overwrite(&before, vec![0_u8; BYTES]);
    rewrite(&world, CRASH, |entry| {
        entry["ready"]["blob"]["bytes"] = json!(BYTES);
        entry["ready"]["blob"]["index"] = json!(null);
        entry["suspect"] = json!({"blob": before, "at": world.now()});
    })
    .await;
    let module = world.module("global", CRASH);
    let message = request_build_of(&world, module, Queue::Eager).await;
    world.serve(&message).await.unwrap();
    // It is built again, but does not count as lost.
    assert_ne!(path_of(&world), before);
    assert_eq!(world.records.peek(&ItemKey::losses()), None);
    world.check();
}

/// Found by reading: the build gave up because of the blob, and noted the file as considered.
#[tokio::test(start_paused = true)]
async fn a_better_file_that_arrives_while_the_cache_is_suspect_is_used() {
    let world = World::new();
    world.upload("global/crash", "elf/crash").await;
    suspect_soon_after_a_replacement(&world, CRASH).await;
    world.upload("global/crash.debug", "elf/crash.debug").await;
    assert_eq!(made_from(&world), "global/crash.debug");
    let after = entry(&world, Kind::SymCache);
    assert_eq!(
        (after.suspect(), after.missing(), after.build_request()),
        (None, None, None)
    );
    world.check();
}

/// A build tries what came since the last one, and makes no cache of the former files.
#[tokio::test(start_paused = true)]
async fn a_file_that_arrives_while_the_cache_is_suspect_is_tried_once() {
    let world = World::new();
    world.upload("global/crash", "elf/crash-arm64").await;
    let of_module = |world: &World| world.entry("global", CRASH_ARM64, Kind::SymCache).unwrap();
    let before = of_module(&world).ready().unwrap().blob.path.clone();
    suspect_soon_after_a_replacement(&world, CRASH_ARM64).await;
    // It seems better, and fails to convert.
    let path = "hostile/bits-flipped.debug";
    world.upload("global/flipped.debug", path).await;
    let tried = of_module(&world);
    assert_eq!(tried.missing().unwrap().missing.cause, Cause::Malformed);
    assert_eq!(tried.ready().unwrap().blob.path, before);

    let derived = world.derivations.derived();
    for _ in 0..3 {
        suspect_soon_after_a_replacement(&world, CRASH_ARM64).await;
        let module = world.module("global", CRASH_ARM64);
        let message = request_build_of(&world, module, Queue::Eager).await;
        world.serve(&message).await.unwrap();
        let failed = of_module(&world).missing().unwrap().missing.clone();
        assert_eq!(failed.cause, Cause::DownloadFailed);
    }
    assert_eq!(world.derivations.derived(), derived);
    assert_eq!(of_module(&world).ready().unwrap().blob.path, before);
}
