//! Faults that a review of the protocol found around messages, servers and waiting. Each test names
//! its finding.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Value, json};
use symdepot::adapters::faulty::{How, Operation};
use symdepot::api::symbolicator::{ModuleStatus, parse_request};
use symdepot::cache::{
    Change, Converter, Item, ItemKey, Kind, Queue, Revision, SourceHealth, Stored, Token,
};
use symdepot::domain::{Cause, HttpSource, Location, Scope};
use symdepot::flows::symbolicate::SymbolicateOutcome;
use symdepot::flows::{RecordWriter, Updated};
use symdepot::ports::{QueueMessage, RecordStore, Replaced};
use symdepot_tests::harness::{Crash, World, fixture, function_names, in_module, sample_crash};

use super::{
    FRAMES, HOUR, before_next, entry, made_from, request_build_of, requested_build, rewrite,
};
use crate::requests::cold;
use crate::{CRASH, CRASH_PE, servers};

/// A crash with a frame in each of many modules without a file.
fn crash_in(modules: u64) -> Crash {
    let image = |at: u64| format!("{:#x}", 0x1_0000_0000 * (at + 1));
    let module = |at: u64| {
        json!({
            "type": "elf", "debug_id": format!("decade00-0000-4000-8000-{at:012x}"),
            "debug_file": format!("module-{at}"), "image_addr": image(at), "image_size": 4096,
        })
    };
    let frame =
        |at: u64| json!({"instruction_addr": format!("{:#x}", 0x1_0000_0000 * (at + 1) + 8)});
    let body = json!({
        "modules": (0..modules).map(module).collect::<Vec<Value>>(),
        "stacktraces": [{"frames": (0..modules).map(frame).collect::<Vec<Value>>()}],
    });
    parse_request(body.to_string().as_bytes()).unwrap()
}

fn source(id: &str) -> HttpSource {
    let definition = json!({"type": "http", "id": id, "url": format!("http://{id}.test/")});
    serde_json::from_value(definition).unwrap()
}

/// A message whose build request is no longer pending does nothing, even if it would have been
/// delayed.
#[tokio::test(start_paused = true)]
async fn a_message_ends_with_its_build_request() {
    let world = cold().await;
    let message = requested_build(&world).await;
    let stale = QueueMessage {
        build_request: Token::from_random(7),
        ..message.clone()
    };
    let newer = QueueMessage {
        min_converter: Converter(Converter::CURRENT.0 + 1),
        ..stale.clone()
    };
    let derived = world.derivations.derived();
    for dead in [stale, newer] {
        world.serve(&dead).await.unwrap();
    }
    assert_eq!(world.queues.sent(), []);
    assert_eq!(world.derivations.derived(), derived);
    world.serve(&message).await.unwrap();
    assert_eq!(made_from(&world), "global/crash.debug");
    // The build request is settled, so the same message does nothing more.
    world.serve(&message).await.unwrap();
    assert_eq!(
        (
            world.queues.sent(),
            entry(&world, Kind::SymCache).attempts()
        ),
        (Vec::new(), 0)
    );
}

/// A chain of messages ends.
#[tokio::test(start_paused = true)]
async fn a_message_that_cannot_be_served_is_resent_with_growing_delays_and_a_limit() {
    let world = cold().await;
    let mut message = QueueMessage {
        queue: Queue::Refresh,
        min_converter: Converter(Converter::CURRENT.0 + 1),
        ..request_build_of(&world, world.module("global", CRASH), Queue::Refresh).await
    };
    let mut delays = Vec::new();
    for _ in 0..100 {
        world.serve(&message).await.unwrap();
        let Some(sent) = world.queues.drain().pop() else {
            break;
        };
        delays.push(sent.delay.as_secs());
        message = sent.message;
    }
    assert!(delays[..3].iter().all(|delay| *delay <= 1), "{delays:?}");
    assert!((30..=90).contains(delays.last().unwrap()), "{delays:?}");
    let minutes = delays.iter().sum::<u64>() / 60;
    assert!((20..=40).contains(&minutes), "{minutes} minutes");
    assert_eq!(delays.len(), 40);
}

/// The request of an older reader does not make a newer builder repeat a finished build.
#[tokio::test(start_paused = true)]
async fn an_outdated_reader_does_not_cause_endless_builds() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let module = world.module("global", CRASH);
    let message = QueueMessage {
        min_converter: Converter(Converter::CURRENT.0 - 1),
        ..request_build_of(&world, module, Queue::Eager).await
    };
    let derived = world.derivations.derived();
    world.serve(&message).await.unwrap();
    assert_eq!(world.derivations.derived(), derived);
    // The build request stays pending, so the reader waits instead of repeating it.
    assert!(
        entry(&world, Kind::SymCache)
            .live_request(world.now())
            .is_some()
    );
}

/// If a file has changed, the next best one is used.
#[tokio::test(start_paused = true)]
async fn a_file_that_changed_without_an_event_is_replaced_by_the_next_best() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.upload("global/z.debug", "elf/crash.zlib.debug").await;
    world.pass(Duration::from_secs(8 * 24 * 3600)).await;
    world.prune().await.unwrap();
    assert_eq!(world.entries(), []);
    // No event reports this change.
    world.uploads.put(
        &Location::new("global/crash.debug"),
        fixture("elf/checksum"),
    );
    let answer = world.symbolicate(&sample_crash()).await;
    assert_eq!(function_names(&answer).len(), FRAMES);
    assert_eq!(made_from(&world), "global/z.debug");
    assert_eq!(entry(&world, Kind::SymCache).build_request(), None);
}

/// A throttled table does not fail a request that waits.
#[tokio::test(start_paused = true)]
async fn a_table_that_is_throttled_briefly_leaves_a_waiting_request_pending() {
    let world = cold().await;
    let answer = async {
        let wait = Duration::from_secs(5);
        world.answer(&sample_crash(), &Scope::Global, wait).await
    };
    let overload = async {
        world.wait(Duration::from_millis(50)).await;
        world.faults.fail_always(Operation::Load, How::Throttled);
    };
    let (answer, ()) = tokio::join!(answer, overload);
    assert!(
        matches!(answer, Ok(SymbolicateOutcome::Pending)),
        "{answer:?}"
    );
}

/// Forty modules that a server does not have: four messages, one permit each, and three writes per
/// module.
#[tokio::test(start_paused = true)]
async fn many_modules_of_a_server_cost_few_messages_and_few_writes() {
    const MODULES: u64 = 40;
    let world = World::with(|settings| settings.sources = vec![source("company").into()]);
    let answer = world.symbolicate(&crash_in(MODULES)).await;
    let mut modules = answer.modules.iter();
    assert!(modules.all(|module| module.debug_status == ModuleStatus::Missing));
    let calls = world.records.calls();
    // One call sends four messages.
    assert_eq!(world.queues.calls().of("send"), 1);
    let permits = 4;
    assert_eq!(calls.of("replace"), 3 * MODULES + 2 * permits, "{calls}");
    assert!(calls.of("load") + calls.of("query") <= 40, "{calls}");
    assert!(
        world
            .entries()
            .iter()
            .all(|entry| entry.lease().is_none() && entry.build_request().is_none())
    );
    // Modules that are known to be missing are not requested again.
    world
        .another_instance()
        .symbolicate(&crash_in(MODULES))
        .await;
    assert_eq!(world.queues.calls().of("send"), 1);
}

/// Bad input: a request with the maximum number of unknown modules makes a bounded number of build
/// requests.
#[tokio::test(start_paused = true)]
async fn a_request_with_thousands_of_unknown_modules_requests_256_builds_at_a_time() {
    let world = World::with(|settings| settings.sources = vec![source("company").into()]);
    let crash = crash_in(3000);
    world.leave_pending(&crash).await;
    assert_eq!(world.entries().len(), 256);
    assert_eq!(world.queues.sent().len(), 26);
    // A client that polls requests the next ones.
    world.settle().await;
    let again = world.answer(&crash, &Scope::Global, Duration::ZERO).await;
    assert!(
        matches!(again, Ok(SymbolicateOutcome::Pending)),
        "{again:?}"
    );
    assert_eq!(world.entries().len(), 512);
}

/// Takes the leases of all entries, as another builder.
async fn lease_all(world: &World) {
    let invocation = world.invocation(Duration::from_secs(60));
    let writer = RecordWriter {
        records: &*world.records,
        policy: &world.settings.policy,
        invocation: &invocation,
    };
    for entry in world.entries() {
        let lease = Change::TakeLease {
            holder: "another builder".to_owned(),
            token: invocation.token(),
            deadline: invocation.deadline(),
        };
        let taken = writer.apply(entry.module(), entry.kind(), &lease).await;
        assert!(matches!(taken, Ok(Updated::Done(_))), "{taken:?}");
    }
}

/// A builder gets the permit for the trial call, and before it calls the server, another builder
/// takes the leases of all modules.
#[tokio::test(start_paused = true)]
async fn a_permit_without_a_call_leaves_the_circuit_half_open() {
    let world = World::with(|settings| settings.sources = vec![source("company").into()]);
    let company = source("company").configured_key();
    let key = ItemKey::health(&company);
    let (failures, until) = (SourceHealth::FAILURES_TO_OPEN, world.now());
    let half_open = SourceHealth {
        failures,
        open_until: Some(until),
        ..SourceHealth::new(company, world.now())
    };
    let stored = Stored {
        revision: Revision::from_random(1),
        item: Item::Health(half_open),
    };
    let put = world.records.replace(&key, None, &stored).await;
    assert_eq!(put.unwrap(), Replaced::Done);
    let crash = crash_in(2);
    world.leave_pending(&crash).await;
    let message = world.queues.drain().remove(0).message;
    // The first write of the builder takes the permit.
    before_next(&world, Operation::Replace, 0, |world| async move {
        lease_all(&world).await;
    });
    world.serve(&message).await.unwrap();
    assert_eq!(world.servers.take_asked(), []);
    let stored = world.records.peek(&key).unwrap();
    assert_ne!(stored.revision, Revision::from_random(1));
    let Item::Health(health) = &stored.item else {
        panic!("{stored:?}");
    };
    assert_eq!(
        (health.failures, health.open_until, health.permits.len()),
        (failures, Some(until), 0)
    );
}

/// A server that has some of the modules: these are built, and delay none of the others.
#[tokio::test(start_paused = true)]
async fn modules_that_a_server_has_are_built_and_the_others_are_missing() {
    let world = World::with(|settings| settings.sources = vec![source("company").into()]);
    let id = "DECADE00000040008000000000000003";
    let file = format!("MODULE Linux x86_64 {id}0 module-3\nFUNC 0 10 0 third\n");
    let at = format!("http://company.test/module-3/{id}0/module-3.sym");
    world.servers.put(&Location::new(at), file);
    let answer = world.symbolicate(&crash_in(20)).await;
    let found = |status| {
        let modules = answer.modules.iter();
        modules
            .filter(|module| module.debug_status == status)
            .count()
    };
    assert_eq!(
        (found(ModuleStatus::Found), found(ModuleStatus::Missing)),
        (1, 19)
    );
    assert!(function_names(&answer).contains(&"third".to_owned()));
    let causes = world.entries();
    let mut causes = causes.iter().filter_map(|entry| entry.missing());
    assert!(causes.all(|placeholder| placeholder.missing.cause == Cause::NotFound));
}

/// A server that sends 4 KiB a minute, or nothing at all, is too slow: a `timeout` of the source.
/// The file is searched again soon.
#[tokio::test(start_paused = true)]
async fn a_server_that_is_too_slow_is_a_timeout_and_retried_soon() {
    for pause in [Duration::from_secs(60), HOUR] {
        let world = servers::world();
        let (at, file) = (servers::at(servers::DEBUG), fixture("elf/crash.debug"));
        world.servers.put(&at, file);
        world.servers.slow_down(&at, pause);
        let crash = sample_crash();
        world.leave_pending(&crash).await;
        let began = world.now();
        world.settle().await;
        // 30 seconds a round: one for names, and one if unwind information is requested, too.
        let took = world.now().since(began).as_secs();
        assert!((30..=90).contains(&took), "{took} s");
        let entry = servers::entry(&world, Kind::SymCache);
        let placeholder = entry.missing().unwrap();
        assert_eq!(placeholder.missing.cause, Cause::Timeout);
        assert!(
            placeholder.missing.detail.contains("too slow"),
            "{:?}",
            placeholder.missing
        );
        assert!(placeholder.retry_at.since(world.now()) <= Duration::from_secs(70));

        world.servers.slow_down(&at, Duration::ZERO);
        world.pass(Duration::from_secs(120)).await;
        let answer = world.another_instance().symbolicate(&sample_crash()).await;
        assert!(servers::is_symbolicated(&answer), "after {pause:?}");
    }
}

/// The intervals between polls grow: at most 35 polls in 25 s.
#[tokio::test(start_paused = true)]
async fn two_hundred_requests_waiting_for_one_module_poll_rarely_and_stay_pending() {
    const WAITERS: usize = 200;
    let world = cold().await;
    let before = world.records.calls().of("load");
    let waiting = (0..WAITERS).map(|_| async {
        let instance = world.another_instance();
        let wait = Duration::from_secs(25);
        instance.answer(&sample_crash(), &Scope::Global, wait).await
    });
    let answers = futures::future::join_all(waiting).await;
    let pending =
        |answer: &Result<SymbolicateOutcome, _>| matches!(answer, Ok(SymbolicateOutcome::Pending));
    assert!(answers.iter().all(pending), "{answers:?}");
    let looks = (world.records.calls().of("load") - before) / WAITERS as u64;
    assert!(looks <= 35, "{looks} looks each");
    assert_eq!(world.queues.calls().of("send"), 1);
}

/// A build does not change kinds whose lease it does not hold.
#[tokio::test(start_paused = true)]
async fn a_suspect_blob_of_another_kind_is_left_to_its_own_build() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.settle().await;
    let ready = entry(&world, Kind::SymCache).ready().cloned().unwrap();
    world.caches.lose(&ready.blob.path);
    rewrite(&world, CRASH, |entry| {
        entry["suspect"] = json!({"blob": ready.blob.path, "at": world.now()});
    })
    .await;
    let module = world.module("global", CRASH);
    let invocation = world.invocation(Duration::from_secs(29));
    let writer = RecordWriter {
        records: &*world.records,
        policy: &world.settings.policy,
        invocation: &invocation,
    };
    let (id, queue) = (invocation.token(), Queue::Eager);
    let build_request = Change::RequestBuild {
        id: id.clone(),
        queue,
    };
    writer
        .apply(&module, Kind::CfiCache, &build_request)
        .await
        .unwrap();
    let message = QueueMessage::new(queue, module, vec![Kind::CfiCache], id, Converter::CURRENT);
    world.serve(&message).await.unwrap();
    assert_eq!(entry(&world, Kind::CfiCache).build_request(), None);
    let left = entry(&world, Kind::SymCache);
    assert_eq!((left.ready(), left.build_request()), (Some(&ready), None));
    assert!(left.suspect().is_some());
}

/// Names that a server resolves to the same files share their entries.
#[tokio::test(start_paused = true)]
async fn names_in_capitals_share_the_entries_of_a_server_with_lowercase_paths() {
    let layout = r#", "layout": {"type": "symstore", "casing": "lowercase"}, "filters": {"filetypes": ["pdb"]}"#;
    let world =
        World::with(|settings| settings.sources = vec![servers::source("company", layout).into()]);
    let mut asked = Vec::new();
    for (name, code_id) in [
        ("crash.pdb", None),
        ("CRASH.PDB", None),
        ("Crash.pdb", Some("5AB380779000")),
    ] {
        let module = json!({
            "type": "pe", "debug_id": CRASH_PE, "debug_file": name, "code_id": code_id,
            "image_size": 4096,
        });
        let crash = in_module(module, &[0x10]);
        world.another_instance().symbolicate(&crash).await;
        asked.push(world.servers.take_asked().len());
    }
    let mut entries = world.entries();
    entries.retain(|entry| entry.kind() == Kind::SymCache);
    assert_eq!(entries.len(), 1, "{entries:#?}");
    assert_eq!((asked[0] > 0, &asked[1..]), (true, &[0, 0][..]));
}

/// If the wall clock is set an hour forwards or back between invocations, nothing is lost, and
/// nothing outdated is served.
#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_between_invocations_loses_nothing() {
    for seconds in [3600, -3600] {
        let world = World::new();
        let answer = world.symbolicate(&sample_crash()).await;
        assert_eq!(answer.modules[0].debug_status, ModuleStatus::Missing);
        world.set_clock(seconds);
        // An upload is effective within two seconds.
        world.upload("global/crash.debug", "elf/crash.debug").await;
        world.settle().await;
        world.pass(Duration::from_secs(2)).await;
        let answer = world.symbolicate(&sample_crash()).await;
        assert_eq!(function_names(&answer).len(), FRAMES, "{seconds} s");
        world.set_clock(-seconds);
        let answer = world.symbolicate(&sample_crash()).await;
        assert_eq!(function_names(&answer).len(), FRAMES, "{seconds} s");

        // A removed file is in no response after a minute.
        world.set_clock(seconds);
        world.remove("global/crash.debug").await;
        world.settle().await;
        world.set_clock(-seconds);
        world.pass(Duration::from_secs(60)).await;
        let answer = world.symbolicate(&sample_crash()).await;
        assert_eq!(answer.modules[0].debug_status, ModuleStatus::Missing);

        // A build that was requested before, and whose holder was killed, is finished eventually.
        world.upload("global/crash.debug", "elf/crash.debug").await;
        world.pass(Duration::from_secs(8 * 24 * 3600)).await;
        world.prune().await.unwrap();
        let message = requested_build(&world).await;
        world.faults.fail_always(Operation::Replace, How::Before);
        assert!(world.serve(&message).await.is_err());
        world.faults.heal();
        world.set_clock(seconds);
        world.serve(&message).await.unwrap();
        world.settle().await;
        let answer = world.another_instance().symbolicate(&sample_crash()).await;
        assert_eq!(function_names(&answer).len(), FRAMES, "{seconds} s");
        world.check();
    }
}

/// Bad input: requests that invent a scope each cost one read, and leave nothing behind.
#[tokio::test(start_paused = true)]
async fn a_thousand_scopes_cost_one_read_each_and_leave_nothing() {
    const SCOPES: u64 = 1000;
    let world = World::new();
    let crash = crash_in(200);
    let before = world.calls();
    for at in 0..SCOPES {
        let scope: Scope = format!("made-up-{at}").parse().unwrap();
        let answer = world.answer(&crash, &scope, Duration::ZERO).await;
        assert!(
            matches!(answer, Ok(SymbolicateOutcome::Completed(..))),
            "{answer:?}"
        );
    }
    let calls = world.records.calls();
    assert!(
        world.calls() - before <= SCOPES,
        "{} calls: {calls}",
        world.calls() - before
    );
    assert_eq!(
        (calls.of("replace"), world.queues.sent().len()),
        (0, 0),
        "{calls}"
    );
}

/// Bad input: a request with 32 sources causes one call per ten modules, and at most 256 build
/// requests.
#[tokio::test(start_paused = true)]
async fn a_request_with_32_sources_requests_256_builds_at_a_time() {
    const SOURCES: usize = 32;
    let world = World::with(|settings| {
        let ids = (0..SOURCES).map(|at| source(&format!("server-{at}")).into());
        settings.sources = ids.collect();
    });
    let crash = crash_in(20);
    world.leave_pending(&crash).await;
    assert_eq!(world.entries().len(), 256);
    let messages = world.queues.sent().len();
    assert!(messages <= 2 * SOURCES, "{messages} messages");
    // Eventually, all results are known.
    for _ in 0..3 {
        world.settle().await;
        world.pass(Duration::from_secs(1)).await;
        let again = world.answer(&crash, &Scope::Global, Duration::ZERO).await;
        if let Ok(SymbolicateOutcome::Completed(completed, _)) = again {
            let mut modules = completed.modules.iter();
            assert!(modules.all(|module| module.debug_status == ModuleStatus::Missing));
            return;
        }
    }
    panic!("the request is still pending");
}

/// Sixty modules that four servers do not have: 24 messages, one permit each.
#[tokio::test(start_paused = true)]
async fn sixty_modules_of_four_servers_take_24_messages() {
    let world = World::with(|settings| {
        settings.sources = (0..4)
            .map(|at| source(&format!("server-{at}")).into())
            .collect();
    });
    let crash = crash_in(60);
    world.leave_pending(&crash).await;
    assert_eq!(world.queues.sent().len(), 24);
    world.settle().await;
    let asked = world.servers.take_asked();
    let once: HashSet<_> = asked.iter().collect();
    assert_eq!(once.len(), asked.len(), "a location was requested twice");
    let answer = world.answer(&crash, &Scope::Global, Duration::ZERO).await;
    assert!(
        matches!(answer, Ok(SymbolicateOutcome::Completed(..))),
        "{answer:?}"
    );
}
