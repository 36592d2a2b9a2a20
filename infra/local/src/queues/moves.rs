//! Moves of messages out of a dead-letter queue (`StartMessageMoveTask`).
//!
//! A move is one transaction, and complete before its response. Messages in flight stay. A moved
//! message is a new one: it has a new id and was never received (Amazon SQS developer guide, "Learn
//! how to configure a dead-letter queue redrive").

use std::collections::VecDeque;

use rusqlite::{Transaction, params};
use uuid::Uuid;

use super::model::QueueError;
use super::turns::load;
use crate::clock::millis;

/// The number of tasks that are remembered: those that `ListMessageMoveTasks` returns at most.
pub const MOVE_TASKS: usize = 10;

/// A move of all messages of a dead-letter queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveTask {
    /// The id of the task.
    pub id: Uuid,
    /// The dead-letter queue.
    pub source: String,
    /// Where the messages were moved; `None`: where each of them came from.
    pub destination: Option<String>,
    /// The rate that was requested. It has no effect.
    pub messages_per_second: Option<u64>,
    /// The number of messages that were moved.
    pub moved: usize,
    /// The number of messages that were to be moved.
    pub to_move: usize,
    /// When it started, in epoch milliseconds.
    pub started_at_ms: i64,
}

impl MoveTask {
    /// Returns whether messages remain, as it is not known where they came from.
    pub fn has_failed(&self) -> bool {
        self.moved < self.to_move
    }
}

/// The last tasks of all queues, the newest first.
pub(super) type MoveTasks = VecDeque<MoveTask>;

/// Remembers a task. Of each queue, the last [`MOVE_TASKS`] are kept.
pub(super) fn remember(tasks: &mut MoveTasks, task: MoveTask) {
    let source = task.source.clone();
    tasks.push_front(task);
    let mut of_source = tasks
        .iter()
        .enumerate()
        .filter(|(_, task)| task.source == source);
    if let Some((oldest, _)) = of_source.nth(MOVE_TASKS) {
        tasks.remove(oldest);
    }
}

/// Moves the messages, and returns how many were moved and how many were to be moved.
pub(super) fn move_all(
    transaction: &Transaction<'_>,
    source: &str,
    destination: Option<&str>,
    now: i64,
) -> Result<(usize, usize), QueueError> {
    let spec = load(transaction, source)?;
    let is_dead_letter_queue = transaction
        .prepare_cached("SELECT 1 FROM queues WHERE dead_letter = ?1 LIMIT 1")?
        .exists([source])?;
    if !is_dead_letter_queue {
        // The text of SQS.
        let message = "Source queue must be configured as a Dead Letter Queue.";
        return Err(QueueError::InvalidParameter(message.to_owned()));
    }
    if let Some(destination) = destination {
        load(transaction, destination)?;
    }
    let mut select = transaction.prepare_cached(
        "SELECT messages.number, queues.name FROM messages
         LEFT JOIN queues ON queues.name = coalesce(?3, messages.moved_from)
         WHERE queue = ?1 AND visible_ms <= ?2 AND sent_ms > ?4 ORDER BY messages.number",
    )?;
    let expired = now - millis(spec.retention);
    let rows = select.query_map(params![source, now, destination, expired], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, Option<String>>(1)?))
    })?;
    let found = rows.collect::<Result<Vec<_>, _>>()?;
    let mut moved = 0;
    for (number, queue) in &found {
        let Some(queue) = queue else {
            continue;
        };
        transaction
            .prepare_cached(
                "INSERT INTO messages (queue, id, body, attributes, group_id, sent_ms, visible_ms)
                 SELECT ?2, ?3, body, attributes, group_id, ?4, ?4 FROM messages WHERE number = ?1",
            )?
            .execute(params![number, queue, Uuid::new_v4().to_string(), now])?;
        transaction
            .prepare_cached("DELETE FROM messages WHERE number = ?1")?
            .execute([number])?;
        moved += 1;
    }
    Ok((moved, found.len()))
}
