//! A Lambda function for the tests of the local stack. Its event tells what it does, including
//! failures.
//!
//! It uses the runtime API over a plain socket, so that the stack's responses are tested against
//! the specification and not with a client that may share its mistakes.
//!
//! - `{"do": …}`: `echo`, `env`, `pid`, `error`, `exit`, `abort`, `hang`, `hold`, `sleep`,
//!   `allocate`, `scratch`, `large`, `twice`; after the response, `"then": "exit"` ends the
//!   process, and with `"then": "hang"` it requests no further event;
//! - a request (`rawPath`): the first segment is the command, the result is a response;
//! - messages (`Records`): a body of `fail` is reported as failed, `crash` ends the process,
//!   `hold <address>` is processed until the listener at this address closes the connection,
//!   `fail later <seconds>` is hidden for this time and reported as failed, and `again <number>`
//!   is sent again with the number before it, until this is 0;
//! - `PROBE_INIT=exit|error|hang` makes it fail before its first request.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio, exit};
use std::time::Duration;

use serde_json::{Value, json};

fn main() {
    let address =
        std::env::var("AWS_LAMBDA_RUNTIME_API").expect("AWS_LAMBDA_RUNTIME_API is not set");
    let mut api = Api::connect(&address);
    println!("probe started");
    match std::env::var("PROBE_INIT").as_deref() {
        Ok("exit") => exit(3),
        Ok("hang") => loop {
            std::thread::park();
        },
        Ok("error") => {
            let error = json!({ "errorType": "Probe.Init", "errorMessage": "told to fail" });
            api.post("/2018-06-01/runtime/init/error", &error.to_string());
            exit(1);
        }
        _ => {}
    }
    let mut invocations = 0;
    loop {
        let (headers, body) = api.call("GET", "/2018-06-01/runtime/invocation/next", "");
        let id = headers
            .get("lambda-runtime-aws-request-id")
            .cloned()
            .expect("no request id");
        invocations += 1;
        let event: Value = serde_json::from_str(&body).expect("the event is not JSON");
        let answer = if let Some(records) = event.get("Records").and_then(Value::as_array) {
            Ok(batch(records, &headers["lambda-runtime-trace-id"]))
        } else if let Some(path) = event.get("rawPath").and_then(Value::as_str) {
            respond(path, &event)
        } else {
            obey(&event, &headers, invocations, &mut api)
        };
        match answer {
            Ok(answer) => api.post(
                &format!("/2018-06-01/runtime/invocation/{id}/response"),
                &answer.to_string(),
            ),
            Err(error) => api.post(
                &format!("/2018-06-01/runtime/invocation/{id}/error"),
                &error.to_string(),
            ),
        };
        match event.get("then").and_then(Value::as_str) {
            Some("exit") => exit(0),
            Some("hang") => loop {
                std::thread::park();
            },
            _ => {}
        }
    }
}

fn obey(
    event: &Value,
    headers: &BTreeMap<String, String>,
    invocations: u64,
    api: &mut Api,
) -> Result<Value, Value> {
    let number = |name: &str| event.get(name).and_then(Value::as_u64).unwrap_or(0);
    match event.get("do").and_then(Value::as_str) {
        Some("echo") => Ok(
            json!({ "event": event, "headers": headers, "invocations": invocations, "pid": std::process::id() }),
        ),
        Some("env") => Ok(json!(std::env::vars().collect::<BTreeMap<_, _>>())),
        Some("error") => Err(json!({ "errorType": "Probe.Error", "errorMessage": "told to fail" })),
        Some("exit") => {
            eprintln!("probe exits");
            exit(i32::try_from(number("code")).unwrap_or(1))
        }
        Some("abort") => std::process::abort(),
        Some("hang") => {
            let mut child = Command::new("sleep")
                .arg("1000")
                .stdin(Stdio::null())
                .spawn()
                .expect("cannot start sleep");
            let pids = json!({ "pid": std::process::id(), "child": child.id() });
            let path = event
                .get("tell")
                .and_then(Value::as_str)
                .expect("no file for the process ids");
            // Renamed to its final path, so that a reader sees the complete file or none.
            std::fs::write(format!("{path}.new"), pids.to_string())
                .expect("cannot write the process ids");
            std::fs::rename(format!("{path}.new"), path).expect("cannot rename the file");
            let _ = child.wait();
            Ok(Value::Null)
        }
        Some("hold") => {
            let address = event.get("address").and_then(Value::as_str);
            hold(address.expect("no address of the holder"));
            Ok(json!({ "pid": std::process::id() }))
        }
        Some("sleep") => {
            std::thread::sleep(Duration::from_millis(number("ms")));
            Ok(json!({ "pid": std::process::id() }))
        }
        Some("allocate") => {
            let bytes = vec![1_u8; usize::try_from(number("bytes")).expect("too many bytes")];
            Ok(
                json!({ "sum": bytes.iter().step_by(4096).map(|byte| u64::from(*byte)).sum::<u64>() }),
            )
        }
        Some("scratch") => {
            let folder = std::env::var("TMPDIR").expect("TMPDIR is not set");
            std::fs::write(format!("{folder}/file"), "scratch").expect("cannot write");
            Ok(json!(folder))
        }
        Some("large") => Ok(json!(
            "x".repeat(usize::try_from(number("bytes")).expect("too many bytes"))
        )),
        // An event is open: a request for another one must be refused, and so must a response to an
        // unknown one.
        Some("twice") => {
            let (next, _) = api.call("GET", "/2018-06-01/runtime/invocation/next", "");
            let (unknown, _) = api.call(
                "POST",
                "/2018-06-01/runtime/invocation/unknown/response",
                "{}",
            );
            Ok(json!({ "next": next[":status"], "unknown": unknown[":status"] }))
        }
        other => panic!("unknown command {other:?}"),
    }
}

fn respond(path: &str, event: &Value) -> Result<Value, Value> {
    let mut segments = path.split('/').skip(1);
    match segments.next() {
        Some("status") => {
            let status: u64 = segments
                .next()
                .and_then(|text| text.parse().ok())
                .expect("no status");
            Ok(
                json!({ "statusCode": status, "headers": { "x-probe": "yes" }, "cookies": ["a=1", "b=2"], "body": "told" }),
            )
        }
        Some("binary") => Ok(json!({ "statusCode": 200, "body": "AP8Q", "isBase64Encoded": true })),
        Some("plain") => Ok(json!({ "hello": "world" })),
        Some("error") => Err(json!({ "errorType": "Probe.Error", "errorMessage": "told to fail" })),
        Some("crash") => exit(1),
        Some("large") => Ok(json!({ "statusCode": 200, "body": "x".repeat(6 * 1024 * 1024 + 1) })),
        Some("hang") => loop {
            std::thread::park();
        },
        _ => Ok(
            json!({ "statusCode": 200, "headers": { "content-type": "application/json" }, "body": event.to_string() }),
        ),
    }
}

fn batch(records: &[Value], trace: &str) -> Value {
    let body = |record: &Value| record["body"].as_str().unwrap_or_default().to_owned();
    if records.iter().any(|record| body(record) == "crash") {
        exit(1);
    }
    for record in records {
        if let Some(address) = body(record).strip_prefix("hold ") {
            hold(address);
        }
    }
    for record in records {
        if let Some(seconds) = body(record).strip_prefix("fail later ") {
            hide(record, seconds.parse().expect("not a number of seconds"));
        }
    }
    for record in records {
        let number = body(record).strip_prefix("again ").map(str::to_owned);
        let number: u64 = number.map_or(0, |text| text.parse().expect("not a number"));
        if let Some(before) = number.checked_sub(1) {
            send_again(before, trace);
        }
    }
    let failed: Vec<Value> = records
        .iter()
        .filter(|record| body(record).starts_with("fail"))
        .map(|record| json!({ "itemIdentifier": record["messageId"] }))
        .collect();
    println!("{}", json!({ "batch": records }));
    json!({ "batchItemFailures": failed })
}

/// Waits until the listener at this address closes the connection.
fn hold(address: &str) {
    let mut holder = TcpStream::connect(address).expect("cannot reach the holder");
    let _ = holder.read(&mut [0]);
}

/// Changes the visibility timeout of a message in SQS to this many seconds from now.
fn hide(record: &Value, seconds: u64) {
    let request = json!({
        "QueueUrl": variable("ORDERS_URL"),
        "ReceiptHandle": record["receiptHandle"],
        "VisibilityTimeout": seconds,
    });
    call_sqs("ChangeMessageVisibility", &request, "");
}

/// Sends `again <number>`, with the trace of the invocation as an SDK of AWS does.
fn send_again(number: u64, trace: &str) {
    let request = json!({
        "QueueUrl": variable("ORDERS_URL"),
        "MessageBody": format!("again {number}"),
    });
    let trace = format!("x-amzn-trace-id: {trace}\r\n");
    call_sqs("SendMessage", &request, &trace);
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

fn call_sqs(operation: &str, request: &Value, headers: &str) {
    let credential = format!(
        "authorization: AWS4-HMAC-SHA256 Credential={}/20260101/us-east-1/sqs/aws4_request\r\n",
        variable("AWS_ACCESS_KEY_ID")
    );
    let endpoint = variable("AWS_ENDPOINT_URL_SQS");
    let address = endpoint.strip_prefix("http://").expect("not a plain URL");
    let (answer, body) = Api::connect(address).call_with(
        "POST",
        "/",
        &format!("x-amz-target: AmazonSQS.{operation}\r\n{credential}{headers}"),
        &request.to_string(),
    );
    assert_eq!(answer[":status"], "200", "{body}");
}

/// A kept-alive connection, as real clients use, to the runtime API or to a service.
struct Api {
    address: String,
    stream: BufReader<TcpStream>,
}

impl Api {
    fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("cannot connect");
        let _ = stream.set_nodelay(true);
        Self {
            address: address.to_owned(),
            stream: BufReader::new(stream),
        }
    }

    fn post(&mut self, path: &str, body: &str) {
        self.call("POST", path, body);
    }

    /// Sends a request and returns the response's headers (its status as `:status`) and body.
    fn call(&mut self, method: &str, path: &str, body: &str) -> (BTreeMap<String, String>, String) {
        self.call_with(method, path, "", body)
    }

    /// Same as [`Api::call`], with additional headers, each with its line ending.
    fn call_with(
        &mut self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> (BTreeMap<String, String>, String) {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\n{headers}content-length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        let mut request = head.into_bytes();
        request.extend_from_slice(body.as_bytes());
        self.stream
            .get_mut()
            .write_all(&request)
            .expect("the connection was closed");
        let mut headers = BTreeMap::new();
        let mut line = String::new();
        if self
            .stream
            .read_line(&mut line)
            .expect("the connection was closed")
            == 0
        {
            exit(2);
        }
        headers.insert(
            ":status".to_owned(),
            line.split(' ').nth(1).unwrap_or_default().to_owned(),
        );
        loop {
            line.clear();
            self.stream
                .read_line(&mut line)
                .expect("the connection was closed");
            match line.trim_end().split_once(": ") {
                Some((name, value)) => headers.insert(name.to_ascii_lowercase(), value.to_owned()),
                None => break,
            };
        }
        let length = headers
            .get("content-length")
            .and_then(|text| text.parse().ok())
            .unwrap_or(0);
        let mut body = vec![0; length];
        self.stream
            .read_exact(&mut body)
            .expect("the connection was closed");
        (headers, String::from_utf8(body).expect("not UTF-8"))
    }
}
