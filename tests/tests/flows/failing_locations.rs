//! Locations of a symbol server that fail: the others are tried, within limits of the time, and the
//! likely ones first.

use std::time::Duration;

use serde_json::json;
use symdepot::api::symbolicator::{DownloadStatus, ModuleStatus};
use symdepot::cache::{Item, Kind, Queue};
use symdepot::domain::{Cause, FileType, Location, Quality, Scope};
use symdepot::flows::symbolicate::SymbolicateOutcome;
use symdepot::ports::{Concerns, QueueMessage, ServerFailure};
use symdepot_tests::harness::{Crash, World, fixture, in_module, sample_crash};

use crate::CRASH_PE;
use crate::health::request_builds;
use crate::servers::{
    DEBUG, PROGRAM, at, entry, failure, is_symbolicated, source, world, world_with_lists,
};
use crate::source_lines::{BUNDLE, lines_shown};

const MINUTE: Duration = Duration::from_secs(60);

/// How a location fails while the server responds.
fn location_failure(cause: Cause) -> ServerFailure {
    ServerFailure {
        concerns: Concerns::Location,
        ..failure(cause, None)
    }
}

fn world_of(more: &str) -> World {
    World::with(|settings| settings.sources = vec![source("company", more).into()])
}

/// A crash in a program of Windows.
fn windows_crash(code_id: Option<&str>) -> Crash {
    let module = json!({
        "type": "pe", "debug_id": CRASH_PE, "code_id": code_id, "code_file": r"C:\app\crash.exe",
        "debug_file": r"C:\app\crash.pdb",
    });
    in_module(module, &[0x1050])
}

const SYMSTORE: &str = r#", "layout": {"type": "symstore"}"#;
const PDB: &str = "http://symbols.test/crash.pdb/C7D4C24F1FB854084C4C44205044422E1/crash.pdb";
const PD_: &str = "http://symbols.test/crash.pdb/C7D4C24F1FB854084C4C44205044422E1/crash.pd_";
const DWARF: &str =
    "http://symbols.test/_.dwarf/mach-uuid-sym-c7d4c24f1fb854084c4c44205044422e/_.dwarf";

/// Requests a crash without waiting, and returns the message for the server.
async fn message_for(world: &World, crash: &Crash) -> QueueMessage {
    let pending = world.answer(crash, &Scope::Global, Duration::ZERO).await;
    assert!(matches!(pending, Ok(SymbolicateOutcome::Pending)));
    let sent = world.queues.drain().into_iter();
    let of_server = |message: &QueueMessage| !message.module.source.is_uploads();
    let mut messages = sent.map(|sent| sent.message).filter(of_server);
    messages.next().unwrap()
}

/// The number of consecutive failures of the server.
fn failures(world: &World) -> u32 {
    let items = world.records.items().into_iter();
    let mut failures = items.filter_map(|(_, stored)| match stored.item {
        Item::Health(health) => Some(health.failures),
        _ => None,
    });
    failures.next().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_failure_at_one_location_does_not_hide_a_file_at_another_one() {
    for cause in [Cause::DownloadFailed, Cause::Timeout] {
        let world = world();
        world.servers.fail(&at(PROGRAM), location_failure(cause));
        world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
        let completed = world.symbolicate(&sample_crash()).await;
        assert!(is_symbolicated(&completed), "{cause:?}");
        assert_eq!(failures(&world), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_at_one_location_does_not_end_the_probe_of_a_batch() {
    let world = world();
    world
        .servers
        .fail(&at(PROGRAM), location_failure(Cause::DownloadFailed));
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    let mut crash = sample_crash();
    let other = json!({
        "type": "elf", "debug_id": "502fc0a5-1ec1-3e47-9998-000000000001",
        "code_id": "0000000000000000000000000000000000000001", "image_addr": "0x10000",
    });
    let other = in_module(other, &[0x10]);
    crash.modules.extend(other.modules);
    let mut frames = other.stacktraces.into_iter().flat_map(|stack| stack.frames);
    let mut frame = frames.next().unwrap();
    frame.instruction_addr.0 = 0x10010;
    crash.stacktraces[0].frames.push(frame);
    let completed = world.symbolicate(&crash).await;
    assert!(is_symbolicated(&completed));
    assert_eq!(completed.modules[1].debug_status, ModuleStatus::Missing);
}

#[tokio::test(start_paused = true)]
async fn a_download_that_stops_does_not_hide_a_file_at_another_location() {
    let world = world();
    world.servers.put(&at(PROGRAM), fixture("elf/crash"));
    world.servers.slow_down(&at(PROGRAM), MINUTE);
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    let message = message_for(&world, &sample_crash()).await;
    world.serve(&message).await.unwrap();
    world.settle().await;
    assert!(is_symbolicated(&world.symbolicate(&sample_crash()).await));
}

#[tokio::test(start_paused = true)]
async fn if_no_location_has_the_file_a_failure_that_may_be_over_soon_is_the_outcome() {
    for (program, debug, expected) in [
        (Cause::PermissionDenied, Cause::Timeout, Cause::Timeout),
        (Cause::Timeout, Cause::PermissionDenied, Cause::Timeout),
        (
            Cause::Malformed,
            Cause::DownloadFailed,
            Cause::DownloadFailed,
        ),
        (
            Cause::DownloadFailed,
            Cause::NotFound,
            Cause::DownloadFailed,
        ),
        (
            Cause::NotFound,
            Cause::PermissionDenied,
            Cause::PermissionDenied,
        ),
    ] {
        let world = world();
        world.servers.fail(&at(PROGRAM), location_failure(program));
        world.servers.fail(&at(DEBUG), location_failure(debug));
        world.symbolicate(&sample_crash()).await;
        let asked = world.servers.take_asked();
        assert!(
            asked.contains(&at(PROGRAM)) && asked.contains(&at(DEBUG)),
            "{asked:?}"
        );
        let entry = entry(&world, Kind::SymCache);
        let placeholder = entry.missing().unwrap();
        assert_eq!(placeholder.missing.cause, expected);
        let is_soon = placeholder.retry_at.since(world.now()) < 2 * MINUTE;
        assert_eq!(is_soon, expected != Cause::PermissionDenied, "{expected:?}");
    }
}

/// A crash in the program of the sample.
fn crash_in_sample() -> Crash {
    let mut crash = sample_crash();
    crash.modules.truncate(1);
    crash
}

#[tokio::test(start_paused = true)]
async fn a_bundle_whose_download_fails_is_tried_again_soon_although_the_debug_file_was_found() {
    let crash = crash_in_sample();
    for cause in [Cause::DownloadFailed, Cause::Timeout] {
        let world = world();
        world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
        world.servers.fail(&at(BUNDLE), location_failure(cause));
        world.symbolicate(&crash).await;
        world.settle().await;
        let failed = entry(&world, Kind::SourceCode).missing().cloned().unwrap();
        assert_eq!(failed.missing.cause, cause);
        assert!(failed.retry_at.since(world.now()) < 2 * MINUTE);
        let bundle = fixture("bundle/crash.src.zip");
        world.servers.put(&at(BUNDLE), bundle);
        world.pass(2 * MINUTE).await;
        world.symbolicate(&crash).await;
        world.settle().await;
        let completed = world.another_instance().symbolicate(&crash).await;
        assert!(lines_shown(&completed) > 0, "{cause:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_debug_file_whose_download_fails_is_tried_again_soon_although_the_program_was_found() {
    let crash = crash_in_sample();
    let world = world();
    world.servers.put(&at(PROGRAM), fixture("elf/crash"));
    let failure = location_failure(Cause::DownloadFailed);
    world.servers.fail(&at(DEBUG), failure);
    world.symbolicate(&crash).await;
    world.settle().await;
    let made_of_program = entry(&world, Kind::SymCache);
    assert_eq!(made_of_program.ready().unwrap().quality, Quality::Fallback);
    let delayed = made_of_program.missing().cloned().unwrap();
    assert_eq!(delayed.missing.cause, Cause::DownloadFailed);
    assert!(delayed.retry_at.since(world.now()) < 2 * MINUTE);

    // Until then, the server is not called again, and the advice is about it.
    world.servers.take_asked();
    let completed = world.another_instance().symbolicate(&crash).await;
    let advice = completed.modules[0].debug_detail.as_deref();
    assert!(
        advice.is_some_and(|advice| advice.contains("could not be fetched")),
        "{advice:?}"
    );
    world.settle().await;
    assert_eq!(world.servers.take_asked(), []);

    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    world.pass(2 * MINUTE).await;
    world.another_instance().symbolicate(&crash).await;
    world.settle().await;
    let made_of_debug_file = entry(&world, Kind::SymCache);
    assert_eq!(
        made_of_debug_file.ready().unwrap().quality,
        Quality::Preferred
    );
    assert_eq!(made_of_debug_file.missing(), None);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_failure_where_another_type_of_file_is_sought_is_no_reason_for_a_missing_bundle() {
    let world = world();
    world.servers.put(&at(PROGRAM), fixture("elf/crash"));
    // It belongs to another module.
    world.servers.put(&at(DEBUG), fixture("elf/checksum"));
    let module = message_for(&world, &crash_in_sample()).await.module;
    let kinds = [Kind::SourceCode, Kind::SymCache];
    let message = request_builds(&world, &module, &kinds, Queue::Refresh).await;
    world.serve(&message).await.unwrap();
    let asked = world.servers.take_asked();
    let is_asked = |location: &str| asked.contains(&at(location));
    assert!(is_asked(DEBUG) && is_asked(BUNDLE), "{asked:?}");
    assert!(entry(&world, Kind::SymCache).ready().is_some());
    let sources = entry(&world, Kind::SourceCode).missing().cloned().unwrap();
    assert_eq!(sources.missing.cause, Cause::NotFound);
    assert!(sources.retry_at.since(world.now()) < 120 * MINUTE);
    world.check();
}

/// After a deployment, `derive` may know a source a little later than `symbolicate`.
#[tokio::test(start_paused = true)]
async fn an_unknown_source_is_the_reason_for_a_missing_bundle_of_a_module_with_copies() {
    let world = world();
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    let mut crash = crash_in_sample();
    crash.options.apply_source_context = false;
    assert!(is_symbolicated(&world.symbolicate(&crash).await));
    crash.options.apply_source_context = true;
    let instance = world.another_instance();
    let answer = instance.answer(&crash, &Scope::Global, Duration::ZERO);
    answer.await.unwrap();
    let unaware = world.deployed_with(|settings| settings.sources.clear());
    unaware.settle().await;
    let unknown = entry(&world, Kind::SourceCode).missing().cloned().unwrap();
    assert_eq!(unknown.missing.cause, Cause::DownloadFailed);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_only_fails_is_asked_at_each_location_and_one_that_hangs_at_four() {
    let locations = |world: &World| {
        let mut asked = world.servers.take_asked();
        asked.sort();
        asked
    };
    let absent = world_of(SYMSTORE);
    absent
        .symbolicate(&windows_crash(Some("5ab380779000")))
        .await;
    let all = locations(&absent);
    assert!(all.len() > 4, "{all:?}");
    for (cause, expected) in [(Cause::DownloadFailed, all.len()), (Cause::Timeout, 4)] {
        let world = world_of(SYMSTORE);
        for location in &all {
            world.servers.fail(location, location_failure(cause));
        }
        world
            .symbolicate(&windows_crash(Some("5ab380779000")))
            .await;
        assert_eq!(locations(&world).len(), expected, "{cause:?}");
        assert_eq!(failures(&world), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_search_that_fails_late_leaves_the_rest_of_the_time_to_what_was_found() {
    let world = world();
    world.servers.put(&at(PROGRAM), fixture("elf/crash"));
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    // It is too slow after half a minute, which is more than half of the time.
    world.servers.slow_down(&at(DEBUG), MINUTE);
    let message = message_for(&world, &sample_crash()).await;
    let time = Duration::from_secs(50);
    world.serve_within(&message, time).await.unwrap();
    let asked = world.servers.take_asked();
    assert_eq!(asked.last(), Some(&at(DEBUG)), "{asked:?}");
    let entry = entry(&world, Kind::SymCache);
    assert_eq!(entry.ready().unwrap().made_from[0].location, at(PROGRAM));
}

#[tokio::test(start_paused = true)]
async fn the_files_of_the_platform_of_a_module_are_requested_first() {
    let world = world_of(SYMSTORE);
    world.servers.put(&at(PDB), fixture("pe/x64/crash.pdb"));
    world
        .servers
        .fail(&at(DWARF), location_failure(Cause::DownloadFailed));
    let completed = world.symbolicate(&windows_crash(None)).await;
    assert_eq!(completed.modules[0].debug_status, ModuleStatus::Found);
    let asked = world.servers.take_asked();
    let place = |location: &str| asked.iter().position(|asked| *asked == at(location));
    assert_eq!(place(PDB), Some(0), "{asked:?}");
    assert!(place(PD_) < place(DWARF), "{asked:?}");

    let unified = world_of(r#", "layout": {"type": "unified"}"#);
    unified
        .symbolicate(&windows_crash(Some("5ab380779000")))
        .await;
    let asked: Vec<Location> = unified.servers.take_asked();
    let is_of_pdb = |location: &&Location| location.as_str().contains("/c7/");
    let first = asked.iter().take(5).filter(is_of_pdb);
    assert_eq!(first.count(), 5, "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_web_page_or_nothing_in_place_of_a_file_is_a_failure_that_may_be_over_soon() {
    for (body, what) in [
        ("", "nothing"),
        ("<!DOCTYPE html><title>Maintenance</title>", "a web page"),
        ("\u{feff}\r\n<HTML lang=en>", "a web page"),
    ] {
        let world = world();
        world.servers.put(&at(DEBUG), body);
        let mut crash = sample_crash();
        crash.options.dif_candidates = true;
        let completed = world.symbolicate(&crash).await;
        let mut candidates = completed.modules[0].candidates.iter();
        let it = candidates.find(|candidate| candidate.location == at(DEBUG));
        let details = format!("the server sent {what} instead of a file");
        assert_eq!(it.unwrap().download, DownloadStatus::Error { details });
        let entry = entry(&world, Kind::SymCache);
        let placeholder = entry.missing().unwrap();
        assert_eq!(placeholder.missing.cause, Cause::DownloadFailed, "{body:?}");
        assert!(placeholder.retry_at.since(world.now()) < 2 * MINUTE);

        world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
        world.pass(2 * MINUTE).await;
        let completed = world.another_instance().symbolicate(&sample_crash()).await;
        assert!(is_symbolicated(&completed), "{body:?}");
        world.check();
    }
    // Other text says what the file is.
    let world = world();
    world.servers.put(&at(DEBUG), "no debug file");
    world.symbolicate(&sample_crash()).await;
    let entry = entry(&world, Kind::SymCache);
    let placeholder = entry.missing().unwrap();
    assert_eq!(placeholder.missing.cause, Cause::Malformed);
    assert!(placeholder.retry_at.since(world.now()) > 1200 * MINUTE);
}

/// An item of DynamoDB has at most 400 KB.
#[tokio::test(start_paused = true)]
async fn the_locations_that_a_server_lists_never_exceed_the_size_of_an_item() {
    let world = world_with_lists();
    let long = "A".repeat(15_000);
    let location =
        |number: u32| Location::new(format!("sentry://project_debug_file/{number:03}{long}"));
    let listed = (0..40).map(|number| (FileType::Breakpad, location(number)));
    world.servers.list_files(Ok(listed.collect()));
    let completed = world.symbolicate(&sample_crash()).await;
    assert_eq!(completed.modules[0].debug_status, ModuleStatus::Missing);
    assert!(world.servers.take_asked().len() >= 40);
    let items = world.records.items();
    assert!(!items.is_empty());
    for (key, stored) in items {
        let bytes = serde_json::to_vec(&stored.item).unwrap().len();
        assert!(bytes < 400_000, "{key:?}: {bytes}");
    }
    world.check();
}
