//! Joins the slices of a SymCache into one SymCache, for tools that cannot read slices.
//!
//! Slices repeat the functions, files and strings that they share; the joined SymCache has each of
//! them once. Lookups are identical to those in the slices. The tables are in the order in which
//! the slices refer to their entries.

use std::collections::HashMap;
use std::hash::Hash;

use symbolic::symcache::SymCacheConverter;

use super::raw::{self, NOWHERE, RawFile, RawFunction, RawLocation, SymCacheTables};
use super::{Slice, SliceIndex};
use crate::debuginfo::blob::BlobFault;

impl SliceIndex {
    /// Returns the SymCache that was cut into a blob, in the format of `symbolic`. Lookups are
    /// identical to those in the original; the bytes differ.
    pub fn join(&self, blob: &[u8]) -> Result<Vec<u8>, BlobFault> {
        let mut joined = JoinedSlices::default();
        for (number, slice) in (0..).zip(&*self.slices) {
            let range = slice.range();
            let frame = usize::try_from(range.start)
                .ok()
                .zip(usize::try_from(range.end).ok())
                .and_then(|(start, end)| blob.get(start..end));
            let slice = self.open_slice(number, frame.unwrap_or_default())?;
            joined.add(&slice).ok_or(BlobFault::Mismatch("kind"))?;
        }
        Ok(joined.finish(self))
    }
}

/// A SymCache that is being joined from slices, in address order.
#[derive(Debug, Default)]
pub(super) struct JoinedSlices {
    files: Interned<RawFile>,
    functions: Interned<RawFunction>,
    calls: Interned<RawLocation>,
    locations: Vec<RawLocation>,
    ranges: Vec<u32>,
    strings: HashMap<Box<[u8]>, u32>,
    string_bytes: Vec<u8>,
}

/// Distinct values, numbered in the order in which they were added.
#[derive(Debug)]
struct Interned<T> {
    numbers: HashMap<T, u32>,
    values: Vec<T>,
}

impl<T> Default for Interned<T> {
    fn default() -> Self {
        Self {
            numbers: HashMap::new(),
            values: Vec::new(),
        }
    }
}

impl<T: Copy + Eq + Hash> Interned<T> {
    fn number(&mut self, value: T) -> u32 {
        *self.numbers.entry(value).or_insert_with(|| {
            self.values.push(value);
            u32::try_from(self.values.len() - 1).unwrap_or(NOWHERE)
        })
    }
}

/// Returns the new number for an old one. [`NOWHERE`] is returned unchanged.
fn renumbered(numbers: &[u32], old: u32) -> u32 {
    numbers.get(old as usize).copied().unwrap_or(NOWHERE)
}

impl JoinedSlices {
    /// Adds a slice. Returns `None` if it is not a slice of a SymCache.
    pub(super) fn add(&mut self, slice: &Slice) -> Option<()> {
        let Slice::Sym(raw) = slice else { return None };
        let tables = SymCacheTables::read(raw.as_slice())?;
        let files: Vec<u32> = tables
            .files
            .iter()
            .map(|file| {
                let file = file.map(|offset| self.string(&tables, offset));
                self.files.number(file)
            })
            .collect();
        let functions: Vec<u32> = tables
            .functions
            .iter()
            .map(|[name, unused, entry, language]| {
                let name = self.string(&tables, *name);
                self.functions.number([name, *unused, *entry, *language])
            })
            .collect();
        // A call is stored after the calls that it is inlined into, so those have new numbers
        // already.
        let mut calls: Vec<u32> = Vec::with_capacity(tables.calls.len());
        let location = |[file, line, function, inlined_into]: RawLocation, calls: &[u32]| {
            [
                renumbered(&files, file),
                line,
                renumbered(&functions, function),
                renumbered(calls, inlined_into),
            ]
        };
        for call in tables.calls {
            let call = location(*call, &calls);
            calls.push(self.calls.number(call));
        }
        let locations = tables.locations.iter();
        self.locations
            .extend(locations.map(|found| location(*found, &calls)));
        self.ranges.extend_from_slice(tables.ranges);
        Some(())
    }

    fn string(&mut self, tables: &SymCacheTables<'_>, offset: u32) -> u32 {
        let Some(string) = tables.string(offset) else {
            return NOWHERE;
        };
        if let Some(known) = self.strings.get(string) {
            return *known;
        }
        let new = u32::try_from(self.string_bytes.len()).unwrap_or(NOWHERE);
        self.string_bytes.extend_from_slice(string);
        self.strings.insert(string.into(), new);
        new
    }

    /// Returns the SymCache, with the architecture and debug id in the index.
    pub(super) fn finish(self, index: &SliceIndex) -> Vec<u8> {
        let mut empty = SymCacheConverter::new();
        empty.set_arch(index.contents.arch);
        empty.set_debug_id(index.contents.debug_id.unwrap_or_default());
        let mut head = Vec::new();
        let written = empty.serialize(&mut head);
        written.expect("writing to memory does not fail");
        let tables = SymCacheTables {
            head: head
                .get(..raw::HEAD_BYTES)
                .expect("a SymCache begins with these bytes"),
            files: &self.files.values,
            functions: &self.functions.values,
            calls: &self.calls.values,
            locations: &self.locations,
            ranges: &self.ranges,
            strings: &self.string_bytes,
        };
        tables.written()
    }
}
