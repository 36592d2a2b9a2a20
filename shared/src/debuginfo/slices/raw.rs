//! Reads and writes the tables of a SymCache, version 9, in the format of `symbolic`.
//!
//! Source of the format: the modules `symbolic_symcache::raw::v9` and `writer` (MIT). Numbers have
//! the byte order of this machine. Each table begins at a multiple of eight bytes.
//!
//! ```text
//!   0    8  magic "SYMC" as a number, version
//!   8   32  debug id
//!  40    4  architecture
//!  44   20  numbers of files, functions, locations and ranges; bytes of strings
//!  64   16  reserved
//!  80       files        offsets of strings: compilation directory, directory, name, three for a source server
//!           functions    name, unused (both offsets of strings), entry point, language
//!           locations    file, line, function, location that it is inlined into: first those that are
//!                        only calls, then one per range
//!           ranges       the first address of each, ascending
//!           strings      each a length in LEB128, then its bytes
//! ```

use std::ops::Range;

use symbolic::symcache::SYMCACHE_VERSION;

const MAGIC: u32 = u32::from_le_bytes(*b"SYMC");
/// The length of the header.
pub(super) const HEADER_BYTES: usize = 80;
const NUMBERS_AT: usize = HEAD_BYTES;

/// The bytes before the numbers: magic, version, debug id, architecture.
pub(super) const HEAD_BYTES: usize = 44;

/// The value of an index or an offset that refers to nothing.
pub(in crate::debuginfo) const NOWHERE: u32 = u32::MAX;

/// Offsets of strings: compilation directory, directory, name, and name, directory and revision on
/// a source server.
pub(in crate::debuginfo) type RawFile = [u32; 6];

/// Name, an unused offset, entry point, language.
pub(in crate::debuginfo) type RawFunction = [u32; 4];

/// File, line, function, the location that it is inlined into.
pub(in crate::debuginfo) type RawLocation = [u32; 4];

/// The tables of a SymCache.
#[derive(Clone, Copy, Debug)]
pub(in crate::debuginfo) struct SymCacheTables<'a> {
    /// The bytes before the numbers: magic, version, debug id, architecture.
    pub(in crate::debuginfo) head: &'a [u8],
    pub(in crate::debuginfo) files: &'a [RawFile],
    pub(in crate::debuginfo) functions: &'a [RawFunction],
    /// The locations that others are inlined into, without a range of their own.
    pub(in crate::debuginfo) calls: &'a [RawLocation],
    /// One for each range.
    pub(in crate::debuginfo) locations: &'a [RawLocation],
    pub(in crate::debuginfo) ranges: &'a [u32],
    pub(in crate::debuginfo) strings: &'a [u8],
}

impl<'a> SymCacheTables<'a> {
    /// Reads the tables. Returns `None` if the bytes are not a SymCache of this version, are
    /// truncated, or begin at an unaligned address.
    pub(super) fn read(raw: &'a [u8]) -> Option<Self> {
        let word = |at: usize| {
            let bytes = raw.get(at..at.checked_add(4)?)?;
            Some(u32::from_ne_bytes(bytes.try_into().ok()?))
        };
        let count = |at: usize| word(NUMBERS_AT + 4 * at).map(|count| count as usize);
        if (word(0), word(4)) != (Some(MAGIC), Some(SYMCACHE_VERSION)) {
            return None;
        }
        let mut at = HEADER_BYTES;
        let files = table(raw, &mut at, count(0)?)?;
        let functions = table(raw, &mut at, count(1)?)?;
        let locations: &[RawLocation] = table(raw, &mut at, count(2)?)?;
        let ranges: &[u32] = table(raw, &mut at, count(3)?)?;
        let strings = raw.get(at..at.checked_add(count(4)?)?)?;
        let calls = locations.len().checked_sub(ranges.len())?;
        let (calls, locations) = locations.split_at(calls);
        Some(Self {
            head: raw.get(..NUMBERS_AT)?,
            files,
            functions,
            calls,
            locations,
            ranges,
            strings,
        })
    }

    /// Returns the length of a SymCache from its header. Returns `None` if the header is truncated.
    pub(super) fn length_of(header: &[u8]) -> Option<u64> {
        let count = |at: usize| {
            let bytes = header.get(NUMBERS_AT + 4 * at..)?.first_chunk()?;
            Some(u64::from(u32::from_ne_bytes(*bytes)))
        };
        let tables = [
            size_of::<RawFile>(),
            size_of::<RawFunction>(),
            size_of::<RawLocation>(),
            size_of::<u32>(),
        ];
        let mut length = HEADER_BYTES as u64;
        for (at, size) in tables.into_iter().enumerate() {
            length = (length + count(at)? * size as u64).next_multiple_of(8);
        }
        Some(length + count(tables.len())?)
    }

    /// Returns a string with its length prefix, as it is in the table. Returns `None` if there is
    /// no string at this offset.
    pub(super) fn string(&self, offset: u32) -> Option<&'a [u8]> {
        let rest = self.strings.get(offset as usize..)?;
        let (mut length, mut digits) = (0_u64, 0);
        loop {
            let byte = *rest.get(digits)?;
            length |= u64::from(byte & 0x7f).checked_shl(7 * u32::try_from(digits).ok()?)?;
            digits += 1;
            if byte & 0x80 == 0 {
                break;
            }
        }
        rest.get(..digits.checked_add(usize::try_from(length).ok()?)?)
    }

    /// Checks what `symbolic` does not check: every index and string offset that a lookup follows
    /// is valid, ranges ascend, and chains of inlined calls end. The converter writes a call before
    /// the calls inlined into it, so indices decrease along a chain.
    pub(super) fn validate(&self) -> Option<()> {
        let is_there = |index: u32, of: usize| index == NOWHERE || (index as usize) < of;
        let ascend = self.ranges.windows(2).all(|pair| pair[0] < pair[1]);
        let sound = |(at, [file, _, function, inlined_into]): (usize, &RawLocation)| {
            is_there(*file, self.files.len())
                && is_there(*function, self.functions.len())
                && is_there(*inlined_into, at.min(self.calls.len()))
        };
        let mut locations = self.calls.iter().chain(self.locations).enumerate();
        let is_string = |offset: &u32| *offset == NOWHERE || self.string(*offset).is_some();
        let names = self.functions.iter().map(|[name, ..]| name);
        let mut strings = self.files.as_flattened().iter().chain(names);
        (ascend && locations.all(sound) && strings.all(is_string)).then_some(())
    }
}

fn table<'a, T: bytemuck::AnyBitPattern>(
    raw: &'a [u8],
    at: &mut usize,
    count: usize,
) -> Option<&'a [T]> {
    let length = count.checked_mul(size_of::<T>())?;
    let range: Range<usize> = *at..at.checked_add(length)?;
    *at = range.end.checked_next_multiple_of(8)?;
    bytemuck::try_cast_slice(raw.get(range)?).ok()
}

/// Writes a string in the format of the table: its length in LEB128, then its bytes.
pub(in crate::debuginfo) fn write_string(string: &[u8], out: &mut Vec<u8>) {
    let mut length = string.len();
    while length >= 0x80 {
        out.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(string);
}

impl SymCacheTables<'_> {
    /// Returns the bytes of a SymCache with these tables.
    pub(in crate::debuginfo) fn written(&self) -> Vec<u8> {
        let bytes = HEADER_BYTES
            + size_of_val(self.files)
            + size_of_val(self.functions)
            + size_of_val(self.calls)
            + size_of_val(self.locations)
            + size_of_val(self.ranges)
            + self.strings.len();
        // Each table may be padded.
        let mut out = Vec::with_capacity(bytes + 4 * size_of::<u64>());
        let Self {
            head,
            files,
            functions,
            calls,
            locations,
            ranges,
            strings,
        } = self;
        out.extend_from_slice(head);
        let numbers = [
            files.len(),
            functions.len(),
            calls.len() + locations.len(),
            ranges.len(),
            strings.len(),
        ];
        for number in numbers {
            out.extend_from_slice(&u32::try_from(number).unwrap_or(NOWHERE).to_ne_bytes());
        }
        out.resize(HEADER_BYTES, 0);
        let parts: [&[&[u8]]; 4] = [
            &[bytemuck::cast_slice(files)],
            &[bytemuck::cast_slice(functions)],
            &[bytemuck::cast_slice(calls), bytemuck::cast_slice(locations)],
            &[bytemuck::cast_slice(ranges)],
        ];
        for part in parts {
            part.iter().for_each(|bytes| out.extend_from_slice(bytes));
            out.resize(out.len().next_multiple_of(8), 0);
        }
        out.extend_from_slice(strings);
        out
    }
}
