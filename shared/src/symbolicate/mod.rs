//! From a request and its caches to a response, without asking anybody anything.
//!
//! Two pure steps, and between them whatever it takes to get the caches: [`plan()`] says which modules a request's frames
//! lie in; [`symbolicate`] looks the frames up in the caches that were found.
//!
//! The rules, each where it is kept: which module covers an address (`modules`), which instruction an address
//! means (`adjust`), what frames a lookup makes (`frame`), which of them are shown, in which order
//! (`stacktrace`), how functions are called (`demangle`), what becomes of modules (`outcome`).

mod adjust;
mod demangle;
mod frame;
mod modules;
mod outcome;
mod plan;
mod stacktrace;
mod stats;

use crate::api::symbolicator::{Completed, Request};

pub use demangle::NameMemory;
pub use outcome::{Considered, LookupCache, ModuleOutcome};
pub use plan::{Plan, Wanted, plan};
pub use stats::{FrameCounts, ModuleCounts, ReadCounts, Stats};

/// Symbolicates a request with what was found for the modules that its plan wants.
///
/// `plan` is the plan of this very request, and `outcomes` are those of [`Plan::wanted`], in their order. A module whose
/// outcome is not there is treated as one that could not be had for a fault of ours.
pub fn symbolicate(
    request: &Request,
    plan: &Plan,
    outcomes: &[ModuleOutcome<'_>],
) -> (Completed, Stats) {
    complete(request, plan, outcomes, None)
}

/// Symbolicates as [`symbolicate`] does, and remembers the names of functions for the requests to come.
///
/// Demangling the names of thirty frames takes longer than all else that a warm request takes.
pub fn symbolicate_remembering(
    request: &Request,
    plan: &Plan,
    outcomes: &[ModuleOutcome<'_>],
    names: &NameMemory,
) -> (Completed, Stats) {
    complete(request, plan, outcomes, Some(names))
}

fn complete(
    request: &Request,
    plan: &Plan,
    outcomes: &[ModuleOutcome<'_>],
    names: Option<&NameMemory>,
) -> (Completed, Stats) {
    let mut lookup = frame::Lookup::new(request, plan, outcomes, names);
    let stacktraces = request
        .stacktraces
        .iter()
        .map(|stacktrace| stacktrace::complete(stacktrace, &mut lookup))
        .collect();
    let mut stats = lookup.into_stats();
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
    (completed, stats)
}

#[cfg(test)]
mod tests;
