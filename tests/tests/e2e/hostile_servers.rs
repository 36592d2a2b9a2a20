//! Symbol servers that misbehave: each is a candidate that says what happened, in time and in
//! bounded memory, and does not harm the next module of the same source.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use symdepot_tests::hostile_server::{Behavior, HostileServer};
use symdepot_tests::made_up::MadeUp;
use symdepot_tests::stack::{Client, until};

use crate::Running;

/// The maximum size of a file in these tests, in bytes.
const LIMIT: u64 = 4 << 20;

/// The size of what a bomb decodes to, in bytes.
const BOMB: usize = 256 << 20;

/// The most memory that `derive` may use, in bytes: as much as for harmless files of that size.
const MEMORY: u64 = 96 << 20;

/// The time in which a module must have its status.
const PATIENCE: Duration = Duration::from_secs(60);

fn id(module: usize) -> String {
    format!("bad0cafe-0000-4000-8000-{module:012x}")
}

/// Returns a symbol file of a module.
fn file(module: usize, name: &str) -> Vec<u8> {
    let id = id(module).replace('-', "").to_ascii_uppercase();
    format!("MODULE Linux x86_64 {id}0 {name}\nFUNC 1000 10 0 function_of_{name}\n").into_bytes()
}

/// Returns a request with a frame in each module.
fn crash_in(names: &[&str], source: &str) -> Value {
    let modules = names.iter().enumerate().map(|(at, name)| {
        json!({
            "type": "elf", "debug_id": id(at), "debug_file": name, "code_file": name,
            "image_addr": format!("{:#x}", (at + 1) << 32), "image_size": 0x10000,
        })
    });
    let frames = (0..names.len()).map(|at| {
        let address = ((at + 1) << 32) + 0x1004;
        json!({"instruction_addr": format!("{address:#x}")})
    });
    json!({
        "modules": modules.collect::<Vec<_>>(),
        "stacktraces": [{"frames": frames.collect::<Vec<_>>()}],
        "sources": [source],
        "options": {"dif_candidates": true},
    })
}

/// Returns bombs in each encoding, as responses.
fn bombs() -> [(&'static str, Behavior); 4] {
    let zeros = vec![0; BOMB];
    let level = flate2::Compression::fast();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), level);
    gzip.write_all(&zeros).unwrap();
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), level);
    zlib.write_all(&zeros).unwrap();
    let mut brotli = Vec::new();
    brotli::BrotliCompress(&mut &zeros[..], &mut brotli, &Default::default()).unwrap();
    let encoded = |encoding: &str, bytes: Vec<u8>| {
        assert!((bytes.len() as u64) < LIMIT, "{encoding}");
        Behavior::file(&format!("content-encoding: {encoding}\r\n"), &bytes)
    };
    [
        ("gzip-bomb", encoded("gzip", gzip.finish().unwrap())),
        ("deflate-bomb", encoded("deflate", zlib.finish().unwrap())),
        ("br-bomb", encoded("br", brotli)),
        (
            "zstd-bomb",
            encoded("zstd", zstd::encode_all(&zeros[..], 1).unwrap()),
        ),
    ]
}

#[tokio::test]
async fn each_hostile_server_is_a_candidate_that_says_what_happened_and_harms_no_other_module() {
    const ENDLESS: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";
    let target = HostileServer::start(Vec::new()).await.unwrap();
    // What a candidate says, in the order of the modules. The good one is searched last.
    let expected = [
        ("endless", "error", "exceed the limit"),
        ("announced", "error", "exceed the limit"),
        ("gzip-bomb", "error", "exceed the limit"),
        ("deflate-bomb", "error", "exceed the limit"),
        ("br-bomb", "error", "exceed the limit"),
        ("zstd-bomb", "error", "exceed the limit"),
        ("short", "error", "closed the connection while sending"),
        ("two-lengths", "error", "cannot be reached"),
        ("range", "error", "206 Partial Content"),
        ("redirect", "noperm", "private network"),
        ("good", "ok", ""),
    ];
    let names = expected.map(|(name, _, _)| name);
    let good = file(names.len() - 1, "good");
    let response = |headers: &str| Behavior::response("200 OK", headers, &good);
    let mut behaviors = vec![
        (
            "/endless/",
            Behavior::Endless(ENDLESS.into(), vec![b'a'; 64 << 10], Duration::ZERO),
        ),
        ("/announced/", response("content-length: 99999999999\r\n")),
        ("/short/", response("content-length: 4000\r\n")),
        (
            "/two-lengths/",
            response("content-length: 1\r\ncontent-length: 2\r\n"),
        ),
        (
            "/range/",
            Behavior::response("206 Partial Content", "content-length: 1\r\n", b"M"),
        ),
        (
            "/redirect/",
            Behavior::redirect(&format!("{}/good", target.url())),
        ),
        ("/good/", Behavior::file("", &good)),
    ];
    behaviors.extend(bombs());
    let server = HostileServer::start(behaviors).await.unwrap();
    let sources = json!([{
        "id": "hostile", "type": "http", "url": server.url(), "is_private": true,
        "filters": {"filetypes": ["breakpad"]},
    }]);
    let running = Running::start_with(|options| {
        options
            .variable("SOURCES", sources)
            .variable("DIF_MAX_BYTES", LIMIT)
    })
    .await;
    let client = running.client();
    let began = Instant::now();
    let request = crash_in(&names, "hostile");
    let completed = client.completed_at_last(&request).await.unwrap();
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    for (at, (name, status, says)) in expected.into_iter().enumerate() {
        let candidates = &completed["modules"][at]["candidates"];
        let download = &candidates[0]["download"];
        assert_eq!(download["status"], status, "{name}: {candidates:#}");
        let details = download["details"].as_str().unwrap_or_default();
        assert!(details.contains(says), "{name}: {details}");
    }
    let last = &completed["stacktraces"][0]["frames"][names.len() - 1];
    assert_eq!(last["function"], "function_of_good", "{last:#}");
    assert_eq!(target.asked(), [""; 0]);
    let stats = client.stats().await.unwrap();
    let most = stats.function("derive").max_rss;
    assert!(most < MEMORY, "peak memory: {most} bytes");
}

#[tokio::test]
async fn a_listing_of_a_million_files_is_a_malformed_candidate() {
    let entry = br#"{"id": "1", "symbolType": "elf"},"#;
    let million = [&b"["[..], &entry.repeat(1_000_000), br#"{"id": "1"}]"#].concat();
    let server = HostileServer::start(vec![("/files/", Behavior::file("", &million))]);
    let server = server.await.unwrap();
    let sources = json!([{
        "id": "sentry", "type": "sentry", "url": format!("{}/files/", server.url()), "token": "t", "is_private": true,
    }]);
    let running = Running::start_with(|options| options.variable("SOURCES", sources)).await;
    let client = running.client();
    let began = Instant::now();
    let request = crash_in(&["first", "second"], "sentry");
    let completed = client.completed_at_last(&request).await.unwrap();
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    for module in 0..2 {
        let candidates = completed["modules"][module]["candidates"]
            .as_array()
            .unwrap();
        assert_eq!(candidates.len(), 1, "{candidates:#?}");
        assert_eq!(candidates[0]["download"]["status"], "malformed");
        assert_eq!(completed["modules"][module]["debug_status"], "malformed");
    }
}

/// A server that sends a file without an end, just fast enough: a build is held until the server is
/// dropped, or for minutes.
async fn slow_server() -> HostileServer {
    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";
    let piece = vec![b'a'; 64 << 10];
    let slow = Behavior::Endless(HEAD.into(), piece, Duration::from_millis(100));
    HostileServer::start(vec![("/slow/", slow)]).await.unwrap()
}

/// Returns the number of files that were requested from these servers.
fn requested(servers: &[HostileServer]) -> usize {
    let asked = servers.iter().flat_map(HostileServer::asked);
    asked.collect::<BTreeSet<String>>().len()
}

/// Starts a stack with these sources, whose `derive` has four runs.
async fn start_with_four_runs(sources: [(&str, &HostileServer); 2]) -> Running {
    let sources = sources.map(|(id, server)| {
        json!({"id": id, "type": "http", "url": server.url(), "is_private": true, "filters": {"filetypes": ["breakpad"]}})
    });
    let sources = json!(sources);
    Running::start_with(|options| options.variable("SOURCES", sources).event_concurrency(4)).await
}

/// Requests eight builds, from these sources in turn.
async fn request_builds(client: &Client, sources: &[&str]) {
    for number in 1..=8 {
        let mut crash = crash_in(&["slow"], sources[number % sources.len()]);
        crash["modules"][0]["debug_id"] = json!(id(number));
        let reply = client.symbolicate("timeout=0", &crash).await.unwrap();
        assert_eq!(reply.body["status"], "pending", "{}", reply.text);
    }
}

/// Two servers hold as many builds as they can, three of four runs: without the run that is kept,
/// the upload would wait for one of them to end.
#[tokio::test]
async fn an_upload_is_applied_while_slow_servers_hold_builds() {
    let servers = [slow_server().await, slow_server().await];
    let running = start_with_four_runs([("first", &servers[0]), ("second", &servers[1])]).await;
    let client = running.client();
    request_builds(client, &["first", "second"]).await;
    until("three builds", PATIENCE, async || {
        (requested(&servers) == 3).then_some(())
    })
    .await
    .unwrap();

    let module = MadeUp::new(1, 3);
    client.upload(&module.key(), module.file()).await.unwrap();
    until("the upload", PATIENCE, async || {
        // Until its event has arrived, the response is 404.
        let reply = client.explain(&module.key()).await.unwrap();
        (reply.body["state"] == "applied").then_some(())
    })
    .await
    .unwrap();
    let mut crash = module.crash();
    crash["sources"] = json!(["uploads"]);
    let completed = client.completed_at_last(&crash).await.unwrap();
    module.assert_symbolicated(&completed);
    assert_eq!(requested(&servers), 3, "builds have ended meanwhile");
}

#[tokio::test]
async fn a_slow_server_leaves_runs_to_the_builds_from_another_one() {
    let slow = [slow_server().await];
    let good = Behavior::file("", &file(0, "good"));
    let good = HostileServer::start(vec![("/good/", good)]).await.unwrap();
    let running = start_with_four_runs([("slow", &slow[0]), ("good", &good)]).await;
    let client = running.client();
    request_builds(client, &["slow"]).await;
    until("two builds", PATIENCE, async || {
        (requested(&slow) == 2).then_some(())
    })
    .await
    .unwrap();

    let request = crash_in(&["good"], "good");
    let completed = client.completed_at_last(&request).await.unwrap();
    let frame = &completed["stacktraces"][0]["frames"][0];
    assert_eq!(frame["function"], "function_of_good", "{frame:#}");
    assert_eq!(requested(&slow), 2, "builds have ended meanwhile");
}
