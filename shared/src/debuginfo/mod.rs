//! Parses DIFs, derives caches from them and opens those caches for lookups.
//!
//! The work has four stages, one folder each:
//!
//! 1. **Unpack** (`unpack/`): [`unpack()`] finds the members of a container and decompresses them
//!    into a [`Room`]. A file that is not in a container stays where it is.
//! 2. **Inspect** (`inspect/`): [`inspect()`] lists the objects in the members, with their ids,
//!    types and features.
//! 3. **Derive** (`derive/`): [`derive()`] makes one cache from one object, encodes it as a blob
//!    and loads the blob as a reader would.
//! 4. **Open** (`open/`): [`OpenCache::open`] checks a whole blob against its record and
//!    decompresses it for lookups. [`SliceIndex::open`] does the same for the index of a sliced
//!    blob, whose slices are then opened one by one.
//!
//! Beside the objects, a container may have auxiliary files (`auxiliary/`), which complete
//! SymCaches.
//!
//! The first two stages produce a [`Layout`], which says where each member and object is. A part of
//! the file may still be [`Arriving`] during all of them.
//!
//! There are two formats of blobs: `blob.rs` has the whole blob, and `slices/` has the sliced blob,
//! which is a cache cut by address into slices that can be read alone. Whole blobs are written for
//! PPDB caches; of SymCaches and CFI caches, those of version 1 are whole, and still read.
//!
//! This module only uses the CPU. It does no I/O, has no clock and stores nothing. Malformed input
//! produces an error value. A parser can also fail in ways that no error value covers: an endless
//! loop, a stack overflow or memory exhaustion. The process that runs it must limit those.

mod arriving;
mod auxiliary;
mod blob;
mod chunk;
mod coff;
mod derive;
mod descriptors;
mod failure;
#[cfg(any(test, feature = "testing"))]
pub mod hostile;
mod image;
mod inspect;
mod kernel_module;
mod layout;
mod limits;
mod mach_symbols;
mod open;
mod panics;
mod pe_symbols;
mod pipe;
mod quirks;
mod reader;
mod slices;
#[cfg(test)]
mod tests;
mod trampolines;
mod undecorate;
mod unpack;
mod usable;
mod workers;

pub use arriving::Arriving;
pub use auxiliary::may_be_auxiliary;
pub use blob::{AlignedBytes, BlobFault};
pub use chunk::{encode_chunk, open_chunk};
pub use derive::{derive, derive_in_turn, encode_source_file, symcache_by_symbolic};
pub use failure::Failure;
pub use image::base_of_segments;
pub use inspect::{FileEnds, inspect, needless_ranges, units_range};
pub use layout::{DifBytes, FoundObject, Layout, MAX_SOURCE_OBJECTS, Member, MemberPlace};
pub use limits::{MAX_RAW_BYTES, MAX_WHOLE_BYTES};
pub use open::{OpenCache, SymCaches};
pub use panics::{STACK_BYTES, caught, keep_panics_quiet};
pub use slices::{
    Bounds, CfiRecords, FoundLines, Slice, SliceIndex, SlicedCache, checksum, checksum_of_all, cut,
    index_of, is_sound, source_addresses,
};
pub use unpack::{Room, RoomLimit, unpack};
pub use usable::{TriedCache, try_caches};
