//! Passes of `prune`, and writes that happen during them.

use std::sync::Arc;
use std::time::Duration;

use symdepot::adapters::faulty::Operation;
use symdepot::cache::{Kind, Revision};
use symdepot::domain::Scope;
use symdepot::flows::symbolicate::SymbolicateOutcome;
use symdepot_tests::harness::{World, function_names, sample_crash};
use tokio::sync::Notify;

use super::{DAY, before_next, entry, requested_build};
use crate::CRASH;
use crate::requests::cold;

#[tokio::test(start_paused = true)]
async fn r08_a_reader_of_a_record_that_was_rebuilt_meanwhile_does_not_change_the_new_one() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.pass(8 * DAY).await;
    let reader = world.another_instance();
    // Just before the reader records its use.
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
        matches!(answer, SymbolicateOutcome::Completed(completed, _) if function_names(&completed).len() == 13)
    );
    world.check();
    assert_eq!(
        entry(&world, Kind::SymCache).ready().unwrap().derived_at,
        world.now()
    );
}

#[tokio::test(start_paused = true)]
async fn r08_a_suspect_blob_of_the_former_record_does_not_change_the_new_one() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.pass(8 * DAY).await;
    let reader = world.another_instance();
    // The reader has read the record. Before it reads the blob, the record is retired and built
    // again.
    before_next(&world, Operation::GetBlob, 0, |world| async move {
        world.prune().await.unwrap();
        let message = requested_build(&world.another_instance()).await;
        world.serve(&message).await.unwrap();
    });
    let answer = reader
        .answer(&sample_crash(), &Scope::Global, Duration::from_secs(5))
        .await
        .unwrap();
    assert!(
        matches!(answer, SymbolicateOutcome::Completed(completed, _) if function_names(&completed).len() == 13)
    );
    assert_eq!(entry(&world, Kind::SymCache).suspect(), None);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn r05_a_blob_built_after_the_pass_read_the_records_is_no_orphan() {
    let world = cold().await;
    let message = requested_build(&world).await;
    // By the settings, every blob is old enough to be removed.
    let sweeper = world.deployed_with(|settings| settings.orphan_min_age = Duration::ZERO);
    before_next(&world, Operation::ListBlobs, 0, |world| async move {
        world.serve(&message).await.unwrap();
    });
    let report = sweeper.prune().await.unwrap();
    assert_eq!((report.blobs, report.orphans), (2, 0));
    world.check();
    assert!(entry(&world, Kind::SymCache).ready().is_some());
}

#[tokio::test(start_paused = true)]
async fn r05_a_blob_published_after_the_pass_listed_it_is_no_orphan() {
    let world = cold().await;
    let message = requested_build(&world).await;
    let [created, listed, published] = std::array::from_fn(|_| Arc::new(Notify::new()));
    // Two writes take the leases. The third one publishes, and waits for the listing.
    let (done, go_on) = (created.clone(), listed.clone());
    before_next(&world, Operation::Replace, 2, |_| async move {
        done.notify_one();
        go_on.notified().await;
    });
    let build = async {
        world.serve(&message).await.unwrap();
        published.notify_one();
    };
    let sweep = async {
        created.notified().await;
        assert_ne!(world.orphans(), [""; 0], "they are created, not published");
        let (done, go_on) = (listed.clone(), published.clone());
        // The second listing is that of the derived caches. The next read is that of their records.
        before_next(&world, Operation::ListBlobs, 1, move |world| async move {
            before_next(&world, Operation::Load, 0, |_| async move {
                done.notify_one();
                go_on.notified().await;
            });
        });
        let sweeper = world.deployed_with(|settings| settings.orphan_min_age = Duration::ZERO);
        sweeper.prune().await.unwrap()
    };
    let (report, ()) = tokio::join!(sweep, build);
    assert!(report.blobs > 0 && report.orphans == 0, "{report:?}");
    world.check();
    assert!(entry(&world, Kind::SymCache).ready().is_some());
}

#[tokio::test(start_paused = true)]
async fn r06_a_pass_of_an_older_release_keeps_what_a_newer_release_writes_meanwhile() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.pass(8 * DAY).await;
    let blobs = world.caches.paths();
    // Between the read of the page and the removal, a newer release takes over the entries.
    before_next(&world, Operation::Remove, 0, |world| async move {
        for kind in [Kind::CfiCache, Kind::SymCache] {
            let key = world.module("global", CRASH).entry(kind);
            world.records.put_newer(&key, Revision::from_random(1));
        }
    });
    let report = world.prune().await.unwrap();
    assert_eq!((report.retired, report.orphans), (0, 0));
    let newer = world.prune().await.unwrap().items["newer"];
    assert_eq!((newer, world.caches.paths()), (2, blobs));
}
