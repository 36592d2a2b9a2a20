//! Timestamps of records, in whole seconds since the epoch.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A time in whole seconds since 1970-01-01T00:00:00Z.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Returns the time that is `seconds` after the epoch.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds)
    }

    /// Returns the seconds since the epoch.
    pub const fn as_secs(self) -> u64 {
        self.0
    }

    /// Returns the time `duration` later. Fractions of a second are dropped.
    #[must_use]
    pub const fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration.as_secs()))
    }

    /// Returns how long ago `earlier` was; zero if it is in the future, because clocks of two
    /// instances may differ.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_secs(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_in_the_future_has_an_age_of_zero() {
        let now = Timestamp::from_secs(100);
        assert_eq!(now.since(now.plus(Duration::from_secs(60))), Duration::ZERO);
        assert_eq!(
            now.plus(Duration::from_secs(60)).since(now),
            Duration::from_secs(60)
        );
    }
}
