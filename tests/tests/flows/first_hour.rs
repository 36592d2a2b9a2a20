//! The first hour of a new user: no input is ignored silently, and each report of an ignored input
//! names the next step.

use std::time::Duration;

use serde_json::{Value, json};
use symdepot::api::advice::Advice;
use symdepot::api::explained::{EntryUse, Explained, ExplainedUpload};
use symdepot::api::symbolicator::{
    AddrMode, CandidateReport, Completed, Derivation, FrameStatus, Hex, ModuleStatus, Options,
};
use symdepot::cache::{Kind, Queue, UploadState};
use symdepot::domain::{Cause, CodeId, Download, Features, Missing, ObjectId, Scope};
use symdepot::flows::plain::Plain;
use symdepot_tests::harness::{
    Crash, World, archive, breakpad, fixture, function_names, in_module, sample_crash,
};

use crate::CRASH;

/// The build id of elf/crash and of its debug file, as `readelf -n` prints it.
const BUILD_ID: &str = "ac456ebc7f4825f4367208b89f51ad481774aae7";

/// The time after which a warm instance sees an upload.
const SEEN_AFTER: Duration = Duration::from_secs(2);

/// The time after which an instance trusts the generation that it read of a scope.
const LONG: Duration = Duration::from_secs(3600);

/// Returns the state of an upload.
pub(crate) async fn explained(world: &World, key: &str) -> Option<ExplainedUpload> {
    let keys = [key.to_owned()];
    let explained = world.service().explain_upload(&keys).await;
    explained.unwrap()
}

/// Returns what a request for a module would read.
pub(crate) async fn explained_module(world: &World, module: &ObjectId) -> Vec<Explained> {
    let invocation = world.invocation(Duration::from_secs(9));
    let service = world.service();
    let explained = service.explain_module(&invocation, module, None, &Scope::Global);
    explained.await.unwrap()
}

fn by_build_id() -> ObjectId {
    ObjectId {
        code_id: Some(CodeId::new(BUILD_ID.into())),
        ..ObjectId::default()
    }
}

/// A crash in a module, with one address relative to its start.
fn crash_in(module: &Value) -> Crash {
    in_module(module.clone(), &[0x3950])
}

fn sample_module() -> Value {
    json!({"type": "elf", "code_id": BUILD_ID})
}

fn detail(completed: &Completed) -> &str {
    let detail = completed.modules[0].debug_detail.as_deref();
    detail.unwrap_or_default()
}

fn has_lines(completed: &Completed) -> bool {
    let mut frames = completed.stacktraces[0].frames.iter();
    frames.any(|frame| frame.frame.lineno.is_some_and(|line| line > 0))
}

#[tokio::test(start_paused = true)]
async fn the_build_id_alone_finds_names_and_a_build_id_in_the_debug_id_is_reported() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let by_code_id = world.symbolicate(&crash_in(&sample_module())).await;
    assert_eq!(by_code_id.modules[0].debug_status, ModuleStatus::Found);
    assert!(has_lines(&by_code_id) && detail(&by_code_id).is_empty());

    let wrong = json!({"type": "elf", "debug_id": BUILD_ID});
    let missing = world.symbolicate(&crash_in(&wrong)).await;
    assert_eq!(missing.modules[0].debug_status, ModuleStatus::Missing);
    let detail = detail(&missing);
    assert!(detail.contains("looks like a build id"), "{detail}");
    assert!(detail.contains("send the build id as code_id"), "{detail}");
}

#[tokio::test(start_paused = true)]
async fn an_upload_names_its_scope_and_a_missing_module_where_it_was_searched() {
    let world = World::new();
    world.upload("symbols/crash.debug", "elf/crash.debug").await;
    let upload = explained(&world, "symbols/crash.debug").await.unwrap();
    assert_eq!(upload.scope, Some("symbols".parse().unwrap()));
    let advice = upload.advice[0].to_string();
    assert!(advice.contains("?scope=symbols"), "{advice}");

    let missing = world.symbolicate(&sample_crash()).await;
    let nowhere = "no file for this module was found in the uploads of global (no upload was processed there yet);";
    assert!(
        detail(&missing).starts_with(nowhere),
        "{}",
        detail(&missing)
    );
    let other: Scope = "other".parse().unwrap();
    world.upload("global/note.txt", "hostile/text.txt").await;
    world.upload("global/inventory", "elf/inventory").await;
    world.pass(SEEN_AFTER).await;
    let missing = world.symbolicate_for(&other, &sample_crash()).await;
    let both = "the uploads of other (no upload was processed there yet), the uploads of global;";
    assert!(detail(&missing).contains(both), "{}", detail(&missing));
}

#[tokio::test(start_paused = true)]
async fn a_debug_file_after_its_stripped_program_is_effective_within_two_seconds() {
    for settled in [Duration::ZERO, LONG] {
        let world = World::new();
        world.upload("global/crash", "elf/crash").await;
        world.pass(settled).await;
        for _ in 0..3 {
            let symbols = world.symbolicate(&sample_crash()).await;
            assert!(!has_lines(&symbols));
            assert!(
                detail(&symbols).contains("symbols but no debug information"),
                "{}",
                detail(&symbols)
            );
            world.pass(SEEN_AFTER).await;
        }
        world.symbolicate(&sample_crash()).await;
        world.upload("global/crash.debug", "elf/crash.debug").await;
        world.pass(SEEN_AFTER).await;
        let full = world.symbolicate(&sample_crash()).await;
        assert!(has_lines(&full), "{settled:?}: {:?}", function_names(&full));
        assert_eq!(detail(&full), "");
        world.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_module_with_only_symbols_costs_a_warm_instance_one_read_of_its_scope() {
    let world = World::new();
    world.upload("global/crash", "elf/crash").await;
    world.pass(LONG).await;
    world.symbolicate(&sample_crash()).await;
    world.pass(SEEN_AFTER).await;
    world.symbolicate(&sample_crash()).await;
    let loads = || world.records.calls().of("load");
    for _ in 0..10 {
        world.pass(SEEN_AFTER).await;
        let before = loads();
        world.symbolicate(&sample_crash()).await;
        world.symbolicate(&sample_crash()).await;
        assert_eq!(loads() - before, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn skipped_files_of_an_archive_are_stored_and_shown() {
    let world = World::new();
    let long_name = format!("{}/readme.txt", "folder".repeat(200));
    let files = [
        ("app.sym".to_owned(), breakpad(1)),
        ("readme.txt".to_owned(), b"read me".to_vec()),
        ("empty".to_owned(), Vec::new()),
        (long_name, b"read me, too".to_vec()),
    ];
    let event = world.put("global/symbols.zip", archive(&files));
    world.deliver(&event).await.unwrap();
    world.settle().await;
    let upload = explained(&world, "global/symbols.zip").await.unwrap();
    assert_eq!(
        (&upload.state, upload.objects.len()),
        (&UploadState::Applied, 1)
    );
    let [readme, empty, long] = &upload.skipped[..] else {
        panic!("{:?}", upload.skipped);
    };
    assert!(readme.starts_with("readme.txt: not a debug"), "{readme}");
    assert_eq!(empty, "empty: empty file");
    assert!(long.starts_with('…') && long.len() < 310, "{long}");
    // The same bytes again: the known state stays.
    let again = world.put("global/symbols.zip", archive(&files));
    world.deliver(&again).await.unwrap();
    let again = explained(&world, "global/symbols.zip").await.unwrap();
    assert_eq!(again.skipped, upload.skipped);
}

#[tokio::test(start_paused = true)]
async fn a_truncated_file_is_reported_beside_a_stripped_program_of_its_id() {
    let world = World::new();
    let whole = fixture("elf/crash.debug");
    let event = world.put("global/crash.debug", whole[..whole.len() / 2].to_vec());
    world.deliver(&event).await.unwrap();
    world.settle().await;
    let upload = explained(&world, "global/crash.debug").await.unwrap();
    assert_eq!(upload.state, UploadState::Applied);
    let advice = upload.objects[0].advice.as_ref().unwrap();
    assert_eq!(advice.cause, "unreadable");
    assert!(advice.detail.contains("cut short"), "{advice}");

    world.upload("global/crash", "elf/crash").await;
    let request = Crash {
        options: Options {
            dif_candidates: true,
            ..sample_crash().options
        },
        ..sample_crash()
    };
    let answer = world.symbolicate(&request).await;
    assert_eq!(answer.modules[0].debug_status, ModuleStatus::Found);
    let detail = detail(&answer);
    assert!(
        detail.contains("global/crash.debug: the file is cut short"),
        "{detail}"
    );
    let candidates = &answer.modules[0].candidates;
    let of_it = |candidate: &&CandidateReport| candidate.location.as_str() == "global/crash.debug";
    let candidate = candidates.iter().find(of_it).unwrap();
    assert!(
        matches!(&candidate.debug, Some(Derivation::Malformed { details: Some(details) }) if details.contains("cut short")),
        "{candidate:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_module_without_uploads_is_explained_as_absent() {
    let world = World::new();
    let records = explained_module(&world, &by_build_id()).await;
    let states: Vec<_> = records.iter().map(|record| record.state).collect();
    assert_eq!(states, [EntryUse::Absent; 4]);
    let advised: Vec<_> = records
        .iter()
        .filter_map(|record| Some((record.kind, record.advice.as_ref()?.cause.as_str())))
        .collect();
    assert_eq!(advised, [(Kind::SymCache, "not_uploaded")]);

    // The upload is filed under its debug id. The code id is an alias.
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let records = explained_module(&world, &by_build_id()).await;
    assert!(records.iter().all(|record| record.module.contains(CRASH)));
    assert!(records.iter().any(|record| record.state == EntryUse::Use));
}

#[tokio::test(start_paused = true)]
async fn a_plain_symcache_is_found_by_the_build_id() {
    let world = World::new();
    let plain = || async {
        let invocation = world.invocation(Duration::from_secs(9));
        let service = world.service();
        let module = by_build_id();
        let plain = service.plain_sym_cache(&invocation, &module, &Scope::Global);
        plain.await.unwrap()
    };
    let Plain::Nowhere(records) = plain().await else {
        panic!("nothing was uploaded");
    };
    assert_eq!(records[0].place(), "the uploads of global");
    world.upload("global/crash.debug", "elf/crash.debug").await;
    assert!(matches!(plain().await, Plain::At(_)));
}

#[tokio::test(start_paused = true)]
async fn a_key_with_a_plus_sign_is_found_as_it_is_pasted() {
    let world = World::new();
    let key = "global/libstdc++.so.6.debug";
    world.upload(key, "elf/crash.debug").await;
    let keys = [key.replace('+', " "), key.to_owned()];
    let explained = world.service().explain_upload(&keys).await;
    assert_eq!(explained.unwrap().unwrap().key, key);
}

#[tokio::test(start_paused = true)]
async fn absolute_addresses_in_a_module_at_zero_are_reported() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let mut request = crash_in(&sample_module());
    request.modules[0].image_addr = Hex(0);
    let frame = &mut request.stacktraces[0].frames[0];
    (frame.addr_mode, frame.instruction_addr) = (AddrMode::Rel(0), Hex(0x3950));
    let relative = world.symbolicate(&request).await;
    assert!(has_lines(&relative) && detail(&relative).is_empty());
    request.stacktraces[0].frames[0].addr_mode = AddrMode::Abs;
    let absolute = world.symbolicate(&request).await;
    let status = absolute.stacktraces[0].frames[0].status;
    assert_eq!(status, FrameStatus::MissingSymbol);
    let detail = detail(&absolute);
    assert!(detail.contains("its image_addr is 0"), "{detail}");
}

#[tokio::test(start_paused = true)]
async fn a_pending_upload_is_reported_and_a_missing_module_suggests_a_retry() {
    let world = World::new();
    let event = world.put("global/crash.debug", fixture("elf/crash.debug"));
    world.derivations.kill_next_readers(1);
    assert!(world.deliver(&event).await.is_err());
    let upload = explained(&world, "global/crash.debug").await.unwrap();
    assert_eq!(upload.state, UploadState::Pending);
    let causes: Vec<_> = upload
        .advice
        .iter()
        .map(|advice| advice.cause.as_str())
        .collect();
    assert_eq!(causes, ["being_read"]);
    assert_eq!(upload.attempts, 1);
    let missing = world.symbolicate(&sample_crash()).await;
    let detail = detail(&missing);
    assert!(detail.contains("then send the request again"), "{detail}");
}

#[tokio::test(start_paused = true)]
async fn a_program_without_a_build_id_reports_what_its_id_is_computed_from() {
    let world = World::new();
    world.upload("global/lib.so", "elf/no-build-id.so").await;
    let upload = explained(&world, "global/lib.so").await.unwrap();
    let advice = upload.objects[0].advice.as_ref().unwrap();
    assert_eq!(advice.cause, "no_build_id");
    assert!(advice.next_step.contains("-Wl,--build-id"), "{advice}");
}

/// Returns the state of each cache that the objects of an upload are for, as JSON.
fn caches(upload: &ExplainedUpload) -> Value {
    let objects = upload.objects.iter();
    let caches = objects.flat_map(|object| &object.caches);
    json!(caches.collect::<Vec<_>>())
}

fn causes(upload: &ExplainedUpload) -> Vec<&str> {
    let objects = upload.objects.iter();
    let advice = objects.filter_map(|object| object.advice.as_ref());
    advice.map(|advice| advice.cause.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn an_upload_whose_names_cannot_be_derived_says_so() {
    let world = World::new();
    let key = "global/flipped.debug";
    world.upload(key, "hostile/bits-flipped.debug").await;
    let upload = explained(&world, key).await.unwrap();
    assert_eq!(upload.state, UploadState::Applied);
    let detail = "bad debug file: corrupted dwarf debug data: invalid attribute form: zero";
    assert_eq!(
        caches(&upload),
        json!([{"kind": "symcache", "state": "failed", "detail": detail}])
    );
    assert_eq!(causes(&upload), ["unusable"]);
    let advice = upload.objects[0].advice.as_ref().unwrap().to_string();
    assert!(
        advice.starts_with("no symcache can be derived from it: bad debug file: "),
        "{advice}"
    );

    // A better file serves the module. This one still cannot be read.
    world
        .upload("global/good.debug", "elf/crash-arm64.debug")
        .await;
    let upload = explained(&world, key).await.unwrap();
    assert_eq!(causes(&upload), ["unusable"], "{upload:?}");
    let good = explained(&world, "global/good.debug").await.unwrap();
    assert_eq!(
        caches(&good),
        json!([{"kind": "symcache", "state": "used"}])
    );
    assert_eq!(causes(&good), [""; 0]);
}

/// Two versions of a program without a build id, which begin with the same code.
fn versions_without_build_id() -> [Vec<u8>; 2] {
    let first = fixture("elf/no-build-id.so").to_vec();
    let mut second = first.clone();
    // What is behind the last section is not code.
    second.extend(b"version 2");
    [first, second]
}

#[tokio::test(start_paused = true)]
async fn an_upload_names_the_other_one_with_its_computed_id_that_is_used_instead() {
    let world = World::new();
    let [first, second] = versions_without_build_id();
    for (key, version) in [("global/1/lib.so", &first), ("global/2/lib.so", &second)] {
        let event = world.put(key, version.clone());
        world.deliver(&event).await.unwrap();
        world.settle().await;
    }
    let used = explained(&world, "global/1/lib.so").await.unwrap();
    assert_eq!(
        caches(&used),
        json!([
            {"kind": "cficache", "state": "used"},
            {"kind": "symcache", "state": "used"},
        ])
    );
    assert_eq!(causes(&used), ["no_build_id"]);
    let unused = explained(&world, "global/2/lib.so").await.unwrap();
    let other =
        |kind| json!({"kind": kind, "state": "other_upload", "made_from": "global/1/lib.so"});
    assert_eq!(
        caches(&unused),
        json!([other("cficache"), other("symcache")])
    );
    assert_eq!(causes(&unused), ["shared_id"]);
    let advice = unused.objects[0].advice.as_ref().unwrap().to_string();
    assert!(
        advice.starts_with("requests use global/1/lib.so instead of it (cficache, symcache): "),
        "{advice}"
    );
    assert!(advice.contains("-Wl,--build-id"), "{advice}");

    // The same bytes under another key are no other program.
    let event = world.put("global/3/lib.so", first);
    world.deliver(&event).await.unwrap();
    world.settle().await;
    let copy = explained(&world, "global/3/lib.so").await.unwrap();
    assert_eq!(causes(&copy), ["no_build_id"], "{copy:?}");

    world.remove("global/1/lib.so").await;
    world.remove("global/3/lib.so").await;
    let upload = explained(&world, "global/2/lib.so").await.unwrap();
    assert_eq!(causes(&upload), ["no_build_id"], "{upload:?}");
}

#[tokio::test(start_paused = true)]
async fn two_uploads_with_one_build_id_are_the_same_program() {
    let world = World::new();
    world.upload("global/a", "elf/crash").await;
    let mut copy = fixture("elf/crash").to_vec();
    copy.extend(b"stripped again");
    let event = world.put("global/b", copy);
    world.deliver(&event).await.unwrap();
    world.settle().await;
    let upload = explained(&world, "global/b").await.unwrap();
    let other = |kind| json!({"kind": kind, "state": "other_upload", "made_from": "global/a"});
    assert_eq!(
        caches(&upload),
        json!([other("cficache"), other("symcache")])
    );
    assert_eq!(causes(&upload), ["symbols_only"]);
}

#[tokio::test(start_paused = true)]
async fn a_program_of_a_machine_that_is_not_unwound_is_used_for_its_names() {
    let world = World::new();
    world.upload("global/riscv", "zoo/riscv64").await;
    let upload = explained(&world, "global/riscv").await.unwrap();
    let detail = "unwinding is not supported on RISC-V";
    assert_eq!(
        caches(&upload),
        json!([
            {"kind": "cficache", "state": "unsupported", "detail": detail},
            {"kind": "symcache", "state": "used"},
        ])
    );
    assert_eq!(causes(&upload), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn an_upload_says_which_caches_are_made_of_it_and_which_of_another_file() {
    let world = World::new();
    world.upload("global/crash", "elf/crash").await;
    // The program is applied, and the debug file is not read yet.
    let event = world.put("global/crash.debug", fixture("elf/crash.debug"));
    world.derivations.kill_next_readers(1);
    assert!(world.deliver(&event).await.is_err());
    let pending = explained(&world, "global/crash.debug").await.unwrap();
    assert_eq!(caches(&pending), json!([]));
    world.deliver(&event).await.unwrap();
    let upload = explained(&world, "global/crash.debug").await.unwrap();
    assert_eq!(
        caches(&upload),
        json!([{"kind": "symcache", "state": "used"}])
    );
    // Names come from the debug file now, unwind information from the program.
    let program = explained(&world, "global/crash").await.unwrap();
    assert_eq!(
        caches(&program),
        json!([
            {"kind": "cficache", "state": "used"},
            {"kind": "symcache", "state": "other_upload", "made_from": "global/crash.debug"},
        ])
    );
}

#[tokio::test(start_paused = true)]
async fn kinds_that_a_module_cannot_have_are_absent() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let native = explained_module(&world, &by_build_id()).await;
    let states: Vec<_> = native
        .iter()
        .map(|record| (record.kind, record.state))
        .collect();
    assert_eq!(
        states,
        [
            (Kind::CfiCache, EntryUse::Use),
            (Kind::PpdbCache, EntryUse::Absent),
            (Kind::SourceCode, EntryUse::Absent),
            (Kind::SymCache, EntryUse::Use),
        ]
    );
    assert!(native.iter().all(|record| record.advice.is_none()));

    world.upload("global/Ledger.pdb", "dotnet/Ledger.pdb").await;
    let upload = explained(&world, "global/Ledger.pdb").await.unwrap();
    let module = ObjectId {
        debug_id: upload.objects[0].debug_id,
        ..ObjectId::default()
    };
    let dotnet = explained_module(&world, &module).await;
    let state = |kind| {
        let mut records = dotnet.iter();
        records.find(|record| record.kind == kind).unwrap().state
    };
    assert_eq!(state(Kind::PpdbCache), EntryUse::Use);
    assert_eq!(state(Kind::SymCache), EntryUse::Absent);
    assert_eq!(state(Kind::CfiCache), EntryUse::Absent);
    assert!(dotnet.iter().all(|record| record.advice.is_none()));
}

/// Returns the names of all fields of an object, including those of the objects in the listed
/// fields.
fn fields(of: &Value, within: &[&str]) -> Vec<String> {
    let fields = of.as_object().unwrap().iter();
    let fields = fields.flat_map(|(name, value)| {
        let inner = match (within.contains(&name.as_str()), value) {
            (true, Value::Array(list)) => list
                .iter()
                .flat_map(|one| self::fields(one, within))
                .collect(),
            (true, Value::Object(_)) => self::fields(value, within),
            _ => Vec::new(),
        };
        std::iter::once(name.clone()).chain(inner)
    });
    fields.collect()
}

#[tokio::test(start_paused = true)]
async fn every_field_status_and_cause_is_documented() {
    let page = include_str!("../../../docs/api.md");
    let world = World::new();
    world.upload("acme/crash", "elf/crash").await;
    let files = [
        ("app.sym".to_owned(), breakpad(1)),
        ("readme.txt".to_owned(), b"read me".to_vec()),
    ];
    let event = world.put("global/symbols.zip", archive(&files));
    world.deliver(&event).await.unwrap();
    world.settle().await;
    let pending = world.put("global/pending.debug", fixture("elf/crash.debug"));
    world.derivations.kill_next_readers(1);
    assert!(world.deliver(&pending).await.is_err());
    world.upload("global/note.txt", "hostile/text.txt").await;
    let mut named: Vec<String> = Vec::new();
    for key in [
        "acme/crash",
        "global/symbols.zip",
        "global/pending.debug",
        "global/note.txt",
    ] {
        let upload = serde_json::to_value(explained(&world, key).await.unwrap()).unwrap();
        named.extend(fields(&upload, &["objects", "advice"]));
        named.push(upload["state"].as_str().unwrap().to_owned());
    }
    world.upload("global/crash", "elf/crash").await;
    for record in explained_module(&world, &by_build_id()).await {
        let record = serde_json::to_value(&record).unwrap();
        let within = ["record", "ready", "missing", "candidates", "advice"];
        named.extend(fields(&record, &within));
        named.push(record["state"].as_str().unwrap().to_owned());
    }
    for status in [
        ModuleStatus::Found,
        ModuleStatus::Unused,
        ModuleStatus::Missing,
        ModuleStatus::Malformed,
        ModuleStatus::FetchingFailed,
        ModuleStatus::Timeout,
        ModuleStatus::Unsupported,
        ModuleStatus::Other,
    ] {
        let status = serde_json::to_value(status).unwrap();
        named.push(status.as_str().unwrap().to_owned());
    }
    for cause in [
        Cause::NotFound,
        Cause::PermissionDenied,
        Cause::DownloadFailed,
        Cause::Timeout,
        Cause::Malformed,
        Cause::Unsupported,
        Cause::TooLarge { limit: 1 },
        Cause::Crashed,
    ] {
        let missing = serde_json::to_value(Missing::new(cause, "why")).unwrap();
        named.extend(fields(&missing, &["cause"]));
        named.extend(missing["cause"].as_str().map(str::to_owned));
    }
    let details = || "why".to_owned();
    for download in [
        Download::Ok {
            features: Features::default(),
        },
        Download::Malformed,
        Download::NoPerm { details: details() },
        Download::NotFound,
        Download::Error { details: details() },
    ] {
        let download = serde_json::to_value(download).unwrap();
        named.extend(fields(&download, &[]));
        named.push(download["status"].as_str().unwrap().to_owned());
    }
    for queue in [Queue::Eager, Queue::Uploads, Queue::Refresh] {
        let queue = serde_json::to_value(queue).unwrap();
        named.push(queue.as_str().unwrap().to_owned());
    }
    named.extend(Advice::CAUSES.map(str::to_owned));
    assert!(named.iter().any(|name| name == "passed_over"), "{named:?}");
    assert!(named.iter().any(|name| name == "candidates"), "{named:?}");
    let is_told = |name: &str| {
        page.contains(&format!("`{name}`")) || page.contains(&format!("record.{name}`"))
    };
    named.retain(|name| !is_told(name));
    named.sort_unstable();
    named.dedup();
    assert_eq!(named, [""; 0], "docs/api.md does not explain these");
}

#[tokio::test(start_paused = true)]
async fn a_split_program_names_its_missing_file_and_an_archive_of_both_has_all_names() {
    let world = World::new();
    let program = json!({"type": "elf", "code_id": "85998e94faf041c7a78b254e954ed8b91bf6fae5"});
    let crash = in_module(program, &[0x11cd]);
    world.upload("global/app", "zoo/split-alone").await;
    let alone = world.symbolicate(&crash).await;
    assert_eq!(
        function_names(&alone),
        ["shop::sell(shop::Item const*, int)"]
    );
    assert!(
        detail(&alone).contains("shop.dwo (id b2ba7b9c6f282e2c)"),
        "{}",
        detail(&alone)
    );

    world.pass(SEEN_AFTER).await;
    world.upload("global/app.zip", "zoo/split-single.zip").await;
    world.pass(SEEN_AFTER).await;
    let both = world.symbolicate(&crash).await;
    assert_eq!(
        function_names(&both),
        [
            "shop::Basket::Basket()",
            "shop::sell(shop::Item const*, int)"
        ]
    );
    assert_eq!(detail(&both), "");
}
