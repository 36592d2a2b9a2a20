//! CFI caches: unwind information as Breakpad records.

use std::io::{self, BufWriter, Write};

use goblin::elf::Elf;
use goblin::elf::header::{
    EM_68K, EM_LOONGARCH, EM_RISCV, EM_S390, EM_SH, EM_XTENSA, machine_to_str,
};
use symbolic::cfi::{AsciiCfiWriter, CfiErrorKind};
use symbolic::common::CpuFamily;
use symbolic::debuginfo::Object;

use super::frames;
use super::kind::{Derive, EncodedCache, OtherFiles};
use super::pe_frames::MAX_UNWIND_CHAIN;
use crate::cache::Kind;
use crate::debuginfo::blob::Contents;
use crate::debuginfo::failure::{Failure, chain, chain_in, io_error, malformed, unsupported};
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
        _: &OtherFiles<'_, 'd>,
        cores: usize,
        contents: &Contents,
    ) -> Result<EncodedCache, Failure> {
        if let Some(machine) = not_unwound(object) {
            return Err(Failure::not_unwound(machine));
        }
        let unwinding = match frames::lines_of(object, cores) {
            Some(lines) => CfiSource::Lines(lines),
            None => CfiSource::of(|out| write_records(object, out))?,
        };
        let blob = slices::encode_cfi(&unwinding, contents, Bounds::CURRENT, cores)?;
        Ok(EncodedCache::complete(blob))
    }
}

/// Returns the name of the machine of an ELF file, if the file has unwind information that is not
/// read: `symbolic` knows no names of its registers, and would write records without the address of
/// the frame.
fn not_unwound(object: &Object<'_>) -> Option<&'static str> {
    let is_unnamed = object.arch().cpu_family() == CpuFamily::Unknown;
    let Object::Elf(elf) = object else {
        return None;
    };
    if !is_unnamed || !object.has_unwind_info() {
        return None;
    }
    let header = Elf::parse_header(elf.data()).ok()?;
    Some(match header.e_machine {
        EM_RISCV => "RISC-V",
        EM_S390 => "s390",
        EM_68K => "m68k",
        EM_LOONGARCH => "LoongArch",
        EM_XTENSA => "Xtensa",
        EM_SH => "SuperH",
        machine => machine_to_str(machine),
    })
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
    let text = match object {
        Object::Breakpad(symbols) => symbols.data(),
        _ => &[],
    };
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
            _ => malformed(chain_in(&error, text)),
        })?;
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::debuginfo::blob;
    use crate::debuginfo::tests::fixture;
    use crate::domain::Cause;

    /// Returns why there is no unwind information of a program of a machine.
    fn refused(machine: u16) -> String {
        const E_MACHINE: usize = 18;
        let mut program = fixture("zoo/riscv64");
        program[E_MACHINE..E_MACHINE + 2].copy_from_slice(&machine.to_le_bytes());
        let object = Object::parse(&program).unwrap();
        let contents = blob::unfiled(Kind::CfiCache, object.arch(), None);
        match Cfi::encode(&object, &OtherFiles::default(), 1, &contents) {
            Err(Failure::Missing(missing)) if missing.cause == Cause::Unsupported => missing.detail,
            other => panic!("{machine}: {other:?}"),
        }
    }

    #[test]
    fn a_machine_that_is_not_unwound_is_named() {
        // The numbers are those of the registry of ELF machines.
        for (machine, name) in [
            (243, "RISC-V"),
            (83, "AVR"),
            (94, "Xtensa"),
            (42, "SuperH"),
            (4, "m68k"),
            (258, "LoongArch"),
            (22, "s390"),
        ] {
            let reason = refused(machine);
            assert_eq!(reason, format!("unwinding is not supported on {name}"));
            assert!(Failure::is_of_machine(&reason), "{reason}");
        }
    }
}
