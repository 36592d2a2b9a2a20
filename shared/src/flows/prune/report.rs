//! What a run did, or would do.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::flows::Error;
use crate::flows::rollout::RolloutReport;

/// Errors that a report tells; it counts all of them.
const MOST_ERRORS: usize = 5;

/// Things that a dry run tells one by one; it counts all of them.
const MOST_SAID: usize = 100;

/// What a run did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// Whether every walk came to its end in this run; the next one goes on with those that did not.
    pub complete: bool,
    /// The number of the pass over the records.
    pub pass: u64,
    /// Items that were read, by type.
    pub items: BTreeMap<&'static str, u64>,
    /// What reading them consumed, in whole read units of DynamoDB.
    pub read_units: u64,
    /// Entries that nobody used for too long, or that the byte budget had no room for.
    pub retired: u64,
    /// Those of them that went for the byte budget.
    pub over_budget: u64,
    /// Copies of DIFs that nobody derived from for too long, or that their byte budget had no room for.
    pub copies_retired: u64,
    /// Leases whose holders vanished.
    pub leases_cleared: u64,
    /// States that were kept for an older build.
    pub older_dropped: u64,
    /// Items that had expired by themselves.
    pub expired: u64,
    /// Entries that the refresh lane was asked for.
    pub requested: u64,
    /// Keys of the uploads bucket that the uploads lane was asked to reconcile.
    pub reconciled: u64,
    /// Keys that seem gone, but too many at a time to be believed: is `UPLOADS_BUCKET` the right one?
    pub doubtful: u64,
    /// Modules with uploaded files of which no item said so.
    pub presences_noted: u64,
    /// Modules of which an item said that they have files, and that have none.
    pub presences_forgotten: u64,
    /// Aliases that led to a module without files.
    pub aliases_removed: u64,
    /// Calls that failed, each of which harmed one item, one page or one write of the sweep's own.
    pub failed: u64,
    /// What the first of them said.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
    /// Blobs that were looked at.
    pub blobs: u64,
    /// Blobs that no record names.
    pub orphans: u64,
    /// Bytes of the blobs that were removed.
    pub bytes_freed: u64,
    /// The rollout, where a pass over the records came to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutReport>,
    /// In a dry run, what would be done, and why: the first hundred things.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub said: Vec<PlannedAction>,
}

/// One thing that would be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedAction {
    /// What.
    pub what: &'static str,
    /// To which entry, key or blob.
    pub to: String,
    /// Why.
    pub why: String,
}

impl Report {
    /// Returns the error with which a run ends in which calls failed, so that an alarm is raised.
    pub fn failure(&self) -> Option<Error> {
        let first = self.errors.first()?;
        Some(Error::Incomplete {
            failed: self.failed,
            first: first.clone(),
        })
    }

    /// Notes that a call failed, with everything that caused it.
    pub(super) fn fail(&mut self, error: &(dyn std::error::Error + 'static)) {
        self.failed += 1;
        if self.errors.len() < MOST_ERRORS {
            let causes = std::iter::successors(error.source(), |cause| cause.source());
            let text = causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
            self.errors.push(text);
        }
    }

    /// Notes what would be done, in a dry run.
    pub(super) fn say(
        &mut self,
        what: &'static str,
        to: impl Into<String>,
        why: impl Into<String>,
    ) {
        if self.dry_run && self.said.len() < MOST_SAID {
            self.said.push(PlannedAction {
                what,
                to: to.into(),
                why: why.into(),
            });
        }
    }
}
