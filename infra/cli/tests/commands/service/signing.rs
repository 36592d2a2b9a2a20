//! A service that wants each of several files in two parts, and signs a limited number of parts in
//! a response.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{post, put};
use axum::{Json, Router};
use serde_json::{Value, json};

use super::Service;

/// The number of parts of a file.
const PARTS: usize = 2;

/// Which parts of a file use up signatures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// Those that are lacking.
    Lacking,
    /// All, also of a file that is joined, as in older services.
    All,
}

/// What a service has, and how it answers.
pub(crate) struct Files {
    /// The files whose parts were joined, by name. No event of them is received.
    pub(crate) joined: BTreeMap<String, Vec<u8>>,
    parts: BTreeMap<String, BTreeMap<usize, Vec<u8>>>,
    signatures: usize,
    counting: Counting,
    /// Whether another client completes an upload when its first part arrives here.
    pub(crate) is_raced: bool,
}

type Shared = Arc<Mutex<Files>>;

/// Starts a service that signs so many parts in a response. Returns what it receives.
pub(crate) fn start(signatures: usize, counting: Counting) -> (Service, Shared) {
    let files = Files {
        joined: BTreeMap::new(),
        parts: BTreeMap::new(),
        signatures,
        counting,
        is_raced: false,
    };
    let files = Arc::new(Mutex::new(files));
    let router = Router::new()
        .route("/uploads", post(answer))
        .route("/part/{name}/{number}", put(receive));
    (Service::with(router.with_state(files.clone())), files)
}

async fn answer(
    State(files): State<Shared>,
    headers: HeaderMap,
    Json(request): Json<Value>,
) -> Json<Value> {
    let mut files = files.lock().unwrap();
    let host = headers["host"].to_str().unwrap();
    let mut left = files.signatures;
    let asked = request["files"].as_array().unwrap().iter();
    let answered: Vec<Value> = asked
        .map(|file| files.answer(file, host, &mut left))
        .collect();
    Json(json!({"files": answered}))
}

impl Files {
    /// Answers about a file. One that is joined is begun again until its event is received.
    fn answer(&mut self, file: &Value, host: &str, left: &mut usize) -> Value {
        let name = file["name"].as_str().unwrap();
        let key = format!("global/{name}/ab12/0123456789abcdef");
        let Some(size) = file["size"].as_u64() else {
            return json!({"key": key, "state": "absent"});
        };
        if self.is_raced && self.joined.contains_key(name) {
            return json!({"key": key, "state": "pending"});
        }
        let stored = self.parts.entry(name.to_owned()).or_default();
        let lacking = (1..=PARTS).filter(|number| !stored.contains_key(number));
        let lacking: Vec<usize> = lacking.collect();
        let counted = match self.counting {
            Counting::Lacking => lacking.len(),
            Counting::All => PARTS,
        };
        let signed = counted.min(*left);
        *left -= signed;
        if lacking.is_empty() {
            let parts = self.parts.remove(name).unwrap_or_default();
            let whole = parts.into_values().flatten().collect();
            self.joined.insert(name.to_owned(), whole);
            return json!({"key": key, "state": "pending"});
        }
        let parts = lacking.iter().take(signed).map(|number| {
            let url = format!("http://{host}/part/{name}/{number}");
            json!({"number": number, "put": {"url": url, "headers": {}}})
        });
        let parts: Vec<Value> = parts.collect();
        let parts = json!({"part_bytes": size.div_ceil(PARTS as u64), "parts": parts});
        json!({"key": key, "state": "upload", "parts": parts})
    }
}

/// Receives a part, and refuses one of a file that is joined already.
async fn receive(
    State(files): State<Shared>,
    Path((name, number)): Path<(String, usize)>,
    body: Bytes,
) -> (StatusCode, &'static str) {
    let mut files = files.lock().unwrap();
    if files.is_raced {
        files.joined.insert(name, Vec::new());
        let error = "<Error><Code>NoSuchUpload</Code><Message>no such upload</Message></Error>";
        return (StatusCode::NOT_FOUND, error);
    }
    if files.joined.contains_key(&name) {
        return (StatusCode::BAD_REQUEST, "the file was sent already");
    }
    let parts = files.parts.entry(name).or_default();
    parts.insert(number, body.to_vec());
    (StatusCode::OK, "")
}
