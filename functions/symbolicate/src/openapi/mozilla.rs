//! The operation of Mozilla's symbolication API.

use serde_json::{Value, json};
use symdepot::api::limits;
use symdepot::api::mozilla::{JobResults, TitledError};
use symdepot::api::symbolicator::ErrorBody;

use super::operations::Described;
use super::responses::{Shared, json_of};
use super::schemas::Schemas;

/// Describes `POST /symbolicate/v5`.
pub(super) fn symbolicate_jobs(schemas: &mut Schemas) -> Described {
    let body = json!({"schema": sent(schemas), "examples": {"sample": {"value": example()}}});
    let results = schemas.response::<JobResults<'_>>();
    let results = json_of("The results, in the order of the jobs.", results, json!({}));
    let [error, titled] = [
        schemas.response::<ErrorBody>(),
        schemas.response::<TitledError>(),
    ];
    let invalid = json_of(
        "The jobs are wrong, with a `title`; or the query is, with a `detail`.",
        json!({"anyOf": [titled, error]}),
        json!({}),
    );
    let too_large = json_of(
        "The request, or its results, exceed a limit.",
        json!({"anyOf": [titled, error, gateway_error()]}),
        json!({}),
    );
    let mut unavailable = json_of(
        "The debug files are not ready in time, with a `title` and `Retry-After`; or a store failed: send the request again.",
        json!({"anyOf": [titled, error, gateway_error()]}),
        json!({}),
    );
    unavailable["headers"] = json!({
        "Retry-After": {"description": "The time in seconds after which the client asks again.", "schema": {"type": "integer"}},
    });
    Described::new(
        "symbolicateJobs",
        "crashes",
        "Symbolicates the jobs of the Firefox Profiler and of other clients of Mozilla's API",
        "A body may also be a single job, and have any content type. Web pages of the Firefox Profiler may send it (CORS). Results above 4,608,000 bytes are compressed with gzip.",
    )
    .with_parameters(&["timeout", "scope"])
    .with_body("application/json", body)
    .answers("200", results)
    .answers("400", invalid)
    .answers("413", too_large)
    .answers("503", unavailable)
    .may_fail(&[Shared::Internal])
}

fn gateway_error() -> Value {
    json!({"$ref": "#/components/schemas/GatewayError"})
}

/// Returns the schema of a request.
fn sent(schemas: &mut Schemas) -> Value {
    let pair = |items: Value, description: &str| {
        json!({
            "description": description,
            "type": "array", "items": items, "minItems": 2, "maxItems": 2,
        })
    };
    let number = json!({"type": "integer", "format": "int64", "minimum": -1, "maximum": i64::MAX});
    let job = json!({
        "description": "Modules, and offsets in them.",
        "type": "object",
        "properties": {
            "memoryMap": {
                "description": "The modules.",
                "type": "array",
                "maxItems": limits::MODULES,
                "items": pair(json!({"type": "string"}), "The name of the debug file, and the debug id in the form of Breakpad."),
            },
            "stacks": {
                "description": "The stacks, each with its frames.",
                "type": "array",
                "minItems": 1,
                "maxItems": limits::STACKTRACES,
                "items": {
                    "type": "array",
                    "items": pair(number, "The index of the module, or -1, and the offset in it."),
                },
            },
        },
        "required": ["memoryMap", "stacks"],
    });
    let job = schemas.named_request("SymbolicationJob", job);
    let jobs = json!({
        "description": "Jobs of Mozilla's symbolication API.",
        "type": "object",
        "properties": {"jobs": {"type": "array", "maxItems": limits::JOBS, "items": job}},
        "required": ["jobs"],
    });
    schemas.named_request("SymbolicationJobs", jobs)
}

fn example() -> Value {
    let module = ["crash", "BC6E45AC487FF425367208B89F51AD480"];
    json!({"jobs": [{"memoryMap": [module], "stacks": [[[0, 0x3950], [0, 0x3885]]]}]})
}
