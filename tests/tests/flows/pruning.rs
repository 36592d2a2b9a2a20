//! The schedule: what it removes, and what it leaves alone.

use std::time::Duration;

use symdepot::adapters::faulty::{How, Operation};
use symdepot::cache::{ItemKey, Kind, Revision, SweepItem, Token, UploadState};
use symdepot::domain::Scope;
use symdepot::flows::prune::Report;
use symdepot::ports::BlobStore;
use symdepot_tests::harness::{World, function_names, sample_crash};

use crate::{CHECKSUM, CRASH};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Returns the number of items that are not the sweep's own.
fn stored(world: &World) -> usize {
    let own = ItemKey::sweep(SweepItem::Cursor).partition;
    let items = world.records.items();
    items.iter().filter(|(key, _)| key.partition != own).count()
}

/// Two modules, of which one is used for six days and the other never.
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
async fn what_nobody_used_is_retired_with_its_blobs_and_what_was_used_stays() {
    let world = after_eight_days().await;
    let report = world.prune().await.unwrap();
    // The names of one module are used; its unwind information, and all of the other's, is not.
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
    // What users uploaded is a source, not a cache.
    assert_eq!(
        world.upload_item("global/checksum").state,
        UploadState::Applied
    );
    world.check();
}

#[tokio::test(start_paused = true)]
async fn what_was_retired_is_built_again_by_the_next_request() {
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
async fn a_dry_run_says_what_a_run_does_and_changes_nothing() {
    let world = after_eight_days().await;
    world
        .caches
        .create(
            "derived/symcache/v1/nobody/symcache/1",
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
    assert_eq!((said.retired, said.orphans, said.said.len()), (3, 1, 4));
    // What is retired in earnest is not there any more when the blobs are looked at.
    assert_eq!(
        Report {
            dry_run: false,
            blobs: done.blobs,
            said: Vec::new(),
            ..said
        },
        done
    );
}

#[tokio::test(start_paused = true)]
async fn an_orphan_is_removed_when_no_build_can_be_about_to_publish_it() {
    let world = World::new();
    world.invocation(Duration::from_secs(1)); // sets the time of the store
    let path = "derived/symcache/v1/nobody/symcache/1";
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
    assert_eq!(world.prune().await.unwrap().orphans, 0);
    world.pass(Duration::from_secs(1)).await;
    let report = world.prune().await.unwrap();
    assert_eq!((report.orphans, report.bytes_freed), (1, 6));
    assert_eq!(world.caches.paths(), ["requests/1"]);
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
        symdepot::flows::symbolicate::Answer::Pending
    ));
    let message = world.lanes.drain().remove(0).message;
    // Just before the publication, the sweep finds a blob that lies there for hours by its own clock.
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
async fn a_crash_between_the_record_and_its_blob_leaves_an_orphan_that_the_next_run_removes() {
    let world = after_eight_days().await;
    world.faults.fail(
        Operation::DeleteBlob,
        world.faults.calls(Operation::DeleteBlob) + 1,
        How::Before,
    );
    assert!(world.prune().await.is_err());
    world.check();
    assert_eq!(world.orphans().len(), 1);
    let report = world.prune().await.unwrap();
    assert_eq!((report.orphans, world.orphans().len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn expired_requests_and_tombstones_are_removed() {
    let world = World::new();
    world.upload("global/note.txt", "hostile/text.txt").await;
    world.remove("global/note.txt").await;
    let invocation = world.invocation(Duration::from_secs(29));
    // More than one page of them.
    for id in 0..150 {
        world
            .symbolicator()
            .keep_request(&invocation, &id.to_string(), &Scope::Global, b"{}")
            .await
            .unwrap();
    }
    assert_eq!(world.prune().await.unwrap().expired, 0);
    world.pass(HOUR).await;
    let report = world.prune().await.unwrap();
    assert_eq!((report.expired, report.items["request"]), (150, 150));
    world.pass(15 * DAY).await;
    assert_eq!(world.prune().await.unwrap().expired, 1);
    // The generation of the scope stays: it says that nothing happened since.
    assert_eq!(stored(&world), 1);
}

#[tokio::test(start_paused = true)]
async fn a_dead_lease_is_cleared() {
    let world = crate::requests::cold().await;
    world
        .answer(&sample_crash(), &Scope::Global, Duration::ZERO)
        .await
        .unwrap();
    let message = world.lanes.drain().remove(0).message;
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
async fn items_of_a_newer_build_and_their_blobs_are_left_alone() {
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
async fn what_is_used_while_the_sweep_looks_at_it_is_kept() {
    let world = after_eight_days().await;
    let (reader, next) = (
        world.another_instance(),
        world.faults.calls(Operation::Remove) + 1,
    );
    // Between the reading of the page and the removal, somebody uses it.
    world
        .faults
        .interrupt(Operation::Remove, next, move || async move {
            for kind in Kind::DERIVED {
                let update = symdepot::flows::Update {
                    records: &*reader.records,
                    policy: &reader.settings.policy,
                    invocation: &reader.invocation(Duration::from_secs(9)),
                };
                for id in [CRASH, CHECKSUM] {
                    update
                        .entry(
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
