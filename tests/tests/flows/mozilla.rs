//! Mozilla's symbolication API, as the Firefox Profiler and scripts send it.

use std::time::Duration;

use serde_json::{Value, json};
use symbolicate::testing::{Answer, answer};
use symdepot::cache::Item;
use symdepot_tests::harness::{World, fixture_text};
use tokio::time::Instant;

use crate::requests::cold_with;

const ROUTE: &str = "/symbolicate/v5";

/// The module of the sample crash, as the Profiler names it.
const MODULE: [&str; 2] = ["crash", "BC6E45AC487FF425367208B89F51AD480"];

/// Where the module of the sample crash is mapped.
const IMAGE: u64 = 0x5555_5555_4000;

const PROFILER: &str = "https://profiler.firefox.com";

/// A request, without a credential unless a header has one.
struct Sent<'a> {
    method: &'a str,
    path: &'a str,
    query: &'a str,
    headers: &'a [(&'a str, &'a str)],
    body: String,
}

impl<'a> Sent<'a> {
    fn post(body: &Value) -> Self {
        Self {
            method: "POST",
            path: ROUTE,
            query: "",
            headers: &[],
            body: body.to_string(),
        }
    }

    fn preflight(path: &'a str, headers: &'a [(&'a str, &'a str)]) -> Self {
        Self {
            method: "OPTIONS",
            path,
            query: "",
            headers,
            body: String::new(),
        }
    }

    fn event(&self) -> Value {
        let mut headers = json!({"content-type": "text/plain;charset=UTF-8"});
        for (name, value) in self.headers {
            headers[*name] = (*value).into();
        }
        json!({
            "version": "2.0", "routeKey": "$default", "rawPath": self.path, "rawQueryString": self.query,
            "headers": headers, "isBase64Encoded": false, "body": self.body,
            "requestContext": {
                "accountId": "1", "apiId": "abc", "domainName": "abc", "domainPrefix": "abc",
                "requestId": "1", "routeKey": "$default", "stage": "$default",
                "time": "12/Mar/2020:19:03:58 +0000", "timeEpoch": 1,
                "http": {"method": self.method, "path": self.path, "protocol": "HTTP/1.1", "sourceIp": "1.2.3.4", "userAgent": "a"}
            }
        })
    }

    async fn to(&self, world: &World) -> Answer {
        let invocation = world.invocation(Duration::from_secs(29));
        let event = self.event();
        let answered = answer(world.service().clone(), invocation, &event);
        Box::pin(answered).await.unwrap()
    }
}

fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    let value = answer.headers.get(name);
    value.map(|value| value.to_str().unwrap())
}

fn json_of(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body).unwrap()
}

/// Returns a world that lets anyone enter, as the local stack does.
fn open() -> World {
    World::with(|settings| settings.allows_anonymous = true)
}

/// The call that a frame of the sample crash is in, and those inlined into it, innermost first.
struct Call {
    /// The offset in the module, of the call instruction in callers.
    offset: u64,
    functions: Vec<Value>,
}

/// Returns the calls of the sample crash, on which gdb and llvm-symbolizer agree.
fn expected_calls() -> Vec<Call> {
    let expected: Value = serde_json::from_str(&fixture_text("crash.expected.json")).unwrap();
    let mut calls: Vec<Call> = Vec::new();
    let mut functions = Vec::new();
    for frame in expected["frames"].as_array().unwrap() {
        functions.push(frame.clone());
        if frame["inlined"] == true {
            continue;
        }
        let address = frame["instruction_addr"].as_str().unwrap();
        let address = u64::from_str_radix(&address[2..], 16).unwrap();
        // The Profiler has subtracted one from return addresses.
        let is_caller = !calls.is_empty();
        calls.push(Call {
            offset: address - IMAGE - u64::from(is_caller),
            functions: std::mem::take(&mut functions),
        });
    }
    calls
}

fn assert_function(found: &Value, expected: &Value) {
    assert_eq!(found["file"], expected["file"], "{found:#}");
    assert_eq!(found["line"], expected["line"], "{found:#}");
    // Demanglers differ in template arguments and parameters.
    let gdb = expected["gdb"].as_str().unwrap();
    let plain_name = gdb.split(['<', '(']).next();
    let plain_name = plain_name.filter(|name| !name.ends_with("::"));
    let name = found["function"].as_str().unwrap();
    assert!(
        name.starts_with(plain_name.unwrap_or(gdb)),
        "{name} is {gdb}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_frames_of_the_sample_have_the_names_and_lines_that_two_debuggers_agree_on() {
    let world = open();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let calls = expected_calls();
    assert!(calls.len() > 2, "the sample has several frames");
    let stack: Vec<Value> = calls.iter().map(|call| json!([0, call.offset])).collect();
    let unknown = ["libc.so.6", "1629FCF0BE5C8860C0E1ADF03B0048FB0"];
    let unused = ["[vdso]", ""];
    let body = json!({"jobs": [
        {"memoryMap": [MODULE], "stacks": [stack, [[-1, 16]]]},
        {"memoryMap": [unknown, unused], "stacks": [[[0, 4096]]]},
    ]});
    let answer = world
        .with_derive_at_work(Sent::post(&body).to(&world))
        .await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(header(&answer, "content-type"), Some("application/json"));
    let results = &json_of(&answer)["results"];

    let stacks = &results[0]["stacks"];
    let frames = stacks[0].as_array().unwrap();
    assert_eq!(frames.len(), calls.len());
    for (index, (frame, call)) in frames.iter().zip(&calls).enumerate() {
        assert_eq!(frame["frame"], index);
        assert_eq!(frame["module"], MODULE[0]);
        assert_eq!(frame["module_offset"], format!("{:#x}", call.offset));
        let (outer, inlined) = call.functions.split_last().unwrap();
        assert_function(frame, outer);
        let found = frame["inlines"].as_array().cloned().unwrap_or_default();
        assert_eq!(found.len(), inlined.len(), "{frame:#}");
        for (found, inlined) in found.iter().zip(inlined) {
            assert_function(found, inlined);
        }
    }
    // `sym_addr` of the same frame in the examples of docs/openapi.json.
    assert_eq!(frames[0]["function_offset"], "0xa0");
    assert_eq!(
        stacks[1],
        json!([{"frame": 0, "module": "<unknown>", "module_offset": "0x10"}])
    );
    let key = MODULE.join("/");
    assert_eq!(results[0]["found_modules"], json!({&key: true}));
    assert!(results[0].get("module_errors").is_none());

    let key = unknown.join("/");
    assert_eq!(
        results[1]["found_modules"],
        json!({&key: false, "[vdso]/": null})
    );
    let failed = &results[1]["module_errors"][&key][0];
    assert_eq!(failed["name"], "missing");
    let message = failed["message"].as_str().unwrap();
    assert!(message.contains("upload"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_files_are_not_ready_is_to_be_sent_again_and_is_not_stored() {
    let seconds = Duration::from_secs;
    let world = cold_with(|settings| {
        settings.allows_anonymous = true;
        settings.queued_wait = Some(seconds(5));
    })
    .await;
    let body = json!({"memoryMap": [MODULE], "stacks": [[[0, 0x3950]]]});
    // No other call continues it, so it waits for builds in queues, too.
    for (query, waits) in [("timeout=0", 0), ("", 25)] {
        let began = Instant::now();
        let sent = Sent {
            query,
            ..Sent::post(&body)
        };
        let answer = sent.to(&world).await;
        assert_eq!(answer.status, 503, "{answer:?}");
        assert_eq!(began.elapsed(), seconds(waits));
        assert_eq!(header(&answer, "retry-after"), Some("2"));
        let title = json_of(&answer)["title"].to_string();
        assert!(title.contains("send the request again"), "{title}");
    }
    let items = world.records.items();
    let is_request = |item: &Item| matches!(item, Item::Request(_));
    assert!(!items.iter().any(|(_, stored)| is_request(&stored.item)));
    assert_eq!(world.caches.paths(), Vec::<String>::new());
    // It has requested the build.
    world.settle().await;
    let answer = Sent::post(&body).to(&world).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let found = &json_of(&answer)["results"][0]["found_modules"];
    assert_eq!(*found, json!({MODULE.join("/"): true}));
}

#[tokio::test(start_paused = true)]
async fn wrong_jobs_are_refused_before_any_call_with_a_title() {
    let world = open();
    let calls = world.calls();
    for (body, expected) in [
        (json!({}), "job 0 is invalid: no stacks specified"),
        (
            json!({"memoryMap": [MODULE], "stacks": [[[1, 0]]]}),
            "job 0 has invalid stacks: stack 0 frame 0 has a module_index that isn't in modules",
        ),
    ] {
        let answer = Sent::post(&body).to(&world).await;
        assert_eq!(
            (answer.status, json_of(&answer)),
            (400, json!({"title": expected}))
        );
    }
    let many = json!({"memoryMap": vec![["", ""]; 16_385], "stacks": [[]]});
    let answer = Sent::post(&many).to(&world).await;
    let detail = json_of(&answer)["detail"].to_string();
    assert_eq!(answer.status, 413);
    assert!(detail.contains("16384 modules"), "{detail}");
    assert_eq!(world.calls(), calls);
    // Other versions have no route.
    for path in ["/symbolicate/v4", "/symbolicate/v6", "/symbolicate/v5/x"] {
        let other = Sent {
            path,
            ..Sent::post(&json!({}))
        };
        assert_eq!(other.to(&world).await.status, 404, "{path}");
    }
    let get = Sent {
        method: "GET",
        ..Sent::post(&json!({}))
    };
    let answer = get.to(&world).await;
    assert_eq!(
        (answer.status, header(&answer, "allow")),
        (405, Some("POST"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_preflight_needs_no_credential_and_says_nothing_but_what_a_page_may_send() {
    // A credential is required.
    let world = World::new();
    let token = format!("/t/sdt_{}{ROUTE}", "A".repeat(43));
    let headers = [
        ("origin", PROFILER),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "user-agent"),
    ];
    let calls = world.calls();
    let mut answers = Vec::new();
    for path in [
        ROUTE,
        "/scope/acme/symbolicate/v5",
        "/t/x/symbolicate/v5",
        token.as_str(),
    ] {
        let answer = Sent::preflight(path, &headers).to(&world).await;
        assert_eq!((answer.status, answer.body.len()), (204, 0), "{path}");
        answers.push(answer);
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    assert_eq!(world.calls(), calls);
    for (name, value) in [
        ("access-control-allow-origin", PROFILER),
        ("access-control-allow-methods", "POST"),
        ("access-control-allow-headers", "user-agent"),
        ("access-control-max-age", "86400"),
        ("vary", "origin"),
    ] {
        assert_eq!(header(&answers[0], name), Some(value), "{name}");
    }
    let foreign = [("origin", "https://evil.example"), headers[1], headers[2]];
    let answer = Sent::preflight(ROUTE, &foreign).to(&world).await;
    let mut names = answer.headers.keys();
    assert!(names.all(|name| !name.as_str().starts_with("access-control")));
    // Other routes are not for pages.
    let answer = Sent::preflight("/symbolicate", &headers).to(&world).await;
    assert_eq!(answer.status, 401);
}

#[tokio::test(start_paused = true)]
async fn a_page_reads_responses_and_errors_only_if_it_is_the_profiler_or_on_this_machine() {
    let world = open();
    let valid = json!({"memoryMap": [], "stacks": [[]]});
    let unknown = format!("Bearer sdt_{}", "A".repeat(43));
    for (origin, is_allowed) in [
        (PROFILER, true),
        ("http://localhost:4242", true),
        ("http://127.0.0.1:8000", true),
        ("https://evil.example", false),
        ("null", false),
    ] {
        let headers = [("origin", origin)];
        let refused = [("origin", origin), ("authorization", &unknown)];
        for (body, headers, status) in [
            (&valid, &headers[..], 200),
            (&json!({}), &headers[..], 400),
            (&valid, &refused[..], 401),
        ] {
            let sent = Sent {
                headers,
                ..Sent::post(body)
            };
            let answer = sent.to(&world).await;
            assert_eq!(answer.status, status, "{origin}: {answer:?}");
            let readable_by = header(&answer, "access-control-allow-origin");
            assert_eq!(readable_by, is_allowed.then_some(origin), "{status}");
            assert_eq!(header(&answer, "vary"), Some("origin"));
        }
        // No other route lets pages read.
        for path in ["/symbolicate", "/about", "/symbolicate/v4"] {
            let other = Sent {
                path,
                headers: &headers,
                ..Sent::post(&json!({}))
            };
            let answer = other.to(&world).await;
            let readable_by = header(&answer, "access-control-allow-origin");
            assert_eq!(readable_by, None, "{path}");
        }
    }
}
