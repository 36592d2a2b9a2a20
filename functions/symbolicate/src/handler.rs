//! Serves a request, from the event of the gateway to the reply: it is let in (`door.rs`), the
//! router chooses the function of its route (`routes.rs`), and the log and the trace say what
//! became of it. Preflights of web pages are answered before that (`web_pages.rs`).

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use lambda_http::lambda_runtime::Diagnostic;
use symdepot::api::caller::Caller;
use symdepot::flows::{HttpService, Invocation};
use symdepot::runtime::Traces;
use tower::ServiceExt;
use tracing::Instrument;

use crate::reply::Reply;
use crate::summary::{self, RequestFacts};
use crate::web_pages::RequestOfPage;
use crate::{door, path, routes};

/// The service, with its routes.
pub(crate) struct RoutedService {
    service: Arc<HttpService>,
    router: Router,
}

impl RoutedService {
    pub(crate) fn new(service: HttpService) -> Self {
        let service = Arc::new(service);
        Self {
            router: routes::router(Arc::clone(&service)),
            service,
        }
    }
}

/// A handler panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Panicked;

impl From<Panicked> for Diagnostic {
    /// Does not repeat the message of the panic, which may quote a file.
    fn from(Panicked: Panicked) -> Self {
        Self {
            error_type: "Panic".to_owned(),
            error_message: "the handler panicked; the log says where (`panicked`)".to_owned(),
        }
    }
}

/// Serves one request, in a span with the invocation's id.
///
/// # Errors
///
/// [`Panicked`]: the invocation is an error, so that alarms and deployments see it. The gateway
/// responds with 500.
pub(crate) async fn handle(
    service: &RoutedService,
    traces: &Traces,
    invocation: Invocation,
    mut request: lambda_http::Request,
) -> Result<Reply, Panicked> {
    path::restore(&mut request);
    let received = RequestFacts::of(&request);
    let span = tracing::info_span!("invocation", request_id = invocation.request_id());
    let traceparent = request.headers().get("traceparent");
    traces.begin_request(&invocation, traceparent.and_then(|text| text.to_str().ok()));
    let invocation = Arc::new(invocation);
    // A panic leaves the state of this instance as a request does that was dropped.
    let served = AssertUnwindSafe(service.serve(&invocation, request)).catch_unwind();
    let served = served.instrument(span.clone()).await;
    let (caller, response, has_panicked) = match served {
        Ok(Served::Answered(caller, response)) => (Some(caller), response, false),
        Ok(Served::Outside(response)) => {
            // It is not traced.
            invocation.discard_trace();
            (None, response, false)
        }
        Err(_) => {
            let response = StatusCode::INTERNAL_SERVER_ERROR.into_response();
            (None, response, true)
        }
    };
    let (reply, sent) = Reply::of(response).await;
    let caller = caller.as_deref().and_then(Caller::name);
    let summary = summary::summary(received, caller, sent, &invocation);
    span.in_scope(|| summary.log());
    traces.end(&invocation, || summary.span());
    traces.flush(&invocation).instrument(span).await;
    if has_panicked {
        Err(Panicked)
    } else {
        Ok(reply)
    }
}

/// What became of a request.
enum Served {
    /// Its caller was let in, and this is the response.
    Answered(Arc<Caller>, Response),
    /// No caller was let in: the request has no valid credential, or needs none.
    Outside(Response),
}

impl RoutedService {
    async fn serve(&self, invocation: &Arc<Invocation>, request: lambda_http::Request) -> Served {
        let Some(of_page) = RequestOfPage::of(&request) else {
            return self.serve_admitted(invocation, request).await;
        };
        if let Some(response) = of_page.preflight() {
            return Served::Outside(response);
        }
        let mut served = self.serve_admitted(invocation, request).await;
        let (Served::Answered(_, response) | Served::Outside(response)) = &mut served;
        of_page.let_read(response.headers_mut());
        served
    }

    /// Serves a request if its caller is let in.
    async fn serve_admitted(
        &self,
        invocation: &Arc<Invocation>,
        mut request: lambda_http::Request,
    ) -> Served {
        let caller = match door::admit(&self.service, invocation, &mut request).await {
            Ok(caller) => caller,
            Err(refused) => return Served::Outside(refused),
        };
        let mut request = request.map(|body| match body {
            lambda_http::Body::Text(text) => Body::from(text),
            lambda_http::Body::Binary(bytes) => Body::from(bytes),
            _ => Body::empty(),
        });
        let extensions = request.extensions_mut();
        extensions.insert(Arc::clone(invocation));
        extensions.insert(Arc::clone(&caller));
        match self.router.clone().oneshot(request).await {
            Ok(response) => Served::Answered(caller, response),
            Err(never) => match never {},
        }
    }
}
