//! The properties of an object that the readers of its units need.

use gimli::AttributeValue;

use super::companions::Split;
use super::current_unit::address;
use super::input::{Dwarf, Unit, Value};
use super::names::NameInShared;
use super::symbols::Symbols;

/// The properties of an object that all its units need.
#[derive(Clone, Copy)]
pub(super) struct Object<'o> {
    pub(super) symbols: &'o Symbols<'o>,
    pub(super) load_address: u64,
    /// The lowest address of code, if that is known.
    pub(super) first_code: Option<u64>,
    /// The bits of the addresses of code: all but the lowest one on 32-bit Arm and MIPS, where an
    /// odd address stands for Thumb, MIPS16 or microMIPS code at the even address below it. GNU
    /// `as` writes such addresses into the entries of functions, and on MIPS into rows.
    pub(super) address_bits: u64,
    /// The split units, which are in other files.
    pub(super) split: &'o Split<'o>,
    /// Returns the name of an entry in the shared file.
    pub(super) name_in_shared: &'o NameInShared<'o>,
}

/// The attributes with the addresses of an entry.
#[derive(Default)]
pub(super) struct GivenAddresses<'i> {
    pub(super) low: Option<Value<'i>>,
    pub(super) high: Option<Value<'i>>,
    pub(super) ranges: Option<Value<'i>>,
}

impl Object<'_> {
    /// Returns the numbers of the symbols of functions at an address, in the order in which they
    /// count.
    pub(super) fn symbols_at(&self, address: u64) -> &[u32] {
        self.symbols.at(address.wrapping_sub(self.load_address))
    }

    /// Returns whether the linker discarded a whole unit.
    pub(super) fn is_discarded(&self, unit: &Unit<'_>) -> Result<bool, gimli::Error> {
        if unit.low_pc != 0 || self.first_code == Some(0) {
            return Ok(false);
        }
        let mut entries = unit.entries();
        let root = entries.next_dfs()?.ok_or(gimli::Error::MissingUnitDie)?;
        // GCC writes the ranges of a split unit in that unit, not in its skeleton.
        let has_ranges = root.attr(gimli::DW_AT_ranges).is_some() || unit.dwo_id.is_some();
        // DWARF 2 has no ranges: a unit with code in several places has no address.
        let cannot_have_ranges =
            unit.header.version() == 2 && root.attr(gimli::DW_AT_low_pc).is_none();
        Ok(!has_ranges && !cannot_have_ranges)
    }

    /// Returns whether a function may have an address range. Linkers mark discarded functions with
    /// an address that no code has, most often zero. If there is code at zero, its function is the
    /// one that is as long as its symbol.
    pub(super) fn may_have(&self, (begin, end): (u64, u64)) -> bool {
        let is_there = || {
            let symbol = self.symbols.size_at(0_u64.wrapping_sub(self.load_address));
            self.first_code == Some(0) && symbol == Some(end)
        };
        begin < end && begin < u64::MAX - 1 && (begin > 0 || is_there())
    }

    /// Returns the begin and end of a range relative to the load address of the object.
    pub(super) fn relative(&self, begin: u64, end: u64) -> Option<(u32, u32)> {
        let moved = |address: u64| address.wrapping_sub(self.load_address).try_into().ok();
        Some((moved(begin)?, moved(end)?))
    }

    /// Reads the address ranges of an entry into `all`, which is empty if it has none.
    pub(super) fn read_ranges<'i>(
        &self,
        dwarf: &Dwarf<'i>,
        unit: &Unit<'i>,
        GivenAddresses { low, high, ranges }: GivenAddresses<'i>,
        all: &mut Vec<(u64, u64)>,
    ) -> Result<(), gimli::Error> {
        all.clear();
        if let Some(ranges) = ranges
            && let Some(mut ranges) = dwarf.attr_ranges(unit, ranges)?
        {
            while let Some(range) = match ranges.next() {
                // As in `symbolic`, an inverted range ends the list.
                Err(gimli::Error::InvalidCfiSetLoc(_)) => None,
                range => range?,
            } {
                all.push((range.begin, range.end));
            }
            all.retain(|range| self.may_have(*range));
        }
        let low = low.map(|low| address(dwarf, unit, low)).transpose()?;
        let high = match (high, low) {
            (Some(AttributeValue::Udata(size)), Some(low)) => Some(low.wrapping_add(size)),
            (Some(AttributeValue::Udata(_)) | None, _) => None,
            (Some(high), _) => Some(address(dwarf, unit, high)?),
        };
        if all.is_empty()
            && let (Some(low), Some(high)) = (low, high)
            && self.may_have((low, high))
        {
            all.push((low, high));
        }
        let bits = self.address_bits;
        for (begin, end) in all {
            (*begin, *end) = (*begin & bits, *end & bits);
        }
        Ok(())
    }
}
