//! What the readers in this folder share: short names for the types of `gimli`, how to find a
//! section, and how to read a short number.

use gimli::{AttributeValue, EndianSlice, RunTimeEndian};
use symbolic::debuginfo::dwarf::{Dwarf as ObjectDwarf, DwarfSection, Endian};

/// The length of the longest name of a section in a Mach-O file, without the two underscores before
/// it.
const LONGEST_MACH_NAME: usize = 14;

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

/// Returns a section as the file has it.
///
/// Go compresses sections of Mach-O and PE files, which then have other names (`zdebug_info`), as
/// once in ELF files. `symbolic` knows those of ELF only.
pub(super) fn raw_section<'d>(
    object: &dyn ObjectDwarf<'d>,
    name: &str,
) -> Option<DwarfSection<'d>> {
    let compressed = || {
        let name = format!("z{name}");
        let cut_name = name.get(..LONGEST_MACH_NAME).unwrap_or(&name);
        object.raw_section(cut_name)
    };
    object.raw_section(name).or_else(compressed)
}

/// Reads a number in LEB128, which most often has one byte, and returns it with the place behind
/// it. Returns `None` at the end of the data, and for numbers of more than two bytes.
#[inline]
pub(super) fn short_number(data: &[u8], at: usize) -> Option<(u64, usize)> {
    let first = u64::from(*data.get(at)?);
    if first < 0x80 {
        return Some((first, at + 1));
    }
    let second = u64::from(*data.get(at + 1)?);
    (second < 0x80).then_some((first & 0x7f | second << 7, at + 2))
}
