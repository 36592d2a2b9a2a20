//! Derives one cache from one object, encodes it as a blob and loads the blob as a reader would.
//!
//! `kind` has the trait that each kind implements: `symcache`, `cfi`, `ppdb` and `sources`. `dwarf`
//! derives SymCaches from files with DWARF, `pdb` from PDBs. `frames` and `pe_frames` read unwind
//! information of ELF and PE files; `machine` says which registers and rules a file has.
//! `pdb_links` finds links to source files in PDBs.

mod breakpad;
mod cfi;
pub(super) mod dwarf;
pub(super) mod frames;
pub(super) mod kind;
mod machine;
mod pdb;
pub(super) mod pdb_links;
pub(super) mod pe_frames;
mod ppdb;
mod registers;
mod sources;
mod stubs;
mod symcache;

use bytes::Bytes;
use symbolic::debuginfo::{Archive, Object};

use self::cfi::Cfi;
use self::kind::{Derive, EncodedCache, OtherFiles};
use self::ppdb::Ppdb;
use self::sources::SourceText;
pub use self::sources::encode_source_file;
use self::symcache::Sym;
use super::auxiliary::{MapMembers, Maps};
use super::blob::Contents;
use super::failure::{Failure, chain, malformed, not_arrived, unsupported};
use super::layout::{DifBytes, FoundObject, Layout, MemberPlace};
use super::{kernel_module, open, panics, slices};
use crate::cache::{DeriveJob, Derived, Kind};
use crate::debuginfo::blob;
use crate::domain::Features;

/// Returns the bytes of a member of a DIF.
fn member<'d>(layout: &Layout, bytes: DifBytes<'d>, number: usize) -> Option<&'d [u8]> {
    bytes.member(layout.members.get(number)?.place)
}

/// Returns whether a kind is derived from an object without reading bytes before they have arrived:
/// its reader reads only what [`DifBytes::arriving`] says, or none of `.debug_info`.
fn reads_while_arriving(layout: &Layout, found: &FoundObject, kind: Kind) -> bool {
    let member = layout.members.get(found.member);
    found.meta.file_type.is_elf()
        && member.is_some_and(|member| member.place == MemberPlace::Whole)
        && matches!(kind, Kind::SymCache | Kind::CfiCache)
}

/// Derives a cache of an object.
///
/// `object` is its index in the inspection. `cores` is the number of threads to use.
///
/// Panics are caught and become [`Failure`]s. Memory and time are not limited here.
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
        .ok_or_else(|| malformed(format!("the file has no object with index {object}")))?;
    if let Some(fault) = &found.fault {
        return Err(Failure::Missing(fault.clone()));
    }
    let derive = || match job.kind {
        Kind::CfiCache => derive_as::<Cfi>(layout, bytes, found, job, cores),
        Kind::PpdbCache => derive_as::<Ppdb>(layout, bytes, found, job, cores),
        Kind::SourceCode => derive_as::<SourceText>(layout, bytes, found, job, cores),
        Kind::SymCache => derive_as::<Sym>(layout, bytes, found, job, cores),
        Kind::MsSymCache(_) => Err(unsupported(
            "this kind is not derived: the transcoder makes it".to_owned(),
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
    let bytes = if reads_while_arriving(layout, found, D::KIND) {
        bytes
    } else {
        bytes.wait().map_err(not_arrived)?
    };
    let data = member(layout, bytes, found.member)
        .ok_or_else(|| malformed("the bytes of the object are missing from the file".to_owned()))?;
    let linked = kernel_module::linked(data).map_err(malformed)?;
    let data = linked.as_deref().unwrap_or(data);
    let archive = Archive::parse(data).map_err(|error| malformed(chain(&error)))?;
    let object = archive
        .object_by_index(found.index)
        .map_err(|error| malformed(chain(&error)))?;
    let object =
        object.ok_or_else(|| malformed("the object is missing from the file".to_owned()))?;

    let contents = Contents {
        kind: D::KIND,
        version: job.version,
        converter: job.converter,
        arch: found.meta.arch.parse().unwrap_or_default(),
        debug_id: found.meta.debug_id,
        rank: job.rank.as_u8(),
        file_type: found.meta.file_type,
        features: Features {
            srcsrv_vcs: None,
            ..found.meta.features.clone()
        },
    };
    let is_completed = D::KIND.is_completed();
    let maps = if is_completed {
        MapMembers::of(layout, found)
    } else {
        MapMembers::default()
    };
    let with_build_id = elf_with_build_id(layout, bytes, found);
    let other = OtherFiles::of(layout, bytes, found, &maps, &with_build_id);
    let EncodedCache { blob, lacks } = D::encode(&object, &other, cores, &contents)?;
    let hidden = is_completed.then(|| maps.lack(found)).flatten();
    let lacks: Vec<String> = lacks.into_iter().chain(hidden).collect();
    open::try_out(D::KIND, &blob)
        .map_err(|fault| malformed(format!("the derived cache cannot be loaded: {fault}")))?;
    Ok(Derived {
        kind: D::KIND,
        checksum: slices::checksum(&blob),
        blob: Bytes::from(blob),
        lacks: (!lacks.is_empty()).then(|| lacks.join("; ")),
    })
}

impl<'f, 'd> OtherFiles<'f, 'd> {
    /// Returns the other files of a DIF that complete an object.
    fn of(
        layout: &Layout,
        bytes: DifBytes<'d>,
        found: &FoundObject,
        maps: &MapMembers,
        with_build_id: &'f dyn Fn(&str) -> Option<&'d [u8]>,
    ) -> Self {
        let bytes_of = |number: Option<usize>| member(layout, bytes, number?);
        Self {
            maps: Maps::read(bytes_of(maps.symbol_map), bytes_of(maps.line_map)),
            split: layout
                .split
                .iter()
                .filter_map(|number| member(layout, bytes, *number))
                .collect(),
            symbols: layout
                .symbols_of(found)
                .and_then(|other| member(layout, bytes, other.member)),
            sources: layout
                .other_sources(found)
                .filter_map(|other| member(layout, bytes, other.member))
                .collect(),
            with_build_id,
            arriving: bytes.arriving,
        }
    }
}

/// Returns a function that finds the ELF file of a DIF that has a build id, or that has this id as
/// a shared file.
fn elf_with_build_id<'d>(
    layout: &Layout,
    bytes: DifBytes<'d>,
    found: &FoundObject,
) -> impl Fn(&str) -> Option<&'d [u8]> {
    move |id: &str| match layout.elf_with_build_id(id) {
        // No file shares entries with itself.
        Some(other) if other.member == found.member => None,
        Some(other) => member(layout, bytes, other.member),
        None => {
            let files = layout.split.iter();
            let mut files = files.filter_map(|number| member(layout, bytes, *number));
            files.find(|file| dwarf::is_supplementary(file, id))
        }
    }
}

/// Returns the plain SymCache that `symbolic` makes of a file with one native object, whose line
/// programs are repaired first. Benchmarks compare the answers of [`derive()`] with it.
///
/// # Errors
///
/// The errors of `symbolic`.
pub fn symcache_by_symbolic(dif: &[u8]) -> Result<Vec<u8>, Failure> {
    let object = Object::parse(dif).map_err(|error| malformed(chain(&error)))?;
    let mut raw = Vec::new();
    Sym::write(&object, None, &mut raw)?;
    Ok(raw)
}

/// Derives the SymCache and the CFI cache of a file with one native object, one after the other, on
/// one core. Returns the blobs. Benchmarks compare this with the parallel [`derive()`].
///
/// # Errors
///
/// The same as those of [`derive()`].
pub fn derive_in_turn(dif: &[u8]) -> Result<[Vec<u8>; 2], Failure> {
    let object = Object::parse(dif).map_err(|error| malformed(chain(&error)))?;
    let debug_id = Some(object.debug_id()).filter(|id| !id.is_nil());
    let other = OtherFiles::default();
    let contents = |kind| blob::unfiled(kind, object.arch(), debug_id);
    Ok([
        Sym::encode(&object, &other, 1, &contents(Kind::SymCache))?.blob,
        Cfi::encode(&object, &other, 1, &contents(Kind::CfiCache))?.blob,
    ])
}
