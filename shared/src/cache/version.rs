//! Versions of the kinds, and the number of the converter that makes them.
//!
//! A bump is one line of history here and one in the changelog. Raise a *version* when readers must tell the new
//! bytes from the old; raise the *converter* when the same DIF may now succeed, or come out better.

use serde::{Deserialize, Serialize};

use super::Kind;
use crate::domain::FormatVersion;

/// The generation of a kind's format. A ready state of a lower version stays usable while the new one is made.
///
/// History, for all kinds:
/// - 1: whole blobs, zstd with a footer. SymCache 9, CFI cache 2, PPDB cache 1.
/// - 2, of SymCaches and CFI caches: slices that are read one by one.
///
/// Of [`Kind::MsSymCache`], whose versions are those of its format ([`FormatVersion::as_u32`]), the highest that can be read.
pub const fn current_version(kind: Kind) -> u32 {
    match kind {
        Kind::MsSymCache(major) => FormatVersion {
            major,
            minor: u8::MAX,
            patch: u8::MAX,
        }
        .as_u32(),
        Kind::PpdbCache => 1,
        Kind::CfiCache | Kind::SymCache => 2,
    }
}

/// The formats inside the blobs, as `symbolic` numbers them: a change there without one here does not compile.
const _: () = assert!(
    symbolic::cfi::CFICACHE_LATEST_VERSION == 2 && symbolic::symcache::SYMCACHE_VERSION == 9
);

/// The number of what derives: failures and messages are compared by it.
///
/// It orders releases of this code and of `symbolic` together; it is never a commit or a deployment.
///
/// History:
/// - 1: `symbolic` 13.9.0, over mended line programs.
/// - 2: SymCaches in slices.
/// - 3: CFI caches in slices, of which overlaps are resolved.
/// - 4: SymCaches straight from DWARF: lines of symbols without an entry, parts of functions by their own names, no names outside of
///   code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Converter(pub u32);

impl Converter {
    /// The converter in this build.
    pub const CURRENT: Self = Self(4);
}
