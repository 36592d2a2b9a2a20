//! What requests say about crash files besides the file: names of the first module, and how long
//! they wait; and stacks that the client walked.

use std::time::Duration;

use symdepot::api::crash::ReadCrash;
use symdepot::api::crash::apple::parse_report;
use symdepot::api::crash::form::CrashFields;
use symdepot::api::crash::rewrite::{RewriteRule, RewriteRules};
use symdepot::api::symbolicator::{
    AddrMode, Completed, Frame, FrameTrust, Hex, Module, ModuleStatus, Request, Stacktrace,
};
use symdepot::domain::{CodeId, ObjectType, ResponseFormat, Scope};
use symdepot::flows::minidump::{MinidumpRequest, WalkOutcome};
use symdepot::flows::requests::{CallState, MAX_PENDING, RequestStage, RequestToStore};
use symdepot::flows::symbolicate::SymbolicateOutcome;
use symdepot::unwind::MAX_FRAMES;
use symdepot_tests::harness::{
    MadeUpDump, MadeUpModule, MadeUpStack, MadeUpThread, World, fixture, stored_request,
};

use crate::CRASH;

const TIME: Duration = Duration::from_secs(29);
const ID: &str = "a-crash";
const STACK: u64 = 0x7fff_0000_0000;
const BASE: u64 = 0x5555_0000_0000;

fn call(is_overdue: bool) -> CallState<'static> {
    let first = CallState::first(ID, &Scope::Global, Duration::ZERO);
    if is_overdue {
        CallState {
            age: MAX_PENDING,
            ..first
        }
    } else {
        first
    }
}

async fn walk(world: &World, file: Vec<u8>, fields: &CrashFields, is_overdue: bool) -> WalkOutcome {
    let invocation = world.invocation(TIME);
    let request = MinidumpRequest {
        file: file.into(),
        fields,
        call: call(is_overdue),
    };
    let walked = world.service().walk_minidump(&invocation, request);
    Box::pin(walked).await.unwrap()
}

async fn walked(world: &World, dump: &MadeUpDump, fields: &CrashFields) -> ReadCrash {
    match walk(world, dump.file(), fields, false).await {
        WalkOutcome::Walked(report, _) => *report,
        other => panic!("{other:?}"),
    }
}

async fn answer(world: &World, report: &ReadCrash, is_overdue: bool) -> SymbolicateOutcome {
    let invocation = world.invocation(TIME);
    let body = serde_json::to_vec(report).unwrap();
    let call = call(is_overdue).storing(RequestToStore::crash_file(report, &body));
    let service = world.service();
    let answer = service.answer_crash(&invocation, report, call);
    Box::pin(answer).await.unwrap()
}

fn completed(outcome: SymbolicateOutcome) -> Completed {
    match outcome {
        SymbolicateOutcome::Completed(completed, _) => *completed,
        SymbolicateOutcome::Pending => panic!("not completed"),
    }
}

fn dump(module: &str) -> MadeUpDump {
    MadeUpDump {
        stacks: vec![MadeUpStack {
            address: STACK,
            bytes: vec![0; 64],
        }],
        threads: [1, 2]
            .map(|id| MadeUpThread {
                id,
                rip: BASE + 0x100,
                rsp: STACK,
                ..MadeUpThread::default()
            })
            .into(),
        modules: vec![MadeUpModule {
            address: BASE,
            size: 0x10_0000,
            name: module.to_owned(),
            debug_id: CRASH.parse().unwrap(),
            ..MadeUpModule::default()
        }],
        crashed: Some(1),
        ..MadeUpDump::default()
    }
}

#[tokio::test(start_paused = true)]
async fn stacks_that_the_client_walked_replace_the_walks_of_their_threads() {
    let world = World::new();
    let frame = |address, symbol: &str| (address, symbol.to_owned());
    let dump = MadeUpDump {
        client_stacks: vec![
            (2, vec![frame(BASE + 0x30, "_Z3onev"), frame(7, "")]),
            (3, vec![frame(BASE, "no_such_thread")]),
        ],
        ..dump("/opt/app")
    };
    let report = walked(&world, &dump, &CrashFields::default()).await;
    let [walked, prewalked] = &*report.request.stacktraces else {
        panic!("{report:#?}");
    };
    assert_eq!(walked.frames[0].trust, FrameTrust::Context);
    let frames = prewalked.frames.iter().map(|frame| {
        assert_eq!(frame.trust, FrameTrust::PreWalked);
        (frame.instruction_addr.0, frame.package.as_deref())
    });
    let frames: Vec<_> = frames.collect();
    assert_eq!(frames, [(BASE + 0x30, Some("/opt/app")), (7, None)]);
    let completed = completed(answer(&world, &report, true).await);
    let frame = &completed.stacktraces[1].frames[0].frame;
    assert_eq!(frame.function.as_deref(), Some("one()"));
}

pub(crate) fn rules(from: &str, to: &str) -> CrashFields {
    CrashFields {
        rewrite_first_module: RewriteRules(vec![RewriteRule {
            from: from.to_owned(),
            to: to.to_owned(),
        }]),
        ..CrashFields::default()
    }
}

/// A symbol server whose files are found by the names of the modules.
pub(crate) fn by_name() -> World {
    World::with(|settings| {
        let source = serde_json::json!({
            "type": "http", "id": "by-name", "url": "http://symbols.test",
            "layout": {"type": "native"}, "filters": {"filetypes": ["breakpad"]},
        });
        let source: symdepot::domain::HttpSource = serde_json::from_value(source).unwrap();
        settings.sources = vec![source.into()];
    })
}

/// The locations of the candidates of the first module.
async fn searched(world: &World, mut report: ReadCrash) -> (Vec<String>, Option<String>) {
    report.request.options.dif_candidates = true;
    let outcome = answer(world, &report, false).await;
    assert!(
        matches!(outcome, SymbolicateOutcome::Pending),
        "{outcome:?}"
    );
    world.settle().await;
    let completed = completed(answer(world, &report, false).await);
    let module = &completed.modules[0];
    let locations = module.candidates.iter();
    let locations = locations.map(|candidate| candidate.location.to_string());
    (locations.collect(), module.module.debug_file.clone())
}

#[tokio::test(start_paused = true)]
async fn the_first_module_is_looked_up_under_the_name_that_a_rule_gives_it() {
    let fields = rules("^.*Chat( Helper)?$", "electron");
    let has =
        |locations: &[String], name: &str| locations.iter().any(|location| location.contains(name));
    let world = by_name();
    let report = ReadCrash {
        request: Request {
            stacktraces: vec![Stacktrace {
                frames: vec![Frame {
                    instruction_addr: Hex(16),
                    addr_mode: AddrMode::Rel(0),
                    ..Frame::default()
                }],
                ..Stacktrace::default()
            }],
            modules: vec![Module {
                debug_file: Some("/opt/Chat".to_owned()),
                ..module()
            }],
            ..Request::default()
        },
        ..ReadCrash::default()
    };
    let (plain, shown) = searched(&world, report.clone()).await;
    assert!(has(&plain, "Chat") && !has(&plain, "electron"), "{plain:?}");
    assert_eq!(shown.as_deref(), Some("/opt/Chat"));
    let report = report.with_fields(fields);
    let (renamed, shown) = searched(&world, report).await;
    assert!(
        has(&renamed, "electron") && !has(&renamed, "Chat"),
        "{renamed:?}"
    );
    assert_eq!(shown.as_deref(), Some("/opt/Chat"));
}

fn module() -> Module {
    Module {
        object_type: ObjectType::Elf,
        code_id: None::<CodeId>,
        code_file: None,
        debug_id: Some(CRASH.parse().unwrap()),
        debug_file: None,
        debug_checksum: None,
        image_addr: Hex(BASE),
        image_size: Some(0x1000),
    }
}

#[tokio::test(start_paused = true)]
async fn a_rule_renames_the_first_module_of_minidumps_and_of_reports() {
    let world = World::new();
    let fields = rules("^/opt/(.*)$", "electron-$1");
    let report = walked(&world, &dump("/opt/app"), &fields).await;
    let renamed = report.renamed.clone().unwrap();
    assert_eq!(
        (renamed.index, renamed.debug_file.as_deref()),
        (0, Some("/opt/app"))
    );
    let looked_up = report.request.modules[0].debug_file.as_deref();
    assert_eq!(looked_up, Some("electron-app"));
    // The package of a frame is the file of the module.
    let package = report.request.stacktraces[0].frames[0].package.as_deref();
    assert_eq!(package, Some("/opt/app"));

    let json = serde_json::json!({
        "threads": [{"frames": [{"imageIndex": 0, "imageOffset": 16}]}],
        "usedImages": [{"base": 4096, "size": 4096, "path": "/opt/app", "uuid": CRASH}],
    });
    let report = parse_report(json.to_string().as_bytes()).unwrap();
    let report = report.with_fields(fields);
    let looked_up = report.request.modules[0].debug_file.as_deref();
    assert_eq!(looked_up, Some("electron-app"));
}

#[tokio::test(start_paused = true)]
async fn a_walk_that_is_overdue_is_completed_without_the_builds_that_it_waits_for() {
    let world = World::new();
    world.upload("global/crash", "elf/crash").await;
    world.pass(Duration::from_secs(8 * 24 * 3600)).await;
    world.prune().await.unwrap();
    let cold = world.another_instance();
    let (file, fields) = (
        fixture("minidump/crash.dmp").to_vec(),
        CrashFields::default(),
    );
    let outcome = walk(&cold, file.clone(), &fields, false).await;
    assert!(matches!(outcome, WalkOutcome::Pending), "{outcome:?}");
    let outcome = walk(&cold, file, &fields, true).await;
    let WalkOutcome::Walked(report, _) = outcome else {
        panic!("{outcome:?}");
    };
    assert!(!report.request.stacktraces[0].frames.is_empty());
    let completed = completed(answer(&cold, &report, true).await);
    let crash = completed.modules.iter();
    let mut crash = crash
        .filter(|module| module.module.debug_id.map(|id| id.to_string()) == Some(CRASH.to_owned()));
    let module = crash.next().unwrap();
    assert_eq!(module.unwind_status, Some(ModuleStatus::Timeout));
    assert_eq!(module.debug_status, ModuleStatus::Timeout);
}

#[tokio::test(start_paused = true)]
async fn a_request_is_overdue_after_fifteen_minutes_also_if_it_was_walked_between() {
    let world = World::new();
    let keep = async |stage| {
        let to_store = RequestToStore {
            stage,
            format: ResponseFormat::Symbolicator,
            body: b"{}",
        };
        let invocation = world.invocation(TIME);
        let service = world.service();
        let kept = service.store_request(&invocation, ID, &Scope::Global, to_store);
        kept.await.unwrap();
    };
    let is_overdue = async || {
        let invocation = world.invocation(TIME);
        let kept = stored_request(world.service(), &invocation, ID).await;
        let (found, _) = kept.unwrap().unwrap();
        found.age(invocation.now()) >= MAX_PENDING
    };
    keep(RequestStage::Minidump).await;
    world.pass(MAX_PENDING / 2).await;
    keep(RequestStage::CrashFile).await;
    world.pass(MAX_PENDING / 2 - Duration::from_secs(1)).await;
    assert!(!is_overdue().await);
    world.pass(Duration::from_secs(1)).await;
    assert!(is_overdue().await);
}

#[tokio::test(start_paused = true)]
async fn a_recursion_of_a_hundred_thousand_frames_is_cut() {
    const FRAMES: u64 = 100_000;
    // Each frame is two words: the frame pointer of its caller, and a return address.
    let words = (1..=FRAMES).flat_map(|frame| [STACK + frame * 16, BASE + 0x200]);
    let mut dump = dump("/opt/app");
    dump.stacks[0].bytes = words.flat_map(u64::to_le_bytes).collect();
    dump.threads.truncate(1);
    dump.threads[0].rbp = STACK;
    let outcome = walk(&World::new(), dump.file(), &CrashFields::default(), false).await;
    let WalkOutcome::Walked(report, stats) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(report.request.stacktraces[0].frames.len(), MAX_FRAMES);
    assert_eq!((stats.stacks_cut, stats.stacks_shortened), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_module_with_only_a_code_id_has_the_debug_id_of_the_file_that_unwinds_it() {
    let world = World::new();
    let upload = world.upload("global/crash.exe", "pe/x64/crash.exe").await;
    let object = &upload.objects[0];
    let (timestamp, size) = object.code_id.as_ref().unwrap().as_str().split_at(8);
    let mut dump = dump("C:\\app\\crash.exe");
    dump.is_windows = true;
    dump.threads.truncate(1);
    let module = &mut dump.modules[0];
    module.debug_id = symbolic::common::DebugId::nil();
    module.timestamp = u32::from_str_radix(timestamp, 16).unwrap();
    module.size = u32::from_str_radix(size, 16).unwrap();
    dump.threads[0].rip = BASE + 0x1010;
    let report = walked(&world, &dump, &CrashFields::default()).await;
    assert!(object.debug_id.is_some());
    assert_eq!(report.request.modules[0].debug_id, object.debug_id);
}
