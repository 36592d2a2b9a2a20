//! Minidumps: their threads become stack traces, which are symbolicated.

use std::time::Duration;

use bytes::Bytes;
use minidump_unwind::FrameTrust as WalkedTrust;
use proptest::test_runner::{Config, TestRunner};
use symbolic::common::DebugId;
use symdepot::adapters::faulty::{How, Operation};
use symdepot::api::crash::ReadCrash;
use symdepot::api::crash::form::CrashFields;
use symdepot::api::symbolicator::{
    Completed, FrameOrder, FrameTrust, ModuleStatus, Options, Stacktrace,
};
use symdepot::cache::Kind;
use symdepot::domain::{Location, ResponseFormat, Scope};
use symdepot::flows::Error;
use symdepot::flows::minidump::{
    MinidumpForm, MinidumpRequest, WalkOutcome, WalkStats, decode_dump,
};
use symdepot::flows::requests::{CallState, RequestStage, RequestToStore};
use symdepot::flows::symbolicate::SymbolicateOutcome;
use symdepot::unwind::MAX_FRAMES;
use symdepot::unwind::dump::{STACK_BYTES, THREADS};
use symdepot_tests::harness::{
    MadeUpDump, MadeUpModule, MadeUpStack, MadeUpThread, World, fixture, function_names,
    stored_request,
};

use crate::unwinding::Dump;
use crate::{CRASH, servers};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The time limit of an invocation.
const TIME: Duration = Duration::from_secs(29);

const ID: &str = "a-dump";

/// The address of the stack in minidumps that are made here.
const STACK: u64 = 0x7fff_0000_0000;

/// The address of the module.
const BASE: u64 = 0x5555_0000_0000;

const LARGE: &str = "502fc0a5-1ec1-3e47-9998-684fa139dca7";

fn with_candidates() -> CrashFields {
    CrashFields {
        options: Options {
            dif_candidates: true,
            ..Options::default()
        },
        ..CrashFields::default()
    }
}

pub(crate) async fn walk(
    world: &World,
    dump: &MinidumpForm,
    wait: Duration,
) -> Result<WalkOutcome, Error> {
    let invocation = world.invocation(TIME);
    let request = MinidumpRequest {
        file: dump.file.clone(),
        fields: &dump.fields,
        call: CallState::first(ID, &Scope::Global, wait),
    };
    let walked = world.service().walk_minidump(&invocation, request);
    Box::pin(walked).await
}

/// Walks a minidump; panics unless the walks are complete.
async fn walked(world: &World, file: impl Into<Bytes>) -> (ReadCrash, WalkStats) {
    let dump = MinidumpForm {
        file: Into::<Bytes>::into(file).into(),
        fields: with_candidates(),
    };
    match walk(world, &dump, Duration::ZERO).await.unwrap() {
        WalkOutcome::Walked(report, stats) => (*report, stats),
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn answered(world: &World, report: &ReadCrash) -> Completed {
    let invocation = world.invocation(TIME);
    let body = serde_json::to_vec(report).unwrap();
    let call = CallState::first(ID, &Scope::Global, Duration::from_secs(25))
        .storing(RequestToStore::crash_file(report, &body));
    let answer = world.service().answer_crash(&invocation, report, call);
    match world.with_derive_at_work(Box::pin(answer)).await.unwrap() {
        SymbolicateOutcome::Completed(completed, _) => *completed,
        SymbolicateOutcome::Pending => panic!("not finished"),
    }
}

fn frames(stacktrace: &Stacktrace) -> Vec<(u64, FrameTrust)> {
    let frames = stacktrace.frames.iter();
    frames
        .map(|frame| (frame.instruction_addr.0, frame.trust))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn the_walks_equal_those_of_the_walker_with_the_whole_cache() {
    for name in ["crash", "inventory"] {
        let world = World::new();
        world
            .upload(&format!("global/{name}"), &format!("elf/{name}"))
            .await;
        let (report, stats) = walked(&world, fixture(&format!("minidump/{name}.dmp"))).await;
        let plain = Dump::of(name).walk_plainly(name);
        let expected = plain.frames.iter().map(|frame| {
            let trust = match frame.trust {
                WalkedTrust::Context => FrameTrust::Context,
                WalkedTrust::CallFrameInfo => FrameTrust::Cfi,
                WalkedTrust::FramePointer => FrameTrust::Fp,
                WalkedTrust::Scan => FrameTrust::Scan,
                other => panic!("{other:?}"),
            };
            (frame.resume_address, trust)
        });
        // On its own, the walker guesses by function records, which a CFI cache does not have.
        let expected = expected.take_while(|(_, trust)| *trust != FrameTrust::Scan);
        let expected: Vec<_> = expected.collect();
        assert!(expected.len() > 2, "{name}: {expected:x?}");
        let [stacktrace] = &*report.request.stacktraces else {
            panic!("{name}: {report:#?}");
        };
        let found = frames(stacktrace);
        assert_eq!(found[..expected.len()], expected, "{name}");

        let context = &plain.frames[0].context;
        let registers = context.valid_registers().collect::<Vec<_>>();
        assert_eq!(stacktrace.registers.len(), registers.len());
        for (register, value) in registers {
            assert_eq!(stacktrace.registers[register].0, value, "{name} {register}");
        }
        assert_eq!((stats.threads, stats.frames), (1, found.len()));
        assert_eq!(stats.panics + stats.stacks_cut + stats.stacks_shortened, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn the_stack_of_each_thread_is_that_of_the_debugger() {
    let world = World::new();
    let event = world.put("global/threads", fixture("elf/threads"));
    world.deliver(&event).await.unwrap();
    world.settle().await;
    let (report, _) = walked(&world, fixture("minidump/threads.dmp")).await;
    let by_gdb = fixture("expected/minidump-threads.gdb.json");
    let by_gdb: Vec<Vec<u64>> = serde_json::from_slice(&by_gdb).unwrap();
    let modules = report.request.modules.iter();
    let mut modules = modules.filter(|module| module.code_file.as_deref() == Some("threads"));
    let module = modules.next().unwrap();
    let start = module.image_addr.0;
    let in_program = |address: &u64| (start..start + module.image_size.unwrap()).contains(address);
    assert_eq!(report.request.stacktraces.len(), by_gdb.len());
    for (stacktrace, by_gdb) in report.request.stacktraces.iter().zip(&by_gdb) {
        let expected: Vec<u64> = by_gdb.iter().copied().take_while(in_program).collect();
        let found = &frames(stacktrace)[..expected.len()];
        let addresses = found.iter().map(|(address, _)| *address);
        assert_eq!(addresses.collect::<Vec<_>>(), expected);
        assert!(
            found[1..]
                .iter()
                .all(|(_, trust)| *trust == FrameTrust::Cfi),
            "{found:x?}"
        );
    }
    let completed = answered(&world, &report).await;
    for (worker, stacktrace) in completed.stacktraces[1..].iter().enumerate() {
        let names = stacktrace
            .frames
            .iter()
            .filter_map(|frame| frame.frame.function.as_deref());
        let expected = [
            vec!["spin", "grow"],
            vec!["descend"; 3 * worker + 1],
            vec!["work"],
        ]
        .concat();
        assert_eq!(names.take(expected.len()).collect::<Vec<_>>(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_minidump_is_symbolicated() {
    let world = World::new();
    world.upload("global/crash", "elf/crash").await;
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let (report, _) = walked(&world, fixture("minidump/crash.dmp")).await;
    let completed = answered(&world, &report).await;
    let names = function_names(&completed);
    assert!(names.contains(&"main".to_owned()), "{names:?}");

    assert_eq!(
        completed.stacktraces[0].frames[0].frame.trust,
        FrameTrust::Context
    );

    let modules = completed.modules.iter();
    let addresses: Vec<u64> = modules.map(|module| module.module.image_addr.0).collect();
    assert!(addresses.is_sorted(), "{addresses:x?}");
    let of_program = |module: &&symdepot::api::symbolicator::CompletedModule| {
        module.module.debug_id.map(|id| id.to_string()) == Some(CRASH.to_owned())
    };
    let module = completed.modules.iter().find(of_program).unwrap();
    assert_eq!(module.unwind_status, Some(ModuleStatus::Found));
    assert_eq!(module.debug_status, ModuleStatus::Found);
    assert!(module.features.has_unwind_info && module.features.has_debug_info);
    // The program unwinds, and its debug file has the names.
    let [program, debug_file] = &*module.candidates else {
        panic!("{:#?}", module.candidates);
    };
    assert!(program.unwind.is_some() && debug_file.debug.is_some());
    let unused = |module: &&symdepot::api::symbolicator::CompletedModule| {
        module.unwind_status == Some(ModuleStatus::Unused)
    };
    let others = completed
        .modules
        .iter()
        .filter(|module| !of_program(module));
    assert!(others.filter(unused).count() > 0);
}

#[tokio::test(start_paused = true)]
async fn a_walk_waits_for_builds_and_any_instance_continues_it() {
    let world = World::new();
    world.upload("global/crash", "elf/crash").await;
    let file = fixture("minidump/crash.dmp");
    let (expected, _) = walked(&world, file.clone()).await;

    // The caches were removed because no request used them.
    world.pass(8 * DAY).await;
    world.prune().await.unwrap();
    let cold = world.another_instance();
    let dump = MinidumpForm {
        file: file.clone().into(),
        fields: with_candidates(),
    };
    let outcome = walk(&cold, &dump, Duration::ZERO).await.unwrap();
    assert!(matches!(outcome, WalkOutcome::Pending), "{outcome:?}");
    let sent = world.queues.sent();
    let kinds: Vec<Vec<Kind>> = sent.iter().map(|sent| sent.message.kinds.clone()).collect();
    assert_eq!(
        kinds,
        [[Kind::CfiCache, Kind::SymCache]],
        "one message for both kinds"
    );

    world.settle().await;
    let other = world.another_instance();
    let invocation = other.invocation(TIME);
    let kept = stored_request(other.service(), &invocation, ID).await;
    let (found, body) = kept.unwrap().unwrap();
    assert_eq!(found.stage(), RequestStage::Minidump);
    let dump = decode_dump(&body).unwrap();
    let parts: Vec<_> = dump.file.parts().collect();
    assert_eq!(parts, [(0..file.len(), &*file)]);
    assert_eq!(dump.fields, with_candidates());
    let outcome = walk(&other, &dump, Duration::ZERO).await.unwrap();
    let WalkOutcome::Walked(report, _) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(report.request.stacktraces, expected.request.stacktraces);
}

#[tokio::test(start_paused = true)]
async fn a_walk_that_waits_long_enough_needs_one_call() {
    let world = World::new();
    world.upload("global/crash", "elf/crash").await;
    world.pass(8 * DAY).await;
    world.prune().await.unwrap();
    let dump = MinidumpForm {
        file: fixture("minidump/crash.dmp").into(),
        fields: CrashFields::default(),
    };
    let walk = walk(&world, &dump, Duration::from_secs(25));
    let outcome = world.with_derive_at_work(walk).await.unwrap();
    assert!(matches!(outcome, WalkOutcome::Walked(..)), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn a_walked_request_replaces_the_stored_minidump() {
    let world = World::new();
    world.upload("global/crash", "elf/crash").await;
    let (report, _) = walked(&world, fixture("minidump/crash.dmp")).await;
    let body = serde_json::to_vec(&report).unwrap();
    let invocation = world.invocation(TIME);
    let keep = async |stage, body: &[u8]| {
        let to_store = RequestToStore {
            stage,
            format: ResponseFormat::Symbolicator,
            body,
        };
        let service = world.service();
        let kept = service.store_request(&invocation, ID, &Scope::Global, to_store);
        kept.await.unwrap();
        stored_request(service, &invocation, ID).await.unwrap()
    };
    let dump = vec![0xff; 100];
    let (found, kept) = keep(RequestStage::Minidump, &dump).await.unwrap();
    assert_eq!((found.stage(), kept), (RequestStage::Minidump, dump));
    let (found, kept) = keep(RequestStage::CrashFile, &body).await.unwrap();
    assert_eq!(found.stage(), RequestStage::CrashFile);
    let read: ReadCrash = serde_json::from_slice(&kept).unwrap();
    assert_eq!(read, report);
}

#[tokio::test(start_paused = true)]
async fn frames_are_put_into_the_order_of_the_options() {
    let world = World::new();
    world.upload("global/crash", "elf/crash").await;
    let file = fixture("minidump/crash.dmp");
    let (report, _) = walked(&world, file.clone()).await;
    let mut expected = function_names(&answered(&world, &report).await);
    let mut fields = CrashFields::default();
    fields.options.frame_order = FrameOrder::CallerFirst;
    let dump = MinidumpForm {
        file: file.into(),
        fields,
    };
    let WalkOutcome::Walked(report, _) = walk(&world, &dump, Duration::ZERO).await.unwrap() else {
        panic!("not walked");
    };
    expected.reverse();
    assert_eq!(function_names(&answered(&world, &report).await), expected);
}

async fn failure(file: impl Into<Bytes>) -> String {
    let dump = MinidumpForm {
        file: Into::<Bytes>::into(file).into(),
        fields: CrashFields::default(),
    };
    match walk(&World::new(), &dump, Duration::ZERO).await.unwrap() {
        WalkOutcome::Failed(message) => message,
        other => panic!("{other:?}"),
    }
}

fn module(id: &str) -> MadeUpModule {
    MadeUpModule {
        address: BASE,
        size: 0x10_0000,
        name: "/opt/app".to_owned(),
        debug_id: id.parse().unwrap(),
        ..MadeUpModule::default()
    }
}

fn thread(id: u32, rbp: u64) -> MadeUpThread {
    MadeUpThread {
        id,
        name: Some(format!("thread {id}")),
        stack: 0,
        rip: BASE + 0x100,
        rsp: STACK,
        rbp,
    }
}

fn words(words: impl IntoIterator<Item = u64>) -> MadeUpStack {
    MadeUpStack {
        address: STACK,
        bytes: words.into_iter().flat_map(u64::to_le_bytes).collect(),
    }
}

/// A minidump with this stack, of one thread.
fn dump_of(stack: MadeUpStack) -> MadeUpDump {
    MadeUpDump {
        stacks: vec![stack],
        threads: vec![thread(1, STACK)],
        modules: vec![module(LARGE)],
        crashed: Some(1),
        ..MadeUpDump::default()
    }
}

/// The stream is Breakpad's: `MDRawAssertionInfo` in `minidump_format.h`.
#[tokio::test(start_paused = true)]
async fn the_assertion_of_a_minidump_names_its_place() {
    const ASSERTION: u32 = 0x4767_0002;
    const UNITS: usize = 128;
    let text = |text: &str| {
        let mut units: Vec<u16> = text.encode_utf16().collect();
        units.resize(UNITS, 0);
        units.into_iter().flat_map(u16::to_le_bytes)
    };
    let (line, kind) = (42_u32, 1_u32);
    for (function, file, expected) in [
        ("take", "store.cc", "count > 0 in take at store.cc:42"),
        ("", "", "count > 0"),
    ] {
        let stream = text("count > 0")
            .chain(text(function))
            .chain(text(file))
            .chain(line.to_le_bytes())
            .chain(kind.to_le_bytes());
        let world = World::new();
        let mut dump = dump_of(words([0]));
        dump.streams.push((ASSERTION, stream.collect()));
        let (report, _) = walked(&world, dump.file()).await;
        let completed = answered(&world, &report).await;
        assert_eq!(completed.assertion.as_deref(), Some(expected));
    }
}

#[tokio::test(start_paused = true)]
async fn the_facts_of_a_minidump_are_repeated() {
    let world = World::new();
    let mut dump = dump_of(words([0]));
    dump.threads.push(thread(2, 0));
    let (report, _) = walked(&world, dump.file()).await;
    let completed = answered(&world, &report).await;
    assert_eq!(completed.timestamp, Some(1_700_000_000));
    assert_eq!(completed.crashed, Some(true));
    assert_eq!(completed.crash_reason.as_deref(), Some("SIGSEGV / 0x45"));
    assert_eq!(completed.assertion.as_deref(), Some(""));
    assert_eq!((completed.crash_details, completed.signal), (None, None));
    let system = completed.system_info.unwrap();
    let system = [
        system.os_name,
        system.os_version,
        system.os_build,
        system.cpu_arch,
        system.device_model,
    ];
    assert_eq!(system, ["Linux", "5.4.0", "", "x86_64", ""]);
    let threads = completed.stacktraces.iter().map(|stacktrace| {
        let name = stacktrace.thread_name.clone().unwrap();
        (stacktrace.thread_id, name, stacktrace.is_requesting)
    });
    let thread = |id, is_requesting| (Some(id), format!("thread {id}"), Some(is_requesting));
    assert_eq!(
        threads.collect::<Vec<_>>(),
        [thread(1, true), thread(2, false)]
    );
    let module = &completed.modules[0].module;
    assert_eq!(module.debug_id, Some(LARGE.parse().unwrap()));
    assert_eq!(module.code_file.as_deref(), Some("/opt/app"));

    dump.crashed = None;
    let (report, _) = walked(&world, dump.file()).await;
    assert_eq!(report.facts.crashed, Some(false));
    assert_eq!(report.facts.crash_reason.as_deref(), Some(""));
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_not_a_minidump_fails_with_the_reason() {
    let check = async |file: Vec<u8>, expected: &str| {
        let message = failure(file).await;
        assert!(message.contains(expected), "{message}");
    };
    check(Vec::new(), "Missing minidump header").await;
    check(b"MDMP".to_vec(), "Missing minidump header").await;
    check(vec![b'x'; 100], "Header mismatch").await;
    let mut dump = dump_of(words([0]));
    dump.without_system = true;
    check(dump.file(), "The system information stream was not found").await;
    let mut file = fixture("minidump/crash.dmp").to_vec();
    file[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    check(file, "more than 1024 streams").await;
    let mut file = fixture("minidump/crash.dmp").to_vec();
    file.truncate(100);
    let message = failure(file).await;
    assert!(!message.is_empty());
}

#[tokio::test(start_paused = true)]
async fn names_that_thousands_of_modules_share_are_not_copied_for_each() {
    let mut dump = dump_of(words([0]));
    dump.modules[0].name = "x".repeat(40_000);
    assert!(
        failure(dump.file())
            .await
            .contains("more than 65536 bytes in a name")
    );
    let mut dump = dump_of(words([0]));
    dump.threads[0].name = Some("x".repeat(40_000));
    assert!(
        failure(dump.file())
            .await
            .contains("more than 65536 bytes in a name")
    );
    let mut dump = dump_of(words([0]));
    dump.modules = vec![module(LARGE); 16_385];
    assert!(
        failure(dump.file())
            .await
            .contains("more than 16384 modules")
    );
}

#[tokio::test(start_paused = true)]
async fn a_chain_of_frame_pointers_ends_at_the_limit() {
    let length = STACK_BYTES as u64 / 16;
    // Each frame is two words: the frame pointer of its caller, and a return address outside of
    // all modules.
    let frame = |number: u64| [STACK + 16 * (number + 1), 0x1000 + number];
    let stack = words((0..length).flat_map(frame));
    let (report, stats) = walked(&World::new(), dump_of(stack).file()).await;
    let frames = frames(&report.request.stacktraces[0]);
    assert_eq!((frames.len(), stats.stacks_shortened), (MAX_FRAMES, 1));
    let expected = |(number, frame): (u64, &(u64, FrameTrust))| {
        assert_eq!(*frame, (0x1000 + number, FrameTrust::Fp));
    };
    (0..).zip(&frames[1..]).for_each(expected);
}

#[tokio::test(start_paused = true)]
async fn a_longer_stack_is_walked_from_its_stack_pointer() {
    let bytes = 3 * STACK_BYTES;
    let mut stack = words(std::iter::repeat_n(0, bytes / 8));
    let top = bytes - 4096;
    let caller = BASE + 0x200;
    stack.bytes[top + 8..top + 16].copy_from_slice(&caller.to_le_bytes());
    let mut dump = dump_of(stack);
    dump.threads[0].rsp = STACK + top as u64;
    dump.threads[0].rbp = 0;
    let (report, stats) = walked(&World::new(), dump.file()).await;
    let found = frames(&report.request.stacktraces[0]);
    assert_eq!(
        found,
        [
            (BASE + 0x100, FrameTrust::Context),
            (caller, FrameTrust::Scan)
        ]
    );
    assert_eq!(stats.stacks_cut, 1);
}

#[tokio::test(start_paused = true)]
async fn of_too_many_threads_the_one_that_crashed_is_kept() {
    let mut dump = dump_of(words(std::iter::repeat_n(0, STACK_BYTES / 8)));
    dump.threads = (1..=40_000).map(|id| thread(id, 0)).collect();
    dump.crashed = Some(39_999);
    let (report, stats) = walked(&World::new(), dump.file()).await;
    let stacktraces = &report.request.stacktraces;
    assert_eq!(stacktraces.len(), THREADS);
    assert_eq!(stats.threads_cut, 40_000 - THREADS);
    // 64 MiB are walked, of which each stack has one.
    assert_eq!(stats.stacks_cut, THREADS - 64);
    let crashed = &stacktraces[0];
    assert_eq!(
        (crashed.thread_id, crashed.is_requesting),
        (Some(39_999), Some(true))
    );
    assert_eq!(crashed.thread_name.as_deref(), Some("thread 39999"));
}

/// The records of a module whose functions have 32 bytes and save one word.
fn records(id: &str, functions: u64) -> Vec<u8> {
    use std::fmt::Write;

    let id: DebugId = id.parse().unwrap();
    let mut text = format!("MODULE Linux x86_64 {} app\n", id.breakpad());
    for number in 0..functions {
        let start = number * 0x20;
        let _ = writeln!(text, "FUNC {start:x} 20 0 function_{number}");
        let _ = writeln!(
            text,
            "STACK CFI INIT {start:x} 20 .cfa: $rsp 16 + .ra: .cfa 8 - ^"
        );
    }
    text.into_bytes()
}

async fn upload_records(world: &World, key: &str, id: &str, functions: u64) {
    let event = world.put(key, records(id, functions));
    world.deliver(&event).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stack_of_code_addresses_in_a_hundred_modules_needs_a_bounded_number_of_reads() {
    let world = World::new();
    let id = |number: u64| format!("{number:08x}-0000-4000-8000-000000000000");
    let at = |number: u64| BASE + number * 0x10_0000;
    let mut modules = Vec::new();
    for number in 1..=100 {
        upload_records(&world, &format!("global/{number}.sym"), &id(number), 64).await;
        modules.push(MadeUpModule {
            address: at(number),
            ..module(&id(number))
        });
    }
    world.settle().await;
    let word = |n: u64| at(1 + n % 100) + 0x10 + 0x20 * (n % 64);
    let stack = words((0..STACK_BYTES as u64 / 8).map(word));
    let mut dump = dump_of(stack);
    dump.threads[0].rip = at(1) + 0x10;
    dump.modules = modules;
    let instance = world.another_instance();
    let before = world.caches.calls().total();
    let (report, _) = walked(&instance, dump.file()).await;
    let found = frames(&report.request.stacktraces[0]);
    assert_eq!(found.len(), MAX_FRAMES);
    assert!(
        found[1..]
            .iter()
            .all(|(_, trust)| *trust == FrameTrust::Cfi)
    );
    let reads = world.caches.calls().total() - before;
    assert!((100..=512).contains(&reads), "{reads}");
}

#[tokio::test(start_paused = true)]
async fn only_modules_that_a_walk_reaches_are_requested() {
    let world = World::new();
    let id = |number: u64| format!("{number:08x}-0000-4000-8000-000000000000");
    let at = |number: u64| BASE + number * 0x10_0000;
    for number in 1..=3 {
        upload_records(&world, &format!("global/{number}.sym"), &id(number), 64).await;
    }
    world.settle().await;
    world.pass(8 * DAY).await;
    world.prune().await.unwrap();
    // A frame in module 1, which returns into module 2. Module 3 is only pointed into.
    let stack = words([7, at(2) + 0x11, at(3) + 0x11, 0, 0, 0]);
    let mut dump = dump_of(stack);
    dump.threads[0].rip = at(1) + 0x10;
    dump.modules = (1..=3)
        .map(|number| MadeUpModule {
            address: at(number),
            ..module(&id(number))
        })
        .collect();
    let dump = MinidumpForm {
        file: dump.file().into(),
        fields: CrashFields::default(),
    };
    let cold = world.another_instance();
    let requested = async || {
        let outcome = walk(&cold, &dump, Duration::ZERO).await.unwrap();
        let sent = world.queues.sent();
        let sent = sent.iter().map(|sent| sent.message.module.id.clone());
        let sent: Vec<String> = sent.collect();
        world.settle().await;
        (matches!(outcome, WalkOutcome::Pending), sent)
    };
    let asked = |number: u64| (true, vec![world.module("global", &id(number)).id]);
    assert_eq!(requested().await, asked(1));
    assert_eq!(requested().await, asked(2));
    assert_eq!(requested().await, (false, Vec::new()));
}

#[test]
fn no_change_of_a_minidump_makes_the_walk_panic() {
    use proptest::prelude::*;

    let world = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let whole = fixture("minidump/crash.dmp").to_vec();
    let length = whole.len();
    let change = (
        0..length.min(4096),
        prop::collection::vec(any::<u8>(), 1..9),
        0..=length,
    );
    let mut runner = TestRunner::new(Config::with_cases(64));
    let run = runner.run(&change, |(at, bytes, end)| {
        let mut file = whole.clone();
        let until = (at + bytes.len()).min(length);
        file[at..until].copy_from_slice(&bytes[..until - at]);
        file.truncate(end.max(32));
        let dump = MinidumpForm {
            file: file.into(),
            fields: CrashFields::default(),
        };
        let walked = world.block_on(async { walk(&World::new(), &dump, Duration::ZERO).await });
        let failed = match walked {
            Ok(WalkOutcome::Failed(message)) => message.contains("cannot read this minidump"),
            Ok(WalkOutcome::Walked(_, stats)) => stats.panics > 0,
            Ok(WalkOutcome::Pending) => true,
            Err(error) => panic!("{error}"),
        };
        prop_assert!(!failed);
        Ok(())
    });
    run.unwrap();
}

/// A world with the program of the minidump and its debug file.
async fn with_program() -> World {
    let world = World::new();
    world.upload("global/crash", "elf/crash").await;
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world
}

/// Returns the frames of a minidump with the functions of the program, which were found by its
/// unwind information.
fn unwound(report: &ReadCrash) -> Vec<(u64, FrameTrust)> {
    let found = frames(&report.request.stacktraces[0]);
    let by_rules = |(_, trust): &&(u64, FrameTrust)| *trust == FrameTrust::Cfi;
    found.iter().filter(by_rules).copied().collect()
}

/// Rule 2: caches are kept until they are unused for seven days.
#[tokio::test(start_paused = true)]
async fn the_cfi_caches_of_walks_are_used_and_stay() {
    let world = with_program().await;
    let dump = fixture("minidump/crash.dmp");
    for _ in 0..9 {
        world.pass(DAY).await;
        let (report, _) = walked(&world, dump.clone()).await;
        answered(&world, &report).await;
        world.prune().await.unwrap();
    }
    for kind in [Kind::CfiCache, Kind::SymCache] {
        let entry = world.entry("global", CRASH, kind).expect("it is in use");
        let unused = world.now().since(entry.last_used_at());
        assert!(unused < Duration::from_secs(3600), "{kind}: {unused:?}");
    }
    // The use of one hour is written once.
    let records = world.records.items();
    walked(&world, dump).await;
    assert_eq!(world.records.items(), records);
    world.check();
}

/// Walks the stack of the sample while `derive` is at work, with another instance, which has read
/// nothing yet.
async fn walked_again(world: &World) -> ReadCrash {
    let instance = world.another_instance();
    let dump = MinidumpForm {
        file: fixture("minidump/crash.dmp").into(),
        fields: with_candidates(),
    };
    let walk = walk(&instance, &dump, Duration::from_secs(25));
    match world.with_derive_at_work(Box::pin(walk)).await.unwrap() {
        WalkOutcome::Walked(report, _) => *report,
        other => panic!("{other:?}"),
    }
}

/// As for names: what was published is used or replaced, and no walk continues with less.
#[tokio::test(start_paused = true)]
async fn a_cfi_cache_that_is_gone_or_damaged_is_replaced_before_the_walk_continues() {
    let world = with_program().await;
    let expected = walked(&world, fixture("minidump/crash.dmp")).await.0;
    assert!(unwound(&expected).len() > 3, "{expected:?}");
    let blob = |kind| {
        let entry = world.entry("global", CRASH, kind).unwrap();
        entry.ready().unwrap().blob.path.clone()
    };
    for kind in [Kind::CfiCache, Kind::SymCache] {
        for is_gone in [true, false] {
            let path = blob(kind);
            if is_gone {
                world.caches.lose(&path);
            } else {
                world.caches.overwrite(&path, b"not a cache".to_vec());
            }
            let report = walked_again(&world).await;
            assert_eq!(
                frames(&report.request.stacktraces[0]),
                frames(&expected.request.stacktraces[0])
            );
            if kind == Kind::CfiCache {
                assert_ne!(blob(kind), path, "it was not replaced");
            }
            answered(&world, &report).await;
            assert_ne!(blob(kind), path, "it was not replaced");
            // At most once an hour.
            world.pass(Duration::from_secs(3600)).await;
        }
    }
    world.check();
}

/// A walk does not wait for a cache that cannot be made again.
#[tokio::test(start_paused = true)]
async fn a_damaged_cfi_cache_that_cannot_be_made_again_is_not_waited_for() {
    let world = with_program().await;
    let entry = world.entry("global", CRASH, Kind::CfiCache).unwrap();
    let path = entry.ready().unwrap().blob.path.clone();
    world.caches.overwrite(&path, b"not a cache".to_vec());
    // No event reports these removals.
    for key in ["global/crash", "global/crash.debug"] {
        world.uploads.remove(&Location::new(key));
    }
    for _ in 0..3 {
        let began = world.now();
        let report = walked_again(&world).await;
        assert_eq!(unwound(&report), []);
        assert!(world.now().since(began) < Duration::from_secs(10));
    }
    assert!(world.queues.calls().of("send") <= 4, "{}", world.queues);
}

/// An overdue request waits for nothing: it fails with the store instead of repeating its reads.
#[tokio::test(start_paused = true)]
async fn an_overdue_walk_ends_with_the_error_of_the_store() {
    // No build of it begins.
    let world = servers::world();
    let (invocation, fields) = (world.invocation(TIME), with_candidates());
    let (service, body) = (world.service(), RequestToStore::received(b"{}"));
    service
        .store_request(&invocation, ID, &Scope::Global, body)
        .await
        .unwrap();
    let found = service.find_request(&invocation, ID).await;
    let found = found.unwrap().unwrap();
    let request = MinidumpRequest {
        file: fixture("minidump/crash.dmp").into(),
        fields: &fields,
        call: CallState::continued(&found, invocation.now().plus(DAY), Duration::from_secs(2)),
    };
    let first = world.faults.calls(Operation::Load) + 1;
    for nth in first + 1..first + 100 {
        world.faults.fail(Operation::Load, nth, How::Throttled);
    }
    let walked = world.service().walk_minidump(&invocation, request);
    let error = Box::pin(walked).await.unwrap_err();
    assert!(matches!(error, Error::Fault(_)), "{error:?}");
    assert!(world.now().since(invocation.now()) < Duration::from_secs(5));
    assert!(world.faults.calls(Operation::Load) < first + 30);
}
