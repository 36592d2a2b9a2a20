//! Source lines: which bundles frames get them from, what that costs, and what a bad bundle does.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use serde_json::json;
use symdepot::api::symbolicator::{Completed, CompletedFrame, DownloadStatus};
use symdepot::cache::Kind;
use symdepot::domain::{Candidate, FileType, Scope};
use symdepot::flows::symbolicate::SymbolicateOutcome;
use symdepot_tests::harness::{
    Crash, World, fixture, fixture_text, function_names, in_module, sample_crash, source_bundle,
};

use crate::servers::{DEBUG, PROGRAM, at, put_listed, source, world, world_with_lists};
use crate::{CRASH, INVENTORY};

/// The location of the sample's source bundle on a server in the native layout.
pub(crate) const BUNDLE: &str =
    "http://symbols.test/ac/456ebc7f4825f4367208b89f51ad481774aae7.src.zip";

/// The line, the lines before it and the lines after it.
pub(crate) type Context = (Option<String>, Vec<String>, Vec<String>);

pub(crate) fn frames(completed: &Completed) -> impl Iterator<Item = &CompletedFrame> {
    completed
        .stacktraces
        .iter()
        .flat_map(|stacktrace| &stacktrace.frames)
}

pub(crate) fn context(frame: &CompletedFrame) -> Context {
    let frame = &frame.frame;
    (
        frame.context_line.clone(),
        frame.pre_context.clone(),
        frame.post_context.clone(),
    )
}

pub(crate) fn lines_shown(completed: &Completed) -> usize {
    frames(completed)
        .filter(|frame| frame.frame.context_line.is_some())
        .count()
}

fn scope(name: &str) -> Scope {
    name.parse().unwrap()
}

/// Returns the context of a frame, read from the sources that the fixture was built from.
pub(crate) fn in_the_sources(frame: &CompletedFrame) -> Context {
    let path = frame.frame.abs_path.as_deref().unwrap_or_default();
    let Some(name) = path.strip_prefix("/build/app/game/") else {
        return Context::default();
    };
    let text = fixture_text(&format!("sources/game/{name}"));
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let at = frame.frame.lineno.unwrap() as usize - 1;
    (
        Some(lines[at].clone()),
        lines[at.saturating_sub(5)..at].to_vec(),
        lines[at + 1..lines.len().min(at + 6)].to_vec(),
    )
}

#[tokio::test(start_paused = true)]
async fn frames_show_the_lines_of_an_uploaded_bundle_in_any_order_of_uploads() {
    let files = [
        ("global/crash.debug", "elf/crash.debug"),
        ("global/crash.src.zip", "bundle/crash.src.zip"),
    ];
    for order in [[0, 1], [1, 0]] {
        let world = World::new();
        for at in order {
            world.upload(files[at].0, files[at].1).await;
        }
        let completed = world.symbolicate(&sample_crash()).await;
        for frame in frames(&completed) {
            assert_eq!(context(frame), in_the_sources(frame), "{frame:?}");
        }
        assert!(lines_shown(&completed) >= 10, "{}", lines_shown(&completed));
        assert!(completed.modules[0].features.has_sources);
        assert_eq!(world.queues.calls().total(), 0, "nothing is requested");
        world.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_lists_its_files_lists_the_bundle() {
    let world = world_with_lists();
    let files = [
        (FileType::ElfDebug, "elf/crash.debug"),
        (FileType::SourceBundle, "bundle/crash.src.zip"),
    ];
    let listed = put_listed(&world, &files);
    let locations = |completed: &Completed| -> Vec<(String, bool)> {
        let candidates = completed.modules[0].candidates.iter();
        let is_found = |status: &DownloadStatus| matches!(status, DownloadStatus::Ok { .. });
        candidates
            .filter(|candidate| !candidate.source.is_uploads())
            .map(|candidate| {
                (
                    candidate.location.to_string(),
                    is_found(&candidate.download),
                )
            })
            .collect()
    };
    let found = |number: u32| (format!("sentry://project_debug_file/{number}"), true);
    let nothing = || (Candidate::NOTHING_LISTED.to_owned(), false);

    let mut crash = sample_crash();
    crash.options.dif_candidates = true;
    world.servers.list_files(Ok(listed[..1].to_vec()));
    let completed = world.symbolicate(&crash).await;
    assert_eq!(lines_shown(&completed), 0);
    assert_eq!(locations(&completed), [nothing(), found(1)]);

    world.servers.list_files(Ok(listed));
    world.pass(Duration::from_secs(90)).await;
    world.symbolicate(&crash).await;
    world.settle().await;
    let completed = world.symbolicate(&crash).await;
    assert!(lines_shown(&completed) >= 10, "{}", lines_shown(&completed));
    assert!(completed.modules[0].features.has_sources);
    assert_eq!(locations(&completed), [found(1), found(2)]);

    // A listing of a bundle alone has no names.
    let world = world_with_lists();
    let alone = put_listed(&world, &files[1..]);
    world.servers.list_files(Ok(alone));
    let completed = world.symbolicate(&crash).await;
    assert_eq!(locations(&completed), [nothing()]);
}

#[tokio::test(start_paused = true)]
async fn a_removed_bundle_takes_its_lines_with_it() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world
        .upload("global/a.src.zip", "bundle/crash.src.zip")
        .await;
    assert!(lines_shown(&world.symbolicate(&sample_crash()).await) > 0);
    world.remove("global/a.src.zip").await;
    world.pass(Duration::from_secs(60)).await;
    let without = world.symbolicate(&sample_crash()).await;
    assert_eq!(lines_shown(&without), 0);
    assert!(!without.modules[0].features.has_sources);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_bundle_that_arrives_after_an_answer_is_seen_within_twenty_seconds() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    assert_eq!(lines_shown(&world.symbolicate(&sample_crash()).await), 0);
    world
        .upload("global/a.src.zip", "bundle/crash.src.zip")
        .await;
    world.pass(Duration::from_secs(20)).await;
    assert!(lines_shown(&world.symbolicate(&sample_crash()).await) > 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_without_source_context_reads_no_sources() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world
        .upload("global/a.src.zip", "bundle/crash.src.zip")
        .await;
    let mut crash = sample_crash();
    crash.options.apply_source_context = false;
    let before = world.caches.calls().total();
    let instance = world.another_instance();
    let completed = instance.symbolicate(&crash).await;
    let for_names = world.caches.calls().total() - before;
    assert_eq!(lines_shown(&completed), 0);
    let before = world.caches.calls().total();
    let with_lines = world.another_instance().symbolicate(&sample_crash()).await;
    assert!(lines_shown(&with_lines) > 0);
    // The bundle is small, so its blob is read as a whole.
    assert_eq!(world.caches.calls().total() - before, for_names + 1);
}

#[tokio::test(start_paused = true)]
async fn a_warm_request_with_source_lines_makes_no_call() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world
        .upload("global/a.src.zip", "bundle/crash.src.zip")
        .await;
    world.symbolicate(&sample_crash()).await;
    let before = world.calls();
    for _ in 0..10 {
        assert!(lines_shown(&world.symbolicate(&sample_crash()).await) > 0);
        world.pass(Duration::from_secs(2)).await;
    }
    assert_eq!(world.calls(), before);
}

/// Puts a bundle with these files, and processes the event.
pub(crate) async fn put_bundle(world: &World, key: &str, files: &[(&str, &str)]) {
    let event = world.put(key, source_bundle(CRASH, files));
    world.deliver(&event).await.unwrap();
    world.settle().await;
}

#[tokio::test(start_paused = true)]
async fn the_bundles_of_a_module_complete_each_other_across_scopes() {
    let world = World::new();
    world.upload("acme/crash.debug", "elf/crash.debug").await;
    let names: Vec<String> = {
        let completed = world.symbolicate_for(&scope("acme"), &sample_crash()).await;
        let paths = frames(&completed).filter_map(|frame| frame.frame.abs_path.clone());
        let ours = paths.filter(|path| path.starts_with("/build/app/game/"));
        ours.map(|path| path.to_string()).collect()
    };
    let texts: BTreeMap<&String, String> = names
        .iter()
        .map(|path| {
            let name = path.strip_prefix("/build/app/game/").unwrap();
            (path, fixture_text(&format!("sources/game/{name}")))
        })
        .collect();
    assert!(texts.len() >= 3, "{texts:?}");
    // Each file is in a bundle of its own: two in one scope, the others in the global scope.
    for (at, (path, text)) in texts.iter().enumerate() {
        let scope = if at < 2 { "acme" } else { "global" };
        let key = format!("{scope}/{at}.src.zip");
        put_bundle(&world, &key, &[(path, text)]).await;
    }
    world.pass(Duration::from_secs(20)).await;
    let completed = world.symbolicate_for(&scope("acme"), &sample_crash()).await;
    for frame in frames(&completed) {
        assert_eq!(context(frame), in_the_sources(frame), "{frame:?}");
    }
    // Callers of another scope see only the lines of the global bundles.
    world.upload("other/crash.debug", "elf/crash.debug").await;
    let elsewhere = world
        .symbolicate_for(&scope("other"), &sample_crash())
        .await;
    assert!(lines_shown(&elsewhere) < lines_shown(&completed));
    // One of two bundles in a scope is removed: the other one stays.
    world.remove("acme/0.src.zip").await;
    world.pass(Duration::from_secs(60)).await;
    let left = world.symbolicate_for(&scope("acme"), &sample_crash()).await;
    let shown = lines_shown(&left);
    assert!(shown > 0 && shown < lines_shown(&completed), "{shown}");
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_bundle_on_a_server_is_found_once_and_not_asked_for_again() {
    let world = world();
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    world
        .servers
        .put(&at(BUNDLE), fixture("bundle/crash.src.zip"));
    let mut crash = sample_crash();
    crash.options.dif_candidates = true;
    let completed = world.symbolicate(&crash).await;
    assert_eq!(
        lines_shown(&completed),
        frames(&completed)
            .filter(|frame| in_the_sources(frame).0.is_some())
            .count()
    );
    let candidates = &completed.modules[0].candidates;
    let found = candidates
        .iter()
        .find(|candidate| candidate.location == at(BUNDLE));
    assert!(
        matches!(&found.unwrap().download, DownloadStatus::Ok { features } if features.has_sources)
    );
    let debug = candidates
        .iter()
        .find(|candidate| candidate.location == at(DEBUG));
    assert!(debug.unwrap().debug.is_some());
    let asked = world.servers.take_asked();
    assert_eq!(
        asked
            .iter()
            .filter(|location| **location == at(BUNDLE))
            .count(),
        1
    );
    world.another_instance().symbolicate(&crash).await;
    assert_eq!(world.servers.take_asked(), []);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_search_for_sources_fetches_no_debug_file_of_another_server() {
    let world = World::with(|settings| {
        let mut other = source("other", "");
        other.url = "http://other.test/".parse().unwrap();
        settings.sources = vec![source("company", "").into(), other.into()];
    });
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    world.servers.put(&at(PROGRAM), fixture("elf/crash"));
    world.symbolicate(&sample_crash()).await;
    let asked = world.servers.take_asked();
    let elsewhere: HashSet<&str> = asked
        .iter()
        .map(|location| location.as_str())
        .filter(|location| location.starts_with("http://other.test/"))
        .collect();
    // The second server is asked for names only while the first one may not have them.
    let for_names: usize = source("other", "")
        .locations(&sample_crash().modules[0].object_id())
        .len();
    assert!(elsewhere.len() <= for_names, "{elsewhere:?}");
    assert_eq!(
        asked.iter().collect::<HashSet<_>>().len(),
        asked.len(),
        "{asked:?}"
    );
    let sources = world.entries();
    let mut sources = sources
        .iter()
        .filter(|entry| entry.kind() == Kind::SourceCode);
    assert!(sources.all(|entry| entry.ready().is_none()));
}

#[tokio::test(start_paused = true)]
async fn lines_that_a_client_sends_are_completed_without_a_debug_file() {
    let world = World::new();
    put_bundle(
        &world,
        "global/a.src.zip",
        &[("/src/a.c", "one\ntwo\nthree")],
    )
    .await;
    let mut crash = in_module(json!({"type": "elf", "debug_id": CRASH}), &[16]);
    crash.stacktraces[0].frames[0].abs_path = Some("/src/a.c".into());
    crash.stacktraces[0].frames[0].lineno = Some(2);
    let completed = world.symbolicate(&crash).await;
    let frame = frames(&completed).next().unwrap();
    let one = |text: &str| vec![text.to_owned()];
    assert_eq!(
        context(frame),
        (Some("two".to_owned()), one("one"), one("three"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_line_beyond_the_end_of_a_file_and_line_zero_show_nothing() {
    let world = World::new();
    put_bundle(&world, "global/a.src.zip", &[("/src/a.c", "one\ntwo\n")]).await;
    for (line, expected) in [(0, None), (1, Some("one")), (2, Some("two")), (3, None)] {
        let mut crash = in_module(json!({"type": "elf", "debug_id": CRASH}), &[16]);
        crash.stacktraces[0].frames[0].abs_path = Some("/src/a.c".into());
        crash.stacktraces[0].frames[0].lineno = Some(line);
        let completed = world.symbolicate(&crash).await;
        let frame = &frames(&completed).next().unwrap().frame;
        assert_eq!(frame.context_line.as_deref(), expected, "{line}");
        if expected.is_none() {
            assert!(frame.pre_context.is_empty() && frame.post_context.is_empty());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_portable_pdb_shows_the_sources_that_it_embeds() {
    let world = World::new();
    world.upload("global/Ledger.pdb", "dotnet/Ledger.pdb").await;
    let expected: serde_json::Value =
        serde_json::from_str(&fixture_text("expected/dotnet-Ledger.json")).unwrap();
    let text = fixture_text("sources/dotnet/Ledger.cs");
    let lines: Vec<&str> = text.lines().collect();
    let module = json!({
        "type": "pe_dotnet",
        "debug_id": "7b3c5a0e-41d9-4c6f-9a27-d0e85f1b6c34-8f2c41d6",
        "debug_file": "Ledger.pdb",
    });
    let mut shown = 0;
    for point in expected["frames"].as_array().unwrap() {
        let Some(line) = point["line"].as_u64() else {
            continue;
        };
        let mut crash = in_module(module.clone(), &[0]);
        let frame = &mut crash.stacktraces[0].frames[0];
        frame.instruction_addr = serde_json::from_value(point["il_offset"].clone()).unwrap();
        frame.function_id = serde_json::from_value(point["function_id"].clone()).unwrap();
        frame.addr_mode = "rel:0".parse().unwrap();
        let completed = world.symbolicate(&crash).await;
        let frame = &frames(&completed).next().unwrap().frame;
        assert_eq!(frame.lineno.map(u64::from), Some(line), "{point}");
        if let Some(text) = &frame.context_line {
            assert_eq!(text, lines[line as usize - 1]);
            shown += 1;
        } else {
            assert!(frame.source_link.is_some(), "{point}");
        }
    }
    assert!(shown > 0);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_blob_of_sources_costs_its_lines_and_is_made_again() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world
        .upload("global/a.src.zip", "bundle/crash.src.zip")
        .await;
    let entry = world.entry("global", CRASH, Kind::SourceCode).unwrap();
    let path = entry.ready().unwrap().blob.path.clone();
    world.caches.overwrite(&path, b"damaged".to_vec());
    let damaged = world
        .answer(&sample_crash(), &Scope::Global, Duration::ZERO)
        .await
        .unwrap();
    let SymbolicateOutcome::Completed(damaged, _) = damaged else {
        panic!("pending");
    };
    assert_eq!(function_names(&damaged).len(), 13);
    assert_eq!(lines_shown(&damaged), 0);
    world.settle().await;
    let repaired = world.another_instance().symbolicate(&sample_crash()).await;
    assert!(lines_shown(&repaired) > 0);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn the_other_files_of_a_bundle_are_used_if_one_is_not() {
    let world = World::new();
    let name = "/build/app/game/buffer.h";
    let text = fixture_text("sources/game/buffer.h");
    let long = "x".repeat(5_000);
    let files = [
        (name, text.as_str()),
        ("../../etc/passwd", "outside"),
        ("", "nameless"),
        (long.as_str(), "its path is too long"),
    ];
    put_bundle(&world, "global/a.src.zip", &files).await;
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let completed = world.symbolicate(&sample_crash()).await;
    assert!(lines_shown(&completed) > 0);
    let detail = completed.modules[0].debug_detail.as_deref().unwrap();
    assert!(
        detail.contains("is left out: its path is longer than 4096 bytes"),
        "{detail}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_file_of_a_bundle_with_more_than_64_mebibytes_is_left_out_with_the_reason() {
    let world = World::new();
    let large = "a line of text\n".repeat((65 << 20) / 15);
    let text = fixture_text("sources/game/buffer.h");
    let files = [
        ("/build/app/game/buffer.h", text.as_str()),
        ("/build/app/game/table.inc", large.as_str()),
    ];
    put_bundle(&world, "global/a.src.zip", &files).await;
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let completed = world.symbolicate(&sample_crash()).await;
    assert!(lines_shown(&completed) > 0);
    let detail = completed.modules[0].debug_detail.as_deref().unwrap();
    assert!(
        detail.contains("/build/app/game/table.inc is left out"),
        "{detail}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_module_that_is_in_no_bundle_requests_no_build() {
    let world = World::new();
    world.upload("global/inventory", "elf/inventory").await;
    let crash: Crash = in_module(json!({"type": "elf", "debug_id": INVENTORY}), &[0x1200]);
    world.symbolicate(&crash).await;
    assert_eq!(world.queues.calls().total(), 0);
    assert_eq!(world.entry("global", INVENTORY, Kind::SourceCode), None);
}
