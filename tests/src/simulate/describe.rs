//! Short texts for items, keys and messages in a trace.

use std::collections::BTreeMap;

use symdepot::cache::{Entry, Item, ItemKey, ModuleKey, Ready, Stored, UploadState};
use symdepot::ports::QueueMessage;

/// Names of partitions.
#[derive(Clone, Debug, Default)]
pub(super) struct Labels {
    partitions: BTreeMap<String, String>,
}

impl Labels {
    /// Names a partition.
    pub(super) fn add(&mut self, partition: String, label: String) {
        self.partitions.insert(partition, label);
    }

    pub(super) fn partition(&self, partition: &str) -> String {
        let label = self.partitions.get(partition).cloned();
        label.unwrap_or_else(|| short(partition))
    }

    pub(super) fn key(&self, key: &ItemKey) -> String {
        let sort = match key.sort.split_once('#') {
            Some((kind, rest)) => format!("{kind}#{}", short(rest)),
            None => key.sort.clone(),
        };
        format!("{}/{sort}", self.partition(&key.partition))
    }

    pub(super) fn keys(&self, keys: &[ItemKey]) -> String {
        let keys: Vec<String> = keys.iter().map(|key| self.key(key)).collect();
        keys.join(", ")
    }
}

/// Returns the first characters of an id.
pub(super) fn short(text: &str) -> String {
    text.chars().take(6).collect()
}

/// Returns the kind and the token of a blob.
pub(super) fn path(path: &str) -> String {
    let mut parts = path.split('/');
    let first = parts.next().unwrap_or_default();
    let kind = parts.next().unwrap_or_default();
    let token = path.rsplit('/').next().unwrap_or_default();
    format!("{first}/{kind}…{}", short(token))
}

/// Returns what was found for each key.
pub(super) fn found(found: &[Option<Stored>]) -> String {
    let each = found.iter().map(|stored| match stored {
        Some(stored) => item(&stored.item),
        None => "absent".to_owned(),
    });
    each.collect::<Vec<_>>().join("; ")
}

/// Returns what matters of an item.
pub(super) fn item(item: &Item) -> String {
    match item {
        Item::Entry(entry) => self::entry(entry),
        Item::Upload(upload) => {
            let state = match &upload.state {
                UploadState::Pending => "pending",
                UploadState::Applied => "applied",
                UploadState::Ignored { .. } => "ignored",
                UploadState::Gone => "gone",
            };
            let (etag, attempts) = (short(&upload.etag), upload.attempts);
            format!(
                "{state} {:?} etag {etag}, {attempts} attempts",
                upload.progress
            )
        }
        Item::Generation(generation) => short(generation.change.as_str()),
        Item::Presence(presence) => short(presence.change.as_str()),
        Item::Dif(dif) => format!("{} etag {}", dif.file.location, short(&dif.file.etag)),
        other => {
            let text = format!("{other:?}");
            text.split(['(', ' ']).next().unwrap_or_default().to_owned()
        }
    }
}

fn state(ready: &Ready) -> String {
    let from = ready.made_from.first();
    let from = from.map(|dif| format!("{} etag {}", dif.location, short(&dif.etag)));
    format!(
        "v{} rank {} from {}",
        ready.version,
        ready.rank.as_u8(),
        from.unwrap_or_default()
    )
}

/// Returns what matters of an entry.
pub(super) fn entry(entry: &Entry) -> String {
    let mut parts = Vec::new();
    parts.extend(entry.ready().map(|ready| format!("ready {}", state(ready))));
    parts.extend(entry.older().map(|older| format!("older {}", state(older))));
    if let Some(missing) = entry.missing() {
        parts.push(format!("missing {:?}", missing.missing.cause));
    }
    if let Some(lease) = entry.lease() {
        parts.push(format!(
            "leased by {} until {}",
            lease.holder,
            lease.until.as_secs()
        ));
    }
    if let Some(request) = entry.build_request() {
        parts.push(format!(
            "requested {:?} {}",
            request.queue,
            short(request.id.as_str())
        ));
    }
    parts.extend(
        entry
            .dirty()
            .map(|mark| format!("dirty {}", short(mark.as_str()))),
    );
    parts.extend(entry.suspect().map(|_| "suspect".to_owned()));
    if entry.attempts() > 0 {
        parts.push(format!("{} attempts", entry.attempts()));
    }
    parts.join(", ")
}

/// Returns what a message requests.
pub(super) fn message(message: &QueueMessage) -> String {
    let kinds: Vec<String> = message.kinds.iter().map(ToString::to_string).collect();
    format!(
        "{:?} {} {} {} hop {}",
        message.queue,
        module(&message.module),
        kinds.join("+"),
        short(message.build_request.as_str()),
        message.hops
    )
}

/// Returns the number and the scope of a module.
pub(super) fn module(module: &ModuleKey) -> String {
    format!("{}@{}", super::workload::label(&module.id), module.scope)
}
