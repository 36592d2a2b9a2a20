//! The symbols of functions, by address.

use symbolic::debuginfo::Symbol;
use symbolic::debuginfo::elf::ElfObject;

/// Symbols in the order of their table, and in that of their addresses.
#[derive(Debug)]
pub(super) struct Symbols<'d> {
    all: Vec<Symbol<'d>>,
    /// Of several at one address, the first in the table comes first.
    by_address: Vec<u32>,
}

impl<'d> From<Vec<Symbol<'d>>> for Symbols<'d> {
    fn from(all: Vec<Symbol<'d>>) -> Self {
        let mut by_address: Vec<u32> = (0..).take(all.len()).collect();
        by_address.sort_by_key(|number| all.get(*number as usize).map(|symbol| symbol.address));
        Self { all, by_address }
    }
}

impl<'d> Symbols<'d> {
    pub(super) fn of(object: &ElfObject<'d>) -> Self {
        Self::from(object.symbols().collect::<Vec<_>>())
    }

    /// Returns the symbols in the order of their table.
    pub(super) fn all(&self) -> &[Symbol<'d>] {
        &self.all
    }

    /// Returns the number of the first symbol at an address, if it has a name.
    pub(super) fn at(&self, address: u64) -> Option<u32> {
        let first = self
            .by_address
            .partition_point(|number| self.address(*number) < address);
        let number = *self.by_address.get(first)?;
        let is_it = self.address(number) == address && self.has_name(number);
        is_it.then_some(number)
    }

    /// Returns the addresses at which symbols begin, each with the number of the first that has a name.
    pub(super) fn starts(&self) -> impl Iterator<Item = (u32, u32)> {
        let named = self
            .by_address
            .iter()
            .filter(|number| self.has_name(**number));
        let mut last = None;
        named.filter_map(move |number| {
            let address = u32::try_from(self.address(*number)).ok()?;
            (last.replace(address) != Some(address)).then_some((address, *number))
        })
    }

    /// Returns the addresses at which symbols of a size end, sorted.
    pub(super) fn ends(&self) -> Vec<u32> {
        let sized = self
            .all
            .iter()
            .filter(|symbol| symbol.size > 0 && symbol.name.is_some());
        let end = |symbol: &Symbol<'_>| symbol.address.checked_add(symbol.size)?.try_into().ok();
        let mut ends: Vec<u32> = sized.filter_map(end).collect();
        ends.sort_unstable();
        ends.dedup();
        ends
    }

    fn address(&self, number: u32) -> u64 {
        let symbol = self.all.get(number as usize);
        symbol.map_or(u64::MAX, |symbol| symbol.address)
    }

    fn has_name(&self, number: u32) -> bool {
        let symbol = self.all.get(number as usize);
        symbol.is_some_and(|symbol| symbol.name.is_some())
    }
}
