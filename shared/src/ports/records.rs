//! The store of items, each changed only by compare-and-swap.

use std::fmt::Debug;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::Fault;
use crate::cache::{ItemKey, Revision, Stored};

/// Items, each changed only by compare-and-swap on its revision.
#[async_trait]
pub trait RecordStore: Debug + Send + Sync {
    /// Loads the items of `keys`, in order; `None` where there is none. Any number of keys; repeated keys are loaded once.
    async fn load(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
    ) -> Result<Vec<Option<Stored>>, Fault>;

    /// Loads the items of a partition, strongly consistent, in the order of their sort keys.
    async fn query(&self, partition: &str) -> Result<Vec<(ItemKey, Stored)>, Fault>;

    /// Writes `next` if the stored revision is still `expected` (`None`: if there is no item).
    ///
    /// An error may mean that the write landed: read again, and judge by the effect. So may [`Replaced::Lost`],
    /// where the client repeated a write whose answer was lost.
    async fn replace(
        &self,
        key: &ItemKey,
        expected: Option<&Revision>,
        next: &Stored,
    ) -> Result<Replaced, Fault>;

    /// Removes the item if its revision is still `expected`.
    async fn remove(&self, key: &ItemKey, expected: &Revision) -> Result<Removed, Fault>;

    /// Returns one page of a segment of all items, in no particular order; those that cannot be read are left out.
    ///
    /// `after` is where an earlier page of the same segment ended.
    async fn page(&self, segment: Segment, after: Option<&Cursor>) -> Result<Page, Fault>;
}

/// How fresh a read must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// Sees every write that was acknowledged before.
    Strong,
    /// May miss the last second; costs half.
    Eventual,
}

/// What became of a conditional write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is looked at once and dropped"
)]
pub enum Replaced {
    /// It was written.
    Done,
    /// Another writer came first; this is what is stored now.
    Lost(Option<Stored>),
}

/// What became of a conditional removal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is looked at once and dropped"
)]
pub enum Removed {
    /// It was removed, or had been already.
    Done,
    /// It was changed meanwhile; this is what is stored now.
    Lost(Stored),
}

/// One of several parts of all items, which can be walked side by side: each item is in exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Which one, from zero.
    pub index: u32,
    /// How many there are; at least one.
    pub of: u32,
}

impl Segment {
    /// All items.
    pub const WHOLE: Self = Self { index: 0, of: 1 };
}

/// Where a walk over a segment goes on. Only the store that returned it can read it, for the same segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cursor(pub ItemKey);

/// One page of all items.
#[derive(Clone, Debug)]
pub struct Page {
    /// The items.
    pub items: Vec<(ItemKey, Stored)>,
    /// Where to go on; `None` at the end.
    pub next: Option<Cursor>,
    /// What reading it consumed, in DynamoDB's read units: half a one for each 4 KB.
    pub read_units: f64,
}
