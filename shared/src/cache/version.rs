//! Versions of the kinds, and the converter number.
//!
//! Each bump adds one line of history here and one in the changelog. Raise a *version* if readers
//! must distinguish the new bytes from the old ones. Raise the *converter* if the same DIF may now
//! succeed or yield a better cache.

use crate::domain::{Converter, FormatVersion, Kind};

/// Returns the version of a kind's format. A ready state of a lower version stays usable until the
/// new one is built.
///
/// History, for all kinds:
/// - 1: whole blobs, zstd with a footer. SymCache 9, CFI cache 2, PPDB cache 1.
/// - 2, of SymCaches and CFI caches: slices that can be read one by one. Sources have been in
///   slices since their version 1.
///
/// For [`Kind::MsSymCache`], whose versions are those of its format ([`FormatVersion::as_u32`]),
/// returns the highest version that can be read.
pub const fn current_version(kind: Kind) -> u32 {
    ReleaseNumbers::CURRENT.version(kind)
}

/// The formats inside the blobs, as `symbolic` numbers them. If `symbolic` changes one, this does
/// not compile until the versions above are raised.
const _: () = assert!(
    symbolic::cfi::CFICACHE_LATEST_VERSION == 2 && symbolic::symcache::SYMCACHE_VERSION == 9
);

impl Converter {
    /// The converter in this release.
    ///
    /// History:
    /// - 1: `symbolic` 13.9.0, with repaired line programs.
    /// - 2: SymCaches in slices.
    /// - 3: CFI caches in slices, with overlaps resolved.
    /// - 4: SymCaches directly from DWARF: lines of functions without entries, parts of functions
    ///   under their own names, no names outside of code.
    /// - 5: links to source files in the SymCaches of PDBs. Source files are entries of their own.
    ///   PDBs with modules that cannot be read are derived without these.
    /// - 6 and 7: discarded functions, symbols in functions; rules for each step of a prologue on
    ///   Windows, parts of functions there, leaf functions.
    /// - 8: functions that overlap, code at zero and below the headers, kernel modules for RISC-V,
    ///   type units in `.dwo` files, all code of Mach-O files.
    /// - 9: symbols behind the entry of their function, labels of PE files, function descriptors,
    ///   rows and symbols of MIPS16 and microMIPS, names of PDBs whose types cannot be read, unwind
    ///   information of MinGW for 32-bit x86.
    /// - 10: of several symbols of a function, the one that its entry names; inlined calls in
    ///   functions of PDBs without lines; split units of PE and WebAssembly; Breakpad files with
    ///   records in any order, functions without names there; compressed unwind information of
    ///   Mach-O files.
    /// - 11: one name for all of a function without lines that a linker merged with others; of the
    ///   symbols of a constructor, the first.
    /// - 12: lines of functions that begin within a row of the code before them.
    /// - 13: unwind information beside entries that cannot be read, also of functions of 64-bit Arm
    ///   that sign with another key, and of large frames of Mach-O; names of symbols without
    ///   versions.
    /// - 14: the trampolines of signals in a stripped libc.
    /// - 15: no lines of the code before them for functions outside of the ranges of their unit.
    pub const CURRENT: Self = Self(15);
}

/// The numbers of a release: what it makes, and up to which version it reads.
///
/// The flows take them as a value ([`Policy::numbers`]), so that tests can run two releases side by
/// side, as during a canary and after a rollback. Programs use [`ReleaseNumbers::CURRENT`].
///
/// [`Policy::numbers`]: super::Policy::numbers
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReleaseNumbers {
    /// The converter.
    pub converter: Converter,
    /// The version of SymCaches.
    pub symcache: u32,
    /// The version of CFI caches.
    pub cfi_cache: u32,
    /// The version of PPDB caches.
    pub ppdb_cache: u32,
    /// The version of the lines of source files.
    pub sources: u32,
}

impl ReleaseNumbers {
    /// The numbers of this release.
    pub const CURRENT: Self = Self {
        converter: Converter::CURRENT,
        symcache: 2,
        cfi_cache: 2,
        ppdb_cache: 1,
        sources: 1,
    };

    /// Returns the version of a kind's format, as [`current_version`] does for this release.
    pub const fn version(&self, kind: Kind) -> u32 {
        match kind {
            Kind::MsSymCache(major) => FormatVersion {
                major,
                minor: u8::MAX,
                patch: u8::MAX,
            }
            .as_u32(),
            Kind::CfiCache => self.cfi_cache,
            Kind::PpdbCache => self.ppdb_cache,
            Kind::SourceCode => self.sources,
            Kind::SymCache => self.symcache,
        }
    }
}
