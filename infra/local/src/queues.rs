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

mod model;
mod moves;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use model::{Counts, MAX_MESSAGE_BYTES, NewMessage, QueueError, QueueSpec, Received, Redrive};
pub use moves::{MOVE_TASKS, MoveTask};
use rusqlite::params;
use tokio::sync::watch;
pub(crate) use turns::insert;
use uuid::Uuid;

use crate::clock::{Clock, millis};
use crate::database::Database;
use crate::queues::model::check_visibility;
use crate::queues::moves::{MoveTasks, move_all, remember};
use crate::queues::turns::{choose, claim, load};

/// All queues of the stack. Clones share the same queues.
#[derive(Clone, Debug)]
pub struct Queues {
    database: Database,
    clock: Clock,
    changes: watch::Sender<u64>,
    sent: Arc<Mutex<BTreeMap<String, u64>>>,
    moves: Arc<Mutex<MoveTasks>>,
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
            moves: Arc::default(),
        }
    }

    /// Returns the clock that all times refer to.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Moves the clock ahead.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
        self.changed();
    }

    /// Moves the clock ahead to a time in epoch milliseconds, unless it has passed.
    pub(crate) fn advance_to(&self, at_ms: i64) {
        self.clock.advance_to(at_ms);
        self.changed();
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
        self.receive_except(queue, max, visibility, BTreeSet::new())
            .await
    }

    /// Same as [`Queues::receive`], without the messages of these groups.
    pub(crate) async fn receive_except(
        &self,
        queue: &str,
        max: usize,
        visibility: Option<Duration>,
        left_out: BTreeSet<String>,
    ) -> Result<Vec<Received>, QueueError> {
        check_visibility(visibility)?;
        let now = self.clock.now_ms();
        let queue = queue.to_owned();
        // Most calls find no message: a read first keeps them out of the queue of writers.
        let (name, left_out, found) = self
            .database
            .read::<_, QueueError>(move |transaction| {
                load(transaction, &queue)?;
                let found = if left_out.is_empty() {
                    transaction
                        .prepare_cached(
                            "SELECT 1 FROM messages WHERE queue = ?1 AND visible_ms <= ?2 LIMIT 1",
                        )?
                        .exists(params![queue, now])?
                } else {
                    !choose(transaction, &queue, 1, &left_out, now)?.is_empty()
                };
                Ok((queue, left_out, found))
            })
            .await?;
        if !found || max == 0 {
            return Ok(Vec::new());
        }
        let (received, moved) = self
            .database
            .write(move |transaction| claim(transaction, &name, max, visibility, &left_out, now))
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

    /// Moves all messages of a dead-letter queue that are not in flight.
    ///
    /// # Errors
    /// Returns an error if a queue does not exist, [`QueueError::InvalidParameter`] if the source
    /// is no dead-letter queue, or the database's error.
    pub async fn move_messages(
        &self,
        source: &str,
        destination: Option<&str>,
        messages_per_second: Option<u64>,
    ) -> Result<MoveTask, QueueError> {
        let now = self.clock.now_ms();
        let (from, to) = (source.to_owned(), destination.map(str::to_owned));
        let (moved, to_move) = self
            .database
            .write(move |transaction| move_all(transaction, &from, to.as_deref(), now))
            .await?;
        let task = MoveTask {
            id: Uuid::new_v4(),
            source: source.to_owned(),
            destination: destination.map(str::to_owned),
            messages_per_second,
            moved,
            to_move,
            started_at_ms: now,
        };
        remember(&mut self.move_tasks(), task.clone());
        self.changed();
        Ok(task)
    }

    /// Returns the last tasks of a dead-letter queue, the newest first.
    ///
    /// # Errors
    /// Returns [`QueueError::NoSuchQueue`] or the database's error.
    pub async fn moves_of(&self, source: &str) -> Result<Vec<MoveTask>, QueueError> {
        self.spec(source).await?;
        let tasks = self.move_tasks();
        let of_source = tasks.iter().filter(|task| task.source == source);
        Ok(of_source.cloned().collect())
    }

    /// Returns whether a task with this id is remembered.
    pub fn has_move(&self, id: Uuid) -> bool {
        self.move_tasks().iter().any(|task| task.id == id)
    }

    fn move_tasks(&self) -> MutexGuard<'_, MoveTasks> {
        self.moves.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Returns when the next message in flight becomes visible again, in epoch milliseconds, unless
    /// it is deleted before.
    ///
    /// # Errors
    /// Returns [`QueueError::NoSuchQueue`] or the database's error.
    pub async fn next_retry_at_ms(&self, queue: &str) -> Result<Option<i64>, QueueError> {
        let queue = queue.to_owned();
        let now = self.clock.now_ms();
        self.database
            .read(move |transaction| {
                load(transaction, &queue)?;
                let next = transaction
                    .prepare_cached(
                        "SELECT min(visible_ms) FROM messages
                         WHERE queue = ?1 AND visible_ms > ?2 AND receipt IS NOT NULL",
                    )?
                    .query_row(params![queue, now], |row| row.get(0))?;
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

    /// Returns a number that changes whenever a message is sent, received, moved or deleted, its
    /// visibility changes, or the clock is moved. Take the receiver before reading a queue, so that
    /// no change between reading and waiting is missed.
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

fn number_of(receipt: &str) -> Result<i64, QueueError> {
    receipt
        .split_once('.')
        .filter(|(_, random)| Uuid::try_parse(random).is_ok())
        .and_then(|(number, _)| i64::from_str_radix(number, 16).ok())
        .ok_or_else(|| QueueError::InvalidReceipt(receipt.to_owned()))
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
        queues.create(QueueSpec::named("orders")).await.unwrap();
        queues.send("orders", NewMessage::text("x")).await.unwrap();
        let message = queues.receive("orders", 1, None).await.unwrap().remove(0);
        (queues, message, folder)
    }

    #[tokio::test]
    async fn a_message_is_visible_again_when_the_clock_was_moved_to_the_end_of_its_timeout() {
        let (queues, _, _folder) = received().await;
        assert_eq!(
            queues.next_retry_at_ms("orders").await.unwrap(),
            Some(NOW + 30_000)
        );
        queues.advance(Duration::from_millis(29_999));
        assert_eq!(queues.counts("orders").await.unwrap().in_flight, 1);
        queues.advance(Duration::from_millis(1));
        assert_eq!(queues.counts("orders").await.unwrap().visible, 1);
        assert_eq!(queues.next_retry_at_ms("orders").await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_message_that_waits_for_its_delay_is_not_one_that_is_retried() {
        let (queues, message, _folder) = received().await;
        queues.delete("orders", &message.receipt).await.unwrap();
        let delayed = NewMessage {
            delay: Some(Duration::from_secs(9)),
            ..NewMessage::text("y")
        };
        queues.send("orders", delayed).await.unwrap();
        assert_eq!(queues.next_retry_at_ms("orders").await.unwrap(), None);
        let due = queues.next_visible_at_ms("orders").await.unwrap();
        assert_eq!(due, Some(NOW + 9000));
    }

    #[tokio::test]
    async fn messages_that_are_sent_are_counted_until_the_reset() {
        let (queues, ..) = received().await;
        queues.send("orders", NewMessage::text("y")).await.unwrap();
        assert_eq!((queues.sent("orders"), queues.sent("other")), (2, 0));
        queues.reset_sent();
        assert_eq!(queues.sent("orders"), 0);
    }
}
