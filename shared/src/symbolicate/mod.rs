//! Symbolicates requests: pure functions from a request and its caches to a response.
//!
//! There are two steps, and the caller fetches the caches between them: [`plan()`] returns the
//! modules that a request's frames lie in; [`symbolicate`] looks the frames up in the caches that
//! were found.
//!
//! Each rule has its own module: which module covers an address (`modules`), the addresses of
//! frames (`address`), which instruction an address refers to (`adjust`), the frames that a lookup
//! yields (`frame`), which frames are shown, and in which order (`stacktrace`), names of functions
//! (`demangle`; `cpp_names` rewrites those of C++ that the demangler cannot read, or misprints),
//! lengths of texts (`text`), the status of modules (`outcome`), the files that were considered
//! (`candidates`), advice about what they lack (`advise`), how they were unwound (`unwinding`),
//! source lines (`source_context`), and what the log counts (`stats`).

mod address;
mod adjust;
mod advise;
mod candidates;
mod cpp_names;
mod demangle;
mod frame;
#[cfg(any(test, feature = "testing"))]
pub mod hostile;
mod modules;
mod outcome;
mod plan;
mod source_context;
mod stacktrace;
mod stats;
mod text;
mod unwinding;

pub use advise::{Searched, advise};
pub use demangle::{KnownNames, NameMemory};
pub use outcome::{Considered, LookupCache, ModuleOutcome};
pub use plan::{Plan, PlannedCache, PlannedCacheId, plan};
pub use source_context::{
    CONTEXT_LINES, SourceCodeOutcome, WantedLine, add_source_code, add_source_context,
    links_of_names, wanted_files, wanted_lines,
};
pub use stats::{FrameCounts, ModuleCounts, ReadCounts, Stats};
pub use unwinding::add_unwinding;

use crate::api::symbolicator::{Completed, Request};

/// Symbolicates a request with the outcomes for the modules of its plan.
///
/// `plan` must be the plan of this request, and `outcomes` those of [`Plan::caches`], in the same
/// order. A module without an outcome is treated like [`ModuleOutcome::Failed`].
pub fn symbolicate(
    request: &Request,
    plan: &Plan,
    outcomes: &[ModuleOutcome<'_>],
) -> (Completed, Stats) {
    let (completed, stats, _) = symbolicate_with(request, plan, outcomes, KnownNames::default());
    (completed, stats)
}

/// Symbolicates like [`symbolicate`], with names that are already known, and adds demangled names
/// to the cache in `names`: demangling the names of thirty frames takes longer than the rest of a
/// warm request.
///
/// Names that need isolation are unchanged; [`KnownNames::take_isolated`] returns them.
pub fn symbolicate_with<'a>(
    request: &'a Request,
    plan: &'a Plan,
    outcomes: &'a [ModuleOutcome<'a>],
    names: KnownNames<'a>,
) -> (Completed, Stats, KnownNames<'a>) {
    let mut lookup = frame::FrameLookup::new(request, plan, outcomes, names);
    let stacktraces = request
        .stacktraces
        .iter()
        .map(|stacktrace| stacktrace::complete(stacktrace, &mut lookup))
        .collect();
    let (mut stats, names) = lookup.into_parts();
    let modules = outcome::complete_modules(request, plan, outcomes);
    for module in &modules {
        stats.modules.count(module.debug_status);
    }
    let completed = Completed {
        signal: request.signal,
        stacktraces,
        modules,
        ..Completed::default()
    };
    (completed, stats, names)
}

#[cfg(test)]
mod tests;
