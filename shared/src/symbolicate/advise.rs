//! Writes advice into the details of modules: what their results lack, and what to do about it. A
//! detail that already has a reason is unchanged.

use super::{ModuleOutcome, Plan, PlannedCacheId};
use crate::api::advice::Advice;
use crate::api::symbolicator::{AddrMode, Completed, Request};
use crate::domain::Cause;

/// The maximum size of the advice in a response, in bytes. Modules beyond this limit get none.
const MAX_ADVICE_BYTES: usize = 256 << 10;

/// The places where a cache of a plan was searched, and what is known about files that were not
/// used.
#[derive(Clone, Debug, Default)]
pub struct Searched {
    /// The places, as texts.
    pub places: Vec<String>,
    /// Whether the uploads of a scope are among them.
    pub has_uploads: bool,
    /// A file that cannot be read: its location, and the reason.
    pub damaged: Option<(String, String)>,
    /// Why a better file could not be fetched yet.
    pub delayed: Option<String>,
}

/// Adds advice to the details of modules.
///
/// `plan` and `outcomes` must be those of the response. `searched` returns what is known about a
/// cache of the plan; it is called only if advice needs it.
pub fn advise(
    completed: &mut Completed,
    request: &Request,
    plan: &Plan,
    outcomes: &[ModuleOutcome<'_>],
    searched: impl Fn(PlannedCacheId) -> Searched,
) {
    let mut bytes = 0;
    for (index, module) in completed.modules.iter_mut().enumerate() {
        let Some(planned) = plan.planned_for(index) else {
            continue;
        };
        let (Some(outcome), None) = (outcomes.get(planned.index()), &module.debug_detail) else {
            continue;
        };
        let advice = match outcome {
            ModuleOutcome::Found { features, .. } => {
                let is_at_zero = module.module.image_addr.0 == 0;
                if is_at_zero && has_absolute_frames(request, plan, index) {
                    Some(Advice::ModuleAtZero)
                } else {
                    Advice::of_features(features).map(|lack| searched(planned).unused_or(lack))
                }
            }
            ModuleOutcome::Missing {
                missing,
                considered,
                ..
            } if missing.cause == Cause::NotFound => Some(match considered.used {
                Some(_) => searched(planned).unused_or(Advice::Stripped),
                None => {
                    let Searched {
                        places,
                        has_uploads,
                        ..
                    } = searched(planned);
                    Advice::of_absent(&module.module.object_id(), places, has_uploads)
                }
            }),
            ModuleOutcome::Missing { .. } | ModuleOutcome::Failed { .. } => None,
        };
        let detail = advice.map(|advice| advice.to_string());
        bytes += detail.as_ref().map_or(0, String::len);
        if bytes > MAX_ADVICE_BYTES {
            return;
        }
        module.debug_detail = detail;
    }
}

impl Searched {
    /// Returns the advice about a file that was not used, which is more specific, or else `lack`.
    fn unused_or(self, lack: Advice) -> Advice {
        match (self.damaged, self.delayed) {
            (Some((location, fault)), _) => Advice::Damaged { location, fault },
            (None, Some(fault)) => Advice::Delayed { fault },
            (None, None) => lack,
        }
    }
}

/// Returns whether frames with absolute addresses lie in a module.
fn has_absolute_frames(request: &Request, plan: &Plan, module: usize) -> bool {
    let frame = |(stacktrace, frame): &(usize, usize)| {
        let stacktrace = request.stacktraces.get(*stacktrace)?;
        stacktrace.frames.get(*frame)
    };
    let mut frames = plan.frames_of(module).iter().filter_map(frame);
    frames.any(|frame| frame.addr_mode == AddrMode::Abs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::symbolicator::parse_request;
    use crate::domain::{Features, Location, Missing, SourceKey};
    use crate::symbolicate::{Considered, plan, symbolicate};

    const BUILD_ID: &str = "ac456ebc7f4825f4367208b89f51ad48a1b2c3d4";

    fn details(
        request: &str,
        outcome: &ModuleOutcome<'_>,
        searched: &Searched,
    ) -> Vec<Option<String>> {
        let request = parse_request(request.as_bytes()).unwrap();
        let plan = plan(&request);
        let outcomes = vec![outcome.clone(); plan.caches().len()];
        let (mut completed, _) = symbolicate(&request, &plan, &outcomes);
        advise(&mut completed, &request, &plan, &outcomes, |_| {
            searched.clone()
        });
        let modules = completed.modules.into_iter();
        modules.map(|module| module.debug_detail).collect()
    }

    fn request(modules: usize) -> String {
        let module = |at: usize| {
            format!(
                r#"{{"type": "elf", "code_id": "{BUILD_ID}", "code_file": "{at}", "image_addr": {at}}}"#
            )
        };
        let frame = |at: usize| format!(r#"{{"instruction_addr": {at}, "addr_mode": "rel:{at}"}}"#);
        let list =
            |one: &dyn Fn(usize) -> String| (0..modules).map(one).collect::<Vec<_>>().join(", ");
        format!(
            r#"{{"modules": [{}], "stacktraces": [{{"frames": [{}]}}]}}"#,
            list(&module),
            list(&frame)
        )
    }

    fn not_found(used: Option<(&'static SourceKey, &'static Location)>) -> ModuleOutcome<'static> {
        ModuleOutcome::Missing {
            missing: Missing::not_found(),
            features: Features::default(),
            considered: Considered {
                candidates: &[],
                used,
            },
        }
    }

    #[test]
    fn a_module_without_files_reports_where_they_were_searched() {
        let searched = Searched {
            places: vec!["the uploads of global".to_owned()],
            has_uploads: true,
            damaged: None,
            delayed: None,
        };
        let [Some(detail)] = &details(&request(1), &not_found(None), &searched)[..] else {
            panic!("one module with a detail");
        };
        assert!(
            detail
                .starts_with("no file for this module was found in the uploads of global; upload"),
            "{detail}"
        );
    }

    #[test]
    fn an_unusable_file_is_reported_as_stripped_damaged_or_delayed() {
        let used: &'static (SourceKey, Location) =
            Box::leak(Box::new((SourceKey::Uploads, Location::new("global/app"))));
        let outcome = not_found(Some((&used.0, &used.1)));
        let stripped = details(&request(1), &outcome, &Searched::default());
        assert!(stripped[0].as_ref().unwrap().contains("is stripped"));
        let searched = Searched {
            damaged: Some(("global/app.debug".to_owned(), "cut short".to_owned())),
            ..Searched::default()
        };
        let damaged = details(&request(1), &outcome, &searched);
        let damaged = damaged[0].as_ref().unwrap();
        assert!(damaged.contains("global/app.debug: cut short"), "{damaged}");
        let searched = Searched {
            delayed: Some("it responded with 503".to_owned()),
            ..Searched::default()
        };
        let delayed = details(&request(1), &outcome, &searched);
        let delayed = delayed[0].as_ref().unwrap();
        assert!(delayed.contains("be fetched: it responded"), "{delayed}");
    }

    #[test]
    fn existing_details_are_kept_and_unused_modules_have_none() {
        let outcome = ModuleOutcome::Missing {
            missing: Missing::malformed("the file is cut short"),
            features: Features::default(),
            considered: Considered::default(),
        };
        let unused = request(1).replace("rel:0", "rel:7");
        let searched = Searched::default();
        let malformed = details(&request(1), &outcome, &searched);
        assert_eq!(malformed, [Some("the file is cut short".to_owned())]);
        assert_eq!(details(&unused, &outcome, &searched), [None]);
    }

    #[test]
    fn advice_is_a_bounded_part_of_an_answer() {
        let searched = Searched {
            places: vec!["x".repeat(1000)],
            ..Searched::default()
        };
        let details = details(&request(1000), &not_found(None), &searched);
        let bytes: usize = details.iter().flatten().map(String::len).sum();
        assert!(bytes <= MAX_ADVICE_BYTES && bytes > MAX_ADVICE_BYTES / 2);
        assert!(details[0].is_some() && details[999].is_none());
    }
}
