//! Pending requests, invalid requests and their responses.

use reqwest::Method;
use serde_json::{Value, json};

use crate::{Running, bytes_of, crash};

/// Starts a stack to which the sample's debug file was uploaded, and whose derived caches were all
/// retired.
async fn with_a_retired_upload() -> Running {
    let running = Running::start_with(|options| options.variable("DERIVED_MAX_UNUSED", 0)).await;
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    let report = running.client().prune(false).await.unwrap();
    assert!(report["retired"].as_u64() >= Some(1), "{report:#}");
    running.client().end_functions().await.unwrap();
    running
}

#[tokio::test]
async fn a_request_that_does_not_wait_is_continued_by_its_id() {
    let running = with_a_retired_upload().await;
    let client = running.client();
    let pending = client
        .symbolicate("timeout=0", &crash::sample())
        .await
        .unwrap()
        .expect(200, "a crash")
        .unwrap();
    assert_eq!(pending.body["status"], "pending", "{}", pending.text);
    let id = pending.body["request_id"].as_str().unwrap();
    running.idle().await;
    // Any instance can continue the request.
    client.end_functions().await.unwrap();
    let continued = client
        .send(
            "a request",
            client.request(Method::GET, &format!("/requests/{id}?timeout=20")),
        )
        .await
        .unwrap();
    crash::assert_symbolicated(&continued.expect(200, "a request").unwrap().body);
}

#[tokio::test]
async fn a_large_request_that_does_not_wait_is_continued_too() {
    let running = with_a_retired_upload().await;
    let client = running.client();
    // A request that is stored outside the records, because it exceeds the size of one item.
    let mut request = crash::sample();
    let frame = json!({"instruction_addr": "0x1000"});
    let more = std::iter::repeat_n(frame, 12_000).collect::<Vec<Value>>();
    request["stacktraces"]
        .as_array_mut()
        .unwrap()
        .push(json!({"frames": more}));
    assert!(request.to_string().len() > 310_000);
    let pending = client
        .symbolicate("timeout=0", &request)
        .await
        .unwrap()
        .expect(200, "a crash")
        .unwrap();
    let id = pending.body["request_id"]
        .as_str()
        .unwrap_or_else(|| panic!("{}", pending.text));
    running.idle().await;
    client.end_functions().await.unwrap();
    let continued = client
        .send(
            "a request",
            client.request(Method::GET, &format!("/requests/{id}")),
        )
        .await
        .unwrap();
    crash::assert_symbolicated(&continued.expect(200, "a request").unwrap().body);
}

#[tokio::test]
async fn an_invalid_request_receives_an_error_that_names_the_cause() {
    let running = Running::start().await;
    let client = running.client();
    let too_many_frames = format!(
        r#"{{"stacktraces":[{{"frames":[{}]}}]}}"#,
        vec![r#"{"instruction_addr":1}"#; 131_073].join(",")
    );
    let cases: [(Method, &str, &str, u16); 14] = [
        (Method::POST, "/symbolicate", "{", 400),
        (Method::POST, "/symbolicate", "", 400),
        (Method::POST, "/symbolicate", "\u{0}\u{1}", 400),
        (Method::POST, "/symbolicate?timeout=soon", "{}", 400),
        (Method::POST, "/symbolicate", "[]", 422),
        (
            Method::POST,
            "/symbolicate",
            r#"{"stacktraces": [{"frames": [{}]}]}"#,
            422,
        ),
        (
            Method::POST,
            "/symbolicate",
            r#"{"stacktraces": [{"frames": [{"instruction_addr": "0xzz"}]}]}"#,
            422,
        ),
        (Method::POST, "/symbolicate", r#"{"modules": 7}"#, 422),
        (Method::POST, "/symbolicate", &too_many_frames, 413),
        (Method::GET, "/symbolicate", "", 405),
        (Method::POST, "/explain?key=global/x", "", 405),
        (Method::GET, "/nothing/here", "", 404),
        (
            Method::GET,
            "/requests/00000000-0000-0000-0000-000000000007",
            "",
            404,
        ),
        (Method::GET, "/explain?key=global/never-uploaded", "", 404),
    ];
    for (method, path, body, status) in cases {
        let shown = &body[..body.len().min(80)];
        let request = client.request(method.clone(), path).body(body.to_owned());
        let reply = client.send("an invalid request", request).await.unwrap();
        assert_eq!(
            reply.status, status,
            "{method} {path} {shown}: {}",
            reply.text
        );
        let detail = reply.body["detail"]
            .as_str()
            .unwrap_or_else(|| panic!("{method} {path} {shown}: {}", reply.text));
        assert!(!detail.is_empty(), "{method} {path} {shown}");
        let causes = reply.body.get("causes").map(|causes| {
            causes
                .as_array()
                .is_some_and(|causes| causes.iter().all(Value::is_string))
        });
        assert!(
            causes.unwrap_or(true),
            "{method} {path} {shown}: {}",
            reply.text
        );
        if status == 400 || status == 422 {
            assert_eq!(
                causes,
                Some(true),
                "{method} {path} {shown}: the response contains no causes: {}",
                reply.text
            );
        }
    }
    // Exceeds the body size that the gateway passes to a function.
    let request = client
        .request(Method::POST, "/symbolicate")
        .body(vec![b' '; 11 << 20]);
    assert_eq!(
        client
            .send("a large request", request)
            .await
            .unwrap()
            .status,
        413
    );
    let stats = client.stats().await.unwrap();
    assert_eq!(
        stats.function("symbolicate").errors,
        0,
        "an invalid request is not an error of the function"
    );
}

#[tokio::test]
async fn an_empty_request_receives_an_empty_response() {
    let running = Running::start().await;
    let answer = running.client().completed("", &json!({})).await.unwrap();
    assert_eq!(answer["stacktraces"], json!([]));
    assert_eq!(answer["modules"], json!([]));
}

#[tokio::test]
async fn an_empty_list_of_sources_disables_lookups() {
    let running = Running::start().await;
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    let mut request = crash::sample();
    request["sources"] = json!([]);
    crash::assert_nothing_found(
        &running.client().completed("", &request).await.unwrap(),
        "missing",
    );
}

#[tokio::test]
async fn the_health_check_responds_with_ok() {
    let running = Running::start().await;
    let client = running.client();
    let reply = client
        .send(
            "the health check",
            client.request(Method::GET, "/healthcheck"),
        )
        .await
        .unwrap();
    assert_eq!((reply.status, &*reply.text), (200, "ok"));
}

#[tokio::test]
async fn candidates_are_listed_when_requested() {
    let running = Running::start().await;
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    let mut request = crash::sample();
    request["options"] = json!({"dif_candidates": true});
    let answer = running.client().completed("", &request).await.unwrap();
    let candidate = &answer["modules"][0]["candidates"][0];
    assert_eq!(candidate["location"], "global/crash.debug", "{answer:#}");
    assert_eq!(candidate["download"]["status"], "ok", "{candidate:#}");
    assert_eq!(candidate["debug"]["status"], "ok", "{candidate:#}");
}
