//! `derive`: an upload becomes derived caches.
//!
//! The same program parses DIFs, as a child process of its own: see [`symdepot::runtime::parser`].

mod events;
mod handler;

use std::process::ExitCode;

use symdepot::runtime::{self, App};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if arguments
        .next()
        .is_some_and(|first| first == runtime::parser::COMMAND)
    {
        return runtime::parser::main(arguments);
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
async fn serve() -> Result<(), lambda_runtime::Error> {
    let builder = App::from_env().await?.builder(std::env::current_exe()?);
    runtime::run(|invocation, event| handler::handle(&builder, invocation, event)).await
}
