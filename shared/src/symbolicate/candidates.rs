//! The candidates of a module in a response, sorted by source and location.

use crate::api::symbolicator::CandidateReport;

/// Adds a candidate. If there is one from the same source and location, `merge` merges both.
pub(super) fn add_candidate(
    known: &mut Vec<CandidateReport>,
    candidate: CandidateReport,
    merge: impl FnOnce(&mut CandidateReport, CandidateReport),
) {
    let place = |known: &CandidateReport| {
        known
            .source
            .cmp(&candidate.source)
            .then_with(|| known.location.cmp(&candidate.location))
    };
    match known.binary_search_by(place) {
        Ok(at) => merge(&mut known[at], candidate),
        Err(at) => known.insert(at, candidate),
    }
}
