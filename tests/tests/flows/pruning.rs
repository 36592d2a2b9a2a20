//! Scheduled pruning: what it removes, and what it keeps.

use std::sync::Arc;
use std::time::Duration;

use symdepot::adapters::faulty::{How, Operation};
use symdepot::cache::{ItemKey, Kind, Revision, SweepItem, Token, UploadState};
use symdepot::domain::Scope;
use symdepot::flows::prune::{Pruner, Report};
use symdepot::flows::symbolicate::SymbolicateOutcome;
use symdepot::ports::{BlobStore, RecordStore, Removed};
use symdepot_tests::harness::{World, function_names, sample_crash};

use crate::tables::{MeteredRecords, SlowBlobs, keep_requests, put_entry};
use crate::{CHECKSUM, CRASH};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Returns the number of items, without those of the pruner itself.
fn stored(world: &World) -> usize {
    let own = ItemKey::sweep(SweepItem::Cursor).partition;
    let items = world.records.items();
    items.iter().filter(|(key, _)| key.partition != own).count()
}

/// Two modules: one was used during the last six days, the other one never.
async fn after_eight_days() -> World {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.upload("global/checksum", "elf/checksum").await;
    for _ in 0..6 {
        world.pass(DAY).await;
        world.symbolicate(&sample_crash()).await;
    }
    world.pass(2 * DAY).await;
    world
}

#[tokio::test(start_paused = true)]
async fn unused_entries_are_retired_with_their_blobs_and_used_ones_stay() {
    let world = after_eight_days().await;
    let report = world.prune().await.unwrap();
    // Readers use the SymCache of one module, but not its CFI cache, and nothing of the other
    // module.
    assert_eq!(
        (report.retired, report.orphans, report.complete),
        (3, 0, true)
    );
    let is_there = |id, kind| world.entry("global", id, kind).is_some();
    assert!(is_there(CRASH, Kind::SymCache));
    assert!(
        !is_there(CRASH, Kind::CfiCache)
            && !is_there(CHECKSUM, Kind::SymCache)
            && !is_there(CHECKSUM, Kind::CfiCache)
    );
    assert_eq!((world.caches.paths().len(), world.orphans().len()), (1, 0));
    // Uploaded files are sources, not caches.
    assert_eq!(
        world.upload_item("global/checksum").state,
        UploadState::Applied
    );
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_retired_entry_is_built_again_by_the_next_request() {
    let world = after_eight_days().await;
    world.pass(8 * DAY).await;
    world.prune().await.unwrap();
    assert_eq!(world.entries(), Vec::new());
    assert_eq!(
        function_names(&world.symbolicate(&sample_crash()).await).len(),
        13
    );
}

#[tokio::test(start_paused = true)]
async fn a_retired_entry_is_built_again_although_requests_cannot_wait_for_it() {
    let world = World::new();
    let acme: Scope = "acme".parse().unwrap();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.upload("acme/crash.debug", "elf/crash.debug").await;
    for _ in 0..8 {
        world.pass(DAY).await;
        world.symbolicate(&sample_crash()).await;
    }
    world.prune().await.unwrap();
    let own = || world.entry("acme", CRASH, Kind::SymCache);
    assert!(own().is_none());
    let answer = world.answer(&sample_crash(), &acme, Duration::ZERO).await;
    // The global file serves this request, and `derive` builds the tenant's own.
    let Ok(SymbolicateOutcome::Completed(completed, _)) = answer else {
        panic!("not finished: {answer:?}");
    };
    assert_eq!(function_names(&completed).len(), 13);
    assert!(own().is_some_and(|entry| entry.build_request().is_some()));
    let answered = world.answer(&sample_crash(), &acme, Duration::ZERO).await;
    assert!(matches!(answered, Ok(SymbolicateOutcome::Completed(..))));
    assert_eq!(world.queues.drain().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_reports_what_a_run_does_and_changes_nothing() {
    let world = after_eight_days().await;
    world
        .caches
        .create(
            "derived/symcache/v1/orphan/symcache/1",
            b"orphan".to_vec().into(),
        )
        .await
        .unwrap();
    world.pass(2 * HOUR).await;
    let (items, blobs) = (world.records.items(), world.caches.paths());
    let said = world.prune_dry().await.unwrap();
    assert_eq!(
        (world.records.items(), world.caches.paths()),
        (items, blobs)
    );
    let done = world.prune().await.unwrap();
    assert_eq!((said.retired, said.orphans, said.planned.len()), (3, 1, 4));
    // The blobs of a retired record are gone when the blobs are listed.
    assert_eq!(
        Report {
            dry_run: false,
            blobs: done.blobs,
            read_units: done.read_units,
            planned: Vec::new(),
            ..said
        },
        done
    );
}

#[tokio::test(start_paused = true)]
async fn an_orphan_is_removed_when_no_build_can_be_about_to_publish_it() {
    let world = World::new();
    world.invocation(Duration::from_secs(1)); // sets the time of the store
    let path = "derived/symcache/v1/orphan/symcache/1";
    world
        .caches
        .create(path, b"orphan".to_vec().into())
        .await
        .unwrap();
    world
        .caches
        .create("requests/1", b"no cache".to_vec().into())
        .await
        .unwrap();
    world.pass(HOUR - Duration::from_secs(1)).await;
    assert_eq!(world.prune_dry().await.unwrap().orphans, 0);
    world.pass(Duration::from_secs(1)).await;
    let report = world.prune().await.unwrap();
    assert_eq!((report.orphans, report.bytes_freed), (1, 6));
    assert_eq!(world.caches.paths(), ["requests/1"]);
}

#[tokio::test(start_paused = true)]
async fn a_blob_that_an_eventually_consistent_read_misses_is_no_orphan() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.pass(2 * HOUR).await;
    let mut records = MeteredRecords::new(world.records.clone(), Duration::ZERO);
    records.is_behind = true;
    let records = Arc::new(records);
    let pruner = Pruner {
        records: records.clone(),
        ..world.pruner()
    };
    let report = pruner.prune(&world.invocation(15 * MINUTE), false).await;
    let report = report.unwrap();
    assert_eq!((report.blobs, report.orphans), (2, 0));
    assert_eq!((records.reads().strong, world.caches.paths().len()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn blobs_are_listed_once_a_day() {
    let world = World::new();
    let orphans = async |hours| {
        world.pass(hours * HOUR).await;
        world.prune().await.unwrap().orphans
    };
    assert_eq!(orphans(0).await, 0);
    let path = "derived/symcache/v1/orphan/symcache/1";
    world.caches.create(path, "orphan".into()).await.unwrap();
    assert_eq!(orphans(23).await, 0);
    assert_eq!(orphans(1).await, 1);
    // Without the minimum age that protects orphans, each run removes them.
    let world = world.deployed_with(|settings| settings.orphan_min_age = Duration::ZERO);
    world.caches.create(path, "orphan".into()).await.unwrap();
    assert_eq!(world.prune().await.unwrap().orphans, 1);
}

#[tokio::test(start_paused = true)]
async fn plain_symcaches_and_chunks_of_copies_stay_while_they_are_used() {
    let world = World::with(|settings| settings.orphan_min_age = Duration::ZERO);
    world.invocation(Duration::from_secs(1)); // sets the time of the store
    let plain = "plain/orphan/symcache/1.7";
    let part = "copies/v1/orphan/copy-1/1/00000";
    let derived = "derived/symcache/v1/orphan/symcache/1";
    for path in [plain, part, derived] {
        world.caches.create(path, "bytes".into()).await.unwrap();
    }
    assert_eq!(world.prune().await.unwrap().orphans, 1);
    assert_eq!(world.caches.paths(), [part, plain]);
    world.pass(Duration::from_secs(25 * 60 - 1)).await;
    assert_eq!(world.prune().await.unwrap().orphans, 0);
    world.pass(Duration::from_secs(1)).await;
    assert_eq!(world.prune().await.unwrap().orphans, 2);
}

#[tokio::test(start_paused = true)]
async fn a_blob_that_a_live_lease_is_making_is_no_orphan() {
    let world = crate::requests::cold().await;
    let answer = world
        .answer(&sample_crash(), &Scope::Global, Duration::ZERO)
        .await
        .unwrap();
    assert!(matches!(
        answer,
        symdepot::flows::symbolicate::SymbolicateOutcome::Pending
    ));
    let message = world.queues.drain().remove(0).message;
    // Just before the publication, a pass finds a blob that is hours old by the clock of the pass.
    let (sweeper, publication) = (world.clone(), world.faults.calls(Operation::CreateBlob) + 1);
    world
        .faults
        .interrupt(Operation::CreateBlob, publication + 1, move || async move {
            let old = sweeper.deployed_with(|settings| settings.orphan_min_age = Duration::ZERO);
            assert_eq!(old.prune().await.unwrap().orphans, 0);
        });
    world.serve(&message).await.unwrap();
    world.check();
    assert!(
        world
            .entry("global", CRASH, Kind::CfiCache)
            .unwrap()
            .ready()
            .is_some()
    );
}

#[tokio::test(start_paused = true)]
async fn an_orphan_of_a_crash_between_record_and_blob_is_removed_by_the_next_run() {
    let world = after_eight_days().await;
    world
        .faults
        .fail_always(Operation::DeleteBlobs, How::Before);
    let report = world.prune_despite_failures().await.unwrap();
    assert_eq!((report.retired, report.bytes_freed), (3, 0));
    world.check();
    assert_eq!(world.orphans().len(), 3);
    world.faults.heal();
    world.pass(DAY).await;
    let report = world.prune().await.unwrap();
    assert_eq!((report.orphans, world.orphans().len()), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_removed_does_not_affect_others() {
    let world = World::new();
    keep_requests(&world, 10).await;
    world.pass(HOUR).await;
    let third = world.faults.calls(Operation::Remove) + 3;
    world.faults.fail(Operation::Remove, third, How::Throttled);
    let report = world.prune_despite_failures().await.unwrap();
    assert_eq!((report.expired, report.failed), (9, 1));
    assert!(report.complete && report.rollout.is_some(), "{report:?}");
    assert_eq!(
        report.errors,
        ["temporary failure: Remove, an injected fault: too many requests"]
    );
    let failure = report.failure().unwrap();
    assert_eq!(failure.name(), "Incomplete");
    assert_eq!(
        failure.to_string(),
        "1 calls failed, the first with: temporary failure: Remove, an injected fault: too many requests"
    );
    // The run saved its progress, and the next run continues.
    let next = world.prune().await.unwrap();
    assert_eq!((next.pass, next.expired), (2, 1));
    assert_eq!(stored(&world), 0);
}

#[tokio::test(start_paused = true)]
async fn a_page_that_cannot_be_read_ends_its_segment_and_no_other() {
    let world = World::new();
    keep_requests(&world, 1500).await;
    // The first page of one segment, and the second page of another one.
    let calls = world.faults.calls(Operation::Page);
    for nth in [calls + 3, calls + 12] {
        world.faults.fail(Operation::Page, nth, How::Throttled);
    }
    let first = world.prune_despite_failures().await.unwrap();
    assert_eq!((first.failed, first.complete), (2, false));
    assert!(first.rollout.is_none());
    let met = first.items["request"];
    assert!((1000..1400).contains(&met), "{met}");
    // The next run continues where these two segments stopped.
    let second = world.prune().await.unwrap();
    assert_eq!((second.pass, second.complete), (1, true));
    assert_eq!(met + second.items["request"], 1500);
}

#[tokio::test(start_paused = true)]
async fn a_blob_that_cannot_be_removed_does_not_affect_others() {
    let world = World::new();
    world.invocation(Duration::from_secs(1)); // sets the time of the store
    for number in 0..5 {
        let path = format!("derived/symcache/v1/orphan/symcache/{number}");
        world.caches.create(&path, "orphan".into()).await.unwrap();
    }
    world.pass(2 * HOUR).await;
    let held = "derived/symcache/v1/orphan/symcache/2".to_owned();
    let pruner = Pruner {
        caches: Arc::new(SlowBlobs {
            inner: world.caches.clone(),
            latency: Duration::ZERO,
            held: vec![held.clone()],
        }),
        ..world.pruner()
    };
    let report = pruner.prune(&world.invocation(15 * MINUTE), false).await;
    let report = report.unwrap();
    assert_eq!((report.orphans, report.failed), (4, 1));
    assert_eq!(report.bytes_freed, 4 * 6);
    assert!(report.errors[0].contains("is held"), "{report:?}");
    assert_eq!(world.caches.paths(), [held]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_listing_of_blobs_continues_in_the_next_run() {
    let world = World::new();
    world.invocation(Duration::from_secs(1)); // sets the time of the store
    let path = "plain/orphan/symcache/1.7";
    world.caches.create(path, "plain".into()).await.unwrap();
    world.pass(2 * HOUR).await;
    let third = world.faults.calls(Operation::ListBlobs) + 3;
    world
        .faults
        .fail(Operation::ListBlobs, third, How::Throttled);
    let report = world.prune_despite_failures().await.unwrap();
    assert_eq!((report.failed, report.complete), (1, false));
    let lists = world.faults.calls(Operation::ListBlobs);
    let report = world.prune().await.unwrap();
    assert_eq!((report.orphans, report.complete), (1, true));
    // The two earlier folders are not listed again.
    assert_eq!(world.faults.calls(Operation::ListBlobs), lists + 1);
}

#[tokio::test(start_paused = true)]
async fn a_run_over_slow_stores_saves_its_cursor_in_time() {
    let world = World::new();
    keep_requests(&world, 1500).await;
    for number in 0..2500 {
        let path = format!("derived/symcache/v1/{number}/symcache/1");
        world.caches.create(&path, "orphan".into()).await.unwrap();
    }
    world.pass(2 * HOUR).await;
    let (mut expired, mut orphans) = (0, 0);
    for run in 1.. {
        assert!(run < 30, "the pass never ends");
        let invocation = world.invocation(2 * MINUTE);
        let records = MeteredRecords::new(world.records.clone(), Duration::from_millis(700));
        let pruner = Pruner {
            records: Arc::new(records),
            caches: Arc::new(SlowBlobs {
                inner: world.caches.clone(),
                latency: Duration::from_secs(4),
                held: Vec::new(),
            }),
            ..world.pruner()
        };
        let report = pruner.prune(&invocation, false).await.unwrap();
        assert!(
            invocation.time_left() >= Duration::from_secs(1),
            "run {run} had {:?} left",
            invocation.time_left()
        );
        assert_eq!(report.failed, 0, "{report:?}");
        expired += report.expired;
        orphans += report.orphans;
        if report.complete && stored(&world) == 0 {
            assert!(run > 2, "{run} runs");
            break;
        }
    }
    assert_eq!((expired, orphans), (1500, 2500));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_does_not_keep_the_cursor_from_being_written() {
    for operation in [
        Operation::Page,
        Operation::ListDifs,
        Operation::ListBlobs,
        Operation::StatDif,
    ] {
        let world = World::new();
        world.upload("global/note.txt", "hostile/text.txt").await;
        world.pass(2 * HOUR).await;
        // Each of them takes 70 s, and the run has one minute.
        world.faults.fail_always(operation, How::Slow);
        let invocation = world.invocation(MINUTE);
        let report = world.pruner().prune(&invocation, false).await.unwrap();
        assert_eq!(report.pass, 1);
        let left = invocation.time_left();
        assert!(left > Duration::from_secs(5), "{operation:?}: {left:?}");
        world.faults.heal();
        let next = world.prune().await.unwrap();
        let is_under_way = operation == Operation::Page;
        assert_eq!(next.pass == 1, is_under_way, "{operation:?}");
        assert!(next.complete, "{operation:?}");
    }
}

/// A later release may add a schema to the sort keys of entries, so that two releases never write
/// the same item.
#[tokio::test(start_paused = true)]
async fn an_entry_is_retired_at_the_key_where_it_was_read() {
    let world = World::new();
    world.invocation(Duration::from_secs(1)); // sets the time of the store
    let old = put_entry(&world, 1, |_| {}).await;
    let used_at = world.now().plus(7 * DAY).as_secs();
    let young = put_entry(&world, 1, |entry| {
        entry["last_used_at"] = used_at.into();
        entry["ready"]["blob"]["path"] = "derived/symcache/v1/1/symcache/young".into();
    });
    let elsewhere = ItemKey {
        sort: "symcache@2".to_owned(),
        ..old.clone()
    };
    let stored = world.records.peek(&old).unwrap();
    world
        .records
        .replace(&elsewhere, None, &stored)
        .await
        .unwrap();
    let removed = world.records.remove(&old, &stored.revision).await;
    assert_eq!(removed.unwrap(), Removed::Done);
    assert_eq!(young.await, old);
    world.pass(8 * DAY).await;
    assert_eq!(world.prune().await.unwrap().retired, 1);
    assert!(world.records.peek(&elsewhere).is_none());
    assert!(world.records.peek(&old).is_some());
}

#[tokio::test(start_paused = true)]
async fn expired_requests_and_tombstones_are_removed() {
    let world = World::new();
    world.upload("global/note.txt", "hostile/text.txt").await;
    world.remove("global/note.txt").await;
    // More than one page.
    keep_requests(&world, 150).await;
    assert_eq!(world.prune().await.unwrap().expired, 0);
    world.pass(HOUR).await;
    let report = world.prune().await.unwrap();
    assert_eq!((report.expired, report.items["request"]), (150, 150));
    world.pass(15 * DAY).await;
    assert_eq!(world.prune().await.unwrap().expired, 1);
    assert_eq!(stored(&world), 0);
}

#[tokio::test(start_paused = true)]
async fn a_dead_lease_is_cleared() {
    let world = crate::requests::cold().await;
    world
        .answer(&sample_crash(), &Scope::Global, Duration::ZERO)
        .await
        .unwrap();
    let message = world.queues.drain().remove(0).message;
    world.derivations.take(Duration::from_secs(500));
    tokio::time::timeout(Duration::from_secs(5), world.serve(&message))
        .await
        .unwrap_err();
    assert_eq!(world.prune().await.unwrap().leases_cleared, 0);
    world.pass(Duration::from_secs(60)).await;
    assert_eq!(world.prune().await.unwrap().leases_cleared, 2);
    assert!(world.entries().iter().all(|entry| entry.lease().is_none()));
}

#[tokio::test(start_paused = true)]
async fn items_of_a_newer_release_and_their_blobs_stay() {
    let world = World::new();
    world.invocation(Duration::from_secs(1));
    let key = world.module("global", CRASH).entry(Kind::SymCache);
    let path = key.blob(Kind::SymCache, 9, &Token::from_random(1));
    world.records.put_newer(&key, Revision::from_random(1));
    world.records.put_newer(
        &ItemKey {
            partition: "f".repeat(64),
            sort: "unheard of".to_owned(),
        },
        Revision::from_random(2),
    );
    world
        .caches
        .create(&path, b"newer".to_vec().into())
        .await
        .unwrap();
    world.pass(100 * DAY).await;
    let report = world.prune().await.unwrap();
    assert_eq!(
        (report.items["newer"], report.retired, report.orphans),
        (2, 0, 0)
    );
    assert_eq!((stored(&world), world.caches.paths()), (2, vec![path]));
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_is_used_during_the_pass_stays() {
    let world = after_eight_days().await;
    let (reader, next) = (
        world.another_instance(),
        world.faults.calls(Operation::Remove) + 1,
    );
    // A reader uses it between the read of the page and the removal.
    world
        .faults
        .interrupt(Operation::Remove, next, move || async move {
            for kind in Kind::DERIVED {
                let writer = symdepot::flows::RecordWriter {
                    records: &*reader.records,
                    policy: &reader.settings.policy,
                    invocation: &reader.invocation(Duration::from_secs(9)),
                };
                for id in [CRASH, CHECKSUM] {
                    writer
                        .apply(
                            &reader.module("global", id),
                            kind,
                            &symdepot::cache::Change::Touch,
                        )
                        .await
                        .unwrap();
                }
            }
        });
    let report = world.prune().await.unwrap();
    assert_eq!(
        (report.retired, world.entries().len(), world.orphans().len()),
        (0, 4, 0)
    );
    world.check();
}
