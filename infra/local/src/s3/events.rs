//! S3 event notifications: which queue receives which event, and the message in S3's format.
//!
//! Source: Amazon S3 User Guide, "Event message structure" and "Supported event types".

use std::sync::Arc;

use rusqlite::Transaction;
use s3s::dto::TimestampFormat;
use serde_json::json;
use uuid::Uuid;

use super::failure::Failure;
use super::times::timestamp;
use crate::clock::Clock;
use crate::identity::{ACCOUNT, REGION};
use crate::queues::{self, NewMessage};

/// One entry of a bucket's notification configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The bucket.
    pub bucket: String,
    /// Event types, such as `s3:ObjectCreated:*` or `s3:ObjectRemoved:Delete`.
    pub events: Vec<String>,
    /// The required prefix of keys; empty for all keys.
    pub prefix: String,
    /// The required suffix of keys; empty for all keys.
    pub suffix: String,
    /// The queue's name.
    pub queue: String,
}

impl Notification {
    fn concerns(&self, bucket: &str, key: &str, event: &str) -> bool {
        let wanted = |pattern: &String| {
            let pattern = pattern.strip_prefix("s3:").unwrap_or(pattern);
            match pattern.strip_suffix('*') {
                Some(start) => event.starts_with(start),
                None => event == pattern,
            }
        };
        self.bucket == bucket
            && key.starts_with(&self.prefix)
            && key.ends_with(&self.suffix)
            && self.events.iter().any(wanted)
    }
}

/// The notifications of all buckets. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Notifications {
    list: Arc<[Notification]>,
    /// The clock of the queues, which may be ahead of that of S3.
    queues: Clock,
}

impl Notifications {
    pub(crate) fn new(list: Vec<Notification>, queues: Clock) -> Self {
        Self {
            list: list.into(),
            queues,
        }
    }
}

/// The type of a change, and who requested it.
#[derive(Clone, Debug)]
pub(crate) struct Cause {
    /// The event's name without `s3:`.
    pub(crate) event: &'static str,
    /// The access key of the request.
    pub(crate) principal: String,
}

impl Cause {
    pub(crate) const PUT: &'static str = "ObjectCreated:Put";
    pub(crate) const COPY: &'static str = "ObjectCreated:Copy";
    pub(crate) const COMPLETE: &'static str = "ObjectCreated:CompleteMultipartUpload";
    pub(crate) const DELETE: &'static str = "ObjectRemoved:Delete";
    pub(crate) const EXPIRATION: &'static str = "LifecycleExpiration:Delete";
}

/// The size and ETag of an object that exists after the change.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    pub(crate) size: u64,
    pub(crate) etag: String,
}

/// Inserts the messages of one change into the queues that are configured for it, in the
/// transaction of the change.
pub(crate) fn emit(
    transaction: &Transaction<'_>,
    notifications: &Notifications,
    bucket: &str,
    key: &str,
    content: Option<&Content>,
    cause: &Cause,
    now: i64,
) -> Result<(), Failure> {
    let concerned = notifications
        .list
        .iter()
        .filter(|notification| notification.concerns(bucket, key, cause.event));
    let mut sequencer = None;
    for notification in concerned {
        // All messages of a change have the same sequencer.
        let sequencer = match &sequencer {
            Some(sequencer) => sequencer,
            None => sequencer.insert(next_sequencer(transaction)?),
        };
        let record = record(notification, bucket, key, content, cause, now, sequencer);
        let body = json!({ "Records": [record] }).to_string();
        let message = NewMessage::text(body);
        queues::insert(
            transaction,
            &notification.queue,
            &message,
            &Default::default(),
            notifications.queues.now_ms(),
        )?;
    }
    Ok(())
}

fn record(
    notification: &Notification,
    bucket: &str,
    key: &str,
    content: Option<&Content>,
    cause: &Cause,
    now: i64,
    sequencer: &str,
) -> serde_json::Value {
    let mut time = Vec::new();
    // Formatting a time fails only for years outside of 0 to 9999.
    if timestamp(now)
        .format(TimestampFormat::DateTime, &mut time)
        .is_err()
    {
        time.clear();
    }
    let mut object = json!({ "key": encode(key), "sequencer": sequencer });
    if let Some(content) = content {
        object["size"] = content.size.into();
        object["eTag"] = content.etag.as_str().into();
    }
    json!({
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "awsRegion": REGION,
        "eventTime": String::from_utf8_lossy(&time),
        "eventName": cause.event,
        "userIdentity": { "principalId": format!("AWS:{}", cause.principal) },
        "requestParameters": { "sourceIPAddress": "127.0.0.1" },
        "responseElements": {
            "x-amz-request-id": Uuid::new_v4().simple().to_string()[..16].to_ascii_uppercase(),
            "x-amz-id-2": "local",
        },
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": notification.queue,
            "bucket": {
                "name": bucket,
                "ownerIdentity": { "principalId": ACCOUNT },
                "arn": format!("arn:aws:s3:::{bucket}"),
            },
            "object": object,
        },
    })
}

/// Returns a number larger than all previous ones, in 16 hexadecimal digits. Compared as text, it
/// orders the events of a key.
fn next_sequencer(transaction: &Transaction<'_>) -> Result<String, rusqlite::Error> {
    let value: i64 = transaction
        .prepare_cached("UPDATE sequence SET value = value + 1 WHERE only = 1 RETURNING value")?
        .query_row([], |row| row.get(0))?;
    Ok(format!("{value:016X}"))
}

/// Encodes a key as events do: form encoding that leaves slashes unchanged.
fn encode(key: &str) -> String {
    let mut text = String::with_capacity(key.len());
    for byte in key.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'*' | b'/' => {
                text.push(char::from(byte));
            }
            b' ' => text.push('+'),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_form_encoded_except_for_slashes() {
        assert_eq!(
            encode("global/My File+1 (ü).so"),
            "global/My+File%2B1+%28%C3%BC%29.so"
        );
        assert_eq!(encode("a~b=c&d%20\n"), "a%7Eb%3Dc%26d%2520%0A");
    }

    #[test]
    fn a_notification_receives_only_events_of_its_types_prefix_and_suffix() {
        let notification = Notification {
            bucket: "uploads".to_owned(),
            events: vec![
                "s3:ObjectCreated:*".to_owned(),
                "s3:ObjectRemoved:Delete".to_owned(),
            ],
            prefix: "global/".to_owned(),
            suffix: ".so".to_owned(),
            queue: "orders".to_owned(),
        };
        for (bucket, key, event, expected) in [
            ("uploads", "global/a.so", Cause::PUT, true),
            ("uploads", "global/a.so", Cause::COMPLETE, true),
            ("uploads", "global/a.so", Cause::DELETE, true),
            (
                "uploads",
                "global/a.so",
                "ObjectRemoved:DeleteMarkerCreated",
                false,
            ),
            ("uploads", "global/a.pdb", Cause::PUT, false),
            ("uploads", "other/a.so", Cause::PUT, false),
            ("caches", "global/a.so", Cause::PUT, false),
        ] {
            assert_eq!(
                notification.concerns(bucket, key, event),
                expected,
                "{bucket} {key} {event}"
            );
        }
    }
}
