//! The order of sources: of equal files, that of the first source is used, whatever earlier
//! requests have searched.

use std::time::Duration;

use symdepot::api::symbolicator::{Completed, ModuleStatus, SourceRef, Sources};
use symdepot::cache::SourceHealth;
use symdepot::domain::{Cause, HttpSource, Location, Scope};
use symdepot::flows::symbolicate::SymbolicateOutcome;
use symdepot::ports::{Concerns, ServerFailure};
use symdepot_tests::harness::{Crash, World, fixture, function_names, in_module, sample_crash};

use crate::servers::{at, failure, is_symbolicated};

const MINUTE: Duration = Duration::from_secs(60);

/// The path of the debug file of the sample in the native layout.
const PATH: &str = "ac/456ebc7f4825f4367208b89f51ad481774aae7.debug";

fn of_first() -> Location {
    at(&format!("http://first.test/{PATH}"))
}

fn of_second() -> Location {
    at(&format!("http://second.test/{PATH}"))
}

fn server(id: &str) -> HttpSource {
    let json = format!(r#"{{"type": "http", "id": "{id}", "url": "http://{id}.test/"}}"#);
    serde_json::from_str(&json).unwrap()
}

/// The only file of the second server: one function that covers the whole program.
const FILE_OF_SECOND: &str = "\
MODULE Linux x86_64 BC6E45AC487FF425367208B89F51AD480 crash
INFO CODE_ID AC456EBC7F4825F4367208B89F51AD481774AAE7
FILE 0 /build/second.cpp
FUNC 0 100000 0 of_second
0 100000 1 0
";

/// A world with two servers, of which the first one has no file yet.
fn world() -> World {
    let world = World::with(|settings| {
        settings.sources = vec![server("first").into(), server("second").into()];
    });
    world.servers.put(&of_second(), FILE_OF_SECOND);
    world
}

/// A crash in the program of the sample, without lines of source files.
fn crash() -> Crash {
    let mut crash = sample_crash();
    crash.modules.truncate(1);
    crash.options.apply_source_context = false;
    crash
}

/// The same, searched on the second server only.
fn crash_on_second() -> Crash {
    let mut crash = crash();
    crash.sources = Sources::Listed(vec![SourceRef::Named("second".to_owned())]);
    crash
}

/// Answers a request on an instance that has nothing in memory, without waiting for builds.
async fn at_once(world: &World, crash: &Crash) -> Completed {
    let instance = world.another_instance();
    let answer = instance.answer(crash, &Scope::Global, Duration::ZERO).await;
    match answer {
        Ok(SymbolicateOutcome::Completed(completed, _)) => *completed,
        other => panic!("not finished: {other:?}"),
    }
}

/// Has the second server searched, and not the first one.
async fn search_second(world: &World) {
    let completed = world.symbolicate(&crash_on_second()).await;
    assert_eq!(function_names(&completed)[0], "of_second");
    world.servers.take_asked();
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_for_an_earlier_source_that_was_never_searched() {
    let world = world();
    world.servers.put(&of_first(), fixture("elf/crash.debug"));
    search_second(&world).await;
    let both = world.another_instance().symbolicate(&crash()).await;
    assert!(is_symbolicated(&both));
    assert!(is_symbolicated(&at_once(&world, &crash()).await));
    let only = world.another_instance();
    let only = only.symbolicate(&crash_on_second()).await;
    assert!(!is_symbolicated(&only));
}

#[tokio::test(start_paused = true)]
async fn the_first_request_to_both_is_answered_from_the_first_source_however_slow_it_is() {
    let world = world();
    world.servers.put(&of_first(), fixture("elf/crash.debug"));
    world
        .servers
        .slow_down(&of_first(), Duration::from_millis(50));
    assert!(is_symbolicated(&world.symbolicate(&crash()).await));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_does_not_wait_has_the_earlier_source_searched_for_later_ones() {
    let world = world();
    world.servers.put(&of_first(), fixture("elf/crash.debug"));
    search_second(&world).await;
    assert!(!is_symbolicated(&at_once(&world, &crash()).await));
    world.settle().await;
    assert!(is_symbolicated(&at_once(&world, &crash()).await));
}

#[tokio::test(start_paused = true)]
async fn an_earlier_source_without_the_file_is_searched_once() {
    let world = world();
    search_second(&world).await;
    let both = world.another_instance().symbolicate(&crash()).await;
    assert_eq!(both.modules[0].debug_status, ModuleStatus::Found);
    let is_first = |asked: &Location| asked.as_str().starts_with("http://first.test/");
    assert!(world.servers.take_asked().iter().any(is_first));
    for _ in 0..5 {
        world.pass(MINUTE * 60 * 5).await;
        at_once(&world, &crash()).await;
        assert_eq!(world.queues.sent().len(), 0);
    }
    assert_eq!(world.servers.take_asked(), []);
}

#[tokio::test(start_paused = true)]
async fn an_earlier_source_that_failed_is_searched_again_and_no_request_waits_for_it() {
    for cause in [Cause::Timeout, Cause::DownloadFailed] {
        let world = world();
        let failure = ServerFailure {
            concerns: Concerns::Location,
            ..failure(cause, None)
        };
        world.servers.fail(&of_first(), failure);
        let both = world.symbolicate(&crash()).await;
        assert_eq!(function_names(&both)[0], "of_second");
        world.servers.put(&of_first(), fixture("elf/crash.debug"));
        at_once(&world, &crash()).await;
        assert_eq!(world.queues.sent().len(), 0, "the failure is cached");
        world.pass(MINUTE * 2).await;
        for _ in 0..2 {
            let second = at_once(&world, &crash()).await;
            assert_eq!(function_names(&second)[0], "of_second");
            assert_eq!(world.queues.sent().len(), 1, "{cause:?}");
        }
        world.settle().await;
        assert!(is_symbolicated(&at_once(&world, &crash()).await));
    }
}

#[tokio::test(start_paused = true)]
async fn an_earlier_source_whose_circuit_is_open_is_not_waited_for() {
    let world = world();
    search_second(&world).await;
    world.servers.put(&of_first(), fixture("elf/crash.debug"));
    for number in 0..SourceHealth::FAILURES_TO_OPEN {
        let code = format!("{number:040x}");
        let path = format!("http://first.test/{}/{}", &code[..2], &code[2..]);
        world
            .servers
            .fail(&at(&path), failure(Cause::Timeout, None));
        let module = serde_json::json!({"type": "elf", "code_id": code});
        let other = in_module(module, &[0x10]);
        world.another_instance().symbolicate(&other).await;
    }
    let began = world.now();
    let instance = world.another_instance();
    assert!(!is_symbolicated(&instance.symbolicate(&crash()).await));
    assert!(world.now().since(began) < Duration::from_secs(1));
    world.pass(MINUTE).await;
    let instance = world.another_instance();
    assert!(is_symbolicated(&instance.symbolicate(&crash()).await));
}
