//! Parses thousands of hostile files, and prints the results.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use symdepot_tests::hostile;
use symdepot_tests::stack::Binaries;

/// Parses thousands of hostile files as derive parses uploads, and prints the results
#[derive(Debug, Parser)]
struct Arguments {
    /// The number of files.
    #[arg(long, default_value_t = 10_000)]
    files: usize,
    /// The random seed.
    #[arg(long, env = "SYMDEPOT_HOSTILE_SEED", default_value_t = 1)]
    seed: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { files, seed } = Arguments::parse();
    let binaries = match Binaries::from_env() {
        Ok(binaries) => binaries,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let is_seen = std::io::stderr().is_terminal();
    let progress = |done: usize| {
        if is_seen && done.is_multiple_of(100) {
            eprint!("\r{done} of {files} files ");
            let _ = std::io::stderr().flush();
        }
    };
    let report = hostile::run(&binaries.get("derive"), files, seed, progress).await;
    if is_seen {
        eprintln!();
    }
    anstream::println!("seed {seed}\n{report}");
    if report.deaths.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
