//! The properties of an object that the readers of its units need.

use super::companions::Split;
use super::names::NameInShared;
use super::symbols::Symbols;
use super::tables::TextRef;

/// The properties of an object that all its units need.
#[derive(Clone, Copy)]
pub(super) struct Object<'o> {
    pub(super) symbols: &'o Symbols<'o>,
    pub(super) load_address: u64,
    /// The lowest address of code.
    pub(super) first_code: u64,
    /// The split units, which are in other files.
    pub(super) split: &'o Split<'o>,
    /// Returns the name of an entry in the shared file.
    pub(super) name_in_shared: &'o NameInShared<'o>,
}

impl Object<'_> {
    /// Returns the name of the first symbol at an address.
    pub(super) fn symbol_at(&self, address: u64) -> Option<TextRef> {
        let number = self.symbols.at(address.wrapping_sub(self.load_address))?;
        Some(TextRef::of_symbol(number as usize))
    }

    /// Returns the begin and end of a range relative to the load address of the object.
    pub(super) fn relative(&self, begin: u64, end: u64) -> Option<(u32, u32)> {
        let moved = |address: u64| address.wrapping_sub(self.load_address).try_into().ok();
        Some((moved(begin)?, moved(end)?))
    }
}
