//! Handles the requests with stack traces, and responds to crashes.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, IntoResponseParts, Response};
use axum::{Extension, Json};
use symdepot::api::crash::ReadCrash;
use symdepot::api::limits;
use symdepot::api::symbolicator as api;
use symdepot::flows::requests::{CallState, RequestToStore};
use symdepot::flows::symbolicate::{Stats, SymbolicateOutcome};

use crate::answer::CrashAnswer;
use crate::extract::{self, RequestContext, RequestQuery};
use crate::failure::Failure;
use crate::reply::JsonBody;
use crate::summary::{COMPLETED, PENDING};

pub(crate) async fn symbolicate(
    call: RequestContext,
    RequestQuery(query): RequestQuery,
    body: Body,
) -> Result<Response, Failure> {
    let body = extract::read_body(body).await?;
    let mut request = api::parse_request(&body)?;
    let scraping = &mut request.scraping;
    let body = if call.service.drop_unusable_headers(scraping) {
        serde_json::to_vec(&request)
            .map_err(Failure::internal)?
            .into()
    } else {
        body
    };
    let id = call.invocation.uuid().to_string();
    let state = call.first_state(&id, &query);
    let state = state.storing(RequestToStore::received(&body));
    call.respond_to_crash(state, Crash::InRequest(Box::new(request)))
        .await
}

/// The response that refers to an answer that is too large to be sent.
pub(crate) fn redirect(url: String, log_extensions: impl IntoResponseParts) -> Response {
    let location = [(header::LOCATION, url)];
    (StatusCode::SEE_OTHER, log_extensions, location).into_response()
}

/// The response for a request that is not complete.
pub(crate) fn pending(state: &CallState<'_>) -> Response {
    let response = api::Response::pending(state.id);
    (Extension(PENDING), Json(response)).into_response()
}

/// The stack traces to symbolicate.
pub(crate) enum Crash {
    /// Those of a request. They are answered as a whole.
    InRequest(Box<api::Request>),
    /// Those that were read from a file.
    FromFile(Box<ReadCrash>),
}

impl RequestContext {
    /// Returns the state of the first call for a crash.
    pub(crate) fn first_state<'a>(&self, id: &'a str, query: &'a api::Query) -> CallState<'a> {
        CallState::first(id, &query.scope, self.wait_limit(query))
    }

    pub(crate) fn wait_limit(&self, query: &api::Query) -> Duration {
        self.service.wait_limit(&self.invocation, query.timeout)
    }

    /// Returns the response for a crash.
    pub(crate) async fn respond_to_crash(
        &self,
        state: CallState<'_>,
        crash: Crash,
    ) -> Result<Response, Failure> {
        match self.answer(&state, crash).await? {
            Some((answer, stats)) => self.send_answer(&state, answer, stats).await,
            None => Ok(pending(&state)),
        }
    }

    /// Symbolicates a crash; `None` if it is pending.
    async fn answer(
        &self,
        state: &CallState<'_>,
        crash: Crash,
    ) -> Result<Option<(CrashAnswer, Stats)>, Failure> {
        let (service, invocation) = (&self.service, &self.invocation);
        let (outcome, read) = match crash {
            Crash::InRequest(request) => {
                let answer = service.answer(invocation, &request, *state);
                (answer.await?, None)
            }
            Crash::FromFile(read) => {
                let answer = service.answer_crash(invocation, &read, *state);
                (answer.await?, Some(read))
            }
        };
        let (completed, stats) = match outcome {
            SymbolicateOutcome::Pending => return Ok(None),
            SymbolicateOutcome::Completed(completed, stats) => (*completed, stats),
        };
        let answer = match read {
            Some(crash) => {
                let order = crash.request.options.frame_order;
                CrashAnswer::to_file(completed, order, crash.stackwalk)
            }
            None => CrashAnswer::to_request(completed),
        };
        Ok(Some((answer, stats)))
    }

    /// Returns the response with an answer. An answer to a stored request is stored, so that later
    /// calls read it; so is one that is too large to be sent.
    async fn send_answer(
        &self,
        state: &CallState<'_>,
        answer: CrashAnswer,
        mut stats: Stats,
    ) -> Result<Response, Failure> {
        let body = answer.write(&mut stats)?;
        let log_extensions = (Extension(COMPLETED), Extension(stats));
        let is_sent = body.get().len() <= limits::SENT_ANSWER_BYTES;
        let CallState { id, found, .. } = *state;
        if found.is_some() || !is_sent {
            let bytes = body.get().as_bytes().to_vec();
            let stored = self
                .service
                .store_answer(&self.invocation, id, found, bytes);
            match stored.await {
                Err(error) if is_sent => {
                    tracing::warn!(%error, "cannot store an answer; the next call computes it again");
                }
                stored => stored?,
            }
        }
        if is_sent {
            let body = Extension(Arc::new(JsonBody(body)));
            return Ok((log_extensions, body).into_response());
        }
        let url = self.service.answer_url(id).await?;
        Ok(redirect(url, log_extensions))
    }

    /// Returns the response for a crash that was read from a file. It is stored while it is
    /// pending.
    pub(crate) async fn respond_to_file(
        &self,
        state: CallState<'_>,
        crash: ReadCrash,
    ) -> Result<Response, Failure> {
        let body = serde_json::to_vec(&crash).map_err(Failure::internal)?;
        let state = state.storing(RequestToStore::crash_file(&crash, &body));
        let crash = Crash::FromFile(Box::new(crash));
        self.respond_to_crash(state, crash).await
    }
}
