//! One run of the sweep: what its steps share.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::pace::{Pace, units_of};
use super::report::Report;
use crate::cache::{ItemKey, Stored};
use crate::domain::Scope;
use crate::flows::invocation::Invocation;
use crate::flows::settings::Settings;
use crate::flows::update::Update;
use crate::ports::{
    BlobStore, Consistency, DifListing, DifReader, Fault, MAX_DELETES, Queues, RecordStore,
};

/// Time kept back at the end of an invocation: for the call that is on its way, and to write the cursor.
pub(super) const RESERVE: Duration = Duration::from_secs(10);

/// Calls that do not depend on one another are made so many at a time.
pub(super) const CALLS_IN_PARALLEL: usize = 16;

/// One run of the sweep.
pub(super) struct Run<'a> {
    pub(super) pruner: &'a Pruner,
    pub(super) invocation: &'a Invocation,
    /// The time that the whole run had at its beginning.
    pub(super) time: Duration,
    pub(super) pace: Pace,
    /// Scopes in which presences were repaired.
    pub(super) changed: Mutex<BTreeSet<Scope>>,
    pub(super) report: Mutex<Report>,
}

impl Run<'_> {
    /// Returns the report. Never hold it over an `await`.
    pub(super) fn report(&self) -> MutexGuard<'_, Report> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the scopes with repairs. Never hold them over an `await`.
    pub(super) fn changed_scopes(&self) -> MutexGuard<'_, BTreeSet<Scope>> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_dry(&self) -> bool {
        self.report().dry_run
    }

    /// Notes that a call failed. What it was for waits for a later run.
    pub(super) fn fail(&self, error: &(dyn std::error::Error + 'static)) {
        self.report().fail(error);
    }

    /// Tells whether a walk has to stop that must leave this share of the run to those behind it.
    pub(super) fn is_time_up(&self, share_left: f64) -> bool {
        self.time_left(share_left).is_zero()
    }

    /// Returns the time that is left to a walk which must leave this share of the run to those behind it.
    pub(super) fn time_left(&self, share_left: f64) -> Duration {
        let reserve = RESERVE.max(self.time.mul_f64(share_left));
        self.invocation.time_left().saturating_sub(reserve)
    }

    /// Does the work of a walk, and abandons it when only the reserve is left: a call may take longer than any check for
    /// the time foresees. Returns `None` then.
    pub(super) async fn in_time<T>(&self, walk: impl Future<Output = T>) -> Option<T> {
        let limit = self.invocation.time_left().saturating_sub(RESERVE);
        tokio::time::timeout(limit, walk).await.ok()
    }

    pub(super) fn update(&self) -> Update<'_> {
        Update {
            records: &*self.pruner.records,
            policy: &self.pruner.settings.policy,
            invocation: self.invocation,
        }
    }

    /// Removes blobs of which no record knows any more; returns those that it removed, or would remove.
    pub(super) async fn delete(&self, blobs: Vec<Doomed>) -> Vec<Doomed> {
        if self.is_dry() {
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
                    let is_gone = |blob: &&Doomed| {
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
}

/// A blob that is to be removed.
#[derive(Clone, Debug)]
pub(super) struct Doomed {
    pub(super) path: String,
    pub(super) bytes: u64,
}

/// Removes what is no longer used, has what is behind made again, and makes up for lost events.
#[derive(Clone, Debug)]
pub struct Pruner {
    /// The records.
    pub records: Arc<dyn RecordStore>,
    /// The bucket of derived caches.
    pub caches: Arc<dyn BlobStore>,
    /// The bucket that users upload to: what is at a key.
    pub uploads: Arc<dyn DifReader>,
    /// The same bucket: which keys there are.
    pub listing: Arc<dyn DifListing>,
    /// Where builds are asked for.
    pub queues: Arc<dyn Queues>,
    /// The settings.
    pub settings: Settings,
}

impl Run<'_> {
    /// Waits until more may be read; `false` where the time of the walk, which must leave this share of the run to the
    /// others, is up before.
    pub(super) async fn may_read(&self, share_left: f64) -> bool {
        let due = self.pace.state().due;
        let wait = due.saturating_sub(self.invocation.elapsed());
        if wait >= self.time_left(share_left) {
            return false;
        }
        tokio::time::sleep(wait).await;
        !self.is_time_up(share_left)
    }

    /// Loads items, and notes what that consumed, about.
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
}

impl Run<'_> {
    /// Notes what was read.
    pub(super) fn spend(&self, read_units: f64) {
        self.pace.spend(read_units, self.invocation.elapsed());
    }
}
