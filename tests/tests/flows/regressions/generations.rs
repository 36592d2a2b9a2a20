//! Different versions of the code side by side: in a canary deployment, after a version bump, after
//! a rollback.

use std::time::Duration;

use serde_json::{Value, json};
use symdepot::cache::{Converter, Decision, Kind, Queue, Revision, current_version, decide};
use symdepot::domain::{Cause, Location, Scope};
use symdepot::flows::symbolicate::SymbolicateOutcome;
use symdepot::ports::QueueMessage;
use symdepot_tests::harness::{Crash, World, fixture, function_names, in_module, sample_crash};

use super::{DAY, FRAMES, HOUR, entry, made_from, request_build_of, requested_build, rewrite};
use crate::requests::cold;
use crate::{CRASH, CRASH_ARM64};

/// The converter of the next release.
const NEWER: u32 = Converter::CURRENT.0 + 1;

/// The converter of the release before this one.
const OLDER: u32 = Converter::CURRENT.0 - 1;

fn ready_by(converter: u32) -> impl FnOnce(&mut Value) {
    move |item| item["ready"]["converter"] = json!(converter)
}

fn missing_by(converter: u32) -> impl FnOnce(&mut Value) {
    move |item| item["missing"]["converter"] = json!(converter)
}

/// A world with one file, which fails to convert, and a crash in its module.
async fn with_a_malformed_file() -> (World, Crash) {
    let world = World::new();
    let path = "hostile/bits-flipped.debug";
    world.upload("global/flipped.debug", path).await;
    let module = json!({"type": "elf", "debug_id": CRASH_ARM64});
    (world, in_module(module, &[0x10494]))
}

#[tokio::test(start_paused = true)]
async fn r14_in_a_canary_the_older_release_replaces_no_cache_of_the_newer_one() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    rewrite(&world, CRASH, ready_by(NEWER)).await;
    // As good as the other file, and before it in the order of locations.
    world.upload("global/a.debug", "elf/crash.zlib.debug").await;
    world.check();
    let kept = entry(&world, Kind::SymCache);
    assert_eq!(kept.ready().unwrap().converter, Converter(NEWER));
    assert_eq!(made_from(&world), "global/crash.debug");
    assert_eq!(
        (kept.build_request(), kept.lease(), kept.missing()),
        (None, None, None)
    );
}

#[tokio::test(start_paused = true)]
async fn r14_the_older_release_retries_a_failed_conversion_of_the_newer_one_after_a_while() {
    let (world, crash) = with_a_malformed_file().await;
    rewrite(&world, CRASH_ARM64, missing_by(NEWER)).await;
    let derived = world.derivations.derived();
    for (passed, tries) in [(HOUR, 0), (2 * DAY, 1)] {
        world.pass(passed).await;
        let answer = world.another_instance().symbolicate(&crash).await;
        assert!(function_names(&answer).iter().all(|name| name == "?"));
        assert_eq!(world.queues.calls().of("send"), tries, "{passed:?}");
    }
    // After a rollback, the older release does not have to wait for the next one.
    assert_eq!(world.derivations.derived(), derived + 1);
}

#[tokio::test(start_paused = true)]
async fn r14_the_newer_release_retries_a_failed_conversion_of_the_older_one_once() {
    let (world, crash) = with_a_malformed_file().await;
    rewrite(&world, CRASH_ARM64, missing_by(OLDER)).await;
    let derived = world.derivations.derived();
    for _ in 0..3 {
        let answer = world.another_instance().symbolicate(&crash).await;
        assert!(function_names(&answer).iter().all(|name| name == "?"));
    }
    assert_eq!(world.derivations.derived(), derived + 1);
}

#[tokio::test(start_paused = true)]
async fn r14_a_message_for_a_newer_release_waits_for_one() {
    let world = cold().await;
    let message = QueueMessage {
        min_converter: Converter(NEWER),
        ..requested_build(&world).await
    };
    let derived = world.derivations.derived();
    world.serve(&message).await.unwrap();
    let sent = world.queues.sent();
    let again = QueueMessage { hops: 1, ..message };
    assert_eq!((sent.len(), &sent[0].message), (1, &again));
    assert!(!sent[0].delay.is_zero());
    assert_eq!(world.derivations.derived(), derived);
    assert!(entry(&world, Kind::SymCache).build_request().is_some());
}

#[tokio::test(start_paused = true)]
async fn r15_an_outdated_cache_whose_file_is_gone_stays_and_is_retried_hourly_at_most() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let behind = current_version(Kind::SymCache) - 1;
    rewrite(&world, CRASH, |item| {
        item["ready"]["version"] = json!(behind);
    })
    .await;
    // No event reports this change.
    world.uploads.remove(&Location::new("global/crash.debug"));
    let module = world.module("global", CRASH);
    let message = request_build_of(&world, module, Queue::Refresh).await;
    world.serve(&message).await.unwrap();
    world.settle().await;
    let kept = entry(&world, Kind::SymCache);
    let placeholder = kept.missing().unwrap();
    assert_eq!(kept.ready().unwrap().version, behind);
    assert_eq!(placeholder.missing.cause, Cause::NotFound);
    assert_eq!((kept.build_request(), kept.lease()), (None, None));
    let reader = world.settings.capabilities();
    let ready = kept.ready().unwrap();
    assert_eq!(
        decide(Some(&kept), &reader, world.now()),
        Decision::Use(ready)
    );
    assert!(placeholder.retry_at.since(world.now()) >= HOUR);
    assert_eq!(
        decide(Some(&kept), &reader, placeholder.retry_at),
        Decision::UseOlder(ready)
    );
}

#[tokio::test(start_paused = true)]
async fn r24_a_rolled_back_build_makes_its_own_version_once_and_keeps_the_newer_one() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let newer = current_version(Kind::SymCache) + 1;
    rewrite(&world, CRASH, |item| {
        item["ready"]["version"] = json!(newer);
    })
    .await;
    let derived = world.derivations.derived();
    // The newer release has just published, so this one waits: they must not rebuild in turn.
    let pending = world
        .answer(&sample_crash(), &Scope::Global, Duration::ZERO)
        .await;
    assert!(
        matches!(pending, Ok(SymbolicateOutcome::Pending)),
        "{pending:?}"
    );
    assert_eq!(world.queues.calls().total(), 0);
    world.pass(Duration::from_secs(60)).await;
    for _ in 0..3 {
        let answer = world.another_instance().symbolicate(&sample_crash()).await;
        assert_eq!(function_names(&answer).len(), FRAMES);
        let both = entry(&world, Kind::SymCache);
        assert_eq!(
            (both.ready().unwrap().version, both.older().unwrap().version),
            (newer, newer - 1)
        );
        world.check();
        // However long the rollback lasts, `prune` keeps what only the older release can read.
        world.pass(2 * DAY).await;
        world.prune().await.unwrap();
    }
    assert_eq!(world.derivations.derived(), derived + 1);
}

/// Found by the simulation: the older release kept what it had made of the former file.
#[tokio::test(start_paused = true)]
async fn after_a_rollback_the_older_release_uses_what_was_uploaded_during_the_canary() {
    let world = World::new();
    world.upload("global/crash", "elf/crash").await;
    let before = function_names(&world.symbolicate(&sample_crash()).await);

    let newer = world.deployed_with(|settings| {
        let numbers = &mut settings.policy.numbers;
        numbers.converter = Converter(numbers.converter.0 + 1);
        numbers.symcache += 1;
    });
    world.pass(Duration::from_secs(1)).await;
    let event = newer.put("global/crash.debug", fixture("elf/crash.debug"));
    newer.deliver(&event).await.unwrap();
    let expected = function_names(&newer.symbolicate(&sample_crash()).await);
    assert_ne!(before, expected);

    // A request sees the older state once more, and requests a better one.
    world.another_instance().symbolicate(&sample_crash()).await;
    world.settle().await;
    let after = world.another_instance().symbolicate(&sample_crash()).await;
    assert_eq!(function_names(&after), expected);
}

/// Found by the simulation: the older release kept the state of the newer one, and completed the
/// build request, without regard to a file that it cannot read.
#[tokio::test(start_paused = true)]
async fn a_file_that_an_older_release_could_not_read_is_considered_by_a_newer_one() {
    let world = World::new();
    world.upload("global/crash", "elf/crash").await;
    rewrite(&world, CRASH, ready_by(NEWER)).await;
    let of_newer = Location::new("global/of-newer.debug");
    let dif = world.module("global", CRASH).dif(&of_newer);
    world.records.put_newer(&dif, Revision::from_random(1));
    world.upload("global/z-crash", "elf/crash").await;
    let kept = entry(&world, Kind::SymCache);
    assert_eq!(kept.ready().unwrap().converter, Converter(NEWER));
    assert!(kept.defers_files_to(Converter(NEWER)));

    // The older release would not read it another time.
    let names = function_names(&world.another_instance().symbolicate(&sample_crash()).await);
    assert!(world.queues.drain().is_empty());

    let newer = world.deployed_with(|settings| {
        settings.policy.numbers.converter = Converter(NEWER);
    });
    let answer = newer.symbolicate(&sample_crash()).await;
    assert_eq!(function_names(&answer), names);
    let messages = newer.queues.drain();
    let requested: Vec<Queue> = messages.iter().map(|sent| sent.message.queue).collect();
    assert_eq!(requested, [Queue::Refresh]);
    newer.serve(&messages[0].message).await.unwrap();
    assert!(!entry(&newer, Kind::SymCache).defers_files_to(Converter(NEWER)));
    // Once is enough.
    newer.another_instance().symbolicate(&sample_crash()).await;
    assert!(newer.queues.drain().is_empty());
    newer.check();
}

/// Found by the simulation: the newer release kept what it had made of the former file.
#[tokio::test(start_paused = true)]
async fn a_better_file_that_an_older_release_received_is_used_by_the_newer_one() {
    let world = World::new();
    let newer = world.deployed_with(|settings| {
        let numbers = &mut settings.policy.numbers;
        numbers.converter = Converter(NEWER);
        numbers.symcache += 1;
    });
    let event = newer.put("global/crash", fixture("elf/crash"));
    newer.deliver(&event).await.unwrap();
    let before = function_names(&newer.symbolicate(&sample_crash()).await);
    world.pass(Duration::from_secs(60)).await;
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let expected = function_names(&world.another_instance().symbolicate(&sample_crash()).await);
    assert_ne!(before, expected);

    // A request sees the former state once more, and requests a better one.
    newer.another_instance().symbolicate(&sample_crash()).await;
    for message in newer.queues.drain() {
        newer.serve(&message.message).await.unwrap();
    }
    let after = newer.another_instance().symbolicate(&sample_crash()).await;
    assert_eq!(function_names(&after), expected);
    // Neither release causes work for the other from then on.
    for _ in 0..3 {
        newer.another_instance().symbolicate(&sample_crash()).await;
        world.another_instance().symbolicate(&sample_crash()).await;
        assert!(world.queues.drain().is_empty());
        world.pass(Duration::from_secs(60)).await;
    }
}

/// While a newer release serves the messages, the older readers' requests stay pending.
#[tokio::test(start_paused = true)]
async fn during_a_canary_older_readers_request_an_upload_of_theirs_once() {
    let world = World::new();
    world.upload("global/crash", "elf/crash").await;
    let newer = world.deployed_with(|settings| {
        let numbers = &mut settings.policy.numbers;
        numbers.converter = Converter(numbers.converter.0 + 1);
        numbers.symcache += 1;
    });
    world.pass(Duration::from_secs(1)).await;
    let event = newer.put("global/crash.debug", fixture("elf/crash.debug"));
    newer.deliver(&event).await.unwrap();
    let mut sent = 0;
    for _ in 0..10 {
        world.another_instance().symbolicate(&sample_crash()).await;
        let messages = world.queues.drain();
        sent += messages.len();
        for message in messages {
            newer.serve(&message.message).await.unwrap();
        }
        world.pass(Duration::from_secs(60)).await;
    }
    assert_eq!(sent, 1);
}
