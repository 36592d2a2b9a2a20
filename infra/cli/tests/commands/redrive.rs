//! `redrive`, with a queue that has two dead letters.

use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::run;
use crate::service::Service;

/// Whether the letters were shown.
type Shown = std::sync::Arc<AtomicBool>;

/// A queue whose moves end so.
fn queue(ended: &'static str) -> Service {
    let perform = move |State(shown): State<Shown>, headers: HeaderMap| async move {
        perform(&shown, headers["x-amz-target"].to_str().unwrap(), ended)
    };
    Service::with(
        Router::new()
            .route("/", post(perform))
            .with_state(Shown::default()),
    )
}

fn perform(shown: &Shown, target: &str, ended: &str) -> Response {
    let letter = |number: u32, from: &str, body: &str| {
        json!({
            "MessageId": format!("letter-{number}"), "ReceiptHandle": format!("handle-{number}"), "Body": body,
            "Attributes": {
                "DeadLetterQueueSourceArn": format!("arn:aws:sqs:eu-west-1:000000000000:{from}"),
                "SentTimestamp": "1700000000000",
            },
        })
    };
    let answer: Value = match target.strip_prefix("AmazonSQS.").unwrap() {
        "GetQueueAttributes" => json!({"Attributes": {"QueueArn": "arn:aws:sqs:eu-west-1:0:dead"}}),
        "ReceiveMessage" if shown.swap(true, Ordering::SeqCst) => json!({}),
        "ReceiveMessage" => json!({"Messages": [
            letter(1, "UploadsQueue", "an event"), letter(2, "EagerQueue", &"é".repeat(400)),
        ]}),
        "ChangeMessageVisibility" => json!({}),
        "StartMessageMoveTask" => json!({"TaskHandle": "task"}),
        "ListMessageMoveTasks" => json!({"Results": [
            {"Status": ended, "ApproximateNumberOfMessagesMoved": 2, "FailureReason": "denied"},
        ]}),
        _ => return StatusCode::BAD_REQUEST.into_response(),
    };
    Json(answer).into_response()
}

#[test]
fn dead_letters_are_printed_as_text_and_as_json() {
    let mut table = String::new();
    for (arguments, ended, code) in [
        (&["--dry-run"][..], "COMPLETED", 0),
        (&["--dry-run", "--json"], "COMPLETED", 0),
        (&[], "COMPLETED", 0),
        (&["--json"], "COMPLETED", 0),
        (&[], "FAILED", 1),
    ] {
        let service = queue(ended);
        let url = format!("{}/0/dead", service.url());
        let printed = run(&[&["redrive", "--queue", &url], arguments].concat());
        assert_eq!((printed.code, printed.err.as_str()), (code, ""));
        table.push_str(&format!(
            "--- {} {ended}\n{}",
            arguments.join(" "),
            printed.out
        ));
    }
    insta::assert_snapshot!("redrive", table);
}
