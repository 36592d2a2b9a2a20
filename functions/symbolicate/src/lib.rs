//! `symbolicate`: serves requests over HTTP.
//!
//! The same program also runs as a child process that demangles names which could crash it, see
//! [`symdepot::runtime::demangler`]. The library is for a program that contains several functions.

mod answer;
mod continued;
mod crash_files;
mod crashes;
mod deadline;
mod door;
mod extract;
mod failure;
mod form;
mod handler;
mod introspection;
mod mozilla;
mod ms_symcache;
#[cfg(feature = "openapi")]
pub mod openapi;
mod operation;
mod path;
mod reply;
mod routes;
mod summary;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod tokens;
mod uploads;
mod web_pages;

#[cfg(any(test, feature = "testing"))]
pub use form::hostile;

use std::process::ExitCode;

use lambda_http::lambda_runtime::{Diagnostic, LambdaEvent};
use lambda_http::request::LambdaRequest;
use lambda_http::service_fn;
use symdepot::runtime::{self, App, SourceUse};

use self::handler::RoutedService;

/// The first argument of the program's child processes.
pub const CHILDREN: [&str; 1] = [runtime::demangler::COMMAND];

/// Runs the function, or a child process of it, with the arguments of this process.
pub fn main() -> ExitCode {
    if std::env::args_os().nth(1).as_deref() == Some(runtime::demangler::COMMAND.as_ref()) {
        return runtime::demangler::main();
    }
    runtime::exit_code(serve())
}

#[tokio::main(flavor = "current_thread")]
async fn serve() -> Result<(), lambda_http::Error> {
    runtime::sandbox::hide();
    let app = App::from_env(SourceUse::Locations).await?;
    runtime::log_places_of_panics();
    app.connect().await;
    let service = app.http_service(std::env::current_exe()?);
    let (service, traces) = (&RoutedService::new(service), &app.traces());
    lambda_http::lambda_runtime::run(service_fn(|event: LambdaEvent<LambdaRequest>| {
        let invocation = runtime::invocation(&event.context);
        let request = event.payload.into();
        async {
            let reply = handler::handle(service, traces, invocation?, request).await;
            reply.map_err(Diagnostic::from)
        }
    }))
    .await
}
