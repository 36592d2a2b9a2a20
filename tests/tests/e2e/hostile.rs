//! Hostile files: each is rejected with a reason, and the functions survive.

use serde_json::Value;
use symdepot_tests::hostile;
use symdepot_tests::stack::Binaries;

use crate::{Running, bytes_of, crash};

/// Files that contain nothing usable: their uploads are ignored, with a reason.
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

/// Files with ids, and the status that their modules receive.
const WITH_IDS: [(&str, &str); 9] = [
    ("bomb-32-mib.gz", "missing"), // the file has an id and no content
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
async fn hostile_files_are_rejected_with_a_reason_and_affect_nothing_else() {
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

    // The functions still work.
    running
        .upload("global/good/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    crash::assert_symbolicated(&running.sample_answer().await);
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

/// Returns a key with its own scope for each file, because several files have the same id.
fn key(name: &str) -> String {
    format!("{name}/hostile")
}

fn assert_reason(name: &str, reason: &Value) {
    let reason = reason
        .as_str()
        .unwrap_or_else(|| panic!("{name}: the response contains no reason"));
    assert!(
        reason.len() >= 10 && reason.len() <= 1024,
        "{name}: the reason must have 10 to 1024 bytes: {reason:?}"
    );
}

/// Swift's demangler aborts on this name. A DIF and a request contain it, and the process that
/// responds survives.
#[tokio::test]
async fn names_that_abort_the_demangler_stay_mangled_and_the_function_survives() {
    let running = Running::start().await;
    assert_a_deadly_name_stays_mangled(&running).await;
    let stats = running.client().stats().await.unwrap();
    let symbolicate = stats.function("symbolicate");
    assert_eq!(
        (symbolicate.errors, symbolicate.cold_starts),
        (0, 1),
        "{stats:#?}"
    );
}

/// Panics unless a name that aborts Swift's demangler stays as it is, and other names are
/// demangled.
pub(crate) async fn assert_a_deadly_name_stays_mangled(running: &Running) {
    const DEADLY: &str = "$eyyxDl";
    let client = running.client();
    let id = "DECADE000000400080000000000000070";
    let file = format!(
        "MODULE Linux x86_64 {id} poison\nFUNC 1000 1000 0 {DEADLY}\nFUNC 2000 1000 0 $s8mangling12GenericUnionO3FooyACyxGSicAEmlF\n"
    );
    running.upload("global/poison.sym", file).await;
    let module = crash::module("elf", "decade00-0000-4000-8000-000000000007", None);
    let request = crash::of_module(module, &[0x1010, 0x2010]);
    let answer = client.completed("", &request).await.unwrap();
    let frames = &answer["stacktraces"][0]["frames"];
    assert_eq!(frames[0]["function"], DEADLY, "{answer:#}");
    let readable = "GenericUnion.Foo<A>(GenericUnion<A>.Type)";
    assert_eq!(frames[1]["function"], readable, "{answer:#}");
    // The next request has the same instance.
    running.idle().await;
    let sent = serde_json::json!({"stacktraces": [{"frames": [
        {"instruction_addr": "0x1", "function": DEADLY},
        {"instruction_addr": "0x2", "function": "$s8mangling12GenericUnionO3FooyACyxGSicAEmlF"},
    ]}]});
    let answer = client.completed("", &sent).await.unwrap();
    let frames = &answer["stacktraces"][0]["frames"];
    assert_eq!(
        (&frames[0]["function"], &frames[1]["function"]),
        (&DEADLY.into(), &readable.into())
    );
}

/// Many frames of a request refer to a function whose name has 300,000 bytes: the response is
/// rejected before it is built in memory.
#[tokio::test]
async fn a_response_of_a_gigabyte_is_rejected_before_it_is_built() {
    let running = Running::start().await;
    let client = running.client();
    let id = "DECADE000000400080000000000000080";
    let name = "n".repeat(300_000);
    let file = format!("MODULE Linux x86_64 {id} long\nFUNC 1000 1000 0 {name}\n");
    running.upload("global/long.sym", file).await;
    let module = crash::module("elf", "decade00-0000-4000-8000-000000000008", None);
    let few = crash::of_module(module.clone(), &[0x1010]);
    let answer = client.completed("", &few).await.unwrap();
    let shown = answer["stacktraces"][0]["frames"][0]["function"]
        .as_str()
        .unwrap();
    assert!(
        shown.len() < 20_000 && shown.ends_with("… (cut: 300000 bytes)"),
        "{}",
        shown.len()
    );
    let before = client
        .stats()
        .await
        .unwrap()
        .function("symbolicate")
        .max_rss;
    let many = crash::of_module(module, &[0x1010; 20_000]);
    let reply = client.symbolicate("", &many).await.unwrap();
    assert_eq!(reply.status, 413, "{}", reply.text);
    assert!(
        reply.text.contains("send the threads in several requests"),
        "{}",
        reply.text
    );
    let after = client
        .stats()
        .await
        .unwrap()
        .function("symbolicate")
        .max_rss;
    assert!(
        after - before < 256 << 20,
        "{before} bytes before, {after} bytes after"
    );
}

/// A fifth of the files of `make hostile`.
#[tokio::test(flavor = "multi_thread")]
async fn each_of_two_thousand_hostile_files_gets_a_result_and_no_parser_dies() {
    const FILES: usize = 2000;
    let derive = Binaries::from_env().unwrap().get("derive");
    let report = hostile::run(&derive, FILES, 1, |_| {}).await;
    assert_eq!((report.files, report.deaths.len()), (FILES, 0), "{report}");
    assert!(report.outcomes["derived"] > 100, "{report}");
    let limit = hostile::LIMITS.memory_bytes + (1 << 30);
    assert!(report.peak_bytes < limit, "{report}");
}
