//! A service for the tests: it answers as symdepot does, and names every frame of the first module.

use std::net::SocketAddr;
use std::sync::Mutex;

use axum::extract::{Path, RawQuery};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// A service that runs until it is dropped.
pub(crate) struct Service {
    _runtime: Runtime,
    address: SocketAddr,
}

impl Service {
    /// Starts a service with these routes.
    pub(crate) fn with(router: Router) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async { axum::serve(listener, router).await });
        Self {
            _runtime: runtime,
            address,
        }
    }

    /// Starts a service that answers everything.
    pub(crate) fn new() -> Self {
        Self::with(routes())
    }

    /// Returns its address.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Returns all routes of the service.
fn routes() -> Router {
    Router::new()
        .route("/symbolicate", post(symbolicate))
        .route("/requests/{id}", get(continued))
        .route("/explain", get(explain))
        .route(
            "/rollout",
            get(|| async {
                Json(json!({"converter": 4, "uploads": 2, "at": 1, "estimate": "complete",
                    "kinds": {"symcache": {"current": 3, "behind": 1, "failed": {}, "unbuilt": 0}}}))
            }),
        )
        .route(
            "/wanted",
            get(|| async { Json(json!({"wanted": [{"pdb": "app.pdb", "id": "C7D41", "asked": 31}], "more": 0})) }),
        )
        .route(
            "/about",
            get(|| async { Json(json!(symdepot::api::about::ServiceInfo::of(4))) }),
        )
}

/// Names the frames of the first module; those of the second have two names. A request of the scope
/// `slow` is pending for ever, one of the scope `soon` until it is continued.
async fn symbolicate(RawQuery(query): RawQuery, body: String) -> Response {
    let query = query.unwrap_or_default();
    for scope in ["slow", "soon"] {
        if query.contains(&format!("scope={scope}")) {
            *KEPT.lock().unwrap() = serde_json::from_str(&body).unwrap();
            let pending =
                json!({"status": "pending", "retry_after": 2, "request_id": id_of(scope)});
            return Json(pending).into_response();
        }
    }
    match serde_json::from_str::<Value>(&body) {
        Ok(request) => Json(completed(&request)).into_response(),
        Err(error) => {
            let body = json!({"detail": "the body is not JSON", "causes": [error.to_string()]});
            (StatusCode::BAD_REQUEST, Json(body)).into_response()
        }
    }
}

/// The request that is pending.
static KEPT: Mutex<Value> = Mutex::new(Value::Null);

fn id_of(scope: &str) -> &'static str {
    match scope {
        "slow" => "00000000-0000-0000-0000-000000000001",
        _ => "00000000-0000-0000-0000-000000000002",
    }
}

async fn continued(Path(id): Path<String>) -> Json<Value> {
    match id == id_of("slow") {
        true => Json(json!({"status": "pending", "retry_after": 2, "request_id": id})),
        false => Json(completed(&KEPT.lock().unwrap())),
    }
}

fn completed(request: &Value) -> Value {
    let list = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let named = |index: usize, frame: &Value| -> Vec<Value> {
        let name = |function: &str, line: u32| {
            let mut frame = frame.clone();
            frame["status"] = "symbolicated".into();
            frame["original_index"] = index.into();
            frame["function"] = function.into();
            frame["abs_path"] = "/src/app.c".into();
            frame["lineno"] = line.into();
            frame
        };
        match frame["addr_mode"].as_str() {
            Some("rel:0") => vec![name("inner", 7), name("outer", 9)],
            _ => {
                let mut frame = frame.clone();
                frame["status"] = "missing".into();
                frame["original_index"] = index.into();
                vec![frame]
            }
        }
    };
    let stack = |stack: &Value| {
        let mut answer = stack.clone();
        let frames = list(stack, "frames");
        let frames = frames
            .iter()
            .enumerate()
            .flat_map(|(index, frame)| named(index, frame));
        answer["frames"] = frames.collect();
        answer
    };
    let module = |(index, module): (usize, &Value)| {
        let mut module = module.clone();
        module["debug_status"] = if index == 0 { "found" } else { "missing" }.into();
        module["features"] = json!({"has_debug_info": index == 0, "has_unwind_info": false, "has_symbols": false, "has_sources": false});
        module["arch"] = "x86_64".into();
        if index > 0 {
            module["debug_detail"] = "no file for this module was found".into();
        }
        module
    };
    let stacks = list(request, "stacktraces");
    let modules = list(request, "modules");
    json!({
        "status": "completed",
        "stacktraces": stacks.iter().map(stack).collect::<Vec<_>>(),
        "modules": modules.iter().enumerate().map(module).collect::<Vec<_>>(),
    })
}

async fn explain(RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    assert!(headers.contains_key("user-agent"));
    let query = query.unwrap_or_default();
    if query.starts_with("key=") {
        let body = json!({"detail": "no event of this key has arrived"});
        return (StatusCode::NOT_FOUND, Json(body)).into_response();
    }
    Json(json!([{"kind": "symcache", "scope": "global", "source": "uploads", "state": "absent"}]))
        .into_response()
}
