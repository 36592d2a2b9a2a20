//! What other files have of an object: split units, and what `dwz` moved to a file that several share.
//!
//! A compiler that splits (`-gsplit-dwarf`) leaves a *skeleton* of each unit in the program, with its addresses, its lines and an id. The unit
//! itself has the same id, in a file of its own (`.dwo`) or in a package of such files (`.dwp`). It has its own strings; its
//! numbers of files are those of the skeleton's line program.
//!
//! Of `dwz`, a file names the shared one by its build id. Entries refer to entries and strings there.
//!
//! Sources: DWARF 5, sections 3.1.2 and 3.1.3 (units), 7.3.2 (split files), 7.3.5 (packages), 7.3.6 (supplementary files), and the extensions of
//! DWARF 4 by GNU that they were made of; the manual of `dwz`.

use std::collections::HashMap;

use gimli::{DebugInfoOffset, DwarfPackage, DwoId, EndianSlice, RunTimeEndian, UnitHeader};
use symbolic::debuginfo::elf::ElfObject;

use super::entries::{Dwarf, Slice, Unit, Units};
use super::sections::{self, Sections};

/// What only packages have: where the parts of each unit are.
const PACKAGE_INDEX: &str = "debug_cu_index";

/// Whether a file has split units, and not those that they belong to.
pub(in crate::debuginfo) fn is_split(elf: &ElfObject<'_>) -> bool {
    use symbolic::debuginfo::dwarf::Dwarf as _;
    elf.raw_section(sections::SPLIT[0]).is_some()
}

/// The sections of the companions of an object.
#[derive(Default)]
pub(super) struct Companions<'d> {
    pub(super) split: Vec<Sections<'d>>,
    pub(super) shared: Option<Sections<'d>>,
}

/// Split units, by their ids.
pub(super) struct Split<'s> {
    files: &'s [Sections<'s>],
    endian: RunTimeEndian,
    /// The units of single files: the number of the file, and where in it.
    single: HashMap<u64, (usize, DebugInfoOffset)>,
}

impl<'s> Split<'s> {
    /// Finds the units of some files. What cannot be read is not there.
    pub(super) fn open(files: &'s [Sections<'s>], endian: RunTimeEndian) -> Self {
        let mut single = HashMap::new();
        for (number, file) in files.iter().enumerate() {
            let dwarf = file.split_dwarf(endian);
            let mut units = dwarf.units();
            while let Ok(Some(header)) = units.next() {
                let unit = dwarf.unit(header);
                if let Some(DwoId(id)) = unit.ok().and_then(|unit| unit.dwo_id) {
                    let place = (number, DebugInfoOffset(header.offset().0));
                    single.entry(id).or_insert(place);
                }
            }
        }
        Self {
            files,
            endian,
            single,
        }
    }

    /// Returns the unit that a skeleton stands for.
    pub(super) fn unit<'i>(
        &self,
        id: DwoId,
        skeleton: &Unit<'i>,
        parent: &Dwarf<'i>,
    ) -> Option<Units<'i>>
    where
        's: 'i,
    {
        let mut files = self.files.iter();
        let in_package = files.find_map(|file| self.in_package(file, id, parent));
        let (dwarf, header) = in_package.or_else(|| self.in_single(id, parent))?;
        let mut unit = dwarf.unit(header).ok()?;
        unit.copy_relocated_attributes(skeleton);
        unit.line_program.clone_from(&skeleton.line_program);
        unit.comp_dir = skeleton.comp_dir.or(unit.comp_dir);
        Some(Units::of_split(dwarf, header, unit))
    }

    fn in_package<'i>(
        &self,
        file: &'i Sections<'_>,
        id: DwoId,
        parent: &Dwarf<'i>,
    ) -> Option<(Dwarf<'i>, UnitHeader<Slice<'i>>)> {
        if file.data(PACKAGE_INDEX).is_empty() {
            return None;
        }
        let section = |id| Ok::<_, gimli::Error>(file.split_section(id, self.endian));
        let package = DwarfPackage::load(section, EndianSlice::new(&[], self.endian)).ok()?;
        let dwarf = package.find_cu(id, parent).ok()??;
        let header = dwarf.units().next().ok()??;
        Some((dwarf, header))
    }

    fn in_single<'i>(
        &self,
        DwoId(id): DwoId,
        parent: &Dwarf<'i>,
    ) -> Option<(Dwarf<'i>, UnitHeader<Slice<'i>>)>
    where
        's: 'i,
    {
        let (file, offset) = self.single.get(&id)?;
        let mut dwarf = self.files.get(*file)?.split_dwarf(self.endian);
        dwarf.make_dwo(parent);
        let header = dwarf.debug_info.header_from_offset(*offset).ok()?;
        Some((dwarf, header))
    }
}

/// Returns name and build id of the file that an object shares with others.
pub(super) fn shared_file(link: &[u8]) -> Option<(String, String)> {
    let end = link.iter().position(|byte| *byte == 0)?;
    let (name, id) = link.split_at(end);
    let id: String = id
        .get(1..)?
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    (!id.is_empty()).then(|| (String::from_utf8_lossy(name).into_owned(), id))
}
