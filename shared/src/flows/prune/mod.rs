//! The schedule: removes what is no longer used, has what is behind made anew, and looks after lost events.
//!
//! 1. A pass begins: entries that the last pass found behind are asked for, the most recently used first, as many as the
//!    refresh lane drains (`refresh`).
//! 2. Walk all records, in segments side by side (`records`). An entry that nobody used for too long, or that the byte
//!    budget has no room for, is retired: the record goes first, if nobody changed it meanwhile (the commit point), then
//!    its blobs. A crash between leaves orphans, never a record without its blob. What stays is counted.
//! 3. Compare the uploads bucket with the upload items (`uploads`): what no event told of is sent to the uploads lane.
//! 4. Walk all blobs that are older than a build can take (`blobs`). One that its entry does not name, read strongly, is
//!    an orphan.
//!
//! Each walk stops well before the function's deadline, and the next run goes on where it stopped: the cursor item says
//! where (`progress`). It is written last, so that a run which dies repeats its steps, all of which may be repeated.

mod blobs;
mod progress;
mod records;
mod refresh;
mod report;
mod uploads;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Error, Invocation, Settings, Update};
use crate::ports::{BlobStore, DifListing, DifReader, Lanes, RecordStore};

pub use report::{Report, Said};

/// Time kept back at the end of an invocation.
const RESERVE: Duration = Duration::from_secs(5);

/// Removes what is no longer used, has what is behind made anew, and looks after lost events.
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
    pub lanes: Arc<dyn Lanes>,
    /// The settings.
    pub settings: Settings,
}

impl Pruner {
    /// Sweeps, or with `dry_run` says what a sweep would do, from the beginning, and changes nothing.
    pub async fn prune(&self, invocation: &Invocation, dry_run: bool) -> Result<Report, Error> {
        let run = Run {
            pruner: self,
            invocation,
            time: invocation.time_left(),
            report: Mutex::new(Report {
                dry_run,
                ..Report::default()
            }),
        };
        let mut progress = run.progress().await?;
        if progress.begins_pass() {
            run.begin_pass(&mut progress).await?;
        }
        let walked = run.sweep_records(&mut progress).await?;
        let compared = run.compare_uploads(&mut progress).await?;
        let looked = run.sweep_blobs(&mut progress).await?;
        run.report().complete = walked && compared && looked;
        if !dry_run {
            run.keep(progress).await?;
        }
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
    report: Mutex<Report>,
}

impl Run<'_> {
    /// Returns the report. Never hold it over an `await`.
    fn report(&self) -> MutexGuard<'_, Report> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_dry(&self) -> bool {
        self.report().dry_run
    }

    /// Tells whether a walk has to stop that must leave this share of the run to those behind it.
    fn is_time_up(&self, share_left: f64) -> bool {
        self.invocation.time_left() < RESERVE.max(self.time.mul_f64(share_left))
    }

    fn update(&self) -> Update<'_> {
        Update {
            records: &*self.pruner.records,
            policy: &self.pruner.settings.policy,
            invocation: self.invocation,
        }
    }
}
