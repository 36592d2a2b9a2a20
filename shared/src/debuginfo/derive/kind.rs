//! The trait that derives a cache, one implementation per kind, and its inputs and outputs.

use symbolic::debuginfo::Object;

use crate::cache::Kind;
use crate::debuginfo::arriving::Arriving;
use crate::debuginfo::auxiliary::Maps;
use crate::debuginfo::blob::Contents;
use crate::debuginfo::failure::Failure;

/// Derives caches of one kind.
pub(super) trait Derive {
    /// The kind.
    const KIND: Kind;

    /// Encodes the cache of an object as a blob, with `cores` threads. An object with nothing to
    /// offer is not an error: its cache is empty.
    fn encode<'d>(
        object: &Object<'d>,
        other: &OtherFiles<'_, 'd>,
        cores: usize,
        contents: &Contents,
    ) -> Result<EncodedCache, Failure>;
}

/// Other files of the DIF that complete an object.
pub(in crate::debuginfo) struct OtherFiles<'f, 'd> {
    /// The files with split units.
    pub(in crate::debuginfo) split: Vec<&'d [u8]>,
    /// The file with the object's symbols, if the object has none itself.
    pub(in crate::debuginfo) symbols: Option<&'d [u8]>,
    /// The other objects of the module that have source files.
    pub(in crate::debuginfo) sources: Vec<&'d [u8]>,
    /// The maps of names and lines.
    pub(in crate::debuginfo) maps: Maps<'d>,
    /// Returns the ELF file that has a build id, or that has this id as a shared file.
    pub(in crate::debuginfo) with_build_id: &'f dyn Fn(&str) -> Option<&'d [u8]>,
    /// The part of the object's own file that is still arriving.
    pub(in crate::debuginfo) arriving: Option<&'d dyn Arriving>,
}

impl Default for OtherFiles<'_, '_> {
    fn default() -> Self {
        Self {
            split: Vec::new(),
            symbols: None,
            sources: Vec::new(),
            maps: Maps::default(),
            with_build_id: &|_| None,
            arriving: None,
        }
    }
}

/// The cache of an object, encoded as a blob.
#[derive(Debug)]
pub(in crate::debuginfo) struct EncodedCache {
    pub(in crate::debuginfo) blob: Vec<u8>,
    /// What the cache lacks although the object or another file has it, and what to do about it.
    /// Text for a user.
    pub(in crate::debuginfo) lacks: Option<String>,
}

impl EncodedCache {
    /// Returns a cache that lacks nothing.
    pub(super) fn complete(blob: Vec<u8>) -> Self {
        Self { blob, lacks: None }
    }
}
