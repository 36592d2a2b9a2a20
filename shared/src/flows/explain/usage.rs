//! Which caches that an object of an upload is for are made of the upload.
//!
//! That a file is filed under its modules does not say that requests use it: deriving from it may
//! have failed, or another file with the same id may be preferred.

use crate::api::advice::Advice;
use crate::api::explained::{CacheOfObject, CacheUsage};
use crate::cache::{Entry, ItemKey, Kind, ModuleKey, Ready, UploadedObject};
use crate::domain::{Cause, DifRef, Download, Features, FileType, Location, Scope};

impl CacheUsage {
    fn of(entry: Option<&Entry>, dif: &DifRef) -> Self {
        let Some(entry) = entry else {
            return Self::Unbuilt;
        };
        let ready = entry.states().next();
        let is_it = |made_from: &DifRef| made_from.etag == dif.etag;
        if ready.is_some_and(|ready| ready.made_from.iter().any(is_it)) {
            return Self::Used;
        }
        let is_considered = entry.considered().contains(dif);
        let is_building = entry.build_request().is_some() || entry.lease().is_some();
        if is_building && !is_considered {
            return Self::Pending;
        }
        let missing = entry.missing().map(|placeholder| &placeholder.missing);
        match (ready, missing) {
            (Some(ready), _) => match failure(entry, dif) {
                Some(detail) => Self::Failed { detail },
                None => Self::OtherUpload {
                    made_from: made_from(ready),
                },
            },
            (None, Some(missing)) => {
                let detail = missing.detail.clone();
                match missing.cause {
                    Cause::Unsupported => Self::Unsupported { detail },
                    _ => Self::Failed { detail },
                }
            }
            (None, None) => Self::Unbuilt,
        }
    }
}

/// Returns why a cache that was made of another file could not be made of this one; `None` if it
/// was not tried.
fn failure(entry: &Entry, dif: &DifRef) -> Option<String> {
    let mut candidates = entry.candidates().iter();
    let tried = candidates.find(|candidate| candidate.location == dif.location)?;
    match &tried.download {
        Download::Ok { .. } => None,
        Download::NoPerm { details } | Download::Error { details } => Some(details.clone()),
        Download::Malformed | Download::NotFound => {
            let placeholder = entry.missing();
            let known = placeholder.map(|placeholder| placeholder.missing.detail.clone());
            Some(known.unwrap_or_else(|| "it cannot be read".to_owned()))
        }
    }
}

fn made_from(ready: &Ready) -> Location {
    let main = ready.made_from.first();
    main.map_or_else(|| Location::new(""), |dif| dif.location.clone())
}

/// Returns the kinds that are made of what an object has.
fn kinds(file_type: FileType, features: &Features) -> impl Iterator<Item = Kind> {
    let has = |kind: Kind| match kind {
        Kind::CfiCache => features.has_unwind_info,
        Kind::SymCache | Kind::PpdbCache => features.has_debug_info || features.has_symbols,
        Kind::SourceCode => features.has_sources,
        Kind::MsSymCache(_) => false,
    };
    let derived = Kind::derived_from(file_type).iter().copied();
    derived.filter(move |kind| has(*kind))
}

/// Returns the kinds that an object is for, and the keys of their entries.
pub(super) fn entries_of(scope: &Scope, object: &UploadedObject) -> Vec<(Kind, ItemKey)> {
    let module = ModuleKey::uploads(scope.clone(), &object.module);
    let kinds = kinds(object.file_type, &object.features);
    kinds.map(|kind| (kind, module.entry(kind))).collect()
}

/// Returns what requests use of an object, given the entries of the kinds that it is for.
pub(super) fn caches<'e>(
    entries: impl Iterator<Item = (Kind, Option<&'e Entry>)>,
    dif: &DifRef,
) -> Vec<CacheOfObject> {
    let caches = entries.map(|(kind, entry)| CacheOfObject {
        kind,
        usage: CacheUsage::of(entry, dif),
    });
    caches.collect()
}

/// Returns advice about an object of which requests do not use what it is for.
///
/// Another upload that is used instead matters only if the id of the object says nothing about what
/// is behind the beginning of its code. The same build id is that of the same program.
pub(super) fn advice(object: &UploadedObject, caches: &[CacheOfObject]) -> Option<Advice> {
    let failed = caches.iter().find_map(|cache| match &cache.usage {
        CacheUsage::Failed { detail } => Some(unusable(cache.kind, detail)),
        _ => None,
    });
    if failed.is_some() {
        return failed;
    }
    let (mut others, mut unsupported) = (Vec::new(), None);
    for CacheOfObject { kind, usage } in caches {
        match usage {
            CacheUsage::OtherUpload { made_from } => others.push((kind.to_string(), made_from)),
            CacheUsage::Unsupported { detail } => unsupported = Some(unusable(*kind, detail)),
            _ => return None,
        }
    }
    let Some((_, location)) = others.first() else {
        return unsupported;
    };
    let location = location.to_string();
    let is_computed = object.file_type.is_elf() && object.code_id.is_none();
    is_computed.then(|| Advice::SharedId {
        location,
        kinds: others.into_iter().map(|(kind, _)| kind).collect(),
    })
}

fn unusable(kind: Kind, fault: &str) -> Advice {
    Advice::Unusable {
        kind: kind.to_string(),
        fault: fault.to_owned(),
    }
}
