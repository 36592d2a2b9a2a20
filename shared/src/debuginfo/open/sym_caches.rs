//! Address lookups in a SymCache, whole or sliced.

use std::ops::Range;

use symbolic::symcache::{SourceLocation, SymCache};

use crate::domain::Arch;

/// A SymCache for address lookups: a whole one, or the loaded slices of one.
#[derive(Clone, Debug)]
pub struct SymCaches<'a> {
    arch: Arch,
    /// Each with the addresses that it covers, ascending.
    slices: Vec<(Range<u64>, SymCache<'a>)>,
}

impl<'a> SymCaches<'a> {
    /// Combines slices, each with the addresses that it covers.
    pub(in crate::debuginfo) fn of(
        arch: Arch,
        slices: impl IntoIterator<Item = (Range<u64>, SymCache<'a>)>,
    ) -> Self {
        let mut slices: Vec<_> = slices.into_iter().collect();
        slices.sort_by_key(|(addresses, _)| addresses.start);
        Self { arch, slices }
    }

    /// Returns the architecture of the object.
    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// Looks up an address: the functions that cover it, the innermost first.
    pub fn lookup(&self, address: u64) -> impl Iterator<Item = SourceLocation<'a, '_>> {
        let after = self
            .slices
            .partition_point(|(addresses, _)| addresses.start <= address);
        let slice = after.checked_sub(1).and_then(|at| self.slices.get(at));
        slice
            .filter(|(addresses, _)| addresses.contains(&address))
            .map(|(_, cache)| cache.lookup(address))
            .into_iter()
            .flatten()
    }
}

impl<'a> From<SymCache<'a>> for SymCaches<'a> {
    fn from(cache: SymCache<'a>) -> Self {
        Self::of(cache.arch(), [(0..u64::MAX, cache)])
    }
}
