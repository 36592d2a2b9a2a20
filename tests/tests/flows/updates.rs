//! The one loop that changes records: read, apply, compare and swap.

use std::time::Duration;

use symdepot::adapters::faulty::{FaultyRecords, How, Operation};
use symdepot::cache::{
    Alias, Change, Item, ItemKey, Kind, ModuleKey, Queue, Refused, Revision, Stored,
};
use symdepot::flows::{Invocation, RecordWriter, Updated};
use symdepot::ports::{FaultKind, RecordStore};
use symdepot_tests::harness::World;

use crate::CRASH;

struct Bench {
    world: World,
    records: FaultyRecords,
    invocation: Invocation,
    module: ModuleKey,
}

fn bench() -> Bench {
    let world = World::new();
    let records = FaultyRecords::new(world.records.clone(), world.faults.clone());
    let (invocation, module) = (
        world.invocation(Duration::from_secs(60)),
        world.module("global", CRASH),
    );
    Bench {
        world,
        records,
        invocation,
        module,
    }
}

impl Bench {
    fn writer(&self) -> RecordWriter<'_> {
        RecordWriter {
            records: &self.records,
            policy: &self.world.settings.policy,
            invocation: &self.invocation,
        }
    }

    fn request_build(&self) -> Change {
        Change::RequestBuild {
            id: self.invocation.token(),
            queue: Queue::Eager,
        }
    }

    fn alias(&self, module: &str) -> Item {
        Item::Alias(Alias {
            target: ModuleKey {
                id: module.to_owned(),
                ..self.module.clone()
            },
        })
    }
}

/// Returns a matcher that accepts every item, and panics if the removal never ends.
fn a_few_times() -> impl FnMut(&Item) -> bool {
    let mut left = 5;
    move |_| {
        left -= 1;
        assert!(left > 0, "the removal never ends");
        true
    }
}

#[tokio::test(start_paused = true)]
async fn only_changes_that_create_entries_create_them() {
    let bench = bench();
    let refused = bench
        .writer()
        .apply(&bench.module, Kind::SymCache, &Change::Touch)
        .await
        .unwrap();
    assert_eq!(refused, Updated::Refused(Refused::Nothing, None));
    let retired = bench
        .writer()
        .apply(&bench.module, Kind::SymCache, &Change::Retire)
        .await
        .unwrap();
    assert_eq!(retired, Updated::Refused(Refused::Nothing, None));
    assert_eq!(bench.world.records.items(), []);
    let asked = bench
        .writer()
        .apply(&bench.module, Kind::SymCache, &bench.request_build())
        .await
        .unwrap();
    assert!(matches!(asked, Updated::Done(entry) if entry.build_request().is_some()));
}

#[tokio::test(start_paused = true)]
async fn a_write_that_fails_temporarily_is_retried_a_few_times() {
    for (failures, succeeds) in [(1, true), (3, true), (4, false)] {
        let bench = bench();
        for nth in 1..=failures {
            bench
                .world
                .faults
                .fail(Operation::Replace, nth, How::Before);
        }
        let updated = bench
            .writer()
            .apply(&bench.module, Kind::SymCache, &bench.request_build())
            .await;
        assert_eq!(updated.is_ok(), succeeds, "{failures}");
        assert_eq!(
            bench.world.records.items().len(),
            usize::from(succeeds),
            "{failures}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_denied_is_not_retried() {
    let bench = bench();
    bench.world.faults.fail(Operation::Replace, 1, How::Denied);
    let error = bench
        .writer()
        .apply(&bench.module, Kind::SymCache, &bench.request_build())
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind(), bench.world.faults.calls(Operation::Replace)),
        (FaultKind::Denied, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_race_is_repeated_on_what_the_winner_wrote() {
    let bench = bench();
    let winner = bench.world.clone();
    bench
        .world
        .faults
        .interrupt(Operation::Replace, 1, move || async move {
            let invocation = winner.invocation(Duration::from_secs(60));
            let writer = RecordWriter {
                records: &*winner.records,
                policy: &winner.settings.policy,
                invocation: &invocation,
            };
            let build_request = Change::RequestBuild {
                id: invocation.token(),
                queue: Queue::Eager,
            };
            writer
                .apply(
                    &winner.module("global", CRASH),
                    Kind::SymCache,
                    &build_request,
                )
                .await
                .unwrap();
        });
    let updated = bench
        .writer()
        .apply(&bench.module, Kind::SymCache, &bench.request_build())
        .await
        .unwrap();
    assert!(matches!(
        updated,
        Updated::Refused(Refused::Requested, Some(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn an_item_of_a_newer_release_is_never_touched() {
    let bench = bench();
    let key = bench.module.entry(Kind::SymCache);
    bench
        .world
        .records
        .put_newer(&key, Revision::from_random(1));
    let before = bench.world.records.items();
    let updated = bench
        .writer()
        .apply(&bench.module, Kind::SymCache, &bench.request_build())
        .await
        .unwrap();
    assert_eq!(updated, Updated::Refused(Refused::InUse, None));
    assert!(
        !bench
            .writer()
            .put(&key, bench.alias("a"), |_| false)
            .await
            .unwrap()
    );
    bench.writer().remove(&key, a_few_times()).await.unwrap();
    assert_eq!(bench.world.faults.calls(Operation::Remove), 0);
    assert_eq!(bench.world.records.items(), before);
}

#[tokio::test(start_paused = true)]
async fn an_item_that_a_newer_release_replaces_before_its_removal_stays() {
    let bench = bench();
    let key = ItemKey::request("1");
    let put = bench.writer();
    put.put(&key, bench.alias("a"), |_| false).await.unwrap();
    let (records, of_newer) = (bench.world.records.clone(), key.clone());
    bench
        .world
        .faults
        .interrupt(Operation::Remove, 1, move || async move {
            records.put_newer(&of_newer, Revision::from_random(1));
        });
    bench.writer().remove(&key, a_few_times()).await.unwrap();
    assert_eq!(bench.world.faults.calls(Operation::Remove), 1);
    let present = bench.world.records.peek(&key).unwrap();
    assert!(matches!(present.item, Item::Newer { .. }));
}

#[tokio::test(start_paused = true)]
async fn another_item_at_the_key_of_an_entry_is_corrupt() {
    let bench = bench();
    let key = bench.module.entry(Kind::SymCache);
    let stored = Stored {
        revision: Revision::from_random(1),
        item: bench.alias("a"),
    };
    bench.records.replace(&key, None, &stored).await.unwrap();
    let error = bench
        .writer()
        .apply(&bench.module, Kind::SymCache, &bench.request_build())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), FaultKind::Corrupt);
}

#[tokio::test(start_paused = true)]
async fn an_item_is_written_once_and_kept_if_the_caller_says_so() {
    let bench = bench();
    let key = ItemKey::request("1");
    let put = async |module: &str, keep: bool| {
        bench
            .writer()
            .put(&key, bench.alias(module), |_| keep)
            .await
            .unwrap()
    };
    assert!(put("a", true).await, "no item to keep");
    let first = bench.world.records.peek(&key);
    assert!(put("a", true).await, "an existing item counts as written");
    assert_eq!(bench.world.records.peek(&key), first);
    assert!(!put("b", true).await);
    assert_eq!(bench.world.records.peek(&key), first);
    assert!(put("b", false).await);
    assert_eq!(
        bench.world.records.peek(&key).unwrap().item,
        bench.alias("b")
    );
}

#[tokio::test(start_paused = true)]
async fn an_item_is_removed_only_if_it_is_the_intended_one() {
    let bench = bench();
    let key = ItemKey::request("1");
    let remove = async |module: &str| {
        let meant = bench.alias(module);
        bench
            .writer()
            .remove(&key, |item| *item == meant)
            .await
            .unwrap();
        bench.world.records.peek(&key).is_some()
    };
    bench
        .writer()
        .put(&key, bench.alias("a"), |_| false)
        .await
        .unwrap();
    assert!(remove("b").await);
    assert!(!remove("a").await);
    assert!(
        !remove("a").await,
        "removing an absent item changes nothing"
    );
}
