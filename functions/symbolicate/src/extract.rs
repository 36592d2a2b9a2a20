//! Extractors of the handlers: the service, the invocation, and the parsed query of a request.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{FromRef, FromRequestParts};
use axum::http::StatusCode;
use axum::http::request::Parts;
use symdepot::api::explain::ExplainQuery;
use symdepot::api::limits;
use symdepot::api::symbolicator::{Query, RequestError};
use symdepot::flows::Invocation;
use symdepot::flows::symbolicate::Symbolicator;

use crate::failure::Failure;

/// The service, and the invocation that it serves.
pub(crate) struct Call {
    pub(crate) symbolicator: Arc<Symbolicator>,
    pub(crate) invocation: Arc<Invocation>,
}

impl<S> FromRequestParts<S> for Call
where
    Arc<Symbolicator>: FromRef<S>,
    S: Send + Sync,
{
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let invocation = parts.extensions.get::<Arc<Invocation>>().cloned();
        let internal = || {
            let detail = "the request has no invocation";
            Failure::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
        };
        Ok(Self {
            symbolicator: Arc::from_ref(state),
            invocation: invocation.ok_or_else(internal)?,
        })
    }
}

/// The query of a symbolication request: its scope, and how long it waits.
pub(crate) struct RequestQuery(pub(crate) Query);

impl<S: Sync> FromRequestParts<S> for RequestQuery {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        Ok(Self(Query::parse(text(parts), Query::OF_REQUESTS)?))
    }
}

/// The query of a request with a minidump: also the schema of the answer.
pub(crate) struct MinidumpQuery(pub(crate) Query);

impl<S: Sync> FromRequestParts<S> for MinidumpQuery {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        Ok(Self(Query::parse(text(parts), Query::OF_MINIDUMPS)?))
    }
}

/// The query of a list: its scope, and the page.
pub(crate) struct ListQuery(pub(crate) Query);

impl<S: Sync> FromRequestParts<S> for ListQuery {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        Ok(Self(Query::parse(text(parts), Query::OF_LISTS)?))
    }
}

/// The query for an upload or a module.
pub(crate) struct Subject(pub(crate) ExplainQuery);

impl<S: Sync> FromRequestParts<S> for Subject {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        Ok(Self(ExplainQuery::parse(text(parts))?))
    }
}

/// Reads the body of a request, within the limit of all requests.
pub(crate) async fn read_body(body: Body) -> Result<Bytes, Failure> {
    let too_long = RequestError::TooLong {
        what: "the body",
        limit: limits::BODY_BYTES,
    };
    let body = axum::body::to_bytes(body, limits::BODY_BYTES).await;
    Ok(body.map_err(|_| too_long)?)
}

fn text(parts: &Parts) -> &str {
    parts.uri.query().unwrap_or_default()
}
