//! How fast the refresh queue is drained: how many builds a pass requests, and when a rollout is
//! complete.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::outdated::OutdatedList;
use crate::cache::Entry;
use crate::domain::Timestamp;

/// The number of builds to request if the rate of the queue is unknown: an hour's work of five
/// builders that take half a minute for each.
const FIRST_REQUESTS: usize = 500;

/// The largest number of requests of a pass, as a multiple of the completed requests of the
/// previous pass.
const MAX_GROWTH: u64 = 16;

/// The results of the build requests of the previous pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Drained {
    /// Build requests that are complete.
    pub answered: u64,
    /// Build requests that are still pending.
    #[serde(rename = "standing")]
    pub still_pending: u64,
    /// The time since they were sent, in seconds.
    pub seconds: u64,
    /// The time from the requests until the last resulting cache was published, in seconds, if
    /// a cache was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<u64>,
}

impl Drained {
    /// Compares build requests with their entries; `None` is an entry that no longer exists.
    pub fn of<'a>(
        requested: &OutdatedList,
        entries: impl IntoIterator<Item = Option<&'a Entry>>,
        now: Timestamp,
    ) -> Self {
        let mut drained = Self::default();
        if requested.entries.is_empty() {
            return drained;
        }
        drained.seconds = now.since(requested.at).as_secs();
        for (behind, entry) in requested.entries.iter().zip(entries) {
            let is_pending = |entry: &&Entry| {
                let pending = entry.build_request.as_ref();
                pending.is_some_and(|pending| Some(&pending.id) == behind.build_request.as_ref())
            };
            match entry.filter(is_pending) {
                None => {
                    drained.answered += 1;
                    let ready = entry.and_then(|entry| entry.ready.as_ref());
                    let published = ready.map(|ready| ready.derived_at);
                    let published = published.filter(|published| *published >= requested.at);
                    let after = published.map(|published| published.since(requested.at).as_secs());
                    drained.busy = drained.busy.max(after);
                }
                Some(entry) if entry.live_request(now).is_some() => drained.still_pending += 1,
                // The message is assumed to be lost.
                Some(_) => {}
            }
        }
        drained
    }

    /// Returns how many builds to request now, so that as many are pending as the queue completed
    /// since the last pass. If it completed all of them, as many as it could have completed at that
    /// rate in the whole time.
    pub fn quota(&self) -> usize {
        let to_count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let (answered, still_pending) = (to_count(self.answered), to_count(self.still_pending));
        if still_pending > 0 {
            return answered.saturating_sub(still_pending);
        }
        let growth = match self.busy {
            Some(busy) => (self.seconds / busy.max(1)).clamp(1, MAX_GROWTH),
            None => 2,
        };
        answered
            .saturating_mul(to_count(growth))
            .max(FIRST_REQUESTS)
    }

    /// Estimates when this many outdated entries will be rebuilt.
    pub fn estimate(&self, behind: u64, now: Timestamp) -> Estimate {
        match (behind, self.answered, self.still_pending) {
            (0, ..) => Estimate::Complete,
            (_, 0, 0) => Estimate::Unknown {
                reason: "no build was requested yet: the next pass requests some".to_owned(),
            },
            (_, 0, still_pending) => Estimate::Unknown {
                reason: format!(
                    "none of {still_pending} build requests was completed since the last pass"
                ),
            },
            (behind, answered, _) => {
                // If the queue completed all requests early, the next pass requests more.
                let most = OutdatedList::MAX_ENTRIES;
                let next = self.busy.map_or(0, |_| self.quota().min(most));
                let rate = answered.max(u64::try_from(next).unwrap_or(answered));
                let seconds = behind.saturating_mul(self.seconds.max(1)) / rate;
                Estimate::At {
                    expected_at: now.plus(Duration::from_secs(seconds)),
                }
            }
        }
    }
}

/// The expected end of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(tag = "estimate", rename_all = "snake_case")]
pub enum Estimate {
    /// The rollout is complete.
    Complete,
    /// The rollout completes at this time, at the rate of the last pass.
    At {
        /// The expected time.
        expected_at: Timestamp,
    },
    /// The end cannot be estimated yet.
    Unknown {
        /// The reason.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::change::examples::{BEGIN, entry};
    use crate::cache::sweep::examples::ready;
    use crate::cache::{OutdatedEntry, Token};

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    #[test]
    fn as_many_builds_are_requested_as_the_queue_processed() {
        let quota = |answered, still_pending, busy| {
            let drained = Drained {
                answered,
                still_pending,
                seconds: 3600,
                busy,
            };
            drained.quota()
        };
        assert_eq!(quota(0, 0, None), FIRST_REQUESTS);
        assert_eq!(quota(2, 0, Some(1)), FIRST_REQUESTS);
        assert_eq!(quota(1000, 100, None), 900);
        assert_eq!(quota(1000, 100, Some(3500)), 900);
        assert_eq!(quota(10, 30, None), 0);
        assert_eq!(quota(0, 1, None), 0);
        // All were completed, with or without time to spare.
        assert_eq!(quota(1000, 0, None), 2000);
        assert_eq!(quota(1000, 0, Some(900)), 4000);
        assert_eq!(quota(1000, 0, Some(3599)), 1000);
        assert_eq!(quota(1000, 0, Some(0)), 16_000);
    }

    /// Finding P22 in `docs/protocol.md`.
    #[test]
    fn the_last_requested_cache_says_how_long_the_queue_was_busy() {
        let asked = |entry: &Entry| OutdatedEntry {
            build_request: Some(Token::from_random(1)),
            ..OutdatedEntry::of(entry)
        };
        let made_after = |seconds: u64| {
            let at = BEGIN.plus(Duration::from_secs(seconds));
            ready(|ready| ready.derived_at = at)
        };
        let entries = [made_after(30), made_after(200), entry()];
        let requests = OutdatedList {
            at: BEGIN,
            entries: entries.iter().map(asked).collect(),
            ..OutdatedList::default()
        };
        let now = BEGIN.plus(Duration::from_secs(3600));
        let drained = Drained::of(&requests, entries.iter().map(Some), now);
        assert_eq!((drained.answered, drained.busy), (3, Some(200)));
        let never = Drained::of(&requests, entries.iter().map(|_| None), now);
        assert_eq!((never.answered, never.busy), (3, None));
    }

    #[test]
    fn a_rollout_is_estimated_from_the_last_pass_or_says_why_not() {
        let drained = |answered, still_pending| Drained {
            answered,
            still_pending,
            seconds: 3600,
            busy: None,
        };
        let unknown = |estimate| matches!(estimate, Estimate::Unknown { .. });
        assert_eq!(drained(0, 0).estimate(0, at(0)), Estimate::Complete);
        assert!(unknown(drained(0, 0).estimate(1, at(0))));
        assert!(unknown(drained(0, 9).estimate(1, at(0))));
        assert_eq!(
            drained(100, 0).estimate(250, at(1000)),
            Estimate::At {
                expected_at: at(10_000)
            }
        );
        // The queue needed half of the time: the next pass requests twice as many.
        let early = Drained {
            busy: Some(1800),
            ..drained(1000, 0)
        };
        assert_eq!(
            early.estimate(20_000, at(1000)),
            Estimate::At {
                expected_at: at(37_000)
            }
        );
    }
}
