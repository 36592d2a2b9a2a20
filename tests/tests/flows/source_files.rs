//! Source files that are looked up one by one: on servers of the debuginfod layout, and behind
//! links. What they show, what that costs, and what a hostile server does.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::json;
use symdepot::adapters::faulty::{How, Operation};
use symdepot::api::symbolicator::{CandidateReport, Completed, DownloadStatus, parse_request};
use symdepot::cache::{Entry, Kind};
use symdepot::domain::{Cause, HttpSource, Location, Scope, VersionControl};
use symdepot::flows::symbolicate::SymbolicateOutcome;
use symdepot::flows::{Settings, SourceSecret};
use symdepot_tests::harness::{
    Crash, World, fixture, fixture_text, in_module, linked_pdb, linked_to, oracle, pdb_with_stream,
    sample_crash,
};
use tokio::time::Instant;

use crate::servers::failure;
use crate::source_lines::{context, frames, in_the_sources, lines_shown, put_bundle};
use crate::{CRASH, CRASH_PE};

const HOUR: Duration = Duration::from_secs(3600);

/// The build id of the sample.
const BUILD_ID: &str = "ac456ebc7f4825f4367208b89f51ad481774aae7";

/// A debuginfod server, with other fields of its definition.
fn debuginfod(id: &str, more: serde_json::Value) -> HttpSource {
    let mut json = json!({
        "type": "http", "id": id, "url": format!("http://{id}.test/buildid"), "layout": {"type": "debuginfod"},
    });
    let fields = json.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    serde_json::from_value(json).unwrap()
}

fn with_server(more: serde_json::Value) -> World {
    World::with(|settings| settings.sources = vec![debuginfod("dbg", more).into()])
}

/// The location of a source file of the sample on the server.
fn source_at(path: &str) -> Location {
    Location::new(format!("http://dbg.test/buildid/{BUILD_ID}/source{path}"))
}

fn debug_file_at() -> Location {
    Location::new(format!("http://dbg.test/buildid/{BUILD_ID}/debuginfo"))
}

/// Returns the requests for source files since the last call.
fn asked_for_sources(world: &World) -> Vec<Location> {
    let asked = world.servers.take_asked().into_iter();
    asked
        .filter(|location| location.as_str().contains("/source/"))
        .collect()
}

/// A crash in the sample whose client knows the lines: those of frames in these files.
fn in_files<'a>(paths: impl IntoIterator<Item = &'a str>) -> Crash {
    let frame = |path| json!({"instruction_addr": "0x100000010", "abs_path": path, "lineno": 2});
    let frames: Vec<_> = paths.into_iter().map(frame).collect();
    let body = json!({
        "modules": [{"type": "elf", "code_id": BUILD_ID, "debug_id": CRASH, "image_addr": "0x100000000"}],
        "stacktraces": [{"frames": frames}],
        "options": {"dif_candidates": true},
    });
    parse_request(body.to_string().as_bytes()).unwrap()
}

/// Returns what the response says about a location.
fn candidate<'a>(completed: &'a Completed, location: &Location) -> Option<&'a CandidateReport> {
    let mut candidates = completed.modules[0].candidates.iter();
    candidates.find(|candidate| candidate.location == *location)
}

#[tokio::test(start_paused = true)]
async fn frames_show_the_lines_of_files_on_a_debuginfod_server_each_of_which_is_asked_for_once() {
    let world = with_server(json!({}));
    world
        .servers
        .put(&debug_file_at(), fixture("elf/crash.debug"));
    for name in [
        "buffer.h",
        "mesh.h",
        "scene.cpp",
        "game.cpp",
        "crash.cpp",
        "renderer.cpp",
    ] {
        let text = fixture_text(&format!("sources/game/{name}"));
        let path = format!("/build/app/game/{name}");
        world.servers.put(&source_at(&path), text);
    }
    let mut crash = sample_crash();
    crash.options.dif_candidates = true;
    let completed = world.symbolicate(&crash).await;
    let asked = asked_for_sources(&world);
    let files: BTreeSet<Location> = frames(&completed)
        .filter_map(|frame| frame.frame.abs_path.as_deref().map(source_at))
        .collect();
    assert_eq!(asked.iter().cloned().collect::<BTreeSet<_>>(), files);
    assert_eq!(asked.len(), files.len(), "{asked:?}");
    let mut shown = 0;
    for frame in frames(&completed) {
        let path = frame.frame.abs_path.as_deref().unwrap();
        let candidate = candidate(&completed, &source_at(path)).unwrap();
        if matches!(candidate.download, DownloadStatus::NotFound) {
            assert_eq!(frame.frame.context_line, None, "{path}");
        } else {
            assert_eq!(context(frame), in_the_sources(frame), "{path}");
            shown += 1;
        }
    }
    assert!(shown >= 8, "{shown}");
    assert!(completed.modules[0].features.has_sources);
    let again = world.another_instance().symbolicate(&crash).await;
    assert_eq!(again, completed);
    assert_eq!(asked_for_sources(&world), []);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn files_of_a_server_cost_a_warm_request_no_call() {
    let world = with_server(json!({}));
    world.servers.put(&source_at("/src/a.c"), "one\ntwo\nthree");
    let with_lines = in_files(["/src/a.c", "/src/missing.c"]);
    let mut without = with_lines.clone();
    without.options.apply_source_context = false;
    assert_eq!(lines_shown(&world.symbolicate(&with_lines).await), 1);
    let calls = async |crash: &Crash| {
        // What is ready is valid for less than a minute: it is read now, and not while calls are
        // counted.
        world.pass(Duration::from_secs(60)).await;
        world.symbolicate(crash).await;
        let before = world.calls();
        for _ in 0..5 {
            world.pass(Duration::from_secs(2)).await;
            world.symbolicate(crash).await;
        }
        world.calls() - before
    };
    // The one call reads whether something was uploaded to the scope.
    assert_eq!((calls(&without).await, calls(&with_lines).await), (5, 5));
}

#[tokio::test(start_paused = true)]
async fn thirty_frames_in_ten_files_cost_one_message_and_two_rounds_of_reads() {
    const LATENCY: Duration = Duration::from_millis(10);
    let world = with_server(json!({}));
    let paths: Vec<String> = (0..10).map(|file| format!("/src/{file}.c")).collect();
    for path in &paths {
        world.servers.put(&source_at(path), "one\ntwo\nthree");
    }
    let crash = in_files(paths.iter().cycle().take(30).map(String::as_str));
    world.leave_pending(&crash).await;
    world.settle().await;
    world.leave_pending(&crash).await;
    let messages = world.queues.sent();
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert_eq!(messages[0].message.each().count(), 10);
    world.settle().await;
    assert_eq!(asked_for_sources(&world).len(), 10);
    assert_eq!(lines_shown(&world.symbolicate(&crash).await), 30);

    // An instance without a cache: the entries of the names and of bundles, then those of all
    // files, then their blobs.
    let cold = world.distant_instance(LATENCY);
    let (loads, gets) = (
        world.records.calls().of("load"),
        world.caches.calls().of("get"),
    );
    let began = Instant::now();
    let answer = cold.answer(&crash, &Scope::Global, Duration::ZERO).await;
    assert!(
        matches!(answer, Ok(SymbolicateOutcome::Completed(..))),
        "{answer:?}"
    );
    assert_eq!(began.elapsed(), LATENCY * 2);
    assert_eq!(world.records.calls().of("load") - loads, 2);
    assert_eq!(world.caches.calls().of("get") - gets, 10);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_a_server_does_not_have_is_asked_for_again_after_the_time_of_a_miss() {
    for (more, time) in [(json!({}), HOUR), (json!({"is_public": true}), HOUR * 24)] {
        let world = with_server(more);
        let crash = in_files(["/src/a.c"]);
        let completed = world.symbolicate(&crash).await;
        let missed = candidate(&completed, &source_at("/src/a.c")).unwrap();
        assert_eq!(missed.download, DownloadStatus::NotFound);
        assert_eq!(asked_for_sources(&world).len(), 1);
        world.servers.put(&source_at("/src/a.c"), "one\ntwo");
        world.pass(time - Duration::from_secs(60)).await;
        world.another_instance().symbolicate(&crash).await;
        assert_eq!(asked_for_sources(&world).len(), 0);
        world.pass(time / 8).await;
        let completed = world.another_instance().symbolicate(&crash).await;
        assert_eq!(
            (asked_for_sources(&world).len(), lines_shown(&completed)),
            (1, 1)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn files_in_bundles_and_of_uploaded_modules_are_not_sought_on_servers() {
    let world = with_server(json!({}));
    put_bundle(
        &world,
        "global/a.src.zip",
        &[("/src/a.c", "of\nthe bundle")],
    )
    .await;
    world.servers.put(&source_at("/src/a.c"), "of\nthe server");
    world.servers.put(&source_at("/src/b.c"), "of\nthe server");
    let completed = world.symbolicate(&in_files(["/src/a.c", "/src/b.c"])).await;
    let lines = frames(&completed).map(|frame| frame.frame.context_line.clone().unwrap());
    assert_eq!(lines.collect::<Vec<_>>(), ["the bundle", "the server"]);
    assert_eq!(asked_for_sources(&world), [source_at("/src/b.c")]);

    let world = with_server(json!({}));
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.symbolicate(&sample_crash()).await;
    assert_eq!(world.servers.take_asked(), []);
}

#[tokio::test(start_paused = true)]
async fn only_servers_that_may_have_the_file_are_asked() {
    let asked = async |more: serde_json::Value, path: &str| {
        let world = with_server(more);
        world.symbolicate(&in_files([path])).await;
        asked_for_sources(&world)
    };
    let path = "/usr/src/c++/13/../vector 1.h";
    let at = source_at("/usr/src/c%2B%2B/vector%201.h");
    assert_eq!(asked(json!({}), path).await, [at]);
    let sources = json!({"filters": {"filetypes": ["elf_debug", "sourcebundle"]}});
    assert_eq!(asked(sources, "/a.c").await, [source_at("/a.c")]);
    for (more, path) in [
        (
            json!({"filters": {"filetypes": ["elf_code", "elf_debug"]}}),
            "/a.c",
        ),
        (json!({"filters": {"path_patterns": ["*/other"]}}), "/a.c"),
        (json!({"layout": {"type": "native"}}), "/a.c"),
        (json!({}), "a.c"),
        (json!({}), "C:\\a.c"),
        (json!({}), "/.."),
        (json!({}), "/a\u{7}.c"),
    ] {
        assert_eq!(asked(more.clone(), path).await, [], "{more} {path}");
    }
    // Whatever a path contains, the location stays below the address of the module.
    let at = asked(json!({}), "/../../../../other/%2e%2e/x?y#z").await;
    assert_eq!(at, [source_at("/other/%252e%252e/x%3Fy%23z")]);
}

#[tokio::test(start_paused = true)]
async fn a_request_seeks_at_most_64_files_those_of_the_crashed_thread_first() {
    let world = with_server(json!({}));
    let names: Vec<String> = (0..100).map(|file| format!("/src/{file}.c")).collect();
    let mut crash = in_files(names.iter().map(String::as_str));
    let mut crashed = in_files(["/src/crashed.c"]).stacktraces;
    crashed[0].is_requesting = Some(true);
    crash.stacktraces.append(&mut crashed);
    world.symbolicate(&crash).await;
    let asked: BTreeSet<Location> = asked_for_sources(&world).into_iter().collect();
    let first = (0..63).map(|file| source_at(&format!("/src/{file}.c")));
    let first = first.chain([source_at("/src/crashed.c")]);
    assert_eq!(asked, first.collect());
}

/// Answers a request whose builds may take longer than it waits.
async fn settled(world: &World, crash: &Crash) -> Completed {
    for _ in 0..4 {
        let answer = world.answer(crash, &Scope::Global, Duration::ZERO).await;
        match answer.unwrap() {
            SymbolicateOutcome::Completed(completed, _) => return *completed,
            SymbolicateOutcome::Pending => world.settle().await,
        }
    }
    panic!("not finished: {world:?}")
}

/// Returns the status of a file that the server answers so, and how long the request took.
async fn status_of(answer: impl FnOnce(&World, &Location)) -> (DownloadStatus, Duration) {
    let world = with_server(json!({}));
    let at = source_at("/src/a.c");
    answer(&world, &at);
    world.servers.put(&source_at("/src/b.c"), "one\ntwo");
    let began = Instant::now();
    let completed = settled(&world, &in_files(["/src/a.c", "/src/b.c"])).await;
    // The other file of the same server is not harmed.
    assert_eq!(lines_shown(&completed), 1);
    world.check();
    let candidate = candidate(&completed, &at).unwrap();
    (candidate.download.clone(), began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn each_hostile_file_of_a_server_has_a_status_that_says_so() {
    const LIMIT: usize = 16 << 20;
    let error = |status: &DownloadStatus, says: &str| match status {
        DownloadStatus::Error { details } | DownloadStatus::NoPerm { details } => {
            assert!(details.contains(says), "{details}");
        }
        other => panic!("{other:?}"),
    };
    let (status, _) = status_of(|world, at| world.servers.put(at, vec![b'x'; LIMIT + 1])).await;
    error(&status, "it has more than 16777216 bytes");
    let (status, _) = status_of(|world, at| {
        world.servers.put(at, vec![b'x'; LIMIT + 1]);
        world.servers.hide_size(at);
    })
    .await;
    error(&status, "it has more than 16777216 bytes");
    let (status, took) = status_of(|world, at| {
        world.servers.put(at, vec![b'x'; 1 << 20]);
        world.servers.slow_down(at, Duration::from_secs(7));
    })
    .await;
    error(&status, "did not arrive within 30 seconds");
    assert!(took < Duration::from_secs(60), "{took:?}");
    let page = "\u{feff}\r\n<!DOCTYPE HTML><title>Sign in</title>";
    let (status, _) = status_of(|world, at| world.servers.put(at, page)).await;
    error(&status, "a web page instead of the file");
    for binary in [&b"\x7fELF\0\0"[..], b"\xff\xfe", b"a\0b"] {
        let (status, _) = status_of(|world, at| world.servers.put(at, binary.to_vec())).await;
        assert_eq!(status, DownloadStatus::Malformed);
    }
    let (status, _) = status_of(|world, at| {
        world
            .servers
            .fail(at, failure(Cause::PermissionDenied, None));
    })
    .await;
    error(&status, "the server said so");
}

#[tokio::test(start_paused = true)]
async fn one_line_of_16_mebibytes_and_millions_of_empty_lines_are_shown() {
    let world = with_server(json!({}));
    world.servers.put(
        &source_at("/long.c"),
        format!("1\n{}", "x".repeat((16 << 20) - 2)),
    );
    world
        .servers
        .put(&source_at("/empty.c"), "\n".repeat(16 << 20));
    let completed = world.symbolicate(&in_files(["/long.c", "/empty.c"])).await;
    let lines: Vec<&str> = frames(&completed)
        .map(|frame| frame.frame.context_line.as_deref().unwrap())
        .collect();
    assert_eq!(
        lines,
        [format!("{} {{snip}}", "x".repeat(140)).as_str(), ""]
    );
}

#[tokio::test(start_paused = true)]
async fn a_damaged_blob_of_a_file_costs_its_lines_and_is_downloaded_again() {
    let world = with_server(json!({}));
    let crash = in_files(["/src/a.c"]);
    world.servers.put(&source_at("/src/a.c"), "one\ntwo");
    world.symbolicate(&crash).await;
    let entries = world.entries().into_iter();
    let mut ready = entries.filter_map(|entry| entry.ready().cloned());
    let path = ready.next().unwrap().blob.path;
    world.caches.overwrite(&path, b"damaged".to_vec());
    let instance = world.another_instance();
    assert_eq!(lines_shown(&instance.symbolicate(&crash).await), 0);
    world.settle().await;
    assert_eq!(
        lines_shown(&world.another_instance().symbolicate(&crash).await),
        1
    );
    world.check();

    // If that happens again within an hour, the file is given up for now. It is never parsed.
    let path_of_file = || {
        let entries = world.entries().into_iter();
        let mut ready = entries.filter_map(|entry| entry.ready().cloned());
        ready.next().unwrap().blob.path
    };
    world.caches.overwrite(&path_of_file(), b"damaged".to_vec());
    world.servers.take_asked();
    let opened = world.derivations.opened();
    let instance = world.another_instance();
    assert_eq!(lines_shown(&instance.symbolicate(&crash).await), 0);
    world.settle().await;
    assert_eq!(world.derivations.opened(), opened);
    assert_eq!(asked_for_sources(&world), []);
    let given_up = world.entries().into_iter();
    let mut given_up = given_up.filter_map(|entry| entry.missing().cloned());
    let is_it = |detail: &str| detail.contains("was already replaced within the last hour");
    assert!(
        given_up.any(|placeholder| is_it(&placeholder.missing.detail)),
        "{}",
        world.summary()
    );
}

#[tokio::test(start_paused = true)]
async fn a_file_that_cannot_be_stored_is_tried_again_without_waiting_for_the_lease_to_end() {
    let world = with_server(json!({}));
    let crash = in_files(["/src/a.c"]);
    world.servers.put(&source_at("/src/a.c"), "one\ntwo");
    // The first message is about the module, which the server does not have.
    let wait = Duration::ZERO;
    world.answer(&crash, &Scope::Global, wait).await.unwrap();
    world.settle().await;
    world.answer(&crash, &Scope::Global, wait).await.unwrap();
    let sent = world.queues.drain().remove(0);
    world.faults.fail_always(Operation::CreateBlob, How::Before);
    assert!(world.serve(&sent.message).await.is_err());
    world.faults.heal();
    let now = world.now();
    let leased = |entry: &Entry| entry.live_lease(now).is_some();
    assert!(!world.entries().iter().any(leased));
    world.serve(&sent.message).await.unwrap();
    world.settle().await;
    assert_eq!(lines_shown(&world.symbolicate(&crash).await), 1);
}

// Links.

/// What the sample links to begins so.
const LINK: &str = "https://git.test/";

fn linked_file() -> Location {
    Location::new(linked_to(LINK, "dotnet/Ledger.cs"))
}

/// A world with an uploaded portable PDB that links to its source, which the server has.
async fn linked_world(key: &str, change: impl FnOnce(&mut Settings)) -> World {
    let world = World::with(change);
    let event = world.put(key, linked_pdb(LINK));
    world.deliver(&event).await.unwrap();
    world.settle().await;
    let text = fixture_text("sources/dotnet/Ledger.cs");
    world.servers.put(&linked_file(), text);
    world
}

fn allows(settings: &mut Settings, links: serde_json::Value) {
    settings.source_links = serde_json::from_value(links).unwrap();
}

fn with_secret(settings: &mut Settings) {
    let secret = SourceSecret::new("a secret of more than thirty-two letters");
    settings.request_sources = Some(secret.unwrap());
}

/// A crash in the first line of the first method of the sample, with this `scraping`.
fn ledger(scraping: serde_json::Value) -> Crash {
    let body = json!({
        "modules": [{"type": "pe_dotnet", "debug_id": "7b3c5a0e-41d9-4c6f-9a27-d0e85f1b6c34-8f2c41d6", "debug_file": "Ledger.pdb"}],
        "stacktraces": [{"frames": [{"instruction_addr": 0, "function_id": 1, "addr_mode": "rel:0"}]}],
        "options": {"dif_candidates": true},
        "scraping": scraping,
    });
    parse_request(body.to_string().as_bytes()).unwrap()
}

/// Checks that the one frame shows the line of the source that the sample was made from.
fn assert_line(completed: &Completed) {
    let text = fixture_text("sources/dotnet/Ledger.cs");
    let lines: Vec<&str> = text.lines().collect();
    let frame = &frames(completed).next().unwrap().frame;
    assert_eq!(frame.lineno, Some(13));
    assert_eq!(frame.context_line.as_deref(), Some(lines[12]));
    assert_eq!(frame.pre_context, lines[7..12]);
    assert_eq!(frame.post_context, lines[13..18]);
    assert_eq!(frame.source_link.as_deref(), Some(linked_file().as_str()));
}

#[tokio::test(start_paused = true)]
async fn a_link_is_shown_and_followed_only_where_the_operator_and_the_request_allow_it() {
    let off = json!({"enabled": false, "allowed_origins": ["*"], "headers": {}});
    for (links, scraping, is_followed) in [
        (json!([]), json!({}), false),
        (json!(["other.test"]), json!({}), false),
        (json!(["*"]), off, false),
        (json!(["*"]), json!({}), true),
        (json!(["*.git.test"]), json!({"allowed_origins": []}), true),
    ] {
        let world = linked_world("global/Ledger.pdb", |settings| {
            allows(settings, links.clone());
        })
        .await;
        let completed = world.symbolicate(&ledger(scraping)).await;
        let candidate = candidate(&completed, &linked_file());
        if is_followed {
            assert_line(&completed);
            assert_eq!(candidate.unwrap().source.id(), "sourcelink");
            assert_eq!(world.servers.take_asked(), [linked_file()]);
            assert_eq!(world.servers.take_headers(), [BTreeMap::new()]);
            world
                .another_instance()
                .symbolicate(&ledger(json!({})))
                .await;
        } else {
            assert_eq!((lines_shown(&completed), candidate), (0, None), "{links}");
            let frame = &frames(&completed).next().unwrap().frame;
            assert_eq!(frame.source_link.as_deref(), Some(linked_file().as_str()));
        }
        assert_eq!(world.servers.take_asked(), [], "{links}");
        world.check();
    }
}

#[tokio::test(start_paused = true)]
async fn headers_of_a_request_are_sent_to_its_origins_and_are_found_nowhere_else() {
    const MARKER: &str = "0penSesame";
    let scraping = |value: &str, origin: &str| json!({"enabled": true, "allowed_origins": [origin], "headers": {"x-token": value}});
    let world = linked_world("global/Ledger.pdb", |settings| {
        allows(settings, json!(["*"]));
        with_secret(settings);
    })
    .await;
    let sent = async |scraping: serde_json::Value| {
        assert_line(
            &world
                .another_instance()
                .symbolicate(&ledger(scraping))
                .await,
        );
        let headers = world.servers.take_headers();
        let values = headers
            .into_iter()
            .map(|headers| headers.get("x-token").cloned());
        values.collect::<Vec<_>>()
    };
    // A request without the headers has entries of its own, and so has each value.
    assert_eq!(
        sent(scraping(MARKER, "git.test")).await,
        [Some(MARKER.to_owned())]
    );
    assert_eq!(sent(scraping(MARKER, "git.test")).await, []);
    assert_eq!(sent(scraping(MARKER, "*.other.test")).await, [None]);
    assert_eq!(sent(json!({})).await, []);
    let guessed = "guessed".to_owned();
    assert_eq!(
        sent(scraping("guessed", "https://git.test/")).await,
        [Some(guessed)]
    );
    let completed = world.symbolicate(&ledger(scraping(MARKER, "*"))).await;
    for text in [
        format!("{world:?}"),
        format!("{:?}", world.records.items()),
        serde_json::to_string(&completed).unwrap(),
        format!("{:?}", ledger(scraping(MARKER, "*"))),
    ] {
        assert!(!text.contains(MARKER), "{text}");
    }

    // Without a secret to encrypt them with, headers are neither kept nor sent.
    let world = linked_world("global/Ledger.pdb", |settings| {
        allows(settings, json!(["*"]));
    })
    .await;
    let mut crash = ledger(scraping(MARKER, "*"));
    assert_line(&world.symbolicate(&crash).await);
    assert_eq!(world.servers.take_headers(), [BTreeMap::new()]);
    assert!(world.service().drop_unusable_headers(&mut crash.scraping));
    assert!(crash.scraping.headers.is_empty());
}

#[tokio::test(start_paused = true)]
async fn credentials_of_the_operator_are_sent_to_their_addresses_and_take_precedence() {
    let rules = json!([
        {"origin": format!("{LINK}x"), "headers": {"authorization": "of a part"}},
        {"origin": "git.test", "headers": {"authorization": "of the host"}},
    ]);
    let world = linked_world("global/Ledger.pdb", |settings| {
        allows(settings, rules);
        with_secret(settings);
    })
    .await;
    let headers = json!({"allowed_origins": ["*"], "headers": {"authorization": "of the request"}});
    assert_line(&world.symbolicate(&ledger(headers)).await);
    let sent = world.servers.take_headers();
    assert_eq!(
        sent,
        [BTreeMap::from([(
            "authorization".to_owned(),
            "of the host".to_owned()
        )])]
    );
    // `symbolicate` does not know them.
    let without = world.deployed_with(|settings| {
        settings.source_links = settings.source_links.clone().without_credentials();
    });
    assert_line(&without.symbolicate(&ledger(json!({}))).await);
    assert_eq!(
        world.servers.take_headers(),
        [] as [BTreeMap<String, String>; 0]
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_link_leads_to_belongs_to_the_scope_of_its_file() {
    for (key, expected) in [("global/Ledger.pdb", "global"), ("acme/Ledger.pdb", "acme")] {
        let world = linked_world(key, |settings| allows(settings, json!(["*"]))).await;
        let scope: Scope = "acme".parse().unwrap();
        assert_line(&world.symbolicate_for(&scope, &ledger(json!({}))).await);
        let entries = world.entries();
        let is_file = |kind, id: &str| kind == Kind::SourceCode && id.contains("git.test");
        let entry = entries
            .iter()
            .find(|entry| is_file(entry.kind(), &entry.module().id));
        assert_eq!(entry.unwrap().module().scope.to_string(), expected);
        let other: Scope = "other".parse().unwrap();
        let elsewhere = world.symbolicate_for(&other, &ledger(json!({}))).await;
        assert_eq!(lines_shown(&elsewhere), usize::from(expected == "global"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_link_that_is_no_longer_allowed_is_not_followed_by_a_message_that_waits() {
    let world = linked_world("global/Ledger.pdb", |settings| {
        allows(settings, json!(["*"]));
    })
    .await;
    let crash = ledger(json!({}));
    world.leave_pending(&crash).await;
    let world = world.deployed_with(|settings| allows(settings, json!([])));
    world.settle().await;
    assert_eq!(world.servers.take_asked(), []);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn an_unsafe_link_in_a_debug_file_is_shown_and_not_followed() {
    for begin in ["ftp://git.test/", "https://me:sesame@git.test/"] {
        let world = World::with(|settings| allows(settings, json!(["*"])));
        let event = world.put("global/Ledger.pdb", linked_pdb(begin));
        world.deliver(&event).await.unwrap();
        world.settle().await;
        let completed = world.symbolicate(&ledger(json!({}))).await;
        assert_eq!(lines_shown(&completed), 0);
        assert_eq!(world.servers.take_asked(), [], "{begin}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pdb_links_to_the_files_of_its_source_server_and_its_source_link() {
    let names = [
        "buffer.h",
        "crash.cpp",
        "entry.cpp",
        "game.cpp",
        "game.h",
        "mesh.h",
        "renderer.cpp",
        "renderer.h",
        "scene.cpp",
        "scene.h",
        "vector.h",
    ];
    let folder = "/build/app/game";
    let files: Vec<String> = names
        .iter()
        .map(|name| format!("{folder}/{name}*{name}*0123abc\r\n"))
        .collect();
    let srcsrv = format!(
        "SRCSRV: ini ---\r\nVERSION=2\r\nVERCTRL=http\r\nSRCSRV: variables ---\r\nHGSERVER=https://git.test\r\n\
         SRCSRVTRG=%hgserver%/raw/%var3%/%var2%\r\nSRCSRV: source files ---\r\n{}SRCSRV: end ---\r\n",
        files.concat()
    );
    let documents = json!({"documents": {format!("{folder}/*"): "https://git.test/raw/0123abc/*"}});
    for (stream, content) in [("srcsrv", srcsrv), ("sourcelink", documents.to_string())] {
        let world = World::with(|settings| allows(settings, json!(["git.test"])));
        let pdb = pdb_with_stream(&fixture("pe/x64/crash.pdb"), stream, content.as_bytes());
        let event = world.put("global/crash.pdb", pdb);
        world.deliver(&event).await.unwrap();
        world.settle().await;
        for name in names {
            let at = Location::new(format!("https://git.test/raw/0123abc/{name}"));
            world
                .servers
                .put(&at, fixture_text(&format!("sources/game/{name}")));
        }
        let oracle = oracle("expected/pe-x64-crash.pdb.llvm-symbolizer.json");
        let address = |hex: &str| u64::from_str_radix(&hex[2..], 16).unwrap();
        let addresses = oracle.frames.iter();
        let addresses: Vec<u64> = addresses.map(|frame| address(&frame.address)).collect();
        let crash = in_module(json!({"type": "pe", "debug_id": CRASH_PE}), &addresses);
        let completed = world.symbolicate(&crash).await;
        // `VERCTRL` says `http`, if there is such a stream.
        let vcs = completed.modules[0].features.srcsrv_vcs;
        assert_eq!(vcs, (stream == "srcsrv").then_some(VersionControl::Other));
        let mut shown = 0;
        for frame in frames(&completed) {
            let frame = &frame.frame;
            let path = frame.abs_path.as_deref().unwrap_or_default();
            let name = path.rsplit('/').next().unwrap();
            if !names.contains(&name) {
                assert_eq!(frame.source_link, None, "{path}");
                continue;
            }
            let link = format!("https://git.test/raw/0123abc/{name}");
            assert_eq!(frame.source_link, Some(link), "{path}");
            let text = fixture_text(&format!("sources/game/{name}"));
            let line = text.lines().nth(frame.lineno.unwrap() as usize - 1);
            assert_eq!(frame.context_line.as_deref(), line, "{path}");
            shown += 1;
        }
        assert!(shown > 10, "{shown}");
        world.check();
    }
}
