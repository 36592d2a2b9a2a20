//! Handles the requests with stack traces, and those that continue a pending request.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, IntoResponseParts, Response};
use axum::{Extension, Json};
use serde_json::value::RawValue;
use symdepot::api::crash::CrashFile;
use symdepot::api::limits;
use symdepot::api::symbolicator as api;
use symdepot::domain::Scope;
use symdepot::flows::minidump::kept_dump;
use symdepot::flows::requests::{
    FinishedAnswer, FoundRequest, KeptRequest, RequestStage, RequestToKeep,
};
use symdepot::flows::symbolicate::{PendingTerms, Stats, SymbolicateOutcome};
use uuid::Uuid;

use crate::answer::CrashAnswer;
use crate::crash_files::{self, RequestState};
use crate::extract::{self, Call, ContinuedQuery, RequestQuery};
use crate::failure::Failure;
use crate::handler::JsonBody;
use crate::summary::{COMPLETED, PENDING};

pub(crate) async fn symbolicate(
    call: Call,
    RequestQuery(query): RequestQuery,
    body: Body,
) -> Result<Response, Failure> {
    let body = extract::read_body(body).await?;
    let mut request = api::parse_request(&body)?;
    let scraping = &mut request.scraping;
    let body = if call.symbolicator.drop_unusable_headers(scraping) {
        serde_json::to_vec(&request)
            .map_err(Failure::internal)?
            .into()
    } else {
        body
    };
    let asked = Asked::of_first_call(&call, &query);
    let body = Some(RequestToKeep::received(&body));
    call.answer(asked, Crash::Sent(Box::new(request)), body)
        .await
}

pub(crate) async fn continue_request(
    call: Call,
    id: Result<Path<String>, PathRejection>,
    ContinuedQuery(query): ContinuedQuery,
) -> Result<Response, Failure> {
    let unknown = || {
        Failure::new(
            StatusCode::NOT_FOUND,
            "no request has this id, or it has expired: send it again",
        )
    };
    let id = id.ok().and_then(|Path(id)| Uuid::parse_str(&id).ok());
    let id = id.ok_or_else(unknown)?;
    // One of another scope is as unknown as one that does not exist.
    let may_see = |found: &FoundRequest| {
        let is_named = query
            .named_scope()
            .is_none_or(|named| named == *found.scope());
        is_named && call.caller.may_see(found.scope())
    };
    let found = call
        .symbolicator
        .find_request(&call.invocation, &id.to_string())
        .await?
        .filter(may_see)
        .ok_or_else(unknown)?;
    if let Some(answer) = call.symbolicator.finished_answer(&found).await? {
        return finished(answer);
    }
    let KeptRequest {
        scope,
        stage,
        body,
        age,
    } = call
        .symbolicator
        .kept_request(&call.invocation, &found)
        .await?
        .ok_or_else(unknown)?;
    let crash = match stage {
        RequestStage::Symbolicate => Crash::Sent(Box::new(api::parse_request(&body)?)),
        RequestStage::CrashFile => Crash::Read(Box::new(crash_files::stored(&body)?)),
        RequestStage::Minidump => {
            let query = api::Query { scope, ..query };
            let state = RequestState {
                id,
                found: Some(&found),
                age,
            };
            return crash_files::walk(&call, &query, state, kept_dump(&body)?).await;
        }
    };
    let asked = Asked {
        id,
        scope: &scope,
        wait: call.symbolicator.wait(&call.invocation, query.timeout),
        age,
        found: Some(&found),
    };
    call.answer(asked, crash, None).await
}

/// The response with a stored answer.
fn finished(answer: FinishedAnswer) -> Result<Response, Failure> {
    match answer {
        FinishedAnswer::Sent(body) => {
            let body: Box<RawValue> = serde_json::from_slice(&body).map_err(Failure::internal)?;
            let body = Arc::new(JsonBody(body));
            Ok((Extension(COMPLETED), Extension(body)).into_response())
        }
        FinishedAnswer::At(url) => Ok(elsewhere(url, Extension(COMPLETED))),
    }
}

/// The response that refers to an answer that is too large to be sent.
fn elsewhere(url: String, noted: impl IntoResponseParts) -> Response {
    (StatusCode::SEE_OTHER, noted, [(header::LOCATION, url)]).into_response()
}

pub(crate) fn pending(id: Uuid) -> Response {
    (Extension(PENDING), Json(api::Response::pending(id))).into_response()
}

/// The stack traces to symbolicate.
pub(crate) enum Crash {
    /// Those of a request. They are answered as a whole.
    Sent(Box<api::Request>),
    /// Those that were read from a file.
    Read(Box<CrashFile>),
}

/// A crash to symbolicate: the id that its client receives, whose caches it reads, how long it
/// waits for builds, how long it has been pending, and what is stored of it if this call continues
/// it.
pub(crate) struct Asked<'a> {
    pub(crate) id: Uuid,
    pub(crate) scope: &'a Scope,
    pub(crate) wait: Duration,
    pub(crate) age: Duration,
    pub(crate) found: Option<&'a FoundRequest>,
}

impl<'a> Asked<'a> {
    /// Returns what is asked by the first call for a crash, with this query.
    pub(crate) fn of_first_call(call: &Call, query: &'a api::Query) -> Self {
        Self {
            id: call.invocation.uuid(),
            scope: &query.scope,
            wait: call.symbolicator.wait(&call.invocation, query.timeout),
            age: Duration::ZERO,
            found: None,
        }
    }
}

impl Call {
    /// Returns the response for a crash. `body` is stored while it is pending; `None` if it is
    /// stored already.
    pub(crate) async fn answer(
        &self,
        asked: Asked<'_>,
        crash: Crash,
        body: Option<RequestToKeep<'_>>,
    ) -> Result<Response, Failure> {
        match self.answer_of(&asked, crash, body).await? {
            Some((answer, stats)) => self.respond(&asked, answer, stats).await,
            None => Ok(pending(asked.id)),
        }
    }

    /// Symbolicates a crash; `None` if it is pending.
    async fn answer_of(
        &self,
        asked: &Asked<'_>,
        crash: Crash,
        body: Option<RequestToKeep<'_>>,
    ) -> Result<Option<(CrashAnswer, Stats)>, Failure> {
        let (symbolicator, invocation) = (&self.symbolicator, &self.invocation);
        let id = asked.id.to_string();
        let terms = PendingTerms {
            wait: asked.wait,
            id: &id,
            body,
            age: asked.age,
        };
        let (outcome, report) = match crash {
            Crash::Sent(request) => {
                let answer = symbolicator.answer(invocation, &request, asked.scope, terms);
                (answer.await?, None)
            }
            Crash::Read(report) => {
                let answer = symbolicator.answer_crash(invocation, &report, asked.scope, terms);
                (answer.await?, Some(report))
            }
        };
        let (completed, stats) = match outcome {
            SymbolicateOutcome::Pending => return Ok(None),
            SymbolicateOutcome::Completed(completed, stats) => (*completed, stats),
        };
        let answer = match report {
            Some(report) => {
                let order = report.request.options.frame_order;
                CrashAnswer::to_file(completed, order, report.stackwalk)
            }
            None => CrashAnswer::to_request(completed),
        };
        Ok(Some((answer, stats)))
    }

    /// Returns the response with an answer. An answer to a stored request is stored, so that later
    /// calls read it; so is one that is too large to be sent.
    async fn respond(
        &self,
        asked: &Asked<'_>,
        answer: CrashAnswer,
        mut stats: Stats,
    ) -> Result<Response, Failure> {
        let body = answer.write(&mut stats)?;
        let noted = (Extension(COMPLETED), Extension(stats));
        let is_sent = body.get().len() <= limits::SENT_ANSWER_BYTES;
        let id = asked.id.to_string();
        if asked.found.is_some() || !is_sent {
            let bytes = body.get().as_bytes().to_vec();
            let stored = self
                .symbolicator
                .store_answer(&self.invocation, &id, asked.found, bytes);
            match stored.await {
                Err(error) if is_sent => {
                    tracing::warn!(%error, "cannot store an answer; the next call computes it again");
                }
                stored => stored?,
            }
        }
        if is_sent {
            return Ok((noted, Extension(Arc::new(JsonBody(body)))).into_response());
        }
        let url = self.symbolicator.answer_url(&id).await?;
        Ok(elsewhere(url, noted))
    }

    /// Returns the response for a crash that was read from a file. It is stored while it is
    /// pending.
    pub(crate) async fn answer_file(
        &self,
        asked: Asked<'_>,
        report: CrashFile,
    ) -> Result<Response, Failure> {
        let body = serde_json::to_vec(&report).map_err(Failure::internal)?;
        let body = Some(RequestToKeep::crash_file(&report, &body));
        let crash = Crash::Read(Box::new(report));
        self.answer(asked, crash, body).await
    }
}
