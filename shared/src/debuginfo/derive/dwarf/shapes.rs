//! The layout of the entries of each abbreviation in `.debug_info`: which attributes to read, and
//! how to skip the others in as few steps as their forms allow. Nine of ten entries are types,
//! variables and parameters, which are skipped as a whole.
//!
//! Source of the format: DWARF 5, sections 7.5.3 (abbreviations) and 7.5.6 (forms).

use gimli::{
    Abbreviation, AttributeValue, DebugAddrIndex, DebugInfoOffset, DebugLineStrOffset,
    DebugRngListsIndex, DebugStrOffset, DebugStrOffsetsIndex, DwForm, DwTag, Encoding, Error,
    RawRangeListsOffset, Reader as _, UnitOffset,
};

use super::input::{Section, Unit, Value};

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
enum Step {
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
    fn reading(self, attribute: Attribute, form: DwForm, constant: u64) -> Self {
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

/// What an entry is read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Function,
    InlinedCall,
    None,
}

impl Role {
    fn of(tag: DwTag) -> Self {
        match tag {
            gimli::DW_TAG_subprogram => Self::Function,
            gimli::DW_TAG_inlined_subroutine => Self::InlinedCall,
            _ => Self::None,
        }
    }
}

/// The layout of the entries of one abbreviation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) role: Role,
    pub(super) has_children: bool,
    /// Whether it may have addresses. Entries of declarations, and of functions that are only
    /// inlined, have none.
    pub(super) has_addresses: bool,
    /// The number of bytes of all its attributes, if that is the same for all entries.
    bytes: Option<u32>,
    /// The steps that skip an entry: indices into [`Shapes::steps`].
    skips: [u32; 2],
    /// The steps that read it, if they are known.
    reads: Option<[u32; 2]>,
}

/// How to skip an entry without its shape, which is larger: most entries are skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Leap {
    way: Way,
    has_children: bool,
    is_inlined_call: bool,
    /// The number of bytes of its attributes, with [`Way::Once`].
    bytes: u16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Way {
    /// By its shape: it may be read, or nothing is known about it yet.
    #[default]
    None,
    Once,
    /// By the steps of its shape.
    InSteps,
}

impl Leap {
    fn over(shape: &Shape) -> Self {
        let is_skipped = match shape.role {
            Role::None | Role::InlinedCall => true,
            // The children of another function are its own.
            Role::Function => !shape.has_addresses && !shape.has_children,
        };
        let once = shape.bytes.map(u16::try_from);
        let (way, bytes) = match (is_skipped, once) {
            (true, Some(Ok(bytes))) => (Way::Once, bytes),
            (true, None) => (Way::InSteps, 0),
            _ => (Way::None, 0),
        };
        Self {
            way,
            has_children: shape.has_children,
            is_inlined_call: shape.role == Role::InlinedCall,
            bytes,
        }
    }
}

/// The depth of the next entry, and the lowest depth of some entries before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Depths {
    pub(super) next: isize,
    pub(super) lowest: isize,
}

/// The shapes of a unit's abbreviations, by code. Each is made when it is first needed.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    by_code: Vec<Option<Shape>>,
    /// One for each shape.
    leaps: Vec<Leap>,
    steps: Vec<Step>,
}

/// The largest code that is accepted. Compilers count from one.
const MAX_CODE: u64 = 1 << 20;

impl Shapes {
    /// Removes the shapes of the previous unit.
    pub(super) fn clear(&mut self) {
        self.by_code.clear();
        self.leaps.clear();
        self.steps.clear();
    }

    /// Returns the shape of a code.
    pub(super) fn of(&mut self, code: u64, unit: &Unit<'_>) -> Result<Shape, Error> {
        let at = usize::try_from(code).unwrap_or(usize::MAX);
        match self.by_code.get(at) {
            Some(Some(shape)) => Ok(*shape),
            _ => self.make(code, unit),
        }
    }

    /// Returns the shape of a code, with the steps that read an entry.
    pub(super) fn readable(&mut self, code: u64, unit: &Unit<'_>) -> Result<Shape, Error> {
        let mut shape = self.of(code, unit)?;
        if shape.reads.is_none() {
            shape.reads = Some(self.reading(abbreviation(code, unit)?, unit.encoding())?);
            self.put(code, shape);
        }
        Ok(shape)
    }

    #[cold]
    fn make(&mut self, code: u64, unit: &Unit<'_>) -> Result<Shape, Error> {
        if code > MAX_CODE {
            return Err(Error::InvalidAbbreviationCode(code));
        }
        let (abbreviation, encoding) = (abbreviation(code, unit)?, unit.encoding());
        let skipped = self.steps.len();
        let mut has_addresses = false;
        for attribute in abbreviation.attributes() {
            has_addresses |= matches!(attribute.name(), gimli::DW_AT_low_pc | gimli::DW_AT_ranges);
            let step = skipping(attribute.form(), encoding)?;
            add(step, skipped, &mut self.steps);
        }
        let bytes = match self.steps.get(skipped..) {
            Some([]) => Some(0),
            Some([Step::Skip(bytes)]) => u32::try_from(*bytes).ok(),
            _ => None,
        };
        let role = Role::of(abbreviation.tag());
        let shape = Shape {
            role,
            has_children: abbreviation.has_children(),
            has_addresses,
            bytes,
            skips: self.steps_from(skipped)?,
            reads: match role {
                // Few of these are read: those that others refer to for a name.
                Role::None => None,
                Role::Function | Role::InlinedCall => Some(self.reading(abbreviation, encoding)?),
            },
        };
        self.put(code, shape);
        Ok(shape)
    }

    fn put(&mut self, code: u64, shape: Shape) {
        let at = usize::try_from(code).unwrap_or(usize::MAX);
        if self.by_code.len() <= at {
            self.by_code.resize(at + 1, None);
            self.leaps.resize(at + 1, Leap::default());
        }
        self.by_code[at] = Some(shape);
        self.leaps[at] = Leap::over(&shape);
    }

    /// Adds the steps that read an entry.
    fn reading(
        &mut self,
        abbreviation: &Abbreviation,
        encoding: Encoding,
    ) -> Result<[u32; 2], Error> {
        let first = self.steps.len();
        for attribute in abbreviation.attributes() {
            let form = attribute.form();
            let skipped = skipping(form, encoding)?;
            let step = match attribute_of(attribute.name()) {
                Some(named) => {
                    let constant = attribute.implicit_const_value().unwrap_or_default();
                    skipped.reading(named, form, constant.cast_unsigned())
                }
                None => skipped,
            };
            add(step, first, &mut self.steps);
        }
        self.steps_from(first)
    }

    /// Returns the indices of the steps from one on.
    fn steps_from(&self, first: usize) -> Result<[u32; 2], Error> {
        let at = |step: usize| u32::try_from(step).map_err(|_| Error::UnsupportedOffset);
        Ok([at(first)?, at(self.steps.len())?])
    }

    fn steps_at(&self, [from, to]: [u32; 2]) -> &[Step] {
        let steps = self.steps.get(from as usize..to as usize);
        steps.expect("a shape names its steps")
    }

    /// Skips entries that are not read, and the ends of lists of children, and returns the number
    /// of bytes that they have. Of inlined calls, it skips those in the entry of depth `discarded`:
    /// those before which no entry has this depth or a lower one. It ends before the first other
    /// entry, before an entry whose abbreviation has not occurred yet, and before an entry that is
    /// not complete.
    pub(super) fn leap(&self, data: &[u8], depths: &mut Depths, discarded: isize) -> usize {
        let Depths {
            next: mut depth,
            mut lowest,
        } = *depths;
        let mut at = 0;
        while let Some((code, mut next)) = short_code(data, at) {
            if code == 0 {
                depth -= 1;
                at = next;
                continue;
            }
            let Some(leap) = self.leaps.get(code) else {
                break;
            };
            let is_discarded = lowest.min(depth) > discarded;
            if leap.is_inlined_call && !is_discarded {
                break;
            }
            match leap.way {
                Way::None => break,
                Way::Once => next += usize::from(leap.bytes),
                Way::InSteps => match self.after(code, data, next) {
                    Some(after) => next = after,
                    None => break,
                },
            }
            if next > data.len() {
                break;
            }
            lowest = lowest.min(depth);
            depth += isize::from(leap.has_children);
            at = next;
        }
        *depths = Depths {
            next: depth,
            lowest,
        };
        at
    }

    /// Returns where an entry ends whose attributes begin at `at`; `None` if its attributes have
    /// rare forms or lengths, or if it is not complete.
    fn after(&self, code: usize, data: &[u8], mut at: usize) -> Option<usize> {
        let shape = self.by_code.get(code)?.as_ref()?;
        for step in self.steps_at(shape.skips) {
            at = match step {
                Step::Skip(bytes) => at.checked_add(*bytes)?,
                Step::SkipLeb128 => {
                    at + 1 + data.get(at..)?.iter().position(|byte| *byte < 0x80)?
                }
                // Most texts in entries are short: GCC puts those there that are not longer than a
                // reference.
                Step::SkipText => at + 1 + data.get(at..)?.iter().position(|byte| *byte == 0)?,
                Step::SkipBlock(0 | 1) => {
                    let length = *data.get(at).filter(|length| **length < 0x80)?;
                    at + 1 + usize::from(length)
                }
                _ => return None,
            };
        }
        Some(at)
    }

    /// Skips the attributes of an entry.
    pub(super) fn skip(
        &self,
        shape: Shape,
        input: &mut Section<'_>,
        encoding: Encoding,
    ) -> Result<(), Error> {
        if let Some(bytes) = shape.bytes {
            return input.skip(bytes as usize);
        }
        self.steps_at(shape.skips)
            .iter()
            .try_for_each(|step| walk(*step, input, encoding, &mut |_, _| ()))
    }

    /// Reads the attributes of an entry, whose shape has the steps for it.
    pub(super) fn read<'i>(
        &self,
        shape: Shape,
        input: &mut Section<'i>,
        encoding: Encoding,
        mut take: impl FnMut(Attribute, Value<'i>),
    ) -> Result<(), Error> {
        let reads = shape.reads.expect("the shape of an entry that is read");
        self.steps_at(reads)
            .iter()
            .try_for_each(|step| walk(*step, input, encoding, &mut take))
    }
}

/// Reads the code of an entry, which most often has one byte, and returns it with the place behind
/// it. Returns `None` at the end of the data, and for codes of more than two bytes.
#[inline]
fn short_code(data: &[u8], at: usize) -> Option<(usize, usize)> {
    let first = usize::from(*data.get(at)?);
    if first < 0x80 {
        return Some((first, at + 1));
    }
    let second = usize::from(*data.get(at + 1)?);
    (second < 0x80).then_some((first & 0x7f | second << 7, at + 2))
}

fn abbreviation<'u>(code: u64, unit: &'u Unit<'_>) -> Result<&'u Abbreviation, Error> {
    let abbreviation = unit.abbreviations.get(code);
    abbreviation.ok_or(Error::InvalidAbbreviationCode(code))
}

/// Adds a step to the steps from `first` on. Consecutive skips of a known size become one step.
fn add(step: Step, first: usize, steps: &mut Vec<Step>) {
    let has_any = steps.len() > first;
    match (steps.last_mut(), step) {
        (_, Step::Skip(0)) => {}
        (Some(Step::Skip(before)), Step::Skip(bytes)) if has_any => *before += bytes,
        (_, step) => steps.push(step),
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
fn skipping(form: DwForm, encoding: Encoding) -> Result<Step, Error> {
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
fn walk<'i>(
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
