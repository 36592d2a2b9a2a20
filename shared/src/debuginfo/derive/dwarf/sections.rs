//! The sections of an object, decompressed in parallel, with repaired line programs.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};

use gimli::{EndianSlice, RunTimeEndian, SectionId};
use symbolic::debuginfo::dwarf::{Dwarf, DwarfSection, Endian};

use super::input::Section;
use super::{input, line_programs};
use crate::debuginfo::workers::side_by_side;

/// Sections that a debug session of `symbolic` reads, except `.debug_info`.
pub(super) const ALL: [&str; 12] = [
    "debug_abbrev",
    "debug_addr",
    "debug_aranges",
    "debug_line",
    "debug_line_str",
    "debug_macinfo",
    "debug_macro",
    "debug_names",
    "debug_ranges",
    "debug_rnglists",
    "debug_str",
    "debug_str_offsets",
];

/// Sections that are needed to read units, except `.debug_info`.
pub(super) const READ: [&str; 8] = [
    "debug_abbrev",
    "debug_addr",
    "debug_line",
    "debug_line_str",
    "debug_ranges",
    "debug_rnglists",
    "debug_str",
    "debug_str_offsets",
];

/// Sections of split units. Every file with split units has the first. A package can be opened only
/// with all sections that its index refers to, although not all of them are read.
pub(super) const SPLIT: [&str; 13] = [
    "debug_info.dwo",
    "debug_abbrev.dwo",
    "debug_cu_index",
    "debug_line.dwo",
    "debug_loc.dwo",
    "debug_loclists.dwo",
    "debug_macinfo.dwo",
    "debug_macro.dwo",
    "debug_rnglists.dwo",
    "debug_str.dwo",
    "debug_str_offsets.dwo",
    "debug_tu_index",
    "debug_types.dwo",
];

/// Sections that are needed to read a shared file.
pub(super) const SHARED: [&str; 6] = [
    "debug_abbrev",
    "debug_info",
    // `gimli` opens a unit together with its line program. No row of it is read.
    "debug_line",
    "debug_line_str",
    "debug_str",
    "debug_str_offsets",
];

/// The number of threads that decompress sections.
const THREADS: usize = 2;

/// Sections by name.
pub(super) struct Sections<'d>(HashMap<&'static str, DwarfSection<'d>>);

impl<'d> Sections<'d> {
    /// Decompresses these sections in parallel, the largest first. One after the other, this takes
    /// a fifth of the total time for a large file.
    pub(super) fn open(object: &(dyn Dwarf<'d> + Sync), names: &[&'static str]) -> Self {
        let length = |name: &str| object.raw_section(name).map(|section| section.data.len());
        let mut names = names.to_vec();
        names.sort_by_key(|name| Reverse(length(name)));
        let little_endian = object.endianity() == Endian::Little;
        let left = Mutex::new(names.into_iter());
        let decompress = || -> Result<_, Infallible> {
            let mut sections = Vec::new();
            loop {
                // A lock that is taken in the head of a loop is held in its body.
                let next = left.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(name) = next else {
                    return Ok(sections);
                };
                if let Some(mut section) = object.section(name) {
                    if name == "debug_line" {
                        line_programs::repair(&mut section.data, little_endian);
                    }
                    sections.push((name, section));
                }
            }
        };
        let Ok(sections) = side_by_side(THREADS, decompress);
        Self(sections.into_iter().collect())
    }

    /// Removes a section and returns it.
    pub(super) fn take(&mut self, name: &str) -> Option<DwarfSection<'d>> {
        self.0.remove(name)
    }

    /// Returns the bytes of a section, or no bytes if there is no such section.
    pub(super) fn data(&self, name: &str) -> &[u8] {
        self.0.get(name).map_or(&[], |section| &section.data)
    }

    /// Returns a section of a file with split units.
    pub(super) fn split_section<'s>(&'s self, id: SectionId, endian: RunTimeEndian) -> Section<'s> {
        let name = id.dwo_name().unwrap_or_default();
        EndianSlice::new(self.data(name.trim_start_matches('.')), endian)
    }

    /// Returns the reader of the split units in these sections. It is not yet connected to the
    /// sections of the program.
    pub(super) fn split_dwarf(&self, endian: RunTimeEndian) -> input::Dwarf<'_> {
        let section = |id| Ok::<_, Infallible>(self.split_section(id, endian));
        let Ok(dwarf) = input::Dwarf::load(section);
        dwarf
    }

    /// Returns the reader of the units in `info`, which uses these sections.
    pub(super) fn dwarf<'s>(&'s self, info: &'s [u8], endian: RunTimeEndian) -> input::Dwarf<'s> {
        let section = |id: SectionId| {
            let data = match id {
                SectionId::DebugInfo => info,
                // `gimli` writes the names with a dot.
                id => self.data(id.name().trim_start_matches('.')),
            };
            Ok::<_, Infallible>(EndianSlice::new(data, endian))
        };
        let Ok(dwarf) = input::Dwarf::load(section);
        dwarf
    }
}
