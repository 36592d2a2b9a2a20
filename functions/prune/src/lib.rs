//! `prune`: removes unused data on a schedule. The library is for a program that contains several
//! functions.

mod handler;

use std::process::ExitCode;

use symdepot::runtime::{self, App, SourceUse};

/// Runs the function.
pub fn main() -> ExitCode {
    runtime::exit_code(serve())
}

#[tokio::main(flavor = "current_thread")]
async fn serve() -> Result<(), lambda_runtime::Error> {
    runtime::sandbox::hide();
    let app = App::from_env(SourceUse::Nothing).await?;
    let (pruner, reports) = (app.pruner(), app.reports());
    runtime::run(|invocation, event| handler::handle(&pruner, &reports, invocation, event)).await
}
