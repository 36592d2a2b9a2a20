//! Records in memory.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use xxhash_rust::xxh3::xxh3_64;

use super::Calls;
use super::text::write_lines;
use crate::cache::{Item, ItemKey, Revision, SCHEMA, Stored};
use crate::ports::{
    Consistency, Cursor, Fault, FaultKind, Page, RecordStore, Removed, Replaced, Segment,
};

/// Items per page: few, so that tests need several pages.
const PAGE_ITEMS: usize = 100;

/// The largest item, as in DynamoDB; here measured as JSON.
const MAX_ITEM_BYTES: usize = 400 * 1024;

/// Records in memory. `Display` prints the whole state.
#[derive(Debug, Default)]
pub struct MemoryRecords {
    state: Mutex<RecordState>,
}

#[derive(Debug, Default)]
struct RecordState {
    items: BTreeMap<ItemKey, Kept>,
    calls: Calls,
    keys_loaded: u64,
}

/// An item, and its size.
#[derive(Debug)]
struct Kept {
    stored: Stored,
    /// The approximate billed size: that of its JSON. Zero for an item of a newer release.
    bytes: usize,
}

impl MemoryRecords {
    /// Returns an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts an item of a newer release, and replaces an existing one.
    pub fn put_newer(&self, key: &ItemKey, revision: Revision) {
        let item = Item::Newer { schema: SCHEMA + 1 };
        let stored = Stored { revision, item };
        let kept = Kept { stored, bytes: 0 };
        self.lock().items.insert(key.clone(), kept);
    }

    /// Returns the item of a key; not counted as a call.
    pub fn peek(&self, key: &ItemKey) -> Option<Stored> {
        self.lock().stored(key).cloned()
    }

    /// Returns all items, in the order of their keys; not counted as a call.
    pub fn items(&self) -> Vec<(ItemKey, Stored)> {
        let mut items = Vec::new();
        self.for_each(|key, stored| items.push((key.clone(), stored.clone())));
        items
    }

    /// Calls `visit` for each item, in the order of their keys; not counted as a call. `visit` must
    /// not call this store.
    pub fn for_each(&self, mut visit: impl FnMut(&ItemKey, &Stored)) {
        let state = self.lock();
        let items = state.items.iter();
        items.for_each(|(key, kept)| visit(key, &kept.stored));
    }

    /// Returns the whole state as readable text.
    pub fn state(&self) -> String {
        self.to_string()
    }

    /// Returns how often each operation was called.
    pub fn calls(&self) -> Calls {
        self.lock().calls.clone()
    }

    /// Returns how many keys were loaded, in all calls.
    pub fn keys_loaded(&self) -> u64 {
        self.lock().keys_loaded
    }

    fn lock(&self) -> MutexGuard<'_, RecordState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self, operation: &'static str) -> MutexGuard<'_, RecordState> {
        let mut state = self.lock();
        state.calls.count(operation);
        state
    }
}

impl RecordState {
    fn stored(&self, key: &ItemKey) -> Option<&Stored> {
        self.items.get(key).map(|kept| &kept.stored)
    }
}

#[async_trait]
impl RecordStore for MemoryRecords {
    async fn load(&self, keys: &[ItemKey], _: Consistency) -> Result<Vec<Option<Stored>>, Fault> {
        let mut state = self.call("load");
        state.keys_loaded += keys.len() as u64;
        Ok(keys.iter().map(|key| state.stored(key).cloned()).collect())
    }

    async fn query(&self, partition: &str) -> Result<Vec<(ItemKey, Stored)>, Fault> {
        let state = self.call("query");
        let first = ItemKey {
            partition: partition.to_owned(),
            sort: String::new(),
        };
        let items = state.items.range(first..);
        Ok(items
            .take_while(|(key, _)| key.partition == partition)
            .map(|(key, kept)| (key.clone(), kept.stored.clone()))
            .collect())
    }

    async fn replace(
        &self,
        key: &ItemKey,
        expected: Option<&Revision>,
        next: &Stored,
    ) -> Result<Replaced, Fault> {
        let mut state = self.call("replace");
        let bytes = check(key, &next.item)?;
        let present = state.stored(key);
        let may_write = match (present, expected) {
            (None, None) => true,
            (Some(present), Some(expected)) => may_replace(present, expected),
            (None, Some(_)) | (Some(_), None) => false,
        };
        if !may_write {
            return Ok(Replaced::unless_repeated(present.cloned(), next));
        }
        let stored = next.clone();
        state.items.insert(key.clone(), Kept { stored, bytes });
        Ok(Replaced::Done)
    }

    async fn remove(&self, key: &ItemKey, expected: &Revision) -> Result<Removed, Fault> {
        let mut state = self.call("remove");
        if let Some(present) = state.stored(key)
            && !may_replace(present, expected)
        {
            return Ok(Removed::Lost(present.clone()));
        }
        state.items.remove(key);
        Ok(Removed::Done)
    }

    async fn page(&self, segment: Segment, after: Option<&Cursor>) -> Result<Page, Fault> {
        let state = self.call("page");
        let behind = after.map_or(Bound::Unbounded, |Cursor(after)| Bound::Excluded(after));
        let within = |key: &ItemKey| {
            xxh3_64(key.partition.as_bytes()) % u64::from(segment.of) == u64::from(segment.index)
        };
        let mut items = state
            .items
            .range((behind, Bound::Unbounded))
            .filter(|(key, _)| within(key));
        let mut bytes = 0;
        let page: Vec<_> = items
            .by_ref()
            .take(PAGE_ITEMS)
            .map(|(key, kept)| {
                bytes += kept.bytes;
                (key.clone(), kept.stored.clone())
            })
            .collect();
        let next = items
            .next()
            .and(page.last())
            .map(|(key, _)| Cursor(key.clone()));
        Ok(Page {
            items: page,
            next,
            read_units: 0.5 * f64::from(u32::try_from(bytes.div_ceil(4096)).unwrap_or(u32::MAX)),
        })
    }
}

fn may_replace(present: &Stored, expected: &Revision) -> bool {
    present.revision == *expected && !matches!(present.item, Item::Newer { .. })
}

/// Returns the size of an item that may be written.
fn check(key: &ItemKey, item: &Item) -> Result<usize, Fault> {
    let refuse = |kind, cause: String| {
        let context = format!("writing item {} {}", key.partition, key.sort);
        Err(Fault::new(kind, context).caused_by(cause))
    };
    let mut written = Written(0);
    match serde_json::to_writer(&mut written, item) {
        Ok(()) if written.0 <= MAX_ITEM_BYTES => Ok(written.0),
        Ok(()) => refuse(
            FaultKind::TooLarge,
            format!(
                "the item has {} bytes; the limit is {MAX_ITEM_BYTES}",
                written.0
            ),
        ),
        // An item of a newer release cannot be serialized.
        Err(error) => refuse(FaultKind::Bug, error.to_string()),
    }
}

/// Counts the bytes that are written.
struct Written(usize);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Display for MemoryRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, Kept { stored, .. }) in &self.lock().items {
            let partition: String = key.partition.chars().take(8).collect();
            writeln!(f, "{partition} {}", key.sort)?;
            match &stored.item {
                Item::Newer { schema } => writeln!(f, "  schema: {schema}")?,
                item => write_lines(
                    f,
                    "  ",
                    &serde_json::to_value(item).map_err(|_| fmt::Error)?,
                )?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{PendingRequest, RequestBody};
    use crate::domain::{ResponseFormat, Scope, Timestamp};

    #[tokio::test]
    async fn the_state_is_readable_and_calls_are_counted() {
        let records = MemoryRecords::new();
        let request = PendingRequest {
            id: "1".to_owned(),
            scope: Scope::Global,
            encrypted: false,
            stage: crate::cache::RequestStage::default(),
            format: ResponseFormat::default(),
            body: RequestBody::Inline("{}\n".to_owned()),
            asked_at: None,
            answer: None,
            expires_at: Timestamp::from_secs(3600),
        };
        let stored = Stored {
            revision: Revision::from_random(1),
            item: Item::Request(request),
        };
        records
            .replace(&ItemKey::request("1"), None, &stored)
            .await
            .unwrap();
        records.put_newer(
            &ItemKey {
                partition: "ffffffffffff".to_owned(),
                sort: "x".to_owned(),
            },
            Revision::from_random(2),
        );
        insta::assert_snapshot!(records.state(), @r#"
        90d2fd16 request
          body.inline: "{}\n"
          expires_at: 3600
          id: 1
          scope: global
          type: request
        ffffffff x
          schema: 8
        "#);
        assert_eq!(
            (records.calls().of("replace"), records.calls().total()),
            (1, 1)
        );
    }
}
