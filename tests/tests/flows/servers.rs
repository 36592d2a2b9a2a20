//! Symbol servers: what is searched there, what is cached of the results, and for how long.

use std::collections::BTreeSet;
use std::time::Duration;

use symdepot::api::symbolicator::{Completed, ModuleStatus};
use symdepot::cache::{Entry, Kind};
use symdepot::domain::{Cause, ConfiguredSource, FileType, HttpSource, Location, Missing, Scope};
use symdepot::flows::requests::RequestToStore;
use symdepot::flows::{Server, Settings, SourceSecret};
use symdepot::ports::{Concerns, ServerFailure};
use symdepot_tests::harness::{
    Crash, World, fixture, function_names, sample_crash, stored_request,
};

const HOUR: Duration = Duration::from_secs(3600);

/// The locations of the sample's program and its debug file in the native layout.
pub(crate) const PROGRAM: &str = "http://symbols.test/ac/456ebc7f4825f4367208b89f51ad481774aae7";
pub(crate) const DEBUG: &str =
    "http://symbols.test/ac/456ebc7f4825f4367208b89f51ad481774aae7.debug";

/// The innermost function of the sample crash. Only the debug file has the information that it is
/// inlined.
const INLINED: &str = "orbit::Buffer<orbit::Vertex>::at(unsigned int, unsigned int)";

pub(crate) fn source(id: &str, more: &str) -> HttpSource {
    let json = format!(r#"{{"type": "http", "id": "{id}", "url": "http://symbols.test/"{more}}}"#);
    serde_json::from_str(&json).unwrap()
}

/// A world with one symbol server.
pub(crate) fn world() -> World {
    World::with(|settings| settings.sources = vec![source("company", "").into()])
}

/// Returns a world with a source that lists its files.
pub(crate) fn world_with_lists() -> World {
    let sentry =
        r#"{"type": "sentry", "id": "sentry", "url": "http://sentry.test/files/", "token": "t"}"#;
    let sentry: HttpSource = serde_json::from_str(sentry).unwrap();
    World::with(|settings| settings.sources = vec![sentry.into()])
}

/// Puts files on the server of [`world_with_lists`], numbered from 1. Returns their listing.
pub(crate) fn put_listed(world: &World, files: &[(FileType, &str)]) -> Vec<(FileType, Location)> {
    let put = |(number, (file_type, file)): (u32, &(FileType, &str))| {
        let location = Location::new(format!("sentry://project_debug_file/{number}"));
        world.servers.put(&location, fixture(file));
        (*file_type, location)
    };
    (1..).zip(files).map(put).collect()
}

pub(crate) fn at(location: &str) -> Location {
    Location::new(location)
}

/// The entry of the sample from a server.
pub(crate) fn entry(world: &World, kind: Kind) -> Entry {
    let is_it = |entry: &Entry| !entry.module().source.is_uploads() && entry.kind() == kind;
    world.entries().into_iter().find(is_it).unwrap()
}

pub(crate) fn is_symbolicated(completed: &Completed) -> bool {
    function_names(completed)[0] == INLINED
}

pub(crate) fn failure(cause: Cause, retry_after: Option<Duration>) -> ServerFailure {
    ServerFailure {
        missing: Missing::new(cause, "the server said so"),
        retry_after,
        concerns: Concerns::Server,
    }
}

fn with_candidates() -> Crash {
    let mut crash = sample_crash();
    crash.options.dif_candidates = true;
    crash
}

#[tokio::test(start_paused = true)]
async fn a_module_without_uploads_is_searched_on_the_server_once_for_all_kinds() {
    let world = world();
    world.servers.put(&at(PROGRAM), fixture("elf/crash"));
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    let completed = world.symbolicate(&with_candidates()).await;
    assert!(
        is_symbolicated(&completed),
        "{:?}",
        function_names(&completed)
    );
    let asked = world.servers.take_asked();
    assert_eq!(
        asked.iter().filter(|asked| **asked == at(PROGRAM)).count(),
        1,
        "{asked:?}"
    );
    assert_eq!(
        asked.iter().filter(|asked| **asked == at(DEBUG)).count(),
        1,
        "{asked:?}"
    );
    // Unwind information is in the program; names and lines are in the debug file.
    let made_from = |kind| {
        entry(&world, kind).ready().unwrap().made_from[0]
            .location
            .clone()
    };
    assert_eq!(made_from(Kind::SymCache), at(DEBUG));
    assert_eq!(made_from(Kind::CfiCache), at(PROGRAM));
    let shown: Vec<(&str, &str)> = completed.modules[0]
        .candidates
        .iter()
        .map(|candidate| (candidate.source.id(), candidate.location.as_str()))
        .collect();
    assert!(shown.contains(&("company", DEBUG)), "{shown:?}");
    assert!(shown.contains(&("company", PROGRAM)), "{shown:?}");

    let again = world.another_instance().symbolicate(&sample_crash()).await;
    assert!(is_symbolicated(&again));
    assert_eq!(world.servers.take_asked(), []);
}

#[tokio::test(start_paused = true)]
async fn an_uploaded_module_is_not_searched_on_a_server() {
    let world = world();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    assert!(is_symbolicated(&world.symbolicate(&sample_crash()).await));
    assert_eq!(world.servers.take_asked(), []);
}

#[tokio::test(start_paused = true)]
async fn a_module_with_only_uploaded_symbols_is_searched_on_a_server() {
    let world = world();
    world.upload("global/crash", "elf/crash").await;
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    assert!(is_symbolicated(&world.symbolicate(&sample_crash()).await));
}

#[tokio::test(start_paused = true)]
async fn an_upload_ends_a_miss_of_the_server_at_once() {
    let world = world();
    let before = world.symbolicate(&sample_crash()).await;
    assert_eq!(before.modules[0].debug_status, ModuleStatus::Missing);
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.pass(Duration::from_secs(3)).await;
    assert!(is_symbolicated(&world.symbolicate(&sample_crash()).await));
}

#[tokio::test(start_paused = true)]
async fn a_miss_is_cached_for_an_hour_and_one_of_a_public_server_for_a_day() {
    for (more, hours) in [("", 1), (r#", "is_public": true"#, 24)] {
        let world = World::with(|settings| settings.sources = vec![source("company", more).into()]);
        world.symbolicate(&sample_crash()).await;
        assert!(!world.servers.take_asked().is_empty());
        world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
        world.pass(HOUR * hours - Duration::from_secs(60)).await;
        world.another_instance().symbolicate(&sample_crash()).await;
        assert_eq!(world.servers.take_asked(), [], "{hours} h");
        // Jitter adds at most a tenth.
        world.pass(HOUR * hours / 8).await;
        let after = world.another_instance().symbolicate(&sample_crash()).await;
        assert!(is_symbolicated(&after), "{hours} h");
    }
}

#[tokio::test(start_paused = true)]
async fn each_cause_is_cached_for_its_own_time() {
    let minute = Duration::from_secs(60);
    for (cause, retry_after, expected) in [
        (Cause::PermissionDenied, None, HOUR),
        (Cause::DownloadFailed, None, minute),
        (Cause::Timeout, None, minute),
        (
            Cause::DownloadFailed,
            Some(Duration::from_secs(700)),
            Duration::from_secs(700),
        ),
    ] {
        let world = world();
        world
            .servers
            .fail(&at(PROGRAM), failure(cause, retry_after));
        world.symbolicate(&sample_crash()).await;
        let entry = entry(&world, Kind::SymCache);
        let placeholder = entry.missing().unwrap();
        assert_eq!(placeholder.missing.cause, cause);
        let wait = placeholder.retry_at.since(world.now());
        assert!(
            wait + Duration::from_secs(10) >= expected && wait <= expected * 11 / 10,
            "{cause:?}: {wait:?}"
        );
    }
}

/// Symbolicates a crash whose file has a server that does not state its size, under the settings
/// that `change` makes, and returns the world and why the file is missing.
async fn missing_without_its_size(change: impl FnOnce(&mut Settings)) -> (World, Missing) {
    let world = World::with(|settings| {
        settings.sources = vec![source("company", "").into()];
        change(settings);
    });
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    world.servers.hide_size(&at(DEBUG));
    world.symbolicate(&sample_crash()).await;
    let missing = entry(&world, Kind::SymCache)
        .missing()
        .unwrap()
        .missing
        .clone();
    (world, missing)
}

/// Half of the scratch space is reserved for a file whose size the server does not state.
#[tokio::test(start_paused = true)]
async fn a_file_of_unknown_size_is_too_large_until_the_scratch_space_grows() {
    let (world, missing) =
        missing_without_its_size(|settings| settings.scratch_bytes = 200_000).await;
    assert_eq!(missing.cause, Cause::TooLarge { limit: 200_000 });
    assert_eq!(
        missing.detail,
        "its server does not state its size, and it exceeds the 100000 bytes of scratch space for such files"
    );
    let grown = world.deployed_with(|settings| settings.scratch_bytes = 400_000);
    assert!(is_symbolicated(&grown.symbolicate(&sample_crash()).await));
    // The limit of a file may be the smaller one.
    let (_, missing) = missing_without_its_size(|settings| settings.dif_max_bytes = 100_000).await;
    assert_eq!(missing.cause, Cause::TooLarge { limit: 100_000 });
    assert_eq!(
        missing.detail,
        "its bytes exceed the limit of 100000 bytes for a file"
    );
}

#[tokio::test(start_paused = true)]
async fn after_a_failure_of_the_server_no_further_location_is_requested() {
    let world = world();
    world
        .servers
        .fail(&at(PROGRAM), failure(Cause::Timeout, None));
    let completed = world.symbolicate(&with_candidates()).await;
    assert_eq!(completed.modules[0].debug_status, ModuleStatus::Timeout);
    assert_eq!(world.servers.take_asked(), [at(PROGRAM)]);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_at_one_location_does_not_hide_a_file_at_another_one() {
    let world = world();
    world
        .servers
        .fail(&at(PROGRAM), failure(Cause::PermissionDenied, None));
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    assert!(is_symbolicated(&world.symbolicate(&sample_crash()).await));
}

#[tokio::test(start_paused = true)]
async fn a_file_of_another_module_is_malformed_and_serves_no_module() {
    let world = world();
    world.servers.put(&at(PROGRAM), fixture("elf/checksum"));
    world.servers.put(&at(DEBUG), fixture("elf/checksum"));
    let completed = world.symbolicate(&with_candidates()).await;
    assert_eq!(completed.modules[0].debug_status, ModuleStatus::Malformed);
    assert!(world.entries().iter().all(|entry| entry.ready().is_none()));
}

#[tokio::test(start_paused = true)]
async fn a_better_file_is_searched_once_an_hour_at_first_and_no_request_waits_for_it() {
    let world = world();
    world.servers.put(&at(PROGRAM), fixture("elf/crash"));
    let first = world.symbolicate(&sample_crash()).await;
    assert!(!is_symbolicated(&first));
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    world.servers.take_asked();

    world.pass(HOUR - Duration::from_secs(60)).await;
    assert!(!is_symbolicated(
        &world.another_instance().symbolicate(&sample_crash()).await
    ));
    world.settle().await;
    assert_eq!(world.servers.take_asked(), []);

    world.pass(Duration::from_secs(120)).await;
    // This request is answered with the existing cache. The next one gets the better cache.
    let instance = world.another_instance();
    let answered = instance
        .answer(&sample_crash(), &Scope::Global, Duration::ZERO)
        .await;
    assert!(matches!(
        answered,
        Ok(symdepot::flows::symbolicate::SymbolicateOutcome::Completed(
            ..
        ))
    ));
    world.settle().await;
    assert!(is_symbolicated(
        &world.another_instance().symbolicate(&sample_crash()).await
    ));
}

#[tokio::test(start_paused = true)]
async fn r19_a_search_that_finds_no_better_file_derives_nothing_and_backs_off() {
    let world = world();
    world.servers.put(&at(PROGRAM), fixture("elf/crash"));
    world.symbolicate(&sample_crash()).await;
    let derived = world.derivations.derived();
    let mut looks = 0;
    for _ in 0..48 {
        world.pass(HOUR).await;
        world.servers.take_asked();
        world.another_instance().symbolicate(&sample_crash()).await;
        world.settle().await;
        looks += u32::from(!world.servers.take_asked().is_empty());
    }
    // After 1, 2, 4, 8 and 16 hours, and then once a day: five times in 48 hours.
    assert!((4..=5).contains(&looks), "{looks}");
    assert_eq!(world.derivations.derived(), derived);
}

#[tokio::test(start_paused = true)]
async fn r09_a_source_with_another_configuration_forgets_its_misses() {
    let world = world();
    world.symbolicate(&sample_crash()).await;
    world.servers.take_asked();
    let configured = world.deployed_with(|settings| {
        settings.sources = vec![source("company", r#", "layout": {"type": "unified"}"#).into()];
    });
    let unified = at("http://symbols.test/ac/456ebc7f4825f4367208b89f51ad481774aae7/debuginfo");
    configured.servers.put(&unified, fixture("elf/crash.debug"));
    assert!(is_symbolicated(
        &configured.symbolicate(&sample_crash()).await
    ));
}

#[tokio::test(start_paused = true)]
async fn r12_a_miss_without_file_names_does_not_apply_to_a_request_that_has_them() {
    let symstore = r#", "layout": {"type": "symstore"}"#;
    let world = World::with(|settings| settings.sources = vec![source("company", symstore).into()]);
    world.servers.put(
        &at("http://symbols.test/crash/elf-buildid-ac456ebc7f4825f4367208b89f51ad481774aae7/crash"),
        fixture("elf/crash"),
    );
    let mut nameless = sample_crash();
    nameless.modules[0].code_file = None;
    nameless.modules[0].debug_file = None;
    let without = world.symbolicate(&nameless).await;
    assert_eq!(without.modules[0].debug_status, ModuleStatus::Missing);
    let with = world.symbolicate(&sample_crash()).await;
    assert_eq!(with.modules[0].debug_status, ModuleStatus::Found);
}

#[tokio::test(start_paused = true)]
async fn caches_from_private_servers_belong_to_a_scope_and_those_from_public_ones_to_all() {
    let world = World::with(|settings| {
        settings.sources = vec![
            source("company", "").into(),
            source("everybody", r#", "is_public": true"#).into(),
        ];
    });
    world
        .symbolicate_for(&"acme".parse().unwrap(), &sample_crash())
        .await;
    let scope_of = |id: &str| {
        let of_source = |entry: &Entry| entry.module().source.id() == id;
        world
            .entries()
            .into_iter()
            .find(of_source)
            .unwrap()
            .module()
            .scope
            .clone()
    };
    assert_eq!(scope_of("company"), "acme".parse().unwrap());
    assert_eq!(scope_of("everybody"), Scope::Global);
}

#[tokio::test(start_paused = true)]
async fn a_message_for_an_unknown_source_ends_and_is_retried_soon() {
    let world = world();
    let pending = world
        .answer(&sample_crash(), &Scope::Global, Duration::ZERO)
        .await;
    assert!(matches!(
        pending,
        Ok(symdepot::flows::symbolicate::SymbolicateOutcome::Pending)
    ));
    let without = world.deployed_with(|settings| settings.sources.clear());
    without.settle().await;
    let entry = entry(&world, Kind::SymCache);
    // After a deployment, `derive` may know the source a little later than `symbolicate`.
    let placeholder = entry.missing().unwrap();
    assert_eq!(placeholder.missing.cause, Cause::DownloadFailed);
    assert!(placeholder.retry_at.since(world.now()) <= Duration::from_secs(66));
    assert_eq!(
        source("company", "").configured_key(),
        entry.module().source
    );
}

/// A request for the sample that defines its only source, with these credentials.
fn with_own_source(authorization: &str) -> String {
    let crash = symdepot_tests::harness::fixture_text("crash.json");
    let mut body: serde_json::Value = serde_json::from_str(&crash).unwrap();
    body["sources"] = serde_json::json!([{
        "id": "mine", "type": "http", "url": format!("http://symbols.test/?sig={authorization}"),
        "headers": {"authorization": authorization}, "filters": {"path_patterns": ["*", authorization]},
    }]);
    body.to_string()
}

fn parsed(body: &str) -> Crash {
    symdepot::api::symbolicator::parse_request(body.as_bytes()).unwrap()
}

fn that_allows_definitions() -> World {
    let secret = SourceSecret::new("a secret of at least thirty-two characters").ok();
    World::with(|settings| settings.request_sources = secret.clone())
}

#[tokio::test(start_paused = true)]
async fn a_request_may_define_its_source_if_that_is_allowed() {
    let world = that_allows_definitions();
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    let completed = world.symbolicate(&parsed(&with_own_source("sesame"))).await;
    assert!(is_symbolicated(&completed));
    let refused = World::new();
    let refusal = refused
        .answer(&parsed(&with_own_source("sesame")), &Scope::Global, HOUR)
        .await;
    assert!(
        matches!(refusal, Err(symdepot::flows::Error::Invalid { .. })),
        "{refusal:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_source_of_an_unknown_type_is_a_candidate_that_was_not_searched() {
    let world = that_allows_definitions();
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    let mut body: serde_json::Value = serde_json::from_str(&with_own_source("sesame")).unwrap();
    let azure = serde_json::json!({"type": "azure", "id": "theirs", "container": "symbols"});
    body["sources"].as_array_mut().unwrap().insert(0, azure);
    body["options"] = serde_json::json!({"dif_candidates": true});
    let completed = world.symbolicate(&parsed(&body.to_string())).await;
    assert!(is_symbolicated(&completed));
    let mut candidates = completed.modules[0].candidates.iter();
    let theirs = candidates.find(|candidate| candidate.source.id() == "theirs");
    let download = serde_json::to_value(&theirs.unwrap().download).unwrap();
    assert_eq!(download["status"], "error");
    let details = download["details"].as_str().unwrap();
    assert!(details.contains(r#"the type "azure""#), "{details}");
}

#[tokio::test(start_paused = true)]
async fn caches_of_a_source_are_shared_only_by_requests_with_its_credentials() {
    let world = that_allows_definitions();
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    world.symbolicate(&parsed(&with_own_source("sesame"))).await;
    // The same server with other credentials is another source: its misses and its files are not
    // shared.
    world.servers.remove(&at(DEBUG));
    let others = world.symbolicate(&parsed(&with_own_source("guess"))).await;
    assert_eq!(others.modules[0].debug_status, ModuleStatus::Missing);
    let first = world.symbolicate(&parsed(&with_own_source("sesame"))).await;
    assert!(is_symbolicated(&first));
}

/// A request as Sentry sends it: its definition of a source names the event.
fn of_event(event: u32) -> Crash {
    let mut body: serde_json::Value = serde_json::from_str(&with_own_source("sesame")).unwrap();
    let source = &mut body["sources"][0];
    source["name"] = "Mine".into();
    source["url"] = format!("http://symbols.test/?_last_upload={event}").into();
    source["headers"]["x-sentry-event-id"] = event.to_string().into();
    parsed(&body.to_string())
}

#[tokio::test(start_paused = true)]
async fn the_events_of_a_project_share_the_caches_of_its_source() {
    let world = that_allows_definitions();
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    world.symbolicate(&of_event(0)).await;
    let (derived, entries) = (world.derivations.derived(), world.entries().len());
    world.servers.take_asked();
    for event in 1..1000 {
        assert!(is_symbolicated(&world.symbolicate(&of_event(event)).await));
    }
    assert_eq!(world.derivations.derived(), derived);
    assert_eq!(world.entries().len(), entries);
    assert_eq!(world.servers.take_asked(), []);
}

#[tokio::test(start_paused = true)]
async fn a_request_as_sentry_writes_it_is_answered_in_full() {
    let world = that_allows_definitions();
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    let mut body: serde_json::Value = serde_json::from_str(&with_own_source("sesame")).unwrap();
    let mut own = body["sources"][0].take();
    own["id"] = "custom-1".into();
    own["name"] = "Ours".into();
    own["headers"]["x-sentry-event-id"] = "0f9a".into();
    own["headers"]["x-sentry-project-id"] = "1".into();
    (own["has_index"], own["accept_invalid_certs"]) = (false.into(), false.into());
    // The files of the project come first, and the public servers last.
    body["sources"] = serde_json::json!([
        {"type": "sentry", "id": "sentry:project", "token": "sesame",
         "url": "https://sentry.test/api/0/projects/acme/app/files/dsyms/?_last_upload=1763900000000"},
        own,
        {"type": "s3", "id": "custom-2", "name": "Bucket", "bucket": "symbols", "prefix": "native",
         "region": "us-east-1", "access_key": "key", "secret_key": "sesame",
         "layout": {"type": "unified", "casing": "lowercase"},
         "filters": {"filetypes": ["elf_code", "elf_debug", "bcsymbolmap", "uuidmap", "il2cpp"]}},
        {"type": "gcs", "id": "custom-3", "name": "Google", "bucket": "symbols", "bearer_token": "sesame",
         "layout": {"type": "ssqp"}, "filters": {"filetypes": [], "path_patterns": []}},
        {"type": "http", "id": "sentry:microsoft", "name": "Microsoft", "platforms": ["native"],
         "url": "https://msdl.test/download/symbols/", "layout": {"type": "symstore"},
         "filters": {"filetypes": ["pe", "pdb"], "path_patterns": ["?:/windows/**"]}, "is_public": true},
    ]);
    body["platform"] = "native".into();
    body["scraping"] = serde_json::json!({"enabled": false, "verify_ssl": false});
    body["options"] = serde_json::json!({"dif_candidates": true, "apply_source_context": true});
    let completed = world.symbolicate(&parsed(&body.to_string())).await;
    assert!(is_symbolicated(&completed));
    let candidates = &completed.modules[0].candidates;
    let sources: BTreeSet<&str> = candidates.iter().map(|it| it.source.id()).collect();
    // Microsoft's server is not asked for a module of Linux, and says so.
    let all = [
        "custom-1",
        "custom-2",
        "custom-3",
        "sentry:microsoft",
        "sentry:project",
    ];
    assert_eq!(sources, all.into());
}

#[tokio::test(start_paused = true)]
async fn a_definition_that_equals_a_configured_source_is_that_source() {
    let request = |more: &str| {
        let crash = symdepot_tests::harness::fixture_text("crash.json");
        let mut body: serde_json::Value = serde_json::from_str(&crash).unwrap();
        let definition = serde_json::to_value(source("company", more)).unwrap();
        body["sources"] = serde_json::json!([definition]);
        body["sources"][0]["headers"]["x-sentry-event-id"] = "1".into();
        parsed(&body.to_string())
    };
    let world = that_allows_definitions().deployed_with(|settings| {
        settings.sources = vec![source("company", r#", "is_public": true"#).into()];
    });
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    // Whether the request declares the source public does not matter.
    assert!(is_symbolicated(&world.symbolicate(&request("")).await));
    let configured = source("company", r#", "is_public": true"#).configured_key();
    let entry = entry(&world, Kind::SymCache);
    assert_eq!(entry.module().source, configured);
    assert_eq!(entry.module().scope, Scope::Global);
    // Any other filter makes it another source.
    let is_defined = |entry: &Entry| entry.module().source.is_defined();
    assert!(!world.entries().iter().any(is_defined));
    world
        .symbolicate(&request(r#", "filters": {"filetypes": ["elf_debug"]}"#))
        .await;
    assert!(world.entries().iter().any(is_defined));
}

#[tokio::test(start_paused = true)]
async fn a_definition_never_borrows_the_credentials_of_a_configured_source() {
    let secret = r#", "headers": {"authorization": "sesame"}"#;
    let world = that_allows_definitions().deployed_with(|settings| {
        let company = Server::from(source("company", secret));
        settings.sources = vec![company.without_credentials()];
    });
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    let crash = symdepot_tests::harness::fixture_text("crash.json");
    let mut body: serde_json::Value = serde_json::from_str(&crash).unwrap();
    body["sources"] = serde_json::json!([serde_json::to_value(source("company", "")).unwrap()]);
    world.symbolicate(&parsed(&body.to_string())).await;
    assert!(entry(&world, Kind::SymCache).module().source.is_defined());
}

#[tokio::test(start_paused = true)]
async fn credentials_are_stored_encrypted_and_a_pending_request_keeps_them() {
    // Neither the credentials of the request nor those of a configured source.
    let world = that_allows_definitions().deployed_with(|settings| {
        let json = r#"{"type": "http", "id": "company", "url": "http://company.test/?sig=sesame",
            "headers": {"authorization": "sesame"}, "filters": {"path_patterns": ["*", "sesame"]}}"#;
        let company: HttpSource = serde_json::from_str(json).unwrap();
        settings.sources = vec![company.into()];
    });
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    let both = serde_json::json!("company");
    let mut body: serde_json::Value = serde_json::from_str(&with_own_source("sesame")).unwrap();
    body["sources"].as_array_mut().unwrap().push(both);
    let body = body.to_string();
    let answer = world
        .answer(&parsed(&body), &Scope::Global, Duration::ZERO)
        .await;
    assert!(matches!(
        answer,
        Ok(symdepot::flows::symbolicate::SymbolicateOutcome::Pending)
    ));
    let invocation = world.invocation(HOUR);
    let requests = world.service();
    requests
        .store_request(
            &invocation,
            "7",
            &Scope::Global,
            RequestToStore::received(body.as_bytes()),
        )
        .await
        .unwrap();
    let stored = format!("{:?} {:?}", world.records.items(), world.queues);
    let names = [r#"Defined { id: "mine""#, r#"Configured { id: "company""#];
    assert!(names.iter().all(|name| stored.contains(name)), "{stored}");
    assert!(!stored.contains("sesame"), "{stored}");
    let kept = stored_request(requests, &invocation, "7").await;
    let (_, kept) = kept.unwrap().unwrap();
    assert_eq!(kept, body.as_bytes());
    world.settle().await;
    assert!(is_symbolicated(&world.symbolicate(&parsed(&body)).await));
    let stored = format!("{world:?} {:?}", world.records.items());
    assert!(!stored.contains("sesame"), "{stored}");
}

/// Sources of every kind, with a marker in each field for credentials.
fn with_credentials(marker: &str) -> Vec<serde_json::Value> {
    use serde_json::json;
    let s3 = || json!({"type": "s3", "bucket": "symbols", "region": "eu-central-1"});
    let gcs = || json!({"type": "gcs", "bucket": "symbols"});
    let with = |mut source: serde_json::Value, more: serde_json::Value| {
        let more = more.as_object().unwrap().clone();
        source.as_object_mut().unwrap().extend(more);
        source
    };
    let mut sources = vec![
        json!({
            "type": "http", "url": format!("http://symbols.test/?sig={marker}"), "headers": {"x-key": marker},
        }),
        with(s3(), json!({"access_key": marker, "secret_key": marker})),
        with(
            s3(),
            json!({"access_key": marker, "secret_key": marker, "session_token": marker}),
        ),
        with(
            gcs(),
            json!({"client_email": marker, "private_key": marker}),
        ),
        with(gcs(), json!({"bearer_token": marker})),
        json!({"type": "sentry", "url": format!("http://sentry.test/?a={marker}"), "token": marker}),
        json!({"type": "sentry", "url": "http://sentry.test/", "cookies": marker}),
    ];
    for (at, source) in sources.iter_mut().enumerate() {
        source["id"] = format!("source-{at}").into();
    }
    sources
}

/// In keys, records, messages and responses, of sources in requests and of configured ones; the
/// logs are checked where functions run (`secrets_in_any_field_of_a_source_reach_only_its_server`).
#[tokio::test(start_paused = true)]
async fn a_marker_in_a_credential_of_any_kind_of_source_appears_nowhere() {
    const MARKER: &str = "0penSesame";
    let sources = with_credentials(MARKER);
    let with_ids = |prefix: &str| {
        let mut sources = sources.clone();
        for source in &mut sources {
            source["id"] = format!("{prefix}{}", source["id"].as_str().unwrap()).into();
        }
        sources
    };
    let mut configured = with_ids("configured-");
    configured.push(serde_json::json!({
        "type": "s3", "id": "configured-role", "bucket": "symbols", "region": "eu-central-1",
        "role_arn": "arn:aws:iam::123456789012:role/symbols", "external_id": MARKER,
    }));
    let configured: Vec<ConfiguredSource> =
        serde_json::from_value(serde_json::Value::from(configured)).unwrap();
    let ids: Vec<String> = configured
        .iter()
        .map(|source| source.0.id.clone())
        .collect();
    let world = that_allows_definitions().deployed_with(|settings| {
        settings.sources = configured
            .iter()
            .map(|source| source.0.clone().into())
            .collect();
    });
    let crash = symdepot_tests::harness::fixture_text("crash.json");
    let mut body: serde_json::Value = serde_json::from_str(&crash).unwrap();
    let defined = with_ids("defined-").into_iter();
    let named = ids.iter().map(|id| serde_json::Value::from(id.as_str()));
    body["sources"] = defined.chain(named).collect();
    body["options"] = serde_json::json!({"dif_candidates": true});
    let request = parsed(&body.to_string());
    let pending = world.answer(&request, &Scope::Global, Duration::ZERO).await;
    let sent = format!("{pending:?} {:?}", world.queues.sent());
    world.settle().await;
    let completed = world.symbolicate(&request).await;
    let answer = serde_json::to_string(&completed).unwrap();
    let kept = format!(
        "{world:?} {:?} {:?}",
        world.records.items(),
        world.entries()
    );
    for (what, text) in [
        ("messages", &sent),
        ("an answer", &answer),
        ("records", &kept),
    ] {
        for at in 0..sources.len() {
            for prefix in ["configured-", "defined-"] {
                let id = format!("{prefix}source-{at}");
                assert!(text.contains(&id), "{what} do not mention {id}");
            }
        }
        assert!(!text.contains(MARKER), "{what}: {text}");
    }
    assert!(kept.contains("configured-role"));
}

#[tokio::test(start_paused = true)]
async fn requests_and_sources_encrypted_with_an_old_secret_are_served_after_a_rotation() {
    let (old, new) = (
        "a secret of at least thirty-two characters",
        "another secret of thirty-two characters",
    );
    let with = |text: String| {
        move |settings: &mut symdepot::flows::Settings| {
            settings.request_sources = SourceSecret::new(&text).ok();
        }
    };
    let world = World::with(with(old.to_owned()));
    world.servers.put(&at(DEBUG), fixture("elf/crash.debug"));
    let body = with_own_source("sesame");
    let pending = world
        .answer(&parsed(&body), &Scope::Global, Duration::ZERO)
        .await;
    assert!(matches!(
        pending,
        Ok(symdepot::flows::symbolicate::SymbolicateOutcome::Pending)
    ));
    let invocation = world.invocation(HOUR);
    let kept = world.service().store_request(
        &invocation,
        "7",
        &Scope::Global,
        RequestToStore::received(body.as_bytes()),
    );
    kept.await.unwrap();
    // A secret without a number has the number 0.
    let rotated = world.deployed_with(with(format!("1:{new},0:{old}")));
    rotated.settle().await;
    assert!(
        !rotated.servers.take_asked().is_empty(),
        "derive decrypted the definition"
    );
    let request = stored_request(rotated.service(), &invocation, "7").await;
    let (_, stored) = request.unwrap().unwrap();
    assert_eq!(stored, body.as_bytes());
    assert!(is_symbolicated(&rotated.symbolicate(&parsed(&body)).await));
    let alone = world.deployed_with(with(format!("1:{new}")));
    let gone = stored_request(alone.service(), &invocation, "7").await;
    assert!(gone.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_definition_is_removed_after_a_day_without_requests() {
    let world = that_allows_definitions();
    let body = with_own_source("sesame");
    world.symbolicate(&parsed(&body)).await;
    let sources = || {
        let is_source =
            |item: &symdepot::cache::Item| matches!(item, symdepot::cache::Item::Source(_));
        let items = world.records.items().into_iter();
        items.filter(|(_, stored)| is_source(&stored.item)).count()
    };
    assert_eq!(sources(), 1);
    world.pass(HOUR * 25).await;
    world.prune().await.unwrap();
    assert_eq!(sources(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_definition_in_use_is_never_removed() {
    let world = that_allows_definitions();
    let body = with_own_source("sesame");
    world.symbolicate(&parsed(&body)).await;
    for _ in 0..4 {
        // Longer than the absence of a file is cached, so that each build needs the definition of
        // the source.
        world.pass(HOUR * 13).await;
        world.servers.take_asked();
        world.another_instance().symbolicate(&parsed(&body)).await;
        assert!(!world.servers.take_asked().is_empty());
    }
}
