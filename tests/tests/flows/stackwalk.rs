//! Answers in the schema of `minidump-stackwalk`, compared with those of the crate that this tool
//! consists of.

use std::collections::HashMap;
use std::time::Duration;

use minidump::Minidump;
use minidump_processor::process_minidump;
use minidump_unwind::{Symbolizer, string_symbol_supplier};
use serde_json::{Value, json};
use symdepot::api::crash::form::CrashFields;
use symdepot::domain::{ResponseFormat, Scope};
use symdepot::flows::minidump::{MinidumpRequest, WalkOutcome};
use symdepot::flows::requests::{CallState, RequestToStore};
use symdepot::flows::symbolicate::SymbolicateOutcome;
use symdepot::unwind::dump::DumpBytes;
use symdepot_tests::harness::{
    MadeUpDump, MadeUpModule, MadeUpStack, MadeUpThread, World, fixture, fixture_text, full_dump,
};

const ID: &str = "a-dump";
const TIME: Duration = Duration::from_secs(29);

const STACK: u64 = 0x7fff_0000_0000;
const BASE: u64 = 0x5555_0000_0000;

/// The types of streams of the report.
const MEMORY_INFO: u32 = 16;
const LINUX_CPU: u32 = 0x4767_0003;
const LINUX_STATUS: u32 = 0x4767_0004;
const LINUX_RELEASE: u32 = 0x4767_0005;
const LINUX_LIMITS: u32 = 0x4d7a_0003;
const SOFT_ERRORS: u32 = 0x4d7a_0004;

async fn walk(world: &World, file: DumpBytes) -> WalkOutcome {
    let invocation = world.invocation(TIME);
    let request = MinidumpRequest {
        file,
        fields: &CrashFields {
            format: ResponseFormat::Stackwalk,
            ..CrashFields::default()
        },
        call: CallState::first(ID, &Scope::Global, Duration::ZERO),
    };
    let walked = world.service().walk_minidump(&invocation, request);
    Box::pin(walked).await.unwrap()
}

/// Returns the answer to a minidump, in this schema.
async fn answer(world: &World, file: impl Into<DumpBytes>) -> Value {
    let report = match walk(world, file.into()).await {
        WalkOutcome::Walked(report, _) => *report,
        other => panic!("{other:?}"),
    };
    // The report survives being stored.
    let body = serde_json::to_vec(&report).unwrap();
    let report: symdepot::api::crash::ReadCrash = serde_json::from_slice(&body).unwrap();
    let call = CallState::first(ID, &Scope::Global, Duration::ZERO)
        .storing(RequestToStore::crash_file(&report, &body));
    let invocation = world.invocation(TIME);
    let answer = world.service().answer_crash(&invocation, &report, call);
    match Box::pin(answer).await.unwrap() {
        SymbolicateOutcome::Completed(completed, _) => {
            report.stackwalk.unwrap().completed(&completed)
        }
        SymbolicateOutcome::Pending => panic!("not finished"),
    }
}

/// Returns what `minidump-processor` says about a minidump, with the symbols of these modules.
async fn expected(file: &[u8], symbols: HashMap<String, String>) -> Value {
    let dump = Minidump::read(file).unwrap();
    let symbolizer = Symbolizer::new(string_symbol_supplier(symbols));
    let state = process_minidump(&dump, &symbolizer).await.unwrap();
    let mut json = Vec::new();
    state.print_json(&mut json, false).unwrap();
    serde_json::from_slice(&json).unwrap()
}

fn frames(answer: &Value) -> &[Value] {
    answer["threads"][0]["frames"].as_array().unwrap()
}

#[tokio::test(start_paused = true)]
async fn names_and_lines_are_those_of_the_processor_with_the_same_symbols() {
    let world = World::new();
    world.upload("global/crash.sym", "breakpad/crash.sym").await;
    let file = fixture("minidump/crash.dmp");
    let symbols = HashMap::from([("crash".to_owned(), fixture_text("breakpad/crash.sym"))]);
    let mut theirs = expected(&file, symbols).await;
    let mut ours = answer(&world, file).await;
    let named = frames(&ours).iter().filter(|frame| frame["line"].is_u64());
    assert!(named.count() > 5, "{ours:#}");
    let inlined = frames(&ours)
        .iter()
        .filter(|frame| frame["inlines"].is_array());
    assert!(inlined.count() > 2, "{ours:#}");
    assert_eq!(ours["modules"][0]["loaded_symbols"], true);
    for answer in [&mut ours, &mut theirs] {
        // Of which modules there are symbols is not the same question in both.
        for module in answer["modules"].as_array_mut().unwrap() {
            for field in ["missing_symbols", "loaded_symbols"] {
                module[field].take();
            }
        }
    }
    assert_same(&ours, &theirs);
}

/// Panics with the first field that differs.
fn assert_same(ours: &Value, theirs: &Value) {
    let fields = |answer: &Value| {
        answer
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(fields(ours), fields(theirs));
    for field in fields(ours) {
        assert_eq!(ours[&field], theirs[&field], "{field}");
    }
}

fn module(number: u64, name: &str) -> MadeUpModule {
    MadeUpModule {
        address: BASE + number * 0x10_0000,
        size: 0x1_0000,
        name: name.to_owned(),
        debug_id: "502fc0a5-1ec1-3e47-9998-684fa139dca7".parse().unwrap(),
        ..MadeUpModule::default()
    }
}

/// A minidump with everything that the schema has place for.
fn rich_dump() -> MadeUpDump {
    let thread = |id: u32, rip: u64| MadeUpThread {
        id,
        name: Some(format!("thread {id}")),
        rip,
        rsp: STACK,
        rbp: STACK,
        ..MadeUpThread::default()
    };
    // The frames of a chain of frame pointers: in a module, in an unloaded one, in none.
    let callers = [BASE + 0x210, BASE + 0x30_0210, 0x1000, 0];
    let words = (1..)
        .zip(callers)
        .flat_map(|(at, caller)| [STACK + at * 16, caller]);
    let texts: [(u32, &str); 5] = [
        (LINUX_CPU, "processor\t: 0\nmicrocode\t: 0xf0\n"),
        (LINUX_STATUS, "Name:\tapp\nPid:\t4711\n"),
        (LINUX_RELEASE, "DISTRIB_ID=Debian\nDISTRIB_RELEASE=12\n"),
        (
            LINUX_LIMITS,
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max open files            1024                 unlimited            files     \n",
        ),
        (SOFT_ERRORS, r#"[{"InitErrors": ["no memory"]}]"#),
    ];
    MadeUpDump {
        stacks: vec![MadeUpStack {
            address: STACK,
            bytes: words.flat_map(u64::to_le_bytes).collect(),
        }],
        threads: vec![thread(1, BASE + 0x100), thread(2, BASE + 0x10_0100)],
        modules: vec![module(0, "/opt/app"), module(1, "/opt/lib/liba.so")],
        crashed: Some(2),
        unloaded: vec![module(3, "libgone.so"), module(3, "libgone-too.so")],
        handles: vec![
            (4, "File".to_owned(), "/var/log/a".to_owned()),
            (8, "Event".to_owned(), String::new()),
        ],
        streams: texts
            .map(|(kind, text)| (kind, text.as_bytes().to_vec()))
            .into_iter()
            .chain([(MEMORY_INFO, memory_info())])
            .collect(),
        ..MadeUpDump::default()
    }
}

/// A list of one readable region, one bit away from the address of the crash.
fn memory_info() -> Vec<u8> {
    const COMMITTED: u32 = 0x1000;
    const READ_WRITE: u32 = 0x04;
    const PRIVATE: u32 = 0x2_0000;
    let region: u64 = 0x10_0000_0000;
    let mut list: Vec<u8> = [16_u32, 48]
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .collect();
    list.extend(1_u64.to_le_bytes());
    list.extend([region, region].into_iter().flat_map(u64::to_le_bytes));
    list.extend([READ_WRITE, 0].into_iter().flat_map(u32::to_le_bytes));
    list.extend(0x1000_u64.to_le_bytes());
    list.extend(
        [COMMITTED, READ_WRITE, PRIVATE, 0]
            .into_iter()
            .flat_map(u32::to_le_bytes),
    );
    list
}

#[tokio::test(start_paused = true)]
async fn unloaded_modules_handles_limits_and_flipped_bits_are_those_of_the_processor() {
    for is_windows in [false, true] {
        let dump = MadeUpDump {
            is_windows,
            ..rich_dump()
        };
        let file = dump.file();
        let mut theirs = expected(&file, HashMap::new()).await;
        let mut ours = answer(&World::new(), file).await;
        assert_eq!(ours["unloaded_modules"][1]["filename"], "libgone-too.so");
        assert_eq!(ours["handles"][0]["object_name"], "/var/log/a");
        assert_eq!(ours["lsb_release"]["id"], "Debian");
        assert_eq!(ours["proc_limits"]["limits"][0]["soft"], 1024);
        assert_eq!(ours["soft_errors"][0]["InitErrors"][0], "no memory");
        assert_eq!(ours["pid"], 4711);
        let flips = &ours["crash_info"]["possible_bit_flips"];
        assert_eq!(flips[0]["address"], "0x0000001000000045", "{flips:#}");
        assert_eq!(ours["crashing_thread"]["threads_index"], 1);
        let registers = &ours["crashing_thread"]["frames"][0]["registers"];
        assert_eq!(registers["rsp"], "0x00007fff00000000");
        for answer in [&mut ours, &mut theirs] {
            for module in answer["modules"].as_array_mut().unwrap() {
                module["missing_symbols"].take();
            }
        }
        assert_same(&ours, &theirs);
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_minidump_has_the_report_of_its_small_part() {
    let world = World::new();
    world.upload("global/crash.sym", "breakpad/crash.sym").await;
    let dump = rich_dump().file();
    for small in [&*dump, &*fixture("minidump/crash.dmp")] {
        let expected = answer(&world, small.to_vec()).await;
        let large = full_dump(small, 64 << 20);
        let file = crate::attachments::read_large(&world, large, ResponseFormat::Stackwalk).await;
        assert!(file.parts().count() > 1);
        assert_eq!(answer(&world, file).await, expected);
    }
}

async fn failure(file: Vec<u8>) -> String {
    match walk(&World::new(), file.into()).await {
        WalkOutcome::Failed(message) => message,
        other => panic!("{other:?}"),
    }
}

/// Returns the place of a stream's element of the directory.
fn element(file: &[u8], kind: u32) -> usize {
    let number = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let elements = (0..number(8)).map(|at| number(12) + at * 12);
    let mut of_kind = elements.filter(|at| number(*at) == kind as usize);
    of_kind.next().unwrap()
}

#[tokio::test(start_paused = true)]
async fn handles_whose_information_refers_to_itself_are_listed() {
    const HANDLES: u32 = 12;
    let mut file = rich_dump().file();
    let at = element(&file, HANDLES) + 8;
    let list = u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    // The first part of the information is the descriptor, whose field for the next one is itself.
    let next = list + 16 + 32;
    let circle = u32::try_from(next).unwrap();
    file[next..next + 4].copy_from_slice(&circle.to_le_bytes());
    let ours = answer(&World::new(), file).await;
    assert_eq!(ours["handles"].as_array().unwrap().len(), 2, "{ours:#}");
}

#[tokio::test(start_paused = true)]
async fn streams_that_exceed_their_limits_are_left_out_and_others_are_not() {
    let mut dump = rich_dump();
    // Each handle has a name of its own place in the file, 64 KB long.
    let name = "x".repeat(30_000);
    dump.handles = (0..100)
        .map(|at| (at, "File".to_owned(), name.clone()))
        .collect();
    dump.streams.retain(|(kind, _)| *kind != SOFT_ERRORS);
    dump.streams.push((
        SOFT_ERRORS,
        format!("[{}1]", "1,".repeat(40_000)).into_bytes(),
    ));
    let ours = answer(&World::new(), dump.file()).await;
    assert_eq!(
        (&ours["handles"], &ours["soft_errors"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(ours["unloaded_modules"].as_array().unwrap().len(), 2);
    dump.unloaded = vec![module(3, "libgone.so"); 5_000];
    let ours = answer(&World::new(), dump.file()).await;
    assert_eq!(ours["unloaded_modules"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn streams_that_share_bytes_have_no_report() {
    let mut file = rich_dump().file();
    let (status, release) = (element(&file, LINUX_STATUS), element(&file, LINUX_RELEASE));
    let place = file[status + 8..status + 12].to_vec();
    file[release + 8..release + 12].copy_from_slice(&place);
    let message = failure(file).await;
    assert!(
        message.starts_with("the streams of the minidump overlap"),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_stacks_of_forty_thousand_threads_are_in_the_report_up_to_the_limit() {
    let mut dump = rich_dump();
    let thread = |id| MadeUpThread {
        id,
        ..dump.threads[0].clone()
    };
    dump.threads = (1..=40_000).map(thread).collect();
    dump.crashed = Some(39_999);
    let ours = answer(&World::new(), dump.file()).await;
    let threads = ours["threads"].as_array().unwrap();
    let walked = threads.iter().filter(|thread| thread["frame_count"] != 0);
    assert_eq!(walked.count(), symdepot::unwind::dump::THREADS);
    assert_eq!(ours["thread_count"], symdepot::unwind::dump::THREADS);
    // The thread that crashed is the first if there are too many.
    assert_eq!(ours["crashing_thread"]["threads_index"], 0);
    assert_eq!(ours["crashing_thread"]["thread_id"], 39_999);
    assert_eq!(ours["crashing_thread"]["thread_name"], "thread 1");
}
