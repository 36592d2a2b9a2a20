//! Answers crashes that were read from files.

use super::shortened::{count_shortened, shortened};
use super::{PendingTerms, SymbolicateOutcome};
use crate::api::crash::CrashFile;
use crate::api::limits;
use crate::flows::Symbolicator;
use crate::flows::{Error, Invocation};
use crate::symbolicate::add_unwinding;

impl Symbolicator {
    /// Answers a crash like [`Symbolicator::answer`], and adds what its file says besides. If the
    /// response would be too large, it leaves out outer frames.
    pub async fn answer_crash(
        &self,
        invocation: &Invocation,
        report: &CrashFile,
        terms: PendingTerms<'_>,
    ) -> Result<SymbolicateOutcome, Error> {
        let CrashFile {
            facts,
            request,
            unwinding,
            renamed,
            stackwalk: _,
        } = report;
        let mut outcome = self.answer_within(invocation, report, terms).await?;
        if let SymbolicateOutcome::Completed(completed, _) = &mut outcome {
            facts.clone().add_to(completed);
            let with_candidates = request.options.dif_candidates;
            add_unwinding(&mut completed.modules, unwinding, with_candidates);
            let renamed = renamed.as_ref();
            let shown = renamed
                .and_then(|renamed| Some((completed.modules.get_mut(renamed.index)?, renamed)));
            if let Some((shown, renamed)) = shown {
                shown.module.debug_file.clone_from(&renamed.debug_file);
            }
        }
        Ok(outcome)
    }

    /// Answers the request of a file with about as many of its frames as fit into a response.
    async fn answer_within(
        &self,
        invocation: &Invocation,
        report: &CrashFile,
        terms: PendingTerms<'_>,
    ) -> Result<SymbolicateOutcome, Error> {
        let began = invocation.elapsed();
        let request = &report.request;
        let lengths = request.stacktraces.iter();
        let frames: usize = lengths.map(|stacktrace| stacktrace.frames.len()).sum();
        let is_cut = report.stackwalk.is_some() && frames > limits::STACKWALK_FRAMES;
        let mut shorter = is_cut.then(|| shortened(request, limits::STACKWALK_FRAMES));
        loop {
            let asked = shorter.as_ref().unwrap_or(request);
            let terms = PendingTerms {
                call: terms.call.after(invocation.elapsed() - began),
                ..terms
            };
            match self.answer(invocation, asked, terms).await {
                Err(Error::TooLarge { frames, .. }) => {
                    // Those that fit say how many may fit. If not, others have longer names.
                    let most = match shorter {
                        None => frames / 4 * 3,
                        Some(_) => frames / 2,
                    };
                    shorter = Some(shortened(asked, most));
                }
                Ok(SymbolicateOutcome::Completed(completed, mut stats)) => {
                    stats.shortened = count_shortened(request, asked);
                    return Ok(SymbolicateOutcome::Completed(completed, stats));
                }
                other => return other,
            }
        }
    }
}
