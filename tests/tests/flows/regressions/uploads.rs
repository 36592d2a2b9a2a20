//! Uploads and removals, in whatever order their events come.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use symdepot::adapters::faulty::{How, Operation};
use symdepot::cache::{Kind, Lane, UploadState};
use symdepot::domain::{Cause, Location};
use symdepot::ports::DifReader;
use symdepot_tests::harness::{World, fixture, function_names, sample_crash};
use tokio::sync::Notify;

use super::{DAY, ask_for, asked, before_next, entry, made_from};
use crate::{CRASH, CRASH_ARM64};

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
    let module = world.module("global", CRASH);
    let message = ask_for(&world, module, Lane::Eager).await;
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
async fn r25_a_removal_that_knew_nothing_of_the_upload_yet_takes_away_what_came_of_it_meanwhile() {
    let world = World::new();
    let created = world.put("global/crash.debug", fixture("elf/crash.debug"));
    let [read, begun, done] = std::array::from_fn(|_| Arc::new(Notify::new()));
    // The file is fetched and read; before its ids are noted, it is removed, and its removal begins to be applied.
    let (is_read, go_on) = (read.clone(), begun.clone());
    before_next(&world, Operation::Replace, 1, |_| async move {
        is_read.notify_one();
        go_on.notified().await;
    });
    let creation = async {
        world.deliver(&created).await.unwrap();
        done.notify_one();
    };
    let removal = async {
        read.notified().await;
        let removed = world.take_away("global/crash.debug");
        let (has_begun, go_on) = (begun.clone(), done.clone());
        before_next(&world, Operation::Replace, 0, |_| async move {
            has_begun.notify_one();
            go_on.notified().await;
        });
        world.deliver(&removed).await.unwrap();
    };
    tokio::join!(creation, removal);
    world.settle().await;
    world.check();
    let summary = world.summary();
    assert!(
        !summary.contains("ready") && !summary.contains("dif global"),
        "{summary}"
    );
}

#[tokio::test(start_paused = true)]
async fn r22_a_good_file_overwritten_while_it_is_read_is_not_served_beside_the_worse_one() {
    let world = World::new();
    let good = world.put("global/file", fixture("elf/crash.debug"));
    let [read, begun, done] = std::array::from_fn(|_| Arc::new(Notify::new()));
    let (is_read, go_on) = (read.clone(), begun.clone());
    before_next(&world, Operation::Replace, 1, |_| async move {
        is_read.notify_one();
        go_on.notified().await;
    });
    let creation = async {
        world.deliver(&good).await.unwrap();
        done.notify_one();
    };
    let overwriting = async {
        read.notified().await;
        let worse = world.put("global/file", fixture("elf/crash"));
        let (has_begun, go_on) = (begun.clone(), done.clone());
        before_next(&world, Operation::Replace, 0, |_| async move {
            has_begun.notify_one();
            go_on.notified().await;
        });
        world.deliver(&worse).await.unwrap();
    };
    tokio::join!(creation, overwriting);
    world.settle().await;
    world.check();
    let etag = world.upload_item("global/file").etag;
    assert_eq!(
        entry(&world, Kind::SymCache).ready().unwrap().made_from[0].etag,
        etag
    );
}

/// Delivers an event twice, the second time in the middle of the first, with other bytes; and the event of these, later in the
/// middle. Whatever comes between what, nothing is served of the old bytes once the last event is applied.
#[tokio::test(start_paused = true)]
async fn of_two_deliveries_the_one_that_read_the_old_bytes_is_not_served_behind_the_next_event() {
    let mut met = 0;
    for (copy_at, next_at) in (0..8).flat_map(|copy| (0..12).map(move |next| (copy, next))) {
        let world = World::new();
        let first = world.put("global/file", fixture("elf/crash-arm64.debug"));
        let again = first.clone();
        let applied = Arc::new(Mutex::new(false));
        let is_applied = applied.clone();
        before_next(
            &world,
            Operation::Replace,
            copy_at,
            move |world| async move {
                let next = world.put("global/file", fixture("elf/crash-arm64"));
                let _ = world.deliver(&again).await;
                before_next(
                    &world,
                    Operation::Replace,
                    next_at,
                    move |world| async move {
                        let delivered = world.deliver(&next).await;
                        *is_applied.lock().unwrap() = delivered.is_ok();
                    },
                );
            },
        );
        let _ = world.deliver(&first).await;
        if !*applied.lock().unwrap() {
            continue;
        }
        met += 1;
        let location = Location::new("global/file");
        let now = world.uploads.stat(&location).await.unwrap().etag;
        for kind in [Kind::SymCache, Kind::CfiCache] {
            let entry = world.entry("global", CRASH_ARM64, kind);
            let ready = entry.as_ref().and_then(|entry| entry.ready());
            let is_of_now = ready.is_none_or(|ready| ready.made_from[0].etag == now);
            assert!(is_of_now, "{copy_at} {next_at}: {entry:#?}");
        }
        world.settle().await;
        let entry = world.entry("global", CRASH_ARM64, Kind::SymCache);
        assert_eq!(entry.unwrap().ready().unwrap().made_from[0].etag, now);
        world.check();
    }
    assert!(met > 10, "{met}");
}
