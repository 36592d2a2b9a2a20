//! Bodies of requests, up to their limit and beyond it.

use std::time::Duration;

use serde_json::{Value, json};
use symbolicate::testing::{Answer, answer};
use symdepot::adapters::faulty::{How, Operation};
use symdepot_tests::harness::{World, fixture_text};
use tokio::time::Instant;

/// The maximum size of a body, as docs/api.md says.
const LIMIT: usize = 6 * 1024 * 1024;

const BOUNDARY: &str = "a-boundary";

/// The routes that read a body, each with its type and a short body.
fn routes() -> [(&'static str, String, String); 8] {
    let json = || "application/json".to_owned();
    let form = || format!("multipart/form-data; boundary={BOUNDARY}");
    let empty_form = format!("--{BOUNDARY}--\r\n");
    let referring = json!({"symbolicate": {"type": "minidump", "storage_url": "file:///a"}});
    [
        (
            "/symbolicate",
            json(),
            json!({"stacktraces": []}).to_string(),
        ),
        ("/minidump", form(), empty_form.clone()),
        ("/applecrashreport", form(), empty_form),
        ("/symbolicate-any", json(), referring.to_string()),
        (
            "/symbolicate/v5",
            json(),
            json!({"memoryMap": [], "stacks": [[]]}).to_string(),
        ),
        ("/attachments", json(), json!({"bytes": 10}).to_string()),
        ("/uploads", json(), json!({"files": []}).to_string()),
        (
            "/tokens",
            json(),
            json!({"scope": "acme", "rights": ["upload"]}).to_string(),
        ),
    ]
}

/// Returns the event of a body that the operator sends.
fn event(path: &str, content_type: &str, body: &str) -> Value {
    let arn = "arn:aws:iam::123456789012:user/operator";
    let route = match path {
        "/tokens" => "ANY /tokens",
        _ => "$default",
    };
    json!({
        "version": "2.0", "routeKey": route, "rawPath": path, "rawQueryString": "",
        "headers": {"content-type": content_type}, "isBase64Encoded": false, "body": body,
        "requestContext": {
            "accountId": "1", "apiId": "abc", "domainName": "abc", "domainPrefix": "abc",
            "requestId": "1", "routeKey": route, "stage": "$default",
            "time": "12/Mar/2020:19:03:58 +0000", "timeEpoch": 1,
            "http": {"method": "POST", "path": path, "protocol": "HTTP/1.1", "sourceIp": "1.2.3.4", "userAgent": "a"},
            "authorizer": {"iam": {"userArn": arn, "accountId": "123456789012"}}
        }
    })
}

async fn answered(world: &World, event: &Value) -> Answer {
    let invocation = world.invocation(Duration::from_secs(29));
    let answered = answer(world.service().clone(), invocation, event);
    Box::pin(answered).await.unwrap()
}

/// Sends a body as the operator.
async fn sent(world: &World, path: &str, content_type: &str, body: &str) -> Answer {
    answered(world, &event(path, content_type, body)).await
}

#[tokio::test(start_paused = true)]
async fn a_body_over_six_mebibytes_is_refused_by_every_route_that_reads_one() {
    let world = World::new();
    for (path, content_type, short) in routes() {
        // Spaces after JSON, and bytes after the last boundary of a form, mean nothing.
        let of_length = |length: usize| short.clone() + &" ".repeat(length - short.len());
        let least = sent(&world, path, &content_type, &short).await;
        assert_ne!(least.status, 413, "{path}");
        let most = sent(&world, path, &content_type, &of_length(LIMIT)).await;
        assert_eq!(most.status, least.status, "{path}");
        let beyond = sent(&world, path, &content_type, &of_length(LIMIT + 1)).await;
        let body: Value = serde_json::from_slice(&beyond.body).unwrap();
        assert_eq!(beyond.status, 413, "{path}: {body}");
        let detail = body["detail"].as_str().unwrap();
        assert!(detail.contains("6291456"), "{path}: {detail}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_byte_order_mark_before_json_changes_no_answer() {
    let world = World::new();
    let json = routes()
        .into_iter()
        .filter(|(_, of, _)| of.ends_with("json"));
    for (path, content_type, body) in json {
        let plain = sent(&world, path, &content_type, &body).await;
        let marked = format!("\u{feff}{body}");
        let marked = sent(&world, path, &content_type, &marked).await;
        assert_eq!(marked.status, plain.status, "{path}: {marked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_of_a_form_that_is_given_twice_is_refused_unless_it_has_no_meaning() {
    let world = World::new();
    let content_type = format!("multipart/form-data; boundary={BOUNDARY}");
    let detail = async |name: &str, value: &str| {
        let part = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
        );
        let body = format!("{part}{part}--{BOUNDARY}--\r\n");
        let refused = sent(&world, "/minidump", &content_type, &body).await;
        assert_eq!(refused.status, 400, "{name}");
        let body: Value = serde_json::from_slice(&refused.body).unwrap();
        body["detail"].as_str().unwrap().to_owned()
    };
    for (name, value) in [
        ("upload_file_minidump", "MDMP"),
        ("storage_url", "attachment:0/1"),
        ("storage_token", "x"),
        ("platform", "\"native\""),
        ("sources", "[]"),
        ("options", "{}"),
        ("rewrite_first_module", "[]"),
        ("scraping", "{}"),
    ] {
        let expected = format!("the part {name} is given more than once");
        assert_eq!(detail(name, value).await, expected);
    }
    let missing = detail("comment", "x").await;
    assert!(missing.starts_with("missing minidump"), "{missing}");
}

#[tokio::test(start_paused = true)]
async fn a_form_without_a_file_is_refused_with_the_name_of_the_part() {
    let world = World::new();
    let content_type = format!("multipart/form-data; boundary={BOUNDARY}");
    for (path, part) in [
        ("/minidump", "upload_file_minidump"),
        ("/applecrashreport", "apple_crash_report"),
    ] {
        let detail = async |name: &str, value: &str| {
            let body = format!(
                "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n--{BOUNDARY}--\r\n"
            );
            let refused = sent(&world, path, &content_type, &body).await;
            assert_eq!(refused.status, 400, "{path}");
            let body: Value = serde_json::from_slice(&refused.body).unwrap();
            body["detail"].as_str().unwrap().to_owned()
        };
        let misnamed = detail("file", "x").await;
        assert!(
            misnamed.contains(&format!("as the part {part}")),
            "{misnamed}"
        );
        let empty = detail(part, "").await;
        assert!(
            empty.ends_with(&format!("the part {part} is empty")),
            "{empty}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_form_in_an_encoding_that_is_not_supported_is_refused_with_its_name() {
    let world = World::new();
    let content_type = format!("multipart/form-data; boundary={BOUNDARY}");
    let refused = async |encoding: &str, body: &str| {
        let mut event = event("/minidump", &content_type, body);
        event["headers"]["content-encoding"] = encoding.into();
        let refused = answered(&world, &event).await;
        assert_eq!(refused.status, 400, "{encoding}");
        let body: Value = serde_json::from_slice(&refused.body).unwrap();
        body["detail"].as_str().unwrap().to_owned()
    };
    for encoding in ["deflate", "br"] {
        let detail = refused(encoding, "x\u{1}\u{2}").await;
        let expected = format!("compressed with {encoding}, which is not supported");
        assert!(detail.contains(&expected), "{detail}");
        assert!(detail.contains("gzip or zstd"), "{detail}");
        // A proxy may have decoded the body.
        let decoded = refused(encoding, &format!("--{BOUNDARY}--\r\n")).await;
        assert!(decoded.starts_with("missing minidump"), "{decoded}");
    }
    for encoding in ["gzip", "X-GZIP", "zstd", "identity"] {
        let detail = refused(encoding, "x").await;
        assert!(!detail.contains("not supported"), "{encoding}: {detail}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_has_at_most_sixteen_mebibytes_however_short_its_stacks_are() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let crash: Value = serde_json::from_str(&fixture_text("crash.json")).unwrap();
    let modules = &crash["modules"];
    let frame = json!({"instruction_addr": "0x555555557950", "adjust_instruction_addr": false});
    for (threads, frames) in [(16_384, 1), (1, 12_000)] {
        let stacktrace = json!({"frames": vec![&frame; frames]});
        let body = json!({"modules": modules, "stacktraces": vec![&stacktrace; threads]});
        let refused = sent(
            &world,
            "/symbolicate",
            "application/json",
            &body.to_string(),
        )
        .await;
        let what: Value = serde_json::from_slice(&refused.body).unwrap_or_default();
        assert_eq!(refused.status, 413, "{threads} threads: {what}");
        let detail = what["detail"].as_str().unwrap();
        assert!(detail.contains("the limit is 16777216"), "{detail}");
        assert!(detail.contains("in several requests"), "{detail}");
    }
}

/// Lambda would stop the instance after 29 s, and the gateway would answer with its own error.
#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_respond_costs_a_request_its_time_and_no_more() {
    let world = World::new();
    let crash = fixture_text("crash.json");
    world.faults.fail_always(Operation::Load, How::Slow);
    let began = Instant::now();
    let late = sent(&world, "/symbolicate", "application/json", &crash).await;
    assert_eq!(late.status, 503);
    assert_eq!(began.elapsed(), Duration::from_millis(28_500));
    let body: Value = serde_json::from_slice(&late.body).unwrap();
    let detail = body["detail"].as_str().unwrap();
    assert!(detail.contains("send the request again"), "{detail}");
    world.faults.heal();
    let again = sent(&world, "/symbolicate", "application/json", &crash).await;
    assert_eq!(again.status, 200);
}
