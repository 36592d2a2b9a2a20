//! A service for the tests: it answers as symdepot does, and names every frame of the first module.

pub(crate) mod failing;
pub(crate) mod parts;
pub(crate) mod present;
pub(crate) mod signing;
pub(crate) mod store;

use std::net::SocketAddr;
use std::sync::Mutex;

use axum::body::Bytes;
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
pub(crate) fn routes() -> Router {
    Router::new()
        .route("/symbolicate", post(symbolicate))
        .route("/minidump", post(minidump))
        .route("/applecrashreport", post(apple_crash_report))
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
            get(|| async {
                let pdb = json!({
                    "pdb": "app.pdb", "debug_id": "c7d4c24f-1fb8-5408-4c4c-44205044422e-1",
                    "id": "C7D4C24F1FB854084C4C44205044422E1", "version": "4.0.0", "asked": 31,
                    "first_at": 1, "last_at": 2,
                });
                Json(json!({"wanted": [pdb], "more": 0}))
            }),
        )
        .merge(about())
}

/// Returns the route by which a service says what it can do.
fn about<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let about = || async { Json(json!(symdepot::api::about::ServiceInfo::of(4))) };
    Router::new().route("/about", get(about))
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

/// Asserts that a body is a form with a file, compressed, and options.
fn assert_form(headers: &HeaderMap, body: &[u8], part: &str) {
    let content_type = headers["content-type"].to_str().unwrap();
    let boundary = content_type.strip_prefix("multipart/form-data; boundary=");
    let text = String::from_utf8_lossy(body);
    assert!(text.starts_with(&format!("--{}\r\n", boundary.unwrap())));
    for expected in [part, "options"] {
        assert!(text.contains(&format!("form-data; name=\"{expected}\"\r\n")));
    }
    assert!(text.contains(r#""apply_source_context":false"#), "{text}");
    let zstd = [0x28, 0xb5, 0x2f, 0xfd];
    assert!(body.windows(zstd.len()).any(|bytes| bytes == zstd));
}

/// A crash with two threads, the second of which has a frame without a name. A minidump of the
/// scope `broken` cannot be read, one of the scope `soon` is pending until it is continued.
async fn minidump(headers: HeaderMap, RawQuery(query): RawQuery, body: Bytes) -> Response {
    assert_form(&headers, &body, "upload_file_minidump");
    let query = query.unwrap_or_default();
    if query.contains("scope=broken") {
        return Json(json!({"status": "failed", "message": "the header is damaged"}))
            .into_response();
    }
    let frame = |index: usize, address: u64| {
        json!({
            "status": "missing", "original_index": index, "trust": "cfi",
            "instruction_addr": format!("{address:#x}"),
        })
    };
    let named = |address: u64, function: &str, line: u32| {
        let mut frame = frame(0, address);
        frame["status"] = "symbolicated".into();
        frame["function"] = function.into();
        frame["abs_path"] = "/src/app.c".into();
        frame["lineno"] = line.into();
        frame
    };
    let module = |name: &str, base: u64, status: &str| {
        json!({
            "type": "elf", "code_file": name, "image_addr": format!("{base:#x}"),
            "image_size": 4096, "debug_status": status, "unwind_status": status, "arch": "x86_64",
            "features": {"has_debug_info": true, "has_unwind_info": true, "has_symbols": true, "has_sources": false},
        })
    };
    let completed = json!({
        "status": "completed", "crashed": true, "crash_reason": "SIGSEGV / 0x45",
        "system_info": {"os_name": "Linux", "os_version": "6.1", "os_build": "", "cpu_arch": "amd64", "device_model": ""},
        "stacktraces": [
            {"thread_id": 7, "thread_name": "main", "is_requesting": true, "frames": [
                named(0x1010, "inner", 7), named(0x1010, "outer", 9),
            ]},
            {"thread_id": 8, "is_requesting": false, "frames": [frame(0, 0x2020)]},
        ],
        "modules": [module("/srv/app", 0x1000, "found"), module("/lib/libc.so.6", 0x2000, "missing")],
    });
    if query.contains("scope=soon") {
        *KEPT_CRASH.lock().unwrap() = completed;
        return Json(json!({"status": "pending", "retry_after": 2, "request_id": CRASH_ID}))
            .into_response();
    }
    Json(completed).into_response()
}

/// The name of the second frame of the first thread.
async fn apple_crash_report(headers: HeaderMap, body: Bytes) -> Json<Value> {
    assert_form(&headers, &body, "apple_crash_report");
    let frame = json!({
        "status": "symbolicated", "original_index": 1, "instruction_addr": "0x100003eff",
        "function": "withdraw", "abs_path": "/src/ledger.swift", "lineno": 12,
    });
    let threads = [json!({"thread_id": 0, "is_requesting": true, "frames": [frame]})];
    Json(
        json!({"status": "completed", "crashed": true, "crash_reason": "EXC_CRASH (SIGABRT)", "stacktraces": threads, "modules": []}),
    )
}

/// The minidump that is pending.
static KEPT_CRASH: Mutex<Value> = Mutex::new(Value::Null);

const CRASH_ID: &str = "00000000-0000-0000-0000-000000000003";

/// The request that is pending.
static KEPT: Mutex<Value> = Mutex::new(Value::Null);

fn id_of(scope: &str) -> &'static str {
    match scope {
        "slow" => "00000000-0000-0000-0000-000000000001",
        _ => "00000000-0000-0000-0000-000000000002",
    }
}

async fn continued(Path(id): Path<String>) -> Json<Value> {
    if id == CRASH_ID {
        return Json(KEPT_CRASH.lock().unwrap().clone());
    }
    if id == id_of("slow") {
        Json(json!({"status": "pending", "retry_after": 2, "request_id": id}))
    } else {
        Json(completed(&KEPT.lock().unwrap()))
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

/// A build id without its last two digits.
pub(crate) const CUT_ID: &str = "ac456ebc7f4825f4367208b89f51ad481774aa";

async fn explain(RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    assert!(headers.contains_key("user-agent"));
    let query = query.unwrap_or_default();
    if query == "key=global%2Fapp.debug" {
        let mut object = explained_object(&json!([]), &Value::Null);
        object["debug_id"] = "502fc0a5-1ec1-3e47-9998-684fa139dca7".into();
        object["code_id"] = "a5c02f50c11e473e".into();
        return Json(explained_upload("global/app.debug", "applied", &[object])).into_response();
    }
    if query.starts_with("key=") {
        let body = json!({"detail": "no event of this key has arrived"});
        return (StatusCode::NOT_FOUND, Json(body)).into_response();
    }
    // The build id of a file without a debug id.
    let state = match query.as_str() {
        "code_id=8f3a8f3a8f3a8f3a8f3a8f3a8f3a8f3a" => "use",
        _ => "absent",
    };
    let mut record = json!({"kind": "symcache", "scope": "global", "source": "uploads",
        "module": "code_id:12", "state": state});
    // An id without its last two digits is neither that of a module nor a debug id.
    let cause = match query.split_once('=') {
        Some(("code_id", CUT_ID)) => "code_id_length",
        Some(("debug_id", CUT_ID)) => "build_id_as_debug_id",
        _ => return Json(json!([record])).into_response(),
    };
    record["advice"] = json!({"cause": cause, "detail": "why", "next_step": "what to do"});
    Json(json!([record])).into_response()
}

/// Returns an upload as the service explains it.
pub(crate) fn explained_upload(key: &str, state: &str, objects: &[Value]) -> Value {
    json!({
        "key": key, "state": state, "etag": "1", "sequencer": "01", "size": 1, "at": 1,
        "objects": objects,
    })
}

/// Returns an object of an upload as the service explains it.
pub(crate) fn explained_object(caches: &Value, advice: &Value) -> Value {
    let features = json!({
        "has_debug_info": true, "has_unwind_info": true, "has_symbols": true, "has_sources": false,
    });
    json!({
        "file_type": "elf_debug", "arch": "x86_64", "features": features, "caches": caches,
        "advice": advice,
    })
}
