//! The symbols of an object, by address.

use symbolic::debuginfo::Symbol;

/// The maximum number of symbols at one address among which an entry may name one. Linkers that
/// merge functions with the same code may put thousands of symbols at one address.
const MAX_AT_ONE_ADDRESS: usize = 256;

/// The maximum size of a name in an entry that is compared with those of several symbols, in bytes.
/// Thousands of functions at one address could otherwise have names of megabytes each.
const LONGEST_COMPARED: usize = 1_024;

/// Symbols in the order in which they count at one address, and in address order.
#[derive(Debug)]
pub(in crate::debuginfo::derive) struct Symbols<'d> {
    /// The symbols of functions, then labels.
    all: Vec<Symbol<'d>>,
    functions: u32,
    /// The number of symbols, from the first one on, whose file gives their sizes.
    sized: u32,
    /// Indices into `all`. Of several symbols at one address, the first in `all` comes first.
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

    /// Returns the symbols in the order of their numbers.
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

    /// Returns the numbers of the symbols of functions at an address, up to one without a name. Of
    /// very many, returns the first.
    pub(super) fn at(&self, address: u64) -> &[u32] {
        let first = self.addresses.partition_point(|before| *before < address);
        let numbers = self.by_address.get(first..).unwrap_or_default();
        let addresses = self.addresses.get(first..).unwrap_or_default();
        let of_functions = numbers.iter().zip(addresses).take_while(|(number, other)| {
            **other == address && self.has_name(**number) && !self.is_label(**number)
        });
        let count = of_functions.take(MAX_AT_ONE_ADDRESS).count();
        numbers.get(..count).unwrap_or_default()
    }

    /// Returns which of some symbols has a name, or that of the same constructor. If none has,
    /// returns the first that has a suffix behind it, as in `name.constprop.0` and `name@8`, or
    /// else the first. For a very long name, returns the first.
    pub(super) fn named(&self, numbers: &[u32], name: &[u8]) -> Option<u32> {
        if name.is_empty() || name.len() > LONGEST_COMPARED {
            return numbers.first().copied();
        }
        // Of several with the same rank, the first is the lowest.
        let rank = |number: &&u32| {
            let symbol = self.all.get(**number as usize);
            let of_symbol = symbol.and_then(|symbol| symbol.name.as_deref());
            let of_symbol = of_symbol.unwrap_or_default().as_bytes();
            match of_symbol.strip_prefix(name) {
                Some([]) => 0,
                Some([b'.' | b'@', ..]) => 1,
                _ if is_same_constructor(of_symbol, name) => 0,
                _ => 2,
            }
        };
        numbers.iter().min_by_key(rank).copied()
    }

    /// Returns the size of the first symbol of a function at an address.
    pub(super) fn size_at(&self, address: u64) -> Option<u64> {
        let symbol = self.all.get(*self.at(address).first()? as usize);
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

/// Returns whether two mangled names differ only in the kind of a constructor or destructor, such
/// as `C1` and `C2`. Compilers give kinds with the same code one entry (Itanium C++ ABI, section
/// 5.1.4.3).
fn is_same_constructor(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut pairs = one.iter().zip(other);
    let Some(at) = pairs.position(|(one, other)| one != other) else {
        return false;
    };
    let is_kind = |name: &[u8]| matches!(name.get(..=at), Some([.., b'C' | b'D', b'0'..=b'5']));
    let is_rest_equal = one.get(at + 1..) == other.get(at + 1..);
    is_kind(one) && is_kind(other) && is_rest_equal
}
