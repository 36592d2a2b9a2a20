//! Copies of DIFs from symbol servers: when they are stored, what they are used for, and when they
//! are removed.

use std::time::Duration;

use symdepot::adapters::faulty::{How, Operation};
use symdepot::cache::{DifCopy, Item, Kind};
use symdepot::domain::{Cause, HttpSource, Location, Missing};
use symdepot_tests::harness::{World, fixture, function_names, in_module, sample_crash};

use crate::servers::{DEBUG, PROGRAM, at, entry, is_symbolicated, source, world};
use crate::sweeping::fall_behind;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn copies(world: &World) -> Vec<DifCopy> {
    let copy = |item| match item {
        Item::Copy(copy) => Some(copy),
        _ => None,
    };
    let items = world.records.items().into_iter();
    items.filter_map(|(_, stored)| copy(stored.item)).collect()
}

fn parts(world: &World) -> Vec<String> {
    let mut paths = world.caches.paths();
    paths.retain(|path| path.starts_with("copies/"));
    paths
}

/// A world whose server had the sample's debug file. The file was fetched, and has been removed
/// from the server since.
async fn with_a_copy_alone() -> World {
    let world = world();
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    assert!(is_symbolicated(&world.symbolicate(&sample_crash()).await));
    world.servers.remove(&at(DEBUG));
    world.servers.take_asked();
    world
}

/// Rebuilds everything, as the refresh queue does after a release.
async fn rebuild_all(world: &World) {
    fall_behind(world).await;
    for _ in 0..2 {
        world.pass(HOUR).await;
        world.prune().await.unwrap();
        world.settle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn copies_are_made_of_files_of_the_module_and_of_no_others() {
    let world = world();
    world.servers.put(&at(PROGRAM), fixture("elf/checksum"));
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    assert!(is_symbolicated(&world.symbolicate(&sample_crash()).await));
    let copies = copies(&world);
    let locations: Vec<&Location> = copies.iter().map(|copy| &copy.dif.file.location).collect();
    assert_eq!(locations, [&at(DEBUG)]);
    assert_eq!(copies[0].dif.size, fixture("elf/crash.debug").len() as u64);
    assert!(
        copies[0]
            .chunks()
            .all(|(_, _, path)| parts(&world).contains(&path))
    );
    // A pass removes blobs that do not belong to a copy.
    assert_eq!(parts(&world).len(), 2);
    world.pass(2 * HOUR).await;
    let report = world.prune().await.unwrap();
    assert_eq!((report.orphans, report.copies_retired), (1, 0));
    assert_eq!(parts(&world).len(), 1);
    let rollout = report.rollout.unwrap();
    assert_eq!((rollout.copies, rollout.copy_bytes), (1, copies[0].bytes));
}

#[tokio::test(start_paused = true)]
async fn r15_outdated_caches_are_rebuilt_from_the_copy_after_the_source_lost_the_file() {
    let world = with_a_copy_alone().await;
    rebuild_all(&world).await;
    for kind in [Kind::CfiCache, Kind::SymCache] {
        let entry = entry(&world, kind);
        let ready = entry.ready().unwrap();
        assert_eq!(ready.converter, symdepot::cache::Converter::CURRENT);
        assert_eq!(ready.made_from[0].location, at(DEBUG));
    }
    assert!(!world.servers.take_asked().contains(&at(DEBUG)));
    assert!(is_symbolicated(
        &world.another_instance().symbolicate(&sample_crash()).await
    ));
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_copy_is_removed_when_nothing_was_derived_from_it_for_a_week() {
    let world = with_a_copy_alone().await;
    // Reading uses the derived cache, but not the copy.
    for _ in 0..6 {
        world.pass(DAY).await;
        world.another_instance().symbolicate(&sample_crash()).await;
        assert_eq!(world.prune().await.unwrap().copies_retired, 0);
    }
    rebuild_all(&world).await;
    let used = copies(&world)[0].last_used_at;
    assert!(world.now().since(used) < DAY);
    for (days, expected) in [(6, 0), (1, 1)] {
        world.pass(days * DAY).await;
        assert_eq!(
            world.prune().await.unwrap().copies_retired,
            expected,
            "{days}"
        );
    }
    assert_eq!((copies(&world), parts(&world)), (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_lists_the_copies_that_would_be_removed() {
    let world = with_a_copy_alone().await;
    world.pass(8 * DAY).await;
    let report = world.prune_dry().await.unwrap();
    assert_eq!(report.copies_retired, 1);
    let said = report
        .planned
        .iter()
        .find(|said| said.to.contains(DEBUG))
        .unwrap();
    assert_eq!(
        (said.what, said.why.as_str()),
        ("retire", "unused for 691200 s")
    );
    assert_eq!(copies(&world).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn copies_over_their_budget_are_removed_in_the_order_of_their_last_use() {
    let world = World::with(|settings| {
        settings.sources = vec![source("company", "").into()];
        settings.dif_budget_bytes = 1;
    });
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    world.symbolicate(&sample_crash()).await;
    world.pass(8 * HOUR).await;
    // The first pass measures; the second one removes everything that was not used within two
    // hours.
    let first = world.prune().await.unwrap();
    assert_eq!(first.copies_retired, 0);
    let budget = copies(&world)[0].bytes;
    world.pass(HOUR).await;
    let roomy = world.deployed_with(|settings| settings.dif_budget_bytes = budget);
    assert_eq!(roomy.prune().await.unwrap().copies_retired, 0);
    world.pass(HOUR).await;
    let report = world.prune().await.unwrap();
    assert_eq!(report.copies_retired, 1);
    assert_eq!((copies(&world), parts(&world)), (vec![], vec![]));
    // The derived caches stay: they have a budget of their own.
    assert!(is_symbolicated(
        &world.another_instance().symbolicate(&sample_crash()).await
    ));
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_cannot_be_read_is_forgotten_and_its_file_is_fetched_again() {
    for damage in ["gone", "cut short", "changed"] {
        let world = with_a_copy_alone().await;
        world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
        let path = parts(&world).remove(0);
        let sealed = world.caches.peek(&path).unwrap();
        world.caches.lose(&path);
        match damage {
            "cut short" => world
                .caches
                .overwrite(&path, sealed.slice(..sealed.len() / 2)),
            "changed" => {
                let mut bytes = sealed.to_vec();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                world.caches.overwrite(&path, bytes);
            }
            _ => {}
        }
        rebuild_all(&world).await;
        assert!(world.servers.take_asked().contains(&at(DEBUG)), "{damage}");
        let ready = entry(&world, Kind::SymCache).ready().unwrap().clone();
        assert_eq!(
            ready.converter,
            symdepot::cache::Converter::CURRENT,
            "{damage}"
        );
        let copy = copies(&world).remove(0);
        assert!(!copy.names(&path), "{damage}: the copy was not replaced");
        assert!(
            copy.chunks()
                .all(|(_, _, path)| world.caches.peek(&path).is_some())
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_stays_if_the_store_fails_while_it_is_read() {
    let world = with_a_copy_alone().await;
    fall_behind(&world).await;
    let mut messages = Vec::new();
    for _ in 0..2 {
        world.pass(HOUR).await;
        world.prune().await.unwrap();
        messages.extend(world.queues.drain());
    }
    world.faults.fail_always(Operation::GetBlob, How::Before);
    let mut failures = 0;
    for sent in &messages {
        failures += u32::from(world.serve(&sent.message).await.is_err());
    }
    assert!(failures > 0, "{messages:?}");
    assert_eq!(copies(&world).len(), 1);
    world.faults.heal();
    // The queue delivers what failed again.
    world.pass(HOUR).await;
    for sent in &messages {
        world.serve(&sent.message).await.unwrap();
    }
    let entry = entry(&world, Kind::SymCache);
    let converter = entry.ready().unwrap().converter;
    assert_eq!(converter, symdepot::cache::Converter::CURRENT);
    assert!(!world.servers.take_asked().contains(&at(DEBUG)));
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_download_that_leaves_no_time_to_derive_is_a_timeout_and_the_next_build_reads_its_copy() {
    const FUNCTION_TIME: Duration = Duration::from_secs(22);
    let world = world();
    let file = fixture("elf/crash.debug");
    let chunks = u32::try_from(file.len().div_ceil(4096)).unwrap();
    world.servers.put(&at(DEBUG), file);
    world
        .servers
        .slow_down(&at(DEBUG), Duration::from_secs(10) / chunks);
    world.derivations.take(Duration::from_secs(9));
    let serve_all = async || {
        let instance = world.another_instance();
        instance.leave_pending(&sample_crash()).await;
        world.serve_queued_within(FUNCTION_TIME).await;
    };
    serve_all().await;
    let placeholder = entry(&world, Kind::SymCache).missing().cloned().unwrap();
    let Missing { cause, detail } = placeholder.missing;
    assert_eq!(cause, Cause::Timeout, "{detail}");
    assert!(detail.starts_with("fetching it took 1"), "{detail}");
    assert!(world.servers.take_asked().contains(&at(DEBUG)));
    world.pass(Duration::from_secs(120)).await;
    serve_all().await;
    assert!(!world.servers.take_asked().contains(&at(DEBUG)));
    assert!(is_symbolicated(
        &world.another_instance().symbolicate(&sample_crash()).await
    ));
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_file_that_failed_to_convert_is_fetched_again_in_case_it_was_replaced() {
    let world = world();
    let hostile = fixture("hostile/bits-flipped.debug");
    let module =
        serde_json::json!({"type": "elf", "debug_id": crate::CRASH_ARM64, "code_id": CODE_ARM64});
    let crash = in_module(module, &[0x10494]);
    let file = at(&format!(
        "http://symbols.test/{}/{}.debug",
        &CODE_ARM64[..2],
        &CODE_ARM64[2..]
    ));
    world.servers.put(&file, hostile);
    let before = world.symbolicate(&crash).await;
    assert_eq!(function_names(&before), ["?"]);
    assert_eq!(copies(&world).len(), 1);
    world.servers.take_asked();
    world.servers.put(&file, fixture("elf/crash-arm64.debug"));
    world.pass(27 * HOUR).await;
    let after = world.another_instance().symbolicate(&crash).await;
    assert!(world.servers.take_asked().contains(&file));
    assert_ne!(function_names(&after), ["?"]);
}

/// The code id of elf/crash-arm64.
const CODE_ARM64: &str = "211f31103fa00594195037650303f4a9fb6672dd";

#[tokio::test(start_paused = true)]
async fn no_copy_is_made_if_copies_are_kept_for_no_time() {
    let world = World::with(|settings| {
        settings.sources = vec![source("company", "").into()];
        settings.dif_max_unused = Duration::ZERO;
    });
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    assert!(is_symbolicated(&world.symbolicate(&sample_crash()).await));
    assert_eq!((copies(&world), parts(&world)), (vec![], vec![]));
}

/// A Breakpad file of more than one chunk. Most of it consists of distinct names of source files.
fn large_breakpad(id: &str) -> Vec<u8> {
    let mut text = format!("MODULE Linux x86_64 {id} large\n");
    let mut number = 0_u32;
    while text.len() < 18 << 20 {
        // The names hardly compress, so the copy has more than one chunk.
        text.push_str(&format!(
            "FILE {number} /src/{:016x}\n",
            u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ));
        number += 1;
    }
    text.push_str("FUNC 1000 100 0 the_function\n1000 100 7 0\n");
    text.into_bytes()
}

#[tokio::test(start_paused = true)]
async fn a_large_file_is_copied_in_chunks_and_read_back_whole() {
    let id = "502FC0A51EC13E479998684FA139DCA70";
    let unified: HttpSource = source("company", r#", "layout": {"type": "unified"}"#);
    let world = World::with(|settings| settings.sources = vec![unified.into()]);
    let module = serde_json::json!({"type": "elf", "debug_id": "502fc0a5-1ec1-3e47-9998-684fa139dca7", "code_id": "a5c02f50c11e473e9998684fa139dca7"});
    let crash = in_module(module, &[0x1010]);
    // This request shows at which location a Breakpad file is searched.
    world.symbolicate(&crash).await;
    let places = world.servers.take_asked();
    let place = places
        .iter()
        .find(|place| place.as_str().ends_with("breakpad"))
        .unwrap();
    world.servers.put(place, large_breakpad(id));
    world.pass(2 * HOUR).await;
    let answer = world.another_instance().symbolicate(&crash).await;
    assert_eq!(function_names(&answer), ["the_function"]);
    let copy = copies(&world).remove(0);
    assert_eq!(copy.chunks().count(), 3);
    world.servers.remove(place);
    rebuild_all(&world).await;
    let ready = entry(&world, Kind::SymCache).ready().unwrap().clone();
    assert_eq!(ready.converter, symdepot::cache::Converter::CURRENT);
    assert_eq!(copies(&world).remove(0).token, copy.token);
}
