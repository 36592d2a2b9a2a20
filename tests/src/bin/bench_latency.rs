//! Measures requests and uploads with the latencies of AWS.

use std::process::ExitCode;

use anstyle::AnsiColor;
use clap::Parser;
use symdepot_tests::bench_latency::{self, Arguments};
use symdepot_tests::bench_real::BenchError;

/// Measures requests and uploads with the latency of AWS between the functions and the stores
#[derive(Debug, Parser)]
struct CommandLine {
    #[command(flatten)]
    arguments: Arguments,
}

fn main() -> ExitCode {
    match measure(&CommandLine::parse().arguments) {
        Ok(true) => ExitCode::SUCCESS,
        // The table shows the exceeded limits.
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let red = AnsiColor::Red.on_default().bold();
            anstream::eprintln!("{red}bench_latency:{red:#} {error}");
            ExitCode::FAILURE
        }
    }
}

/// Takes all measurements; returns whether all are within their limits.
fn measure(arguments: &Arguments) -> Result<bool, BenchError> {
    let failed = |source| BenchError::Tool {
        tool: "this program".to_owned(),
        source,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let report = runtime.block_on(bench_latency::run(arguments))?;
    report.print();
    if let Some(path) = &arguments.markdown {
        std::fs::write(path, report.markdown()).map_err(|source| BenchError::File {
            path: path.clone(),
            source,
        })?;
    }
    Ok(report.missed().0 == 0)
}
