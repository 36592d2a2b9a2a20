//! The queues: events and messages on their way, and how they are received.

use std::time::Duration;

use symdepot::adapters::memory::{SentMessage, SentReconcile};
use symdepot::flows::uploads::UploadEvent;
use symdepot::ports::Received;

use super::{
    Appointment, Body, DERIVE_TIME, Done, Fleet, Flows, Function, MAX_RECEIVES, Message,
    NO_INSTANCE, VISIBILITY_TIMEOUT,
};
use crate::simulate::mistakes::Mistake;
use crate::simulate::workload::FUTURE;

/// The hops after which the platform stops a message, unless its queue is exempt.
const MAX_HOPS: u32 = 16;

/// Messages that were sent on this often come once. Otherwise, if a third of all messages come
/// twice, a message that is sent on for half an hour, 32 times, becomes thousands.
const MAX_DOUBLED_HOPS: u32 = 8;

impl Fleet {
    pub(super) fn send_event(&mut self, event: UploadEvent) {
        self.enqueue(Body::Event(event), Duration::ZERO);
    }

    pub(super) fn collect_messages(&mut self) {
        for SentMessage { message, delay } in self.stores.queues.drain() {
            self.enqueue(Body::Build(message), delay);
        }
        for SentReconcile { message, delay } in self.stores.queues.drain_reconcile_messages() {
            self.enqueue(Body::Reconcile(message), delay);
        }
        for (received, delay) in self.stores.queues.drain_retried() {
            if self.stores.mistake == Some(Mistake::FailedMessagesWaitForTheirTimeout) {
                continue;
            }
            let receipt = received.receipt.split('#').next();
            if let Some(id) = receipt.and_then(|id| id.parse().ok()) {
                self.show(id, delay);
            }
        }
    }

    /// Adds a message to a queue, perhaps twice or not at all.
    pub(super) fn enqueue(&mut self, body: Body, delay: Duration) {
        let (copies, late) = if self.is_calm {
            (1, Duration::from_millis(20))
        } else {
            self.faults.delivery()
        };
        let is_loop = self.plan.stops_loops && body.hops() >= MAX_HOPS;
        let copies = match body.hops() {
            _ if is_loop => 0,
            MAX_DOUBLED_HOPS.. => copies.min(1),
            _ => copies,
        };
        if copies == 0 {
            self.note(|| format!("a message is lost: {}", body.text()));
        }
        for _ in 0..copies {
            self.drawn += 1;
            let id = self.drawn;
            let message = Message {
                body: body.clone(),
                receives: 0,
                visible_at: self.now,
                is_calm: self.is_calm,
            };
            self.messages.insert(id, message);
            let late = late.mul_f64(0.5 + self.schedule.fraction());
            self.show(id, delay + late);
        }
    }

    /// Makes a message visible after a time.
    pub(super) fn show(&mut self, id: u64, after: Duration) {
        let at = self.now + after;
        if let Some(message) = self.messages.get_mut(&id) {
            message.visible_at = at;
            self.appoint(at, Appointment::Deliver(id));
        }
    }

    /// Returns whether a message for a newer release is only sent again, if that is the planted
    /// mistake.
    fn is_sent_again(&self, at: usize, id: u64) -> bool {
        let numbers = self.members[at].release.numbers(self.plan.difference);
        let is_beyond = |message: &Message| match &message.body {
            Body::Build(build) => build.min_converter > numbers.converter,
            Body::Event(_) | Body::Reconcile(_) => false,
        };
        self.stores.mistake == Some(Mistake::MessagesOutliveTheirRequests)
            && self.messages.get(&id).is_some_and(is_beyond)
    }

    pub(super) fn deliver(&mut self, id: u64) {
        let Some(message) = self.messages.get(&id) else {
            return;
        };
        if message.visible_at > self.now {
            return;
        }
        let Some(at) = self.idle(Function::Derive) else {
            self.show(id, NO_INSTANCE);
            return;
        };
        if self.is_sent_again(at, id) {
            self.show(id, Duration::from_secs(60));
            return;
        }
        let Some(message) = self.messages.get_mut(&id) else {
            return;
        };
        message.receives += 1;
        let (receives, is_calm) = (message.receives, message.is_calm);
        let mut body = message.body.clone();
        if receives > MAX_RECEIVES {
            self.messages.remove(&id);
            self.stores.ledger().counts.dead_letters += 1;
            self.note(|| format!("dead letter: {}", body.text()));
            // An older release leaves the events of what a newer one has filed to a newer one.
            let is_of_future = body.text().contains(FUTURE);
            let is_undisturbed = is_calm || self.settled_within().is_some();
            if is_undisturbed && !is_of_future {
                self.fail("no dead letters", body.text());
            }
            return;
        }
        self.show(id, VISIBILITY_TIMEOUT);
        if let (Some(Mistake::SequencersAreIgnored), Body::Event(event)) =
            (self.stores.mistake, &mut body)
        {
            event.sequencer = self.sequencer();
        }
        if let (Some(Mistake::OutdatedReadersLoop), Body::Build(message)) =
            (self.stores.mistake, &mut body)
        {
            // The builder does not know that the requester cannot read what it makes.
            let numbers = self.members[at].release.numbers(self.plan.difference);
            message.min_converter = message.min_converter.max(numbers.converter);
        }
        let name = self.members[at].instance.name.clone();
        self.note(|| {
            format!(
                "{name} receives message {id}, {receives} times: {}",
                body.text()
            )
        });
        let (now, begin) = self.invocation(at, DERIVE_TIME);
        let member = &mut self.members[at];
        let Flows::Builder(builder) = &member.flows else {
            return;
        };
        let builder = builder.clone();
        member.instance.start(now, DERIVE_TIME, || {
            let invocation = begin();
            async move {
                let served = match &body {
                    Body::Event(event) => builder.apply_upload_event(&invocation, event).await,
                    Body::Build(message) => Box::pin(builder.serve(&invocation, message)).await,
                    Body::Reconcile(message) => builder.reconcile(&invocation, message).await,
                };
                let Err(error) = served else {
                    return Done::Message(id, Ok(()));
                };
                let received = Received {
                    queue: "arn:aws:sqs:::queue".to_owned(),
                    receipt: format!("{id}#{receives}"),
                };
                // As in the function: otherwise the message is visible after its timeout.
                let is_put_off = builder.retry_later(&received, receives).await.is_ok();
                Done::Message(id, Err((error.to_string(), is_put_off)))
            }
        });
    }
}
