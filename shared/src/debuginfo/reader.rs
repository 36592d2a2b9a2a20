//! Numbers as ELF and DWARF write them.

/// Reads numbers one after the other; `None` where the bytes end.
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

    /// Reads the length that a unit or a program begins with, and the size of an offset in it
    /// (DWARF 5, section 7.4).
    pub(super) fn initial_length(&mut self) -> Option<(u64, usize)> {
        match self.unsigned(4)? {
            0xffff_ffff => Some((self.unsigned(8)?, 8)),
            length => Some((length, 4)),
        }
    }

    /// Reads a number of either kind; of a signed one only the length is of use.
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
