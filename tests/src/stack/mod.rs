//! The local stack in its own process, and a small client of it.
//!
//! A test or a benchmark starts a [`LocalStack`] in its own directory and on free ports, uses it
//! through its [`Client`], kills it, and restarts it in the same directory. A program that uses an
//! existing stack needs only the client.

mod addresses;
mod binaries;
mod client;
mod local;
mod permissions;
mod processes;
mod stats;

use std::path::PathBuf;
use std::time::Duration;

pub use addresses::Addresses;
pub use binaries::{Binaries, checkout, fixture, template};
pub use client::{Client, Reply, http_client};
pub use local::{LocalStack, Options, STACK_NAME};
pub use permissions::{RECORDS, uses_in};
pub use processes::Process;
pub use stats::{FunctionCounts, Spread, Stats};

/// The maximum time to wait for an event before it counts as a failure.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The polling interval.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Why the stack cannot be started or used.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// `SYMDEPOT_BINARIES` is not set.
    #[error(
        "SYMDEPOT_BINARIES is not set: set it to the directory of the binaries, or run `make test`, which builds them and sets it"
    )]
    NoBinaries,
    /// A binary does not exist.
    #[error("{} does not exist: run `make test`, which builds it", .0.display())]
    MissingBinary(PathBuf),
    /// A file cannot be read or written.
    #[error("cannot use {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file with the addresses has another format.
    #[error("{} does not contain the addresses of a stack: {source}", path.display())]
    Addresses {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The stack ended during its start.
    #[error("the stack did not start ({status}):\n{log}")]
    Ended {
        /// Its exit status.
        status: std::process::ExitStatus,
        /// The end of its log.
        log: String,
    },
    /// An event did not happen in time.
    #[error("{what} did not happen within {} s", after.as_secs())]
    TooLate {
        /// The event.
        what: String,
        /// The time waited.
        after: Duration,
    },
    /// The stack does not respond.
    #[error("no response to {what} at {url}: {}", chain(source))]
    Unanswered {
        /// The request.
        what: &'static str,
        /// Its URL.
        url: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The stack sent an unexpected response.
    #[error("unexpected response to {what}: status {status}: {body}")]
    Refused {
        /// The request.
        what: String,
        /// The HTTP status.
        status: u16,
        /// The body.
        body: String,
    },
    /// S3 returned an error.
    #[error("{operation} of s3://{bucket}/{key} failed: {reason}")]
    S3 {
        /// The operation.
        operation: &'static str,
        /// The bucket.
        bucket: String,
        /// The key.
        key: String,
        /// Why.
        reason: String,
    },
}

/// Polls until there is a result, at most for `patience`.
///
/// # Errors
/// [`StackError::TooLate`] with `what`.
pub async fn until<T>(
    what: &str,
    patience: Duration,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> Result<T, StackError> {
    let looking = async {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Some(found) = look().await {
                return found;
            }
        }
    };
    let late = |_| StackError::TooLate {
        what: what.to_owned(),
        after: patience,
    };
    tokio::time::timeout(patience, looking).await.map_err(late)
}

/// Formats an error with its causes.
#[expect(
    clippy::borrowed_box,
    reason = "thiserror passes a reference to the field"
)]
fn chain(error: &Box<dyn std::error::Error + Send + Sync>) -> String {
    let error: &dyn std::error::Error = &**error;
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
