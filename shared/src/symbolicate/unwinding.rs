//! How the modules of a minidump were unwound, in the response.

use super::candidates::add_candidate;
use super::outcome::{Considered, module_status};
use crate::api::crash::ModuleUnwinding;
use crate::api::symbolicator::{CandidateReport, CompletedModule, ModuleStatus};

/// Adds to modules how each was unwound, in the same order; `None` if no walk needed it.
pub fn add_unwinding(
    modules: &mut [CompletedModule],
    unwinding: &[Option<ModuleUnwinding>],
    with_candidates: bool,
) {
    for (module, unwinding) in modules.iter_mut().zip(unwinding) {
        let Some(unwinding) = unwinding else {
            module.unwind_status = Some(ModuleStatus::Unused);
            continue;
        };
        let missing = unwinding.missing.as_ref();
        let status = missing.map(|missing| module_status(missing.cause));
        module.unwind_status = Some(status.unwrap_or(ModuleStatus::Found));
        module.features.merge(&unwinding.features);
        if with_candidates {
            for candidate in candidates(unwinding) {
                add_candidate(&mut module.candidates, candidate, |known, candidate| {
                    known.unwind = candidate.unwind;
                });
            }
        }
    }
}

/// Returns the candidates of unwind information. Whatever deriving yielded concerns unwinding.
fn candidates(unwinding: &ModuleUnwinding) -> Vec<CandidateReport> {
    let used = unwinding.used.as_ref();
    let considered = Considered {
        candidates: &unwinding.candidates,
        used: used.map(|(source, location)| (source, location)),
    };
    let mut candidates = considered.describe(unwinding.missing.as_ref());
    for candidate in &mut candidates {
        candidate.unwind = candidate.debug.take();
    }
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::symbolicator::Derivation;
    use crate::domain::{Candidate, Download, Features, Location, Missing, SourceKey};

    fn found(location: &str) -> Candidate {
        Candidate {
            source: SourceKey::Uploads,
            location: Location::new(location),
            download: Download::Ok {
                features: Features::default(),
            },
            size: None,
            duration_ms: None,
            fault: None,
        }
    }

    fn completed(candidates: Vec<CandidateReport>) -> CompletedModule {
        CompletedModule {
            debug_status: ModuleStatus::Found,
            unwind_status: None,
            debug_detail: None,
            features: Features {
                has_debug_info: true,
                ..Features::default()
            },
            arch: "x86_64".to_owned(),
            module: crate::api::symbolicator::Module::default(),
            candidates,
        }
    }

    #[test]
    fn candidates_of_both_kinds_are_merged_by_their_places() {
        let debug = CandidateReport {
            debug: Some(Derivation::Ok),
            ..CandidateReport::from(&found("b"))
        };
        let mut modules = [completed(vec![debug]), completed(Vec::new())];
        let unwinding = ModuleUnwinding {
            missing: None,
            features: Features {
                has_unwind_info: true,
                ..Features::default()
            },
            candidates: vec![found("c"), found("a"), found("b")],
            used: Some((SourceKey::Uploads, Location::new("a"))),
        };
        add_unwinding(&mut modules, &[Some(unwinding), None], true);
        let [first, second] = modules;
        let places = first.candidates.iter();
        let places: Vec<_> = places
            .map(|candidate| {
                let is = |derivation: &Option<Derivation>| derivation.is_some();
                let location = candidate.location.to_string();
                (location, is(&candidate.debug), is(&candidate.unwind))
            })
            .collect();
        let place = |name: &str, debug, unwind| (name.to_owned(), debug, unwind);
        assert_eq!(
            places,
            [
                place("a", false, true),
                place("b", true, false),
                place("c", false, false)
            ]
        );
        assert!(first.features.has_debug_info && first.features.has_unwind_info);
        assert_eq!(first.unwind_status, Some(ModuleStatus::Found));
        assert_eq!(second.unwind_status, Some(ModuleStatus::Unused));
    }

    #[test]
    fn a_file_without_unwind_information_is_not_shown_as_used_for_it() {
        let unwinding = ModuleUnwinding {
            missing: Some(Missing::not_found()),
            candidates: vec![found("a")],
            used: Some((SourceKey::Uploads, Location::new("a"))),
            ..ModuleUnwinding::default()
        };
        let debug = CandidateReport {
            debug: Some(Derivation::Ok),
            ..CandidateReport::from(&found("a"))
        };
        let mut modules = [completed(vec![debug.clone()])];
        add_unwinding(&mut modules, &[Some(unwinding)], true);
        assert_eq!(modules[0].unwind_status, Some(ModuleStatus::Missing));
        assert_eq!(modules[0].candidates, [debug]);
    }

    #[test]
    fn a_file_that_cannot_be_parsed_is_malformed_for_unwinding_too() {
        let unreadable = Candidate {
            download: Download::Malformed,
            ..found("a")
        };
        let unwinding = ModuleUnwinding {
            missing: Some(Missing::malformed("garbage")),
            candidates: vec![unreadable],
            ..ModuleUnwinding::default()
        };
        let mut modules = [completed(Vec::new())];
        add_unwinding(&mut modules, &[Some(unwinding)], true);
        let [candidate] = &*modules[0].candidates else {
            panic!("{:?}", modules[0].candidates);
        };
        let details = Some("garbage".to_owned());
        assert_eq!(candidate.unwind, Some(Derivation::Malformed { details }));
        assert_eq!(candidate.debug, None);
    }

    #[test]
    fn the_status_says_why_there_is_no_unwind_information() {
        let mut modules = [completed(Vec::new())];
        let unwinding = ModuleUnwinding {
            missing: Some(Missing::not_found()),
            ..ModuleUnwinding::default()
        };
        add_unwinding(&mut modules, &[Some(unwinding)], false);
        assert_eq!(modules[0].unwind_status, Some(ModuleStatus::Missing));
    }
}
