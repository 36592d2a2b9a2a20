//! The local stack as a process of its own, and a small client of it.
//!
//! A test or a benchmark starts a [`LocalStack`] on a folder of its own and on free ports, asks it
//! through its [`Client`], kills it, starts it again on the same folder. Whoever has a stack
//! already only needs the client.

mod addresses;
mod binaries;
mod client;
mod local;
mod processes;
mod stats;

use std::path::PathBuf;
use std::time::Duration;

pub use addresses::Addresses;
pub use binaries::{Binaries, checkout, fixture, template};
pub use client::{Client, Reply, http_client};
pub use local::{LocalStack, Options};
pub use processes::Process;
pub use stats::{FunctionCounts, Spread, Stats};

/// What is waited for lasts at most this long, or has gone wrong.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// How often is looked whether what is waited for has happened.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Why the stack cannot be started or asked.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// Nobody says where the binaries are.
    #[error(
        "SYMDEPOT_BINARIES is not set: it names the folder with the binaries; `make test` builds them and sets it"
    )]
    NoBinaries,
    /// A binary is not there.
    #[error("there is no {}: `make test` builds it", .0.display())]
    MissingBinary(PathBuf),
    /// A file cannot be read or written.
    #[error("cannot use {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file with the addresses is none.
    #[error("{} does not say where the stack is: {source}", path.display())]
    Addresses {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The stack ended while it started.
    #[error("the stack did not start ({status}):\n{log}")]
    Ended {
        /// How it ended.
        status: std::process::ExitStatus,
        /// The end of its log.
        log: String,
    },
    /// Something did not happen in time.
    #[error("{what} did not happen within {} s", after.as_secs())]
    TooLate {
        /// What.
        what: String,
        /// How long was waited.
        after: Duration,
    },
    /// The stack does not answer.
    #[error("{what} at {url} was not answered: {}", chain(source))]
    Unanswered {
        /// What was asked.
        what: &'static str,
        /// Where.
        url: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The stack answers something else than expected.
    #[error("{what} was answered {status}: {body}")]
    Refused {
        /// What was asked.
        what: String,
        /// The HTTP status.
        status: u16,
        /// The body.
        body: String,
    },
    /// S3 refuses.
    #[error("{operation} of s3://{bucket}/{key} failed: {reason}")]
    S3 {
        /// What was asked.
        operation: &'static str,
        /// The bucket.
        bucket: String,
        /// The key.
        key: String,
        /// Why.
        reason: String,
    },
}

/// Looks again and again until there is something; an error after `patience`.
///
/// # Errors
/// [`StackError::TooLate`] that says `what`.
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

/// Returns an error with everything that caused it.
#[expect(
    clippy::borrowed_box,
    reason = "thiserror hands over a reference to the field"
)]
fn chain(error: &Box<dyn std::error::Error + Send + Sync>) -> String {
    let error: &dyn std::error::Error = &**error;
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
