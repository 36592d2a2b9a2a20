//! The schedule: removes what is no longer used, has what is behind made again, and makes up for lost events.
//!
//! 1. A pass begins: entries that the last pass found behind are asked for, the most recently used first, as many as the
//!    refresh lane drains (`refresh`).
//! 2. Walk all records, in segments side by side (`records`). An entry that was not used for too long, or that the byte
//!    budget has no room for, is retired: the record goes first, if no other function changed it meanwhile (the commit
//!    point), then its blobs. A crash between leaves orphans, never a record without its blob. What stays is counted, and
//!    what readers conclude from the absence of an upload is made true again where it is not (`presences`).
//! 3. Compare the uploads bucket with the upload items (`uploads`): what no event told of is sent to the uploads lane.
//! 4. Once a day, walk all blobs that are older than a build can take (`blobs`). A blob that its record does not name,
//!    read strongly, is an orphan.
//!
//! Each walk stops well before the function's deadline, and the next run goes on where it stopped: the cursor item says
//! where (`progress`). It is written last, so that a run which dies repeats its steps, all of which may be repeated.
//!
//! A call that fails harms the item that it was for: it is counted in the [`Report`], the walk goes on, and the run has
//! failed when it is at its end. A page that cannot be read ends its segment or walk for this run, at the last page that
//! was. All walks share one budget of read units (`pace`).

mod blobs;
mod pace;
mod presences;
mod progress;
mod records;
mod refresh;
mod report;
mod uploads;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use blobs::UNNAMED_MIN_AGE;
use pace::Pace;
pub use report::{PlannedAction, Report};

use super::{Error, Invocation, Settings, Update};
use crate::domain::Scope;
use crate::ports::{BlobStore, DifListing, DifReader, MAX_DELETES, Queues, RecordStore};

/// Time kept back at the end of an invocation: for the call that is on its way, and to write the cursor.
const RESERVE: Duration = Duration::from_secs(10);

/// Calls that do not depend on one another are made so many at a time.
const CALLS_IN_PARALLEL: usize = 16;

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

impl Pruner {
    /// Sweeps, or with `dry_run` says what a sweep would do, from the beginning, and changes nothing.
    ///
    /// Calls that failed on the way are in the report: [`Report::failure`].
    ///
    /// # Errors
    ///
    /// Where the sweep is could not be read: nothing was done.
    pub async fn prune(&self, invocation: &Invocation, dry_run: bool) -> Result<Report, Error> {
        let run = Run {
            pruner: self,
            invocation,
            time: invocation.time_left(),
            pace: Pace::new(self.settings.sweep_read_units),
            changed: Mutex::default(),
            report: Mutex::new(Report {
                dry_run,
                ..Report::default()
            }),
        };
        let mut progress = run.progress().await?;
        if progress.begins_pass() {
            run.begin_pass(&mut progress).await;
        }
        let walked = run.sweep_records(&mut progress).await;
        let compared = run.compare_uploads(&mut progress).await;
        let looked = Box::pin(run.sweep_blobs(&mut progress)).await;
        run.report().complete = walked && compared && looked;
        if !dry_run {
            run.keep(progress).await;
        }
        run.report().read_units = run.pace.read_units();
        Ok(run
            .report
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner))
    }
}

/// One run of the sweep.
struct Run<'a> {
    pruner: &'a Pruner,
    invocation: &'a Invocation,
    /// The time that the whole run had at its beginning.
    time: Duration,
    pace: Pace,
    /// Scopes in which presences were repaired.
    changed: Mutex<BTreeSet<Scope>>,
    report: Mutex<Report>,
}

impl Run<'_> {
    /// Returns the report. Never hold it over an `await`.
    fn report(&self) -> MutexGuard<'_, Report> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the scopes with repairs. Never hold them over an `await`.
    fn changed_scopes(&self) -> MutexGuard<'_, BTreeSet<Scope>> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_dry(&self) -> bool {
        self.report().dry_run
    }

    /// Notes that a call failed. What it was for waits for a later run.
    fn fail(&self, error: &(dyn std::error::Error + 'static)) {
        self.report().fail(error);
    }

    /// Tells whether a walk has to stop that must leave this share of the run to those behind it.
    fn is_time_up(&self, share_left: f64) -> bool {
        self.time_left(share_left).is_zero()
    }

    /// Returns the time that is left to a walk which must leave this share of the run to those behind it.
    fn time_left(&self, share_left: f64) -> Duration {
        let reserve = RESERVE.max(self.time.mul_f64(share_left));
        self.invocation.time_left().saturating_sub(reserve)
    }

    /// Does the work of a walk, and abandons it when only the reserve is left: a call may take longer than any check for
    /// the time foresees. Returns `None` then.
    async fn in_time<T>(&self, walk: impl Future<Output = T>) -> Option<T> {
        let limit = self.invocation.time_left().saturating_sub(RESERVE);
        tokio::time::timeout(limit, walk).await.ok()
    }

    fn update(&self) -> Update<'_> {
        Update {
            records: &*self.pruner.records,
            policy: &self.pruner.settings.policy,
            invocation: self.invocation,
        }
    }

    /// Removes blobs of which no record knows any more; returns those that it removed, or would remove.
    async fn delete(&self, blobs: Vec<Doomed>) -> Vec<Doomed> {
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
struct Doomed {
    path: String,
    bytes: u64,
}
