//! The report of a run: what it did, or would do.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::cache::{Entry, ModuleKey};
use crate::domain::chain;
use crate::flows::Error;
use crate::flows::rollout::RolloutReport;

/// The maximum number of error texts in a report; all errors are counted.
const MAX_ERRORS: usize = 5;

/// The maximum number of planned actions in the report of a dry run; all actions are counted.
const MAX_PLANNED: usize = 100;

/// What a run did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether this was a dry run, which changes nothing.
    pub dry_run: bool,
    /// Whether every step was completed. The next run continues the others.
    pub complete: bool,
    /// The number of the pass over the records.
    pub pass: u64,
    /// The number of scanned items, by type.
    pub items: BTreeMap<&'static str, u64>,
    /// The read capacity that was consumed, in whole DynamoDB read units.
    pub read_units: u64,
    /// The number of retired entries.
    pub retired: u64,
    /// The number of these that the byte budget evicted.
    pub over_budget: u64,
    /// The number of retired copies of DIFs.
    pub copies_retired: u64,
    /// The number of expired leases that were cleared.
    pub leases_cleared: u64,
    /// The number of older states that were dropped.
    pub older_dropped: u64,
    /// The number of expired items, and of chunks of objects that no upload item names.
    pub expired: u64,
    /// The number of entries whose rebuild was requested.
    pub requested: u64,
    /// The number of keys of the uploads bucket that were sent to the uploads queue.
    pub reconciled: u64,
    /// The number of keys that seem gone, but are too many to be believed: check `UPLOADS_BUCKET`.
    pub doubtful: u64,
    /// The number of presence items that were added.
    pub presences_noted: u64,
    /// The number of presence items that were removed, because the module has no files.
    pub presences_forgotten: u64,
    /// The number of aliases that were removed, because their target has no files.
    pub aliases_removed: u64,
    /// The number of failed calls. Each affected one item, one page, or one write of the pruner's
    /// own state.
    pub failed: u64,
    /// The texts of the first errors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
    /// The number of blobs that were checked.
    pub blobs: u64,
    /// The number of orphans.
    pub orphans: u64,
    /// The bytes of the deleted blobs.
    pub bytes_freed: u64,
    /// The progress of the rollout, if a pass was completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutReport>,
    /// The planned actions of a dry run: the first hundred.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub planned: Vec<PlannedAction>,
}

/// An action that a dry run would have taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedAction {
    /// The action.
    pub what: &'static str,
    /// The entry, key or blob.
    pub to: String,
    /// The reason.
    pub why: String,
}

/// Returns the name of a module for people.
pub(super) fn described(module: &ModuleKey) -> String {
    format!("{} in {}", module.id, module.scope)
}

/// Returns the name of an entry for people.
pub(super) fn described_entry(entry: &Entry) -> String {
    format!("{} of {}", entry.kind(), described(entry.module()))
}

impl Report {
    /// Returns the error of a run with failed calls, which raises an alarm.
    pub fn failure(&self) -> Option<Error> {
        let first = self.errors.first()?;
        Some(Error::Incomplete {
            failed: self.failed,
            first: first.clone(),
        })
    }

    /// Records a failed call, with all causes of its error.
    pub(super) fn fail(&mut self, error: &(dyn std::error::Error + 'static)) {
        self.failed += 1;
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(chain(error));
        }
    }

    /// Records a planned action if this is a dry run, and nothing otherwise.
    pub(super) fn note_planned(
        &mut self,
        what: &'static str,
        to: impl Into<String>,
        why: impl Into<String>,
    ) {
        if self.dry_run && self.planned.len() < MAX_PLANNED {
            self.planned.push(PlannedAction {
                what,
                to: to.into(),
                why: why.into(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_actions_that_a_dry_run_would_take_are_listed_as_planned() {
        let mut report = Report {
            dry_run: true,
            ..Report::default()
        };
        report.note_planned("retire", "an entry", "unused");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(
            json["planned"],
            json!([{"what": "retire", "to": "an entry", "why": "unused"}])
        );
    }
}
