//! Reads the unwind information of PE files into lines of Breakpad records, in parallel.
//!
//! `symbolic` writes text, which then has to be read again, and it leaves out or misreads what is
//! listed in [`amd64`] and [`arm64`]. In files for other machines, nothing is read: programs for
//! 32-bit x86 have their unwind information in the PDB.

mod amd64;
mod arm64;

use std::ops::Range;

use symbolic::common::Arch;
use symbolic::debuginfo::pe::PeObject;

pub(super) use self::amd64::MAX_UNWIND_CHAIN;
use crate::debuginfo::slices::{CfiLines, LineCollector};
use crate::debuginfo::workers::in_order;

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
    read.into_iter().try_for_each(|lines| all.append(lines?))?;
    Some(all.finish())
}
