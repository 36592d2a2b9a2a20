//! When a message that could not be served is retried.

use std::time::Duration;

use super::build::Builder;
pub use crate::ports::Received;
use crate::ports::StoreError;

/// A message that failed for the first time is retried after this; the delay doubles with each
/// further failure.
const FIRST_RETRY: Duration = Duration::from_secs(30);

/// The longest delay.
const LAST_RETRY: Duration = Duration::from_secs(900);

impl Builder {
    /// Has a message retried that was received so many times and failed: sooner than at the end of
    /// the visibility timeout of its queue, which is as long as the function may run.
    pub async fn retry_later(&self, received: &Received, receives: u32) -> Result<(), StoreError> {
        self.lanes.retry_later(received, delay(receives)).await
    }
}

/// Returns the delay before the next delivery.
fn delay(receives: u32) -> Duration {
    let doublings = receives.saturating_sub(1).min(16);
    FIRST_RETRY.saturating_mul(1 << doublings).min(LAST_RETRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L8.
    #[test]
    fn a_message_that_fails_is_retried_ever_later_up_to_a_quarter_of_an_hour() {
        let seconds =
            [0, 1, 2, 3, 4, 5, 6, 100, u32::MAX].map(|receives| delay(receives).as_secs());
        assert_eq!(seconds, [30, 30, 60, 120, 240, 480, 900, 900, 900]);
    }
}
