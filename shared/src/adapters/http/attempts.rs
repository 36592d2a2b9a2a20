//! Attempts of a request: what failed, and whether it is tried again.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use reqwest::{Request, Response, Url};
use tokio::time::Instant;

use super::status::{Refusal, Retry};
use crate::adapters::backoff::pause;
use crate::domain::{Cause, Missing, SourceKey};
use crate::ports::{Concerns, ServerFailure};

/// Attempts per request to a server that fails.
pub(super) const MAX_ATTEMPTS: u32 = 3;

/// How long a source counts as failing after a request that failed.
const FAILING_FOR: Duration = Duration::from_secs(30);

/// A successful response, and the request that it belongs to.
pub(super) struct Answer {
    pub(super) response: Response,
    pub(super) client: reqwest::Client,
    /// The last request, after all redirects.
    pub(super) request: Request,
}

/// The attempts of a request so far.
pub(super) struct Attempts {
    made: u32,
    most: u32,
}

impl Default for Attempts {
    fn default() -> Self {
        let most = MAX_ATTEMPTS;
        Self { made: 0, most }
    }
}

impl Attempts {
    /// Waits before the next attempt; fails if there is none.
    pub(super) async fn pause_after(&mut self, refusal: Refusal) -> Result<(), ServerFailure> {
        self.made += 1;
        if self.made == self.most || !matches!(refusal.retry, Retry::Soon) {
            let retry_after = match refusal.retry {
                Retry::After(retry_after) => Some(retry_after),
                Retry::Soon | Retry::Never => None,
            };
            return Err(ServerFailure {
                missing: refusal.missing,
                retry_after,
                concerns: refusal.concerns,
            });
        }
        pause(self.made).await;
        Ok(())
    }
}

/// The sources whose last request failed, with all its attempts. Until a source answers again, each
/// of its files is requested once: a module has many locations, and retries at each of them would
/// triple the calls to a server that is overloaded.
#[derive(Debug, Default)]
pub(super) struct FailingSources {
    since: Mutex<HashMap<SourceKey, Instant>>,
}

impl FailingSources {
    /// Begins the attempts of a request to a source.
    pub(super) fn attempts(&self, key: &SourceKey) -> Attempts {
        let since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        let is_failing = since.get(key).is_some_and(|at| at.elapsed() < FAILING_FOR);
        if is_failing {
            Attempts { made: 0, most: 1 }
        } else {
            Attempts::default()
        }
    }

    /// Records whether a request to a source failed for a moment.
    pub(super) fn note(&self, key: &SourceKey, failure: Option<&ServerFailure>) {
        let cause = failure.map(|failure| failure.missing.cause);
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.retain(|_, at| at.elapsed() < FAILING_FOR);
        if cause.is_some_and(Cause::is_of_a_moment) {
            since.insert(key.clone(), Instant::now());
        } else {
            since.remove(key);
        }
    }
}

/// Returns the refusal for a failed request. `is_own` says whether the source itself was requested.
pub(super) fn failed(url: &Url, is_own: bool, error: &reqwest::Error) -> Refusal {
    let host = url.host_str().unwrap_or_default();
    let mut causes = String::new();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if error.downcast_ref::<OnlyPrivate>().is_some() {
            return private(url);
        }
        causes = format!("{causes}: {error}");
        cause = error.source();
    }
    // Name resolution, connection or TLS failed or timed out.
    let concerns = if is_own && error.is_connect() {
        Concerns::Server
    } else {
        Concerns::Location
    };
    if error.is_timeout() {
        // No retry: each attempt would take as long.
        return Refusal {
            missing: Missing::new(Cause::Timeout, format!("{host} did not respond in time")),
            retry: Retry::Never,
            concerns,
        };
    }
    let detail = format!("{host} cannot be reached{causes}");
    Refusal {
        concerns,
        ..Refusal::now(Cause::DownloadFailed, detail)
    }
}

pub(super) fn private(url: &Url) -> Refusal {
    let host = url.host_str().unwrap_or_default();
    let detail = format!(
        "{host} is in a private network; only a source that the operator lists in SOURCES with \
         \"is_private\": true may be there, at its own address"
    );
    Refusal::denied(detail)
}

/// All addresses of a name are outside of the reach.
#[derive(Debug)]
pub(super) struct OnlyPrivate;

impl fmt::Display for OnlyPrivate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("all of its addresses are in private networks")
    }
}

impl std::error::Error for OnlyPrivate {}

/// Returns the form of an address for details: its host and its path.
pub(super) fn place(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}"));
    format!("{host}{}{}", port.unwrap_or_default(), url.path())
}
