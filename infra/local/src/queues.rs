//! Durable queues with the behaviour of SQS standard queues: visibility timeouts, delays, receive
//! counts and dead-letter queues.
//!
//! - Every operation is one transaction. `insert` runs inside the caller's transaction, so that S3
//!   can change an object and send its event atomically.
//! - The time comes from a [`Clock`] that the owner provides: tests advance it instead of waiting.
//! - There is no background task. Messages expire, become visible and move to dead-letter queues
//!   when a client receives. [`Queues::changes`] and [`Queues::next_visible_at_ms`] tell when to
//!   receive.
//! - Queues are fair: groups (`MessageGroupId`) take turns, the one with the fewest messages in
//!   flight first. A message without a group is a group of its own. Within a group, and among
//!   groups with the same number of messages in flight, the oldest message is first. (AWS holds a
//!   group back only once about thirty of its messages are in flight: developer guide, "How Amazon
//!   SQS fair queues work".)

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{OptionalExtension, Row, Transaction, params};
use tokio::sync::watch;
use uuid::Uuid;

use crate::database::{Database, DatabaseError};

/// The maximum size of a message with its attributes (SQS API reference, SendMessage).
pub const MAX_MESSAGE_BYTES: usize = 1024 * 1024;

const MAX_DELAY: Duration = Duration::from_secs(900);
const MAX_VISIBILITY: Duration = Duration::from_secs(12 * 3600);

/// All queues of the stack. Clones share the same queues.
#[derive(Clone, Debug)]
pub struct Queues {
    database: Database,
    clock: Clock,
    changes: watch::Sender<u64>,
    sent: Arc<Mutex<BTreeMap<String, u64>>>,
}

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

impl Queues {
    /// Returns the queues in `database`, with the system's clock.
    #[must_use]
    pub fn new(database: Database) -> Self {
        Self::with_clock(database, Clock::system())
    }

    /// Returns the queues in `database`, with `clock`.
    #[must_use]
    pub fn with_clock(database: Database, clock: Clock) -> Self {
        Self {
            database,
            clock,
            changes: watch::Sender::new(0),
            sent: Arc::default(),
        }
    }

    /// Returns the clock that all times refer to.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Creates the queue, or updates the properties of an existing queue of this name.
    ///
    /// # Errors
    /// Returns [`QueueError::InvalidParameter`] if a property is out of range, or the database's
    /// error.
    pub async fn create(&self, spec: QueueSpec) -> Result<(), QueueError> {
        spec.check()?;
        let now = self.clock.now_ms();
        self.database
            .write(move |transaction| {
                transaction.execute(
                    "INSERT INTO queues (name, visibility_ms, delay_ms, retention_ms, dead_letter, max_receive_count, created_ms)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
                     ON CONFLICT (name) DO UPDATE SET visibility_ms = ?2, delay_ms = ?3, retention_ms = ?4,
                         dead_letter = ?5, max_receive_count = ?6",
                    params![
                        spec.name,
                        millis(spec.visibility_timeout),
                        millis(spec.delay),
                        millis(spec.retention),
                        spec.redrive.as_ref().map(|redrive| redrive.dead_letter.as_str()),
                        spec.redrive.as_ref().map(|redrive| redrive.max_receive_count),
                        now
                    ],
                )?;
                Ok(())
            })
            .await
    }

    /// Returns the properties of a queue.
    ///
    /// # Errors
    /// Returns [`QueueError::NoSuchQueue`] or the database's error.
    pub async fn spec(&self, queue: &str) -> Result<QueueSpec, QueueError> {
        let queue = queue.to_owned();
        self.database
            .read(move |transaction| load(transaction, &queue))
            .await
    }

    /// Returns the names of all queues, sorted.
    ///
    /// # Errors
    /// Returns the database's error.
    pub async fn names(&self) -> Result<Vec<String>, QueueError> {
        self.database
            .read(|transaction| {
                let mut statement =
                    transaction.prepare_cached("SELECT name FROM queues ORDER BY name")?;
                let names = statement
                    .query_map([], |row| row.get(0))?
                    .collect::<Result<_, _>>()?;
                Ok(names)
            })
            .await
    }

    /// Sends a message and returns its id.
    ///
    /// # Errors
    /// Returns an error if the queue does not exist or SQS would refuse the message, or the
    /// database's error.
    pub async fn send(&self, queue: &str, message: NewMessage) -> Result<String, QueueError> {
        self.send_typed(queue, message, BTreeMap::new()).await
    }

    /// Same as [`Queues::send`], with the data types of attributes whose type is not `String`.
    pub(crate) async fn send_typed(
        &self,
        queue: &str,
        message: NewMessage,
        types: BTreeMap<String, String>,
    ) -> Result<String, QueueError> {
        message.check()?;
        let name = queue.to_owned();
        let now = self.clock.now_ms();
        let id = self
            .database
            .write(move |transaction| insert(transaction, &name, &message, &types, now))
            .await?;
        *self.sent_counts().entry(queue.to_owned()).or_default() += 1;
        self.changed();
        Ok(id)
    }

    /// Receives up to `max` messages and hides them for `visibility` (`None`: the queue's
    /// visibility timeout). Messages that were received too often are moved to the dead-letter
    /// queue first.
    ///
    /// # Errors
    /// Returns an error if the queue, or the dead-letter queue for a message, does not exist, or
    /// the database's error.
    pub async fn receive(
        &self,
        queue: &str,
        max: usize,
        visibility: Option<Duration>,
    ) -> Result<Vec<Received>, QueueError> {
        check_visibility(visibility)?;
        let now = self.clock.now_ms();
        let queue = queue.to_owned();
        // Most calls find no message: a read first keeps them out of the queue of writers.
        let (name, found) = self
            .database
            .read::<_, QueueError>(move |transaction| {
                load(transaction, &queue)?;
                let found = transaction
                    .prepare_cached(
                        "SELECT 1 FROM messages WHERE queue = ?1 AND visible_ms <= ?2 LIMIT 1",
                    )?
                    .exists(params![queue, now])?;
                Ok((queue, found))
            })
            .await?;
        if !found || max == 0 {
            return Ok(Vec::new());
        }
        let (received, moved) = self
            .database
            .write(move |transaction| claim(transaction, &name, max, visibility, now))
            .await?;
        if moved || !received.is_empty() {
            self.changed();
        }
        Ok(received)
    }

    /// Deletes the message of `receipt`, even if it has become visible again. A receipt handle
    /// other than the last one deletes nothing.
    ///
    /// # Errors
    /// Returns [`QueueError::InvalidReceipt`] if the text is not a receipt handle, or the
    /// database's error.
    pub async fn delete(&self, queue: &str, receipt: &str) -> Result<(), QueueError> {
        let number = number_of(receipt)?;
        let (queue, receipt) = (queue.to_owned(), receipt.to_owned());
        self.database
            .write::<_, QueueError>(move |transaction| {
                load(transaction, &queue)?;
                transaction
                    .prepare_cached(
                        "DELETE FROM messages WHERE number = ?1 AND queue = ?2 AND receipt = ?3",
                    )?
                    .execute(params![number, queue, receipt])?;
                Ok(())
            })
            .await?;
        self.changed();
        Ok(())
    }

    /// Hides the message for `visibility` from now on; zero makes it visible at once.
    ///
    /// # Errors
    /// Returns [`QueueError::InvalidReceipt`], [`QueueError::NotInFlight`],
    /// [`QueueError::InvalidParameter`] for more than 12 hours, or the database's error.
    pub async fn change_visibility(
        &self,
        queue: &str,
        receipt: &str,
        visibility: Duration,
    ) -> Result<(), QueueError> {
        check_visibility(Some(visibility))?;
        let number = number_of(receipt)?;
        let (queue, receipt) = (queue.to_owned(), receipt.to_owned());
        let now = self.clock.now_ms();
        self.database
            .write(move |transaction| {
                load(transaction, &queue)?;
                let changed = transaction
                    .prepare_cached(
                        "UPDATE messages SET visible_ms = ?1
                         WHERE number = ?2 AND queue = ?3 AND receipt = ?4 AND visible_ms > ?5",
                    )?
                    .execute(params![
                        now + millis(visibility),
                        number,
                        queue,
                        receipt,
                        now
                    ])?;
                if changed == 0 {
                    Err(QueueError::NotInFlight)
                } else {
                    Ok(())
                }
            })
            .await?;
        self.changed();
        Ok(())
    }

    /// Hides a message whose delivery failed for `back_off` from now on. If its consumer has
    /// changed its visibility since it was received, or its visibility timeout has passed, it
    /// becomes visible as it would have without this call.
    ///
    /// # Errors
    /// Returns [`QueueError::InvalidReceipt`], [`QueueError::InvalidParameter`] for more than 12
    /// hours, or the database's error.
    pub(crate) async fn back_off(
        &self,
        queue: &str,
        message: &Received,
        back_off: Duration,
    ) -> Result<(), QueueError> {
        check_visibility(Some(back_off))?;
        let number = number_of(&message.receipt)?;
        let (queue, receipt) = (queue.to_owned(), message.receipt.clone());
        let hidden_until = message.hidden_until_ms;
        let now = self.clock.now_ms();
        self.database
            .write::<_, QueueError>(move |transaction| {
                load(transaction, &queue)?;
                transaction
                    .prepare_cached(
                        "UPDATE messages SET visible_ms = ?1
                         WHERE number = ?2 AND queue = ?3 AND receipt = ?4 AND visible_ms = ?5 AND visible_ms > ?6",
                    )?
                    .execute(params![
                        now + millis(back_off),
                        number,
                        queue,
                        receipt,
                        hidden_until,
                        now
                    ])?;
                Ok(())
            })
            .await?;
        self.changed();
        Ok(())
    }

    /// Returns the numbers of messages in the queue.
    ///
    /// # Errors
    /// Returns [`QueueError::NoSuchQueue`] or the database's error.
    pub async fn counts(&self, queue: &str) -> Result<Counts, QueueError> {
        let queue = queue.to_owned();
        let now = self.clock.now_ms();
        self.database
            .read(move |transaction| {
                let spec = load(transaction, &queue)?;
                let counts = transaction
                    .prepare_cached(
                        "SELECT count(*) FILTER (WHERE visible_ms <= ?2),
                                count(*) FILTER (WHERE visible_ms > ?2 AND receipt IS NOT NULL),
                                count(*) FILTER (WHERE visible_ms > ?2 AND receipt IS NULL)
                         FROM messages WHERE queue = ?1 AND sent_ms > ?3",
                    )?
                    .query_row(params![queue, now, now - millis(spec.retention)], |row| {
                        Ok(Counts {
                            visible: row.get(0)?,
                            in_flight: row.get(1)?,
                            delayed: row.get(2)?,
                        })
                    })?;
                Ok(counts)
            })
            .await
    }

    /// Returns how many messages were sent to the queue since the start or the last reset. S3
    /// events are not counted: S3 inserts them into the queue without a call of SQS.
    #[must_use]
    pub fn sent(&self, queue: &str) -> u64 {
        self.sent_counts().get(queue).copied().unwrap_or(0)
    }

    /// Resets the counts of sent messages to zero.
    pub fn reset_sent(&self) {
        self.sent_counts().clear();
    }

    fn sent_counts(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the first message that is in the queue now can be received, in epoch
    /// milliseconds. The time is in the past if a message is visible already; `None` if the queue
    /// is empty.
    ///
    /// # Errors
    /// Returns [`QueueError::NoSuchQueue`] or the database's error.
    pub async fn next_visible_at_ms(&self, queue: &str) -> Result<Option<i64>, QueueError> {
        let queue = queue.to_owned();
        self.database
            .read(move |transaction| {
                load(transaction, &queue)?;
                let next = transaction
                    .prepare_cached("SELECT min(visible_ms) FROM messages WHERE queue = ?1")?
                    .query_row([queue], |row| row.get(0))?;
                Ok(next)
            })
            .await
    }

    /// Deletes all messages of the queue.
    ///
    /// # Errors
    /// Returns [`QueueError::NoSuchQueue`] or the database's error.
    pub async fn purge(&self, queue: &str) -> Result<(), QueueError> {
        let queue = queue.to_owned();
        self.database
            .write::<_, QueueError>(move |transaction| {
                load(transaction, &queue)?;
                transaction.execute("DELETE FROM messages WHERE queue = ?1", [queue])?;
                Ok(())
            })
            .await?;
        self.changed();
        Ok(())
    }

    /// Makes all messages in flight visible at once, as if they had not been received, and returns
    /// their number. A stack calls this at its start: if the previous stack was killed, so were the
    /// consumers, which is not a failure of the messages.
    ///
    /// # Errors
    /// Returns the database's error.
    pub async fn release_all(&self) -> Result<usize, QueueError> {
        let now = self.clock.now_ms();
        let released = self
            .database
            .write::<_, QueueError>(move |transaction| {
                Ok(transaction.execute(
                    "UPDATE messages SET visible_ms = ?1, receipt = NULL, receive_count = max(receive_count - 1, 0)
                     WHERE receipt IS NOT NULL AND visible_ms > ?1",
                    [now],
                )?)
            })
            .await?;
        self.changed();
        Ok(released)
    }

    /// Returns a number that changes whenever a message is sent, received, moved or deleted, or its
    /// visibility changes. Take the receiver before reading a queue, so that no change between
    /// reading and waiting is missed.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Wakes the receivers of [`Queues::changes`].
    pub(crate) fn changed(&self) {
        self.changes
            .send_modify(|changes| *changes = changes.wrapping_add(1));
    }
}

/// Inserts a message that passed [`NewMessage::check`] and returns its id. The caller wakes the
/// pollers with [`Queues::changed`] after the transaction is committed.
pub(crate) fn insert(
    transaction: &Transaction<'_>,
    queue: &str,
    message: &NewMessage,
    types: &BTreeMap<String, String>,
    now: i64,
) -> Result<String, QueueError> {
    let spec = load(transaction, queue)?;
    let id = Uuid::new_v4().to_string();
    let attributes =
        serde_json::json!({ "values": message.attributes, "types": types }).to_string();
    transaction
        .prepare_cached(
            "INSERT INTO messages (queue, id, body, attributes, group_id, sent_ms, visible_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![
            queue,
            id,
            message.body,
            attributes,
            message.group,
            now,
            now + millis(message.delay.unwrap_or(spec.delay))
        ])?;
    Ok(id)
}

/// Claims visible messages. Also returns whether messages were moved to the dead-letter queue.
fn claim(
    transaction: &Transaction<'_>,
    queue: &str,
    max: usize,
    visibility: Option<Duration>,
    now: i64,
) -> Result<(Vec<Received>, bool), QueueError> {
    let spec = load(transaction, queue)?;
    transaction
        .prepare_cached("DELETE FROM messages WHERE queue = ?1 AND sent_ms <= ?2")?
        .execute(params![queue, now - millis(spec.retention)])?;
    let mut moved = false;
    if let Some(redrive) = &spec.redrive {
        moved = bury(transaction, queue, redrive, now)?;
    }
    let hidden_until = now + millis(visibility.unwrap_or(spec.visibility_timeout));
    let mut select = transaction.prepare_cached(
        "SELECT number, id, body, attributes, group_id, sent_ms, receive_count, first_received_ms, moved_from
         FROM messages WHERE number = ?1",
    )?;
    let mut hide = transaction.prepare_cached(
        "UPDATE messages SET visible_ms = ?2, receipt = ?3, receive_count = receive_count + 1,
             first_received_ms = coalesce(first_received_ms, ?4) WHERE number = ?1",
    )?;
    // All messages are chosen before the first one is hidden: with a visibility timeout of zero, a
    // message would otherwise be chosen again.
    let mut received = Vec::new();
    for number in choose(transaction, queue, max, now)? {
        let message = select.query_row([number], |row| read_message(row, now, hidden_until))?;
        hide.execute(params![number, hidden_until, message.receipt, now])?;
        received.push(message);
    }
    Ok((received, moved))
}

/// A group and its oldest visible message. The smallest value has the next turn.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    in_flight: u64,
    visible_ms: i64,
    number: i64,
    /// `None` for messages without a group, each of which is a group of its own.
    group: Option<String>,
}

/// Chooses the numbers of up to `max` visible messages; groups take turns. The cost grows with the
/// number of groups, not with the number of their messages.
fn choose(
    transaction: &Transaction<'_>,
    queue: &str,
    max: usize,
    now: i64,
) -> Result<Vec<i64>, rusqlite::Error> {
    let mut in_flight = in_flight(transaction, queue, now)?;
    let mut turns = BinaryHeap::new();
    for group in groups(transaction, queue)?
        .into_iter()
        .map(Some)
        .chain([None])
    {
        let in_flight = group
            .as_ref()
            .and_then(|group| in_flight.remove(group))
            .unwrap_or(0);
        let first = (i64::MIN, i64::MIN);
        turns.extend(turn(transaction, queue, group, in_flight, first, now)?.map(Reverse));
    }
    let mut chosen = Vec::new();
    while chosen.len() < max
        && let Some(Reverse(taken)) = turns.pop()
    {
        chosen.push(taken.number);
        let in_flight = match taken.group {
            Some(_) => taken.in_flight + 1,
            None => 0,
        };
        let after = (taken.visible_ms, taken.number);
        let next = turn(transaction, queue, taken.group, in_flight, after, now)?;
        turns.extend(next.map(Reverse));
    }
    Ok(chosen)
}

/// Returns how many messages of each group are in flight; groups without any are omitted.
fn in_flight(
    transaction: &Transaction<'_>,
    queue: &str,
    now: i64,
) -> Result<BTreeMap<String, u64>, rusqlite::Error> {
    transaction
        .prepare_cached(
            "SELECT group_id, count(*) FROM messages INDEXED BY messages_received
             WHERE queue = ?1 AND visible_ms > ?2 AND receive_count > 0 AND receipt IS NOT NULL AND group_id IS NOT NULL
             GROUP BY group_id",
        )?
        .query_map(params![queue, now], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

/// Returns the groups that have messages in the queue. Each costs one index lookup, regardless of
/// the number of its messages.
fn groups(transaction: &Transaction<'_>, queue: &str) -> Result<Vec<String>, rusqlite::Error> {
    transaction
        .prepare_cached(
            "WITH RECURSIVE found (group_id) AS (
                 SELECT min(group_id) FROM messages WHERE queue = ?1
                 UNION ALL
                 SELECT (SELECT min(later.group_id) FROM messages AS later
                         WHERE later.queue = ?1 AND later.group_id > found.group_id)
                 FROM found WHERE found.group_id IS NOT NULL
             )
             SELECT group_id FROM found WHERE group_id IS NOT NULL",
        )?
        .query_map([queue], |row| row.get(0))?
        .collect()
}

/// Returns the turn of a group that has a visible message after `after`, in the order of visibility
/// and number.
fn turn(
    transaction: &Transaction<'_>,
    queue: &str,
    group: Option<String>,
    in_flight: u64,
    after: (i64, i64),
    now: i64,
) -> Result<Option<Turn>, rusqlite::Error> {
    let oldest = transaction
        .prepare_cached(
            "SELECT visible_ms, number FROM messages INDEXED BY messages_by_group
             WHERE queue = ?1 AND group_id IS ?2 AND visible_ms <= ?3 AND (visible_ms, number) > (?4, ?5)
             ORDER BY visible_ms, number LIMIT 1",
        )?
        .query_row(params![queue, group, now, after.0, after.1], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()?;
    Ok(oldest.map(|(visible_ms, number)| Turn {
        in_flight,
        visible_ms,
        number,
        group,
    }))
}

/// Moves visible messages that were received too often to the dead-letter queue.
fn bury(
    transaction: &Transaction<'_>,
    queue: &str,
    redrive: &Redrive,
    now: i64,
) -> Result<bool, QueueError> {
    let overdue = transaction
        .prepare_cached(
            // The first comparison matches the partial index: without it, all visible messages are
            // read.
            "SELECT 1 FROM messages INDEXED BY messages_received
             WHERE queue = ?1 AND visible_ms <= ?2 AND receive_count > 0 AND receive_count >= ?3 LIMIT 1",
        )?
        .exists(params![queue, now, redrive.max_receive_count])?;
    if !overdue {
        return Ok(false);
    }
    load(transaction, &redrive.dead_letter)?;
    transaction
        .prepare_cached(
            "UPDATE messages SET queue = ?4, moved_from = ?1, visible_ms = ?2, receipt = NULL
             WHERE queue = ?1 AND visible_ms <= ?2 AND receive_count > 0 AND receive_count >= ?3",
        )?
        .execute(params![
            queue,
            now,
            redrive.max_receive_count,
            redrive.dead_letter
        ])?;
    Ok(true)
}

fn read_message(row: &Row<'_>, now: i64, hidden_until: i64) -> Result<Received, rusqlite::Error> {
    #[derive(serde::Deserialize)]
    struct Attributes {
        values: BTreeMap<String, String>,
        types: BTreeMap<String, String>,
    }
    let number: i64 = row.get(0)?;
    let text: String = row.get(3)?;
    let attributes: Attributes = serde_json::from_str(&text).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(3, rusqlite::types::Type::Text, Box::new(error))
    })?;
    let earlier: u32 = row.get(6)?;
    Ok(Received {
        id: row.get(1)?,
        receipt: format!("{number:x}.{}", Uuid::new_v4().simple()),
        body: row.get(2)?,
        attributes: attributes.values,
        attribute_types: attributes.types,
        group: row.get(4)?,
        receive_count: earlier.saturating_add(1),
        sent_at_ms: row.get(5)?,
        first_received_at_ms: row.get::<_, Option<i64>>(7)?.unwrap_or(now),
        hidden_until_ms: hidden_until,
        moved_from: row.get(8)?,
    })
}

fn load(transaction: &Transaction<'_>, queue: &str) -> Result<QueueSpec, QueueError> {
    transaction
        .prepare_cached(
            "SELECT visibility_ms, delay_ms, retention_ms, dead_letter, max_receive_count FROM queues WHERE name = ?1",
        )?
        .query_row([queue], |row| {
            let duration = |index: usize| Ok::<_, rusqlite::Error>(Duration::from_millis(row.get(index)?));
            let dead_letter: Option<String> = row.get(3)?;
            let max_receive_count: Option<u32> = row.get(4)?;
            Ok(QueueSpec {
                name: queue.to_owned(),
                visibility_timeout: duration(0)?,
                delay: duration(1)?,
                retention: duration(2)?,
                redrive: dead_letter
                    .zip(max_receive_count)
                    .map(|(dead_letter, max_receive_count)| Redrive { dead_letter, max_receive_count }),
            })
        })
        .optional()?
        .ok_or_else(|| QueueError::NoSuchQueue(queue.to_owned()))
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

    fn check(&self) -> Result<(), QueueError> {
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

fn check_delay(delay: Option<Duration>) -> Result<(), QueueError> {
    if delay.is_some_and(|delay| delay > MAX_DELAY) {
        return Err(QueueError::InvalidParameter(
            "DelaySeconds must be between 0 and 900".to_owned(),
        ));
    }
    Ok(())
}

fn check_visibility(visibility: Option<Duration>) -> Result<(), QueueError> {
    if visibility.is_some_and(|visibility| visibility > MAX_VISIBILITY) {
        return Err(QueueError::InvalidParameter(
            "VisibilityTimeout must be between 0 and 43200".to_owned(),
        ));
    }
    Ok(())
}

fn number_of(receipt: &str) -> Result<i64, QueueError> {
    receipt
        .split_once('.')
        .filter(|(_, random)| Uuid::try_parse(random).is_ok())
        .and_then(|(number, _)| i64::from_str_radix(number, 16).ok())
        .ok_or_else(|| QueueError::InvalidReceipt(receipt.to_owned()))
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// A source of the current time. Clones share it.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> i64 + Send + Sync>);

impl Clock {
    /// Returns the system's clock.
    #[must_use]
    pub fn system() -> Self {
        Self::new(|| {
            let since = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        })
    }

    /// Returns a clock that calls `now_ms` for the time in epoch milliseconds.
    #[must_use]
    pub fn new(now_ms: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(now_ms))
    }

    /// Returns the milliseconds since 1970.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Clock({})", self.now_ms())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_780_000_000_000;

    /// A queue with a stopped clock and one received message.
    async fn received() -> (Queues, Received, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::open(folder.path()).unwrap();
        let queues = Queues::with_clock(database, Clock::new(|| NOW));
        queues.create(QueueSpec::named("lane")).await.unwrap();
        queues.send("lane", NewMessage::text("x")).await.unwrap();
        let message = queues.receive("lane", 1, None).await.unwrap().remove(0);
        (queues, message, folder)
    }

    #[tokio::test]
    async fn a_message_that_failed_is_hidden_for_the_back_off() {
        let (queues, message, _folder) = received().await;
        let back_off = Duration::from_secs(4);
        queues.back_off("lane", &message, back_off).await.unwrap();
        let visible = queues.next_visible_at_ms("lane").await.unwrap();
        assert_eq!(visible, Some(NOW + 4000));
    }

    #[tokio::test]
    async fn a_visibility_that_the_consumer_has_changed_is_kept() {
        for changed in [0, 1, 29, 31, 3600] {
            let (queues, message, _folder) = received().await;
            let visibility = Duration::from_secs(changed);
            queues
                .change_visibility("lane", &message.receipt, visibility)
                .await
                .unwrap();
            let back_off = Duration::from_secs(4);
            queues.back_off("lane", &message, back_off).await.unwrap();
            let visible = queues.next_visible_at_ms("lane").await.unwrap();
            assert_eq!(visible, Some(NOW + millis(visibility)), "{changed} s");
        }
    }

    #[tokio::test]
    async fn messages_that_are_sent_are_counted_until_the_reset() {
        let (queues, ..) = received().await;
        queues.send("lane", NewMessage::text("y")).await.unwrap();
        assert_eq!((queues.sent("lane"), queues.sent("other")), (2, 0));
        queues.reset_sent();
        assert_eq!(queues.sent("lane"), 0);
    }
}
