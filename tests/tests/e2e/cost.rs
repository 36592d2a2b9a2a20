//! The cost of requests and builds as the stack counts it: AWS calls, invocations and cold starts.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use futures::future::{join, join_all};
use serde_json::{Value, json};
use symdepot::cache::{Converter, Kind, ModuleKey, Queue, Token};
use symdepot::domain::{ModuleId, Scope};
use symdepot::ports::QueueMessage;
use symdepot_tests::harness::{archive_of, breakpad_id};
use symdepot_tests::stack::{Stats, until};

use crate::kills::parser_at_work;
use crate::made_up::MadeUp;
use crate::{PATIENCE, Running, assert_one_build, bytes_of, crash};

/// The size of the ranges in which a DIF is fetched.
const RANGE_BYTES: u64 = 8 << 20;

/// The size up to which a DIF is fetched without a look at its ends, and the size of each end.
const READ_WHOLE_BYTES: u64 = 16 << 20;
const END_BYTES: u64 = 1 << 20;

#[tokio::test]
async fn a_warm_request_makes_no_call_at_all() {
    let running = Running::start().await;
    let client = running.client();
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    crash::assert_symbolicated(&running.sample_answer().await);
    running.idle().await;
    client.clear_stats().await.unwrap();
    for _ in 0..5 {
        crash::assert_symbolicated(&running.sample_answer().await);
        // The next request has the same instance.
        running.idle().await;
    }
    let stats = client.stats().await.unwrap();
    assert_eq!(stats.aws_calls(), 0, "{stats:#?}");
    assert_eq!(
        (
            stats.function("symbolicate").invocations,
            stats.function("symbolicate").cold_starts
        ),
        (5, 0)
    );
}

#[tokio::test]
async fn functions_start_again_after_their_processes_have_ended() {
    let running = Running::start().await;
    let client = running.client();
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    for _ in 0..3 {
        client.end_functions().await.unwrap();
        client.clear_stats().await.unwrap();
        crash::assert_symbolicated(&running.sample_answer().await);
        let stats = client.stats().await.unwrap();
        let symbolicate = stats.function("symbolicate");
        assert_eq!(symbolicate.cold_starts, 1);
        assert!(
            symbolicate.init_ms.p50 > 0.0 && symbolicate.init_ms.max >= symbolicate.init_ms.p50,
            "{symbolicate:?}"
        );
        // One read of records, and one of the cache.
        assert_eq!(
            (
                stats.calls("dynamodb", "BatchGetItem"),
                stats.calls("s3", "GetObject")
            ),
            (1, 1),
            "{stats:#?}"
        );
        assert_eq!(stats.aws_calls(), 2, "{stats:#?}");
        assert_eq!(stats.function("derive").invocations, 0, "{stats:#?}");
    }
}

#[tokio::test]
async fn an_upload_is_fetched_once_and_derived_once() {
    let running = Running::start().await;
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    let stats = running.client().stats().await.unwrap();
    assert_eq!(stats.function("derive").invocations, 1, "{stats:#?}");
    assert_eq!(stats.calls("s3", "GetObject"), 1, "{stats:#?}");
    assert_eq!(
        stats.calls("s3", "PutObject"),
        running.client().blobs().await.unwrap().len() as u64,
        "{stats:#?}"
    );
}

#[tokio::test]
async fn requests_for_one_missing_entry_make_one_derivation() {
    let running = Running::start_with(|options| options.variable("DERIVED_MAX_UNUSED", 0)).await;
    let client = running.client();
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    let report = client.prune(false).await.unwrap();
    assert!(report["retired"].as_u64() >= Some(1), "{report:#}");
    assert_eq!(client.blobs().await.unwrap(), []);
    client.clear_stats().await.unwrap();

    let request = crash::sample();
    let answers = join_all((0..6).map(|_| client.completed("", &request))).await;
    for answer in answers {
        crash::assert_symbolicated(&answer.unwrap());
    }
    running.idle().await;
    let stats = client.stats().await.unwrap();
    assert!(
        stats.function("symbolicate").cold_starts >= 2,
        "the test needs at least two instances: {stats:#?}"
    );
    assert_one_build(&stats);
    let blobs = client.blobs().await.unwrap();
    assert_eq!(
        stats.calls("s3", "PutObject"),
        blobs.len() as u64,
        "{stats:#?}"
    );
    assert_eq!(
        blobs
            .iter()
            .filter(|(path, _)| path.contains("/symcache/"))
            .count(),
        1,
        "{blobs:#?}"
    );
}

#[tokio::test]
async fn requests_for_unknown_modules_write_nothing_and_start_no_build() {
    let running = Running::start().await;
    let client = running.client();
    let request = crash::sample();
    for answer in join_all((0..6).map(|_| client.completed("", &request))).await {
        crash::assert_nothing_found(&answer.unwrap(), "missing");
    }
    // Clients may send any scope.
    for scope in ["acme", "made-up"] {
        let answer = client.completed(&format!("scope={scope}"), &request).await;
        crash::assert_nothing_found(&answer.unwrap(), "missing");
    }
    let stats = client.stats().await.unwrap();
    assert_eq!(stats.function("derive").invocations, 0, "{stats:#?}");
    assert_eq!(
        stats.aws_calls(),
        stats.calls("dynamodb", "BatchGetItem"),
        "{stats:#?}"
    );
    assert!(stats.aws_calls() <= 8, "{stats:#?}");
}

#[tokio::test]
async fn two_hundred_requests_to_8_instances_cause_one_download_and_one_derivation() {
    const REQUESTS: usize = 200;
    const INSTANCES: usize = 8;
    let running = Running::start_with(|options| {
        options
            .concurrency(INSTANCES)
            .variable("DERIVED_MAX_UNUSED", 0)
    })
    .await;
    let client = running.client();
    let module = MadeUp::new(1, 150_000);
    let size = module.file().len() as u64;
    assert!(
        size > RANGE_BYTES,
        "the file must exceed one range: {size} bytes"
    );
    running.upload(&module.key(), module.file()).await;
    assert!(client.prune(false).await.unwrap()["retired"].as_u64() >= Some(1));
    assert_eq!(client.blobs().await.unwrap(), []);
    client.end_functions().await.unwrap();
    client.clear_stats().await.unwrap();

    let request = module.crash();
    let answers = join_all((0..REQUESTS).map(|_| client.completed("", &request)));
    // The build is suspended until every instance has a request that waits for it.
    let held_back = async {
        let (parser, _) = parser_at_work(&running.stack, Duration::ZERO).await;
        parser.freeze();
        let all_at_work = until("the work of all instances", PATIENCE, async || {
            let processes = running.stack.processes();
            let instances = processes
                .iter()
                .filter(|process| process.program() == "symbolicate" && !process.is_frozen());
            (instances.count() == INSTANCES).then_some(())
        });
        all_at_work.await.unwrap();
        parser.thaw();
    };
    let (answers, ()) = join(answers, held_back).await;
    for answer in answers {
        module.assert_symbolicated(&answer.unwrap());
    }
    running.idle().await;
    let stats = client.stats().await.unwrap();
    let symbolicate = stats.function("symbolicate");
    assert_eq!(
        (
            symbolicate.invocations,
            symbolicate.cold_starts,
            symbolicate.errors
        ),
        (REQUESTS as u64, INSTANCES as u64, 0),
        "{stats:#?}"
    );
    assert_eq!(stats.calls("sqs", "SendMessageBatch"), 1, "{stats:#?}");
    assert_one_derivation(&running, &stats, size).await;
}

#[tokio::test]
async fn an_event_that_is_delivered_five_times_costs_one_derivation() {
    let running = Running::start().await;
    let client = running.client();
    let key = "global/crash.debug";
    let file = bytes_of("elf/crash.debug");
    let size = file.len() as u64;
    running.upload(key, file).await;
    let (_, upload) = running.state_of(key).await;
    let event = json!({"Records": [{
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventName": "ObjectCreated:Put",
        "s3": {"object": {"key": key, "sequencer": upload["sequencer"]}},
    }]});
    assert!(upload["sequencer"].is_string(), "{upload:#}");
    for _ in 1..5 {
        let sent = client
            .send_message("UploadsQueue", &event.to_string())
            .await;
        sent.unwrap();
    }
    running.idle().await;
    let stats = client.stats().await.unwrap();
    assert_eq!(stats.function("derive").invocations, 5, "{stats:#?}");
    assert_one_derivation(&running, &stats, size).await;
}

#[tokio::test]
async fn a_message_that_is_delivered_five_times_at_once_costs_one_derivation() {
    let running = Running::start_with(|options| options.variable("DERIVED_MAX_UNUSED", 0)).await;
    let client = running.client();
    let file = bytes_of("elf/crash.debug");
    let size = file.len() as u64;
    running.upload("global/crash.debug", file).await;
    client.prune(false).await.unwrap();
    client.end_functions().await.unwrap();
    client.clear_stats().await.unwrap();

    let crash = crash::sample();
    let asked = client.symbolicate("timeout=0", &crash).await.unwrap();
    assert_eq!(asked.body["status"], "pending", "{}", asked.text);
    let again = queue_message(&crash::sample_module());
    for sent in join_all((1..5).map(|_| client.send_message("EagerQueue", &again))).await {
        sent.unwrap();
    }
    running.idle().await;
    crash::assert_symbolicated(&client.completed("", &crash).await.unwrap());
    let stats = client.stats().await.unwrap();
    assert!(stats.function("derive").invocations >= 5, "{stats:#?}");
    assert_one_derivation(&running, &stats, size).await;
}

/// Returns the queue message that requests the SymCache of a module.
fn queue_message(module: &Value) -> String {
    let id = module["debug_id"].as_str().unwrap().parse().unwrap();
    let module = ModuleKey::uploads(Scope::Global, &ModuleId::Debug(id));
    let build_request = Token::from_random(7);
    let message = QueueMessage::new(
        Queue::Eager,
        module,
        vec![Kind::SymCache],
        build_request,
        Converter::CURRENT,
    );
    serde_json::to_string(&message).unwrap()
}

/// Panics unless a file of this size was fetched once, and exactly one blob of each kind was
/// written.
async fn assert_one_derivation(running: &Running, stats: &Stats, size: u64) {
    let addresses = running.client().addresses();
    let fetched = stats.of_bucket(addresses.uploads(), "GetObject");
    // Of a large file, both ends are read first: they say what is needed of the rest.
    let ranges = if size > READ_WHOLE_BYTES {
        2 + (size - 2 * END_BYTES).div_ceil(RANGE_BYTES)
    } else {
        size.div_ceil(RANGE_BYTES)
    };
    assert_eq!(
        (fetched.calls, fetched.bytes_out),
        (ranges, size),
        "{stats:#?}"
    );
    let blobs = running.client().blobs().await.unwrap();
    let kinds: BTreeSet<_> = blobs
        .iter()
        .filter_map(|(path, _)| path.split('/').nth(1))
        .collect();
    assert_eq!(
        kinds,
        BTreeSet::from(["cficache", "symcache"]),
        "{blobs:#?}"
    );
    let written = stats.of_bucket(addresses.caches(), "PutObject");
    assert_eq!(
        (written.calls, blobs.len()),
        (kinds.len() as u64, kinds.len()),
        "{stats:#?}"
    );
}

/// Uploads symbols of generated modules as one archive per scope, so that neither of the two scopes
/// is empty.
async fn uploaded_to_two_scopes(running: &Running, modules: usize) {
    running
        .upload("global/symbols.zip", archive_of(0..modules))
        .await;
    let other = archive_of(modules..modules + 1);
    running.upload("acme/symbols.zip", other).await;
}

/// Returns a crash with a frame in each of the generated modules with these numbers.
fn crash_in(numbers: Range<usize>) -> Value {
    let image = |number: usize| format!("{:#x}", 0x1_0000_0000 * (number as u64 + 1));
    let module = |number: usize| {
        json!({
            "type": "elf", "debug_id": breakpad_id(number),
            "image_addr": image(number), "image_size": 0x10000,
        })
    };
    let frame = |number: usize| {
        let address = 0x1_0000_0000 * (number as u64 + 1) + 0x1008;
        json!({"instruction_addr": format!("{address:#x}")})
    };
    json!({
        "modules": numbers.clone().map(module).collect::<Vec<_>>(),
        "stacktraces": [{"frames": numbers.map(frame).collect::<Vec<_>>()}],
    })
}

#[tokio::test]
async fn forty_ready_modules_cost_two_reads_of_records_and_one_of_each_blob() {
    const MODULES: usize = 40;
    let running = Running::start().await;
    let client = running.client();
    uploaded_to_two_scopes(&running, MODULES).await;
    client.end_functions().await.unwrap();
    client.clear_stats().await.unwrap();
    let answer = client.completed("scope=acme", &crash_in(0..MODULES)).await;
    let frames = answer.unwrap()["stacktraces"][0]["frames"].clone();
    let names = frames.as_array().into_iter().flatten();
    let names: Vec<&str> = names
        .filter_map(|frame| frame["function"].as_str())
        .collect();
    assert_eq!(names.len(), MODULES);
    assert_eq!(names[7], "function_7");
    let stats = client.stats().await.unwrap();
    assert_eq!(
        (
            stats.calls("dynamodb", "BatchGetItem"),
            stats.calls("s3", "GetObject"),
            stats.aws_calls(),
            stats.function("derive").invocations,
        ),
        (2, MODULES as u64, 2 + MODULES as u64, 0),
        "{stats:#?}"
    );
}

#[tokio::test]
async fn unknown_modules_cost_only_reads_and_an_unused_scope_is_not_read() {
    let running = Running::start().await;
    let client = running.client();
    uploaded_to_two_scopes(&running, 1).await;
    // For 40 modules: two items of each in two scopes, and the generations of the scopes. For 200
    // modules: the generations, and then only the items of the global scope.
    for (modules, query, reads) in [
        (1000..1040, "scope=acme", 2),
        (2000..2200, "scope=never-seen&timeout=0", 1 + 4),
    ] {
        client.end_functions().await.unwrap();
        client.clear_stats().await.unwrap();
        let answer = client.completed(query, &crash_in(modules)).await.unwrap();
        let found = answer["modules"].as_array().unwrap().iter();
        assert!(
            found
                .clone()
                .all(|module| module["debug_status"] == "missing"),
            "{answer:#}"
        );
        let stats = client.stats().await.unwrap();
        assert_eq!(
            (stats.calls("dynamodb", "BatchGetItem"), stats.aws_calls()),
            (reads, reads),
            "{stats:#?}"
        );
        assert_eq!(stats.function("derive").invocations, 0, "{stats:#?}");
    }
}

#[tokio::test]
async fn an_upload_does_not_read_records_that_it_wrote_itself() {
    let running = Running::start().await;
    let client = running.client();
    running
        .upload("global/other.debug", bytes_of("elf/crash.zlib.debug"))
        .await;
    client.clear_stats().await.unwrap();
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    running.idle().await;
    let stats = client.stats().await.unwrap();
    assert_eq!(stats.function("derive").invocations, 1, "{stats:#?}");
    // Reads: the upload and its generation; the upload again, to check that it is still current;
    // the alias.
    assert_eq!(stats.calls("dynamodb", "BatchGetItem"), 3, "{stats:#?}");
    // The event contains the size and etag of the file.
    assert_eq!(stats.calls("s3", "HeadObject"), 0, "{stats:#?}");
    // The module with its entries: before the build, at its beginning, and after its leases were
    // taken.
    assert_eq!(stats.calls("dynamodb", "Query"), 3, "{stats:#?}");
    // Writes: the upload four times; its `dif` item, presence and alias; two entries three times
    // each; the generation twice.
    assert_eq!(stats.calls("dynamodb", "PutItem"), 15, "{stats:#?}");
}
