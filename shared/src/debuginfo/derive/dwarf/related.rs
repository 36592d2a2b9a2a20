//! Units that may refer to each other: the units of a run or of a shared file, or one split unit.

use std::sync::OnceLock;

use gimli::{
    DebugInfoOffset, Reader as _, Section as _, UnitHeader, UnitOffset, UnitSectionOffset,
};

use super::input::{Dwarf, Section, Unit};
use super::tables::Counts;

/// Units that may refer to each other.
pub(super) struct RelatedUnits<'i> {
    pub(super) dwarf: Dwarf<'i>,
    /// Whether they are in another file than the object.
    pub(super) is_elsewhere: bool,
    /// Whether none refers to another.
    pub(super) stand_alone: bool,
    headers: Vec<UnitHeader<Section<'i>>>,
    /// The number of all units, and of those whose headers cannot be read.
    pub(super) counts: Counts,
    opened: Vec<OnceLock<Option<Unit<'i>>>>,
}

impl<'i> RelatedUnits<'i> {
    /// Reads the headers of units. A unit whose header cannot be read is omitted and counted.
    pub(super) fn open(dwarf: Dwarf<'i>) -> Self {
        let (mut headers, mut counts) = (Vec::new(), Counts::default());
        let section = dwarf.debug_info.reader();
        let mut rest = *section;
        while !rest.is_empty() {
            let offset = DebugInfoOffset(rest.offset_from(*section));
            let length = rest.read_initial_length().map(|(length, _)| length);
            if length == Ok(0) {
                continue; // padding
            }
            counts.units += 1;
            match dwarf.debug_info.header_from_offset(offset) {
                Ok(header) => headers.push(header),
                Err(error) => counts.add_unread(error),
            }
            if length.and_then(|length| rest.skip(length)).is_err() {
                break;
            }
        }
        let opened = headers.iter().map(|_| OnceLock::new()).collect();
        Self {
            dwarf,
            is_elsewhere: false,
            stand_alone: false,
            headers,
            counts,
            opened,
        }
    }

    /// Reads the headers of units that do not refer to each other.
    pub(super) fn open_alone(dwarf: Dwarf<'i>) -> Self {
        Self {
            stand_alone: true,
            ..Self::open(dwarf)
        }
    }

    /// Reads the headers of the units in a shared file.
    pub(super) fn open_shared(dwarf: Dwarf<'i>) -> Self {
        Self {
            is_elsewhere: true,
            ..Self::open(dwarf)
        }
    }

    /// Takes a split unit that was completed with its skeleton.
    pub(super) fn of_split(
        dwarf: Dwarf<'i>,
        header: UnitHeader<Section<'i>>,
        unit: Unit<'i>,
    ) -> Self {
        Self {
            dwarf,
            is_elsewhere: true,
            stand_alone: false,
            headers: vec![header],
            counts: Counts::default(),
            opened: vec![OnceLock::from(Some(unit))],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.headers.len()
    }

    /// Opens a unit. Returns `None` if it has no entries.
    pub(super) fn unit(&self, number: usize) -> Result<Option<&Unit<'i>>, gimli::Error> {
        let (Some(cell), Some(header)) = (self.opened.get(number), self.headers.get(number)) else {
            return Ok(None);
        };
        if let Some(unit) = cell.get() {
            return Ok(unit.as_ref());
        }
        let unit = match self.dwarf.unit(*header) {
            Ok(unit) => Some(unit),
            Err(gimli::Error::MissingUnitDie) => None,
            Err(error) => return Err(error),
        };
        Ok(cell.get_or_init(|| unit).as_ref())
    }

    /// Returns the unit that contains an offset in the section, and the offset in that unit.
    pub(super) fn at(&self, offset: DebugInfoOffset) -> Option<(&Unit<'i>, UnitOffset)> {
        let offset = UnitSectionOffset(offset.0);
        let after = self
            .headers
            .partition_point(|header| header.offset() <= offset);
        let unit = self.unit(after.checked_sub(1)?).ok()??;
        Some((unit, offset.to_unit_offset(&unit.header)?))
    }
}
