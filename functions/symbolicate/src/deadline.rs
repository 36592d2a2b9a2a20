//! The end of a request's time.
//!
//! A store that does not respond costs a request its time. Lambda would stop the instance then, and
//! count it as an error of the function.

use std::time::Duration;

use symdepot::flows::Invocation;

use crate::failure::Failure;

/// The time at the end of an invocation that is left for the response and the log. Nothing is left
/// for the export of a trace.
const RESERVE: Duration = Duration::from_millis(500);

/// Waits for an answer as long as there is time.
///
/// # Errors
///
/// The time is up.
pub(crate) async fn in_time<T>(
    invocation: &Invocation,
    answer: impl Future<Output = T>,
) -> Result<T, Failure> {
    let limit = invocation.time_left().saturating_sub(RESERVE);
    let answer = tokio::time::timeout(limit, answer).await;
    answer.map_err(|_| Failure::time_is_up())
}
