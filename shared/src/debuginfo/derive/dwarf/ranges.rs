//! Ranges of addresses.

/// Tells whether one of some ranges covers another one.
pub(super) fn covers(ranges: &[(u64, u64)], (begin, end): &(u64, u64)) -> bool {
    ranges.iter().any(|(from, to)| from <= begin && end <= to)
}

/// Sorts ranges; those that overlap or touch become one.
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
