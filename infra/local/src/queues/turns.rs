//! The order in which messages are received, and the move of messages that were received too often
//! to the dead-letter queue.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use rusqlite::{OptionalExtension as _, Row, Transaction, params};
use uuid::Uuid;

use crate::clock::millis;
use crate::queues::{NewMessage, QueueError, QueueSpec, Received, Redrive};

/// Inserts a message that passed [`NewMessage::check`] and returns its id. The caller wakes the
/// pollers with [`changed`](super::Queues::changed) after the transaction is committed.
pub(crate) fn insert(
    transaction: &Transaction<'_>,
    queue: &str,
    message: &NewMessage,
    types: &BTreeMap<String, String>,
    now: i64,
) -> Result<String, QueueError> {
    let spec = load(transaction, queue)?;
    let id = Uuid::new_v4().to_string();
    let attributes = serde_json::json!({
        "values": message.attributes,
        "types": types,
        "trace": message.trace_header,
    });
    transaction
        .prepare_cached(
            "INSERT INTO messages (queue, id, body, attributes, group_id, sent_ms, visible_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![
            queue,
            id,
            message.body,
            attributes.to_string(),
            message.group,
            now,
            now + millis(message.delay.unwrap_or(spec.delay))
        ])?;
    Ok(id)
}

/// Claims up to `max` visible messages of groups that are not left out. Also returns whether
/// messages were moved to the dead-letter queue.
pub(super) fn claim(
    transaction: &Transaction<'_>,
    queue: &str,
    max: usize,
    visibility: Option<Duration>,
    left_out: &BTreeSet<String>,
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
    for number in choose(transaction, queue, max, left_out, now)? {
        let message = select.query_row([number], |row| read_message(row, now, hidden_until))?;
        hide.execute(params![number, hidden_until, message.receipt, now])?;
        received.push(message);
    }
    Ok((received, moved))
}

/// A group and its oldest visible message. The smallest value has the next turn.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    in_flight: u64,
    visible_ms: i64,
    number: i64,
    /// `None` for messages without a group, each of which is a group of its own.
    group: Option<String>,
}

/// Chooses the numbers of up to `max` visible messages of groups that are not left out; groups take
/// turns. The cost grows with the number of groups, not with the number of their messages.
pub(super) fn choose(
    transaction: &Transaction<'_>,
    queue: &str,
    max: usize,
    left_out: &BTreeSet<String>,
    now: i64,
) -> Result<Vec<i64>, rusqlite::Error> {
    let mut in_flight = in_flight(transaction, queue, now)?;
    let mut turns = BinaryHeap::new();
    for group in groups(transaction, queue)?
        .into_iter()
        .filter(|group| !left_out.contains(group))
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
pub(super) fn in_flight(
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
pub(super) fn groups(
    transaction: &Transaction<'_>,
    queue: &str,
) -> Result<Vec<String>, rusqlite::Error> {
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
pub(super) fn turn(
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
pub(super) fn bury(
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

pub(super) fn read_message(
    row: &Row<'_>,
    now: i64,
    hidden_until: i64,
) -> Result<Received, rusqlite::Error> {
    #[derive(serde::Deserialize)]
    struct Attributes {
        values: BTreeMap<String, String>,
        types: BTreeMap<String, String>,
        /// Earlier releases stored none.
        #[serde(default)]
        trace: Option<String>,
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
        trace_header: attributes.trace,
        receive_count: earlier.saturating_add(1),
        sent_at_ms: row.get(5)?,
        first_received_at_ms: row.get::<_, Option<i64>>(7)?.unwrap_or(now),
        hidden_until_ms: hidden_until,
        moved_from: row.get(8)?,
    })
}

pub(super) fn load(transaction: &Transaction<'_>, queue: &str) -> Result<QueueSpec, QueueError> {
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
