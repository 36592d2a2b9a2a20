//! CFI caches: unwind information as Breakpad records.

use std::io::{self, BufWriter, Write};

use symbolic::cfi::{AsciiCfiWriter, CfiErrorKind};
use symbolic::debuginfo::Object;

use super::frames;
use super::kind::{Beside, Derive, EncodedCache};
use super::pe_frames::MAX_UNWIND_CHAIN;
use crate::cache::Kind;
use crate::debuginfo::blob::Contents;
use crate::debuginfo::failure::{Failure, chain, io_error, malformed, unsupported};
use crate::debuginfo::limits::{MAX_RAW_BYTES, too_large};
use crate::debuginfo::quirks::eh_frame_is_misread;
use crate::debuginfo::slices;
use crate::debuginfo::slices::{Bounds, CfiSource};

const BUFFER_BYTES: usize = 1 << 16;

/// Derives CFI caches.
pub(super) struct Cfi;

impl Derive for Cfi {
    const KIND: Kind = Kind::CfiCache;

    fn encode<'d>(
        object: &Object<'d>,
        _: &Beside<'_, 'd>,
        cores: usize,
        contents: &Contents,
    ) -> Result<EncodedCache, Failure> {
        let unwinding = match frames::lines_of(object, cores) {
            Some(lines) => CfiSource::Lines(lines),
            None => CfiSource::of(|out| write_records(object, out))?,
        };
        let blob = slices::encode_cfi(&unwinding, contents, Bounds::CURRENT, cores)?;
        Ok(EncodedCache::whole(blob))
    }
}

/// Writes the records that `CfiCache::from_object` would write, through a buffer.
pub(super) fn write_records(object: &Object<'_>, out: impl Write) -> Result<(), Failure> {
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, out);
    if matches!(object, Object::SourceBundle(_) | Object::PortablePdb(_)) {
        return Err(unsupported(format!(
            "a file of type {} has no unwind information",
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
                too_large(MAX_RAW_BYTES).into()
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
