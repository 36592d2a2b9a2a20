//! Crash files: forms with a file, whose threads become stack traces to symbolicate.
//!
//! A file that cannot be read is the client's fault, and still a status of 200: the response is
//! `failed`, with a message. Everything else that is wrong with a form is an error response.

use std::panic::{AssertUnwindSafe, catch_unwind};

use axum::Json;
use axum::body::Body;
use axum::extract::multipart::{Field, MultipartError, MultipartRejection};
use axum::extract::{DefaultBodyLimit, FromRequest, Multipart, Request};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use symdepot::api::crash::CrashFile;
use symdepot::api::crash::apple::{self, parse_report};
use symdepot::api::crash::form::{CrashFields, PART_BYTES, PARTS_BYTES, decompressed};
use symdepot::api::limits;
use symdepot::api::symbolicator::{self as api, Query, RequestError};
use symdepot::flows::minidump::{DUMP_BYTES, KeptDump, MinidumpRequest, WalkOutcome, WalkStats};
use symdepot::flows::requests::{RequestStage, RequestToKeep};
use symdepot::flows::symbolicate::Kept;
use uuid::Uuid;

use crate::extract::{Call, RequestQuery};
use crate::failure::Failure;
use crate::handler::pending;

/// The part of a form that has the file.
struct FilePart {
    name: &'static str,
    /// The error if the form does not have it.
    missing: &'static str,
    /// The maximum size of the file, in bytes after decompression.
    limit: usize,
}

const APPLE_REPORT: FilePart = FilePart {
    name: "apple_crash_report",
    missing: "missing apple crash report",
    limit: apple::REPORT_BYTES,
};

const MINIDUMP: FilePart = FilePart {
    name: "upload_file_minidump",
    missing: "missing minidump",
    limit: DUMP_BYTES,
};

/// What a minidump never begins with, but a form in which a client wrapped it once more.
const FORM_BOUNDARY: &[u8] = b"--";

/// A form: a file, decompressed, and how it is symbolicated.
struct CrashForm {
    file: Vec<u8>,
    fields: CrashFields,
}

/// Serves `POST /applecrashreport`.
pub(crate) async fn apple_crash_report(
    call: Call,
    RequestQuery(query): RequestQuery,
    request: Request,
) -> Result<Response, Failure> {
    let CrashForm { file, mut fields } = CrashForm::read(request, &APPLE_REPORT).await?;
    call.symbolicator
        .drop_unusable_headers(&mut fields.scraping);
    let report = match read(|| parse_report(&file)) {
        Ok(report) => report.asked_for(fields),
        Err(message) => return Ok(failed(message)),
    };
    let id = call.invocation.uuid();
    let body = serde_json::to_vec(&report).map_err(Failure::internal)?;
    let kept = Kept {
        wait: call.symbolicator.wait(&call.invocation, query.timeout),
        id: &id.to_string(),
        body: Some(RequestToKeep {
            stage: RequestStage::CrashFile,
            body: &body,
        }),
    };
    let answer = call.answer(&query.scope, report, kept).await?;
    Ok(answer.unwrap_or_else(|| pending(id)))
}

/// Serves `POST /minidump`.
pub(crate) async fn minidump(
    call: Call,
    RequestQuery(query): RequestQuery,
    request: Request,
) -> Result<Response, Failure> {
    let CrashForm { file, mut fields } = CrashForm::read(request, &MINIDUMP).await?;
    call.symbolicator
        .drop_unusable_headers(&mut fields.scraping);
    if file.starts_with(FORM_BOUNDARY) {
        let detail = "minidump contains multipart form data";
        return Err(Failure::new(StatusCode::BAD_REQUEST, detail));
    }
    let dump = KeptDump {
        file: file.into(),
        fields,
    };
    let id = call.invocation.uuid();
    walk(&call, &query, id, dump, false).await
}

/// Walks the stacks of a minidump, and answers the crash. `query` has the scope and the timeout of
/// the request; `is_kept` says whether the minidump is stored under the id.
pub(crate) async fn walk(
    call: &Call,
    query: &Query,
    id: Uuid,
    KeptDump { file, fields }: KeptDump,
    is_kept: bool,
) -> Result<Response, Failure> {
    let Call {
        symbolicator,
        invocation,
    } = call;
    let began = invocation.elapsed();
    let wait = symbolicator.wait(invocation, query.timeout);
    let id_text = id.to_string();
    let request = MinidumpRequest {
        file,
        fields: &fields,
        scope: &query.scope,
        id: &id_text,
        wait,
        is_kept,
    };
    let (report, stats) = match symbolicator.walk_minidump(invocation, request).await? {
        WalkOutcome::Walked(report, stats) => (*report, stats),
        WalkOutcome::Pending => return Ok(pending(id)),
        WalkOutcome::Failed(message) => return Ok(failed(message)),
    };
    log_walked(&stats);
    let body = serde_json::to_vec(&report).map_err(Failure::internal)?;
    let kept = Kept {
        wait: wait.saturating_sub(invocation.elapsed() - began),
        id: &id_text,
        body: Some(RequestToKeep {
            stage: RequestStage::CrashFile,
            body: &body,
        }),
    };
    let answer = call.answer(&query.scope, report, kept).await?;
    Ok(answer.unwrap_or_else(|| pending(id)))
}

fn log_walked(stats: &WalkStats) {
    tracing::info!(
        threads = stats.threads,
        frames = stats.frames,
        threads_cut = stats.threads_cut,
        stacks_cut = stats.stacks_cut,
        frames_cut = stats.frames_cut,
        panics = stats.panics,
        "minidump walked"
    );
}

/// Returns the crash in a stored request.
pub(crate) fn stored(body: &[u8]) -> Result<CrashFile, Failure> {
    serde_json::from_slice(body).map_err(Failure::internal)
}

/// Reads a file. The message of an error says what is wrong with the file; a panic of a parser is
/// one, too.
fn read<E: std::error::Error>(
    parse: impl FnOnce() -> Result<CrashFile, E>,
) -> Result<CrashFile, String> {
    match catch_unwind(AssertUnwindSafe(parse)) {
        Ok(parsed) => parsed.map_err(|error| error.to_string()),
        Err(_) => {
            tracing::error!("the parser of a crash file panicked");
            Err("the parser cannot read this file".to_owned())
        }
    }
}

/// The response for a file that cannot be read.
fn failed(message: String) -> Response {
    tracing::info!(message, "cannot read the crash file");
    Json(api::Response::Failed { message }).into_response()
}

impl CrashForm {
    /// Reads a form whose body and file may be compressed.
    async fn read(request: Request, part: &FilePart) -> Result<Self, Failure> {
        let (parts, body) = request.into_parts();
        let content_type = parts.headers.get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok());
        let is_form = content_type.is_some_and(|value| {
            let essence = value.split(';').next().unwrap_or_default();
            essence.trim().eq_ignore_ascii_case("multipart/form-data")
        });
        if !is_form {
            let detail = "send the file as multipart/form-data";
            return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
        }
        let body = read_body(body).await?;
        let body = decompressed("the body", &body, part.limit + PARTS_BYTES)?.into_owned();
        let mut request = Request::from_parts(parts, Body::from(body));
        // The body is limited already.
        DefaultBodyLimit::disable().apply(&mut request);
        let mut form = Multipart::from_request(request, &())
            .await
            .map_err(bad_form)?;
        let (mut file, mut fields) = (None, CrashFields::default());
        while let Some(field) = form.next_field().await.map_err(bad_part)? {
            let name = field.name().unwrap_or_default().to_owned();
            if name == part.name {
                let sent = content(field, part.name, limits::BODY_BYTES + part.limit).await?;
                let content = decompressed(part.name, &sent, part.limit)?;
                if file.replace(content.into_owned()).is_some() {
                    return Err(twice(&name));
                }
            } else if let Some(known) = CrashFields::NAMES.iter().find(|known| **known == name) {
                fields.set(known, &content(field, known, PART_BYTES).await?)?;
            }
        }
        let missing = || Failure::new(StatusCode::BAD_REQUEST, part.missing);
        let file = file.filter(|file| !file.is_empty());
        Ok(Self {
            file: file.ok_or_else(missing)?,
            fields,
        })
    }
}

/// Reads the body of a request, within the limit of all requests.
async fn read_body(body: Body) -> Result<Vec<u8>, Failure> {
    let too_long = RequestError::TooLong {
        what: "the body",
        limit: limits::BODY_BYTES,
    };
    let body = axum::body::to_bytes(body, limits::BODY_BYTES).await;
    Ok(body.map_err(|_| too_long)?.to_vec())
}

/// Reads a part of a form.
async fn content(
    mut field: Field<'_>,
    what: &'static str,
    limit: usize,
) -> Result<Vec<u8>, Failure> {
    let mut content = Vec::new();
    while let Some(chunk) = field.chunk().await.map_err(bad_part)? {
        if content.len() + chunk.len() > limit {
            return Err(RequestError::TooLong { what, limit }.into());
        }
        content.extend_from_slice(&chunk);
    }
    Ok(content)
}

fn twice(name: &str) -> Failure {
    let detail = format!("the part {name} is given more than once");
    Failure::new(StatusCode::BAD_REQUEST, detail)
}

fn bad_form(rejection: MultipartRejection) -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, rejection.body_text())
}

fn bad_part(error: MultipartError) -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, error.body_text())
}
