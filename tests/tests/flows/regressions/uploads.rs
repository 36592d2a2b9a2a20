//! Uploads and removals, whose events arrive in any order.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use symdepot::adapters::faulty::{How, Operation};
use symdepot::cache::{Change, Item, ItemKey, Kind, ObjectChunk, Queue, Seen, Stored, UploadState};
use symdepot::domain::{Cause, Location, Missing, Scope};
use symdepot::flows::RecordWriter;
use symdepot::ports::{DifReader, RecordStore, Replaced};
use symdepot_tests::harness::{
    World, archive, archive_of, breakpad, breakpad_id, fixture, function_names, sample_crash,
};
use tokio::sync::Notify;

use super::{DAY, HOUR, before_next, entry, made_from, request_build_of, requested_build};
use crate::{CRASH, CRASH_ARM64, CRASH_PE};

#[tokio::test(start_paused = true)]
async fn r01_an_upload_during_a_build_that_is_about_to_publish_is_built_next() {
    let world = World::new();
    world.upload("global/crash", "elf/crash").await;
    world.pass(8 * DAY).await;
    world.prune().await.unwrap();
    let message = requested_build(&world).await;
    before_next(&world, Operation::CreateBlob, 0, |world| async move {
        let event = world.put("global/crash.debug", fixture("elf/crash.debug"));
        world.deliver(&event).await.unwrap();
    });
    world.serve(&message).await.unwrap();
    world.settle().await;
    assert_eq!(
        (
            made_from(&world),
            entry(&world, Kind::SymCache).build_request()
        ),
        ("global/crash.debug".to_owned(), None)
    );
    world.check();
}

#[tokio::test(start_paused = true)]
async fn r01_an_upload_during_a_build_that_is_about_to_fail_is_built_next() {
    let world = World::new();
    let module = world.module("global", CRASH);
    let message = request_build_of(&world, module, Queue::Eager).await;
    // The first write takes the lease; the second one would record the failure.
    before_next(&world, Operation::Replace, 1, |world| async move {
        let event = world.put("global/crash.debug", fixture("elf/crash.debug"));
        world.deliver(&event).await.unwrap();
    });
    world.serve(&message).await.unwrap();
    assert_eq!(
        entry(&world, Kind::SymCache).missing(),
        None,
        "an outdated miss is not stored"
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
async fn r07_the_removal_of_the_better_of_two_files_leaves_the_other_in_use() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.upload("global/crash", "elf/crash").await;
    world.remove("global/crash.debug").await;
    world.check();
    assert_eq!(made_from(&world), "global/crash");
    assert_eq!(entry(&world, Kind::SymCache).missing(), None);
}

#[tokio::test(start_paused = true)]
async fn r11_an_alias_without_its_target_finds_nothing_and_serves_again_later() {
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
async fn r11_an_alias_written_after_the_request_is_found() {
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
    // All steps are complete, but the final state is not written yet.
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
async fn r21_a_file_removed_during_its_build_is_not_published() {
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
async fn r22_a_good_file_overwritten_by_a_worse_one_is_no_longer_served() {
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
    // The moments of the removal: before the file is read, before its ids are written, after they
    // are written, and before and after each `dif` item is written.
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
async fn r25_a_removal_before_the_upload_item_withdraws_what_was_built_meanwhile() {
    let world = World::new();
    let created = world.put("global/crash.debug", fixture("elf/crash.debug"));
    let [read, begun, done] = std::array::from_fn(|_| Arc::new(Notify::new()));
    // The file is fetched and read. Before its ids are written, it is removed, and the event of its
    // removal is partly applied.
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

/// Delivers an event twice. The second delivery happens during the first one, when the key already
/// has other bytes. The event of these bytes is delivered during the first delivery, too, but
/// later. In any interleaving, nothing made from the old bytes is served after the last event is
/// applied.
#[tokio::test(start_paused = true)]
async fn a_delivery_that_read_the_old_bytes_is_not_served_after_the_next_event() {
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

fn chunks(world: &World) -> usize {
    let items = world.records.items().into_iter();
    let chunks = items.filter(|(_, stored)| matches!(stored.item, Item::Objects(_)));
    chunks.count()
}

fn generation(world: &World) -> Option<Item> {
    let key = ItemKey::generation(&Scope::Global);
    world.records.peek(&key).map(|stored| stored.item)
}

#[tokio::test(start_paused = true)]
async fn a_large_archive_survives_a_kill_at_any_of_its_first_and_last_writes() {
    const OBJECTS: usize = 501;
    let sound = World::new();
    let event = sound.put("global/symbols.zip", archive_of(0..OBJECTS));
    sound.deliver(&event).await.unwrap();
    let writes = sound.faults.calls(Operation::Replace);
    let goal = sound.summary();
    // All writes that differ in kind: those before the modules, some of the modules, and those
    // after them.
    let of_modules = [40, 700, 2000];
    let interesting = (0..4).chain(of_modules).chain(writes - 3..writes);
    for nth in interesting {
        let world = World::new();
        let event = world.put("global/symbols.zip", archive_of(0..OBJECTS));
        before_next(&world, Operation::Replace, nth, |_| pending());
        let killed = tokio::time::timeout(Duration::from_secs(1), world.deliver(&event)).await;
        assert!(killed.is_err(), "{nth}");
        world.pass(Duration::from_secs(960)).await;
        world.deliver(&event).await.unwrap();
        world.settle().await;
        assert_eq!(world.summary(), goal, "{nth}");
        // A pass removes the leftovers of the first delivery, and keeps what is in use.
        world.pass(ObjectChunk::MAX_UNNAMED).await;
        world.prune().await.unwrap();
        assert_eq!(chunks(&world), chunks(&sound), "{nth}");
        world.check();
    }
}

#[tokio::test(start_paused = true)]
async fn an_archive_overwritten_by_another_one_leaves_nothing_behind() {
    let world = World::new();
    for numbers in [0..600, 300..1200] {
        let event = world.put("global/symbols.zip", archive_of(numbers));
        world.deliver(&event).await.unwrap();
        world.settle().await;
    }
    let is_ready = |number| {
        let entry = world.entry("global", &breakpad_id(number), Kind::SymCache);
        entry.is_some_and(|entry| entry.ready().is_some())
    };
    for (number, expected) in [(0, false), (299, false), (300, true), (1199, true)] {
        assert_eq!(is_ready(number), expected, "{number}");
    }
    let upload = world.upload_item("global/symbols.zip");
    let set = upload.object_set.unwrap();
    assert_eq!((set.objects, set.chunks as usize), (900, chunks(&world)));
    world.check();
}

#[tokio::test(start_paused = true)]
async fn attempts_to_read_an_upload_that_are_killed_are_counted_and_limited() {
    let world = World::new();
    let event = world.put("global/crash.debug", fixture("elf/crash.debug"));
    for attempt in 1..=3 {
        before_next(&world, Operation::ReadDif, 0, |_| pending());
        // The function is killed.
        let killed = tokio::time::timeout(Duration::from_secs(1), world.deliver(&event)).await;
        assert!(killed.is_err());
        let upload = world.upload_item("global/crash.debug");
        assert_eq!(
            (upload.state, upload.attempts),
            (UploadState::Pending, attempt)
        );
    }
    let reads = world.faults.calls(Operation::ReadDif);
    world.deliver(&event).await.unwrap();
    let upload = world.upload_item("global/crash.debug");
    assert!(
        matches!(&upload.state, UploadState::Ignored { reason } if reason.contains("upload it again")),
        "{upload:?}"
    );
    assert_eq!(world.faults.calls(Operation::ReadDif), reads);
    let upload = world.upload("global/crash.debug", "elf/crash.debug").await;
    assert_eq!((upload.state, upload.attempts), (UploadState::Applied, 0));
}

/// Two deliveries of an event read a file at the same time, the first one slowly.
#[tokio::test(start_paused = true)]
async fn a_delivery_that_gives_up_leaves_what_another_one_could_read() {
    let world = World::new();
    let event = world.put("global/crash.debug", fixture("elf/crash.debug"));
    world.derivations.kill_next_readers(2);
    for _ in 0..2 {
        assert!(world.deliver(&event).await.is_err());
    }
    let (gives_up, has_read) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let given_up = Arc::new(Mutex::new(None));
    // The first delivery has read the file, and is about to name its objects: meanwhile, the second
    // one finds that there were too many attempts, and is about to say so.
    let (second, result) = ((gives_up.clone(), has_read.clone()), given_up.clone());
    let same = event.clone();
    before_next(&world, Operation::Replace, 1, |world| async move {
        let (gives_up, has_read) = second;
        let waits = gives_up.clone();
        before_next(&world, Operation::Replace, 1, |_| async move {
            waits.notify_one();
            has_read.notified().await;
        });
        tokio::spawn(async move {
            let ended = world.deliver(&same).await;
            *result.lock().unwrap() = Some(ended);
        });
        gives_up.notified().await;
    });
    world.deliver(&event).await.unwrap();
    has_read.notify_one();
    while given_up.lock().unwrap().is_none() {
        tokio::task::yield_now().await;
    }
    assert!(given_up.lock().unwrap().take().unwrap().is_err());
    let upload = world.upload_item("global/crash.debug");
    assert_eq!(upload.state, UploadState::Applied);

    // So the removal of the file finds what to undo.
    world.deliver(&event).await.unwrap();
    world.settle().await;
    assert!(entry(&world, Kind::SymCache).ready().is_some());
    world.remove("global/crash.debug").await;
    assert_eq!(entry(&world, Kind::SymCache).ready(), None);
}

#[tokio::test(start_paused = true)]
async fn a_fetch_that_does_not_end_is_counted_as_an_attempt() {
    let world = World::new();
    let event = world.put("global/crash.debug", fixture("elf/crash.debug"));
    for _ in 0..2 {
        before_next(&world, Operation::ReadDif, 0, |_| pending());
        assert!(world.deliver(&event).await.is_err());
    }
    before_next(&world, Operation::ReadDif, 0, |_| pending());
    world.deliver(&event).await.unwrap();
    let upload = world.upload_item("global/crash.debug");
    assert!(
        matches!(&upload.state, UploadState::Ignored { reason } if reason.contains("took longer than")),
        "{upload:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_a_store_failed_is_not_counted() {
    let world = World::new();
    let event = world.put("global/crash.debug", fixture("elf/crash.debug"));
    for _ in 0..5 {
        let next = world.faults.calls(Operation::ReadDif) + 1;
        world.faults.fail(Operation::ReadDif, next, How::Throttled);
        world.deliver(&event).await.unwrap_err();
        let upload = world.upload_item("global/crash.debug");
        assert_eq!((upload.state, upload.attempts), (UploadState::Pending, 0));
    }
    world.deliver(&event).await.unwrap();
    let upload = world.upload_item("global/crash.debug");
    assert_eq!(upload.state, UploadState::Applied);
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_exceeds_the_size_of_an_item_is_ignored_with_the_reason() {
    let world = World::new();
    // A code id of half a megabyte, which would be in each item of the module.
    let id = "AB".repeat(250_000);
    let symbols = format!(
        "MODULE Linux x86_64 000000000000000000000000000000000 a.so\nINFO CODE_ID {id}\nFUNC 1000 10 0 f\n"
    );
    let event = world.put("global/a.sym", symbols);
    world.deliver(&event).await.unwrap();
    let upload = world.upload_item("global/a.sym");
    assert!(
        matches!(&upload.state, UploadState::Ignored { reason } if reason.contains("too large")),
        "{:?}",
        upload.state
    );
}

#[tokio::test(start_paused = true)]
async fn a_pending_upload_reports_how_often_it_was_reconciled() {
    let world = World::new();
    let event = world.put("global/crash.debug", fixture("elf/crash.debug"));
    world.faults.fail_always(Operation::ReadDif, How::Throttled);
    world.deliver(&event).await.unwrap_err();
    for reconciled in 1..=3 {
        world.pass(HOUR).await;
        world.reconcile("global/crash.debug").await.unwrap_err();
        let upload = world.upload_item("global/crash.debug");
        assert_eq!((upload.reconciled, upload.at), (reconciled, world.now()));
    }
    world.faults.heal();
    world.reconcile("global/crash.debug").await.unwrap();
    let upload = world.upload_item("global/crash.debug");
    assert_eq!((upload.state, upload.reconciled), (UploadState::Applied, 0));
}

#[tokio::test(start_paused = true)]
async fn a_file_that_returns_while_its_removal_is_reconciled_stays() {
    let world = World::new();
    world.upload("global/file", "elf/crash.debug").await;
    // The event of the removal is lost.
    world.take_away("global/file");
    // The message has found no file, and is about to make the item pending.
    before_next(&world, Operation::Replace, 0, |world| async move {
        let event = world.put("global/file", fixture("elf/crash.debug"));
        world.deliver(&event).await.unwrap();
    });
    world.reconcile("global/file").await.unwrap();
    world.settle().await;
    let upload = world.upload_item("global/file");
    assert_eq!((upload.state, upload.reconciled), (UploadState::Applied, 0));
    assert!(entry(&world, Kind::SymCache).ready().is_some());
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_removed_archive_is_in_no_response_before_anything_is_rebuilt() {
    const MODULES: usize = 40;
    let world = World::new();
    for key in ["global/a.zip", "global/b.zip"] {
        let event = world.put(key, archive_of(0..MODULES));
        world.deliver(&event).await.unwrap();
    }
    let before = generation(&world);
    let removed = world.take_away("global/a.zip");
    let seen = Arc::new(Mutex::new(None));
    let by_then = seen.clone();
    // The first fetch of the replacement.
    before_next(&world, Operation::ReadDif, 0, |world| async move {
        let ready = world.entries().into_iter();
        let ready = ready.filter(|entry| entry.ready().is_some()).count();
        *by_then.lock().unwrap() = Some((ready, generation(&world)));
    });
    world.deliver(&removed).await.unwrap();
    let (ready, since) = seen.lock().unwrap().take().unwrap();
    assert_eq!(ready, 0);
    assert_ne!(since, before);
    assert_ne!(generation(&world), since);
    // One archive, one download.
    assert_eq!(world.uploads.calls().of("read"), 3);
    for number in 0..MODULES {
        let entry = world.entry("global", &breakpad_id(number), Kind::SymCache);
        let made_from = entry.unwrap().ready().unwrap().made_from[0].clone();
        assert_eq!(made_from.location.as_str(), "global/b.zip");
    }
    world.check();
}

#[tokio::test(start_paused = true)]
async fn overwritten_bytes_are_in_no_response_before_the_new_ones_are_fetched() {
    let world = World::new();
    world.upload("global/file", "elf/crash.debug").await;
    let before = generation(&world);
    let event = world.put("global/file", fixture("elf/crash-arm64.debug"));
    before_next(&world, Operation::ReadDif, 0, |_| pending());
    let killed = tokio::time::timeout(Duration::from_secs(1), world.deliver(&event)).await;
    assert!(killed.is_err());
    assert!(world.entries().iter().all(|entry| entry.ready().is_none()));
    assert_ne!(generation(&world), before);
    world.pass(Duration::from_secs(960)).await;
    world.deliver(&event).await.unwrap();
    world.settle().await;
    assert!(
        world
            .entry("global", CRASH_ARM64, Kind::SymCache)
            .unwrap()
            .ready()
            .is_some()
    );
    assert!(entry(&world, Kind::SymCache).missing().is_some());
    world.check();
}

/// Bytes that can no longer be read are withdrawn all the same.
#[tokio::test(start_paused = true)]
async fn a_new_generation_follows_a_file_that_is_replaced_by_an_ignored_one() {
    let world = World::new();
    world.upload("global/file", "elf/crash.debug").await;
    let before = generation(&world);
    world.upload("global/file", "hostile/text.txt").await;
    assert_ne!(generation(&world), before);
    // Nothing of the ignored file is served, so its removal changes nothing.
    let before = generation(&world);
    world.remove("global/file").await;
    assert_eq!(generation(&world), before);
}

#[tokio::test(start_paused = true)]
async fn an_archive_that_exceeds_an_invocation_continues_with_one_message_at_a_time() {
    const MODULES: usize = 12;
    let world = World::new();
    // 900 s: four modules in the first half.
    world.derivations.take(Duration::from_secs(110));
    let event = world.put("global/symbols.zip", archive_of(0..MODULES));
    world.deliver(&event).await.unwrap();
    let mut invocations = 1;
    loop {
        assert_eq!(
            world.queues.sent(),
            [],
            "no module has a message of its own"
        );
        let mut messages = world.queues.drain_reconcile_messages();
        let Some(sent) = messages.pop() else { break };
        assert_eq!((sent.message.hops, messages.len()), (invocations, 0));
        assert_eq!(
            world.upload_item("global/symbols.zip").state,
            UploadState::Pending
        );
        world.pass(sent.delay).await;
        world.go_on(&sent.message).await.unwrap();
        invocations += 1;
    }
    assert!((2..6).contains(&invocations), "{invocations}");
    let upload = world.upload_item("global/symbols.zip");
    assert_eq!((upload.state, upload.attempts), (UploadState::Applied, 0));
    // Each was derived once; each invocation downloads the file once.
    assert_eq!(world.derivations.opened(), u64::from(invocations));
    assert_eq!(world.derivations.derived(), 2 * MODULES as u64);
    for number in 0..MODULES {
        let entry = world.entry("global", &breakpad_id(number), Kind::SymCache);
        assert!(entry.unwrap().ready().is_some(), "{number}");
    }
    world.check();
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_never_finishes_is_left_to_prune_after_thirty_messages() {
    const MODULES: usize = 80;
    let world = World::new();
    // One module in each half of an invocation.
    world.derivations.take(Duration::from_secs(500));
    let event = world.put("global/symbols.zip", archive_of(0..MODULES));
    world.deliver(&event).await.unwrap();
    let mut delays = Vec::new();
    while let Some(sent) = world.queues.drain_reconcile_messages().pop() {
        delays.push(sent.delay.as_secs());
        world.pass(sent.delay).await;
        world.go_on(&sent.message).await.unwrap();
    }
    assert_eq!(delays[..8], [1, 1, 1, 1, 2, 3, 5, 7]);
    assert!(delays.is_sorted());
    assert_eq!((delays.len(), delays.last()), (30, Some(&60)));
    let upload = world.upload_item("global/symbols.zip");
    assert_eq!((upload.state, upload.attempts), (UploadState::Pending, 0));
    world.derivations.take(Duration::ZERO);
    world.reconcile("global/symbols.zip").await.unwrap();
    let upload = world.upload_item("global/symbols.zip");
    assert_eq!(upload.state, UploadState::Applied);
}

#[tokio::test(start_paused = true)]
async fn a_transcoded_kind_that_is_requested_while_its_pdb_is_filed_is_built() {
    let kind = Kind::MsSymCache(3);
    // Before each write of the event.
    for nth in 0..8 {
        let world = World::with(|settings| settings.transcoded = vec!["3.1.0".parse().unwrap()]);
        let event = world.put("global/crash.pdb", fixture("pe/x64/crash.pdb"));
        before_next(&world, Operation::Replace, nth, move |world| async move {
            let invocation = world.invocation(Duration::from_secs(900));
            let writer = RecordWriter {
                records: &*world.records,
                policy: &world.settings.policy,
                invocation: &invocation,
            };
            let module = world.module("global", CRASH_PE);
            let (id, token) = (invocation.token(), invocation.token());
            let queue = Queue::Eager;
            let is_filed = world.records.peek(&module.presence()).is_some();
            let build_request = Change::RequestBuild { id, queue };
            writer.apply(&module, kind, &build_request).await.unwrap();
            if is_filed {
                // A build that starts now finds it.
                return;
            }
            let take = Change::TakeLease {
                holder: "another builder".to_owned(),
                token: token.clone(),
                deadline: invocation.deadline(),
            };
            let fail = Change::Fail {
                token,
                missing: Missing::not_found(),
                seen: Seen::default(),
            };
            for change in [take, fail] {
                writer.apply(&module, kind, &change).await.unwrap();
            }
        });
        world.deliver(&event).await.unwrap();
        world.settle().await;
        let entry = world.entry("global", CRASH_PE, kind).unwrap();
        assert_eq!(entry.missing(), None, "{nth}: {entry:?}");
        assert!(
            entry.ready().is_some() || entry.build_request().is_some(),
            "{nth}: {entry:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_alias_is_removed_with_the_last_file_of_its_module() {
    let world = World::new();
    let aliases = || {
        let items = world.records.items().into_iter();
        items
            .filter(|(_, stored)| matches!(stored.item, Item::Alias(_)))
            .count()
    };
    // The first file has a code id. The second one has none, and is found under the code id of the
    // first one.
    world.upload("global/crash.exe", "pe/x64/crash.exe").await;
    world.upload("global/crash.pdb", "pe/x64/crash.pdb").await;
    assert_eq!(aliases(), 1);
    world.remove("global/crash.exe").await;
    assert_eq!(aliases(), 1);
    world.remove("global/crash.pdb").await;
    assert_eq!(aliases(), 0);
    let presence = world.module("global", CRASH_PE).presence();
    assert_eq!(world.records.peek(&presence), None);
}

#[tokio::test(start_paused = true)]
async fn an_alias_stays_for_a_file_that_comes_while_the_last_one_is_removed() {
    let operations = [
        (Operation::Load, 8),
        (Operation::Query, 3),
        (Operation::Remove, 4),
    ];
    for (operation, calls) in operations {
        for nth in 0..calls {
            let world = World::new();
            let event = world.put("global/a.sym", breakpad(1));
            world.deliver(&event).await.unwrap();
            let removed = world.take_away("global/a.sym");
            before_next(&world, operation, nth, |world| async move {
                let event = world.put("global/b.sym", breakpad(1));
                world.deliver(&event).await.unwrap();
            });
            world.deliver(&removed).await.unwrap();
            world.settle().await;
            world.check();
            let items = world.records.items();
            let module = world.module("global", &breakpad_id(1));
            let is_alias =
                |item: &Item| matches!(item, Item::Alias(alias) if alias.target == module);
            let has_alias = items.iter().any(|(_, stored)| is_alias(&stored.item));
            let has_presence = world.records.peek(&module.presence()).is_some();
            let came = world
                .records
                .peek(&ItemKey::upload(&Location::new("global/b.sym")));
            if came.is_some() {
                assert!(has_alias && has_presence, "{operation:?} {nth}");
            }
        }
    }
}

/// An upload that finds no room at the very moment at which another file is removed.
#[tokio::test(start_paused = true)]
async fn an_upload_that_finds_no_room_during_a_removal_is_filed_later() {
    let mut met = 0;
    for nth in 0..6 {
        let world = World::new();
        for number in 0..256 {
            let event = world.put(&format!("global/{number:03}.sym"), breakpad(1));
            world.deliver(&event).await.unwrap();
        }
        let event = world.put("global/late.sym", breakpad(1));
        let happened = Arc::new(Mutex::new(false));
        let happens = happened.clone();
        before_next(&world, Operation::Query, nth, move |world| async move {
            *happens.lock().unwrap() = true;
            let removed = world.take_away("global/000.sym");
            world.deliver(&removed).await.unwrap();
        });
        world.deliver(&event).await.unwrap();
        world.settle().await;
        if *happened.lock().unwrap() {
            met += 1;
            let upload = world.upload_item("global/late.sym");
            assert_eq!(upload.state, UploadState::Applied, "{nth}");
        }
        world.check();
    }
    assert!(met >= 2, "{met}");
}

/// Two uploads of an archive with one module each. The second one is removed while the first one is
/// read.
#[tokio::test(start_paused = true)]
async fn an_undone_filing_writes_a_new_generation() {
    let world = World::new();
    let event = world.put(
        "global/a.zip",
        archive(&[("a.sym".to_owned(), breakpad(1))]),
    );
    let module = world.module("global", &breakpad_id(1));
    let before = Arc::new(Mutex::new(None));
    let at_removal = before.clone();
    // Announced and named, before the `dif` item is written.
    before_next(&world, Operation::Replace, 2, move |world| async move {
        let removed = world.take_away("global/a.zip");
        world.deliver(&removed).await.unwrap();
        *at_removal.lock().unwrap() = generation(&world);
    });
    world.deliver(&event).await.unwrap();
    world.settle().await;
    assert_eq!(world.records.peek(&module.presence()), None);
    assert_ne!(generation(&world), *before.lock().unwrap());
    world.check();
}

/// Found by the simulation. A removal is slow, and the same bytes are uploaded again meanwhile. The
/// etag of the file that is filed is that of the removed one, but a later event filed it.
#[tokio::test(start_paused = true)]
async fn a_late_removal_leaves_the_same_bytes_that_were_uploaded_again() {
    let world = World::new();
    let key = "global/crash.debug";
    world.upload(key, "elf/crash.debug").await;
    let removed = world.take_away(key);
    // The first removal of an item is that of the `dif` item.
    before_next(&world, Operation::Remove, 0, move |world| async move {
        let again = world.put(key, fixture("elf/crash.debug"));
        world.deliver(&again).await.unwrap();
    });
    world.deliver(&removed).await.unwrap();
    world.settle().await;
    assert_eq!(world.upload_item(key).state, UploadState::Applied);
    let module = world.module("global", CRASH);
    assert!(
        world
            .records
            .peek(&module.dif(&Location::new(key)))
            .is_some(),
        "the file is filed"
    );
    let names = function_names(&world.symbolicate(&sample_crash()).await);
    assert!(names.iter().all(|name| name != "?"), "{names:?}");
    world.check();
}

/// Files the `dif` item of a file again after its removal, as a builder leaves it that is killed
/// while it files the file. Returns its key.
async fn left_over(world: &World, key: &str, left: &Stored) -> ItemKey {
    let filed = world.module("global", CRASH).dif(&Location::new(key));
    let put = world.records.replace(&filed, None, left);
    assert_eq!(put.await.unwrap(), Replaced::Done);
    filed
}

#[tokio::test(start_paused = true)]
async fn a_file_that_a_removal_left_filed_is_forgotten_by_the_next_build() {
    let world = World::new();
    let (key, module) = ("global/crash.debug", world.module("global", CRASH));
    world.upload(key, "elf/crash.debug").await;
    let left = world
        .records
        .peek(&module.dif(&Location::new(key)))
        .unwrap();
    world.remove(key).await;
    let filed = left_over(&world, key, &left).await;
    let message = request_build_of(&world, module, Queue::Eager).await;
    world.serve(&message).await.unwrap();
    assert_eq!(world.records.peek(&filed), None);
    let missing = entry(&world, Kind::SymCache).missing().cloned();
    assert_eq!(missing.unwrap().missing.cause, Cause::NotFound);
    world.check();
}

/// A build finds that a file was overwritten, and removes its `dif` item. Just before that, the old
/// bytes are uploaded again.
#[tokio::test(start_paused = true)]
async fn a_build_that_forgets_a_file_leaves_the_same_bytes_that_were_uploaded_again() {
    let world = World::new();
    let (key, module) = ("global/crash.debug", world.module("global", CRASH));
    world.upload(key, "elf/crash.debug").await;
    let left = world
        .records
        .peek(&module.dif(&Location::new(key)))
        .unwrap();
    world.upload(key, "elf/inventory").await;
    let filed = left_over(&world, key, &left).await;
    let message = request_build_of(&world, module, Queue::Eager).await;
    before_next(&world, Operation::Remove, 0, move |world| async move {
        let again = world.put(key, fixture("elf/crash.debug"));
        world.deliver(&again).await.unwrap();
    });
    world.serve(&message).await.unwrap();
    world.settle().await;
    assert!(world.records.peek(&filed).is_some(), "the file is filed");
    let names = function_names(&world.symbolicate(&sample_crash()).await);
    assert!(names.iter().all(|name| name != "?"), "{names:?}");
    world.check();
}

/// Builds of modules without files run side by side. One of them fails, at each of its reads.
#[tokio::test(start_paused = true)]
async fn a_build_that_fails_drops_none_of_the_builds_beside_it() {
    const MODULES: usize = 6;
    let key = "global/a.zip";
    let removed = async || {
        let world = World::new();
        let event = world.put(key, archive_of(0..MODULES));
        world.deliver(&event).await.unwrap();
        let removed = world.take_away(key);
        (world.distant_instance(Duration::from_millis(10)), removed)
    };
    let (world, event) = removed().await;
    world.deliver(&event).await.unwrap();
    let last = world.faults.calls(Operation::Query);
    // Each build reads its module twice.
    for nth in last - 2 * MODULES as u64..last {
        let (world, event) = removed().await;
        world.faults.fail(Operation::Query, nth + 1, How::Before);
        world.deliver(&event).await.unwrap_err();
        for entry in world.entries() {
            assert_eq!(entry.lease(), None, "query {nth}");
        }
        world.deliver(&event).await.unwrap();
        assert_eq!(world.upload_item(key).state, UploadState::Gone);
    }
}
