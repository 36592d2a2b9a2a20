//! Symbol servers that fail or are slow: their circuits open, and no request waits for them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use serde_json::json;
use symdepot::adapters::faulty::Operation;
use symdepot::adapters::memory::SentMessage;
use symdepot::api::symbolicator::ModuleStatus;
use symdepot::cache::{
    Change, Converter, Entry, Item, ItemKey, Kind, ModuleKey, Queue, SourceHealth, Stored,
};
use symdepot::domain::{Cause, CodeId, HttpSource, ObjectId, ObjectType, Scope};
use symdepot::flows::RecordWriter;
use symdepot::flows::symbolicate::SymbolicateOutcome;
use symdepot::ports::{Concerns, QueueMessage, RecordStore, Removed, Replaced, ServerFailure};
use symdepot_tests::harness::{Crash, World, fixture, in_module, sample_crash};

use crate::servers::{DEBUG, PROGRAM, at, entry, failure, is_symbolicated, source, world};
use crate::source_lines::{BUNDLE, lines_shown};
use crate::sweeping::fall_behind;

const MINUTE: Duration = Duration::from_secs(60);

/// A crash in one of many modules that no source has.
fn crash_in(number: u32) -> Crash {
    let id = format!("502fc0a5-1ec1-3e47-9998-{number:012x}");
    let code = format!("{number:040x}");
    in_module(
        json!({"type": "elf", "debug_id": id, "code_id": code}),
        &[0x1000],
    )
}

fn places_of(number: u32) -> [String; 2] {
    let code = format!("{number:040x}");
    let path = format!("http://symbols.test/{}/{}", &code[..2], &code[2..]);
    [format!("{path}.debug"), path]
}

/// Makes the server fail for this many modules.
fn fail_for(world: &World, modules: Range<u32>, cause: Cause) {
    for place in modules.flat_map(places_of) {
        world.servers.fail(&at(&place), failure(cause, None));
    }
}

/// Lets calls fail until the circuit of the server is open.
async fn open_circuit(world: &World, cause: Cause) {
    let modules = 0..SourceHealth::FAILURES_TO_OPEN;
    fail_for(world, modules.clone(), cause);
    for number in modules {
        status(world, &crash_in(number)).await;
    }
}

/// The health of the only server, as the fleet knows it.
fn health(world: &World) -> Option<SourceHealth> {
    let key = ItemKey::health(&source("company", "").configured_key());
    world.records.peek(&key).map(|stored| match stored.item {
        Item::Health(health) => health,
        other => panic!("{other:?}"),
    })
}

/// Takes all messages from the queues, and returns those for the server.
fn of_servers(world: &World) -> Vec<SentMessage> {
    let mut sent = world.queues.drain();
    sent.retain(|sent| !sent.message.module.source.is_uploads());
    sent
}

async fn status(world: &World, crash: &Crash) -> ModuleStatus {
    world.another_instance().symbolicate(crash).await.modules[0].debug_status
}

#[tokio::test(start_paused = true)]
async fn r17_a_dead_source_is_called_a_few_times_for_a_thousand_modules_without_waiting() {
    let world = world();
    fail_for(&world, 0..1000, Cause::Timeout);
    let began = world.now();
    let mut timeouts = 0;
    for number in 0..1000 {
        match status(&world, &crash_in(number)).await {
            ModuleStatus::Timeout => timeouts += 1,
            ModuleStatus::FetchingFailed => {}
            other => panic!("{number}: {other:?}"),
        }
    }
    // Five calls opened the circuit. One call was made half a minute later, and another one after a
    // further minute.
    let took = world.now().since(began);
    assert!(took < 2 * MINUTE, "{took:?}");
    assert!((5..=7).contains(&timeouts), "{timeouts}");
    assert_eq!(world.servers.take_asked().len(), timeouts);
    // A rejected call leaves nothing in the entry of a module.
    let remembered = |entry: &Entry| {
        entry
            .missing()
            .is_some_and(|placeholder| placeholder.missing.cause != Cause::NotFound)
    };
    let modules: BTreeSet<ModuleKey> = world
        .entries()
        .iter()
        .filter(|entry| remembered(entry))
        .map(|entry| entry.module().clone())
        .collect();
    assert_eq!(modules.len(), timeouts);
    let until = health(&world).unwrap().open_until.unwrap();
    assert!(until > world.now());
    // `/explain` reports the reason.
    let module = ObjectId {
        code_id: Some(CodeId::new(
            "ac456ebc7f4825f4367208b89f51ad481774aae7".to_owned(),
        )),
        object_type: ObjectType::Elf,
        ..ObjectId::default()
    };
    let invocation = world.invocation(MINUTE);
    let told = world
        .service()
        .explain_module(&invocation, &module, None, &Scope::Global);
    for record in told.await.unwrap() {
        let expected = (record.source.id() == "company").then_some(until);
        assert_eq!(record.circuit_open_until, expected, "{record:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_responds_again_is_used_again() {
    let world = world();
    open_circuit(&world, Cause::DownloadFailed).await;
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    let refused = world.another_instance().symbolicate(&sample_crash()).await;
    assert_eq!(
        refused.modules[0].debug_status,
        ModuleStatus::FetchingFailed
    );
    let detail = refused.modules[0].debug_detail.clone().unwrap();
    assert!(detail.contains("company does not respond"), "{detail}");
    world.pass(MINUTE).await;
    let answered = world.another_instance().symbolicate(&sample_crash()).await;
    assert!(is_symbolicated(&answered));
    let health = health(&world).unwrap();
    assert_eq!(
        (health.failures, health.open_until, health.permits),
        (0, None, vec![])
    );
}

#[tokio::test(start_paused = true)]
async fn one_trial_call_decides_for_all_modules_whether_a_source_responds_again() {
    let world = world();
    fail_for(&world, 0..30, Cause::Timeout);
    for number in 0..5 {
        status(&world, &crash_in(number)).await;
    }
    assert_eq!(world.servers.take_asked().len(), 5);
    for (number, rest) in [(10, 31), (11, 61), (12, 121)] {
        world.pass(Duration::from_secs(rest)).await;
        assert_eq!(
            status(&world, &crash_in(number)).await,
            ModuleStatus::Timeout
        );
        assert_eq!(
            status(&world, &crash_in(number + 10)).await,
            ModuleStatus::FetchingFailed
        );
        assert_eq!(world.servers.take_asked().len(), 1, "{number}");
    }
}

#[tokio::test(start_paused = true)]
async fn ready_caches_are_used_while_the_circuit_is_open_and_no_build_is_requested() {
    let world = world();
    // This file only has symbols, so a better one may exist.
    world.servers.put(&at(PROGRAM), fixture("elf/crash"));
    assert_eq!(status(&world, &sample_crash()).await, ModuleStatus::Found);
    world.pass(MINUTE * 70).await;
    open_circuit(&world, Cause::Timeout).await;
    world.servers.take_asked();
    let instance = world.another_instance();
    let answer = instance
        .answer(&sample_crash(), &Scope::Global, Duration::ZERO)
        .await;
    assert!(matches!(answer, Ok(SymbolicateOutcome::Completed(..))));
    assert_eq!(world.queues.sent().len(), 0);
    world.pass(MINUTE).await;
    let instance = world.another_instance();
    instance
        .answer(&sample_crash(), &Scope::Global, Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(world.queues.sent().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_message_is_sent_again_when_the_circuit_closes_if_its_request_is_live() {
    let world = world();
    let ask = async |number| {
        let instance = world.another_instance();
        instance.leave_pending(&crash_in(number)).await;
        of_servers(&world)
    };
    let waiting = ask(100).await;
    let given_up = ask(101).await;
    world.pass(Duration::from_secs(25)).await;
    open_circuit(&world, Cause::Timeout).await;
    world.servers.take_asked();
    for sent in &waiting {
        world.serve(&sent.message).await.unwrap();
    }
    let again = world.queues.drain();
    assert_eq!((waiting.len(), again.len()), (1, 1));
    assert!(
        again
            .iter()
            .all(|sent| sent.delay >= Duration::from_secs(25))
    );
    // The build request of a client that left half a minute ago: the next client repeats it.
    world.pass(Duration::from_secs(6)).await;
    for sent in &given_up {
        world.serve(&sent.message).await.unwrap();
    }
    assert_eq!(world.queues.drain().len(), 0);
    assert_eq!(world.servers.take_asked(), []);
}

/// Gives all permits of a source to other builders, for a minute.
pub(crate) async fn occupy(world: &World, source: &HttpSource) {
    let most = world.settings.source_max_permits;
    let invocation = world.invocation(MINUTE);
    let mut busy = SourceHealth::new(source.configured_key(), world.now());
    for _ in 0..most {
        let permit = invocation.token();
        busy.acquire(&permit, world.now(), most).unwrap();
    }
    put_health(world, busy).await;
}

/// Opens the circuit of a source for a minute.
pub(crate) async fn break_circuit(world: &World, source: &HttpSource) {
    let mut down = SourceHealth::new(source.configured_key(), world.now());
    down.failures = SourceHealth::FAILURES_TO_OPEN;
    down.open_until = Some(world.now().plus(MINUTE));
    put_health(world, down).await;
}

async fn put_health(world: &World, health: SourceHealth) {
    let key = ItemKey::health(&health.source);
    let stored = Stored {
        revision: world.invocation(MINUTE).revision(),
        item: Item::Health(health),
    };
    let known = world.records.peek(&key).map(|known| known.revision);
    let replaced = world.records.replace(&key, known.as_ref(), &stored).await;
    assert_eq!(replaced.unwrap(), Replaced::Done);
}

/// Requests builds of a module, as readers and the pruner do. Returns their message.
pub(crate) async fn request_builds(
    world: &World,
    module: &ModuleKey,
    kinds: &[Kind],
    queue: Queue,
) -> QueueMessage {
    let invocation = world.invocation(MINUTE);
    let id = invocation.token();
    let writer = RecordWriter {
        records: &*world.records,
        policy: &world.settings.policy,
        invocation: &invocation,
    };
    let change = Change::RequestBuild {
        id: id.clone(),
        queue,
    };
    for kind in kinds {
        writer.apply(module, *kind, &change).await.unwrap();
    }
    QueueMessage::new(
        queue,
        module.clone(),
        kinds.to_vec(),
        id,
        Converter::CURRENT,
    )
}

#[tokio::test(start_paused = true)]
async fn a_bounded_number_of_builds_calls_a_source_at_a_time() {
    let world = world().deployed_with(|settings| settings.source_max_permits = 3);
    occupy(&world, &source("company", "")).await;
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    let instance = world.another_instance();
    instance.leave_pending(&sample_crash()).await;
    let before = world.summary();
    let sent = of_servers(&world).remove(0);
    let queries = world.faults.calls(Operation::Query);
    world.serve(&sent.message).await.unwrap();
    assert_eq!(world.faults.calls(Operation::Query), queries + 1);
    // Nothing was done and nothing has changed, so the message is sent again.
    assert_eq!(world.servers.take_asked(), []);
    assert_eq!(world.summary(), before);
    assert!(!world.queues.sent()[0].delay.is_zero());
    // The permits of builders that were killed expire after a minute.
    world.pass(MINUTE).await;
    world.settle().await;
    assert!(is_symbolicated(
        &world.another_instance().symbolicate(&sample_crash()).await
    ));
    assert_eq!(health(&world).unwrap().permits, []);
}

/// The copies of other files say nothing about a bundle.
#[tokio::test(start_paused = true)]
async fn a_busy_source_is_not_known_to_lack_the_bundle_of_a_module_with_copies() {
    for is_busy_before in [true, false] {
        let world = world();
        world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
        let bundle = fixture("bundle/crash.src.zip");
        world.servers.put(&at(BUNDLE), bundle);
        let mut crash = sample_crash();
        crash.modules.truncate(1);
        crash.options.apply_source_context = false;
        assert!(is_symbolicated(&world.symbolicate(&crash).await));
        world.settle().await;
        crash.options.apply_source_context = true;
        let instance = world.another_instance();
        let answer = instance.answer(&crash, &Scope::Global, Duration::ZERO);
        answer.await.unwrap();
        let sent = of_servers(&world).remove(0);
        assert_eq!(sent.message.kinds, [Kind::SourceCode]);
        world.servers.take_asked();
        let busy = source("company", "");
        let writes = world.faults.calls(Operation::Replace);
        if is_busy_before {
            occupy(&world, &busy).await;
        } else {
            // The build has looked at the permits, and has taken the lease.
            let (others, second) = (world.clone(), world.faults.calls(Operation::Query) + 2);
            let occupied = move || async move { occupy(&others, &busy).await };
            world.faults.interrupt(Operation::Query, second, occupied);
        }
        world.serve(&sent.message).await.unwrap();
        assert_eq!(world.servers.take_asked(), []);
        let sources = entry(&world, Kind::SourceCode);
        assert_eq!((sources.missing(), sources.lease()), (None, None));
        assert_eq!((sources.attempts(), sources.not_before()), (0, None));
        let is_written = world.faults.calls(Operation::Replace) > writes;
        assert_eq!(is_written, !is_busy_before);
        world.pass(MINUTE).await;
        world.settle().await;
        let completed = world.another_instance().symbolicate(&crash).await;
        assert!(lines_shown(&completed) > 0);
        world.check();
    }
}

/// Removes the item of a copy, as the pruner does if there is no room for it.
async fn evict_copy(world: &World, location: &str) {
    let is_it =
        |item: &Item| matches!(item, Item::Copy(copy) if copy.dif.file.location == at(location));
    let mut items = world.records.items().into_iter();
    let (key, stored) = items.find(|(_, stored)| is_it(&stored.item)).unwrap();
    let removed = world.records.remove(&key, &stored.revision).await;
    assert_eq!(removed.unwrap(), Removed::Done);
}

#[tokio::test(start_paused = true)]
async fn what_copies_serve_is_built_while_other_files_wait_for_their_server() {
    const KINDS: [Kind; 3] = [Kind::CfiCache, Kind::SourceCode, Kind::SymCache];
    let company = source("company", "");
    for is_busy in [true, false] {
        let world = world();
        for (place, file) in [
            (PROGRAM, "elf/crash"),
            (DEBUG, "elf/crash.debug"),
            (BUNDLE, "bundle/crash.src.zip"),
        ] {
            world.servers.put(&at(place), fixture(file));
        }
        let mut crash = sample_crash();
        crash.modules.truncate(1);
        world.symbolicate(&crash).await;
        world.settle().await;
        fall_behind(&world).await;
        evict_copy(&world, BUNDLE).await;
        let module = entry(&world, Kind::SymCache).module().clone();
        let message = request_builds(&world, &module, &KINDS, Queue::Refresh).await;
        if is_busy {
            occupy(&world, &company).await;
        } else {
            break_circuit(&world, &company).await;
        }
        world.servers.take_asked();
        world.serve(&message).await.unwrap();
        assert_eq!(world.servers.take_asked(), []);
        for kind in [Kind::CfiCache, Kind::SymCache] {
            let entry = entry(&world, kind);
            assert_eq!(entry.ready().unwrap().converter, Converter::CURRENT);
            assert_eq!(entry.build_request(), None, "{kind}");
        }
        let sources = entry(&world, Kind::SourceCode);
        assert!(sources.is_requested_by(&message.build_request));
        assert_eq!((sources.missing(), sources.lease()), (None, None));
        assert_eq!((sources.attempts(), sources.not_before()), (0, None));

        world.pass(MINUTE).await;
        world.settle().await;
        assert!(world.servers.take_asked().contains(&at(BUNDLE)));
        let sources = entry(&world, Kind::SourceCode);
        assert_eq!(sources.ready().unwrap().converter, Converter::CURRENT);
        assert_eq!(sources.build_request(), None);
        world.check();
    }
}

#[tokio::test(start_paused = true)]
async fn the_pause_that_a_source_requests_applies_to_every_module() {
    let world = world();
    let wish = Duration::from_secs(700);
    world
        .servers
        .fail(&at(PROGRAM), failure(Cause::DownloadFailed, Some(wish)));
    status(&world, &sample_crash()).await;
    world.servers.take_asked();
    assert_eq!(
        status(&world, &crash_in(1)).await,
        ModuleStatus::FetchingFailed
    );
    assert_eq!(world.servers.take_asked(), []);
    world.pass(wish).await;
    assert_eq!(status(&world, &crash_in(1)).await, ModuleStatus::Missing);
    assert!(!world.servers.take_asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_absent_file_does_not_count_against_its_source() {
    let world = world();
    for number in 0..20 {
        assert_eq!(
            status(&world, &crash_in(number)).await,
            ModuleStatus::Missing
        );
    }
    assert_eq!(health(&world).unwrap().failures, 0);
}

#[tokio::test(start_paused = true)]
async fn errors_about_the_files_of_one_tenant_do_not_open_the_circuit_for_others() {
    for cause in [Cause::DownloadFailed, Cause::Timeout] {
        let world = world();
        world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
        // A tenant finds names for which the server fails, and requests them repeatedly.
        for place in (0..30).flat_map(places_of) {
            let failure = ServerFailure {
                concerns: Concerns::Location,
                ..failure(cause, Some(MINUTE * 30))
            };
            world.servers.fail(&at(&place), failure);
        }
        let tenant = "acme".parse().unwrap();
        for number in 0..30 {
            let instance = world.another_instance();
            instance.symbolicate_for(&tenant, &crash_in(number)).await;
        }
        let health = health(&world).unwrap();
        assert_eq!((health.failures, health.open_until), (0, None));
        let (instance, other) = (world.another_instance(), "other".parse().unwrap());
        let completed = instance.symbolicate_for(&other, &sample_crash()).await;
        assert!(is_symbolicated(&completed), "{cause:?}");
    }
}
