//! Uploads and removals: an uploaded file provides names in responses, and a removed one no longer
//! does.

use symdepot_tests::stack::until;

use crate::crash::{self, Oracle};
use crate::{PATIENCE, Running, bytes_of, json_of};

const X86_64_DSYM: (&str, &str) = (
    "4c4c44d1-5555-3144-a1ab-5b64cd3ef282",
    "4c4c44d155553144a1ab5b64cd3ef282",
);
const ARM64_DSYM: (&str, &str) = (
    "4c4c445c-5555-3144-a106-efef076dfa3c",
    "4c4c445c55553144a106efef076dfa3c",
);
const ARM64_ELF: (&str, &str) = (
    "10311f21-a03f-9405-1950-37650303f4a9",
    "211f31103fa00594195037650303f4a9fb6672dd",
);

#[tokio::test]
async fn an_upload_symbolicates_the_next_crash() {
    let running = Running::start().await;
    running
        .upload(
            "global/any/path/you like.debug",
            bytes_of("elf/crash.debug"),
        )
        .await;
    let (state, upload) = running.state_of("global/any/path/you like.debug").await;
    assert_eq!(state, "applied", "{upload:#}");
    assert_eq!(
        upload["objects"][0]["code_id"],
        crash::sample_module()["code_id"]
    );
    crash::assert_symbolicated(&running.sample_answer().await);
}

#[tokio::test]
async fn a_crash_before_its_upload_is_symbolicated_after_the_upload() {
    let running = Running::start().await;
    crash::assert_nothing_found(&running.sample_answer().await, "missing");
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    // An instance may cache the negative result for two seconds, and not longer.
    let found = until("the symbolicated crash", PATIENCE, async || {
        let answer = running.sample_answer().await;
        (answer["modules"][0]["debug_status"] == "found").then_some(answer)
    });
    crash::assert_symbolicated(&found.await.unwrap());
}

#[tokio::test]
async fn a_symsorter_tree_can_be_uploaded_unchanged() {
    let running = Running::start().await;
    let meta = |name: &str, arch: &str| {
        format!(r#"{{"name": "{name}", "arch": "{arch}", "file_format": "elf"}}"#)
    };
    let arm64 = zstd::encode_all(&*bytes_of("elf/crash-arm64.debug"), 3).unwrap();
    let (x86_id, arm64_id) = (
        ("ac", "456ebc7f4825f4367208b89f51ad481774aae7"),
        ("21", "1f31103fa00594195037650303f4a9fb6672dd"),
    );
    let tree: [(String, Vec<u8>); 7] = [
        (
            format!("{}/{}/debuginfo", x86_id.0, x86_id.1),
            bytes_of("elf/crash.debug"),
        ),
        (
            format!("{}/{}/debuginfo.meta", x86_id.0, x86_id.1),
            meta("crash.debug", "x86_64").into(),
        ),
        (
            format!("{}/{}/executable", x86_id.0, x86_id.1),
            bytes_of("elf/crash"),
        ),
        (
            format!("{}/{}/refs/build-7", x86_id.0, x86_id.1),
            Vec::new(),
        ),
        (format!("{}/{}/debuginfo", arm64_id.0, arm64_id.1), arm64),
        (
            format!("{}/{}/debuginfo.meta", arm64_id.0, arm64_id.1),
            meta("crash-arm64.debug", "arm64").into(),
        ),
        (
            "bundles/build-7".to_owned(),
            br#"{"name": "build-7", "timestamp": "2026-01-01T00:00:00Z", "debug_ids": []}"#
                .to_vec(),
        ),
    ];
    for (path, bytes) in tree {
        running
            .upload(&format!("global/symbols/{path}"), bytes)
            .await;
    }

    crash::assert_symbolicated(&running.sample_answer().await);
    let oracle = Oracle::of("expected/elf-crash-arm64.debug.llvm-symbolizer.json");
    let module = crash::module("elf", ARM64_ELF.0, Some(ARM64_ELF.1));
    oracle.assert_agrees(
        &running
            .client()
            .completed("", &crash::of_module(module, &oracle.addresses))
            .await
            .unwrap(),
    );
    let (state, bundle) = running.state_of("global/symbols/bundles/build-7").await;
    assert_eq!(state, "ignored", "{bundle:#}");
}

#[tokio::test]
async fn every_object_in_a_zip_is_usable() {
    let running = Running::start().await;
    running
        .upload(
            "global/crash.dSYM.zip",
            bytes_of("containers/crash.dSYM.zip"),
        )
        .await;
    let (state, upload) = running.state_of("global/crash.dSYM.zip").await;
    assert_eq!(
        (&*state, upload["objects"].as_array().map(Vec::len)),
        ("applied", Some(2)),
        "{upload:#}"
    );
    for ((debug_id, code_id), oracle) in [
        (
            X86_64_DSYM,
            "expected/macho-x86_64-crash.dSYM.llvm-symbolizer.json",
        ),
        (
            ARM64_DSYM,
            "expected/macho-arm64-crash.dSYM.llvm-symbolizer.json",
        ),
    ] {
        let oracle = Oracle::of(oracle);
        let module = crash::module("macho", debug_id, Some(code_id));
        oracle.assert_agrees(
            &running
                .client()
                .completed("", &crash::of_module(module, &oracle.addresses))
                .await
                .unwrap(),
        );
    }
}

#[tokio::test]
async fn a_module_that_is_known_by_its_code_id_alone_is_found() {
    let running = Running::start().await;
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    let mut request = crash::sample();
    request["modules"][0]
        .as_object_mut()
        .unwrap()
        .remove("debug_id");
    crash::assert_symbolicated(&running.client().completed("", &request).await.unwrap());
}

#[tokio::test]
async fn a_better_file_replaces_a_worse_one() {
    let running = Running::start().await;
    running.upload("global/crash", bytes_of("elf/crash")).await;
    let before = running.sample_answer().await;
    assert!(
        before["stacktraces"][0]["frames"]
            .as_array()
            .unwrap()
            .iter()
            .all(|frame| frame["lineno"].is_null()),
        "{before:#}"
    );
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    running.client().end_functions().await.unwrap();
    crash::assert_symbolicated(&running.sample_answer().await);
}

#[tokio::test]
async fn a_removed_file_is_absent_from_all_responses() {
    let running = Running::start().await;
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    crash::assert_symbolicated(&running.sample_answer().await);
    running.client().remove("global/crash.debug").await.unwrap();
    running.idle().await;
    assert_eq!(running.state_of("global/crash.debug").await.0, "gone");
    // A warm instance may use its cache for some seconds; a new one has no cache.
    running.client().end_functions().await.unwrap();
    crash::assert_nothing_found(&running.sample_answer().await, "missing");
}

#[tokio::test]
async fn when_one_of_two_files_is_removed_the_other_one_is_used() {
    let running = Running::start().await;
    running
        .upload("global/one/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    running
        .upload("global/two/crash.debug", bytes_of("elf/crash.zlib.debug"))
        .await;
    for removed in ["global/one/crash.debug", "global/two/crash.debug"] {
        running.client().end_functions().await.unwrap();
        crash::assert_symbolicated(&running.sample_answer().await);
        running.client().remove(removed).await.unwrap();
        running.idle().await;
    }
    running.client().end_functions().await.unwrap();
    crash::assert_nothing_found(&running.sample_answer().await, "missing");
}

#[tokio::test]
async fn overwritten_bytes_are_absent_from_all_responses() {
    let running = Running::start().await;
    running
        .upload("global/app.debug", bytes_of("elf/crash.debug"))
        .await;
    running
        .upload("global/app.debug", bytes_of("elf/crash-arm64.debug"))
        .await;
    crash::assert_nothing_found(&running.sample_answer().await, "missing");
    let oracle = Oracle::of("expected/elf-crash-arm64.debug.llvm-symbolizer.json");
    let module = crash::module("elf", ARM64_ELF.0, Some(ARM64_ELF.1));
    oracle.assert_agrees(
        &running
            .client()
            .completed("", &crash::of_module(module, &oracle.addresses))
            .await
            .unwrap(),
    );
}

#[tokio::test]
async fn a_scope_is_visible_only_to_itself() {
    let running = Running::start().await;
    running
        .upload("acme/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    for query in ["", "scope=global", "scope=other"] {
        crash::assert_nothing_found(
            &running
                .client()
                .completed(query, &crash::sample())
                .await
                .unwrap(),
            "missing",
        );
    }
    crash::assert_symbolicated(
        &running
            .client()
            .completed("scope=acme", &crash::sample())
            .await
            .unwrap(),
    );
}

#[tokio::test]
async fn global_files_are_visible_to_every_scope() {
    let running = Running::start().await;
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    crash::assert_symbolicated(
        &running
            .client()
            .completed("scope=acme", &crash::sample())
            .await
            .unwrap(),
    );
}

#[tokio::test]
async fn crashes_of_each_format_are_symbolicated() {
    let running = Running::start().await;
    let formats = [
        (
            "pe/x64/crash.pdb",
            "pe",
            "c7d4c24f-1fb8-5408-4c4c-44205044422e-1",
            "expected/pe-x64-crash.pdb.llvm-symbolizer.json",
        ),
        (
            "wasm/crash.wasm",
            "wasm",
            "5b1e7d0a-9c42-4f8d-a611-3c2f8097e4d5",
            "expected/wasm-crash.wasm.llvm-symbolizer.json",
        ),
        (
            "elf/inventory",
            "elf",
            "080b9ccd-2c9c-c04d-1b7e-a5e21b840cc7",
            "expected/elf-inventory.llvm-symbolizer.json",
        ),
    ];
    for (file, ..) in formats {
        running
            .client()
            .upload(&format!("global/{file}"), bytes_of(file))
            .await
            .unwrap();
    }
    running
        .client()
        .upload("global/Ledger.pdb", bytes_of("dotnet/Ledger.pdb"))
        .await
        .unwrap();
    running.idle().await;
    for (_, kind, debug_id, oracle) in formats {
        // llvm-symbolizer is unreliable for the lines of callers in a PDB.
        let oracle = if kind == "pe" {
            Oracle::of(oracle).innermost()
        } else {
            Oracle::of(oracle)
        };
        let module = crash::module(kind, debug_id, None);
        oracle.assert_agrees(
            &running
                .client()
                .completed("", &crash::of_module(module, &oracle.addresses))
                .await
                .unwrap(),
        );
    }

    let points = json_of("expected/dotnet-Ledger.json");
    let points: Vec<_> = points["frames"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|point| point["line"].is_u64())
        .cloned()
        .collect();
    let frame = |point: &serde_json::Value| serde_json::json!({"addr_mode": "rel:0", "instruction_addr": point["il_offset"], "function_id": point["function_id"]});
    let request = serde_json::json!({
        "modules": [{"type": "pe_dotnet", "debug_id": "7b3c5a0e-41d9-4c6f-9a27-d0e85f1b6c34-8f2c41d6"}],
        "stacktraces": [{"frames": points.iter().map(frame).collect::<Vec<_>>()}],
    });
    let answer = running.client().completed("", &request).await.unwrap();
    let lines = |values: &[serde_json::Value], name: &str| {
        values
            .iter()
            .map(|value| value[name].as_u64())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        lines(
            answer["stacktraces"][0]["frames"].as_array().unwrap(),
            "lineno"
        ),
        lines(&points, "line"),
        "{answer:#}"
    );
}
