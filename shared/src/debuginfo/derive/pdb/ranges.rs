//! Turns the tree of a function, its inlined calls and their lines into consecutive ranges.
//!
//! The rules follow `symbolic` (`symbolic_symcache::writer`, MIT), which is the oracle:
//!
//! - A line of a function has its own ranges where no line of a call that was inlined into it
//!   begins. Elsewhere, it is the location of that call.
//! - Of several lines that begin at an address, the last is used. A function without a line at its
//!   entry has a range without a line there.
//! - The end of a function or an inlined call begins a gap if nothing else begins there.
//!
//! One rule goes beyond `symbolic`: a call that no line of its caller covers is kept, and the line
//! of the caller is unknown. MSVC writes inlined calls, but no lines, for functions that the
//! compiler generates, such as destructors.

use std::iter::{Copied, Peekable};
use std::ops::Range;
use std::rc::Rc;
use std::slice::Iter;
use std::vec::IntoIter;

use crate::debuginfo::derive::dwarf::tables::{NOTHING, Numbers, Placed, RangeBody, UnitTables};
use crate::debuginfo::slices::{NOWHERE, RawLocation};

/// A line: it covers `size` bytes from its address on, or one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PdbLine {
    pub(super) address: u64,
    pub(super) size: Option<u64>,
    pub(super) file: u32,
    pub(super) line: u32,
}

impl PdbLine {
    /// Returns the start and the end.
    fn extent(&self) -> (u32, u32) {
        let limited = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let start = limited(self.address);
        let size = self.size.map_or(1, limited);
        (start, start.saturating_add(size))
    }
}

/// A function, or an inlined call.
#[derive(Debug)]
pub(super) struct FunctionNode {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) is_inlined: bool,
    /// The number of the function in the tables.
    pub(super) function: u32,
    /// Sorted by address.
    pub(super) lines: Vec<PdbLine>,
    /// The calls that were inlined into it: indices of nodes.
    pub(super) inlined: Vec<usize>,
}

impl FunctionNode {
    pub(super) fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }
}

/// Why a range begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RangeCause {
    Line,
    Entry,
    /// The end of a call that no line of its caller covers.
    AfterCall,
    End,
}

/// The addresses at which the locations of calls begin, with the numbers of the locations.
type Calls = Rc<[(u32, u32)]>;

/// How far the ranges of a function or an inlined call are noted, in the order of addresses.
#[derive(Debug)]
struct NodeCursor<'a> {
    node: &'a FunctionNode,
    /// The calls around it.
    around: CallsAround<'a>,
    /// The extents of the lines of the calls inlined into it that are not located yet.
    inner: Peekable<IntoIter<(u32, u32)>>,
    /// Where lines of these calls begin, with the numbers of their locations.
    located: Vec<(u32, u32)>,
    /// The end of what is noted.
    reached: u32,
}

impl<'a> NodeCursor<'a> {
    fn new(nodes: &[FunctionNode], node: &'a FunctionNode, calls: &'a Calls) -> Self {
        let inlined = node.inlined.iter().filter_map(|number| nodes.get(*number));
        let mut inner: Vec<_> = inlined
            .flat_map(|call| call.lines.iter().map(PdbLine::extent))
            .collect();
        inner.sort_unstable_by_key(|(start, _)| *start);
        Self {
            node,
            around: CallsAround::new(calls),
            inner: inner.into_iter().peekable(),
            located: Vec::new(),
            reached: 0,
        }
    }
}

/// The calls around a function or an inlined call, read at ascending addresses.
#[derive(Debug)]
struct CallsAround<'a> {
    later: Peekable<Copied<Iter<'a, (u32, u32)>>>,
    number: u32,
}

impl<'a> CallsAround<'a> {
    fn new(calls: &'a Calls) -> Self {
        let mut later = calls.iter().copied().peekable();
        // The first call counts from the start.
        let number = later.next().map_or(NOWHERE, |(_, number)| number);
        Self { later, number }
    }

    /// Returns the number of the location of the call around an address.
    fn at(&mut self, address: u32) -> u32 {
        while let Some((_, number)) = self.later.next_if(|(from, _)| *from <= address) {
            self.number = number;
        }
        self.number
    }
}

/// Adds the ranges of functions to tables. Reuses its buffers from one function to the next.
#[derive(Debug)]
pub(super) struct RangeBuilder {
    starts: Vec<(u32, RangeCause, RawLocation)>,
    left: Vec<(usize, Calls)>,
    numbers: Numbers<RawLocation>,
    outermost: Calls,
    /// The addresses of the function.
    within: Range<u32>,
}

impl RangeBuilder {
    pub(super) fn new() -> Self {
        Self {
            starts: Vec::new(),
            left: Vec::new(),
            numbers: Numbers::new(),
            outermost: Rc::new([(0, NOWHERE)]),
            within: 0..0,
        }
    }

    /// Adds the ranges of a function, which is one of `nodes`, and of the calls inlined into it.
    pub(super) fn add(&mut self, nodes: &[FunctionNode], function: usize, tables: &mut UnitTables) {
        self.starts.clear();
        self.numbers.clear_often();
        self.within = nodes.get(function).map_or(0..0, |node| {
            let [start, end] = [node.address, node.end()]
                .map(|address| u32::try_from(address).unwrap_or(u32::MAX));
            start..end
        });
        let outermost = Rc::clone(&self.outermost);
        self.left.push((function, outermost));
        while let Some((number, calls)) = self.left.pop() {
            if let Some(node) = nodes.get(number) {
                self.add_node(nodes, node, &calls, tables);
            }
        }
        self.place(tables);
    }

    /// Notes where the ranges of one function or inlined call begin.
    fn add_node(
        &mut self,
        nodes: &[FunctionNode],
        node: &FunctionNode,
        calls: &Calls,
        tables: &mut UnitTables,
    ) {
        let Ok(entry) = u32::try_from(node.address) else {
            return;
        };
        if node.size == 0 {
            return;
        }
        let mut cursor = NodeCursor::new(nodes, node, calls);
        self.note_lines(&mut cursor, tables);
        self.note_calls_behind_lines(&mut cursor, tables);
        if !node.is_inlined {
            let bare = [NOWHERE, 0, node.function, NOWHERE];
            self.starts.push((entry, RangeCause::Entry, bare));
        }
        // A SymCache has the low half of an address.
        let end = u32::try_from(node.end() & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        self.starts.push((end, RangeCause::End, NOTHING));
        if !cursor.located.is_empty() {
            let calls: Calls = cursor.located.into();
            // The first is read first.
            let inlined = node.inlined.iter().rev();
            self.left
                .extend(inlined.map(|number| (*number, Rc::clone(&calls))));
        }
    }

    /// Notes the lines, except where a line of an inlined call begins: there, locates the call.
    fn note_lines(&mut self, cursor: &mut NodeCursor<'_>, tables: &mut UnitTables) {
        for line in &cursor.node.lines {
            let (start, end) = line.extent();
            // Lines within a call that the line before already located.
            if start < cursor.reached {
                continue;
            }
            let around = cursor.around.at(start);
            let location = [line.file, line.line, cursor.node.function, around];
            let mut at = start;
            while at < end {
                if cursor.inner.peek().is_none_or(|(start, _)| *start > at) {
                    self.starts.push((at, RangeCause::Line, location));
                }
                at = match cursor.inner.next_if(|(start, _)| *start < end) {
                    Some((start, inner_end)) => {
                        let call = self.numbers.of(location, &mut tables.calls);
                        cursor.located.push((start, call));
                        inner_end
                    }
                    None => end,
                };
            }
            cursor.reached = at;
        }
    }

    /// Locates the inlined calls behind the lines, or all of them if there are no lines. Those
    /// outside of the function would hide other functions.
    fn note_calls_behind_lines(&mut self, cursor: &mut NodeCursor<'_>, tables: &mut UnitTables) {
        let node = cursor.node;
        let inner = cursor.inner.by_ref();
        let uncovered = inner.filter(|(start, _)| self.within.contains(start));
        let mut uncovered = uncovered.peekable();
        loop {
            // Lines within a call that is already located.
            let reached = cursor.reached;
            while uncovered.next_if(|(start, _)| *start < reached).is_some() {}
            let Some((start, end)) = uncovered.next() else {
                break;
            };
            let around = cursor.around.at(start);
            let location = [NOWHERE, 0, node.function, around];
            let call = self.numbers.of(location, &mut tables.calls);
            cursor.located.push((start, call));
            cursor.reached = end;
            let continues = uncovered.peek().is_some_and(|(next, _)| *next <= end);
            if !continues && self.within.contains(&end) {
                // The lines of an inlined call are all of it: its caller continues behind them.
                let caller = tables.calls.get(around as usize).copied();
                let behind = caller.filter(|_| node.is_inlined).unwrap_or(location);
                self.starts.push((end, RangeCause::AfterCall, behind));
            }
        }
    }

    /// Adds the ranges that begin at the noted addresses.
    fn place(&mut self, tables: &mut UnitTables) {
        // Stable: of several lines, the last counts.
        self.starts.sort_by_key(|(start, ..)| *start);
        let first = tables.ranges.len();
        for at in self.starts.chunk_by(|one, other| one.0 == other.0) {
            let line = at.iter().rfind(|(_, cause, _)| *cause == RangeCause::Line);
            let other = || at.iter().find(|(_, cause, _)| *cause != RangeCause::End);
            if let Some((start, _, location)) = line.or_else(other).or(at.first()) {
                tables.ranges.push(Placed {
                    start: *start,
                    location: *location,
                });
            }
        }
        let ranges = tables.ranges.get(first..).unwrap_or_default();
        let (Some(begin), Some(last)) = (ranges.first(), ranges.last()) else {
            return;
        };
        let end = if last.is_nothing() {
            last.start
        } else {
            last.start.saturating_add(1)
        };
        let count = |number: usize| u32::try_from(number).unwrap_or(NOWHERE);
        tables.bodies.push(RangeBody {
            start: begin.start,
            end,
            first: count(first),
            count: count(ranges.len()),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A place, and the number of a function.
    type NumberedFrame = ([u32; 2], u32);

    const UNKNOWN: [u32; 2] = [NOWHERE, 0];

    /// Returns a function, or an inlined call, with one file. Its lines begin at these addresses
    /// and have these sizes.
    fn node(
        function: u32,
        (address, size): (u64, u64),
        lines: &[(u64, u64, u32)],
        inlined: &[usize],
    ) -> FunctionNode {
        let line = |(address, size, line): &(u64, u64, u32)| PdbLine {
            address: *address,
            size: Some(*size),
            file: 0,
            line: *line,
        };
        FunctionNode {
            address,
            size,
            is_inlined: function > 0,
            function,
            lines: lines.iter().map(line).collect(),
            inlined: inlined.to_vec(),
        }
    }

    /// Returns where each range begins, with the place and the function of each of its frames, the
    /// innermost first. The first of `nodes` is the function.
    fn ranges_of(nodes: &[FunctionNode]) -> Vec<(u32, Vec<NumberedFrame>)> {
        let mut tables = UnitTables::new(0);
        RangeBuilder::new().add(nodes, 0, &mut tables);
        let frames = |location: RawLocation| {
            let (mut frames, mut next) = (Vec::new(), location);
            while next != NOTHING {
                let [file, line, function, call] = next;
                frames.push(([file, line], function));
                next = tables.calls.get(call as usize).copied().unwrap_or(NOTHING);
            }
            frames
        };
        let ranges = tables.ranges.iter();
        ranges
            .map(|range| (range.start, frames(range.location)))
            .collect()
    }

    #[test]
    fn a_call_in_a_function_without_lines_is_kept() {
        let nodes = [
            node(0, (0x100, 0x20), &[], &[1]),
            node(
                1,
                (0x104, 0xa),
                &[(0x104, 4, 5), (0x108, 4, 6), (0x10d, 1, 7)],
                &[],
            ),
        ];
        let alone = || vec![(UNKNOWN, 0)];
        let called = |line| vec![([0, line], 1), (UNKNOWN, 0)];
        let expected = [
            (0x100, alone()),
            (0x104, called(5)),
            (0x108, called(6)),
            (0x10c, alone()),
            (0x10d, called(7)),
            (0x10e, alone()),
            (0x120, vec![]),
        ];
        assert_eq!(ranges_of(&nodes), expected);
    }

    #[test]
    fn a_call_behind_the_lines_of_its_caller_is_kept() {
        let nodes = [
            node(0, (0x100, 0x10), &[(0x100, 4, 1)], &[1]),
            node(1, (0x104, 4), &[(0x104, 4, 5)], &[2]),
            node(2, (0x108, 4), &[(0x108, 4, 7)], &[]),
        ];
        let expected = [
            (0x100, vec![([0, 1], 0)]),
            (0x104, vec![([0, 5], 1), (UNKNOWN, 0)]),
            (0x108, vec![([0, 7], 2), (UNKNOWN, 1), (UNKNOWN, 0)]),
            (0x10c, vec![(UNKNOWN, 0)]),
            (0x110, vec![]),
        ];
        assert_eq!(ranges_of(&nodes), expected);
    }

    #[test]
    fn a_call_that_a_line_covers_has_this_line_and_one_outside_of_the_function_is_left_out() {
        let nodes = [
            node(0, (0x100, 0x10), &[(0x100, 0x10, 1)], &[1]),
            node(1, (0x104, 4), &[(0x104, 4, 5)], &[]),
        ];
        let expected = [
            (0x100, vec![([0, 1], 0)]),
            (0x104, vec![([0, 5], 1), ([0, 1], 0)]),
            (0x108, vec![([0, 1], 0)]),
            (0x110, vec![]),
        ];
        assert_eq!(ranges_of(&nodes), expected);
        let nodes = [
            node(0, (0x100, 0x10), &[], &[1]),
            node(1, (0x204, 4), &[(0x204, 4, 5)], &[]),
        ];
        let expected = [(0x100, vec![(UNKNOWN, 0)]), (0x110, vec![])];
        assert_eq!(ranges_of(&nodes), expected);
    }
}
