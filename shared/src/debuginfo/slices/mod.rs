//! Sliced blobs: a SymCache or a CFI cache cut into slices that can be read one by one. Version 2
//! of both kinds.
//!
//! A stack of thirty frames needs thirty places of a SymCache of a hundred megabytes. So the
//! address space is cut, and each *slice* is a whole SymCache of its own, of the ranges from its
//! first address to that of the next: `symbolic` looks up in it as in any other. A slice of a CFI
//! cache is a Breakpad symbol file of the records that it needs. Only the cutting is ours.
//!
//! ```text
//! slices   a zstd frame each, in the order of their addresses; decompresses to a SymCache (see `raw`), or to records (see `cfi`)
//! index    where each slice begins, how long it is, how to know it (see `index`)
//! footer   112 bytes, as that of a whole blob (see `super::blob`), but for
//!    27    1  one: it is sliced
//!    28    4  the number of slices; none where there is nothing to look up
//!    80    8  the length of all slices together, decompressed
//!    88    8  the length of the index
//!    96    8  xxh3-64 of the index
//! ```
//!
//! The record says where the index begins; its checksum is that of index and footer, which are read
//! at once. The index has the checksums of the slices. So whatever is read is known by what was
//! read before, from the record on.
//!
//! An example: three functions, at `0x10`, `0x20` and `0x30`, cut after every second range:
//!
//! ```text
//! slice 0  ranges 0x10, 0x20; both functions, their files, their names
//! slice 1  range  0x30; one function, its file, its name
//! index    10 <length> <raw length> <hash>, 20 <length> <raw length> <hash>       (0x30 is 0x20 after 0x10)
//! ```
//!
//! A lookup of `0x25` finds slice 0, the last one that begins at or before it, reads and opens
//! that, and has `symbolic` look up `0x25` in it. One of `0x05` finds no slice, and nothing is
//! read.

mod cfi;
mod cut;
mod encode;
mod index;
mod join;
mod open;
mod raw;
mod sound;
#[cfg(test)]
pub(super) mod tests;

pub use self::cfi::CfiRecords;
pub(super) use self::cfi::CfiSource;
pub use self::cut::Bounds;
pub(super) use self::cut::Cut;
pub use self::encode::cut;
#[cfg(any(test, feature = "testing"))]
pub(super) use self::encode::recut;
#[cfg(test)]
pub(super) use self::encode::starts_of;
pub(super) use self::encode::{encode, encode_cfi, encode_in_parallel, head};
pub use self::open::{
    Slice, SliceIndex, SlicedCache, checksum, checksum_of_all, index_of, is_sound,
};
pub(super) use self::raw::{
    NOWHERE, RawFile, RawFunction, RawLocation, SymCacheTables, write_string,
};
pub(super) use self::sound::{length_of, validate};
