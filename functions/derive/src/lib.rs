//! `derive`: builds derived caches from uploads and from the files of symbol servers.
//!
//! The same program also runs as two kinds of child processes: the parser of DIFs, see
//! [`symdepot::runtime::parser`], and the supervisor of third-party transcoders. The library is for
//! a program that contains several functions.

mod events;
mod handler;

use std::process::ExitCode;

use symdepot::runtime::{self, App, SourceUse};

/// The first arguments of the program's child processes.
pub const CHILDREN: [&str; 2] = [runtime::parser::COMMAND, runtime::transcoder::COMMAND];

/// Runs the function, or a child process of it, with the arguments of this process.
pub fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next() {
        Some(first) if first == runtime::parser::COMMAND => {
            return runtime::parser::main(arguments);
        }
        Some(first) if first == runtime::transcoder::COMMAND => {
            return runtime::transcoder::main(arguments);
        }
        _ => {}
    }
    runtime::exit_code(serve())
}

#[tokio::main(flavor = "current_thread")]
async fn serve() -> Result<(), lambda_runtime::Error> {
    runtime::sandbox::hide();
    let app = App::from_env(SourceUse::Contents).await?;
    app.check_sandbox()?;
    app.connect().await;
    let (builder, reports) = (app.builder(std::env::current_exe()?), app.reports());
    runtime::run(|invocation, event| handler::handle(&builder, &reports, invocation, event)).await
}
