//! Crash files whose functions are killed between the polls, and the answers in the schema of
//! `minidump-stackwalk`.

use reqwest::Method;
use serde_json::{Value, json};
use symdepot_tests::harness::full_dump;
use symdepot_tests::stack::Reply;

use crate::attachments::{offer, post, put, referring_to};
use crate::crash_files::{apple_report, form, functions, send};
use crate::{Running, bytes_of};

/// Kills all functions, whatever they do.
fn kill_functions(running: &Running) {
    let processes = running.stack.processes();
    let functions = processes
        .iter()
        .filter(|process| ["symbolicate", "derive", "prune"].contains(&process.program()));
    functions.for_each(|function| function.kill());
}

/// Polls a request until it is not pending; kills all functions before each poll, and expects at
/// least one of them to be `pending`.
async fn polled_with_kills(running: &Running, first: Reply) -> Value {
    let mut body = first.expect(200, "a crash file").unwrap().body;
    let mut polls = 0;
    while body["status"] == "pending" {
        let id = body["request_id"].as_str().unwrap().to_owned();
        running.idle().await;
        kill_functions(running);
        let poll = async || {
            let path = format!("/requests/{id}?timeout=0");
            let request = running.client().request(Method::GET, &path);
            running.client().send("a request", request).await.unwrap()
        };
        let mut reply = poll().await;
        // The poll was given to a function that was being killed: the client polls again.
        if reply.status == 500 {
            reply = poll().await;
        }
        body = reply.expect(200, "a request").unwrap().body;
        polls += 1;
        assert!(polls < 10, "{body:#}");
    }
    assert!(polls > 0, "nothing was pending: {body:#}");
    body
}

/// Removes all caches, although their files were uploaded.
async fn without_caches(running: &Running) {
    running.client().prune(false).await.unwrap();
    running.client().end_functions().await.unwrap();
}

fn stackwalk_functions(body: &Value) -> Vec<&str> {
    let frames = body["threads"][0]["frames"].as_array().unwrap();
    let names = frames.iter().filter_map(|frame| frame["function"].as_str());
    names.collect()
}

#[tokio::test]
async fn killing_functions_between_polls_loses_no_crash_file() {
    let running = Running::start_with(|options| options.variable("DERIVED_MAX_UNUSED", 0)).await;
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    running.upload("global/crash", bytes_of("elf/crash")).await;
    let small = bytes_of("minidump/crash.dmp");
    let sent = form(&[("upload_file_minidump", &small)]);

    without_caches(&running).await;
    let first = send(&running, "/minidump?timeout=0", sent.clone()).await;
    let answer = polled_with_kills(&running, first).await;
    assert_eq!(answer["status"], "completed", "{answer:#}");
    assert!(functions(&answer).contains(&"main"), "{answer:#}");

    without_caches(&running).await;
    let path = "/minidump?timeout=0&format=stackwalk";
    let first = send(&running, path, sent).await;
    let answer = polled_with_kills(&running, first).await;
    assert_eq!(answer["status"], "OK", "{answer:#}");
    assert!(stackwalk_functions(&answer).contains(&"main"), "{answer:#}");

    // The stored file is gone when its request is pending.
    without_caches(&running).await;
    let large = full_dump(&small, 8 << 20);
    let stored = offer(&running, "", large.len()).await;
    assert_eq!(put(&stored, large).await, 200);
    let body = referring_to(&stored["storage_url"]);
    let path = "/symbolicate-any?timeout=0&format=stackwalk";
    let first = post(&running, path, &body).await;
    let again = post(&running, path, &body).await;
    assert_eq!(again.status, 404, "{}", again.text);
    let answer = polled_with_kills(&running, first).await;
    assert!(stackwalk_functions(&answer).contains(&"main"), "{answer:#}");
}

#[tokio::test]
async fn killing_functions_between_polls_loses_no_apple_report() {
    let running = Running::start_with(|options| options.variable("DERIVED_MAX_UNUSED", 0)).await;
    let symbols =
        b"MODULE Mac arm64 502FC0A51EC13E479998684FA139DCA70 app\nFUNC f00 200 0 at_the_fault\n";
    running.upload("global/app.sym", symbols.to_vec()).await;
    without_caches(&running).await;
    let body = form(&[("apple_crash_report", &apple_report())]);
    let first = send(&running, "/applecrashreport?timeout=0", body).await;
    let answer = polled_with_kills(&running, first).await;
    assert_eq!(functions(&answer), ["at_the_fault"], "{answer:#}");
    assert_eq!(answer["crash_reason"], "EXC_BAD_ACCESS (SIGSEGV)");
}

#[tokio::test]
async fn only_minidumps_are_answered_in_the_schema_of_stackwalk() {
    let running = Running::start().await;
    let report = form(&[("apple_crash_report", &apple_report())]);
    let path = "/applecrashreport?format=stackwalk";
    let reply = send(&running, path, report).await;
    assert_eq!(reply.status, 400, "{}", reply.text);
    let body = json!({"symbolicate": {"type": "applecrashreport", "storage_url": "attachment:x"}});
    let reply = post(&running, "/symbolicate-any?format=stackwalk", &body).await;
    assert_eq!(reply.status, 400, "{}", reply.text);
    let dump = form(&[("upload_file_minidump", &bytes_of("minidump/crash.dmp"))]);
    let reply = send(&running, "/minidump?format=xml", dump.clone()).await;
    assert_eq!(reply.status, 400, "{}", reply.text);
    let reply = send(&running, "/minidump?format=stackwalk", dump).await;
    let answer = reply.expect(200, "a minidump").unwrap().body;
    assert_eq!(answer["status"], "OK", "{answer:#}");
    assert_eq!(answer["threads"][0]["frames"][0]["trust"], "context");
}
