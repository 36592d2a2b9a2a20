//! What an invocation did besides its result: the line that a function logs at its end has it.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::cache::Kind;

/// The reason of an upload that serves no module.
pub(super) const IGNORED: &str = "ignored";

/// What an invocation did so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// How long it waited for builds of other invocations.
    pub waited: Duration,
    /// Items of the table that it read to look modules up, or a stored request.
    pub record_reads: usize,
    /// The total size of the files that it fetched, in bytes.
    pub file_bytes: u64,
    /// The kinds of the caches that it published.
    pub kinds: BTreeSet<Kind>,
    /// Why a cache was not built, or a file not used: the last reason.
    pub cause: Option<&'static str>,
}
