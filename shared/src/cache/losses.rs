//! The safety limit on lost blobs: how many the fleet may confirm as lost in an hour.
//!
//! Confirming a loss removes the entry's ready state. If all blobs seem lost at once, the bucket
//! setting is probably wrong: then no loss is confirmed, and an alarm is raised.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::domain::Timestamp;

/// The losses of one hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    /// When the hour began.
    pub since: Timestamp,
    /// The number of blobs that were confirmed as lost in this hour.
    pub confirmed: u64,
}

impl Losses {
    /// The period in which losses are counted.
    const WINDOW: Duration = Duration::from_secs(3600);

    /// Returns the count with one more loss; `None` if the limit `most` is reached.
    #[must_use]
    pub fn with_one_more(self, now: Timestamp, most: u64) -> Option<Self> {
        let is_over = now.since(self.since) >= Self::WINDOW;
        let (since, before) = if is_over {
            (now, 0)
        } else {
            (self.since, self.confirmed)
        };
        (before < most).then_some(Self {
            since,
            confirmed: before + 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_losses_in_an_hour_is_limited() {
        let at = |seconds: u64| Timestamp::from_secs(1_000_000 + seconds);
        let mut losses = Losses::default();
        for second in 0..3 {
            losses = losses.with_one_more(at(second), 3).unwrap();
        }
        assert_eq!(losses.with_one_more(at(3), 3), None);
        assert_eq!(losses.with_one_more(at(3599), 3), None);
        let next = losses.with_one_more(at(3600), 3).unwrap();
        assert_eq!((next.since, next.confirmed), (at(3600), 1));
        assert_eq!(Losses::default().with_one_more(at(0), 0), None);
    }
}
