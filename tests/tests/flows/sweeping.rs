//! The sweep: what it goes on with, what it has made anew, which lost events it makes up for, and what it tells.

use std::time::Duration;

use symdepot::cache::{Converter, Estimate, Item, Kind, Lane, Revision, Stored, UploadState};
use symdepot::domain::{ObjectId, Scope};
use symdepot::flows::prune::Report;
use symdepot::ports::{RecordStore, Replaced};
use symdepot_tests::harness::{World, fixture, sample_crash};

use crate::{CHECKSUM, CRASH};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

async fn uploaded() -> World {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world
}

/// Makes every entry one that an older converter made.
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
async fn what_is_behind_is_made_anew_by_the_refresh_lane() {
    let world = uploaded().await;
    fall_behind(&world).await;
    let first = world.prune().await.unwrap();
    assert_eq!((behind(&first), first.asked), (2, 0));
    world.pass(HOUR).await;
    let second = world.prune().await.unwrap();
    assert_eq!((behind(&second), second.asked), (2, 2));
    // One message for both kinds: the DIF is fetched once.
    let sent = world.lanes.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(
        (sent[0].message.lane, sent[0].message.kinds.len()),
        (Lane::Refresh, 2)
    );
    world.settle().await;
    for kind in [Kind::CfiCache, Kind::SymCache] {
        let entry = world.entry("global", CRASH, kind).unwrap();
        assert_eq!(entry.ready().unwrap().converter, Converter::CURRENT);
    }
    world.pass(HOUR).await;
    let third = world.prune().await.unwrap();
    let rollout = third.rollout.unwrap();
    assert_eq!((rollout.lane.answered, rollout.lane.standing), (2, 0));
    assert_eq!(rollout.estimate, Estimate::Complete);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn an_ask_that_stands_is_not_made_again() {
    let world = uploaded().await;
    fall_behind(&world).await;
    world.prune().await.unwrap();
    world.pass(HOUR).await;
    assert_eq!(world.prune().await.unwrap().asked, 2);
    world.pass(HOUR).await;
    let again = world.prune().await.unwrap();
    assert_eq!((again.asked, behind(&again)), (0, 2));
    let rollout = again.rollout.unwrap();
    assert_eq!(rollout.kinds["symcache"].tally.in_lane, 1);
    assert!(matches!(rollout.estimate, Estimate::Unknown { .. }));
    assert_eq!(world.lanes.sent().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_stops_early_goes_on_in_the_next() {
    let world = World::new();
    let invocation = world.invocation(Duration::from_secs(29));
    // So many that each segment has more than a page of them.
    for id in 0..1500 {
        world
            .symbolicator()
            .keep_request(&invocation, &id.to_string(), &Scope::Global, b"{}")
            .await
            .unwrap();
    }
    let mut met = 0;
    for run in 0..10 {
        let report = world.prune_within(Duration::from_secs(4)).await.unwrap();
        met += report.items["request"];
        assert!(
            !report.complete,
            "the uploads and the blobs were not looked at"
        );
        assert_eq!(report.pass, 1);
        if report.rollout.is_some() {
            assert!(run > 0);
            assert_eq!(met, 1500);
            let whole = world.prune().await.unwrap();
            assert_eq!((whole.pass, whole.complete), (2, true));
            return;
        }
    }
    panic!("the pass never came to its end: {met} items were met");
}

#[tokio::test(start_paused = true)]
async fn the_walk_keeps_to_its_rate() {
    let world = World::with(|settings| settings.sweep_read_units = 1);
    let invocation = world.invocation(Duration::from_secs(29));
    for id in 0..1500 {
        world
            .symbolicator()
            .keep_request(&invocation, &id.to_string(), &Scope::Global, b"{}")
            .await
            .unwrap();
    }
    let began = world.now();
    let report = world.prune().await.unwrap();
    let took = world.now().since(began).as_secs();
    // The last page of each segment is followed by no wait.
    assert!(report.read_units >= 16 && took >= 8, "{report:?} {took}");
}

#[tokio::test(start_paused = true)]
async fn an_upload_whose_event_was_lost_is_found() {
    let world = World::new();
    let event = world.put("global/crash.debug", fixture("elf/crash.debug"));
    assert_eq!(
        world.prune().await.unwrap().reconciled,
        0,
        "its event may be on its way"
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
    // The event comes at last: it costs no second derivation.
    world.deliver(&event).await.unwrap();
    world.settle().await;
    assert_eq!(ready(), Some(built));
    world.pass(HOUR).await;
    assert_eq!(world.prune().await.unwrap().reconciled, 0);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_removal_whose_event_was_lost_is_out_of_every_answer() {
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
async fn an_overwriting_whose_event_was_lost_is_found() {
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
    // Before its message is served, the file is there again.
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
async fn a_bucket_that_lost_nearly_everything_is_doubted() {
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
async fn a_byte_budget_retires_what_was_used_least_recently() {
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
        .symbolicator()
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
            ("acme", Kind::CfiCache, "build"),
            ("acme", Kind::PpdbCache, "build"),
            ("acme", Kind::SymCache, "build"),
            ("global", Kind::CfiCache, "use"),
            ("global", Kind::PpdbCache, "build"),
            ("global", Kind::SymCache, "use"),
        ]
    );
    let record = explained[5].record.as_ref().unwrap();
    assert_eq!(record.candidates[0].location.as_str(), "global/crash.debug");
    assert!(record.candidates[0].size.is_some());
    assert_eq!(record.ready.as_ref().unwrap().converter, Converter::CURRENT);
}

#[tokio::test(start_paused = true)]
async fn the_rollout_is_told_by_the_last_whole_pass() {
    let world = uploaded().await;
    let invocation = world.invocation(Duration::from_secs(9));
    let none = world.symbolicator().rollout(&invocation).await.unwrap();
    assert_eq!((none.pass, none.at), (None, None));
    assert!(matches!(none.estimate, Estimate::Unknown { .. }));
    world.prune().await.unwrap();
    world.pass(HOUR).await;
    let invocation = world.invocation(Duration::from_secs(9));
    let told = world.symbolicator().rollout(&invocation).await.unwrap();
    assert_eq!((told.pass, told.age_seconds), (Some(1), Some(3600)));
    assert_eq!(told.kinds["symcache"].tally.current, 1);
    assert_eq!(told.estimate, Estimate::Complete);
}
