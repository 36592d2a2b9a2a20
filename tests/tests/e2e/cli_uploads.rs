//! `symdepot upload`, against the service.

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use symdepot_tests::stack::Binaries;
use tokio::process::Command;

use crate::{Running, bytes_of, crash};

/// A file of 300 MB as it is sent, which no compression makes smaller.
const LARGE_BYTES: usize = 300 << 20;

fn command(running: &Running, arguments: &[&str]) -> Command {
    let program = Binaries::from_env().unwrap().get("symdepot");
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .env("SYMDEPOT_URL", &running.client().addresses().gateway)
        .current_dir(running.folder.path())
        .kill_on_drop(true);
    command
}

/// Runs `upload --json` with further arguments. Returns the exit code and the result.
async fn upload(running: &Running, arguments: &[&str]) -> (Option<i32>, Value) {
    let ended = command(running, &["upload", "--json"])
        .args(arguments)
        .output();
    let ended = ended.await.unwrap();
    let json = serde_json::from_slice(&ended.stdout);
    let json = json.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&ended.stderr)));
    (ended.status.code(), json)
}

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// Returns the states of the files, by their names.
fn states(json: &Value) -> Vec<(String, &str, bool)> {
    let files = json["files"].as_array().unwrap().iter();
    let state = |file: &'_ Value| {
        let path = file["path"].as_str().unwrap();
        let name = path.rsplit('/').next().unwrap().to_owned();
        (name, !file["sent_bytes"].is_null())
    };
    files
        .map(|file| {
            let (name, was_sent) = state(file);
            (name, file["state"].as_str().unwrap(), was_sent)
        })
        .collect()
}

/// Returns the number of requests that stored bytes in the uploads bucket.
async fn puts(running: &Running) -> u64 {
    let stats = running.client().stats().await.unwrap();
    let calls = |operation| {
        let uploads = running.client().addresses().uploads();
        stats.of_bucket(uploads, operation).calls
    };
    calls("PutObject") + calls("UploadPart")
}

#[tokio::test]
async fn a_folder_is_uploaded_once_and_its_crash_has_names() {
    let running = Running::start().await;
    let folder = running.folder.path().join("build");
    write(&folder, "bin/crash.debug", &bytes_of("elf/crash.debug"));
    write(&folder, "bin/copy.debug", &bytes_of("elf/crash.debug"));
    write(&folder, "crash.pdb", &bytes_of("pe/x64/crash.pdb"));
    write(&folder, "notes.txt", b"text");
    write(&folder, "broken.so", b"\x7fELF and nothing else");

    let (exit, dry) = upload(&running, &["build", "--dry-run"]).await;
    assert_eq!(exit, Some(3), "{dry:#}");
    let absent = [
        ("copy.debug".to_owned(), "absent", false),
        ("crash.debug".to_owned(), "absent", false),
        ("crash.pdb".to_owned(), "absent", false),
    ];
    assert_eq!(states(&dry), absent);
    assert_eq!(puts(&running).await, 0);
    let skipped = dry["skipped"].as_array().unwrap();
    assert_eq!(skipped.len(), 1, "{dry:#}");
    assert!(!skipped[0]["reason"].as_str().unwrap().is_empty());
    assert_eq!(dry["passed_over"], 1);

    let (exit, first) = upload(&running, &["build", "--wait"]).await;
    assert_eq!(exit, Some(3), "{first:#}");
    let sent = [
        ("copy.debug".to_owned(), "applied", true),
        ("crash.debug".to_owned(), "applied", true),
        ("crash.pdb".to_owned(), "applied", true),
    ];
    assert_eq!(states(&first), sent, "{first:#}");
    let keys = first["files"].as_array().unwrap();
    assert_eq!(
        keys[1]["key"]
            .as_str()
            .unwrap()
            .split('/')
            .take(3)
            .collect::<Vec<_>>(),
        [
            "global",
            "crash.debug",
            "bc6e45ac-487f-f425-3672-08b89f51ad48"
        ]
    );
    let stored = puts(&running).await;
    assert_eq!(stored, 3);

    let (_, second) = upload(&running, &["build", "--wait"]).await;
    assert!(
        states(&second)
            .iter()
            .all(|(_, state, was_sent)| *state == "applied" && !was_sent)
    );
    assert_eq!(puts(&running).await, stored);

    let completed = running.client().completed("", &crash::sample()).await;
    crash::assert_symbolicated(&completed.unwrap());
}

#[tokio::test]
async fn a_file_belongs_to_the_scope_that_it_was_uploaded_for() {
    let running = Running::start().await;
    write(
        running.folder.path(),
        "crash.debug",
        &bytes_of("elf/crash.debug"),
    );
    let (exit, sent) = upload(&running, &["crash.debug", "--scope", "acme", "--wait"]).await;
    assert_eq!(exit, Some(0), "{sent:#}");
    let key = sent["files"][0]["key"].as_str().unwrap();
    assert!(key.starts_with("acme/crash.debug/"), "{key}");
    let completed = running
        .client()
        .completed("scope=acme", &crash::sample())
        .await;
    crash::assert_symbolicated(&completed.unwrap());
}

/// Returns a debug file that has a section of pseudo-random bytes at its end.
fn large_debug_file() -> Vec<u8> {
    let mut bytes = bytes_of("elf/crash.debug");
    let mut state = 1_u64;
    while bytes.len() < LARGE_BYTES {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

#[tokio::test]
async fn a_large_file_continues_where_the_killed_program_stopped() {
    let running = Running::start().await;
    write(running.folder.path(), "crash.debug", &large_debug_file());
    let mut interrupted = command(&running, &["upload", "crash.debug"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Four of the five parts are sent at a time. The fifth begins when one of them is stored.
    let begun = async {
        while puts(&running).await < 5 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(120), begun)
        .await
        .unwrap();
    interrupted.kill().await.unwrap();
    interrupted.wait().await.unwrap();
    let before = puts(&running).await;
    let (exit, sent) = upload(&running, &["crash.debug", "--wait"]).await;
    assert_eq!(exit, Some(0), "{sent:#}");
    assert_eq!(sent["files"][0]["state"], "applied", "{sent:#}");
    let after = puts(&running).await;
    assert!(after - before < 5, "{before} requests, then {after}");
    let key = sent["files"][0]["key"].as_str().unwrap();
    let explained = command(&running, &["explain", key, "--json"]).output();
    let explained: Value = serde_json::from_slice(&explained.await.unwrap().stdout).unwrap();
    let explained = &explained["explained"];
    // S3 writes the number of parts at the end of the etag.
    let etag = explained["etag"].as_str().unwrap();
    assert!(etag.ends_with("-5"), "{explained:#}");
    assert_eq!(
        explained["objects"].as_array().unwrap().len(),
        1,
        "{explained:#}"
    );
}
