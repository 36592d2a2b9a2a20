//! The commands, as they are typed: what they print, and how they end.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails if a required value is absent"
)]

mod attempts;
mod checks;
mod crash_files;
mod doctor;
mod explained;
mod folders;
mod maps;
mod options;
mod redrive;
mod reports;
mod service;
mod settings;
mod terminal;
mod unreadable;
mod uploads;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;
use service::Service;

/// What a command printed, and how it ended.
struct Ended {
    code: i32,
    out: String,
    err: String,
}

/// Runs the program, with `input` as its standard input, in an empty folder.
fn run_with(input: &[u8], arguments: &[&str]) -> Ended {
    run_with_variables(input, arguments, &[])
}

/// The same with variables in its environment, which is empty otherwise.
fn run_with_variables(input: &[u8], arguments: &[&str], variables: &[(&str, &str)]) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_symdepot"))
        .args(arguments)
        .env_clear()
        .env("XDG_CONFIG_HOME", folder.path())
        .envs(variables.iter().copied())
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that reads no input may have ended already.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    let folder = folder.path().display().to_string();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().replace(&folder, "FOLDER");
    Ended {
        code: output.status.code().unwrap(),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

fn run(arguments: &[&str]) -> Ended {
    run_with(b"", arguments)
}

fn fixture(name: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join("tests/fixtures").join(name);
    path.canonicalize().unwrap().display().to_string()
}

/// Returns a debug file of a program without a build id: the section with the code has no bytes, of
/// which a debug id could be computed.
fn debug_file_without_id() -> Vec<u8> {
    const SHT_NOBITS: u32 = 8;
    const TEXT: usize = 5;
    let mut file = std::fs::read(fixture("elf/no-build-id.so")).unwrap();
    let sections = u64::from_le_bytes(file[40..48].try_into().unwrap());
    let type_at = usize::try_from(sections).unwrap() + 64 * TEXT + 4;
    file[type_at..type_at + 4].copy_from_slice(&SHT_NOBITS.to_le_bytes());
    file
}

/// A service of a version that reads no crash files.
fn older_service() -> Service {
    let about = || async {
        let mut about = symdepot::api::about::ServiceInfo::of(1);
        about.version = "0.0.1".to_owned();
        about.features.clear();
        Json(json!(about))
    };
    Service::with(Router::new().route("/about", get(about)))
}

/// A service of a version that stores no crash files.
fn service_without_attachments() -> Service {
    let about = || async {
        let mut about = symdepot::api::about::ServiceInfo::of(4);
        about.features.retain(|feature| feature != "attachments");
        Json(json!(about))
    };
    Service::with(Router::new().route("/about", get(about)))
}

/// Returns bytes that cannot be compressed: a linear congruential sequence (Knuth, MMIX).
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let bytes = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    });
    bytes.take(length).collect()
}

/// A report of macOS 11, in which one function has no name.
const APPLE: &str = "\
Process:               Ledger [812]
OS Version:            macOS 11.6.1 (20G224)
Crashed Thread:        0

Exception Type:        EXC_CRASH (SIGABRT)

Thread 0 Crashed:
0   libsystem_kernel.dylib        \t0x0000000191000010 mach_msg_trap + 8
1   Ledger                        \t0x0000000100003f00 0x100000000 + 16128

Binary Images:
       0x100000000 -        0x100007fff +Ledger (3.2 - 77) <8A1F4E8C-52F0-3D0B-9C6A-0B4E29D1C1AA> /Applications/Ledger
";

/// A report with two frames in one module.
const REPORT: &str = "before\n    #0 0x5555000027ca  (/srv/app+0x27ca) (BuildId: 60a0285889bf05c4)\n    #1 0x5555000027d8  (/srv/app+0x27d8) (BuildId: 60a0285889bf05c4)\nafter\n";

/// The same with a third frame, in a module without symbols.
fn incomplete() -> String {
    REPORT.replace(
        "after",
        "    #2 0x7fff00001000 in main (/lib/libc.so.6+0x1000) (BuildId: 60a0285889bf05c5)\nafter",
    )
}

/// Returns the commands that `--help` lists.
fn commands_of(help: &str) -> Vec<&str> {
    let (_, list) = help.split_once("\nCommands:\n").unwrap();
    let list = list.lines().take_while(|line| !line.is_empty());
    let commands = list.filter_map(|line| line.split_whitespace().next());
    commands.filter(|command| *command != "help").collect()
}

#[test]
fn the_help_of_every_command_is_known() {
    let general = run(&["--help"]).out;
    let mut text = general.clone();
    for command in commands_of(&general) {
        let help = run(&[command, "--help"]);
        assert_eq!(help.code, 0, "{}", help.err);
        text.push_str(&format!("\n--- {command}\n\n{}", help.out));
    }
    insta::assert_snapshot!("help", text);
}

#[test]
fn the_text_of_a_report_has_names_and_is_otherwise_the_same() {
    let service = Service::new();
    let ended = run_with(
        REPORT.as_bytes(),
        &[
            "symbolicate",
            "-",
            "--format",
            "text",
            "--url",
            &service.url(),
        ],
    );
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    insta::assert_snapshot!("text", ended.out);
}

#[test]
fn colours_that_are_in_a_log_stay_in_its_text() {
    let service = Service::new();
    let report = format!("\u{1b}[31mfailed\u{1b}[0m\n{REPORT}");
    let arguments = [
        "symbolicate",
        "-",
        "--format",
        "text",
        "--url",
        &service.url(),
    ];
    let ended = run_with(report.as_bytes(), &arguments);
    assert!(
        ended.out.starts_with("\u{1b}[31mfailed\u{1b}[0m\nbefore\n"),
        "{}",
        ended.out
    );
}

#[test]
fn a_report_is_printed_in_every_format() {
    let service = Service::new();
    for format in ["human", "markdown", "json"] {
        let ended = run_with(
            incomplete().as_bytes(),
            &[
                "symbolicate",
                "-",
                "--format",
                format,
                "--url",
                &service.url(),
            ],
        );
        let is_advised = ended.err.contains("--fix");
        assert_eq!((ended.code, is_advised), (3, format != "json"), "{format}");
        insta::assert_snapshot!(format, ended.out);
    }
    let json = ["symbolicate", "-", "--json", "--url", &service.url()];
    let ended = run_with(incomplete().as_bytes(), &json);
    insta::assert_snapshot!("json", ended.out);
}

/// A service that stores its responses and answers with their place.
fn storing_service() -> Service {
    let elsewhere = |headers: HeaderMap| async move {
        let host = headers["host"].to_str().unwrap().to_owned();
        (
            StatusCode::SEE_OTHER,
            [("location", format!("http://{host}/stored"))],
        )
    };
    let stored = || async {
        let frame = json!({"status": "symbolicated", "original_index": 0,
            "instruction_addr": "0x1000", "function": "stored_elsewhere"});
        Json(json!({"status": "completed", "modules": [],
            "stacktraces": [{"frames": [frame]}]}))
    };
    Service::with(
        Router::new()
            .route("/symbolicate", post(elsewhere))
            .route("/stored", get(stored)),
    )
}

#[test]
fn a_response_that_the_service_stored_is_read_there() {
    let report =
        br#"{"modules": [], "stacktraces": [{"frames": [{"instruction_addr": "0x1000"}]}]}"#;
    let ended = run_with(
        report,
        &["symbolicate", "-", "--url", &storing_service().url()],
    );
    assert!(ended.out.contains("stored_elsewhere"), "{}", ended.err);
    assert_eq!(ended.code, 0);
}

#[test]
fn every_exit_code_has_its_reason() {
    let service = Service::new();
    let (older, other) = (older_service(), Service::with(Router::new()));
    let (url, older_url, other_url) = (service.url(), older.url(), other.url());
    let small = service_without_attachments();
    let small_url = small.url();
    let report = REPORT.as_bytes();
    let folder = fixture("elf");
    let mut table = String::new();
    let mut ended = |what: &str, input: &[u8], arguments: &[&str]| {
        let ended = run_with(input, arguments);
        let mut said = ended.err;
        for url in [&url, &older_url, &other_url, &small_url] {
            said = said.replace(url, "URL");
        }
        said = said.replace(&folder, "FIXTURES");
        table.push_str(&format!("{what}: {}\n{said}\n", ended.code));
    };
    ended(
        "all frames have names",
        report,
        &["symbolicate", "-", "--url", &url],
    );
    ended(
        "a frame has no name",
        incomplete().as_bytes(),
        &["symbolicate", "-", "--url", &url],
    );
    ended("no report", b"hello", &["symbolicate", "-", "--url", &url]);
    ended("a minidump", b"MDMP", &["symbolicate", "-", "--url", &url]);
    ended(
        "a minidump, pending, then complete",
        b"MDMP",
        &["symbolicate", "-", "--url", &url, "--scope", "soon"],
    );
    ended(
        "a minidump that the service cannot read",
        b"MDMP",
        &["symbolicate", "-", "--url", &url, "--scope", "broken"],
    );
    ended(
        "a minidump, and an older service",
        b"MDMP",
        &["symbolicate", "-", "--url", &older_url],
    );
    ended(
        "an Apple report, and an older service",
        APPLE.as_bytes(),
        &["symbolicate", "-", "--url", &older_url],
    );
    ended(
        "a minidump, and another service",
        b"MDMP",
        &["symbolicate", "-", "--url", &other_url],
    );
    let noise: Vec<u8> = [b"MDMP".to_vec(), noise(7 << 20)].concat();
    ended(
        "a minidump that is too large for a service without attachments",
        &noise,
        &["symbolicate", "-", "--url", &small_url],
    );
    ended(
        "an Apple report without threads",
        b"Binary Images:\n",
        &["symbolicate", "-", "--url", &url],
    );
    ended(
        "a request that is wrong",
        b"{\"stacktraces\": 1}",
        &["symbolicate", "-", "--url", &url],
    );
    ended(
        "no such file",
        b"",
        &["symbolicate", "absent", "--url", &url],
    );
    ended("no service", report, &["symbolicate", "-"]);
    ended(
        "a wrong address",
        report,
        &["symbolicate", "-", "--url", "symdepot"],
    );
    ended(
        "still pending",
        report,
        &[
            "symbolicate",
            "-",
            "--url",
            &url,
            "--scope",
            "slow",
            "--wait",
            "0",
        ],
    );
    ended(
        "pending, then complete",
        report,
        &["symbolicate", "-", "--url", &url, "--scope", "soon"],
    );
    ended(
        "still pending, as JSON",
        report,
        &[
            "symbolicate",
            "-",
            "--json",
            "--url",
            &url,
            "--scope",
            "slow",
            "--wait",
            "0",
        ],
    );
    ended(
        "an upload that is unknown",
        b"",
        &["explain", "global/a", "--url", &url],
    );
    ended(
        "an upload without a scope",
        b"",
        &["explain", "nope", "--url", &url],
    );
    ended(
        "a wrong module",
        report,
        &["symbolicate", "-", "--module", "app"],
    );
    let (whole, stripped) = (fixture("elf/crash.debug"), fixture("elf/crash"));
    let known = "ac456ebc7f4825f4367208b89f51ad481774aae7";
    let report = incomplete().replace("60a0285889bf05c5", known);
    ended(
        "--fix with a service that takes no uploads",
        report.as_bytes(),
        &["symbolicate", "-", "--fix", &folder, "--url", &url],
    );
    ended(
        "an upload to a service that takes none",
        b"",
        &["upload", &whole, "--url", &url],
    );
    ended("an upload of nothing", b"", &["upload", "--url", &url]);
    ended("an upload without a service", b"", &["upload", &whole]);
    ended("a file without problems", b"", &["check", &whole]);
    ended("a file with problems", b"", &["check", &stripped]);
    ended("no file to check", b"", &["check", "absent"]);
    ended(
        "a requirement that does not exist",
        b"",
        &["check", &whole, "--require", "names"],
    );
    let unknown = "0123456789abcdef0123";
    ended("a file that is found", b"", &["find", known, &whole]);
    ended("a file that is not found", b"", &["find", unknown, &whole]);
    ended("nothing to find", b"", &["find", &whole]);
    ended("a demo without a service", b"", &["demo"]);
    ended("no queue of dead letters", b"", &["redrive"]);
    ended("a command that does not exist", b"", &["symbolise"]);
    insta::assert_snapshot!("exit_codes", table);
}

#[test]
fn a_report_that_is_pending_is_json_if_json_was_wanted() {
    let service = Service::new();
    let url = service.url();
    let arguments = ["symbolicate", "-", "--scope", "slow", "--wait", "0"];
    let ended = |format: &str| {
        let all = [&arguments[..], &["--format", format, "--url", &url]].concat();
        let ended = run_with(REPORT.as_bytes(), &all);
        (ended.code, ended.out)
    };
    let pending = "{\n  \"schema\": 1,\n  \"status\": \"pending\"\n}\n";
    assert_eq!(ended("json"), (4, pending.to_owned()));
    assert_eq!(ended("human"), (4, String::new()));
    assert_eq!(ended("text"), (4, String::new()));
}

/// Symbolicates a crash file in each format, and expects this exit code.
fn in_every_format(file: &[u8], code: i32) -> String {
    let service = Service::new();
    let mut printed = String::new();
    for format in ["human", "text", "markdown", "json"] {
        let arguments = [
            "symbolicate",
            "-",
            "--format",
            format,
            "--url",
            &service.url(),
        ];
        let ended = run_with(file, &arguments);
        let is_summed_up = format == "markdown" && code != 0;
        assert_eq!(ended.code, code, "{format}");
        assert_eq!(
            !ended.err.is_empty(),
            is_summed_up,
            "{format}: {}",
            ended.err
        );
        printed.push_str(&format!("--- {format}\n{}\n", ended.out));
    }
    printed
}

#[test]
fn a_minidump_is_printed_in_every_format() {
    let printed = in_every_format(b"MDMP", 3);
    insta::assert_snapshot!("minidump", printed);
}

#[test]
fn an_apple_report_is_printed_with_the_addresses_and_names_that_it_has() {
    let printed = in_every_format(APPLE.as_bytes(), 0);
    insta::assert_snapshot!("apple", printed);
}

#[test]
fn what_a_report_lacks_is_given_by_arguments() {
    let service = Service::new();
    let report = b"./app[0x4011ef]\n./app[0x40123b]\n";
    let ended = run_with(report, &["symbolicate", "-", "--url", &service.url()]);
    assert_eq!(ended.code, 3);
    assert!(
        ended.out.contains("no load address of ./app"),
        "{}",
        ended.out
    );
    let id = "60a0285889bf05c4a3384b2e8733386b47c5d71d";
    let module = format!("app={id}@0x400000");
    let arguments = [
        "symbolicate",
        "-",
        "--module",
        &module,
        "--url",
        &service.url(),
    ];
    let ended = run_with(report, &arguments);
    assert_eq!(ended.code, 0, "{}", ended.out);
    assert!(ended.out.contains("outer"), "{}", ended.out);
    assert_eq!(ended.err, "");
    // What is of no use is named.
    let other = format!("other={id}");
    let with_other = [&arguments[..], &["--module", &other]].concat();
    let ended = run_with(report, &with_other);
    assert_eq!(ended.code, 0, "{}", ended.out);
    let note = "--module other: the report has this already, or no such module\n";
    assert_eq!(ended.err, note);
}

#[test]
fn ids_that_a_report_lacks_are_read_from_the_files_that_it_names() {
    let service = Service::new();
    let path = fixture("elf/crash");
    let report = format!("{path}(+0x1950)[0x555555555950]\n");
    let arguments = ["symbolicate", "-", "--url", &service.url()];
    let ended = run_with(report.as_bytes(), &arguments);
    assert_eq!(ended.code, 0, "{}", ended.out);
    assert!(ended.err.contains("took the build id"), "{}", ended.err);
    // Without position-independent code, the load address is lacking, too.
    let fixed = fixture("elf/inventory");
    let report = format!("{fixed}[0x2011ef]\n");
    let ended = run_with(report.as_bytes(), &arguments);
    for taken in ["build id", "load address 0x200000"] {
        let line = format!("took the {taken}");
        assert!(ended.err.contains(&line), "{line}: {}", ended.err);
    }
    assert_eq!(ended.code, 0, "{}", ended.out);
    let without = [&arguments[..], &["--no-local"]].concat();
    let ended = run_with(report.as_bytes(), &without);
    assert_eq!(ended.code, 3);
    assert!(ended.out.contains("no id of"), "{}", ended.out);
}

#[test]
fn find_prints_the_paths_of_the_files_with_an_id() {
    let folder = fixture("elf");
    let ended = run(&["find", "bc6e45ac-487f-f425-3672-08b89f51ad48", &folder]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    let paths: Vec<&str> = ended.out.lines().collect();
    let expected = [
        "crash",
        "crash.debug",
        "crash.zlib.debug",
        "crash.zstd.debug",
    ];
    assert_eq!(paths, expected.map(|name| format!("{folder}/{name}")));
    let ended = run(&["find", "0123456789abcdef0123", &folder]);
    assert_eq!((ended.code, ended.out.as_str()), (3, ""));
    assert!(
        ended.err.contains("not found: 0123456789abcdef0123"),
        "{}",
        ended.err
    );
    assert_eq!(run(&["find", &folder]).code, 2);
}

#[test]
fn lists_are_tables_or_json() {
    let service = Service::new();
    let mut text = String::new();
    for (command, code) in [
        (["rollout", ""], 0),
        (["wanted", ""], 0),
        (["explain", "502fc0a5-1ec1-3e47-9998-684fa139dca7"], 3),
        (["explain", "8f3a8f3a8f3a8f3a8f3a8f3a8f3a8f3a"], 0),
        (["explain", "global/app.debug"], 0),
    ] {
        for format in [None, Some("--json")] {
            let mut arguments = vec!["--url", ""];
            let url = service.url();
            arguments[1] = &url;
            arguments.extend(command.iter().filter(|argument| !argument.is_empty()));
            arguments.extend(format);
            let ended = run(&arguments);
            assert_eq!((ended.code, ended.err.as_str()), (code, ""));
            text.push_str(&format!("--- {}\n{}", arguments[2..].join(" "), ended.out));
        }
    }
    insta::assert_snapshot!("lists", text);
}

#[test]
fn completions_and_the_manual_page_are_printed() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ended = run(&["completions", shell]);
        assert_eq!(ended.code, 0, "{}", ended.err);
        assert!(ended.out.contains("symbolicate"), "{shell}");
        assert!(!ended.out.contains("\u{1b}"), "{shell}");
    }
    let ended = run(&["man"]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert!(ended.out.contains(".TH symdepot 1"));
    for command in commands_of(&run(&["--help"]).out) {
        let page = format!(".TH symdepot-{command} 1");
        assert!(ended.out.contains(&page), "{page}");
    }
    assert!(!ended.out.contains("inspect-file"));
}
