//! `symbolicate`: a request becomes a response.

mod handler;

use std::sync::Arc;

use lambda_http::lambda_runtime::Diagnostic;
use lambda_http::service_fn;
use symdepot::runtime::{self, App, SourceUse};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_http::Error> {
    let app = App::from_env(SourceUse::Locations).await?;
    let router = handler::router(Arc::new(app.symbolicator()));
    lambda_http::run(service_fn(|request: lambda_http::Request| {
        let invocation = runtime::invocation(&lambda_http::RequestExt::lambda_context(&request));
        let router = router.clone();
        async { Ok::<_, Diagnostic>(handler::handle(router, invocation?, request).await) }
    }))
    .await
}
