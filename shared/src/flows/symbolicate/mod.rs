//! Answers a symbolication request: plans it, looks its modules up, and symbolicates its frames.
//!
//! 1. *Plan* (pure): find the modules that the frames lie in (`crate::symbolicate::plan`).
//! 2. *Look up* (`lookup`): load the entries of these modules, in every place that the request may
//!    read, in one round of reads.
//! 3. *Select* (pure: `crate::cache::select`): use a cache, report the module as missing, or wait.
//! 4. *Request builds* (`build_requests`) for the places to wait for. The request is stored first,
//!    so that any instance can continue it, except before the replacements of step 5.
//! 5. *Read* the blobs in parallel. A blob that cannot be read is reported as suspect, which
//!    requests its replacement, and the request waits for that.
//! 6. Repeat from step 2 until every module has an outcome or the time is up. If the time is up,
//!    the response is `pending`. Steps 2 to 6 are in `rounds.rs`.
//! 7. *Symbolicate* (pure), and touch the entries that were used meanwhile.
//! 8. *Add source lines* to the frames that have a path and a line (`source_lines.rs`,
//!    `source_files.rs`).

mod cache_lookup;
mod crash;
mod rounds;
mod shortened;
mod source_files;
mod source_lines;

use std::sync::Arc;

use futures::future;

use self::cache_lookup::CacheLookup;
use self::rounds::Rounds;
use super::lookup::{CacheFinder, Lookup};
use super::requests::CallState;
use super::waiting::WaitOutcome;
use super::{Error, HttpService, Invocation};
use crate::api::symbolicator::{Completed, Request};
use crate::domain::Candidate;
pub use crate::symbolicate::Stats;
use crate::symbolicate::{
    KnownNames, ModuleOutcome, Plan, Searched, advise, plan, symbolicate_with,
};

/// The outcome of a request.
#[derive(Debug)]
pub enum SymbolicateOutcome {
    /// The response is complete.
    Completed(Box<Completed>, Stats),
    /// The request waits for builds. It is stored under its id, if another call can continue it.
    Pending,
}

impl HttpService {
    /// Answers a request, or stores it if builds take longer than it may wait here. Stores the
    /// request before it requests any build that it waits for, except for the replacements of blobs
    /// that cannot be read.
    pub async fn answer(
        &self,
        invocation: &Invocation,
        request: &Request,
        call: CallState<'_>,
    ) -> Result<SymbolicateOutcome, Error> {
        let plan = plan(request);
        let finder = CacheFinder::new(self, invocation);
        let sources = finder.select_sources(&request.sources).await?;
        let searched = sources.iter().map(|source| &source.key);
        let unsupported = request.sources.unsupported().map(Candidate::not_searched);
        let listed: Arc<[Candidate]> = if request.options.dif_candidates {
            let searched = searched.map(Candidate::nothing_listed);
            searched.chain(unsupported).collect()
        } else {
            Arc::default()
        };
        let lookups = plan.caches_with_ids().map(|(planned, cache)| {
            let object = &cache.object_id;
            let places = finder.cache_places(object, call.scope, &sources, cache.kind);
            let lookup = Lookup {
                reads_all: request.options.dif_candidates,
                reads_source_code: request.options.apply_source_context,
                ..Lookup::of(places)
            };
            CacheLookup::new(planned, cache.kind, lookup).listing(Arc::clone(&listed))
        });
        let mut rounds = Rounds::new(finder, request, &plan, call);
        let WaitOutcome::Complete(lookups) = rounds.resolve(lookups.collect()).await? else {
            return Ok(SymbolicateOutcome::Pending);
        };
        let naming = async {
            let span = invocation.span("symbolicate");
            let named = self.symbolicate(request, &plan, &lookups).await?;
            drop(span);
            if request.options.apply_source_context {
                rounds.add_source_lines(named, &sources, &lookups).await
            } else {
                Ok(WaitOutcome::Complete(named))
            }
        };
        let used = lookups.iter().filter_map(CacheLookup::entry);
        let touching = finder.touch_all(used.collect());
        let ((), completed) = future::join(touching, Box::pin(naming)).await;
        let WaitOutcome::Complete((completed, mut stats)) = completed? else {
            return Ok(SymbolicateOutcome::Pending);
        };
        stats.reads = rounds.reads();
        Ok(SymbolicateOutcome::Completed(Box::new(completed), stats))
    }

    /// Symbolicates the frames with the caches that were found, and adds advice about the modules
    /// that lack something.
    async fn symbolicate(
        &self,
        request: &Request,
        plan: &Plan,
        lookups: &[CacheLookup],
    ) -> Result<(Completed, Stats), Error> {
        let outcomes: Vec<ModuleOutcome<'_>> = lookups.iter().map(CacheLookup::outcome).collect();
        let names = KnownNames::remembered(self.memory.names());
        let (mut completed, mut stats, mut names) =
            symbolicate_with(request, plan, &outcomes, names);
        let isolated = names.take_isolated();
        if !isolated.is_empty() && !stats.is_too_large() {
            let readable = self.demangler.demangle(&isolated).await;
            for (name, readable) in isolated.into_iter().zip(readable) {
                names.add(name, readable);
            }
            (completed, stats, _) = symbolicate_with(request, plan, &outcomes, names);
        }
        if stats.is_too_large() {
            return Err(Error::TooLarge {
                bytes: stats.answer_bytes,
                frames: stats.frames.total(),
            });
        }
        advise(&mut completed, request, plan, &outcomes, |planned| {
            let lookup = lookups.get(planned.index());
            lookup.map_or_else(Searched::default, |lookup| lookup.searched(&self.memory))
        });
        Ok((completed, stats))
    }
}
