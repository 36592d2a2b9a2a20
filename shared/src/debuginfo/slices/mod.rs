//! The format of sliced blobs: a SymCache or a CFI cache cut by address into slices that can be
//! read alone, which is version 2 of both kinds; or sources, cut by path and line (see `sources`).
//!
//! A stack of thirty frames needs thirty places of a SymCache, which may be larger than a hundred
//! megabytes. Therefore the cache is cut by address. Each *slice* of a SymCache is a complete
//! SymCache of the ranges from its first address to that of the next slice, so `symbolic` can look
//! up addresses in it unchanged. Each slice of a CFI cache is a Breakpad symbol file with the
//! records for its addresses. Only the cutting is specific to symdepot.
//!
//! A blob consists of its slices, the index and the footer, in this order:
//!
//! ```text
//! slices   one zstd frame each, in address order: a SymCache (see `raw`), records (see `cfi`) or
//!          source lines (see `sources`)
//! index    first address, lengths and checksum of each slice (see `index`)
//! footer   112 bytes, as in a whole blob (see `super::blob`), except for
//!    27    1  layout: 1 (sliced)
//!    28    4  the number of slices; 0 if there is nothing to look up
//!    80    8  the length of all slices together, decompressed
//!    88    8  the length of the index
//!    96    8  xxh3-64 of the index
//! ```
//!
//! The record says where the index begins, and has the checksum of index and footer, which are read
//! together. The index has the checksum of each slice. So every read is verified by a checksum that
//! was read before, starting with the record.
//!
//! An example: three functions, at `0x10`, `0x20` and `0x30`, cut after every second range:
//!
//! ```text
//! slice 0  ranges 0x10, 0x20; both functions, their files, their names
//! slice 1  range  0x30; one function, its file, its name
//! index    10 <length> <raw length> <hash>, 20 <length> <raw length> <hash>       (0x30 is 0x20 after 0x10)
//! ```
//!
//! A lookup of `0x25` finds slice 0, the last slice that begins at or before this address. The
//! reader loads and opens that slice, and `symbolic` looks up `0x25` in it. A lookup of `0x05`
//! finds no slice, so nothing is read.
//!
//! `cut`, `cfi` and `sources` cut a SymCache, a CFI cache and sources. `encode` compresses the
//! slices into a blob, `open` reads them, and `join` turns them back into one SymCache.

mod cfi;
mod cfi_records;
mod cut;
mod encode;
mod index;
mod join;
mod open;
mod raw;
mod sound;
mod sources;
#[cfg(test)]
pub(super) mod tests;

pub(super) use self::cfi::{CfiLines, CfiSource, LineCollector};
pub use self::cfi_records::CfiRecords;
pub use self::cut::Bounds;
pub(super) use self::cut::Cut;
pub use self::encode::cut;
#[cfg(any(test, feature = "testing"))]
pub(super) use self::encode::recut;
#[cfg(test)]
pub(super) use self::encode::starts_of;
pub(super) use self::encode::{
    assemble, encode, encode_cfi, encode_cuts, encode_in_parallel, head,
};
pub use self::open::{
    Slice, SliceIndex, SlicedCache, checksum, checksum_of_all, index_of, is_sound,
};
pub(super) use self::raw::{
    NOWHERE, RawFile, RawFunction, RawLocation, SymCacheTables, write_string,
};
pub(super) use self::sound::{length_of, validate};
#[cfg(any(test, feature = "testing"))]
pub(super) use self::sources::SourceChunks;
pub use self::sources::{FoundLines, source_addresses};
pub(super) use self::sources::{SourceCutter, SourceFile, address_of, compared};
