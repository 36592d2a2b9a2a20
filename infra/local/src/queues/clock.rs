//! The clock of the queues.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A source of the current time. Clones share it.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> i64 + Send + Sync>);

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
        Self(Arc::new(now_ms))
    }

    /// Returns the milliseconds since 1970.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Clock({})", self.now_ms())
    }
}

pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
