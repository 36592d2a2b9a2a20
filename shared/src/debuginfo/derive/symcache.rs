//! SymCaches: the functions and lines of native objects.
//!
//! Objects in a format that can contain DWARF, including those with symbols alone, are derived into
//! slices directly: see [`dwarf`], and so are PDBs: see [`pdb`]. For all other objects, `symbolic`
//! reads the functions and makes one SymCache, which is then cut into slices. `symbolic` can do
//! this for every object, so tests compare [`dwarf`] and [`pdb`] with it; benchmarks call it the
//! plain process.
//!
//! Reading the functions of a large file takes about as long as converting them, and the two steps
//! share only the functions. So one thread reads while another converts and writes. For a small
//! file a second thread does not pay off.

use std::borrow::Cow;
use std::convert::Infallible;
use std::error::Error;
use std::io::{self, Write};
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use symbolic::common::{Arch, DebugId};
use symbolic::debuginfo::{Function, Object, ObjectDebugSession, Symbol};
use symbolic::symcache::SymCacheConverter;
use symbolic::symcache::transform::{self, Transformer};

use super::breakpad;
use super::dwarf::{self, Program};
use super::kind::{Derive, EncodedCache, OtherFiles};
use super::pdb;
use super::pdb_links::{LinkStreams, PdbLinks};
use crate::cache::Kind;
use crate::debuginfo::auxiliary::{LineMap, MapLines};
use crate::debuginfo::blob::Contents;
use crate::debuginfo::failure::{Failure, chain, malformed, unsupported};
use crate::debuginfo::limits::{MAX_RAW_BYTES, too_large};
use crate::debuginfo::panics::STACK_BYTES;
use crate::debuginfo::slices::Bounds;
use crate::debuginfo::undecorate::undecorated;
use crate::debuginfo::{panics, slices};

/// Files of at least this size, in bytes, are read and converted in parallel.
const LARGE_FILE: usize = 32 << 20;

/// The number of lines or symbols in a batch, which a batch exceeds by less than one function. A
/// line takes about 150 bytes of memory. Batches are not counted in functions, because one function
/// may have thousands of lines.
const BATCH_WEIGHT: usize = 4096;

/// The number of batches that may wait, about 20 MB at most. `symbolic` reads a whole unit before
/// it returns the unit's functions. If fewer batches could wait than a unit fills, the threads
/// would take turns instead of running in parallel.
const WAITING_BATCHES: usize = 32;

/// Derives SymCaches.
pub(super) struct Sym;

impl Sym {
    /// Writes the SymCache of an object, as `symbolic` does.
    pub(super) fn write(
        object: &Object<'_>,
        lines: Option<&LineMap>,
        out: &mut (impl Write + Send),
    ) -> Result<(), Failure> {
        match object {
            _ if !can_have_functions(object) => Err(unsupported(format!(
                "a SymCache cannot be derived from a file of type {}",
                object.file_format()
            ))),
            // Only this call strips the decoration from the names of PE and PDB.
            Object::Pe(_) | Object::Pdb(_) => {
                let links = LinkStreams::of(object);
                let mut converter = SymCacheConverter::new();
                if let Some(links) = &links {
                    converter.add_transformer(PdbLinks::parse(links));
                }
                map_lines(&mut converter, lines);
                converter
                    .process_object(object)
                    .map_err(|error| malformed(chain(&error)))?;
                Ok(converter.serialize(out)?)
            }
            _ => {
                let session = debug_session(object)?;
                let converter = convert(object, lines, session.functions())?;
                drop(session); // frees its memory before serializing needs more
                Ok(converter.serialize(out)?)
            }
        }
    }
}

impl Derive for Sym {
    const KIND: Kind = Kind::SymCache;

    fn encode<'d>(
        object: &Object<'d>,
        other: &OtherFiles<'_, 'd>,
        cores: usize,
        contents: &Contents,
    ) -> Result<EncodedCache, Failure> {
        if let Some(program) = Program::of(object, other, cores) {
            return dwarf::encode(program, cores, contents);
        }
        if let Object::Pdb(file) = object {
            let links = LinkStreams::of(object);
            return pdb::encode(file, links.as_ref(), other, cores, contents);
        }
        let lines = other.maps.lines.as_ref();
        if let Object::Breakpad(symbols) = object
            && let Some(ordered) = breakpad::in_order(symbols.data())
        {
            let object = Object::parse(&ordered).map_err(|error| malformed(chain(&error)))?;
            return encode_by_symbolic(&object, lines, cores, contents);
        }
        encode_by_symbolic(object, lines, cores, contents)
    }
}

/// Encodes the SymCache of an object whose functions `symbolic` reads.
fn encode_by_symbolic(
    object: &Object<'_>,
    lines: Option<&LineMap>,
    cores: usize,
    contents: &Contents,
) -> Result<EncodedCache, Failure> {
    let mut raw = RawCache::default();
    let is_large = object.data().len() >= LARGE_FILE;
    if is_large && cores > 1 && can_have_functions(object) {
        write_side_by_side(object, lines, &mut raw)?;
    } else {
        Sym::write(object, lines, &mut raw)?;
    }
    let blob = slices::encode(raw.as_slice(), contents, Bounds::CURRENT, cores)?;
    Ok(EncodedCache::complete(blob))
}

/// Returns whether a SymCache can be derived from an object of this type.
fn can_have_functions(object: &Object<'_>) -> bool {
    !matches!(object, Object::SourceBundle(_) | Object::PortablePdb(_))
}

fn bad_file(error: &(dyn Error + 'static)) -> Failure {
    malformed(format!("bad debug file: {}", chain(error)))
}

/// A message from the reading thread to the converting thread.
enum Batch<'f, 's> {
    Functions(Vec<Function<'f>>),
    Symbols(Vec<Symbol<'s>>),
    /// All functions and symbols were sent.
    End,
}

/// The properties of an object that a converter needs.
#[derive(Clone, Copy)]
struct About<'l> {
    arch: Arch,
    debug_id: DebugId,
    is_windows: bool,
    is_breakpad: bool,
    /// The links to source files.
    links: Option<&'l LinkStreams>,
}

impl<'l> About<'l> {
    fn of(object: &Object<'_>, links: Option<&'l LinkStreams>) -> Self {
        Self {
            arch: object.arch(),
            debug_id: object.debug_id(),
            is_windows: matches!(object, Object::Pe(_) | Object::Pdb(_)),
            is_breakpad: matches!(object, Object::Breakpad(_)),
            links,
        }
    }
}

/// Opens a debug session. Line programs of ELF files are repaired.
fn debug_session<'d>(object: &Object<'d>) -> Result<ObjectDebugSession<'d>, Failure> {
    match object {
        Object::Elf(elf) => dwarf::debug_session(elf)
            .map(ObjectDebugSession::Dwarf)
            .map_err(|error| bad_file(&error)),
        _ => object.debug_session().map_err(|error| bad_file(&error)),
    }
}

/// Converts the functions and symbols of an object, as `process_object` does.
fn convert<'f, 'm, E: Error + 'static>(
    object: &Object<'_>,
    lines: Option<&'m LineMap>,
    functions: impl Iterator<Item = Result<Function<'f>, E>>,
) -> Result<SymCacheConverter<'m>, Failure> {
    let mut converter = converter_of(About::of(object, None), lines);
    for function in functions {
        converter.process_symbolic_function(&function.map_err(|error| bad_file(&error))?);
    }
    for symbol in object.symbols() {
        converter.process_symbolic_symbol(&symbol);
    }
    Ok(converter)
}

/// Writes the SymCache of an object with two threads.
fn write_side_by_side(
    object: &Object<'_>,
    lines: Option<&LineMap>,
    out: &mut (impl Write + Send),
) -> Result<(), Failure> {
    let session = debug_session(object)?;
    convert_beside(object, lines, out, |batches| {
        pass(session.functions(), line_count, batches, Batch::Functions)
    })
}

/// Converts in another thread what `read` sends.
fn convert_beside<'f, 'd>(
    object: &Object<'d>,
    lines: Option<&LineMap>,
    out: &mut (impl Write + Send),
    read: impl FnOnce(&SyncSender<Batch<'f, 'd>>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let links = LinkStreams::of(object);
    let about = About::of(object, links.as_ref());
    thread::scope(|scope| {
        let (sender, receiver) = sync_channel(WAITING_BATCHES);
        let converting = move || panics::caught(|| convert_batches(about, lines, &receiver, out));
        let converting = thread::Builder::new()
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, converting)?;

        read(&sender)?;
        let symbols = object.symbols().map(Ok::<_, Infallible>);
        pass(symbols, |_| 1, &sender, Batch::Symbols)?;
        // The receiver is gone only if the other thread failed. Its error gives the reason.
        let _ = sender.send(Batch::End);
        match converting.join() {
            Ok(Ok(written)) => written,
            Ok(Err(panic)) => Err(malformed(panic)),
            Err(panic) => resume_unwind(panic),
        }
    })
}

/// Sends items in batches until all are sent or the receiver is gone.
fn pass<'f, 's, T, E: Error + 'static>(
    items: impl Iterator<Item = Result<T, E>>,
    weight: impl Fn(&T) -> usize,
    batches: &SyncSender<Batch<'f, 's>>,
    batch_of: impl Fn(Vec<T>) -> Batch<'f, 's>,
) -> Result<(), Failure> {
    let (mut batch, mut total) = (Vec::new(), 0);
    for item in items {
        let item = item.map_err(|error| bad_file(&error))?;
        total += weight(&item);
        batch.push(item);
        if total >= BATCH_WEIGHT {
            total = 0;
            if batches.send(batch_of(std::mem::take(&mut batch))).is_err() {
                return Ok(());
            }
        }
    }
    // As above, the receiver may be gone.
    let _ = batches.send(batch_of(batch));
    Ok(())
}

/// Returns the number of lines of a function, including those inlined into it, plus one for each
/// function.
fn line_count(function: &Function<'_>) -> usize {
    1 + function.lines.len() + function.inlinees.iter().map(line_count).sum::<usize>()
}

/// Returns a converter for the functions and symbols of an object.
fn converter_of<'l>(
    About {
        arch,
        debug_id,
        is_windows,
        is_breakpad,
        links,
    }: About<'l>,
    lines: Option<&'l LineMap>,
) -> SymCacheConverter<'l> {
    let mut converter = SymCacheConverter::new();
    converter.set_arch(arch);
    converter.set_debug_id(debug_id);
    if is_windows {
        converter.add_transformer(Undecorate);
    }
    if is_breakpad {
        converter.add_transformer(Unnamed);
    }
    if let Some(links) = links {
        converter.add_transformer(PdbLinks::parse(links));
    }
    map_lines(&mut converter, lines);
    converter
}

/// Lets a converter replace the lines that a line map has.
fn map_lines<'m>(converter: &mut SymCacheConverter<'m>, lines: Option<&'m LineMap>) {
    if let Some(lines) = lines {
        converter.add_transformer(MapLines(lines));
    }
}

/// Strips the decoration from the names of C functions, as `process_object` does for PE and PDB,
/// also on machines without one.
struct Undecorate;

impl Transformer for Undecorate {
    fn transform_function<'f>(
        &'f mut self,
        mut function: transform::Function<'f>,
    ) -> transform::Function<'f> {
        function.name = match function.name {
            Cow::Borrowed(name) => Cow::Borrowed(undecorated(name, Arch::X86)),
            Cow::Owned(name) => Cow::Owned(undecorated(&name, Arch::X86).to_owned()),
        };
        function
    }
}

/// Removes the name that `symbolic` gives functions of Breakpad files without one.
struct Unnamed;

impl Transformer for Unnamed {
    fn transform_function<'f>(
        &'f mut self,
        mut function: transform::Function<'f>,
    ) -> transform::Function<'f> {
        if function.name == "<unknown>" {
            function.name = Cow::Borrowed("");
        }
        function
    }
}

/// Converts all batches, then writes the cache.
fn convert_batches(
    about: About<'_>,
    lines: Option<&LineMap>,
    batches: &Receiver<Batch<'_, '_>>,
    out: &mut (impl Write + Send),
) -> Result<(), Failure> {
    let mut converter = converter_of(about, lines);
    // If the channel closes without [`Batch::End`], the reading thread failed and reports its
    // error.
    while let Ok(batch) = batches.recv() {
        match batch {
            Batch::Functions(functions) => functions
                .iter()
                .for_each(|function| converter.process_symbolic_function(function)),
            Batch::Symbols(symbols) => symbols
                .iter()
                .for_each(|symbol| converter.process_symbolic_symbol(symbol)),
            Batch::End => return Ok(converter.serialize(out)?),
        }
    }
    Ok(())
}

/// A raw SymCache that is being written, at an aligned address. Its header gives the total length,
/// so memory for all of it is reserved once.
#[derive(Default)]
struct RawCache {
    words: Vec<u64>,
    length: usize,
}

impl RawCache {
    fn as_slice(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.length]
    }

    /// Reserves memory for a cache of `bytes` bytes.
    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        if bytes > MAX_RAW_BYTES {
            return Err(too_large(MAX_RAW_BYTES));
        }
        let words = usize::try_from(bytes.div_ceil(8)).unwrap_or(usize::MAX);
        let more = words.saturating_sub(self.words.len());
        self.words
            .try_reserve_exact(more)
            .map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))
    }
}

impl Write for RawCache {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let end = self.length + bytes.len();
        if end > self.words.capacity() * 8 {
            self.reserve((end as u64).next_power_of_two())?;
        }
        self.words.resize(end.div_ceil(8), 0);
        bytemuck::cast_slice_mut(&mut self.words)[self.length..end].copy_from_slice(bytes);
        self.length = end;
        if let Some(whole) = slices::length_of(self.as_slice()) {
            self.reserve(whole)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use symbolic::debuginfo::Archive;
    use symbolic::debuginfo::dwarf::Dwarf as _;

    use super::*;
    use crate::debuginfo::blob;
    use crate::debuginfo::tests::{debug_files, fixture, text};

    #[test]
    fn several_threads_write_the_same_bytes_as_one() {
        let mut compared = 0;
        for entry in debug_files() {
            let file = text(&entry, "file").unwrap();
            let dif = fixture(file);
            for object in Archive::parse(&dif).unwrap().objects() {
                let object = object.unwrap();
                if !can_have_functions(&object) {
                    continue;
                }
                let (mut expected, mut written) = (Vec::new(), Vec::new());
                Sym::write(&object, None, &mut expected).unwrap();
                write_side_by_side(&object, None, &mut written).unwrap();
                assert_eq!(written, expected, "{file}");
                compared += 1;
            }
        }
        assert!(compared > 10, "{compared}");
    }

    #[test]
    fn units_that_cannot_be_decompressed_are_malformed() {
        for name in ["elf/crash.zlib.debug", "elf/crash.zstd.debug"] {
            let mut dif = fixture(name);
            let object = Object::parse(&dif).unwrap();
            let Object::Elf(elf) = &object else { panic!() };
            let info = elf.raw_section("debug_info").unwrap();
            let (at, length) = (info.offset as usize, info.data.len());
            drop(object);
            dif[at + 30..at + length].fill(0xa5);
            let object = Object::parse(&dif).unwrap();
            let contents = blob::unfiled(Kind::SymCache, object.arch(), None);
            match Sym::encode(&object, &OtherFiles::default(), 2, &contents) {
                Err(Failure::Missing(missing)) => {
                    let detail = missing.detail;
                    assert!(
                        detail.contains("cannot be decompressed"),
                        "{name}: {detail}"
                    );
                }
                other => panic!("{name}: {other:?}"),
            }
        }
    }
}
