//! Queues, messages, and their limits.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::database::DatabaseError;

/// The maximum size of a message with its attributes (SQS API reference, SendMessage).
pub const MAX_MESSAGE_BYTES: usize = 1024 * 1024;

/// The properties of a queue. The defaults of SQS are 30 s visibility timeout, no delay, and 4 days
/// of retention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSpec {
    /// The name, unique in the stack.
    pub name: String,
    /// How long a received message stays hidden; at most 12 hours.
    pub visibility_timeout: Duration,
    /// How long a new message stays hidden; at most 15 minutes.
    pub delay: Duration,
    /// How long a message is kept, counted from when it was first sent.
    pub retention: Duration,
    /// The dead-letter queue of messages that were received too often, if any.
    pub redrive: Option<Redrive>,
}

/// The dead-letter queue of messages that were received too often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redrive {
    /// The dead-letter queue's name. It must exist by the time a message moves there.
    pub dead_letter: String,
    /// A message that was received this often is moved instead of being received again.
    pub max_receive_count: u32,
}

/// A message to send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewMessage {
    /// The text; not empty, and at most [`MAX_MESSAGE_BYTES`] with the attributes.
    pub body: String,
    /// How long it stays hidden; `None`: the queue's delay.
    pub delay: Option<Duration>,
    /// Message attributes of type `String`.
    pub attributes: BTreeMap<String, String>,
    /// `MessageGroupId`; groups take turns.
    pub group: Option<String>,
    /// `AWSTraceHeader`: the trace of the invocation that sent it.
    pub trace_header: Option<String>,
}

/// A received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The message's id, the same at every receipt.
    pub id: String,
    /// The receipt handle of this receipt.
    pub receipt: String,
    /// The text.
    pub body: String,
    /// Message attributes; binary values in base64.
    pub attributes: BTreeMap<String, String>,
    /// The data types of those attributes whose type is not `String`.
    pub attribute_types: BTreeMap<String, String>,
    /// `MessageGroupId`.
    pub group: Option<String>,
    /// `AWSTraceHeader`, if it was sent with a trace.
    pub trace_header: Option<String>,
    /// How often it has been received, including this time.
    pub receive_count: u32,
    /// When it was sent, in epoch milliseconds.
    pub sent_at_ms: i64,
    /// When it was first received, in epoch milliseconds.
    pub first_received_at_ms: i64,
    /// When its visibility timeout ends, in epoch milliseconds, unless its visibility is changed.
    pub hidden_until_ms: i64,
    /// In a dead-letter queue: the name of the queue that it was moved from.
    pub moved_from: Option<String>,
}

/// The numbers of messages in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Messages that can be received.
    pub visible: u64,
    /// Received messages that are neither deleted nor visible again.
    pub in_flight: u64,
    /// Messages whose delay has not passed.
    pub delayed: u64,
}

/// Why a queue operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// No queue has this name.
    #[error(
        "the queue {0:?} does not exist; queues are created from the template's AWS::SQS::Queue resources"
    )]
    NoSuchQueue(String),
    /// The text is not a receipt handle of these queues.
    #[error("{0:?} is not a receipt handle of this queue")]
    InvalidReceipt(String),
    /// The visibility timeout of this receipt has ended.
    #[error("the message is not in flight with this receipt handle; receive it again")]
    NotInFlight,
    /// The message and its attributes are too long.
    #[error(
        "the message has {bytes} bytes with its attributes; the maximum is {MAX_MESSAGE_BYTES}"
    )]
    TooLong {
        /// The size of body and attributes in bytes.
        bytes: usize,
    },
    /// The message contains a character that XML 1.0 forbids.
    #[error("the message contains the character {0:?}, which SQS does not accept; encode the body")]
    InvalidContents(char),
    /// A parameter is out of its range.
    #[error("{0}")]
    InvalidParameter(String),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl From<rusqlite::Error> for QueueError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error.into())
    }
}

impl QueueSpec {
    /// Returns a queue with the defaults of SQS.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            visibility_timeout: Duration::from_secs(30),
            delay: Duration::ZERO,
            retention: Duration::from_secs(4 * 24 * 3600),
            redrive: None,
        }
    }

    pub(super) fn check(&self) -> Result<(), QueueError> {
        let name_is_fine = (1..=80).contains(&self.name.len())
            && self
                .name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        if !name_is_fine {
            return Err(QueueError::InvalidParameter(format!(
                "{:?} is not a queue name; expected 1 to 80 letters, digits, hyphens and underscores",
                self.name
            )));
        }
        check_visibility(Some(self.visibility_timeout))?;
        check_delay(Some(self.delay))?;
        if self
            .redrive
            .as_ref()
            .is_some_and(|redrive| !(1..=1000).contains(&redrive.max_receive_count))
        {
            return Err(QueueError::InvalidParameter(
                "maxReceiveCount must be between 1 and 1000".to_owned(),
            ));
        }
        if !(60..=1_209_600).contains(&self.retention.as_secs()) {
            return Err(QueueError::InvalidParameter(
                "MessageRetentionPeriod must be between 60 and 1209600 seconds".to_owned(),
            ));
        }
        Ok(())
    }
}

impl NewMessage {
    /// Returns a message without attributes, with the queue's delay.
    #[must_use]
    pub fn text(body: impl Into<String>) -> Self {
        Self {
            body: body.into(),
            ..Self::default()
        }
    }

    /// Checks whether SQS would accept this message.
    pub(crate) fn check(&self) -> Result<(), QueueError> {
        check_delay(self.delay)?;
        if self.body.is_empty() {
            return Err(QueueError::InvalidParameter(
                "the body of a message must not be empty".to_owned(),
            ));
        }
        let bytes = self.body.len()
            + self
                .attributes
                .iter()
                .map(|(name, value)| name.len() + value.len())
                .sum::<usize>();
        if bytes > MAX_MESSAGE_BYTES {
            return Err(QueueError::TooLong { bytes });
        }
        // XML 1.0, production Char: the characters that SQS documents for messages.
        let forbidden = |character: &char| {
            (*character < ' ' && !matches!(character, '\t' | '\n' | '\r'))
                || matches!(character, '\u{fffe}' | '\u{ffff}')
        };
        if let Some(character) = self.body.chars().find(forbidden) {
            return Err(QueueError::InvalidContents(character));
        }
        Ok(())
    }
}

pub(super) const MAX_DELAY: Duration = Duration::from_secs(900);

pub(super) const MAX_VISIBILITY: Duration = Duration::from_secs(12 * 3600);

pub(super) fn check_delay(delay: Option<Duration>) -> Result<(), QueueError> {
    if delay.is_some_and(|delay| delay > MAX_DELAY) {
        return Err(QueueError::InvalidParameter(
            "DelaySeconds must be between 0 and 900".to_owned(),
        ));
    }
    Ok(())
}

pub(super) fn check_visibility(visibility: Option<Duration>) -> Result<(), QueueError> {
    if visibility.is_some_and(|visibility| visibility > MAX_VISIBILITY) {
        return Err(QueueError::InvalidParameter(
            "VisibilityTimeout must be between 0 and 43200".to_owned(),
        ));
    }
    Ok(())
}
