//! Passes of `prune`: how they continue, what they rebuild, which lost events they repair, and what
//! they report.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use symdepot::adapters::faulty::{How, Operation};
use symdepot::api::explained::EntryUse;
use symdepot::cache::{
    Converter, Estimate, Item, ItemKey, Kind, ModuleKey, Queue, Revision, Stored, SweepItem,
    UploadState,
};
use symdepot::domain::{CodeId, Location, ModuleId, ObjectId, Scope};
use symdepot::flows::prune::{Pruner, Report};
use symdepot::ports::{RecordStore, Replaced};
use symdepot_tests::harness::{World, fixture, sample_crash};

use crate::tables::{
    MeteredRecords, Reads, entry_at, keep_requests, module, put, put_dif, put_entry,
};
use crate::{CHECKSUM, CRASH};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

async fn uploaded() -> World {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world
}

/// Makes every entry one that an older converter built.
pub(crate) async fn fall_behind(world: &World) {
    for (number, (key, stored)) in world.records.items().into_iter().enumerate() {
        let Item::Entry(entry) = &stored.item else {
            continue;
        };
        let mut json = serde_json::to_value(&stored.item).unwrap();
        if entry.ready().is_none() {
            continue;
        }
        json["ready"]["converter"] = 0.into();
        let older = Stored {
            revision: Revision::from_random(number as u64),
            item: serde_json::from_value(json).unwrap(),
        };
        let replaced = world
            .records
            .replace(&key, Some(&stored.revision), &older)
            .await
            .unwrap();
        assert_eq!(replaced, Replaced::Done);
    }
}

fn behind(report: &Report) -> u64 {
    let rollout = report.rollout.as_ref().unwrap();
    rollout.kinds.values().map(|kind| kind.tally.behind).sum()
}

#[tokio::test(start_paused = true)]
async fn outdated_entries_are_rebuilt_by_the_refresh_queue() {
    let world = uploaded().await;
    fall_behind(&world).await;
    let first = world.prune().await.unwrap();
    assert_eq!((behind(&first), first.requested), (2, 0));
    world.pass(HOUR).await;
    let second = world.prune().await.unwrap();
    assert_eq!((behind(&second), second.requested), (2, 2));
    // One message for both kinds, so the DIF is fetched once.
    let sent = world.queues.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(
        (sent[0].message.queue, sent[0].message.kinds.len()),
        (Queue::Refresh, 2)
    );
    world.settle().await;
    for kind in [Kind::CfiCache, Kind::SymCache] {
        let entry = world.entry("global", CRASH, kind).unwrap();
        assert_eq!(entry.ready().unwrap().converter, Converter::CURRENT);
    }
    world.pass(HOUR).await;
    let third = world.prune().await.unwrap();
    let rollout = third.rollout.unwrap();
    assert_eq!(
        (rollout.queue.answered, rollout.queue.still_pending),
        (2, 0)
    );
    assert_eq!(rollout.estimate, Estimate::Complete);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_pending_build_request_is_not_repeated() {
    let world = uploaded().await;
    fall_behind(&world).await;
    world.prune().await.unwrap();
    world.pass(HOUR).await;
    assert_eq!(world.prune().await.unwrap().requested, 2);
    world.pass(HOUR).await;
    let again = world.prune().await.unwrap();
    assert_eq!((again.requested, behind(&again)), (0, 2));
    let rollout = again.rollout.unwrap();
    assert_eq!(rollout.kinds["symcache"].tally.in_queue, 1);
    assert!(matches!(rollout.estimate, Estimate::Unknown { .. }));
    assert_eq!(world.queues.sent().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_stops_early_continues_in_the_next_one() {
    let world = World::new();
    // So many that each segment has more than a page of them.
    for number in 0..1500 {
        let key = format!("global/{number}");
        let upload = json!({
            "type": "upload", "key": key, "etag": "1", "sequencer": "1", "size": 1,
            "state": "applied", "at": world.now(),
        });
        let item = ItemKey::upload(&Location::new(key.as_str()));
        put(&world, &item, upload).await;
    }
    for run in 0..10 {
        // Of 70 s, the pass over the records has 42 s. Each call takes 10 s, and reading the
        // progress of the pass takes 20 or 30 s.
        let records = MeteredRecords::new(world.records.clone(), Duration::from_secs(10));
        let pruner = Pruner {
            records: Arc::new(records),
            ..world.pruner()
        };
        let invocation = world.invocation(Duration::from_secs(70));
        let report = pruner.prune(&invocation, false).await.unwrap();
        assert_eq!(report.pass, 1);
        if let Some(rollout) = report.rollout {
            assert!(run > 0);
            assert_eq!(rollout.uploads, 1500, "each upload is counted once");
            let whole = world.prune().await.unwrap();
            assert_eq!((whole.pass, whole.complete), (2, true));
            return;
        }
        assert!(!report.complete);
    }
    panic!("the pass never ended");
}

#[tokio::test(start_paused = true)]
async fn the_pass_over_the_records_respects_its_rate() {
    let world = World::with(|settings| settings.sweep_read_units = 1);
    keep_requests(&world, 1500).await;
    let began = world.now();
    let report = world.prune().await.unwrap();
    let took = world.now().since(began).as_secs();
    // There is no pause after the last page of a segment.
    assert!(report.read_units >= 16 && took >= 8, "{report:?} {took}");
}

#[tokio::test(start_paused = true)]
async fn an_upload_whose_event_was_lost_is_found() {
    let world = World::new();
    let event = world.put("global/crash.debug", fixture("elf/crash.debug"));
    assert_eq!(
        world.prune().await.unwrap().reconciled,
        0,
        "its event may still arrive"
    );
    world.pass(HOUR).await;
    assert_eq!(world.prune().await.unwrap().reconciled, 1);
    world.settle().await;
    assert_eq!(
        world.upload_item("global/crash.debug").state,
        UploadState::Applied
    );
    let ready = || {
        world
            .entry("global", CRASH, Kind::SymCache)
            .unwrap()
            .ready()
            .cloned()
    };
    let built = ready().unwrap();
    // The event arrives late, and causes no second build.
    world.deliver(&event).await.unwrap();
    world.settle().await;
    assert_eq!(ready(), Some(built));
    world.pass(HOUR).await;
    assert_eq!(world.prune().await.unwrap().reconciled, 0);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_file_whose_removal_event_was_lost_is_in_no_response() {
    let world = uploaded().await;
    world.take_away("global/crash.debug");
    world.pass(HOUR).await;
    assert_eq!(world.prune().await.unwrap().reconciled, 1);
    world.settle().await;
    assert_eq!(
        world.upload_item("global/crash.debug").state,
        UploadState::Gone
    );
    for entry in world.entries() {
        assert!(entry.ready().is_none(), "{entry:?}");
    }
    world.check();
}

#[tokio::test(start_paused = true)]
async fn an_overwrite_whose_event_was_lost_is_found() {
    let world = uploaded().await;
    world.put("global/crash.debug", fixture("elf/checksum"));
    world.pass(HOUR).await;
    assert_eq!(world.prune().await.unwrap().reconciled, 1);
    world.settle().await;
    let ready = |id| {
        let entry = world.entry("global", id, Kind::SymCache);
        entry.is_some_and(|entry| entry.ready().is_some())
    };
    assert!(ready(CHECKSUM) && !ready(CRASH));
    world.check();
}

#[tokio::test(start_paused = true)]
async fn an_event_that_was_processed_meanwhile_wins() {
    let world = uploaded().await;
    world.take_away("global/crash.debug");
    world.pass(HOUR).await;
    assert_eq!(world.prune().await.unwrap().reconciled, 1);
    // Before its message is served, the file exists again.
    let event = world.put("global/crash.debug", fixture("elf/crash.debug"));
    world.deliver(&event).await.unwrap();
    world.settle().await;
    let item = world.upload_item("global/crash.debug");
    assert_eq!(
        (item.state, item.sequencer),
        (UploadState::Applied, event.sequencer)
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_withdrawn_if_the_bucket_seems_to_have_lost_nearly_everything() {
    let world = World::new();
    for number in 0..30 {
        let key = format!("global/{number}.txt");
        world.upload(&key, "hostile/text.txt").await;
        world.take_away(&key);
    }
    world.pass(HOUR).await;
    let report = world.prune().await.unwrap();
    assert_eq!((report.doubtful, report.reconciled), (30, 0));
}

#[tokio::test(start_paused = true)]
async fn a_byte_budget_retires_the_least_recently_used_entries() {
    let world = uploaded().await;
    world.upload("global/checksum", "elf/checksum").await;
    for _ in 0..3 {
        world.pass(DAY).await;
        world.symbolicate(&sample_crash()).await;
    }
    let used = world.entry("global", CRASH, Kind::SymCache).unwrap();
    let budget = used.ready().unwrap().blob.bytes;
    let world = world.deployed_with(|settings| settings.derived_budget_bytes = budget);
    let counted = world.prune().await.unwrap();
    assert_eq!((counted.retired, counted.over_budget), (0, 0));
    world.pass(HOUR).await;
    let report = world.prune().await.unwrap();
    assert_eq!((report.retired, report.over_budget), (3, 3));
    assert_eq!(world.entries().len(), 1);
    assert!(world.entry("global", CRASH, Kind::SymCache).is_some());
    world.pass(HOUR).await;
    assert_eq!(world.prune().await.unwrap().over_budget, 0);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_module_is_explained_without_any_effect() {
    let world = uploaded().await;
    let module = ObjectId {
        debug_id: Some(CRASH.parse().unwrap()),
        ..ObjectId::default()
    };
    let tenant = "acme".parse().unwrap();
    let before = world.records.items();
    let invocation = world.invocation(Duration::from_secs(9));
    let loads = world.records.calls().of("load");
    let explained = world
        .service()
        .explain_module(&invocation, &module, None, &tenant)
        .await
        .unwrap();
    assert_eq!(
        world.records.calls().of("load"),
        loads + 1,
        "one round of reads"
    );
    assert_eq!(world.records.items(), before);
    let states: Vec<_> = explained
        .iter()
        .map(|record| (record.scope.as_str(), record.kind, record.state))
        .collect();
    assert_eq!(
        states,
        [
            ("acme", Kind::CfiCache, EntryUse::Absent),
            ("acme", Kind::PpdbCache, EntryUse::Absent),
            ("acme", Kind::SourceCode, EntryUse::Absent),
            ("acme", Kind::SymCache, EntryUse::Absent),
            ("global", Kind::CfiCache, EntryUse::Use),
            ("global", Kind::PpdbCache, EntryUse::Absent),
            ("global", Kind::SourceCode, EntryUse::Absent),
            ("global", Kind::SymCache, EntryUse::Use),
        ]
    );
    let record = explained[7].record.as_ref().unwrap();
    assert_eq!(record.candidates[0].location.as_str(), "global/crash.debug");
    assert!(record.candidates[0].size.is_some());
    assert_eq!(record.ready.as_ref().unwrap().converter, Converter::CURRENT);
}

#[tokio::test(start_paused = true)]
async fn the_rollout_is_reported_by_the_last_complete_pass() {
    let world = uploaded().await;
    let invocation = world.invocation(Duration::from_secs(9));
    let none = world.service().rollout(&invocation).await.unwrap();
    assert_eq!((none.pass, none.at), (None, None));
    assert!(matches!(none.estimate, Estimate::Unknown { .. }));
    world.prune().await.unwrap();
    world.pass(HOUR).await;
    let invocation = world.invocation(Duration::from_secs(9));
    let told = world.service().rollout(&invocation).await.unwrap();
    assert_eq!((told.pass, told.age_seconds), (Some(1), Some(3600)));
    assert_eq!(told.kinds["symcache"].tally.current, 1);
    assert_eq!(told.estimate, Estimate::Complete);
}

/// Runs a pass on records that count the calls.
async fn metered(world: &World) -> (Report, Reads) {
    let records = Arc::new(MeteredRecords::new(world.records.clone(), Duration::ZERO));
    let pruner = Pruner {
        records: records.clone(),
        ..world.pruner()
    };
    let invocation = world.invocation(Duration::from_secs(900));
    let report = pruner.prune(&invocation, false).await.unwrap();
    assert_eq!(report.failed, 0, "{report:?}");
    (report, records.reads())
}

#[tokio::test(start_paused = true)]
async fn in_a_day_the_record_of_each_named_blob_is_read_once_and_never_strongly() {
    const BLOBS: u32 = 1200;
    let world = World::new();
    world.invocation(Duration::from_secs(1)); // sets the time of the store
    for number in 0..BLOBS {
        put_entry(&world, number, |_| {}).await;
    }
    world.pass(2 * HOUR).await;
    let (mut blobs, mut eventual) = (0, 0);
    for _ in 0..24 {
        let (report, reads) = metered(&world).await;
        assert_eq!((reads.strong, reads.queries, reads.writes), (0, 0, 0));
        assert_eq!(report.orphans, 0);
        blobs += report.blobs;
        eventual += reads.eventual;
        world.pass(HOUR).await;
    }
    // Half a read unit each.
    assert_eq!((blobs, eventual), (u64::from(BLOBS), BLOBS as usize));
}

#[tokio::test(start_paused = true)]
async fn the_pass_over_the_blobs_respects_its_rate_and_continues_in_the_next_hour() {
    const BLOBS: u32 = 2000;
    let world = World::with(|settings| settings.sweep_read_units = 1);
    world.invocation(Duration::from_secs(1)); // sets the time of the store
    for number in 0..BLOBS {
        let path = format!("derived/symcache/v1/{number}/symcache/1");
        world.caches.overwrite(&path, "orphan");
    }
    world.pass(2 * HOUR).await;
    let mut runs = 0;
    while !world.caches.paths().is_empty() {
        let began = world.now();
        let report = world.prune().await.unwrap();
        let took = world.now().since(began).as_secs();
        // A page of a hundred orphans, which are read twice, exceeds the rate.
        assert!(report.read_units <= took + 160, "{report:?} in {took} s");
        world.pass(HOUR).await;
        runs += 1;
    }
    assert!((3..6).contains(&runs), "{runs} runs");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_cannot_be_read_does_not_affect_others() {
    let world = World::new();
    for number in 0..3 {
        let key = format!("global/{number}.txt");
        world.upload(&key, "hostile/text.txt").await;
        world.take_away(&key);
    }
    world.pass(HOUR).await;
    let second = world.faults.calls(Operation::StatDif) + 2;
    world
        .faults
        .fail(Operation::StatDif, second, How::Throttled);
    let report = world.prune_despite_failures().await.unwrap();
    assert_eq!((report.reconciled, report.failed), (2, 1));
    assert!(report.complete && report.rollout.is_some());
}

#[tokio::test(start_paused = true)]
async fn twenty_thousand_entries_are_rebuilt_in_a_few_passes_if_the_queue_drains() {
    const ENTRIES: u32 = 20_000;
    let world = World::new();
    world.invocation(Duration::from_secs(1)); // sets the time of the store
    for number in 0..ENTRIES {
        let is_behind = |entry: &mut serde_json::Value| {
            entry["ready"]["converter"] = 0.into();
            entry["last_used_at"] = (world.now().as_secs() - u64::from(number)).into();
        };
        put_entry(&world, number, is_behind).await;
    }
    let mut asked = Vec::new();
    for pass in 1.. {
        assert!(pass <= 6, "asked for {asked:?}");
        let report = world.prune().await.unwrap();
        let rollout = report.rollout.as_ref().unwrap();
        for item in sweep_items(&world) {
            assert!(item < 400 << 10, "{item} bytes");
        }
        if behind(&report) == 0 {
            assert_eq!(rollout.estimate, Estimate::Complete);
            break;
        }
        asked.push(report.requested);
        if pass == 2 {
            // The most recently used one first.
            let first = module(0).entry(Kind::SymCache);
            assert_eq!(entry_at(&world, &first)["ask"]["lane"], "refresh");
        }
        if pass == 3 {
            let Estimate::At { expected_at } = rollout.estimate else {
                panic!("{rollout:?}")
            };
            let left = expected_at.since(world.now());
            assert!((HOUR..3 * HOUR).contains(&left), "{left:?}");
        }
        make_again(&world, Duration::from_secs(200)).await;
        world.pass(HOUR).await;
    }
    assert_eq!(asked.iter().sum::<u64>(), u64::from(ENTRIES));
}

/// Serves everything in the queues, as slowly as a busy queue.
async fn make_again(world: &World, busy: Duration) {
    let made_at = world.now().plus(busy).as_secs();
    for sent in world.queues.drain() {
        for kind in &sent.message.kinds {
            let key = sent.message.module.entry(*kind);
            let stored = world.records.peek(&key).unwrap();
            let mut entry = entry_at(world, &key);
            entry["ready"]["converter"] = json!(Converter::CURRENT);
            entry["ready"]["derived_at"] = made_at.into();
            entry.as_object_mut().unwrap().remove("ask");
            let next = Stored {
                revision: Revision::from_random(1),
                item: serde_json::from_value(entry).unwrap(),
            };
            let replaced = world.records.replace(&key, Some(&stored.revision), &next);
            assert_eq!(replaced.await.unwrap(), Replaced::Done);
        }
    }
}

/// Returns the sizes of the items of the pruner itself, in bytes.
fn sweep_items(world: &World) -> Vec<usize> {
    let own = ItemKey::sweep(SweepItem::Cursor).partition;
    let items = world.records.items().into_iter();
    items
        .filter(|(key, _)| key.partition == own)
        .map(|(_, stored)| serde_json::to_vec(&stored.item).unwrap().len())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_shorter_list_of_entries_leaves_no_items_of_the_longer_one() {
    let world = World::new();
    world.invocation(Duration::from_secs(1)); // sets the time of the store
    for number in 0..2000 {
        put_entry(&world, number, |entry| {
            entry["ready"]["converter"] = 0.into();
        })
        .await;
    }
    world.prune().await.unwrap();
    let lists = || {
        let items = world.records.items().into_iter();
        let sorts = items.map(|(key, _)| key.sort);
        let mut lists: Vec<String> = sorts.filter(|sort| sort.starts_with("manifest")).collect();
        lists.sort();
        lists
    };
    assert_eq!(lists(), ["manifest", "manifest#01"]);
    world.pass(8 * DAY).await;
    assert_eq!(world.prune().await.unwrap().retired, 2000);
    assert_eq!(lists(), ["manifest"]);
}

#[tokio::test(start_paused = true)]
async fn a_build_request_that_cannot_be_written_is_repeated_in_the_next_pass() {
    let world = World::new();
    world.invocation(Duration::from_secs(1)); // sets the time of the store
    for number in 0..30 {
        put_entry(&world, number, |entry| {
            entry["ready"]["converter"] = 0.into();
        })
        .await;
    }
    world.prune().await.unwrap();
    world.pass(HOUR).await;
    let fifth = world.faults.calls(Operation::Load) + 10;
    world.faults.fail(Operation::Load, fifth, How::Throttled);
    let report = world.prune_despite_failures().await.unwrap();
    assert_eq!((report.requested, report.failed), (29, 1), "{report:?}");
    assert!(report.rollout.is_some());
    // 29 messages in three calls.
    assert_eq!(world.queues.sent().len(), 29);
    assert_eq!(world.queues.calls().of("send"), 3);
    make_again(&world, Duration::from_secs(10)).await;
    world.pass(HOUR).await;
    assert_eq!(world.prune().await.unwrap().requested, 1);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_stays_pending_is_requeued_with_growing_delays() {
    let world = World::new();
    let key = ItemKey::upload(&Location::new("global/bad.zip"));
    let upload = |reconciled: u32| {
        json!({
            "type": "upload", "key": "global/bad.zip", "etag": "1", "sequencer": "1", "size": 1,
            "state": "pending", "at": world.now(), "reconciled": reconciled,
        })
    };
    put(&world, &key, upload(0)).await;
    let mut asked_at = Vec::new();
    for hour in 1..=120 {
        world.pass(HOUR).await;
        if world.prune().await.unwrap().reconciled > 0 {
            asked_at.push(hour);
            // The upload is checked, without effect.
            let stored = world.records.peek(&key).unwrap();
            let next = Stored {
                revision: Revision::from_random(hour),
                item: serde_json::from_value(upload(u32::try_from(asked_at.len()).unwrap()))
                    .unwrap(),
            };
            let replaced = world.records.replace(&key, Some(&stored.revision), &next);
            assert_eq!(replaced.await.unwrap(), Replaced::Done);
        }
    }
    assert_eq!(asked_at, [1, 3, 7, 15, 31, 55, 79, 103]);
}

#[tokio::test(start_paused = true)]
async fn uploads_that_name_five_thousand_versions_do_not_stop_the_pass() {
    let world = World::new();
    for major in 3..5003 {
        let module = module(u32::from(major));
        let entry = json!({
            "type": "entry", "kind": format!("mssymcache{major}"), "last_used_at": world.now(),
            "module": module,
        });
        put(&world, &module.entry(Kind::MsSymCache(major)), entry).await;
    }
    let report = world.prune().await.unwrap();
    assert!(report.complete);
    let largest = sweep_items(&world).into_iter().max().unwrap();
    assert!(largest < 4 << 10, "{largest} bytes");
}

fn is_there(world: &World, key: &ItemKey) -> bool {
    world.records.peek(key).is_some()
}

fn generation(world: &World) -> Option<Item> {
    let key = ItemKey::generation(&Scope::Global);
    world.records.peek(&key).map(|stored| stored.item)
}

/// Writes an alias from a code id to a module. Returns its key.
async fn put_alias(world: &World, number: u32, target: &ModuleKey) -> ItemKey {
    let id = ModuleId::of(None, Some(&CodeId::new(format!("{:08x}", number + 1)))).unwrap();
    let key = ModuleKey::uploads(Scope::Global, &id).alias();
    put(world, &key, json!({"type": "alias", "target": target})).await;
    key
}

/// Readers conclude from a missing presence item that no upload serves a module.
#[tokio::test(start_paused = true)]
async fn a_table_without_presence_items_gets_them_before_new_generations() {
    const MODULES: u32 = 300;
    let world = World::new();
    let tenant = ModuleKey {
        scope: "acme".parse().unwrap(),
        ..module(1)
    };
    for number in 0..MODULES {
        for file in ["a", "b", "c"] {
            let location = format!("global/{number}/{file}");
            put_dif(&world, &module(number), &location).await;
        }
    }
    put_dif(&world, &tenant, "acme/1/a").await;
    let said = world.prune_dry().await.unwrap();
    assert_eq!(said.presences_noted, u64::from(MODULES) + 1);
    assert_eq!(generation(&world), None);
    let (report, reads) = metered(&world).await;
    assert_eq!(report.presences_noted, u64::from(MODULES) + 1);
    for number in 0..MODULES {
        assert!(is_there(&world, &module(number).presence()));
    }
    assert!(is_there(&world, &tenant.presence()));
    // One write per module, one per scope and page, and one per scope.
    let generations = reads.writes - (MODULES as usize + 1);
    assert!((4..=19).contains(&generations), "{generations}");
    assert!(is_there(&world, &ItemKey::generation(&tenant.scope)));
    let written = generation(&world);
    assert!(written.is_some());
    // No work is left: the only reads are those where a page ends within a partition.
    let (report, reads) = metered(&world).await;
    assert_eq!(report.presences_noted, 0);
    assert!(reads.eventual <= 20, "{reads:?}");
    assert_eq!((reads.strong, reads.queries, reads.writes), (0, 0, 0));
    assert_eq!(generation(&world), written);
}

/// If a generation cannot be written, the next run writes it.
#[tokio::test(start_paused = true)]
async fn a_generation_that_could_not_be_written_is_written_by_the_next_run() {
    let world = World::new();
    put_dif(&world, &module(1), "global/1/a").await;
    // The first write is the presence. The generation is written with its page and at the end.
    let writes = world.faults.calls(Operation::Replace);
    for nth in [writes + 2, writes + 3] {
        world.faults.fail(Operation::Replace, nth, How::Throttled);
    }
    let report = world.prune_despite_failures().await.unwrap();
    assert_eq!((report.presences_noted, report.failed), (1, 2));
    assert_eq!(generation(&world), None);
    assert_eq!(world.prune().await.unwrap().presences_noted, 0);
    assert!(generation(&world).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_presence_item_of_a_module_without_files_is_removed() {
    let world = uploaded().await;
    let (kept, gone) = (world.module("global", CRASH).presence(), module(1));
    assert!(is_there(&world, &kept));
    let presence = json!({"type": "presence", "module": gone, "change": "1"});
    put(&world, &gone.presence(), presence).await;
    assert_eq!(world.prune_dry().await.unwrap().presences_forgotten, 1);
    assert!(is_there(&world, &gone.presence()));
    assert_eq!(world.prune().await.unwrap().presences_forgotten, 1);
    assert!(is_there(&world, &kept) && !is_there(&world, &gone.presence()));
}

#[tokio::test(start_paused = true)]
async fn only_an_alias_whose_target_has_no_files_is_removed() {
    let world = World::new();
    let (kept, gone) = (module(1), module(2));
    // As an older release left it: its target has a file, but no presence item.
    put_dif(&world, &kept, "global/1/a").await;
    let mut aliases = BTreeMap::new();
    for number in 0..40 {
        let target = if number % 2 == 0 { &kept } else { &gone };
        aliases.insert(number, put_alias(&world, number, target).await);
    }
    assert_eq!(world.prune_dry().await.unwrap().aliases_removed, 20);
    let mut removed = 0;
    for _ in 0..24 {
        let (report, reads) = metered(&world).await;
        removed += report.aliases_removed;
        // A pass repairs a few of them.
        assert!(reads.eventual <= 10, "{reads:?}");
        world.pass(HOUR).await;
    }
    assert_eq!(removed, 20);
    for (number, alias) in &aliases {
        assert_eq!(is_there(&world, alias), number % 2 == 0, "{number}");
    }
}

/// A builder does not write an alias that already exists with the same contents.
#[tokio::test(start_paused = true)]
async fn an_alias_whose_target_gets_a_file_meanwhile_stays() {
    let world = World::new();
    let target = module(1);
    let alias = put_alias(&world, 1, &target).await;
    let (inner, file) = (world.clone(), target.clone());
    let next = world.faults.calls(Operation::Remove) + 1;
    world
        .faults
        .interrupt(Operation::Remove, next, move || async move {
            put_dif(&inner, &file, "global/1/a").await;
            let presence = json!({"type": "presence", "module": file, "change": "1"});
            put(&inner, &file.presence(), presence).await;
        });
    for _ in 0..24 {
        assert_eq!(world.prune().await.unwrap().aliases_removed, 0);
        world.pass(HOUR).await;
    }
    assert!(is_there(&world, &alias));
    assert!(world.faults.calls(Operation::Remove) >= next);
}
