//! The symbols of an object, by address.

use symbolic::debuginfo::Symbol;

/// Symbols in table order and in address order.
#[derive(Debug)]
pub(in crate::debuginfo::derive) struct Symbols<'d> {
    /// The symbols of functions, then labels.
    all: Vec<Symbol<'d>>,
    functions: u32,
    /// The number of symbols, from the first one on, whose file gives their sizes.
    sized: u32,
    /// Indices into `all`. Of several symbols at one address, the first in the table comes first.
    by_address: Vec<u32>,
    /// The addresses of these, which are searched often.
    addresses: Vec<u64>,
}

impl<'d> Symbols<'d> {
    /// Takes symbols of functions, and labels, which are used only outside of functions.
    pub(in crate::debuginfo::derive) fn new(
        functions: Vec<Symbol<'d>>,
        labels: Vec<Symbol<'d>>,
    ) -> Self {
        let count = u32::try_from(functions.len()).unwrap_or(u32::MAX);
        let mut all = functions;
        all.extend(labels);
        let mut by_address: Vec<u32> = (0..).take(all.len()).collect();
        let address = |number: &u32| {
            let symbol = all.get(*number as usize);
            symbol.map_or(u64::MAX, |symbol| symbol.address)
        };
        by_address.sort_by_key(address);
        let addresses = by_address.iter().map(address).collect();
        Self {
            functions: count,
            sized: 0,
            by_address,
            addresses,
            all,
        }
    }

    /// Notes that the file gives the sizes of the first `sized` symbols. Other sizes are estimates.
    pub(in crate::debuginfo::derive) fn with_sizes(mut self, sized: usize) -> Self {
        self.sized = u32::try_from(sized).unwrap_or(u32::MAX);
        self
    }

    /// Returns the symbols in table order.
    pub(in crate::debuginfo::derive) fn all(&self) -> &[Symbol<'d>] {
        &self.all
    }

    /// Returns whether a symbol is a label.
    pub(super) fn is_label(&self, number: u32) -> bool {
        number >= self.functions
    }

    /// Returns whether the file gives the size of a symbol.
    pub(super) fn has_size(&self, number: u32) -> bool {
        number < self.sized
    }

    /// Returns the address of a symbol.
    pub(super) fn address(&self, number: u32) -> u64 {
        let symbol = self.all.get(number as usize);
        symbol.map_or(u64::MAX, |symbol| symbol.address)
    }

    /// Returns the number of the first symbol of a function at an address, if it has a name.
    pub(super) fn at(&self, address: u64) -> Option<u32> {
        let first = self.addresses.partition_point(|before| *before < address);
        let number = *self.by_address.get(first)?;
        let is_it = self.addresses.get(first) == Some(&address)
            && self.has_name(number)
            && !self.is_label(number);
        is_it.then_some(number)
    }

    /// Returns the size of the first symbol of a function at an address.
    pub(super) fn size_at(&self, address: u64) -> Option<u64> {
        let symbol = self.all.get(self.at(address)? as usize);
        symbol.map(|symbol| symbol.size)
    }

    /// Returns the addresses at which symbols begin, each with the number of the first named symbol
    /// there.
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

    /// Returns the end addresses of named symbols that have a size, sorted.
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

    fn has_name(&self, number: u32) -> bool {
        let symbol = self.all.get(number as usize);
        symbol.is_some_and(|symbol| symbol.name.is_some())
    }
}
