//! SymCaches: functions and lines of native objects.
//!
//! Reading functions from a large file and converting them take about as long as each other, and share nothing but the
//! functions: one thread reads, another converts and writes. A small file is done before that pays.

use std::error::Error;
use std::io::BufWriter;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use symbolic::common::{Arch, DebugId};
use symbolic::debuginfo::{Function, Object, ObjectDebugSession, Symbol};
use symbolic::symcache::{SYMCACHE_VERSION, SymCache, SymCacheConverter};

use super::blob::{Contents, Sealer};
use super::build::{Derive, Failure, malformed, unsupported};
use super::inspect::chain;
use super::line_programs;
use super::lookup::OpenCache;
use super::panics::{self, STACK_BYTES};
use crate::cache::Kind;

/// Files from this size on, in bytes, are read and converted at the same time.
const LARGE_FILE: usize = 32 << 20;

/// How many lines or symbols pass from the one thread to the other at a time, or a few more. A line in memory takes
/// some 150 bytes: by functions, which may have thousands, a batch would be of any size.
const BATCH_WEIGHT: usize = 4096;

/// How many batches may wait: enough for neither thread to wait often, little beside a unit's functions.
const WAITING_BATCHES: usize = 4;

/// Derives SymCaches.
pub(super) struct Sym;

impl Derive for Sym {
    const KIND: Kind = Kind::SymCache;

    fn write(object: &Object<'_>, out: &mut BufWriter<Sealer>) -> Result<(), Failure> {
        match object {
            Object::SourceBundle(_) | Object::PortablePdb(_) => Err(unsupported(format!(
                "a SymCache is not derived from a file of type {}",
                object.file_format()
            ))),
            // Only this call undecorates the names of PE and PDB.
            Object::Pe(_) | Object::Pdb(_) => {
                let mut converter = SymCacheConverter::new();
                converter
                    .process_object(object)
                    .map_err(|error| malformed(chain(&error)))?;
                Ok(converter.serialize(out)?)
            }
            _ => {
                let session = debug_session(object)?;
                if object.data().len() >= LARGE_FILE {
                    return convert_beside(object, session.functions(), out);
                }
                let converter = convert(object, session.functions())?;
                drop(session); // gives its memory back before more is needed
                Ok(converter.serialize(out)?)
            }
        }
    }

    fn validate(raw: &[u8], contents: &Contents) -> Result<(), String> {
        let cache = SymCache::parse(raw).map_err(|error| chain(&error))?;
        if cache.version() != SYMCACHE_VERSION {
            return Err(format!("it is a SymCache of version {}", cache.version()));
        }
        if Some(cache.debug_id()).filter(|id| !id.is_nil()) != contents.debug_id {
            return Err(format!("it is the SymCache of {}", cache.debug_id()));
        }
        validate_chains(raw).ok_or_else(|| "its inlined calls do not add up".to_owned())
    }

    fn try_out(cache: &OpenCache) {
        const FUNCTIONS: usize = 256;
        const CALLS: usize = 1024;
        let Some(cache) = cache.sym_cache() else {
            return;
        };
        for function in cache.functions().take(FUNCTIONS) {
            for location in cache.lookup(function.entry_pc().into()).take(CALLS) {
                let _ = (
                    location.function().name(),
                    location.file().map(|file| file.full_path()),
                );
            }
        }
    }
}

fn bad_file(error: &(dyn Error + 'static)) -> Failure {
    malformed(format!("bad debug file: {}", chain(error)))
}

/// What passes from the thread that reads to the one that converts.
enum Part<'f, 's> {
    Functions(Vec<Function<'f>>),
    Symbols(Vec<Symbol<'s>>),
    /// That was all.
    End,
}

/// Opens a debug session; line programs of ELF files are mended.
fn debug_session<'d>(object: &Object<'d>) -> Result<ObjectDebugSession<'d>, Failure> {
    match object {
        Object::Elf(elf) => line_programs::debug_session(elf)
            .map(ObjectDebugSession::Dwarf)
            .map_err(|error| bad_file(&error)),
        _ => object.debug_session().map_err(|error| bad_file(&error)),
    }
}

/// Does what `process_object` does.
fn convert<'f, E: Error + 'static>(
    object: &Object<'_>,
    functions: impl Iterator<Item = Result<Function<'f>, E>>,
) -> Result<SymCacheConverter<'static>, Failure> {
    let mut converter = converter_of((object.arch(), object.debug_id()));
    for function in functions {
        converter.process_symbolic_function(&function.map_err(|error| bad_file(&error))?);
    }
    for symbol in object.symbols() {
        converter.process_symbolic_symbol(&symbol);
    }
    Ok(converter)
}

/// The same, with a thread of its own for the conversion.
fn convert_beside<'f, E: Error + 'static>(
    object: &Object<'_>,
    functions: impl Iterator<Item = Result<Function<'f>, E>>,
    out: &mut BufWriter<Sealer>,
) -> Result<(), Failure> {
    let about = (object.arch(), object.debug_id());
    thread::scope(|scope| {
        let (sender, receiver) = sync_channel(WAITING_BATCHES);
        let converting = move || panics::caught(|| write_parts(about, &receiver, out));
        let converting = thread::Builder::new()
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, converting)?;

        let functions = functions.map(|function| function.map_err(|error| bad_file(&error)));
        pass(functions, lines, &sender, Part::Functions)?;
        pass(object.symbols().map(Ok), |_| 1, &sender, Part::Symbols)?;
        // Nobody listens any more only if the other thread failed: it says why.
        let _ = sender.send(Part::End);
        match converting.join() {
            Ok(Ok(written)) => written,
            Ok(Err(panic)) => Err(malformed(panic)),
            Err(panic) => resume_unwind(panic),
        }
    })
}

/// Passes items on in batches, to the last one or until nobody listens any more.
fn pass<'f, 's, T>(
    items: impl Iterator<Item = Result<T, Failure>>,
    weight: impl Fn(&T) -> usize,
    parts: &SyncSender<Part<'f, 's>>,
    part: impl Fn(Vec<T>) -> Part<'f, 's>,
) -> Result<(), Failure> {
    let (mut batch, mut total) = (Vec::new(), 0);
    for item in items {
        let item = item?;
        total += weight(&item);
        batch.push(item);
        if total >= BATCH_WEIGHT {
            total = 0;
            if parts.send(part(std::mem::take(&mut batch))).is_err() {
                return Ok(());
            }
        }
    }
    // As above: nobody may be listening any more.
    let _ = parts.send(part(batch));
    Ok(())
}

/// Returns how many lines a function has, with those inlined into it, and one for itself.
fn lines(function: &Function<'_>) -> usize {
    1 + function.lines.len() + function.inlinees.iter().map(lines).sum::<usize>()
}

fn converter_of((arch, debug_id): (Arch, DebugId)) -> SymCacheConverter<'static> {
    let mut converter = SymCacheConverter::new();
    converter.set_arch(arch);
    converter.set_debug_id(debug_id);
    converter
}

/// Converts what arrives, and writes the cache once all of it has.
fn write_parts(
    about: (Arch, DebugId),
    parts: &Receiver<Part<'_, '_>>,
    out: &mut BufWriter<Sealer>,
) -> Result<(), Failure> {
    let mut converter = converter_of(about);
    // Without an end, the file could not be read to its end.
    while let Ok(part) = parts.recv() {
        match part {
            Part::Functions(functions) => functions
                .iter()
                .for_each(|function| converter.process_symbolic_function(function)),
            Part::Symbols(symbols) => symbols
                .iter()
                .for_each(|symbol| converter.process_symbolic_symbol(symbol)),
            Part::End => return Ok(converter.serialize(out)?),
        }
    }
    Ok(())
}

/// Checks what `SymCache::parse` does not: that there is a location for each range, and that the chains of inlined
/// calls end. The converter writes a call before what is inlined into it, so that indices only ever fall.
///
/// Source of the format: the module `symbolic_symcache::raw::v9`.
fn validate_chains(raw: &[u8]) -> Option<()> {
    const HEADER_BYTES: usize = 80;
    const FILE_BYTES: usize = 24;
    const FUNCTION_BYTES: usize = 16;
    const LOCATION_BYTES: usize = 16;
    const NOWHERE: u32 = u32::MAX;
    let word = |at: usize| Some(u32::from_ne_bytes(raw.get(at..at + 4)?.try_into().ok()?) as usize);
    let (files, functions, locations, ranges) = (word(44)?, word(48)?, word(52)?, word(56)?);
    if locations < ranges {
        return None;
    }
    let start = (HEADER_BYTES + files * FILE_BYTES).next_multiple_of(8);
    let start = (start + functions * FUNCTION_BYTES).next_multiple_of(8);
    let records = raw.get(start..start.checked_add(locations.checked_mul(LOCATION_BYTES)?)?)?;
    let records: &[[u32; 4]] = bytemuck::try_cast_slice(records).ok()?;
    let calls = (locations - ranges) as u32;
    let falls = |(index, location): (usize, &[u32; 4])| {
        let inlined_into = location[3];
        inlined_into == NOWHERE || (inlined_into < calls && (inlined_into as usize) < index)
    };
    records.iter().enumerate().all(falls).then_some(())
}
