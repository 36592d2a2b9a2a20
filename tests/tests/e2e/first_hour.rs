//! The example of the README: from `gcc -g` to a symbolicated crash of the user's own program.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use symdepot_tests::stack::{Binaries, checkout, until};
use tempfile::TempDir;

use crate::explain::get;
use crate::{PATIENCE, Running};

const PROGRAM: &str = "int at(int *p) { return *p; }\nint main() { return at((int *)8); }\n";

/// Runs a program in a folder.
fn run(folder: &Path, command: &[&str]) -> Output {
    let output = Command::new(command[0])
        .args(&command[1..])
        .current_dir(folder)
        .env("OUT", "crash.json")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    output
}

/// Returns whether all programs that the example needs are installed.
fn is_possible() -> bool {
    let mut needed = ["gcc", "objcopy", "strip", "readelf", "gdb"].into_iter();
    let missing = needed.find(|program| {
        let there = Command::new(program).arg("--version").output();
        !there.is_ok_and(|output| output.status.success())
    });
    if let Some(program) = missing {
        println!("skipped: {program} is not installed");
    }
    missing.is_none()
}

/// Builds the stripped program and its debug file in a folder, as the README does.
fn build_crashing_program() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("app.c"), PROGRAM).unwrap();
    for command in [
        "gcc -g -Wl,--build-id app.c -o app",
        "objcopy --only-keep-debug app app.debug",
        "strip app",
    ] {
        run(folder.path(), &command.split(' ').collect::<Vec<_>>());
    }
    folder
}

/// Returns the request that the script of the README writes, with these commands of gdb before it,
/// and these files.
fn request_by_gdb(folder: &Path, commands: &[&str], files: &[&str]) -> Value {
    let script = checkout().join("docs/examples/crash_request.py");
    let (gdb, script) = (["gdb", "-q", "-batch"], ["-x", script.to_str().unwrap()]);
    run(folder, &[&gdb[..], commands, &script, files].concat());
    let request = std::fs::read(folder.join("crash.json")).unwrap();
    serde_json::from_slice(&request).unwrap()
}

fn names_and_lines(answer: &Value) -> Vec<(&str, u64)> {
    let frames = answer["stacktraces"][0]["frames"].as_array().unwrap();
    let own = frames
        .iter()
        .filter(|frame| frame["status"] == "symbolicated");
    let own = own.map(|frame| {
        let function = frame["function"].as_str().unwrap_or_default();
        (function, frame["lineno"].as_u64().unwrap_or_default())
    });
    own.collect()
}

#[tokio::test]
async fn a_crash_under_gdb_is_symbolicated_by_its_build_id_alone() {
    if !is_possible() {
        return;
    }
    let folder = build_crashing_program();
    let crash = request_by_gdb(folder.path(), &["-ex", "run"], &["./app"]);
    let notes = run(folder.path(), &["readelf", "-n", "app"]);
    let notes = String::from_utf8(notes.stdout).unwrap();
    let module = &crash["modules"][0];
    assert!(
        notes.contains(module["code_id"].as_str().unwrap()),
        "{notes}"
    );

    let running = Running::start().await;
    let client = running.client();
    let missing = client.completed("", &crash).await.unwrap();
    let detail = missing["modules"][0]["debug_detail"].as_str().unwrap();
    assert!(detail.contains("upload its debug file"), "{detail}");
    let debug_file = std::fs::read(folder.path().join("app.debug")).unwrap();
    running.upload("global/app++.debug", debug_file).await;
    // The negative result is cached for two seconds.
    let named = async || {
        let full = client.completed("", &crash).await.unwrap();
        let is_found = full["modules"][0]["debug_status"] == "found";
        is_found.then_some(full)
    };
    let full = until("names", PATIENCE, named).await.unwrap();
    let expected = [("at", 1), ("main", 2)];
    assert_eq!(names_and_lines(&full)[..2], expected, "{full:#}");
    assert_eq!(crash["signal"], json!(11));

    // As a user pastes it: the plus signs of the key are not percent-encoded.
    let pasted = get(&running, "/explain?key=global/app++.debug").await;
    let pasted = pasted.expect(200, "the upload").unwrap().body;
    assert_eq!(pasted["key"], "global/app++.debug", "{pasted:#}");
    assert_eq!(
        pasted["objects"][0]["code_id"], module["code_id"],
        "{pasted:#}"
    );
    let by_code_id = format!("/symcache?code_id={}", module["code_id"].as_str().unwrap());
    // The client follows the redirect.
    assert_eq!(get(&running, &by_code_id).await.status, 200);
    let unknown = format!("{by_code_id}0");
    let unknown = get(&running, &unknown).await;
    let unknown = unknown.expect(404, "no such build id").unwrap().body;
    let detail = unknown["detail"].as_str().unwrap();
    assert!(
        detail.contains("(absent in the uploads of global)"),
        "{detail}"
    );
}

/// Runs a command of the README in a folder.
async fn run_of_readme(running: &Running, folder: &Path, command: &str) -> Output {
    let readme = std::fs::read_to_string(checkout().join("README.md")).unwrap();
    assert!(readme.lines().any(|line| line == command), "{command}");
    let arguments = command.strip_prefix("symdepot ").unwrap().split(' ');
    let program = Binaries::from_env().unwrap().get("symdepot");
    tokio::process::Command::new(program)
        .args(arguments)
        .env_clear()
        .env("SYMDEPOT_URL", &running.client().addresses().gateway)
        .current_dir(folder)
        .output()
        .await
        .unwrap()
}

#[tokio::test]
async fn the_commands_of_the_readme_name_the_functions_of_a_users_program() {
    if !is_possible() {
        return;
    }
    let folder = build_crashing_program();
    request_by_gdb(folder.path(), &["-ex", "run"], &["./app"]);
    let running = Running::start().await;
    let of_readme = async |command| run_of_readme(&running, folder.path(), command).await;
    let upload = of_readme("symdepot upload app.debug --wait").await;
    let printed = String::from_utf8(upload.stdout).unwrap();
    assert_eq!(upload.status.code(), Some(0), "{printed}");
    assert!(printed.starts_with("sent "), "{printed}");
    assert!(printed.contains("app.debug"), "{printed}");
    assert!(printed.contains("in use"), "{printed}");
    let crash = of_readme("symdepot symbolicate crash.json").await;
    let printed = String::from_utf8(crash.stdout).unwrap();
    // The files of the C library were not uploaded.
    assert_eq!(crash.status.code(), Some(3), "{printed}");
    for (function, line) in [("at", 1), ("main", 2)] {
        let is_named = |printed: &str| {
            let words: Vec<&str> = printed.split_whitespace().collect();
            let place = format!("/app.c:{line}");
            let is_there = |word: &&str| word.ends_with(&place);
            words.contains(&function) && words.iter().any(is_there)
        };
        assert!(printed.lines().any(is_named), "{function}: {printed}");
    }
}

#[test]
fn a_core_dump_makes_the_same_request_as_the_running_program() {
    if !is_possible() {
        return;
    }
    let folder = build_crashing_program();
    let running = request_by_gdb(folder.path(), &["-ex", "run"], &["./app"]);
    let dump = [
        "gdb",
        "-q",
        "-batch",
        "-ex",
        "run",
        "-ex",
        "generate-core-file core",
        "./app",
    ];
    run(folder.path(), &dump);
    let dumped = request_by_gdb(folder.path(), &[], &["./app", "core"]);
    assert_eq!(dumped, running);
    let frames = dumped["stacktraces"][0]["frames"].as_array().unwrap();
    assert!(frames.len() >= 2, "{dumped:#}");
}

#[tokio::test]
async fn a_misspelled_parameter_is_rejected_and_the_valid_ones_are_listed() {
    let running = Running::start().await;
    for path in ["/wanted?scpoe=acme", "/requests/1?scpoe=acme"] {
        let reply = get(&running, path).await.expect(400, path).unwrap().body;
        let cause = reply["causes"][0].as_str().unwrap();
        assert!(cause.starts_with("scpoe: unknown parameter"), "{cause}");
        assert!(cause.contains("scope"), "{cause}");
    }
}
