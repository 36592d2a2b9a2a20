//! Parses the messages of the queues: events of the uploads bucket, and build requests.

use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::Value;
use symdepot::flows::spans::SpanContext;
use symdepot::flows::uploads::{DifStat, ReconcileMessage, Sequencer, UploadChange, UploadEvent};
use symdepot::ports::Needs;
use symdepot::ports::QueueMessage;
use symdepot::ports::ReadMessage;
use symdepot::runtime::MessageSummary;

/// The content of a message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MessageContent {
    /// A file was uploaded or removed.
    Upload(UploadEvent),
    /// The event of a key may have been lost, or its processing is not complete.
    Reconcile(ReconcileMessage),
    /// A build request.
    Build(QueueMessage),
    /// A message of a newer release, which this one cannot read.
    Newer(Needs),
}

impl MessageContent {
    /// Returns the span that sent the message, if it names one.
    pub(crate) fn sender(&self) -> Option<SpanContext> {
        match self {
            Self::Upload(_) | Self::Newer(_) => None,
            Self::Reconcile(message) => message.trace,
            Self::Build(message) => message.trace,
        }
    }

    /// Says in the summary of a message what it contains. The last content counts.
    pub(crate) fn name_in(&self, summary: &mut MessageSummary) {
        let (work, file) = match self {
            Self::Upload(event) => match event.change {
                UploadChange::Created => ("created", Some(event.key.clone())),
                UploadChange::Removed => ("removed", Some(event.key.clone())),
            },
            Self::Reconcile(message) => {
                summary.hops = Some(message.hops);
                ("reconcile", Some(message.key.as_str().to_owned()))
            }
            Self::Build(message) => {
                summary.hops = Some(message.hops);
                summary.queue = Some(message.queue.as_str());
                summary.source = Some(message.module.source.to_string());
                ("build", Some(message.subject()))
            }
            Self::Newer(_) => ("newer", None),
        };
        summary.work = Some(work);
        summary.file = file;
    }
}

/// Why a message cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(
    "a message is neither an S3 event nor one of symdepot's own: if symdepot did not send it, delete it from the dead letters"
)]
pub(crate) struct Unreadable(#[from] serde_json::Error);

/// The fields of an S3 event that are read: those that every sender of such events fills in.
///
/// Source of the format: Amazon S3 User Guide, "Event message structure".
#[derive(Deserialize)]
struct S3Event {
    #[serde(rename = "Records")]
    records: Vec<S3Record>,
}

#[derive(Deserialize)]
struct S3Record {
    #[serde(rename = "eventName", default)]
    event_name: String,
    s3: Option<S3Entity>,
}

#[derive(Deserialize)]
struct S3Entity {
    object: S3Object,
}

#[derive(Deserialize)]
struct S3Object {
    key: String,
    #[serde(default)]
    sequencer: Option<Sequencer>,
    #[serde(default, rename = "eTag")]
    etag: Option<String>,
    #[serde(default)]
    size: Option<u64>,
    /// Only in buckets with versions.
    #[serde(default, rename = "versionId")]
    version: Option<String>,
}

/// Parses the body of a message. An event without an upload (`s3:TestEvent`, or one of another
/// service) yields nothing.
pub(crate) fn read(body: &str) -> Result<Vec<MessageContent>, Unreadable> {
    let value: Value = serde_json::from_str(body)?;
    if value.get("Records").is_some() {
        let event: S3Event = serde_json::from_value(value)?;
        return Ok(event.records.into_iter().filter_map(content_of).collect());
    }
    if value.get("Event").and_then(Value::as_str) == Some("s3:TestEvent") {
        return Ok(Vec::new());
    }
    if value.get("reconcile").is_some() {
        let message = serde_json::from_value(value)?;
        return Ok(vec![MessageContent::Reconcile(message)]);
    }
    Ok(vec![match QueueMessage::read(value)? {
        ReadMessage::Message(message) => MessageContent::Build(message),
        ReadMessage::Newer(needs) => MessageContent::Newer(needs),
    }])
}

/// Parses one record. The version of its format is ignored, because later ones only add fields.
fn content_of(record: S3Record) -> Option<MessageContent> {
    let name = &record.event_name;
    let name = name.strip_prefix("s3:").unwrap_or(name);
    let (kind, way) = name.split_once(':').unwrap_or((name, ""));
    let change = match kind {
        "ObjectCreated" => UploadChange::Created,
        "ObjectRemoved" | "LifecycleExpiration" => UploadChange::Removed,
        _ => return None,
    };
    let object = record.s3?.object;
    let key = object.key.replace('+', " ");
    let key = percent_decode_str(&key).decode_utf8().ok()?.into_owned();
    if change == UploadChange::Removed && way == "Delete" && object.version.is_some() {
        // A version was removed, perhaps an old one: what the bucket has now is not known.
        return Some(MessageContent::Reconcile(ReconcileMessage::of_key(key)));
    }
    Some(MessageContent::Upload(UploadEvent {
        key,
        sequencer: object.sequencer.unwrap_or_default(),
        change,
        written: object.etag.zip(object.size).map(|(etag, size)| DifStat {
            etag: etag.trim_matches('"').to_owned(),
            size,
        }),
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the body of the message in one of the sample events.
    fn sample(event: &str) -> String {
        let event: Value = serde_json::from_str(event).unwrap();
        event["Records"][0]["body"].as_str().unwrap().to_owned()
    }

    #[test]
    fn a_test_event_has_no_work() {
        let body = sample(include_str!("../../../infra/events/upload-test-event.json"));
        assert_eq!(read(&body).unwrap(), []);
    }

    #[test]
    fn a_creation_and_a_removal_are_distinguished() {
        let change = |event| match &read(&sample(event)).unwrap()[..] {
            [MessageContent::Upload(upload)] => upload.change,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            change(include_str!("../../../infra/events/upload-created.json")),
            UploadChange::Created
        );
        assert_eq!(
            change(include_str!("../../../infra/events/upload-removed.json")),
            UploadChange::Removed
        );
    }

    /// S3 sends the same event when a version is removed as when an object is (Amazon S3 User
    /// Guide, "Supported event types"). With versions, an object is removed by a delete marker.
    #[test]
    fn the_removal_of_a_version_says_nothing_about_the_current_file() {
        let read = |name: &str, version: &str| {
            let body = json!({"Records": [{"eventName": name, "s3": {"object": {
                "key": "global/a+b", "sequencer": "00", "versionId": version,
            }}}]});
            read(&body.to_string()).unwrap()
        };
        for name in ["ObjectRemoved:Delete", "s3:LifecycleExpiration:Delete"] {
            let contents = read(name, "1");
            assert!(matches!(&contents[..], [MessageContent::Reconcile(message)]
                if message.key.as_str() == "global/a b"));
        }
        for name in [
            "ObjectRemoved:DeleteMarkerCreated",
            "LifecycleExpiration:DeleteMarkerCreated",
        ] {
            let contents = read(name, "1");
            assert!(matches!(&contents[..], [MessageContent::Upload(upload)]
                if upload.change == UploadChange::Removed));
        }
        let created = read("ObjectCreated:Put", "1");
        assert!(matches!(&created[..], [MessageContent::Upload(_)]));
    }

    #[test]
    fn an_event_names_the_bytes_that_were_written() {
        let body = sample(include_str!("../../../infra/events/upload-created.json"));
        let MessageContent::Upload(upload) = &read(&body).unwrap()[0] else {
            panic!()
        };
        assert_eq!(
            upload.written,
            Some(DifStat {
                etag: "9a0364b9e99bb480dd25e1f0284c8555".to_owned(),
                size: 1_482_752,
            })
        );
    }

    #[test]
    fn a_key_is_decoded_as_form_data() {
        let body = r#"{"Records":[{"eventName":"ObjectCreated:Put",
            "s3":{"object":{"key":"global/a+b%2Bc%C3%A4.debug","sequencer":"00"}}}]}"#;
        let MessageContent::Upload(upload) = &read(body).unwrap()[0] else {
            panic!()
        };
        assert_eq!(upload.key, "global/a b+cä.debug");
    }

    #[test]
    fn a_message_of_a_build_queue_is_a_build_request() {
        let body = sample(include_str!("../../../infra/events/queue.json"));
        assert!(matches!(
            &read(&body).unwrap()[..],
            [MessageContent::Build(_)]
        ));
    }

    #[test]
    fn a_key_to_reconcile_is_not_encoded() {
        let body = r#"{"reconcile": "global/a+b%20.debug"}"#;
        assert_eq!(reconciled(body), ("global/a+b%20.debug".to_owned(), 0));
    }

    fn reconciled(body: &str) -> (String, u32) {
        match &read(body).unwrap()[..] {
            [MessageContent::Reconcile(message)] => (message.key.to_string(), message.hops),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_continued_key_has_its_number_of_hops() {
        let body = r#"{"reconcile": "global/a", "hops": 7}"#;
        assert_eq!(reconciled(body), ("global/a".to_owned(), 7));
    }

    #[test]
    fn a_message_of_a_newer_release_is_distinguished_from_a_malformed_one() {
        let sample: Value =
            serde_json::from_str(&sample(include_str!("../../../infra/events/queue.json")))
                .unwrap();
        let read_with = |fields: Value| {
            let mut message = sample.clone();
            let fields = fields.as_object().unwrap().clone();
            message.as_object_mut().unwrap().extend(fields);
            read(&message.to_string())
        };
        let of_tomorrow = json!(["symcache_of_tomorrow"]);
        for (schema, min_converter) in [(9, 1), (1, 1000)] {
            // A readable message is a build, even if its schema is newer: the flow decides whether
            // to wait.
            let readable = json!({"schema": schema, "min_converter": min_converter});
            let read = read_with(readable).unwrap();
            assert!(matches!(read[..], [MessageContent::Build(_)]), "{read:?}");
            let unreadable =
                json!({"schema": schema, "min_converter": min_converter, "kinds": of_tomorrow});
            let contents = read_with(unreadable).unwrap();
            let [MessageContent::Newer(needs)] = contents[..] else {
                panic!("{contents:?}")
            };
            assert_eq!(
                (needs.schema, needs.min_converter.0),
                (schema, min_converter)
            );
        }
        assert!(read_with(json!({"kinds": of_tomorrow})).is_err());
    }

    #[test]
    fn other_messages_are_refused() {
        for body in [
            "",
            "{}",
            "[]",
            "7",
            r#"{"schema": 1}"#,
            r#"{"reconcile": 1}"#,
        ] {
            assert!(read(body).is_err(), "{body:?}");
        }
    }
}
