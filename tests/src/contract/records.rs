//! The contract of [`RecordStore`].

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::stream::{StreamExt, TryStreamExt};
use serde_json::{Value, json};
use symdepot::cache::{Item, ItemKey, Revision, SCHEMA, Stored};
use symdepot::ports::{Consistency, Cursor, FaultKind, RecordStore, Removed, Replaced, Segment};
use tokio::task::JoinSet;

/// The store under test, shared by racing writers.
pub type Records = Arc<dyn RecordStore>;

/// Every type of item reads back as it was written, with numbers and texts at their limits.
pub async fn an_item_reads_back_as_written(records: &Records) {
    for (number, item) in items_of_every_type().into_iter().enumerate() {
        let key = ItemKey {
            partition: "every-type".to_owned(),
            sort: format!("{number}"),
        };
        let stored = Stored {
            revision: revision(number as u64),
            item,
        };
        assert_eq!(
            records.replace(&key, None, &stored).await.unwrap(),
            Replaced::Done
        );
        for consistency in [Consistency::Strong, Consistency::Eventual] {
            let loaded = records
                .load(std::slice::from_ref(&key), consistency)
                .await
                .unwrap();
            assert_eq!(loaded, [Some(stored.clone())]);
        }
    }
}

/// Absent items are neither loaded nor listed, and removing one succeeds.
pub async fn absent_items_are_not_found(records: &Records) {
    assert_eq!(records.load(&[], Consistency::Strong).await.unwrap(), []);
    assert_eq!(load(records, &key("nothing", 0)).await, None);
    assert_eq!(records.query("nothing").await.unwrap(), []);
    assert_eq!(
        records
            .remove(&key("nothing", 0), &revision(1))
            .await
            .unwrap(),
        Removed::Done
    );
    let replaced = records
        .replace(&key("nothing", 0), Some(&revision(1)), &stored(2))
        .await
        .unwrap();
    assert_eq!(replaced, Replaced::Lost(None));
    assert_eq!(load(records, &key("nothing", 0)).await, None);
}

/// 250 keys, some repeated and some without an item, are loaded in their order.
pub async fn many_keys_are_loaded_in_order(records: &Records) {
    let keys: Vec<ItemKey> = (0..180).map(|number| key("many", number)).collect();
    let odd = keys
        .iter()
        .enumerate()
        .filter(|(number, _)| number % 2 == 1);
    write_all(
        records,
        odd.map(|(number, key)| (key.clone(), stored(number as u64)))
            .collect(),
    )
    .await;

    let mut asked: Vec<usize> = (0..180).rev().collect();
    asked.extend((0..70).map(|number| number * 2 / 2));
    assert_eq!(asked.len(), 250);
    let asked_keys: Vec<ItemKey> = asked.iter().map(|number| keys[*number].clone()).collect();
    let expected: Vec<_> = asked
        .iter()
        .map(|number| (number % 2 == 1).then(|| stored(*number as u64)))
        .collect();
    for consistency in [Consistency::Strong, Consistency::Eventual] {
        assert_eq!(
            records.load(&asked_keys, consistency).await.unwrap(),
            expected
        );
    }
}

/// Items that exceed one response (DynamoDB limits responses to 16 MB) are all loaded.
pub async fn items_that_exceed_one_response_are_loaded(records: &Records) {
    let large: Vec<_> = (0..52)
        .map(|number| (key("heavy", number), sized(number as u64, 330_000)))
        .collect();
    write_all(records, large.clone()).await;
    let (keys, expected): (Vec<_>, Vec<_>) = large
        .into_iter()
        .map(|(key, stored)| (key, Some(stored)))
        .unzip();
    assert!(
        records.load(&keys, Consistency::Strong).await.unwrap() == expected,
        "some items are missing or differ"
    );
}

/// An item of 300 KB is stored. A larger one is refused, and the stored item is unchanged.
pub async fn a_large_item_is_stored_and_a_larger_one_refused(records: &Records) {
    let key = key("large", 0);
    let large = sized(1, 300_000);
    assert_eq!(
        records.replace(&key, None, &large).await.unwrap(),
        Replaced::Done
    );
    let error = records
        .replace(&key, Some(&large.revision), &sized(2, 500_000))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), FaultKind::TooLarge, "{error}");
    assert_eq!(load(records, &key).await, Some(large));
}

/// A write succeeds only at the stored revision; the loser receives the stored item.
pub async fn a_write_must_name_the_revision_that_is_stored(records: &Records) {
    let key = key("revisions", 0);
    assert_eq!(
        records.replace(&key, None, &stored(1)).await.unwrap(),
        Replaced::Done
    );
    assert_eq!(
        records.replace(&key, None, &stored(2)).await.unwrap(),
        Replaced::Lost(Some(stored(1)))
    );
    assert_eq!(
        records
            .replace(&key, Some(&revision(7)), &stored(2))
            .await
            .unwrap(),
        Replaced::Lost(Some(stored(1)))
    );
    assert_eq!(
        records
            .replace(&key, Some(&revision(1)), &stored(2))
            .await
            .unwrap(),
        Replaced::Done
    );
    assert_eq!(
        records
            .replace(&key, Some(&revision(1)), &stored(3))
            .await
            .unwrap(),
        Replaced::Lost(Some(stored(2)))
    );
    assert_eq!(load(records, &key).await, Some(stored(2)));
}

/// A write that is repeated after it succeeded succeeds, unless another writer replaced the item
/// meanwhile.
pub async fn a_repeated_write_succeeds_until_another_one_replaces_it(records: &Records) {
    let key = key("repeated", 0);
    for _ in 0..2 {
        assert_eq!(
            records.replace(&key, None, &stored(1)).await.unwrap(),
            Replaced::Done
        );
    }
    for _ in 0..2 {
        assert_eq!(
            records
                .replace(&key, Some(&revision(1)), &stored(2))
                .await
                .unwrap(),
            Replaced::Done
        );
    }
    assert_eq!(load(records, &key).await, Some(stored(2)));
    assert_eq!(
        records.replace(&key, None, &stored(1)).await.unwrap(),
        Replaced::Lost(Some(stored(2)))
    );
    assert_eq!(
        records.remove(&key, &revision(2)).await.unwrap(),
        Removed::Done
    );
    assert_eq!(
        records.remove(&key, &revision(2)).await.unwrap(),
        Removed::Done
    );
}

/// Of sixteen writers that name the same revision, exactly one wins, and the others receive its
/// item.
pub async fn one_of_several_racing_writers_wins(records: &Records) {
    for round in 0..10 {
        let key = key("race", round);
        for first in [1, 101] {
            let expected = load(records, &key).await.map(|stored| stored.revision);
            let outcomes = race(16, |writer| {
                let (records, key) = (records.clone(), key.clone());
                let (next, expected) = (stored(first + writer), expected.clone());
                async move {
                    records
                        .replace(&key, expected.as_ref(), &next)
                        .await
                        .unwrap()
                }
            })
            .await;
            let winner = load(records, &key).await;
            assert_eq!(
                outcomes
                    .iter()
                    .filter(|outcome| **outcome == Replaced::Done)
                    .count(),
                1,
                "round {round}"
            );
            for outcome in outcomes
                .into_iter()
                .filter(|outcome| *outcome != Replaced::Done)
            {
                assert_eq!(outcome, Replaced::Lost(winner.clone()), "round {round}");
            }
        }
    }
}

/// Of a writer and a remover that name the same revision, exactly one wins.
pub async fn a_writer_and_a_remover_do_not_both_win(records: &Records) {
    for round in 0..10 {
        let key = key("write-or-remove", round);
        assert_eq!(
            records.replace(&key, None, &stored(1)).await.unwrap(),
            Replaced::Done
        );
        let (writer, remover) = (records.clone(), records.clone());
        let (writers_key, removers_key) = (key.clone(), key.clone());
        let write = tokio::spawn(async move {
            writer
                .replace(&writers_key, Some(&revision(1)), &stored(2))
                .await
                .unwrap()
        });
        let remove =
            tokio::spawn(async move { remover.remove(&removers_key, &revision(1)).await.unwrap() });
        match (
            write.await.unwrap(),
            remove.await.unwrap(),
            load(records, &key).await,
        ) {
            (Replaced::Done, Removed::Lost(shown), Some(left)) => {
                assert!(shown == stored(2) && left == stored(2));
            }
            (Replaced::Lost(None), Removed::Done, None) => {}
            outcome => panic!("round {round}: {outcome:?}"),
        }
    }
}

/// An item is removed only at the stored revision.
pub async fn a_removal_must_name_the_revision_that_is_stored(records: &Records) {
    let key = key("removals", 0);
    assert_eq!(
        records.replace(&key, None, &stored(1)).await.unwrap(),
        Replaced::Done
    );
    assert_eq!(
        records.remove(&key, &revision(7)).await.unwrap(),
        Removed::Lost(stored(1))
    );
    assert_eq!(load(records, &key).await, Some(stored(1)));
    assert_eq!(
        records.remove(&key, &revision(1)).await.unwrap(),
        Removed::Done
    );
    assert_eq!(load(records, &key).await, None);
}

/// A writer with the revision of an item that was since removed and created again loses.
pub async fn a_recreated_item_rejects_its_old_revision(records: &Records) {
    let key = key("again", 0);
    assert_eq!(
        records.replace(&key, None, &stored(1)).await.unwrap(),
        Replaced::Done
    );
    assert_eq!(
        records.remove(&key, &revision(1)).await.unwrap(),
        Removed::Done
    );
    assert_eq!(
        records.replace(&key, None, &stored(2)).await.unwrap(),
        Replaced::Done
    );
    assert_eq!(
        records
            .replace(&key, Some(&revision(1)), &stored(3))
            .await
            .unwrap(),
        Replaced::Lost(Some(stored(2)))
    );
    assert_eq!(
        records.remove(&key, &revision(1)).await.unwrap(),
        Removed::Lost(stored(2))
    );
}

/// The items of a partition are returned in the order of their sort keys, all of them even if they
/// exceed one response.
pub async fn a_partition_is_listed_in_the_order_of_its_sort_keys(records: &Records) {
    let sorts = [
        "dif#b", "symcache", "dif#a", "alias", "dif#", "Z", "cficache", "dif#ä",
    ];
    let items: Vec<_> = (0u64..)
        .zip(sorts)
        // DynamoDB limits responses to 1 MB.
        .map(|(number, sort)| {
            (
                ItemKey {
                    partition: "listed".to_owned(),
                    sort: sort.to_owned(),
                },
                sized(number, 300_000),
            )
        })
        .collect();
    write_all(records, items.clone()).await;
    write_all(
        records,
        vec![(
            ItemKey {
                partition: "listed2".to_owned(),
                sort: "alias".to_owned(),
            },
            stored(1),
        )],
    )
    .await;
    let expected: BTreeMap<_, _> = items.into_iter().collect();
    let listed = records.query("listed").await.unwrap();
    let order: Vec<_> = listed.iter().map(|(key, _)| key.sort.as_str()).collect();
    assert_eq!(
        order,
        expected
            .keys()
            .map(|key| key.sort.as_str())
            .collect::<Vec<_>>()
    );
    assert!(listed.into_iter().eq(expected), "an item differs");
}

/// Paging visits each of 2,500 items once, and ends.
pub async fn paging_visits_every_item_once(records: &Records) {
    let items: BTreeMap<_, _> = (0..2500)
        .map(|number| (key("pages", number), sized(number as u64, 900)))
        .collect();
    write_all(records, items.clone().into_iter().collect()).await;
    let (mut met, mut pages, mut cursor): (BTreeMap<_, _>, _, Option<Cursor>) =
        (BTreeMap::new(), 0, None);
    loop {
        let page = records.page(Segment::WHOLE, cursor.as_ref()).await.unwrap();
        pages += 1;
        for (key, stored) in page
            .items
            .into_iter()
            .filter(|(key, _)| key.partition.starts_with("pages-"))
        {
            assert_eq!(
                met.insert(key.clone(), stored),
                None,
                "{key:?} was returned twice"
            );
        }
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert!(
        met == items,
        "{} of {} items were returned, or some differ",
        met.len(),
        items.len()
    );
    assert!(pages > 1, "a single page does not test the contract");
}

/// Paging through all segments visits each item once, and each segment has a share of them.
pub async fn segments_partition_the_items(records: &Records) {
    let items: BTreeMap<_, _> = (0..1200)
        .map(|number| (key("segments", number), sized(number as u64, 900)))
        .collect();
    write_all(records, items.clone().into_iter().collect()).await;
    let mut met = BTreeMap::new();
    for index in 0..3 {
        let (segment, mut cursor, before) = (Segment { index, of: 3 }, None, met.len());
        loop {
            let page = records.page(segment, cursor.as_ref()).await.unwrap();
            for (key, stored) in page
                .items
                .into_iter()
                .filter(|(key, _)| key.partition.starts_with("segments-"))
            {
                assert_eq!(
                    met.insert(key.clone(), stored),
                    None,
                    "{key:?} was returned twice"
                );
            }
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        assert!(
            met.len() > before + 200,
            "segment {index} has too few items"
        );
    }
    assert!(
        met == items,
        "{} of {} items were returned",
        met.len(),
        items.len()
    );
}

/// Pages report the consumed read units: half a unit for 4 KB.
pub async fn pages_report_the_consumed_read_units(records: &Records) {
    let items = (0..400).map(|number| (key("consumed", number), sized(number as u64, 900)));
    write_all(records, items.collect()).await;
    let (mut cursor, mut units, mut met) = (None, 0.0, 0);
    loop {
        let page = records
            .page(Segment { index: 0, of: 1 }, cursor.as_ref())
            .await
            .unwrap();
        units += page.read_units;
        met += page.items.len();
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    // About 1 KB each; other tests may have left more items.
    let least = 400.0 / 8.0 * 0.8;
    assert!(
        met >= 400 && units >= least,
        "{units} units for {met} items"
    );
}

/// An item of a newer release is returned as such, and cannot be written or removed, even at its
/// revision.
///
/// The caller has put the item under this key and revision, bypassing the port.
pub async fn items_of_a_newer_release_are_not_changed(
    records: &Records,
    key: &ItemKey,
    at: &Revision,
) {
    let newer = load(records, key)
        .await
        .expect("the caller has put an item of a newer release");
    assert!(
        newer.item == (Item::Newer { schema: SCHEMA + 1 }) && newer.revision == *at,
        "{newer:?}"
    );
    assert_eq!(
        records.replace(key, Some(at), &stored(1)).await.unwrap(),
        Replaced::Lost(Some(newer.clone()))
    );
    assert_eq!(
        records.replace(key, None, &stored(1)).await.unwrap(),
        Replaced::Lost(Some(newer.clone()))
    );
    assert_eq!(
        records.remove(key, at).await.unwrap(),
        Removed::Lost(newer.clone())
    );
    let error = records
        .replace(&self::key("newer", 9), None, &newer)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), FaultKind::Bug);
    assert_eq!(
        records.query(&key.partition).await.unwrap(),
        [(key.clone(), newer)]
    );
}

/// Returns the key of the `number`-th item of a guarantee.
fn key(promise: &str, number: usize) -> ItemKey {
    ItemKey {
        partition: format!("{promise}-{number}"),
        sort: "upload".to_owned(),
    }
}

fn revision(number: u64) -> Revision {
    Revision::from_random(number)
}

/// Returns an item that differs from those with other numbers.
fn stored(number: u64) -> Stored {
    sized(number, 0)
}

/// Returns an item of about this many bytes.
fn sized(number: u64, bytes: usize) -> Stored {
    let item = item(json!({
        "type": "upload", "key": format!("global/{number}"), "etag": "e", "sequencer": "00", "size": number,
        "state": "ignored", "reason": "r".repeat(bytes), "at": number,
    }));
    Stored {
        revision: revision(number),
        item,
    }
}

fn item(json: Value) -> Item {
    serde_json::from_value(json).expect("the test's JSON is an item")
}

async fn load(records: &Records, key: &ItemKey) -> Option<Stored> {
    let mut loaded = records
        .load(std::slice::from_ref(key), Consistency::Strong)
        .await
        .unwrap();
    assert_eq!(loaded.len(), 1);
    loaded.remove(0)
}

async fn write_all(records: &Records, items: Vec<(ItemKey, Stored)>) {
    let writes = items.into_iter().map(|(key, stored)| async move {
        records
            .replace(&key, None, &stored)
            .await
            .map(|replaced| assert_eq!(replaced, Replaced::Done))
    });
    futures::stream::iter(writes)
        .buffer_unordered(16)
        .try_collect::<()>()
        .await
        .unwrap();
}

async fn race<T: Send + 'static, F>(writers: u64, write: impl Fn(u64) -> F) -> Vec<T>
where
    F: Future<Output = T> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for writer in 0..writers {
        tasks.spawn(write(writer));
    }
    tasks.join_all().await
}

fn items_of_every_type() -> Vec<Item> {
    let module =
        json!({"scope": "größe 🦀", "source": "uploads", "module": "debug_id:\"x\"\n\u{7f}"});
    let dif = json!({"location": "global/../a//b c%20+ä\t", "etag": "9b2cf535f27731c974343645a3985328-3"});
    let features = json!({"has_debug_info": true, "has_unwind_info": false, "has_symbols": true, "has_sources": false, "srcsrv_vcs": ""});
    let ready = json!({
        "version": u32::MAX, "quality": "fallback", "rank": 2, "features": features, "arch": "x86_64", "file_type": "pe",
        "blob": {"path": "derived/x", "bytes": u64::MAX, "checksum": u64::MAX, "index": {"offset": (1u64 << 53) + 1, "length": 0}},
        "made_from": [dif, dif], "derived_at": 0, "converter": 1,
    });
    let tally = json!({"kinds": {"symcache": {
        "current": 1, "behind": u64::MAX, "dif_gone": 0, "failed": {"malformed": 1}, "unbuilt": 0, "older": 0, "in_queue": 0, "bytes": 1,
    }}, "uploads": 1, "ages": [0, 1]});
    let drained = json!({"answered": 1, "standing": 0, "seconds": 3600});
    [
        json!({"type": "entry", "module": module, "kind": "ppdbcache", "last_used_at": 0}),
        json!({
            "type": "entry", "module": module, "kind": "symcache", "ready": ready, "older": ready,
            "missing": {"cause": {"cause": "too_large", "limit": u64::MAX}, "detail": "", "retry_at": 1, "converter": 1},
            "lease": {"holder": "", "token": "00", "until": u64::MAX}, "ask": {"id": "01", "lane": "eager", "at": 1},
            "dirty": "02", "considered": [dif], "attempts": 3, "releases": 1, "not_before": 1, "lost_at": 1,
            "suspect": {"blob": "derived/x", "at": 1}, "last_used_at": 1_763_600_000u64,
            "candidates": [
                {"source": "uploads", "location": "a", "download": {"status": "ok", "features": features}, "size": u64::MAX, "duration_ms": 1},
                {"source": "uploads", "location": "b", "download": {"status": "error", "details": "\u{0}"}},
            ],
        }),
        json!({"type": "alias", "target": module}),
        json!({
            "type": "upload", "key": "global/a", "etag": "e", "sequencer": "0055AED6DCD90281E5", "size": 0, "state": "gone", "at": 1,
            "expires_at": 1_763_600_000u64,
            "objects": [{"module": {"code": "f1c3bcc0"}, "code_id": "f1c3bcc0", "file_type": "elf_code", "arch": "arm64", "features": features}],
        }),
        json!({"type": "dif", "module": module, "dif": dif, "sequencer": "00", "size": 1, "file_type": "breakpad", "features": features}),
        json!({"type": "request", "id": "1", "scope": "global", "body": {"inline": "{\"stacktraces\": []}"}, "expires_at": 1}),
        json!({"type": "request", "id": "2", "scope": "acme", "body": {"blob": "requests/2"}, "expires_at": u64::MAX}),
        json!({
            "type": "request", "id": "3", "scope": "acme", "stage": "minidump", "body": {"blob": "requests/3.dmp"}, "asked_at": 1,
            "answer": {"path": "requests/3.json", "bytes": u64::MAX}, "expires_at": 2,
        }),
        json!({
            "type": "sweep", "pass": 1, "began_at": 1, "segments": ["begin", {"after": {"partition": "p", "sort": "s"}}, "done"],
            "tally": tally, "drained": drained, "cut": {"all_before": 1, "some_before": 2, "some_bytes": u64::MAX},
            "uploads_after": "global/größe", "blobs_after": "derived/x",
        }),
        json!({"type": "manifest", "at": 1, "entries": [
            {"scope": "acme", "source": "uploads", "module": "m", "kind": "symcache", "last_used_at": u64::MAX},
            {"scope": "acme", "source": "uploads", "module": "m", "kind": "cficache", "last_used_at": 0, "ask": "00"},
        ]}),
        json!({"type": "rollout", "pass": 1, "began_at": 1, "at": 2, "converter": 1, "tally": tally, "drained": drained}),
    ]
    .map(item)
    .into()
}
