//! The queues as SQS standard queues.
//!
//! Messages of one scope and source form a message group. If one group has a backlog, SQS serves
//! the groups in turn (SQS developer guide, "Amazon SQS fair queues").

use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::SendMessageBatchRequestEntry;
use futures::future::join_all;
use futures::stream::{self, StreamExt};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::error::store_error;
use crate::cache::Queue;
use crate::domain::SourceKey;
use crate::ports::{Fault, FaultKind, QueueMessage, Queues, Received, ReconcileMessage};

/// The longest delay of a message (SQS API reference, `SendMessage`, `DelaySeconds`).
const MAX_DELAY_SECONDS: u64 = 900;

/// The most messages of one call (SQS API reference, `SendMessageBatch`).
const BATCH_MESSAGES: usize = 10;

/// The most bytes of one call. The quota was 256 KiB until August 2025 and is 1 MiB since (SQS
/// developer guide, "Message quotas"); the difference leaves space for the group names.
const BATCH_BYTES: usize = 240 * 1024;

/// The maximum number of concurrent calls.
const BATCHES_IN_PARALLEL: usize = 8;

/// The queues in SQS.
#[derive(Clone, Debug)]
pub struct SqsQueues {
    client: Client,
    urls: QueueUrls,
}

/// The URLs of the queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueUrls {
    /// The eager queue.
    pub eager: String,
    /// The uploads queue.
    pub uploads: String,
    /// The refresh queue.
    pub refresh: String,
}

impl SqsQueues {
    /// Returns the queues with these URLs.
    pub fn new(client: Client, urls: QueueUrls) -> Self {
        Self { client, urls }
    }

    async fn send_bodies(
        &self,
        url: &str,
        bodies: Vec<MessageBody>,
        delay: Duration,
    ) -> Result<(), Fault> {
        let batches = batches(bodies).into_iter();
        let sends = batches.map(|batch| self.send_batch(url, batch, delay));
        let mut sent =
            stream::iter(sends.collect::<Vec<_>>()).buffer_unordered(BATCHES_IN_PARALLEL);
        let mut failed = None;
        // A failed batch does not stop the others.
        while let Some(result) = sent.next().await {
            failed = failed.or(result.err());
        }
        failed.map_or(Ok(()), Err)
    }

    async fn send_batch(
        &self,
        url: &str,
        batch: Vec<MessageBody>,
        delay: Duration,
    ) -> Result<(), Fault> {
        let context = || format!("SQS SendMessageBatch to {url}");
        let entry = |(number, MessageBody { text, group }): (usize, MessageBody)| {
            SendMessageBatchRequestEntry::builder()
                .id(number.to_string())
                .message_body(text)
                .message_group_id(group)
                .delay_seconds(delay_seconds(delay))
                .build()
                .map_err(|error| Fault::new(FaultKind::Bug, context()).caused_by(error))
        };
        let entries: Result<Vec<_>, _> = batch.into_iter().enumerate().map(entry).collect();
        let answer = self
            .client
            .send_message_batch()
            .queue_url(url)
            .set_entries(Some(entries?))
            .send()
            .await
            .map_err(|error| store_error(context(), &error))?;
        match answer.failed.first() {
            None => Ok(()),
            Some(failed) => {
                let kind = if failed.sender_fault {
                    FaultKind::Bug
                } else {
                    FaultKind::Transient
                };
                let (count, code) = (answer.failed.len(), &failed.code);
                let cause = format!("SQS rejected {count} messages, the first with {code}");
                Err(Fault::new(kind, context()).caused_by(cause))
            }
        }
    }
}

#[async_trait]
impl Queues for SqsQueues {
    async fn send(&self, messages: &[QueueMessage], delay: Duration) -> Result<(), Fault> {
        let sends = [Queue::Eager, Queue::Uploads, Queue::Refresh].map(|queue| {
            let url = match queue {
                Queue::Eager => &self.urls.eager,
                Queue::Uploads => &self.urls.uploads,
                Queue::Refresh => &self.urls.refresh,
            };
            let in_queue = messages.iter().filter(|message| message.queue == queue);
            let body = |message: &QueueMessage| {
                let group = group(message.module.scope.as_str(), &message.module.source);
                MessageBody::new(message, group)
            };
            let bodies: Result<Vec<_>, Fault> = in_queue.map(body).collect();
            async move { self.send_bodies(url, bodies?, delay).await }
        });
        // The messages of one queue may be accepted although those of another one are not.
        let sent = join_all(sends).await;
        sent.into_iter().collect()
    }

    async fn reconcile(&self, message: &ReconcileMessage, delay: Duration) -> Result<(), Fault> {
        let key = message.key.as_str();
        let scope = key.split_once('/').map_or("", |(scope, _)| scope);
        let group = group(scope, &SourceKey::Uploads);
        let body = MessageBody::new(message, group)?;
        self.send_bodies(&self.urls.uploads, vec![body], delay)
            .await
    }

    async fn retry_later(&self, received: &Received, delay: Duration) -> Result<(), Fault> {
        let context = || format!("SQS ChangeMessageVisibility in {}", received.queue);
        let url = self.urls.of_queue(received.queue_name()).ok_or_else(|| {
            let cause = "no build queue has this name; check EAGER_QUEUE_URL, UPLOADS_QUEUE_URL and REFRESH_QUEUE_URL";
            Fault::new(FaultKind::Bug, context()).caused_by(cause)
        })?;
        self.client
            .change_message_visibility()
            .queue_url(url)
            .receipt_handle(&received.receipt)
            .visibility_timeout(delay_seconds(delay))
            .send()
            .await
            .map_err(|error| store_error(context(), &error))?;
        Ok(())
    }
}

impl QueueUrls {
    /// Returns the URL of the queue with a name, which is the last segment of the URL (SQS
    /// developer guide, "Queue and message identifiers").
    fn of_queue(&self, name: &str) -> Option<&str> {
        let Self {
            eager,
            uploads,
            refresh,
        } = self;
        let urls = [eager, uploads, refresh].map(String::as_str);
        let is_named = |url: &&str| url.rsplit('/').next() == Some(name);
        urls.into_iter().find(is_named)
    }
}

/// A serialized message.
struct MessageBody {
    text: String,
    group: String,
}

impl MessageBody {
    fn new(message: &impl Serialize, group: String) -> Result<Self, Fault> {
        let json = serde_json::to_string(message).map_err(|error| {
            Fault::new(FaultKind::Bug, "serializing a message").caused_by(error)
        })?;
        let text = ascii(&json);
        Ok(Self { text, group })
    }
}

/// Divides messages, in order, into batches within the limits of SQS.
fn batches(bodies: Vec<MessageBody>) -> Vec<Vec<MessageBody>> {
    let mut batches: Vec<Vec<MessageBody>> = Vec::new();
    let mut bytes = 0;
    for body in bodies {
        let length = body.text.len();
        match batches.last_mut() {
            Some(batch) if batch.len() < BATCH_MESSAGES && bytes + length <= BATCH_BYTES => {
                bytes += length;
                batch.push(body);
            }
            _ => {
                bytes = length;
                batches.push(vec![body]);
            }
        }
    }
    batches
}

/// Returns whole seconds, rounded up and capped at the limit of SQS.
fn delay_seconds(delay: Duration) -> i32 {
    let seconds = delay
        .as_secs()
        .saturating_add(u64::from(delay.subsec_nanos() > 0));
    i32::try_from(seconds.min(MAX_DELAY_SECONDS)).expect("the limit is fifteen minutes")
}

/// Returns the group of the messages of a scope and source, in characters that SQS allows.
fn group(scope: &str, source: &SourceKey) -> String {
    let hash = Sha256::digest(format!("scope: {scope}\nsource: {source}\n"));
    format!("{hash:x}")[..32].to_owned()
}

/// Escapes non-ASCII characters in a JSON text, where they occur only in strings. SQS rejects some
/// characters (SQS API reference, `SendMessage`, `MessageBody`), and a key in a bucket may contain
/// any.
fn ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii() {
            text.push(character);
        } else {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                text.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Converter, Kind, ModuleKey, Token};

    fn message(scope: &str, module: &str) -> QueueMessage {
        let module = ModuleKey {
            scope: scope.parse().unwrap(),
            source: crate::domain::SourceKey::Uploads,
            id: module.to_owned(),
        };
        let build_request = Token::from_random(1);
        QueueMessage::new(
            Queue::Eager,
            module,
            vec![Kind::SymCache],
            build_request,
            Converter::CURRENT,
        )
    }

    #[test]
    fn a_message_with_any_characters_is_sent_in_those_that_sqs_allows() {
        let message = message("größe \u{ffff} 🦀", "debug_id:\"quoted\" \u{7} \\u0041");
        let body = ascii(&serde_json::to_string(&message).unwrap());
        assert!(
            body.bytes().all(|byte| (0x20..0x7f).contains(&byte)),
            "{body}"
        );
        assert_eq!(
            serde_json::from_str::<QueueMessage>(&body).unwrap(),
            message
        );
    }

    #[test]
    fn a_batch_has_ten_messages_and_a_quarter_of_a_megabyte_at_most() {
        let sizes = |lengths: &[usize]| {
            let body = |length: &usize| MessageBody {
                text: "x".repeat(*length),
                group: String::new(),
            };
            let batches = batches(lengths.iter().map(body).collect());
            let sizes: Vec<usize> = batches.iter().map(Vec::len).collect();
            sizes
        };
        assert_eq!(sizes(&[]), [0; 0]);
        assert_eq!(sizes(&[100; 21]), [10, 10, 1]);
        assert_eq!(sizes(&[BATCH_BYTES / 2; 5]), [2, 2, 1]);
        // SQS rejects a message that is too large for any batch; no other message is rejected with
        // it.
        assert_eq!(sizes(&[1, BATCH_BYTES + 1, 1]), [1, 1, 1]);
    }

    #[test]
    fn a_delay_is_whole_seconds_up_to_a_quarter_of_an_hour() {
        assert_eq!(delay_seconds(Duration::ZERO), 0);
        assert_eq!(delay_seconds(Duration::from_millis(1)), 1);
        assert_eq!(delay_seconds(Duration::from_secs(30)), 30);
        assert_eq!(delay_seconds(Duration::MAX), 900);
    }

    #[test]
    fn the_arn_of_a_queue_is_read_from_its_url() {
        let url =
            |name: &str| format!("https://sqs.eu-central-1.amazonaws.com/123456789012/{name}");
        let urls = QueueUrls {
            eager: url("symdepot-eager"),
            uploads: url("symdepot-uploads"),
            refresh: url("symdepot-refresh"),
        };
        let received = |name: &str| Received {
            queue: format!("arn:aws:sqs:eu-central-1:123456789012:{name}"),
            receipt: String::new(),
        };
        let of = |name: &str| {
            urls.of_queue(received(name).queue_name())
                .map(str::to_owned)
        };
        assert_eq!(of("symdepot-uploads"), Some(url("symdepot-uploads")));
        assert_eq!(of("uploads"), None);
    }

    #[test]
    fn each_scope_has_its_own_message_group() {
        let group = |scope| group(scope, &SourceKey::Uploads);
        assert_eq!(group("acme"), group("acme"));
        assert_ne!(group("acme"), group("global"));
        assert_eq!(group("acme").len(), 32);
    }
}
