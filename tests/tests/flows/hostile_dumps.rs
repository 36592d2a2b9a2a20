//! Minidumps whose numbers lie, and stores that fail while a minidump is walked.

use std::collections::BTreeSet;
use std::time::Duration;

use symdepot::adapters::faulty::{How, Operation};
use symdepot::api::crash::form::CrashFields;
use symdepot::domain::Scope;
use symdepot::flows::Error;
use symdepot::flows::minidump::{MinidumpRequest, WalkOutcome};
use symdepot::flows::requests::CallState;
use symdepot::unwind::MAX_FRAMES;
use symdepot_tests::harness::{
    MadeUpDump, MadeUpModule, MadeUpStack, MadeUpThread, World, fixture, full_dump,
};

/// The places of the header, and of an element of the directory, in bytes.
const STREAMS: usize = 8;
const DIRECTORY: usize = 12;
const ELEMENT_BYTES: usize = 12;

/// The types of the streams.
const THREADS: u32 = 3;
const MODULES: u32 = 4;
const EXCEPTION: u32 = 6;
const SYSTEM: u32 = 7;
const MEMORY64: u32 = 9;
const NAMES: u32 = 24;

const STACK: u64 = 0x7fff_0000_0000;
const BASE: u64 = 0x5555_0000_0000;

async fn walk(world: &World, file: Vec<u8>) -> Result<WalkOutcome, Error> {
    let invocation = world.invocation(Duration::from_secs(29));
    let fields = CrashFields::default();
    let request = MinidumpRequest {
        file: file.into(),
        fields: &fields,
        call: CallState::first("a-dump", &Scope::Global, Duration::ZERO),
    };
    let walked = world.service().walk_minidump(&invocation, request);
    Box::pin(walked).await
}

/// A minidump of a thread that crashed, with a name, a stack and a module.
fn small_dump() -> Vec<u8> {
    let dump = MadeUpDump {
        stacks: vec![MadeUpStack {
            address: STACK,
            bytes: (BASE + 0x200).to_le_bytes().repeat(32),
        }],
        threads: vec![MadeUpThread {
            id: 1,
            name: Some("main".to_owned()),
            rip: BASE + 0x100,
            rsp: STACK,
            ..MadeUpThread::default()
        }],
        modules: vec![MadeUpModule {
            address: BASE,
            size: 0x1000,
            name: "/opt/app".to_owned(),
            ..MadeUpModule::default()
        }],
        crashed: Some(1),
        ..MadeUpDump::default()
    };
    dump.file()
}

fn number(file: &[u8], at: usize) -> usize {
    u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize
}

/// Returns the place of a stream's element of the directory.
fn element(file: &[u8], stream: u32) -> usize {
    let first = number(file, DIRECTORY);
    let elements = (0..number(file, STREAMS)).map(|at| first + at * ELEMENT_BYTES);
    let mut of_stream = elements.filter(|at| number(file, *at) == stream as usize);
    of_stream.next().unwrap()
}

/// Returns the place of a stream.
fn stream(file: &[u8], stream: u32) -> usize {
    number(file, element(file, stream) + 8)
}

#[tokio::test(start_paused = true)]
async fn a_count_or_an_address_beyond_the_file_is_a_failure_or_is_left_out() {
    let small = small_dump();
    let full = full_dump(&small, 4096);
    let of = |kind| (element(&small, kind), stream(&small, kind));
    let (threads, thread_list) = of(THREADS);
    let (modules, module_list) = of(MODULES);
    let (names, name_list) = of(NAMES);
    let (exception, exception_at) = of(EXCEPTION);
    let (system, _) = of(SYSTEM);
    let memory = stream(&full, MEMORY64);
    let cases: [(&str, &[u8], usize); 18] = [
        ("directory", &small, DIRECTORY),
        ("thread list size", &small, threads + 4),
        ("thread list place", &small, threads + 8),
        ("thread count", &small, thread_list),
        ("stack size", &small, thread_list + 4 + 32),
        ("stack place", &small, thread_list + 4 + 36),
        ("context size", &small, thread_list + 4 + 40),
        ("context place", &small, thread_list + 4 + 44),
        ("module list place", &small, modules + 8),
        ("module count", &small, module_list),
        ("module name place", &small, module_list + 4 + 20),
        ("debug record size", &small, module_list + 4 + 76),
        ("debug record place", &small, module_list + 4 + 80),
        ("name list place", &small, names + 8),
        ("name count", &small, name_list),
        ("exception place", &small, exception + 8),
        ("exception context place", &small, exception_at + 164),
        ("system place", &small, system + 8),
    ];
    let full_cases = [
        ("region count", &*full, memory),
        ("region place", &*full, memory + 8),
    ];
    let mut failed = BTreeSet::new();
    for (what, file, at) in cases.into_iter().chain(full_cases) {
        for value in [
            u32::MAX,
            i32::MAX as u32,
            u32::try_from(file.len()).unwrap(),
        ] {
            let mut bad = file.to_vec();
            bad[at..at + 4].copy_from_slice(&value.to_le_bytes());
            let world = World::new();
            match walk(&world, bad).await.unwrap() {
                WalkOutcome::Failed(message) => {
                    let of_counts = value > 1 << 20 && what.ends_with("count");
                    let is_limit = message.starts_with("the minidump has more than ");
                    assert_eq!(is_limit, of_counts, "{what} {value:#x}: {message}");
                    failed.insert(what);
                }
                WalkOutcome::Walked(report, stats) => {
                    let threads = report.request.stacktraces.len();
                    assert!(threads <= 1, "{what} {value:#x}: {threads} threads");
                    assert!(stats.frames <= MAX_FRAMES, "{what} {value:#x}: {stats:?}");
                    assert_eq!(stats.panics, 0, "{what} {value:#x}");
                }
                WalkOutcome::Pending => panic!("{what} {value:#x}: nothing is being built"),
            }
            assert_eq!(world.caches.calls().total(), 0, "{what} {value:#x}");
        }
    }
    // Without its other parts, a minidump still has stack traces.
    assert_eq!(
        Vec::from_iter(failed),
        [
            "directory",
            "module count",
            "name count",
            "region count",
            "system place",
            "thread count",
            "thread list place",
            "thread list size",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_fault_of_a_store_is_an_error_that_the_next_request_does_not_see() {
    let world = World::new();
    world.upload("global/crash", "elf/crash").await;
    let dump = fixture("minidump/crash.dmp").to_vec();
    let walked = async |instance: &World| match walk(instance, dump.clone()).await {
        Ok(WalkOutcome::Walked(report, stats)) => Ok((*report, stats)),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error),
    };
    let reads = [Operation::Load, Operation::GetBlob];
    let before = reads.map(|operation| world.faults.calls(operation));
    let expected = walked(&world.another_instance()).await.unwrap();
    let after = reads.map(|operation| world.faults.calls(operation));
    let mut faults = 0;
    for (at, operation) in reads.into_iter().enumerate() {
        let calls = after[at] - before[at];
        assert!(calls > 0, "{operation:?} is never called");
        for nth in 1..=calls {
            for how in [How::Before, How::Throttled] {
                let instance = world.another_instance();
                let done = world.faults.calls(operation);
                world.faults.fail(operation, done + nth, how);
                let failed = walked(&instance).await;
                world.faults.heal();
                let what = format!("{operation:?} number {nth}: {how:?}");
                assert!(matches!(failed, Err(Error::Fault(_))), "{what}: {failed:?}");
                assert_eq!(walked(&instance).await.unwrap(), expected, "{what}");
                assert_eq!(world.queues.sent(), [], "{what}");
                faults += 1;
            }
        }
    }
    assert!(faults >= 4, "only {faults} faults");
}
