//! The arguments of the program.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
#[cfg(feature = "serve")]
use local_stack::guard::HostName;

use crate::given::ModuleArgument;

const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed; 2 wrong arguments; 3 done, but frames have no names or problems were found; 4 the service is still working on it";

/// The folder of the data of a stack, unless one is named.
#[cfg(feature = "serve")]
pub(crate) const DATA: &str = ".data";

/// Symbolicates crash reports of any format, checks debug files, and explains what a service has
#[derive(Debug, Parser)]
#[command(name = "symdepot", version, after_help = EXIT_CODES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) service: ServiceArguments,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Arguments {
    /// Returns the arguments of this process. An empty variable is as if it was not set.
    pub(crate) fn of_process() -> Result<Self, clap::Error> {
        let command = without_empty_variables(Self::program());
        let mut matches = command.try_get_matches().map_err(without_hidden)?;
        refuse_service(&matches)?;
        let arguments = Self::from_arg_matches_mut(&mut matches);
        arguments.map_err(|error| error.format(&mut Self::command()))
    }

    /// Returns the program with its commands. Those that ask no service do not show the options
    /// that say which one.
    pub(crate) fn program() -> clap::Command {
        let mut program = Self::command();
        // This passes the global options on to the commands.
        program.build();
        for name in WITHOUT_SERVICE {
            if program.find_subcommand(name).is_some() {
                program = program.mut_subcommand(name, |command| {
                    command.mut_args(|arg| {
                        let names_service = SERVICE_OPTIONS.contains(&arg.get_id().as_str());
                        if names_service { arg.hide(true) } else { arg }
                    })
                });
            }
        }
        program
    }
}

/// The commands that have the service themselves, or find it in its data folder.
const WITHOUT_SERVICE: [&str; 2] = ["serve", "demo"];

/// The options that say which service to ask ([`ServiceArguments`]).
const SERVICE_OPTIONS: [&str; 3] = ["url", "scope", "profile"];

/// Refuses the options that say which service to ask if the command has the service itself, or
/// finds it in its data folder. Variables are no error: they are there for the other commands.
fn refuse_service(matches: &ArgMatches) -> Result<(), clap::Error> {
    let Some((command, matches)) = matches.subcommand() else {
        return Ok(());
    };
    let instead = match command {
        "serve" => "it runs a service, with the data in --data FOLDER",
        "demo" => "it uses the service of a data folder, which `demo --data FOLDER` names",
        _ => return Ok(()),
    };
    let is_typed = |option: &&&str| matches.value_source(option) == Some(ValueSource::CommandLine);
    match SERVICE_OPTIONS.iter().find(is_typed) {
        None => Ok(()),
        Some(option) => {
            let text = format!("`symdepot {command}` has no --{option}: {instead}");
            let mut program = Arguments::program();
            let refused = program.find_subcommand_mut(command);
            let error = |of: &mut clap::Command| of.error(ErrorKind::ArgumentConflict, &text);
            Err(refused.map_or_else(|| error(&mut Arguments::program()), error))
        }
    }
}

/// Returns a command whose options are not set by empty variables.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let without_empty = |arg: Arg| {
        let value = arg.get_env().and_then(std::env::var_os);
        if value.is_some_and(|value| value.is_empty()) {
            arg.env(None::<&'static str>)
        } else {
            arg
        }
    };
    let command = command.mut_args(without_empty);
    command.mut_subcommands(without_empty_variables)
}

/// Removes the hidden commands from the list of commands in an error.
fn without_hidden(mut error: clap::Error) -> clap::Error {
    let list = ContextKind::ValidSubcommand;
    if let Some(ContextValue::Strings(names)) = error.get(list) {
        let program = Arguments::command();
        let is_shown = |name: &&String| {
            let command = program.find_subcommand(name.as_str());
            !command.is_some_and(clap::Command::is_hide_set)
        };
        let shown = names.iter().filter(is_shown).cloned().collect();
        error.insert(list, ContextValue::Strings(shown));
    }
    error
}

/// Which service to ask.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ServiceArguments {
    /// The address of the service. Requests to addresses of API Gateway are signed
    #[arg(long, global = true, env = "SYMDEPOT_URL", hide_env_values = true)]
    pub(crate) url: Option<String>,
    /// Whose uploads to read, before the global ones
    #[arg(long, global = true, env = "SYMDEPOT_SCOPE", hide_env_values = true)]
    pub(crate) scope: Option<String>,
    /// The profile in config.toml that has the address, the scope and the token
    #[arg(long, global = true, env = "SYMDEPOT_PROFILE", hide_env_values = true)]
    pub(crate) profile: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs the whole service on this machine, until Ctrl-C
    #[cfg(feature = "serve")]
    Serve(ServeArguments),
    /// Symbolicates a first crash, of a sample program, with the service that runs in this folder
    #[cfg(feature = "serve")]
    Demo(DemoArguments),
    /// Symbolicates a crash report or a minidump: its format is recognised
    Symbolicate(SymbolicateArguments),
    /// Sends debug files that the service does not have
    Upload(UploadArguments),
    /// Shows the ids, contents and problems of debug files, as the service reads them
    Check(CheckArguments),
    /// Prints the paths of the files that have an id
    Find(FindArguments),
    /// Explains what the service knows about a module or an upload
    Explain(ExplainArguments),
    /// Shows how far the current converter is rolled out
    Rollout(ListFormat),
    /// Lists the PDBs that clients wanted and the service cannot convert
    Wanted(ListFormat),
    /// Shows the messages that failed too often, and moves them back to their queues
    Redrive(RedriveArguments),
    /// Checks the settings, the connection, the clock and the permissions
    Doctor,
    /// Prints the completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Prints the manual page
    Man,
    /// Inspects one file in this process, which `check` starts under limits
    #[command(hide = true)]
    InspectFile(InspectFileArguments),
}

#[cfg(feature = "serve")]
#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// The port of the service; those of its stores are the three after it; 0 takes any free ports
    #[arg(long, default_value_t = 3021)]
    pub(crate) port: u16,
    /// The folder with all its data, accessible only to this user
    #[arg(long, default_value = DATA)]
    pub(crate) data: PathBuf,
    /// Another host name under which the service answers, for example that of a tunnel or a proxy
    /// (repeatable; separated by commas in the variable). Requests for other names are refused,
    /// except those of the loopback interface
    #[arg(
        long,
        env = "HOST_NAME",
        hide_env_values = true,
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub(crate) host_name: Vec<HostName>,
}

#[cfg(feature = "serve")]
#[derive(Debug, Args)]
pub(crate) struct DemoArguments {
    /// The data folder of the service
    #[arg(long, default_value = DATA)]
    pub(crate) data: PathBuf,
}

/// How to print the result of `symbolicate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Human,
    /// The report with names in its frames; everything else byte for byte. Of files that are not
    /// text, the same as human, without colours
    Text,
    /// Tables in Markdown
    Markdown,
    /// For programs
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct SymbolicateArguments {
    /// The report or minidump; `-` for standard input
    pub(crate) file: PathBuf,
    /// How to print the result
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    pub(crate) json: bool,
    /// What the report does not say about a module: its build id or debug id, and its load address
    /// (repeatable)
    #[arg(long = "module", value_name = "NAME=ID[@BASE]")]
    pub(crate) modules: Vec<ModuleArgument>,
    /// Uploads the files under this folder that modules lack, and asks again
    #[arg(long, value_name = "DIR")]
    pub(crate) fix: Option<PathBuf>,
    /// Do not read the modules of the report on this machine for ids that the report lacks
    #[arg(long)]
    pub(crate) no_local: bool,
    /// How long to wait for the service, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub(crate) wait: u64,
}

impl SymbolicateArguments {
    pub(crate) fn format(&self) -> Format {
        if self.json { Format::Json } else { self.format }
    }
}

/// What a file must have to pass `check`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Requirement {
    /// Functions with lines
    Debug,
    /// Unwind information
    Unwind,
    /// Source files
    Sources,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    /// Files, and folders to search for debug files
    #[arg(required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// What every object must have (separated by commas)
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) require: Vec<Requirement>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UploadArguments {
    /// Files, and folders to search for debug files
    #[arg(required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// Show what would be sent, and why every other file would not; send nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Wait until requests use the files, or until it is clear that none will, for at most SECONDS
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        conflicts_with = "dry_run"
    )]
    pub(crate) wait: Option<Option<u64>>,
    /// How long --wait without a number waits, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(crate) wait_seconds: u64,
    /// List the skipped files
    #[arg(long)]
    pub(crate) verbose: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FindArguments {
    /// Debug ids or code ids, and the files and folders to search (default: this folder)
    #[arg(required = true, value_name = "ID|PATH")]
    pub(crate) values: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArguments {
    /// A debug id, a code id, or the key of an upload, which begins with its scope
    #[arg(value_name = "ID|KEY")]
    pub(crate) subject: String,
    #[command(flatten)]
    pub(crate) format: ListFormat,
    #[command(flatten)]
    pub(crate) module: ModuleNames,
}

/// What symbol servers know a module by, besides the id that it is explained by.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "What symbol servers know a module by, as a crash names it")]
pub(crate) struct ModuleNames {
    /// Its type
    #[arg(long = "type", value_name = "TYPE", value_parser = ["elf", "macho", "pe", "pe_dotnet", "wasm"])]
    pub(crate) object_type: Option<String>,
    /// Its code id, if ID is its debug id
    #[arg(long, value_name = "ID")]
    pub(crate) code_id: Option<String>,
    /// The name or path of the program or library
    #[arg(long, value_name = "NAME")]
    pub(crate) code_file: Option<String>,
    /// The name or path of its debug file
    #[arg(long, value_name = "NAME")]
    pub(crate) debug_file: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RedriveArguments {
    /// Show the messages, and move none
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The address of the queue: the output DeadLetters of the stack
    #[arg(
        long,
        value_name = "URL",
        env = "SYMDEPOT_DEAD_LETTERS",
        hide_env_values = true
    )]
    pub(crate) queue: Option<String>,
    #[command(flatten)]
    pub(crate) format: ListFormat,
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct ListFormat {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InspectFileArguments {
    pub(crate) file: PathBuf,
    /// Also derives the caches of each object
    #[arg(long)]
    pub(crate) derive: bool,
}
