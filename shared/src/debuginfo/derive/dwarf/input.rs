//! Short names for the types of `gimli` that the readers in this folder share.

use gimli::{AttributeValue, EndianSlice, RunTimeEndian};
use symbolic::debuginfo::dwarf::Endian;

/// The bytes of a section.
pub(super) type Section<'i> = EndianSlice<'i, RunTimeEndian>;
/// The sections of a file.
pub(super) type Dwarf<'i> = gimli::Dwarf<Section<'i>>;
/// A unit of a file.
pub(super) type Unit<'i> = gimli::Unit<Section<'i>>;
/// The value of an attribute.
pub(super) type Value<'i> = AttributeValue<Section<'i>>;

/// Returns the byte order of a file, as `gimli` names it.
pub(super) fn endian(endianity: Endian) -> RunTimeEndian {
    match endianity {
        Endian::Little => RunTimeEndian::Little,
        Endian::Big => RunTimeEndian::Big,
    }
}
