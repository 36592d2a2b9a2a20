//! The modules of a PDB, and their division into runs.
//!
//! A module has the symbols and lines of one object file. The format: LLVM, "The PDB DBI (Debug
//! Info) Stream", "File Layout" and "Module Info Substream".

use std::cell::{OnceCell, RefCell};
use std::ops::Range;

use pdb_addr2line::ModuleProvider;
use pdb_addr2line::pdb::{self, Module, ModuleInfo};

use super::streams::Pdb;

/// The length of the header of the stream, of the fixed part of each module, and the positions of
/// the fields that are read.
const HEADER_BYTES: usize = 64;
const LIST_BYTES_AT: usize = 24;
const MODULE_BYTES: usize = 64;
const SYMBOL_BYTES_AT: usize = 36;
const OLD_LINE_BYTES_AT: usize = 40;
const LINE_BYTES_AT: usize = 44;

/// The number of the stream that lists the modules.
pub(super) const STREAM: u16 = 3;

/// The minimum size of a run, in bytes of symbols and lines.
pub(super) const RUN_BYTES: u64 = 4 << 20;

/// The maximum number of runs, not counting the remainder. The types are searched from the first on
/// in each run, which takes as long as a few percent of reading it.
const MAX_RUNS: u64 = 64;

/// Returns the number of bytes of the symbols and lines of each module, up to the first one that
/// cannot be read.
pub(super) fn sizes(stream: &[u8]) -> Vec<u64> {
    let word = |bytes: &[u8], at: usize| {
        let bytes = bytes.get(at..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    };
    let list = word(stream, LIST_BYTES_AT).and_then(|length| {
        let end = HEADER_BYTES.checked_add(length as usize)?;
        stream.get(HEADER_BYTES..end)
    });
    let mut left = list.unwrap_or_default();
    let mut sizes = Vec::new();
    while let Some(rest) = left.get(MODULE_BYTES..) {
        let size = [SYMBOL_BYTES_AT, OLD_LINE_BYTES_AT, LINE_BYTES_AT];
        let size = size.map(|at| word(left, at).map_or(0, u64::from));
        sizes.push(size.into_iter().sum());
        // The names of the module and of its object file.
        let mut ends = memchr::memchr_iter(0, rest);
        let Some(end) = ends.nth(1) else { break };
        left = rest
            .get((end + 1).next_multiple_of(4)..)
            .unwrap_or_default();
    }
    sizes
}

/// Divides modules into runs of at least this many bytes. The division depends on the file alone.
pub(super) fn runs(sizes: &[u64], run_bytes: u64) -> Vec<Range<usize>> {
    let all: u64 = sizes.iter().sum();
    let run_bytes = run_bytes.max(all / MAX_RUNS);
    let (mut runs, mut first, mut bytes) = (Vec::new(), 0, 0);
    for (module, size) in sizes.iter().enumerate() {
        bytes += size;
        if bytes >= run_bytes {
            runs.push(first..module + 1);
            (first, bytes) = (module + 1, 0);
        }
    }
    if first < sizes.len() {
        runs.push(first..sizes.len());
    }
    runs
}

/// The modules that were opened while a run is read: those of the run, and those that have types
/// for them.
pub(super) struct OpenModules<'w, 's> {
    pdb: &'w RefCell<Pdb<'s>>,
    open: Vec<OnceCell<Option<ModuleInfo<'s>>>>,
}

impl<'w, 's> OpenModules<'w, 's> {
    pub(super) fn new(pdb: &'w RefCell<Pdb<'s>>, modules: usize) -> Self {
        let open = (0..modules).map(|_| OnceCell::new()).collect();
        Self { pdb, open }
    }
}

impl<'s> ModuleProvider<'s> for OpenModules<'_, 's> {
    fn get_module_info(
        &self,
        number: usize,
        module: &Module<'_>,
    ) -> Result<Option<&ModuleInfo<'s>>, pdb::Error> {
        let Some(place) = self.open.get(number) else {
            return Ok(None);
        };
        if let Some(known) = place.get() {
            return Ok(known.as_ref());
        }
        let opened = self.pdb.borrow_mut().module_info(module)?;
        Ok(place.get_or_init(|| opened).as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_have_all_modules_in_order() {
        assert!(runs(&[], 10).is_empty());
        assert_eq!(runs(&[0, 0], 10), std::slice::from_ref(&(0..2)));
        assert_eq!(runs(&[4, 6, 11, 2], 10), [0..2, 2..3, 3..4]);
        let many = runs(&[100; 1000], 10);
        assert!(many.len() <= 65, "{}", many.len());
        assert!(many.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!(many.last().map(|run| run.end), Some(1000));
    }

    #[test]
    fn a_list_of_modules_that_is_cut_off_ends_early() {
        let mut stream = vec![0; HEADER_BYTES];
        for name in ["a.obj", "longer.obj"] {
            let mut module = vec![0; MODULE_BYTES];
            module[SYMBOL_BYTES_AT] = 8;
            module[LINE_BYTES_AT] = 3;
            for name in [name, "x.lib"] {
                module.extend_from_slice(name.as_bytes());
                module.push(0);
            }
            module.resize(module.len().next_multiple_of(4), 0);
            stream.extend(module);
        }
        let length = u32::try_from(stream.len() - HEADER_BYTES).unwrap();
        stream[LIST_BYTES_AT..][..4].copy_from_slice(&length.to_le_bytes());
        assert_eq!(sizes(&stream), [11, 11]);
        for length in 0..stream.len() {
            assert!(sizes(&stream[..length]).is_empty());
        }
        stream[LIST_BYTES_AT] -= 30;
        assert_eq!(sizes(&stream), [11]);
    }
}
