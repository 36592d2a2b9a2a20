//! Operations on address ranges.

/// The maximum number of ranges that are compared with one range or address. Those of a function
/// hardly overlap, so that the nearest decides; a hostile file may have a million that do.
const MAX_COMPARED: usize = 256;

/// Returns whether one of some sorted ranges covers another range.
pub(super) fn covers(sorted: &[(u64, u64)], (begin, end): &(u64, u64)) -> bool {
    let before = sorted.partition_point(|(from, _)| from <= begin);
    let mut nearest = sorted[..before].iter().rev().take(MAX_COMPARED);
    nearest.any(|(_, to)| end <= to)
}

/// The ranges of a function in address order.
#[derive(Debug, Default)]
pub(super) struct Starts {
    /// The start and the end of each range, with its number.
    sorted: Vec<(u64, u64, usize)>,
}

impl Starts {
    /// Replaces the ranges.
    pub(super) fn set(&mut self, ranges: &[(u64, u64)]) {
        let numbered = ranges.iter().zip(0..);
        self.sorted.clear();
        self.sorted
            .extend(numbered.map(|((begin, end), number)| (*begin, *end, number)));
        self.sorted.sort_unstable();
    }

    /// Returns the numbers of the ranges that an address is in, the one with the nearest start
    /// first.
    pub(super) fn holding(&self, address: u64) -> impl Iterator<Item = usize> {
        let before = self.sorted.partition_point(|(begin, ..)| *begin <= address);
        let nearest = self.sorted[..before].iter().rev().take(MAX_COMPARED);
        let holding = nearest.filter(move |(_, end, _)| address < *end);
        holding.map(|(.., number)| *number)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_covered_by_one_range_not_by_several() {
        let ranges = [(0, 100), (10, 20), (20, 30), (200, 300)];
        for (range, expected) in [
            ((12, 18), true),
            ((15, 25), true), // by the first
            ((90, 100), true),
            ((90, 101), false),
            ((200, 300), true),
            ((199, 210), false),
            ((400, 410), false),
        ] {
            assert_eq!(covers(&ranges, &range), expected, "{range:?}");
        }
        assert!(!covers(&ranges[1..3], &(15, 25)));
        assert!(!covers(&[], &(0, 1)));
    }

    #[test]
    fn ranges_that_hold_an_address_are_found_in_any_order_up_to_a_limit() {
        let mut starts = Starts::default();
        let holding = |starts: &Starts, address| starts.holding(address).collect::<Vec<usize>>();
        starts.set(&[(40, 50), (0, 100), (10, 20), (10, 10)]);
        assert_eq!(holding(&starts, 45), [0, 1]);
        assert_eq!(holding(&starts, 10), [2, 1]);
        assert_eq!(holding(&starts, 99), [1]);
        assert!(holding(&starts, 100).is_empty());
        let many: Vec<(u64, u64)> = (0..100_000).map(|start| (start, 1 << 40)).collect();
        starts.set(&many);
        assert_eq!(holding(&starts, 1 << 39).len(), MAX_COMPARED);
    }
}
