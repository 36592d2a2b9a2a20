//! Tests of all readers: what a report says, and that its text stays as it is.

use proptest::prelude::*;

use super::*;
use crate::api::symbolicator::{
    AddrMode, Completed, CompletedFrame, CompletedStacktrace, Frame, FrameStatus,
};
use crate::domain::{CodeId, ObjectType};

macro_rules! fixture {
    ($name:literal, $format:ident) => {
        (
            $name,
            include_bytes!(concat!("../../../../tests/fixtures/reports/", $name)),
            ReportFormat::$format,
        )
    };
}

const REPORTS: [(&str, &[u8], ReportFormat); 16] = [
    fixture!("asan.txt", Sanitizer),
    fixture!("asan-fixed.txt", Sanitizer),
    fixture!("tsan.txt", Sanitizer),
    fixture!("msan.txt", Sanitizer),
    fixture!("ubsan.txt", Sanitizer),
    fixture!("ubsan-overflow.txt", Sanitizer),
    fixture!("android.txt", Android),
    fixture!("systemd.txt", Systemd),
    fixture!("systemd-with-ids.txt", Systemd),
    fixture!("journal.json", Journal),
    fixture!("glibc-fault.txt", Glibc),
    fixture!("glibc-fault-fixed.txt", Glibc),
    fixture!("gdb.txt", Gdb),
    fixture!("rust.txt", Rust),
    fixture!("hs_err.txt", HsErr),
    fixture!("markup.txt", Markup),
];

/// Apple's reports, which the service reads: by construction. Those of the fuzz target have more of
/// the syntax, those of the fixtures have the frames of a program.
const APPLE_TEXT: &[u8] = include_bytes!("../../../../tests/fuzz/seeds/report/apple");
const APPLE_JSON: &[u8] = include_bytes!("../../../../tests/fuzz/seeds/report/ips");
const APPLE_FRAMES: [&[u8]; 2] = [
    include_bytes!("../../../../tests/fixtures/reports/apple.crash"),
    include_bytes!("../../../../tests/fixtures/reports/apple.ips"),
];

fn fixture(name: &str) -> &'static [u8] {
    let found = REPORTS.iter().find(|(of, _, _)| *of == name);
    found.expect("a fixture").1
}

fn fixture_text(name: &str) -> &'static str {
    std::str::from_utf8(fixture(name)).unwrap()
}

pub(super) fn read(text: &str) -> CrashReport {
    CrashReport::read(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Returns the address, or else the offset, of each frame and whether it is a return address.
pub(super) fn frames(report: &CrashReport) -> Vec<(u64, bool)> {
    let frames = report.stacks.iter().flat_map(|stack| &stack.frames);
    let address = |frame: &ReportFrame| frame.address.or(frame.offset).unwrap_or_default();
    frames
        .map(|frame| (address(frame), frame.is_return))
        .collect()
}

/// Returns a response in which every frame has these functions.
fn answered(report: &CrashReport, functions: &[(&str, Option<u32>)]) -> Completed {
    let frame = |index: usize, (function, line): (&str, Option<u32>)| CompletedFrame {
        status: FrameStatus::Symbolicated,
        original_index: Some(index),
        frame: Frame {
            function: Some(function.into()),
            abs_path: line.map(|_| "/src/a.c".into()),
            lineno: line,
            ..Frame::default()
        },
    };
    let stack = |stack: &ReportStack| CompletedStacktrace {
        frames: (0..stack.frames.len())
            .flat_map(|index| functions.iter().map(move |it| frame(index, *it)))
            .collect(),
        ..CompletedStacktrace::default()
    };
    Completed {
        stacktraces: report.stacks.iter().map(stack).collect(),
        ..Completed::default()
    }
}

/// Returns the text of a report in which every frame has these functions.
pub(super) fn rewritten(text: &str, functions: &[(&str, Option<u32>)]) -> String {
    let report = read(text);
    let text = report.text(text.as_bytes(), &answered(&report, functions));
    String::from_utf8(text).unwrap()
}

#[test]
fn every_format_is_recognised_and_stays_as_it_is_without_names() {
    for (name, bytes, format) in REPORTS {
        let report = CrashReport::read(bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(report.format, format, "{name}");
        assert!(report.text(bytes, &Completed::default()) == bytes, "{name}");
        let unknown = answered(&report, &[]);
        assert!(report.text(bytes, &unknown) == bytes, "{name}");
        assert!(report.others.is_empty(), "{name}: {:?}", report.others);
    }
}

#[test]
fn a_text_may_have_stack_traces_of_several_formats() {
    let (glibc, gdb) = (fixture("glibc-fault.txt"), fixture("gdb.txt"));
    let count = |bytes: &[u8]| frames(&CrashReport::read(bytes).unwrap()).len();
    let (of_glibc, of_gdb) = (count(glibc), count(gdb));
    let report = CrashReport::read(&[glibc, b"\n", gdb, b"\n", glibc].concat()).unwrap();
    assert_eq!(report.format, ReportFormat::Glibc);
    assert_eq!(report.others, [(ReportFormat::Gdb, of_gdb)]);
    assert_eq!(frames(&report).len(), 2 * of_glibc);
    // A single line may be anything.
    let line = "#10 0x1010 in f (a=1) at b.c:2\n";
    let report = read(&format!("{line}{}", fixture_text("glibc-fault.txt")));
    assert!(report.others.is_empty(), "{:?}", report.others);
}

#[test]
fn a_text_in_utf_16_is_a_report_in_utf_8() {
    let text = fixture_text("asan.txt").replace('\n', "\r\n");
    let units = text.encode_utf16().flat_map(u16::to_le_bytes);
    let bytes: Vec<u8> = [0xff, 0xfe].into_iter().chain(units).collect();
    let decoded = CrashReport::in_utf_8(bytes);
    assert!(decoded == text.as_bytes());
    let report = CrashReport::read(&decoded).unwrap();
    assert_eq!(frames(&report), frames(&read(&text)));
    assert_eq!(CrashReport::in_utf_8(decoded.clone()), decoded);
}

#[test]
fn a_report_in_colours_or_in_a_log_in_json_has_the_same_frames() {
    for (name, bytes, format) in REPORTS {
        if matches!(format, ReportFormat::Journal) {
            continue;
        }
        let lines = std::str::from_utf8(bytes).unwrap().lines();
        let coloured = lines
            .clone()
            .map(|line| format!("\u{1b}[1m{line}\u{1b}[m\n"));
        let logged = lines.map(|line| serde_json::json!({"log": line}).to_string() + "\n");
        let alone = CrashReport::read(bytes).unwrap();
        for text in [coloured.collect::<String>(), logged.collect()] {
            let report = read(&text);
            assert_eq!(report.format, format, "{name}");
            assert_eq!(frames(&report), frames(&alone), "{name}");
            assert!(report.text(text.as_bytes(), &Completed::default()) == text.as_bytes());
        }
    }
}

#[test]
fn a_report_in_the_middle_of_a_log_is_found() {
    for (name, bytes, format) in REPORTS {
        if matches!(format, ReportFormat::Journal) {
            continue;
        }
        let text = std::str::from_utf8(bytes).unwrap();
        let log = format!("12:00:00 make: *** [all] #1 Error 2\n\n{text}\nDone in 0x10 s [0x2].\n");
        let alone = CrashReport::read(bytes).unwrap();
        let report = read(&log);
        assert_eq!(
            (report.format, frames(&report)),
            (format, frames(&alone)),
            "{name}"
        );
    }
}

#[test]
fn lines_with_a_prefix_of_a_log_are_read() {
    let settled = |report: &CrashReport| -> Vec<bool> {
        let frames = report.stacks.iter().flat_map(|stack| &stack.frames);
        frames.map(|frame| frame.is_settled).collect()
    };
    for name in [
        "asan.txt",
        "android.txt",
        "systemd.txt",
        "glibc-fault.txt",
        "gdb.txt",
        "rust.txt",
        "hs_err.txt",
    ] {
        let text = std::str::from_utf8(fixture(name)).unwrap();
        let alone = read(text);
        for prefix in [
            "Nov 23 17:18:56 host app[4711]: ",
            "2026-11-23T17:18:56.123456789Z ",
            "app-1  | ",
            "> ",
            "    ",
        ] {
            let lines = text.lines().map(|line| format!("{prefix}{line}\r\n"));
            let report = read(&lines.collect::<String>());
            assert_eq!(frames(&report), frames(&alone), "{name}: {prefix}");
            assert_eq!(settled(&report), settled(&alone), "{name}: {prefix}");
        }
    }
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_report() {
    let mark = &b"\xef\xbb\xbf"[..];
    let logged = br#"{"log": "./app(+0x10)[0x1010]\n"}"#;
    for (bytes, format) in [
        (
            &br#"{"stacktraces": [{"frames": [{"instruction_addr": "0x1010"}]}]}"#[..],
            ReportFormat::Json,
        ),
        (fixture("journal.json"), ReportFormat::Journal),
        (&logged[..], ReportFormat::Glibc),
        (&b"./app(+0x10)[0x1010]"[..], ReportFormat::Glibc),
    ] {
        let alone = CrashReport::read(bytes).unwrap();
        let marked = [mark, bytes].concat();
        let report = CrashReport::read(&marked).unwrap();
        assert_eq!((report.format, alone.format), (format, format));
        assert_eq!(report.modules, alone.modules);
        assert_eq!(frames(&report), frames(&alone));
        let named = report.text(&marked, &answered(&report, &[("f", None)]));
        let expected = alone.text(bytes, &answered(&alone, &[("f", None)]));
        assert_eq!(named, [mark, &expected].concat());
    }
    let error = CrashReport::read("\u{feff}{\"stacktraces\": 1}".as_bytes()).unwrap_err();
    assert!(matches!(error, ReportError::Request(_)), "{error:?}");
}

#[test]
fn text_without_a_stack_trace_is_refused() {
    for text in [
        "",
        "hello",
        "\0\u{ff}",
        "#0 nothing",
        "a [0x10]",
        "{{{bt}}}",
        "# 1 0x10 in f ()",
        "{\"MESSAGE_ID\": \"1\", \"MESSAGE\": \"hello\"}",
    ] {
        let error = CrashReport::read(text.as_bytes()).unwrap_err();
        assert_eq!(error, ReportError::Unknown, "{text}");
    }
    let error = CrashReport::read(br#"{"stacktraces": 1}"#).unwrap_err();
    assert!(matches!(error, ReportError::Request(_)), "{error:?}");
}

#[test]
fn a_message_that_journalctl_left_out_is_named() {
    let entry = br#"{"MESSAGE_ID": "fc2e22bc6ee647b6b90729ab34a250b1", "MESSAGE": null}"#;
    let error = CrashReport::read(entry).unwrap_err();
    assert_eq!(error, ReportError::WithoutMessage);
    assert!(error.to_string().contains("--all"), "{error}");
    // Of several entries, those with messages are read.
    let both = [entry, &b"\n"[..], fixture("journal.json")].concat();
    let report = CrashReport::read(&both).unwrap();
    let alone = CrashReport::read(fixture("journal.json")).unwrap();
    assert_eq!(frames(&report), frames(&alone));
}

#[test]
fn a_request_is_a_report_with_its_own_addresses() {
    let body = br#" {"signal": 11,
        "stacktraces": [{"frames": [{"instruction_addr": "0x10"}, {"instruction_addr": 4, "addr_mode": "rel:0"}]}],
        "modules": [{"type": "elf", "code_file": "/a/app", "image_addr": "0x1000"}]}"#;
    let mut report = CrashReport::read(body).unwrap();
    assert_eq!(report.format, ReportFormat::Json);
    assert_eq!(report.request(), parse_request(body).unwrap());
    assert_eq!(frames(&report), [(0x10, false), (4, false)]);
    assert!(!report.complete(&GivenModule {
        name: "app".to_owned(),
        base: Some(1),
        ..GivenModule::default()
    }));
    assert_eq!(report.lacks(), []);
    let names = answered(&report, &[("f", Some(1))]);
    assert_eq!(report.text(body, &names), body);
}

#[test]
fn a_sanitizer_prints_the_addresses_of_calls() {
    let report = CrashReport::read(fixture("asan.txt")).unwrap();
    assert!(frames(&report).iter().all(|(_, is_return)| !is_return));
    assert_eq!(report.stacks.len(), 3); // the access, free, malloc
    let app = &report.modules[0];
    assert_eq!(
        (app.name.as_str(), app.base),
        ("/build/app/asan", Some(0x5555_5555_4000))
    );
    assert_eq!(app.code_id.as_ref().map(|id| id.as_str().len()), Some(40));
    let request = report.request();
    let frame = &request.stacktraces[0].frames[0];
    assert_eq!(
        (frame.addr_mode, frame.adjust_instruction_addr),
        (AddrMode::Rel(0), Some(false))
    );
    assert_eq!(report.lacks(), []);
}

#[test]
fn a_program_that_is_not_position_independent_lacks_its_load_address() {
    let mut report = CrashReport::read(fixture("asan-fixed.txt")).unwrap();
    let module = "/build/app/asan-fixed".to_owned();
    assert_eq!(report.lacks(), [Lack::Base { module }]);
    let before = report.request();
    assert_eq!(
        before.stacktraces[0].frames[0].addr_mode,
        AddrMode::Rel(crate::api::limits::MODULES)
    );
    let given = GivenModule {
        name: "asan-fixed".to_owned(),
        base: Some(0x40_0000),
        ..GivenModule::default()
    };
    assert!(report.complete(&given));
    assert!(!report.complete(&given));
    assert_eq!(report.lacks(), []);
    let frame = report.request().stacktraces[0].frames[0].clone();
    assert_eq!(frame.addr_mode, AddrMode::Rel(0));
    assert!(frame.instruction_addr.0 < 0x1_0000);
    let report = CrashReport::read(fixture("glibc-fault-fixed.txt")).unwrap();
    assert!(report.lacks().contains(&Lack::Base {
        module: "./fault-fixed".to_owned()
    }));
}

#[test]
fn glibc_prints_return_addresses_only_and_the_others_all_but_the_first() {
    let glibc = frames(&CrashReport::read(fixture("glibc-fault.txt")).unwrap());
    assert!(glibc.len() > 3 && glibc.iter().all(|(_, is_return)| *is_return));
    for name in ["systemd.txt", "gdb.txt", "journal.json", "hs_err.txt"] {
        let report = CrashReport::read(fixture(name)).unwrap();
        for stack in &report.stacks {
            let (first, callers) = stack.frames.split_first().unwrap();
            let all_return = callers.iter().all(|frame| frame.is_return);
            assert!(!first.is_return && all_return, "{name}: {stack:?}");
        }
        let longest = report.stacks.iter().map(|stack| stack.frames.len()).max();
        assert!(longest.unwrap() > 2, "{name}");
    }
}

#[test]
fn the_caller_in_a_log_of_the_jvm_has_a_return_address() {
    // The first frame is printed twice. The address of the call itself is in no log: the call
    // instruction before 0x1141 has five bytes.
    let report = CrashReport::read(fixture("hs_err.txt")).unwrap();
    assert_eq!(
        frames(&report)[..3],
        [(0x112b, false), (0x112b, false), (0x1141, true)]
    );
}

#[test]
fn the_frame_that_a_signal_interrupted_has_an_exact_address() {
    let report = read(
        "Stack trace of thread 7:\n\
         #0  0x00000000000011b0 handler (app + 0x1b0)\n\
         #1  0x0000000000002010 __restore_rt (libc.so.6 + 0x1010)\n\
         #2  0x00000000000011f0 broken (app + 0x1f0)\n\
         #3  0x0000000000001200 main (app + 0x200)\n",
    );
    let returns: Vec<bool> = frames(&report)
        .iter()
        .map(|(_, is_return)| *is_return)
        .collect();
    assert_eq!(returns, [false, true, false, true]);
    assert_eq!(report.stacks[0].thread_id, Some(7));
    let report = read(
        "Thread 1 (Thread 0x7ffff7dfc740 (LWP 4711)):\n\
         #0  0x0000000000001010 in handler () from /lib/a.so\n\
         #1  <signal handler called>\n\
         #2  0x00000000000011f0 in broken () from /lib/a.so\n\
         #3  main () at a.c:3\n\
         #4  0x00000000000011ff in start () from /lib/a.so\n",
    );
    let returns: Vec<bool> = frames(&report)
        .iter()
        .map(|(_, is_return)| *is_return)
        .collect();
    // The signal handler and `main` have no address.
    assert_eq!(returns, [false, false, false, false, true]);
    assert_eq!(
        (report.stacks.len(), report.stacks[0].thread_id),
        (1, Some(4711))
    );
}

#[test]
fn two_backtraces_of_one_program_may_have_two_load_addresses() {
    let report = read(
        "./app(+0x10)[0x1010]\n./app(main+0x4)[0x1014]\nrestarted\n\
         ./app(+0x10)[0x5010]\n./app(main+0x4)[0x5014]\n",
    );
    let located = |stack: usize, frame: usize| {
        report
            .located(&report.stacks[stack].frames[frame])
            .map(|(_, offset)| offset)
    };
    assert_eq!([located(0, 1), located(1, 1)], [Some(0x14), Some(0x14)]);
}

#[test]
fn ids_are_those_of_the_process_that_they_were_printed_for() {
    let message = |id: &str| {
        format!(
            "Process 1 (app) of user 0 dumped core.\n\nModule app with build-id {id}\n\
             Module libc.so.6 from deb glibc-2.36-9.amd64, build-id={id}\n\
             Stack trace of thread 1:\n#0  0x0000000000001010 n/a (app + 0x10)\n"
        )
    };
    let (first, second) = ("11".repeat(20), "22".repeat(20));
    let report = read(&format!("{}\n{}", message(&first), message(&second)));
    let ids: Vec<_> = report
        .modules
        .iter()
        .map(|module| module.code_id.clone())
        .collect();
    assert_eq!(ids, [first.clone(), second].map(|id| Some(CodeId::new(id))));
    let package = format!(r#"{{\"elfType\":\"coredump\",\"app\":{{\"buildId\":\"{first}\"}}}}"#);
    let entry = format!(
        r##"{{"MESSAGE": "Stack trace of thread 1:\n#0  0x0000000000001010 \u00fcber\t (app + 0x10)\n", "COREDUMP_PACKAGE_JSON": "{package}"}}"##
    );
    let report = read(&entry);
    assert_eq!(report.format, ReportFormat::Journal);
    assert_eq!(report.modules[0].code_id, Some(CodeId::new(first)));
}

#[test]
fn maps_in_the_text_say_where_modules_are() {
    for (name, module) in [
        ("gdb.txt", "/build/app/fault"),
        ("rust.txt", "/build/app/panic"),
    ] {
        let report = CrashReport::read(fixture(name)).unwrap();
        let found = report.modules.iter().find(|it| it.name == module).unwrap();
        assert!(
            found.base.unwrap() >= 0x5555_5555_4000 && found.size.unwrap() < 0x10_0000,
            "{name}"
        );
        let located = report.stacks[0]
            .frames
            .iter()
            .filter(|it| report.located(it).is_some());
        assert!(located.count() > 3, "{name}");
        assert!(!report.lacks().contains(&Lack::Modules), "{name}");
    }
    let text = std::str::from_utf8(fixture("rust.txt")).unwrap();
    let (_, without) = text.split_once("stack backtrace:").unwrap();
    let mut report = read(without);
    assert_eq!(report.lacks(), [Lack::Modules]);
    let given = |name: &str, base| GivenModule {
        name: name.to_owned(),
        code_id: Some(CodeId::new("11".repeat(20))),
        base: Some(base),
        ..GivenModule::default()
    };
    assert!(report.complete(&given("panic", 0x5555_5555_4000)));
    assert!(report.complete(&given("libstd.so", 0x7fff_0000_0000)));
    assert_eq!(report.lacks(), []);
    let frames = &report.stacks[0].frames;
    let module = |address: u64| {
        let frame = frames
            .iter()
            .find(|it| it.address.is_some_and(|it| it >= address))
            .unwrap();
        report.modules[report.located(frame).unwrap().0]
            .name
            .clone()
    };
    assert_eq!(module(0x7fff_0000_0000), "libstd.so");
    // The mark of the end is no frame.
    assert_eq!(frames.last().unwrap().address, Some(0x5555_5555_6361));
}

#[test]
fn what_is_given_fills_gaps_and_changes_nothing_else() {
    let mut report = CrashReport::read(fixture("glibc-fault.txt")).unwrap();
    let lacks = |name: &str| Lack::Id {
        module: name.to_owned(),
        object_type: ObjectType::Elf,
    };
    assert_eq!(
        report.lacks(),
        [lacks("./fault"), lacks("/lib/x86_64-linux-gnu/libc.so.6")]
    );
    let id = |id: &str| Some(CodeId::new(id.repeat(20)));
    let given = |name: &str, code_id, base| GivenModule {
        name: name.to_owned(),
        code_id,
        base,
        ..GivenModule::default()
    };
    assert!(report.complete(&given("fault", id("11"), None)));
    assert!(!report.complete(&given("./fault", id("22"), None)));
    assert_eq!(report.modules[0].code_id, id("11"));
    assert_eq!(report.modules[0].base, Some(0x5555_5555_4000));
    // A path is that of another file.
    assert_eq!(report.modules.len(), 2);
    assert!(report.complete(&given("/usr/lib/libc.so.6", id("33"), Some(1))));
    assert_eq!(
        (report.modules.len(), report.modules[1].code_id.clone()),
        (3, None)
    );
}

#[test]
fn names_replace_what_the_format_has_in_their_place() {
    let check = |text: &str, expected: &str| {
        assert_eq!(rewritten(text, &[("f", Some(3))]), expected);
    };
    check(
        "x\n    #1 0x1027d8  (/srv/app+0x27d8) (BuildId: 60a0)\ny",
        "x\n    #1 0x1027d8 in f /src/a.c:3 (/srv/app+0x27d8) (BuildId: 60a0)\ny",
    );
    check(
        "#1 0x1027d8 in g(int) (/srv/my (x86)/app+0x27d8)",
        "#1 0x1027d8 in f /src/a.c:3 (/srv/my (x86)/app+0x27d8)",
    );
    check(
        "    #0 <null> <null> (tsan+0x12) (BuildId: 60a0)\r\n",
        "    #0 f /src/a.c:3 (tsan+0x12) (BuildId: 60a0)\r\n",
    );
    check(
        "  #01 pc 00000000000004b1  /a/base.apk!libx.so (offset 0x1000) (g+4) (BuildId: 60a0)",
        "  #01 pc 00000000000004b1  /a/base.apk!libx.so (offset 0x1000) (f /src/a.c:3) (BuildId: 60a0)",
    );
    check(
        "  #01 pc 000004b1  /a/libx.so\n",
        "  #01 pc 000004b1  /a/libx.so (f /src/a.c:3)\n",
    );
    check(
        "#0  0x0000000000001010 n/a (app + 0x10)",
        "#0  0x0000000000001010 f at /src/a.c:3 (app + 0x10)",
    );
    check("./app(+0x10)[0x1010]", "./app(f at /src/a.c:3)[0x1010]");
    check("./app() [0x401010]", "./app(f at /src/a.c:3) [0x401010]");
    check("./app[0x401010]", "./app(f at /src/a.c:3)[0x401010]");
    check(
        "   3:     0x1010 - <unknown>\n   4:     0x1020 - named\n             at a.rs:1\n",
        "   3:     0x1010 - f\n                               at /src/a.c:3\n   4:     0x1020 - named\n             at a.rs:1\n",
    );
    check(
        "#1  0x0000000000001010 in ?? () from /lib/a.so\n#2  0x1020 in g () at b.c:1",
        "#1  0x0000000000001010 in f () at /src/a.c:3\n#2  0x1020 in g () at b.c:1",
    );
    check(
        "C  [liba.so+0x10]  g+0x4",
        "C  [liba.so+0x10]  f at /src/a.c:3",
    );
    check(
        "{{{pc:0x1010}}} or {{{bt:0:0x1010}}}",
        "f at /src/a.c:3 or f at /src/a.c:3",
    );
    check(
        r##"{"MESSAGE": "\u0022\n#0  0x0000000000001010 n/a (app + 0x10)\n\"", "a": 1}"##,
        r##"{"MESSAGE": "\u0022\n#0  0x0000000000001010 f at /src/a.c:3 (app + 0x10)\n\"", "a": 1}"##,
    );
}

#[test]
fn the_frames_of_a_request_may_be_sent_caller_first() {
    let body =
        br#"{"stacktraces": [{"frames": [{"instruction_addr": 1}, {"instruction_addr": 2}]}],
        "options": {"frame_order": "caller_first"}}"#;
    let report = CrashReport::read(body).unwrap();
    let mut completed = answered(&report, &[("callee", None)]);
    completed.stacktraces[0].frames.truncate(1);
    let names = report.names(&completed);
    assert!(names[0][0].is_empty() && names[0][1][0].function == "callee");
}

#[test]
fn a_module_has_its_path_and_nothing_else() {
    let name = |text: &str| read(text).modules[0].name.clone();
    assert_eq!(
        name("#0 0x104 in f+0x20 (/srv/app:arm64+0x100)"),
        "/srv/app"
    );
    assert_eq!(
        name("#0  0x0000000000001010 n/a (/srv/app (deleted) + 0x10)"),
        "/srv/app"
    );
    assert_eq!(
        name("#00 pc 0x0000101  /a/base.apk!libx.so (offset 0x1)"),
        "/a/base.apk!libx.so"
    );
    assert_eq!(name("2026 app: ./app(+0x10) [0x1010]"), "./app");
}

#[test]
fn markup_has_the_module_that_is_mapped_at_an_address() {
    let report = read(
        "{{{module:0:a:elf:1111111111111111}}}{{{module:1:b:elf:2222222222222222}}}\n\
         {{{mmap:0x1000:0x1000:load:0:rx:0x0}}}{{{mmap:0x3000:0x1000:load:1:rx:0x1000}}}\n\
         {{{bt:0:0x1010}}}{{{bt:1:0x3010:pc}}}{{{bt:2:0x2010}}}{{{pc:0x4000}}}\n\
         {{{bt:3:0x1010:ra}}}{{{pc:0x1010:ra}}}{{{pc:0x1010:pc}}}\n\
         {{{reset}}}{{{bt:0:0x1010}}}\n",
    );
    let frames = report.stacks.iter().flat_map(|stack| &stack.frames);
    let located: Vec<_> = frames
        .map(|it| (report.located(it), it.is_return))
        .collect();
    assert_eq!(
        located,
        [
            (Some((0, 0x10)), true),
            (Some((1, 0x1010)), false),
            (None, true),
            (None, false),
            (Some((0, 0x10)), true),
            (Some((0, 0x10)), true),
            (Some((0, 0x10)), false),
            (None, true),
        ]
    );
}

#[test]
fn frames_of_a_sanitizer_with_lines_are_not_those_of_gdb() {
    let report = read(
        "#0 0x1010 in f(int, char (*)[3]) /src/a.cc:3\n#1 0x1020 in g(char (*)[3]) /src/a.cc:4\n#2 0x1030  (/srv/app+0x30)\n",
    );
    assert_eq!(report.format, ReportFormat::Sanitizer);
}

#[test]
fn a_frame_that_has_file_and_line_stays_as_it_is() {
    for text in [
        "#0 f race.c:4:9 (tsan+0x12) (BuildId: 60a0285889bf05c4)",
        "#2  0x1020 in g () at b.c:1",
        "   4:     0x1020 - named\n             at a.rs:1\n",
    ] {
        assert_eq!(rewritten(text, &[("other", Some(1))]), text);
    }
}

#[test]
fn a_line_is_repeated_for_each_inlined_function() {
    let functions = [("in\"ner", Some(3)), ("outer", None)];
    assert_eq!(
        rewritten("a\n  #0 0x1010  (/app+0x10)\nb", &functions),
        "a\n  #0 0x1010 in in\"ner /src/a.c:3 (/app+0x10)\n  #0 0x1010 in outer (/app+0x10)\nb",
    );
    assert_eq!(
        rewritten(
            r##"{"MESSAGE": "#0  0x0000000000001010 n/a (app + 0x10)\n"}"##,
            &functions
        ),
        r##"{"MESSAGE": "#0  0x0000000000001010 in\"ner at /src/a.c:3 (app + 0x10)\n#0  0x0000000000001010 outer (app + 0x10)\n"}"##,
    );
    assert_eq!(
        rewritten("a\r\n  #0 0x1010  (/app+0x10)\r\nb", &functions),
        "a\r\n  #0 0x1010 in in\"ner /src/a.c:3 (/app+0x10)\r\n  #0 0x1010 in outer (/app+0x10)\r\nb",
    );
    assert_eq!(
        rewritten("a\r\n  #0 0x1010  (/app+0x10)", &functions),
        "a\r\n  #0 0x1010 in in\"ner /src/a.c:3 (/app+0x10)\r\n  #0 0x1010 in outer (/app+0x10)",
    );
    assert_eq!(
        rewritten(
            r##"{"MESSAGE": "#0  0x0000000000001010 n/a (app + 0x10)\r\n"}"##,
            &functions
        ),
        r##"{"MESSAGE": "#0  0x0000000000001010 in\"ner at /src/a.c:3 (app + 0x10)\r\n#0  0x0000000000001010 outer (app + 0x10)\r\n"}"##,
    );
    assert_eq!(
        rewritten("   3:     0x1010 - <unknown>\r\n", &functions),
        "   3:     0x1010 - in\"ner\r\n                               at /src/a.c:3\r\n   3:     0x1010 - outer\r\n",
    );
    // Two frames in a line leave it one line.
    assert_eq!(
        rewritten("{{{pc:0x1010}}} {{{pc:0x1010}}}", &functions),
        "in\"ner at /src/a.c:3, inlined in outer in\"ner at /src/a.c:3, inlined in outer",
    );
}

#[test]
fn a_report_over_a_limit_is_refused_with_the_limit() {
    let frame = "#0 0x1010  (/app+0x10)\n";
    let error = CrashReport::read(frame.repeat(crate::api::limits::STACKTRACES + 1).as_bytes());
    let message = error.unwrap_err().to_string();
    assert!(message.contains("16384 stack traces"), "{message}");
    let modules =
        (0..=crate::api::limits::MODULES).map(|it| format!("#{it} 0x1010  (/app{it}+0x10)\n"));
    let error = CrashReport::read(modules.collect::<String>().as_bytes());
    assert!(error.unwrap_err().to_string().contains("16384 modules"));
}

/// Lines of further formats, and of what may be wrapped around reports.
const FURTHER: &[u8] = b"\
 #0 0x000055ce027741c1 trace() (/srv/app+0x11c1)
 #1 0x00007f853161e050 (/lib/libc.so.6+0x3c050)
 #2 0x000055ce027741e2 onsig(int) /src/a.cc:7:3
#0 0x55555ac855f9 base::debug::CollectStackTrace()
Stack dump without symbol names
1  libLLVM.so.19.1      0x00007f9c4e1fd210
    #1 0x556d23d25058 in f(int) /src/crash.cc:15:5
    #2 0x000000000000  (<unknown module>)
#5  <signal handler called>
#6  \x1b[33mmid\x1b[m (p=0x0) at \x1b[32mgs.c\x1b[m:4
[0x40166d]
   0# trace() at /src/crash.cc:8 [0x55ce027741c1]
#02 pc 00012345  /memfd:jit-cache (deleted) (com.x.Foo.bar+100)
C  0x00007f1234567890
{\"log\":\"./app(+0x10)\\u001b[m [0x1010]\\n\",\"stream\":\"stderr\"}
{\"MESSAGE\": [35, 49, 32, 32, 48, 120, 49, 32, 105, 110, 32, 102, 32, 40, 41, 10]}
";

/// Lines like those of reports, and pieces of them.
fn any_line() -> impl Strategy<Value = Vec<u8>> {
    let reports = REPORTS.iter().map(|(_, bytes, _)| *bytes);
    let reports: Vec<&[u8]> = reports.chain([FURTHER]).collect();
    any_line_of(&reports)
}

/// Lines like those of these reports, and pieces of them.
fn any_line_of(reports: &[&[u8]]) -> impl Strategy<Value = Vec<u8>> + use<> {
    let lines = reports
        .iter()
        .flat_map(|bytes| bytes.split(|byte| *byte == b'\n'));
    let lines: Vec<Vec<u8>> = lines.map(<[u8]>::to_vec).collect();
    let line = prop::sample::select(lines);
    let edited = (line.clone(), any::<prop::sample::Index>(), any::<u8>()).prop_map(
        |(mut line, index, byte)| {
            if !line.is_empty() {
                let at = index.index(line.len());
                line[at] = byte;
            }
            line
        },
    );
    let joined = (line.clone(), line.clone()).prop_map(|(first, second)| [first, second].concat());
    prop_oneof![4 => line, 2 => edited, 1 => joined, 1 => any::<Vec<u8>>()]
}

#[test]
fn the_fixtures_and_the_seeds_of_fuzzing_are_reports_of_apple() {
    let [text, json] = APPLE_FRAMES;
    for bytes in [APPLE_TEXT, APPLE_JSON, text, json] {
        assert_eq!(CrashFileKind::of(bytes), Some(CrashFileKind::Apple));
        assert!(CrashReport::of_apple(bytes).is_ok());
        hostile::report(bytes);
    }
    // The two formats say the same.
    let [text, json] = APPLE_FRAMES.map(|bytes| CrashReport::of_apple(bytes).unwrap());
    let addresses = |report: &CrashReport| -> Vec<u64> {
        frames(report)
            .into_iter()
            .map(|(address, _)| address)
            .collect()
    };
    assert!(addresses(&text).len() > 20);
    assert_eq!(addresses(&text), addresses(&json));
}

proptest! {
    #[test]
    fn a_report_with_nothing_found_is_the_input(lines in prop::collection::vec(any_line(), 0..30)) {
        let bytes = lines.join(&b'\n');
        if let Ok(report) = CrashReport::read(&bytes) {
            prop_assert!(report.text(&bytes, &Completed::default()) == bytes);
            prop_assert_eq!(report.request().stacktraces.len(), report.stacks.len());
            hostile::report(&bytes);
        }
    }

    #[test]
    fn an_apple_report_with_nothing_found_is_the_input(
        lines in prop::collection::vec(any_line_of(&[APPLE_TEXT]), 0..40),
    ) {
        let bytes = [&lines.join(&b'\n')[..], b"\nBinary Images:\n"].concat();
        hostile::report(&bytes);
        if let Ok(report) = CrashReport::of_apple(&bytes) {
            prop_assert!(report.text(&bytes, &Completed::default()) == bytes);
        }
    }

    #[test]
    fn an_address_is_looked_up_in_the_module_that_the_text_names(
        base in (1..0x7fff_u64).prop_map(|page| page << 12),
        offset in 1..0x0fff_ffff_u64,
    ) {
        let text = format!("#3 {:#x}  (/srv/app+{offset:#x}) (BuildId: 60a0285889bf05c4)\n", base + offset);
        let report = CrashReport::read(text.as_bytes()).unwrap();
        prop_assert_eq!(report.modules[0].base, Some(base));
        prop_assert_eq!(report.located(&report.stacks[0].frames[0]), Some((0, offset)));
    }
}

#[test]
fn a_load_address_that_is_given_counts_more_than_that_of_the_report() {
    let text = "#0  0x3010 in f ()\n2000-4000 r--p 00000000 fe:00 1 /srv/app\n";
    let mut report = read(text);
    let place = |report: &CrashReport| (report.modules[0].base, report.modules[0].size);
    assert_eq!(place(&report), (Some(0x2000), Some(0x2000)));
    let given = GivenModule {
        name: "app".to_owned(),
        base: Some(0x1000),
        ..GivenModule::default()
    };
    assert!(report.complete(&given));
    assert_eq!(place(&report), (Some(0x1000), Some(0x3000)));
}
