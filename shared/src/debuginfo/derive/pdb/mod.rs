//! Derives the slices of a SymCache from a PDB.
//!
//! Each worker takes a *run* of modules, reads it into flat tables and takes the next run, until
//! none is left. The rest is done as for [`super::dwarf`]: all ranges are merged in address order,
//! and the workers write the slices. A SymCache of the whole file never exists. The crate `pdb`
//! reads the records, and `pdb-addr2line` formats names, as in `symbolic`.
//!
//! ```text
//! streams    the streams of a PDB: workers share the copies of large ones
//! modules    divides modules into runs
//! functions  reads the functions, inlined calls, names and lines of a run
//! ranges     turns a function into consecutive ranges
//! ```
//!
//! Lookups give the same answers as with `symbolic`, which the tests use as oracle, except that a
//! module that cannot be read costs its functions only, and that calls are kept that no line of
//! their caller covers. The formatter of names remembers the sizes of types that it has met, so it
//! is a new one in each run: what it returns, and so the blob, is the same for any number of
//! workers.

mod functions;
mod modules;
mod ranges;
mod streams;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use pdb_addr2line::pdb::{self, FallibleIterator, ImageSectionHeader, StreamIndex};
use pdb_addr2line::{ModuleProvider, TypeFormatter};
use symbolic::common::Arch;
use symbolic::debuginfo::Symbol;
use symbolic::debuginfo::pdb::PdbObject;

use self::functions::{ModuleReader, Shared};
use self::modules::{OpenModules, RUN_BYTES};
use self::streams::{Pdb, PdbBytes, SharedStreams};
use super::dwarf::encode::SymCacheEncoder;
use super::dwarf::merge;
use super::dwarf::symbols::Symbols;
use super::dwarf::tables::{Texts, UnitTables};
use super::kind::{EncodedCache, OtherFiles};
use super::pdb_links::{LinkStreams, PdbLinks};
use crate::debuginfo::blob::Contents;
use crate::debuginfo::failure::{Failure, chain, malformed};
use crate::debuginfo::image::CodeSymbols;
use crate::debuginfo::slices::{self, Bounds};
use crate::debuginfo::undecorate::undecorated;
use crate::debuginfo::workers::deep_side_by_side;

/// Derives the slices of a PDB with `workers` threads, and encodes them as a blob.
pub(super) fn encode(
    object: &PdbObject<'_>,
    links: Option<&LinkStreams>,
    other: &OtherFiles<'_, '_>,
    workers: usize,
    contents: &Contents,
) -> Result<EncodedCache, Failure> {
    let bounds = Bounds::CURRENT;
    encode_runs(object, links, other, RUN_BYTES, workers, contents, bounds)
}

fn encode_runs(
    object: &PdbObject<'_>,
    links: Option<&LinkStreams>,
    other: &OtherFiles<'_, '_>,
    run_bytes: u64,
    workers: usize,
    contents: &Contents,
    bounds: Bounds,
) -> Result<EncodedCache, Failure> {
    let shared = SharedStreams::default();
    let bytes = PdbBytes {
        file: object.data(),
        shared: &shared,
    };
    let links = links.map(|links| Mutex::new(PdbLinks::parse(links)));
    let runs = runs_of(bytes, run_bytes).map_err(bad_file)?;
    let mut read =
        read_runs(bytes, &runs, links.as_ref(), object.arch(), workers).map_err(bad_file)?;
    read.sort_unstable_by_key(|run| run.tables.run);
    let mut unread = Unread::default();
    let mut tables = Vec::with_capacity(read.len());
    for run in read {
        unread.add(run.unread);
        tables.push(run.tables);
    }
    let lacks = unread.lacks(&tables)?;
    let code = code_of(bytes).unwrap_or_default();
    let functions = CodeSymbols::within(code, 0, symbols_of(object), Vec::new()).functions;
    let symbols = Symbols::new(functions, Vec::new());
    let groups = merge::merge_all(&tables, &symbols, bounds.ranges);
    let encoder = SymCacheEncoder {
        head: &slices::head(object.arch(), contents.debug_id),
        texts: Texts {
            debug_str: &[],
            line_str: &[],
            symbols: symbols.all(),
            runs: &tables,
        },
        symbols: &symbols,
        maps: &other.maps,
        bounds,
    };
    let slices = slices::encode_in_parallel(groups, workers, contents, || encoder.cutter())?;
    let blob = slices::assemble(slices, contents);
    Ok(EncodedCache { blob, lacks })
}

fn bad_file(error: pdb::Error) -> Failure {
    malformed(format!("bad debug file: {}", chain(&error)))
}

/// Returns the address ranges of code in the file of a PDB, which is not needed for that.
fn code_of(bytes: PdbBytes<'_>) -> Option<Vec<Range<u64>>> {
    let mut pdb = Pdb::open(bytes).ok()?;
    let sections = pdb.sections().ok()??.into_iter();
    let code = sections.filter(|section| section.characteristics.execute());
    let range = |section: ImageSectionHeader| {
        let size = section.virtual_size.max(section.size_of_raw_data);
        let start = u64::from(section.virtual_address);
        start..start + u64::from(size)
    };
    Some(code.map(range).collect())
}

/// Returns the public symbols of a PDB.
fn symbols_of<'d>(object: &PdbObject<'d>) -> Vec<Symbol<'d>> {
    let symbols = object.symbols().map(|mut symbol| {
        symbol.name = symbol.name.map(|name| match name {
            Cow::Borrowed(name) => Cow::Borrowed(undecorated(name, object.arch())),
            Cow::Owned(mut name) => {
                let plain = undecorated(&name, object.arch());
                if plain.len() < name.len() {
                    name = plain.to_owned();
                }
                Cow::Owned(name)
            }
        });
        symbol
    });
    symbols.collect()
}

/// The modules that cannot be read.
#[derive(Debug, Default)]
struct Unread {
    modules: usize,
    unread: usize,
    /// The error of the first of them.
    problem: Option<String>,
}

impl Unread {
    /// Adds the counts of later modules.
    fn add(&mut self, other: Self) {
        self.modules += other.modules;
        self.unread += other.unread;
        self.problem = self.problem.take().or(other.problem);
    }

    /// Describes what is missing, and how to provide it.
    ///
    /// # Errors
    ///
    /// There is no function.
    fn lacks(self, tables: &[UnitTables]) -> Result<Option<String>, Failure> {
        let Some(problem) = self.problem else {
            return Ok(None);
        };
        if tables.iter().all(|tables| tables.bodies.is_empty()) {
            return Err(malformed(format!("bad debug file: {problem}")));
        }
        let (unread, modules) = (self.unread, self.modules);
        Ok(Some(format!(
            "{unread} of the {modules} modules of the PDB cannot be read ({problem}), so their functions and \
             lines are missing: rebuild the file and upload it"
        )))
    }
}

/// The contents of a run of modules.
struct ReadRun {
    tables: UnitTables,
    unread: Unread,
}

/// Divides the modules of a PDB into runs.
fn runs_of(bytes: PdbBytes<'_>, run_bytes: u64) -> pdb::Result<Vec<Range<usize>>> {
    let mut pdb = Pdb::open(bytes)?;
    let stream = pdb.raw_stream(StreamIndex(modules::STREAM))?;
    let sizes = stream.map(|stream| modules::sizes(&stream));
    Ok(modules::runs(&sizes.unwrap_or_default(), run_bytes))
}

/// Reads all runs.
fn read_runs(
    bytes: PdbBytes<'_>,
    runs: &[Range<usize>],
    links: Option<&Mutex<PdbLinks<'_>>>,
    arch: Arch,
    workers: usize,
) -> pdb::Result<Vec<ReadRun>> {
    let next = AtomicUsize::new(0);
    let workers = workers.min(runs.len()).max(1);
    deep_side_by_side(workers, || {
        let mut pdb = Pdb::open(bytes)?;
        let about = pdb.debug_information()?;
        let (types, ids) = (pdb.type_information()?, pdb.id_information()?);
        let strings = match pdb.string_table() {
            Ok(strings) => Some(strings),
            Err(pdb::Error::StreamNameNotFound) => None,
            Err(error) => return Err(error),
        };
        let addresses = pdb.address_map()?;
        let pdb = RefCell::new(pdb);
        let mut read = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(run) = runs.get(number) else {
                return Ok(read);
            };
            let list = about.modules()?.collect::<Vec<_>>()?;
            let open = OpenModules::new(&pdb, list.len());
            let (strings, flags) = (strings.as_ref(), Default::default());
            let formatter =
                TypeFormatter::new_from_parts(&open, list, &about, &types, &ids, strings, flags)?;
            let shared = Shared {
                formatter: &formatter,
                addresses: &addresses,
                strings,
                links,
                arch,
            };
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            read.push(read_run(number, run.clone(), &open, shared));
        }
    })
}

/// Reads the modules of a run.
fn read_run<'r, 's>(
    number: u32,
    run: Range<usize>,
    open: &'r OpenModules<'_, 's>,
    shared: Shared<'r, 's, '_>,
) -> ReadRun {
    let mut reader = ModuleReader::new(number, shared);
    let mut unread = Unread::default();
    for number in run {
        let Some(module) = shared.formatter.modules().get(number) else {
            continue;
        };
        let read = match open.get_module_info(number, module) {
            Ok(Some(module)) => reader.read(number, module),
            Ok(None) => continue,
            Err(error) => Err(error.into()),
        };
        unread.modules += 1;
        if let Err(error) = read {
            unread.unread += 1;
            unread.problem.get_or_insert_with(|| chain(&error));
        }
    }
    let mut tables = reader.tables;
    tables.shrink();
    ReadRun { tables, unread }
}
