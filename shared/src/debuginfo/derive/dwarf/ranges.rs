//! Operations on address ranges.

/// Returns whether one of `ranges` covers all of another range.
pub(super) fn covers(ranges: &[(u64, u64)], (begin, end): &(u64, u64)) -> bool {
    ranges.iter().any(|(from, to)| from <= begin && end <= to)
}

/// Sorts ranges, and joins those that overlap or touch.
pub(super) fn join(ranges: &mut Vec<(u64, u64)>) {
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let touches = next.0 <= last.1;
        if touches {
            last.1 = last.1.max(next.1);
        }
        touches
    });
}
