//! What is common to deriving caches of every kind.

use std::io::{self, BufWriter, Write};

use symbolic::debuginfo::Object;

use crate::cache::Kind;
use crate::debuginfo::blob::{Contents, FrameEncoder};
use crate::debuginfo::failure::Failure;

/// How one kind is derived. One implementation a kind.
pub(super) trait Derive {
    /// The kind.
    const KIND: Kind;

    /// Writes the raw cache of an object. Having nothing to offer is no failure: the cache is
    /// empty.
    fn write(object: &Object<'_>, out: &mut (impl Write + Send)) -> Result<(), Failure>;

    /// Makes the blob of an object, with so many cores: whole, unless a kind knows better.
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

/// Files beside an object that it may need.
pub(in crate::debuginfo) struct Beside<'f, 'd> {
    /// Those with split units.
    pub(in crate::debuginfo) split: Vec<&'d [u8]>,
    /// The file with the object's symbols, where it has none itself.
    pub(in crate::debuginfo) symbols: Option<&'d [u8]>,
    /// Returns the ELF file with a build id.
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

/// What was made of an object.
#[derive(Debug)]
pub(in crate::debuginfo) struct EncodedCache {
    pub(in crate::debuginfo) blob: Vec<u8>,
    /// What is in the object, or elsewhere, and is not in the blob: for a human.
    pub(in crate::debuginfo) lacks: Option<String>,
}

impl EncodedCache {
    pub(super) fn whole(blob: Vec<u8>) -> Self {
        Self { blob, lacks: None }
    }
}
