//! `symdepot upload`, against the service.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use symdepot_tests::stack::{Binaries, fixture};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::{PATIENCE, Running, bytes_of, crash};

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

    crash::assert_symbolicated(&running.sample_answer().await);
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

#[tokio::test]
async fn requests_use_a_file_as_soon_as_an_upload_that_waits_has_ended() {
    let running = Running::start().await;
    let bytes = bytes_of("elf/crash.debug");
    write(running.folder.path(), "crash.debug", &bytes);
    let report = fixture("crash.json").display().to_string();
    let symbolicate = async || {
        let ended = command(&running, &["symbolicate", &report]).output();
        ended.await.unwrap()
    };
    // The instance remembers that there is no file.
    let before = symbolicate().await;
    assert_eq!(before.status.code(), Some(3), "{before:?}");
    let (exit, sent) = upload(&running, &["crash.debug", "--wait"]).await;
    assert_eq!(exit, Some(0), "{sent:#}");
    let after = symbolicate().await;
    assert_eq!(after.status.code(), Some(0), "{after:?}");
}

#[tokio::test]
async fn maps_in_a_folder_are_uploaded_with_their_ids() {
    const UUID_MAP: &str = "F9D1D247-0CA9-55DF-AB9D-50D65C32A93D.plist";
    const SYMBOL_MAP: &str = "4C4C445C-5555-3144-A106-EFEF076DFA3C.bcsymbolmap";
    let running = Running::start().await;
    let folder = running.folder.path().join("build");
    let uuid_map = bytes_of(&format!("maps/crash.dSYM/Contents/Resources/{UUID_MAP}"));
    let dwarf = bytes_of("maps/crash.dSYM/Contents/Resources/DWARF/crash");
    let symbol_map = bytes_of(&format!("maps/{SYMBOL_MAP}"));
    let resources = "app.dSYM/Contents/Resources";
    write(&folder, &format!("{resources}/DWARF/app"), &dwarf);
    write(&folder, &format!("{resources}/{UUID_MAP}"), &uuid_map);
    write(&folder, "app.il2cpp", &bytes_of("maps/crash.il2cpp"));
    write(&folder, SYMBOL_MAP, &symbol_map);
    // Only the folders have the id.
    let of_symsorter = "sorted/4c/4c445c55553144a106efef076dfa3c/bcsymbolmap";
    write(&folder, of_symsorter, &symbol_map);
    let (exit, sent) = upload(&running, &["build", "--wait"]).await;
    assert_eq!(exit, Some(0), "{sent:#}");
    let applied = |name: &str| (name.to_owned(), "applied", true);
    let expected = [SYMBOL_MAP, "app", UUID_MAP, "app.il2cpp", "bcsymbolmap"];
    assert_eq!(states(&sent), expected.map(applied), "{sent:#}");
    let ids = ["f9d1d247-0ca9-55df-ab9d-50d65c32a93d"];
    assert_eq!(sent["files"][2]["ids"], serde_json::json!(ids), "{sent:#}");
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

/// A proxy that passes on everything but the parts of a file after the first one: these it never
/// answers. It ends with the test.
struct OnePartProxy {
    url: String,
    /// Notified when the first part is stored.
    stored: Arc<Notify>,
    _task: JoinSet<()>,
}

impl OnePartProxy {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let stored = Arc::new(Notify::new());
        let (notified, parts) = (stored.clone(), Arc::new(AtomicUsize::new(0)));
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (connection, _) = listener.accept().await.unwrap();
                let (stored, parts) = (notified.clone(), parts.clone());
                connections.spawn(async move {
                    // The program is killed at some time.
                    let _ = pass_on(connection, &parts, &stored).await;
                });
            }
        });
        Self {
            url,
            stored,
            _task: task,
        }
    }
}

/// Passes on the one request of a connection, and its response.
async fn pass_on(
    mut connection: TcpStream,
    parts: &AtomicUsize,
    stored: &Notify,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(connection.read_u8().await?);
    }
    let head = String::from_utf8(head).unwrap();
    let is_part = head.starts_with("PUT ");
    if is_part && parts.fetch_add(1, Ordering::SeqCst) > 0 {
        return std::future::pending().await;
    }
    // A proxy receives the whole URL: `PUT http://127.0.0.1:4566/uploads/key HTTP/1.1`.
    let (request, headers) = head.split_once("\r\n").unwrap();
    let (method, url) = request.split_once(" http://").unwrap();
    let (host, path) = url.split_once('/').unwrap();
    let mut service = TcpStream::connect(host).await?;
    let head = format!("{method} /{path}\r\nconnection: close\r\n{headers}");
    service.write_all(head.as_bytes()).await?;
    let headers = headers.to_ascii_lowercase();
    let length = headers.lines().find_map(|header| {
        let length = header.strip_prefix("content-length: ")?;
        length.parse::<u64>().ok()
    });
    let mut body = (&mut connection).take(length.unwrap_or(0));
    copy(&mut body, &mut service).await?;
    copy(&mut service, &mut connection).await?;
    connection.shutdown().await?;
    if is_part {
        stored.notify_one();
    }
    Ok(())
}

#[tokio::test]
async fn a_large_file_continues_where_the_killed_program_stopped() {
    let running = Running::start().await;
    write(running.folder.path(), "crash.debug", &large_debug_file());
    let proxy = OnePartProxy::start().await;
    let mut interrupted = command(&running, &["upload", "crash.debug"])
        .env("http_proxy", &proxy.url)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let stored = tokio::time::timeout(PATIENCE, proxy.stored.notified());
    stored.await.expect("the first part is stored");
    interrupted.kill().await.unwrap();
    let before = puts(&running).await;
    assert_eq!(before, 1);
    let (exit, sent) = upload(&running, &["crash.debug", "--wait"]).await;
    assert_eq!(exit, Some(0), "{sent:#}");
    assert_eq!(sent["files"][0]["state"], "applied", "{sent:#}");
    let after = puts(&running).await;
    assert_eq!(after - before, 4, "the other four of the five parts");
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
