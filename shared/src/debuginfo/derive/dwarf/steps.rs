//! The forms of attributes: the steps that skip the attributes of an entry or read them, and the
//! fields of entries of which each attribute has a fixed size.
//!
//! Source of the format: DWARF 5, section 7.5.6 (forms).

use gimli::{
    AttributeValue, DebugAddrIndex, DebugInfoOffset, DebugLineStrOffset, DebugRngListsIndex,
    DebugStrOffset, DebugStrOffsetsIndex, DwForm, Encoding, Endianity as _, Error,
    RawRangeListsOffset, Reader as _, RunTimeEndian, UnitOffset,
};

use super::input::{Section, Value};

/// An attribute that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attribute {
    LowAddress,
    HighAddress,
    Ranges,
    LinkageName,
    Name,
    Origin,
    Specification,
    CallFile,
    CallLine,
}

/// A step through the attributes of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Skip(usize),
    SkipLeb128,
    SkipText,
    /// A block of bytes that begins with its length. The value is the size of the length in bytes,
    /// or 0 for LEB128.
    SkipBlock(usize),
    Read {
        attribute: Attribute,
        form: DwForm,
        /// The size of its value in bytes if that is the same for all values of this form,
        /// otherwise 0.
        bytes: usize,
        constant: u64,
    },
    /// The entry itself gives the form.
    Indirect(Option<Attribute>),
}

impl Step {
    /// Returns the step that reads the attribute that this one skips.
    pub(super) fn reading(self, attribute: Attribute, form: DwForm, constant: u64) -> Self {
        match self {
            Self::Indirect(_) => Self::Indirect(Some(attribute)),
            Self::Skip(bytes) => Self::Read {
                attribute,
                form,
                bytes,
                constant,
            },
            _ => Self::Read {
                attribute,
                form,
                bytes: 0,
                constant,
            },
        }
    }
}

/// An attribute that is read, in entries of which each attribute has a fixed size. No step is
/// needed to find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FixedField {
    pub(super) attribute: Attribute,
    class: Class,
    /// Where its value begins, in bytes after the code of the entry.
    at: u32,
    /// The size of its value in bytes, or 0 if the abbreviation has the value.
    bytes: u8,
    constant: u64,
}

/// What the value of a [`FixedField`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Address,
    Number,
    Ranges,
    Entry,
    Text,
    LineText,
}

impl FixedField {
    /// Returns the field for a step that reads an attribute, if its form is one of the most
    /// frequent.
    pub(super) fn of(step: Step, at: usize, encoding: Encoding) -> Option<Self> {
        let Step::Read {
            attribute,
            form,
            bytes,
            constant,
        } = step
        else {
            return None;
        };
        if !matches!(bytes, 0 | 1 | 2 | 4 | 8) {
            return None;
        }
        let is_offset = bytes == usize::from(encoding.format.word_size());
        let class = match form {
            gimli::DW_FORM_implicit_const => Class::Number,
            gimli::DW_FORM_addr => Class::Address,
            gimli::DW_FORM_sec_offset => Class::Ranges,
            gimli::DW_FORM_data4 | gimli::DW_FORM_data8
                if attribute == Attribute::Ranges && is_offset =>
            {
                Class::Ranges
            }
            gimli::DW_FORM_data1
            | gimli::DW_FORM_data2
            | gimli::DW_FORM_data4
            | gimli::DW_FORM_data8 => Class::Number,
            gimli::DW_FORM_ref1
            | gimli::DW_FORM_ref2
            | gimli::DW_FORM_ref4
            | gimli::DW_FORM_ref8 => Class::Entry,
            gimli::DW_FORM_strp => Class::Text,
            gimli::DW_FORM_line_strp => Class::LineText,
            _ => return None,
        };
        Some(Self {
            attribute,
            class,
            at: u32::try_from(at).ok()?,
            bytes: u8::try_from(bytes).ok()?,
            constant,
        })
    }

    /// Returns its value in an entry.
    #[inline]
    pub(super) fn value<'i>(
        &self,
        entry: &[u8],
        endian: RunTimeEndian,
    ) -> Result<Value<'i>, Error> {
        let bytes = entry.get(self.at as usize..).unwrap_or_default();
        let number = match (self.bytes, bytes) {
            (0, _) => self.constant,
            (1, [byte, ..]) => u64::from(*byte),
            (2, [_, _, ..]) => endian.read_u16(bytes).into(),
            (4, [_, _, _, _, ..]) => endian.read_u32(bytes).into(),
            (8, [_, _, _, _, _, _, _, _, ..]) => endian.read_u64(bytes),
            _ => return Err(Error::UnexpectedEof(gimli::ReaderOffsetId(0))),
        };
        let offset = || usize::try_from(number).map_err(|_| Error::UnsupportedOffset);
        Ok(match self.class {
            Class::Address => AttributeValue::Addr(number),
            Class::Number => AttributeValue::Udata(number),
            Class::Ranges => AttributeValue::RangeListsRef(RawRangeListsOffset(offset()?)),
            Class::Entry => AttributeValue::UnitRef(UnitOffset(offset()?)),
            Class::Text => AttributeValue::DebugStrRef(DebugStrOffset(offset()?)),
            Class::LineText => AttributeValue::DebugLineStrRef(DebugLineStrOffset(offset()?)),
        })
    }
}

pub(super) fn attribute_of(attribute: gimli::DwAt) -> Option<Attribute> {
    Some(match attribute {
        gimli::DW_AT_low_pc => Attribute::LowAddress,
        gimli::DW_AT_high_pc => Attribute::HighAddress,
        gimli::DW_AT_ranges => Attribute::Ranges,
        gimli::DW_AT_linkage_name | gimli::DW_AT_MIPS_linkage_name => Attribute::LinkageName,
        gimli::DW_AT_name => Attribute::Name,
        gimli::DW_AT_abstract_origin => Attribute::Origin,
        gimli::DW_AT_specification => Attribute::Specification,
        gimli::DW_AT_call_file => Attribute::CallFile,
        gimli::DW_AT_call_line => Attribute::CallLine,
        _ => return None,
    })
}

/// Returns the step that skips an attribute of a form.
pub(super) fn skipping(form: DwForm, encoding: Encoding) -> Result<Step, Error> {
    let offset = usize::from(encoding.format.word_size());
    let address = usize::from(encoding.address_size);
    Ok(match form {
        gimli::DW_FORM_flag_present | gimli::DW_FORM_implicit_const => Step::Skip(0),
        gimli::DW_FORM_data1
        | gimli::DW_FORM_ref1
        | gimli::DW_FORM_flag
        | gimli::DW_FORM_strx1
        | gimli::DW_FORM_addrx1 => Step::Skip(1),
        gimli::DW_FORM_data2
        | gimli::DW_FORM_ref2
        | gimli::DW_FORM_strx2
        | gimli::DW_FORM_addrx2 => Step::Skip(2),
        gimli::DW_FORM_strx3 | gimli::DW_FORM_addrx3 => Step::Skip(3),
        gimli::DW_FORM_data4
        | gimli::DW_FORM_ref4
        | gimli::DW_FORM_strx4
        | gimli::DW_FORM_addrx4
        | gimli::DW_FORM_ref_sup4 => Step::Skip(4),
        gimli::DW_FORM_data8
        | gimli::DW_FORM_ref8
        | gimli::DW_FORM_ref_sig8
        | gimli::DW_FORM_ref_sup8 => Step::Skip(8),
        gimli::DW_FORM_data16 => Step::Skip(16),
        gimli::DW_FORM_addr => Step::Skip(address),
        // In version 2, the reference has the size of an address.
        gimli::DW_FORM_ref_addr if encoding.version <= 2 => Step::Skip(address),
        gimli::DW_FORM_strp
        | gimli::DW_FORM_line_strp
        | gimli::DW_FORM_sec_offset
        | gimli::DW_FORM_ref_addr
        | gimli::DW_FORM_strp_sup
        | gimli::DW_FORM_GNU_ref_alt
        | gimli::DW_FORM_GNU_strp_alt => Step::Skip(offset),
        gimli::DW_FORM_udata
        | gimli::DW_FORM_sdata
        | gimli::DW_FORM_ref_udata
        | gimli::DW_FORM_strx
        | gimli::DW_FORM_GNU_str_index
        | gimli::DW_FORM_addrx
        | gimli::DW_FORM_GNU_addr_index
        | gimli::DW_FORM_loclistx
        | gimli::DW_FORM_rnglistx => Step::SkipLeb128,
        gimli::DW_FORM_string => Step::SkipText,
        gimli::DW_FORM_block1 => Step::SkipBlock(1),
        gimli::DW_FORM_block2 => Step::SkipBlock(2),
        gimli::DW_FORM_block4 => Step::SkipBlock(4),
        gimli::DW_FORM_block | gimli::DW_FORM_exprloc => Step::SkipBlock(0),
        gimli::DW_FORM_indirect => Step::Indirect(None),
        form => return Err(Error::UnknownForm(form)),
    })
}

/// Executes a step: skips an attribute, or reads it and passes it to `take`.
#[inline]
pub(super) fn walk<'i>(
    step: Step,
    input: &mut Section<'i>,
    encoding: Encoding,
    take: &mut impl FnMut(Attribute, Value<'i>),
) -> Result<(), Error> {
    match step {
        Step::Skip(bytes) => input.skip(bytes),
        Step::SkipLeb128 => input.skip_leb128(),
        Step::SkipText => input.read_null_terminated_slice().map(drop),
        Step::SkipBlock(size) => {
            let bytes = match size {
                0 => input.read_uleb128()?,
                size => input.read_uint(size)?,
            };
            input.skip(usize::try_from(bytes).map_err(|_| Error::UnsupportedOffset)?)
        }
        Step::Read {
            attribute,
            form,
            bytes,
            constant,
        } => {
            let value = value(attribute, (form, bytes), constant, input, encoding)?;
            take(attribute, value);
            Ok(())
        }
        Step::Indirect(attribute) => {
            let form = DwForm(input.read_uleb128_u16()?);
            let step = match (attribute, skipping(form, encoding)?) {
                // An indirect form must not be indirect again.
                (_, Step::Indirect(_)) => return Err(Error::UnknownForm(form)),
                (Some(attribute), skipped) => skipped.reading(attribute, form, 0),
                (None, skipped) => skipped,
            };
            walk(step, input, encoding, take)
        }
    }
}

/// Reads the value of an attribute.
fn value<'i>(
    attribute: Attribute,
    (form, length): (DwForm, usize),
    constant: u64,
    input: &mut Section<'i>,
    encoding: Encoding,
) -> Result<Value<'i>, Error> {
    let word = usize::from(encoding.format.word_size());
    let mut number = || match length {
        0 => input.read_uleb128(),
        1 => input.read_u8().map(u64::from),
        4 => input.read_u32().map(u64::from),
        8 => input.read_u64(),
        length if length < 8 => input.read_uint(length),
        _ => Err(Error::UnsupportedAttributeForm(form)),
    };
    let offset = |number: u64| usize::try_from(number).map_err(|_| Error::UnsupportedOffset);
    Ok(match form {
        gimli::DW_FORM_addr => AttributeValue::Addr(number()?),
        gimli::DW_FORM_addrx
        | gimli::DW_FORM_addrx1
        | gimli::DW_FORM_addrx2
        | gimli::DW_FORM_addrx3
        | gimli::DW_FORM_addrx4
        | gimli::DW_FORM_GNU_addr_index => {
            AttributeValue::DebugAddrIndex(DebugAddrIndex(offset(number()?)?))
        }
        gimli::DW_FORM_implicit_const => AttributeValue::Udata(constant),
        // Before version 4, offsets have the forms of numbers.
        gimli::DW_FORM_data4 | gimli::DW_FORM_data8
            if attribute == Attribute::Ranges && length == word =>
        {
            AttributeValue::RangeListsRef(RawRangeListsOffset(offset(number()?)?))
        }
        gimli::DW_FORM_data1
        | gimli::DW_FORM_data2
        | gimli::DW_FORM_data4
        | gimli::DW_FORM_data8
        | gimli::DW_FORM_udata => AttributeValue::Udata(number()?),
        gimli::DW_FORM_sdata => AttributeValue::Udata(input.read_sleb128()?.cast_unsigned()),
        gimli::DW_FORM_sec_offset => {
            AttributeValue::RangeListsRef(RawRangeListsOffset(offset(number()?)?))
        }
        gimli::DW_FORM_rnglistx => {
            AttributeValue::DebugRngListsIndex(DebugRngListsIndex(offset(number()?)?))
        }
        gimli::DW_FORM_strp => AttributeValue::DebugStrRef(DebugStrOffset(offset(number()?)?)),
        gimli::DW_FORM_line_strp => {
            AttributeValue::DebugLineStrRef(DebugLineStrOffset(offset(number()?)?))
        }
        gimli::DW_FORM_strx
        | gimli::DW_FORM_strx1
        | gimli::DW_FORM_strx2
        | gimli::DW_FORM_strx3
        | gimli::DW_FORM_strx4
        | gimli::DW_FORM_GNU_str_index => {
            AttributeValue::DebugStrOffsetsIndex(DebugStrOffsetsIndex(offset(number()?)?))
        }
        gimli::DW_FORM_string => AttributeValue::String(input.read_null_terminated_slice()?),
        gimli::DW_FORM_ref1
        | gimli::DW_FORM_ref2
        | gimli::DW_FORM_ref4
        | gimli::DW_FORM_ref8
        | gimli::DW_FORM_ref_udata => AttributeValue::UnitRef(UnitOffset(offset(number()?)?)),
        gimli::DW_FORM_ref_addr => {
            AttributeValue::DebugInfoRef(DebugInfoOffset(offset(number()?)?))
        }
        gimli::DW_FORM_GNU_ref_alt | gimli::DW_FORM_ref_sup4 | gimli::DW_FORM_ref_sup8 => {
            AttributeValue::DebugInfoRefSup(DebugInfoOffset(offset(number()?)?))
        }
        gimli::DW_FORM_GNU_strp_alt | gimli::DW_FORM_strp_sup => {
            AttributeValue::DebugStrRefSup(DebugStrOffset(offset(number()?)?))
        }
        form => {
            walk(skipping(form, encoding)?, input, encoding, &mut |_, _| ())?;
            AttributeValue::Flag(true)
        }
    })
}
