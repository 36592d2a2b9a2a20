//! What a minidump may have, checked in its raw bytes before any of it is parsed.
//!
//! A list of a minidump refers to texts and records by their places in the file. Thousands of its
//! elements may refer to one large text, and the parser would copy it for each of them. Also, the
//! parser takes a multiple of a list's size in memory.

use bytes::Bytes;
use minidump::format::{MINIDUMP_STREAM_TYPE as Stream, MINIDUMP_VERSION};
use minidump::{Endian, Minidump};

use super::error::DumpError;
use crate::api::limits;

/// The maximum number of streams. Crashpad, with streams of its client, writes some fifty.
const STREAMS: usize = 1_024;

/// The maximum number of threads in a file. More than [`THREADS`](super::THREADS) are cut.
pub(super) const LISTED_THREADS: usize = 65_536;

/// The maximum number of modules.
pub(super) const LISTED_MODULES: usize = limits::MODULES;

/// The maximum number of memory regions.
pub(super) const REGIONS: usize = 262_144;

/// The maximum size of a name, and of a module's debug record, in bytes. Paths in Windows have at
/// most 32,767 characters.
pub(super) const TEXT_BYTES: usize = 64 * 1024;

/// The maximum size of all names and debug records together, in bytes. One that several elements
/// refer to counts for each of them, because the parser copies it for each.
const TEXTS_BYTES: usize = 16 * 1024 * 1024;

/// The size of an element of each list, and of the header.
const HEADER: usize = 32;
pub(super) const THREAD: usize = 48;
pub(super) const MODULE: usize = 108;
pub(super) const THREAD_NAME: usize = 12;
pub(super) const REGION: usize = 16;

/// Checks the header, before the directory is parsed.
pub(super) fn check_header(file: &[u8]) -> Result<(), DumpError> {
    // The parser says what is wrong with a signature or version.
    let Some(endian) = endian(file) else {
        return Ok(());
    };
    let version = number(file, 4, endian);
    if version.is_some_and(|version| version & 0xffff != MINIDUMP_VERSION as usize) {
        return Ok(());
    }
    match number(file, 8, endian) {
        Some(streams) if streams > STREAMS => Err(DumpError::too_many("streams", STREAMS)),
        _ if file.len() < HEADER => Err(minidump::Error::MissingHeader.into()),
        _ => Ok(()),
    }
}

/// Returns the byte order of a minidump, by its signature.
pub(super) fn endian(file: &[u8]) -> Option<Endian> {
    match file.get(..4)? {
        b"MDMP" => Some(Endian::Little),
        b"PMDM" => Some(Endian::Big),
        _ => None,
    }
}

/// Checks the numbers of elements of the lists that are parsed.
pub(super) fn check_counts(dump: &Minidump<'_, Bytes>) -> Result<(), DumpError> {
    let list = |stream: Stream, size: usize| -> List<'_> {
        let bytes = dump.get_raw_stream(stream as u32).unwrap_or_default();
        List::of(bytes, size, dump.endian)
    };
    let wide = dump.get_raw_stream(Stream::Memory64ListStream as u32);
    let wide = wide.unwrap_or_default();
    let regions = list(Stream::MemoryListStream, REGION).count;
    for (what, count, limit) in [
        (
            "threads",
            list(Stream::ThreadListStream, THREAD).count,
            LISTED_THREADS,
        ),
        (
            "modules",
            list(Stream::ModuleListStream, MODULE).count,
            LISTED_MODULES,
        ),
        (
            "names of threads",
            list(Stream::ThreadNamesStream, THREAD_NAME).count,
            LISTED_THREADS,
        ),
        (
            "memory regions",
            regions.max(number(wide, 0, dump.endian).unwrap_or(0)),
            REGIONS,
        ),
    ] {
        if count > limit {
            return Err(DumpError::too_many(what, limit));
        }
    }
    Ok(())
}

/// Checks the lengths of the texts and records that the lists refer to.
pub(super) fn check_texts(dump: &Minidump<'_, Bytes>, file: &[u8]) -> Result<(), DumpError> {
    let list = |stream: Stream, size: usize| -> List<'_> {
        let bytes = dump.get_raw_stream(stream as u32).unwrap_or_default();
        List::of(bytes, size, dump.endian)
    };
    let text = |at: usize| number(file, at, dump.endian).unwrap_or(0);
    let system = dump.get_raw_stream(Stream::SystemInfoStream as u32);
    let version = system.ok().and_then(|info| number(info, 24, dump.endian));
    let names = list(Stream::ThreadNamesStream, THREAD_NAME);
    let names = names
        .elements()
        .filter_map(|name| number(name, 4, dump.endian));
    let modules = list(Stream::ModuleListStream, MODULE);
    let field = |at| {
        modules
            .elements()
            .filter_map(move |module| number(module, at, dump.endian))
    };
    let texts = names.chain(version).chain(field(20)).map(text);
    // What is longer than the file cannot be read, and so is not copied.
    let mut total = 0;
    // The size of the debug record is part of the list.
    for bytes in texts.chain(field(76)).filter(|bytes| *bytes <= file.len()) {
        if bytes > TEXT_BYTES {
            return Err(DumpError::too_many("bytes in a name", TEXT_BYTES));
        }
        total += bytes;
        if total > TEXTS_BYTES {
            return Err(DumpError::too_many("bytes in all names", TEXTS_BYTES));
        }
    }
    Ok(())
}

/// The elements of a list, after their number and possibly four bytes of padding.
pub(super) struct List<'a> {
    count: usize,
    bytes: &'a [u8],
    size: usize,
}

impl<'a> List<'a> {
    pub(super) fn of(stream: &'a [u8], size: usize, endian: Endian) -> Self {
        let count = number(stream, 0, endian).unwrap_or(0);
        let length = count.saturating_mul(size);
        let start = stream.len().saturating_sub(length);
        Self {
            count,
            bytes: stream.get(start..).unwrap_or_default(),
            size,
        }
    }

    pub(super) fn elements(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.bytes.chunks_exact(self.size)
    }
}

/// Returns the 32-bit number at an offset.
pub(super) fn number(bytes: &[u8], at: usize, endian: Endian) -> Option<usize> {
    let bytes = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
    let number = match endian {
        Endian::Little => u32::from_le_bytes(bytes),
        Endian::Big => u32::from_be_bytes(bytes),
    };
    usize::try_from(number).ok()
}
