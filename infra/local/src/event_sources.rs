//! What invokes functions besides requests: messages of queues, and schedules.
//!
//! A queue's messages are received in batches and delivered as the JSON that Lambda's event source mappings send (AWS Lambda
//! developer guide, "Using Lambda with Amazon SQS"). After the answer:
//!
//! - without failures the whole batch is deleted;
//! - messages that the function names in `batchItemFailures` have failed, the others are deleted;
//! - if the function fails, or its answer cannot be read, the whole batch has failed.
//!
//! A failed message becomes visible when its visibility timeout ends, as in AWS, if the function has
//! changed that timeout (`ChangeMessageVisibility`). If it has not, the message becomes visible after
//! a back-off of receive count² seconds. (AWS would wait for the queue's visibility timeout, a quarter
//! of an hour and more.)
//!
//! Nothing is polled: a source looks when a queue changed, or when a message is due that was hidden.
//! Nothing is fetched ahead: a message is taken when there is room for its event. Until then it waits in the queue, where groups
//! take turns.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use md5::{Digest, Md5};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::functions::Functions;
use crate::functions::calendar::Moment;
use crate::identity;
use crate::queues::{QueueError, Queues, Received};
use crate::template::{QueueSource, Schedule, queue_arn};

/// A source that failed looks again after this.
const AFTER_ERROR: Duration = Duration::from_secs(1);

/// The longest that a message is hidden after it failed.
const MAX_BACK_OFF: Duration = Duration::from_secs(900);

/// Delivers the messages of one queue to one function until it is dropped.
#[derive(Clone, Debug)]
pub struct QueuePoller {
    /// The queues.
    pub queues: Queues,
    /// The functions.
    pub functions: Functions,
    /// The function's name.
    pub function: String,
    /// The mapping.
    pub source: QueueSource,
    /// Events of all of this function's queues that may run at the same time. It is fair: no lane starves another.
    pub together: Arc<Semaphore>,
}

impl QueuePoller {
    /// Runs until `shutdown`; then messages in work stay in flight.
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
            // One future until it is ready: dropped in the middle, it might have hidden messages that nobody then delivers.
            let received = loop {
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    received = &mut receiving => break received,
                    Some(_) = deliveries.join_next() => {}
                }
            };
            match received {
                Ok((permits, messages)) => {
                    let poller = self.clone();
                    deliveries.spawn(async move {
                        poller.deliver(messages).await;
                        drop(permits);
                    });
                }
                Err(error) => {
                    tracing::error!(%error, queue = %self.source.queue, "cannot receive messages");
                    tokio::time::sleep(AFTER_ERROR).await;
                }
            }
        }
    }

    /// Waits until there is room for an event and a message to send in it.
    async fn receive(&self, own: &Arc<Semaphore>) -> Result<(Permits, Vec<Received>), QueueError> {
        let queue = &self.source.queue;
        let mut changes = self.queues.changes();
        let first = permit(own).await;
        loop {
            changes.mark_unchanged();
            let due = self.queues.next_visible_at_ms(queue).await?;
            let now = self.queues.clock().now_ms();
            match due {
                Some(due) if due <= now => {
                    let second = permit(&self.together).await;
                    let messages = self
                        .queues
                        .receive(queue, self.source.batch_size, None)
                        .await?;
                    if !messages.is_empty() {
                        return Ok(((first, second), messages));
                    }
                    // It moved to the dead-letter queue, expired, or somebody else took it. Whatever is still in the way, the
                    // next look must not follow at once.
                    drop(second);
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
        let answer = self
            .functions
            .invoke(&self.function, Bytes::from(event.to_string()))
            .await;
        let failed = match &answer.outcome {
            Ok(bytes) if self.source.reports_failures => failures(bytes, &messages).unwrap_or_else(|problem| {
                tracing::warn!(function = %self.function, "the whole batch counts as failed: {problem}");
                all(&messages)
            }),
            Ok(_) => BTreeSet::new(),
            Err(error) => {
                tracing::warn!(function = %self.function, %queue, %error, "a batch failed and will be seen again");
                all(&messages)
            }
        };
        for message in &messages {
            let settled = if failed.contains(&message.id) {
                let back_off = back_off(message.receive_count);
                self.queues.back_off(queue, message, back_off).await
            } else {
                self.queues.delete(queue, &message.receipt).await
            };
            if let Err(error) = settled {
                tracing::error!(%error, %queue, message = %message.id, "cannot settle a message; it will be seen again");
            }
        }
    }
}

type Permits = (Option<OwnedSemaphorePermit>, Option<OwnedSemaphorePermit>);

/// A permit; `None` only if the semaphore was closed, which nobody does.
async fn permit(semaphore: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    Arc::clone(semaphore).acquire_owned().await.ok()
}

fn all(messages: &[Received]) -> BTreeSet<String> {
    messages.iter().map(|message| message.id.clone()).collect()
}

fn back_off(receive_count: u32) -> Duration {
    Duration::from_secs(u64::from(receive_count).pow(2)).min(MAX_BACK_OFF)
}

/// The ids of the messages that the function says have failed. Lambda counts the whole batch as failed where the answer is not
/// readable, names no id or an unknown one ("Reporting batch item failures").
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
        .map_err(|error| format!("the answer is not a batch response: {error}"))?;
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
            "the answer names {unknown:?}, which is not in the batch"
        )),
        None => Ok(failed),
    }
}

/// The event that Lambda makes of messages.
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
            if let (Some(group), Some(attributes)) = (&message.group, attributes.as_object_mut()) {
                attributes.insert("MessageGroupId".to_owned(), group.as_str().into());
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
                "md5OfBody": hex(&Md5::digest(message.body.as_bytes())),
                "eventSource": "aws:sqs",
                "eventSourceARN": queue_arn(queue),
                "awsRegion": identity::REGION,
            })
        })
        .collect();
    json!({ "Records": records })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Invokes the function of a schedule at its interval, for the first time one interval after the start. A run that takes longer
/// than the interval delays the next.
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
            .invoke(&schedule.function, Bytes::from(event.to_string()))
            .await;
        if let Err(error) = answer.outcome {
            tracing::warn!(schedule = %schedule.name, function = %schedule.function, %error, "a scheduled run failed");
        }
    }
}

/// The event that EventBridge Scheduler sends where the schedule has no input of its own: `detail` is then the text `{}`.
/// With `detail` it is the event of a person who invokes the function by hand.
pub(crate) fn schedule_event(schedule: &Schedule, detail: Option<Value>) -> Value {
    json!({
        "version": "0",
        "id": Uuid::new_v4().to_string(),
        "detail-type": "Scheduled Event",
        "source": "aws.scheduler",
        "account": identity::ACCOUNT,
        "time": Moment::now().iso(),
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
            receive_count: 2,
            sent_at_ms: 1_700_000_000_000,
            first_received_at_ms: 1_700_000_001_000,
            hidden_until_ms: 1_700_000_061_000,
            moved_from: None,
        }
    }

    #[test]
    fn an_event_has_the_fields_that_lambda_sends() {
        let event = sqs_event("Lane", &[message("a")]);
        let record = &event["Records"][0];
        assert_eq!(record["messageId"], "a");
        assert_eq!(record["attributes"]["ApproximateReceiveCount"], "2");
        assert_eq!(record["attributes"]["SentTimestamp"], "1700000000000");
        assert_eq!(record["messageAttributes"]["kind"]["stringValue"], "7");
        assert_eq!(record["messageAttributes"]["kind"]["dataType"], "Number");
        // Oracle: `printf hello | md5sum`.
        assert_eq!(record["md5OfBody"], "5d41402abc4b2a76b9719d911017c592");
        assert_eq!(
            record["eventSourceARN"],
            "arn:aws:sqs:us-east-1:000000000000:Lane"
        );
    }

    #[test]
    fn named_messages_have_failed_and_an_empty_answer_names_none() {
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
    fn an_answer_that_names_nobody_in_the_batch_fails_all_of_it() {
        let messages = [message("a")];
        for wrong in [
            r#"{"batchItemFailures":[{"itemIdentifier":"x"}]}"#,
            r#"{"batchItemFailures":[{}]}"#,
            r#""ok""#,
        ] {
            assert!(failures(wrong.as_bytes(), &messages).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_back_off_grows_with_the_square_of_receives() {
        assert_eq!(back_off(1), Duration::from_secs(1));
        assert_eq!(back_off(5), Duration::from_secs(25));
        assert_eq!(back_off(1000), MAX_BACK_OFF);
    }
}
