//! What an instance needs of memory for the largest of requests.

use std::fmt::Write;

use reqwest::Method;
use serde_json::{Value, json};

use crate::Running;

const MODULES: u64 = 50;
const FRAMES: u64 = 2000;
const FUNCTIONS: u64 = 12_000;
const FUNCTION_BYTES: u64 = 0x40;

/// Bytes of caches that the instance may remember.
const BOUND: u64 = 16 << 20;

/// Bytes beside the bound.
const BESIDE: u64 = 64 << 20;

fn id(module: u64) -> String {
    format!("{:032X}", module + 1)
}

/// A Breakpad file with functions whose names have little in common.
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

/// A function of a module in a round of requests, far from the others.
fn function(round: u64, frame: u64) -> u64 {
    (frame / MODULES * FUNCTIONS / (FRAMES / MODULES) + round * 37) % FUNCTIONS
}

/// The largest request: each frame in another place.
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
async fn two_thousand_frames_in_fifty_modules_fit_into_the_bound_and_a_little_more() {
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
    assert!(stored > BOUND, "{stored} bytes prove nothing");
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
    }
    let stats = client.stats().await.unwrap();
    let symbolicate = stats.function("symbolicate");
    assert_eq!(symbolicate.cold_starts, 1, "{stats:#?}");
    let most = symbolicate.max_rss;
    assert!(most < BOUND + BESIDE, "{most} bytes at most");
}
