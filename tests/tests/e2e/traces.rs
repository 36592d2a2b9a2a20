//! Traces, as a collector of OpenTelemetry receives them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Method;
use serde_json::Value;
use symdepot_tests::stack::{Options, until};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::permissions::template_with;
use crate::symbol_server::{DEBUG_FILE, SymbolServer};
use crate::{PATIENCE, Running, bytes_of, crash, lines_with};

const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// The answer of a collector that accepts all spans.
const ACCEPTS: Option<&str> = Some("{}");

/// What a collector received: the head and the body of each request.
type Received = Arc<Mutex<Vec<(String, String)>>>;

/// A stand-in for a collector. It ends with the test.
struct Collector {
    url: String,
    received: Received,
    _task: JoinSet<()>,
}

impl Collector {
    /// Starts a collector that answers each request with this body, or never.
    async fn start(answer: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let received = Received::default();
        let kept = received.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (connection, _) = listener.accept().await.unwrap();
                connections.spawn(serve(connection, kept.clone(), answer));
                while connections.try_join_next().is_some() {}
            }
        });
        Self {
            url,
            received,
            _task: task,
        }
    }

    fn requests(&self) -> Vec<(String, String)> {
        self.received.lock().unwrap().clone()
    }

    /// Returns all spans that arrived.
    fn spans(&self) -> Vec<Value> {
        let requests = self.requests();
        let spans = requests.iter().flat_map(|(_, body)| {
            let body: Value = serde_json::from_str(body).unwrap();
            let scopes = &body["resourceSpans"][0]["scopeSpans"];
            scopes[0]["spans"].as_array().unwrap().clone()
        });
        spans.collect()
    }
}

async fn serve(mut connection: TcpStream, received: Received, answer: Option<&str>) {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match connection.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => return,
            }
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        let length = head.split("content-length: ").nth(1).unwrap();
        let length = length.split("\r\n").next().unwrap().parse().unwrap();
        let mut body = vec![0; length];
        connection.read_exact(&mut body).await.unwrap();
        let body = String::from_utf8(body).unwrap();
        received.lock().unwrap().push((head, body));
        let Some(answer) = answer else {
            return std::future::pending().await;
        };
        let length = answer.len();
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{answer}");
        connection.write_all(answer.as_bytes()).await.unwrap();
    }
}

fn with_collector(options: Options, collector: &Collector) -> Options {
    options
        .variable("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url)
        .variable("OTEL_EXPORTER_OTLP_HEADERS", "x-key=0penSesame")
}

/// Waits for the line of a function's log with this message.
async fn line(running: &Running, function: &str, message: &str) -> Value {
    let line = until(message, PATIENCE, async || {
        let lines = lines_with(&running.stack.log_of(function), message);
        lines.into_iter().next()
    });
    line.await.unwrap()
}

fn named<'a>(spans: &'a [Value], name: &str) -> &'a Value {
    let found = spans.iter().find(|span| span["name"] == name);
    found.unwrap_or_else(|| panic!("no span {name}: {spans:#?}"))
}

#[tokio::test]
async fn one_trace_leads_from_the_caller_through_the_queue_to_the_build() {
    let collector = Collector::start(ACCEPTS).await;
    let server = SymbolServer::start([(DEBUG_FILE, bytes_of("elf/crash.debug"))]).await;
    let settings = |options| with_collector(server.sought_by(options), &collector);
    let running = Running::start_with(settings).await;
    let client = running.client();
    let request = client.request(Method::POST, "/symbolicate");
    let request = request.header("traceparent", CALLER).json(&crash::sample());
    let reply = client.send("a crash", request).await.unwrap();
    crash::assert_symbolicated(&reply.body);
    running.idle().await;
    let folder = running.stack.options().data();
    let _kept = running.stop().await;

    let spans = collector.spans();
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let of_trace = spans.iter().filter(|span| span["traceId"] == trace);
    let of_trace: Vec<Value> = of_trace.cloned().collect();
    let request = named(&of_trace, "POST /symbolicate");
    assert_eq!(request["parentSpanId"], "00f067aa0ba902b7");
    assert_eq!(request["kind"], 2);
    let send = named(&of_trace, "send eager");
    assert_eq!(send["parentSpanId"], request["spanId"]);
    assert_eq!(send["kind"], 4);
    let build = named(&of_trace, "process eager");
    assert_eq!(build["parentSpanId"], send["spanId"]);
    assert_eq!(build["kind"], 5);
    for (phase, parent) in [
        ("look up", request),
        ("wait for builds", request),
        ("symbolicate", request),
        ("fetch", build),
        ("derive", build),
        ("publish", build),
    ] {
        let phase = named(&of_trace, phase);
        assert_eq!(phase["parentSpanId"], parent["spanId"], "{phase:#}");
    }
    let log = std::fs::read_to_string(folder.join("logs/derive.log")).unwrap();
    assert!(log.contains(&format!("\"trace_id\":\"{trace}\"")), "{log}");
    // What leaves the account: the header for the collector, and nothing of files and modules.
    let requests = collector.requests();
    for (head, body) in &requests {
        assert!(head.starts_with("post /v1/traces http/1.1"), "{head}");
        assert!(head.contains("x-key: 0pensesame"), "{head}");
        for private in ["crash.debug", "67e9247c", "456ebc7f", "/usr/", "0penSesame"] {
            assert!(!body.contains(private), "{private}: {body}");
        }
    }
}

#[tokio::test]
async fn a_collector_that_never_answers_costs_a_second_once_and_no_response() {
    let collector = Collector::start(None).await;
    let settings = |options| with_collector(options, &collector);
    let running = Running::start_with(settings).await;
    let client = running.client();
    let mut took = Vec::new();
    for _ in 0..2 {
        let request = client.request(Method::GET, "/about");
        let began = Instant::now();
        let reply = client.send("about", request).await.unwrap();
        took.push(began.elapsed());
        assert_eq!(reply.status, 200, "{}", reply.text);
        // The next request has the same instance.
        running.idle().await;
    }
    assert!(took[0] >= Duration::from_secs(1), "{took:?}");
    assert_eq!(collector.requests().len(), 1);
    until("the log of the lost spans", PATIENCE, async || {
        let log = running.stack.log_of("symbolicate");
        log.contains("spans were not exported").then_some(())
    })
    .await
    .unwrap();
    running.stop().await;
}

#[tokio::test]
async fn spans_that_a_collector_rejects_are_logged_with_its_reason() {
    let rejects = r#"{"partialSuccess": {"rejectedSpans": "1", "errorMessage": "quota exceeded"}}"#;
    let collector = Collector::start(Some(rejects)).await;
    let settings = |options| with_collector(options, &collector);
    let running = Running::start_with(settings).await;
    let client = running.client();
    let request = client.request(Method::GET, "/about");
    let reply = client.send("about", request).await.unwrap();
    assert_eq!(reply.status, 200, "{}", reply.text);
    let line = line(&running, "symbolicate", "spans were rejected").await;
    let said = (&line["error"], &line["spans"]);
    assert_eq!(said, (&"quota exceeded".into(), &1.into()), "{line:#}");
    running.stop().await;
}

#[tokio::test]
async fn a_run_of_prune_has_its_phases_and_one_that_cannot_begin_has_a_span_that_failed() {
    let collector = Collector::start(ACCEPTS).await;
    let settings = |options| with_collector(options, &collector);
    let running = Running::start_with(settings).await;
    running.client().prune(false).await.unwrap();
    running.stop().await;
    let spans = collector.spans();
    let run = named(&spans, "prune");
    assert!(run.get("status").is_none(), "{run:#}");
    for phase in [
        "begin pass",
        "scan records",
        "check uploads",
        "compare uploads",
        "delete orphans",
    ] {
        let phase = named(&spans, phase);
        assert_eq!(phase["parentSpanId"], run["spanId"], "{phase:#}");
    }

    let (collector, changed) = (Collector::start(ACCEPTS).await, TempDir::new().unwrap());
    let reads = "Action: [dynamodb:Scan, dynamodb:BatchGetItem, dynamodb:Query, dynamodb:PutItem,";
    let template = template_with(
        &changed,
        reads,
        &reads.replace("dynamodb:BatchGetItem, ", ""),
    );
    let settings = |options: Options| with_collector(options, &collector).template(template);
    let running = Running::start_with(settings).await;
    running.client().prune(false).await.unwrap_err();
    let line = line(&running, "prune", "run completed").await;
    running.stack.stop().await.unwrap();
    assert_eq!(line["failed"], 1, "{line:#}");
    let errors = line["errors"].as_str().unwrap();
    assert!(errors.contains("AccessDenied"), "{line:#}");
    let spans = collector.spans();
    let run = named(&spans, "prune");
    assert_eq!(run["status"]["code"], 2, "{run:#}");
    assert_eq!(run["traceId"], line["trace_id"], "{run:#}");
}

#[tokio::test]
async fn without_a_collector_and_for_callers_without_a_credential_nothing_is_sent() {
    let collector = Collector::start(ACCEPTS).await;
    let settings = |options| with_collector(options, &collector).variable("AUTH", "token");
    let refusing = Running::start_with(settings).await;
    let client = refusing.client();
    let about = client.request(Method::GET, "/t/none/about");
    let about = about.header("traceparent", CALLER);
    let reply = client.send("about", about).await.unwrap();
    assert_eq!(reply.status, 401, "{}", reply.text);
    refusing.stop().await;
    assert_eq!(collector.requests(), []);

    let running = Running::start().await;
    let client = running.client();
    let about = client.request(Method::GET, "/about");
    let about = about.header("traceparent", CALLER);
    let reply = client.send("about", about).await.unwrap();
    assert_eq!(reply.status, 200, "{}", reply.text);
    let folder = running.stack.options().data();
    let _kept = running.stop().await;
    let log = std::fs::read_to_string(folder.join("logs/symbolicate.log")).unwrap();
    assert!(log.contains("request served") && !log.contains("trace_id"));
}
