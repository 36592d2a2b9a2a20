//! Companions of an object: files with its split units, and the file with the debug information
//! that `dwz` moved out because several files share it.
//!
//! With `-gsplit-dwarf`, a compiler leaves a *skeleton* of each unit in the program, with its
//! addresses, its lines and an id. The unit itself has the same id and is in a file of its own
//! (`.dwo`) or in a package of such files (`.dwp`). It has its own strings. Its file numbers refer
//! to the line program of the skeleton.
//!
//! A `.dwo` file has the format of the compiler's object files: ELF, COFF for programs of Windows,
//! or WebAssembly. `llvm-dwp` writes an ELF package of COFF files, and a WebAssembly package of
//! WebAssembly files.
//!
//! A file that `dwz` processed names the shared file by its build id. Its entries refer to entries
//! and strings in the shared file.
//!
//! Sources: DWARF 5, sections 3.1.2 and 3.1.3 (units), 7.3.2 (split files), 7.3.5 (packages), 7.3.6
//! (supplementary files), and the GNU extensions of DWARF 4 on which these are based; the manual of
//! `dwz`.

use std::collections::HashMap;

use gimli::{
    DebugInfoOffset, DwarfPackage, DwoId, EndianSlice, Reader as _, RunTimeEndian, UnitHeader,
    UnitType,
};
use symbolic::debuginfo::ObjectKind;
use symbolic::debuginfo::dwarf::{Dwarf as ObjectDwarf, Endian};
use symbolic::debuginfo::elf::ElfObject;
use symbolic::debuginfo::wasm::WasmObject;

use super::input::{Dwarf, Section, Unit, endian};
use super::related::RelatedUnits;
use super::sections::{self, Sections};
use super::units;
use crate::debuginfo::arriving::Arriving;
use crate::debuginfo::coff::CoffObject;
use crate::debuginfo::reader::ByteReader;
use crate::domain::{CodeId, CompanionId};

/// The section that gives the place of each unit in a package. Only packages have it.
const PACKAGE_INDEX: &str = "debug_cu_index";

/// The section that names the shared file of `dwz`.
const LINK: &str = "gnu_debugaltlink";

/// The section that names the shared file in DWARF 5, and gives its id in the shared file itself.
const SUPPLEMENTARY: &str = "debug_sup";

/// The section with the addresses that split units refer to. Every program with split units has it.
pub(super) const SKELETONS: &str = "debug_addr";

/// The minimum size of the runs in which skeletons are searched for, except the first and the last
/// ones, in bytes.
const RUN_BYTES: usize = 1 << 20;

/// The number of ids of skeletons that are kept while units are read.
const MAX_IDS: usize = 1 << 16;

/// Returns whether a file only completes programs: it contains split units, or it is a shared file
/// without a build id.
pub(in crate::debuginfo) fn is_companion(elf: &ElfObject<'_>) -> bool {
    is_split(elf) || (elf.code_id().is_none() && supplementary_id(elf).is_some())
}

/// Returns whether a file contains split units, as opposed to the program that they belong to.
fn is_split(object: &dyn ObjectDwarf<'_>) -> bool {
    object.raw_section(sections::SPLIT_UNITS).is_some()
}

/// Returns whether a WebAssembly module only completes programs. A program may contain split units,
/// too: `wasm-ld` copies sections that it does not know.
pub(in crate::debuginfo) fn is_split_wasm(wasm: &WasmObject<'_>) -> bool {
    is_split(wasm) && wasm.raw_section(units::SECTION).is_none()
}

/// Returns whether a file is the shared file with this id, which is not a build id.
pub(in crate::debuginfo) fn is_supplementary(file: &[u8], id: &str) -> bool {
    let elf = ElfObject::parse(file).ok();
    elf.and_then(|elf| supplementary_id(&elf))
        .is_some_and(|known| known == id)
}

/// Returns the ids of the debug information that a file provides to programs: its split units, or
/// itself if it is a shared file of `dwz`.
///
/// At most [`CompanionId::MAX_OF_PACKAGE`] units are returned, lowest ids first. A program with
/// too many split units searches for its lowest id only (see [`needs()`]). It can therefore find
/// its package, but not all of its single `.dwo` files.
pub(in crate::debuginfo) fn completes(elf: &ElfObject<'_>) -> Vec<CompanionId> {
    if is_split(elf) {
        return split_units(elf, elf.data());
    }
    let is_shared = elf.kind() == ObjectKind::Relocatable && elf.raw_section("text").is_none();
    let build_id = elf.code_id().filter(|_| is_shared);
    let id = supplementary_id(elf).map(CodeId::new);
    let ids = build_id.into_iter().chain(id);
    ids.map(CompanionId::Shared).collect()
}

/// Returns the ids of the split units in a file, of which `file` has the bytes.
pub(in crate::debuginfo) fn split_units<'d>(
    object: &(dyn ObjectDwarf<'d> + Sync),
    file: &'d [u8],
) -> Vec<CompanionId> {
    let endian = endian(object.endianity());
    let file = Sections::open_split(object, file, sections::THREADS);
    let mut ids = if is_package(&file) {
        let little_endian = object.endianity() == Endian::Little;
        ids_of_package(file.data(PACKAGE_INDEX), little_endian)
    } else {
        units_of(&file.split_dwarf(endian))
    };
    keep_lowest(&mut ids, CompanionId::MAX_OF_PACKAGE);
    ids.into_iter().map(CompanionId::unit).collect()
}

/// Returns the ids of the split units in an object file of Windows. Returns `None` if the file is
/// none, or has no split units.
pub(in crate::debuginfo) fn split_units_of_coff(file: &[u8]) -> Option<Vec<CompanionId>> {
    let coff = CoffObject::parse(file).filter(|coff| is_split(coff))?;
    Some(split_units(&coff, file))
}

/// Opens a file with split units, of any format.
pub(super) fn open_split(file: &[u8], threads: usize) -> Option<Sections<'_>> {
    if let Some(coff) = CoffObject::parse(file) {
        return Some(Sections::open_split(&coff, file, threads));
    }
    if WasmObject::test(file) {
        let wasm = WasmObject::parse(file).ok()?;
        return Some(Sections::open_split(&wasm, file, threads));
    }
    let elf = ElfObject::parse(file).ok()?;
    Some(Sections::open_split(&elf, file, threads))
}

/// Returns the ids of the debug information that an ELF program needs from companions: the
/// counterpart of [`completes()`].
pub(in crate::debuginfo) fn needs<'d>(
    elf: &ElfObject<'d>,
    arriving: Option<&'d dyn Arriving>,
) -> Vec<CompanionId> {
    let shared = shared_file(elf);
    let shared = shared.map(|(_, id)| CompanionId::Shared(CodeId::new(id)));
    let units = needed_units(elf, arriving);
    shared.into_iter().chain(units).collect()
}

/// Returns the ids of the split units that a program needs: the counterpart of [`split_units()`].
pub(in crate::debuginfo) fn needed_units<'d>(
    object: &(dyn ObjectDwarf<'d> + Sync),
    arriving: Option<&'d dyn Arriving>,
) -> Vec<CompanionId> {
    let mut units = skeletons(object, RUN_BYTES, arriving);
    keep_lowest(&mut units, CompanionId::MAX_UNITS + 1);
    if units.len() > CompanionId::MAX_UNITS {
        units.truncate(1);
    }
    units.into_iter().map(CompanionId::unit).collect()
}

/// Returns the ids of the skeletons in a program, whose units are read in runs of this size. Of
/// more than [`CompanionId::MAX_UNITS`], some may be left out, but not the lowest.
fn skeletons<'d>(
    object: &(dyn ObjectDwarf<'d> + Sync),
    run_bytes: usize,
    arriving: Option<&'d dyn Arriving>,
) -> Vec<u64> {
    if object.raw_section(SKELETONS).is_none() {
        return Vec::new();
    }
    let open = |names: &[&'static str]| Sections::open(object, names, sections::THREADS);
    let endian = endian(object.endianity());
    let sections = open(&[sections::FIRST]);
    let abbreviations = sections.data(sections::FIRST);
    // Clang writes the section that skeletons need into other programs, too.
    if !units::may_be_skeletons(abbreviations, object.endianity() == Endian::Little) {
        return Vec::new();
    }
    let Some(mut runs) = units::Units::of(object, abbreviations, run_bytes, arriving) else {
        // If the units do not arrive, the parent process ignores the result.
        let _ = arriving.map(Arriving::wait);
        let info = open(&[units::SECTION]);
        return units_of(&sections.dwarf(info.data(units::SECTION), endian));
    };
    let mut ids = Vec::new();
    while let Some(Ok(run)) = runs.next_run(Vec::new()) {
        ids.extend(units_of(&sections.dwarf(&run, endian)));
        if ids.len() > MAX_IDS {
            keep_lowest(&mut ids, CompanionId::MAX_UNITS + 1);
        }
    }
    ids
}

/// Sorts ids, and keeps at most a number of different ones, the lowest.
fn keep_lowest(ids: &mut Vec<u64>, most: usize) {
    ids.sort_unstable();
    ids.dedup();
    ids.truncate(most);
}

/// Returns the ids of the skeletons and split units in a file.
fn units_of(dwarf: &Dwarf<'_>) -> Vec<u64> {
    let mut ids = Vec::new();
    let mut headers = dwarf.units();
    while let Ok(Some(header)) = headers.next() {
        let id = match header.type_() {
            UnitType::Skeleton(DwoId(id)) | UnitType::SplitCompilation(DwoId(id)) => Some(id),
            _ if header.version() < 5 => id_by_gnu(dwarf, header),
            _ => None,
        };
        ids.extend(id);
    }
    ids
}

/// Returns the id of a unit before DWARF 5, which is an attribute.
fn id_by_gnu<'i>(dwarf: &Dwarf<'i>, header: UnitHeader<Section<'i>>) -> Option<u64> {
    let abbreviations = dwarf.abbreviations(&header).ok()?;
    let mut entries = header.entries_raw(&abbreviations, None).ok()?;
    let unit = entries.read_abbreviation().ok()??;
    for spec in unit.attributes() {
        let attribute = entries.read_attribute(*spec).ok()?;
        if attribute.name() == gimli::DW_AT_GNU_dwo_id {
            return attribute.udata_value();
        }
    }
    None
}

/// Returns the ids in the index of a package.
fn ids_of_package(index: &[u8], little_endian: bool) -> Vec<u64> {
    let mut reader = ByteReader::new(index, little_endian);
    // The version and the numbers of columns and units come before the number of slots.
    reader.at = 12;
    let slots = reader.unsigned(4).unwrap_or_default();
    let ids = (0..slots).map_while(|_| reader.unsigned(8));
    ids.filter(|id| *id != 0).collect()
}

/// The sections of the companions of an object.
#[derive(Default)]
pub(super) struct CompanionSections<'d> {
    pub(super) split: Vec<Sections<'d>>,
    pub(super) shared: Option<Sections<'d>>,
}

/// Split units, by id.
pub(super) struct Split<'s> {
    files: &'s [Sections<'s>],
    endian: RunTimeEndian,
    /// The units of files that are not packages: the number of the file, and the offset in it.
    single: HashMap<u64, (usize, DebugInfoOffset)>,
}

impl<'s> Split<'s> {
    /// Finds the units of some files. Units that cannot be read are ignored.
    pub(super) fn open(files: &'s [Sections<'s>], endian: RunTimeEndian) -> Self {
        let mut single = HashMap::new();
        for (number, file) in files
            .iter()
            .enumerate()
            .filter(|(_, file)| !is_package(file))
        {
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
    ) -> Option<RelatedUnits<'i>>
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
        Some(RelatedUnits::of_split(dwarf, header, unit))
    }

    fn in_package<'i>(
        &self,
        file: &'i Sections<'_>,
        id: DwoId,
        parent: &Dwarf<'i>,
    ) -> Option<(Dwarf<'i>, UnitHeader<Section<'i>>)> {
        if !is_package(file) {
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
    ) -> Option<(Dwarf<'i>, UnitHeader<Section<'i>>)>
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

fn is_package(file: &Sections<'_>) -> bool {
    !file.data(PACKAGE_INDEX).is_empty()
}

/// Returns the name and the id of the shared file that a file refers to.
pub(super) fn shared_file(elf: &ElfObject<'_>) -> Option<(String, String)> {
    if let Some(link) = elf.section(LINK) {
        let end = link.data.iter().position(|byte| *byte == 0)?;
        let (name, id) = link.data.split_at(end);
        return named(name, id.get(1..)?);
    }
    match supplementary(elf)? {
        (false, name, id) => named(&name, &id),
        (true, ..) => None,
    }
}

/// Returns the id of a shared file of DWARF 5.
fn supplementary_id(elf: &ElfObject<'_>) -> Option<String> {
    match supplementary(elf)? {
        (true, name, id) => named(&name, &id).map(|(_, id)| id),
        (false, ..) => None,
    }
}

/// Returns the contents of the section [`SUPPLEMENTARY`]: whether the file is the shared one, the
/// name of the shared file, and its id.
fn supplementary(elf: &ElfObject<'_>) -> Option<(bool, Vec<u8>, Vec<u8>)> {
    let section = elf.section(SUPPLEMENTARY)?;
    let mut rest = EndianSlice::new(&section.data, endian(elf.endianity()));
    let version = rest.read_u16().ok()?;
    let is_shared = rest.read_u8().ok()?;
    let name = rest.read_null_terminated_slice().ok()?;
    let length = usize::try_from(rest.read_uleb128().ok()?).ok()?;
    let id = rest.split(length).ok()?;
    let is_known = version == 5 && is_shared <= 1;
    is_known.then(|| (is_shared == 1, name.to_vec(), id.to_vec()))
}

/// Returns the name and the id as text; `None` if the id is empty.
fn named(name: &[u8], id: &[u8]) -> Option<(String, String)> {
    let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    (!id.is_empty()).then(|| (String::from_utf8_lossy(name).into_owned(), id))
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Read};

    use symbolic::debuginfo::Object;

    use super::*;
    use crate::cache::Kind;
    use crate::debuginfo::blob;
    use crate::debuginfo::coff::tests::coff_of;
    use crate::debuginfo::derive::dwarf::bad_input_tests::leb128;
    use crate::debuginfo::derive::dwarf::{Program, encode};
    use crate::debuginfo::derive::kind::{EncodedCache, OtherFiles};
    use crate::debuginfo::tests::{Opened, fixture};

    /// A section and its name, which is given without the dot before it.
    type NamedSection = (&'static str, Vec<u8>);

    /// Returns the members of an archive.
    fn members(archive: &str) -> Vec<Vec<u8>> {
        let mut archive = zip::ZipArchive::new(Cursor::new(fixture(archive))).unwrap();
        let members = (0..archive.len()).map(|number| {
            let mut bytes = Vec::new();
            let mut member = archive.by_index(number).unwrap();
            member.read_to_end(&mut bytes).unwrap();
            bytes
        });
        members.collect()
    }

    /// Returns the sections of an ELF file that have one of these names.
    fn sections_of(elf: &[u8], names: &[&'static str]) -> Vec<NamedSection> {
        let elf = ElfObject::parse(elf).unwrap();
        let section = |name: &&'static str| Some((*name, elf.section(name)?.data.into_owned()));
        names.iter().filter_map(section).collect()
    }

    /// Returns a WebAssembly module with nothing but sections.
    fn wasm_of(sections: &[NamedSection]) -> Vec<u8> {
        let mut wasm = b"\0asm\x01\0\0\0".to_vec();
        for (name, bytes) in sections {
            let name = format!(".{name}");
            let content = [&leb128(name.len() as u32)[..], name.as_bytes(), bytes].concat();
            wasm.push(0);
            wasm.extend(leb128(content.len() as u32));
            wasm.extend(content);
        }
        wasm
    }

    /// The sections of a program that are needed to read its skeletons.
    fn skeletons_of(elf: &[u8]) -> Vec<NamedSection> {
        let names = [sections::FIRST, units::SECTION].into_iter();
        sections_of(elf, &names.chain(sections::READ).collect::<Vec<_>>())
    }

    /// Returns a program of MinGW with these skeletons.
    fn pe_of(skeletons: &[NamedSection]) -> Vec<u8> {
        let mut pe = fixture("zoo/mingw.exe");
        let place = |pe: &[u8], name: &[u8]| {
            let mut places = pe.windows(name.len());
            places.position(|bytes| bytes == name).unwrap()
        };
        let name = place(&pe, b".debug_ranges\0");
        pe[name..name + 13].copy_from_slice(b".debug_addr\0\0");
        for (name, bytes) in skeletons {
            // The offset of its name in the string table.
            let header = match *name {
                sections::FIRST => place(&pe, b"/4\0\0\0\0\0\0"),
                units::SECTION => place(&pe, b"/18\0\0\0\0\0"),
                _ => continue,
            };
            let (start, length) = (pe.len() as u32, bytes.len() as u32);
            pe[header + 8..header + 12].copy_from_slice(&length.to_le_bytes());
            pe[header + 16..header + 20].copy_from_slice(&length.to_le_bytes());
            pe[header + 20..header + 24].copy_from_slice(&start.to_le_bytes());
            pe.extend(bytes);
        }
        pe
    }

    /// Makes a file with these sections.
    type MakeFile = fn(&[NamedSection]) -> Vec<u8>;

    /// The formats of files with split units besides ELF.
    const FORMATS: [MakeFile; 3] = [
        |sections| coff_of(sections, false),
        |sections| coff_of(sections, true),
        wasm_of,
    ];

    fn encoded(program: &[u8], split: &[Vec<u8>]) -> EncodedCache {
        let object = Object::parse(program).unwrap();
        let other = OtherFiles {
            split: split.iter().map(Vec::as_slice).collect(),
            ..OtherFiles::default()
        };
        let contents = blob::unfiled(Kind::SymCache, object.arch(), None);
        encode(Program::of(&object, &other, 1).unwrap(), 1, &contents).unwrap()
    }

    #[test]
    fn split_units_in_object_files_of_windows_and_in_webassembly_are_read() {
        for archive in ["zoo/split-single.zip", "zoo/split-packaged.zip"] {
            let members = members(archive);
            let (program, others) = members.split_first().unwrap();
            assert!(encoded(program, &[]).lacks.is_some(), "{archive}");
            let expected = encoded(program, others);
            assert_eq!(expected.lacks, None, "{archive}");
            for wrapped in FORMATS {
                let files = others.iter();
                let files = files.map(|other| wrapped(&sections_of(other, &sections::SPLIT)));
                let found = encoded(program, &files.collect::<Vec<_>>());
                assert_eq!(found.lacks, None, "{archive}");
                assert!(found.blob == expected.blob, "{archive}");
            }
        }
    }

    #[test]
    fn programs_of_every_format_need_what_their_companions_complete() {
        let members = members("zoo/split-single.zip");
        let (program, others) = members.split_first().unwrap();
        let alone = |program: &[u8]| Opened::together(&[(program, None)]).inspection;
        let needed = alone(program).objects[0].needs.clone();
        assert_eq!(needed.len(), 2);
        let skeletons = skeletons_of(program);
        for program in [pe_of(&skeletons), wasm_of(&skeletons)] {
            assert_eq!(alone(&program).objects[0].needs, needed);
            for wrapped in FORMATS {
                let wrapped = |other: &Vec<u8>| wrapped(&sections_of(other, &sections::SPLIT));
                let companions: Vec<Vec<u8>> = others.iter().map(wrapped).collect();
                let completes = companions.iter().flat_map(|file| alone(file).completes);
                let mut completes: Vec<CompanionId> = completes.collect();
                completes.sort_unstable();
                assert_eq!(completes, needed);
                let companions = companions.iter().map(|file| (file.as_slice(), None));
                let files = [(program.as_slice(), None)].into_iter().chain(companions);
                let together = Opened::together(&files.collect::<Vec<_>>()).inspection;
                let [object] = together.objects.as_slice() else {
                    panic!("{together:?}");
                };
                assert_eq!(object.needs, []);
                assert!(object.is_accompanied);
            }
        }
    }

    #[test]
    fn a_webassembly_program_has_the_calls_that_are_in_its_split_units() {
        let members = members("zoo/split-single.zip");
        let (program, others) = members.split_first().unwrap();
        let program = wasm_of(&skeletons_of(program));
        let alone = encoded(&program, &[]);
        let lacks = alone.lacks.unwrap();
        assert!(lacks.contains("split DWARF files"), "{lacks}");
        let files = others.iter();
        let files = files.map(|other| wasm_of(&sections_of(other, &sections::SPLIT)));
        let together = encoded(&program, &files.collect::<Vec<_>>());
        assert_eq!(together.lacks, None);
        assert!(together.blob != alone.blob);
    }

    #[test]
    fn a_webassembly_program_with_copied_split_units_is_no_companion() {
        let members = members("zoo/split-single.zip");
        let mut sections = skeletons_of(&members[0]);
        sections.extend(sections_of(&members[1], &sections::SPLIT));
        let program = wasm_of(&sections);
        let inspection = Opened::together(&[(program.as_slice(), None)]).inspection;
        assert_eq!(inspection.objects.len(), 1);
        assert_eq!(inspection.completes, []);
    }

    #[test]
    fn a_skeleton_behind_other_units_is_found() {
        let program = members("zoo/split-late.zip").swap_remove(0);
        let elf = ElfObject::parse(&program).unwrap();
        let all = skeletons(&elf, usize::MAX, None);
        assert_eq!(all.len(), 1);
        // Each unit is a run.
        assert_eq!(skeletons(&elf, 1, None), all);
    }
}
