//! `POST /_local/clock`: moves the clocks of SQS and S3 ahead, so that a test, or a person, need
//! not wait for visibility timeouts, delays and lifecycle rules. The functions and DynamoDB keep
//! the time of the machine.

use std::collections::BTreeMap;
use std::time::Duration;

use http::StatusCode;
use serde_json::json;

use super::{Answer, Control, answer};
use crate::clock::Clock;
use crate::queues::QueueError;

/// The longest move.
const MAX_MOVE: Duration = Duration::from_secs(366 * 24 * 60 * 60);

impl Control {
    /// Moves the clocks by `advance` seconds, or that of SQS until the stack is idle.
    pub(super) async fn move_clock(&self, query: &BTreeMap<String, String>) -> Answer {
        let value = |name: &str| query.get(name).map(String::as_str);
        let seconds = match (value("advance"), value("until")) {
            (None, Some("idle")) => return self.idle(query, true).await,
            (Some(seconds), None) => seconds.parse().ok(),
            _ => return refused("expected advance=<seconds> or until=idle"),
        };
        let by = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let Some(by) = by.filter(|by| *by <= MAX_MOVE) else {
            return refused("advance is not a number of seconds between 0 and a year");
        };
        let (sqs, s3) = match value("of") {
            None => (true, true),
            Some("sqs") => (true, false),
            Some("s3") => (false, true),
            Some(_) => return refused("of is neither sqs nor s3"),
        };
        if sqs {
            self.queues.advance(by);
        }
        let mut expired = 0;
        if s3 {
            self.objects.clock().advance(by);
            match self.lifecycle.apply().await {
                Ok(removed) => expired = removed.objects,
                Err(detail) => {
                    let status = StatusCode::INTERNAL_SERVER_ERROR;
                    return answer(status, &json!({ "detail": detail }));
                }
            }
        }
        let ahead = |clock: &Clock| clock.ahead_ms() as f64 / 1000.0;
        let ahead = json!({
            "sqs": ahead(self.queues.clock()),
            "s3": ahead(self.objects.clock()),
            "expired": expired,
        });
        answer(StatusCode::OK, &ahead)
    }

    /// Moves the clock of SQS to when the first failed message is retried, if nothing else can
    /// happen before, except that a delay ends. Returns whether it was moved.
    pub(super) async fn skip_to_retry(&self) -> Result<bool, QueueError> {
        let mut next = None;
        for name in self.work_queues() {
            if self.queues.counts(name).await?.visible > 0 {
                return Ok(false);
            }
            let retry = self.queues.next_retry_at_ms(name).await?;
            next = next.into_iter().chain(retry).min();
        }
        // Read last: a message in flight that is not being delivered now has failed. One that was
        // received since is hidden for longer.
        let is_delivering = *self.deliveries.watch().borrow() > 0;
        let Some(at) = next.filter(|_| !is_delivering) else {
            return Ok(false);
        };
        self.queues.advance_to(at);
        Ok(true)
    }
}

fn refused(detail: &str) -> Answer {
    answer(StatusCode::BAD_REQUEST, &json!({ "detail": detail }))
}
