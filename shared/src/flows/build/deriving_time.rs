//! The time that a build spends deriving. What is left of its time went into waiting for files.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The time that a build spends deriving.
///
/// Times are those since the beginning of the invocation.
#[derive(Debug, Default)]
pub(super) struct DerivingTime(Mutex<SpentTime>);

#[derive(Clone, Copy, Debug, Default)]
struct SpentTime {
    /// What it has spent, except since `began`.
    spent: Duration,
    /// When it began to derive, if it does.
    began: Option<Duration>,
}

impl DerivingTime {
    /// Begins to count.
    pub(super) fn begin(&self, now: Duration) {
        self.change(|state| state.began = state.began.or(Some(now)));
    }

    /// Stops counting.
    pub(super) fn end(&self, now: Duration) {
        self.change(|state| {
            state.spent = state.at(now);
            state.began = None;
        });
    }

    /// Returns what was spent until now.
    pub(super) fn spent(&self, now: Duration) -> Duration {
        self.change(|state| state.at(now))
    }

    /// Returns whether it derives now.
    pub(super) fn is_running(&self) -> bool {
        self.change(|state| state.began.is_some())
    }

    fn change<T>(&self, change: impl FnOnce(&mut SpentTime) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl SpentTime {
    fn at(self, now: Duration) -> Duration {
        let current = self.began.map(|began| now.saturating_sub(began));
        self.spent + current.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_time_between_a_beginning_and_its_end_is_counted() {
        let at = Duration::from_secs;
        let time = DerivingTime::default();
        assert_eq!(time.spent(at(5)), at(0));
        time.end(at(6));
        time.begin(at(10));
        time.begin(at(11));
        assert_eq!(time.spent(at(13)), at(3));
        time.end(at(14));
        assert_eq!(time.spent(at(20)), at(4));
        time.begin(at(30));
        assert_eq!(time.spent(at(31)), at(5));
    }
}
