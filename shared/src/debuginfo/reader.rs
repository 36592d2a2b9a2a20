//! Reads numbers in the encodings of ELF and DWARF, and numbers of a known size at a place.

/// Returns the number of some bytes, at most eight, at a place.
pub(super) fn number_at(data: &[u8], at: u64, bytes: usize, little_endian: bool) -> Option<u64> {
    let data = data.get(usize::try_from(at).ok()?..)?;
    ByteReader::new(data, little_endian).unsigned(bytes)
}

/// Reads numbers one after the other. Returns `None` at the end of the bytes.
pub(super) struct ByteReader<'a> {
    pub(super) data: &'a [u8],
    pub(super) at: usize,
    little_endian: bool,
}

impl<'a> ByteReader<'a> {
    pub(super) fn new(data: &'a [u8], little_endian: bool) -> Self {
        Self {
            data,
            at: 0,
            little_endian,
        }
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        let byte = *self.data.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    pub(super) fn unsigned(&mut self, size: usize) -> Option<u64> {
        let bytes = self
            .data
            .get(self.at..self.at.checked_add(size)?)
            .filter(|bytes| bytes.len() <= 8)?;
        self.at += size;
        let digit = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        Some(if self.little_endian {
            bytes.iter().rev().fold(0, digit)
        } else {
            bytes.iter().fold(0, digit)
        })
    }

    /// Reads the initial length of a unit or line program. Returns it with the size of the offsets
    /// in that unit or program (DWARF 5, section 7.4).
    pub(super) fn initial_length(&mut self) -> Option<(u64, usize)> {
        match self.unsigned(4)? {
            0xffff_ffff => Some((self.unsigned(8)?, 8)),
            length => Some((length, 4)),
        }
    }

    /// Reads an unsigned number, or skips a signed one: its value is wrong, but its length is
    /// correct.
    pub(super) fn leb128(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                break;
            }
        }
        Some(value)
    }
}
