//! The operations that symbolicate crashes.

use serde_json::{Value, json};
use symdepot::api::crash::any::AnyRequest;
use symdepot::api::crash::attachment::{AttachmentOffer, AttachmentRequest};
use symdepot::api::crash::rewrite::RewriteRules;
use symdepot::api::symbolicator::{Options, Request, Response, Scraping, Sources};

use super::examples;
use super::operations::Described;
use super::responses::{OF_BODIES, Shared, json_of};
use super::schemas::Schemas;

const SYMBOLICATED: &str = "`completed`; `pending`, with the `request_id` by which `GET /requests/{id}` continues it; or, \
    for a crash file that cannot be read, `failed`.";

/// Returns the response of the operations that symbolicate.
fn symbolicated(schemas: &mut Schemas) -> Value {
    let schema = schemas.response::<Response>();
    json_of(SYMBOLICATED, schema, examples::responses())
}

/// Returns the response of the operations that may have a minidump.
fn walked(schemas: &mut Schemas) -> Value {
    let stackwalk = json!({
        "description": "With `format=stackwalk`: the schema of rust-minidump's `minidump-stackwalk`.",
        "externalDocs": {"url": "https://github.com/rust-minidump/rust-minidump/blob/main/minidump-processor/json-schema.md"},
        "type": "object",
        "properties": {"status": {"type": "string", "const": "OK"}},
        "required": ["status"],
    });
    let stackwalk = schemas.named_response("StackwalkResponse", stackwalk);
    let schema = json!({"oneOf": [schemas.response::<Response>(), stackwalk]});
    json_of(SYMBOLICATED, schema, examples::responses())
}

pub(super) fn symbolicate(schemas: &mut Schemas) -> Described {
    let response = symbolicated(schemas);
    Described::new("symbolicate", "crashes", "Symbolicates stack traces", "")
        .with_parameters(&["timeout", "scope"])
        .with_json::<Request>(schemas, examples::requests())
        .answers("200", response)
        .may_fail(&[Shared::Stored])
        .may_fail(&OF_BODIES)
}

/// What the operations with crash files may fail with, besides forms.
const OF_FILES: [Shared; 7] = [
    Shared::Stored,
    Shared::BadRequest,
    Shared::NotFound,
    Shared::TooLarge,
    Shared::Unprocessable,
    Shared::Internal,
    Shared::Unavailable,
];

const ABOUT_FORMS: &str = "The body and the file may be compressed with gzip or zstd. Each part besides the file has at most 1 MiB. \
    Parts with other names are ignored.";

/// The form of an operation: the name of its schema, that of its file, and what the file is.
struct Form {
    schema: &'static str,
    file: &'static str,
    about: &'static str,
}

/// Returns an operation with a form.
fn with_form(described: Described, form: &Form, schemas: &mut Schemas) -> Described {
    let Form {
        schema: name,
        file,
        about,
    } = *form;
    let response = symbolicated(schemas);
    let text = |description: &str| json!({"type": "string", "description": description});
    // A list would be sent as several parts, and a text without quotes.
    let json_text = |description: &str, schema: Value| {
        json!({
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": schema,
            "description": description,
        })
    };
    // A choice between the two would be true, but generators of clients then send no body.
    let either = format!("A form has either `{file}` or `storage_url`.");
    let schema = json!({
        "description": either,
        "type": "object",
        "properties": {
            file: {
                "type": "string",
                // The name that generators of clients know.
                "format": "binary",
                "contentMediaType": "application/octet-stream",
                "minLength": 1,
                "description": about,
            },
            "storage_url": text("In place of the file: where it is stored."),
            "storage_token": text("The bearer token for the host of `storage_url`."),
            "platform": text("The platform of the process: JSON, or text without quotes. It has no effect."),
            "sources": json_text("The sources to search, as in a request.", schemas.request::<Sources>()),
            "options": {"anyOf": [schemas.request::<Options>(), {"type": "null"}]},
            "scraping": {"anyOf": [schemas.request::<Scraping>(), {"type": "null"}]},
            "rewrite_first_module": json_text(
                "Rules that rename the module with the lowest address for lookups.",
                schemas.request::<RewriteRules>(),
            ),
        },
    });
    let schema = schemas.named_request(name, schema);
    let as_json = || json!({"contentType": "application/json"});
    let encoding = json!({
        file: {"contentType": "application/octet-stream"},
        "options": as_json(),
        "scraping": as_json(),
    });
    described
        .with_parameters(&["timeout", "scope"])
        .with_body(
            "multipart/form-data",
            json!({"schema": schema, "encoding": encoding}),
        )
        .answers("200", response)
        .may_fail(&OF_FILES)
        .may_fail(&[Shared::NoForm])
}

pub(super) fn minidump(schemas: &mut Schemas) -> Described {
    let summary = "Walks and symbolicates the stacks of a minidump";
    let described = Described::new("minidump", "crashes", summary, ABOUT_FORMS);
    let form = Form {
        schema: "MinidumpForm",
        file: "upload_file_minidump",
        about: "The minidump, of at most 64 MiB, decompressed.",
    };
    let response = walked(schemas);
    with_form(described, &form, schemas)
        .with_parameters(&["timeout", "scope", "format"])
        .answers("200", response)
}

pub(super) fn apple_crash_report(schemas: &mut Schemas) -> Described {
    let summary = "Symbolicates a crash report of Apple's systems";
    let described = Described::new("appleCrashReport", "crashes", summary, ABOUT_FORMS);
    let form = Form {
        schema: "AppleCrashReportForm",
        file: "apple_crash_report",
        about: "The report, in text or JSON (`.ips`), of at most 8 MiB, decompressed.",
    };
    with_form(described, &form, schemas)
}

pub(super) fn symbolicate_any(schemas: &mut Schemas) -> Described {
    let response = walked(schemas);
    Described::new(
        "symbolicateAny",
        "crashes",
        "Symbolicates a crash file that is stored elsewhere",
        "",
    )
    .with_parameters(&["timeout", "scope", "format"])
    .with_json::<AnyRequest>(schemas, examples::any_requests())
    .answers("200", response)
    .may_fail(&OF_FILES)
}

pub(super) fn continue_request(schemas: &mut Schemas) -> Described {
    let response = walked(schemas);
    let id = json!({
        "name": "id",
        "in": "path",
        "required": true,
        "description": "The `request_id` of the pending response.",
        "schema": {"type": "string", "format": "uuid"},
    });
    let mut described = Described::new(
        "continueRequest",
        "crashes",
        "Returns the response to a request that was pending",
        "Any instance continues a request, for an hour. Its scope is that of the request.",
    )
    .with_parameters(&["timeout", "scope"])
    .answers("200", response)
    .may_fail(&OF_FILES);
    described.parameters.insert(0, id);
    described
}

pub(super) fn attachments(schemas: &mut Schemas) -> Described {
    let offer = json_of(
        "How to store the file, and how requests refer to it.",
        schemas.response::<AttachmentOffer>(),
        json!({}),
    );
    Described::new(
        "storeAttachment",
        "uploads",
        "Returns how to store a large crash file",
        "The file belongs to the scope. The request that refers to it deletes it, and a day at most.",
    )
    .with_parameters(&["scope"])
    .with_json::<AttachmentRequest>(schemas, json!({"dump": {"value": {"bytes": 209_715_200}}}))
    .answers("200", offer)
    .may_fail(&OF_BODIES)
}
