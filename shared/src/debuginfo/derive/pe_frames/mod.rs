//! Reads the unwind information of PE files into lines of Breakpad records, in parallel.
//!
//! `symbolic` writes text, which then has to be read again, and it leaves out or misreads what is
//! listed in [`amd64`] and [`arm64`]. In files for other machines, nothing is read. Programs for
//! 32-bit x86 have their unwind information in the PDB, or in an `.eh_frame` as ELF files have it,
//! if GCC or clang compiled them for MinGW ([`eh_frame`]).

mod amd64;
mod arm64;

use std::ops::Range;

use symbolic::common::Arch;
use symbolic::debuginfo::dwarf::{Dwarf as _, DwarfSection};
use symbolic::debuginfo::pe::PeObject;

pub(super) use self::amd64::MAX_UNWIND_CHAIN;
use crate::debuginfo::slices::{CfiLines, LineCollector};
use crate::debuginfo::workers::in_order;

/// Returns the `.eh_frame` of a program for 32-bit x86. Programs for other machines have one as
/// well, but it repeats their unwind information or is left over from a library.
///
/// The names of sections have at most eight bytes, unless the linker also writes a symbol table.
/// What `objcopy --only-keep-debug` left has the section without its bytes.
pub(in crate::debuginfo) fn eh_frame<'d>(pe: &PeObject<'d>) -> Option<DwarfSection<'d>> {
    if pe.arch() != Arch::X86 {
        return None;
    }
    let mut named = ["eh_frame", "eh_fram"].into_iter();
    let section = named.find_map(|name| pe.raw_section(name));
    section.filter(|section| section.offset != 0)
}

/// Returns the lines of all records of a file, whose functions are read in runs of a number of
/// functions. Returns `None` if there are too many.
pub(super) fn read(pe: &PeObject<'_>, run: usize, workers: usize) -> Option<CfiLines> {
    let Some(data) = pe.exception_data() else {
        return Some(LineCollector::default().finish());
    };
    match pe.arch() {
        Arch::Amd64 | Arch::Amd64h => {
            let begin = || amd64::Amd64Reader::new(pe, data);
            read_runs(data.len(), run, workers, begin, amd64::Amd64Reader::run)
        }
        Arch::Arm64 | Arch::Arm64e => {
            let begin = || arm64::Arm64Reader::new(pe, data);
            let functions = data.len_arm64();
            read_runs(functions, run, workers, begin, arm64::Arm64Reader::run)
        }
        _ => Some(LineCollector::default().finish()),
    }
}

/// Reads functions in runs, with one reader for each worker.
fn read_runs<R>(
    functions: usize,
    run: usize,
    workers: usize,
    begin: impl Fn() -> R + Sync,
    read: impl Fn(&mut R, Range<usize>) -> Option<LineCollector> + Sync,
) -> Option<CfiLines> {
    let read = in_order(functions.div_ceil(run), workers, begin, |reader, number| {
        let first = number * run;
        read(reader, first..functions.min(first + run))
    });
    let mut all = LineCollector::default();
    all.append_all(read.into_iter().collect::<Option<_>>()?)?;
    Some(all.finish())
}

#[cfg(test)]
pub(in crate::debuginfo) mod tests {
    use symbolic::debuginfo::Object;

    use crate::debuginfo::derive::frames::lines_of;
    use crate::debuginfo::slices::CfiSource;
    use crate::debuginfo::tests::fixture;

    /// The `.eh_frame` of a function at 0x401010, in a section at 0x403000, as GCC writes it.
    pub(in crate::debuginfo) const ENTRIES: [u8; 48] = [
        20, 0, 0, 0, 0, 0, 0, 0, // what the entries of functions have in common
        1, b'z', b'R', 0, 1, 0x7c, 8, 1, 0x1b, // factors 1 and -4; return address 8; relative
        0x0c, 4, 4, 0x88, 1, 0, 0, // the frame is at esp + 4, the return address at frame - 4
        16, 0, 0, 0, 28, 0, 0, 0, // the entry of the function
        0xf0, 0xdf, 0xff, 0xff, 32, 0, 0, 0, 0, // begins 0x2010 before this place; 32 bytes
        0x43, 0x0e, 32, // three bytes later, the frame is at esp + 32
        0, 0, 0, 0, // the end
    ];

    /// Returns a program for 32-bit x86 whose data is an `.eh_frame` with these bytes. Its name is
    /// cut, as in all sections of programs without a symbol table.
    pub(in crate::debuginfo) fn with_eh_frame(entries: &[u8]) -> Vec<u8> {
        const DATA: &[u8; 8] = b".data\0\0\0";
        let mut dif = fixture("pe/x86/crash.exe");
        let header = dif.windows(8).position(|name| name == DATA).unwrap();
        dif[header..header + 8].copy_from_slice(b".eh_fram");
        let size = u32::try_from(entries.len()).unwrap();
        dif[header + 8..header + 12].copy_from_slice(&size.to_le_bytes());
        let place: [u8; 4] = dif[header + 20..header + 24].try_into().unwrap();
        let place = u32::from_le_bytes(place) as usize;
        dif[place..place + entries.len()].copy_from_slice(entries);
        dif
    }

    #[test]
    fn a_program_of_mingw_for_32_bit_x86_is_unwound_with_its_eh_frame() {
        let dif = with_eh_frame(&ENTRIES);
        let lines = lines_of(&Object::parse(&dif).unwrap(), 1).unwrap();
        assert_eq!(
            CfiSource::Lines(lines).text(),
            "STACK CFI INIT 1010 20 .cfa: $esp 4 + .ra: .cfa -4 + ^\n\
             STACK CFI 1013 .cfa: $esp 32 +\n"
        );
    }
}
