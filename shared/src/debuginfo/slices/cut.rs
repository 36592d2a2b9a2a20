//! Cutting: a SymCache becomes many, each of which holds what its ranges need, and nothing else.

use std::collections::HashMap;

use super::raw::{NOWHERE, RawFile, RawFunction, RawLocation, SymCacheTables};

/// How large a slice may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most ranges.
    pub ranges: usize,
    /// The most bytes, unless one range alone has more.
    pub raw_bytes: usize,
}

/// A slice, before it is compressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::debuginfo) struct Cut {
    /// The first address that it answers for.
    pub(in crate::debuginfo) start: u32,
    /// A SymCache.
    pub(in crate::debuginfo) raw: Vec<u8>,
}

/// Cuts a SymCache into slices, in the order of their addresses. The tables must have been
/// validated.
pub(super) struct Cutter<'a> {
    tables: SymCacheTables<'a>,
    bounds: Bounds,
    /// The number of ranges that are cut already.
    done: usize,
    files: Renumbered<RawFile>,
    functions: Renumbered<RawFunction>,
    calls: Renumbered<RawLocation>,
    strings: HashMap<u32, u32>,
    string_bytes: Vec<u8>,
}

/// What a slice takes of a table, in the order in which it was first needed, and the new number of
/// each.
struct Renumbered<T> {
    /// By old number: in which slice it was needed last, and its number there.
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

    /// Returns the new number of what has one already in this slice.
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

    /// Returns a SymCache of what was taken.
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

    /// Takes a location, and before it all that it is inlined into.
    fn location(&mut self, [file, line, function, inlined_into]: RawLocation) -> RawLocation {
        [
            self.file(file),
            line,
            self.function(function),
            self.call(inlined_into),
        ]
    }

    /// Takes a call, the outermost of its chain first.
    fn call(&mut self, old: u32) -> u32 {
        let mut chain = Vec::new();
        let mut next = old;
        // Numbers fall along a chain, so that it ends.
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

/// Returns a SymCache of those ranges alone that some addresses lie in: each is looked up as in the
/// whole, and no other. The tables must have been validated.
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
    /// How large slices are: `docs/performance.md` has the measurements that decided it.
    pub const CURRENT: Self = Self {
        ranges: 2200,
        raw_bytes: 256 << 10,
    };
}
