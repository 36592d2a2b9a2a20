//! The sections of an object, decompressed in parallel.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use flate2::{Decompress, FlushDecompress, Status};
use gimli::{EndianSlice, RunTimeEndian, SectionId};
use symbolic::debuginfo::dwarf::{Dwarf, DwarfSection, Endian};

use super::input::{Section, raw_section};
use super::units::Compressed;
use super::{input, line_programs, units};
use crate::debuginfo::image::sections_named;
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

/// The section that is read first: it shows whether units refer to each other.
pub(super) const FIRST: &str = "debug_abbrev";

/// The other sections that are needed to read units, except `.debug_info`.
pub(super) const READ: [&str; 7] = [
    "debug_addr",
    "debug_line",
    "debug_line_str",
    "debug_ranges",
    "debug_rnglists",
    "debug_str",
    "debug_str_offsets",
];

/// The section with split units.
pub(super) const SPLIT_UNITS: &str = "debug_info.dwo";

/// Sections of split units. Every file with split units has the first. A package can be opened only
/// with all sections that its index refers to, although not all of them are read.
pub(super) const SPLIT: [&str; 13] = [
    SPLIT_UNITS,
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

/// The number of threads that decompress sections of a file that is inspected, or that `symbolic`
/// reads.
pub(super) const THREADS: usize = 2;

/// The largest factor by which zlib compresses (zlib's `zlib_tech.html`, "Maximum Compression
/// Factor"), rounded up.
const MAX_ZLIB_SAVES: u64 = 1040;

/// The number of bytes that are inflated at a time. Their checksum is computed while they are in
/// the processor's cache.
const STEP: usize = 64 << 10;

/// Returns a section, decompressed.
pub(in crate::debuginfo) fn section<'d>(
    object: &(dyn Dwarf<'d> + Sync),
    name: &str,
) -> Option<DwarfSection<'d>> {
    let raw = raw_section(object, name)?;
    match inflated(&raw.data, object.endianity() == Endian::Little) {
        Some(data) => Some(DwarfSection {
            data: data.into(),
            ..raw
        }),
        None => object.section(name),
    }
}

/// Inflates a section into memory that the system has cleared: `symbolic` clears it once more.
/// Returns `None` if the section is something else than one valid zlib stream after its header.
fn inflated(raw: &[u8], little_endian: bool) -> Option<Vec<u8>> {
    let Compressed::Zlib { data, length } = Compressed::of(raw, little_endian) else {
        return None;
    };
    if length > MAX_ZLIB_SAVES * data.len() as u64 {
        return None;
    }
    let mut out = vec![0; usize::try_from(length).ok()?];
    let mut inflate = Decompress::new(true);
    loop {
        let (read, written) = (inflate.total_in() as usize, inflate.total_out() as usize);
        let (data, room) = (data.get(read..)?, out.get_mut(written..)?);
        let step = room.len().min(STEP);
        let status = inflate.decompress(data, room.get_mut(..step)?, FlushDecompress::None);
        match status.ok()? {
            Status::StreamEnd => return (inflate.total_out() == length).then_some(out),
            Status::Ok if inflate.total_out() as usize > written => {}
            Status::Ok | Status::BufError => return None,
        }
    }
}

/// Returns the contents of all sections with split units of an ELF file, one after the other.
/// Returns `None` if there are fewer than two, if one cannot be read, or for another file.
fn joined(elf: &[u8], little_endian: bool) -> Option<Vec<u8>> {
    let named = sections_named(elf, format!(".{SPLIT_UNITS}").as_bytes())?;
    if named.len() < 2 {
        return None;
    }
    let mut all = Vec::new();
    for section in named {
        all.extend(units::decompressed(section, little_endian).ok()?);
    }
    Some(all)
}

/// Sections by name.
pub(super) struct Sections<'d>(HashMap<&'static str, DwarfSection<'d>>);

impl<'d> Sections<'d> {
    /// Decompresses these sections with this number of threads, the largest first. One after the
    /// other, this takes a tenth of the total time for a large file.
    pub(super) fn open(
        object: &(dyn Dwarf<'d> + Sync),
        names: &[&'static str],
        threads: usize,
    ) -> Self {
        Self::open_beside(object, names, threads, |_| ())
    }

    /// Like [`Self::open`]. A thread for which no section is left does other work, as long as the
    /// function that this is called with returns that another thread still has a section.
    pub(super) fn open_beside(
        object: &(dyn Dwarf<'d> + Sync),
        names: &[&'static str],
        threads: usize,
        other: impl Fn(&dyn Fn() -> bool) + Sync,
    ) -> Self {
        let length = |name: &str| raw_section(object, name).map(|section| section.data.len());
        let mut names = names.to_vec();
        names.sort_by_key(|name| Reverse(length(name)));
        let busy = AtomicUsize::new(names.len());
        let left = Mutex::new(names.into_iter());
        let decompress = || -> Result<_, Infallible> {
            let mut sections = Vec::new();
            loop {
                // A lock that is taken in the head of a loop is held in its body.
                let next = left.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(name) = next else {
                    other(&|| busy.load(Ordering::Relaxed) > 0);
                    return Ok(sections);
                };
                if let Some(section) = section(object, name) {
                    sections.push((name, section));
                }
                busy.fetch_sub(1, Ordering::Relaxed);
            }
        };
        let Ok(sections) = side_by_side(threads, decompress);
        Self(sections.into_iter().collect())
    }

    /// Opens the sections of a file with split units. `file` has its bytes.
    ///
    /// With `-fdebug-types-section`, GCC writes each type into another section of the same name,
    /// and the unit into the last one. In ELF files, these are joined.
    pub(super) fn open_split(
        object: &(dyn Dwarf<'d> + Sync),
        file: &'d [u8],
        threads: usize,
    ) -> Self {
        let mut sections = Self::open(object, &SPLIT, threads);
        if let Some(joined) = joined(file, object.endianity() == Endian::Little)
            && let Some(section) = sections.0.get_mut(SPLIT_UNITS)
        {
            section.data = joined.into();
        }
        sections
    }

    /// Adds a section.
    pub(super) fn put(&mut self, name: &'static str, section: Option<DwarfSection<'d>>) {
        self.0.extend(section.map(|section| (name, section)));
    }

    /// Repairs the line programs, for `symbolic`.
    pub(super) fn repair_lines(&mut self, endianity: Endian) {
        if let Some(section) = self.0.get_mut("debug_line") {
            line_programs::repair(&mut section.data, endianity == Endian::Little);
        }
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_section_of_any_length_is_inflated_in_steps() {
        for length in [1, STEP - 1, STEP, STEP + 1, 3 * STEP] {
            let plain: Vec<u8> = (0..length).map(|at| (at ^ at >> 8) as u8).collect();
            let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), Default::default());
            zlib.write_all(&plain).unwrap();
            let section = |claimed: usize| {
                let mut header = vec![0; 24];
                header[0] = 1;
                header[8..16].copy_from_slice(&(claimed as u64).to_le_bytes());
                header
            };
            let zlib = zlib.finish().unwrap();
            let inflated_as = |claimed| inflated(&[section(claimed), zlib.clone()].concat(), true);
            assert_eq!(inflated_as(length), Some(plain), "{length}");
            assert_eq!(inflated_as(length - 1), None, "{length}");
            assert_eq!(inflated_as(length + 1), None, "{length}");
            let cut = [section(length), zlib[..zlib.len() - 1].to_vec()].concat();
            assert_eq!(inflated(&cut, true), None, "{length}");
        }
    }
}
