//! The operations without a crash: uploads, what is stored, access tokens, and the service.

use serde_json::json;
use symdepot::api::about::ServiceInfo;
use symdepot::api::explain::{ExplainQuery, SymCacheQuery};
use symdepot::api::explained::{Explained, ExplainedUpload};
use symdepot::api::tokens::{TokenIssued, TokenList, TokenRequest};
use symdepot::api::uploads::{UploadsAnswer, UploadsRequest};
use symdepot::api::wanted::WantedList;
use symdepot::flows::rollout::RolloutReport;

use super::examples;
use super::operations::Described;
use super::responses::{OF_BODIES, Shared, json_of, redirect};
use super::schemas::Schemas;

pub(super) fn uploads(schemas: &mut Schemas) -> Described {
    let answer = json_of(
        "For each file, in the order of the request, its state, and how to send it if the service does not have it.",
        schemas.response::<UploadsAnswer>(),
        json!({}),
    );
    Described::new(
        "requestUploads",
        "uploads",
        "Returns which files the service needs, and how to send them",
        "",
    )
    .with_parameters(&["upload_scope"])
    .with_json::<UploadsRequest>(schemas, examples::uploads())
    .answers("200", answer)
    .may_fail(&OF_BODIES)
}

pub(super) fn explain(schemas: &mut Schemas) -> Described {
    let upload = schemas.response::<ExplainedUpload>();
    let records = schemas.response::<Explained>();
    let schema = json!({"oneOf": [upload, {"type": "array", "items": records}]});
    let explained = "With `key`, the state of the upload; otherwise every record that a request for the module would read.";
    Described::new(
        "explain",
        "diagnosis",
        "Returns the state of an upload, or the records of a module",
        "A request has either `key`, or `debug_id` or `code_id` or both. It has no side effects.",
    )
    .with_parameters(ExplainQuery::PARAMETERS)
    .answers("200", json_of(explained, schema, examples::explained()))
    .may_fail(&[
        Shared::BadRequest,
        Shared::NotFound,
        Shared::Unprocessable,
        Shared::Internal,
        Shared::Unavailable,
    ])
}

pub(super) fn symcache() -> Described {
    let found = redirect("The plain SymCache of the module is at the `Location`, for a minute.");
    Described::new(
        "getSymCache",
        "symcaches",
        "Redirects to the SymCache of a module",
        "For `symbolic` and other tools that read this format. A request has `debug_id` or `code_id` or both.",
    )
    .with_parameters(SymCacheQuery::PARAMETERS)
    .answers("302", found)
    .may_fail(&[
        Shared::BadRequest,
        Shared::NotFound,
        Shared::TooLarge,
        Shared::Internal,
        Shared::Unavailable,
    ])
}

pub(super) fn rollout(schemas: &mut Schemas) -> Described {
    let report = json_of(
        "The counts of the last complete pass of `prune`.",
        schemas.response::<RolloutReport>(),
        examples::rollout(),
    );
    let summary = "Returns how far the current converter is rolled out";
    Described::new("getRollout", "diagnosis", summary, "")
        .answers("200", report)
        .may_fail(&[Shared::BadRequest, Shared::Internal, Shared::Unavailable])
}

pub(super) fn wanted(schemas: &mut Schemas) -> Described {
    let list = json_of(
        "The most requested ones first, 1,000 per page.",
        schemas.response::<WantedList>(),
        json!({}),
    );
    Described::new(
        "listWanted",
        "symcaches",
        "Lists the PDBs that clients of Microsoft's protocol request and the service cannot convert",
        "",
    )
    .with_parameters(&["scope", "page"])
    .answers("200", list)
    .may_fail(&[Shared::BadRequest, Shared::Internal, Shared::Unavailable])
}

pub(super) fn issue_token(schemas: &mut Schemas) -> Described {
    let example = json!({"name": "ci", "scope": "acme", "rights": ["upload"], "days": 90});
    let issued = json_of(
        "The token. No later response shows it.",
        schemas.response::<TokenIssued>(),
        json!({}),
    );
    Described::new(
        "issueToken",
        "service",
        "Issues an access token",
        "The caller needs the right `admin` in the scope of the token. `*` is every scope.",
    )
    .with_json::<TokenRequest>(schemas, json!({"ci": {"value": example}}))
    .answers("201", issued)
    .may_fail(&OF_BODIES)
}

pub(super) fn list_tokens(schemas: &mut Schemas) -> Described {
    let list = json_of(
        "The valid tokens of the caller's scopes, the newest first.",
        schemas.response::<TokenList>(),
        json!({}),
    );
    let summary = "Lists the valid access tokens";
    Described::new("listTokens", "service", summary, "")
        .answers("200", list)
        .may_fail(&[Shared::BadRequest, Shared::Internal, Shared::Unavailable])
}

pub(super) fn revoke_token() -> Described {
    let revoked = json!({"description": "All instances refuse the token within a minute."});
    let summary = "Revokes an access token";
    Described::new("revokeToken", "service", summary, "")
        .with_parameters(&["token_id"])
        .answers("204", revoked)
        .may_fail(&[
            Shared::BadRequest,
            Shared::NotFound,
            Shared::Internal,
            Shared::Unavailable,
        ])
}

pub(super) fn about(schemas: &mut Schemas) -> Described {
    let info = json_of(
        "The version, the features by name, and the limits of a request.",
        schemas.response::<ServiceInfo>(),
        examples::about(),
    );
    let summary = "Returns what the service is, and its limits";
    Described::new("getAbout", "service", summary, "")
        .answers("200", info)
        .may_fail(&[Shared::BadRequest, Shared::Internal])
}

pub(super) fn health_check() -> Described {
    let schema = json!({"type": "string", "const": "ok"});
    let ok = json!({
        "description": "The service serves requests.",
        "content": {"text/plain": {"schema": schema}},
    });
    let summary = "Returns `ok`";
    Described::new("checkHealth", "service", summary, "").answers("200", ok)
}
