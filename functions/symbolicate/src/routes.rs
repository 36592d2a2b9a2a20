//! The routes: one table, from which the router and the text of the 404 are made.

use std::sync::Arc;

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::routing::{MethodRouter, get, post};
use symdepot::flows::symbolicate::Symbolicator;

use crate::failure::Failure;
use crate::{crash_files, handler, ms_symcache, uploads};

/// A route.
struct Route {
    path: &'static str,
    /// Requests to it, as a user writes them.
    examples: &'static [&'static str],
    method: fn() -> MethodRouter<Arc<Symbolicator>>,
}

const ROUTES: [Route; 13] = [
    Route {
        path: "/symbolicate",
        examples: &["POST /symbolicate"],
        method: || post(handler::symbolicate),
    },
    Route {
        path: "/minidump",
        examples: &["POST /minidump"],
        method: || post(crash_files::minidump),
    },
    Route {
        path: "/applecrashreport",
        examples: &["POST /applecrashreport"],
        method: || post(crash_files::apple_crash_report),
    },
    Route {
        path: "/symbolicate-any",
        examples: &["POST /symbolicate-any"],
        method: || post(crash_files::symbolicate_any),
    },
    Route {
        path: "/attachments",
        examples: &["POST /attachments"],
        method: || post(crash_files::attachments),
    },
    Route {
        path: "/requests/{id}",
        examples: &["GET /requests/{id}"],
        method: || get(handler::continue_request),
    },
    Route {
        path: "/uploads",
        examples: &["POST /uploads"],
        method: || post(uploads::request_uploads),
    },
    Route {
        path: "/explain",
        examples: &["GET /explain?key=…", "GET /explain?debug_id=…"],
        method: || get(handler::explain),
    },
    Route {
        path: "/symcache",
        examples: &["GET /symcache?debug_id=…"],
        method: || get(handler::symcache),
    },
    Route {
        path: "/rollout",
        examples: &["GET /rollout"],
        method: || get(handler::rollout),
    },
    Route {
        path: "/wanted",
        examples: &["GET /wanted"],
        method: || get(handler::wanted),
    },
    Route {
        path: "/about",
        examples: &["GET /about"],
        method: || get(handler::about),
    },
    Route {
        path: "/healthcheck",
        examples: &["GET /healthcheck"],
        method: || get(|| async { "ok" }),
    },
];

/// A request of Microsoft's protocol. Its paths differ from each other only in their shape, so
/// they are served by the fallback.
const MS_SYMCACHE: &str = "GET /v3.1.0/{pdb}/{id}/{age}";

/// Returns the router of all routes.
pub(crate) fn router(symbolicator: Arc<Symbolicator>) -> Router {
    let routes = ROUTES.iter().fold(Router::new(), |router, route| {
        router.route(route.path, (route.method)())
    });
    routes
        .fallback(ms_symcache::serve)
        .method_not_allowed_fallback(no_such_method)
        .with_state(symbolicator)
}

/// Returns the 404 for a path without a route.
pub(crate) fn no_such_route(uri: &Uri) -> Failure {
    let routes = ROUTES.iter().flat_map(|route| route.examples).copied();
    let routes: Vec<&str> = routes.chain([MS_SYMCACHE]).collect();
    Failure::new(
        StatusCode::NOT_FOUND,
        format!(
            "no such route: {}; the routes are {}",
            uri.path(),
            routes.join(", ")
        ),
    )
}

/// Returns the 405 for a method that a route does not support.
pub(crate) async fn no_such_method(method: Method, uri: Uri) -> Failure {
    Failure::new(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("{} does not support {method}", uri.path()),
    )
}
