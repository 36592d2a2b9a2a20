//! The operations that move messages out of dead-letter queues.
//!
//! A task is complete before `StartMessageMoveTask` returns, so that there is never one to cancel.
//! Source: Amazon SQS API reference, `StartMessageMoveTask`, `ListMessageMoveTasks` and
//! `CancelMessageMoveTask`; the texts of the errors are those that AWS returns.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use serde_json::{Value, json};
use uuid::Uuid;

use super::error::SqsError;
use super::fields::{arn, text};
use crate::queues::{MOVE_TASKS, MoveTask, QueueError, Queues};

/// `StartMessageMoveTask`.
pub(super) async fn start(queues: &Queues, input: &Value) -> Result<Value, SqsError> {
    let source_arn = text(input, "SourceArn")?;
    let source = existing(queues, source_arn, "SourceArn").await?;
    let destination = match &input["DestinationArn"] {
        Value::Null => None,
        _ => {
            let destination_arn = text(input, "DestinationArn")?;
            if destination_arn == source_arn {
                return Err(SqsError::invalid(
                    "Source queue arn and destination queue arn cannot be the same.",
                ));
            }
            Some(existing(queues, destination_arn, "DestinationArn").await?)
        }
    };
    let rate = number(input, "MaxNumberOfMessagesPerSecond", 500)?;
    let task = queues
        .move_messages(&source, destination.as_deref(), rate)
        .await?;
    Ok(json!({ "TaskHandle": handle(&task) }))
}

/// `ListMessageMoveTasks`.
pub(super) async fn list(queues: &Queues, input: &Value) -> Result<Value, SqsError> {
    let source = existing(queues, text(input, "SourceArn")?, "SourceArn").await?;
    let most = number(input, "MaxResults", MOVE_TASKS as u64)?.unwrap_or(1);
    let most = usize::try_from(most).unwrap_or(MOVE_TASKS);
    let tasks = queues.moves_of(&source).await?;
    let results: Vec<Value> = tasks.iter().take(most).map(shown).collect();
    Ok(json!({ "Results": results }))
}

/// `CancelMessageMoveTask`.
pub(super) fn cancel(queues: &Queues, input: &Value) -> Result<Value, SqsError> {
    let handle = text(input, "TaskHandle")?;
    if id_of(handle).is_some_and(|id| queues.has_move(id)) {
        Err(SqsError::invalid(
            "Only active tasks can be cancelled, and this one is complete.",
        ))
    } else {
        Err(not_found("Task does not exist."))
    }
}

/// A task that is complete has no handle any more.
fn shown(task: &MoveTask) -> Value {
    let mut shown = json!({
        "SourceArn": arn(&task.source),
        "Status": if task.has_failed() { "FAILED" } else { "COMPLETED" },
        "ApproximateNumberOfMessagesMoved": task.moved,
        "ApproximateNumberOfMessagesToMove": task.to_move,
        "StartedTimestamp": task.started_at_ms,
    });
    if let Some(destination) = &task.destination {
        shown["DestinationArn"] = arn(destination).into();
    }
    if let Some(rate) = task.messages_per_second {
        shown["MaxNumberOfMessagesPerSecond"] = rate.into();
    }
    if task.has_failed() {
        shown["FailureReason"] = "CouldNotDetermineMessageSource".into();
    }
    shown
}

/// Returns the name of a queue that exists.
async fn existing(queues: &Queues, queue_arn: &str, parameter: &str) -> Result<String, SqsError> {
    let is_arn = queue_arn.starts_with("arn:") && queue_arn.split(':').count() == 6;
    if !is_arn {
        return Err(SqsError::invalid(format!(
            "You must use this format to specify the {parameter}: arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
        )));
    }
    let absent = || {
        not_found(format!(
            "The resource that you specified for the {parameter} parameter doesn't exist."
        ))
    };
    let name = queue_arn.rsplit(':').next().unwrap_or_default();
    if queue_arn != arn(name) {
        return Err(absent());
    }
    match queues.spec(name).await {
        Ok(spec) => Ok(spec.name),
        Err(QueueError::NoSuchQueue(_)) => Err(absent()),
        Err(error) => Err(error.into()),
    }
}

fn not_found(message: impl Into<String>) -> SqsError {
    SqsError {
        status: StatusCode::NOT_FOUND,
        ..SqsError::modelled(
            "ResourceNotFoundException",
            "ResourceNotFoundException",
            message,
        )
    }
}

/// Reads an optional number between 1 and `most`.
fn number(input: &Value, name: &str, most: u64) -> Result<Option<u64>, SqsError> {
    let value = &input[name];
    if value.is_null() {
        return Ok(None);
    }
    let number = value.as_u64().filter(|number| (1..=most).contains(number));
    number.map(Some).ok_or_else(|| {
        SqsError::invalid(format!(
            "Value {value} for parameter {name} is invalid. Reason: Must be between 1 and {most}, if provided."
        ))
    })
}

/// A handle is opaque to clients; AWS makes it of the task and the queue.
fn handle(task: &MoveTask) -> String {
    let text = json!({ "taskId": task.id, "sourceArn": arn(&task.source) });
    STANDARD.encode(text.to_string())
}

fn id_of(handle: &str) -> Option<Uuid> {
    let text = STANDARD.decode(handle).ok()?;
    let value: Value = serde_json::from_slice(&text).ok()?;
    value["taskId"].as_str()?.parse().ok()
}
