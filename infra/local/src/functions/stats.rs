//! Statistics of each function.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

/// The number of latest invocations that the percentiles cover.
const KEPT: usize = 65_536;

/// Statistics of a function since the last reset. Times are in milliseconds, memory in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FunctionStats {
    /// Invocations that ended, whatever their result.
    pub invocations: u64,
    /// Processes that were started and requested an event.
    pub cold_starts: u64,
    /// Invocations that ended in an error, including timeouts.
    pub errors: u64,
    /// Invocations that were killed at their deadline.
    pub timeouts: u64,
    /// Invocations that were refused because their chain of events had invoked the function too
    /// often; they are not counted above. The metric of CloudWatch has the same name.
    pub recursive_invocations_dropped: u64,
    /// From the event to the response.
    pub duration_ms: Spread,
    /// From the start of a process to its first request for an event.
    pub init_ms: Spread,
    /// The largest memory that was measured for a process of this function: the largest peak of a
    /// single process, or the largest sum over a process and its descendants among the samples
    /// during an invocation, whichever is larger.
    pub max_rss: u64,
}

/// Percentiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The maximum.
    pub max: f64,
}

/// The counters of one function.
#[derive(Debug, Default)]
pub(super) struct Counting {
    pub(super) invocations: u64,
    pub(super) cold_starts: u64,
    pub(super) errors: u64,
    pub(super) timeouts: u64,
    pub(super) recursive_invocations_dropped: u64,
    pub(super) max_rss: u64,
    durations: VecDeque<Duration>,
    inits: VecDeque<Duration>,
}

impl Counting {
    pub(super) fn ran(&mut self, duration: Duration) {
        keep(&mut self.durations, duration);
    }

    pub(super) fn started(&mut self, duration: Duration) {
        self.cold_starts += 1;
        keep(&mut self.inits, duration);
    }

    pub(super) fn snapshot(&self) -> FunctionStats {
        FunctionStats {
            invocations: self.invocations,
            cold_starts: self.cold_starts,
            errors: self.errors,
            timeouts: self.timeouts,
            recursive_invocations_dropped: self.recursive_invocations_dropped,
            duration_ms: spread(&self.durations),
            init_ms: spread(&self.inits),
            max_rss: self.max_rss,
        }
    }
}

fn keep(values: &mut VecDeque<Duration>, value: Duration) {
    if values.len() == KEPT {
        values.pop_front();
    }
    values.push_back(value);
}

/// Nearest-rank percentiles.
fn spread(values: &VecDeque<Duration>) -> Spread {
    let mut sorted: Vec<Duration> = values.iter().copied().collect();
    sorted.sort_unstable();
    let rank = |percent: usize| {
        let index = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
        sorted
            .get(index)
            .map_or(0.0, |value| value.as_micros() as f64 / 1000.0)
    };
    Spread {
        p50: rank(50),
        p99: rank(99),
        max: rank(100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let values = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(
            spread(&values),
            Spread {
                p50: 100.0,
                p99: 198.0,
                max: 200.0
            }
        );
    }

    #[test]
    fn the_percentiles_of_no_values_are_zero() {
        assert_eq!(spread(&VecDeque::new()), Spread::default());
    }
}
