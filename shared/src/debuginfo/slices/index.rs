//! The index of a sliced blob: the address, the place and the checksum of each slice.
//!
//! ```text
//! for each slice, in the order of addresses; numbers in LEB128
//!   its first address, less that of the slice before
//!   the length of its frame, in bytes
//!   the length of the SymCache in it, in bytes
//!   xxh3-64 of its frame: 8 bytes, little-endian
//! ```

use std::ops::Range;

/// The entry of a slice in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SliceRef {
    /// The first address that it covers.
    pub(super) start: u32,
    /// The offset of its frame in the blob.
    pub(super) offset: u64,
    /// The length of its frame.
    pub(super) length: u64,
    /// The length of the SymCache in it.
    pub(super) raw_length: u64,
    /// xxh3-64 of its frame.
    pub(super) hash: u64,
}

impl SliceRef {
    /// Returns the byte range of its frame in the blob.
    pub(super) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.length
    }
}

/// Writes an index.
pub(super) fn write(slices: &[SliceRef]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(slices.len() * 17);
    let mut before = 0;
    for slice in slices {
        write_number(u64::from(slice.start - before), &mut bytes);
        write_number(slice.length, &mut bytes);
        write_number(slice.raw_length, &mut bytes);
        bytes.extend_from_slice(&slice.hash.to_le_bytes());
        before = slice.start;
    }
    bytes
}

/// Reads an index of `count` slices. Returns `None` if it is malformed, if the frames together do
/// not have `frames` bytes, or if a slice has more than `most` bytes decompressed.
pub(super) fn read(mut bytes: &[u8], count: u32, frames: u64, most: u64) -> Option<Vec<SliceRef>> {
    // A slice takes at least eleven bytes. A count that cannot fit reserves no memory.
    let count = usize::try_from(count).ok()?;
    if count > bytes.len() / 11 {
        return None;
    }
    let mut slices: Vec<SliceRef> = Vec::with_capacity(count);
    let (mut start, mut offset) = (0_u64, 0_u64);
    for number in 0..count {
        let further = read_number(&mut bytes)?;
        if number > 0 && further == 0 {
            return None;
        }
        start = start.checked_add(further)?;
        let (length, raw_length) = (read_number(&mut bytes)?, read_number(&mut bytes)?);
        let (hash, rest) = bytes.split_first_chunk()?;
        bytes = rest;
        if raw_length > most {
            return None;
        }
        slices.push(SliceRef {
            start: u32::try_from(start).ok()?,
            offset,
            length,
            raw_length,
            hash: u64::from_le_bytes(*hash),
        });
        offset = offset.checked_add(length)?;
    }
    (bytes.is_empty() && offset == frames).then_some(slices)
}

fn write_number(mut number: u64, out: &mut Vec<u8>) {
    loop {
        let byte = (number & 0x7f) as u8;
        number >>= 7;
        if number == 0 {
            out.push(byte);
            return;
        }
        out.push(byte | 0x80);
    }
}

fn read_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..63).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slices() -> Vec<SliceRef> {
        let mut offset = 0;
        let lengths = [
            (0, 1, 80),
            (0x1000, 300, 9000),
            (0xffff_ffff, 20_000, 70_000),
        ];
        lengths
            .into_iter()
            .map(|(start, length, raw_length)| {
                let slice = SliceRef {
                    start,
                    offset,
                    length,
                    raw_length,
                    hash: u64::from(start) * 7,
                };
                offset += length;
                slice
            })
            .collect()
    }

    #[test]
    fn an_index_is_read_as_it_was_written() {
        let bytes = write(&slices());
        assert_eq!(read(&bytes, 3, 20_301, 70_000), Some(slices()));
        assert_eq!(read(&[], 0, 0, 0), Some(vec![]));
    }

    #[test]
    fn an_inconsistent_index_is_rejected() {
        let bytes = write(&slices());
        for (count, frames, most) in [
            (2, 20_301, 70_000),
            (4, 20_301, 70_000),
            (u32::MAX, 20_301, 70_000),
            (3, 20_300, 70_000),
            (3, 20_301, 69_999),
        ] {
            assert_eq!(
                read(&bytes, count, frames, most),
                None,
                "{count} {frames} {most}"
            );
        }
        for length in 0..bytes.len() {
            assert_eq!(read(&bytes[..length], 3, 20_301, 70_000), None, "{length}");
        }
        let mut twice = slices();
        twice[1].start = 0;
        assert_eq!(read(&write(&twice), 3, 20_301, 70_000), None);
        assert_eq!(read(&[0xff; 40], 1, 1, u64::MAX), None);
    }
}
