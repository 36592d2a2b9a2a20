//! `serve`: the whole service on this machine, from this one program.
//!
//! The program contains the local stack, its template and all functions. The stack starts each
//! function through a link of its name to this program ([`roles`]).

mod demo;
pub(crate) mod roles;

use std::io::Write;
use std::path::PathBuf;

use local_stack::program;
use local_stack::stack::{Addresses, Options};

pub(crate) use self::demo::run as demo;
use crate::Output;
use crate::arguments::ServeArguments;
use crate::error::CliError;

/// The template of the service.
const TEMPLATE: &str = include_str!("../../../template.yaml");

/// The name of the stack, from which the names of its buckets are made: that of `make run`.
const STACK_NAME: &str = "symdepot";

/// The level of the log, of the stack and of the functions, unless the variable is set.
const LOG: &str = "LOG";
const LOG_LEVEL: &str = "warn";

/// Serves until a signal ends it.
pub(crate) fn run(arguments: &ServeArguments) -> Result<Output, CliError> {
    program::report_events(LOG_LEVEL);
    let this = std::env::current_exe();
    let this = this.map_err(|error| CliError::Serve(format!("this program: {error}")))?;
    let functions = PathBuf::new();
    let mut options = Options::new("template.yaml", functions, &arguments.data);
    options.template_text = Some(TEMPLATE);
    options.stack_name = STACK_NAME.to_owned();
    options.program = Some(this.clone());
    options.watchdog = Some(this);
    options.port = arguments.port;
    options.inherited = program::variables();
    let level = options.inherited.entry(LOG.to_owned());
    level.or_insert_with(|| LOG_LEVEL.to_owned());
    program::run(options, |running| announce(running.addresses())).map_err(CliError::Serve)?;
    Ok(Output::done(""))
}

/// Prints where the service is, and what to do with it. It serves even if nothing reads that.
fn announce(addresses: &Addresses) {
    let (bold, dim) = (anstyle::Style::new().bold(), anstyle::Style::new().dimmed());
    let Addresses { gateway, data, .. } = addresses;
    let data = data.display();
    let text = format!(
        "{bold}symdepot serves at {gateway}{bold:#}\n  \
         {dim}Ctrl-C stops it; its data stays in {data}{dim:#}\n  \
         {dim}in another terminal, in this folder: symdepot demo{dim:#}\n"
    );
    let mut out = anstream::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
