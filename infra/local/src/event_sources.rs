//! Event sources that invoke functions: queues and schedules.
//!
//! Messages of a queue are received in batches and delivered as the JSON that Lambda's event source
//! mappings send (AWS Lambda developer guide, "Using Lambda with Amazon SQS"). After the response:
//!
//! - without failures, the whole batch is deleted;
//! - messages that the function lists in `batchItemFailures` have failed; the others are deleted;
//! - if the function fails, or its response cannot be parsed, the whole batch has failed.
//!
//! A failed message becomes visible when its visibility timeout ends: the queue's, unless the
//! function has changed it (`ChangeMessageVisibility`). The clock of the queues can be moved there
//! ([`crate::control`]).
//!
//! The invocation for a batch continues the chain of messages that has invoked the function most
//! often. (AWS does not document which one it continues.)
//!
//! There is no polling: a source reads its queue when the queue changes or when the delay or
//! visibility timeout of a message ends. There is no prefetching: a message is received only when
//! its event can start. Until then it stays in the queue, where message groups take turns. The
//! queues of a function share its runs ([`SharedRuns`]).

mod shared_runs;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use md5::{Digest, Md5};
use serde::Deserialize;
use serde_json::{Value, json};
pub use shared_runs::{QueueRuns, SharedRuns};
use shared_runs::{TakenRun, permit};
use time::OffsetDateTime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::functions::Functions;
use crate::queues::{QueueError, Queues, Received};
use crate::template::{QueueSource, Schedule, queue_arn};
use crate::{dates, identity};

/// The delay before a source retries after an error.
const AFTER_ERROR: Duration = Duration::from_secs(1);

/// How many batches of messages are being delivered, by all sources that share it.
#[derive(Clone, Debug, Default)]
pub struct Deliveries(watch::Sender<usize>);

/// A batch that is being delivered, until it is dropped.
#[derive(Debug)]
struct Delivery(watch::Sender<usize>);

impl Deliveries {
    /// Returns their number, from before the messages are received until they are deleted or have
    /// failed. The receiver is notified of changes.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<usize> {
        self.0.subscribe()
    }

    fn begin(&self) -> Delivery {
        self.0.send_modify(|count| *count += 1);
        Delivery(self.0.clone())
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Delivers the messages of one queue to one function.
#[derive(Clone, Debug)]
pub struct QueuePoller {
    /// The queues.
    pub queues: Queues,
    /// The functions.
    pub functions: Functions,
    /// The function's name.
    pub function: String,
    /// The event source mapping.
    pub source: QueueSource,
    /// Limits the simultaneous events of all queues of this function.
    pub runs: QueueRuns,
    /// Counts the batches that are being delivered.
    pub deliveries: Deliveries,
}

impl QueuePoller {
    /// Runs until `shutdown`, and then until the messages that are being processed are deleted or
    /// have failed. Those whose invocations the stop of the stack ends stay in flight.
    pub async fn run(self, shutdown: CancellationToken) {
        let limit = self
            .source
            .maximum_concurrency
            .unwrap_or_else(|| self.functions.concurrency(&self.function));
        let own = Arc::new(Semaphore::new(limit));
        let mut deliveries = JoinSet::new();
        loop {
            let receiving = self.receive(&own);
            tokio::pin!(receiving);
            // The same future is polled until it is ready: dropped halfway, it could have hidden
            // messages that would not be delivered.
            let received = loop {
                tokio::select! {
                    () = shutdown.cancelled() => {
                        while deliveries.join_next().await.is_some() {}
                        return;
                    }
                    received = &mut receiving => break received,
                    Some(_) = deliveries.join_next() => {}
                }
            };
            match received {
                Ok((held, messages)) => {
                    let poller = self.clone();
                    let groups = self.runs.begin(&messages);
                    deliveries.spawn(async move {
                        poller.deliver(messages).await;
                        drop((held, groups));
                        // Further messages of these groups may be received now.
                        poller.queues.changed();
                    });
                }
                Err(error) => {
                    tracing::error!(%error, queue = %self.source.queue, "cannot receive messages");
                    tokio::time::sleep(AFTER_ERROR).await;
                }
            }
        }
    }

    /// Waits until an event may start and a message is available, and receives a batch.
    async fn receive(&self, own: &Arc<Semaphore>) -> Result<(Held, Vec<Received>), QueueError> {
        let queue = &self.source.queue;
        let mut changes = self.queues.changes();
        let first = permit(own).await;
        loop {
            changes.mark_unchanged();
            let due = self.queues.next_visible_at_ms(queue).await?;
            let now = self.queues.clock().now_ms();
            match due {
                Some(due) if due <= now => {
                    let run = self.runs.take().await;
                    let delivery = self.deliveries.begin();
                    let full = self.runs.full_groups();
                    let messages = self
                        .queues
                        .receive_except(queue, self.source.batch_size, None, full)
                        .await?;
                    if !messages.is_empty() {
                        return Ok(((first, run, delivery), messages));
                    }
                    // The message moved to the dead-letter queue, expired, was received by another
                    // client, or is of a group with as many runs as it may have. If a message is
                    // still due, the next attempt must not follow at once.
                    drop((run, delivery));
                    if self
                        .queues
                        .next_visible_at_ms(queue)
                        .await?
                        .is_some_and(|due| due <= now)
                    {
                        let _ = tokio::time::timeout(AFTER_ERROR, changes.changed()).await;
                    }
                }
                Some(due) => {
                    let wait = Duration::from_millis(due.saturating_sub(now).unsigned_abs());
                    let _ = tokio::time::timeout(wait, changes.changed()).await;
                }
                None => {
                    let _ = changes.changed().await;
                }
            }
        }
    }

    async fn deliver(&self, messages: Vec<Received>) {
        let queue = &self.source.queue;
        let event = sqs_event(queue, &messages);
        let traces = messages
            .iter()
            .filter_map(|message| message.trace_header.as_deref());
        let trace = self.functions.longest_chain(&self.function, traces);
        let answer = self
            .functions
            .invoke_when_allowed(&self.function, Bytes::from(event.to_string()), trace)
            .await;
        let failed = match &answer.outcome {
            Ok(bytes) if self.source.reports_failures => failures(bytes, &messages).unwrap_or_else(|problem| {
                tracing::warn!(function = %self.function, %queue, %problem, "invalid batch response; all messages will be retried");
                all(&messages)
            }),
            Ok(_) => BTreeSet::new(),
            // The next stack delivers them again.
            Err(error) if error.is_stopping() => return,
            Err(error) => {
                let hidden = messages.iter().map(|message| message.hidden_until_ms).max();
                let hidden = hidden.unwrap_or_default() - self.queues.clock().now_ms();
                tracing::warn!(
                    function = %self.function,
                    %queue,
                    %error,
                    seconds = hidden.max(0) / 1000,
                    "invocation failed; all messages will be retried when their visibility timeout ends: `POST /_local/clock?until=idle` moves the clock there"
                );
                all(&messages)
            }
        };
        let done = messages
            .iter()
            .filter(|message| !failed.contains(&message.id));
        for message in done {
            if let Err(error) = self.queues.delete(queue, &message.receipt).await {
                tracing::error!(%error, %queue, message_id = %message.id, "cannot delete message; it will be delivered again");
            }
        }
    }
}

/// What a delivery holds until it has ended.
type Held = (Option<OwnedSemaphorePermit>, TakenRun, Delivery);

fn all(messages: &[Received]) -> BTreeSet<String> {
    messages.iter().map(|message| message.id.clone()).collect()
}

/// Returns the ids of the messages that the function reports as failed. It returns an error, and
/// Lambda counts the whole batch as failed, if the response cannot be parsed or contains no id or
/// an unknown one ("Reporting batch item failures").
fn failures(answer: &[u8], messages: &[Received]) -> Result<BTreeSet<String>, String> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct BatchAnswer {
        #[serde(default)]
        batch_item_failures: Option<Vec<Failure>>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Failure {
        item_identifier: String,
    }
    let answer: Option<BatchAnswer> = serde_json::from_slice(answer)
        .map_err(|error| format!("the response is not a batch response: {error}"))?;
    let failed: BTreeSet<String> = answer
        .unwrap_or_default()
        .batch_item_failures
        .unwrap_or_default()
        .into_iter()
        .map(|failure| failure.item_identifier)
        .collect();
    match failed
        .iter()
        .find(|id| !messages.iter().any(|message| message.id == **id))
    {
        Some(unknown) => Err(format!(
            "the response lists {unknown:?}, which is not in the batch"
        )),
        None => Ok(failed),
    }
}

/// Returns the event that Lambda sends for these messages.
fn sqs_event(queue: &str, messages: &[Received]) -> Value {
    let records: Vec<Value> = messages
        .iter()
        .map(|message| {
            let mut attributes = json!({
                "ApproximateReceiveCount": message.receive_count.to_string(),
                "SentTimestamp": message.sent_at_ms.to_string(),
                "SenderId": identity::ACCOUNT,
                "ApproximateFirstReceiveTimestamp": message.first_received_at_ms.to_string(),
            });
            for (name, value) in [
                ("MessageGroupId", &message.group),
                ("AWSTraceHeader", &message.trace_header),
            ] {
                if let Some(value) = value {
                    attributes[name] = value.as_str().into();
                }
            }
            let message_attributes: serde_json::Map<String, Value> = message
                .attributes
                .iter()
                .map(|(name, value)| {
                    let data_type = message.attribute_types.get(name).map_or("String", String::as_str);
                    let field = if data_type.starts_with("Binary") { "binaryValue" } else { "stringValue" };
                    let attribute =
                        json!({ field: value, "stringListValues": [], "binaryListValues": [], "dataType": data_type });
                    (name.clone(), attribute)
                })
                .collect();
            json!({
                "messageId": message.id,
                "receiptHandle": message.receipt,
                "body": message.body,
                "attributes": attributes,
                "messageAttributes": message_attributes,
                "md5OfBody": hex::encode(Md5::digest(message.body.as_bytes())),
                "eventSource": "aws:sqs",
                "eventSourceARN": queue_arn(queue),
                "awsRegion": identity::REGION,
            })
        })
        .collect();
    json!({ "Records": records })
}

/// Invokes the function of a schedule at its interval, first one interval after the start. A run
/// that takes longer than the interval delays the next one.
pub async fn run_schedule(functions: Functions, schedule: Schedule, shutdown: CancellationToken) {
    let mut ticks = interval_at(Instant::now() + schedule.every, schedule.every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let event = schedule_event(&schedule, None);
        let answer = functions
            .invoke_when_allowed(&schedule.function, Bytes::from(event.to_string()), None)
            .await;
        if let Err(error) = answer.outcome
            && !error.is_stopping()
        {
            tracing::warn!(schedule = %schedule.name, function = %schedule.function, %error, "scheduled run failed");
        }
    }
}

/// Returns the event that EventBridge Scheduler sends. A schedule without an input of its own has
/// the text `{}` as `detail`; with `detail` it is the event of a manual invocation.
pub(crate) fn schedule_event(schedule: &Schedule, detail: Option<Value>) -> Value {
    json!({
        "version": "0",
        "id": Uuid::new_v4().to_string(),
        "detail-type": "Scheduled Event",
        "source": "aws.scheduler",
        "account": identity::ACCOUNT,
        "time": dates::iso(OffsetDateTime::now_utc()),
        "region": identity::REGION,
        "resources": [format!(
            "arn:aws:scheduler:{}:{}:schedule/default/{}",
            identity::REGION, identity::ACCOUNT, schedule.name
        )],
        "detail": detail.unwrap_or_else(|| Value::String("{}".to_owned())),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn message(id: &str) -> Received {
        Received {
            id: id.to_owned(),
            receipt: format!("receipt-{id}"),
            body: "hello".to_owned(),
            attributes: BTreeMap::from([("kind".to_owned(), "7".to_owned())]),
            attribute_types: BTreeMap::from([("kind".to_owned(), "Number".to_owned())]),
            group: None,
            trace_header: Some("Root=1-5759e988-bd862e3fe1be46a994272793".to_owned()),
            receive_count: 2,
            sent_at_ms: 1_700_000_000_000,
            first_received_at_ms: 1_700_000_001_000,
            hidden_until_ms: 1_700_000_061_000,
            moved_from: None,
        }
    }

    #[test]
    fn an_event_has_the_fields_that_lambda_sends() {
        let event = sqs_event("Orders", &[message("a")]);
        let record = &event["Records"][0];
        assert_eq!(record["messageId"], "a");
        assert_eq!(record["attributes"]["ApproximateReceiveCount"], "2");
        assert_eq!(record["attributes"]["SentTimestamp"], "1700000000000");
        assert_eq!(
            record["attributes"]["AWSTraceHeader"],
            "Root=1-5759e988-bd862e3fe1be46a994272793"
        );
        assert_eq!(record["messageAttributes"]["kind"]["stringValue"], "7");
        assert_eq!(record["messageAttributes"]["kind"]["dataType"], "Number");
        // Oracle: `printf hello | md5sum`.
        assert_eq!(record["md5OfBody"], "5d41402abc4b2a76b9719d911017c592");
        assert_eq!(
            record["eventSourceARN"],
            "arn:aws:sqs:us-east-1:000000000000:Orders"
        );
    }

    #[test]
    fn only_the_messages_that_a_response_lists_have_failed() {
        let messages = [message("a"), message("b")];
        for nothing in [
            "null",
            "{}",
            r#"{"batchItemFailures":null}"#,
            r#"{"batchItemFailures":[]}"#,
        ] {
            assert_eq!(
                failures(nothing.as_bytes(), &messages),
                Ok(BTreeSet::new()),
                "{nothing}"
            );
        }
        let one = br#"{"batchItemFailures":[{"itemIdentifier":"b"}]}"#;
        assert_eq!(
            failures(one, &messages),
            Ok(BTreeSet::from(["b".to_owned()]))
        );
    }

    #[test]
    fn a_response_that_lists_no_message_of_the_batch_fails_the_whole_batch() {
        let messages = [message("a")];
        for wrong in [
            r#"{"batchItemFailures":[{"itemIdentifier":"x"}]}"#,
            r#"{"batchItemFailures":[{}]}"#,
            r#""ok""#,
        ] {
            assert!(failures(wrong.as_bytes(), &messages).is_err(), "{wrong}");
        }
    }
}
