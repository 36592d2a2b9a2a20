//! The operations of SQS: JSON in, JSON out.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::attributes::{self, Attributes};
use super::error::{Closed, SqsError};
use super::fields::{arn, text};
use super::moves;
use crate::identity::ACCOUNT;
use crate::queues::{MAX_MESSAGE_BYTES, NewMessage, Queues, Received};

const MAX_BATCH: usize = 10;

/// What a request says of its sender.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller<'a> {
    /// The host that it was sent to.
    pub(super) host: &'a str,
    /// The trace of the invocation that sent it.
    pub(super) trace: Option<&'a str>,
}

/// Performs an operation by name.
pub(super) async fn perform(
    queues: &Queues,
    closed: Closed,
    caller: Caller<'_>,
    operation: &str,
    input: &Value,
) -> Result<Value, SqsError> {
    let Caller { host, trace } = caller;
    match operation {
        "SendMessage" => send(queues, &queue(input)?, input, trace).await,
        "SendMessageBatch" => {
            let entries = entries(input)?;
            let bytes: usize = entries
                .iter()
                .map(|entry| entry["MessageBody"].as_str().unwrap_or_default().len())
                .sum();
            if bytes > MAX_MESSAGE_BYTES {
                return Err(SqsError::modelled(
                    "BatchRequestTooLong",
                    "AWS.SimpleQueueService.BatchRequestTooLong",
                    format!(
                        "the messages have {bytes} bytes in total; the maximum is {MAX_MESSAGE_BYTES}"
                    ),
                ));
            }
            send_batch(queues, &queue(input)?, &entries, trace).await
        }
        "ReceiveMessage" => receive(queues, closed, &queue(input)?, input).await,
        "DeleteMessage" => delete(queues, &queue(input)?, input).await,
        "ChangeMessageVisibility" => change_visibility(queues, &queue(input)?, input).await,
        "GetQueueAttributes" => queue_attributes(queues, &queue(input)?, input).await,
        "GetQueueUrl" => {
            let name = text(input, "QueueName")?;
            queues.spec(name).await?;
            Ok(json!({ "QueueUrl": url(host, name) }))
        }
        "ListQueues" => {
            let prefix = input["QueueNamePrefix"].as_str().unwrap_or_default();
            let urls: Vec<String> = queues
                .names()
                .await?
                .iter()
                .filter(|name| name.starts_with(prefix))
                .map(|name| url(host, name))
                .collect();
            Ok(json!({ "QueueUrls": urls }))
        }
        "StartMessageMoveTask" => moves::start(queues, input).await,
        "ListMessageMoveTasks" => moves::list(queues, input).await,
        "CancelMessageMoveTask" => moves::cancel(queues, input),
        "PurgeQueue" => {
            queues.purge(&queue(input)?).await?;
            Ok(json!({}))
        }
        "CreateQueue" | "DeleteQueue" | "SetQueueAttributes" => Err(SqsError::modelled(
            "UnsupportedOperation",
            "AWS.SimpleQueueService.UnsupportedOperation",
            format!(
                "{operation}: queues of the local stack are created from its template; change the template and restart the stack"
            ),
        )),
        _ => Err(SqsError::new(
            "UnknownOperationException",
            format!("{operation:?} is not an operation of the local SQS"),
        )),
    }
}

async fn send(
    queues: &Queues,
    queue: &str,
    input: &Value,
    trace: Option<&str>,
) -> Result<Value, SqsError> {
    if input["MessageDeduplicationId"].is_string() {
        return Err(SqsError::invalid(
            "MessageDeduplicationId requires a FIFO queue, which the local stack does not support",
        ));
    }
    let attributes = attributes::read(&input["MessageAttributes"])?;
    let body = text(input, "MessageBody")?;
    let (md5, attributes_md5) = (attributes::digest(body), attributes::digest_of(&attributes));
    let (values, types) = attributes;
    let message = NewMessage {
        body: body.to_owned(),
        delay: seconds(input, "DelaySeconds")?,
        attributes: values,
        group: input["MessageGroupId"].as_str().map(str::to_owned),
        trace_header: trace.map(str::to_owned),
    };
    let id = queues.send_typed(queue, message, types).await?;
    let mut output = json!({ "MessageId": id, "MD5OfMessageBody": md5 });
    if let Some(digest) = attributes_md5 {
        output["MD5OfMessageAttributes"] = digest.into();
    }
    Ok(output)
}

async fn receive(
    queues: &Queues,
    mut closed: Closed,
    queue: &str,
    input: &Value,
) -> Result<Value, SqsError> {
    let max = match &input["MaxNumberOfMessages"] {
        Value::Null => 1,
        max => max
            .as_u64()
            .and_then(|max| usize::try_from(max).ok())
            .filter(|max| (1..=MAX_BATCH).contains(max))
            .ok_or_else(|| SqsError::invalid("MaxNumberOfMessages must be between 1 and 10"))?,
    };
    let visibility = seconds(input, "VisibilityTimeout")?;
    let wait = seconds(input, "WaitTimeSeconds")?.unwrap_or_default();
    if wait > Duration::from_secs(20) {
        return Err(SqsError::invalid(
            "WaitTimeSeconds must be between 0 and 20",
        ));
    }
    let until = Instant::now() + wait;
    let mut changes = queues.changes();
    let received = loop {
        changes.mark_unchanged();
        let received = queues.receive(queue, max, visibility).await?;
        if !received.is_empty() || Instant::now() >= until {
            break received;
        }
        // A hidden message may become visible before the wait ends.
        let hidden = queues.next_visible_at_ms(queue).await?.map(|at| {
            at.saturating_sub(queues.clock().now_ms())
                .max(1)
                .unsigned_abs()
        });
        let wake = hidden.map_or(until, |millis| {
            until.min(Instant::now() + Duration::from_millis(millis))
        });
        tokio::select! {
            _ = changes.changed() => {}
            () = tokio::time::sleep_until(wake) => {}
            _ = closed.wait_for(|closed| *closed) => break Vec::new(),
        }
    };
    if received.is_empty() {
        return Ok(json!({}));
    }
    let mut system = names(input, "AttributeNames");
    system.extend(names(input, "MessageSystemAttributeNames"));
    let wanted = names(input, "MessageAttributeNames");
    let messages: Vec<Value> = received
        .into_iter()
        .map(|message| show(message, &system, &wanted))
        .collect();
    Ok(json!({ "Messages": messages }))
}

fn show(message: Received, system: &[&str], wanted: &[&str]) -> Value {
    let mut output = json!({
        "MessageId": message.id,
        "ReceiptHandle": message.receipt,
        "MD5OfBody": attributes::digest(&message.body),
        "Body": message.body,
    });
    let mut known = vec![
        ("SenderId", ACCOUNT.to_owned()),
        ("SentTimestamp", message.sent_at_ms.to_string()),
        ("ApproximateReceiveCount", message.receive_count.to_string()),
        (
            "ApproximateFirstReceiveTimestamp",
            message.first_received_at_ms.to_string(),
        ),
    ];
    known.extend(message.group.map(|group| ("MessageGroupId", group)));
    known.extend(message.trace_header.map(|trace| ("AWSTraceHeader", trace)));
    known.extend(
        message
            .moved_from
            .map(|queue| ("DeadLetterQueueSourceArn", arn(&queue))),
    );
    let shown: Map<String, Value> = known
        .into_iter()
        .filter(|(name, _)| {
            system
                .iter()
                .any(|wanted| *wanted == "All" || wanted == name)
        })
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect();
    if !shown.is_empty() {
        output["Attributes"] = Value::Object(shown);
    }
    let selected: Attributes =
        attributes::select((message.attributes, message.attribute_types), wanted);
    if let Some(digest) = attributes::digest_of(&selected) {
        output["MD5OfMessageAttributes"] = digest.into();
        output["MessageAttributes"] = attributes::write(&selected);
    }
    output
}

async fn delete(queues: &Queues, queue: &str, input: &Value) -> Result<Value, SqsError> {
    queues.delete(queue, text(input, "ReceiptHandle")?).await?;
    Ok(json!({}))
}

async fn change_visibility(queues: &Queues, queue: &str, input: &Value) -> Result<Value, SqsError> {
    let visibility = seconds(input, "VisibilityTimeout")?.ok_or_else(|| {
        SqsError::new(
            "MissingParameter",
            "the request must contain VisibilityTimeout",
        )
    })?;
    queues
        .change_visibility(queue, text(input, "ReceiptHandle")?, visibility)
        .await?;
    Ok(json!({}))
}

async fn queue_attributes(queues: &Queues, queue: &str, input: &Value) -> Result<Value, SqsError> {
    let spec = queues.spec(queue).await?;
    let counts = queues.counts(queue).await?;
    let mut known = vec![
        ("QueueArn", arn(queue)),
        ("ApproximateNumberOfMessages", counts.visible.to_string()),
        (
            "ApproximateNumberOfMessagesNotVisible",
            counts.in_flight.to_string(),
        ),
        (
            "ApproximateNumberOfMessagesDelayed",
            counts.delayed.to_string(),
        ),
        (
            "VisibilityTimeout",
            spec.visibility_timeout.as_secs().to_string(),
        ),
        ("DelaySeconds", spec.delay.as_secs().to_string()),
        (
            "MessageRetentionPeriod",
            spec.retention.as_secs().to_string(),
        ),
        ("MaximumMessageSize", MAX_MESSAGE_BYTES.to_string()),
        ("ReceiveMessageWaitTimeSeconds", "0".to_owned()),
    ];
    if let Some(redrive) = spec.redrive {
        let policy = json!({
            "deadLetterTargetArn": arn(&redrive.dead_letter),
            "maxReceiveCount": redrive.max_receive_count,
        });
        known.push(("RedrivePolicy", policy.to_string()));
    }
    let wanted = names(input, "AttributeNames");
    let is_known = |name: &&&str| {
        **name == "All" || **name == "RedrivePolicy" || known.iter().any(|(it, _)| it == *name)
    };
    if let Some(unknown) = wanted.iter().find(|name| !is_known(name)) {
        return Err(SqsError::modelled(
            "InvalidAttributeName",
            "InvalidAttributeName",
            format!("the local stack does not support the queue attribute {unknown:?}"),
        ));
    }
    let shown: Map<String, Value> = known
        .into_iter()
        .filter(|(name, _)| {
            wanted
                .iter()
                .any(|wanted| *wanted == "All" || wanted == name)
        })
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect();
    Ok(if shown.is_empty() {
        json!({})
    } else {
        json!({ "Attributes": shown })
    })
}

/// Sends each entry separately; a failure does not stop the others.
async fn send_batch(
    queues: &Queues,
    queue: &str,
    entries: &[&Value],
    trace: Option<&str>,
) -> Result<Value, SqsError> {
    queues.spec(queue).await?;
    let mut successful = Vec::new();
    let mut failed = Vec::new();
    for entry in entries {
        match send(queues, queue, entry, trace).await {
            Ok(mut output) => {
                output["Id"] = entry["Id"].clone();
                successful.push(output);
            }
            // A server error is not the fault of one entry, so the whole batch fails.
            Err(error) if error.status.is_server_error() => return Err(error),
            Err(error) => failed.push(json!({
                "Id": entry["Id"],
                "SenderFault": true,
                "Code": error.name(),
                "Message": error.message,
            })),
        }
    }
    Ok(json!({ "Successful": successful, "Failed": failed }))
}

/// Returns the entries of a batch, or the error for a batch that SQS refuses.
fn entries(input: &Value) -> Result<Vec<&Value>, SqsError> {
    let refused = |shape: &str, message: &str| {
        Err(SqsError::modelled(
            shape,
            &format!("AWS.SimpleQueueService.{shape}"),
            message,
        ))
    };
    let entries: Vec<&Value> = input["Entries"].as_array().into_iter().flatten().collect();
    if entries.is_empty() {
        return refused("EmptyBatchRequest", "the batch has no entries");
    }
    if entries.len() > MAX_BATCH {
        return refused(
            "TooManyEntriesInBatchRequest",
            "a batch may have at most 10 entries",
        );
    }
    let mut ids = BTreeSet::new();
    for entry in &entries {
        let id = entry["Id"].as_str().unwrap_or_default();
        let is_fine = (1..=80).contains(&id.len())
            && id
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        if !is_fine {
            return refused(
                "InvalidBatchEntryId",
                "an id must have 1 to 80 letters, digits, hyphens and underscores",
            );
        }
        if !ids.insert(id) {
            return refused("BatchEntryIdsNotDistinct", "two entries have the same id");
        }
    }
    Ok(entries)
}

fn queue(input: &Value) -> Result<String, SqsError> {
    let url = text(input, "QueueUrl")?;
    Ok(url
        .trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or(url)
        .to_owned())
}

fn names<'a>(input: &'a Value, name: &str) -> Vec<&'a str> {
    input[name]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

fn seconds(input: &Value, name: &str) -> Result<Option<Duration>, SqsError> {
    match &input[name] {
        Value::Null => Ok(None),
        value => value
            .as_u64()
            .map(|seconds| Some(Duration::from_secs(seconds)))
            .ok_or_else(|| {
                SqsError::invalid(format!("{name} must be a number of seconds, not {value}"))
            }),
    }
}

fn url(host: &str, name: &str) -> String {
    format!("http://{host}/{ACCOUNT}/{name}")
}
