//! Credentials of symbol servers are sent to their server, and appear nowhere else.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use reqwest::Method;
use serde_json::{Value, json};
use symdepot_tests::harness::linked_pdb;
use symdepot_tests::stack::Options;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::source_files::ledger;
use crate::symbol_server::DEBUG_FILE;
use crate::{Running, bytes_of, crash};

/// A text that every secret of these tests contains, and no other data.
const MARKER: &str = "0penSesame";

/// The layouts of all kinds of sources.
const LAYOUTS: [&str; 7] = [
    "native",
    "symstore",
    "symstore_index2",
    "symsrv",
    "ssqp",
    "debuginfod",
    "unified",
];

/// A server that has the sample's debug file in the native layout, and that redirects the other
/// layouts to a signed URL that fails.
struct Vault {
    url: String,
    heads: Arc<Mutex<Vec<String>>>,
    _serving: JoinSet<()>,
}

impl Vault {
    async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let heads = Arc::new(Mutex::new(Vec::new()));
        let (kept, file) = (heads.clone(), bytes_of("elf/crash.debug"));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut open = JoinSet::new();
            loop {
                let (connection, _) = listener.accept().await.unwrap();
                open.spawn(answer(connection, kept.clone(), file.clone()));
                while open.try_join_next().is_some() {}
            }
        });
        Self {
            url,
            heads,
            _serving: serving,
        }
    }

    /// Returns a source at this server, with a secret in every field that may contain one.
    fn source(&self, id: &str, layout: &str) -> Value {
        json!({
            "id": id,
            "type": "http",
            "url": format!("{}/{id}/?sig={MARKER}-query-of-{id}", self.url),
            "headers": {"authorization": format!("{MARKER}-header-of-{id}"), "x-key": format!("{MARKER}-key-of-{id}")},
            "layout": {"type": layout},
            "filters": {"path_patterns": ["*", format!("*{MARKER}-pattern-of-{id}*")]},
        })
    }

    /// Returns sources of the other kinds, with a secret in every field that may contain one. The
    /// private key is malformed, so that no request leaves this machine.
    fn other_sources(&self, prefix: &str) -> Vec<Value> {
        let id = |kind: &str| format!("{prefix}-{kind}");
        let secret = |kind: &str, what: &str| format!("{MARKER}-{what}-of-{}", id(kind));
        vec![
            json!({
                "id": id("s3"), "type": "s3", "bucket": "symbols", "prefix": id("s3"),
                "region": ["us-east-1", self.url], "access_key": secret("s3", "key"),
                "secret_key": secret("s3", "hidden"), "session_token": secret("s3", "header"),
            }),
            json!({
                "id": id("gcs"), "type": "gcs", "bucket": "symbols", "client_email": secret("gcs", "email"),
                "private_key": secret("gcs", "key"),
            }),
            json!({
                "id": id("sentry"), "type": "sentry", "token": secret("sentry", "header"),
                "url": format!("{}/{}/files/?a={}", self.url, id("sentry"), secret("sentry", "query")),
            }),
            json!({
                "id": id("cookies"), "type": "sentry", "cookies": secret("cookies", "header"),
                "url": format!("{}/{}/files/", self.url, id("cookies")),
            }),
        ]
    }

    /// Returns whether a request contained this secret of a source.
    fn was_sent(&self, what: &str, id: &str) -> bool {
        self.has_seen(&format!("-{what}-of-{id}"))
    }

    /// Returns whether a request contained a secret that ends so.
    fn has_seen(&self, secret: &str) -> bool {
        let heads = self.heads.lock().unwrap();
        let secret = format!("{MARKER}{secret}");
        heads.iter().any(|head| head.contains(&secret))
    }

    /// Returns whether a request for this source contained all of its secrets.
    fn was_asked_as(&self, id: &str) -> bool {
        let heads = self.heads.lock().unwrap();
        let has = |head: &String| {
            let secrets = ["query", "header", "key"];
            secrets
                .iter()
                .all(|what| head.contains(&format!("{MARKER}-{what}-of-{id}")))
        };
        heads.iter().any(has)
    }
}

async fn answer(mut connection: TcpStream, heads: Arc<Mutex<Vec<String>>>, file: Vec<u8>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if !matches!(connection.read_buf(&mut head).await, Ok(1..)) {
            return;
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    heads.lock().unwrap().push(head);
    let place = path.split('?').next().unwrap_or_default();
    let answer = if place.ends_with(DEBUG_FILE) {
        let length = file.len();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n");
        [head.as_bytes(), b"connection: close\r\n\r\n", &file].concat()
    } else if place.ends_with("Ledger.cs") {
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nlines".to_vec()
    } else if place.ends_with("index2.txt") || place.contains("-native/") {
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_vec()
    } else if place.ends_with("/signed") {
        b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_vec()
    } else {
        let to = format!("/signed?token={MARKER}-of-the-redirect");
        format!(
            "HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        )
        .into_bytes()
    };
    if connection.write_all(&answer).await.is_ok() {
        let _ = connection.shutdown().await;
    }
}

/// Returns every file below a directory.
pub(crate) fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .flat_map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => files_below(&entry.path()),
            Ok(kind) if kind.is_file() => vec![entry.path()],
            _ => Vec::new(),
        })
        .collect()
}

fn assert_nowhere(text: &str, what: &str) {
    if let Some(at) = text.find(MARKER) {
        let begin = text.floor_char_boundary(at.saturating_sub(200));
        let end = text.ceil_char_boundary((at + 100).min(text.len()));
        panic!("{what} contains a secret: …{}…", &text[begin..end]);
    }
}

/// Sends a GET request and returns the text of the response.
async fn response_to(running: &Running, path: &str) -> String {
    let client = running.client();
    let request = client.request(Method::GET, path);
    client.send("GET request", request).await.unwrap().text
}

/// Responses, logs, records, blobs and messages never contain a secret of a source, whichever field
/// it is in.
#[tokio::test]
async fn secrets_in_any_field_of_a_source_reach_only_its_server() {
    let vault = Vault::open().await;
    let mut configured: Vec<Value> = LAYOUTS
        .iter()
        .map(|layout| vault.source(&format!("configured-{layout}"), layout))
        .collect();
    configured.extend(vault.other_sources("configured"));
    let with_secrets = |options: Options| {
        options
            .variable("LOG", "trace")
            .variable("SOURCES", json!(configured))
            .variable(
                "SOURCE_LINKS",
                json!([{"origin": format!("{}/own/", vault.url), "headers": {"x-key": format!("{MARKER}-of-the-operator")}}, "*"]),
            )
            .variable(
                "SYMBOL_SERVER",
                format!("{}/alone/?sig={MARKER}-query-of-alone", vault.url),
            )
            .variable("ALLOW_PRIVATE_SOURCES", 1)
            .variable("ALLOW_REQUEST_SOURCES", 1)
            .variable(
                "REQUEST_SOURCES_SECRET",
                format!("2:{MARKER}-new-key-for-seals-of-32-letters,1:{MARKER}-old-key-for-seals-of-32-letters"),
            )
    };
    let running = Running::start_with(with_secrets).await;
    let client = running.client();
    // Two files with links: to a place with headers of the operator, and to another one.
    for (key, place) in [("global/Ledger.pdb", "/"), ("acme/Ledger.pdb", "/own/")] {
        let pdb = linked_pdb(&format!("{}{place}", vault.url));
        running.upload(key, pdb.to_vec()).await;
    }
    let mut answers = Vec::new();
    let mut defined: Vec<Value> = LAYOUTS
        .iter()
        .map(|layout| vault.source(&format!("defined-{layout}"), layout))
        .collect();
    defined.extend(vault.other_sources("defined"));
    for sources in [Value::Null, json!(defined)] {
        let mut request = crash::sample();
        request["sources"] = sources;
        request["options"] = json!({"dif_candidates": true});
        // The request is stored, then continued.
        let pending = client.symbolicate("timeout=0", &request).await.unwrap();
        assert_eq!(pending.body["status"], "pending", "{}", pending.text);
        let id = pending.body["request_id"].as_str().unwrap().to_owned();
        answers.push(("a pending response", pending.text));
        running.idle().await;
        let completed = response_to(&running, &format!("/requests/{id}?timeout=20")).await;
        let completed_body: Value = serde_json::from_str(&completed).unwrap();
        crash::assert_symbolicated(&completed_body);
        assert!(completed.contains("candidates"), "{completed}");
        answers.push(("a completed response", completed));
    }
    for scope in ["global", "acme"] {
        let (module, frame) = ledger();
        let request = json!({
            "modules": [module],
            "stacktraces": [{"frames": [frame]}],
            "options": {"dif_candidates": true},
            "scraping": {"enabled": true, "allowed_origins": ["*"], "headers": {"x-token": format!("{MARKER}-of-a-request")}},
        });
        let query = format!("timeout=0&scope={scope}");
        let pending = client.symbolicate(&query, &request).await.unwrap();
        assert_eq!(pending.body["status"], "pending", "{}", pending.text);
        let id = pending.body["request_id"].as_str().unwrap().to_owned();
        running.idle().await;
        let completed = response_to(&running, &format!("/requests/{id}?timeout=20")).await;
        assert!(completed.contains("sourcelink"), "{completed}");
        answers.push(("a pending response with links", pending.text));
        answers.push(("a completed response with links", completed));
    }
    assert!(vault.has_seen("-of-a-request") && vault.has_seen("-of-the-operator"));
    let module = crash::sample_module();
    let names = ["debug_id", "code_id", "type", "code_file", "debug_file"];
    let pairs = names.map(|name| format!("{name}={}", module[name].as_str().unwrap()));
    let explained = response_to(&running, &format!("/explain?{}", pairs.join("&"))).await;
    assert!(explained.contains("configured-native#"), "{explained}");
    answers.push(("GET /explain", explained));
    answers.push(("GET /wanted", response_to(&running, "/wanted").await));
    client.prune(false).await.unwrap();
    answers.push(("GET /rollout", response_to(&running, "/rollout").await));

    // The secrets were sent to their server.
    for id in ["configured-native", "configured-symsrv", "defined-native"] {
        assert!(vault.was_asked_as(id), "{id}");
    }
    for prefix in ["configured", "defined"] {
        for (what, kind) in [
            ("key", "s3"),
            ("header", "s3"),
            ("query", "sentry"),
            ("header", "sentry"),
            ("header", "cookies"),
        ] {
            assert!(
                vault.was_sent(what, &format!("{prefix}-{kind}")),
                "{what} {prefix}-{kind}"
            );
        }
        // A secret key signs, and is not sent.
        assert!(!vault.was_sent("hidden", &format!("{prefix}-s3")));
    }
    for (what, answer) in &answers {
        assert_nowhere(answer, what);
    }
    // Logs, records, blobs, and messages in queues, including received ones.
    let folder = running.stop().await;
    let files = files_below(folder.path());
    let is_there = |part: &str| {
        files
            .iter()
            .any(|file| file.to_string_lossy().contains(part))
    };
    assert!(
        is_there("logs/derive.log") && is_there("stack.log"),
        "{files:?}"
    );
    let mut said = 0;
    for file in &files {
        let bytes = std::fs::read(file).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        said += usize::from(text.contains("configured-native#"));
        assert_nowhere(&text, &file.to_string_lossy());
    }
    assert!(said > 0, "no file contains a readable record of the source");
}
