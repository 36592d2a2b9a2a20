//! Minidumps and Apple's crash reports, sent as a browser sends a form.

use std::io::Write;

use reqwest::Method;
use serde_json::{Value, json};
use symdepot_tests::harness::{MadeUpDump, MadeUpStack, MadeUpThread};
use symdepot_tests::stack::Reply;

use crate::{Running, bytes_of};

const BOUNDARY: &str = "a-boundary-that-no-file-has";

/// A report of the sample's crash, as a system of Apple would write it.
pub(crate) fn apple_report() -> Vec<u8> {
    let header = json!({"bug_type": "309", "os_version": "macOS 14.1 (23B74)"});
    let report = json!({
        "captureTime": "2023-11-05 10:00:00.00 +0000", "cpuType": "ARM-64", "modelCode": "Mac14,2",
        "osVersion": {"train": "macOS 14.1", "build": "23B74"},
        "exception": {"type": "EXC_BAD_ACCESS", "signal": "SIGSEGV", "subtype": "KERN_INVALID_ADDRESS at 0x0"},
        "threads": [{"triggered": true, "queue": "com.apple.main-thread", "frames": [{"imageIndex": 0, "imageOffset": 4000}]}],
        "usedImages": [{
            "source": "P", "base": 4_294_967_296_u64, "size": 16_384, "path": "/Applications/app",
            "uuid": "502fc0a5-1ec1-3e47-9998-684fa139dca7"
        }]
    });
    format!("{header}\n{report}").into_bytes()
}

/// Returns the body of a form with these parts.
pub(crate) fn form(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut form = Vec::new();
    for (name, content) in parts {
        let head =
            format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n");
        form.extend(head.into_bytes());
        form.extend(*content);
        form.extend(b"\r\n");
    }
    form.extend(format!("--{BOUNDARY}--\r\n").into_bytes());
    form
}

/// Returns the type of the body of a form.
pub(crate) fn content_type() -> String {
    format!("multipart/form-data; boundary={BOUNDARY}")
}

pub(crate) async fn send(running: &Running, path: &str, body: Vec<u8>) -> Reply {
    let content_type = content_type();
    let client = running.client();
    let request = client.request(Method::POST, path);
    let request = request.header("Content-Type", content_type).body(body);
    client.send("a crash file", request).await.unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn functions(body: &Value) -> Vec<&str> {
    let frames = body["stacktraces"][0]["frames"].as_array().unwrap();
    let names = frames.iter().filter_map(|frame| frame["function"].as_str());
    names.collect()
}

#[tokio::test]
async fn a_minidump_is_symbolicated_compressed_or_not() {
    let running = Running::start().await;
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    running.upload("global/crash", bytes_of("elf/crash")).await;
    let dump = bytes_of("minidump/crash.dmp");
    let options = br#"{"dif_candidates": true}"#;
    let plain = form(&[("options", options), ("upload_file_minidump", &dump)]);
    let compressed = [
        gzip(&plain),
        zstd::encode_all(&*plain, 1).unwrap(),
        form(&[("upload_file_minidump", &gzip(&dump)), ("options", options)]),
    ];
    let first = send(&running, "/minidump", plain).await;
    let first = first.expect(200, "a minidump").unwrap().body;
    assert_eq!(first["status"], "completed", "{first:#}");
    assert!(functions(&first).contains(&"main"), "{first:#}");
    let module = &first["modules"][0];
    assert_eq!(
        (&module["debug_status"], &module["unwind_status"]),
        (&json!("found"), &json!("found"))
    );
    for body in compressed {
        let again = send(&running, "/minidump", body).await;
        assert_eq!(again.expect(200, "a minidump").unwrap().body, first);
    }
}

#[tokio::test]
async fn a_minidump_that_does_not_wait_is_continued_by_its_id() {
    let running = Running::start_with(|options| options.variable("DERIVED_MAX_UNUSED", 0)).await;
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    running.upload("global/crash", bytes_of("elf/crash")).await;
    running.client().prune(false).await.unwrap();
    running.client().end_functions().await.unwrap();
    let body = form(&[("upload_file_minidump", &bytes_of("minidump/crash.dmp"))]);
    let pending = send(&running, "/minidump?timeout=0", body).await;
    let pending = pending.expect(200, "a minidump").unwrap().body;
    assert_eq!(pending["status"], "pending", "{pending:#}");
    let id = pending["request_id"].as_str().unwrap();
    let mut polls = 0;
    let completed = loop {
        running.idle().await;
        // Any instance can continue the request.
        running.client().end_functions().await.unwrap();
        let path = format!("/requests/{id}?timeout=0");
        let request = running.client().request(Method::GET, &path);
        let reply = running.client().send("a request", request).await.unwrap();
        let body = reply.expect(200, "a request").unwrap().body;
        if body["status"] != "pending" {
            break body;
        }
        polls += 1;
        assert!(polls < 10, "{body:#}");
    };
    assert_eq!(completed["status"], "completed", "{completed:#}");
    assert!(functions(&completed).contains(&"main"), "{completed:#}");
}

#[tokio::test]
async fn an_apple_report_is_answered_with_its_facts() {
    let running = Running::start().await;
    let report = apple_report();
    let parts: [(&str, &[u8]); 4] = [
        ("platform", b"\"cocoa\""),
        ("sources", b"[]"),
        ("something_else", b"{"),
        ("apple_crash_report", &report),
    ];
    let reply = send(&running, "/applecrashreport", form(&parts)).await;
    let body = reply.expect(200, "a report").unwrap().body;
    assert_eq!(body["status"], "completed", "{body:#}");
    assert_eq!(body["crash_reason"], "EXC_BAD_ACCESS (SIGSEGV)");
    assert_eq!(body["crash_details"], "KERN_INVALID_ADDRESS at 0x0");
    assert_eq!(body["timestamp"], 1_699_178_400);
    assert_eq!(
        body["system_info"],
        json!({"os_name": "macOS", "os_version": "14.1", "os_build": "23B74", "cpu_arch": "arm64", "device_model": "Mac14,2"})
    );
    let thread = &body["stacktraces"][0];
    assert_eq!(thread["thread_name"], "com.apple.main-thread");
    assert_eq!(thread["frames"][0]["instruction_addr"], "0x100000fa0");
    assert_eq!(body["modules"][0]["debug_status"], "missing");
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_failed_and_an_invalid_form_is_an_error() {
    let running = Running::start().await;
    let wrapped = form(&[("upload_file_minidump", b"MDMP")]);
    let failed = send(
        &running,
        "/minidump",
        form(&[("upload_file_minidump", b"no dump")]),
    )
    .await;
    assert_eq!(failed.status, 200, "{}", failed.text);
    assert_eq!(failed.body["status"], "failed");
    let failed = send(
        &running,
        "/applecrashreport",
        form(&[("apple_crash_report", b"no report")]),
    )
    .await;
    assert_eq!(
        (failed.status, &failed.body["status"]),
        (200, &json!("failed"))
    );

    let large = vec![b' '; 1024 * 1024 + 1];
    let bomb = gzip(&vec![0; 80 << 20]);
    let cases: [(&str, Vec<u8>, u16, &str); 10] = [
        ("/minidump", form(&[]), 400, "missing minidump"),
        (
            "/minidump",
            form(&[("upload_file_minidump", b"")]),
            400,
            "missing minidump",
        ),
        (
            "/minidump",
            form(&[("upload_file_minidump", &wrapped)]),
            400,
            "multipart form data",
        ),
        (
            "/applecrashreport",
            form(&[("upload_file_minidump", b"x")]),
            400,
            "missing apple crash report",
        ),
        (
            "/minidump",
            form(&[("options", b"{"), ("upload_file_minidump", b"x")]),
            400,
            "the part options",
        ),
        (
            "/minidump",
            form(&[("options", &large)]),
            413,
            "options has more than 1048576 bytes",
        ),
        (
            "/minidump",
            form(&[("upload_file_minidump", &bomb)]),
            413,
            "upload_file_minidump has more than",
        ),
        (
            "/applecrashreport",
            bomb.clone(),
            413,
            "the body has more than",
        ),
        (
            "/minidump",
            form(&[
                ("upload_file_minidump", b"x"),
                ("upload_file_minidump", b"y"),
            ]),
            400,
            "more than once",
        ),
        ("/minidump", wrapped[..wrapped.len() - 20].to_vec(), 400, ""),
    ];
    for (path, body, status, detail) in cases {
        let reply = send(&running, path, body).await;
        assert_eq!(reply.status, status, "{path} {detail}: {}", reply.text);
        let found = reply.body["detail"].as_str().unwrap();
        assert!(found.contains(detail), "{found}");
    }
    let client = running.client();
    let request = client.request(Method::POST, "/minidump").body("MDMP");
    let reply = client.send("a minidump", request).await.unwrap();
    assert_eq!(reply.status, 415, "{}", reply.text);
}

/// The stack of a minidump has what a user typed.
#[tokio::test]
async fn nothing_of_the_memory_in_a_minidump_is_in_a_log() {
    const SECRET: &str = "open-sesame-open-sesame-open-sesame";
    let running = Running::start_with(|options| options.variable("LOG", "trace")).await;
    let stack = 0x7fff_0000_0000;
    let dump = MadeUpDump {
        stacks: vec![MadeUpStack {
            address: stack,
            bytes: SECRET.repeat(100).into_bytes(),
        }],
        threads: vec![MadeUpThread {
            id: 1,
            rsp: stack,
            ..MadeUpThread::default()
        }],
        ..MadeUpDump::default()
    };
    let body = form(&[("upload_file_minidump", &dump.file())]);
    let reply = send(&running, "/minidump", body).await;
    let answer = reply.expect(200, "a minidump").unwrap();
    assert_eq!(answer.body["status"], "completed", "{}", answer.text);
    assert!(!answer.text.contains("sesame"), "{}", answer.text);
    let logs = running.client().addresses().data.join("logs");
    let mut is_logged = false;
    for log in std::fs::read_dir(logs).unwrap() {
        let text = std::fs::read_to_string(log.unwrap().path()).unwrap();
        is_logged |= text.contains("request served");
        assert!(!text.contains("sesame"), "{text}");
    }
    assert!(is_logged, "nothing was logged");
}
