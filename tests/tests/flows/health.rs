//! Symbol servers that do not answer, or slowly: who is spared, and that nobody waits for them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use serde_json::json;
use symdepot::adapters::memory::SentMessage;
use symdepot::api::symbolicator::ModuleStatus;
use symdepot::cache::{Entry, Item, ItemKey, ModuleKey, SourceHealth, Stored};
use symdepot::domain::{Cause, CodeId, ObjectId, ObjectType, Scope};
use symdepot::flows::symbolicate::SymbolicateOutcome;
use symdepot::ports::{Concerns, RecordStore, Replaced, ServerFailure};
use symdepot_tests::harness::{Crash, World, fixture, in_module, sample_crash};

use crate::servers::{DEBUG, PROGRAM, at, failure, is_symbolicated, source, world};

const MINUTE: Duration = Duration::from_secs(60);

/// A crash in one of many modules, none of which anybody knows.
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

/// Has the server fail for so many modules.
fn fail_for(world: &World, modules: Range<u32>, cause: Cause) {
    for place in modules.flat_map(places_of) {
        world.servers.fail(&at(&place), failure(cause, None));
    }
}

/// Has as many visits fail as it takes until nobody asks the server.
async fn open_circuit(world: &World, cause: Cause) {
    let modules = 0..SourceHealth::FAILURES_TO_OPEN;
    fail_for(world, modules.clone(), cause);
    for number in modules {
        status(world, &crash_in(number)).await;
    }
}

/// What the fleet knows of the only server.
fn health(world: &World) -> Option<SourceHealth> {
    let key = ItemKey::health(&source("company", "").configured_key());
    world.records.peek(&key).map(|stored| match stored.item {
        Item::Health(health) => health,
        other => panic!("{other:?}"),
    })
}

/// Takes the messages that wait; returns those for the server.
fn of_servers(world: &World) -> Vec<SentMessage> {
    let mut sent = world.queues.drain();
    sent.retain(|sent| !sent.message.module.source.is_uploads());
    sent
}

async fn status(world: &World, crash: &Crash) -> ModuleStatus {
    world.another_instance().symbolicate(crash).await.modules[0].debug_status
}

#[tokio::test(start_paused = true)]
async fn r17_a_dead_source_is_asked_a_few_times_for_a_thousand_modules_and_nobody_waits_for_it() {
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
    // Five visits made it clear; then one found out after half a minute, and after another minute.
    let took = world.now().since(began);
    assert!(took < 2 * MINUTE, "{took:?}");
    assert!((5..=7).contains(&timeouts), "{timeouts}");
    assert_eq!(world.servers.take_asked().len(), timeouts);
    // What was refused is remembered of no module.
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
    // Whoever asks why, is told.
    let module = ObjectId {
        code_id: Some(CodeId::new(
            "ac456ebc7f4825f4367208b89f51ad481774aae7".to_owned(),
        )),
        object_type: ObjectType::Elf,
        ..ObjectId::default()
    };
    let invocation = world.invocation(MINUTE);
    let told = world
        .symbolicator()
        .explain_module(&invocation, &module, None, &Scope::Global);
    for record in told.await.unwrap() {
        let expected = (record.source.id() == "company").then_some(until);
        assert_eq!(record.circuit_open_until, expected, "{record:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_answers_again_is_asked_again() {
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
async fn one_visit_finds_out_for_all_whether_a_source_answers_again() {
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
async fn what_is_ready_is_used_while_its_source_does_not_answer_and_nobody_asks_for_better() {
    let world = world();
    // Symbols alone: something better may turn up.
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
async fn a_message_comes_back_when_its_source_may_be_asked_again_unless_nobody_waits_any_more() {
    let world = world();
    let ask = async |number| {
        let instance = world.another_instance();
        let answer = instance
            .answer(&crash_in(number), &Scope::Global, Duration::ZERO)
            .await;
        assert!(matches!(answer, Ok(SymbolicateOutcome::Pending)));
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
    // An ask of somebody who went away half a minute ago: whoever comes next asks anew.
    world.pass(Duration::from_secs(6)).await;
    for sent in &given_up {
        world.serve(&sent.message).await.unwrap();
    }
    assert_eq!(world.queues.drain().len(), 0);
    assert_eq!(world.servers.take_asked(), []);
}

#[tokio::test(start_paused = true)]
async fn a_source_is_asked_by_so_many_builds_at_a_time_and_no_more() {
    let world = world().deployed_with(|settings| settings.source_max_permits = 3);
    let key = source("company", "").configured_key();
    let invocation = world.invocation(MINUTE);
    // Others are at it.
    let mut busy = SourceHealth::new(key.clone(), world.now());
    for _ in 0..3 {
        busy.acquire(&invocation.token(), world.now(), 3).unwrap();
    }
    let stored = Stored {
        revision: invocation.revision(),
        item: Item::Health(busy),
    };
    let replaced = world
        .records
        .replace(&ItemKey::health(&key), None, &stored)
        .await;
    assert_eq!(replaced.unwrap(), Replaced::Done);
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    let instance = world.another_instance();
    let answer = instance
        .answer(&sample_crash(), &Scope::Global, Duration::ZERO)
        .await;
    assert!(matches!(answer, Ok(SymbolicateOutcome::Pending)));
    let before = world.summary();
    let sent = of_servers(&world).remove(0);
    world.serve(&sent.message).await.unwrap();
    // Nothing was done, and nothing changed: it comes again.
    assert_eq!(world.servers.take_asked(), []);
    assert_eq!(world.summary(), before);
    assert!(!world.queues.sent()[0].delay.is_zero());
    // Those who vanished are taken for lost in a minute.
    world.pass(MINUTE).await;
    world.settle().await;
    assert!(is_symbolicated(
        &world.another_instance().symbolicate(&sample_crash()).await
    ));
    assert_eq!(health(&world).unwrap().permits, []);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_wants_to_be_left_alone_is_left_alone_by_every_module() {
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
async fn a_file_that_is_not_there_says_nothing_against_its_source() {
    let world = world();
    for number in 0..20 {
        assert_eq!(
            status(&world, &crash_in(number)).await,
            ModuleStatus::Missing
        );
    }
    assert_eq!(health(&world).unwrap().failures, 0);
}

/// F19.
#[tokio::test(start_paused = true)]
async fn what_a_server_answers_about_one_tenants_files_keeps_no_other_tenant_from_it() {
    for cause in [Cause::DownloadFailed, Cause::Timeout] {
        let world = world();
        world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
        // A tenant finds names on which the server fails, and asks for them again and again.
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
