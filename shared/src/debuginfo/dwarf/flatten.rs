//! From the inlined calls and the rows of a function to ranges that follow each other.
//!
//! At an address with a row, the innermost inlined function is at that row. At one without, the row of the innermost call is all that is
//! known: the caller is at the line of the call. What follows is `symbolic`'s (`function_builder`, and `writer` of its SymCaches;
//! MIT), which is the oracle: where inlined calls overlap they are split, and those without a caller do not count.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::lines::Row;
use super::tables::{NOTHING, Numbers, Placed};
use crate::debuginfo::slices::{Location, NOWHERE};

/// An inlined call, in one range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Inlined {
    pub(super) start: u64,
    /// How many calls it is inlined by: 0 in the function itself.
    pub(super) depth: u32,
    pub(super) end: u64,
    /// The function that is called.
    pub(super) function: u32,
    /// Where it is called.
    pub(super) file: u32,
    pub(super) line: u32,
}

/// An inlined call at the address that was reached.
#[derive(Clone, Copy, Debug)]
struct Active {
    end: u64,
    function: u32,
    /// The number of the call.
    call: u32,
}

/// Flattens functions; keeps its buffers from one to the next.
#[derive(Debug, Default)]
pub(super) struct Flattener {
    active: Vec<Active>,
    nested: Vec<Inlined>,
}

/// Where ranges and calls of functions are added.
#[derive(Debug)]
pub(super) struct Out<'a> {
    pub(super) ranges: &'a mut Vec<Placed>,
    pub(super) calls: &'a mut Vec<Location>,
    pub(super) numbers: &'a mut Numbers<Location>,
}

impl Flattener {
    /// Adds the ranges of a function between two addresses, and one behind them that says that nothing follows.
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
        let mut rows = rows.filter(|row| row.address >= start).peekable();
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
                    let file = u32::try_from(row.file).unwrap_or(NOWHERE);
                    Some([file, row.line, function, call])
                }
                (None, Some(inner)) => out.calls.get(inner.call as usize).copied(),
                (None, None) if at == start => Some([NOWHERE, 0, function, NOWHERE]),
                (None, None) => has_ended.then_some(NOTHING),
            };
            if let Some(location) = location {
                let start = u32::try_from(at).unwrap_or(NOWHERE);
                out.ranges.push(Placed { start, location });
            }
            let row_end = covering.map(|row| row.address.saturating_add(row.size));
            let next = [
                row_end,
                rows.peek().map(|row| row.address),
                calls.peek().map(|call| call.start),
                self.active.last().map(|active| active.end),
            ];
            match next.into_iter().flatten().min() {
                Some(next) if next < end => at = next.max(at + 1),
                _ => break,
            }
        }
        let start = u32::try_from(end).unwrap_or(NOWHERE);
        out.ranges.push(Placed {
            start,
            location: NOTHING,
        });
        self.nested = nested;
    }
}

/// Adds sorted calls to `nested` so that each lies in its caller, and beside its neighbours.
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
