//! The layout of the entries of each abbreviation in `.debug_info`: which attributes to read, and
//! how to skip the others in as few steps as their forms allow. Nine of ten entries are types,
//! variables and parameters, which are skipped as a whole.
//!
//! Source of the format: DWARF 5, section 7.5.3 (abbreviations).

use gimli::{Abbreviation, DwTag, Encoding, Error, Reader as _};

use super::input::{Section, Unit, Value, short_number};
use super::steps::{Attribute, FixedField, Step, attribute_of, skipping, walk};

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
    /// The fields that are read instead, if there are any: indices into [`Shapes::fields`].
    fields: [u32; 2],
}

/// How to skip an entry without its shape, which is larger: most entries are skipped. It has four
/// bytes, so that it is found quickly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Leap {
    /// The number of bytes of its attributes, with [`Way::Once`].
    bytes: u16,
    way: Way,
    nature: Nature,
}

/// Whether an entry has children, and whether it is an inlined call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Nature {
    #[default]
    Leaf,
    Parent,
    CalledLeaf,
    CalledParent,
}

impl Nature {
    fn of(has_children: bool, is_inlined_call: bool) -> Self {
        match (is_inlined_call, has_children) {
            (false, false) => Self::Leaf,
            (false, true) => Self::Parent,
            (true, false) => Self::CalledLeaf,
            (true, true) => Self::CalledParent,
        }
    }

    fn has_children(self) -> bool {
        matches!(self, Self::Parent | Self::CalledParent)
    }

    fn is_inlined_call(self) -> bool {
        matches!(self, Self::CalledLeaf | Self::CalledParent)
    }
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
            bytes,
            way,
            nature: Nature::of(shape.has_children, shape.role == Role::InlinedCall),
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
    fields: Vec<FixedField>,
}

/// The largest code that is accepted. Compilers count from one.
const MAX_CODE: u64 = 1 << 20;

impl Shapes {
    /// Removes the shapes of the previous unit.
    pub(super) fn clear(&mut self) {
        self.by_code.clear();
        self.leaps.clear();
        self.steps.clear();
        self.fields.clear();
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
            self.add_reads(&mut shape, abbreviation(code, unit)?, unit.encoding())?;
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
        let mut shape = Shape {
            role,
            has_children: abbreviation.has_children(),
            has_addresses,
            bytes,
            skips: self.steps_from(skipped)?,
            reads: None,
            fields: [0; 2],
        };
        // Few others are read: those to which these refer for a name.
        if role != Role::None {
            self.add_reads(&mut shape, abbreviation, encoding)?;
        }
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

    /// Adds the steps that read an entry, and its fields.
    fn add_reads(
        &mut self,
        shape: &mut Shape,
        abbreviation: &Abbreviation,
        encoding: Encoding,
    ) -> Result<(), Error> {
        let (first, first_field) = (self.steps.len(), self.fields.len());
        let (mut at, mut has_fields) = (0, shape.bytes.is_some());
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
            if has_fields && step != skipped {
                let field = FixedField::of(step, at, encoding);
                has_fields = field.is_some();
                self.fields.extend(field);
            }
            if let Step::Skip(bytes) = skipped {
                at += bytes;
            }
            add(step, first, &mut self.steps);
        }
        if !has_fields {
            self.fields.truncate(first_field);
        }
        let index = |field: usize| u32::try_from(field).map_err(|_| Error::UnsupportedOffset);
        shape.fields = [index(first_field)?, index(self.fields.len())?];
        shape.reads = Some(self.steps_from(first)?);
        Ok(())
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
        while let Some((code, mut next)) = short_number(data, at) {
            if code == 0 {
                depth -= 1;
                at = next;
                continue;
            }
            let code = usize::try_from(code).unwrap_or(usize::MAX);
            let Some(leap) = self.leaps.get(code) else {
                break;
            };
            let is_discarded = lowest.min(depth) > discarded;
            if leap.nature.is_inlined_call() && !is_discarded {
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
            depth += isize::from(leap.nature.has_children());
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
    #[inline]
    pub(super) fn read<'i>(
        &self,
        shape: Shape,
        input: &mut Section<'i>,
        encoding: Encoding,
        mut take: impl FnMut(Attribute, Value<'i>),
    ) -> Result<(), Error> {
        let [from, to] = shape.fields;
        if let Some(bytes) = shape.bytes
            && from < to
        {
            let entry = input.split(bytes as usize)?;
            let (entry, endian) = (entry.slice(), entry.endian());
            let fields = self.fields.get(from as usize..to as usize);
            for field in fields.expect("a shape names its fields") {
                take(field.attribute, field.value(entry, endian)?);
            }
            return Ok(());
        }
        let reads = shape.reads.expect("the shape of an entry that is read");
        self.steps_at(reads)
            .iter()
            .try_for_each(|step| walk(*step, input, encoding, &mut take))
    }
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
