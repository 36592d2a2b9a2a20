//! Requests and uploads with the latencies of AWS: time, calls, messages, invocations of `derive`,
//! and dependent rounds, each compared with its limit.
//!
//! A stack with the latency of AWS ([`Latency::AWS`]) is started in an empty directory three times:
//! without symbol servers, with one, and with four ([`server`]). Each row of the table
//! ([`requests`]) is measured several times, with modules that no earlier run has used
//! ([`measure`]). A row has the median of the times, and the maximum of the calls, messages,
//! invocations and rounds.
//!
//! Before, a large file is downloaded from a symbol server ([`downloads`]).
//!
//! Each number is printed when it is known, and all numbers as one table at the end.

pub mod downloads;
pub mod measure;
pub mod requests;
pub mod server;

use std::path::PathBuf;

use local_stack::latency::Latency;
use measure::Modules;
use requests::Bench;
use server::SymbolServers;

use crate::bench_real::report::{self, Report};
use crate::bench_real::{BenchError, say};
use crate::stack::{Binaries, LocalStack, Options};

/// Measures requests and uploads with the latency of AWS between the functions and the stores.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The number of measurements of each row.
    #[arg(long, default_value_t = 7)]
    pub runs: usize,
    /// The latencies of the services in milliseconds: aws, or like dynamodb=5,s3=15,sqs=8.
    #[arg(long, default_value = "aws")]
    pub latency: Latency,
    /// Also writes the numbers to this file, as Markdown.
    #[arg(long)]
    pub markdown: Option<PathBuf>,
}

/// Takes all measurements.
///
/// # Errors
/// A stack does not start or does not respond. A number that exceeds its limit is no error, but is
/// marked in the report.
pub async fn run(arguments: &Arguments) -> Result<Report, BenchError> {
    let binaries = Binaries::from_env()?;
    let mut report = Report::default();
    report.environment = report::environment();
    let latency = format!("latency in ms: {}", arguments.latency);
    report.environment.push(latency);
    downloads::measure(&mut report).await?;
    let modules = Modules::default();

    for servers in [0, 1, 4] {
        let folder = tempfile::tempdir().map_err(BenchError::file(std::env::temp_dir()))?;
        let servers = SymbolServers::start(servers).await?;
        let options = Options::new(binaries.clone(), folder.path()).latency(arguments.latency);
        let stack = LocalStack::start(servers.sought_by(options)).await?;
        let client = stack.client();
        let how = format!("{} in an empty directory", client.addresses().gateway);
        say(&format!("a stack with {servers}"), &how);
        let mut bench = Bench {
            client,
            modules: &modules,
            runs: arguments.runs.max(1),
            report: &mut report,
        };
        match servers.urls().len() {
            0 => {
                // First: for five minutes after an upload, an instance reads new modules twice.
                bench.unknown_modules_that_are_remembered().await?;
                bench.uploads_to_both_scopes().await?;
                bench.unknown_modules().await?;
                bench.modules_that_are_ready().await?;
                bench.a_crash_file().await?;
                bench.many_unknown_modules_of_a_new_scope().await?;
                bench.an_upload().await?;
            }
            1 => bench.unknown_modules_of_one_server(&servers).await?,
            _ => bench.unknown_modules_of_many_servers(&servers).await?,
        }
        stack.stop().await?;
    }
    Ok(report)
}
