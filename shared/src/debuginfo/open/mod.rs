//! Opens caches: decompresses and validates a blob. Lookups borrow from the opened cache.

mod sym_caches;
mod validate;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use symbolic::ppdb::PortablePdbCache;
use symbolic::symcache::SymCache;

pub use self::sym_caches::SymCaches;
use super::blob::{self, AlignedBytes, BlobFault, Contents};
use super::slices::{CfiRecords, SliceIndex};
use crate::cache::{Kind, Ready};
use crate::domain::{DebugId, Features, FileType};

/// A derived cache, open for lookups. Cheap to clone: clones share the bytes.
///
/// An open cache matches its record, can be parsed, and has no cycle among its inlined calls. The
/// chain of inlined calls at an address has no length limit here: callers that walk a chain must
/// limit it.
#[derive(Clone)]
pub struct OpenCache {
    contents: Arc<Contents>,
    raw: Arc<AlignedBytes>,
}

impl OpenCache {
    /// Verifies a blob against its record, and opens it.
    ///
    /// Every fault means that the blob is not what its builder published. The caller must report it
    /// as a suspect and use another cache. Opening takes about as long as decompressing; memory is
    /// bounded by [`super::MAX_RAW_BYTES`].
    pub fn open(kind: Kind, ready: &Ready, blob: Bytes) -> Result<Self, BlobFault> {
        let (contents, raw) = blob::open(kind, ready, &blob)?;
        Self::load(contents, raw)
    }

    /// Returns the size of the cache in a blob, decompressed, as the blob says: it is not verified.
    pub fn raw_bytes(blob: &[u8]) -> Result<u64, BlobFault> {
        let (_, footer) = blob::split_footer(blob)?;
        Ok(footer.raw_length)
    }

    /// Returns the size of the cache, decompressed.
    pub fn raw_length(&self) -> u64 {
        self.raw.as_slice().len() as u64
    }

    /// Opens a newly encoded blob, with the checks of [`OpenCache::open`] that need no record.
    pub(super) fn open_blob(blob: &[u8]) -> Result<Self, BlobFault> {
        let (contents, raw) = blob::open_unchecked(blob)?;
        Self::load(contents, raw)
    }

    fn load(contents: Contents, raw: AlignedBytes) -> Result<Self, BlobFault> {
        validate::validate(raw.as_slice(), &contents)?;
        Ok(Self {
            contents: Arc::new(contents),
            raw: Arc::new(raw),
        })
    }

    /// Returns the SymCache; `None` if the cache is of another kind. Parses the header on every
    /// call.
    pub fn sym_cache(&self) -> Option<SymCache<'_>> {
        (self.contents.kind == Kind::SymCache).then(|| SymCache::parse(self.raw.as_slice()).ok())?
    }

    /// Returns the bytes of the SymCache, in the format of `symbolic`; `None` if the cache is of
    /// another kind.
    pub fn plain_sym_cache(&self) -> Option<&[u8]> {
        (self.contents.kind == Kind::SymCache).then(|| self.raw.as_slice())
    }

    /// Returns the PPDB cache; `None` if the cache is of another kind. Parses the header on every
    /// call.
    pub fn ppdb_cache(&self) -> Option<PortablePdbCache<'_>> {
        (self.contents.kind == Kind::PpdbCache)
            .then(|| PortablePdbCache::parse(self.raw.as_slice()).ok())?
    }

    /// Returns the unwind information; `None` if the cache is of another kind, or cannot be parsed.
    /// Parses all of it on every call.
    pub fn cfi(&self) -> Option<CfiRecords> {
        (self.contents.kind == Kind::CfiCache)
            .then(|| CfiRecords::parse(validate::records(self.raw.as_slice())).ok())?
    }

    /// Returns the kind.
    pub fn kind(&self) -> Kind {
        self.contents.kind
    }

    /// Returns the debug id of the object that the cache was derived from.
    pub fn debug_id(&self) -> Option<DebugId> {
        self.contents.debug_id
    }

    /// Returns the type of the DIF that the cache was derived from.
    pub fn file_type(&self) -> FileType {
        self.contents.file_type
    }

    /// Returns the features of the object that the cache was derived from. The version control
    /// system is only in the record.
    pub fn features(&self) -> &Features {
        &self.contents.features
    }

    /// Returns what it costs to keep it in memory, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.raw.memory_bytes() + size_of::<AlignedBytes>() + size_of::<Contents>()
    }
}

impl fmt::Debug for OpenCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenCache")
            .field("contents", &self.contents)
            .field("bytes", &self.memory_bytes())
            .finish()
    }
}

/// Opens a newly encoded blob like a reader, and does a few lookups.
///
/// Of a sliced blob only the index is opened: each slice was opened when it was encoded.
pub(super) fn try_out(kind: Kind, blob: &[u8]) -> Result<(), BlobFault> {
    const FUNCTIONS: u32 = 256;
    if kind != Kind::PpdbCache {
        return SliceIndex::of_blob(blob).map(drop);
    }
    let open = OpenCache::open_blob(blob)?;
    if let Some(cache) = open.ppdb_cache() {
        for function in 1..=FUNCTIONS {
            cache.lookup(function, 0);
        }
    }
    Ok(())
}
