//! The memory that an instance needs for the largest requests.

use std::fmt::Write;

use reqwest::Method;
use serde_json::{Value, json};

use crate::{Running, bytes_of, crash};

const MODULES: u64 = 50;
const FRAMES: u64 = 2000;
const FUNCTIONS: u64 = 12_000;
const FUNCTION_BYTES: u64 = 0x40;

/// The size limit of the instance's memory, in bytes.
const BOUND: u64 = 16 << 20;

/// The memory that an instance may need in addition to its cache, in bytes.
const BESIDE: u64 = 64 << 20;

fn id(module: u64) -> String {
    format!("{:032X}", module + 1)
}

/// Returns a Breakpad file with functions whose names have little in common.
fn file(module: u64) -> Vec<u8> {
    let mut text = format!(
        "MODULE Linux x86_64 {}0 module_{module}\nFILE 0 /build/source.cc\n",
        id(module)
    );
    for number in 0..FUNCTIONS {
        let start = number * FUNCTION_BYTES;
        let _ = writeln!(
            text,
            "FUNC {start:x} {FUNCTION_BYTES:x} 0 {}",
            name(module, number)
        );
        for line in 0..4 {
            let _ = writeln!(text, "{:x} 10 {} 0", start + line * 0x10, number + line);
        }
    }
    text.into_bytes()
}

fn name(module: u64, function: u64) -> String {
    let noise = (module * FUNCTIONS + function).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("module_{module}::part_{noise:016x}::function_{function}")
}

/// Returns the number of a frame's function in a round of requests; the functions of one round are
/// far from each other.
fn function(round: u64, frame: u64) -> u64 {
    (frame / MODULES * FUNCTIONS / (FRAMES / MODULES) + round * 37) % FUNCTIONS
}

/// Returns the largest request: each frame is in a different function.
fn request(round: u64) -> Value {
    let base = |module: u64| (module + 1) << 32;
    let modules: Vec<Value> = (0..MODULES)
        .map(|module| {
            json!({
                "type": "elf",
                "debug_id": format!("{}0", id(module)),
                "image_addr": format!("{:#x}", base(module)),
                "image_size": FUNCTIONS * FUNCTION_BYTES,
            })
        })
        .collect();
    let frames: Vec<Value> = (0..FRAMES)
        .map(|frame| {
            let address = base(frame % MODULES) + function(round, frame) * FUNCTION_BYTES + 4;
            json!({"instruction_addr": format!("{address:#x}")})
        })
        .collect();
    json!({
        "stacktraces": [{"frames": frames}],
        "modules": modules,
        "options": {"adjust_instruction_addr": false},
    })
}

#[tokio::test]
async fn two_thousand_frames_in_fifty_modules_need_little_more_than_the_cache_limit() {
    let running =
        Running::start_with(|options| options.variable("MEMORY_CACHE_BYTES", BOUND)).await;
    let client = running.client();
    for module in 0..MODULES {
        client
            .upload(&format!("global/{module}.sym"), file(module))
            .await
            .unwrap();
    }
    running.idle().await;
    let blobs = client.blobs().await.unwrap();
    let stored: u64 = blobs.iter().map(|(_, bytes)| bytes).sum();
    assert!(
        stored > BOUND,
        "the caches must exceed the limit: {stored} bytes"
    );
    client.end_functions().await.unwrap();
    for round in 0..3 {
        let asked = client
            .request(Method::POST, "/symbolicate")
            .json(&request(round));
        let answer = client.send("symbolication", asked).await.unwrap();
        let answer = answer.expect(200, "symbolication").unwrap().body;
        let frames = answer["stacktraces"][0]["frames"].as_array().unwrap();
        assert_eq!(frames.len() as u64, FRAMES, "{answer:#}");
        for (number, frame) in (0..).zip(frames) {
            let expected = name(number % MODULES, function(round, number));
            assert_eq!(frame["function"], expected, "{frame:#}");
        }
        // The next request has the same instance.
        running.idle().await;
    }
    let stats = client.stats().await.unwrap();
    let symbolicate = stats.function("symbolicate");
    assert_eq!(symbolicate.cold_starts, 1, "{stats:#?}");
    let most = symbolicate.max_rss;
    assert!(most < BOUND + BESIDE, "peak memory: {most} bytes");
}

/// Covers the most expensive requests that fit into a body of the maximum size, and bodies that are
/// not requests.
#[tokio::test]
async fn no_request_uses_more_memory_than_its_limits_allow() {
    let running =
        Running::start_with(|options| options.variable("MEMORY_CACHE_BYTES", BOUND)).await;
    let client = running.client();
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    let sample = crash::sample();
    let address = &sample["stacktraces"][0]["frames"][0]["instruction_addr"];
    let frames = |frames: &str| {
        let module = crash::sample_module();
        format!(r#"{{"modules": [{module}], "stacktraces": [{{"frames": [{frames}]}}]}}"#)
    };
    let in_frame = |field: &str| frames(&format!(r#"{{"instruction_addr": 0, {field}}}"#));
    let module = r#"{"type":"elf","debug_id":"decade00-0000-4000-8000-000000000008"}"#;
    for (what, body, status) in [
        (
            "variables",
            in_frame(&format!(r#""vars": {{"a": [{}]}}"#, many(r#"{"a":0}"#))),
            200,
        ),
        (
            "lines",
            in_frame(&format!(r#""pre_context": [{}]"#, many(r#""""#))),
            200,
        ),
        (
            "one long name",
            in_frame(&format!(r#""function": "{}""#, "n".repeat(MOST))),
            200,
        ),
        (
            "more frames than a request has",
            frames(&many(r#"{"instruction_addr":0}"#)),
            413,
        ),
        (
            "frames of an unknown module",
            frames(&times(131_072, r#"{"instruction_addr":9}"#)),
            200,
        ),
        (
            "frames of a known one",
            frames(&times(
                131_072,
                &format!(r#"{{"instruction_addr":{address}}}"#),
            )),
            413,
        ),
        (
            "stacks",
            format!(r#"{{"stacktraces":[{}]}}"#, many(r#"{"frames":[]}"#)),
            413,
        ),
        (
            "registers",
            format!(
                r#"{{"stacktraces":[{{"frames":[],"registers":{{{}}}}}]}}"#,
                registers()
            ),
            413,
        ),
        (
            "modules",
            format!(r#"{{"modules":[{}],"stacktraces":[]}}"#, many(module)),
            413,
        ),
        (
            "the type of a module",
            format!(
                r#"{{"modules":[{{"type":null}}], "x":[{}]}}"#,
                many(r#"{"a":0}"#)
            ),
            422,
        ),
        ("objects", format!("[{}]", many(r#"{"a":0}"#)), 422),
        ("arrays in arrays", "[".repeat(MOST), 400),
        ("spaces", " ".repeat(MOST), 400),
    ] {
        let request = client
            .request(Method::POST, "/symbolicate?timeout=0")
            .header("content-type", "application/json");
        let reply = client.send("a body", request.body(body)).await.unwrap();
        assert_eq!(reply.status, status, "{what}: {:.300}", reply.text);
        let stats = client.stats().await.unwrap();
        let symbolicate = stats.function("symbolicate");
        assert_eq!(symbolicate.errors, 0, "{what}: {stats:#?}");
        assert!(
            symbolicate.max_rss < BOUND + (256 << 20),
            "{what}: {} bytes",
            symbolicate.max_rss
        );
    }
}

/// A little less than the maximum size of a body, in bytes, as a text in the event of a function.
const MOST: usize = 6_200_000;

/// Returns an element, repeated as often as a body has room for it.
fn many(element: &str) -> String {
    let in_event = json!(element).to_string().len() - "\"\"".len();
    times(MOST / (in_event + ",".len()), element)
}

fn times(count: usize, element: &str) -> String {
    let mut all = format!("{element},").repeat(count);
    all.pop();
    all
}

fn registers() -> String {
    let registers: Vec<String> = (0..MOST / 13)
        .map(|number| format!(r#""{number:06x}":0"#))
        .collect();
    registers.join(",")
}
