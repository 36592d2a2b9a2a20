//! Cuts a SymCache into many SymCaches. Each has only the table entries that its ranges need.

use std::collections::HashMap;

use super::raw::{NOWHERE, RawFile, RawFunction, RawLocation, SymCacheTables};

/// The limits of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The maximum number of ranges.
    pub ranges: usize,
    /// The most bytes. A single range may exceed them.
    pub raw_bytes: usize,
}

/// A slice, before it is compressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::debuginfo) struct Cut {
    /// The first address that it covers.
    pub(in crate::debuginfo) start: u32,
    /// The SymCache or the records of this slice.
    pub(in crate::debuginfo) raw: Vec<u8>,
}

/// Cuts a SymCache into slices, in the order of their addresses. The tables must have been
/// validated.
pub(super) struct Cutter<'a> {
    tables: SymCacheTables<'a>,
    bounds: Bounds,
    /// The number of ranges that were already cut.
    done: usize,
    files: Renumbered<RawFile>,
    functions: Renumbered<RawFunction>,
    calls: Renumbered<RawLocation>,
    strings: HashMap<u32, u32>,
    string_bytes: Vec<u8>,
}

/// The entries of a table that a slice needs, in the order of their first use, with their new
/// numbers.
struct Renumbered<T> {
    /// By old number: the last slice that needed the entry, and the number of the entry in that
    /// slice.
    numbers: Vec<(u32, u32)>,
    slice: u32,
    taken: Vec<T>,
}

impl<T: Copy> Renumbered<T> {
    fn of(length: usize) -> Self {
        Self {
            numbers: vec![(0, 0); length],
            slice: 1,
            taken: Vec::new(),
        }
    }

    fn begin(&mut self) {
        self.slice += 1;
        self.taken.clear();
    }

    /// Returns the new number of an entry that is already in this slice.
    fn known(&self, old: u32) -> Option<u32> {
        let (slice, new) = *self.numbers.get(old as usize)?;
        (slice == self.slice).then_some(new)
    }

    fn take(&mut self, old: u32, taken: T) -> u32 {
        let new = u32::try_from(self.taken.len()).unwrap_or(NOWHERE);
        self.taken.push(taken);
        if let Some(number) = self.numbers.get_mut(old as usize) {
            *number = (self.slice, new);
        }
        new
    }
}

impl<'a> Cutter<'a> {
    pub(super) fn new(tables: SymCacheTables<'a>, bounds: Bounds) -> Self {
        Self {
            tables,
            bounds,
            done: 0,
            files: Renumbered::of(tables.files.len()),
            functions: Renumbered::of(tables.functions.len()),
            calls: Renumbered::of(tables.calls.len()),
            strings: HashMap::new(),
            string_bytes: Vec::new(),
        }
    }

    fn begin(&mut self) {
        self.files.begin();
        self.functions.begin();
        self.calls.begin();
        self.strings.clear();
        self.string_bytes.clear();
    }

    fn raw_bytes(&self, ranges: usize) -> usize {
        self.files.taken.len() * size_of::<RawFile>()
            + self.functions.taken.len() * size_of::<RawFunction>()
            + self.calls.taken.len() * size_of::<RawLocation>()
            + ranges * (size_of::<RawLocation>() + size_of::<u32>())
            + self.string_bytes.len()
    }

    /// Returns a SymCache with the entries of this slice.
    fn written(&self, locations: &[RawLocation], ranges: &[u32]) -> Vec<u8> {
        let slice = SymCacheTables {
            head: self.tables.head,
            files: &self.files.taken,
            functions: &self.functions.taken,
            calls: &self.calls.taken,
            locations,
            ranges,
            strings: &self.string_bytes,
        };
        slice.written()
    }

    fn string(&mut self, offset: u32) -> u32 {
        if let Some(new) = self.strings.get(&offset) {
            return *new;
        }
        let Some(string) = self.tables.string(offset) else {
            return NOWHERE;
        };
        let new = u32::try_from(self.string_bytes.len()).unwrap_or(NOWHERE);
        self.string_bytes.extend_from_slice(string);
        self.strings.insert(offset, new);
        new
    }

    fn file(&mut self, old: u32) -> u32 {
        if let Some(new) = self.files.known(old) {
            return new;
        }
        match self.tables.files.get(old as usize) {
            Some(file) => {
                let file = file.map(|offset| self.string(offset));
                self.files.take(old, file)
            }
            None => NOWHERE,
        }
    }

    fn function(&mut self, old: u32) -> u32 {
        if let Some(new) = self.functions.known(old) {
            return new;
        }
        match self.tables.functions.get(old as usize) {
            Some([name, _, entry, language]) => {
                let name = self.string(*name);
                self.functions.take(old, [name, NOWHERE, *entry, *language])
            }
            None => NOWHERE,
        }
    }

    /// Adds a location, after the calls that it is inlined into.
    fn location(&mut self, [file, line, function, inlined_into]: RawLocation) -> RawLocation {
        [
            self.file(file),
            line,
            self.function(function),
            self.call(inlined_into),
        ]
    }

    /// Adds a call, after the outer calls of its chain.
    fn call(&mut self, old: u32) -> u32 {
        let mut chain = Vec::new();
        let mut next = old;
        // Numbers decrease along a chain, so this loop ends.
        while let (None, Some(call)) =
            (self.calls.known(next), self.tables.calls.get(next as usize))
        {
            chain.push((next, *call));
            next = call[3];
        }
        let mut inlined_into = self.calls.known(next).unwrap_or(NOWHERE);
        for (old, [file, line, function, _]) in chain.into_iter().rev() {
            let call = [self.file(file), line, self.function(function), inlined_into];
            inlined_into = self.calls.take(old, call);
        }
        inlined_into
    }
}

impl Iterator for Cutter<'_> {
    type Item = Cut;

    fn next(&mut self) -> Option<Cut> {
        let tables = self.tables;
        let first = self.done;
        let start = *tables.ranges.get(first)?;
        self.begin();
        let left = tables.locations.len().saturating_sub(first);
        let mut locations = Vec::with_capacity(self.bounds.ranges.min(left));
        while locations.len() < self.bounds.ranges
            && (locations.is_empty() || self.raw_bytes(locations.len()) < self.bounds.raw_bytes)
            && let Some(location) = tables.locations.get(first + locations.len())
        {
            let location = self.location(*location);
            locations.push(location);
        }
        self.done = first + locations.len();
        let raw = self.written(&locations, &tables.ranges[first..self.done]);
        Some(Cut { start, raw })
    }
}

/// Returns a SymCache with only the ranges of these addresses. Their lookups are identical to those
/// in the original; other addresses are not found. The tables must have been validated.
pub(super) fn picked(tables: SymCacheTables<'_>, addresses: &[u64]) -> Vec<u8> {
    let bounds = Bounds {
        ranges: usize::MAX,
        raw_bytes: usize::MAX,
    };
    let range_of = |address: &u64| {
        let after = tables
            .ranges
            .partition_point(|start| u64::from(*start) <= *address);
        after.checked_sub(1)
    };
    let mut numbers: Vec<usize> = addresses.iter().filter_map(range_of).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let mut cutter = Cutter::new(tables, bounds);
    let of_range = |number: &usize| cutter.location(tables.locations[*number]);
    let locations: Vec<RawLocation> = numbers.iter().map(of_range).collect();
    let ranges: Vec<u32> = numbers
        .iter()
        .map(|number| tables.ranges[*number])
        .collect();
    cutter.written(&locations, &ranges)
}

impl Bounds {
    /// The limits in use. `docs/performance.md` has the measurements behind them.
    pub const CURRENT: Self = Self {
        ranges: 2200,
        raw_bytes: 256 << 10,
    };
}
