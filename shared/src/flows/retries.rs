//! The delays before retries.

use std::time::Duration;

use super::build::Builder;
use crate::domain::Backoff;
use crate::ports::Fault;
pub use crate::ports::Received;

/// The delays of a message that failed for the first time, the second time, and so on.
const FAILED: Backoff = Backoff {
    first: Duration::from_secs(30),
    longest: Duration::from_secs(15 * 60),
};

impl Builder {
    /// Shortens the visibility timeout of a message that failed after this number of receives. The
    /// visibility timeout of its queue is as long as the function may run.
    pub async fn retry_later(&self, received: &Received, receives: u32) -> Result<(), Fault> {
        let delay = FAILED.after(receives.saturating_sub(1));
        self.queues.retry_later(received, delay).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_fails_is_retried_ever_later_up_to_a_quarter_of_an_hour() {
        let seconds = [0, 1, 2, 3, 4, 5, 31, 32, 100, u32::MAX]
            .map(|retries| FAILED.after(retries).as_secs());
        assert_eq!(seconds, [30, 60, 120, 240, 480, 900, 900, 900, 900, 900]);
    }
}
