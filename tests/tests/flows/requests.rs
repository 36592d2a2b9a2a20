//! Requests: what is requested, awaited, cached, and never requested at all.

use std::time::Duration;

use serde_json::json;
use symdepot::api::symbolicator::{CandidateReport, Completed, Derivation, ModuleStatus, Sources};
use symdepot::cache::{Entry, Kind, Queue};
use symdepot::domain::{Location, Scope};
use symdepot::flows::requests::{CallState, RequestStage, RequestToStore};
use symdepot::flows::symbolicate::SymbolicateOutcome;
use symdepot::flows::{Error, Settings};
use symdepot_tests::harness::{
    World, fixture_text, function_names, in_module, sample_crash, stored_request,
};
use tokio::task::JoinSet;

use crate::CRASH;
use crate::first_hour::explained;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The first lines of Breakpad symbols of the crashed module.
const SYMBOLS: &str = "MODULE Linux x86_64 BC6E45AC487FF425367208B89F51AD480 crash\n\
                       INFO CODE_ID AC456EBC7F4825F4367208B89F51AD481774AAE7\n";

/// The frames of the sample crash, including inlined calls.
const FRAMES: usize = 13;

/// A world to which the sample's debug file was uploaded long ago; no client has requested it
/// since.
pub(crate) async fn cold() -> World {
    cold_with(|_| {}).await
}

pub(crate) async fn cold_with(change: impl FnOnce(&mut Settings)) -> World {
    let world = World::with(change);
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.pass(8 * DAY).await;
    world.prune().await.unwrap();
    assert_eq!(
        (world.entries(), world.caches.paths()),
        (Vec::new(), Vec::new())
    );
    world
}

fn sym_cache(world: &World) -> Entry {
    world.entry("global", CRASH, Kind::SymCache).unwrap()
}

fn is_pending(answer: &SymbolicateOutcome) -> bool {
    matches!(answer, SymbolicateOutcome::Pending)
}

fn unknown_module() -> symdepot_tests::harness::Crash {
    in_module(
        json!({"type": "elf", "debug_id": "11111111-2222-3333-4444-555555555555"}),
        &[16],
    )
}

#[tokio::test(start_paused = true)]
async fn the_sample_crash_is_symbolicated() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let answer = world.symbolicate(&sample_crash()).await;
    insta::assert_snapshot!(function_names(&answer).join("\n"));
    assert_eq!(answer.modules[0].debug_status, ModuleStatus::Found);
    assert_eq!(
        world.queues.calls().total(),
        0,
        "existing caches are not requested"
    );
}

#[tokio::test(start_paused = true)]
async fn a_warm_request_makes_no_call_at_all() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.symbolicate(&sample_crash()).await;
    let before = world.calls();
    for _ in 0..10 {
        let answer = world
            .answer(&sample_crash(), &Scope::Global, Duration::ZERO)
            .await
            .unwrap();
        assert!(!is_pending(&answer));
        world.pass(Duration::from_secs(2)).await;
    }
    assert_eq!(world.calls(), before);
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_cause_one_build_request_and_one_build() {
    let world = cold().await;
    let derived = world.derivations.derived();
    let opened = world.derivations.opened();
    // The build takes a while, but less time than a build request is live.
    world.derivations.take(Duration::from_secs(10));
    let mut requests = JoinSet::new();
    for _ in 0..20 {
        let instance = world.another_instance();
        requests.spawn(async move {
            let answer = instance.answer(&sample_crash(), &Scope::Global, Duration::from_secs(25)).await.unwrap();
            matches!(answer, SymbolicateOutcome::Completed(completed, _) if function_names(&completed).len() == FRAMES)
        });
    }
    let finished = world.with_derive_at_work(requests.join_all()).await;
    assert_eq!(finished, [true; 20]);
    assert_eq!(world.queues.calls().of("send"), 1);
    // One download for all caches.
    assert_eq!(
        (
            world.derivations.opened() - opened,
            world.derivations.derived() - derived
        ),
        (1, 2)
    );
    world.check();
}

#[tokio::test(start_paused = true)]
async fn without_time_to_wait_a_request_is_pending_and_its_builds_are_requested() {
    let world = cold().await;
    let answer = world
        .answer(&sample_crash(), &Scope::Global, Duration::ZERO)
        .await
        .unwrap();
    assert!(is_pending(&answer));
    let sent = world.queues.sent();
    assert_eq!(
        (
            sent.len(),
            sent[0].message.queue,
            sent[0].message.kinds.as_slice()
        ),
        (1, Queue::Eager, [Kind::SymCache].as_slice())
    );
    assert_eq!(
        sym_cache(&world).build_request().unwrap().id,
        sent[0].message.build_request
    );
    world.settle().await;
    let answer = world
        .answer(&sample_crash(), &Scope::Global, Duration::ZERO)
        .await
        .unwrap();
    assert!(
        matches!(answer, SymbolicateOutcome::Completed(completed, _) if function_names(&completed).len() == FRAMES)
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_no_longer_than_its_timeout() {
    let world = cold().await;
    let began = tokio::time::Instant::now();
    let answer = world
        .answer(&sample_crash(), &Scope::Global, Duration::from_secs(7))
        .await
        .unwrap();
    assert!(is_pending(&answer));
    assert_eq!(
        began.elapsed(),
        Duration::from_secs(7),
        "the paused clock advances only while a task waits"
    );
}

/// Answers a request that has been pending for this long, and returns how long it waited.
async fn pending_after(world: &World, id: &str, age: Duration) -> Duration {
    let (began, invocation) = (tokio::time::Instant::now(), world.invocation(HOUR));
    let call = CallState {
        to_store: age.is_zero().then(|| RequestToStore::received(b"{}")),
        age,
        ..CallState::first(id, &Scope::Global, Duration::from_secs(25))
    };
    let answer = world
        .service()
        .answer(&invocation, &sample_crash(), call)
        .await;
    assert!(is_pending(&answer.unwrap()));
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_shortly_for_builds_that_do_not_begin() {
    let seconds = Duration::from_secs;
    let world = cold_with(|settings| settings.queued_wait = Some(seconds(5))).await;
    for (age, waits) in [(0, 5), (2, 3), (5, 0), (60, 0)] {
        let waited = pending_after(&world, "queued", seconds(age)).await;
        assert_eq!(waited, seconds(waits), "after {age} s");
        world.pass(seconds(1)).await;
    }
    // A build in progress is waited for.
    world.derivations.take(seconds(60));
    let building = Box::pin(pending_after(&world, "building", Duration::ZERO));
    let waited = world.with_derive_at_work(building).await;
    assert_eq!(waited, seconds(25));
}

#[tokio::test(start_paused = true)]
async fn a_client_without_a_pause_polls_about_once_a_second_while_its_builds_are_in_queues() {
    let seconds = Duration::from_secs;
    let world = cold_with(|settings| settings.queued_wait = Some(seconds(5))).await;
    let began = tokio::time::Instant::now();
    let mut age = pending_after(&world, "a", Duration::ZERO).await;
    let mut polls = 0;
    while age < seconds(35) {
        let waited = pending_after(&world, "a", age).await;
        assert!((seconds(1)..=seconds(2)).contains(&waited), "{waited:?}");
        age = began.elapsed();
        polls += 1;
    }
    assert!((15..=30).contains(&polls), "{polls}");
    // One that pauses holds no run while its builds have none.
    world.pass(seconds(1)).await;
    assert_eq!(pending_after(&world, "a", age).await, Duration::ZERO);
    // In the time that a call is held, its builds may end.
    let call = CallState {
        age,
        ..CallState::first("a", &Scope::Global, seconds(5))
    };
    let (service, invocation, crash) = (world.service(), world.invocation(HOUR), sample_crash());
    let answer = service.answer(&invocation, &crash, call);
    let answer = Box::pin(world.with_derive_at_work(answer)).await.unwrap();
    assert!(!is_pending(&answer));
}

#[tokio::test(start_paused = true)]
async fn a_build_request_is_repeated_when_its_message_is_lost() {
    let world = cold().await;
    for attempt in 1..=3 {
        let answer = world
            .answer(&sample_crash(), &Scope::Global, Duration::from_secs(1))
            .await
            .unwrap();
        assert!(is_pending(&answer));
        assert_eq!(world.queues.drain().len(), 1, "attempt {attempt}");
        world.pass(Duration::from_secs(30)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_tenant_gets_its_own_files_then_global_ones_and_never_those_of_other_tenants() {
    let world = World::new();
    let [acme, other] = ["acme", "other"].map(|name| Scope::Tenant(name.to_owned()));
    world.upload("acme/crash.debug", "elf/crash.debug").await;
    let named = async |scope: &Scope| {
        let answer = world
            .another_instance()
            .symbolicate_for(scope, &sample_crash())
            .await;
        function_names(&answer).len() == FRAMES
    };
    assert!(named(&acme).await);
    assert!(!named(&other).await);
    assert!(!named(&Scope::Global).await);
    world.upload("global/crash.debug", "elf/crash.debug").await;
    assert!(named(&other).await);
    assert!(named(&Scope::Global).await);
}

#[tokio::test(start_paused = true)]
async fn a_tenants_own_file_wins_a_tie_and_a_better_global_one_wins() {
    let used_by_acme = async |own: &str, global: &str| {
        let world = World::new();
        world.upload("global/file", global).await;
        world.upload("acme/file", own).await;
        let mut request = sample_crash();
        request.options.dif_candidates = true;
        let answer = world
            .symbolicate_for(&Scope::Tenant("acme".to_owned()), &request)
            .await;
        let is_used = |candidate: &&CandidateReport| candidate.debug == Some(Derivation::Ok);
        let mut candidates = answer.modules[0].candidates.iter();
        candidates.find(is_used).unwrap().location.to_string()
    };
    assert_eq!(
        used_by_acme("breakpad/crash.sym", "elf/crash.debug").await,
        "acme/file"
    );
    assert_eq!(
        used_by_acme("elf/crash.debug", "elf/crash").await,
        "acme/file"
    );
    assert_eq!(
        used_by_acme("elf/crash", "elf/crash.debug").await,
        "global/file"
    );
}

#[tokio::test(start_paused = true)]
async fn a_module_with_only_a_code_id_is_found_by_its_alias() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let mut request = sample_crash();
    request.modules[0].debug_id = None;
    assert_eq!(
        function_names(&world.symbolicate(&request).await).len(),
        FRAMES
    );
}

#[tokio::test(start_paused = true)]
async fn a_module_without_any_id_is_missing_and_requests_no_build() {
    let world = World::new();
    let answer = world
        .symbolicate(&in_module(json!({"type": "elf"}), &[16]))
        .await;
    assert_eq!(answer.modules[0].debug_status, ModuleStatus::Missing);
    assert_eq!((world.calls(), world.entries()), (0, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn a_request_without_sources_reads_no_record() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let before = world.calls();
    let mut request = sample_crash();
    request.sources = serde_json::from_value::<Sources>(json!([])).unwrap();
    let answer = world.symbolicate(&request).await;
    assert_eq!(answer.modules[0].debug_status, ModuleStatus::Missing);
    assert_eq!(world.calls(), before);
}

#[tokio::test(start_paused = true)]
async fn a_missing_blob_is_reported_and_built_again() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let before = sym_cache(&world).ready().unwrap().blob.path.clone();
    world.caches.lose(&before);
    let answer = world.symbolicate(&sample_crash()).await;
    assert_eq!(function_names(&answer).len(), FRAMES);
    let after = sym_cache(&world);
    assert_ne!(after.ready().unwrap().blob.path, before);
    assert_eq!(
        (after.suspect(), after.missing(), after.build_request()),
        (None, None, None)
    );
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_blob_with_other_bytes_than_were_published_is_never_used_and_built_again() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let path = sym_cache(&world).ready().unwrap().blob.path.clone();
    let good = world.caches.peek(&path).unwrap();
    let mut flipped = good.to_vec();
    flipped[good.len() / 2] ^= 1;
    for bad in [
        flipped,
        good[..good.len() / 2].to_vec(),
        Vec::new(),
        b"not a cache".to_vec(),
    ] {
        let path = sym_cache(&world).ready().unwrap().blob.path.clone();
        world.caches.overwrite(&path, bad);
        let answer = world.another_instance().symbolicate(&sample_crash()).await;
        assert_eq!(function_names(&answer).len(), FRAMES);
        assert_ne!(sym_cache(&world).ready().unwrap().blob.path, path);
        // At most once an hour.
        world.pass(HOUR).await;
    }
    world.check();
}

/// A request does not wait for a corrupt blob that cannot be built again.
#[tokio::test(start_paused = true)]
async fn a_bad_blob_that_cannot_be_built_again_is_missing_and_not_waited_for() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let path = sym_cache(&world).ready().unwrap().blob.path.clone();
    world.caches.overwrite(&path, b"not a cache".to_vec());
    // No event reports this removal.
    world.uploads.remove(&Location::new("global/crash.debug"));
    for _ in 0..3 {
        let began = world.now();
        let answer = world.another_instance().symbolicate(&sample_crash()).await;
        assert_eq!(answer.modules[0].debug_status, ModuleStatus::Missing);
        assert!(world.now().since(began) < Duration::from_secs(10));
    }
    assert!(world.queues.calls().of("send") <= 2, "{}", world.queues);
}

/// A blob that the reader and the builder judge differently is replaced once an hour, not in each
/// round.
#[tokio::test(start_paused = true)]
async fn a_blob_that_is_corrupt_repeatedly_is_replaced_once_an_hour() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let derived = world.derivations.derived();
    for _ in 0..10 {
        let path = sym_cache(&world).ready().unwrap().blob.path.clone();
        world.caches.overwrite(&path, b"not a cache".to_vec());
        let instance = world.another_instance();
        let _ = instance
            .with_derive_at_work(instance.answer(
                &sample_crash(),
                &Scope::Global,
                Duration::from_secs(25),
            ))
            .await;
        world.pass(Duration::from_secs(120)).await;
    }
    assert_eq!(world.derivations.derived() - derived, 1);
    assert!(sym_cache(&world).missing().is_some());
}

/// Found by the simulation: an upload ends the failure of the rebuild, and the waiting request
/// asked for builds, none of which knew of the blob, until its deadline.
#[tokio::test(start_paused = true)]
async fn a_blob_that_cannot_be_read_is_reported_twice_by_a_request_however_many_files_arrive() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let path = sym_cache(&world).ready().unwrap().blob.path.clone();
    world.caches.overwrite(&path, b"not a cache".to_vec());
    world.symbolicate(&sample_crash()).await;
    let path = sym_cache(&world).ready().unwrap().blob.path.clone();
    world.caches.overwrite(&path, b"not a cache".to_vec());

    let instance = world.another_instance();
    let crash = sample_crash();
    let answer = instance.answer(&crash, &Scope::Global, Duration::from_secs(25));
    let mut served = 0;
    let uploads_after_each_build = async {
        loop {
            let messages = world.queues.drain();
            for sent in messages {
                world.serve(&sent.message).await.unwrap();
                served += 1;
                // A lesser file: the entry stays as it is, except that nothing has failed.
                let symbols = format!("{SYMBOLS}PUBLIC 1000 0 symbol{served}\n");
                let event = world.put("global/crash.sym", symbols);
                world.deliver(&event).await.unwrap();
                assert_eq!(sym_cache(&world).missing(), None);
            }
            world.wait(Duration::from_millis(10)).await;
        }
    };
    let began = world.now();
    let answer = tokio::select! {
        answer = answer => answer.unwrap(),
        () = uploads_after_each_build => unreachable!("uploads never end"),
    };
    let SymbolicateOutcome::Completed(answer, _) = answer else {
        panic!("the response is pending");
    };
    assert_eq!(answer.modules[0].debug_status, ModuleStatus::FetchingFailed);
    assert!(world.now().since(began) < Duration::from_secs(10));
    assert_eq!(served, 2);
    assert_eq!(sym_cache(&world).ready().unwrap().blob.path, path);
}

#[tokio::test(start_paused = true)]
async fn a_failed_store_is_not_cached_as_a_failure_of_the_module() {
    use symdepot::adapters::faulty::{How, Operation};
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world
        .upload("global/crash.src.zip", "bundle/crash.src.zip")
        .await;
    let shows_lines = |completed: &Completed| {
        let frames = &completed.stacktraces[0].frames;
        let shown = frames.iter().filter(|one| one.frame.context_line.is_some());
        shown.count() >= 10
    };
    let expected = world.another_instance().symbolicate(&sample_crash()).await;
    assert!(shows_lines(&expected), "{expected:#?}");
    let before = world.records.items();
    let mut reads = 0;
    loop {
        let instance = world.another_instance();
        let nth = world.faults.calls(Operation::GetBlob) + reads + 1;
        world.faults.fail(Operation::GetBlob, nth, How::Before);
        let answer = instance
            .answer(&sample_crash(), &Scope::Global, Duration::ZERO)
            .await;
        world.faults.heal();
        if let Ok(SymbolicateOutcome::Completed(completed, _)) = answer {
            assert_eq!(*completed, expected, "after {reads} reads");
            break;
        }
        assert!(matches!(answer, Err(Error::Fault(_))), "{answer:?}");
        assert_eq!(world.records.items(), before, "the failure is not cached");
        let again = instance.symbolicate(&sample_crash()).await;
        assert_eq!(again, expected, "read {reads} failed");
        reads += 1;
    }
    // At least one read of names, and one of lines.
    assert!(reads >= 2, "{reads} reads");
}

#[tokio::test(start_paused = true)]
async fn a_module_without_uploads_is_missing_at_once_without_writes_and_messages() {
    let world = World::new();
    let (loads, writes) = (
        || world.records.calls().of("load"),
        || world.records.calls().of("replace"),
    );
    for scope in ["global", "acme", "made-up"] {
        let scope: Scope = scope.parse().unwrap();
        let before = loads();
        let answer = world
            .another_instance()
            .answer(&unknown_module(), &scope, Duration::ZERO)
            .await;
        let Ok(SymbolicateOutcome::Completed(completed, _)) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(completed.modules[0].debug_status, ModuleStatus::Missing);
        assert_eq!(loads() - before, 1, "one round of reads");
    }
    assert_eq!((writes(), world.queues.calls().total()), (0, 0));
    assert_eq!(world.records.items().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_miss_is_cached_until_an_upload_which_is_effective_within_two_seconds() {
    let world = World::new();
    world.upload("global/other", "elf/checksum").await;
    world.pass(HOUR).await;
    let loads = || world.records.calls().of("load");
    let reader = world.another_instance();
    let answer = async || {
        let crash = sample_crash();
        let answer = reader.answer(&crash, &Scope::Global, Duration::ZERO).await;
        match answer {
            Ok(SymbolicateOutcome::Completed(completed, _)) => function_names(&completed).len(),
            other => panic!("{other:?}"),
        }
    };
    let missing = answer().await;
    assert!(missing < 13);
    let before = loads();
    assert_eq!(answer().await, missing);
    assert_eq!(loads() - before, 0, "no call within two seconds");
    for _ in 0..20 {
        world.pass(Duration::from_secs(3)).await;
        let (before, keys) = (loads(), world.records.keys_loaded());
        assert_eq!(answer().await, missing);
        assert_eq!(loads() - before, 1);
        assert_eq!(
            world.records.keys_loaded() - keys,
            1,
            "one item for the scope"
        );
    }
    // An upload to another scope changes nothing here.
    world.upload("acme/crash.debug", "elf/crash.debug").await;
    world.pass(Duration::from_secs(3)).await;
    let keys = world.records.keys_loaded();
    assert_eq!(answer().await, missing);
    assert_eq!(world.records.keys_loaded() - keys, 1);

    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.pass(Duration::from_secs(2)).await;
    assert_eq!(answer().await, 13);
    world.remove("global/crash.debug").await;
    world.pass(Duration::from_secs(58)).await;
    assert_eq!(answer().await, missing);
}

/// Right after an upload, an instance cannot tell whether the items that it read together
/// with the new generation are from before or after the change. At the second read it can.
#[tokio::test(start_paused = true)]
async fn soon_after_an_upload_a_miss_is_read_twice_and_then_cached() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let mut reads = Vec::new();
    for _ in 0..4 {
        let before = world.records.keys_loaded();
        world.symbolicate(&unknown_module()).await;
        reads.push(world.records.keys_loaded() - before);
        world.pass(Duration::from_secs(3)).await;
    }
    // The entry, the presence and the generation, twice; then only the generation.
    assert_eq!(reads, [3, 3, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn the_generation_of_its_scope_renews_a_cached_ready_state() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.pass(HOUR / 4).await;
    let reader = world.another_instance();
    let keys = || world.records.keys_loaded();
    reader.symbolicate(&sample_crash()).await;
    for _ in 0..10 {
        world.pass(Duration::from_secs(46)).await;
        let before = keys();
        assert_eq!(
            function_names(&reader.symbolicate(&sample_crash()).await).len(),
            13
        );
        assert_eq!(keys() - before, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_upload_ends_a_miss_at_once() {
    let world = World::new();
    let missing = world.symbolicate(&sample_crash()).await;
    assert_eq!(missing.modules[0].debug_status, ModuleStatus::Missing);
    world.upload("global/crash.debug", "elf/crash.debug").await;
    // An instance's memory of a miss is outdated after two seconds.
    world.pass(Duration::from_secs(2)).await;
    let found = world
        .answer(&sample_crash(), &Scope::Global, Duration::ZERO)
        .await
        .unwrap();
    assert!(
        matches!(found, SymbolicateOutcome::Completed(completed, _) if function_names(&completed).len() == FRAMES)
    );
}

#[tokio::test(start_paused = true)]
async fn a_removed_file_is_in_no_response_after_a_minute() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.symbolicate(&sample_crash()).await;
    world.remove("global/crash.debug").await;
    world.pass(Duration::from_secs(60)).await;
    let answer = world.symbolicate(&sample_crash()).await;
    assert!(function_names(&answer).iter().all(|name| name == "?"));
    assert_eq!(answer.modules[0].debug_status, ModuleStatus::Missing);
}

#[tokio::test(start_paused = true)]
async fn a_use_is_recorded_at_most_hourly() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let writes = || world.records.calls().of("replace");
    let began = writes();
    for _ in 0..4 {
        world.pass(HOUR / 4 - Duration::from_secs(1)).await;
        world.symbolicate(&sample_crash()).await;
    }
    assert_eq!(writes(), began);
    world.pass(HOUR).await;
    for _ in 0..3 {
        world.another_instance().symbolicate(&sample_crash()).await;
        assert_eq!(writes(), began + 1);
        world.pass(HOUR / 4).await;
    }
    assert!(world.now().since(sym_cache(&world).last_used_at()) < HOUR);
}

/// Returns the scope, the stage and the body of a pending request.
async fn stored(world: &World, id: &str) -> Option<(Scope, RequestStage, Vec<u8>)> {
    let invocation = world.invocation(Duration::from_secs(29));
    let stored = stored_request(world.service(), &invocation, id).await;
    let stored = stored.unwrap();
    stored.map(|(found, body)| (found.scope().clone(), found.stage(), body))
}

#[tokio::test(start_paused = true)]
async fn a_request_is_kept_and_continued_by_any_instance_until_it_expires() {
    let world = World::new();
    let acme = Scope::Tenant("acme".to_owned());
    let body = fixture_text("crash.json").into_bytes();
    let invocation = world.invocation(Duration::from_secs(29));
    world
        .service()
        .store_request(&invocation, "1", &acme, RequestToStore::received(&body))
        .await
        .unwrap();
    let kept = async |id: &str| stored(&world.another_instance(), id).await;
    let received = (acme, RequestStage::Symbolicate, body);
    assert_eq!(kept("1").await, Some(received));
    assert_eq!(kept("2").await, None);
    assert_eq!(world.caches.paths(), Vec::<String>::new());
    world.pass(HOUR - Duration::from_secs(1)).await;
    assert!(kept("1").await.is_some());
    world.pass(Duration::from_secs(1)).await;
    assert_eq!(kept("1").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_too_large_for_an_item_is_kept_as_a_blob() {
    let world = World::new();
    let invocation = world.invocation(Duration::from_secs(29));
    let check = async |id: &str, length: usize, blobs: &[String]| {
        let body = vec![b' '; length];
        world
            .service()
            .store_request(
                &invocation,
                id,
                &Scope::Global,
                RequestToStore::received(&body),
            )
            .await
            .unwrap();
        assert_eq!(world.caches.paths(), blobs);
        let received = (Scope::Global, RequestStage::Symbolicate, body);
        assert_eq!(stored(&world, id).await, Some(received));
    };
    check("small", 8 * 1024, &[]).await;
    check("large", 8 * 1024 + 1, &["requests/large".to_owned()]).await;
    // The blob may be removed before its item.
    world.caches.lose("requests/large");
    assert_eq!(stored(&world, "large").await, None);
}

#[tokio::test(start_paused = true)]
async fn the_state_of_an_upload_can_be_requested() {
    let world = World::new();
    world.upload("global/note.txt", "hostile/text.txt").await;
    let note = explained(&world, "global/note.txt").await.unwrap();
    let upload = world.upload_item("global/note.txt");
    assert_eq!((note.state, note.size), (upload.state, upload.size));
    assert_eq!(note.scope, Some(Scope::Global));
    assert_eq!(note.advice, []);
    assert_eq!(explained(&world, "global/other").await, None);
}

/// The debug id of the sample as another client computes it, with the same code id.
fn with_another_debug_id() -> symdepot_tests::harness::Crash {
    let mut crash = sample_crash();
    let module = &mut crash.modules[0];
    module.code_id =
        Some(serde_json::from_str("\"ac456ebc7f4825f4367208b89f51ad481774aae7\"").unwrap());
    module.debug_id = Some("11111111-2222-3333-4444-555555555555".parse().unwrap());
    crash
}

#[tokio::test(start_paused = true)]
async fn what_the_uploads_lack_under_the_debug_id_is_found_under_the_code_id() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let found = world.symbolicate(&with_another_debug_id()).await;
    assert_eq!(function_names(&found).len(), FRAMES);
    // A file under the debug id itself comes first.
    let mut checksum = with_another_debug_id();
    checksum.modules[0].debug_id = Some(crate::CHECKSUM.parse().unwrap());
    world.upload("global/checksum", "elf/checksum").await;
    let other = world.another_instance().symbolicate(&checksum).await;
    assert_ne!(function_names(&other), function_names(&found));
    world.remove("global/crash.debug").await;
    world.pass(Duration::from_secs(60)).await;
    let gone = world.symbolicate(&with_another_debug_id()).await;
    assert_eq!(gone.modules[0].debug_status, ModuleStatus::Missing);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_source_without_a_file_for_a_module_is_listed_as_such() {
    let world = World::with(|settings| {
        let only_pdbs = r#", "filters": {"filetypes": ["pdb"]}, "layout": {"type": "symstore"}"#;
        settings.sources = vec![crate::servers::source("windows", only_pdbs).into()];
    });
    let mut crash = in_module(json!({"type": "elf", "code_id": "aabbccdd"}), &[16]);
    crash.options.dif_candidates = true;
    let listed: Vec<(String, String)> = world.symbolicate(&crash).await.modules[0]
        .candidates
        .iter()
        .map(|candidate| {
            (
                candidate.source.id().to_owned(),
                candidate.location.to_string(),
            )
        })
        .collect();
    let nothing = "No object files listed on this source".to_owned();
    assert_eq!(
        listed,
        [
            ("uploads".to_owned(), nothing.clone()),
            ("windows".to_owned(), nothing)
        ]
    );
    crash.options.dif_candidates = false;
    assert_eq!(world.symbolicate(&crash).await.modules[0].candidates, []);
}
