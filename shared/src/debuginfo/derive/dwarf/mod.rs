//! Derives the slices of a SymCache from a file with DWARF; also opens debug sessions of `symbolic`
//! on ELF files.
//!
//! Each worker takes a *run* of units, reads it into flat tables and takes the next run, until
//! none is left. Then the ranges are merged in address order, group by group. Each worker takes the
//! next group, and writes, compresses and checks the slices of its ranges. A SymCache of the whole
//! file never exists.
//!
//! The steps, one file each:
//!
//! ```text
//! companions the sections of other files that complete the program: split units, the shared file of `dwz`
//! symbols    the symbols by address, which one worker reads while another reads the abbreviations
//! sections   decompresses the other sections in parallel, and the first runs beside them
//! units      divides .debug_info into runs of whole units; if no unit refers to another, it is
//!            decompressed run by run
//! queue      passes the runs to the workers, so that memory holds about two runs per worker
//! shapes     the layout of the entries of an abbreviation, and which attributes to skip
//! steps      the forms of attributes, and how to skip and read each
//! entries    reads the functions, inlined calls and names of a run, with `gimli`
//! rows       executes line programs, and ends a sequence where its linker forgot to
//! lines      keeps the rows of a unit, by sequence
//! flatten    turns the inlined calls and rows of a function into consecutive ranges
//! merge      merges the ranges of all runs and the symbols in address order
//! encode     writes the ranges as SymCaches, one per slice
//! ```
//!
//! If two runs cover the same address, the first run wins. Lookups give the same answers as with
//! `symbolic`, which the tests use as oracle, except where `symbolic` returns less than the file
//! contains:
//!
//! - the lines of a symbol without an entry: compilers omit entries if only lines are requested;
//! - each range of a split function has the name of its own symbol.

use self::input::endian;
use super::kind::{EncodedCache, OtherFiles};
use crate::debuginfo::arriving::Arriving;
use crate::debuginfo::auxiliary::Maps;
use crate::debuginfo::blob::Contents;
use crate::debuginfo::failure::{Failure, chain, malformed, not_arrived};
use crate::debuginfo::image::{self, CodeSymbols};
use crate::debuginfo::slices;
use crate::debuginfo::slices::Bounds;
use crate::debuginfo::workers::{beside, in_order, side_by_side};

#[cfg(test)]
mod bad_input_tests;
mod companions;
mod current_unit;
pub(super) mod encode;
mod entries;
mod flatten;
mod input;
mod line_programs;
mod lines;
mod loose;
pub(super) mod merge;
#[cfg(test)]
mod name_tests;
mod names;
mod object;
mod open_entries;
mod queue;
mod ranges;
mod related;
mod rows;
mod sections;
mod shapes;
mod steps;
pub(super) mod symbols;
pub(super) mod tables;
#[cfg(test)]
mod tests;
mod units;

use std::cell::RefCell;
use std::sync::OnceLock;
use std::{io, thread};

use symbolic::common::{Arch, CpuFamily};
use symbolic::debuginfo::Object;
use symbolic::debuginfo::dwarf::{Dwarf, DwarfDebugSession, DwarfError, DwarfSection, Endian};
use symbolic::debuginfo::elf::ElfObject;

use self::companions::{CompanionSections, Split};
pub(in crate::debuginfo) use self::companions::{
    completes, is_companion, is_split_wasm, is_supplementary, needed_units, needs, split_units,
    split_units_of_coff,
};
use self::encode::SymCacheEncoder;
use self::entries::EntryReader;
use self::queue::RunQueue;
use self::sections::Sections;
pub(super) use self::sections::section;
use self::symbols::Symbols;
use self::tables::{Counts, TextRef, Texts, UnitTables};
use self::units::Units;
use crate::domain::CompanionId;

/// The minimum size of a run between the first and the last ones, in bytes.
const RUN_BYTES: usize = 4 << 20;

/// Why the units of a file cannot be read.
#[derive(Debug, thiserror::Error)]
enum UnitsError {
    #[error("its units cannot be decompressed")]
    Compression(#[from] io::Error),
}

impl From<UnitsError> for Failure {
    fn from(error: UnitsError) -> Self {
        malformed(chain(&error))
    }
}

/// The size of slices. Adjacent ranges with the same answer are merged here, so that a slice needs
/// fewer ranges than in [`Bounds::CURRENT`] to cover the same addresses. A lookup reads the same
/// number of bytes.
const BOUNDS: Bounds = Bounds {
    ranges: 1800,
    ..Bounds::CURRENT
};

/// An object with DWARF units, or with symbols alone.
pub(in crate::debuginfo) struct Program<'o, 'd> {
    sections: &'o (dyn Dwarf<'d> + Sync),
    /// The address that addresses in a SymCache are relative to.
    load_address: u64,
    arch: Arch,
    object: &'o Object<'d>,
    /// The file with the object's symbols, if that is another one.
    symbols: Option<&'d [u8]>,
    /// The sections of its companions.
    companions: CompanionSections<'d>,
    /// The name and build id of a shared file that was not found.
    lacks_shared: Option<(String, String)>,
    maps: &'o Maps<'d>,
    /// The part of its file that is still arriving.
    arriving: Option<&'d dyn Arriving>,
}

impl<'o, 'd> Program<'o, 'd> {
    /// Opens an object and its companions, whose sections are decompressed with this number of
    /// threads. Returns `None` if its format cannot contain DWARF.
    pub(in crate::debuginfo) fn of(
        object: &'o Object<'d>,
        other: &'o OtherFiles<'_, 'd>,
        threads: usize,
    ) -> Option<Self> {
        let (sections, load_address): (&(dyn Dwarf<'d> + Sync), _) = match object {
            Object::Elf(elf) => (elf, image::elf_load_address(elf)),
            Object::MachO(mach) => (mach, mach.load_address()),
            Object::Pe(pe) => (pe, pe.load_address()),
            // Its addresses are relative to its code section.
            Object::Wasm(wasm) => (wasm, wasm.code_offset().wrapping_neg()),
            _ => return None,
        };
        let (shared, lacks_shared) = match object {
            Object::Elf(elf) => shared(elf, other, threads),
            _ => (None, None),
        };
        let has_skeletons = sections.raw_section(companions::SKELETONS).is_some();
        let split = if has_skeletons { &other.split[..] } else { &[] };
        let split = split
            .iter()
            .filter_map(|file| companions::open_split(file, threads));
        Some(Self {
            companions: CompanionSections {
                split: split.collect(),
                shared,
            },
            lacks_shared,
            maps: &other.maps,
            arriving: other.arriving,
            sections,
            load_address,
            arch: object.arch(),
            object,
            symbols: other.symbols,
        })
    }

    /// Reads its code ranges and symbols.
    fn image(&self) -> CodeSymbols<'d> {
        match self.symbols.and_then(|bytes| Object::parse(bytes).ok()) {
            Some(with_symbols) => CodeSymbols::of(&with_symbols),
            None => CodeSymbols::of(self.object),
        }
    }
}

/// Returns whether a Mach-O file or a PE file has units.
pub(in crate::debuginfo) fn has_units<'d>(object: &dyn Dwarf<'d>) -> bool {
    input::raw_section(object, units::SECTION).is_some()
}

/// Opens the file of `dwz` that an object shares with others. If it is not available, returns its
/// name and build id.
fn shared<'d>(
    elf: &ElfObject<'d>,
    other: &OtherFiles<'_, 'd>,
    threads: usize,
) -> (Option<Sections<'d>>, Option<(String, String)>) {
    let Some((name, id)) = companions::shared_file(elf) else {
        return (None, None);
    };
    match (other.with_build_id)(&id).and_then(|bytes| ElfObject::parse(bytes).ok()) {
        Some(file) => {
            let sections = Sections::open(&file, &sections::SHARED, threads);
            (Some(sections), None)
        }
        None => (None, Some((name, id))),
    }
}

/// Derives the slices of a program with `workers` threads, and encodes them as a blob.
pub(super) fn encode(
    program: Program<'_, '_>,
    workers: usize,
    contents: &Contents,
) -> Result<EncodedCache, Failure> {
    encode_runs(program, RUN_BYTES, workers, contents, BOUNDS)
}

fn encode_runs(
    program: Program<'_, '_>,
    run_bytes: usize,
    workers: usize,
    contents: &Contents,
    bounds: Bounds,
) -> Result<EncodedCache, Failure> {
    let object = program.sections;
    let image = OnceLock::new();
    let read_image = || {
        image.get_or_init(|| {
            let image = program.image();
            let first_code = image.first_code();
            let symbols = Symbols::new(image.functions, image.labels).with_sizes(image.sized);
            (first_code, symbols, image.has_code_out_of_reach)
        })
    };
    let endian = endian(object.endianity());
    let arriving = program.arriving;
    let read_ahead = || {
        read_image();
    };
    let (abbreviations, units) = beside(workers, read_ahead, || {
        let abbreviations = sections::section(object, sections::FIRST);
        let bytes = abbreviations.as_ref().map(|section| &*section.data);
        let units = Units::of(object, bytes.unwrap_or_default(), run_bytes, arriving);
        (abbreviations, units)
    });
    if let (None, Some(arriving)) = (&units, arriving) {
        arriving.wait().map_err(not_arrived)?;
    }
    let names: Vec<_> = match units {
        Some(_) => sections::READ.to_vec(),
        None => sections::READ.into_iter().chain([units::SECTION]).collect(),
    };
    let queue = units.map(|units| RunQueue::of(units, workers));
    let mut sections = Sections::open_beside(object, &names, workers, |has_time| {
        if let Some(queue) = &queue {
            queue.fill(has_time);
        }
    });
    sections.put(sections::FIRST, abbreviations);
    let shared = program.companions.shared.as_ref();
    let shared_dwarf = || shared.map(|shared| shared.dwarf(shared.data(units::SECTION), endian));
    let mut parent = sections.dwarf(sections.data(units::SECTION), endian);
    if let Some(shared) = shared_dwarf() {
        parent.set_sup(shared);
    }
    let shared = shared_dwarf().map(related::RelatedUnits::open_shared);
    let (first_code, symbols, has_code_out_of_reach) = read_image();
    let about = object::Object {
        symbols,
        load_address: program.load_address,
        first_code: *first_code,
        address_bits: match program.arch.cpu_family() {
            CpuFamily::Arm32 | CpuFamily::Mips32 | CpuFamily::Mips64 => !1,
            _ => u64::MAX,
        },
        split: &Split::open(&program.companions.split, endian),
        name_in_shared: &|offset, tables| match &shared {
            Some(shared) => names::name_in(shared, offset, tables),
            None => TextRef::EMPTY,
        },
    };
    let mut runs = match queue {
        Some(queue) => read_runs(about, &sections, &queue, workers)?,
        None => read_units(about, related::RelatedUnits::open(parent), workers),
    };
    runs.sort_unstable_by_key(|tables| tables.run);
    let lacks = lacks(&runs, program.lacks_shared.as_ref(), *has_code_out_of_reach)?;
    let groups = merge::merge(&runs, symbols, bounds.ranges);
    let encoder = SymCacheEncoder {
        head: &slices::head(program.arch, contents.debug_id),
        texts: Texts {
            debug_str: sections.data("debug_str"),
            line_str: sections.data("debug_line_str"),
            symbols: symbols.all(),
            runs: &runs,
        },
        symbols,
        maps: program.maps,
        bounds,
    };
    let slices = slices::encode_in_parallel(groups, workers, contents, || encoder.cutter())?;
    // The system takes as long to free the tables as it takes to put the blob together.
    let blob = thread::scope(|scope| {
        let free = move || drop((runs, sections));
        let _ = thread::Builder::new().spawn_scoped(scope, free);
        slices::assemble(slices, contents)
    });
    Ok(EncodedCache { blob, lacks })
}

/// Derives a SymCache from an ELF file that also serves as its own split units and shared file.
#[cfg(any(test, feature = "testing"))]
pub(in crate::debuginfo) fn derive_beside_itself(
    elf: &[u8],
) -> Option<Result<EncodedCache, Failure>> {
    let object = Object::parse(elf).ok()?;
    let other = OtherFiles {
        split: vec![elf],
        with_build_id: &|_| Some(elf),
        ..OtherFiles::default()
    };
    let contents =
        crate::debuginfo::blob::unfiled(crate::cache::Kind::SymCache, object.arch(), None);
    Some(encode(Program::of(&object, &other, 1)?, 1, &contents))
}

/// Describes the units that are missing or incomplete, and how to provide them.
///
/// # Errors
///
/// No unit can be read.
fn lacks(
    runs: &[UnitTables],
    shared: Option<&(String, String)>,
    has_code_out_of_reach: bool,
) -> Result<Option<String>, Failure> {
    let mut all = Counts::default();
    for tables in runs {
        all.add(tables.counts.clone());
    }
    let (units, unread, absent) = (all.units, all.unread, all.absent);
    let is_empty = runs.iter().all(|tables| tables.bodies.is_empty());
    let mut lacks = Vec::new();
    if let Some(problem) = all.problem {
        if unread == units && is_empty {
            return Err(malformed(format!(
                "bad debug file: corrupted dwarf debug data: {problem}"
            )));
        }
        lacks.push(format!(
            "{unread} of the {units} units of its debug information cannot be read ({problem}), so their \
             functions and lines are missing: rebuild the file and upload it"
        ));
    }
    if absent > 0 {
        let file = all.absent_file.unwrap_or_default();
        let what = if units > CompanionId::MAX_UNITS {
            "the program's package, which `llvm-dwp -e PROGRAM -o PROGRAM.dwp` makes (or dwp of \
             binutils), or one zip archive with all its .dwo files"
        } else {
            "the program's .dwp, or its .dwo files"
        };
        lacks.push(format!(
            "inlined calls and names of {absent} of {units} units are in split DWARF files, the first in {file}: upload {what}"
        ));
    }
    if let Some((name, id)) = shared {
        lacks.push(format!(
            "some names are in the shared file {name} (build id {id}): upload that file too, or \
             configure a symbol server that has it"
        ));
    }
    if has_code_out_of_reach {
        lacks.push(
            "some functions cannot be looked up, because they are below the first segment of the \
             file, or more than 4 GiB above it: link them into a program of their own"
                .to_owned(),
        );
    }
    Ok((!lacks.is_empty()).then(|| lacks.join("; ")))
}

/// Reads units that do not refer to each other, run by run.
fn read_runs(
    about: object::Object<'_>,
    sections: &Sections<'_>,
    runs: &RunQueue<'_>,
    workers: usize,
) -> Result<Vec<UnitTables>, UnitsError> {
    let endian = endian(runs.endianity());
    side_by_side(workers, || {
        let mut reader = EntryReader::new(about);
        let mut read = Vec::new();
        while let Some(run) = runs.next() {
            let (number, info) = run?;
            {
                let units = related::RelatedUnits::open_alone(sections.dwarf(&info, endian));
                let mut tables = reader.read(number, &units, 0..units.len());
                tables.counts.add(units.counts);
                read.push(tables);
            }
            runs.give_back(info);
        }
        Ok(read)
    })
}

/// Reads units that may refer to each other, each as a run of its own.
fn read_units<'i>(
    about: object::Object<'i>,
    units: related::RelatedUnits<'i>,
    workers: usize,
) -> Vec<UnitTables> {
    let begin = || EntryReader::new(about);
    let mut read = in_order(units.len(), workers, begin, |reader, number| {
        let run = u32::try_from(number).unwrap_or(u32::MAX);
        reader.read(run, &units, number..number + 1)
    });
    if let Some(first) = read.first_mut() {
        first.counts.add(units.counts);
    }
    read
}

/// Opens a debug session on all units of an object.
pub(super) fn debug_session<'d>(
    object: &ElfObject<'d>,
) -> Result<DwarfDebugSession<'d>, DwarfError> {
    let mut names = sections::ALL.to_vec();
    names.push(units::SECTION);
    let mut sections = Sections::open(object, &names, sections::THREADS);
    sections.repair_lines(object.endianity());
    let all = Whole {
        object,
        sections: RefCell::new(sections),
    };
    let (load_address, kind) = (load_address(object), object.kind());
    DwarfDebugSession::parse(&all, object.symbol_map(), load_address, kind)
}

fn load_address(object: &ElfObject<'_>) -> i64 {
    // Those of kernels are in the upper half of the address space.
    object.load_address().cast_signed()
}

/// All sections of an object: those decompressed in parallel, then the others.
struct Whole<'a, 'd> {
    object: &'a ElfObject<'d>,
    sections: RefCell<Sections<'d>>,
}

impl<'d> Dwarf<'d> for Whole<'_, 'd> {
    fn endianity(&self) -> Endian {
        self.object.endianity()
    }

    fn raw_section(&self, name: &str) -> Option<DwarfSection<'d>> {
        self.object.raw_section(name)
    }

    fn section(&self, name: &str) -> Option<DwarfSection<'d>> {
        let taken = self.sections.borrow_mut().take(name);
        taken.or_else(|| self.object.section(name))
    }
}
