//! CFI caches: what it takes to unwind, as Breakpad records behind a preamble of eight bytes.

use std::io::{self, BufWriter, Write};

use symbolic::cfi::{
    AsciiCfiWriter, CFICACHE_LATEST_VERSION, CFICACHE_MAGIC, CfiCache, CfiErrorKind,
};
use symbolic::common::ByteView;
use symbolic::debuginfo::dwarf::Dwarf as _;
use symbolic::debuginfo::{Object, ObjectKind};

use super::blob::{self, BlobFault, Contents, MAX_RAW_BYTES};
use super::build::{Beside, Derive, EncodedCache, Failure, io_error, malformed, unsupported};
use super::inspect::chain;
use super::slices::{self, Bounds, CfiSource, SliceIndex};
use crate::cache::Kind;

/// A function's unwind information may refer to that of another, which may refer on: in a good PE a few times, in a bad
/// one for ever.
const MAX_UNWIND_CHAIN: usize = 256;

const PREAMBLE_BYTES: usize = 8;

const BUFFER_BYTES: usize = 1 << 16;

/// Derives CFI caches.
pub(super) struct Cfi;

impl Derive for Cfi {
    const KIND: Kind = Kind::CfiCache;

    /// Writes what `CfiCache::from_object` would, without holding it in memory first.
    fn write(object: &Object<'_>, out: &mut (impl Write + Send)) -> Result<(), Failure> {
        out.write_all(&CFICACHE_MAGIC.to_ne_bytes())?;
        out.write_all(&CFICACHE_LATEST_VERSION.to_ne_bytes())?;
        write_records(object, out)
    }

    fn encode<'d>(
        object: &Object<'d>,
        _: &Beside<'_, 'd>,
        _: usize,
        contents: &Contents,
    ) -> Result<EncodedCache, Failure> {
        let unwinding = CfiSource::of(|out| write_records(object, out))?;
        let blob = slices::encode_cfi(&unwinding, contents, Bounds::CURRENT)?;
        Ok(EncodedCache::whole(blob))
    }

    fn validate(raw: &[u8], _: &Contents) -> Result<(), String> {
        let cache =
            CfiCache::from_bytes(ByteView::from_slice(raw)).map_err(|error| chain(&error))?;
        if !cache.is_latest() || raw.len() < PREAMBLE_BYTES {
            return Err(format!("it is a CFI cache of version {}", cache.version()));
        }
        let records = std::str::from_utf8(cache.as_slice()).map_err(|error| error.to_string())?;
        let first = records.lines().next().unwrap_or_default();
        let begins_well = first.starts_with("STACK ") || first.starts_with("MODULE ");
        let is_whole = begins_well && records.ends_with('\n');
        if !records.is_empty() && !is_whole {
            return Err("there is something else in it than records".to_owned());
        }
        Ok(())
    }

    /// Each slice was opened when it was sealed.
    fn try_out(blob: &[u8]) -> Result<(), BlobFault> {
        SliceIndex::of_blob(blob).map(drop)
    }
}

/// Writes the records of a CFI cache, many at once.
fn write_records(object: &Object<'_>, out: impl Write) -> Result<(), Failure> {
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, out);
    if matches!(object, Object::SourceBundle(_) | Object::PortablePdb(_)) {
        return Err(unsupported(format!(
            "unwind information is not in a file of type {}",
            object.file_format()
        )));
    }
    if let Object::Pe(pe) = object
        && let Some(debug_file) = pe.debug_file_name()
    {
        let (arch, id) = (object.arch().name(), object.debug_id());
        writeln!(out, "MODULE windows {arch} {} {debug_file}", id.breakpad())?;
    }
    if eh_frame_is_misread(object) {
        return Ok(());
    }
    let mut writer = AsciiCfiWriter::new(&mut out).max_unwind_chain_len(Some(MAX_UNWIND_CHAIN));
    writer
        .process(object)
        .map_err(|error| match (error.kind(), io_error(&error)) {
            (CfiErrorKind::WriteFailed, Some(io::ErrorKind::FileTooLarge)) => {
                blob::too_large(MAX_RAW_BYTES).into()
            }
            (CfiErrorKind::WriteFailed, _) => Failure::OutOfMemory,
            (CfiErrorKind::UnsupportedArch | CfiErrorKind::UnsupportedDebugFormat, _) => {
                unsupported(chain(&error))
            }
            _ => malformed(chain(&error)),
        })?;
    out.flush()?;
    Ok(())
}

/// Tells whether `symbolic` looks for the `__eh_frame` of a dSYM where it is not.
///
/// Case: `dsymutil` moves the section within its segment and notes the new offset; `symbolic` 13.9 computes the offset
/// from addresses. Seen in every dSYM of x86-64 with the section that LLVM 14 made. What is read instead is no
/// unwind information, but may look like some: then nothing is taken from it. The executable has the same information.
pub(super) fn eh_frame_is_misread(object: &Object<'_>) -> bool {
    let Object::MachO(mach) = object else {
        return false;
    };
    if mach.kind() != ObjectKind::Debug {
        return false;
    }
    // Length, then zero: every `eh_frame` begins with a CIE (Linux Standard Base, "The .eh_frame section").
    mach.raw_section("eh_frame").is_some_and(|section| {
        let word = |at: usize| {
            Some(u32::from_le_bytes(
                section.data.get(at..at + 4)?.try_into().ok()?,
            ))
        };
        word(4) != Some(0)
            || !word(0).is_some_and(|length| length > 0 && (length as usize) < section.data.len())
    })
}

/// Returns the records of a valid raw cache.
pub(super) fn records(raw: &[u8]) -> &[u8] {
    raw.get(PREAMBLE_BYTES..).unwrap_or_default()
}
