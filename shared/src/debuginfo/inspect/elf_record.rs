//! Reads the fields of ELF headers, without reading the rest of the file.

/// A record of an ELF file. The offsets of its fields differ between 32-bit and 64-bit files.
#[derive(Clone, Copy)]
pub(super) struct ElfRecord<'a> {
    record: &'a [u8],
    pub(super) is_64: bool,
    is_big_endian: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Width {
    Half,
    Word,
    Address,
}

impl<'a> ElfRecord<'a> {
    pub(super) fn read(data: &'a [u8]) -> Option<Self> {
        let identification = data.strip_prefix(b"\x7fELF")?;
        let is_64 = *identification.first()? == 2;
        let is_big_endian = *identification.get(1)? == 2;
        Some(Self {
            record: data,
            is_64,
            is_big_endian,
        })
    }

    pub(super) fn at(data: &'a [u8], like: Self, offset: u64) -> Option<Self> {
        Some(Self {
            record: data.get(usize::try_from(offset).ok()?..)?,
            ..like
        })
    }

    pub(super) fn field(self, at_32: usize, at_64: usize, width: Width) -> Option<u64> {
        let at = if self.is_64 { at_64 } else { at_32 };
        let bytes = match width {
            Width::Half => 2,
            Width::Address if self.is_64 => 8,
            Width::Word | Width::Address => 4,
        };
        let field = self.record.get(at..at.checked_add(bytes)?)?;
        let fold = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        Some(if self.is_big_endian {
            field.iter().fold(0, fold)
        } else {
            field.iter().rev().fold(0, fold)
        })
    }
}
