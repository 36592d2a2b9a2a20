//! Delays that double from one attempt to the next.

use std::time::Duration;

/// Delays that double from one attempt to the next, up to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The delay before the first retry.
    pub first: Duration,
    /// The longest delay.
    pub longest: Duration,
}

impl Backoff {
    /// Returns the delay after this number of retries.
    pub fn after(self, retries: u32) -> Duration {
        let factor = 1_u32.checked_shl(retries).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest_for_any_number_of_retries() {
        let backoff = Backoff {
            first: Duration::from_secs(30),
            longest: Duration::from_secs(900),
        };
        let seconds =
            [0, 1, 2, 3, 4, 5, 31, 32, u32::MAX].map(|retries| backoff.after(retries).as_secs());
        assert_eq!(seconds, [30, 60, 120, 240, 480, 900, 900, 900, 900]);
        let endless = Backoff {
            first: Duration::MAX,
            longest: Duration::MAX,
        };
        assert_eq!(endless.after(1), Duration::MAX);
    }
}
