//! The trait that derives a cache, one implementation per kind, and its inputs and outputs.

use std::io::{self, BufWriter, Write};

use symbolic::debuginfo::Object;

use crate::cache::Kind;
use crate::debuginfo::blob::{Contents, FrameEncoder};
use crate::debuginfo::failure::Failure;

/// Derives caches of one kind.
pub(super) trait Derive {
    /// The kind.
    const KIND: Kind;

    /// Writes the raw cache of an object. An object with nothing to offer is not an error: its
    /// cache is empty.
    fn write(object: &Object<'_>, out: &mut (impl Write + Send)) -> Result<(), Failure>;

    /// Encodes the cache of an object as a blob, with `cores` threads. The default writes a whole
    /// blob; kinds with a sliced format override it.
    fn encode<'d>(
        object: &Object<'d>,
        _beside: &Beside<'_, 'd>,
        _cores: usize,
        contents: &Contents,
    ) -> Result<EncodedCache, Failure> {
        let mut out = BufWriter::with_capacity(64 << 10, FrameEncoder::new()?);
        Self::write(object, &mut out)?;
        let encoder = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok(EncodedCache::whole(encoder.finish(contents)?))
    }
}

/// Other files of the DIF that complete an object.
pub(in crate::debuginfo) struct Beside<'f, 'd> {
    /// The files with split units.
    pub(in crate::debuginfo) split: Vec<&'d [u8]>,
    /// The file with the object's symbols, if the object has none itself.
    pub(in crate::debuginfo) symbols: Option<&'d [u8]>,
    /// Returns the ELF file that has a build id.
    pub(in crate::debuginfo) with_build_id: &'f dyn Fn(&str) -> Option<&'d [u8]>,
}

impl Default for Beside<'_, '_> {
    fn default() -> Self {
        Self {
            split: Vec::new(),
            symbols: None,
            with_build_id: &|_| None,
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
    pub(super) fn whole(blob: Vec<u8>) -> Self {
        Self { blob, lacks: None }
    }
}
