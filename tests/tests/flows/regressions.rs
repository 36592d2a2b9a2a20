//! Interleavings that broke the first form of the protocol. Each has the number that it has in the design.

use std::sync::Arc;
use std::time::Duration;

use symdepot::adapters::faulty::{How, Operation};
use symdepot::cache::{Entry, Kind, Lane, UploadState};
use symdepot::domain::{Cause, Scope};
use symdepot::flows::symbolicate::Answer;
use symdepot::ports::LaneMessage;
use symdepot_tests::harness::{World, fixture, function_names, sample_crash};

use crate::CRASH;
use crate::requests::cold;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn entry(world: &World, kind: Kind) -> Entry {
    world.entry("global", CRASH, kind).unwrap()
}

fn made_from(world: &World) -> String {
    entry(world, Kind::SymCache).ready().unwrap().made_from[0]
        .location
        .to_string()
}

/// Asks for the names of the sample crash without waiting; returns the message that asks for the build.
async fn asked(world: &World) -> LaneMessage {
    let answer = world
        .answer(&sample_crash(), &Scope::Global, Duration::ZERO)
        .await
        .unwrap();
    assert!(matches!(answer, Answer::Pending));
    world.lanes.drain().remove(0).message
}

/// Does something just before the next call of an operation but `skipped`.
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

#[tokio::test(start_paused = true)]
async fn r01_an_upload_that_arrives_while_a_build_without_it_is_about_to_publish_is_built_next() {
    let world = World::new();
    world.upload("global/crash", "elf/crash").await;
    world.pass(8 * DAY).await;
    world.prune().await.unwrap();
    let message = asked(&world).await;
    before_next(&world, Operation::CreateBlob, 0, |world| async move {
        let event = world.put("global/crash.debug", fixture("elf/crash.debug"));
        world.deliver(&event).await.unwrap();
    });
    world.serve(&message).await.unwrap();
    world.settle().await;
    assert_eq!(
        (made_from(&world), entry(&world, Kind::SymCache).ask()),
        ("global/crash.debug".to_owned(), None)
    );
    world.check();
}

#[tokio::test(start_paused = true)]
async fn r01_an_upload_that_arrives_while_a_build_without_it_is_about_to_fail_is_built_next() {
    let world = World::new();
    let message = asked(&world).await;
    // The first write takes the lease, the second would note the failure.
    before_next(&world, Operation::Replace, 1, |world| async move {
        let event = world.put("global/crash.debug", fixture("elf/crash.debug"));
        world.deliver(&event).await.unwrap();
    });
    world.serve(&message).await.unwrap();
    assert_eq!(
        entry(&world, Kind::SymCache).missing(),
        None,
        "a miss that is out of date is not noted"
    );
    world.settle().await;
    assert_eq!(made_from(&world), "global/crash.debug");
}

#[tokio::test(start_paused = true)]
async fn r02_a_write_that_landed_without_an_answer_is_recognised_behind_a_touch() {
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
            // Between the write and the look at what became of it, somebody uses what is there.
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

#[tokio::test(start_paused = true)]
async fn r02_a_client_that_repeats_a_write_that_landed_does_not_block_its_own_build() {
    let world = cold().await;
    let message = asked(&world).await;
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
    assert!(world.lanes.sent().is_empty() && entry(&world, Kind::SymCache).lease().is_none());
}

#[tokio::test(start_paused = true)]
async fn r03_a_message_that_meets_the_lease_of_its_killed_predecessor_comes_again_when_that_is_over()
 {
    let world = cold().await;
    let message = asked(&world).await;
    world.derivations.take(Duration::from_secs(100));
    tokio::time::timeout(Duration::from_secs(5), world.serve(&message))
        .await
        .unwrap_err();
    let until = entry(&world, Kind::SymCache).lease().unwrap().until;
    world.pass(Duration::from_secs(1)).await;
    world.derivations.take(Duration::ZERO);
    world.serve(&message).await.unwrap();
    let sent = world.lanes.sent();
    assert_eq!(sent.len(), 1, "what could not be done is not done with");
    assert!(!sent[0].delay.is_zero() && sent[0].delay <= Duration::from_secs(62));
    world.settle().await;
    assert!(
        world.now() <= until.plus(Duration::from_secs(10)),
        "a holder that vanished delays others by a minute"
    );
    assert_eq!(made_from(&world), "global/crash.debug");
    assert_eq!(entry(&world, Kind::SymCache).attempts(), 0);
}

#[tokio::test(start_paused = true)]
async fn r04_a_build_is_asked_for_until_it_is_done() {
    let world = cold().await;
    let message = asked(&world).await;
    let seen = Arc::new(std::sync::Mutex::new(None));
    let noted = seen.clone();
    before_next(&world, Operation::CreateBlob, 1, move |world| async move {
        *noted.lock().unwrap() = Some(entry(&world, Kind::SymCache));
    });
    world.serve(&message).await.unwrap();
    let during = seen.lock().unwrap().take().unwrap();
    assert_eq!(
        (during.ask().map(|ask| &ask.id), during.ready()),
        (Some(&message.ask), None)
    );
    assert_eq!(entry(&world, Kind::SymCache).ask(), None);
}

#[tokio::test(start_paused = true)]
async fn r07_a_removal_before_the_creation_leaves_nothing_of_it() {
    let world = World::new();
    let created = world.put("global/crash.debug", fixture("elf/crash.debug"));
    let removed = world.take_away("global/crash.debug");
    world.deliver(&removed).await.unwrap();
    world.deliver(&created).await.unwrap();
    assert_eq!(
        (
            world.upload_item("global/crash.debug").state,
            world.entries()
        ),
        (UploadState::Gone, Vec::new())
    );
}

#[tokio::test(start_paused = true)]
async fn r07_the_removal_of_the_only_good_one_of_two_files_leaves_the_other() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.upload("global/crash", "elf/crash").await;
    world.remove("global/crash.debug").await;
    world.check();
    assert_eq!(made_from(&world), "global/crash");
    assert_eq!(entry(&world, Kind::SymCache).missing(), None);
}

#[tokio::test(start_paused = true)]
async fn r08_a_reader_of_a_record_that_was_pruned_and_rebuilt_meanwhile_changes_nothing_of_the_new_one()
 {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.pass(8 * DAY).await;
    let reader = world.another_instance();
    // Just before the reader notes its use.
    before_next(&world, Operation::Replace, 0, |world| async move {
        world.prune().await.unwrap();
        assert_eq!(world.entries(), Vec::new());
        world.symbolicate(&sample_crash()).await;
    });
    let answer = reader
        .answer(&sample_crash(), &Scope::Global, Duration::ZERO)
        .await
        .unwrap();
    assert!(
        matches!(answer, Answer::Completed(completed, _) if function_names(&completed).len() == 13)
    );
    world.check();
    assert_eq!(
        entry(&world, Kind::SymCache).ready().unwrap().derived_at,
        world.now()
    );
}

#[tokio::test(start_paused = true)]
async fn r08_a_suspicion_about_a_blob_of_the_former_record_does_not_touch_the_new_one() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.pass(8 * DAY).await;
    let reader = world.another_instance();
    // The reader knows the record; before it reads the blob, the record is retired and made again.
    before_next(&world, Operation::GetBlob, 0, |world| async move {
        world.prune().await.unwrap();
        let message = asked(&world.another_instance()).await;
        world.serve(&message).await.unwrap();
    });
    let answer = reader
        .answer(&sample_crash(), &Scope::Global, Duration::from_secs(5))
        .await
        .unwrap();
    assert!(
        matches!(answer, Answer::Completed(completed, _) if function_names(&completed).len() == 13)
    );
    assert_eq!(entry(&world, Kind::SymCache).suspect(), None);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn r11_an_alias_that_outlives_its_target_leads_to_nothing_and_serves_again_later() {
    let world = World::new();
    let mut by_code_id = sample_crash();
    by_code_id.modules[0].debug_id = None;
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.remove("global/crash.debug").await;
    let answer = world.another_instance().symbolicate(&by_code_id).await;
    assert!(function_names(&answer).iter().all(|name| name == "?"));
    world.upload("global/crash.debug", "elf/crash.debug").await;
    assert_eq!(
        function_names(&world.another_instance().symbolicate(&by_code_id).await).len(),
        13
    );
}

#[tokio::test(start_paused = true)]
async fn r11_an_alias_that_comes_after_its_request_is_found() {
    let world = World::new();
    let mut by_code_id = sample_crash();
    by_code_id.modules[0].debug_id = None;
    assert!(
        function_names(&world.symbolicate(&by_code_id).await)
            .iter()
            .all(|name| name == "?")
    );
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.pass(Duration::from_secs(2)).await;
    assert_eq!(
        function_names(&world.symbolicate(&by_code_id).await).len(),
        13
    );
}

#[tokio::test(start_paused = true)]
async fn r18_a_crash_that_waits_does_not_queue_behind_the_uploads() {
    let world = World::new();
    let event = world.put("global/crash.debug", fixture("elf/crash.debug"));
    // The event was applied up to its marks, which ask in the lane of uploads; then its function was ended.
    before_next(&world, Operation::ReadDif, 0, |world| async move {
        world.faults.fail(
            Operation::Query,
            world.faults.calls(Operation::Query) + 2,
            How::Before,
        );
    });
    world.deliver(&event).await.unwrap_err();
    assert_eq!(
        entry(&world, Kind::SymCache).ask().unwrap().lane,
        Lane::Uploads
    );
    let message = asked(&world).await;
    assert_eq!(message.lane, Lane::Eager);
    world.serve(&message).await.unwrap();
    assert_eq!(made_from(&world), "global/crash.debug");
}

#[tokio::test(start_paused = true)]
async fn r20_a_second_delivery_keeps_what_the_first_one_built() {
    let prepare = || {
        let world = World::new();
        let event = world.put("global/crash.debug", fixture("elf/crash.debug"));
        (world, event)
    };
    let (world, event) = prepare();
    world.deliver(&event).await.unwrap();
    let writes = world.faults.calls(Operation::Replace);
    let (world, event) = prepare();
    // All is done but for the note that it is.
    world.faults.fail(Operation::Replace, writes, How::Before);
    world.deliver(&event).await.unwrap_err();
    assert_eq!(
        world.upload_item("global/crash.debug").state,
        UploadState::Pending
    );
    let ready = entry(&world, Kind::SymCache).ready().cloned();
    world.deliver(&event).await.unwrap();
    assert_eq!(
        (
            entry(&world, Kind::SymCache).ready().cloned(),
            world.derivations.derived()
        ),
        (ready, 2)
    );
    assert_eq!(
        world.upload_item("global/crash.debug").state,
        UploadState::Applied
    );
}

#[tokio::test(start_paused = true)]
async fn r21_what_was_removed_while_it_was_built_is_not_published() {
    let world = World::new();
    let event = world.put("global/crash.debug", fixture("elf/crash.debug"));
    before_next(&world, Operation::CreateBlob, 0, |world| async move {
        let removed = world.take_away("global/crash.debug");
        world.deliver(&removed).await.unwrap();
    });
    world.deliver(&event).await.unwrap();
    for entry in world.entries() {
        assert_eq!((entry.ready(), entry.older()), (None, None));
    }
    world.settle().await;
    world.check();
    assert_eq!(
        entry(&world, Kind::SymCache)
            .missing()
            .unwrap()
            .missing
            .cause,
        Cause::NotFound
    );
    assert_eq!(
        world.upload_item("global/crash.debug").state,
        UploadState::Gone
    );
}

#[tokio::test(start_paused = true)]
async fn r22_a_good_file_overwritten_by_a_worse_one_is_not_served_any_more() {
    let world = World::new();
    world.upload("global/file", "elf/crash.debug").await;
    let good = world.upload_item("global/file").etag;
    world.upload("global/file", "elf/crash").await;
    world.check();
    for entry in world.entries() {
        assert!(
            entry
                .ready()
                .into_iter()
                .chain(entry.older())
                .all(|ready| ready.made_from[0].etag != good)
        );
    }
    assert!(
        !entry(&world, Kind::SymCache)
            .ready()
            .unwrap()
            .features
            .has_debug_info
    );
}

#[tokio::test(start_paused = true)]
async fn r23_a_build_that_is_given_back_again_and_again_is_not_given_up_as_crashed() {
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
async fn r25_a_removal_while_the_upload_is_still_being_read_wins() {
    // Before the file is read; after it, before its ids are written; after that; before and after each `dif` item.
    for skipped in 0..8 {
        let world = World::new();
        let event = world.put("global/crash.debug", fixture("elf/crash.debug"));
        let operation = if skipped == 0 {
            Operation::ReadDif
        } else {
            Operation::Replace
        };
        before_next(&world, operation, skipped, |world| async move {
            let removed = world.take_away("global/crash.debug");
            world.deliver(&removed).await.unwrap();
        });
        world.deliver(&event).await.unwrap();
        world.settle().await;
        world.check();
        assert_eq!(
            world.upload_item("global/crash.debug").state,
            UploadState::Gone,
            "{skipped}"
        );
        let summary = world.summary();
        assert!(
            !summary.contains("ready") && !summary.contains("dif global"),
            "{skipped}: {summary}"
        );
        assert!(
            !summary.contains("asked") && !summary.contains("leased"),
            "{skipped}: {summary}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn r26_an_ask_whose_answer_is_lost_sends_its_message_once() {
    for how in [How::After, How::Repeated] {
        let world = cold().await;
        world.faults.fail(
            Operation::Replace,
            world.faults.calls(Operation::Replace) + 1,
            how,
        );
        let message = asked(&world).await;
        assert_eq!(world.lanes.calls().of("send"), 1, "{how:?}");
        assert_eq!(
            entry(&world, Kind::SymCache).ask().unwrap().id,
            message.ask,
            "{how:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn r27_two_builders_that_each_hold_half_of_the_kinds_both_come_to_their_end() {
    let world = cold().await;
    let message = asked(&world).await;
    // The first builder has the lease of one kind; before it takes the other, a second builder comes for that one.
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
            (entry.lease(), entry.ask(), entry.missing()),
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
    let message = asked(&world).await;
    let (first, second) = tokio::join!(world.serve(&message), world.serve(&message));
    first.unwrap();
    second.unwrap();
    world.settle().await;
    assert_eq!(
        (
            world.derivations.derived() - derived,
            world.lanes.sent().len()
        ),
        (2, 0)
    );
    assert_eq!(made_from(&world), "global/crash.debug");
}
