//! The lines that the functions log at the end of each invocation, of a real run.

use std::path::Path;

use reqwest::Method;
use serde_json::Value;

use crate::{Running, bytes_of, crash, lines_with};

/// Returns the lines with this message in a log.
fn lines(folder: &Path, function: &str, message: &str) -> Vec<Value> {
    let log = folder.join("logs").join(format!("{function}.log"));
    lines_with(&std::fs::read_to_string(log).unwrap(), message)
}

/// Returns whether a line has these fields with these values.
fn has(line: &Value, fields: &[(&str, Value)]) -> bool {
    fields.iter().all(|(name, value)| line[name] == *value)
}

#[tokio::test]
async fn each_invocation_of_each_function_logs_one_line_with_what_it_did() {
    let running = Running::start().await;
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    running.upload("global/notes.txt", *b"no debug file").await;
    let client = running.client();
    client.clear_stats().await.unwrap();
    for _ in 0..2 {
        let answer = running.sample_answer().await;
        crash::assert_symbolicated(&answer);
    }
    let unknown = client.request(Method::GET, "/no/such/route?key=s3cret");
    client.send("no route", unknown).await.unwrap();
    let invocations = client.stats().await.unwrap().function("symbolicate");
    client.prune(false).await.unwrap();
    let folder = running.stack.options().data();
    let _kept = running.stop().await;

    let requests = lines(&folder, "symbolicate", "request served");
    assert_eq!(
        requests.len() as u64,
        invocations.invocations,
        "{requests:#?}"
    );
    let [cold, warm, refused] = requests.as_slice() else {
        panic!("{requests:#?}");
    };
    for (line, what) in [(cold, "cold"), (warm, "warm")] {
        let fields = [
            ("route", "/symbolicate".into()),
            ("method", "POST".into()),
            ("status", 200.into()),
            ("outcome", "completed".into()),
            ("level", "INFO".into()),
        ];
        assert!(has(line, &fields), "{what}: {line:#}");
        for counted in ["frames", "symbolicated", "modules_found", "request_bytes"] {
            assert!(line[counted].as_u64() >= Some(1), "{what}: {line:#}");
        }
        assert!(line["span"]["request_id"].is_string(), "{what}: {line:#}");
        assert!(line["handler_us"].as_u64() > Some(0), "{what}: {line:#}");
    }
    let record_reads = |line: &Value| line["record_reads"].as_u64().unwrap();
    assert!(record_reads(cold) > 0, "{cold:#}");
    assert!(record_reads(warm) < record_reads(cold), "{warm:#}");
    assert!(cold["blob_reads"].as_u64() > Some(0), "{cold:#}");
    assert!(cold["blob_bytes"].as_u64() > Some(0), "{cold:#}");
    assert_eq!(
        (&warm["blob_reads"], &warm["blob_bytes"]),
        (&0.into(), &0.into())
    );
    assert!(warm["memory_hits"].as_u64() > Some(0), "{warm:#}");
    assert_eq!(refused["status"], 404, "{refused:#}");
    assert!(refused.get("route").is_none(), "{refused:#}");
    assert!(!refused.to_string().contains("s3cret"), "{refused:#}");

    let messages = lines(&folder, "derive", "message processed");
    let [used, ignored] = messages.as_slice() else {
        panic!("{messages:#?}");
    };
    let size = bytes_of("elf/crash.debug").len();
    let fields = [
        ("work", "created".into()),
        ("outcome", "done".into()),
        ("file", "global/crash.debug".into()),
        ("file_bytes", size.into()),
        ("receives", 1.into()),
    ];
    assert!(has(used, &fields), "{used:#}");
    let kinds = used["kinds"].as_str().unwrap();
    assert!(kinds.split(',').any(|kind| kind == "symcache"), "{used:#}");
    assert!(used["seconds"].as_f64() > Some(0.0), "{used:#}");
    let fields = [
        ("file", "global/notes.txt".into()),
        ("outcome", "done".into()),
        ("cause", "ignored".into()),
    ];
    assert!(has(ignored, &fields), "{ignored:#}");
    assert!(ignored.get("kinds").is_none(), "{ignored:#}");

    let runs = lines(&folder, "prune", "run completed");
    let [run] = runs.as_slice() else {
        panic!("{runs:#?}");
    };
    let fields = [("complete", true.into()), ("failed", 0.into())];
    assert!(has(run, &fields), "{run:#}");
    assert!(run["entries"].as_u64() >= Some(1), "{run:#}");
    assert!(run["items"].as_u64() > run["entries"].as_u64(), "{run:#}");
}
