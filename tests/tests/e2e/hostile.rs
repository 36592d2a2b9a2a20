//! Files that mean harm: each is told what is wrong with it, and the functions live.

use serde_json::Value;

use crate::crash;
use crate::{Running, bytes_of};

/// Files of which nothing can be used: their uploads are ignored, with a reason.
const IGNORED: [&str; 11] = [
    "empty",
    "text.txt",
    "cut-short.pdb",
    "elf-magic-then-garbage",
    "macho-fat-of-4-billion",
    "zip-magic-then-garbage.zip",
    "wasm-endless-section.wasm",
    "pdb-huge-directory.pdb",
    "nothing-of-use.zip",
    "id-of-nothing.sym",
    "no-module.sym",
];

/// Files with ids, and what a module is told that looks for them.
const WITH_IDS: [(&str, &str); 9] = [
    ("bomb-32-mib.gz", "missing"), // and nothing in it
    ("bomb-1-gib.zst", "malformed"),
    ("cut-short.debug", "malformed"),
    ("section-claims-a-tebibyte", "malformed"),
    ("bits-flipped.debug", "malformed"),
    ("outside-its-folder.zip", "found"),
    ("deep-names.so", "found"),
    ("origin-loop.so", "found"),
    ("absurd-numbers.sym", "malformed"),
];

#[tokio::test]
async fn hostile_files_are_refused_with_a_reason_and_harm_nobody() {
    let running = Running::start_with(|options| {
        options
            .variable("PARSER_MEMORY_BYTES", 1_u64 << 30)
            .variable("PARSER_CPU_SECONDS", 10)
            .variable("SCRATCH_BYTES", 256 << 20)
    })
    .await;
    let client = running.client();
    for name in IGNORED.iter().chain(WITH_IDS.iter().map(|(name, _)| name)) {
        client
            .upload(&key(name), bytes_of(&format!("hostile/{name}")))
            .await
            .unwrap();
    }
    client
        .upload("no scope at all.debug", bytes_of("elf/crash.debug"))
        .await
        .unwrap();
    running.idle().await;

    for name in IGNORED {
        let (state, upload) = running.state_of(&key(name)).await;
        assert_eq!(state, "ignored", "{name}: {upload:#}");
        assert_reason(name, &upload["reason"]);
    }
    let (state, upload) = running.state_of("no scope at all.debug").await;
    assert_eq!(state, "ignored", "{upload:#}");
    assert_reason("a key without a scope", &upload["reason"]);

    for (name, status) in WITH_IDS {
        let (state, upload) = running.state_of(&key(name)).await;
        assert_eq!(state, "applied", "{name}: {upload:#}");
        for object in upload["objects"].as_array().unwrap() {
            let module = crash::module(
                "elf",
                object["debug_id"].as_str().unwrap(),
                object["code_id"].as_str(),
            );
            let request = crash::of_module(module, &[0, 0x1000, 0x1234, 0x2000, 0x10_0000]);
            let answer = client
                .completed(&format!("scope={name}"), &request)
                .await
                .unwrap();
            let module = &answer["modules"][0];
            assert_eq!(module["debug_status"], status, "{name}: {answer:#}");
            if status == "malformed" {
                assert_reason(name, &module["debug_detail"]);
                let frames = answer["stacktraces"][0]["frames"].as_array().unwrap();
                assert!(
                    frames.iter().all(|frame| frame["status"] == "malformed"),
                    "{name}: {frames:#?}"
                );
            }
        }
    }

    // The functions are as well as before.
    running
        .upload("global/good/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    crash::assert_symbolicated(&client.completed("", &crash::sample()).await.unwrap());
    let stats = client.stats().await.unwrap();
    for function in ["derive", "symbolicate"] {
        assert_eq!(
            (
                stats.function(function).errors,
                stats.function(function).timeouts
            ),
            (0, 0),
            "{function}: {stats:#?}"
        );
    }
    assert_eq!(stats.dead_letters(), 0, "{stats:#?}");
}

/// Each file has a scope of its own: several claim the same id.
fn key(name: &str) -> String {
    format!("{name}/hostile")
}

fn assert_reason(name: &str, reason: &Value) {
    let reason = reason
        .as_str()
        .unwrap_or_else(|| panic!("{name} has no reason"));
    assert!(
        reason.len() >= 10 && reason.len() <= 1024,
        "{name}: {reason:?} says little, or too much"
    );
}
