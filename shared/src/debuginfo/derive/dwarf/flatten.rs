//! Turns the inlined calls and rows of a function into consecutive ranges.
//!
//! At an address with a row, the innermost function has the file and line of that row. At an
//! address without a row, its line is unknown. In both cases, each caller has the file and line of
//! its call.
//!
//! The rest follows `symbolic` (`function_builder`, and `writer` of its SymCaches; MIT), which is
//! the oracle: inlined calls that overlap are split, and calls without a caller are ignored. The
//! answers differ only in two cases. Where a function begins within a row of the code before it, as
//! some parts for cold code do, that row counts here, as for `addr2line`; `symbolic` omits it. At
//! addresses without a row, `symbolic` omits the innermost call, and after the end of a call it
//! answers nothing or still that call.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::lines::Row;
use super::tables::{NOTHING, Numbers, Placed};
use crate::debuginfo::slices::{NOWHERE, RawLocation};

/// One address range of an inlined call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Inlined {
    pub(super) start: u64,
    /// The number of inlined calls around it: 0 if it is called by the function itself.
    pub(super) depth: u32,
    pub(super) end: u64,
    /// The called function.
    pub(super) function: u32,
    /// The file and line of the call.
    pub(super) file: u32,
    pub(super) line: u32,
}

/// An inlined call that covers the current address.
#[derive(Clone, Copy, Debug)]
struct Active {
    end: u64,
    function: u32,
    /// The number of the call.
    call: u32,
}

/// Flattens functions. Reuses its buffers from one function to the next.
#[derive(Debug, Default)]
pub(super) struct Flattener {
    active: Vec<Active>,
    nested: Vec<Inlined>,
}

/// The tables to which the ranges and calls of functions are added.
#[derive(Debug)]
pub(super) struct Out<'a> {
    pub(super) ranges: &'a mut Vec<Placed>,
    pub(super) calls: &'a mut Vec<RawLocation>,
    pub(super) numbers: &'a mut Numbers<RawLocation>,
}

impl Flattener {
    /// Adds the ranges of a function between two addresses, and a gap behind them. Where neither a
    /// row nor an inlined call covers an address, the location before it continues, except directly
    /// after a call.
    pub(super) fn flatten(
        &mut self,
        (start, end): (u64, u64),
        function: u32,
        inlined: &mut [Inlined],
        rows: impl Iterator<Item = Row>,
        out: &mut Out<'_>,
    ) {
        inlined.sort_unstable();
        let mut nested = std::mem::take(&mut self.nested);
        nest(inlined, &mut nested);
        self.active.clear();
        let mut calls = nested
            .iter()
            .filter(|call| call.start >= start && call.start < end)
            .peekable();
        let mut rows = rows
            .filter(|row| row.address < end && row.end() > start)
            .peekable();
        let mut row: Option<Row> = None;
        let mut at = start;
        loop {
            let mut has_ended = false;
            while self.active.pop_if(|active| active.end <= at).is_some() {
                has_ended = true;
            }
            while let Some(call) = calls.next_if(|call| call.start <= at) {
                let caller = self
                    .active
                    .last()
                    .map_or((function, NOWHERE), |active| (active.function, active.call));
                let location = [call.file, call.line, caller.0, caller.1];
                self.active.push(Active {
                    end: call.end,
                    function: call.function,
                    call: out.numbers.of(location, out.calls),
                });
            }
            while let Some(next) = rows.next_if(|row| row.address <= at) {
                row = Some(next);
            }
            let covering = row.filter(|row| at - row.address < row.size);
            let inner = self.active.last();
            let location = match (covering, inner) {
                (Some(row), inner) => {
                    let (function, call) =
                        inner.map_or((function, NOWHERE), |inner| (inner.function, inner.call));
                    Some([row.file, row.line, function, call])
                }
                (None, Some(inner)) => Some([NOWHERE, 0, inner.function, inner.call]),
                (None, None) if at == start || has_ended => Some([NOWHERE, 0, function, NOWHERE]),
                (None, None) => None,
            };
            if let Some(location) = location {
                let start = u32::try_from(at).unwrap_or(NOWHERE);
                out.ranges.push(Placed { start, location });
            }
            let row_end = covering.map(|row| row.end());
            let never = |at: Option<u64>| at.unwrap_or(u64::MAX);
            let next = never(row_end)
                .min(never(rows.peek().map(|row| row.address)))
                .min(never(calls.peek().map(|call| call.start)))
                .min(never(self.active.last().map(|active| active.end)));
            if next >= end {
                break;
            }
            at = next.max(at + 1);
        }
        let start = u32::try_from(end).unwrap_or(NOWHERE);
        out.ranges.push(Placed {
            start,
            location: NOTHING,
        });
        self.nested = nested;
    }
}

/// Adds sorted calls to `nested`. Splits them so that each lies within its caller and overlaps no
/// other call of that caller.
fn nest(sorted: &[Inlined], nested: &mut Vec<Inlined>) {
    nested.clear();
    nested.extend_from_slice(sorted);
    let mut ends: Vec<u64> = Vec::new();
    let is_sound = sorted.iter().all(|call| {
        let depth = call.depth as usize;
        if ends.len() < depth || ends.get(depth).is_some_and(|end| call.start < *end) {
            return false;
        }
        ends.truncate(depth);
        let is_inside = ends.last().is_none_or(|end| call.end <= *end);
        ends.push(call.end);
        is_inside
    });
    if is_sound {
        return;
    }
    nested.clear();
    ends.clear();
    let mut left: BinaryHeap<Reverse<Inlined>> = sorted.iter().copied().map(Reverse).collect();
    while let Some(Reverse(mut call)) = left.pop() {
        let depth = call.depth as usize;
        let neighbour = ends.get(depth).copied();
        if ends.len() < depth || neighbour.is_some_and(|end| call.end <= end) {
            continue;
        }
        if let Some(end) = neighbour
            && call.start < end
        {
            call.start = end;
            left.push(Reverse(call));
            continue;
        }
        ends.truncate(depth);
        if let Some(caller) = ends.last().copied() {
            if call.start >= caller {
                continue;
            }
            if call.end > caller {
                left.push(Reverse(Inlined {
                    start: caller,
                    ..call
                }));
                call.end = caller;
            }
        }
        nested.push(call);
        ends.push(call.end);
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use symbolic::common::Name;
    use symbolic::debuginfo::FileInfo;
    use symbolic::debuginfo::function_builder::FunctionBuilder;
    use symbolic::symcache::{SymCache, SymCacheConverter};

    use super::*;
    use crate::debuginfo::derive::dwarf::tables::NOTHING;

    const START: u64 = 0x100;
    const NAMES: [&str; 5] = ["outer", "one", "two", "three", "four"];
    const FILES: [&str; 2] = ["call.c", "row.c"];

    /// Function, file and line of each function at an address, the innermost first.
    type Answer = Vec<(String, String, u32)>;

    /// Returns the answers of `symbolic` if each row before the function that reaches into it began
    /// with the function.
    fn by_symbolic(end: u64, inlined: &[Inlined], rows: &[Row]) -> Vec<Answer> {
        let name = |function: u32| Name::from(NAMES[function as usize]);
        let file = |file: u32| FileInfo::from_filename(FILES[file as usize].as_bytes());
        let mut builder = FunctionBuilder::new(name(0), b"", START, end - START);
        for call in inlined {
            let size = call.end - call.start;
            let (file, line) = (file(call.file), call.line.into());
            builder.add_inlinee(
                call.depth,
                name(call.function),
                call.start,
                size,
                file,
                line,
            );
        }
        for row in rows.iter().filter(|row| row.end() > START) {
            let start = row.address.max(START);
            let (file, line) = (file(row.file), row.line.into());
            builder.add_leaf_line(start, Some(row.end() - start), file, line);
        }
        let mut converter = SymCacheConverter::new();
        converter.process_symbolic_function(&builder.finish());
        let mut raw = Vec::new();
        converter.serialize(&mut raw).unwrap();
        let raw = crate::debuginfo::blob::AlignedBytes::copied(&raw).unwrap();
        let cache = SymCache::parse(raw.as_slice()).unwrap();
        let at = |address| {
            let locations = cache.lookup(address);
            let shown = locations.map(|location| {
                let path = location.file().map(|file| file.full_path());
                let name = location.function().name().to_owned();
                (name, path.unwrap_or_default(), location.line())
            });
            shown.collect()
        };
        (START..end + 3).map(at).collect()
    }

    fn by_flattening(end: u64, inlined: &[Inlined], rows: &[Row]) -> Vec<Answer> {
        let (mut ranges, mut calls) = (Vec::new(), Vec::new());
        let mut out = Out {
            ranges: &mut ranges,
            calls: &mut calls,
            numbers: &mut Numbers::new(),
        };
        let mut inlined = inlined.to_vec();
        let rows = rows.iter().copied();
        Flattener::default().flatten((START, end), 0, &mut inlined, rows, &mut out);
        assert!(ranges.windows(2).all(|pair| pair[0].start < pair[1].start));
        let at = |address: u64| {
            let after = ranges.partition_point(|range| u64::from(range.start) <= address);
            let mut location = ranges[after - 1].location;
            let mut answer = Vec::new();
            while location != NOTHING {
                let [file, line, function, call] = location;
                let file = FILES.get(file as usize).copied().unwrap_or_default();
                answer.push((NAMES[function as usize].to_owned(), file.to_owned(), line));
                location = calls.get(call as usize).copied().unwrap_or(NOTHING);
            }
            answer
        };
        (START..end + 3).map(at).collect()
    }

    /// Returns consecutive intervals with gaps between them.
    fn intervals(end: u64, steps: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut at = START;
        let mut intervals = Vec::new();
        for (gap, length) in steps {
            let start = at + gap;
            at = (start + length).min(end);
            if start < at {
                intervals.push((start, at));
            }
        }
        intervals
    }

    proptest! {
        /// Calls that extend beyond their callers, calls without a caller, and rows that begin
        /// late or end early.
        #[test]
        fn each_address_has_the_same_answer_as_in_symbolic(
            length in 1_u64..60,
            by_depth in vec(vec((0_u64..6, 1_u64..20), 0..6), 0..4),
            first_row in START - 4..START + 20,
            row_sizes in vec(1_u64..9, 0..14),
        ) {
            let end = START + length;
            let mut inlined = Vec::new();
            for (depth, steps) in (0..).zip(&by_depth) {
                for (start, end) in intervals(end, steps) {
                    let line = 1000 + inlined.len() as u32;
                    inlined.push(Inlined { start, depth, end, function: depth + 1, file: 0, line });
                }
            }
            let mut rows = Vec::new();
            let mut address = first_row;
            for size in row_sizes {
                let line = 1 + rows.len() as u32;
                rows.push(Row { address, size, file: 1, line });
                address += size;
            }
            let (ours, theirs) = (by_flattening(end, &inlined, &rows), by_symbolic(end, &inlined, &rows));
            for ((address, ours), theirs) in (START..).zip(ours).zip(theirs) {
                let holds = |row: &Row| (row.address..row.end()).contains(&address);
                let has_row = rows.iter().any(holds);
                if ours == theirs || has_row {
                    prop_assert_eq!(ours, theirs);
                    continue;
                }
                let without_line = |name: &str| (name.to_owned(), String::new(), 0);
                let is_inlined = |call: &Inlined| call.depth == 0 && (call.start..call.end).contains(&address);
                if inlined.iter().any(is_inlined) {
                    prop_assert_eq!(&ours[0], &without_line(&ours[0].0));
                    prop_assert_eq!(&ours[1..], theirs);
                } else { prop_assert_eq!(ours, [without_line(NAMES[0])]) }
            }
        }
    }
}
