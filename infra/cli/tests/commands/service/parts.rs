//! A service that wants each file in two parts, and signs one at a time.

use std::sync::{Arc, Mutex};

use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::routing::{post, put};
use axum::{Json, Router};
use serde_json::{Value, json};

use super::Service;

/// The parts that were received, in the order of their numbers.
type Parts = Arc<Mutex<Vec<Vec<u8>>>>;

/// Starts the service. Returns the parts that it receives.
pub(crate) fn start() -> (Service, Parts) {
    let parts = Parts::default();
    let router = Router::new()
        .route("/uploads", post(answer))
        .route("/part/{number}", put(receive));
    (Service::with(router.with_state(parts.clone())), parts)
}

async fn answer(
    State(parts): State<Parts>,
    headers: HeaderMap,
    Json(request): Json<Value>,
) -> Json<Value> {
    let received = parts.lock().unwrap().len() as u64;
    let host = headers["host"].to_str().unwrap();
    let answer = match (request["files"][0]["size"].as_u64(), received) {
        (None, _) => json!({"state": "absent"}),
        (Some(_), 2) => json!({"state": "pending"}),
        (Some(size), received) => {
            let number = received + 1;
            let url = format!("http://{host}/part/{number}");
            let part = json!({"number": number, "put": {"url": url, "headers": {}}});
            json!({"state": "upload", "parts": {"part_bytes": size.div_ceil(2), "parts": [part]}})
        }
    };
    let mut file = json!({"key": "global/app.debug/ab12/0123456789abcdef"});
    let file_fields = file.as_object_mut().unwrap();
    file_fields.extend(answer.as_object().unwrap().clone());
    Json(json!({"files": [file]}))
}

async fn receive(State(parts): State<Parts>, Path(number): Path<usize>, body: axum::body::Bytes) {
    let mut parts = parts.lock().unwrap();
    assert_eq!(number, parts.len() + 1);
    parts.push(body.to_vec());
}
