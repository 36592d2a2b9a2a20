//! The lookup of one cache that a request needs, and its outcome.

use std::sync::Arc;

use crate::cache::{Entry, Kind, ModuleKey};
use crate::domain::{Candidate, Cause, Features, Missing, Quality, SourceKey};
use crate::flows::lookup::{CachePlace, Chosen, Items, Lookup};
use crate::flows::memory::{Memory, SeenGeneration};
use crate::flows::opening::LoadedCache;
use crate::symbolicate::{Considered, ModuleOutcome, PlannedCacheId, Searched, SourceCodeOutcome};

/// A cache that the request needs, and the state of its lookup.
pub(super) struct CacheLookup {
    /// The cache in the plan: the one that is looked up, or, if this is the lookup of sources, the
    /// one with their names.
    pub(super) planned: PlannedCacheId,
    kind: Kind,
    /// Where the cache may be.
    pub(super) lookup: Lookup,
    /// The path of the source file, if this is the lookup of one.
    pub(super) file: Option<Arc<str>>,
    /// The candidates of sources that are listed if they have no file for the module.
    listed: Arc<[Candidate]>,
    /// The candidates of all places, if the response lists them.
    candidates: Vec<Candidate>,
    /// The file that was found although no cache can be made from its type.
    unsupported: Option<Box<Candidate>>,
    pub(super) outcome: Option<LookupOutcome>,
}

/// The outcome of a lookup.
pub(super) enum LookupOutcome {
    Cache {
        cache: LoadedCache,
        chosen: Box<Chosen>,
    },
    /// Source code was found. The lines of several places are read together, in one round of reads.
    Chosen(Box<Chosen>),
    Missing(Missing),
}

impl CacheLookup {
    pub(super) fn new(planned: PlannedCacheId, kind: Kind, lookup: Lookup) -> Self {
        Self {
            planned,
            kind,
            lookup,
            file: None,
            listed: Arc::default(),
            candidates: Vec::new(),
            unsupported: None,
            outcome: None,
        }
    }

    /// Returns the lookup of a source file of a module, by the path in its debug information.
    pub(super) fn of_file(planned: PlannedCacheId, path: Arc<str>, lookup: Lookup) -> Self {
        Self {
            file: Some(path),
            ..Self::new(planned, Kind::SourceCode, lookup)
        }
    }

    /// Lists these candidates if their sources have no file for the module, so that the response
    /// says which sources were searched, and which were not.
    pub(super) fn listing(self, listed: Arc<[Candidate]>) -> Self {
        Self { listed, ..self }
    }

    /// Notes the file that is unsupported, and collects the candidates of all entries if the
    /// response lists them.
    pub(super) fn note_candidates(&mut self, items: &Items) {
        let unsupported = self.lookup.unsupported(items);
        self.unsupported = unsupported.cloned().map(Box::new);
        if !self.lookup.reads_all {
            return;
        }
        let without = self.listed.iter().filter(|listed| {
            let mut places = self.lookup.places.iter();
            let may_have = |place: &CachePlace| match place.module.sought() {
                Some(sought) => sought.may_yield(self.kind),
                None => items.may_have_files(place),
            };
            !places.any(|place| place.module.source == listed.source && may_have(place))
        });
        self.candidates = self.lookup.candidates(items);
        self.candidates.extend(without.cloned());
    }

    /// Returns the places that may have the cache, in the order of precedence.
    pub(super) fn places(&self) -> &[CachePlace] {
        &self.lookup.places
    }

    /// Returns whether the lookup has no outcome yet.
    pub(super) fn is_undecided(&self) -> bool {
        self.outcome.is_none()
    }

    /// Returns the sources in which it searches.
    pub(super) fn searched_sources(&self) -> impl Iterator<Item = &SourceKey> {
        self.places().iter().map(|place| &place.module.source)
    }

    /// Returns the state that is used, with its entry.
    pub(super) fn chosen(&self) -> Option<&Chosen> {
        match &self.outcome {
            Some(LookupOutcome::Cache { chosen, .. } | LookupOutcome::Chosen(chosen)) => {
                Some(chosen)
            }
            Some(LookupOutcome::Missing(_)) | None => None,
        }
    }

    /// Returns the entry whose cache is used.
    pub(super) fn entry(&self) -> Option<&Entry> {
        self.chosen().map(|chosen| &chosen.entry)
    }

    /// Returns whether the cache was made from an upload, and no other file could be better.
    pub(super) fn is_of_uploads(&self) -> bool {
        self.chosen().is_some_and(|chosen| {
            let is_upload = chosen.entry.module().source.is_uploads();
            is_upload && chosen.ready.quality == Quality::Preferred
        })
    }

    /// Returns the outcome of a lookup of sources.
    pub(super) fn source_code_outcome(&self) -> SourceCodeOutcome<'_> {
        let ready = self.chosen().map(|chosen| &chosen.ready);
        SourceCodeOutcome {
            planned: self.planned,
            features: ready.map(|ready| &ready.features),
            lacks: ready.and_then(|ready| ready.lacks.as_deref()),
            candidates: &self.candidates,
        }
    }

    /// Returns the outcome as the symbolication uses it.
    pub(super) fn outcome(&self) -> ModuleOutcome<'_> {
        let considered = |used| Considered {
            candidates: &self.candidates,
            used,
        };
        let (cache, chosen) = match &self.outcome {
            Some(LookupOutcome::Cache { cache, chosen }) => (cache, chosen),
            Some(LookupOutcome::Missing(missing)) => {
                let unsupported = self.unsupported.as_deref();
                let used = unsupported.filter(|_| missing.cause == Cause::Unsupported);
                let features = used.and_then(Candidate::features);
                return ModuleOutcome::Missing {
                    missing: missing.clone(),
                    features: features.cloned().unwrap_or_default(),
                    considered: considered(used.map(|used| (&used.source, &used.location))),
                };
            }
            // A lookup of source code is not that of a module.
            Some(LookupOutcome::Chosen(_)) | None => {
                return ModuleOutcome::Failed {
                    detail: "the module was not looked up".to_owned(),
                };
            }
        };
        let ready = &chosen.ready;
        let serves = ready.features.has_debug_info || ready.features.has_symbols;
        match cache.lookup_cache(self.kind) {
            Some(cache) if serves => ModuleOutcome::Found {
                cache,
                features: ready.features.clone(),
                arch: &ready.arch,
                lacks: ready.lacks.as_deref(),
                considered: considered(chosen.used()),
            },
            // A file was found, but it has neither debug information nor symbols.
            Some(_) => ModuleOutcome::Missing {
                missing: Missing::not_found(),
                features: Features::default(),
                considered: considered(chosen.used()),
            },
            None => ModuleOutcome::Failed {
                detail: "the kind of the cache does not match its record".to_owned(),
            },
        }
    }

    /// Returns where the lookup searched, which of the files that it found is damaged, and why it
    /// could not fetch a better one yet.
    pub(super) fn searched(&self, memory: &Memory) -> Searched {
        let place = |place: &CachePlace| {
            let ModuleKey { source, scope, .. } = &place.module;
            if !source.is_uploads() {
                return source.id().to_owned();
            }
            match memory.last_generation(scope) {
                Some(SeenGeneration::NoUploads) => {
                    format!("the uploads of {scope} (no upload was processed there yet)")
                }
                _ => format!("the uploads of {scope}"),
            }
        };
        let damaged = |entry: &Entry| {
            let mut candidates = entry.candidates().iter();
            candidates.find_map(|candidate| {
                let fault = candidate.fault.clone()?;
                Some((candidate.location.to_string(), fault))
            })
        };
        let delayed = |entry: &Entry| {
            let missing = &entry.missing()?.missing;
            let is_delayed = missing.cause.is_of_a_moment();
            is_delayed.then(|| missing.detail.clone())
        };
        let mut places: Vec<String> = self.places().iter().map(place).collect();
        // A module that is found by several ids has one place per id.
        places.dedup();
        Searched {
            places,
            has_uploads: self.places().iter().any(CachePlace::is_uploads),
            damaged: self.entry().and_then(damaged),
            delayed: self.entry().and_then(delayed),
        }
    }
}
