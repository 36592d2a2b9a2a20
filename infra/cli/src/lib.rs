//! symdepot in the terminal: symbolicates any crash report, checks debug files, asks a service.
//!
//! Data goes to standard output, everything else to standard error. The exit codes are those of
//! [`Exit`]. The program is a client: of the crate, it uses the vocabulary, the wire formats and
//! the parsers of debug files, and nothing of the service. With the feature `serve`, it also
//! contains the local stack and the functions, which it runs as processes of their own.

mod arguments;
mod attachment;
mod body;
mod check;
mod client;
mod crash_file;
mod credentials;
mod doctor;
mod error;
mod explain;
mod files;
mod find;
mod fix;
mod generate;
mod given;
mod inspection;
mod lists;
mod maps;
mod progress;
mod redrive;
mod retry;
mod search;
#[cfg(feature = "serve")]
mod serve;
mod settings;
mod store;
mod symbolicate;
mod unsupported;
mod upload;
mod view;
mod visible;
mod waiting;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use crate::arguments::{Arguments, Command, ServiceArguments};
use crate::client::Client;
use crate::error::CliError;
use crate::settings::Settings;
use crate::visible::visible;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// Failed; the reason is on standard error.
    Failed = 1,
    /// The arguments are wrong.
    Usage = 2,
    /// Done, but frames have no names, or problems were found.
    Incomplete = 3,
    /// The service is still working on it.
    Pending = 4,
}

/// What a command prints to standard output, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Output {
    pub(crate) text: Vec<u8>,
    pub(crate) exit: Exit,
    /// Whether the text has colours, which are removed where they are not wanted. Other text is
    /// written as it is.
    pub(crate) is_styled: bool,
}

impl Output {
    pub(crate) fn done(text: impl Into<Vec<u8>>) -> Self {
        Self::ended(text, Exit::Done)
    }

    pub(crate) fn ended(text: impl Into<Vec<u8>>, exit: Exit) -> Self {
        Self {
            text: text.into(),
            exit,
            is_styled: false,
        }
    }
}

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    #[cfg(feature = "serve")]
    if let Some(role) = serve::roles::Role::of_process() {
        return role.run();
    }
    unforce_colours();
    let arguments = match Arguments::of_process() {
        Ok(arguments) => arguments,
        // The help and the version are errors, too.
        Err(text) => return ExitCode::from(printed(&text) as u8),
    };
    let exit = match run(arguments) {
        Ok(output) => match write(&output) {
            Ok(()) => output.exit,
            // The reader has seen enough, for example `head`.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => output.exit,
            Err(error) => failed(&CliError::Output(error)),
        },
        Err(error) => failed(&error),
    };
    ExitCode::from(exit as u8)
}

/// Turns colours off where `CLICOLOR_FORCE` is 0 and an output is no terminal: every value forces
/// them otherwise, and 0 is to force nothing (bixense.com/clicolors).
fn unforce_colours() {
    let is_zero = std::env::var_os("CLICOLOR_FORCE").is_some_and(|value| value == "0");
    let are_terminals = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
    if is_zero && !are_terminals {
        anstream::ColorChoice::Never.write_global();
    }
}

/// Prints what the parser of the arguments has to say, and returns how that ended.
fn printed(text: &clap::Error) -> Exit {
    let exit = match text.exit_code() {
        0 => Exit::Done,
        _ => Exit::Usage,
    };
    match text.print().and_then(|()| std::io::stdout().flush()) {
        Ok(()) => exit,
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => exit,
        Err(error) => failed(&CliError::Output(error)),
    }
}

fn write(output: &Output) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if output.is_styled {
        anstream::AutoStream::auto(out).write_all(&output.text)
    } else {
        out.write_all(&output.text).and_then(|()| out.flush())
    }
}

fn failed(error: &CliError) -> Exit {
    let red = anstyle::AnsiColor::Red.on_default().bold();
    // What a service or a file says may be hostile. The message itself may have several lines.
    let lines: Vec<String> = error.to_string().split('\n').map(visible).collect();
    anstream::eprintln!("{red}symdepot:{red:#} {}", lines.join("\n"));
    error.exit()
}

fn run(arguments: Arguments) -> Result<Output, CliError> {
    let Arguments { service, command } = arguments;
    match command {
        #[cfg(feature = "serve")]
        Command::Serve(command) => serve::run(&command),
        #[cfg(feature = "serve")]
        Command::Demo(command) => in_runtime(serve::demo(&command)),
        Command::Symbolicate(command) => run_with_service(&service, async |settings: &Settings| {
            symbolicate::run(settings, &command).await
        }),
        Command::Upload(command) => run_with_service(&service, async |settings: &Settings| {
            upload::run(settings, &command).await
        }),
        Command::Check(command) => check::run(&command),
        Command::Find(command) => find::run(&command),
        Command::Explain(command) => run_with_service(&service, async |settings: &Settings| {
            explain::run(settings, &command).await
        }),
        Command::Rollout(format) => run_with_service(&service, async |settings: &Settings| {
            lists::rollout(&Client::new(settings).await?, format).await
        }),
        Command::Wanted(format) => run_with_service(&service, async |settings: &Settings| {
            lists::wanted(&Client::new(settings).await?, settings, format).await
        }),
        Command::Redrive(command) => {
            let queue = settings::dead_letters_of_process(&service, command.queue.as_deref())?;
            in_runtime(redrive::run(queue, &command))
        }
        Command::Doctor => run_with_service(&service, async |settings: &Settings| {
            doctor::run(settings).await
        }),
        Command::Completions { shell } => Ok(generate::completions(shell)),
        Command::Man => generate::man(),
        Command::InspectFile(command) => inspection::run(&command.file, command.derive),
    }
}

/// Runs a command that asks a service, with the settings of this process.
fn run_with_service(
    service: &ServiceArguments,
    command: impl AsyncFnOnce(&Settings) -> Result<Output, CliError>,
) -> Result<Output, CliError> {
    let settings = Settings::of_process(service)?;
    in_runtime(command(&settings))
}

/// Runs a command that sends requests.
fn in_runtime(command: impl Future<Output = Result<Output, CliError>>) -> Result<Output, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(CliError::Runtime)?;
    runtime.block_on(command)
}
