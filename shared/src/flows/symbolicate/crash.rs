//! Answers crashes that were read from files.

use super::SymbolicateOutcome;
use super::shortened::{count_shortened, shortened};
use crate::api::crash::ReadCrash;
use crate::api::limits;
use crate::flows::HttpService;
use crate::flows::requests::CallState;
use crate::flows::{Error, Invocation};
use crate::symbolicate::add_unwinding;

impl HttpService {
    /// Answers a crash like [`HttpService::answer`], and adds what its file says besides. If the
    /// response would be too large, it leaves out outer frames.
    pub async fn answer_crash(
        &self,
        invocation: &Invocation,
        crash: &ReadCrash,
        call: CallState<'_>,
    ) -> Result<SymbolicateOutcome, Error> {
        let ReadCrash {
            facts,
            request,
            unwinding,
            renamed,
            stackwalk: _,
        } = crash;
        let mut outcome = self.answer_within(invocation, crash, call).await?;
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
        crash: &ReadCrash,
        call: CallState<'_>,
    ) -> Result<SymbolicateOutcome, Error> {
        let began = invocation.elapsed();
        let request = &crash.request;
        let lengths = request.stacktraces.iter();
        let frames: usize = lengths.map(|stacktrace| stacktrace.frames.len()).sum();
        let is_cut = crash.stackwalk.is_some() && frames > limits::STACKWALK_FRAMES;
        let mut shorter = is_cut.then(|| shortened(request, limits::STACKWALK_FRAMES));
        loop {
            let asked = shorter.as_ref().unwrap_or(request);
            let call = call.after(invocation.elapsed() - began);
            match self.answer(invocation, asked, call).await {
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
