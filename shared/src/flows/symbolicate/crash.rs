//! Answers crashes that were read from files.

use super::{Kept, SymbolicateOutcome, Symbolicator};
use crate::api::crash::CrashFile;
use crate::domain::Scope;
use crate::flows::{Error, Invocation};
use crate::symbolicate::add_unwinding;

impl Symbolicator {
    /// Answers a crash like [`Symbolicator::answer`], and adds what its file says besides.
    pub async fn answer_crash(
        &self,
        invocation: &Invocation,
        report: &CrashFile,
        scope: &Scope,
        kept: Kept<'_>,
    ) -> Result<SymbolicateOutcome, Error> {
        let CrashFile {
            facts,
            request,
            unwinding,
            renamed,
            stackwalk: _,
        } = report;
        let mut outcome = self.answer(invocation, request, scope, kept).await?;
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
}
