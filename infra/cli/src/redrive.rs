//! `redrive`: shows the messages that failed too often, and moves them back to their queues.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;
use url::Url;

use crate::arguments::RedriveArguments;
use crate::body::Body;
use crate::client::Client;
use crate::error::CliError;
use crate::visible::visible;
use crate::{Exit, Output, view};

/// The maximum number of messages that are shown.
const SHOWN: usize = 100;

/// The number of messages that one request receives at most.
const BATCH: usize = 10;

/// For how long the messages that are shown are hidden, in seconds, if they cannot be released.
const HIDDEN_SECONDS: u64 = 30;

/// How long a request waits for messages, in seconds. Without it, SQS searches only a part of its
/// servers, and may find none.
const POLL_SECONDS: u64 = 1;

/// The number of characters of a message that are shown.
const BODY_CHARS: usize = 300;

/// How often the state of the move is read, and for how long.
const POLL: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(60);

/// A queue.
struct DeadLetters {
    client: Client,
    url: Url,
}

/// A message of a queue.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Message {
    message_id: String,
    receipt_handle: String,
    body: String,
    #[serde(default)]
    attributes: BTreeMap<String, String>,
}

impl Message {
    fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.get(name).map(String::as_str)
    }

    /// Returns the name of the queue that it came from.
    fn source(&self) -> &str {
        let arn = self.attribute("DeadLetterQueueSourceArn");
        let name = arn.and_then(|arn| arn.rsplit(':').next());
        name.unwrap_or("an unknown queue")
    }

    /// Returns when it was sent.
    fn sent(&self) -> Option<String> {
        let millis: u64 = self.attribute("SentTimestamp")?.parse().ok()?;
        Some(view::date(millis / 1000))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Received {
    #[serde(default)]
    messages: Vec<Message>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Attributes {
    attributes: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct MoveTasks {
    #[serde(default)]
    results: Vec<MoveTask>,
}

/// The state of a move.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct MoveTask {
    status: String,
    #[serde(default)]
    approximate_number_of_messages_moved: u64,
    failure_reason: Option<String>,
}

impl MoveTask {
    /// Returns how a command ends that waited for the move.
    fn exit(&self) -> Exit {
        match self.status.as_str() {
            "COMPLETED" => Exit::Done,
            "FAILED" => Exit::Failed,
            _ => Exit::Pending,
        }
    }

    /// Returns what became of the move, as a line.
    fn line(&self) -> String {
        let moved = self.approximate_number_of_messages_moved;
        match (self.status.as_str(), &self.failure_reason) {
            ("COMPLETED", _) => format!("{moved} moved back\n"),
            ("FAILED", reason) => {
                let reason = visible(reason.as_deref().unwrap_or("without a reason"));
                format!("{moved} moved back; the move failed: {reason}\n")
            }
            _ => format!("{moved} moved back so far; the move goes on\n"),
        }
    }
}

/// An error of SQS.
#[derive(Deserialize)]
struct SqsRefusal {
    #[serde(alias = "Message")]
    message: String,
}

pub(crate) async fn run(queue: Url, arguments: &RedriveArguments) -> Result<Output, CliError> {
    let queue = DeadLetters {
        client: Client::at(queue.clone()).await?,
        url: queue,
    };
    let arn = queue.arn().await?;
    let messages = queue.messages().await?;
    let ended = if messages.is_empty() || arguments.dry_run {
        None
    } else {
        Some(queue.redrive(&arn).await?)
    };
    let exit = ended.as_ref().map_or(Exit::Done, MoveTask::exit);
    let text = if arguments.format.json {
        json_of(&messages, ended.as_ref())
    } else {
        text_of(&messages, ended.as_ref())
    };
    Ok(Output::ended(text, exit))
}

impl DeadLetters {
    /// Performs an operation of SQS (AWS JSON 1.0).
    async fn perform<T: DeserializeOwned>(
        &self,
        operation: &str,
        mut input: Value,
        of_queue: bool,
    ) -> Result<T, CliError> {
        if of_queue {
            input["QueueUrl"] = self.url.as_str().into();
        }
        let body = Body {
            headers: vec![
                ("content-type", "application/x-amz-json-1.0".to_owned()),
                ("x-amz-target", format!("AmazonSQS.{operation}")),
            ],
            bytes: input.to_string().into_bytes(),
        };
        // The endpoint is the root of the host; the queue is named in the body.
        let answer = self.client.post_to_root(body).await?;
        if !answer.status.is_success() {
            return Err(match serde_json::from_slice::<SqsRefusal>(&answer.body) {
                Ok(SqsRefusal { message }) => CliError::Status {
                    url: self.client.shown(),
                    status: answer.status.as_u16(),
                    cause: format!("{operation}: {message}"),
                },
                Err(_) => self.client.refused(operation, &answer),
            });
        }
        serde_json::from_slice(&answer.body).map_err(|error| CliError::Answer {
            url: self.client.shown(),
            cause: error.to_string(),
        })
    }

    async fn arn(&self) -> Result<String, CliError> {
        const ARN: &str = "QueueArn";
        let input = json!({ "AttributeNames": [ARN] });
        let Attributes { mut attributes } = self.perform("GetQueueAttributes", input, true).await?;
        attributes.remove(ARN).ok_or_else(|| CliError::Answer {
            url: self.client.shown(),
            cause: "the queue has no ARN".to_owned(),
        })
    }

    /// Returns the first messages. They are visible again afterwards.
    async fn messages(&self) -> Result<Vec<Message>, CliError> {
        let mut messages: Vec<Message> = Vec::new();
        while messages.len() < SHOWN {
            let input = json!({
                "MaxNumberOfMessages": BATCH.min(SHOWN - messages.len()),
                "VisibilityTimeout": HIDDEN_SECONDS,
                "WaitTimeSeconds": POLL_SECONDS,
                "MessageSystemAttributeNames": ["All"],
            });
            let received: Received = self.perform("ReceiveMessage", input, true).await?;
            if received.messages.is_empty() {
                break;
            }
            messages.extend(received.messages);
        }
        for message in &messages {
            let input = json!({"ReceiptHandle": message.receipt_handle, "VisibilityTimeout": 0});
            // One that cannot be released, because its time is up for example, is visible soon.
            let _: Result<Value, _> = self.perform("ChangeMessageVisibility", input, true).await;
        }
        Ok(messages)
    }

    /// Moves all messages back, and returns the state of the move when it ended, or after a minute.
    async fn redrive(&self, arn: &str) -> Result<MoveTask, CliError> {
        let end = Instant::now() + PATIENCE;
        let input = || json!({ "SourceArn": arn });
        let _: Value = self.perform("StartMessageMoveTask", input(), false).await?;
        loop {
            let tasks: MoveTasks = self.perform("ListMessageMoveTasks", input(), false).await?;
            let task = tasks.results.into_iter().next();
            let task = task.ok_or_else(|| CliError::Answer {
                url: self.client.shown(),
                cause: "the move that was started is not listed".to_owned(),
            })?;
            if task.status != "RUNNING" || Instant::now() >= end {
                return Ok(task);
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

/// Returns the beginning of a message.
fn beginning(body: &str) -> String {
    let mut shown: String = body.chars().take(BODY_CHARS).collect();
    if shown.len() < body.len() {
        shown.push('…');
    }
    visible(&shown)
}

fn text_of(messages: &[Message], ended: Option<&MoveTask>) -> String {
    if messages.is_empty() {
        return "no dead letters\n".to_owned();
    }
    let mut by_source: BTreeMap<&str, Vec<&Message>> = BTreeMap::new();
    for message in messages {
        by_source.entry(message.source()).or_default().push(message);
    }
    let mut text = String::new();
    for (source, messages) in by_source {
        let _ = writeln!(text, "from {}: {}", visible(source), messages.len());
        for message in messages {
            let sent = message.sent();
            let sent = sent.map_or_else(String::new, |sent| format!(", sent {sent}"));
            let id = visible(&message.message_id);
            let _ = writeln!(text, "  {id}{sent}\n    {}", beginning(&message.body));
        }
    }
    if messages.len() == SHOWN {
        let _ = writeln!(text, "only the first {SHOWN} are shown");
    }
    if let Some(task) = ended {
        text.push_str(&task.line());
    }
    text
}

fn json_of(messages: &[Message], ended: Option<&MoveTask>) -> String {
    let messages = messages.iter().map(|message| {
        json!({
            "id": message.message_id, "from": message.source(), "body": message.body,
            "sent_at": message.sent(),
        })
    });
    let task = ended.map(|task| {
        json!({
            "status": task.status, "moved": task.approximate_number_of_messages_moved,
            "failure_reason": task.failure_reason,
        })
    });
    view::json(&json!({
        "schema": view::SCHEMA,
        "messages": messages.collect::<Vec<_>>(),
        "move": task,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the state of a move, as SQS describes it.
    fn task(status: &str) -> MoveTask {
        let task = json!({
            "TaskHandle": "task", "Status": status, "SourceArn": "arn:aws:sqs:eu-west-1:0:dead",
            "ApproximateNumberOfMessagesMoved": 2, "ApproximateNumberOfMessagesToMove": 3,
        });
        serde_json::from_value(task).unwrap()
    }

    #[test]
    fn a_move_that_has_not_ended_is_still_pending() {
        for (status, exit, line) in [
            ("COMPLETED", Exit::Done, "2 moved back\n"),
            (
                "FAILED",
                Exit::Failed,
                "2 moved back; the move failed: without a reason\n",
            ),
            (
                "RUNNING",
                Exit::Pending,
                "2 moved back so far; the move goes on\n",
            ),
        ] {
            let task = task(status);
            assert_eq!(
                (task.exit(), task.line().as_str()),
                (exit, line),
                "{status}"
            );
        }
    }
}
