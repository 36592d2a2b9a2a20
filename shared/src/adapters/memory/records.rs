//! Records in memory.

use std::collections::BTreeMap;
use std::fmt;
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
    items: BTreeMap<ItemKey, Stored>,
    calls: Calls,
    keys_loaded: u64,
}

impl MemoryRecords {
    /// Returns an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts an item of a newer build, and replaces an existing one.
    pub fn put_newer(&self, key: &ItemKey, revision: Revision) {
        let item = Item::Newer { schema: SCHEMA + 1 };
        self.lock()
            .items
            .insert(key.clone(), Stored { revision, item });
    }

    /// Returns the item of a key; not counted as a call.
    pub fn peek(&self, key: &ItemKey) -> Option<Stored> {
        self.lock().items.get(key).cloned()
    }

    /// Returns all items, in the order of their keys; not counted as a call.
    pub fn items(&self) -> Vec<(ItemKey, Stored)> {
        self.lock()
            .items
            .iter()
            .map(|(key, stored)| (key.clone(), stored.clone()))
            .collect()
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

#[async_trait]
impl RecordStore for MemoryRecords {
    async fn load(&self, keys: &[ItemKey], _: Consistency) -> Result<Vec<Option<Stored>>, Fault> {
        let mut state = self.call("load");
        state.keys_loaded += keys.len() as u64;
        Ok(keys
            .iter()
            .map(|key| state.items.get(key).cloned())
            .collect())
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
            .map(|(key, stored)| (key.clone(), stored.clone()))
            .collect())
    }

    async fn replace(
        &self,
        key: &ItemKey,
        expected: Option<&Revision>,
        next: &Stored,
    ) -> Result<Replaced, Fault> {
        let mut state = self.call("replace");
        check(key, &next.item)?;
        let present = state.items.get(key);
        let may_write = match (present, expected) {
            (None, None) => true,
            (Some(present), Some(expected)) => may_replace(present, expected),
            (None, Some(_)) | (Some(_), None) => false,
        };
        if !may_write {
            return Ok(Replaced::Lost(present.cloned()));
        }
        state.items.insert(key.clone(), next.clone());
        Ok(Replaced::Done)
    }

    async fn remove(&self, key: &ItemKey, expected: &Revision) -> Result<Removed, Fault> {
        let mut state = self.call("remove");
        if let Some(present) = state.items.get(key)
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
        let page: Vec<_> = items
            .by_ref()
            .take(PAGE_ITEMS)
            .map(|(key, stored)| (key.clone(), stored.clone()))
            .collect();
        let next = items
            .next()
            .and(page.last())
            .map(|(key, _)| Cursor(key.clone()));
        let bytes: usize = page
            .iter()
            .map(|(_, stored)| json_bytes(&stored.item))
            .sum();
        Ok(Page {
            items: page,
            next,
            read_units: 0.5 * f64::from(u32::try_from(bytes.div_ceil(4096)).unwrap_or(u32::MAX)),
        })
    }
}

/// Returns the approximate billed size of an item: that of its JSON.
fn json_bytes(item: &Item) -> usize {
    serde_json::to_vec(item).map_or(0, |json| json.len())
}

fn may_replace(present: &Stored, expected: &Revision) -> bool {
    present.revision == *expected && !matches!(present.item, Item::Newer { .. })
}

fn check(key: &ItemKey, item: &Item) -> Result<(), Fault> {
    let refuse = |kind, cause: String| {
        let context = format!("writing item {} {}", key.partition, key.sort);
        Err(Fault::new(kind, context).caused_by(cause))
    };
    match serde_json::to_vec(item) {
        Ok(json) if json.len() <= MAX_ITEM_BYTES => Ok(()),
        Ok(json) => refuse(
            FaultKind::TooLarge,
            format!(
                "the item has {} bytes; the limit is {MAX_ITEM_BYTES}",
                json.len()
            ),
        ),
        // An item of a newer build cannot be serialized.
        Err(error) => refuse(FaultKind::Bug, error.to_string()),
    }
}

impl fmt::Display for MemoryRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, stored) in &self.lock().items {
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
