//! Serves the messages of the queues, which request the derived caches of modules.
//!
//! A message is valid as long as its build request is in the record. If the record has another
//! build request, or none, the message is dropped. A message that cannot be served now is sent
//! again, with a growing delay and a limited number of times. If it is dropped after that, the next
//! reader or the pruner requests the build again.

use std::time::Duration;

use super::build::{Builder, Outcome, Resend};
use super::{Error, Invocation, sending};
use crate::cache::{Queue, Token};
use crate::domain::Timestamp;
use crate::ports::{Consistency, Fault, QueueMessage};

/// The shortest delay of a message that is sent again. Queues count whole seconds.
const SHORTEST_DELAY: Duration = Duration::from_secs(1);

/// The longest delay of a message that is sent again, if it is not known when it can be served.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// The longest delay of a message that is due at a known time.
const LONGEST_KNOWN_DELAY: Duration = Duration::from_secs(15 * 60);

/// How often a message is sent again, which takes about half an hour in total. The template
/// disables Lambda's own limit on recursive invocations through a queue, which is 16.
const MAX_HOPS: u32 = 40;

impl Builder {
    /// Serves a message: builds the requested caches, unless its build requests are no longer
    /// pending.
    ///
    /// What cannot be built now is sent again with a delay, as a new message: a returned message
    /// would count as a failed delivery. After an error, the caller must let the message be
    /// delivered again.
    pub async fn serve(
        &self,
        invocation: &Invocation,
        message: &QueueMessage,
    ) -> Result<(), Error> {
        let converter = self.settings.policy.numbers.converter;
        if message.schema > QueueMessage::SCHEMA || message.min_converter > converter {
            return self.leave_to_newer_release(invocation, message).await;
        }
        if message.further.is_empty() || message.module.source.is_uploads() {
            for message in message.each() {
                self.serve_one(invocation, &message).await?;
            }
            return Ok(());
        }
        // One permit covers the probes for all modules. The first module that the server has is
        // built here, and each of the others by a message of its own, so that a large file delays
        // nothing else.
        let mut found = Box::pin(self.probe_batch(invocation, message))
            .await?
            .into_iter();
        let Some(first) = found.next() else {
            return Ok(());
        };
        let others: Vec<QueueMessage> = found.collect();
        if !others.is_empty() {
            sending::send(&*self.queues, invocation, others, Duration::ZERO).await?;
        }
        self.serve_one(invocation, &first).await
    }

    /// Serves a message with one module.
    async fn serve_one(
        &self,
        invocation: &Invocation,
        message: &QueueMessage,
    ) -> Result<(), Error> {
        let outcome = self.build_requested(invocation, message).await?;
        match resend_after(outcome, message.hops, invocation.now()) {
            None => Ok(()),
            Some(resend) => self.send_again(invocation, message, resend).await,
        }
    }

    /// Sends a message again that only a newer release can serve, while its build request is
    /// pending.
    async fn leave_to_newer_release(
        &self,
        invocation: &Invocation,
        message: &QueueMessage,
    ) -> Result<(), Error> {
        let is_pending = self.are_requests_pending(invocation, message).await?;
        tracing::debug!(
            module = message.module.id,
            is_pending,
            "message is for a newer release"
        );
        if !is_pending {
            return Ok(());
        }
        self.send_again(invocation, message, Resend::Growing).await
    }

    /// Returns whether any build request of a message is in its record; in the eager queue, whether
    /// one is still live.
    async fn are_requests_pending(
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
        let is_of_message = |id: &Token| each.iter().any(|one| one.build_request == *id);
        let now = invocation.now();
        Ok(loaded.iter().flatten().any(|stored| {
            let Some(entry) = stored.item.entry() else {
                // A newer release wrote the record, too.
                return true;
            };
            let pending = match message.queue {
                Queue::Eager => entry.live_request(now),
                Queue::Uploads | Queue::Refresh => entry.build_request(),
            };
            pending.is_some_and(|build_request| is_of_message(&build_request.id))
        }))
    }

    /// Sends a message again, unless it has reached the limit of hops.
    pub(super) async fn send_again(
        &self,
        invocation: &Invocation,
        message: &QueueMessage,
        resend: Resend,
    ) -> Result<(), Error> {
        let Some(growing) = delay_of(message.hops) else {
            tracing::warn!(
                module = message.module.id,
                hops = message.hops,
                "message dropped: the next reader will repeat its build request"
            );
            return Ok(());
        };
        let now = invocation.now();
        let delay = match resend {
            Resend::At(at) if now < at => (at.since(now) + SHORTEST_DELAY).min(LONGEST_KNOWN_DELAY),
            Resend::After(delay) => delay,
            // Messages that wait for the same server would return together, and take its permits in
            // turns with long pauses.
            Resend::At(_) | Resend::Growing => invocation.jittered(growing * 2) - growing / 2,
        };
        let again = QueueMessage {
            hops: message.hops + 1,
            ..message.clone()
        };
        Ok(sending::send(&*self.queues, invocation, vec![again], delay).await?)
    }
}

/// Returns the delay of a message after this number of hops; `None` if the limit is reached.
fn delay_of(hops: u32) -> Option<Duration> {
    (hops < MAX_HOPS).then(|| delay_after(hops))
}

/// Returns the delay of a message after this number of hops: half of the time that it has waited.
///
/// A crash may need more files of a server than builds may call it at a time. Most of these builds
/// take about a second, and the messages that have to wait for them find that out. Delays that
/// double would let each of them wait as long as all before it took together.
pub(super) fn delay_after(hops: u32) -> Duration {
    let half_of = |waited: Duration| (waited / 2).clamp(SHORTEST_DELAY, LONGEST_DELAY);
    let waited = (0..hops).fold(Duration::ZERO, |waited, _| waited + half_of(waited));
    half_of(waited)
}

/// Returns when to send the message of a build again after its outcome, if at all. The message has
/// had this number of hops.
pub(super) fn resend_after(outcome: Outcome, hops: u32, now: Timestamp) -> Option<Resend> {
    match outcome {
        Outcome::Settled => None,
        Outcome::Later(at) => Some(Resend::At(at)),
        Outcome::OtherBuilder { until } => {
            let delay = delay_after(hops);
            let is_first = now.plus(delay) < until;
            Some(if is_first {
                Resend::After(delay)
            } else {
                Resend::At(until)
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_sent_again_ever_later_and_half_an_hour_in_all() {
        let delays: Vec<Duration> = (0..).map_while(delay_of).collect();
        let seconds = |delay: &Duration| delay.as_secs_f64();
        let first: Vec<f64> = delays[..6].iter().map(seconds).collect();
        assert_eq!(first, [1.0, 1.0, 1.0, 1.5, 2.25, 3.375]);
        assert!(delays.is_sorted());
        assert_eq!(delays.last(), Some(&LONGEST_DELAY));
        let minutes = delays.iter().sum::<Duration>().as_secs() / 60;
        assert_eq!((delays.len(), minutes), (40, 29));
    }

    #[test]
    fn a_message_waits_for_another_builder_with_growing_delays_but_not_beyond_its_lease() {
        let now = Timestamp::from_secs(1000);
        let until = now.plus(Duration::from_secs(30));
        let resend = |hops| resend_after(Outcome::OtherBuilder { until }, hops, now);
        assert_eq!(resend(0), Some(Resend::After(SHORTEST_DELAY)));
        assert_eq!(resend(5), Some(Resend::After(delay_after(5))));
        assert_eq!(resend(MAX_HOPS), Some(Resend::At(until)));
    }
}
