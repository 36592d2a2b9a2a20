//! The polling loop of a request that waits for builds: reads follow each other at growing
//! intervals until the time is up.

use std::time::Duration;

use super::Invocation;
use crate::ports::{Consistency, Fault, FaultKind};

/// The first pause between two reads; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause within [`FIRST_SECONDS`], and afterwards. A thousand requests that wait for
/// one module must not overload its partition.
const LONGEST_PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(2));

/// After this time the file is probably large, so reads can be rarer.
const FIRST_SECONDS: Duration = Duration::from_secs(5);

/// A request that waits for builds.
pub(super) struct Waiting<'a> {
    invocation: &'a Invocation,
    began: Duration,
    wait: Duration,
    pause: Duration,
    has_paused: bool,
}

impl<'a> Waiting<'a> {
    /// Begins to wait for at most `wait`.
    pub(super) fn new(invocation: &'a Invocation, wait: Duration) -> Self {
        Self {
            invocation,
            began: invocation.elapsed(),
            wait,
            pause: FIRST_PAUSE,
            has_paused: false,
        }
    }

    /// Returns the consistency of the next read. The first read may precede a write and is strongly
    /// consistent. The repetitions are eventually consistent, which costs half as much.
    pub(super) fn consistency(&self) -> Consistency {
        match self.has_paused {
            false => Consistency::Strong,
            true => Consistency::Eventual,
        }
    }

    /// Returns whether to continue after this error. A temporary failure of a repeated read is
    /// tolerated, because many requests that wait for one record can overload the table for a
    /// moment. A failure of the first read is not tolerated.
    pub(super) fn tolerates(&self, error: &Fault) -> bool {
        let is_tolerated = self.has_paused && error.kind() == FaultKind::Transient;
        if is_tolerated {
            tracing::warn!(%error, "cannot read the awaited items; will retry");
        }
        is_tolerated
    }

    fn waited(&self) -> Duration {
        self.invocation.elapsed() - self.began
    }

    /// Returns whether the time is up, so that the next read is the last one.
    pub(super) fn is_over(&self) -> bool {
        self.waited() >= self.wait
    }

    /// Waits until the next read is due.
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
