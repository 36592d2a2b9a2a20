//! Calls of AWS that functions make rarely: after a release, a race, a loss, or an error. Each
//! needs a permission, which no other test may use.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::json;
use symdepot::cache::ItemKey;
use symdepot_tests::stack::{Client, Stats, until};

use crate::symbol_server::{DEBUG_FILE, SymbolServer};
use crate::{PATIENCE, RECORDS, Running, bytes_of, crash, records};

const KEY: &str = "global/crash.debug";

type Attributes = HashMap<String, AttributeValue>;

/// Returns the record of the SymCache of the uploaded file.
async fn entry(client: &Client) -> Attributes {
    let all = records(client)
        .scan()
        .table_name(RECORDS)
        .send()
        .await
        .unwrap();
    let text = |item: &Attributes, name: &str| item.get(name)?.as_s().ok().cloned();
    let mut entries = all.items().iter().filter(|item| {
        text(item, "type").as_deref() == Some("entry")
            && text(item, "kind").as_deref() == Some("symcache")
    });
    let entry = entries.next().expect("an entry").clone();
    assert_eq!(entries.count(), 0, "one module was uploaded");
    entry
}

/// Changes the record of the SymCache, as another build or another invocation would.
async fn change(client: &Client, set: &str, values: &[(&str, AttributeValue)]) {
    let entry = entry(client).await;
    let mut update = records(client).update_item().table_name(RECORDS);
    for name in ["partition", "sort"] {
        update = update.key(name, entry[name].clone());
    }
    for (name, value) in values {
        update = update.expression_attribute_values(*name, value.clone());
    }
    update.update_expression(set).send().await.unwrap();
    client.end_functions().await.unwrap();
}

fn number(value: u64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

fn map(fields: &[(&str, AttributeValue)]) -> AttributeValue {
    let fields = fields
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()));
    AttributeValue::M(fields.collect())
}

/// Makes the SymCache one of an older converter, which this release renews.
async fn make_older(client: &Client) {
    change(
        client,
        "SET ready.converter = :older",
        &[(":older", number(1))],
    )
    .await;
}

async fn converter(client: &Client) -> String {
    let ready = entry(client).await["ready"].as_m().unwrap().clone();
    ready["converter"].as_n().unwrap().clone()
}

async fn stats(client: &Client) -> Stats {
    client.stats().await.unwrap()
}

/// Runs `prune` until a run has done something, at most three times: a pass over the records ends
/// in a later run than it began.
async fn prune_until(client: &Client, what: &str) {
    for _ in 0..3 {
        let report = client.prune(false).await.unwrap();
        if report[what].as_u64() > Some(0) {
            return;
        }
    }
    panic!("no run has {what}");
}

#[tokio::test]
async fn caches_are_renewed_by_requests_when_a_probe_is_due_and_by_the_schedule_after_a_release() {
    let running = Running::start().await;
    running.upload(KEY, bytes_of("elf/crash.debug")).await;
    let client = running.client();
    let current = converter(client).await;

    // The source has not been probed for a better file since 1970.
    let probes = map(&[("at", number(0)), ("fruitless", number(0))]);
    change(client, "SET probes = :probes", &[(":probes", probes)]).await;
    client.clear_stats().await.unwrap();
    crash::assert_symbolicated(&running.sample_answer().await);
    running.idle().await;
    assert_eq!(stats(client).await.queue("RefreshQueue").sent, 1);

    make_older(client).await;
    client.clear_stats().await.unwrap();
    prune_until(client, "requested").await;
    running.idle().await;
    assert_eq!(stats(client).await.queue("RefreshQueue").sent, 1);
    assert_eq!(converter(client).await, current);
}

/// Uploads a file, and requests the renewal of its cache while another builder holds the lease, for
/// ten minutes.
async fn renewal_behind_a_lease(running: &Running) {
    running.upload(KEY, bytes_of("elf/crash.debug")).await;
    let client = running.client();
    make_older(client).await;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let id = format!("{:032x}", 1);
    let lease = map(&[
        ("holder", text("another invocation")),
        ("token", text(&format!("{:032x}", 2))),
        ("until", number(now + 600)),
    ]);
    let request = map(&[
        ("id", text(&id)),
        ("lane", text("refresh")),
        ("at", number(now)),
    ]);
    let values = [(":lease", lease), (":request", request)];
    change(client, "SET lease = :lease, ask = :request", &values).await;
    client.clear_stats().await.unwrap();
    let module = entry(client).await["module"].as_m().unwrap().clone();
    let of_module = |name: &str| module[name].as_s().unwrap().clone();
    let message = json!({
        "schema": 1, "lane": "refresh", "kinds": ["symcache"], "ask": id, "min_converter": 1,
        "scope": of_module("scope"), "source": of_module("source"), "module": of_module("module"),
    });
    client
        .send_message("RefreshQueue", &message.to_string())
        .await
        .unwrap();
}

/// `derive` sends the message again, for when the lease ends.
#[tokio::test]
async fn a_renewal_waits_for_the_builder_that_holds_the_lease() {
    let running = Running::start().await;
    renewal_behind_a_lease(&running).await;
    let client = running.client();
    let sent = until("the message that is sent again", PATIENCE, async || {
        // The first one is that of this test.
        (stats(client).await.queue("RefreshQueue").sent == 2).then_some(())
    });
    sent.await.unwrap();
    running.stack.stop().await.unwrap();
}

/// Waits until `derive` has run this often for the message, and lets the delay of the next message
/// pass each time.
async fn run_again_and_again(client: &Client, runs: u64) {
    for run in 1..=runs {
        let ran = until("the next run of derive", PATIENCE, async || {
            let sent = stats(client).await;
            // The first message is that of the test.
            (sent.queue("RefreshQueue").sent == run + 1).then_some(())
        });
        ran.await.unwrap();
        client.advance("sqs", LONGEST_DELAY).await.unwrap();
    }
}

/// The longest delay of a message (SQS API reference, `SendMessage`).
const LONGEST_DELAY: Duration = Duration::from_secs(900);

/// Lambda ends the chain after 16 runs, and the message is a dead letter after it was received as
/// often as its queue allows.
#[tokio::test]
async fn a_message_that_is_sent_again_becomes_a_dead_letter_unless_the_template_allows_recursion() {
    const ALLOW: &str = "      RecursiveLoop: !If [HasLoopDetection, Allow, !Ref AWS::NoValue]\n";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("template.yaml");
    let template = std::fs::read_to_string(symdepot_tests::stack::template()).unwrap();
    assert_eq!(template.matches(ALLOW).count(), 1);
    std::fs::write(&path, template.replace(ALLOW, "")).unwrap();
    let running = Running::start_with(|options| options.template(&path)).await;
    renewal_behind_a_lease(&running).await;
    let client = running.client();
    run_again_and_again(client, 16).await;
    running.settled().await;
    let stats = stats(client).await;
    let derive = stats.function("derive");
    assert_eq!(derive.invocations, 16, "{stats:#?}");
    assert_eq!(stats.queue("RefreshQueue").dead, 1, "{stats:#?}");
    assert_eq!(
        derive.recursive_invocations_dropped, MAX_RECEIVES,
        "{stats:#?}"
    );
    let log = running.stack.options().folder().join("stack.log");
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("RecursiveInvocationsDropped"), "{log}");
}

/// `maxReceiveCount` of the queues in the template.
const MAX_RECEIVES: u64 = 6;

#[tokio::test]
async fn a_message_may_be_sent_again_more_often_than_lambda_allows_by_default() {
    let running = Running::start().await;
    renewal_behind_a_lease(&running).await;
    let client = running.client();
    run_again_and_again(client, 17).await;
    let stats = stats(client).await;
    let derive = stats.function("derive");
    assert_eq!(derive.recursive_invocations_dropped, 0, "{stats:#?}");
    assert_eq!(stats.dead_letters(), 0, "{stats:#?}");
    running.stack.stop().await.unwrap();
}

#[tokio::test]
async fn a_cache_that_was_lost_is_built_again() {
    let running = Running::start().await;
    running.upload(KEY, bytes_of("elf/crash.debug")).await;
    let client = running.client();
    let bucket = client.addresses().caches();
    for (path, _) in client.blobs().await.unwrap() {
        let remove = client.s3().delete_object().bucket(bucket).key(path);
        remove.send().await.unwrap();
    }
    client.end_functions().await.unwrap();
    crash::assert_symbolicated(&client.completed_at_last(&crash::sample()).await.unwrap());
    running.idle().await;
    assert!(!client.blobs().await.unwrap().is_empty());
}

/// The visibility timeout of each queue is a quarter of an hour. `derive` shortens it.
#[tokio::test]
async fn a_message_that_cannot_be_read_is_retried_soon_whichever_queue_it_is_in() {
    let running = Running::start().await;
    let client = running.client();
    let queues = ["EagerQueue", "UploadsQueue", "RefreshQueue"];
    for queue in queues {
        client
            .send_message(queue, "not a message of symdepot")
            .await
            .unwrap();
    }
    let changed = until("the retries", PATIENCE, async || {
        let calls = stats(client).await.calls("sqs", "ChangeMessageVisibility");
        (calls >= queues.len() as u64).then_some(())
    });
    changed.await.unwrap();
    running.stack.stop().await.unwrap();
}

#[tokio::test]
async fn the_schedule_removes_unused_copies() {
    let server = SymbolServer::start([(DEBUG_FILE, bytes_of("elf/crash.debug"))]).await;
    let running = Running::start_with(|options| {
        let options = server.sought_by(options);
        // Without a time, no copy is made.
        options.variable("DIF_MAX_UNUSED", 1)
    })
    .await;
    let client = running.client();
    crash::assert_symbolicated(&client.completed_at_last(&crash::sample()).await.unwrap());
    running.idle().await;
    let copies = async || {
        let blobs = client.blobs().await.unwrap();
        let copies = blobs.iter().filter(|(path, _)| path.starts_with("copies/"));
        copies.count()
    };
    assert!(copies().await > 0);
    let removed = until("the removal of the copies", PATIENCE, async || {
        client.prune(false).await.unwrap();
        (copies().await == 0).then_some(())
    });
    removed.await.unwrap();
}

/// The items of the files are gone, but not what says that the module has files.
#[tokio::test]
async fn the_schedule_repairs_what_is_known_of_a_module() {
    let running = Running::start().await;
    running.upload(KEY, bytes_of("elf/crash.debug")).await;
    let client = running.client();
    let table = records(client);
    let all = table.scan().table_name(RECORDS).send().await.unwrap();
    let mut files = 0;
    for item in all.items() {
        if item["sort"]
            .as_s()
            .unwrap()
            .starts_with(ItemKey::DIF_PREFIX)
        {
            let remove = table.delete_item().table_name(RECORDS);
            let remove = remove.key("partition", item["partition"].clone());
            remove
                .key("sort", item["sort"].clone())
                .send()
                .await
                .unwrap();
            files += 1;
        }
    }
    assert!(files > 0);
    prune_until(client, "presences_forgotten").await;
}
