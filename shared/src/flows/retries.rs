//! When something that could not be done is tried again.

use std::time::Duration;

use super::build::Builder;
use crate::ports::Fault;
pub use crate::ports::Received;

/// Delays of a message that failed for the first, the second … time.
const FAILED: Backoff = Backoff {
    first: Duration::from_secs(30),
    longest: Duration::from_secs(15 * 60),
};

/// Delays that double from one attempt to the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    /// The delay before the first repetition.
    pub(super) first: Duration,
    /// The longest delay.
    pub(super) longest: Duration,
}

impl Backoff {
    /// Returns the delay after so many repetitions.
    pub(super) fn after(self, repetitions: u32) -> Duration {
        let factor = 1_u32.checked_shl(repetitions).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.longest)
    }
}

impl Builder {
    /// Has a message retried that was received so many times and failed: sooner than at the end of
    /// the visibility timeout of its queue, which is as long as the function may run.
    pub async fn retry_later(&self, received: &Received, receives: u32) -> Result<(), Fault> {
        let delay = FAILED.after(receives.saturating_sub(1));
        self.queues.retry_later(received, delay).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L8.
    #[test]
    fn a_message_that_fails_is_retried_ever_later_up_to_a_quarter_of_an_hour() {
        let seconds = [0, 1, 2, 3, 4, 5, 31, 32, 100, u32::MAX]
            .map(|repetitions| FAILED.after(repetitions).as_secs());
        assert_eq!(seconds, [30, 60, 120, 240, 480, 900, 900, 900, 900, 900]);
    }
}
