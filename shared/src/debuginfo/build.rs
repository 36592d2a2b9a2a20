//! Deriving: one object, one cache, sealed and loaded as a reader would load it.

use std::error::Error;
use std::io::{self, BufWriter, Write};

use bytes::Bytes;
use symbolic::debuginfo::{Archive, Object};

use super::blob::{BlobFault, Contents, Encoder};
use super::cfi::Cfi;
use super::inspect::chain;
use super::kernel_module;
use super::layout::{DifBytes, FoundObject, Layout};
use super::panics;
use super::ppdb::Ppdb;
use super::slices;
use super::symcache::Sym;
use crate::cache::{Converter, DeriveJob, Derived, Kind, current_version};
use crate::domain::{Cause, Features, Missing};

/// How one kind is derived. One implementation a kind.
pub(super) trait Derive {
    /// The kind.
    const KIND: Kind;

    /// Writes the raw cache of an object. Having nothing to offer is no failure: the cache is empty.
    fn write(object: &Object<'_>, out: &mut (impl Write + Send)) -> Result<(), Failure>;

    /// Makes the blob of an object, with so many cores: whole, unless a kind knows better.
    fn encode<'d>(
        object: &Object<'d>,
        _beside: &Beside<'_, 'd>,
        _cores: usize,
        contents: &Contents,
    ) -> Result<EncodedCache, Failure> {
        let mut out = BufWriter::with_capacity(64 << 10, Encoder::new()?);
        Self::write(object, &mut out)?;
        let encoder = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok(EncodedCache::whole(encoder.finish(contents)?))
    }

    /// Opens a blob as a reader will, and looks up a few things.
    fn try_out(blob: &[u8]) -> Result<(), BlobFault>;

    /// Checks a raw cache so far that no lookup in it can go wrong; else says what is wrong with it.
    fn validate(raw: &[u8], contents: &Contents) -> Result<(), String>;
}

/// Files beside an object that it may need.
pub(super) struct Beside<'f, 'd> {
    /// Those with split units.
    pub(super) split: Vec<&'d [u8]>,
    /// The file with the object's symbols, where it has none itself.
    pub(super) symbols: Option<&'d [u8]>,
    /// Returns the ELF file with a build id.
    pub(super) with_build_id: &'f dyn Fn(&str) -> Option<&'d [u8]>,
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

/// Returns the bytes of a part of a DIF.
fn member<'d>(layout: &Layout, bytes: DifBytes<'d>, number: usize) -> Option<&'d [u8]> {
    bytes.member(layout.members.get(number)?.place)
}

/// What was made of an object.
#[derive(Debug)]
pub(super) struct EncodedCache {
    pub(super) blob: Vec<u8>,
    /// What is in the object, or elsewhere, and is not in the blob: for a human.
    pub(super) lacks: Option<String>,
}

impl EncodedCache {
    pub(super) fn whole(blob: Vec<u8>) -> Self {
        Self { blob, lacks: None }
    }
}

/// Why nothing was derived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// For a reason in the DIF.
    Missing(Missing),
    /// For want of memory: whoever set the limit knows it.
    OutOfMemory,
}

/// Derives a cache of an object.
///
/// `object` is its index in the inspection; `cores` says how many there are to do it side by side. Panics are caught; memory and
/// time are not bounded here.
pub fn derive(
    layout: &Layout,
    bytes: DifBytes<'_>,
    object: usize,
    job: DeriveJob,
    cores: usize,
) -> Result<Derived, Failure> {
    let found = layout
        .objects
        .get(object)
        .ok_or_else(|| malformed(format!("there is no object {object} in it")))?;
    if let Some(fault) = &found.fault {
        return Err(Failure::Missing(fault.clone()));
    }
    let derive = || match job.kind {
        Kind::CfiCache => derive_as::<Cfi>(layout, bytes, found, job, cores),
        Kind::PpdbCache => derive_as::<Ppdb>(layout, bytes, found, job, cores),
        Kind::SymCache => derive_as::<Sym>(layout, bytes, found, job, cores),
        Kind::MsSymCache(_) => Err(unsupported(
            "what the format is, its own tool alone knows".to_owned(),
        )),
    };
    panics::caught(derive).unwrap_or_else(|panic| Err(malformed(panic)))
}

fn derive_as<D: Derive>(
    layout: &Layout,
    bytes: DifBytes<'_>,
    found: &FoundObject,
    job: DeriveJob,
    cores: usize,
) -> Result<Derived, Failure> {
    let data = member(layout, bytes, found.member)
        .ok_or_else(|| malformed("its bytes are not there".to_owned()))?;
    let linked = kernel_module::linked(data).map_err(malformed)?;
    let data = linked.as_deref().unwrap_or(data);
    let archive = Archive::parse(data).map_err(|error| malformed(chain(&error)))?;
    let object = archive
        .object_by_index(found.index)
        .map_err(|error| malformed(chain(&error)))?;
    let object = object.ok_or_else(|| malformed("the object is not there".to_owned()))?;

    let contents = Contents {
        kind: D::KIND,
        version: current_version(D::KIND),
        converter: Converter::CURRENT,
        arch: found.meta.arch.parse().unwrap_or_default(),
        debug_id: found.meta.debug_id,
        rank: job.rank.as_u8(),
        file_type: found.meta.file_type,
        features: Features {
            srcsrv_vcs: None,
            ..found.meta.features.clone()
        },
    };
    let split = layout.split.iter();
    let beside = Beside {
        split: split
            .filter_map(|number| member(layout, bytes, *number))
            .collect(),
        symbols: layout
            .symbols_of(found)
            .and_then(|other| member(layout, bytes, other.member)),
        with_build_id: &|id| {
            let found = layout.elf_with_build_id(id)?;
            member(layout, bytes, found.member)
        },
    };
    let EncodedCache { blob, lacks } = D::encode(&object, &beside, cores, &contents)?;
    D::try_out(&blob)
        .map_err(|fault| malformed(format!("what was derived cannot be loaded again: {fault}")))?;
    Ok(Derived {
        kind: D::KIND,
        checksum: slices::checksum(&blob),
        blob: Bytes::from(blob),
        lacks,
    })
}

/// Derives SymCache and CFI cache of a file with one native object, one after the other, as with one core. To measure against what
/// [`derive()`] does side by side. Returns the blobs.
///
/// # Errors
///
/// As of [`derive()`].
pub fn derive_in_turn(dif: &[u8]) -> Result<[Vec<u8>; 2], Failure> {
    let object = Object::parse(dif).map_err(|error| malformed(chain(&error)))?;
    let debug_id = Some(object.debug_id()).filter(|id| !id.is_nil());
    let beside = Beside::default();
    let contents = |kind| slices::unfiled(kind, object.arch(), debug_id);
    Ok([
        Sym::encode(&object, &beside, 1, &contents(Kind::SymCache))?.blob,
        Cfi::encode(&object, &beside, 1, &contents(Kind::CfiCache))?.blob,
    ])
}

pub(super) fn malformed(detail: String) -> Failure {
    Failure::Missing(Missing::malformed(detail))
}

pub(super) fn unsupported(detail: String) -> Failure {
    Failure::Missing(Missing::new(Cause::Unsupported, detail))
}

/// Writing fails for two reasons only: the limit, and want of memory.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::FileTooLarge => malformed(error.to_string()),
            _ => Self::OutOfMemory,
        }
    }
}

/// Returns the kind of the I/O error that caused another, if one did.
pub(super) fn io_error(error: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    let mut error = Some(error);
    while let Some(current) = error {
        if let Some(io) = current.downcast_ref::<io::Error>() {
            return Some(io.kind());
        }
        error = current.source();
    }
    None
}
