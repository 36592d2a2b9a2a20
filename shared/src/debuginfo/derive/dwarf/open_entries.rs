//! The functions and inlined calls whose entries are being read.

use symbolic::common::Language;

use super::flatten::Inlined;
use super::ranges::Starts;
use super::tables::TextRef;

/// An entry whose children are being read: the following entries, as long as their depth is
/// greater.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context {
    pub(super) depth: isize,
    pub(super) inside: Option<Inside>,
    /// Whether it is the entry of a function, not of an inlined call.
    pub(super) is_function: bool,
}

/// An inlined call: the called function, and the file and line of the call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) function: u32,
    pub(super) file: u32,
    pub(super) line: u32,
}

/// An inlined call whose entries are being read.
#[derive(Debug)]
pub(super) struct OpenCall {
    pub(super) call: Call,
    /// The indices of its addresses in `open_call_ranges` of the reader.
    pub(super) ranges: std::ops::Range<usize>,
}

/// A place in a function with addresses: the function, and the number of inlined calls around the
/// place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inside {
    pub(super) function: usize,
    pub(super) inline_depth: u32,
    pub(super) language: Language,
}

/// A function whose entries are being read: its address ranges, each with the calls inlined there.
#[derive(Debug, Default)]
pub(super) struct OpenFunction {
    pub(super) language: Language,
    pub(super) ranges: Vec<(u64, u64)>,
    pub(super) starts: Starts,
    /// One for each range.
    pub(super) names: Vec<TextRef>,
    /// One for each range, then spare ones.
    pub(super) inlined: Vec<Vec<Inlined>>,
}
