//! Tests of both formats of Apple's crash reports, with reports written for them.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::api::crash::apple::parsed::LAST_EXCEPTION;
use crate::api::crash::form::CrashFields;
use crate::api::limits;
use crate::api::symbolicator::{FrameOrder, Hex, Options, Stacktrace};

/// A report in the text format of macOS 11, with every section that is read.
const TEXT: &str = "\
Process:               Ledger [812]
Path:                  /Applications/Ledger.app/Contents/MacOS/Ledger
Identifier:            com.example.ledger
Version:               3.2 (77)
Code Type:             ARM-64 (Native)
Parent Process:        ??? [1]

Date/Time:             2021-11-03 09:30:15.250 +0100
OS Version:            macOS 11.6.1 (20G224)
Report Version:        12
Hardware Model:        MacBookAir10,1

Crashed Thread:        1  worker

Exception Type:        EXC_CRASH (SIGABRT)
Exception Codes:       0x0000000000000000, 0x0000000000000000
Exception Note:        EXC_CORPSE_NOTIFY

Application Specific Information:
*** Terminating app due to uncaught exception: balance is negative
abort() called

Last Exception Backtrace:
0   CoreFoundation                \t0x0000000190001000 __exceptionPreprocess + 240
1   com.example.ledger            \t0x0000000100004100 -[Account withdraw:] + 64 (Account.m:31)

Thread 0:: Dispatch queue: com.apple.main-thread
0   libsystem_kernel.dylib        \t0x0000000191000010 mach_msg_trap + 8
1   com.example.ledger            \t0x0000000100003f00 0x100000000 + 16128

Thread 1 Crashed:: worker
0   libsystem_kernel.dylib        \t0x0000000191000ab0 __pthread_kill + 8
1   ???                           \t0x0000000000000dad 0 + 3501

Thread 1 crashed with ARM Thread State (64-bit):
    x0: 0x0000000000000000   x1: 0x0000000000000001
    lr: 0x0000000191000ab8   pc: 0x0000000191000ab0

Binary Images:
       0x100000000 -        0x100007fff +com.example.ledger (3.2 - 77) <8A1F4E8C-52F0-3D0B-9C6A-0B4E29D1C1AA> /Applications/Ledger.app/Contents/MacOS/Ledger
       0x191000000 -        0x191037fff  libsystem_kernel.dylib arm64e (7195.141.8) <1B2C3D4E-0000-3111-8222-333344445555> /usr/lib/system/libsystem_kernel.dylib
";

/// The body of a report in JSON, with every field that is read.
fn body() -> Value {
    json!({
        "captureTime": "2023-05-04 12:00:01.5000 +0200",
        "cpuType": "ARM-64",
        "modelCode": "iPhone14,5",
        "osVersion": {"train": "iPhone OS 16.4.1", "build": "20E252", "releaseType": "User", "isEmbedded": true},
        "exception": {
            "type": "EXC_CRASH", "signal": "SIGABRT", "codes": "0x0000000000000000, 0x0000000000000000",
            "rawCodes": [0, 0]
        },
        "termination": {"code": 6, "flags": 0, "namespace": "SIGNAL", "indicator": "Abort trap: 6"},
        "asi": {"libsystem_c.dylib": ["abort() called"], "CoreFoundation": ["*** index 7 beyond bounds [0 .. 6]"]},
        "faultingThread": 1,
        "threads": [
            {
                "id": 48_213, "queue": "com.apple.main-thread",
                "frames": [
                    {"imageOffset": 512, "imageIndex": 1, "symbol": "mach_msg2_trap", "symbolLocation": 8},
                    {"imageOffset": 16128, "imageIndex": 0}
                ]
            },
            {
                "id": 48_214, "name": "worker", "queue": "not shown", "triggered": true,
                "threadState": {
                    "flavor": "ARM_THREAD_STATE64",
                    "x": [{"value": 0}, {"value": 8, "symbolLocation": 0, "symbol": "x"}],
                    "pc": {"value": 6_677_332_000_u64, "matchesCrashFrame": 1},
                    "esr": {"value": 1_442_840_704, "description": " Address size fault"}
                },
                "frames": [
                    {"imageOffset": 300, "imageIndex": 0, "symbol": "small()", "inline": true, "sourceFile": "a.swift", "sourceLine": 3},
                    {"imageOffset": 300, "imageIndex": 0, "symbol": "large()", "sourceFile": "a.swift", "sourceLine": 9},
                    {"imageOffset": 3501, "imageIndex": 2},
                    {"imageOffset": 77, "imageIndex": 40}
                ]
            }
        ],
        "lastExceptionBacktrace": [
            {"imageOffset": 1024, "imageIndex": 1, "symbol": "__exceptionPreprocess", "symbolLocation": 160},
            {"imageOffset": 256, "imageIndex": 0}
        ],
        "usedImages": [
            {
                "source": "P", "arch": "arm64", "base": 4_294_967_296_u64, "size": 32_768, "name": "Ledger",
                "uuid": "8a1f4e8c-52f0-3d0b-9c6a-0b4e29d1c1aa", "path": "/private/var/Ledger.app/Ledger"
            },
            {
                "source": "S", "arch": "arm64e", "base": 6_677_331_000_u64, "size": 229_376, "name": "libsystem_kernel.dylib",
                "uuid": "1b2c3d4e-0000-3111-8222-333344445555"
            },
            {"source": "A", "base": 0, "size": 0, "uuid": "00000000-0000-0000-0000-000000000000"}
        ],
        "vmSummary": "ReadOnly portion of Libraries: Total=1.2G", "legacyInfo": {"threadTriggered": {}}
    })
}

fn ips(body: &Value) -> String {
    let header = json!({
        "app_name": "Ledger", "timestamp": "2023-05-04 12:00:02.00 +0200", "bug_type": "309",
        "os_version": "iPhone OS 16.4.1 (20E252)", "incident_id": "5C32DF84-31A0-43E7-87D0-239F7F594940"
    });
    format!("{header}\n{body:#}")
}

fn parsed(report: &str) -> ReadCrash {
    parse_report(report.as_bytes()).unwrap_or_else(|error| panic!("{error}"))
}

fn addresses(stacktrace: &Stacktrace) -> Vec<u64> {
    let frames = stacktrace.frames.iter();
    frames.map(|frame| frame.instruction_addr.0).collect()
}

fn names(stacktrace: &Stacktrace) -> Vec<&str> {
    let frames = stacktrace.frames.iter();
    frames
        .map(|frame| frame.function.as_deref().unwrap_or("-"))
        .collect()
}

fn system(report: &ReadCrash) -> [&str; 5] {
    let system = report.facts.system_info.as_ref().unwrap();
    [
        &system.os_name,
        &system.os_version,
        &system.os_build,
        &system.cpu_arch,
        &system.device_model,
    ]
}

#[test]
fn a_text_report_has_its_threads_registers_and_modules() {
    let report = parsed(TEXT);
    let [main, crashed, last] = &*report.request.stacktraces else {
        panic!("{:#?}", report.request.stacktraces);
    };
    assert_eq!((main.thread_id, main.is_requesting), (Some(0), Some(false)));
    assert_eq!(main.thread_name.as_deref(), Some("com.apple.main-thread"));
    assert_eq!(addresses(main), [0x1_9100_0010, 0x1_0000_3f00]);
    assert_eq!(names(main), ["mach_msg_trap", "-"]);
    assert!(main.registers.is_empty());

    assert_eq!(
        (crashed.thread_id, crashed.is_requesting),
        (Some(1), Some(true))
    );
    assert_eq!(crashed.thread_name.as_deref(), Some("worker"));
    assert_eq!(crashed.registers["pc"], Hex(0x1_9100_0ab0));
    assert_eq!(crashed.registers.len(), 4);
    assert_eq!(crashed.frames[1].package, None);

    assert_eq!(last.thread_name.as_deref(), Some(LAST_EXCEPTION));
    assert_eq!((last.thread_id, last.is_requesting), (None, Some(false)));
    assert_eq!(addresses(last), [0x1_9000_1000, 0x1_0000_4100]);
    assert_eq!(
        names(last),
        ["__exceptionPreprocess", "-[Account withdraw:]"]
    );
    let place = (last.frames[1].filename.as_deref(), last.frames[1].lineno);
    assert_eq!(place, (Some("Account.m"), Some(31)));
    assert!(
        last.frames
            .iter()
            .all(|frame| frame.adjust_instruction_addr == Some(true))
    );

    let modules = &report.request.modules;
    let kernel = modules.last().unwrap();
    assert_eq!(kernel.image_addr, Hex(0x1_9100_0000));
    assert_eq!(kernel.image_size, Some(0x37fff));
    let id = kernel.debug_id.unwrap().to_string();
    assert_eq!(id, "1b2c3d4e-0000-3111-8222-333344445555");
    assert_eq!(
        kernel.code_id.as_ref().unwrap().as_str(),
        "1b2c3d4e000031118222333344445555"
    );
    assert_eq!(
        kernel.debug_file.as_deref(),
        Some("/usr/lib/system/libsystem_kernel.dylib")
    );
}

#[test]
fn a_frame_in_text_has_its_function_without_offset_module_and_column() {
    let report = parsed(
        "Thread 0 Crashed:\n\
         0   app   0x0000000100000010 -[Foo(Cat) bar:] + 20 (Foo.m:7)\n\
         1   app   0x0000000100000020 Foo.bar() + 4 (in libdyld.dylib) (Foo.swift:9)\n\
         2   app   0x0000000100000030 foo + 8 (f.swift:3:11)\n\
         3   app   0x0000000100000040 0x100000000 + 64 (in app)\n",
    );
    let frames = report.request.stacktraces[0].frames.iter();
    let said: Vec<_> = frames
        .map(|frame| {
            let function = frame.function.as_deref();
            (function, frame.filename.as_deref(), frame.lineno)
        })
        .collect();
    let expected = [
        (Some("-[Foo(Cat) bar:]"), Some("Foo.m"), Some(7)),
        (Some("Foo.bar()"), Some("Foo.swift"), Some(9)),
        (Some("foo"), Some("f.swift"), Some(3)),
        (None, None, None),
    ];
    assert_eq!(said, expected);
}

/// A jump to null, as macOS 12 and later convert a report in JSON to text. The last line is one of
/// macOS 11.
#[test]
fn an_address_outside_of_all_modules_of_a_text_report_is_in_none() {
    let report = parsed(
        "Thread 0 Crashed:: Dispatch queue: com.apple.main-thread\n\
         0   ???                           \t               0x0 ???\n\
         1   app                           \t       0x100003f94 main + 20\n\
         2   dyld                          \t       0x18b4a10e0 start + 2360\n\
         3   ???                           \t0x0000000000000dad 0 + 3501\n\
         \n\
         Binary Images:\n\
         0x100000000 -        0x100003fff app (*) <8a1f4e8c-52f0-3d0b-9c6a-0b4e29d1c1aa> /Users/USER/app\n\
         0x18b49b000 -        0x18b52f4cf dyld (*) <1b2c3d4e-0000-3111-8222-333344445555> /usr/lib/dyld\n\
         0x0 - 0xffffffffffffffff ??? (*) <00000000-0000-0000-0000-000000000000> ???\n",
    );
    let crashed = &report.request.stacktraces[0];
    assert_eq!(addresses(crashed), [0, 0x1_0000_3f94, 0x1_8b4a_10e0, 0xdad]);
    assert_eq!(names(crashed), ["-", "main", "start", "-"]);
    let packages = crashed.frames.iter().map(|frame| frame.package.as_deref());
    let expected = [None, Some("app"), Some("dyld"), None];
    assert_eq!(packages.collect::<Vec<_>>(), expected);
    let modules = report.request.modules.iter();
    let modules: Vec<_> = modules.filter_map(|it| it.code_file.as_deref()).collect();
    assert_eq!(modules, ["/Users/USER/app", "/usr/lib/dyld"]);
}

#[test]
fn an_inlined_line_of_a_text_report_is_not_a_frame_of_its_own() {
    let report = parsed(
        "Thread 0 Crashed:\n\
         0   app   0x0000000100000010 push + 0 (a.h:5) [inlined]\n\
         1   app   0x0000000100000010 closure #1 in Foo.bar(_:) + 8 (Foo.swift:9) [inlined]\n\
         2   app   0x0000000100000010 run(int) + 92 (a.cpp:18)\n\
         3   app   0x0000000100000010 run(int) + 92 (a.cpp:18)\n\
         4   app   0x0000000100000020 cut + 4 (a.cpp:3) [inlined]\n",
    );
    let thread = &report.request.stacktraces[0];
    // The last line is without the function that it is inlined into.
    let at = [0x1_0000_0010, 0x1_0000_0010, 0x1_0000_0020];
    assert_eq!(addresses(thread), at);
    let functions = ["run(int)", "run(int)", "cut"];
    assert_eq!(names(thread), functions);
    assert_eq!(thread.frames[0].filename.as_deref(), Some("a.cpp"));
    assert_eq!(thread.frames[0].lineno, Some(18));
}

/// Returns whether each frame is at a return address, as far as it is marked.
fn marks(stacktrace: &Stacktrace) -> Vec<Option<bool>> {
    let frames = stacktrace.frames.iter();
    frames.map(|frame| frame.adjust_instruction_addr).collect()
}

#[test]
fn a_frame_that_a_signal_interrupted_is_not_at_a_return_address() {
    const EXACT: Option<bool> = Some(false);
    let line = |number: u32, name: &str| {
        let address = 0x1_9100_0000_u64 + u64::from(number);
        format!("{number}   libsystem_kernel.dylib        \t{address:#018x} {name} + 52\n")
    };
    let lines = ["__pthread_kill", "handler", "_sigtramp", "work", "main"];
    let lines: String = (0..).zip(lines).map(|(at, name)| line(at, name)).collect();
    let thread = "Thread 1 Crashed:: worker\n";
    let report = TEXT.replace(thread, &format!("{thread}{lines}"));
    let report = parsed(&report).request;
    let crashed = [EXACT, None, None, EXACT, None];
    assert_eq!(marks(&report.stacktraces[1])[..5], crashed);
    assert!(marks(&report.stacktraces[0]).iter().all(Option::is_none));

    let named = |name: &str| json!({"imageOffset": 512, "imageIndex": 1, "symbol": name});
    let small = json!({"imageOffset": 8, "imageIndex": 0, "symbol": "small", "inline": true});
    let frames = json!([
        named("handler"),
        named("_sigtramp"),
        small,
        named("work"),
        named("main")
    ]);
    let report = with("/threads/1/frames", frames.clone()).request;
    let crashed = [EXACT, None, EXACT, None];
    assert_eq!(marks(&report.stacktraces[1]), crashed);
    // The runtime of Go injects a function.
    let frames_of_go = json!([
        named("runtime.gopanic"),
        named("runtime.sigpanic"),
        named("main.run")
    ]);
    let report = with("/threads/1/frames", frames_of_go).request;
    assert_eq!(marks(&report.stacktraces[1]), [EXACT, None, EXACT]);
    // The outermost frame interrupted nothing that the report has.
    let report = with(
        "/threads/1/frames",
        json!([named("work"), named("_sigtramp")]),
    )
    .request;
    assert_eq!(marks(&report.stacktraces[1]), [None, None]);

    let report = with("/lastExceptionBacktrace", frames).request;
    let last = [Some(true), Some(true), EXACT, Some(true)];
    assert_eq!(marks(report.stacktraces.last().unwrap()), last);
}

#[test]
fn a_text_report_has_its_facts() {
    let report = parsed(TEXT);
    let facts = &report.facts;
    assert_eq!(
        system(&report),
        ["macOS", "11.6.1", "20G224", "arm64", "MacBookAir10,1"]
    );
    assert_eq!(facts.timestamp, Some(1_635_928_215));
    assert_eq!(facts.crashed, Some(true));
    assert_eq!(facts.crash_reason.as_deref(), Some("EXC_CRASH (SIGABRT)"));
    assert_eq!(
        facts.crash_details.as_deref(),
        Some("*** Terminating app due to uncaught exception: balance is negative\nabort() called")
    );
}

#[test]
fn the_details_of_a_text_report_are_the_most_specific_ones() {
    let without = TEXT.replace("Application Specific Information:", "Notes:");
    let check = |line: &str, expected: &str| {
        let text = without.replace("Exception Note:", &format!("{line}\nException Note:"));
        let details = parsed(&text).facts.crash_details;
        assert_eq!(details.as_deref(), Some(expected), "{line}");
    };
    check("", "0x0000000000000000, 0x0000000000000000");
    check(
        "Exception Subtype: KERN_INVALID_ADDRESS at 0x8",
        "KERN_INVALID_ADDRESS at 0x8",
    );
    check("Exception Subtype: a\nException Message: b", "b");
}

#[test]
fn a_backtrace_of_the_last_exception_without_names_is_a_list_of_addresses() {
    let (start, end) = (TEXT.find("Last").unwrap(), TEXT.find("Thread 0").unwrap());
    let list = "Last Exception Backtrace:\n(0x190001000 0x100004100 more 0x5)\n\n";
    let text = format!("{}{list}{}", &TEXT[..start], &TEXT[end..]);
    let report = parsed(&text);
    let last = report.request.stacktraces.last().unwrap();
    assert_eq!(last.thread_name.as_deref(), Some(LAST_EXCEPTION));
    assert_eq!(addresses(last), [0x1_9000_1000, 0x1_0000_4100, 5]);
    assert_eq!(report.request.stacktraces.len(), 3);
}

/// A backtrace in the form of `backtrace_symbols`, which names the module if it knows no function.
const NOTED: &str = "\
0   CoreFoundation                      0x00007fff461e0fcb __exceptionPreprocess + 171
1   Ledger                              0x0000000100004100 Ledger + 16640
10  AppKit                              0x00007fff46279a24 -[NSObject(NSObject) fail:] + 132
";

fn check_noted(backtrace: &Stacktrace, name: &str) {
    assert_eq!(backtrace.thread_name.as_deref(), Some(name));
    let (id, is_requesting) = (backtrace.thread_id, backtrace.is_requesting);
    assert_eq!((id, is_requesting), (None, Some(false)));
    let at = [0x7fff_461e_0fcb, 0x1_0000_4100, 0x7fff_4627_9a24];
    assert_eq!(addresses(backtrace), at);
    let functions = ["__exceptionPreprocess", "-", "-[NSObject(NSObject) fail:]"];
    assert_eq!(names(backtrace), functions);
    let mut frames = backtrace.frames.iter();
    assert!(frames.all(|frame| frame.adjust_instruction_addr == Some(true)));
}

#[test]
fn the_backtraces_that_an_application_noted_are_stack_traces() {
    let name = "Application Specific Backtrace 1";
    let header = "Last Exception Backtrace:";
    let sections = format!("Application Specific Signatures:\nwithdraw\n\n{name}:\n{NOTED}\n");
    let text = TEXT.replace(header, &format!("{sections}{header}"));
    let ReadCrash { request, facts, .. } = parsed(&text);
    let [_, crashed, noted, last] = &*request.stacktraces else {
        panic!("{:#?}", request.stacktraces);
    };
    check_noted(noted, name);
    assert_eq!(crashed.thread_id, Some(1));
    assert_eq!(last.thread_name.as_deref(), Some(LAST_EXCEPTION));
    let details = facts.crash_details.unwrap();
    assert!(details.contains("balance is negative"), "{details}");
    assert!(!details.contains("__exceptionPreprocess"), "{details}");

    let mut report = body();
    report["asiBacktraces"] = json!([NOTED, 7, "no backtrace", NOTED]);
    let stacktraces = parsed(&ips(&report)).request.stacktraces;
    assert_eq!(stacktraces.len(), 5);
    check_noted(&stacktraces[3], name);
    check_noted(&stacktraces[4], "Application Specific Backtrace 3");
    report["asiBacktraces"] = json!(null);
    assert_eq!(parsed(&ips(&report)), parsed(&ips(&body())));
}

#[test]
fn a_report_in_json_has_its_threads_registers_and_modules() {
    let report = parsed(&ips(&body()));
    let [main, crashed, last] = &*report.request.stacktraces else {
        panic!("{:#?}", report.request.stacktraces);
    };
    assert_eq!((main.thread_id, main.is_requesting), (Some(0), Some(false)));
    assert_eq!(main.thread_name.as_deref(), Some("com.apple.main-thread"));
    assert_eq!(addresses(main), [6_677_331_512, 0x1_0000_3f00]);
    assert_eq!(names(main), ["mach_msg2_trap", "-"]);
    assert_eq!(
        main.frames[0].package.as_deref(),
        Some("libsystem_kernel.dylib")
    );

    assert_eq!(crashed.thread_name.as_deref(), Some("worker"));
    assert_eq!(crashed.is_requesting, Some(true));
    // The inlined frame is left out. The last two frames are outside of all modules.
    assert_eq!(addresses(crashed), [0x1_0000_012c, 3501, 77]);
    assert_eq!(names(crashed), ["large()", "-", "-"]);
    assert_eq!(crashed.frames[0].lineno, Some(9));
    assert_eq!(crashed.frames[1].package, None);
    let registers: Vec<_> = crashed.registers.iter().collect();
    assert_eq!(
        registers,
        [
            (&"esr".to_owned(), &Hex(1_442_840_704)),
            (&"pc".to_owned(), &Hex(6_677_332_000)),
            (&"x0".to_owned(), &Hex(0)),
            (&"x1".to_owned(), &Hex(8)),
        ]
    );

    assert_eq!(last.thread_id, None);
    assert_eq!(addresses(last), [6_677_332_024, 0x1_0000_0100]);
    assert_eq!(last.frames[0].adjust_instruction_addr, Some(true));

    let modules = &report.request.modules;
    assert_eq!(modules.len(), 2, "a gap is not a module: {modules:#?}");
    let id = modules[0].debug_id.unwrap().to_string();
    assert_eq!(id, "8a1f4e8c-52f0-3d0b-9c6a-0b4e29d1c1aa");
    assert_eq!(
        modules[1].code_file.as_deref(),
        Some("libsystem_kernel.dylib")
    );
}

#[test]
fn a_report_in_json_has_its_facts() {
    let report = parsed(&ips(&body()));
    let facts = &report.facts;
    assert_eq!(
        system(&report),
        ["iOS", "16.4.1", "20E252", "arm64", "iPhone14,5"]
    );
    assert_eq!(facts.timestamp, Some(1_683_194_401));
    assert_eq!(facts.crash_reason.as_deref(), Some("EXC_CRASH (SIGABRT)"));
    assert_eq!(
        facts.crash_details.as_deref(),
        Some("*** index 7 beyond bounds [0 .. 6]\nabort() called")
    );
}

#[test]
fn the_details_of_a_report_in_json_are_the_most_specific_ones() {
    let mut report = body();
    let fields = report.as_object_mut().unwrap();
    fields.remove("asi");
    let details = |report: &Value| parsed(&ips(report)).facts.crash_details.unwrap();
    assert_eq!(details(&report), "Abort trap: 6");
    report["termination"]["reasons"] = json!(["a", "b"]);
    assert_eq!(details(&report), "a\nb");
    report["exception"]["subtype"] = json!("KERN_INVALID_ADDRESS at 0x8");
    assert_eq!(details(&report), "KERN_INVALID_ADDRESS at 0x8");
    report["exception"]["message"] = json!("said by the kernel");
    assert_eq!(details(&report), "said by the kernel");
}

#[test]
fn a_report_in_json_needs_no_header() {
    let with = parsed(&ips(&body()));
    let without = parsed(&body().to_string());
    assert_eq!(with, without);
}

/// A report as a device with iOS 14 stores it: the header in JSON of one line, as Apple describes
/// it in "Interpreting the JSON format of a crash report", and the text.
const IOS_14: &str = r#"{"app_name":"Ledger","timestamp":"2021-11-03 09:30:16.11 +0100","app_version":"3.2","slice_uuid":"8a1f4e8c-52f0-3d0b-9c6a-0b4e29d1c1aa","adam_id":0,"build_version":"77","bundleID":"com.example.ledger","share_with_app_devs":false,"is_first_party":false,"bug_type":"109","os_version":"iPhone OS 14.8 (18H17)","incident_id":"5C32DF84-31A0-43E7-87D0-239F7F594940","name":"Ledger"}
Incident Identifier: 5C32DF84-31A0-43E7-87D0-239F7F594940
CrashReporter Key:   0123456789abcdef0123456789abcdef01234567
Hardware Model:      iPhone12,1
Process:             Ledger [812]
Path:                /private/var/containers/Bundle/Application/Ledger.app/Ledger
Identifier:          com.example.ledger
Version:             77 (3.2)
Code Type:           ARM-64 (Native)
Role:                Foreground
Parent Process:      launchd [1]
Coalition:           com.example.ledger [590]

Date/Time:           2021-11-03 09:30:15.2500 +0100
Launch Time:         2021-11-03 09:29:59.9000 +0100
OS Version:          iPhone OS 14.8 (18H17)
Release Type:        User
Report Version:      104

Exception Type:  EXC_BAD_ACCESS (SIGSEGV)
Exception Subtype: KERN_INVALID_ADDRESS at 0x0000000000000008
VM Region Info: 0x8 is not in any region.
Triggered by Thread:  1

Thread 0 name:  Dispatch queue: com.apple.main-thread
Thread 0:
0   libsystem_kernel.dylib        	0x0000000191000010 0x191000000 + 16
1   Ledger                        	0x0000000100003f00 0x100000000 + 16128

Thread 1 name:  worker
Thread 1 Crashed:
0   Ledger                        	0x0000000100003ff4 0x100000000 + 16372
1   Ledger                        	0x0000000100004100 0x100000000 + 16640

Thread 1 crashed with ARM Thread State (64-bit):
    x0: 0x0000000000000000   x1: 0x0000000000000008
    lr: 0x0000000100004100   pc: 0x0000000100003ff4

Binary Images:
0x100000000 - 0x100007fff Ledger arm64  <8a1f4e8c52f03d0b9c6a0b4e29d1c1aa> /private/var/containers/Bundle/Application/Ledger.app/Ledger
0x191000000 - 0x191037fff libsystem_kernel.dylib arm64e  <1b2c3d4e000031118222333344445555> /usr/lib/system/libsystem_kernel.dylib

EOF
"#;

#[test]
fn a_report_of_ios_14_is_text_after_a_header_in_json() {
    let report = parsed(IOS_14);
    let [main, crashed] = &*report.request.stacktraces else {
        panic!("{:#?}", report.request.stacktraces);
    };
    assert_eq!((main.thread_id, main.is_requesting), (Some(0), Some(false)));
    assert_eq!(addresses(main), [0x1_9100_0010, 0x1_0000_3f00]);
    assert_eq!(
        (crashed.thread_id, crashed.is_requesting),
        (Some(1), Some(true))
    );
    assert_eq!(crashed.thread_name.as_deref(), Some("worker"));
    assert_eq!(addresses(crashed), [0x1_0000_3ff4, 0x1_0000_4100]);
    assert_eq!(crashed.registers["pc"], Hex(0x1_0000_3ff4));
    assert_eq!(
        system(&report),
        ["iOS", "14.8", "18H17", "arm64", "iPhone12,1"]
    );
    assert_eq!(report.facts.timestamp, Some(1_635_928_215));
    let reason = report.facts.crash_reason.as_deref();
    assert_eq!(reason, Some("EXC_BAD_ACCESS (SIGSEGV)"));
    let ids = report.request.modules.iter();
    let ids: Vec<String> = ids
        .map(|module| module.debug_id.unwrap().to_string())
        .collect();
    assert_eq!(
        ids,
        [
            "8a1f4e8c-52f0-3d0b-9c6a-0b4e29d1c1aa",
            "1b2c3d4e-0000-3111-8222-333344445555"
        ]
    );

    // Without its header, the report says the same.
    let (_, text) = IOS_14.split_once('\n').unwrap();
    assert_eq!(parsed(text), report);
    // A text after the header that is no report, and what only begins like a header.
    for (file, expected) in [
        (
            IOS_14.lines().next().unwrap().to_owned() + "\nnothing",
            "not an Apple crash report",
        ),
        (
            "{\nThread 0:\n0 Ledger 0x1 0x0 + 1\n".to_owned(),
            "not an Apple crash report in JSON",
        ),
    ] {
        let error = parse_report(file.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn frames_are_put_into_the_order_of_the_options() {
    let options = Options {
        frame_order: FrameOrder::CallerFirst,
        ..Options::default()
    };
    let before = parsed(&ips(&body()));
    let mut reversed = addresses(&before.request.stacktraces[0]);
    reversed.reverse();
    let after = before.with_fields(CrashFields {
        options,
        ..CrashFields::default()
    });
    assert_eq!(addresses(&after.request.stacktraces[0]), reversed);
    assert_eq!(after.request.options, options);
}

#[test]
fn a_file_that_is_not_a_crash_report_is_refused_with_the_reason() {
    let check = |file: &[u8], expected: &str| {
        let error = parse_report(file).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(b"", "it has no threads");
    check(b"hello", "it has no threads");
    check(b"\x00\xff\xfe{", "it has no threads");
    check(b"{", "in JSON: EOF");
    check(b"{}", "it has no threads");
    check(
        b"{\"bug_type\": \"298\"}\n{\"largestProcess\": \"x\"}",
        "bug_type is 298",
    );
    check(
        b"{\"bug_type\": \"309\"}\n{\"threads\": []}",
        "report: it has no threads",
    );
    check(b"{\"threads\": 7}", "report: it has no threads");
    check(b"{\"threads\": [}", "in JSON: expected value");
    check(
        b"Thread 99999999999999999999:\n",
        "invalid thread identifier",
    );
    check(
        b"Thread 0:\n0  a  0xfffffffffffffffff 0x0 + 0\n",
        "invalid frame instruction address",
    );
    check(&vec![b' '; REPORT_BYTES + 1], "and the limit is 8388608");
}

#[test]
fn a_report_beyond_a_limit_is_refused() {
    let check = |report: String, expected: &str| {
        let error = parse_report(report.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let threads = "{},".repeat(limits::STACKTRACES + 1);
    check(
        format!("{{\"threads\": [{}]}}", threads.trim_end_matches(',')),
        "a list of at most 16384 elements",
    );
    let frame = r#"{"imageOffset":1,"imageIndex":0},"#;
    let half = frame.repeat(limits::FRAMES / 2 + 1);
    let thread = format!("{{\"frames\": [{}]}}", half.trim_end_matches(','));
    check(
        format!("{{\"threads\": [{thread}, {thread}]}}"),
        "more than 131072 frames",
    );
    let registers: String = (0..=limits::REGISTERS)
        .map(|number| format!("\"r{number}\": {{\"value\": 1}},"))
        .collect();
    check(
        format!(
            "{{\"threads\": [{{\"threadState\": {{{}}}}}]}}",
            registers.trim_end_matches(',')
        ),
        "at most 1024 registers",
    );
    check(
        "Thread 1:\n".repeat(limits::STACKTRACES + 1),
        "more than 16384 threads",
    );
}

/// Each of these reports has something invalid behind the frame that exceeds the limit.
#[test]
fn a_report_with_too_many_frames_is_not_read_to_its_end() {
    let check = |report: String| {
        let error = parse_report(report.as_bytes()).unwrap_err();
        let is_limit = matches!(error, AppleReportError::TooMany { what: "frames", .. });
        assert!(is_limit, "{error}");
    };
    let invalid = "Thread 99999999999999999999:\n";
    let lines = "0 a 0x1 f\n".repeat(limits::FRAMES + 1);
    check(format!("Thread 0:\n{lines}{invalid}"));
    // Fewer than fit into a line.
    let list = format!("({})\n", "0x1 ".repeat(4_000));
    let lists = list.repeat(limits::FRAMES / 4_000 + 1);
    check(format!("{LAST_EXCEPTION}:\n{lists}{invalid}"));

    let third = "{},".repeat(limits::FRAMES / 3 + 1);
    let third = format!("{{\"frames\": [{}]}}", third.trim_end_matches(','));
    let invalid = r#"{"frames": [{"inline": true, "inline": true}]}"#;
    check(format!(
        "{{\"threads\": [{third}, {third}, {third}, {invalid}]}}"
    ));
    let half = list.repeat(limits::FRAMES / 8_000 + 1);
    check(
        json!({"threads": [{}], "asiBacktraces": [half, "no backtrace", half, half]}).to_string(),
    );
}

#[test]
fn the_frames_of_all_threads_and_backtraces_may_be_as_many_as_the_limit() {
    let half = "{},".repeat(limits::FRAMES / 2);
    let half = format!("[{}]", half.trim_end_matches(','));
    let noted = |address: &str| format!(r#""asiBacktraces": ["0 a {address} f"]"#);
    let report = |noted: &str| {
        let threads = format!(r#"[{{"frames": {half}}}, {{"frames": {half}}}]"#);
        parse_report(format!(r#"{{"threads": {threads}, {noted}}}"#).as_bytes())
    };
    let most = report(&noted("nothing")).unwrap().request;
    let frames = most.stacktraces.iter().map(|stack| stack.frames.len());
    assert_eq!(frames.sum::<usize>(), limits::FRAMES);
    let error = report(&noted("0x1")).unwrap_err().to_string();
    assert_eq!(error, "the report has more than 131072 frames");
}

#[test]
fn the_frames_of_a_module_share_its_name() {
    let report = parsed(&ips(&body())).request;
    let last = report.stacktraces[2].frames[1].package.as_ref().unwrap();
    let first = report.stacktraces[0].frames[1].package.as_ref().unwrap();
    assert!(std::sync::Arc::ptr_eq(first, last));
}

#[test]
fn a_report_in_text_with_too_many_modules_is_refused() {
    let id = "8a1f4e8c52f03d0b9c6a0b4e29d1c1aa";
    let module = format!("0x1000 - 0x1fff app arm64 <{id}> /app\n");
    let modules = module.repeat(limits::MODULES + 1);
    let error = parse_report(format!("Thread 0:\n\nBinary Images:\n{modules}").as_bytes());
    let error = error.unwrap_err().to_string();
    assert_eq!(error, "the report has more than 16384 modules");
}

/// Clients copy templates, and versions contain parentheses.
#[test]
fn a_fact_or_a_module_that_cannot_be_read_costs_no_other() {
    let report = parsed(
        "Incident Identifier: [none yet]\n\
         Process: app [7]\n\
         Report Version: 104 (1)\n\
         Date/Time: 2024-05-01 6:08:45 PM +0000\n\
         \n\
         Thread 0 Crashed:\n\
         0   app   0x0000000100001010 0x100000000 + 4112\n\
         \n\
         Binary Images:\n\
         0x200000000 - 0x200000fff beta (1.0 (beta 2) - 17) <502fc0a51ec13e4799986684fa139dca> /b\n\
         0x300000000 - 0x300000fff without an id\n\
         0x400000000 - 0x400000fff odd () <unknown> ???\n\
         0x100000000 - 0x100000fff app arm64 <bc6e45ac487ff425367208b89f51ad48> /app\n",
    );
    assert_eq!(addresses(&report.request.stacktraces[0]), [0x1_0000_1010]);
    let modules = report.request.modules.iter();
    let names: Vec<_> = modules.filter_map(|it| it.code_file.as_deref()).collect();
    assert_eq!(names, ["/b", "/app"]);
}

#[test]
fn a_report_may_be_in_utf_16_quoted_or_with_the_line_ends_of_old_macs() {
    for report in [TEXT, IOS_14, &ips(&body())] {
        let expected = parsed(report);
        let units = report.encode_utf16().flat_map(u16::to_le_bytes);
        let utf_16: Vec<u8> = [0xff, 0xfe].into_iter().chain(units).collect();
        assert_eq!(parse_report(&utf_16).unwrap(), expected);
        assert_eq!(parsed(&report.replace('\n', "\r")), expected);
        for prefix in ["    ", "\t", "> ", ">> "] {
            let lines = report.lines().map(|line| format!("{prefix}{line}"));
            let quoted = lines.collect::<Vec<_>>().join("\n");
            assert_eq!(parsed(&quoted), expected, "{prefix:?}");
        }
    }
}

/// Sets a value in a report in JSON, and returns what is read.
fn with(place: &str, value: Value) -> ReadCrash {
    let mut report = body();
    let (object, name) = place.rsplit_once('/').unwrap();
    match report.pointer_mut(object).unwrap() {
        Value::Array(list) => list[name.parse::<usize>().unwrap()] = value,
        object => object[name] = value,
    }
    parsed(&ips(&report))
}

#[test]
fn a_value_of_an_unexpected_form_costs_no_other_of_a_report_in_json() {
    let complete = parsed(&ips(&body())).request;
    for place in [
        "/captureTime",
        "/cpuType",
        "/modelCode",
        "/osVersion",
        "/osVersion/train",
        "/exception",
        "/exception/type",
        "/termination",
        "/termination/indicator",
        "/asi",
        "/asi/CoreFoundation",
        "/asi/CoreFoundation/0",
        "/usedImages/2",
    ] {
        for value in [json!(null), json!(-1.5), json!("odd"), json!([]), json!({})] {
            assert_eq!(with(place, value).request, complete, "{place}");
        }
    }
    for value in [json!(null), json!([[]]), json!("odd"), json!(1.5)] {
        let last = with("/lastExceptionBacktrace", value.clone());
        assert_eq!(last.request.stacktraces, complete.stacktraces[..2]);
        let thread = with("/threads/0", value).request.stacktraces;
        assert_eq!((thread.len(), thread[0].frames.len()), (3, 0));
        assert_eq!(thread[1..], complete.stacktraces[1..]);
    }
}

#[test]
fn facts_of_a_report_in_json_may_be_single_texts() {
    let version = with("/osVersion", json!("macOS 14.1 (23B74)"));
    assert_eq!(system(&version)[..3], ["macOS", "14.1", "23B74"]);
    for (place, value) in [
        ("/asi", json!("a note")),
        ("/asi", json!(["a note", 7])),
        ("/asi", json!({"libsystem_c.dylib": "a note"})),
    ] {
        let details = with(place, value).facts.crash_details;
        assert_eq!(details.as_deref(), Some("a note"));
    }
}

#[test]
fn a_module_that_cannot_be_read_leaves_the_indexes_of_others() {
    let read = |place: &str, value: Value| {
        let ReadCrash { request, .. } = with(place, value);
        let last = request.stacktraces[0].frames.last().unwrap();
        let package = last.package.as_deref().map(str::to_owned);
        let at = (addresses(&request.stacktraces[0]), package);
        (at, request.modules.len(), request.modules[0].clone())
    };
    let path = "/private/var/Ledger.app/Ledger";
    let (at, count, module) = read("/usedImages/0/uuid", json!(""));
    assert_eq!((module.debug_id, count), (None, 2));
    let known = vec![6_677_331_512, 0x1_0000_3f00];
    assert_eq!(at, (known, Some(path.to_owned())));
    let (at, count, module) = read("/usedImages/0/path", json!(null));
    assert_eq!((module.code_file.as_deref(), count), (Some("Ledger"), 2));
    assert_eq!(at.1.as_deref(), Some("Ledger"));
    for (place, package) in [("/usedImages/0", None), ("/usedImages/0/base", Some(path))] {
        let (at, count, module) = read(place, json!(null));
        let file = module.code_file.as_deref();
        assert_eq!((file, count), (Some("libsystem_kernel.dylib"), 1));
        let unknown = vec![6_677_331_512, 16128];
        assert_eq!(at, (unknown, package.map(str::to_owned)), "{place}");
    }
}

#[test]
fn a_frame_or_register_in_json_that_cannot_be_read_costs_no_other() {
    let frame = |name: &str, value: Value| {
        let place = format!("/threads/1/frames/1/{name}");
        let frames = &with(&place, value).request.stacktraces[1].frames;
        assert_eq!(frames.len(), 3, "{name}");
        (frames[0].instruction_addr.0, frames[0].lineno)
    };
    assert_eq!(frame("imageIndex", json!(null)), (300, Some(9)));
    assert_eq!(frame("imageOffset", json!(-256)), (0xffff_ff00, Some(9)));
    assert_eq!(frame("imageOffset", json!(i64::MIN)), (0, Some(9)));
    assert_eq!(frame("imageOffset", json!(u64::MAX)), (u64::MAX, Some(9)));
    assert_eq!(frame("imageOffset", json!(null)), (0, Some(9)));
    assert_eq!(frame("sourceLine", json!(-1)), (0x1_0000_012c, None));
    assert_eq!(frame("symbol", json!(7)), (0x1_0000_012c, Some(9)));
    assert_eq!(frame("inline", json!("odd")).0, 0x1_0000_012c);

    let register = |place: &str, value: Value| {
        let place = format!("/threads/1/threadState{place}");
        let stacktraces = with(&place, value).request.stacktraces;
        assert_eq!(stacktraces[1].frames.len(), 3);
        let names = stacktraces[1].registers.keys().cloned();
        names.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(register("", json!(null)), "");
    for odd in [json!(-1), json!(1.5), json!("odd"), json!(null)] {
        assert_eq!(register("/pc/value", odd.clone()), "esr x0 x1");
        assert_eq!(register("/pc", odd.clone()), "esr x0 x1");
        assert_eq!(register("/x/0/value", odd.clone()), "esr pc x1");
        assert_eq!(register("/x/0", odd.clone()), "esr pc x1");
        assert_eq!(register("/x", odd), "esr pc");
    }
}

/// A program that Rosetta translates has a further state beside its registers.
#[test]
fn a_translated_program_has_its_registers() {
    let state = json!({
        "flavor": "x86_THREAD_STATE", "rip": {"value": 4096}, "rax": {"value": 1},
        "rosetta": {"tmp2": {"value": 7}, "tmp1": {"value": 7}, "tmp0": {"value": 7}},
    });
    let body = json!({
        "threads": [{"triggered": true, "frames": [], "threadState": state}], "usedImages": [],
    });
    let report = parsed(&ips(&body));
    let registers = &report.request.stacktraces[0].registers;
    let names: Vec<&str> = registers.keys().map(|name| &**name).collect();
    assert_eq!(names, ["rax", "rip"]);
}

#[test]
fn the_rest_of_a_long_line_is_not_read() {
    let end = " 0x5";
    let list = |length: usize| {
        let padding = " ".repeat(length);
        parsed(&format!("Last Exception Backtrace:\n(0x1{padding}{end})\n"))
    };
    assert_eq!(addresses(&list(1_000).request.stacktraces[0]), [1, 5]);
    assert_eq!(addresses(&list(1 << 20).request.stacktraces[0]), [1]);
}

proptest! {
    #[test]
    fn no_file_makes_the_parser_panic(file in prop::collection::vec(any::<u8>(), 0..512)) {
        let _ = parse_report(&file);
    }

    #[test]
    fn no_change_of_a_report_makes_the_parser_panic(
        is_json: bool, at in 0..3_000_usize, put in prop::collection::vec(any::<u8>(), 0..8), taken in 0..64_usize
    ) {
        let mut file = if is_json { ips(&body()).into_bytes() } else { TEXT.as_bytes().to_vec() };
        let start = at.min(file.len());
        let end = (start + taken).min(file.len());
        file.splice(start..end, put);
        let _ = parse_report(&file);
    }
}
