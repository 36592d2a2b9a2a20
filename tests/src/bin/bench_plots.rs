//! Cuts SymCaches of real programs with several bounds: tables on the terminal, plots in
//! `docs/plots`.

use std::process::ExitCode;

use anstyle::AnsiColor;
use clap::Parser;
use symdepot_tests::bench_plots::{self, Arguments};

/// Cuts the SymCaches of real programs with several bounds, and shows the cost of each
#[derive(Debug, Parser)]
struct CommandLine {
    #[command(flatten)]
    arguments: Arguments,
}

fn main() -> ExitCode {
    let CommandLine { arguments } = CommandLine::parse();
    match bench_plots::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let red = AnsiColor::Red.on_default().bold();
            anstream::eprintln!("{red}bench_plots:{red:#} {error}");
            ExitCode::FAILURE
        }
    }
}
