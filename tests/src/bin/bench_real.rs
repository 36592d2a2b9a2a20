//! Compares the service on real debug files with `eu-addr2line` and with plain `symbolic`.

use std::path::PathBuf;
use std::process::ExitCode;

use anstyle::AnsiColor;
use clap::{Parser, Subcommand};
use symdepot_tests::bench_real::{self, Arguments, BenchError, plain};

/// Compares the service on Debian's libc and ceph-osd with eu-addr2line and plain symbolic
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct CommandLine {
    #[command(flatten)]
    arguments: Arguments,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Derives the caches of a file with plain symbolic, and prints the measurements; started by
    /// this program
    #[command(hide = true)]
    Plain {
        /// The file
        file: PathBuf,
    },
    /// Does the same work as the parser process in one thread, and prints the measurements; started
    /// by this program
    #[command(hide = true)]
    InTurn {
        /// The file
        file: PathBuf,
    },
}

fn main() -> ExitCode {
    let CommandLine { arguments, command } = CommandLine::parse();
    let done = match command {
        Some(Command::Plain { file }) => plain::derive(&file).and_then(tell),
        Some(Command::InTurn { file }) => plain::derive_in_turn(&file).and_then(tell),
        None => measure(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let red = AnsiColor::Red.on_default().bold();
            anstream::eprintln!("{red}bench_real:{red:#} {error}");
            ExitCode::FAILURE
        }
    }
}

fn tell(work: plain::Work) -> Result<(), BenchError> {
    let json = serde_json::to_string(&work).map_err(|error| BenchError::Answer {
        what: "the measurements",
        found: error.to_string(),
    })?;
    anstream::println!("{json}");
    Ok(())
}

fn measure(arguments: &Arguments) -> Result<(), BenchError> {
    let failed = |source| BenchError::Tool {
        tool: "this program".to_owned(),
        source,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(failed)?;
    let report = runtime.block_on(bench_real::run(arguments))?;
    report.print();
    if let Some(path) = &arguments.markdown {
        std::fs::write(path, report.markdown()).map_err(|source| BenchError::File {
            path: path.clone(),
            source,
        })?;
    }
    match report.wrong() {
        [] => Ok(()),
        wrong => Err(BenchError::Wrong(wrong.to_vec())),
    }
}
