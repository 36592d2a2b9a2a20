//! A service that fails to answer some requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use futures::stream;

/// How a request fails.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failing {
    /// The gateway answers: the function has ended, for example.
    With(StatusCode),
    /// The service itself answers.
    ByService(StatusCode),
    /// The service asks for a pause of a second.
    WithPause(StatusCode),
    /// The connection ends before the response does. What is stored needs no response, so such
    /// requests are refused.
    ByConnection,
}

impl Failing {
    fn response(self, method: &Method) -> Response {
        let message = r#"{"message":"Not Now"}"#;
        match self {
            Self::With(status) => (status, message).into_response(),
            Self::ByService(status) => (status, r#"{"detail":"Not Now"}"#).into_response(),
            Self::WithPause(status) => {
                let mut response = (status, message).into_response();
                let pause = HeaderValue::from_static("1");
                response.headers_mut().insert("retry-after", pause);
                response
            }
            Self::ByConnection if method == Method::PUT => {
                (StatusCode::SERVICE_UNAVAILABLE, message).into_response()
            }
            Self::ByConnection => {
                let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
                let chunks = [Ok("{"), Err(broken)];
                Body::from_stream(stream::iter(chunks)).into_response()
            }
        }
    }
}

/// Makes the requests to a service fail for whose numbers, from 1, `fails` is true.
pub(crate) fn if_numbered(
    router: Router,
    failing: Failing,
    fails: impl Fn(usize) -> bool + Clone + Send + Sync + 'static,
) -> Router {
    let received = Arc::new(AtomicUsize::new(0));
    router.layer(from_fn(move |request: Request, next: Next| {
        let number = received.fetch_add(1, Ordering::Relaxed) + 1;
        let fails = fails(number);
        async move {
            if fails {
                failing.response(request.method())
            } else {
                next.run(request).await
            }
        }
    }))
}
