//! Waiting for what somebody else is making: looks at it follow each other less and less often, until the time is up.

use std::time::Duration;

use super::Invocation;
use crate::ports::{Consistency, Fault, FaultKind};

/// The first wait between two looks at what somebody else is building; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest wait between two looks in the first seconds, and afterwards: a thousand who wait for one module must not
/// overload its partition.
const LONGEST_PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(2));

/// After this time it is a large file that is being built: looks may be far apart.
const FIRST_SECONDS: Duration = Duration::from_secs(5);

/// Somebody who waits.
pub(super) struct Waiting<'a> {
    invocation: &'a Invocation,
    began: Duration,
    wait: Duration,
    pause: Duration,
    has_paused: bool,
}

impl<'a> Waiting<'a> {
    /// Begins to wait, for so long at most.
    pub(super) fn new(invocation: &'a Invocation, wait: Duration) -> Self {
        Self {
            invocation,
            began: invocation.elapsed(),
            wait,
            pause: FIRST_PAUSE,
            has_paused: false,
        }
    }

    /// Returns how the next look reads. The first one may precede a write and reads strongly; the
    /// repetitions read eventually, which costs half as much.
    pub(super) fn consistency(&self) -> Consistency {
        match self.has_paused {
            false => Consistency::Strong,
            true => Consistency::Eventual,
        }
    }

    /// Tells whether a look that failed is repeated: many requests wait for the same record, and the
    /// table is overloaded for a moment. The first look is not.
    pub(super) fn tolerates(&self, error: &Fault) -> bool {
        let is_tolerated = self.has_paused && error.kind() == FaultKind::Transient;
        if is_tolerated {
            tracing::warn!(%error, "could not read what a request waits for");
        }
        is_tolerated
    }

    fn waited(&self) -> Duration {
        self.invocation.elapsed() - self.began
    }

    /// Tells whether the time is up: then the next look is the last.
    pub(super) fn is_over(&self) -> bool {
        self.waited() >= self.wait
    }

    /// Waits until it is time for another look.
    pub(super) async fn pause(&mut self) {
        self.has_paused = true;
        let waited = self.waited();
        let pause = self.invocation.jittered(self.pause);
        tokio::time::sleep(pause.min(self.wait.saturating_sub(waited))).await;
        let longest = match waited < FIRST_SECONDS {
            true => LONGEST_PAUSES.0,
            false => LONGEST_PAUSES.1,
        };
        self.pause = (self.pause * 2).min(longest);
    }
}
