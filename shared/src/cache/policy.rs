//! The settings of the cache rules, and the constants that have one right value.

use std::time::Duration;

use super::{Queue, ReleaseNumbers};
use crate::domain::{Backoff, Cause};

/// How long a lease lasts unless it is extended. A holder that crashes delays others by at most
/// this.
pub const LEASE_LENGTH: Duration = Duration::from_secs(60);

/// How often a working holder extends its lease. Two extensions may fail.
pub const LEASE_EXTENSION: Duration = Duration::from_secs(20);

/// The settings of the cache rules, with the defaults of Symbolicator's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The time without use after which a derived cache is retired. Default: 7 days.
    pub derived_max_unused: Duration,
    /// How long the absence of a DIF is cached. Default: 1 hour.
    pub retry_misses_after: Duration,
    /// How long the same converter does not retry a DIF that it failed to convert. Default: 24
    /// hours.
    pub retry_malformed_after: Duration,
    /// The number of builds of one entry that may crash before the entry is marked as crashed.
    /// Default: 3.
    pub max_attempts: u32,
    /// The numbers of the release that applies the rules.
    pub numbers: ReleaseNumbers,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            derived_max_unused: Duration::from_secs(7 * 24 * 3600),
            retry_misses_after: Duration::from_secs(3600),
            retry_malformed_after: Duration::from_secs(24 * 3600),
            max_attempts: 3,
            numbers: ReleaseNumbers::CURRENT,
        }
    }
}

impl Policy {
    /// The minimum interval between recorded uses of an entry: each one is a write.
    pub const TOUCH_INTERVAL: Duration = Duration::from_secs(3600);

    /// The age of the newer state after which the older one is dropped.
    pub const OLDER_MAX_UNUSED: Duration = Duration::from_secs(24 * 3600);

    /// How long after its retry time an unused placeholder is retired.
    pub const PLACEHOLDER_MAX_UNUSED: Duration = Duration::from_secs(24 * 3600);

    /// The minimum interval between two confirmed losses of an entry's blob.
    pub const CONFIRM_LOSS_INTERVAL: Duration = Duration::from_secs(3600);

    /// The delay until the next probe for a better DIF, after each consecutive probe that found
    /// nothing.
    pub const PROBE_BACKOFF: Backoff = Backoff {
        first: Duration::from_secs(3600),
        longest: Duration::from_secs(24 * 3600),
    };

    /// The back-off of an entry after each consecutive release of its lease.
    const RELEASE_BACKOFF: Backoff = Backoff {
        first: Duration::from_secs(2),
        longest: Duration::from_secs(64),
    };

    /// How long a release waits before it requests its own version of an entry that a newer release
    /// has just published.
    pub const WAIT_BEHIND: Duration = Duration::from_secs(60);

    /// Returns how long a failure with this cause is cached before a retry.
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

    /// Returns how long a build request stays pending. After that its message is assumed to be
    /// lost.
    pub const fn request_lifetime(queue: Queue) -> Duration {
        match queue {
            Queue::Eager => Duration::from_secs(30),
            Queue::Uploads => Duration::from_secs(10 * 60),
            Queue::Refresh => Duration::from_secs(6 * 3600),
        }
    }

    /// Returns the back-off of an entry whose build was released for the `releases`-th time.
    pub fn back_off_after_release(releases: u32) -> Duration {
        Self::RELEASE_BACKOFF.after(releases.saturating_sub(1))
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
    fn a_failing_source_is_never_cached_longer_than_a_missing_file() {
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
    fn probes_become_less_frequent_down_to_once_a_day() {
        let hours: Vec<u64> = (0..8)
            .map(|n| Policy::PROBE_BACKOFF.after(n).as_secs() / 3600)
            .collect();
        assert_eq!(hours, [1, 2, 4, 8, 16, 24, 24, 24]);
    }

    #[test]
    fn the_back_off_after_releases_is_bounded_for_any_count() {
        let seconds = [0, 1, 2, 5, 6, 7, 64, u32::MAX]
            .map(|releases| Policy::back_off_after_release(releases).as_secs());
        assert_eq!(seconds, [2, 2, 4, 32, 64, 64, 64, 64]);
    }
}
