//! From the bytes of a DIF to the bytes of its caches, and from those back to lookups.
//!
//! CPU only: nothing here waits, stores, reads a clock or touches a file. Whatever the bytes say,
//! the answer is a value; what a parser cannot survive (a loop, a stack overflow, want of memory)
//! is the business of the process around it.
//!
//! 1. **Unpack**: [`unpack()`] finds the files in a container and writes those that must be
//!    unpacked into a [`Room`].
//! 2. **Inspect**: [`inspect()`] lists the objects in them: ids, types, what they offer.
//! 3. **Derive**: [`derive()`] makes one cache of one object, sealed as a blob, and loads it as a
//!    reader would.
//! 4. **Open**: [`OpenCache::open`] checks a blob against its record and decompresses it, ready for
//!    lookups.
//!
//! Nothing outside this module knows whether a blob is whole or cut into slices.

mod blob;
mod chunk;
mod derive;
mod failure;
#[cfg(any(test, feature = "testing"))]
pub mod hostile;
mod image;
mod inspect;
mod kernel_module;
mod layout;
mod limits;
mod open;
mod panics;
mod pipe;
mod quirks;
mod reader;
mod slices;
#[cfg(test)]
mod tests;
mod unpack;
mod workers;

pub use blob::{AlignedBytes, BlobFault};
pub use chunk::{encode_chunk, open_chunk};
pub use derive::{derive, derive_in_turn};
pub use failure::Failure;
pub use inspect::inspect;
pub use layout::{DifBytes, FoundObject, Layout, Member, MemberPlace};
pub use limits::{MAX_RAW_BYTES, MAX_WHOLE_BYTES};
pub use open::{OpenCache, SymCaches};
pub use panics::{STACK_BYTES, caught, keep_panics_quiet};
pub use slices::{
    Bounds, CfiRecords, Slice, SliceIndex, SlicedCache, checksum, checksum_of_all, cut, index_of,
    is_sound,
};
pub use unpack::{Room, RoomLimit, unpack};
