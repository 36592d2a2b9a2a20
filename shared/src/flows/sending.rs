//! Sends messages. The trace of the invocation continues in them: their context is the span of the
//! call that sends them.

use std::time::Duration;

use super::Invocation;
use super::invocation::OpenSpan;
use super::spans::{AttributeValue, SpanKind};
use crate::cache::Queue;
use crate::ports::{Fault, QueueMessage, Queues, ReconcileMessage};

/// Sends build requests.
///
/// # Errors
///
/// As [`Queues::send`].
pub(super) async fn send(
    queues: &dyn Queues,
    invocation: &Invocation,
    mut messages: Vec<QueueMessage>,
    delay: Duration,
) -> Result<(), Fault> {
    let mut queue = messages.first().map(|message| message.queue);
    queue = queue.filter(|queue| messages.iter().all(|message| message.queue == *queue));
    let mut span = begin(invocation, queue, messages.len());
    for message in &mut messages {
        message.trace = span.context();
    }
    let sent = queues.send(&messages, delay).await;
    span.fail_if(sent.is_err());
    sent
}

/// Sends the request to reconcile a key.
///
/// # Errors
///
/// As [`Queues::reconcile`].
pub(super) async fn reconcile(
    queues: &dyn Queues,
    invocation: &Invocation,
    mut message: ReconcileMessage,
    delay: Duration,
) -> Result<(), Fault> {
    let mut span = begin(invocation, Some(Queue::Uploads), 1);
    message.trace = span.context();
    let sent = queues.reconcile(&message, delay).await;
    span.fail_if(sent.is_err());
    sent
}

/// Begins the span of a call that sends messages to one queue, or to several.
fn begin(invocation: &Invocation, queue: Option<Queue>, messages: usize) -> OpenSpan<'_> {
    let name = match queue {
        Some(Queue::Eager) => "send eager",
        Some(Queue::Uploads) => "send uploads",
        Some(Queue::Refresh) => "send refresh",
        None => "send",
    };
    let mut span = invocation.span_of(SpanKind::Producer, name);
    span.add(|| {
        let mut attributes = vec![
            ("messaging.system", AttributeValue::text("aws_sqs")),
            ("messaging.operation.name", AttributeValue::text("send")),
            ("messaging.operation.type", AttributeValue::text("send")),
            (
                "messaging.batch.message_count",
                AttributeValue::Number(i64::try_from(messages).unwrap_or(i64::MAX)),
            ),
        ];
        let queue = queue.map(|queue| AttributeValue::text(queue.as_str()));
        attributes.extend(queue.map(|queue| ("messaging.destination.name", queue)));
        attributes
    });
    span
}
