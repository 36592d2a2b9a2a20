//! The store of items. An item changes only by compare-and-swap.

use std::fmt::Debug;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::Fault;
use crate::cache::{Item, ItemKey, Revision, Stored};

/// A store of items. An item changes only by compare-and-swap on its revision.
#[async_trait]
pub trait RecordStore: Debug + Send + Sync {
    /// Loads the items of any number of `keys`, in order; `None` if an item does not exist.
    /// Repeated keys are loaded once.
    async fn load(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
    ) -> Result<Vec<Option<Stored>>, Fault>;

    /// Loads the items of a partition with strong consistency, in the order of their sort keys.
    async fn query(&self, partition: &str) -> Result<Vec<(ItemKey, Stored)>, Fault>;

    /// Writes `next` if the stored revision is still `expected` (`None`: if there is no item).
    ///
    /// The revision of `next` is unique, so a client that repeats a write whose response was lost
    /// finds its own item, and the write succeeded.
    ///
    /// After an error the write may have succeeded: the caller reads the item again and looks for
    /// the effect. The same applies to [`Replaced::Lost`], because another writer may have replaced
    /// the item before the client repeated its write.
    async fn replace(
        &self,
        key: &ItemKey,
        expected: Option<&Revision>,
        next: &Stored,
    ) -> Result<Replaced, Fault>;

    /// Removes the item if its revision is still `expected`.
    async fn remove(&self, key: &ItemKey, expected: &Revision) -> Result<Removed, Fault>;

    /// Returns one page of a segment of all items, in no particular order, without items that
    /// cannot be read.
    ///
    /// `after` is the end of an earlier page of the same segment.
    async fn page(&self, segment: Segment, after: Option<&Cursor>) -> Result<Page, Fault>;
}

impl dyn RecordStore + '_ {
    /// Loads one item with strong consistency; `None` if it does not exist, or cannot be read by
    /// this release.
    pub async fn one<T: TryFrom<Item>>(&self, key: ItemKey) -> Result<Option<T>, Fault> {
        let loaded = self.load(&[key], Consistency::Strong).await?;
        let stored = loaded.into_iter().next().flatten();
        Ok(stored.and_then(|stored| T::try_from(stored.item).ok()))
    }
}

/// The consistency of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Consistency {
    /// The read sees every write that was acknowledged before.
    Strong,
    /// The read may miss writes of the last second; it costs half as much.
    Eventual,
}

/// The result of a conditional write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is looked at once and dropped"
)]
pub enum Replaced {
    /// The item was written.
    Done,
    /// Another writer was first; this is the stored item.
    Lost(Option<Stored>),
}

impl Replaced {
    /// Returns the result of a write of `next` whose condition failed because `current` is stored.
    pub fn unless_repeated(current: Option<Stored>, next: &Stored) -> Self {
        match current {
            Some(current) if current.revision == next.revision => Self::Done,
            current => Self::Lost(current),
        }
    }
}

/// The result of a conditional removal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is looked at once and dropped"
)]
pub enum Removed {
    /// The item was removed, or did not exist.
    Done,
    /// The item was changed; this is the stored item.
    Lost(Stored),
}

/// One of several disjoint segments of all items, which can be scanned in parallel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The index of the segment, from zero.
    pub index: u32,
    /// The number of segments; at least one.
    pub of: u32,
}

impl Segment {
    /// All items.
    pub const WHOLE: Self = Self { index: 0, of: 1 };
}

/// Where the scan of a segment continues. Only the store that returned it can use it, for the same
/// segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cursor(pub ItemKey);

/// One page of all items.
#[derive(Clone, Debug)]
pub struct Page {
    /// The items.
    pub items: Vec<(ItemKey, Stored)>,
    /// Where to continue; `None` at the end.
    pub next: Option<Cursor>,
    /// The capacity that the read consumed, in DynamoDB's read units: 0.5 per 4 KB.
    pub read_units: f64,
}
