//! The context that the steps of one run share.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::pace::{Pace, units_of};
use super::report::Report;
use crate::cache::{Change, Entry, ItemKey, Policy, Stored, apply};
use crate::domain::Scope;
use crate::flows::invocation::Invocation;
use crate::flows::settings::Settings;
use crate::flows::update::RecordWriter;
use crate::ports::{
    BlobStore, Consistency, DifListing, DifReader, Fault, MAX_DELETES, Queues, RecordStore,
};

/// The time that is reserved at the end of an invocation, for the call in progress and for writing
/// the cursor.
pub(super) const RESERVE: Duration = Duration::from_secs(10);

/// The maximum number of independent calls at a time.
pub(super) const CALLS_IN_PARALLEL: usize = 16;

/// The steps of a run, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunStep {
    /// Requests builds of outdated entries.
    Refresh,
    /// Scans the records.
    Records,
    /// Compares the uploads bucket with the upload items.
    Uploads,
    /// Lists the blobs.
    Blobs,
}

impl RunStep {
    /// Returns the share of the run's time that a step leaves to those that follow.
    fn share_left(self) -> f64 {
        match self {
            Self::Refresh => 0.7,
            Self::Records => 0.4,
            Self::Uploads => 0.2,
            Self::Blobs => 0.0,
        }
    }
}

/// Selects what is checked in a pass, if the checks are spread over several passes.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckRotation {
    pub(super) pass: u64,
    /// The number of passes over which the checks are spread.
    pub(super) rounds: u64,
}

impl CheckRotation {
    /// Returns whether what has this key is checked in this pass.
    pub(super) fn is_due(self, key: &[u8]) -> bool {
        xxh3_64(key) % self.rounds == self.pass % self.rounds
    }
}

/// One run of the pruner.
pub(super) struct Run<'a> {
    pub(super) pruner: &'a Pruner,
    pub(super) invocation: &'a Invocation,
    /// Whether nothing is changed.
    pub(super) is_dry: bool,
    /// The time that the run had at its beginning.
    pub(super) time: Duration,
    pub(super) pace: Pace,
    /// The scopes in which presence items were corrected.
    pub(super) corrected: Mutex<BTreeSet<Scope>>,
    pub(super) report: Mutex<Report>,
}

/// A blob to delete.
#[derive(Clone, Debug)]
pub(super) struct BlobToDelete {
    pub(super) path: String,
    pub(super) bytes: u64,
}

/// The pruner: its ports and its settings.
#[derive(Clone, Debug)]
pub struct Pruner {
    /// The store of records.
    pub records: Arc<dyn RecordStore>,
    /// The bucket of derived caches.
    pub caches: Arc<dyn BlobStore>,
    /// The uploads bucket, for reading.
    pub uploads: Arc<dyn DifReader>,
    /// The uploads bucket, for listing.
    pub listing: Arc<dyn DifListing>,
    /// The queues of build requests.
    pub queues: Arc<dyn Queues>,
    /// The settings.
    pub settings: Settings,
}

impl Run<'_> {
    /// Returns the report. The guard must not be held across an `await`.
    pub(super) fn report(&self) -> MutexGuard<'_, Report> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the scopes with corrections. The guard must not be held across an `await`.
    pub(super) fn corrected_scopes(&self) -> MutexGuard<'_, BTreeSet<Scope>> {
        self.corrected
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a failed call. A later run repeats its work.
    pub(super) fn fail(&self, error: &(dyn std::error::Error + 'static)) {
        self.report().fail(error);
    }

    /// Returns whether a step has to stop.
    pub(super) fn is_time_up(&self, step: RunStep) -> bool {
        self.time_left(step).is_zero()
    }

    /// Returns the time that a step has left.
    fn time_left(&self, step: RunStep) -> Duration {
        let reserve = RESERVE.max(self.time.mul_f64(step.share_left()));
        self.invocation.time_left().saturating_sub(reserve)
    }

    /// Runs a step, and abandons it when only the reserve is left, because a call may take longer
    /// than expected. Then returns `None`.
    pub(super) async fn in_time<T>(&self, step: impl Future<Output = T>) -> Option<T> {
        let limit = self.invocation.time_left().saturating_sub(RESERVE);
        tokio::time::timeout(limit, step).await.ok()
    }

    pub(super) fn writer(&self) -> RecordWriter<'_> {
        RecordWriter {
            records: &*self.pruner.records,
            policy: &self.pruner.settings.policy,
            invocation: self.invocation,
        }
    }

    /// Returns whether a change seems to apply. The scanned entry may be a second old, so this is
    /// only a hint: [`apply`] decides for the stored one.
    pub(super) fn would_apply(&self, entry: &Entry, change: &Change, policy: &Policy) -> bool {
        apply(entry, change, self.invocation.now(), policy).is_ok()
    }

    /// Deletes blobs that no record names any more. Returns those that were deleted, or would be.
    pub(super) async fn delete(&self, blobs: Vec<BlobToDelete>) -> Vec<BlobToDelete> {
        if self.is_dry {
            return blobs;
        }
        let mut deleted = Vec::new();
        for blobs in blobs.chunks(MAX_DELETES) {
            let paths: Vec<String> = blobs.iter().map(|blob| blob.path.clone()).collect();
            match self.pruner.caches.delete_many(&paths).await {
                Ok(not_deleted) => {
                    for not_deleted in &not_deleted {
                        self.fail(&not_deleted.error);
                    }
                    let is_gone = |blob: &&BlobToDelete| {
                        let mut left = not_deleted.iter();
                        !left.any(|not_deleted| not_deleted.path == blob.path)
                    };
                    deleted.extend(blobs.iter().filter(is_gone).cloned());
                }
                Err(error) => self.fail(&error),
            }
        }
        deleted
    }

    /// Waits until the read budget allows another read. Returns `false` if the time of the step is
    /// up first.
    pub(super) async fn may_read(&self, step: RunStep) -> bool {
        let due = self.pace.state().due;
        let wait = due.saturating_sub(self.invocation.elapsed());
        if wait >= self.time_left(step) {
            return false;
        }
        tokio::time::sleep(wait).await;
        !self.is_time_up(step)
    }

    /// Loads items, and charges the approximate read units.
    pub(super) async fn load(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
    ) -> Result<Vec<Option<Stored>>, Fault> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let loaded = self.pruner.records.load(keys, consistency).await?;
        let mut met = BTreeSet::new();
        let different = keys.iter().zip(&loaded).filter(|(key, _)| met.insert(*key));
        let units: u64 = different.map(|(_, stored)| units_of(stored.as_ref())).sum();
        let units = f64::from(u32::try_from(units).unwrap_or(u32::MAX));
        self.spend(match consistency {
            Consistency::Strong => units,
            Consistency::Eventual => units / 2.0,
        });
        Ok(loaded)
    }

    /// Charges read units.
    pub(super) fn spend(&self, read_units: f64) {
        self.pace.spend(read_units, self.invocation.elapsed());
    }
}
