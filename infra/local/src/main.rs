//! Runs the local stack until a signal stops it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use clap::{Parser, Subcommand};
use local_stack::functions::ledger::watch_over;
use local_stack::guard::HostName;
use local_stack::identity;
use local_stack::latency::Latency;
use local_stack::program;
use local_stack::stack::machine::Division;
use local_stack::stack::{Addresses, Options};

/// A local AWS stack: the services that a SAM template uses, in one process
#[derive(Debug, Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
struct Arguments {
    /// The SAM template
    #[arg(long, default_value = "infra/template.yaml")]
    template: PathBuf,
    /// The name of the stack, which a template may use in the names of its buckets: with another
    /// name, the stack does not find the objects that its data folder has (default: the name of the
    /// template's file without its extension)
    #[arg(long, value_name = "NAME")]
    stack_name: Option<String>,
    /// Sets a parameter of the template (repeatable)
    #[arg(long = "parameter", value_name = "NAME=VALUE", value_parser = assignment)]
    parameters: Vec<(String, String)>,
    /// The folder that holds the functions' binaries
    #[arg(long, required = true)]
    functions: Option<PathBuf>,
    /// The gateway's port; S3, DynamoDB and SQS use the three ports after it; 0 takes any free
    /// ports
    #[arg(long, env = "PORT", default_value_t = 3021)]
    port: u16,
    /// The data folder, accessible only to this user
    #[arg(long, env = "DATA", default_value = ".data")]
    data: PathBuf,
    /// Another host name under which the stack answers, for example that of a tunnel or a proxy
    /// (repeatable; separated by commas in the variable). Requests for names other than these,
    /// 127.0.0.1, localhost and [::1] are refused
    #[arg(long, env = "HOST_NAME", value_name = "NAME", value_delimiter = ',')]
    host_name: Vec<HostName>,
    /// Sets an environment variable of all functions, overriding the template (repeatable)
    #[arg(long = "override", value_name = "NAME=VALUE", value_parser = assignment)]
    overrides: Vec<(String, String)>,
    /// Sets the timeout of a function in seconds, overriding the template (repeatable)
    #[arg(long = "override-timeout", value_name = "FUNCTION=SECONDS", value_parser = timeout)]
    timeouts: Vec<(String, Duration)>,
    /// The maximum number of processes of a function that has no reserved concurrency
    #[arg(long, value_name = "PROCESSES")]
    concurrency: Option<usize>,
    /// The latency of the services towards the functions, in milliseconds: aws, or a list such as
    /// dynamodb=5,s3=15,sqs=8 (which is what aws means); a service that is not listed has no added
    /// latency
    #[arg(long, env = "LATENCY", value_name = "LIST")]
    latency: Option<Latency>,
    /// The maximum number of queue events that one function processes at the same time (default:
    /// two for each core, or fewer if memory does not suffice)
    #[arg(long, value_name = "EVENTS")]
    event_concurrency: Option<usize>,
    /// How many invocations of all functions may run at the same time, as in an account (a new one
    /// has 10); further requests are refused (default: no limit)
    #[arg(long, env = "ACCOUNT_CONCURRENCY", value_name = "RUNS")]
    account_concurrency: Option<usize>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Ends the function processes of a stack that has died; started by the stack itself
    #[command(hide = true)]
    Watchdog {
        /// The folder of the stack's run
        folder: PathBuf,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(Command::Watchdog { folder }) = arguments.command {
        watch_over(&folder, std::io::stdin().lock());
        return ExitCode::SUCCESS;
    }
    match program::init_logging("info").and_then(|()| run(arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn run(arguments: Arguments) -> Result<(), String> {
    let mut options = Options::new(
        arguments.template,
        arguments.functions.unwrap_or_default(),
        arguments.data,
    );
    options.stack_name = arguments.stack_name.unwrap_or(options.stack_name);
    options.parameters = arguments.parameters.into_iter().collect();
    options.port = arguments.port;
    options.inherited = program::variables();
    options.environment = arguments.overrides.into_iter().collect();
    options.timeouts = arguments.timeouts.into_iter().collect::<BTreeMap<_, _>>();
    options.concurrency = arguments.concurrency.unwrap_or(options.concurrency);
    options.event_concurrency = arguments.event_concurrency.map(|events| events.max(1));
    options.account_concurrency = arguments.account_concurrency;
    options.host_names = arguments.host_name;
    options.latency = arguments.latency.unwrap_or_default();
    let latency = options.latency;
    options.watchdog = Some(
        std::env::current_exe()
            .map_err(|error| format!("cannot find the path of this binary: {error}"))?,
    );
    program::run(options, |running| {
        announce(running.addresses(), running.division(), latency);
    })
}

/// Prints the addresses and how to use them.
fn announce(addresses: &Addresses, division: &Division, latency: Latency) {
    let title = Style::new().bold();
    let address = AnsiColor::Cyan.on_default();
    let dim = Style::new().dimmed();
    let keys = identity::LOCAL;
    anstream::println!(
        "{title}The local stack is ready.{title:#} {dim}Ctrl-C stops it; its data stays in {}{dim:#}",
        addresses.data.display()
    );
    for (name, url) in [
        ("HTTP API", &addresses.gateway),
        ("S3", &addresses.s3),
        ("DynamoDB", &addresses.dynamodb),
        ("SQS", &addresses.sqs),
    ] {
        anstream::println!("  {name:<9} {address}{url}{address:#}");
    }
    if !latency.is_none() {
        anstream::println!("  {dim}latency towards the functions, in ms: {latency}{dim:#}");
    }
    anstream::println!("  {dim}{division}{dim:#}");
    for (id, bucket) in &addresses.buckets {
        anstream::println!("  {dim}{id:<14} s3://{bucket}{dim:#}");
    }
    anstream::println!(
        "  {dim}AWS_ACCESS_KEY_ID={} AWS_SECRET_ACCESS_KEY={} AWS_REGION={} aws --endpoint-url {} s3 ls{dim:#}",
        keys.access_key_id,
        keys.secret_access_key,
        identity::REGION,
        addresses.s3
    );
    anstream::println!("  {dim}curl {}/_local/stats{dim:#}", addresses.gateway);
    anstream::println!(
        "  {dim}logs of the functions: {}/*.log; LOG=debug shows them here{dim:#}",
        addresses.data.join("logs").display()
    );
}

fn failed(message: &str) -> ExitCode {
    let error = AnsiColor::Red.on_default().bold();
    anstream::eprintln!("{error}local-stack:{error:#} {message}");
    ExitCode::FAILURE
}

fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

fn timeout(text: &str) -> Result<(String, Duration), String> {
    let (name, seconds) = assignment(text).map_err(|_| "expected FUNCTION=SECONDS".to_owned())?;
    let seconds: f64 = seconds
        .parse()
        .map_err(|_| format!("{seconds:?} is not a number of seconds"))?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(timeout) if !timeout.is_zero() => Ok((name, timeout)),
        _ => Err("a timeout must be longer than 0 seconds".to_owned()),
    }
}
