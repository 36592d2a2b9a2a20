//! Messages of the lanes: derived caches of modules were asked for.
//!
//! A message lives as long as its ask: when another ask, or none, is in the record, the message has nothing to do. What
//! cannot be done now is sent again, ever later, and a bounded number of times. What is lost so is asked for again by the
//! next reader, or by the sweep.

use std::time::Duration;

use super::build::{Builder, Outcome};
use super::retries::Backoff;
use super::{Error, Invocation};
use crate::cache::{Converter, Queue};
use crate::domain::Timestamp;
use crate::ports::{Consistency, Fault, QueueMessage};

/// Delays of a message that is sent again for the first, the second … time.
pub(super) const SENT_AGAIN: Backoff = Backoff {
    first: Duration::from_secs(5),
    longest: Duration::from_secs(60),
};

/// The longest delay of a message that is to be seen at a later time.
const MAX_DELAY: Duration = Duration::from_secs(15 * 60);

/// How often a message is sent again: about half an hour. Lambda's own bound on chains of functions and queues, 16, is
/// switched off in the template.
pub const MAX_HOPS: u32 = 32;

impl Builder {
    /// Serves a message: builds what it asks for, unless its ask is over.
    ///
    /// What cannot be done now is sent again with a delay, as a new message: giving this one back would count as a
    /// failed delivery. An error means that the message must come back by itself.
    pub async fn serve(
        &self,
        invocation: &Invocation,
        message: &QueueMessage,
    ) -> Result<(), Error> {
        if message.schema > QueueMessage::SCHEMA || message.min_converter > Converter::CURRENT {
            return self.leave_to_newer_build(invocation, message).await;
        }
        if message.further.is_empty() || message.module.source.is_uploads() {
            for message in message.each() {
                self.serve_one(invocation, &message).await?;
            }
            return Ok(());
        }
        // One visit finds out which of the modules the server has. The first of these is built here, and each of the
        // others elsewhere, so that a large file holds up nothing else.
        let mut found = Box::pin(self.probe_batch(invocation, message))
            .await?
            .into_iter();
        let Some(first) = found.next() else {
            return Ok(());
        };
        let others: Vec<QueueMessage> = found.collect();
        if !others.is_empty() {
            self.queues.send(&others, Duration::ZERO).await?;
        }
        self.serve_one(invocation, &first).await
    }

    /// Serves a message that asks for one module.
    async fn serve_one(
        &self,
        invocation: &Invocation,
        message: &QueueMessage,
    ) -> Result<(), Error> {
        match self.build_requested(invocation, message).await? {
            Outcome::Settled => Ok(()),
            Outcome::Later(at) => self.send_again(invocation, message, at).await,
        }
    }

    /// Sends a message again that only a newer build can serve, as long as somebody waits for what it asks.
    async fn leave_to_newer_build(
        &self,
        invocation: &Invocation,
        message: &QueueMessage,
    ) -> Result<(), Error> {
        let stands = self.are_requests_live(invocation, message).await?;
        tracing::info!(
            module = message.module.id,
            stands,
            "message is for a newer build"
        );
        if !stands {
            return Ok(());
        }
        self.send_again(invocation, message, invocation.now()).await
    }

    /// Tells whether any ask of a message is in its record; in the eager lane, whether one still stands.
    async fn are_requests_live(
        &self,
        invocation: &Invocation,
        message: &QueueMessage,
    ) -> Result<bool, Fault> {
        let each: Vec<QueueMessage> = message.each().collect();
        let keys = each
            .iter()
            .flat_map(|one| one.kinds.iter().map(|kind| one.module.entry(*kind)));
        let keys: Vec<_> = keys.collect();
        let loaded = self.records.load(&keys, Consistency::Strong).await?;
        let is_of_message = |id| each.iter().any(|one| one.build_request == id);
        let now = invocation.now();
        Ok(loaded.iter().flatten().any(|stored| {
            let Some(entry) = stored.item.entry() else {
                // It is a newer build's, too.
                return true;
            };
            let standing = match message.queue {
                Queue::Eager => entry.live_request(now),
                Queue::Uploads | Queue::Refresh => entry.build_request(),
            };
            standing.is_some_and(|build_request| is_of_message(build_request.id.clone()))
        }))
    }

    /// Sends a message to be seen at a time, give or take a second, and later each time that it is sent again.
    pub(super) async fn send_again(
        &self,
        invocation: &Invocation,
        message: &QueueMessage,
        at: Timestamp,
    ) -> Result<(), Error> {
        let Some(delay) = delay_of(message.hops) else {
            tracing::warn!(
                module = message.module.id,
                hops = message.hops,
                "message dropped: the next reader will repeat its build request"
            );
            return Ok(());
        };
        let due = at.since(invocation.now());
        // Where it is known when something can be done, there is no use in guessing.
        let delay = match due.is_zero() {
            true => delay,
            false => SENT_AGAIN
                .first
                .max(due + Duration::from_secs(1))
                .min(MAX_DELAY),
        };
        let again = QueueMessage {
            hops: message.hops + 1,
            ..message.clone()
        };
        Ok(self.queues.send(&[again], delay).await?)
    }
}

/// Returns how long a message waits that was sent again so often; `None` where it was sent often enough.
pub(super) fn delay_of(hops: u32) -> Option<Duration> {
    (hops < MAX_HOPS).then(|| SENT_AGAIN.after(hops))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_sent_again_ever_later_and_half_an_hour_in_all() {
        let delays: Vec<u64> = (0..)
            .map_while(delay_of)
            .map(|delay| delay.as_secs())
            .collect();
        assert_eq!(delays[..6], [5, 10, 20, 40, 60, 60]);
        let minutes = delays.iter().sum::<u64>() / 60;
        assert_eq!((delays.len(), minutes), (32, 29));
    }
}
