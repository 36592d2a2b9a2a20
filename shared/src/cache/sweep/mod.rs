//! The decisions of the pruner: which entries are outdated, what the byte budgets evict, how many
//! builds the refresh queue can take, and when a rollout is complete.
//!
//! A *pass* is one traversal of all records. The counts of a pass determine the actions of the next
//! one:
//!
//! 1. A pass collects the outdated entries, most recently used first, and the next pass requests
//!    their builds. The list is spread over several items, because it is larger than one item may
//!    be. Requests during the traversal would need no list, but the traversal meets the entries in
//!    the order of hashes, and a rollout should first reach the entries that clients use.
//! 2. The histogram of bytes by age of last use determines what the byte budget evicts.
//! 3. The build requests of a pass that are complete when the next one begins give the rate at
//!    which the refresh queue is drained.

mod budget;
mod cursor;
mod drained;
#[cfg(test)]
mod examples;
mod outdated;
mod rollout_state;
mod tally;

pub use budget::{Ages, EvictionCut};
pub use cursor::{Rollout, SegmentProgress, SweepCursor, SweepLists};
pub use drained::{Drained, Estimate};
pub use outdated::{OutdatedEntry, OutdatedList};
pub use rollout_state::{RolloutState, rollout_state, wants_refresh};
pub use tally::{KindTally, Tally, entry_bytes};
