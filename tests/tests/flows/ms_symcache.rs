//! Microsoft's SymCaches: the responses to clients of the protocol, and what is built for them.

use std::time::Duration;

use symdepot::api::symcache_http::{Route, SymCacheRequest};
use symdepot::cache::{Item, ItemKey, Kind, UploadState};
use symdepot::domain::{Cause, DebugId, FormatVersion, HttpSource, Location, Scope};
use symdepot::flows::Settings;
use symdepot::flows::ms_symcache::SymCacheResponse;
use symdepot_tests::harness::{World, fixture};
use tokio::time::Instant;

use super::CRASH_PE;
use super::health::break_circuit;
use super::servers::{at, failure, source};

/// The GUID of pe/x64/crash.pdb, and its age.
const GUID: &str = "c7d4c24f1fb854084c4c44205044422e";

const PDB: &str = "pe/x64/crash.pdb";

/// The format version that the first clients request.
const PATH: &str = "/v3.1.0/crash.pdb/c7d4c24f1fb854084c4c44205044422e";

fn version(text: &str) -> FormatVersion {
    text.parse().unwrap()
}

fn transcodes(versions: &'static [&'static str]) -> impl FnOnce(&mut Settings) {
    |settings| settings.transcoded = versions.iter().copied().map(version).collect()
}

fn asked(path: &str) -> SymCacheRequest {
    match Route::of(path) {
        Route::File(asked) => asked,
        other => panic!("{path}: {other:?}"),
    }
}

/// Requests the PDB in a version, as a client that retries.
async fn request_build(world: &World, by: &str, present: Option<&str>) -> SymCacheResponse {
    let asked = asked(&format!("/v{by}/crash.pdb/{GUID}/1"));
    let present = present.map(version);
    let invocation = world.invocation(Duration::from_secs(29));
    let service = world.service();
    let answer = service.ms_sym_cache(&invocation, &asked, present, true);
    answer.await.unwrap()
}

/// Requests a file, and is held while `derive` runs.
async fn held(world: &World, path: &str) -> SymCacheResponse {
    held_in(world, "global", path).await
}

/// Likewise, in a scope.
async fn held_in(world: &World, scope: &str, path: &str) -> SymCacheResponse {
    let scope = scope.parse().unwrap();
    let asked = SymCacheRequest {
        scope,
        ..asked(path)
    };
    let invocation = world.invocation(Duration::from_secs(29));
    let service = world.service();
    let answer = service.ms_sym_cache(&invocation, &asked, None, false);
    Box::pin(world.with_derive_at_work(answer)).await.unwrap()
}

fn served(answer: &SymCacheResponse) -> &str {
    match answer {
        SymCacheResponse::File { content_type, .. } => content_type,
        other => panic!("{other:?}"),
    }
}

const fn type_of(version: &str) -> (&str, &str) {
    ("application/vnd.ms-symcache; version=", version)
}

fn assert_served(answer: &SymCacheResponse, version: &str) {
    let (media_type, version) = type_of(version);
    assert_eq!(served(answer), format!("{media_type}{version}"));
}

/// Uploads a file of a client, and returns its key.
async fn upload(world: &World, version: &str) -> String {
    let key = format!(
        "global/symcache/Crash.pdb/{}1/Crash.pdb-v{version}.symcache",
        GUID.to_uppercase()
    );
    let event = world.put(&key, format!("bytes of {version}"));
    world.deliver(&event).await.unwrap();
    world.settle().await;
    assert_eq!(world.upload_item(&key).state, UploadState::Applied);
    key
}

#[tokio::test(start_paused = true)]
async fn an_uploaded_symcache_is_served_unchanged() {
    let world = World::new();
    assert_eq!(
        request_build(&world, "3.1.0", None).await,
        SymCacheResponse::Nothing
    );
    upload(&world, "3.1.0").await;
    let world = world.another_instance();
    let answer = request_build(&world, "3.1.0", None).await;
    assert_served(&answer, "3.1.0");
    let SymCacheResponse::File { url, .. } = answer else {
        panic!("no file")
    };
    let path = url.strip_prefix("memory://blobs/").unwrap();
    let path = path.split('?').next().unwrap();
    assert_eq!(world.caches.peek(path).unwrap(), &b"bytes of 3.1.0"[..]);
    assert!(
        url.contains("type=application/vnd.ms-symcache; version=3.1.0"),
        "{url}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_gets_the_newest_version_that_it_can_read() {
    let world = World::new();
    for version in ["3.2.0", "4.5.0"] {
        upload(&world, version).await;
    }
    for (by, expected) in [
        ("3.1.0", "3.2.0"),
        ("3.2.0", "3.2.0"),
        ("3.9.0", "3.2.0"),
        ("4.1.0", "4.5.0"),
        ("4.5.0", "4.5.0"),
        ("9.0.0", "4.5.0"),
        // Other versions are too far away to be looked up.
        ("11.0.0", "4.5.0"),
    ] {
        let world = world.another_instance();
        assert_served(&request_build(&world, by, None).await, expected);
        // The second request is answered from memory.
        assert_served(&request_build(&world, by, None).await, expected);
    }
    let newer = World::new();
    upload(&newer, "5.0.0").await;
    assert_eq!(
        request_build(&newer, "4.1.0", None).await,
        SymCacheResponse::Nothing
    );
}

#[tokio::test(start_paused = true)]
async fn a_newer_version_is_served_as_soon_as_other_uploads_are() {
    let world = World::new();
    upload(&world, "3.1.0").await;
    let warm = world.another_instance();
    for _ in 0..2 {
        assert_served(&request_build(&warm, "3.9.0", None).await, "3.1.0");
        warm.pass(Duration::from_secs(400)).await;
    }
    upload(&world, "3.3.0").await;
    warm.pass(Duration::from_secs(3)).await;
    assert_served(&request_build(&warm, "3.9.0", None).await, "3.3.0");
}

#[tokio::test(start_paused = true)]
async fn a_version_that_the_client_has_is_not_sent_again() {
    let world = World::with(transcodes(&["3.1.0"]));
    // No newer version can be made, so no build is requested.
    assert_eq!(
        request_build(&world, "3.2.0", Some("3.1.0")).await,
        SymCacheResponse::NotModified
    );
    assert!(world.entries().is_empty());
    upload(&world, "3.1.0").await;
    for (present, expected) in [("3.1.0", None), ("3.1.5", None), ("3.0.0", Some("3.1.0"))] {
        let world = world.another_instance();
        for _ in 0..2 {
            let answer = request_build(&world, "3.2.0", Some(present)).await;
            match expected {
                Some(expected) => assert_served(&answer, expected),
                None => assert_eq!(answer, SymCacheResponse::NotModified),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_pdb_is_transcoded_once_on_request() {
    let world = World::with(transcodes(&["3.1.0"]));
    world.upload("global/crash.pdb", PDB).await;
    assert_eq!(world.derivations.transcoded(), 0, "no build was requested");
    let pending = SymCacheResponse::Pending(Duration::from_secs(1));
    assert_eq!(request_build(&world, "3.1.0", None).await, pending);
    assert_eq!(request_build(&world, "3.1.0", None).await, pending);
    assert_eq!(
        world.queues.drain().len(),
        1,
        "a second request adds no build request"
    );
    world.pass(Duration::from_secs(40)).await;
    assert_served(&held(&world, PATH).await, "3.1.0");
    assert_served(&request_build(&world, "4.0.0", None).await, "3.1.0");
    assert_eq!(world.derivations.transcoded(), 1);
    let entry = world
        .entry("global", CRASH_PE, Kind::MsSymCache(3))
        .unwrap();
    let ready = entry.ready().unwrap();
    let bytes = world.caches.peek(&ready.blob.path).unwrap();
    let said = format!("version 3.1.0 of crash.pdb {CRASH_PE}");
    assert_eq!(String::from_utf8_lossy(&bytes), said);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_retry_is_held_until_the_file_exists() {
    for (takes, at_most) in [
        (100, 500),
        (3_000, 500),
        (9_400, 500),
        (14_000, 2_000),
        (20_000, 2_000),
    ] {
        let world = World::with(transcodes(&["3.1.0"]));
        world.upload("global/crash.pdb", PDB).await;
        let takes = Duration::from_millis(takes);
        world.derivations.take(takes);
        let began = Instant::now();
        let answer = held(&world, PATH).await;
        assert_served(&answer, "3.1.0");
        let late = began.elapsed() - takes;
        assert!(
            late <= Duration::from_millis(at_most),
            "{late:?} after {takes:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_request_ends_before_the_timeout_of_the_gateway_and_is_not_final() {
    let world = World::with(transcodes(&["3.1.0"]));
    world.upload("global/crash.pdb", PDB).await;
    world.derivations.take(Duration::from_secs(60));
    let began = world.now();
    let answer = held(&world, PATH).await;
    assert!(matches!(answer, SymCacheResponse::Unknown(_)), "{answer:?}");
    let waited = world.now().since(began).as_secs();
    assert!((24..=28).contains(&waited), "{waited} s");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_retry_is_held_also_while_its_build_is_in_a_queue() {
    let world = World::with(|settings| {
        settings.queued_wait = Some(Duration::from_secs(5));
        transcodes(&["3.1.0"])(settings);
    });
    world.upload("global/crash.pdb", PDB).await;
    let began = Instant::now();
    let invocation = world.invocation(Duration::from_secs(29));
    let asked = asked(PATH);
    let answer = world
        .service()
        .ms_sym_cache(&invocation, &asked, None, false);
    let answer = Box::pin(answer).await.unwrap();
    assert!(matches!(answer, SymCacheResponse::Unknown(_)), "{answer:?}");
    let waited = began.elapsed().as_secs();
    assert!((24..=28).contains(&waited), "{waited} s");
}

#[tokio::test(start_paused = true)]
async fn a_pdb_without_uploads_is_absent_and_listed_as_wanted() {
    let world = World::with(transcodes(&["3.1.0"]));
    for (minutes, asked) in [(0, 1), (1, 2), (58, 3)] {
        world.pass(Duration::from_secs(minutes * 60)).await;
        assert_eq!(held(&world, PATH).await, SymCacheResponse::Nothing);
        let known = [
            request_build(&world, "3.2.0", None).await,
            request_build(&world, "3.2.0", Some("3.1.0")).await,
        ];
        // The client has the newest version that could be made.
        assert_eq!(
            known,
            [SymCacheResponse::Nothing, SymCacheResponse::NotModified]
        );
        assert_eq!((world.queues.sent(), world.entries()), (vec![], vec![]));
        let list = world
            .service()
            .wanted(&"global".parse().unwrap(), 1)
            .await
            .unwrap();
        let [wanted] = list.wanted.as_slice() else {
            panic!("{list:?}")
        };
        assert_eq!((wanted.pdb.as_str(), wanted.asked), ("crash.pdb", asked));
        assert_eq!(wanted.id, format!("{}1", GUID.to_uppercase()));
    }
    // The uploaded file is served, and no longer listed as wanted.
    upload(&world, "3.1.0").await;
    assert_served(
        &request_build(&world.another_instance(), "3.1.0", None).await,
        "3.1.0",
    );
    let list = world
        .service()
        .wanted(&"global".parse().unwrap(), 1)
        .await
        .unwrap();
    assert!(list.wanted.is_empty(), "{list:?}");
}

#[tokio::test(start_paused = true)]
async fn without_a_transcoder_a_miss_is_final_and_requests_no_build() {
    let world = World::new();
    world.upload("global/crash.pdb", PDB).await;
    for _ in 0..2 {
        assert_eq!(
            request_build(&world, "4.0.0", None).await,
            SymCacheResponse::Nothing
        );
    }
    assert!(world.queues.drain().is_empty());
    let list = world
        .service()
        .wanted(&"global".parse().unwrap(), 1)
        .await
        .unwrap();
    assert_eq!(list.wanted[0].version, version("4.0.0"));
    let other = world
        .service()
        .wanted(&"acme".parse().unwrap(), 1)
        .await
        .unwrap();
    assert!(other.wanted.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_newer_transcoder_rebuilds_a_file_that_is_served_meanwhile() {
    let world = World::with(transcodes(&["3.1.0"]));
    world.upload("global/crash.pdb", PDB).await;
    assert_served(&held(&world, PATH).await, "3.1.0");
    let world = world.deployed_with(transcodes(&["3.2.0"]));
    // A client that has the old version waits for the new one; other clients are served.
    assert_served(&request_build(&world, "3.1.0", None).await, "3.1.0");
    assert_eq!(
        request_build(&world, "3.5.0", Some("3.1.0")).await,
        SymCacheResponse::Pending(Duration::from_secs(1))
    );
    world.settle().await;
    let world = world.another_instance();
    assert_served(
        &request_build(&world, "3.5.0", Some("3.1.0")).await,
        "3.2.0",
    );
    assert_eq!(world.derivations.transcoded(), 2);
}

#[tokio::test(start_paused = true)]
async fn transcoders_of_two_major_versions_each_serve_their_clients() {
    let world = World::with(transcodes(&["3.1.0", "4.2.0"]));
    world.upload("global/crash.pdb", PDB).await;
    assert_served(
        &held(&world, &format!("/v3.0.0/crash.pdb/{GUID}")).await,
        "3.1.0",
    );
    assert_eq!(world.derivations.transcoded(), 1);
    // The older version suffices, and the newer one is built for a client that retries.
    assert_served(&request_build(&world, "4.0.0", None).await, "3.1.0");
    world.settle().await;
    let world = world.another_instance();
    assert_served(&request_build(&world, "4.0.0", None).await, "4.2.0");
    assert_served(&request_build(&world, "3.0.0", None).await, "3.1.0");
    assert_eq!(world.derivations.transcoded(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_cached_with_its_reason() {
    let world = World::with(transcodes(&["3.1.0"]));
    world.upload("global/crash.pdb", PDB).await;
    world.derivations.kill_next(1);
    assert_eq!(held(&world, PATH).await, SymCacheResponse::Nothing);
    let entry = world
        .entry("global", CRASH_PE, Kind::MsSymCache(3))
        .unwrap();
    let missing = &entry.missing().unwrap().missing;
    assert_eq!(missing.cause, Cause::Malformed);
    assert!(missing.detail.contains("on purpose"), "{}", missing.detail);
    world.pass(Duration::from_secs(30 * 3600)).await;
    assert_served(&held(&world, PATH).await, "3.1.0");
}

#[tokio::test(start_paused = true)]
async fn a_pdb_uploaded_after_the_miss_is_transcoded_for_a_client_that_retries() {
    let world = World::with(transcodes(&["3.1.0"]));
    assert_eq!(held(&world, PATH).await, SymCacheResponse::Nothing);
    world.upload("global/crash.pdb", PDB).await;
    // The miss left no record of its client.
    assert_eq!(world.derivations.transcoded(), 0);
    assert_served(&held(&world.another_instance(), PATH).await, "3.1.0");
    assert_eq!(world.derivations.transcoded(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_removed_upload_is_in_no_response() {
    let world = World::new();
    let key = upload(&world, "3.1.0").await;
    assert_served(&request_build(&world, "3.1.0", None).await, "3.1.0");
    world.remove(&key).await;
    world.pass(Duration::from_secs(60)).await;
    assert_eq!(
        request_build(&world, "3.1.0", None).await,
        SymCacheResponse::Nothing
    );

    let world = World::with(transcodes(&["3.1.0"]));
    world.upload("global/crash.pdb", PDB).await;
    assert_served(&held(&world, PATH).await, "3.1.0");
    world.remove("global/crash.pdb").await;
    world.pass(Duration::from_secs(60)).await;
    assert_eq!(
        request_build(&world, "3.1.0", None).await,
        SymCacheResponse::Nothing
    );
}

#[tokio::test(start_paused = true)]
async fn a_file_unused_for_a_week_is_stored_again_from_the_upload() {
    let world = World::new();
    upload(&world, "3.1.0").await;
    let paths = world.caches.paths();
    assert_eq!(paths.len(), 1);
    world.pass(Duration::from_secs(8 * 24 * 3600)).await;
    world.prune().await.unwrap();
    world.prune().await.unwrap();
    assert!(world.caches.paths().is_empty() && world.entries().is_empty());
    let path = format!("/v4.0.0/crash.pdb/{GUID}");
    assert_served(&held(&world, &path).await, "3.1.0");
}

/// Finding S18 in `docs/protocol.md`: the lower version was served from then on.
#[tokio::test(start_paused = true)]
async fn a_higher_version_that_was_unused_is_stored_again_beside_a_lower_one_that_is_used() {
    let world = World::new();
    for (scope, version) in [("acme", "3.2.0"), ("global", "3.1.0")] {
        let name = format!("crash.pdb/{GUID}1/crash.pdb-v{version}.symcache");
        let event = world.put(&format!("{scope}/{name}"), format!("{scope} {version}"));
        world.deliver(&event).await.unwrap();
        world.settle().await;
    }
    let path = format!("/v3.9.0/crash.pdb/{GUID}");
    for _ in 0..2 {
        world.pass(Duration::from_secs(4 * 24 * 3600)).await;
        world.prune().await.unwrap();
        assert_served(&held(&world, &path).await, "3.1.0");
    }
    assert_eq!(world.entries().len(), 1);
    let world = world.another_instance();
    assert_served(&held_in(&world, "acme", &path).await, "3.2.0");
    assert_served(&held(&world, &path).await, "3.1.0");
    assert!(world.queues.sent().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_files_of_another_scope_are_not_served() {
    let world = World::new();
    let key = format!("acme/symcache/crash.pdb/{GUID}1/crash.pdb-v3.1.0.symcache");
    let event = world.put(&key, "bytes");
    world.deliver(&event).await.unwrap();
    assert_eq!(
        request_build(&world, "3.1.0", None).await,
        SymCacheResponse::Nothing
    );
    let path = format!("/v3.1.0/crash.pdb/{GUID}");
    assert_served(&held_in(&world, "acme", &path).await, "3.1.0");
    let of_other = held_in(&world, "other", &path).await;
    assert_eq!(of_other, SymCacheResponse::Nothing);
}

/// The simulation found it (seed 265): whatever another reader had cached was served.
#[tokio::test(start_paused = true)]
async fn a_cached_file_of_another_scope_does_not_hide_a_higher_version() {
    let world = World::new();
    for (scope, version) in [("acme", "3.2.0"), ("global", "3.1.0"), ("global", "4.1.0")] {
        let name = format!("crash.pdb/{GUID}1/crash.pdb-v{version}.symcache");
        let event = world.put(&format!("{scope}/{name}"), format!("{scope} {version}"));
        world.deliver(&event).await.unwrap();
        world.settle().await;
    }
    let path = format!("/v3.9.0/crash.pdb/{GUID}");
    for (by, own) in [("3.9.0", "3.1.0"), ("4.9.0", "4.1.0")] {
        let world = world.another_instance();
        // The files of the global scope are ready in the memory of the instance now.
        assert_served(&request_build(&world, by, None).await, own);
        assert_served(&held_in(&world, "acme", &path).await, "3.2.0");
    }
    let world = world.another_instance();
    assert_served(&request_build(&world, "3.9.0", None).await, "3.1.0");
    assert_served(&request_build(&world, "4.9.0", None).await, "4.1.0");
}

/// Of equal versions, that of the own scope is served.
#[tokio::test(start_paused = true)]
async fn a_cached_file_of_another_scope_does_not_hide_an_own_one() {
    let world = World::new();
    for scope in ["acme", "global"] {
        let name = format!("crash.pdb/{GUID}1/crash.pdb-v3.1.0.symcache");
        let event = world.put(&format!("{scope}/{name}"), format!("of {scope}"));
        world.deliver(&event).await.unwrap();
        world.settle().await;
    }
    let world = world.another_instance();
    for (scope, expected) in [("global", "of global"), ("acme", "of acme")] {
        let path = format!("/v3.1.0/crash.pdb/{GUID}");
        let SymCacheResponse::File { url, .. } = held_in(&world, scope, &path).await else {
            panic!("no file in {scope}")
        };
        let blob = url.strip_prefix("memory://blobs/").unwrap();
        let blob = blob.split('?').next().unwrap();
        assert_eq!(world.caches.peek(blob).unwrap(), expected.as_bytes());
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_with_a_malformed_name_is_ignored_with_the_reason() {
    let world = World::new();
    for (name, body, expected) in [
        (
            format!("a.pdb/{GUID}1/b.pdb-v3.1.0.symcache"),
            "x",
            "must have the form",
        ),
        (
            format!("a.pdb/{GUID}1/a.pdb-v2.0.0.symcache"),
            "x",
            "version 2.0.0",
        ),
        (format!("a.pdb/{GUID}1/a.pdb-v3.1.0.symcache"), "", "empty"),
        ("a.symcache".to_owned(), "x", "must have the form"),
    ] {
        let key = format!("global/symcache/{name}");
        let event = world.put(&key, body);
        world.deliver(&event).await.unwrap();
        match world.upload_item(&key).state {
            UploadState::Ignored { reason } => assert!(reason.contains(expected), "{reason}"),
            other => panic!("{key}: {other:?}"),
        }
    }
    let is_entry =
        |(_, stored): &(_, symdepot::cache::Stored)| matches!(stored.item, Item::Entry(_));
    assert!(!world.records.items().iter().any(is_entry));
}

fn symbol_server() -> HttpSource {
    source(
        "symbol-server",
        r#", "layout": {"type": "symstore"}, "filters": {"filetypes": ["pe", "pdb"]}"#,
    )
}

/// A world with a transcoder and a symbol server, and the location of the PDB on this server.
fn world_with_server() -> (World, Location) {
    let world = World::with(|settings| {
        settings.sources = vec![symbol_server().into()];
        transcodes(&["3.1.0"])(settings);
    });
    let id = format!("{}1", GUID.to_uppercase());
    let pdb = at(&format!("http://symbols.test/crash.pdb/{id}/crash.pdb"));
    (world, pdb)
}

#[tokio::test(start_paused = true)]
async fn a_pdb_without_an_upload_is_fetched_from_a_server_and_copied() {
    let (world, at) = world_with_server();
    world.servers.put(&at, fixture(PDB));
    assert_served(&held(&world, PATH).await, "3.1.0");
    let asked = world.servers.take_asked();
    assert_eq!(
        asked.iter().filter(|asked| **asked == at).count(),
        1,
        "{asked:?}"
    );
    assert_eq!(
        world.derivations.derived(),
        0,
        "no other cache was requested"
    );
    // A newer transcoder uses the copy.
    let world = world.deployed_with(transcodes(&["3.2.0"]));
    request_build(&world, "3.5.0", None).await;
    world.settle().await;
    assert_served(
        &request_build(&world.another_instance(), "3.5.0", None).await,
        "3.2.0",
    );
    assert_eq!(world.servers.take_asked(), []);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_is_waited_for_only_shortly_before_it_is_called_again() {
    let (world, at) = world_with_server();
    world.servers.fail(&at, failure(Cause::Timeout, None));
    for _ in 0..2 {
        assert_eq!(held(&world, PATH).await, SymCacheResponse::Nothing);
        let answer = request_build(&world, "3.1.0", None).await;
        assert_eq!(answer, SymCacheResponse::Nothing);
    }
    let present = request_build(&world, "3.1.0", Some("3.1.0")).await;
    assert_eq!(present, SymCacheResponse::NotModified);
    // It is called again after 60 s, and up to a tenth more.
    world.pass(Duration::from_secs(40)).await;
    let later = Duration::from_secs(10);
    let answer = held(&world, PATH).await;
    assert_eq!(answer, SymCacheResponse::Unknown(later));
    let answer = request_build(&world, "3.1.0", None).await;
    assert_eq!(answer, SymCacheResponse::Pending(later));
    let wanted = world.service().wanted(&Scope::Global, 1).await.unwrap();
    assert_eq!(wanted.wanted, [], "the server may have the PDB");
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_circuit_is_open_is_waited_for_only_shortly_before_it_is_called_again() {
    let (world, _) = world_with_server();
    break_circuit(&world, &symbol_server()).await;
    assert_eq!(held(&world, PATH).await, SymCacheResponse::Nothing);
    let answer = request_build(&world, "3.1.0", None).await;
    assert_eq!(answer, SymCacheResponse::Nothing);
    let present = request_build(&world, "3.1.0", Some("3.1.0")).await;
    assert_eq!(present, SymCacheResponse::NotModified);
    world.pass(Duration::from_secs(45)).await;
    let answer = request_build(&world, "3.1.0", None).await;
    assert!(matches!(answer, SymCacheResponse::Pending(_)), "{answer:?}");
}

/// A client that has the newest file receives that response, even if a newer one could be made from
/// a PDB that has no file.
#[tokio::test(start_paused = true)]
async fn the_newest_existing_file_is_not_modified_even_if_a_newer_one_could_be_made() {
    let world = World::with(transcodes(&["3.1.0"]));
    upload(&world, "3.0.0").await;
    let sent = world.queues.calls().of("send");
    let mut answers = Vec::new();
    for _ in 0..20 {
        answers.push(request_build(&world, "3.1.0", Some("3.0.0")).await);
        world.settle().await;
        world.pass(Duration::from_secs(1)).await;
    }
    assert_eq!(answers.last(), Some(&SymCacheResponse::NotModified));
    let waited = answers
        .iter()
        .filter(|answer| **answer != SymCacheResponse::NotModified);
    assert!(waited.count() <= 2, "{answers:?}");
    assert!(world.queues.calls().of("send") - sent <= 1);
}

/// A URL is valid for 15 seconds, and an instance trusts a record for 45: a minute in total.
#[tokio::test(start_paused = true)]
async fn a_url_expires_within_a_minute_of_the_read_of_its_record() {
    let world = World::new();
    upload(&world, "3.1.0").await;
    let answer = request_build(&world, "3.1.0", None).await;
    let SymCacheResponse::File { url, .. } = &answer else {
        panic!("{answer:?}");
    };
    assert!(url.contains("seconds=15&"), "{url}");
}

/// A single request leaves nothing behind, and no number of clients makes the list longer than its
/// limit.
#[tokio::test(start_paused = true)]
async fn the_list_of_wanted_files_is_bounded_and_begins_with_the_second_request() {
    const PDBS: u32 = 10_000;
    let world = World::new();
    let asked_for = |number: u32| asked(&format!("/v3.1.0/made-up.pdb/{number:032x}"));
    let ask_for = async |number: u32| {
        let invocation = world.invocation(Duration::from_secs(29));
        let asked = asked_for(number);
        let service = world.service();
        let answer = service.ms_sym_cache(&invocation, &asked, None, true);
        assert_eq!(answer.await.unwrap(), SymCacheResponse::Nothing);
    };
    let page = async |number: usize| {
        let scope = Scope::Global;
        world.service().wanted(&scope, number).await.unwrap()
    };
    for number in 1..=PDBS {
        ask_for(number).await;
    }
    assert_eq!(world.records.calls().of("replace"), 0);
    for number in 1..=PDBS {
        // An instance does not remember all of them.
        ask_for(number).await;
        ask_for(number).await;
    }
    let mut listed = Vec::new();
    for number in 1.. {
        let list = page(number).await;
        assert!(list.wanted.len() <= 1000);
        listed.extend(list.wanted.into_iter().map(|wanted| wanted.debug_id));
        if list.more == 0 {
            break;
        }
    }
    assert!((3000..=4096).contains(&listed.len()), "{}", listed.len());
    // A recent request is not replaced by another one of the same slot; an hour later it is.
    let key = |debug_id: DebugId| ItemKey::wanted(&Scope::Global, debug_id);
    let first = listed[0];
    let rival_number = (PDBS + 1..)
        .find(|number| key(asked_for(*number).debug_id) == key(first))
        .unwrap();
    let rival = asked_for(rival_number).debug_id;
    for (after, is_listed) in [(0, false), (3600, true)] {
        world.pass(Duration::from_secs(after)).await;
        ask_for(rival_number).await;
        ask_for(rival_number).await;
        let mut all = Vec::new();
        for number in 1..=5 {
            let page = page(number).await.wanted.into_iter();
            all.extend(page.map(|wanted| wanted.debug_id));
        }
        assert_eq!(
            (all.contains(&rival), all.contains(&first)),
            (is_listed, !is_listed)
        );
    }
}
