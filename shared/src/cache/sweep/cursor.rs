//! The progress of the pruner, and the counts of its last complete pass.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::cache::{Converter, Drained, EvictionCut, ItemKey, Tally};
use crate::domain::{Location, Scope, Timestamp};

/// The progress of the pruner. A run that stops at its deadline is continued by the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepCursor {
    /// The number of the current pass, from one.
    pub pass: u64,
    /// When the current pass began.
    pub began_at: Timestamp,
    /// The progress of each scan segment of the records.
    pub segments: Vec<SegmentProgress>,
    /// The counts of the current pass so far.
    pub tally: Tally,
    /// What the byte budget evicts of the derived caches in this pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<EvictionCut>,
    /// What the byte budget evicts of the copies in this pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies_cut: Option<EvictionCut>,
    /// The results of the build requests of the previous pass.
    pub drained: Drained,
    /// The last key of the uploads bucket that was compared; `None` at the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uploads_after: Option<Location>,
    /// The last blob that was checked; `None` if the blobs are not being listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blobs_after: Option<String>,
    /// When the last listing of the blobs began.
    #[serde(default)]
    pub blobs_began_at: Timestamp,
    /// How many items each list of entries takes.
    #[serde(default)]
    pub lists: SweepLists,
    /// Scopes whose [`Presence`](crate::cache::Presence) items were corrected but whose new
    /// [`Generation`](crate::cache::Generation) could not be written yet.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unannounced: BTreeSet<Scope>,
}

/// How many items each of the pruner's lists of entries takes. Releases that predate this field
/// wrote one item per list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepLists {
    /// The list of outdated entries that the current pass has found so far.
    #[serde(rename = "gathering")]
    pub found_in_this_pass: usize,
    /// The list of outdated entries that the last complete pass found.
    #[serde(rename = "manifest")]
    pub found_in_last_pass: usize,
    /// The list of entries whose rebuild this pass has requested.
    #[serde(rename = "asked")]
    pub requested: usize,
}

/// The progress of a scan segment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentProgress {
    /// Not begun.
    #[default]
    Begin,
    /// Read up to the item with this key.
    After(ItemKey),
    /// Read to the end.
    Done,
}

/// The counts of a complete pass of the pruner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollout {
    /// The number of the pass.
    pub pass: u64,
    /// When the pass began.
    pub began_at: Timestamp,
    /// When the pass ended.
    pub at: Timestamp,
    /// The converter that entries were compared with.
    pub converter: Converter,
    /// The counts.
    pub tally: Tally,
    /// The results of the build requests of the previous pass.
    pub drained: Drained,
}
