//! A service that has a file already, and whose answers about it change.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use super::{Service, explained_object, explained_upload};

/// Answers that are given one after the other; the last one from then on.
struct Script<T>(Mutex<VecDeque<T>>);

impl<T: Clone> Script<T> {
    fn new<const N: usize>(answers: [T; N]) -> Arc<Self> {
        Arc::new(Self(Mutex::new(answers.into())))
    }

    fn next(&self) -> T {
        let mut answers = self.0.lock().unwrap();
        match answers.len() {
            1 => answers[0].clone(),
            _ => answers.pop_front().unwrap(),
        }
    }
}

/// Starts a service with these states of a file, and these responses of `/explain` about it.
pub(crate) fn start<const S: usize, const E: usize>(
    states: [&'static str; S],
    explained: [(StatusCode, Value); E],
) -> Service {
    let (states, explained) = (Script::new(states), Script::new(explained));
    let state = move || {
        let key = "global/app.debug/ab12/0123456789abcdef";
        let file = json!({"key": key, "state": states.next()});
        async move { Json(json!({"files": [file]})) }
    };
    let explain = move || {
        let (status, body) = explained.next();
        async move { (status, Json(body)) }
    };
    let router = Router::new()
        .route("/uploads", post(state))
        .route("/explain", get(explain));
    Service::with(router)
}

/// Returns an explained upload with one cache in this state.
pub(crate) fn with_cache(state: &str) -> (StatusCode, Value) {
    let cache = json!({"kind": "symcache", "state": state});
    let object = explained_object(&json!([cache]), &Value::Null);
    let upload = explained_upload("global/app.debug", "applied", &[object]);
    (StatusCode::OK, upload)
}
