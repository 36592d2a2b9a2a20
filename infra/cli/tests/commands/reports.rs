//! Reports whose frames need care, and texts that are none.

use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::service::Service;
use crate::{Ended, incomplete, run_with};

const ID: &str = "60a0285889bf05c4a3384b2e8733386b47c5d71d";

/// Symbolicates a report without the files of this machine.
fn symbolicate(report: &[u8], service: &Service, arguments: &[&str]) -> Ended {
    let url = service.url();
    let all = ["symbolicate", "-", "--no-local", "--url", &url];
    run_with(report, &[&all[..], arguments].concat())
}

/// A service that left out the third frame of a minidump, and names the others.
fn service_that_left_out_a_frame() -> Service {
    let minidump = || async {
        let frame = |index: usize| {
            json!({
                "status": "symbolicated", "original_index": index,
                "instruction_addr": format!("{:#x}", 0x1000 + index),
                "function": format!("f{index}"),
            })
        };
        let frames = [0, 1, 3, 4].map(frame);
        let completed =
            json!({"status": "completed", "modules": [], "stacktraces": [{"frames": frames}]});
        Json(completed)
    };
    Service::with(Router::new().route("/minidump", post(minidump)))
}

#[test]
fn each_frame_of_a_minidump_has_its_number_and_its_name_although_others_were_left_out() {
    let service = service_that_left_out_a_frame();
    let ended = symbolicate(b"MDMP", &service, &[]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.out);
    for index in [0, 1, 3, 4] {
        let line = format!("  #{index}  0x000000000000100{index}  f{index}\n");
        assert!(ended.out.contains(&line), "{line}{}", ended.out);
    }
    let ended = symbolicate(b"MDMP", &service, &["--format", "markdown"]);
    let line = "| 3 | 0x0000000000001003 | f3 |  |\n";
    assert!(ended.out.contains(line), "{}", ended.out);
    let ended = symbolicate(b"MDMP", &service, &["--json"]);
    let printed: Value = serde_json::from_str(&ended.out).unwrap();
    let frame = &printed["stacktraces"][0]["frames"][2];
    assert_eq!(
        (&frame["number"], &frame["address"]),
        (&json!(3), &json!("0x1003"))
    );
    assert_eq!(frame["names"][0]["function"], "f3");
    assert_eq!(frame["status"], "symbolicated");
}

/// A backtrace in which `outer` is inlined into the frame before it, and `other` is not.
const GDB: &str = "\
#0  top (a=1) at /src/top.c:2
#1  0x0000555555555210 in inner (a=1) at /src/app.c:7
#2  outer (a=1) at /src/app.c:9
#3  other (a=1) at /src/app.c:11
555555554000-555555556000 r-xp 00000000 fe:00 1 /srv/app
";

#[test]
fn functions_that_gdb_names_are_shown_once() {
    let module = format!("app={ID}");
    let arguments = ["--module", &module];
    let ended = symbolicate(GDB.as_bytes(), &Service::new(), &arguments);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.out);
    let expected = "\
gdb backtrace · 3 frames · 0 without a name · 1 module, 0 without symbols

  #0                      top  /src/top.c:2  from the report
  #1  0x0000555555555210  inner  /src/app.c:7  inlined
                          outer  /src/app.c:9
  #3                      other  /src/app.c:11  from the report

modules
  /srv/app  found
";
    assert_eq!(ended.out, expected);
    let json = [&arguments[..], &["--json"]].concat();
    let ended = symbolicate(GDB.as_bytes(), &Service::new(), &json);
    let printed: Value = serde_json::from_str(&ended.out).unwrap();
    let frames = printed["stacktraces"][0]["frames"].as_array().unwrap();
    let numbers: Vec<u64> = frames
        .iter()
        .map(|it| it["number"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, [0, 1, 3]);
    let reported = json!({"function": "other", "path": "/src/app.c", "line": 11});
    assert_eq!(
        (&frames[2]["reported"], &frames[2]["status"]),
        (&reported, &Value::Null)
    );
}

/// What gdb prints for a core dump: the frame that failed, and then the stack trace.
const CORE: &str = "\
Program terminated with signal SIGSEGV, Segmentation fault.
#0  0x0000555555555182 in ?? ()
[Current thread is 1 (Thread 0x7ffff7dd1740 (LWP 30241))]
#0  0x0000555555555182 in ?? ()
#1  0x00005555555551c4 in main () at /src/app.c:5
";

#[test]
fn the_frame_that_gdb_prints_for_a_core_dump_is_shown_once() {
    let service = Service::new();
    let ended = symbolicate(CORE.as_bytes(), &service, &[]);
    let heading = "gdb backtrace · 2 frames · 1 without a name · ";
    assert!(ended.out.starts_with(heading), "{}", ended.out);
    assert_eq!(ended.out.matches("  #0  ").count(), 1, "{}", ended.out);
    let ended = symbolicate(CORE.as_bytes(), &service, &["--format", "markdown"]);
    assert_eq!(ended.out.matches("| # |").count(), 1, "{}", ended.out);
    let ended = symbolicate(CORE.as_bytes(), &service, &["--json"]);
    let printed: Value = serde_json::from_str(&ended.out).unwrap();
    let stacks = printed["stacktraces"].as_array().unwrap();
    assert_eq!(stacks.len(), 1);
    assert_eq!(stacks[0]["frames"].as_array().unwrap().len(), 2);
    // In the text, both lines get the name.
    let maps = "555555554000-555555556000 r-xp 00000000 fe:00 1 /srv/app\n";
    let module = format!("app={ID}");
    let arguments = ["--format", "text", "--module", &module];
    let ended = symbolicate(format!("{CORE}{maps}").as_bytes(), &service, &arguments);
    let line = "#0  0x0000555555555182 in inner () at /src/app.c:7\n";
    assert_eq!(ended.out.matches(line).count(), 2, "{}", ended.out);
}

#[test]
fn there_is_no_advice_about_a_module_of_which_the_report_names_all_frames() {
    let gdb = "#0  0x0000555555555210 in ?? ()\n\
               #1  0x00007ffff7001010 in g () at /src/b.c:3\n\
               555555554000-555555556000 r-xp 00000000 fe:00 1 /srv/app\n\
               7ffff7000000-7ffff7002000 r-xp 00000000 fe:00 1 /srv/b.so\n";
    let (app, library) = (format!("app={ID}"), format!("b.so={ID}"));
    let arguments = ["--module", &app, "--module", &library];
    let ended = symbolicate(gdb.as_bytes(), &Service::new(), &arguments);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.out);
    let heading = "gdb backtrace · 2 frames · 0 without a name · 1 module, 0 without symbols\n";
    assert!(ended.out.starts_with(heading), "{}", ended.out);
    let line = "g  /src/b.c:3  from the report\n";
    assert!(ended.out.contains(line), "{}", ended.out);
    assert!(
        ended.out.ends_with("\nmodules\n  /srv/app  found\n"),
        "{}",
        ended.out
    );
}

#[test]
fn a_program_that_may_not_be_position_independent_is_named_until_its_load_address_is_given() {
    let tsan = "WARNING: ThreadSanitizer: data race (pid=1)\n\
                \x20   #0 <null> <null> (race+0x4011ac)\n";
    let service = Service::new();
    let id = format!("race={ID}");
    let ended = symbolicate(tsan.as_bytes(), &service, &["--module", &id]);
    assert_eq!(ended.code, 0, "{}", ended.out);
    let note = "add --module race=BUILD-ID@ADDRESS";
    assert!(ended.err.contains(note), "{}", ended.err);
    let with_base = format!("{id}@0x400000");
    let arguments = ["--json", "--module", &with_base];
    let ended = symbolicate(tsan.as_bytes(), &service, &arguments);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.out);
    let printed: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(printed["stacktraces"][0]["frames"][0]["offset"], "0x11ac");
}

#[test]
fn a_report_with_all_its_names_says_so() {
    let report = "#0 0x556d23d25058 in f(int) /src/a.cc:15:5\n\
                  #1 0x556d23d250ff in main /src/a.cc:37:82\n";
    let ended = symbolicate(report.as_bytes(), &Service::new(), &[]);
    assert_eq!(ended.code, 0, "{}", ended.out);
    assert!(
        ended.err.contains("have their names already"),
        "{}",
        ended.err
    );
    let line = "  #1  0x0000556d23d250ff  main  /src/a.cc:37  from the report\n";
    assert!(ended.out.contains(line), "{}", ended.out);
}

#[test]
fn a_report_is_whole_if_only_frames_that_it_names_itself_cannot_be_looked_up() {
    let gdb = "#0  f (a=1) at /src/a.c:2\n\
               #1  0x0000555555555210 in main () at /src/a.c:3\n";
    let ended = symbolicate(gdb.as_bytes(), &Service::new(), &[]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.out);
    let heading = "gdb backtrace · 2 frames · 0 without a name · ";
    assert!(ended.out.starts_with(heading), "{}", ended.out);
    assert!(!ended.out.contains("absolute addresses"), "{}", ended.out);
}

#[test]
fn the_mark_at_the_end_of_a_backtrace_of_rust_needs_no_name() {
    let rust = "  17:     0x555555554100 - <unknown>\n\
                \x20 18:                0x0 - <unknown>\n\
                555555554000-555555556000 r-xp 00000000 fe:00 1 /srv/app\n";
    let module = format!("app={ID}");
    let ended = symbolicate(rust.as_bytes(), &Service::new(), &["--module", &module]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.out);
    let heading = "Rust backtrace · 1 frame · 0 without a name · ";
    assert!(ended.out.starts_with(heading), "{}", ended.out);
}

#[test]
fn what_lacks_names_in_a_text_or_a_table_is_said_on_standard_error() {
    let service = Service::new();
    for format in ["text", "markdown"] {
        let report = incomplete();
        let ended = symbolicate(report.as_bytes(), &service, &["--format", format]);
        let said: Vec<&str> = ended.err.lines().collect();
        let summary = "1 frame without a name; without symbols: /lib/libc.so.6";
        assert_eq!((ended.code, said[0]), (3, summary), "{format}");
        assert!(said[1].starts_with("`--fix FOLDER` uploads"), "{format}");
        assert_eq!(said.len(), 2, "{format}: {}", ended.err);
    }
}

#[test]
fn frames_in_another_format_are_named_with_their_number() {
    let glibc = "/srv/app(+0x121b) [0x55555555521b]\n";
    let rust = "   0:     0x5555555921ca - <unknown>\n   1:     0x5555555a25ea - f\n";
    let text = format!("{}\n{rust}", glibc.repeat(3));
    let module = format!("app={ID}");
    let ended = symbolicate(text.as_bytes(), &Service::new(), &["--module", &module]);
    assert_eq!(ended.code, 0, "{}", ended.out);
    let note = "the text also has 2 frames of another format, which were not read (Rust backtrace)";
    assert!(ended.err.contains(note), "{}", ended.err);
}

#[test]
fn logs_in_json_and_in_utf_16_are_read() {
    let service = Service::new();
    let frame = "    #0 0x5555000027ca  (/srv/app+0x27ca) (BuildId: 60a0285889bf05c4)";
    let log = format!("{{\"log\":\"{frame}\\n\"}}\n{{\"log\":\"\"}}\n");
    let ended = symbolicate(log.as_bytes(), &service, &["--format", "text"]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.out);
    for name in ["inner /src/app.c:7", "outer /src/app.c:9"] {
        assert!(ended.out.contains(name), "{name}: {}", ended.out);
    }
    let mut lines = ended.out.lines().map(serde_json::from_str::<Value>);
    assert!(lines.all(|line| line.is_ok()), "{}", ended.out);
    let units = frame.encode_utf16().flat_map(u16::to_le_bytes);
    let wide: Vec<u8> = [0xff, 0xfe].into_iter().chain(units).collect();
    let ended = symbolicate(&wide, &service, &["--format", "text"]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.out);
    assert!(
        ended.out.contains("outer /src/app.c:9 (/srv/app"),
        "{}",
        ended.out
    );
}

#[test]
fn what_is_no_text_in_utf_8_is_named_with_how_to_make_one_of_it() {
    let service = Service::new();
    for (file, expected) in [
        (&b"\x1f\x8b\x08"[..], "`zcat FILE |"),
        (b"\x28\xb5\x2f\xfd", "`zstdcat FILE |"),
        (b"\xfd7zXZ", "`xzcat FILE |"),
        (b"PK\x03\x04", "`unzip -p FILE |"),
        (b"h\0e\0", "iconv -f UTF-16LE"),
        (b"\0h\0e", "iconv -f UTF-16BE"),
        (b"", "it is empty"),
    ] {
        let ended = symbolicate(file, &service, &[]);
        assert_eq!(ended.code, 1, "{}", ended.out);
        assert!(ended.err.contains(expected), "{expected}: {}", ended.err);
    }
}

#[test]
fn a_format_that_is_not_read_is_named_with_what_to_do_instead() {
    let service = Service::new();
    for (text, name, instead) in [
        (
            "* thread #1\n  * frame #0: 0x000055555555521b app`mid\n",
            "lldb",
            "image list",
        ),
        (
            "{\"event_id\": \"1\", \"modules\": {\"a\": \"1\"}}",
            "Sentry",
            "debug_meta",
        ),
    ] {
        let ended = symbolicate(text.as_bytes(), &service, &[]);
        assert_eq!(ended.code, 1, "{}", ended.out);
        for expected in [name, instead, "which this command does not read"] {
            assert!(ended.err.contains(expected), "{expected}: {}", ended.err);
        }
    }
}
