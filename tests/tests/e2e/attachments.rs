//! Crash files that are too large for a request: stored first, then referred to.

use std::process::{Command, Stdio};

use reqwest::{Method, Url};
use serde_json::{Value, json};
use symdepot_tests::harness::full_dump;
use symdepot_tests::stack::{Reply, checkout, http_client};

use crate::crash_files::{form, functions, send};
use crate::symbol_server::SymbolServer;
use crate::{Running, bytes_of};

const MIB: u64 = 1 << 20;

async fn with_program() -> Running {
    let running = Running::start().await;
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    running.upload("global/crash", bytes_of("elf/crash")).await;
    running
}

pub(crate) async fn post(running: &Running, path: &str, body: &Value) -> Reply {
    let client = running.client();
    let request = client.request(Method::POST, path).json(body);
    client.send("a request", request).await.unwrap()
}

/// Asks for an attachment of a size.
pub(crate) async fn offer(running: &Running, query: &str, bytes: usize) -> Value {
    let path = format!("/attachments{query}");
    let reply = post(running, &path, &json!({ "bytes": bytes })).await;
    reply.expect(200, "an attachment").unwrap().body
}

/// Writes a file as an offer says, and returns the status of the response.
pub(crate) async fn put(offer: &Value, file: Vec<u8>) -> u16 {
    let url: Url = offer["upload"]["url"].as_str().unwrap().parse().unwrap();
    let mut request = http_client().unwrap().put(url);
    for (name, value) in offer["upload"]["headers"].as_object().unwrap() {
        // The client sets the length by the body.
        if name != "content-length" {
            request = request.header(name, value.as_str().unwrap());
        }
    }
    request.body(file).send().await.unwrap().status().as_u16()
}

pub(crate) fn referring_to(storage_url: &Value) -> Value {
    json!({"symbolicate": {"type": "minidump", "storage_url": storage_url}})
}

#[tokio::test]
async fn a_stored_minidump_is_symbolicated_once_and_removed() {
    let running = with_program().await;
    let small = bytes_of("minidump/crash.dmp");
    let expected = send(
        &running,
        "/minidump",
        form(&[("upload_file_minidump", &small)]),
    )
    .await;
    let expected = expected.expect(200, "a minidump").unwrap().body;
    assert!(functions(&expected).contains(&"main"), "{expected:#}");
    for large in [small.clone(), full_dump(&small, 8 * MIB)] {
        let offer = offer(&running, "", large.len()).await;
        assert_eq!(put(&offer, large).await, 200);
        let url = offer["storage_url"].as_str().unwrap();
        let parts = form(&[("storage_url", url.as_bytes())]);
        let answer = send(&running, "/minidump", parts.clone()).await;
        let answer = answer.expect(200, "a stored minidump").unwrap().body;
        assert_eq!(answer["stacktraces"], expected["stacktraces"]);
        let again = send(&running, "/minidump", parts).await;
        assert_eq!(again.status, 404, "{}", again.text);
    }
}

#[tokio::test]
async fn a_file_of_any_kind_is_symbolicated_by_its_place() {
    let running = with_program().await;
    let small = bytes_of("minidump/crash.dmp");
    let dump = offer(&running, "?scope=acme", small.len()).await;
    assert_eq!(put(&dump, small).await, 200);
    let body = referring_to(&dump["storage_url"]);
    // Another scope has no such file, and the file stays.
    let reply = post(&running, "/symbolicate-any", &body).await;
    assert_eq!(reply.status, 404, "{}", reply.text);
    let reply = post(&running, "/symbolicate-any?scope=acme", &body).await;
    let answer = reply.expect(200, "a stored minidump").unwrap().body;
    assert!(functions(&answer).contains(&"main"), "{answer:#}");

    let report = crate::crash_files::apple_report();
    let stored = offer(&running, "", report.len()).await;
    assert_eq!(put(&stored, report).await, 200);
    let body = json!({
        "sources": [],
        "symbolicate": {"type": "applecrashreport", "storage_url": stored["storage_url"]},
    });
    let reply = post(&running, "/symbolicate-any", &body).await;
    let answer = reply.expect(200, "a stored report").unwrap().body;
    assert_eq!(answer["crash_reason"], "EXC_BAD_ACCESS (SIGSEGV)");
}

#[tokio::test]
async fn a_minidump_on_a_host_that_the_operator_allows_is_symbolicated() {
    let host = SymbolServer::start([("/a/crash.dmp", bytes_of("minidump/crash.dmp"))]).await;
    let url: Url = host.url().parse().unwrap();
    let authority = format!("127.0.0.1:{}", url.port().unwrap());
    let running = Running::start_with(|options| {
        options
            .variable(
                "ATTACHMENT_HOSTS",
                format!("files.example.com,http://{authority}"),
            )
            .variable("ALLOW_PRIVATE_SOURCES", 1)
    })
    .await;
    let parts = |path: &str| {
        let url = url.join(path).unwrap();
        form(&[
            ("storage_url", url.as_str().as_bytes()),
            ("storage_token", b"sesame"),
        ])
    };
    let reply = send(&running, "/minidump", parts("/a/crash.dmp")).await;
    let answer = reply.expect(200, "a minidump").unwrap().body;
    assert_eq!(answer["stacktraces"][0]["frames"][0]["trust"], "context");
    let reply = send(&running, "/minidump", parts("/a/other.dmp")).await;
    assert_eq!(reply.status, 404, "{}", reply.text);
}

#[tokio::test]
async fn an_attachment_is_written_once_and_with_its_length() {
    let running = Running::start().await;
    let offer = offer(&running, "", 1000).await;
    for length in [0, 999, 1001, 2000] {
        assert_eq!(put(&offer, vec![1; length]).await, 403, "{length}");
    }
    assert_eq!(put(&offer, vec![1; 1000]).await, 200);
    assert_eq!(put(&offer, vec![2; 1000]).await, 412);
    let mut unconditional = offer.clone();
    unconditional["upload"]["headers"] = json!({});
    assert_eq!(put(&unconditional, vec![2; 1000]).await, 403);
    // The signature is for one key.
    let mut other = offer.clone();
    let url = offer["upload"]["url"].as_str().unwrap();
    other["upload"]["url"] = json!(url.replace("/1000?", "/1001?"));
    assert_eq!(put(&other, vec![1; 1000]).await, 403);
    let reply = post(&running, "/attachments", &json!({"bytes": 0})).await;
    assert_eq!(reply.status, 422, "{}", reply.text);
}

#[tokio::test]
async fn a_hostile_storage_url_is_refused_and_nothing_is_requested() {
    let running = Running::start().await;
    let (caches, s3) = {
        let addresses = running.client().addresses();
        (addresses.caches().to_owned(), addresses.s3.clone())
    };
    for url in [
        "http://169.254.169.254/latest/meta-data/iam/security-credentials/".to_owned(),
        "https://169.254.169.254/latest/meta-data/".to_owned(),
        "https://[fd00:ec2::254]/latest/meta-data/".to_owned(),
        format!("s3://{caches}/requests/0b6f1d3c-6a7e-4c53-9d0e-2f2f1a1b1c1d"),
        format!("{s3}/{caches}/requests/0b6f1d3c-6a7e-4c53-9d0e-2f2f1a1b1c1d"),
        "file:///proc/self/environ".to_owned(),
        "attachment:../../requests/0b6f1d3c/1".to_owned(),
        "https://example.com/crash.dmp".to_owned(),
    ] {
        let parts = form(&[("storage_url", url.as_bytes())]);
        for reply in [
            send(&running, "/minidump", parts.clone()).await,
            send(&running, "/applecrashreport", parts).await,
            post(&running, "/symbolicate-any", &referring_to(&json!(url))).await,
        ] {
            assert_eq!(reply.status, 400, "{url}: {}", reply.text);
            let detail = reply.body["detail"].as_str().unwrap();
            assert!(detail.contains("storage_url"), "{detail}");
        }
    }
    let unknown = "attachment:0b6f1d3c-6a7e-4c53-9d0e-2f2f1a1b1c1d/1000";
    let reply = send(
        &running,
        "/minidump",
        form(&[("storage_url", unknown.as_bytes())]),
    )
    .await;
    assert_eq!(reply.status, 404, "{}", reply.text);
    let both = form(&[
        ("storage_url", unknown.as_bytes()),
        ("upload_file_minidump", b"MDMP"),
    ]);
    let reply = send(&running, "/minidump", both).await;
    assert_eq!(reply.status, 400, "{}", reply.text);
}

#[tokio::test]
async fn the_documented_script_sends_a_large_minidump_and_prints_its_names() {
    let running = with_program().await;
    let there = Command::new("python3").arg("--version").output();
    if !there.is_ok_and(|output| output.status.success()) {
        println!("skipped: python3 is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let dump = folder.path().join("large.dmp");
    std::fs::write(&dump, full_dump(&bytes_of("minidump/crash.dmp"), 200 * MIB)).unwrap();
    running.client().clear_stats().await.unwrap();
    let output = tokio::process::Command::new("python3")
        .arg(checkout().join("docs/examples/send_crash_file.py"))
        .arg(&dump)
        .env("SYMDEPOT", &running.client().addresses().gateway)
        .env("NO_PROXY", "127.0.0.1")
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(functions(&answer).contains(&"main"), "{answer:#}");
    let stats = running.client().stats().await.unwrap();
    let symbolicate = stats.function("symbolicate");
    assert!(symbolicate.max_rss < 300 * MIB, "{stats:#?}");
    let read: u64 = stats
        .buckets
        .values()
        .flat_map(|calls| calls.values())
        .map(|calls| calls.bytes_out)
        .sum();
    assert!(read < 32 * MIB, "{read} bytes");
}

#[test]
fn the_documented_scripts_end_with_a_line_that_says_what_is_wrong() {
    let there = Command::new("python3").arg("--version").output();
    if !there.is_ok_and(|output| output.status.success()) {
        println!("skipped: python3 is not installed");
        return;
    }
    let nowhere = [
        ("SYMDEPOT", "http://127.0.0.1:1"),
        ("SYMBOLS", "."),
        ("UPLOADS", "s3://none"),
    ];
    for (script, variables, expected) in [
        ("send_crash_file.py", &[][..], "SYMDEPOT is not set"),
        ("send_crash_file.py", &nowhere, "No such file or directory"),
        (
            "work_off_wanted.py",
            &[],
            "not set: SYMDEPOT, SYMBOLS, UPLOADS",
        ),
        ("work_off_wanted.py", &nowhere, "Connection refused"),
    ] {
        let mut command = Command::new("python3");
        command
            .arg(checkout().join("docs/examples").join(script))
            .arg("absent.dmp");
        for name in ["SYMDEPOT", "SYMBOLS", "UPLOADS"] {
            command.env_remove(name);
        }
        command
            .envs(variables.iter().copied())
            .env("NO_PROXY", "127.0.0.1");
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{script}");
        let said = String::from_utf8(output.stderr).unwrap();
        let last = said.lines().last().unwrap_or_default();
        assert!(last.contains(expected), "{expected}: {said}");
        assert!(!said.contains("Traceback"), "{said}");
    }
}

#[test]
fn the_documented_script_waits_before_it_asks_again() {
    let there = Command::new("python3").arg("--version").output();
    if !there.is_ok_and(|output| output.status.success()) {
        println!("skipped: python3 is not installed");
        return;
    }
    // The responses and the pauses are those of the test.
    let test = "
import sys
sys.path.insert(0, sys.argv[1])
import send_crash_file as script
pending = {'status': 'pending', 'request_id': '7', 'retry_after': 2}
responses = [pending, pending, {'status': 'completed'}]
pauses = []
script.time.sleep = pauses.append
script.store = lambda path: 'attachment:0/1'
script.ask = lambda *_: responses.pop(0)
sys.argv = ['send_crash_file.py', 'crash.dmp']
assert script.main() == 0
assert pauses == [2, 2], pauses
";
    let output = Command::new("python3")
        .args(["-B", "-c", test])
        .arg(checkout().join("docs/examples"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[tokio::test]
async fn a_response_that_is_too_large_to_be_sent_is_at_another_address() {
    const FRAMES: usize = 100_000;
    let running = Running::start().await;
    let frames = vec![json!({"instruction_addr": 9}); FRAMES];
    let request = json!({"stacktraces": [{"frames": frames}]});
    let client = client();
    let url = format!("{}/symbolicate", running.client().addresses().gateway);
    let reply = client.post(url).json(&request).send().await.unwrap();
    assert_eq!(reply.status().as_u16(), 303);
    let location = reply.headers()["location"].to_str().unwrap();
    let stored = client.get(location).send().await.unwrap();
    assert_eq!(stored.status().as_u16(), 200);
    assert_eq!(stored.headers()["content-type"], "application/json");
    let bytes = stored.bytes().await.unwrap();
    assert!(bytes.len() > 4_608_000, "{}", bytes.len());
    let completed: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(completed["status"], "completed");
    let frames = completed["stacktraces"][0]["frames"].as_array().unwrap();
    assert_eq!(frames.len(), FRAMES);
}

#[tokio::test]
async fn a_response_that_is_full_of_quotes_is_sent() {
    // As an escaped string in a result, it would have more than the 6 MB that the platform accepts.
    const QUOTES: usize = 2_200_000;
    let running = Running::start().await;
    let module = json!({"type": "elf", "code_file": "\"".repeat(QUOTES)});
    let request = json!({"stacktraces": [], "modules": [module]});
    let url = format!("{}/symbolicate", running.client().addresses().gateway);
    // Bodies of this type are in base64 in an event.
    let request = client().post(url).body(request.to_string());
    let request = request.header("content-type", "application/octet-stream");
    let reply = request.send().await.unwrap();
    assert_eq!(reply.status().as_u16(), 200);
    let completed: Value = reply.json().await.unwrap();
    let echoed = completed["modules"][0]["code_file"].as_str().unwrap();
    assert_eq!(echoed.len(), QUOTES);
}

/// Returns a client that follows no redirection.
pub(crate) fn client() -> reqwest::Client {
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .build()
        .unwrap()
}
