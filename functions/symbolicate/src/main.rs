//! `symbolicate`: a request becomes a response.
//!
//! The same program makes names readable that could harm it, as a child process of its own: see
//! [`symdepot::runtime::demangler`].

mod handler;

use std::process::ExitCode;
use std::sync::Arc;

use lambda_http::service_fn;
use symdepot::runtime::{self, App};

fn main() -> ExitCode {
    if std::env::args_os().nth(1).as_deref() == Some(runtime::demangler::COMMAND.as_ref()) {
        return runtime::demangler::main();
    }
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn serve() -> Result<(), lambda_http::Error> {
    runtime::sandbox::hide()?;
    let symbolicator = App::from_env()
        .await?
        .symbolicator(std::env::current_exe()?);
    let router = handler::router(Arc::new(symbolicator));
    lambda_http::run(service_fn(|request: lambda_http::Request| {
        let invocation = runtime::invocation(&lambda_http::RequestExt::lambda_context(&request));
        handler::handle(router.clone(), invocation, request)
    }))
    .await
}
