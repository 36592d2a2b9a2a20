//! Crash files: forms with a file, whose threads become stack traces to symbolicate.
//!
//! A file that cannot be read is the client's fault, and still a status of 200: the response is
//! `failed`, with a message. Everything else that is wrong with a form is an error response.

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use symdepot::api::crash::CrashFile;
use symdepot::api::crash::any::{AnyRequest, CrashKind, StoredFile};
use symdepot::api::crash::apple::{self, parse_report};
use symdepot::api::crash::attachment::{AttachmentRequest, StorageUrl};
use symdepot::api::crash::form::CrashFields;
use symdepot::api::symbolicator::{self as api, Query};
use symdepot::domain::Scope;
use symdepot::flows::attachments::Attachment;
use symdepot::flows::minidump::{DumpBytes, KeptDump, MinidumpRequest, WalkOutcome};
use symdepot::flows::parsing::parsed;
use symdepot::flows::requests::CallState;

use crate::crashes::pending;
use crate::extract::{Call, MinidumpQuery, RequestQuery, read_body};
use crate::failure::Failure;
use crate::form::{APPLE_REPORT, CrashForm, MINIDUMP, SentFile};
use crate::summary::FAILED;

/// What a minidump never begins with, but a form in which a client wrapped it once more.
const FORM_BOUNDARY: &[u8] = b"--";

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
    MinidumpQuery(query): MinidumpQuery,
    request: Request,
) -> Result<Response, Failure> {
    let CrashForm { file, fields } = CrashForm::read(request, &MINIDUMP).await?;
    answer_minidump(&call, &query, file, fields).await
}

/// Serves `POST /symbolicate-any`.
pub(crate) async fn symbolicate_any(
    call: Call,
    MinidumpQuery(query): MinidumpQuery,
    body: Body,
) -> Result<Response, Failure> {
    let body = read_body(body).await?;
    let (kind, file, fields) = AnyRequest::parse(&body)?;
    let file = SentFile::Stored(file);
    match kind {
        CrashKind::Minidump => answer_minidump(&call, &query, file, fields).await,
        CrashKind::AppleReport if !query.format.is_default() => {
            let detail = "format=stackwalk is a schema for minidumps";
            Err(Failure::new(StatusCode::BAD_REQUEST, detail))
        }
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
            let id = call.invocation.uuid().to_string();
            let state = call.first_state(&id, query);
            Box::pin(call.answer_file(state, report.asked_for(fields))).await?
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
    fields.format = query.format;
    let (file, attachment) = match file {
        SentFile::Sent(file) => (Ok(DumpBytes::from(file)), None),
        SentFile::Stored(stored) => {
            let attachment = call.attachment(&query.scope, stored)?;
            (attachment.minidump(query.format).await?, Some(attachment))
        }
    };
    let response = match file {
        Ok(file) => {
            if file.starts_with(FORM_BOUNDARY) {
                let detail = "minidump contains multipart form data";
                return Err(Failure::new(StatusCode::BAD_REQUEST, detail));
            }
            let id = call.invocation.uuid().to_string();
            let state = call.first_state(&id, query);
            Box::pin(walk(call, state, KeptDump { file, fields })).await?
        }
        Err(message) => failed(message),
    };
    if let Some(attachment) = attachment {
        attachment.remove().await;
    }
    Ok(response)
}

/// Walks the stacks of a minidump, and answers the crash.
pub(crate) async fn walk(
    call: &Call,
    state: CallState<'_>,
    KeptDump { file, fields }: KeptDump,
) -> Result<Response, Failure> {
    let Call {
        symbolicator,
        invocation,
        ..
    } = call;
    let began = invocation.elapsed();
    let request = MinidumpRequest {
        file,
        fields: &fields,
        call: state,
    };
    let (report, stats) = match symbolicator.walk_minidump(invocation, request).await? {
        WalkOutcome::Walked(report, stats) => (*report, stats),
        WalkOutcome::Pending => return Ok(pending(&state)),
        WalkOutcome::Failed(message) => return Ok(failed(message)),
    };
    let state = state.after(invocation.elapsed() - began);
    let mut response = call.answer_file(state, report).await?;
    response.extensions_mut().insert(stats);
    Ok(response)
}

/// Returns the crash in a stored request.
pub(crate) fn stored(body: &[u8]) -> Result<CrashFile, Failure> {
    serde_json::from_slice(body).map_err(Failure::internal)
}

/// The response for a file that cannot be read.
fn failed(message: String) -> Response {
    tracing::debug!(message, "cannot read the crash file");
    (Extension(FAILED), Json(api::Response::Failed { message })).into_response()
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
        let Self {
            symbolicator,
            invocation,
            ..
        } = self;
        Ok(symbolicator.attachment(invocation, scope, url, storage_token))
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
        ..
    } = &call;
    let offer = symbolicator.offer_attachment(invocation, &query.scope, request.bytes);
    Ok(Json(offer.await?).into_response())
}
