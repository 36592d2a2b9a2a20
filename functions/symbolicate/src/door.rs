//! Lets requests in: who sends them, and what their callers may do.
//!
//! The gateway has checked a signature (IAM) or a JWT on some of its routes, and nothing on the
//! others. A request needs what the gateway found, or an access token; on the local stack, which
//! only its machine reaches, anyone may enter unless `AUTH` is `token`: without a credential, or
//! with one that is no access token.
//!
//! [`admit`] runs before a route is chosen, [`check`] before the handler of a route. The scope of a
//! request is checked where it is parsed (`extract.rs`). Only the lookup of a token that this
//! instance does not know calls a store.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use lambda_http::RequestExt;
use lambda_http::request::RequestContext;
use symdepot::api::caller::{Caller, Need};
use symdepot::api::entrance::{Credential, Entrance};
use symdepot::flows::HttpService;
use symdepot::flows::Invocation;

use crate::deadline::in_time;
use crate::failure::Failure;
use crate::operation::Operation;

/// What a 401 says. A client that was given a credential in its address sends it when asked to.
const CHALLENGE: HeaderValue =
    HeaderValue::from_static("Basic realm=\"symdepot\", charset=\"UTF-8\"");

/// The text of a 401 for a request without a credential.
const NO_CREDENTIAL: &str = "a credential is required: an access token as Bearer, as the password of Basic, or in the path (/t/<token>/…); or a request that is signed by a principal of AWS";

/// The texts of a 401 for an access token that is not valid, and for a credential that is not a
/// token.
const UNKNOWN_TOKEN: &str =
    "the access token is unknown, expired or revoked: an admin issues another one by POST /tokens";
const NOT_A_TOKEN: &str =
    "the credential is not an access token: an admin issues one by POST /tokens";

/// The text of a 401 for an access token that is not valid where no credential is needed. It is
/// refused all the same: its caller expects rights that the token no longer has.
const NEEDLESS_TOKEN: &str = "the access token is unknown, expired or revoked, and this service needs no credential (AUTH=open): send none";

/// Finds the caller of a request, and removes from its path what is not part of a protocol.
///
/// # Errors
///
/// The response for a request without a valid credential.
pub(crate) async fn admit(
    service: &HttpService,
    invocation: &Invocation,
    request: &mut lambda_http::Request,
) -> Result<Arc<Caller>, Response> {
    let entrance = Entrance::of(request.uri().path());
    let authorization = request.headers().get(header::AUTHORIZATION);
    let authorization = authorization.map(|value| value.to_str().unwrap_or_default());
    let is_open = service.settings.allows_anonymous;
    let caller = match (gateway_caller(request), entrance.credential(authorization)) {
        (Some(caller), _) => caller,
        (None, Credential::Token(token)) => {
            let granted = service.token_grants(invocation, &token).await;
            match granted.map_err(|error| Failure::from(error).into_response())? {
                Some((id, grants)) => Caller::with_token(&id, grants),
                None if is_open => return Err(refused(NEEDLESS_TOKEN)),
                None => return Err(refused(UNKNOWN_TOKEN)),
            }
        }
        // What is no token grants nothing, and takes nothing away: a client may send a password.
        (None, Credential::Malformed | Credential::Absent) if is_open => Caller::anyone(),
        (None, Credential::Malformed) => return Err(refused(NOT_A_TOKEN)),
        (None, Credential::Absent) => return Err(refused(NO_CREDENTIAL)),
    };
    let scope = entrance.scope.transpose().map_err(|name| {
        let detail = format!("the path names no valid scope: {name:?}");
        Failure::new(StatusCode::NOT_FOUND, detail).into_response()
    })?;
    let uri = request.uri();
    if entrance.path != uri.path() {
        let rest = match uri.query() {
            Some(query) => format!("{}?{query}", entrance.path),
            None => entrance.path.into_owned(),
        };
        if let Ok(rest) = PathAndQuery::try_from(rest) {
            *request.uri_mut() = Uri::from(rest);
        }
    }
    Ok(Arc::new(caller.in_scope(scope)))
}

/// Returns the caller that an authorizer of the gateway has found.
fn gateway_caller(request: &lambda_http::Request) -> Option<Caller> {
    let RequestContext::ApiGatewayV2(context) = request.request_context_ref()? else {
        return None;
    };
    let authorizer = context.authorizer.as_ref()?;
    let arn = authorizer
        .iam
        .as_ref()
        .and_then(|iam| iam.user_arn.as_ref());
    if let Some(arn) = arn {
        return Some(Caller::principal(arn, context.route_key.as_deref()));
    }
    let claims = &authorizer.jwt.as_ref()?.claims;
    Some(Caller::with_claims(|name| {
        claims.get(name).map(String::as_str)
    }))
}

fn refused(why: &str) -> Response {
    let failure = Failure::new(StatusCode::UNAUTHORIZED, why);
    ([(header::WWW_AUTHENTICATE, CHALLENGE)], failure).into_response()
}

/// Serves a request to a route in time, if its caller has the right. The response says which route
/// it was.
pub(crate) async fn check(
    State(operation): State<Operation>,
    request: Request,
    next: Next,
) -> Response {
    let extensions = request.extensions();
    let caller = extensions.get::<Arc<Caller>>();
    let invocation = extensions.get::<Arc<Invocation>>().cloned();
    let entitled = caller.map(|caller| entitled(caller, operation));
    let mut response = match (entitled, invocation) {
        (Some(Ok(())), Some(invocation)) => in_time(&invocation, next.run(request))
            .await
            .unwrap_or_else(Failure::into_response),
        (Some(Err(failure)), _) => failure.into_response(),
        (None, _) | (_, None) => refused(NO_CREDENTIAL),
    };
    response.extensions_mut().insert(operation);
    response
}

/// Checks that a caller has the rights for an operation, and a grant for the scope in its path.
///
/// # Errors
///
/// The 403 for a caller that has not.
pub(crate) fn entitled(caller: &Caller, operation: Operation) -> Result<(), Failure> {
    let need = operation.needs();
    if caller.may(need) {
        caller.named_scope(None)?;
        return Ok(());
    }
    let lacking = match need {
        Need::Credential => "a credential".to_owned(),
        Need::AnyOf(rights) => {
            let rights: Vec<&str> = rights.iter().map(|right| right.as_str()).collect();
            format!("the right {}", rights.join(" or "))
        }
        Need::Admin => "the right admin".to_owned(),
        Need::AdminEverywhere => "the right admin in every scope".to_owned(),
    };
    Err(Failure::new(
        StatusCode::FORBIDDEN,
        format!("the credential lacks {lacking}"),
    ))
}
