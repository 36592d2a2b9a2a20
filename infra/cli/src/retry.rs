//! Requests that are sent again: when, how often, and for how long.

use std::time::{Duration, SystemTime};

use symdepot::domain::Backoff;
use tokio::time::Instant;

/// The number of attempts of a request.
const ATTEMPTS: u32 = 5;

/// The pauses between attempts. A service may ask for the longest one; if it asks for a longer one,
/// its refusal is final.
pub(crate) const PAUSES: Backoff = Backoff {
    first: Duration::from_millis(500),
    longest: Duration::from_secs(30),
};

/// The time limit of a request. The gateway ends requests after 30 seconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The time that a service may take to answer beyond the time that the user waits: an instance of
/// it may have to start.
const GRACE: Duration = Duration::from_secs(10);

/// The rate at which a slow connection sends the body of a request, in bytes per second.
const SLOW_RATE: u64 = 64 * 1024;

/// The longest time to wait; a clock may not have more.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The time until which requests are sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitLimit {
    end: Instant,
}

/// Why an attempt failed that another one may make up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryReason {
    /// The connection ended before the response did.
    Broken,
    /// The service takes no more requests now. It may say for how long.
    Busy(Option<Duration>),
}

impl WaitLimit {
    /// Begins to wait for this time.
    pub(crate) fn of(wait: Duration) -> Self {
        Self {
            end: Instant::now() + wait.min(LONGEST_WAIT),
        }
    }

    /// Begins to wait as long as commands do to which the user gave no time.
    pub(crate) fn usual() -> Self {
        Self::of(REQUEST_TIMEOUT)
    }

    /// Returns the time that is left.
    pub(crate) fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Returns the time limit for the response to a request with a body of this size.
    pub(crate) fn request_timeout(&self, body_bytes: usize) -> Duration {
        let sending = Duration::from_secs(body_bytes as u64 / SLOW_RATE);
        (self.left() + GRACE + sending).min(REQUEST_TIMEOUT)
    }

    /// Makes attempts until one succeeds, fails for good, or is the last one. Returns its result.
    pub(crate) async fn repeat<T>(
        &self,
        mut attempt: impl AsyncFnMut() -> (T, Option<RetryReason>),
    ) -> T {
        let mut number = 1;
        loop {
            let (result, reason) = attempt().await;
            let pause = reason.and_then(|reason| pause_after(number, reason, self.left()));
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return result,
            }
            number += 1;
        }
    }
}

/// Returns the pause before the next attempt; `None` if there is none. `number` is that of the
/// attempt that failed, from 1; `left` is the time that the user still waits.
fn pause_after(number: u32, reason: RetryReason, left: Duration) -> Option<Duration> {
    let requested = match reason {
        RetryReason::Broken | RetryReason::Busy(None) => Duration::ZERO,
        RetryReason::Busy(Some(pause)) => pause,
    };
    let pause = PAUSES.after(number.saturating_sub(1)).max(requested);
    (number < ATTEMPTS && requested <= PAUSES.longest && pause <= left).then_some(pause)
}

/// Reads the header `retry-after`: seconds, or a date.
pub(crate) fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    match value.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => {
            let date = httpdate::parse_http_date(value).ok()?;
            Some(date.duration_since(now).unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MINUTE: Duration = Duration::from_secs(60);

    /// Makes attempts that all fail so. Returns their number, and the time that they took.
    async fn failing(wait: Duration, reason: RetryReason) -> (u32, Duration) {
        let began = Instant::now();
        let mut attempts = 0;
        let attempt = async || {
            attempts += 1;
            ((), Some(reason))
        };
        WaitLimit::of(wait).repeat(attempt).await;
        (attempts, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_repeated_until_it_succeeds() {
        let began = Instant::now();
        let mut attempts = 0;
        let attempt = async || {
            attempts += 1;
            (attempts, (attempts < 3).then_some(RetryReason::Broken))
        };
        assert_eq!(WaitLimit::usual().repeat(attempt).await, 3);
        assert_eq!(began.elapsed(), PAUSES.first * 3);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_of_five_attempts_is_the_result() {
        let all = PAUSES.first * (1 + 2 + 4 + 8);
        assert_eq!(failing(MINUTE, RetryReason::Broken).await, (5, all));
        assert_eq!(failing(MINUTE, RetryReason::Busy(None)).await, (5, all));
    }

    #[tokio::test(start_paused = true)]
    async fn no_pause_is_longer_than_the_user_waits() {
        assert_eq!(
            failing(Duration::ZERO, RetryReason::Broken).await,
            (1, Duration::ZERO)
        );
        let (attempts, took) = failing(2 * SECOND, RetryReason::Broken).await;
        assert_eq!((attempts, took), (3, PAUSES.first * 3));
        assert_eq!(
            failing(Duration::MAX, RetryReason::Broken).await.0,
            ATTEMPTS
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_gets_the_pause_that_it_asks_for_up_to_a_limit() {
        let busy = |seconds| RetryReason::Busy(Some(seconds * SECOND));
        assert_eq!(
            failing(MINUTE, busy(3)).await,
            (5, (3 + 3 + 3 + 4) * SECOND)
        );
        assert_eq!(failing(MINUTE, busy(31)).await, (1, Duration::ZERO));
        assert_eq!(failing(10 * SECOND, busy(11)).await, (1, Duration::ZERO));
    }

    #[test]
    fn a_pause_is_asked_for_in_seconds_or_by_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        assert_eq!(retry_after(" 7 ", now), Some(7 * SECOND));
        assert_eq!(
            retry_after("Fri, 15 Jan 2027 08:00:05 GMT", now),
            Some(5 * SECOND)
        );
        assert_eq!(
            retry_after("Fri, 15 Jan 2027 07:00:00 GMT", now),
            Some(Duration::ZERO)
        );
        assert_eq!(retry_after("soon", now), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_may_take_a_little_longer_than_the_user_waits() {
        let limit = WaitLimit::of(3 * SECOND);
        assert_eq!(limit.request_timeout(100), 13 * SECOND);
        assert_eq!(limit.request_timeout(640 * 1024), 23 * SECOND);
        assert_eq!(limit.request_timeout(usize::MAX), MINUTE);
        assert_eq!(WaitLimit::usual().request_timeout(0), MINUTE);
    }
}
