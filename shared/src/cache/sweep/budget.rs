//! What the byte budgets evict: the least recently used blobs, by a histogram of their ages.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::domain::Timestamp;

/// A histogram of bytes by the time since the last use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ages(Vec<u64>);

/// The lower bounds of the buckets of the histogram, in hours; the last bucket has no upper bound.
const AGE_HOURS: [u64; 20] = [
    0, 2, 3, 4, 6, 8, 12, 16, 24, 36, 48, 72, 96, 120, 144, 168, 240, 336, 720, 2160,
];

/// The lower bound of the second bucket. Lower ages cannot be distinguished, because a use is
/// recorded once per hour.
const YOUNGEST: Duration = Duration::from_secs(AGE_HOURS[1] * 3600);

impl Ages {
    pub(super) fn add(&mut self, age: Duration, bytes: u64) {
        let hours = age.as_secs() / 3600;
        let bucket = AGE_HOURS.partition_point(|begin| *begin <= hours) - 1;
        self.0.resize(AGE_HOURS.len(), 0);
        self.0[bucket] += bytes;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        for (bytes, other) in self.0.iter_mut().zip(&other.0) {
            *bytes += other;
        }
    }

    /// Returns the total bytes.
    pub fn bytes(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the buckets that are not empty: the lower bound of each in hours, and its bytes.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let buckets = AGE_HOURS.into_iter().zip(self.0.iter().copied());
        buckets.filter(|(_, bytes)| *bytes > 0)
    }

    /// Returns what must be evicted for the rest to fit into `budget` bytes (0: no limit); `None`
    /// if everything fits.
    ///
    /// `counted_at` is when the ages were counted. Nothing that was used within the two hours
    /// before is evicted, whatever the budget.
    pub fn cut(&self, budget: u64, counted_at: Timestamp) -> Option<EvictionCut> {
        let budget = Some(budget).filter(|budget| *budget > 0)?;
        let mut excess = self
            .bytes()
            .checked_sub(budget)
            .filter(|bytes| *bytes > 0)?;
        let used_before = |hours: u64| {
            let at = counted_at.as_secs().saturating_sub(hours * 3600);
            Timestamp::from_secs(at)
        };
        let mut all_before = Timestamp::default();
        let buckets = self.buckets().collect::<Vec<_>>().into_iter().rev();
        for (begin, bytes) in buckets.filter(|(begin, _)| begin * 3600 >= YOUNGEST.as_secs()) {
            if bytes >= excess {
                return Some(EvictionCut {
                    all_before,
                    some_before: used_before(begin),
                    some_bytes: excess,
                });
            }
            excess -= bytes;
            all_before = used_before(begin);
        }
        Some(EvictionCut {
            all_before,
            some_before: all_before,
            some_bytes: 0,
        })
    }
}

/// What a byte budget evicts: the least recently used first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvictionCut {
    /// Everything that was last used at this time or before is evicted.
    pub all_before: Timestamp,
    /// Of what was last used after `all_before` and until this time, only as much is evicted as is
    /// needed.
    pub some_before: Timestamp,
    /// The bytes that still have to be freed by evicting from that interval.
    pub some_bytes: u64,
}

impl EvictionCut {
    /// Returns the cut-off for an item with this size and last use: it is evicted if it was last
    /// used at that time or before. `None` if it stays.
    pub fn applies(&self, last_used_at: Timestamp, bytes: u64) -> Option<Timestamp> {
        if bytes == 0 {
            return None;
        }
        if last_used_at <= self.all_before {
            Some(self.all_before)
        } else if last_used_at <= self.some_before && self.some_bytes > 0 {
            Some(self.some_before)
        } else {
            None
        }
    }

    /// Records that an item with this size and last use was evicted.
    pub fn freed(&mut self, last_used_at: Timestamp, bytes: u64) {
        if last_used_at > self.all_before {
            self.some_bytes = self.some_bytes.saturating_sub(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    fn aged(hours_and_bytes: &[(u64, u64)]) -> Ages {
        let mut ages = Ages::default();
        for (hours, bytes) in hours_and_bytes {
            ages.add(Duration::from_secs(hours * 3600), *bytes);
        }
        ages
    }

    #[test]
    fn a_budget_removes_the_least_recently_used_first_and_no_more_than_necessary() {
        let now = at(1_000 * 3600);
        let hours_ago = |hours: u64| at((1_000 - hours) * 3600);
        let ages = aged(&[(0, 100), (5, 20), (30, 50), (100, 30)]);
        assert_eq!(ages.bytes(), 200);
        assert_eq!(ages.cut(200, now), None);
        let cut = |budget| ages.cut(budget, now).unwrap();
        let never = Timestamp::default();
        for (budget, all_before, some_before, some_bytes) in [
            (199, never, hours_ago(96), 1),
            (170, never, hours_ago(96), 30),
            (169, hours_ago(96), hours_ago(24), 1),
            (101, hours_ago(24), hours_ago(4), 19),
            // What was used recently is kept.
            (50, hours_ago(4), hours_ago(4), 0),
        ] {
            let expected = EvictionCut {
                all_before,
                some_before,
                some_bytes,
            };
            assert_eq!(cut(budget), expected, "{budget}");
        }
    }

    #[test]
    fn an_eviction_spares_later_uses_and_stops_when_enough_is_freed() {
        let mut cut = EvictionCut {
            all_before: at(50),
            some_before: at(100),
            some_bytes: 15,
        };
        assert_eq!(cut.applies(at(100), 10), Some(at(100)));
        cut.freed(at(100), 10);
        assert_eq!(cut.applies(at(100), 10), Some(at(100)));
        assert_eq!(cut.some_bytes, 5);
        cut.freed(at(100), 10);
        assert_eq!(cut.applies(at(100), 10), None);
        assert_eq!(cut.applies(at(50), 10), Some(at(50)));
        assert_eq!(cut.applies(at(50), 0), None);
        cut.some_bytes = 1;
        assert_eq!(cut.applies(at(101), 10), None);
    }
}
