//! Finds names of functions: in the entry of a function, or in an entry that it refers to, in the
//! same unit, another unit or a shared file.

use gimli::{AttributeValue, DebugInfoOffset, DwLang, UnitOffset};

use super::input::{Unit, Value};
use super::related::RelatedUnits;
use super::steps::{Attribute, attribute_of};
use super::tables::{TextRef, UnitTables};
use crate::domain::Language;

/// The maximum number of references that are followed to find a name or a language.
pub(super) const LONGEST_CHAIN: usize = 16;

/// The attributes that lead to a name.
#[derive(Debug, Default)]
pub(super) struct NameParts<'i> {
    pub(super) linkage_name: Option<Value<'i>>,
    pub(super) name: Option<Value<'i>>,
    /// The entry that this one is an instance of, or that it completes.
    pub(super) reference: Option<Value<'i>>,
    pub(super) origin: Option<Value<'i>>,
}

impl<'i> NameParts<'i> {
    pub(super) fn take(&mut self, attribute: Attribute, value: Value<'i>) {
        match attribute {
            Attribute::LinkageName => {
                self.linkage_name.get_or_insert(value);
            }
            Attribute::Name => self.name = Some(value),
            Attribute::Origin => {
                self.reference = Some(value);
                self.origin.get_or_insert(value);
            }
            Attribute::Specification => self.reference = Some(value),
            _ => {}
        }
    }
}

impl NameParts<'_> {
    /// Returns the offset of the entry in the same unit that has the name, if this one has none.
    pub(super) fn target(&self) -> Option<UnitOffset> {
        match (self.linkage_name.or(self.name), self.reference) {
            (None, Some(AttributeValue::UnitRef(target))) => Some(target),
            _ => None,
        }
    }
}

/// Returns the name of an entry in a shared file.
pub(super) fn name_in(
    units: &RelatedUnits<'_>,
    offset: DebugInfoOffset,
    tables: &mut UnitTables,
) -> TextRef {
    let Some((unit, offset)) = units.at(offset) else {
        return TextRef::EMPTY;
    };
    // A shared file does not refer to another shared file.
    let nowhere = |_: DebugInfoOffset, _: &mut UnitTables| TextRef::EMPTY;
    let here = AttributeValue::UnitRef(offset);
    follow(units, unit, here, &nowhere, tables)
}

/// Follows references until an entry has a name. Returns that name, or the empty text.
pub(super) fn follow<'i>(
    units: &RelatedUnits<'i>,
    unit: &Unit<'i>,
    reference: Value<'i>,
    name_in_shared: &NameInShared<'_>,
    tables: &mut UnitTables,
) -> TextRef {
    let (mut unit, mut reference) = (unit, reference);
    for _ in 0..LONGEST_CHAIN {
        if let AttributeValue::DebugInfoRefSup(offset) = reference {
            return name_in_shared(offset, tables);
        }
        let Some((next, offset)) = referred(units, unit, reference) else {
            break;
        };
        match name_or_reference(units, next, offset, tables) {
            Ok(name) => return name,
            Err(Some(further)) => (unit, reference) = (next, further),
            Err(None) => break,
        }
    }
    TextRef::EMPTY
}

/// Returns the name of an entry.
///
/// # Errors
///
/// The entry has no name. The error is its reference to another entry, if it has one.
pub(super) fn name_or_reference<'i>(
    units: &RelatedUnits<'i>,
    unit: &Unit<'i>,
    offset: UnitOffset,
    tables: &mut UnitTables,
) -> Result<TextRef, Option<Value<'i>>> {
    let parts = names_at(unit, offset).map_err(|_| None)?;
    let name = parts.linkage_name.or(parts.name).ok_or(parts.reference)?;
    Ok(text(units, unit, name, tables))
}

/// Returns the attributes of an entry that lead to its name.
pub(super) fn names_at<'i>(
    unit: &Unit<'i>,
    offset: UnitOffset,
) -> Result<NameParts<'i>, gimli::Error> {
    let mut entries = unit.entries_raw(Some(offset))?;
    let mut parts = NameParts::default();
    let Some(abbreviation) = entries.read_abbreviation()? else {
        return Ok(parts);
    };
    for spec in abbreviation.attributes() {
        let attribute = entries.read_attribute(*spec)?;
        if let Some(named) = attribute_of(attribute.name()) {
            parts.take(named, attribute.value());
        }
    }
    Ok(parts)
}

/// Returns the entry that a value refers to.
pub(super) fn referred<'u, 'i>(
    units: &'u RelatedUnits<'i>,
    unit: &'u Unit<'i>,
    value: Value<'i>,
) -> Option<(&'u Unit<'i>, UnitOffset)> {
    match value {
        AttributeValue::UnitRef(offset) => Some((unit, offset)),
        AttributeValue::DebugInfoRef(offset) => units.at(offset),
        _ => None,
    }
}

pub(super) fn text<'i>(
    units: &RelatedUnits<'i>,
    unit: &Unit<'i>,
    value: Value<'i>,
    tables: &mut UnitTables,
) -> TextRef {
    match value {
        value if units.is_elsewhere || matches!(value, AttributeValue::DebugStrRefSup(_)) => {
            let text = units.dwarf.attr_string(unit, value);
            text.map_or(TextRef::EMPTY, |text| tables.keep(text.slice()))
        }
        AttributeValue::DebugStrRef(offset) => TextRef::in_debug_str(offset.0),
        AttributeValue::DebugLineStrRef(offset) => TextRef::in_line_str(offset.0),
        AttributeValue::DebugStrOffsetsIndex(index) => {
            let offset = units.dwarf.string_offset(unit, index);
            offset.map_or(TextRef::EMPTY, |offset| TextRef::in_debug_str(offset.0))
        }
        AttributeValue::String(text) => tables.keep(text.slice()),
        _ => TextRef::EMPTY,
    }
}

pub(super) fn language_of(value: Option<Value<'_>>) -> Option<Language> {
    let Some(AttributeValue::Language(language)) = value else {
        return None;
    };
    Some(language_named(language))
}

pub(super) fn language_named(language: DwLang) -> Language {
    match language {
        gimli::DW_LANG_C | gimli::DW_LANG_C89 | gimli::DW_LANG_C99 | gimli::DW_LANG_C11 => {
            Language::C
        }
        gimli::DW_LANG_C_plus_plus
        | gimli::DW_LANG_C_plus_plus_03
        | gimli::DW_LANG_C_plus_plus_11
        | gimli::DW_LANG_C_plus_plus_14 => Language::Cpp,
        gimli::DW_LANG_D => Language::D,
        gimli::DW_LANG_Go => Language::Go,
        gimli::DW_LANG_ObjC => Language::ObjC,
        gimli::DW_LANG_ObjC_plus_plus => Language::ObjCpp,
        gimli::DW_LANG_Rust => Language::Rust,
        gimli::DW_LANG_Swift => Language::Swift,
        _ => Language::Unknown,
    }
}

pub(super) type NameInShared<'o> = dyn Fn(DebugInfoOffset, &mut UnitTables) -> TextRef + Sync + 'o;
