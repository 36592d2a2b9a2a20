//! The examples of the document: a crash of the sample program, and what the service answers.
//!
//! `tests/tests/flows/documented.rs` checks that the service gives these answers.

use serde_json::{Value, json};
use symdepot::api::symbolicator::{Response, parse_request};
use symdepot::flows::about::about as service_info;
use symdepot::flows::rollout::RolloutReport;

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

pub(super) fn requests() -> Value {
    json!({"crash": {
        "summary": "A crash of the sample program",
        "value": parsed(include_str!("examples/request.json")),
    }})
}

pub(super) fn responses() -> Value {
    json!({
        "completed": {
            "summary": "The crash, with the functions that were inlined at its addresses",
            "value": parsed(include_str!("examples/completed.json")),
        },
        "pending": {
            "summary": "The caches of its modules are being built",
            "value": Response::pending("0b6f1d3c-6a7e-4c53-9d0e-2f2f1a1b1c1d"),
        },
    })
}

pub(super) fn any_requests() -> Value {
    json!({"minidump": {
        "summary": "A minidump that was stored as an attachment",
        "value": {
            "symbolicate": {
                "type": "minidump",
                "storage_url": "attachment:0b6f1d3c-6a7e-4c53-9d0e-2f2f1a1b1c1d/209715200",
            },
            "options": {"dif_candidates": true},
        },
    }})
}

pub(super) fn uploads() -> Value {
    json!({"crash.debug": {
        "summary": "The debug file of the sample program",
        "value": parsed(include_str!("examples/uploads.json")),
    }})
}

pub(super) fn explained() -> Value {
    json!({
        "upload": {
            "summary": "The debug file of the sample program, by its key",
            "value": parsed(include_str!("examples/explained-upload.json")),
        },
        "module": {
            "summary": "The sample program, by its debug id",
            "value": parsed(include_str!("examples/explained-module.json")),
        },
    })
}

pub(super) fn rollout() -> Value {
    json!({"none": {
        "summary": "No pass is complete yet",
        "value": RolloutReport::of_this_release(),
    }})
}

pub(super) fn about() -> Value {
    json!({"about": {"summary": "This version", "value": service_info()}})
}

/// The error for a request with a frame without an address.
pub(super) fn unprocessable() -> Value {
    match parse_request(br#"{"stacktraces": [{"frames": [{}]}]}"#) {
        Err(error) => json!(error.body()),
        Ok(_) => Value::Null,
    }
}
