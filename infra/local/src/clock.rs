//! The clock of a service, which tests move ahead.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A source of the current time, which can be moved ahead. Clones share both.
#[derive(Clone)]
pub struct Clock {
    source: Arc<dyn Fn() -> i64 + Send + Sync>,
    /// How far it was moved, in milliseconds.
    ahead: Arc<AtomicI64>,
}

impl Clock {
    /// Returns the system's clock.
    #[must_use]
    pub fn system() -> Self {
        Self::new(|| {
            let since = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        })
    }

    /// Returns a clock that calls `now_ms` for the time in epoch milliseconds.
    #[must_use]
    pub fn new(now_ms: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        Self {
            source: Arc::new(now_ms),
            ahead: Arc::default(),
        }
    }

    /// Returns the milliseconds since 1970.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        (self.source)().saturating_add(self.ahead_ms())
    }

    /// Moves the clock ahead.
    pub fn advance(&self, by: Duration) {
        self.ahead.fetch_add(millis(by), Ordering::SeqCst);
    }

    /// Moves the clock ahead to a time in epoch milliseconds, unless it has passed.
    pub fn advance_to(&self, at_ms: i64) {
        let passed = at_ms.saturating_sub(self.now_ms()).max(0);
        self.advance(Duration::from_millis(passed.unsigned_abs()));
    }

    /// Returns how far the clock was moved, in milliseconds.
    #[must_use]
    pub fn ahead_ms(&self) -> i64 {
        self.ahead.load(Ordering::SeqCst)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Clock({})", self.now_ms())
    }
}

pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
