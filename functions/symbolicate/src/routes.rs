//! The routes: one table, from which the router, the texts of 404 and 405, and the paths of the
//! OpenAPI document are made.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use symdepot::flows::HttpService;

use crate::failure::Failure;
use crate::operation::Operation;
use crate::{
    continued, crash_files, crashes, door, introspection, mozilla, ms_symcache, tokens, uploads,
};

/// A route.
pub(crate) struct Route {
    /// The method of its requests.
    pub(crate) verb: Verb,
    /// The path, with the names of its parameters in braces.
    pub(crate) path: &'static str,
    /// What it is for.
    pub(crate) operation: Operation,
    /// The queries without which it has no answer, as a user writes them: alternatives.
    queries: &'static [&'static str],
}

/// The method of the requests to a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// `HEAD` is served, too.
    Get,
    Post,
    Delete,
}

/// All routes.
pub(crate) const ROUTES: [Route; 18] = [
    post("/symbolicate", Operation::Symbolicate),
    post("/minidump", Operation::Minidump),
    post("/applecrashreport", Operation::AppleCrashReport),
    post("/symbolicate-any", Operation::SymbolicateAny),
    post("/symbolicate/v5", Operation::SymbolicateJobs),
    post("/attachments", Operation::Attachments),
    get("/requests/{id}", Operation::ContinueRequest),
    post("/uploads", Operation::Uploads),
    get("/explain", Operation::Explain).with(&["key=…", "debug_id=…"]),
    get("/symcache", Operation::SymCache).with(&["debug_id=…"]),
    get("/rollout", Operation::Rollout),
    get("/wanted", Operation::Wanted),
    post("/tokens", Operation::IssueToken),
    get("/tokens", Operation::ListTokens),
    delete("/tokens/{id}", Operation::RevokeToken),
    get("/about", Operation::About),
    get("/healthcheck", Operation::HealthCheck),
    get("/v{version}/{pdb}/{id}/{age}", Operation::MsSymCache),
];

const fn get(path: &'static str, operation: Operation) -> Route {
    let (verb, queries) = (Verb::Get, &[]);
    Route {
        verb,
        path,
        operation,
        queries,
    }
}

const fn post(path: &'static str, operation: Operation) -> Route {
    let verb = Verb::Post;
    Route {
        verb,
        ..get(path, operation)
    }
}

const fn delete(path: &'static str, operation: Operation) -> Route {
    let verb = Verb::Delete;
    Route {
        verb,
        ..get(path, operation)
    }
}

impl Route {
    const fn with(self, queries: &'static [&'static str]) -> Self {
        Self { queries, ..self }
    }

    /// Returns requests to it, as a user writes them.
    fn examples(&self) -> Vec<String> {
        let request = format!("{} {}", self.verb.name(), self.path);
        match self.queries {
            [] => vec![request],
            queries => queries
                .iter()
                .map(|query| format!("{request}?{query}"))
                .collect(),
        }
    }
}

impl Verb {
    /// Returns the name of the method.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }

    /// Returns the methods that a route with it serves, as the header `Allow` lists them.
    fn allowed(self) -> &'static str {
        match self {
            Self::Get => "GET,HEAD",
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }

    /// Returns whether a route with it serves this method.
    pub(crate) fn serves(self, method: &Method) -> bool {
        self.allowed().split(',').any(|name| name == method)
    }

    fn filter(self) -> MethodFilter {
        match self {
            Self::Get => MethodFilter::GET,
            Self::Post => MethodFilter::POST,
            Self::Delete => MethodFilter::DELETE,
        }
    }
}

impl Operation {
    /// Returns the path of its route.
    pub(crate) fn path(self) -> Option<&'static str> {
        let route = ROUTES.iter().find(|route| route.operation == self);
        route.map(|route| route.path)
    }

    /// Returns the handler; `None` if requests are left to the fallback.
    fn handler(self, verb: Verb) -> Option<MethodRouter<Arc<HttpService>>> {
        let verb = verb.filter();
        Some(match self {
            Self::Symbolicate => on(verb, crashes::symbolicate),
            Self::Minidump => on(verb, crash_files::minidump),
            Self::AppleCrashReport => on(verb, crash_files::apple_crash_report),
            Self::SymbolicateAny => on(verb, crash_files::symbolicate_any),
            Self::SymbolicateJobs => on(verb, mozilla::symbolicate),
            Self::Attachments => on(verb, crash_files::attachments),
            Self::ContinueRequest => on(verb, continued::continue_request),
            Self::Uploads => on(verb, uploads::request_uploads),
            Self::Explain => on(verb, introspection::explain),
            Self::SymCache => on(verb, introspection::symcache),
            Self::Rollout => on(verb, introspection::rollout),
            Self::Wanted => on(verb, introspection::wanted),
            Self::IssueToken => on(verb, tokens::issue),
            Self::ListTokens => on(verb, tokens::list),
            Self::RevokeToken => on(verb, tokens::revoke),
            Self::About => on(verb, introspection::about),
            // Its query has no effect: load balancers add parameters to their checks.
            Self::HealthCheck => on(verb, || async { "ok" }),
            Self::MsSymCache => return None,
        })
    }
}

/// Returns the router of all routes.
pub(crate) fn router(service: Arc<HttpService>) -> Router {
    let routes = ROUTES.iter().fold(Router::new(), |router, route| {
        let Some(handler) = route.operation.handler(route.verb) else {
            return router;
        };
        let check = middleware::from_fn_with_state(route.operation, door::check);
        router.route(route.path, handler.layer(check))
    });
    routes
        .fallback(ms_symcache::serve)
        .method_not_allowed_fallback(no_such_method)
        .layer(middleware::from_fn(without_redirect_of_head))
        .with_state(service)
}

/// Answers `HEAD` with 200 where `GET` would redirect: the address is signed for `GET` alone, so a
/// client that followed the redirect would be refused.
async fn without_redirect_of_head(request: Request, next: Next) -> Response {
    let is_head = request.method() == Method::HEAD;
    let mut response = next.run(request).await;
    if is_head && response.headers_mut().remove(header::LOCATION).is_some() {
        *response.status_mut() = StatusCode::OK;
    }
    response
}

/// Returns the 404 for a path without a route.
pub(crate) fn no_such_route(uri: &Uri) -> Failure {
    let routes: Vec<String> = ROUTES.iter().flat_map(Route::examples).collect();
    Failure::new(
        StatusCode::NOT_FOUND,
        format!(
            "no such route: {}; the routes are {}",
            uri.path(),
            routes.join(", ")
        ),
    )
}

/// Returns the 405 for a method that a route does not support. The router adds the header `Allow`.
async fn no_such_method(method: Method, uri: Uri) -> Failure {
    let serves = "the header Allow lists the methods that it supports";
    Failure::new(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("{} does not support {method}: {serves}", uri.path()),
    )
}

/// Returns the 405 for a method that a route of the fallback does not support.
pub(crate) async fn no_such_method_of(verb: Verb, method: Method, uri: Uri) -> Response {
    let allow = HeaderValue::from_static(verb.allowed());
    let failure = no_such_method(method, uri).await;
    ([(header::ALLOW, allow)], failure).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use symdepot::api::about::ServiceInfo;

    use super::*;

    /// Returns the name in `GET /about` of what a client may not expect of every version.
    fn feature(operation: Operation) -> Option<&'static str> {
        match operation {
            Operation::Symbolicate
            | Operation::ContinueRequest
            | Operation::About
            | Operation::HealthCheck => None,
            Operation::Minidump => Some("minidump"),
            Operation::AppleCrashReport => Some("applecrashreport"),
            Operation::SymbolicateAny => Some("symbolicate_any"),
            Operation::SymbolicateJobs => Some("symbolicate_v5"),
            Operation::Attachments => Some("attachments"),
            Operation::Uploads => Some("uploads"),
            Operation::Explain => Some("explain"),
            Operation::SymCache => Some("symcache"),
            Operation::Rollout => Some("rollout"),
            Operation::Wanted => Some("wanted"),
            Operation::IssueToken | Operation::ListTokens | Operation::RevokeToken => {
                Some("tokens")
            }
            Operation::MsSymCache => Some("ms_symcache"),
        }
    }

    #[test]
    fn the_features_are_the_names_of_the_routes_and_of_what_responses_have() {
        let of_routes = ROUTES.iter().filter_map(|route| feature(route.operation));
        let of_responses = ["source_lines"];
        let expected: BTreeSet<&str> = of_routes.chain(of_responses).collect();
        let expected: Vec<&str> = expected.into_iter().collect();
        assert_eq!(ServiceInfo::FEATURES.to_vec(), expected);
    }
}
