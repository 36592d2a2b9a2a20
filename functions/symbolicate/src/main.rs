//! `symbolicate`: a request becomes a response.

mod handler;

use std::sync::Arc;

use lambda_http::service_fn;
use symdepot::runtime::{self, App};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_http::Error> {
    let router = handler::router(Arc::new(App::from_env().await?.symbolicator()));
    lambda_http::run(service_fn(|request: lambda_http::Request| {
        let invocation = runtime::invocation(&lambda_http::RequestExt::lambda_context(&request));
        handler::handle(router.clone(), invocation, request)
    }))
    .await
}
