//! Extractors of the handlers: the service, the invocation, and the parsed query of a request.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{FromRef, FromRequestParts};
use axum::http::StatusCode;
use axum::http::request::Parts;
use symdepot::api::caller::Caller;
use symdepot::api::explain::{ExplainQuery, SymCacheQuery};
use symdepot::api::limits;
use symdepot::api::symbolicator::{Query, RequestError};
use symdepot::flows::{HttpService, Invocation};

use crate::failure::Failure;

/// The service, the invocation that it serves, and the caller.
pub(crate) struct RequestContext {
    pub(crate) service: Arc<HttpService>,
    pub(crate) invocation: Arc<Invocation>,
    pub(crate) caller: Arc<Caller>,
}

impl<S> FromRequestParts<S> for RequestContext
where
    Arc<HttpService>: FromRef<S>,
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
            service: Arc::from_ref(state),
            invocation: invocation.ok_or_else(internal)?,
            caller: caller(parts)?,
        })
    }
}

/// The query of a symbolication request: its scope, and how long it waits.
pub(crate) struct RequestQuery(pub(crate) Query);

impl<S: Sync> FromRequestParts<S> for RequestQuery {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        Ok(Self(query(parts, Query::OF_REQUESTS)?))
    }
}

/// The query of a request that is continued: its scope is the one it was sent in, which the query
/// may name.
pub(crate) struct ContinuedQuery(pub(crate) Query);

impl<S: Sync> FromRequestParts<S> for ContinuedQuery {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let query = Query::parse(text(parts), Query::OF_REQUESTS)?;
        caller(parts)?.named_scope(query.named_scope())?;
        Ok(Self(query))
    }
}

/// The query of a request with a minidump: also the schema of the answer.
pub(crate) struct MinidumpQuery(pub(crate) Query);

impl<S: Sync> FromRequestParts<S> for MinidumpQuery {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        Ok(Self(query(parts, Query::OF_MINIDUMPS)?))
    }
}

/// The query of a list: its scope, and the page.
pub(crate) struct ListQuery(pub(crate) Query);

impl<S: Sync> FromRequestParts<S> for ListQuery {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        Ok(Self(query(parts, Query::OF_LISTS)?))
    }
}

/// The query of a request for uploads: their scope, which the body may name as well.
pub(crate) struct UploadsQuery(pub(crate) Query);

impl<S: Sync> FromRequestParts<S> for UploadsQuery {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        Ok(Self(Query::parse(text(parts), Query::OF_UPLOADS)?))
    }
}

/// The query of a request that has no parameters.
pub(crate) struct NoQuery;

impl<S: Sync> FromRequestParts<S> for NoQuery {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        Query::parse(text(parts), Query::NONE)?;
        Ok(Self)
    }
}

/// The query for an upload or a module.
pub(crate) struct Subject(pub(crate) ExplainQuery);

impl<S: Sync> FromRequestParts<S> for Subject {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let query = ExplainQuery::parse(text(parts))?;
        Ok(Self(query.for_caller(&*caller(parts)?)?))
    }
}

/// The query for a SymCache.
pub(crate) struct SymCacheSubject(pub(crate) SymCacheQuery);

impl<S: Sync> FromRequestParts<S> for SymCacheSubject {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let query = SymCacheQuery::parse(text(parts))?;
        Ok(Self(query.for_caller(&*caller(parts)?)?))
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

/// Returns the caller that was let in.
fn caller(parts: &Parts) -> Result<Arc<Caller>, Failure> {
    let caller = parts.extensions.get::<Arc<Caller>>().cloned();
    let refused = || Failure::new(StatusCode::FORBIDDEN, "the request has no caller");
    caller.ok_or_else(refused)
}

/// Parses a query, and checks that the caller has a grant for its scope.
fn query(parts: &Parts, parameters: &[&str]) -> Result<Query, Failure> {
    let query = Query::parse(text(parts), parameters)?;
    let scope = caller(parts)?.scope_for(query.named_scope())?;
    Ok(Query { scope, ..query })
}

fn text(parts: &Parts) -> &str {
    parts.uri.query().unwrap_or_default()
}
