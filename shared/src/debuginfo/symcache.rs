//! SymCaches: functions and lines of native objects.

use std::io::BufWriter;

use symbolic::debuginfo::Object;
use symbolic::debuginfo::elf::ElfObject;
use symbolic::symcache::{SYMCACHE_VERSION, SymCache, SymCacheConverter};

use super::blob::{Contents, Sealer};
use super::build::{Derive, Failure, malformed, unsupported};
use super::inspect::chain;
use super::line_programs;
use super::lookup::OpenCache;
use crate::cache::Kind;

/// Derives SymCaches.
pub(super) struct Sym;

impl Derive for Sym {
    const KIND: Kind = Kind::SymCache;

    fn write(object: &Object<'_>, out: &mut BufWriter<Sealer>) -> Result<(), Failure> {
        if matches!(object, Object::SourceBundle(_) | Object::PortablePdb(_)) {
            return Err(unsupported(format!(
                "a SymCache is not derived from a file of type {}",
                object.file_format()
            )));
        }
        let mut converter = SymCacheConverter::new();
        match object {
            Object::Elf(elf) => process_elf(&mut converter, elf)?,
            // Only this call undecorates the names of PE and PDB.
            _ => converter
                .process_object(object)
                .map_err(|error| malformed(chain(&error)))?,
        }
        Ok(converter.serialize(out)?)
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

/// Does what `process_object` does, over line programs that are mended.
fn process_elf(converter: &mut SymCacheConverter<'_>, elf: &ElfObject<'_>) -> Result<(), Failure> {
    let bad_file = |error| malformed(format!("bad debug file: {}", chain(&error)));
    let session = line_programs::debug_session(elf).map_err(bad_file)?;
    converter.set_arch(elf.arch());
    converter.set_debug_id(elf.debug_id());
    for function in session.functions() {
        converter.process_symbolic_function(&function.map_err(bad_file)?);
    }
    for symbol in elf.symbols() {
        converter.process_symbolic_symbol(&symbol);
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
