//! From a request and its caches to a response, without asking anybody anything.
//!
//! Two pure steps, and between them whatever it takes to get the caches: [`plan()`] says which modules a request's frames
//! lie in; [`symbolicate`] looks the frames up in the caches that were found.
//!
//! The rules, each where it is kept: which module covers an address (`modules`), which instruction an address
//! means (`adjust`), what frames a lookup makes (`frame`), which of them are shown, in which order
//! (`stacktrace`), how functions are called (`demangle`), what becomes of modules (`outcome`), what they lack (`advise`).

mod adjust;
mod advise;
mod cpp_constraints;
mod demangle;
mod frame;
#[cfg(any(test, feature = "testing"))]
pub mod hostile;
mod modules;
mod outcome;
mod plan;
mod stacktrace;
mod stats;

pub use advise::{Searched, advise};
pub use demangle::{KnownNames, NameMemory};
pub use outcome::{Considered, LookupCache, ModuleOutcome};
pub use plan::{Plan, PlannedCache, plan};
pub use stats::{FrameCounts, ModuleCounts, ReadCounts, Stats};

use crate::api::symbolicator::{Completed, Request};

/// Symbolicates a request with what was found for the modules that its plan wants.
///
/// `plan` is the plan of this very request, and `outcomes` are those of [`Plan::wanted`], in their order. A module whose
/// outcome is not there is treated as one that could not be had for a fault of ours.
pub fn symbolicate(
    request: &Request,
    plan: &Plan,
    outcomes: &[ModuleOutcome<'_>],
) -> (Completed, Stats) {
    let (completed, stats, _) = symbolicate_with(request, plan, outcomes, KnownNames::default());
    (completed, stats)
}

/// Symbolicates as [`symbolicate`] does, with names that are known, and remembers those of functions for the requests to
/// come: demangling the names of thirty frames takes longer than all else that a warm request takes.
///
/// Names that have to be isolated stay as they are; [`KnownNames::take_isolated`] returns them.
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
