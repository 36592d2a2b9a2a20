//! Derives every cache that an object may serve, to find out whether the file is usable: whether it
//! can be inspected says little about that.

use serde::{Deserialize, Serialize};

use super::derive;
use super::failure::Failure;
use super::layout::{DifBytes, Layout};
use crate::cache::{DeriveJob, Kind, ReleaseNumbers};
use crate::domain::ObjectMeta;

/// What became of deriving one cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriedCache {
    /// The name of the kind.
    pub kind: String,
    /// Whether the object has what the cache is made of.
    pub is_offered: bool,
    /// What the cache lacks although the file has it or refers to another file for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lacks: Option<String>,
    /// Why there is no cache; `None` if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unusable: Option<String>,
}

/// Derives the caches that the service derives from an object, and drops them.
///
/// `object` is from the inspection of the same layout. `cores` is the number of threads to use.
/// Panics are caught; memory and time are not limited here.
pub fn try_caches(
    layout: &Layout,
    bytes: DifBytes<'_>,
    object: &ObjectMeta,
    cores: usize,
) -> Vec<TriedCache> {
    let has_sources = object.features.has_sources;
    let kinds = Kind::derived_from(object.file_type).iter().copied();
    let kinds = kinds.filter(|kind| *kind != Kind::SourceCode);
    // A bundle may lie beside the object.
    let kinds = kinds.chain(has_sources.then_some(Kind::SourceCode));
    let tried = kinds.map(|kind| {
        let job = DeriveJob::of(kind, &object.features, &ReleaseNumbers::CURRENT);
        let (lacks, unusable) = match derive(layout, bytes, object.index, job, cores) {
            Ok(derived) => (derived.lacks, None),
            Err(Failure::Missing(missing)) => (None, Some(missing.detail)),
            Err(Failure::OutOfMemory) => {
                (None, Some("parsing it needs too much memory".to_owned()))
            }
        };
        TriedCache {
            kind: kind.to_string(),
            is_offered: offers(object, kind),
            lacks,
            unusable,
        }
    });
    tried.collect()
}

/// Returns whether an object has what a cache of this kind is made of.
fn offers(object: &ObjectMeta, kind: Kind) -> bool {
    let features = &object.features;
    match kind {
        Kind::SourceCode => features.has_sources,
        Kind::CfiCache => features.has_unwind_info,
        Kind::PpdbCache | Kind::SymCache => features.has_debug_info || features.has_symbols,
        Kind::MsSymCache(_) => false,
    }
}
