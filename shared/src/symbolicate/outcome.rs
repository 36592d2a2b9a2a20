//! The outcomes for the modules of a request, and how they appear in the response.

use symbolic::ppdb::PortablePdbCache;

use super::Plan;
use crate::api::symbolicator::{
    CandidateReport, CompletedModule, Derivation, DownloadStatus, FrameStatus, Module,
    ModuleStatus, Request,
};
use crate::debuginfo::SymCaches;
use crate::domain::{self, Arch, Cause, Features, Location, Missing, SourceKey};

/// The outcome of getting a cache of a plan.
#[derive(Clone, Debug)]
pub enum ModuleOutcome<'a> {
    /// The cache was found.
    Found {
        /// The cache.
        cache: LookupCache<'a>,
        /// The features of the object that it was derived from.
        features: Features,
        /// The architecture of that object.
        arch: &'a str,
        /// What the cache lacks although the DIF contains it or refers to another file for it.
        lacks: Option<&'a str>,
        /// The DIFs that were considered.
        considered: Considered<'a>,
    },
    /// There is no cache.
    Missing {
        /// The reason.
        missing: Missing,
        /// The features of the object that was found and is unsupported, if that is the reason.
        features: Features,
        /// The DIFs that were considered.
        considered: Considered<'a>,
    },
    /// The service failed to find out whether there is a cache.
    Failed {
        /// The failure, as a text for people.
        detail: String,
    },
}

/// A cache that frames are looked up in.
#[derive(Clone, Debug)]
pub enum LookupCache<'a> {
    /// The cache of a native module.
    Sym(SymCaches<'a>),
    /// The cache of a .NET module.
    Ppdb(PortablePdbCache<'a>),
}

/// The DIFs that were considered for a module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Considered<'a> {
    /// The candidates, in any order.
    pub candidates: &'a [domain::Candidate],
    /// The candidate that the cache was derived from, or would be derived from. If that is unknown,
    /// it is each candidate that could not be parsed if that is why there is no cache, or else the
    /// only one that could be fetched.
    pub used: Option<(&'a SourceKey, &'a Location)>,
}

/// Completes the modules of a request, in its order.
pub(super) fn complete_modules(
    request: &Request,
    plan: &Plan,
    outcomes: &[ModuleOutcome<'_>],
) -> Vec<CompletedModule> {
    let complete = |(index, module): (usize, &Module)| {
        let mut completed = CompletedModule {
            debug_status: ModuleStatus::Unused,
            unwind_status: None,
            debug_detail: None,
            features: Features::default(),
            arch: Arch::Unknown.name().to_owned(),
            module: Module {
                image_size: plan.space.size_of(index),
                ..module.clone()
            },
            candidates: Vec::new(),
        };
        if let Some(planned) = plan.planned_for(index) {
            describe(
                &mut completed,
                outcomes.get(planned.index()),
                request.options.dif_candidates,
            );
        }
        completed
    };
    request.modules.iter().enumerate().map(complete).collect()
}

/// Writes the outcome for a module that frames lie in.
fn describe(
    module: &mut CompletedModule,
    outcome: Option<&ModuleOutcome<'_>>,
    with_candidates: bool,
) {
    let considered = match outcome {
        Some(ModuleOutcome::Found {
            cache,
            features,
            arch,
            lacks,
            considered,
        }) => {
            module.debug_status = ModuleStatus::Found;
            module.debug_detail = lacks.map(str::to_owned);
            module.features = features.clone();
            if let LookupCache::Sym(_) = cache {
                (*arch).clone_into(&mut module.arch);
            }
            considered
        }
        Some(ModuleOutcome::Missing {
            missing,
            features,
            considered,
        }) => {
            module.debug_status = module_status(missing.cause);
            module.features = features.clone();
            if missing.cause != Cause::NotFound {
                module.debug_detail = Some(missing.detail.clone());
            }
            considered
        }
        Some(ModuleOutcome::Failed { detail }) => {
            module.debug_status = ModuleStatus::Other;
            module.debug_detail = Some(detail.clone());
            return;
        }
        None => {
            module.debug_status = ModuleStatus::Other;
            return;
        }
    };
    if with_candidates {
        let missing = match outcome {
            Some(ModuleOutcome::Missing { missing, .. }) => Some(missing),
            _ => None,
        };
        module.candidates = considered.describe(missing);
    }
}

impl Considered<'_> {
    /// Returns the candidates as they are shown, sorted by source and location, without duplicates;
    /// `missing` is the reason why there is no cache.
    pub(super) fn describe(&self, missing: Option<&Missing>) -> Vec<CandidateReport> {
        let mut candidates: Vec<CandidateReport> =
            self.candidates.iter().map(CandidateReport::from).collect();
        candidates.sort_by(|a, b| (&a.source, &a.location).cmp(&(&b.source, &b.location)));
        candidates.dedup_by(|a, b| (&a.source, &a.location) == (&b.source, &b.location));
        let derivation = match missing {
            None => Some(Derivation::Ok),
            Some(missing) => derivation(missing),
        };
        if let Some(derivation) = derivation {
            self.report_derivation(derivation, missing, &mut candidates);
        }
        candidates
    }

    /// Adds the result of deriving to the candidates that were used.
    fn report_derivation(
        &self,
        derivation: Derivation,
        missing: Option<&Missing>,
        candidates: &mut [CandidateReport],
    ) {
        let is_fault = missing.is_some_and(|missing| is_fault_of_file(missing.cause));
        let is_unreadable = |candidate: &CandidateReport| {
            is_fault && candidate.download == DownloadStatus::Malformed
        };
        let is_fetched =
            |candidate: &CandidateReport| matches!(candidate.download, DownloadStatus::Ok { .. });
        let unreadable = candidates.iter().filter(|it| is_unreadable(it)).count();
        let fetched = candidates.iter().filter(|it| is_fetched(it)).count();
        let is_used = |candidate: &CandidateReport| match self.used {
            Some(used) => (&candidate.source, &candidate.location) == used,
            None if unreadable > 0 => is_unreadable(candidate),
            None => fetched == 1 && is_fetched(candidate),
        };
        // Of several unreadable files, it is unknown which one the details are about.
        let derivation = if self.used.is_none() && unreadable > 1 {
            Derivation::Malformed { details: None }
        } else {
            derivation
        };
        for candidate in candidates.iter_mut().filter(|candidate| is_used(candidate)) {
            candidate.debug = Some(derivation.clone());
        }
    }
}

/// Returns whether a file cannot be parsed, rather than being of an unsupported kind or too large.
/// The download of such a file is reported as malformed, too.
fn is_fault_of_file(cause: Cause) -> bool {
    matches!(cause, Cause::Malformed | Cause::Crashed)
}

/// Returns the status of a module whose cache is missing.
pub(super) fn module_status(cause: Cause) -> ModuleStatus {
    match cause {
        Cause::NotFound => ModuleStatus::Missing,
        Cause::PermissionDenied | Cause::DownloadFailed => ModuleStatus::FetchingFailed,
        Cause::Timeout => ModuleStatus::Timeout,
        Cause::Malformed | Cause::TooLarge { .. } | Cause::Crashed => ModuleStatus::Malformed,
        Cause::Unsupported => ModuleStatus::Unsupported,
    }
}

/// Returns the status of a frame whose module's cache is missing.
pub(super) fn frame_status(cause: Cause) -> FrameStatus {
    match cause {
        Cause::NotFound
        | Cause::PermissionDenied
        | Cause::DownloadFailed
        | Cause::Timeout
        | Cause::Unsupported => FrameStatus::Missing,
        Cause::Malformed | Cause::TooLarge { .. } | Cause::Crashed => FrameStatus::Malformed,
    }
}

/// Returns the derivation status of a candidate whose cache could not be made; `None` if deriving
/// was not attempted. A file that lacks what is needed is passed over, like one that does not
/// exist.
fn derivation(missing: &Missing) -> Option<Derivation> {
    match missing.cause {
        Cause::NotFound | Cause::PermissionDenied | Cause::DownloadFailed | Cause::Timeout => None,
        Cause::Unsupported => Some(Derivation::Error {
            details: format!("unsupported: {}", missing.detail),
        }),
        Cause::Malformed | Cause::TooLarge { .. } | Cause::Crashed => Some(Derivation::Malformed {
            details: Some(missing.detail.clone()),
        }),
    }
}
