//! A service that wants each file once, and its store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::sync::Barrier;

use super::{Service, explained_object, explained_upload};

/// How often a request lets the others go ahead. The runtime looks for new ones every 61 times.
const YIELDS: usize = 1_000;

/// What was stored, by name.
#[derive(Default)]
pub(crate) struct Stored {
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    /// The number of requests to store something.
    pub(crate) attempts: usize,
    /// The number of requests that the store refuses first.
    refusals: usize,
    /// The number of answers about a stored crash file that are lost after it was removed.
    pub(crate) lost_answers: usize,
    /// The forms that refer to what was stored.
    pub(crate) forms: Vec<String>,
    /// The number of requests to store something that are being answered, now and at most.
    at_once: usize,
    pub(crate) most_at_once: usize,
    /// How many requests to store something are answered together.
    together: Option<Arc<Barrier>>,
}

pub(crate) type Shared = Arc<Mutex<Stored>>;

/// Starts the service, whose store is overloaded for some requests. The name of a file says what
/// becomes of it.
pub(crate) fn start(refusals: usize) -> (Service, Shared) {
    let stored = Shared::default();
    stored.lock().unwrap().refusals = refusals;
    (Service::with(router(&stored)), stored)
}

/// Starts the service, whose store answers requests when so many of them have arrived.
pub(crate) fn start_for(together: usize) -> (Service, Shared) {
    let stored = Shared::default();
    stored.lock().unwrap().together = Some(Arc::new(Barrier::new(together)));
    (Service::with(router(&stored)), stored)
}

/// Returns all routes of the service, over what is stored.
pub(crate) fn router(stored: &Shared) -> Router {
    let router = Router::new()
        .route("/uploads", post(answer))
        .route("/explain", get(explain))
        .route("/attachments", post(offer))
        .route("/minidump", post(symbolicate))
        .route("/applecrashreport", post(symbolicate))
        .route("/store/{name}", put(receive))
        .merge(super::about())
        .layer(DefaultBodyLimit::disable());
    router.with_state(Arc::clone(stored))
}

fn signed_put(headers: &HeaderMap, name: &str) -> Value {
    let host = headers["host"].to_str().unwrap();
    json!({"url": format!("http://{host}/store/{name}"), "headers": {"x-signed": "yes"}})
}

async fn answer(
    State(stored): State<Shared>,
    headers: HeaderMap,
    Json(request): Json<Value>,
) -> Json<Value> {
    let stored = stored.lock().unwrap();
    let file = |file: &Value| {
        let name = file["name"].as_str().unwrap();
        let id = file["ids"][0].as_str().unwrap();
        let digest = &file["sha256"].as_str().unwrap()[..16];
        let state = if stored.files.contains_key(name) {
            match name.split_once('.').unwrap().0 {
                "ignored" => json!({"state": "ignored", "reason": "its DWARF is damaged"}),
                "pending" => json!({"state": "pending"}),
                _ => json!({"state": "applied"}),
            }
        } else if file["size"].is_null() {
            json!({"state": "absent"})
        } else {
            json!({"state": "upload", "put": signed_put(&headers, name)})
        };
        let mut file = json!({"key": format!("global/{name}/{id}/{digest}")});
        file.as_object_mut()
            .unwrap()
            .extend(state.as_object().unwrap().clone());
        file
    };
    let files: Vec<Value> = request["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(file)
        .collect();
    Json(json!({"files": files}))
}

/// Says what requests use of an upload.
async fn explain(Query(query): Query<BTreeMap<String, String>>) -> Json<Value> {
    let name = query["key"].split('/').nth(1).unwrap();
    let made_from = "global/1/firmware.elf";
    let of_other = json!({"kind": "symcache", "state": "other_upload", "made_from": made_from});
    let failed = json!({"kind": "symcache", "state": "failed", "detail": "its DWARF is damaged"});
    let used = |kind: &str| json!({"kind": kind, "state": "used"});
    let advice = |cause: &str, detail: &str| json!({"cause": cause, "detail": detail, "next_step": "do this"});
    let (caches, advice) = match name.split_once('.').unwrap().0 {
        "unused" => (
            json!([of_other]),
            advice("shared_id", "it is not used: global/1/firmware.elf is"),
        ),
        "copy" => (json!([of_other]), Value::Null),
        "partial" => (
            json!([used("cficache"), failed]),
            advice("unusable", "its DWARF is damaged"),
        ),
        "building" => (
            json!([{"kind": "symcache", "state": "pending"}]),
            Value::Null,
        ),
        _ => (json!([used("symcache")]), Value::Null),
    };
    let object = explained_object(&caches, &advice);
    Json(explained_upload(&query["key"], "applied", &[object]))
}

async fn offer(headers: HeaderMap, Json(request): Json<Value>) -> Json<Value> {
    let mut upload = signed_put(&headers, "dump");
    upload["method"] = "PUT".into();
    upload["expires_in"] = 900.into();
    let bytes = request["bytes"].as_u64().unwrap();
    Json(json!({"storage_url": format!("attachment:0/{bytes}"), "upload": upload}))
}

async fn receive(
    State(stored): State<Shared>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    assert_eq!(headers["x-signed"], "yes");
    count_at_once(&stored).await;
    let mut stored = stored.lock().unwrap();
    stored.at_once -= 1;
    stored.attempts += 1;
    if stored.attempts <= stored.refusals {
        let error = "<Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>";
        return (StatusCode::SERVICE_UNAVAILABLE, error).into_response();
    }
    stored.files.insert(name, body.to_vec());
    StatusCode::OK.into_response()
}

/// Counts a request among those that are being answered, and waits for the others.
async fn count_at_once(stored: &Shared) {
    let together = {
        let mut stored = stored.lock().unwrap();
        stored.at_once += 1;
        stored.most_at_once = stored.most_at_once.max(stored.at_once);
        stored.together.clone()
    };
    let Some(together) = together else {
        return;
    };
    together.wait().await;
    // A request that the client has sent besides these is counted before one of them ends.
    for _ in 0..YIELDS {
        tokio::task::yield_now().await;
    }
}

async fn symbolicate(State(stored): State<Shared>, body: Bytes) -> Response {
    let form = String::from_utf8(body.to_vec()).unwrap();
    {
        let mut stored = stored.lock().unwrap();
        stored.forms.push(form);
        if !stored.files.contains_key("dump") {
            let detail = json!({"detail": "the attachment does not exist"});
            return (StatusCode::NOT_FOUND, Json(detail)).into_response();
        }
        if stored.lost_answers > 0 {
            stored.lost_answers -= 1;
            stored.files.remove("dump");
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        }
    }
    let frame = json!({"status": "symbolicated", "original_index": 0,
        "instruction_addr": "0x1000", "function": "of_the_stored_dump"});
    let completed =
        json!({"status": "completed", "modules": [], "stacktraces": [{"frames": [frame]}]});
    Json(completed).into_response()
}
