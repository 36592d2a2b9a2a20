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
