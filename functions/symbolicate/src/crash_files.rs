//! Crash files: forms with a file, whose threads become stack traces to symbolicate.
//!
//! A file that cannot be read is the client's fault, and still a status of 200: the response is
//! `failed`, with a message. Everything else that is wrong with a form is an error response.

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use symdepot::api::crash::any::{AnyRequest, CrashKind, FileReference};
use symdepot::api::crash::apple::{self, parse_report};
use symdepot::api::crash::attachment::{AttachmentRequest, StorageUrl};
use symdepot::api::crash::form::CrashFields;
use symdepot::api::symbolicator::{self as api, Query};
use symdepot::domain::Scope;
use symdepot::flows::attachments::Attachment;
use symdepot::flows::minidump::{DumpBytes, MinidumpForm, MinidumpRequest, WalkOutcome};
use symdepot::flows::parsing::parsed;
use symdepot::flows::requests::CallState;

use crate::crashes::pending;
use crate::extract::{MinidumpQuery, RequestContext, RequestQuery, read_body};
use crate::failure::Failure;
use crate::form::{APPLE_REPORT, CrashForm, MINIDUMP, SentFile};
use crate::summary::FAILED;

/// What a minidump never begins with, but a form in which a client wrapped it once more.
const FORM_BOUNDARY: &[u8] = b"--";

/// Serves `POST /applecrashreport`.
pub(crate) async fn apple_crash_report(
    call: RequestContext,
    RequestQuery(query): RequestQuery,
    request: Request,
) -> Result<Response, Failure> {
    let form = CrashForm::read(request, &APPLE_REPORT).await?;
    respond_to_form(&call, &query, CrashKind::AppleReport, form).await
}

/// Serves `POST /minidump`.
pub(crate) async fn minidump(
    call: RequestContext,
    MinidumpQuery(query): MinidumpQuery,
    request: Request,
) -> Result<Response, Failure> {
    let form = CrashForm::read(request, &MINIDUMP).await?;
    respond_to_form(&call, &query, CrashKind::Minidump, form).await
}

/// Serves `POST /symbolicate-any`.
pub(crate) async fn symbolicate_any(
    call: RequestContext,
    MinidumpQuery(query): MinidumpQuery,
    body: Body,
) -> Result<Response, Failure> {
    let body = read_body(body).await?;
    let (kind, file, fields) = AnyRequest::parse(&body)?;
    if kind == CrashKind::AppleReport && !query.format.is_default() {
        let detail = "format=stackwalk is a schema for minidumps";
        return Err(Failure::new(StatusCode::BAD_REQUEST, detail));
    }
    let file = SentFile::Referenced(file);
    respond_to_form(&call, &query, kind, CrashForm { file, fields }).await
}

/// A crash file to read.
enum FileToRead<'a> {
    /// It was sent.
    Inline(Bytes),
    /// It is stored elsewhere.
    Attachment(&'a Attachment<'a>),
}

/// Returns the response for a crash file, and removes an attachment that the form refers to.
async fn respond_to_form(
    call: &RequestContext,
    query: &Query,
    kind: CrashKind,
    CrashForm { file, mut fields }: CrashForm,
) -> Result<Response, Failure> {
    call.service.drop_unusable_headers(&mut fields.scraping);
    let mut attachment = None;
    let file = match file {
        SentFile::Inline(bytes) => FileToRead::Inline(bytes),
        SentFile::Referenced(reference) => {
            let referenced = call.attachment(&query.scope, reference)?;
            let referenced = referenced.within(call.wait_limit(query));
            FileToRead::Attachment(attachment.insert(referenced))
        }
    };
    let response = match kind {
        CrashKind::AppleReport => respond_to_apple_report(call, query, file, fields).await?,
        CrashKind::Minidump => respond_to_minidump(call, query, file, fields).await?,
    };
    // Whatever the response refers to is stored by now.
    if let Some(attachment) = attachment {
        attachment.remove().await;
    }
    Ok(response)
}

async fn respond_to_apple_report(
    call: &RequestContext,
    query: &Query,
    file: FileToRead<'_>,
    fields: CrashFields,
) -> Result<Response, Failure> {
    let began = call.invocation.elapsed();
    let id = call.invocation.uuid().to_string();
    let state = call.first_state(&id, query);
    let file = match file {
        FileToRead::Inline(bytes) => bytes,
        FileToRead::Attachment(attachment) => {
            attachment.whole("the report", apple::REPORT_BYTES).await?
        }
    };
    match parsed("report", || parse_report(&file)) {
        Ok(crash) => {
            let state = state.after(call.invocation.elapsed() - began);
            Box::pin(call.respond_to_file(state, crash.with_fields(fields))).await
        }
        Err(message) => Ok(failed(message)),
    }
}

async fn respond_to_minidump(
    call: &RequestContext,
    query: &Query,
    file: FileToRead<'_>,
    mut fields: CrashFields,
) -> Result<Response, Failure> {
    fields.format = query.format;
    let began = call.invocation.elapsed();
    let id = call.invocation.uuid().to_string();
    let state = call.first_state(&id, query);
    let file = match file {
        FileToRead::Inline(bytes) => DumpBytes::from(bytes),
        FileToRead::Attachment(attachment) => match attachment.minidump(query.format).await? {
            Ok(file) => file,
            Err(message) => return Ok(failed(message)),
        },
    };
    if file.starts_with(FORM_BOUNDARY) {
        let detail = "minidump contains multipart form data";
        return Err(Failure::new(StatusCode::BAD_REQUEST, detail));
    }
    let state = state.after(call.invocation.elapsed() - began);
    Box::pin(walk(call, state, MinidumpForm { file, fields })).await
}

/// Walks the stacks of a minidump, and returns the response for the crash.
pub(crate) async fn walk(
    call: &RequestContext,
    state: CallState<'_>,
    MinidumpForm { file, fields }: MinidumpForm,
) -> Result<Response, Failure> {
    let RequestContext {
        service,
        invocation,
        ..
    } = call;
    let began = invocation.elapsed();
    let request = MinidumpRequest {
        file,
        fields: &fields,
        call: state,
    };
    let (crash, stats) = match service.walk_minidump(invocation, request).await? {
        WalkOutcome::Walked(crash, stats) => (*crash, stats),
        WalkOutcome::Pending => return Ok(pending(&state)),
        WalkOutcome::Failed(message) => return Ok(failed(message)),
    };
    let state = state.after(invocation.elapsed() - began);
    let mut response = call.respond_to_file(state, crash).await?;
    response.extensions_mut().insert(stats);
    Ok(response)
}

/// The response for a file that cannot be read.
fn failed(message: String) -> Response {
    tracing::debug!(message, "cannot read the crash file");
    (Extension(FAILED), Json(api::Response::Failed { message })).into_response()
}

impl RequestContext {
    /// Returns the file that a request refers to.
    fn attachment(&self, scope: &Scope, file: FileReference) -> Result<Attachment<'_>, Failure> {
        let FileReference {
            storage_url,
            storage_token,
        } = file;
        let hosts = &self.service.settings.attachment_hosts;
        let url = StorageUrl::parse(&storage_url, hosts)?;
        let Self {
            service,
            invocation,
            ..
        } = self;
        Ok(service.attachment(invocation, scope, url, storage_token))
    }
}

/// Serves `POST /attachments`: returns how a client stores a crash file.
pub(crate) async fn attachments(
    call: RequestContext,
    RequestQuery(query): RequestQuery,
    body: Body,
) -> Result<Response, Failure> {
    let request = AttachmentRequest::parse(&read_body(body).await?)?;
    let RequestContext {
        service,
        invocation,
        ..
    } = &call;
    let offer = service.offer_attachment(invocation, &query.scope, request.bytes);
    Ok(Json(offer.await?).into_response())
}
