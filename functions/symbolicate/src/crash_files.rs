//! Crash files: forms with a file, whose threads become stack traces to symbolicate.
//!
//! A file that cannot be read is the client's fault, and still a status of 200: the response is
//! `failed`, with a message. Everything else that is wrong with a form is an error response.

use axum::Json;
use axum::body::Body;
use axum::extract::multipart::{Field, MultipartError, MultipartRejection};
use axum::extract::{DefaultBodyLimit, FromRequest, Multipart, Request};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use symdepot::api::crash::CrashFile;
use symdepot::api::crash::any::{AnyRequest, CrashKind, StoredFile};
use symdepot::api::crash::apple::{self, parse_report};
use symdepot::api::crash::attachment::{AttachmentRequest, STORAGE_URL_BYTES, StorageUrl};
use symdepot::api::crash::form::{CrashFields, PART_BYTES, PARTS_BYTES, decompressed};
use symdepot::api::limits;
use symdepot::api::symbolicator::{self as api, Query, RequestError};
use symdepot::domain::Scope;
use symdepot::flows::attachments::Attachment;
use symdepot::flows::minidump::{
    DUMP_BYTES, DumpBytes, KeptDump, MinidumpRequest, WalkOutcome, WalkStats,
};
use symdepot::flows::parsing::parsed;
use uuid::Uuid;

use crate::extract::{Call, RequestQuery, read_body};
use crate::failure::Failure;
use crate::handler::{Asked, pending};

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

/// The part of a form that refers to a file in another place, and the part with its token.
const STORAGE_URL: &str = "storage_url";
const STORAGE_TOKEN: &str = "storage_token";

/// A form: a file, and how it is symbolicated.
struct CrashForm {
    file: SentFile,
    fields: CrashFields,
}

/// A file, as a request has it.
pub(crate) enum SentFile {
    /// In the request; decompressed.
    Sent(Bytes),
    /// In another place.
    Stored(StoredFile),
}

/// Serves `POST /applecrashreport`.
pub(crate) async fn apple_crash_report(
    call: Call,
    RequestQuery(query): RequestQuery,
    request: Request,
) -> Result<Response, Failure> {
    let CrashForm { file, fields } = CrashForm::read(request, &APPLE_REPORT).await?;
    answer_apple_report(&call, &query, file, fields).await
}

/// Serves `POST /minidump`.
pub(crate) async fn minidump(
    call: Call,
    RequestQuery(query): RequestQuery,
    request: Request,
) -> Result<Response, Failure> {
    let CrashForm { file, fields } = CrashForm::read(request, &MINIDUMP).await?;
    answer_minidump(&call, &query, file, fields).await
}

/// Serves `POST /symbolicate-any`.
pub(crate) async fn symbolicate_any(
    call: Call,
    RequestQuery(query): RequestQuery,
    body: Body,
) -> Result<Response, Failure> {
    let body = read_body(body).await?;
    let (kind, file, fields) = AnyRequest::parse(&body)?;
    let file = SentFile::Stored(file);
    match kind {
        CrashKind::Minidump => answer_minidump(&call, &query, file, fields).await,
        CrashKind::AppleReport => answer_apple_report(&call, &query, file, fields).await,
    }
}

async fn answer_apple_report(
    call: &Call,
    query: &Query,
    file: SentFile,
    mut fields: CrashFields,
) -> Result<Response, Failure> {
    call.symbolicator
        .drop_unusable_headers(&mut fields.scraping);
    let (file, attachment) = match file {
        SentFile::Sent(file) => (file, None),
        SentFile::Stored(stored) => {
            let attachment = call.attachment(&query.scope, stored)?;
            let file = attachment.whole("the report", apple::REPORT_BYTES).await?;
            (file, Some(attachment))
        }
    };
    let response = match parsed("report", || parse_report(&file)) {
        Ok(report) => {
            let asked = Asked {
                id: call.invocation.uuid(),
                scope: &query.scope,
                wait: call.symbolicator.wait(&call.invocation, query.timeout),
                is_overdue: false,
            };
            call.answer_file(asked, report.asked_for(fields)).await?
        }
        Err(message) => failed(message),
    };
    // Whatever the response refers to is stored by now.
    if let Some(attachment) = attachment {
        attachment.remove().await;
    }
    Ok(response)
}

async fn answer_minidump(
    call: &Call,
    query: &Query,
    file: SentFile,
    mut fields: CrashFields,
) -> Result<Response, Failure> {
    call.symbolicator
        .drop_unusable_headers(&mut fields.scraping);
    let (file, attachment) = match file {
        SentFile::Sent(file) => (Ok(DumpBytes::from(file)), None),
        SentFile::Stored(stored) => {
            let attachment = call.attachment(&query.scope, stored)?;
            (attachment.minidump().await?, Some(attachment))
        }
    };
    let response = match file {
        Ok(file) => {
            if file.starts_with(FORM_BOUNDARY) {
                let detail = "minidump contains multipart form data";
                return Err(Failure::new(StatusCode::BAD_REQUEST, detail));
            }
            let state = RequestState {
                id: call.invocation.uuid(),
                is_kept: false,
                is_overdue: false,
            };
            walk(call, query, state, KeptDump { file, fields }).await?
        }
        Err(message) => failed(message),
    };
    if let Some(attachment) = attachment {
        attachment.remove().await;
    }
    Ok(response)
}

/// The id of a request, whether it is stored under this id, and whether it is completed without
/// the builds that it waits for.
pub(crate) struct RequestState {
    pub(crate) id: Uuid,
    pub(crate) is_kept: bool,
    pub(crate) is_overdue: bool,
}

/// Walks the stacks of a minidump, and answers the crash. `query` has the scope and the timeout of
/// the request.
pub(crate) async fn walk(
    call: &Call,
    query: &Query,
    RequestState {
        id,
        is_kept,
        is_overdue,
    }: RequestState,
    KeptDump { file, fields }: KeptDump,
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
        is_overdue,
    };
    let (report, stats) = match symbolicator.walk_minidump(invocation, request).await? {
        WalkOutcome::Walked(report, stats) => (*report, stats),
        WalkOutcome::Pending => return Ok(pending(id)),
        WalkOutcome::Failed(message) => return Ok(failed(message)),
    };
    log_walked(&stats);
    let asked = Asked {
        id,
        scope: &query.scope,
        wait: wait.saturating_sub(invocation.elapsed() - began),
        is_overdue,
    };
    call.answer_file(asked, report).await
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
        let (mut file, mut url, mut token) = (None, None, None);
        let mut fields = CrashFields::default();
        while let Some(field) = form.next_field().await.map_err(bad_part)? {
            let name = field.name().unwrap_or_default().to_owned();
            let is_repeated = if name == part.name {
                let sent = content(field, part.name, limits::BODY_BYTES + part.limit).await?;
                let content = decompressed(part.name, &sent, part.limit)?;
                file.replace(content.into_owned()).is_some()
            } else if name == STORAGE_URL {
                url.replace(text(field, STORAGE_URL).await?).is_some()
            } else if name == STORAGE_TOKEN {
                token.replace(text(field, STORAGE_TOKEN).await?).is_some()
            } else {
                if let Some(known) = CrashFields::NAMES.iter().find(|known| **known == name) {
                    fields.set(known, &content(field, known, PART_BYTES).await?)?;
                }
                false
            };
            if is_repeated {
                let detail = format!("the part {name} is given more than once");
                return Err(Failure::new(StatusCode::BAD_REQUEST, detail));
            }
        }
        let file = file.filter(|file| !file.is_empty());
        let file = match (file, url) {
            (Some(file), None) => SentFile::Sent(file.into()),
            (None, Some(storage_url)) => SentFile::Stored(StoredFile {
                storage_url,
                storage_token: token,
            }),
            (Some(_), Some(_)) => {
                let detail = format!("send either {} or {STORAGE_URL}", part.name);
                return Err(Failure::new(StatusCode::BAD_REQUEST, detail));
            }
            (None, None) => return Err(Failure::new(StatusCode::BAD_REQUEST, part.missing)),
        };
        Ok(Self { file, fields })
    }
}

impl Call {
    /// Returns the file that a request refers to.
    fn attachment(&self, scope: &Scope, file: StoredFile) -> Result<Attachment<'_>, Failure> {
        let StoredFile {
            storage_url,
            storage_token,
        } = file;
        let hosts = &self.symbolicator.settings.attachment_hosts;
        let url = StorageUrl::parse(&storage_url, hosts)?;
        Ok(self.symbolicator.attachment(scope, url, storage_token))
    }
}

/// Serves `POST /attachments`: returns how a client stores a crash file.
pub(crate) async fn attachments(
    call: Call,
    RequestQuery(query): RequestQuery,
    body: Body,
) -> Result<Response, Failure> {
    let request = AttachmentRequest::parse(&read_body(body).await?)?;
    let Call {
        symbolicator,
        invocation,
    } = &call;
    let offer = symbolicator.offer_attachment(invocation, &query.scope, request.bytes);
    Ok(Json(offer.await?).into_response())
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

/// Reads a short part of a form that is plain text.
async fn text(field: Field<'_>, what: &'static str) -> Result<String, Failure> {
    let content = content(field, what, STORAGE_URL_BYTES).await?;
    let text = String::from_utf8(content).map_err(|_| RequestError::Part {
        name: what.to_owned(),
        cause: "it is not UTF-8".to_owned(),
    })?;
    Ok(text.trim().to_owned())
}

fn bad_form(rejection: MultipartRejection) -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, rejection.body_text())
}

fn bad_part(error: MultipartError) -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, error.body_text())
}
