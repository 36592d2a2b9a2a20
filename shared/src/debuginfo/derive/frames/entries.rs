//! The entries of a section with unwind information: where each begins and ends, and which kind it
//! has.
//!
//! Sources: DWARF 5, section 6.4.1; Linux Standard Base, "The .eh_frame section"; DWARF for the Arm
//! 64-bit Architecture, "CIE augmentations".

use std::borrow::Cow;

use gimli::{EndianSlice, Error, Format, Reader as _, RunTimeEndian};

use crate::debuginfo::derive::machine::FrameBytes;

/// The letters of an augmentation that only compilers for 64-bit Arm write: return addresses are
/// signed with the key B, and the stack has tags. `gimli` does not know them. No data belongs to
/// them, and no rule depends on them.
const OF_ARM: [u8; 2] = [b'B', b'G'];

/// A letter without data that `gimli` knows: an entry of handlers of signals. No rule depends on
/// it, either.
const KNOWN: u8 = b'S';

/// The place of an entry in its section.
pub(super) struct FrameEntry {
    pub(super) offset: usize,
    pub(super) end: usize,
    /// Whether it is what the entries of functions have in common, not the entry of a function.
    pub(super) is_shared: bool,
    /// The first byte behind its length and its id.
    body: usize,
}

/// Returns the first entry of a section at or after an offset. Returns `None` at the end of the
/// section.
pub(super) fn entry_at(
    section: FrameBytes<'_>,
    is_debug_frame: bool,
    at: usize,
) -> Result<Option<FrameEntry>, Error> {
    let mut rest = section;
    rest.skip(at)?;
    loop {
        if rest.is_empty() {
            return Ok(None);
        }
        let offset = rest.offset_from(section);
        let (length, format) = rest.read_initial_length()?;
        match (length, is_debug_frame) {
            (0, false) => return Ok(None), // the end of the section
            (0, true) => continue,         // padding
            _ => {}
        }
        let mut body = rest.split(length)?;
        let is_shared = match (is_debug_frame, format) {
            (false, _) => body.read_u32()? == 0,
            (true, Format::Dwarf32) => body.read_u32()? == u32::MAX,
            (true, Format::Dwarf64) => body.read_u64()? == u64::MAX,
        };
        return Ok(Some(FrameEntry {
            offset,
            end: rest.offset_from(section),
            is_shared,
            body: body.offset_from(section),
        }));
    }
}

/// Returns whether a section with unwind information has the entry of a function. Linkers write a
/// section without any, only with its end. One that cannot be read counts as one that has: its
/// reader says what is wrong.
pub(in crate::debuginfo) fn has_functions(
    section: &[u8],
    endian: RunTimeEndian,
    is_debug_frame: bool,
) -> bool {
    let section = EndianSlice::new(section, endian);
    let mut at = 0;
    loop {
        match entry_at(section, is_debug_frame, at) {
            Ok(Some(entry)) if entry.is_shared => at = entry.end,
            Ok(None) => return false,
            Ok(Some(_)) | Err(_) => return true,
        }
    }
}

/// Returns a section without the letters that `gimli` does not know: each is replaced by one that
/// means nothing here.
pub(super) fn with_known_letters(
    section: &[u8],
    endian: RunTimeEndian,
    is_debug_frame: bool,
) -> Cow<'_, [u8]> {
    let entries = EndianSlice::new(section, endian);
    let mut known = Cow::Borrowed(section);
    let mut at = 0;
    while let Ok(Some(entry)) = entry_at(entries, is_debug_frame, at) {
        at = entry.end;
        if !entry.is_shared {
            continue;
        }
        // The version has one byte, and the augmentation ends with a zero.
        let first = entry.body + 1;
        let rest = section.get(first..entry.end).unwrap_or_default();
        let letters = rest.iter().take_while(|letter| **letter != 0);
        for (place, letter) in (first..).zip(letters) {
            if OF_ARM.contains(letter) {
                known.to_mut()[place] = KNOWN;
            }
        }
    }
    known
}
