//! Points in time by two clocks.
//!
//! The monotonic clock may stand still while the sandbox is frozen, and the wall clock may be set
//! back. What is kept in memory expires as soon as either clock says so.

use std::time::Duration;

use tokio::time::Instant;

use super::Invocation;
use crate::domain::Timestamp;

/// A point in time, by both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    monotonic: Instant,
    since_epoch: Duration,
}

impl Moment {
    pub(super) fn now(invocation: &Invocation) -> Self {
        Self {
            monotonic: Instant::now(),
            since_epoch: invocation.since_epoch(),
        }
    }

    /// Returns the time by the wall clock.
    pub(super) fn time(&self) -> Timestamp {
        Timestamp::from_secs(self.since_epoch.as_secs())
    }

    /// Returns the time since then, by the clock that shows more.
    pub(super) fn elapsed(&self, invocation: &Invocation) -> Duration {
        let by_wall_clock = invocation.since_epoch().saturating_sub(self.since_epoch);
        self.monotonic.elapsed().max(by_wall_clock)
    }
}
