//! The unit that is being read: its names, files and languages.

use foldhash::HashMap;
use gimli::{AttributeValue, Reader as _, Section as _, UnitOffset};

use super::input::{Dwarf, Section, Unit, Value};
use super::names::{
    LONGEST_CHAIN, NameInShared, NameParts, follow, language_of, names_at, referred, text,
};
use super::related::RelatedUnits;
use super::shapes::Shapes;
use super::tables::{Numbers, TextRef, UnitFile, UnitTables};
use crate::debuginfo::slices::NOWHERE;
use crate::domain::Language;

/// The attributes of a function or an inlined call, except its addresses.
#[derive(Debug, Default)]
pub(super) struct ReadEntry<'i> {
    pub(super) names: NameParts<'i>,
    pub(super) call_file: Option<u64>,
    pub(super) call_line: u64,
}

/// The unit that is being read, and what is known about it so far.
pub(super) struct CurrentUnit<'u, 'i> {
    pub(super) units: &'u RelatedUnits<'i>,
    pub(super) unit: &'u Unit<'i>,
    pub(super) name_in_shared: &'u NameInShared<'u>,
    pub(super) language: Language,
    pub(super) prefers_entries: bool,
    pub(super) directory: Option<TextRef>,
    /// Numbers in [`UnitTables::files`], by numbers in the unit, of the files that occurred.
    pub(super) files: Vec<Option<u32>>,
    pub(super) names: HashMap<UnitOffset, TextRef>,
    /// The languages of entries that others refer to: see [`CurrentUnit::language_of`].
    pub(super) languages: HashMap<UnitOffset, Option<Language>>,
    /// By the entry that an inlined call refers to: its language, and the number of the function in
    /// [`UnitTables::functions`].
    pub(super) inlined: HashMap<UnitOffset, (Language, u32)>,
}

impl<'i> CurrentUnit<'_, 'i> {
    /// Returns the bytes of the unit from an offset on.
    pub(super) fn bytes_from(&self, at: usize) -> Result<Section<'i>, gimli::Error> {
        let header = &self.unit.header;
        let mut bytes = *self.units.dwarf.debug_info.reader();
        bytes.skip(header.offset().0)?;
        bytes.truncate(header.length_including_self())?;
        bytes.skip(at)?;
        Ok(bytes)
    }

    /// Returns the number in [`UnitTables::files`] of a file with a number in the unit, or
    /// [`NOWHERE`] if the unit has no such file. (`symbolic` then uses the directory of the unit as
    /// the file.)
    pub(super) fn file(
        &mut self,
        file: u64,
        numbers: &mut Numbers<UnitFile>,
        tables: &mut UnitTables,
    ) -> u32 {
        let at = usize::try_from(file).unwrap_or(usize::MAX);
        if let Some(Some(known)) = self.files.get(at) {
            return *known;
        }
        let program = self.unit.line_program.as_ref();
        let program = program.map(|program| program.header());
        let entry = program.and_then(|program| Some((program, program.file(file)?)));
        let Some((program, entry)) = entry else {
            return NOWHERE;
        };
        let working_directory = self.directory.unwrap_or(TextRef::NONE);
        let directory = entry.directory(program);
        let directory = directory.filter(|value| !self.repeats_working_directory(*value));
        let directory = directory.map_or(TextRef::EMPTY, |value| self.path(value, tables));
        let name = self.path(entry.path_name(), tables);
        let number = numbers.of([working_directory, directory, name], &mut tables.files);
        // The unit has at least as many files.
        if self.files.len() <= at {
            self.files.resize(at + 1, None);
        }
        self.files[at] = Some(number);
        number
    }

    /// Returns whether a directory of the line program is the one in which the compiler ran, and
    /// relative (`-ffile-prefix-map`): it would occur twice in the path. Directory 0 is that one
    /// (DWARF 5, section 6.2.4).
    fn repeats_working_directory(&self, directory: Value<'i>) -> bool {
        let Some(working_directory) = self.unit.comp_dir else {
            return false;
        };
        let is_relative = |path: &[u8]| !matches!(path, [b'/' | b'\\', ..] | [_, b':', ..]);
        is_relative(working_directory.slice())
            && self
                .units
                .dwarf
                .attr_string(self.unit, directory)
                .is_ok_and(|directory| directory == working_directory)
    }

    /// Returns the number that [`Self::file`] returned before for a file.
    pub(super) fn known_file(&self, file: u32) -> u32 {
        let known = self.files.get(file as usize);
        known.copied().flatten().unwrap_or(NOWHERE)
    }

    fn text(&self, value: Value<'i>, tables: &mut UnitTables) -> TextRef {
        text(self.units, self.unit, value, tables)
    }

    /// Returns a text of a line program. The line program is in the object itself even if the unit
    /// is in another file.
    fn path(&self, value: Value<'i>, tables: &mut UnitTables) -> TextRef {
        match value {
            AttributeValue::DebugStrRef(offset) => TextRef::in_debug_str(offset.0),
            AttributeValue::DebugLineStrRef(offset) => TextRef::in_line_str(offset.0),
            value => self.text(value, tables),
        }
    }

    /// Returns the language of the function that an entry is an instance of, if that function is in
    /// another unit.
    pub(super) fn language_of(&mut self, entry: &ReadEntry<'i>) -> Option<Language> {
        if self.units.stand_alone {
            return None;
        }
        let origin = entry.names.origin?;
        let AttributeValue::UnitRef(target) = origin else {
            return self.language_elsewhere(origin);
        };
        if let Some(known) = self.languages.get(&target) {
            return *known;
        }
        let language = self.language_elsewhere(origin);
        self.languages.insert(target, language);
        language
    }

    fn language_elsewhere(&self, origin: Value<'i>) -> Option<Language> {
        let (mut unit, mut value) = (self.unit, origin);
        let mut language = None;
        for _ in 0..LONGEST_CHAIN {
            let (next, offset) = referred(self.units, unit, value)?;
            if next.header.offset() != unit.header.offset() {
                let mut entries = next.entries();
                let root = entries.next_dfs().ok()??;
                language = language_of(root.attr_value(gimli::DW_AT_language)).or(language);
            }
            unit = next;
            let Some(origin) = names_at(unit, offset).ok()?.origin else {
                break;
            };
            value = origin;
        }
        language
    }

    /// Returns the name of an entry: its linkage name, its name, or the name of the entry that it
    /// refers to.
    pub(super) fn name_of(
        &mut self,
        offset: UnitOffset,
        entry: &ReadEntry<'i>,
        shapes: &mut Shapes,
        tables: &mut UnitTables,
    ) -> TextRef {
        if let Some(name) = entry.names.linkage_name.or(entry.names.name) {
            return self.text(name, tables);
        }
        let Some(reference) = entry.names.reference else {
            return TextRef::EMPTY;
        };
        let AttributeValue::UnitRef(target) = reference else {
            return self.name_elsewhere(reference, tables);
        };
        if target == offset {
            return TextRef::EMPTY;
        }
        if let Some(known) = self.names.get(&target) {
            return *known;
        }
        let name = self.name_at(target, shapes, tables);
        self.names.insert(target, name);
        name
    }

    /// Returns the bytes of a name that [`Self::name_of`] returned.
    pub(super) fn bytes_of<'t>(&self, name: TextRef, tables: &'t UnitTables) -> &'t [u8]
    where
        'i: 't,
    {
        let dwarf = &self.units.dwarf;
        let debug_str = dwarf.debug_str.reader().slice();
        let line_str = dwarf.debug_line_str.reader().slice();
        name.bytes_in([debug_str, line_str, tables.texts()])
    }

    /// Returns the name of the entry at an offset, or of the entry that it refers to. Most entries
    /// refer to one in the same unit, whose shape is known.
    fn name_at(&self, target: UnitOffset, shapes: &mut Shapes, tables: &mut UnitTables) -> TextRef {
        let mut target = target;
        for _ in 0..LONGEST_CHAIN {
            let Ok(parts) = self.names_at(target, shapes) else {
                break;
            };
            if let Some(name) = parts.linkage_name.or(parts.name) {
                return self.text(name, tables);
            }
            match parts.reference {
                Some(AttributeValue::UnitRef(next)) => target = next,
                Some(reference) => return self.name_elsewhere(reference, tables),
                None => break,
            }
        }
        TextRef::EMPTY
    }

    fn names_at(
        &self,
        target: UnitOffset,
        shapes: &mut Shapes,
    ) -> Result<NameParts<'i>, gimli::Error> {
        let mut parts = NameParts::default();
        if target.0 < self.unit.header.header_size() {
            return Err(gimli::Error::OffsetOutOfBounds(target.0 as u64));
        }
        let mut input = self.bytes_from(target.0)?;
        let code = input.read_uleb128()?;
        if code != 0 {
            let shape = shapes.readable(code, self.unit)?;
            let encoding = self.unit.encoding();
            shapes.read(shape, &mut input, encoding, |attribute, value| {
                parts.take(attribute, value);
            })?;
        }
        Ok(parts)
    }

    fn name_elsewhere(&self, reference: Value<'i>, tables: &mut UnitTables) -> TextRef {
        follow(
            self.units,
            self.unit,
            reference,
            self.name_in_shared,
            tables,
        )
    }
}

pub(super) fn address<'i>(
    dwarf: &Dwarf<'i>,
    unit: &Unit<'i>,
    value: Value<'i>,
) -> Result<u64, gimli::Error> {
    let address = dwarf.attr_address(unit, value)?;
    address.ok_or(gimli::Error::UnsupportedAttributeForm(gimli::DW_FORM_addr))
}

pub(super) fn number(value: Value<'_>) -> Option<u64> {
    match value {
        AttributeValue::Udata(number) => Some(number),
        _ => None,
    }
}
