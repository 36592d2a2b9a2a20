//! The whole stack: event sources, controls, restarts, and the end of all its processes.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue panics")]

mod client;
mod endpoints;
mod processes;
mod project;

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sdk_s3::config::{Credentials, Region};
use aws_sdk_s3::primitives::ByteStream;
use client::{ask, send};
use futures::poll;
use local_stack::identity::LOCAL;
use local_stack::latency::Latency;
use local_stack::queues::NewMessage;
use local_stack::stack::machine::Machine;
use local_stack::stack::{ADDRESSES_FILE, Options, Running, Stack, StackError};
use processes::{state, until};
use project::write_project;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

fn options(folder: &Path) -> Options {
    let (template, functions) = write_project(folder);
    Options::new(template, functions, folder.join("data"))
}

/// Delivers each message in an event of its own.
const ONE_BY_ONE: (&str, &str) = ("BatchSize: 2", "BatchSize: 1");

/// Replaces texts of the template.
fn edit_template(options: &Options, edits: &[(&str, &str)]) {
    let mut template = std::fs::read_to_string(&options.template).unwrap();
    for (from, to) in edits {
        assert!(template.contains(from), "{from}");
        template = template.replace(from, to);
    }
    std::fs::write(&options.template, template).unwrap();
}

/// Sends a message of a group, whose event is held until the holder closes the connection.
async fn send_hold(running: &Running, queue: &str, group: &str, holder: &TcpListener) {
    let message = NewMessage {
        group: Some(group.to_owned()),
        ..NewMessage::text(format!("hold {}", holder.local_addr().unwrap()))
    };
    running.queues().send(queue, message).await.unwrap();
}

async fn start() -> (Running, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (Stack::start(options(folder.path())).await.unwrap(), folder)
}

async fn idle(base: &str) {
    let (status, answer) = ask(base, "GET", "/_local/idle?timeout=30").await;
    assert_eq!((status, answer), (200, json!({ "idle": true })));
}

/// Waits until the stack is idle, but not for the visibility timeouts of failed messages.
async fn settled(base: &str) {
    let (status, answer) = ask(base, "POST", "/_local/clock?until=idle&timeout=30").await;
    assert_eq!((status, answer), (200, json!({ "idle": true })));
}

/// Returns the environment of the probe.
async fn probed_environment(running: &Running) -> Value {
    probed(running, r#"{"do":"env"}"#).await
}

/// Returns the response of the probe to an event.
async fn probed(running: &Running, event: &'static str) -> Value {
    let functions = running.functions();
    let answer = functions.invoke("probe-function", event.into());
    serde_json::from_slice(&answer.await.outcome.unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_delivered_and_deleted() {
    let (running, folder) = start().await;
    let base = running.addresses().gateway.clone();
    for body in ["one", "two", "three"] {
        running
            .queues()
            .send("Orders", NewMessage::text(body))
            .await
            .unwrap();
    }
    idle(&base).await;
    let (_, stats) = ask(&base, "GET", "/_local/stats").await;
    assert_eq!(
        stats["queues"]["Orders"],
        json!({ "visible": 0, "in_flight": 0, "delayed": 0, "dead": 0, "sent": 3 })
    );
    running.stop().await;

    let log = std::fs::read_to_string(folder.path().join("data/logs/probe-function.log")).unwrap();
    let batches = log.lines().filter_map(|line| {
        serde_json::from_str::<Value>(line)
            .ok()?
            .get("batch")
            .cloned()
    });
    let records: Vec<Value> = batches
        .flat_map(|batch| batch.as_array().unwrap().clone())
        .collect();
    let bodies: BTreeSet<&str> = records
        .iter()
        .map(|record| record["body"].as_str().unwrap())
        .collect();
    assert_eq!(
        (records.len(), bodies),
        (3, BTreeSet::from(["one", "two", "three"]))
    );
    assert_eq!(
        records[0]["eventSourceARN"],
        "arn:aws:sqs:us-east-1:000000000000:Orders"
    );
    assert_eq!(records[0]["attributes"]["ApproximateReceiveCount"], "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_failed_message_of_a_batch_moves_to_the_dead_letter_queue() {
    let (running, _folder) = start().await;
    let base = running.addresses().gateway.clone();
    running
        .queues()
        .send("Orders", NewMessage::text("fail"))
        .await
        .unwrap();
    running
        .queues()
        .send("Orders", NewMessage::text("fine"))
        .await
        .unwrap();
    settled(&base).await;
    let (_, stats) = ask(&base, "GET", "/_local/stats").await;
    assert_eq!(
        stats["queues"]["Orders"],
        json!({ "visible": 0, "in_flight": 0, "delayed": 0, "dead": 1, "sent": 2 })
    );
    assert_eq!(stats["queues"]["Dead"]["visible"], 1);
    let dead = running.queues().receive("Dead", 10, None).await.unwrap();
    assert_eq!(dead[0].body, "fail");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_function_that_crashes_are_delivered_again() {
    let (running, _folder) = start().await;
    running
        .queues()
        .send("Orders", NewMessage::text("crash"))
        .await
        .unwrap();
    settled(&running.addresses().gateway).await;
    assert_eq!(running.queues().counts("Dead").await.unwrap().visible, 1);
    assert_eq!(running.functions().stats()["probe-function"].errors, 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_message_is_received_before_a_process_is_free_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    options.event_concurrency = Some(2);
    edit_template(&options, &[ONE_BY_ONE]);
    let running = Stack::start(options).await.unwrap();
    let (backlog, quiet) = (holder().await, holder().await);
    for _ in 0..5 {
        send_hold(&running, "Orders", "backlog", &backlog).await;
    }
    let mut at_work = Vec::new();
    for _ in 0..2 {
        at_work.push(backlog.accept().await.unwrap());
    }
    let counts = running.queues().counts("Orders").await.unwrap();
    assert_eq!((counts.in_flight, counts.visible), (2, 3));

    // A message that was received too early would be one of the backlog.
    send_hold(&running, "Orders", "quiet", &quiet).await;
    drop(at_work.pop());
    tokio::select! {
        next = quiet.accept() => drop(next.unwrap()),
        _ = backlog.accept() => panic!("the next message was taken while all processes were at work"),
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_group_has_at_most_half_of_the_runs() {
    const OF_BUCKET: &str = "      NotificationConfiguration:
        QueueConfigurations:
          - Event: s3:ObjectCreated:*
            Queue: !GetAtt Orders.Arn
";
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    options.event_concurrency = Some(4);
    edit_template(&options, &[(OF_BUCKET, ""), ONE_BY_ONE]);
    let running = Stack::start(options).await.unwrap();
    let (slow, quick) = (holder().await, holder().await);
    for _ in 0..5 {
        send_hold(&running, "Orders", "slow", &slow).await;
    }
    let mut at_work = Vec::new();
    for _ in 0..2 {
        at_work.push(slow.accept().await.unwrap());
    }
    send_hold(&running, "Orders", "quick", &quick).await;
    let quick_run = quick.accept().await.unwrap();
    let counts = running.queues().counts("Orders").await.unwrap();
    assert_eq!((counts.in_flight, counts.visible), (3, 3));
    // The next message of the group begins when one has ended.
    drop(at_work.pop());
    at_work.push(slow.accept().await.unwrap());
    drop((at_work, quick_run));
    running.stop().await;
}

/// A backlog of events of a bucket must not keep the same group waiting in another queue.
#[tokio::test(flavor = "multi_thread")]
async fn runs_for_bucket_events_do_not_count_for_their_group_in_other_queues() {
    const GRANT: &str = "                Resource: !GetAtt Orders.Arn\n              - Effect";
    const WIDER: &str = "                Resource: [!GetAtt Orders.Arn, !GetAtt Others.Arn]\n              - Effect";
    const EVENTS: &str = "        Messages:\n";
    const MORE_EVENTS: &str = "        OtherMessages:
          Type: SQS
          Properties:
            Queue: !GetAtt Others.Arn
            BatchSize: 1
            FunctionResponseTypes: [ReportBatchItemFailures]
        Messages:
";
    const QUEUE: &str = "  Dead:\n";
    const MORE_QUEUES: &str = "  Others:\n    Type: AWS::SQS::Queue\n  Dead:\n";
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    options.event_concurrency = Some(4);
    let edits = [
        (GRANT, WIDER),
        (EVENTS, MORE_EVENTS),
        (QUEUE, MORE_QUEUES),
        ONE_BY_ONE,
    ];
    edit_template(&options, &edits);
    let running = Stack::start(options).await.unwrap();
    let holder = holder().await;
    let mut at_work = Vec::new();
    for queue in ["Orders", "Orders", "Orders", "Others"] {
        send_hold(&running, queue, "one", &holder).await;
        at_work.push(holder.accept().await.unwrap());
    }
    drop(at_work);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_message_keeps_the_visibility_that_its_function_has_set() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    options.event_concurrency = Some(1);
    let running = Stack::start(options).await.unwrap();
    let queues = running.queues();
    let holder = holder().await;
    let hold = format!("hold {}", holder.local_addr().unwrap());
    queues.send("Orders", NewMessage::text(hold)).await.unwrap();
    let held = holder.accept().await.unwrap();
    // These wait for the held message, and are then delivered together and processed in this order.
    for body in ["fail later 3600", "fine"] {
        queues.send("Orders", NewMessage::text(body)).await.unwrap();
    }
    let began = queues.clock().now_ms();
    let mut changes = queues.changes();
    drop(held);
    loop {
        changes.changed().await.unwrap();
        let counts = queues.counts("Orders").await.unwrap();
        if counts.visible + counts.in_flight == 1 {
            break;
        }
    }
    let visible = queues.next_visible_at_ms("Orders").await.unwrap().unwrap();
    assert!(
        visible >= began + 3_600_000,
        "visible {} ms later",
        visible - began
    );
    let calls = running.control().meter.snapshot().aws["sqs"]["ChangeMessageVisibility"];
    assert_eq!((calls.calls, calls.errors), (1, 0));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_message_returns_when_the_visibility_timeout_of_its_queue_ends() {
    let (running, _folder) = start().await;
    let base = running.addresses().gateway.clone();
    let queues = running.queues();
    let began = queues.clock().now_ms();
    let mut deliveries = running.control().deliveries.watch();
    let crash = NewMessage::text("crash");
    queues.send("Orders", crash).await.unwrap();
    deliveries.wait_for(|count| *count > 0).await.unwrap();
    deliveries.wait_for(|count| *count == 0).await.unwrap();
    let due = queues.next_visible_at_ms("Orders").await.unwrap().unwrap();
    let ended = queues.clock().now_ms();
    assert!((began + 60_000..=ended + 60_000).contains(&due), "{due}");

    // It has been received as often as it may be.
    let mut changes = queues.changes();
    let (status, answer) = ask(&base, "POST", "/_local/clock?advance=60").await;
    let moved = json!({ "sqs": 60.0, "s3": 60.0, "expired": 0 });
    assert_eq!((status, answer), (200, moved));
    while queues.counts("Dead").await.unwrap().visible == 0 {
        changes.changed().await.unwrap();
    }
    for query in [
        "",
        "?advance=-1",
        "?advance=1e9",
        "?advance=1&of=dynamodb",
        "?until=noon",
    ] {
        let path = format!("/_local/clock{query}");
        assert_eq!(ask(&base, "POST", &path).await.0, 400, "{path}");
    }
    running.stop().await;
}

/// Sends a message that is sent again twenty times, each time by the invocation for it. Returns the
/// counters when all has ended, and the dead letters.
async fn chain(change: impl FnOnce(String) -> String) -> (Value, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    let template = std::fs::read_to_string(&options.template).unwrap();
    let may_send = template.replace(
        "sqs:ReceiveMessage,",
        "sqs:ReceiveMessage, sqs:SendMessage,",
    );
    std::fs::write(&options.template, change(may_send)).unwrap();
    let running = Stack::start(options).await.unwrap();
    let queues = running.queues();
    queues
        .send("Orders", NewMessage::text("again 20"))
        .await
        .unwrap();
    let base = running.addresses().gateway.clone();
    settled(&base).await;
    let (_, stats) = ask(&base, "GET", "/_local/stats").await;
    let dead = queues.receive("Dead", 10, None).await.unwrap();
    running.stop().await;
    let bodies = dead.into_iter().map(|message| message.body).collect();
    (stats["functions"]["probe-function"].clone(), bodies)
}

/// The number is that of AWS (AWS Compute Blog, "Detecting and stopping recursive loops in AWS
/// Lambda functions").
#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_messages_ends_after_sixteen_invocations_of_a_function() {
    let (probe, dead) = chain(|template| template).await;
    assert_eq!(probe["invocations"], 16, "{probe:#}");
    assert_eq!(probe["recursive_invocations_dropped"], 1, "{probe:#}");
    // The seventeenth message; the first one has the number 20.
    assert_eq!(dead, ["again 4"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_messages_goes_on_if_the_template_allows_it() {
    let (probe, dead) = chain(|template| {
        template.replace(
            "      Timeout: 30\n",
            "      Timeout: 30\n      RecursiveLoop: Allow\n",
        )
    })
    .await;
    assert_eq!(probe["invocations"], 21, "{probe:#}");
    assert_eq!(probe["recursive_invocations_dropped"], 0, "{probe:#}");
    assert_eq!(dead, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_functions_are_delayed_and_counted_as_rounds_of_their_function() {
    let latency: Latency = "sqs=40,dynamodb=60000,s3=60000".parse().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    options.latency = latency;
    let running = Stack::start(options).await.unwrap();
    let gateway = running.addresses().gateway.clone();
    let queues = running.queues();
    // Calls from outside are not delayed; otherwise this one would take a minute.
    let outside = ask(&running.addresses().s3, "GET", "/");
    let answered = tokio::time::timeout(Duration::from_secs(30), outside).await;
    assert_eq!(answered.unwrap().0, 403);
    // The message is visible at once and has been received the maximum number of times: it moves to
    // the dead-letter queue.
    let failing = NewMessage::text("fail later 0");
    queues.send("Orders", failing).await.unwrap();
    idle(&gateway).await;
    let (_, stats) = ask(&gateway, "GET", "/_local/stats").await;
    let probe = &stats["functions"]["probe-function"];
    assert_eq!(probe["rounds"], 1, "{stats:#}");
    assert!(
        probe["duration_ms"]["max"].as_f64() >= Some(40.0),
        "{stats:#}"
    );
    assert_eq!(stats["functions"]["sweeper"]["rounds"], 0);
    assert_eq!(
        ask(&gateway, "DELETE", "/_local/stats").await.0,
        200,
        "the counters are reset"
    );
    let (_, stats) = ask(&gateway, "GET", "/_local/stats").await;
    assert_eq!(stats["functions"]["probe-function"]["rounds"], 0);
    assert_eq!(stats["queues"]["Orders"]["sent"], 0);
    running.stop().await;
}

/// Listens for connections of processes that hold a message.
async fn holder() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_reaches_the_function_as_a_message_and_is_counted_as_an_outside_call() {
    let (running, folder) = start().await;
    let addresses = running.addresses().clone();
    let config = aws_sdk_s3::Config::builder()
        .behavior_version_latest()
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new("local", "local", None, None, "test"))
        .endpoint_url(&addresses.s3)
        .force_path_style(true)
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .build();
    let client = aws_sdk_s3::Client::from_conf(config);
    let body = ByteStream::from_static(b"content");
    let put = client
        .put_object()
        .bucket(&addresses.buckets["Uploads"])
        .key("folder/a b.bin")
        .body(body);
    put.send().await.unwrap();
    idle(&addresses.gateway).await;

    let (_, stats) = ask(&addresses.gateway, "GET", "/_local/stats").await;
    assert_eq!(stats["outside"]["s3"]["PutObject"]["calls"], 1);
    assert_eq!(stats["aws"], json!({}));
    running.stop().await;
    let log = std::fs::read_to_string(folder.path().join("data/logs/probe-function.log")).unwrap();
    let batch = log.lines().find_map(|line| {
        serde_json::from_str::<Value>(line)
            .ok()?
            .get("batch")
            .cloned()
    });
    let event: Value = serde_json::from_str(batch.unwrap()[0]["body"].as_str().unwrap()).unwrap();
    assert_eq!(event["Records"][0]["eventName"], "ObjectCreated:Put");
    assert_eq!(event["Records"][0]["s3"]["object"]["key"], "folder/a+b.bin");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_reports_the_remaining_work() {
    let (running, _folder) = start().await;
    let later = NewMessage {
        delay: Some(Duration::from_secs(900)),
        ..NewMessage::text("later")
    };
    running.queues().send("Orders", later).await.unwrap();
    let (status, answer) = ask(
        &running.addresses().gateway,
        "GET",
        "/_local/idle?timeout=0",
    )
    .await;
    assert_eq!(status, 504);
    assert_eq!(answer["idle"], false);
    assert_eq!(
        answer["busy"]["queues"],
        json!({ "Orders": { "visible": 0, "in_flight": 0, "delayed": 1 } })
    );
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stats_have_their_documented_shape_and_can_be_reset() {
    let (running, _folder) = start().await;
    let base = running.addresses().gateway.clone();
    ask(&base, "GET", "/plain").await;
    let (_, stats) = ask(&base, "GET", "/_local/stats").await;
    let keys = |value: &Value| {
        value
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    let mut names = keys(&stats);
    names.sort();
    assert_eq!(names, ["aws", "buckets", "functions", "outside", "queues"]);
    let probe = &stats["functions"]["probe-function"];
    let mut names = keys(probe);
    names.sort();
    assert_eq!(
        names,
        [
            "cold_starts",
            "duration_ms",
            "errors",
            "init_ms",
            "invocations",
            "max_rss",
            "recursive_invocations_dropped",
            "rounds",
            "timeouts"
        ]
    );
    assert_eq!(keys(&probe["duration_ms"]), ["max", "p50", "p99"]);
    assert_eq!(
        (&probe["invocations"], &probe["cold_starts"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(stats["functions"]["sweeper"]["invocations"], 0);

    assert_eq!(ask(&base, "DELETE", "/_local/stats").await.0, 200);
    assert_eq!(
        ask(&base, "GET", "/_local/stats").await.1["functions"]["probe-function"]["invocations"],
        0
    );
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_function_of_a_schedule_runs_on_request() {
    let (running, folder) = start().await;
    let base = running.addresses().gateway.clone();
    // The probe does not know this event and panics, which is a response too.
    for path in [
        "/_local/schedules/Sweeper?dry_run=true",
        "/_local/schedules/sweeper",
        "/_local/sweeper",
    ] {
        let (status, answer) = ask(&base, "POST", path).await;
        assert_eq!(status, 502, "{path}");
        assert_eq!(answer["errorType"], "Runtime.ExitError", "{path}");
    }
    assert_eq!(
        ask(&base, "POST", "/_local/schedules/Sweeper?dry_run=maybe")
            .await
            .0,
        400
    );
    for (method, path) in [
        ("POST", "/_local/schedules/Probe"),
        ("POST", "/_local/schedules"),
        ("GET", "/_local/schedules/Sweeper"),
    ] {
        let (status, answer) = ask(&base, method, path).await;
        assert_eq!(status, 404, "{method} {path}");
        assert_eq!(answer["schedules"], json!(["Sweeper"]), "{method} {path}");
    }
    assert_eq!(running.functions().stats()["sweeper"].invocations, 3);
    running.stop().await;
    drop(folder);
}

#[tokio::test(flavor = "multi_thread")]
async fn ending_the_functions_makes_the_next_invocation_cold() {
    let (running, _folder) = start().await;
    let base = running.addresses().gateway.clone();
    ask(&base, "GET", "/plain").await;
    idle(&base).await;
    let (status, answer) = ask(&base, "DELETE", "/_local/functions").await;
    assert_eq!(
        (status, answer),
        (
            200,
            json!({ "ended": { "probe-function": 1, "sweeper": 0 } })
        )
    );
    ask(&base, "GET", "/plain").await;
    assert_eq!(running.functions().stats()["probe-function"].cold_starts, 2);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_stack_on_one_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    let running = Stack::start(options.clone()).await.unwrap();
    let error = Stack::start(options.clone()).await.unwrap_err();
    assert!(matches!(error, StackError::Locked { .. }));
    let message = error.to_string();
    assert!(
        message.contains(&std::process::id().to_string()),
        "{message}"
    );
    assert!(
        message.contains(&*options.data.to_string_lossy()),
        "{message}"
    );
    running.stop().await;
    Stack::start(options).await.unwrap().stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_is_named() {
    let taken = tokio::net::TcpListener::bind(("127.0.0.1", 0))
        .await
        .unwrap();
    let port = taken.local_addr().unwrap().port();
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    options.port = port;
    let error = Stack::start(options).await.unwrap_err();
    assert!(
        error.to_string().starts_with(&format!(
            "cannot listen on port {port} of 127.0.0.1 for the gateway"
        )),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_override_of_an_unknown_function_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    options
        .timeouts
        .insert("no-function".to_owned(), Duration::from_secs(1));
    let error = Stack::start(options).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the template has no function no-function; it has probe-function, sweeper"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_that_ends_before_its_first_event_is_an_error_of_the_start_if_it_is_started() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    let variable = ("PROBE_INIT".to_owned(), "exit".to_owned());
    options.environment.extend([variable]);
    options.starts_functions = true;
    let error = Stack::start(options.clone()).await.unwrap_err().to_string();
    let expected = "the functions probe-function and sweeper ended before their first events";
    assert!(error.contains(expected), "{error}");
    assert!(error.contains("probe-function.log"), "{error}");
    // Nothing says that a stack serves, and nothing of it is left.
    assert!(!options.data.join("stack.json").exists());
    options.starts_functions = false;
    let running = Stack::start(options).await.unwrap();
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn overrides_reach_the_functions() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    options
        .environment
        .insert("NUMBER".to_owned(), "8".to_owned());
    options
        .timeouts
        .insert("Probe".to_owned(), Duration::from_secs(600));
    let running = Stack::start(options).await.unwrap();
    let environment = probed_environment(&running).await;
    assert_eq!(environment["NUMBER"], "8");
    assert_eq!(
        environment["ORDERS_URL"],
        format!("{}/000000000000/Orders", running.addresses().sqs)
    );
    let epoch_ms = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_millis()
    };
    let before = epoch_ms();
    let echo = probed(&running, r#"{"do":"echo"}"#).await;
    let after = epoch_ms();
    let deadline = echo["headers"]["lambda-runtime-deadline-ms"].as_str();
    let deadline: u128 = deadline.unwrap().parse().unwrap();
    assert!((before + 600_000..=after + 600_000).contains(&deadline));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_in_flight_are_delivered_again_by_the_next_stack() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    let running = Stack::start(options.clone()).await.unwrap();
    let later = NewMessage {
        delay: Some(Duration::from_millis(1)),
        ..NewMessage::text("kept")
    };
    running.queues().send("Dead", later).await.unwrap();
    running.stop().await;
    options
        .environment
        .insert("NUMBER".to_owned(), "9".to_owned());
    let running = Stack::start(options).await.unwrap();
    assert_eq!(
        running.queues().receive("Dead", 1, None).await.unwrap()[0].body,
        "kept"
    );
    running.stop().await;
}

/// The `local-stack` binary as a separate process.
struct Binary {
    child: Child,
    addresses: Value,
}

impl Binary {
    async fn start(folder: &Path) -> Self {
        let data = folder.join("data");
        let child = Command::new(env!("CARGO_BIN_EXE_local-stack"))
            .args(["--port", "0", "--template"])
            .arg(folder.join("template.yaml"))
            .arg("--functions")
            .arg(folder.join("functions"))
            .arg("--data")
            .arg(&data)
            .env_remove("PORT")
            .env_remove("DATA")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pid = u64::from(child.id());
        let mut addresses = Value::Null;
        until("the stack is ready", || {
            let text = std::fs::read_to_string(data.join(ADDRESSES_FILE)).unwrap_or_default();
            addresses = serde_json::from_str(&text).unwrap_or_default();
            addresses["pid"] == pid
        })
        .await;
        Self { child, addresses }
    }

    fn gateway(&self) -> String {
        self.addresses["gateway"].as_str().unwrap().to_owned()
    }

    /// Starts an idle process and one that is busy with a child, and returns all process ids.
    async fn busy(&self) -> Vec<u64> {
        let gateway = self.gateway();
        let request =
            |path: &'static str| http::Request::get(path).body(bytes::Bytes::new()).unwrap();
        // Two simultaneous requests start two processes; one of them hangs, the other becomes idle.
        let hang = tokio::spawn({
            let gateway = gateway.clone();
            async move { send(&gateway, request("/hang")).await }
        });
        let pids = || children(self.child.id());
        until("the first function process runs", || pids().len() == 2).await;
        send(&gateway, request("/plain")).await;
        until("one process is stopped and one is running", || {
            let states: Vec<_> = pids().into_iter().map(state).collect();
            states.len() == 3 && states.iter().filter(|state| **state == Some('T')).count() == 1
        })
        .await;
        hang.abort();
        pids()
    }
}

impl Drop for Binary {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the child processes of a process that are not reaped.
fn children(pid: u32) -> Vec<u64> {
    let mut all = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let text = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        all.extend(
            text.split_ascii_whitespace()
                .map(|pid| pid.parse::<u64>().unwrap()),
        );
    }
    all
}

fn is_watchdog(pid: u64) -> bool {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    command
        .split(|byte| *byte == 0)
        .any(|argument| argument == b"watchdog")
}

fn kill(signal: &str, pid: u64) {
    assert!(
        Command::new("kill")
            .args([signal, &pid.to_string()])
            .status()
            .unwrap()
            .success()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stack_that_is_killed_leaves_no_process_behind() {
    let folder = tempfile::tempdir().unwrap();
    write_project(folder.path());
    let mut stack = Binary::start(folder.path()).await;
    let pids = stack.busy().await;
    assert_eq!(pids.len(), 3);
    stack.child.kill().unwrap();
    stack.child.wait().unwrap();
    until("all of its processes have ended", || {
        pids.iter().all(|pid| state(*pid).is_none())
    })
    .await;
    let tmp = folder.path().join("data/tmp");
    until("its scratch folders are removed", || {
        std::fs::read_dir(&tmp).unwrap().count() == 0
    })
    .await;

    // The killed stack left its address file, which does not keep the next one from starting.
    let next = Binary::start(folder.path()).await;
    assert_eq!(ask(&next.gateway(), "GET", "/plain").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn leftover_processes_without_a_watchdog_are_ended_by_the_next_stack() {
    let folder = tempfile::tempdir().unwrap();
    write_project(folder.path());
    let mut stack = Binary::start(folder.path()).await;
    let pids = stack.busy().await;
    let watchdog = pids.iter().copied().find(|pid| is_watchdog(*pid)).unwrap();
    // The hanging process, not the frozen one: the kernel itself ends groups with stopped members
    // when their parent dies.
    let hanging = pids
        .iter()
        .copied()
        .find(|pid| *pid != watchdog && state(*pid) != Some('T'))
        .unwrap();
    kill("-KILL", watchdog);
    stack.child.kill().unwrap();
    stack.child.wait().unwrap();
    assert!(state(hanging).is_some());

    let next = Binary::start(folder.path()).await;
    assert!(pids.iter().all(|pid| state(*pid).is_none()));
    assert_eq!(ask(&next.gateway(), "GET", "/plain").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stack_that_stops_ends_its_processes_first() {
    for signal in ["-TERM", "-INT"] {
        let folder = tempfile::tempdir().unwrap();
        write_project(folder.path());
        let mut stack = Binary::start(folder.path()).await;
        let pids = stack.busy().await;
        kill(signal, u64::from(stack.child.id()));
        assert!(stack.child.wait().unwrap().success());
        assert!(pids.iter().all(|pid| state(*pid).is_none()), "{signal}");
        assert!(!folder.path().join("data").join(ADDRESSES_FILE).exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stack_that_stops_waits_for_the_invocations_in_progress() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    let running = Stack::start(options.clone()).await.unwrap();
    let (of_caller, of_queue) = (holder().await, holder().await);
    let event = json!({ "do": "hold", "address": of_caller.local_addr().unwrap().to_string() });
    let functions = running.functions().clone();
    let invoked = tokio::spawn(async move {
        let answer = functions.invoke("probe-function", event.to_string().into());
        answer.await.outcome
    });
    send_hold(&running, "Orders", "group", &of_queue).await;
    let at_work = (
        of_caller.accept().await.unwrap(),
        of_queue.accept().await.unwrap(),
    );
    let mut stopping = pin!(running.stop());
    assert!(poll!(stopping.as_mut()).is_pending());
    drop(at_work);
    stopping.await;
    let answer = invoked.await.unwrap();
    assert!(answer.is_ok(), "{answer:?}");

    let running = Stack::start(options).await.unwrap();
    let counts = running.queues().counts("Orders").await.unwrap();
    assert_eq!((counts.visible, counts.in_flight), (0, 0));
    running.stop().await;
}

/// A share of the machine is divided among the processes. A value that the user has set is not
/// changed (docs/security.md, F16).
#[tokio::test(flavor = "multi_thread")]
async fn each_process_gets_its_share_of_the_machine() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    let template = std::fs::read_to_string(&options.template).unwrap();
    let template = template
        .replacen(
            "        NUMBER: \"7\"\n",
            "        NUMBER: \"7\"\n        MEMORY: \"9663676416\"\n        DISK: \"0\"\n        OWN: \"5\"\n",
            1,
        )
        .replacen(
            "        Binary: sweeper\n",
            "        Binary: sweeper\n      MachineShares:\n        DISK: { Of: disk, Percent: 50 }\n",
            1,
        )
        .replacen(
            "        Binary: probe-function\n",
            "        Binary: probe-function\n      MachineShares:\n        MEMORY: { Of: memory, Percent: 50 }\n        OWN: { Of: memory, Percent: 50 }\n",
            1,
        );
    std::fs::write(&options.template, template).unwrap();
    options.concurrency = 4;
    options.machine = Some(Machine {
        memory: 16 << 30,
        disk: 64 << 30,
    });
    options.environment.insert("OWN".to_owned(), "6".to_owned());
    let running = Stack::start(options).await.unwrap();
    let environment = probed_environment(&running).await;
    // Every function sees the other function's share of the disk: limits are the same for all.
    let seen = ["MEMORY", "DISK", "OWN"].map(|name| environment[name].as_str().unwrap());
    assert_eq!(seen, ["2147483648", "34359738368", "6"]);
    assert_eq!(
        running.division().to_string(),
        "This machine has 16.0 GiB of memory and 64.0 GiB of disk for the stack. Each of up to 4 probe-function processes \
         uses at most 2.0 GiB of memory (MEMORY). sweeper uses at most 32.0 GiB of disk (DISK)."
    );
    running.stop().await;
}

/// Other users of the machine cannot read bodies, records and messages (docs/security.md, F13).
#[tokio::test(flavor = "multi_thread")]
async fn stored_data_is_accessible_only_to_its_owner() {
    let folder = tempfile::tempdir().unwrap();
    write_project(folder.path());
    // Permissions as an earlier release left them.
    let data = folder.path().join("data");
    std::fs::create_dir_all(data.join("logs")).unwrap();
    std::fs::write(data.join("logs/probe-function.log"), "").unwrap();
    for (path, mode) in [
        ("", 0o755),
        ("logs", 0o755),
        ("logs/probe-function.log", 0o644),
    ] {
        let open = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(data.join(path), open).unwrap();
    }
    let stack = Binary::start(folder.path()).await;
    assert_eq!(ask(&stack.gateway(), "GET", "/plain").await.0, 200);
    let client = endpoints::s3_client(stack.addresses["s3"].as_str().unwrap(), LOCAL);
    client
        .put_object()
        .bucket("template-uploads-000000000000")
        .key("global/app")
        .body(ByteStream::from_static(b"private"))
        .send()
        .await
        .unwrap();
    let mut seen = 0;
    let mut unseen = vec![data];
    while let Some(path) = unseen.pop() {
        let metadata = std::fs::symlink_metadata(&path).unwrap();
        assert_eq!(metadata.mode() & 0o077, 0, "{}", path.display());
        seen += 1;
        if metadata.is_dir() {
            let entries = std::fs::read_dir(&path).unwrap();
            unseen.extend(entries.map(|entry| entry.unwrap().path()));
        }
    }
    assert!(seen > 10, "{seen}");
}
