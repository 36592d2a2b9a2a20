//! The caches of the modules of a minidump: their lookups, and what to request.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::crash::ModuleUnwinding;
use crate::api::symbolicator::Module;
use crate::cache::{Capabilities, Kind, PlaceToBuild, Queue, Ready, Selection, UnreadableBlobs};
use crate::domain::{Candidate, DebugId, Features, Missing, ModuleId, Scope};
use crate::flows::build_requests::{BuildToRequest, MAX_BUILD_REQUESTS};
use crate::flows::lookup::{CacheFinder, CachePlace, Chosen, Items, Lookup, SelectedSource};
use crate::flows::requests::overdue;
use crate::flows::unwinding::ModuleCaches;
use crate::ports::{Consistency, Fault};

/// The caches that a walk uses of a module: what it is unwound with, and what tells whether a word
/// of the stack may be a return address.
const KINDS: [Kind; 2] = [Kind::CfiCache, Kind::SymCache];

/// The modules that walks may reach.
pub(super) struct WalkModules<'a> {
    pub(super) finder: CacheFinder<'a>,
    sources: Vec<SelectedSource>,
    scope: &'a Scope,
    /// All modules of the minidump, by their index in it.
    listed: BTreeMap<usize, Module>,
    /// Whether the candidates of all places are collected.
    reads_all: bool,
    capabilities: Capabilities,
    /// Those that were looked up.
    known: BTreeMap<usize, [WalkCache; 2]>,
    requests_left: usize,
    /// The blobs that cannot be read.
    unreadable: UnreadableBlobs,
    /// Whether builds are not waited for any longer.
    has_given_up: bool,
}

/// A cache of a module, and the state of its lookup.
struct WalkCache {
    lookup: Lookup,
    state: WalkCacheState,
    /// The builds that could make it, or a better one, and that are not requested yet.
    builds: Vec<BuildToRequest>,
    candidates: Vec<Candidate>,
    /// Whether a build of it is in progress.
    is_in_progress: bool,
}

enum WalkCacheState {
    /// A build could make it.
    Undecided,
    Ready(Box<Chosen>),
    Missing(Missing),
}

impl<'a> WalkModules<'a> {
    pub(super) fn new(
        finder: CacheFinder<'a>,
        sources: Vec<SelectedSource>,
        scope: &'a Scope,
        listed: BTreeMap<usize, Module>,
        reads_all: bool,
    ) -> Self {
        Self {
            capabilities: finder.service.settings.capabilities(),
            finder,
            sources,
            scope,
            listed,
            reads_all,
            known: BTreeMap::new(),
            requests_left: MAX_BUILD_REQUESTS,
            unreadable: UnreadableBlobs::default(),
            has_given_up: false,
        }
    }

    /// Decides with the caches that are ready, from the next look-up on.
    pub(super) fn give_up(&mut self) {
        self.has_given_up = true;
    }

    /// Returns whether builds are not waited for any longer.
    pub(super) fn has_given_up(&self) -> bool {
        self.has_given_up
    }

    /// Returns whether a module was added.
    pub(super) fn is_known(&self, module: usize) -> bool {
        self.known.contains_key(&module)
    }

    /// Adds modules that are not known yet.
    pub(super) fn add(&mut self, modules: &BTreeSet<usize>) {
        let new = modules.iter().filter(|module| !self.is_known(**module));
        let new: Vec<usize> = new.copied().collect();
        for module in new {
            let caches = KINDS.map(|kind| WalkCache {
                lookup: Lookup {
                    reads_all: self.reads_all,
                    ..Lookup::of(self.places(module, kind))
                },
                state: WalkCacheState::Undecided,
                builds: Vec::new(),
                candidates: Vec::new(),
                is_in_progress: false,
            });
            self.known.insert(module, caches);
        }
    }

    fn places(&self, module: usize, kind: Kind) -> Vec<CachePlace> {
        let Some(module) = self.listed.get(&module) else {
            return Vec::new();
        };
        self.finder
            .cache_places(&module.object_id(), self.scope, &self.sources, kind)
    }

    /// Looks up the caches of these modules that are not decided. Returns whether one was decided.
    pub(super) async fn look_up(
        &mut self,
        modules: &BTreeSet<usize>,
        may_wait: bool,
        consistency: Consistency,
    ) -> Result<bool, Fault> {
        let undecided = self.known.iter_mut();
        let undecided = undecided.filter(|(module, _)| modules.contains(module));
        let undecided = undecided.flat_map(|(_, caches)| caches);
        let mut undecided: Vec<&mut WalkCache> =
            undecided.filter(|cache| !cache.is_decided()).collect();
        let finder = self.finder;
        let round = finder.round(&self.capabilities, &self.unreadable, may_wait, consistency);
        let mut to_load: Vec<&mut Lookup> = undecided
            .iter_mut()
            .map(|cache| &mut cache.lookup)
            .collect();
        let _span = finder.invocation.span("look up");
        let items = round.load(&mut to_load).await?;
        let to_select: Vec<&Lookup> = undecided.iter().map(|cache| &cache.lookup).collect();
        let selections = round.select(&to_select, &items).await?;
        let mut any_decided = false;
        for (cache, selection) in undecided.into_iter().zip(selections) {
            any_decided |= cache.decide(&selection, &items, self.has_given_up);
        }
        Ok(any_decided)
    }

    /// Returns whether both caches of a module are decided.
    pub(super) fn is_decided(&self, module: usize) -> bool {
        let known = self.known.get(&module);
        known.is_some_and(|caches| caches.iter().all(WalkCache::is_decided))
    }

    /// Returns whether a build is in progress that one of these modules waits for.
    pub(super) fn is_in_progress(&self, modules: &BTreeSet<usize>) -> bool {
        let known = modules.iter().filter_map(|module| self.known.get(module));
        let mut undecided = known.flatten().filter(|cache| !cache.is_decided());
        undecided.any(|cache| cache.is_in_progress)
    }

    /// Reports caches that cannot be read, each with the index of its module. They are not decided
    /// until they are replaced.
    pub(super) async fn report_unreadable(
        &mut self,
        unreadable: &BTreeSet<(usize, Kind)>,
    ) -> Result<(), Fault> {
        for (module, kind) in unreadable {
            let known = self.known.get_mut(module).into_iter().flatten();
            for (cache, _) in known.zip(KINDS).filter(|(_, of)| of == kind) {
                let state = std::mem::replace(&mut cache.state, WalkCacheState::Undecided);
                if let WalkCacheState::Ready(chosen) = state {
                    self.finder.report_unreadable(&chosen).await?;
                    self.unreadable.add(chosen.ready.blob.path);
                }
            }
        }
        Ok(())
    }

    /// Records that these modules were unwound with their caches.
    pub(super) async fn touch(&self, modules: &BTreeSet<usize>) {
        let known = modules.iter().filter_map(|module| self.known.get(module));
        let used = known.filter_map(|[cfi, _]| Some(&cfi.chosen()?.entry));
        self.finder.touch_all(used.collect()).await;
    }

    /// Returns the modules that are not decided, of this number of modules.
    pub(super) fn undecided(&self, modules: usize) -> BTreeSet<usize> {
        (0..modules)
            .filter(|module| !self.is_decided(*module))
            .collect()
    }

    /// Returns the caches of all modules, in the order of the minidump.
    pub(super) fn caches(&self) -> Vec<ModuleCaches> {
        let count = self.known.keys().next_back().map_or(0, |last| last + 1);
        let caches = (0..count).map(|module| match self.known.get(&module) {
            Some([cfi, symbols]) => ModuleCaches {
                cfi: cfi.ready(Serves::Unwinding).cloned(),
                symbols: symbols.ready(Serves::Functions).cloned(),
            },
            None => ModuleCaches::default(),
        });
        caches.collect()
    }

    /// Requests these builds.
    pub(super) async fn request(&mut self, builds: Vec<BuildToRequest>) -> Result<(), Fault> {
        let reported = self.finder.request_builds(builds).await?;
        self.unreadable.note_reported_again(reported);
        Ok(())
    }

    /// Returns the builds to request for these modules, and counts them as requested.
    pub(super) fn builds_of(&mut self, modules: &BTreeSet<usize>) -> Vec<BuildToRequest> {
        let mut to_request = Vec::new();
        for (_, caches) in self.known.iter_mut().filter(|(at, _)| modules.contains(at)) {
            for cache in caches {
                let most = self.requests_left.min(cache.builds.len());
                self.requests_left -= most;
                to_request.extend(cache.builds.drain(..most));
            }
        }
        to_request
    }

    /// Returns the debug id of the file that a module was unwound with, if it is known.
    pub(super) fn debug_id(&self, module: usize) -> Option<DebugId> {
        let [cfi, _] = self.known.get(&module)?;
        match ModuleId::of_text(&cfi.chosen()?.entry.module().id) {
            Some(ModuleId::Debug(id)) => Some(id),
            _ => None,
        }
    }

    /// Takes how a module was unwound.
    pub(super) fn take_unwinding(&mut self, module: usize) -> Option<ModuleUnwinding> {
        let [cfi, _] = self.known.get_mut(&module)?;
        let candidates = std::mem::take(&mut cfi.candidates);
        Some(match &cfi.state {
            WalkCacheState::Ready(chosen) => ModuleUnwinding {
                missing: (!Serves::Unwinding.is_served_by(&chosen.ready)).then(Missing::not_found),
                features: chosen.ready.features.clone(),
                candidates,
                used: chosen
                    .used()
                    .map(|(source, location)| (source.clone(), location.clone())),
            },
            WalkCacheState::Missing(missing) => ModuleUnwinding {
                missing: Some(missing.clone()),
                features: Features::default(),
                candidates,
                used: None,
            },
            WalkCacheState::Undecided => return None,
        })
    }
}

/// What a walk uses a cache for.
#[derive(Clone, Copy)]
enum Serves {
    Unwinding,
    Functions,
}

impl Serves {
    /// Returns whether the file of a cache offers what it is used for.
    fn is_served_by(self, ready: &Ready) -> bool {
        let features = &ready.features;
        match self {
            Serves::Unwinding => features.has_unwind_info,
            Serves::Functions => features.has_debug_info || features.has_symbols,
        }
    }
}

impl WalkCache {
    fn is_decided(&self) -> bool {
        !matches!(self.state, WalkCacheState::Undecided)
    }

    fn chosen(&self) -> Option<&Chosen> {
        match &self.state {
            WalkCacheState::Ready(chosen) => Some(chosen),
            WalkCacheState::Undecided | WalkCacheState::Missing(_) => None,
        }
    }

    fn ready(&self, serves: Serves) -> Option<&Ready> {
        let ready = &self.chosen()?.ready;
        serves.is_served_by(ready).then_some(ready)
    }

    /// Applies a selection. Returns whether the cache is decided, which it always is if builds are
    /// not waited for.
    fn decide(&mut self, selection: &Selection<'_>, items: &Items, has_given_up: bool) -> bool {
        if self.lookup.reads_all {
            self.candidates = self.lookup.candidates(items);
        }
        let to_build = selection
            .waits_for
            .iter()
            .chain(&selection.for_later_readers);
        let unrequested = to_build.filter(|place| !place.is_requested());
        let build = |place: &PlaceToBuild<'_>| BuildToRequest {
            suspect: place.suspect.map(str::to_owned),
            ..BuildToRequest::of(&self.lookup.places[place.at], items, Queue::Eager)
        };
        self.builds = unrequested.map(build).collect();
        self.is_in_progress = selection
            .waits_for
            .iter()
            .any(|place| place.is_in_progress());
        let must_wait = !selection.waits_for.is_empty();
        if must_wait && !has_given_up {
            self.state = WalkCacheState::Undecided;
            return false;
        }
        self.state = match selection.best {
            Some(selected) => {
                let place = &self.lookup.places[selected.at];
                WalkCacheState::Ready(Box::new(Chosen::new(selected, place, items)))
            }
            None if must_wait => WalkCacheState::Missing(overdue()),
            None => WalkCacheState::Missing(selection.missing.clone()),
        };
        true
    }
}
