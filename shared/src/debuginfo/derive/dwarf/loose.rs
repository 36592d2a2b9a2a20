//! The rows of a unit that lie in none of its functions. They belong to assembly, or to functions
//! for which the compiler wrote no entries.
//!
//! A row extends to the next one, but a row that begins in a range of its unit ends with that
//! range: behind it, GNAT leaves functions that it generated, which have symbols, but neither
//! entries nor lines. A row that begins outside of all ranges counts, because a unit may have code
//! that it does not list: NASM lists that of one section.

use super::lines::{LineRows, Row};

/// Passes the parts of rows that lie in no function to `keep`. The ranges of the functions and of
/// the unit are sorted, and neither overlap nor touch.
pub(super) fn each_loose_row(
    lines: &LineRows,
    functions: &[(u64, u64)],
    of_unit: &[(u64, u64)],
    mut keep: impl FnMut(Row),
) {
    let mut functions = NearestRange::of(functions);
    let mut of_unit = NearestRange::of(of_unit);
    for row in lines.all() {
        let mut begin = row.address;
        let end = match of_unit.ending_behind(begin) {
            (start, end) if start <= begin => end.min(row.end()),
            _ => row.end(),
        };
        while begin < end {
            let function = functions.ending_behind(begin);
            let stop = function.0.min(end);
            if begin < stop {
                keep(Row {
                    address: begin,
                    size: stop - begin,
                    ..*row
                });
            }
            begin = function.1.max(stop);
        }
    }
}

/// Finds the ranges for addresses, most of which lie in the same range as the address before.
struct NearestRange<'r> {
    ranges: &'r [(u64, u64)],
    last: (u64, u64),
}

impl<'r> NearestRange<'r> {
    fn of(ranges: &'r [(u64, u64)]) -> Self {
        Self {
            ranges,
            last: (0, 0),
        }
    }

    /// Returns the range that an address is in, or else the first one behind it.
    fn ending_behind(&mut self, address: u64) -> (u64, u64) {
        if !(self.last.0..self.last.1).contains(&address) {
            let next = self.ranges.partition_point(|(_, end)| *end <= address);
            let next = self.ranges.get(next);
            self.last = next.copied().unwrap_or((u64::MAX, u64::MAX));
        }
        self.last
    }
}

#[cfg(test)]
mod tests {
    use crate::debuginfo::derive::dwarf::bad_input_tests::{CODE, GLOBAL_FUNCTION, Sections};

    /// The opcodes of a sequence with one row.
    fn row(address: u64, size: u8) -> Vec<u8> {
        const COPY: u8 = 1;
        const ADVANCE: u8 = 2;
        const END: [u8; 3] = [0, 1, 1];
        let set_address = [&[0, 9, 2][..], &address.to_le_bytes()].concat();
        [&set_address[..], &[COPY, ADVANCE, size], &END].concat()
    }

    /// Returns the lines of functions without entries in a unit with these ranges: one with a row,
    /// a second one that the same row reaches, and a third one with a row of its own.
    fn lines_of(of_unit: &[(u64, u64)]) -> Vec<u32> {
        let mut sections = Sections::new();
        if !of_unit.is_empty() {
            sections.list_ranges_of_unit(of_unit);
        }
        let starts = [CODE, CODE + 16, CODE + 64];
        for (name, start) in ["listed", "generated", "elsewhere"].into_iter().zip(starts) {
            sections.add_symbol(name, GLOBAL_FUNCTION, start, 16);
        }
        sections.set_lines(&[row(CODE, 32), row(CODE + 64, 16)].concat());
        let (answers, lacks) = sections.answers(&starts.map(|start| start + 8));
        assert_eq!(lacks, None);
        answers.into_iter().map(|(_, line)| line).collect()
    }

    #[test]
    fn a_row_that_begins_in_a_range_of_its_unit_ends_with_it() {
        assert_eq!(lines_of(&[(CODE, CODE + 16)]), [1, 0, 1]);
        let all = [(CODE, CODE + 16), (CODE + 64, CODE + 80)];
        assert_eq!(lines_of(&all), [1, 0, 1]);
        assert_eq!(lines_of(&[(CODE, CODE + 32)]), [1, 1, 1]);
        // A part of the function that a range ends within has no line.
        assert_eq!(lines_of(&[(CODE, CODE + 8)]), [0, 0, 1]);
    }

    #[test]
    fn rows_outside_of_the_ranges_of_their_unit_count_and_so_do_all_if_it_has_none() {
        assert_eq!(lines_of(&[(CODE + 64, CODE + 80)]), [1, 1, 1]);
        assert_eq!(lines_of(&[]), [1, 1, 1]);
    }
}
