//! How long things stand: the settings of the cache rules, and the constants that have one right value.

use std::time::Duration;

use super::Queue;
use crate::domain::Cause;

/// A lease holds this long unless it is extended: a holder that vanishes delays others by no more.
pub const LEASE_LENGTH: Duration = Duration::from_secs(60);

/// A holder at work extends its lease this often: two extensions may be lost.
pub const LEASE_EXTENSION: Duration = Duration::from_secs(20);

/// The settings of the cache rules, with the defaults of Symbolicator's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// A derived cache that nobody used for this long is retired. Default: 7 days.
    pub derived_max_unused: Duration,
    /// The absence of a DIF is remembered for this long. Default: 1 hour.
    pub retry_misses_after: Duration,
    /// A DIF that failed to convert is not tried again by the same converter for this long. Default: 24 hours.
    pub retry_malformed_after: Duration,
    /// Holders that may vanish over one entry before it is given up as crashed. Default: 3.
    pub max_attempts: u32,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            derived_max_unused: Duration::from_secs(7 * 24 * 3600),
            retry_misses_after: Duration::from_secs(3600),
            retry_malformed_after: Duration::from_secs(24 * 3600),
            max_attempts: 3,
        }
    }
}

impl Policy {
    /// A use is noted at most this often: a note is a write.
    pub const TOUCH_INTERVAL: Duration = Duration::from_secs(3600);

    /// An older state is dropped when nobody used it for this long.
    pub const OLDER_MAX_UNUSED: Duration = Duration::from_secs(24 * 3600);

    /// A placeholder that nobody asked about is forgotten this long after its retry time.
    pub const PLACEHOLDER_MAX_UNUSED: Duration = Duration::from_secs(24 * 3600);

    /// A blob is not confirmed as lost twice within this time.
    pub const CONFIRM_LOSS_INTERVAL: Duration = Duration::from_secs(3600);

    /// A build that cannot read what a newer one has just published does not ask for its own version within this time.
    pub const WAIT_BEHIND: Duration = Duration::from_secs(60);

    /// Returns how long after a look for something better, the `fruitless`-th in a row, the next one is due: an hour,
    /// doubling up to a day.
    pub fn probe_after(fruitless: u32) -> Duration {
        Duration::from_secs(3600 * (1 << fruitless.min(5)).min(24))
    }

    /// Returns how long a cause is remembered before another attempt is made.
    pub fn retry_after(&self, cause: Cause) -> Duration {
        match cause {
            Cause::NotFound | Cause::PermissionDenied => self.retry_misses_after,
            Cause::DownloadFailed | Cause::Timeout => {
                Duration::from_secs(60).min(self.retry_misses_after)
            }
            Cause::Malformed | Cause::Unsupported | Cause::TooLarge { .. } | Cause::Crashed => {
                self.retry_malformed_after
            }
        }
    }

    /// Returns how long an ask stands: its message is taken for lost afterwards.
    pub const fn request_lifetime(queue: Queue) -> Duration {
        match queue {
            Queue::Eager => Duration::from_secs(30),
            Queue::Uploads => Duration::from_secs(10 * 60),
            Queue::Refresh => Duration::from_secs(6 * 3600),
        }
    }

    /// Returns how long an entry rests after its build was given back for the `releases`-th time.
    pub fn back_off_after_release(releases: u32) -> Duration {
        Duration::from_secs(1 << releases.clamp(1, 6))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_may_lose_two_extensions() {
        assert!(LEASE_EXTENSION * 3 <= LEASE_LENGTH);
    }

    #[test]
    fn a_failing_source_is_never_remembered_longer_than_a_missing_file() {
        let quick = Policy {
            retry_misses_after: Duration::from_secs(10),
            ..Policy::default()
        };
        assert_eq!(quick.retry_after(Cause::Timeout), Duration::from_secs(10));
        assert_eq!(
            Policy::default().retry_after(Cause::Timeout),
            Duration::from_secs(60)
        );
    }

    #[test]
    fn probes_grow_rarer_up_to_once_a_day() {
        let hours: Vec<u64> = (0..8)
            .map(|n| Policy::probe_after(n).as_secs() / 3600)
            .collect();
        assert_eq!(hours, [1, 2, 4, 8, 16, 24, 24, 24]);
    }

    #[test]
    fn the_rest_after_giving_back_is_bounded_whatever_the_count() {
        for releases in [0, 1, 6, 7, 64, u32::MAX] {
            let rest = Policy::back_off_after_release(releases).as_secs();
            assert!((2..=64).contains(&rest), "{releases}: {rest}");
        }
    }
}
