//! Turns the tree of a function, its inlined calls and their lines into consecutive ranges.
//!
//! The rules follow `symbolic` (`symbolic_symcache::writer`, MIT), which is the oracle:
//!
//! - A line of a function has its own ranges where no line of a call that was inlined into it
//!   begins. Elsewhere, it is the location of that call.
//! - Of several lines that begin at an address, the last is used. A function without a line at its
//!   entry has a range without a line there.
//! - The end of a function or an inlined call begins a gap if nothing else begins there.

use std::rc::Rc;

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
    End,
}

/// The addresses at which the locations of calls begin, with the numbers of the locations.
type Calls = Rc<[(u32, u32)]>;

/// Adds the ranges of functions to tables. Reuses its buffers from one function to the next.
#[derive(Debug)]
pub(super) struct RangeBuilder {
    starts: Vec<(u32, RangeCause, RawLocation)>,
    left: Vec<(usize, Calls)>,
    numbers: Numbers<RawLocation>,
    outermost: Calls,
}

impl RangeBuilder {
    pub(super) fn new() -> Self {
        Self {
            starts: Vec::new(),
            left: Vec::new(),
            numbers: Numbers::new(),
            outermost: Rc::new([(0, NOWHERE)]),
        }
    }

    /// Adds the ranges of a function, which is one of `nodes`, and of the calls inlined into it.
    pub(super) fn add(&mut self, nodes: &[FunctionNode], function: usize, tables: &mut UnitTables) {
        self.starts.clear();
        self.numbers.clear_often();
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
        let inlined = || node.inlined.iter().filter_map(|number| nodes.get(*number));
        let mut inner: Vec<_> = inlined()
            .flat_map(|call| call.lines.iter().map(PdbLine::extent))
            .collect();
        inner.sort_unstable_by_key(|(start, _)| *start);
        let mut inner = inner.into_iter().peekable();
        let mut locations = calls.iter().copied().peekable();
        // The first call around it counts from the start.
        let mut around = locations.next().map_or(NOWHERE, |(_, number)| number);
        let mut inner_calls = Vec::new();
        let mut reached = None;
        for line in &node.lines {
            // Lines within a call that the line before already located.
            if reached.is_some_and(|reached| line.extent().0 < reached) {
                continue;
            }
            let (start, end) = line.extent();
            while let Some((_, number)) = locations.next_if(|(from, _)| *from <= start) {
                around = number;
            }
            let location = [line.file, line.line, node.function, around];
            let mut at = start;
            while at < end {
                if inner.peek().is_none_or(|(start, _)| *start > at) {
                    self.starts.push((at, RangeCause::Line, location));
                }
                at = match inner.next_if(|(start, _)| *start < end) {
                    Some((start, inner_end)) => {
                        let call = self.numbers.of(location, &mut tables.calls);
                        inner_calls.push((start, call));
                        inner_end
                    }
                    None => end,
                };
            }
            reached = Some(at);
        }
        if !node.is_inlined {
            let bare = [NOWHERE, 0, node.function, NOWHERE];
            self.starts.push((entry, RangeCause::Entry, bare));
        }
        // A SymCache has the low half of an address.
        let end = u32::try_from(node.end() & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        self.starts.push((end, RangeCause::End, NOTHING));
        if !inner_calls.is_empty() {
            let calls: Calls = inner_calls.into();
            // The first is read first.
            let inlined = node.inlined.iter().rev();
            self.left
                .extend(inlined.map(|number| (*number, Rc::clone(&calls))));
        }
    }

    /// Adds the ranges that begin at the noted addresses.
    fn place(&mut self, tables: &mut UnitTables) {
        // Stable: of several lines, the last counts.
        self.starts.sort_by_key(|(start, ..)| *start);
        let first = tables.ranges.len();
        for at in self.starts.chunk_by(|one, other| one.0 == other.0) {
            let line = at.iter().rfind(|(_, cause, _)| *cause == RangeCause::Line);
            let entry = || at.iter().find(|(_, cause, _)| *cause == RangeCause::Entry);
            if let Some((start, _, location)) = line.or_else(entry).or(at.first()) {
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
        let end = match last.is_nothing() {
            true => last.start,
            false => last.start.saturating_add(1),
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
