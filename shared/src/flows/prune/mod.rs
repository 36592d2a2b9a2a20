//! The pruner: removes what is no longer used, requests rebuilds of outdated entries, and re-queues
//! uploads whose events were lost.
//!
//! 1. A pass begins: the entries that the last pass found outdated are requested, the most recently
//!    used first, as many as the refresh queue can process (`refresh`).
//! 2. Scan all records, in parallel segments (`records`). An entry that is unused for too long, or
//!    that the byte budget evicts, is retired: first its record is removed, if no other function
//!    has changed it meanwhile (the commit point), then its blobs are deleted. A crash in between
//!    leaves orphans, never a record without its blob. The other entries are counted. Presence
//!    items and aliases that do not match the uploads are corrected (`presences`).
//! 3. Check the uploads that the scan selected, end the pass if all records were scanned, and
//!    compare the uploads bucket with the upload items (`uploads`). Keys whose event was lost are
//!    sent to the uploads queue.
//! 4. Once a day, list all blobs except the bodies of requests, which a rule of the bucket removes
//!    (`blobs`). A blob is an orphan if it is older than any running build and its record does not
//!    name it in a strongly consistent read. Orphans are deleted.
//!
//! Each of these steps stops well before the function's deadline, and the next run continues where
//! it stopped. The cursor item records the progress (`progress`). It is written last, so a run that
//! is killed is repeated; every step may be repeated.
//!
//! A failed call affects only the item that it was for: it is counted in the [`Report`], the run
//! continues, and fails at its end. If a page cannot be read, its segment or listing ends for this
//! run, after the last page that was read. All steps share one budget of read units (`pace`).

mod blobs;
mod pace;
mod presences;
mod progress;
mod records;
mod refresh;
mod report;
mod retirement;
mod run;
mod uploads;

use std::sync::{Mutex, PoisonError};

pub use blobs::UNNAMED_MIN_AGE;
use pace::Pace;
pub use report::{PlannedAction, Report};
pub use run::Pruner;

use self::run::Run;
use super::{Error, Invocation};

impl Pruner {
    /// Runs the pruner. With `dry_run`, starts a new pass, reports what would be done, and changes
    /// nothing.
    ///
    /// Failed calls are in the report: [`Report::failure`].
    ///
    /// # Errors
    ///
    /// The progress could not be read, and nothing was done.
    pub async fn prune(&self, invocation: &Invocation, dry_run: bool) -> Result<Report, Error> {
        let run = Run {
            pruner: self,
            invocation,
            is_dry: dry_run,
            time: invocation.time_left(),
            pace: Pace::new(self.settings.sweep_read_units),
            corrected: Mutex::default(),
            report: Mutex::new(Report {
                dry_run,
                ..Report::default()
            }),
        };
        let mut progress = run.read_progress().await?;
        if progress.begins_pass() {
            run.begin_pass(&mut progress).await;
        }
        run.report().pass = progress.cursor.pass;
        let to_check = run.scan_records(&mut progress).await;
        let unannounced = &mut progress.cursor.unannounced;
        run.announce_corrections(unannounced).await;
        run.check_uploads(to_check).await;
        let pass_ended = run.end_pass(&mut progress);
        let compared = run.compare_uploads(&mut progress).await;
        let listed = Box::pin(run.delete_orphans(&mut progress)).await;
        run.report().complete = pass_ended && compared && listed;
        if !dry_run {
            run.write_progress(progress).await;
        }
        run.report().read_units = run.pace.read_units();
        Ok(run
            .report
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner))
    }
}
