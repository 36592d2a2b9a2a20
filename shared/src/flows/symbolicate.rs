//! Answers a symbolication request: plans it, looks its modules up, and symbolicates its frames.
//!
//! 1. *Plan* (pure): find the modules that the frames lie in (`crate::symbolicate::plan`).
//! 2. *Look up*: load the entries of these modules, in every place that the request may read, in
//!    one round of reads. `items` serves them from the instance's cache while the cached items are
//!    valid.
//! 3. *Decide* (pure): use a cache, report the module as missing, or wait. An upload whose presence
//!    item is absent is missing; no build is requested for it.
//! 4. *Request builds* (`build_requests`) for the places to wait for. The request is stored first,
//!    so that any instance can continue it.
//! 5. *Read* the blobs in parallel. A blob that cannot be read is reported as suspect, and the
//!    request waits for its replacement.
//! 6. Repeat from step 2 until every module has an outcome or the time is up. If the time is up,
//!    the response is `pending`.
//! 7. *Symbolicate* (pure), and touch the entries that were used.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};

use super::build_requests::BuildToRequest;
use super::items::ItemQuery;
use super::memory::Recalled;
use super::opening::{LoadedCache, Opening, ReadError};
use super::places::NamedSource;
pub use super::symbolicator::Symbolicator;
use super::waiting::Waiting;
use super::{Error, Invocation, Updated, permits};
use crate::api::symbolicator::{Completed, Request};
use crate::cache::{
    Change, Decision, Entry, Item, ItemKey, Kind, ModuleKey, Policy, Queue, Ready, Sought, Stored,
    decide,
};
use crate::domain::{
    Candidate, Cause, Location, Missing, ModuleId, ObjectId, Quality, Scope, SourceKey, Timestamp,
};
use crate::flows::symbolicator::CALLS_IN_FLIGHT;
use crate::ports::{Consistency, Fault, QueueMessage};
use crate::symbolicate::{
    Considered, KnownNames, ModuleOutcome, Plan, Searched, Stats, advise, plan, symbolicate_with,
};

/// The maximum number of blobs that are read at a time.
const READS_IN_FLIGHT: usize = 64;

/// The maximum number of builds that one call requests. The call that continues the request
/// requests the next ones.
const MAX_BUILD_REQUESTS: usize = 256;

/// The outcome of a request.
#[derive(Debug)]
pub enum SymbolicateOutcome {
    /// The response is complete.
    Completed(Box<Completed>, Stats),
    /// The request waits for builds, and is stored under its id.
    Pending,
}

/// A request as it was received. It is stored while it waits for builds.
#[derive(Clone, Copy, Debug)]
pub struct Kept<'a> {
    /// The id that the client receives.
    pub id: &'a str,
    /// The body; `None` if the request is already stored.
    pub body: Option<&'a [u8]>,
}

/// A cache that the request needs, and the state of its lookup.
struct ModuleLookup {
    kind: Kind,
    /// The places where the module may be found, in the order of precedence.
    places: Vec<CachePlace>,
    /// Whether the response lists the candidates.
    shows_candidates: bool,
    /// The candidates of all places, if the response lists them.
    candidates: Vec<Candidate>,
    outcome: Option<LookupOutcome>,
}

/// A place where a module may be found, and the keys of the items to load for it.
struct CachePlace {
    module: ModuleKey,
    entry: ItemKey,
    /// For uploads: the item that exists if the module has files.
    presence: Option<ItemKey>,
    /// For uploads that are looked up by code id: the item that refers to the module's debug id.
    alias: Option<ItemKey>,
}

impl CachePlace {
    fn new(module: ModuleKey, kind: Kind, is_by_code: bool) -> Self {
        let is_upload = module.source.is_uploads();
        Self {
            entry: module.entry(kind),
            presence: is_upload.then(|| module.presence()),
            alias: (is_upload && is_by_code).then(|| module.alias()),
            module,
        }
    }

    fn wanted(&self, key: &ItemKey) -> ItemQuery {
        ItemQuery::of(&self.module, key.clone())
    }
}

/// The loaded items by key; `None` if an item does not exist.
type Items = HashMap<ItemKey, Option<Arc<Stored>>>;

/// The outcome of a lookup.
enum LookupOutcome {
    Cache {
        cache: LoadedCache,
        chosen: Box<Chosen>,
    },
    Missing(Missing),
    Failed {
        detail: String,
    },
}

/// A request, its plan, and the reader of its blobs.
struct RequestContext<'a> {
    request: &'a Request,
    plan: &'a Plan,
    opening: Opening<'a>,
}

impl RequestContext<'_> {
    /// Opens the parts of a cache that the request needs, for a place of the plan.
    async fn open(&self, place: usize, chosen: &Chosen) -> Result<LoadedCache, ReadError> {
        let Chosen { entry, ready, .. } = chosen;
        let needed = |arch| self.plan.addresses(self.request, place, arch);
        self.opening.open(entry.kind(), ready, needed).await
    }
}

/// A state to use, and the entry that it belongs to.
struct Chosen {
    entry: Entry,
    ready: Ready,
    /// The index of its place.
    at: usize,
    /// The stored record of the entry.
    stored: Arc<Stored>,
}

/// The next step of a lookup.
enum Next {
    Use(Box<Chosen>),
    Give(Missing),
    Wait(Vec<Awaited>),
}

/// A place that may still provide a cache.
struct Awaited {
    /// The index of the place.
    at: usize,
    /// Whether a build is in progress or requested.
    is_requested: bool,
}

/// The decision about a lookup in one round.
struct Decided {
    next: Next,
    /// Places that could provide a better cache and have no pending build request.
    to_improve: Vec<usize>,
}

/// The state of a request across its rounds.
struct Rounds<'a> {
    kept: Kept<'a>,
    scope: &'a Scope,
    is_kept: bool,
    /// The number of builds that this call may still request.
    requests_left: usize,
    /// The paths of blobs that cannot be read.
    unreadable: HashSet<String>,
}

/// What is left to wait for after a round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// Nothing: every lookup has an outcome.
    Nothing,
    /// Builds that are in progress or requested.
    Builds,
    /// Only builds that this call may no longer request.
    Unrequested,
}

impl Symbolicator {
    /// Answers a request, waiting up to `wait` for builds. Stores the request before it requests
    /// any build.
    pub async fn answer(
        &self,
        invocation: &Invocation,
        request: &Request,
        scope: &Scope,
        wait: Duration,
        kept: Kept<'_>,
    ) -> Result<SymbolicateOutcome, Error> {
        let selected = request
            .sources
            .select(&self.sources(), self.settings.request_sources.is_some())
            .map_err(|error| Error::Invalid {
                detail: error.body().causes.join("; "),
            })?;
        let sources = self.named(invocation, selected).await?;
        let plan = plan(request);
        let mut lookups: Vec<ModuleLookup> = plan
            .wanted()
            .iter()
            .map(|wanted| ModuleLookup {
                kind: wanted.kind,
                places: self.places_of(&wanted.object_id, wanted.kind, scope, &sources),
                shows_candidates: request.options.dif_candidates,
                candidates: Vec::new(),
                outcome: None,
            })
            .collect();
        let asked = RequestContext {
            request,
            plan: &plan,
            opening: Opening::new(&*self.caches, &self.memory),
        };
        let mut progress = Rounds {
            kept,
            scope,
            is_kept: kept.body.is_none(),
            requests_left: MAX_BUILD_REQUESTS,
            unreadable: HashSet::new(),
        };
        let resolved = self.resolve(invocation, &asked, &mut lookups, &mut progress, wait);
        if !resolved.await? {
            self.keep(invocation, &mut progress).await?;
            return Ok(SymbolicateOutcome::Pending);
        }
        let outcomes: Vec<ModuleOutcome<'_>> = lookups.iter().map(outcome).collect();
        let names = KnownNames::remembered(self.memory.names());
        let (mut completed, mut stats, mut names) =
            symbolicate_with(request, &plan, &outcomes, names);
        let isolated = names.take_isolated();
        if !isolated.is_empty() && !stats.is_too_large() {
            let readable = self.demangler.demangle(&isolated).await;
            for (name, readable) in isolated.into_iter().zip(readable) {
                names.add(name, readable);
            }
            (completed, stats, _) = symbolicate_with(request, &plan, &outcomes, names);
        }
        if stats.is_too_large() {
            return Err(Error::TooLarge {
                bytes: stats.answer_bytes,
            });
        }
        advise(&mut completed, request, &plan, &outcomes, |place| {
            let lookup = lookups.get(place);
            lookup.map_or_else(Searched::default, |lookup| self.searched(lookup))
        });
        stats.reads = asked.opening.counts();
        let used = lookups.iter().filter_map(|lookup| match &lookup.outcome {
            Some(LookupOutcome::Cache { chosen, .. }) => Some(&chosen.entry),
            _ => None,
        });
        self.touch(invocation, used.collect()).await;
        Ok(SymbolicateOutcome::Completed(Box::new(completed), stats))
    }

    /// Returns where a lookup searched, and which of the files that it found is damaged.
    fn searched(&self, lookup: &ModuleLookup) -> Searched {
        let place = |place: &CachePlace| {
            let ModuleKey { source, scope, .. } = &place.module;
            if !source.is_uploads() {
                return source.id().to_owned();
            }
            match self.memory.last_generation(scope) {
                Some(None) => format!("the uploads of {scope} (no upload was processed there yet)"),
                _ => format!("the uploads of {scope}"),
            }
        };
        let damaged = |chosen: &Chosen| {
            let mut candidates = chosen.entry.candidates().iter();
            candidates.find_map(|candidate| {
                let fault = candidate.fault.clone()?;
                Some((candidate.location.to_string(), fault))
            })
        };
        let mut places: Vec<String> = lookup.places.iter().map(place).collect();
        // A module that is found by several ids has one place per id.
        places.dedup();
        Searched {
            places,
            damaged: match &lookup.outcome {
                Some(LookupOutcome::Cache { chosen, .. }) => damaged(chosen),
                _ => None,
            },
        }
    }

    /// Stores the request, unless it is already stored.
    async fn keep(&self, invocation: &Invocation, progress: &mut Rounds<'_>) -> Result<(), Error> {
        let Kept { id, body } = progress.kept;
        if let Some(body) = body.filter(|_| !progress.is_kept) {
            self.keep_request(invocation, id, progress.scope, body)
                .await?;
            progress.is_kept = true;
        }
        Ok(())
    }

    fn places_of(
        &self,
        module: &ObjectId,
        kind: Kind,
        scope: &Scope,
        sources: &[NamedSource],
    ) -> Vec<CachePlace> {
        let id = ModuleId::of(module.debug_id, module.code_id.as_ref());
        let is_by_code = matches!(id, Some(ModuleId::Code(_)));
        let modules = self.places(module, scope, sources, Sought::new).into_iter();
        modules
            .map(|module| CachePlace::new(module, kind, is_by_code))
            .collect()
    }

    /// Repeats rounds until every lookup has an outcome. Returns `false` if the time is up first,
    /// or if only builds are left that this call may not request.
    async fn resolve(
        &self,
        invocation: &Invocation,
        asked: &RequestContext<'_>,
        lookups: &mut [ModuleLookup],
        progress: &mut Rounds<'_>,
        wait: Duration,
    ) -> Result<bool, Error> {
        let mut waiting = Waiting::new(invocation, wait);
        loop {
            let (is_last, consistency) = (waiting.is_over(), waiting.consistency());
            let round = self.round(invocation, asked, lookups, progress, is_last, consistency);
            match round.await {
                Ok(Left::Nothing) => return Ok(true),
                Ok(Left::Unrequested) => return Ok(false),
                Ok(Left::Builds) => {}
                Err(Error::Store(error)) if waiting.tolerates(&error) => {}
                Err(error) => return Err(error),
            }
            if is_last {
                return Ok(false);
            }
            waiting.pause().await;
        }
    }

    /// Runs one round: loads the entries of all lookups without an outcome, requests builds, and
    /// reads the blobs of the caches to use.
    async fn round(
        &self,
        invocation: &Invocation,
        asked: &RequestContext<'_>,
        lookups: &mut [ModuleLookup],
        progress: &mut Rounds<'_>,
        is_last: bool,
        consistency: Consistency,
    ) -> Result<Left, Error> {
        let open: Vec<usize> = (0..lookups.len())
            .filter(|at| lookups[*at].outcome.is_none())
            .collect();
        let items = self.look(invocation, lookups, &open, consistency).await?;
        let health = self
            .health_of_awaited(invocation, lookups, &open, &items, progress)
            .await?;
        let (mut to_read, mut to_request, mut to_improve) = (Vec::new(), Vec::new(), Vec::new());
        let mut left = Left::Nothing;
        for at in open {
            let lookup = &mut lookups[at];
            if lookup.shows_candidates {
                lookup.candidates = tried(lookup, &items);
            }
            let decided = self.decide(invocation, lookup, &items, &health, is_last, progress);
            let request = |place: &CachePlace, queue| BuildToRequest {
                module: place.module.clone(),
                kind: lookup.kind,
                queue,
                known: items.get(&place.entry).cloned().flatten(),
            };
            let improved = decided.to_improve.iter();
            to_improve.extend(improved.map(|at| request(&lookup.places[*at], Queue::Refresh)));
            match decided.next {
                Next::Use(chosen) => to_read.push((at, chosen)),
                Next::Give(missing) => lookup.outcome = Some(LookupOutcome::Missing(missing)),
                Next::Wait(awaited) => {
                    let mut is_requested = false;
                    for awaited in awaited {
                        if awaited.is_requested {
                            is_requested = true;
                        } else if progress.requests_left > 0 {
                            is_requested = true;
                            progress.requests_left -= 1;
                            to_request.push(request(&lookup.places[awaited.at], Queue::Eager));
                        }
                    }
                    left = match (left, is_requested) {
                        (_, true) | (Left::Builds, _) => Left::Builds,
                        (_, false) => Left::Unrequested,
                    };
                }
            }
        }
        if !to_request.is_empty() {
            self.keep(invocation, progress).await?;
        }
        to_improve.truncate(progress.requests_left);
        progress.requests_left -= to_improve.len();
        to_request.append(&mut to_improve);
        // Build requests and reads are independent of each other.
        let reads = self.read_blobs(invocation, asked, lookups, to_read, progress);
        let (asked, read) =
            futures::future::join(self.request_builds(invocation, to_request), reads).await;
        asked?;
        Ok(match read? {
            Left::Nothing => left,
            other => other,
        })
    }

    /// Reads the blobs of these lookups in parallel.
    async fn read_blobs(
        &self,
        invocation: &Invocation,
        asked: &RequestContext<'_>,
        lookups: &mut [ModuleLookup],
        to_read: Vec<(usize, Box<Chosen>)>,
        progress: &mut Rounds<'_>,
    ) -> Result<Left, Error> {
        let mut reads = stream::iter(to_read)
            .map(|(at, chosen)| async move {
                let read = asked.open(at, &chosen).await;
                (at, chosen, read)
            })
            .buffer_unordered(READS_IN_FLIGHT);
        let mut left = Left::Nothing;
        while let Some((at, chosen, read)) = reads.next().await {
            let blob = &chosen.ready.blob.path;
            match read {
                Ok(cache) => lookups[at].outcome = Some(LookupOutcome::Cache { cache, chosen }),
                Err(ReadError::Store(error)) => {
                    tracing::warn!(blob, %error, "cannot read blob");
                    lookups[at].outcome = Some(LookupOutcome::Failed {
                        detail: error.to_string(),
                    });
                }
                Err(fault) => {
                    tracing::warn!(blob, %fault, "blob does not match its record; a rebuild is requested");
                    self.report(invocation, &chosen).await?;
                    progress.unreadable.insert(blob.clone());
                    left = Left::Builds;
                }
            }
        }
        Ok(left)
    }

    /// Loads the items of these lookups in one round of reads, and the targets of aliases in a
    /// second one.
    async fn look(
        &self,
        invocation: &Invocation,
        lookups: &mut [ModuleLookup],
        open: &[usize],
        consistency: Consistency,
    ) -> Result<Items, Fault> {
        let wanted = open
            .iter()
            .flat_map(|at| self.wanted_of(invocation, &lookups[*at]));
        let wanted: Vec<ItemQuery> = wanted.collect();
        let mut items = self.load_into(invocation, wanted, consistency).await?;
        let mut behind_aliases = Vec::new();
        for at in open {
            let ModuleLookup { kind, places, .. } = &mut lookups[*at];
            let mut place = 0;
            while place < places.len() {
                if let Some(target) = places[place]
                    .alias
                    .take_if(|alias| items.contains_key(alias))
                    && let Some(Item::Alias(alias)) = item(&items, &target)
                    && places.iter().all(|known| known.module != alias.target)
                {
                    let target = CachePlace::new(alias.target.clone(), *kind, false);
                    let keys = [Some(&target.entry), target.presence.as_ref()];
                    behind_aliases.extend(keys.into_iter().flatten().map(|key| target.wanted(key)));
                    place += 1;
                    places.insert(place, target);
                }
                place += 1;
            }
        }
        if !behind_aliases.is_empty() {
            let found = self
                .load_into(invocation, behind_aliases, consistency)
                .await?;
            items.extend(found);
        }
        Ok(items)
    }

    async fn load_into(
        &self,
        invocation: &Invocation,
        mut wanted: Vec<ItemQuery>,
        consistency: Consistency,
    ) -> Result<Items, Fault> {
        wanted.sort_by(|a, b| a.key.cmp(&b.key));
        wanted.dedup_by(|a, b| a.key == b.key);
        let items = self.load(invocation, &wanted, consistency).await?;
        Ok(wanted
            .into_iter()
            .map(|wanted| wanted.key)
            .zip(items)
            .collect())
    }

    /// Returns the items to load for a lookup.
    ///
    /// The items of a place whose cached entry is ready are limited to that entry. No later place
    /// is searched if that entry is of the preferred quality, because no later place could be
    /// better.
    fn wanted_of(&self, invocation: &Invocation, lookup: &ModuleLookup) -> Vec<ItemQuery> {
        let mut wanted = Vec::new();
        for place in &lookup.places {
            let ready = match self.memory.recall(invocation, &place.entry) {
                Recalled::Believed(Some(stored)) => self.ready(invocation, &stored),
                _ => None,
            };
            wanted.push(place.wanted(&place.entry));
            if ready.is_none() {
                let others = [&place.presence, &place.alias];
                wanted.extend(others.into_iter().flatten().map(|key| place.wanted(key)));
            }
            if ready == Some(Quality::Preferred) && !lookup.shows_candidates {
                break;
            }
        }
        wanted
    }

    /// Returns the quality of a ready state that can be used as it is; `None` if there is none.
    fn ready(&self, invocation: &Invocation, stored: &Stored) -> Option<Quality> {
        let entry = stored.item.entry()?;
        match decide(Some(entry), &self.settings.capabilities(), invocation.now()) {
            Decision::Use(ready) => Some(ready.quality),
            _ => None,
        }
    }

    /// Decides the next step of a lookup from the items of its places. Pure.
    fn decide(
        &self,
        invocation: &Invocation,
        lookup: &ModuleLookup,
        items: &Items,
        health: &Health,
        is_last: bool,
        progress: &Rounds<'_>,
    ) -> Decided {
        let now = invocation.now();
        let mut best: Option<Box<Chosen>> = None;
        let mut missing: Option<Missing> = None;
        let mut waits_for: Vec<Awaited> = Vec::new();
        let mut to_improve = Vec::new();
        let reader = self.settings.capabilities();
        for (at, place) in lookup.places.iter().enumerate() {
            // `wanted_of` omitted this place and the following ones, because an earlier place
            // cannot be beaten.
            let Some(stored) = items.get(&place.entry) else {
                break;
            };
            if let Some(Item::Newer { .. }) = stored.as_deref().map(|stored| &stored.item) {
                missing = says_more(missing, unreadable_record());
                continue;
            }
            let entry = stored.as_deref().and_then(|stored| stored.item.entry());
            let is_at_work = entry.is_some_and(|entry| {
                entry.live_lease(now).is_some() || entry.live_request(now).is_some()
            });
            let decision = decide(entry, &reader, now);
            let may_improve =
                matches!(decision, Decision::UseAndUpgrade(_) | Decision::UseOlder(_));
            match (decision, stored, entry) {
                (
                    Decision::Use(ready)
                    | Decision::UseAndUpgrade(ready)
                    | Decision::UseOlder(ready),
                    Some(stored),
                    Some(entry),
                ) => {
                    if progress.unreadable.contains(&ready.blob.path) {
                        // The rebuild of an unreadable blob has failed: report its reason.
                        match entry.missing().filter(|failed| now < failed.retry_at) {
                            Some(failed) => {
                                missing = says_more(missing, failed.missing.clone());
                            }
                            None => waits_for.push(Awaited {
                                at,
                                is_requested: is_at_work,
                            }),
                        }
                        continue;
                    }
                    if may_improve
                        && !is_at_work
                        && health.missing(&place.module.source, now).is_none()
                    {
                        to_improve.push(at);
                    }
                    if best
                        .as_ref()
                        .is_none_or(|best| ready.rank < best.ready.rank)
                    {
                        best = Some(Box::new(Chosen {
                            entry: entry.clone(),
                            ready: ready.clone(),
                            at,
                            stored: stored.clone(),
                        }));
                    }
                }
                (Decision::Missing(placeholder), ..) => {
                    missing = says_more(missing, placeholder.missing.clone());
                }
                // The presence item is absent, so no upload serves this place. The reason in a
                // placeholder is more specific than "not found".
                (_, _, entry) if has_no_files(place, items) => {
                    let known = entry.and_then(Entry::missing);
                    let known = known.map(|placeholder| placeholder.missing.clone());
                    missing = says_more(missing, known.unwrap_or_else(Missing::not_found));
                }
                (Decision::Wait { .. }, ..) => waits_for.push(Awaited {
                    at,
                    is_requested: true,
                }),
                _ => waits_for.push(Awaited {
                    at,
                    is_requested: false,
                }),
            }
        }
        // Wait only for a place that could provide a better file, or for uploads that take
        // precedence over the chosen place.
        let could_beat = |chosen: &Chosen, other: &Awaited| {
            let is_upload = lookup.places[other.at].module.source.is_uploads();
            let is_nearer = is_upload && other.at < chosen.at;
            is_nearer || chosen.ready.quality == Quality::Fallback
        };
        let is_settled = |waits_for: &[Awaited]| match &best {
            Some(chosen) => is_last || !waits_for.iter().any(|other| could_beat(chosen, other)),
            None => waits_for.is_empty(),
        };
        if !is_settled(&waits_for) {
            // Do not wait for sources whose circuit is open.
            waits_for.retain(|awaited| {
                let open = health.missing(&lookup.places[awaited.at].module.source, now);
                let is_open = open.is_some();
                if let Some(open) = open {
                    missing = says_more(missing.take(), open);
                }
                !is_open
            });
        }
        let next = if !is_settled(&waits_for) {
            Next::Wait(waits_for)
        } else {
            match best {
                Some(chosen) => Next::Use(chosen),
                None => Next::Give(missing.unwrap_or_else(Missing::not_found)),
            }
        };
        Decided { next, to_improve }
    }

    /// Loads the health of the servers that a lookup would wait for or request a build from.
    async fn health_of_awaited(
        &self,
        invocation: &Invocation,
        lookups: &[ModuleLookup],
        open: &[usize],
        items: &Items,
        progress: &Rounds<'_>,
    ) -> Result<Health, Fault> {
        let mut servers: BTreeSet<&SourceKey> = BTreeSet::new();
        let unknown = Health::default();
        let is_server = |place: &CachePlace| !place.module.source.is_uploads();
        let of_servers = open.iter().map(|at| &lookups[*at]);
        for lookup in of_servers.filter(|lookup| lookup.places.iter().any(is_server)) {
            let Decided { next, to_improve } =
                self.decide(invocation, lookup, items, &unknown, false, progress);
            let awaited = match &next {
                Next::Wait(awaited) => awaited.as_slice(),
                Next::Use(_) | Next::Give(_) => &[],
            };
            let places = awaited.iter().map(|awaited| awaited.at).chain(to_improve);
            let sources = places.map(|at| &lookup.places[at].module.source);
            servers.extend(sources.filter(|source| !source.is_uploads()));
        }
        self.health_of(invocation, servers).await
    }

    /// Loads the health of these servers.
    async fn health_of(
        &self,
        invocation: &Invocation,
        servers: BTreeSet<&SourceKey>,
    ) -> Result<Health, Fault> {
        let wanted = servers.iter().map(|source| ItemKey::health(source));
        let wanted: Vec<ItemQuery> = wanted.map(ItemQuery::alone).collect();
        let loaded = self
            .load(invocation, &wanted, Consistency::Eventual)
            .await?;
        let known = servers.into_iter().cloned().zip(loaded);
        let known = known.filter_map(|(source, stored)| Some((source, stored?)));
        Ok(Health(known.collect()))
    }

    /// Returns the reason if the circuit of the module's source is open. It must not be stored for
    /// the module.
    pub(super) async fn circuit_open(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
    ) -> Result<Option<Missing>, Fault> {
        if module.source.is_uploads() {
            return Ok(None);
        }
        let servers = BTreeSet::from([&module.source]);
        let health = self.health_of(invocation, servers).await?;
        Ok(health.missing(&module.source, invocation.now()))
    }

    /// Reports a blob that cannot be read, and requests a rebuild.
    async fn report(&self, invocation: &Invocation, chosen: &Chosen) -> Result<(), Fault> {
        let Chosen {
            entry,
            ready,
            stored,
            ..
        } = chosen;
        let (module, kind) = (entry.module(), entry.kind());
        let id = invocation.token();
        let change = Change::Suspect {
            blob: ready.blob.path.clone(),
            id: id.clone(),
        };
        let known = Some(stored.as_ref().clone());
        let update = self.update(invocation);
        let updated = update.apply_from(module, kind, &change, known).await;
        self.memory.forget(&module.entry(kind));
        match updated?.0 {
            Updated::Done(changed)
                if changed
                    .build_request()
                    .is_some_and(|build_request| build_request.id == id) =>
            {
                let message = QueueMessage::new(Queue::Eager, module.clone(), vec![kind], id);
                self.queues.send(&[message], Duration::ZERO).await
            }
            Updated::Done(_) | Updated::Refused(..) | Updated::Retired(_) => Ok(()),
        }
    }

    /// Touches these entries, each at most hourly.
    async fn touch(&self, invocation: &Invocation, used: Vec<&Entry>) {
        let touches = used
            .into_iter()
            .map(|entry| self.touch_if_due(invocation, entry));
        let touches: Vec<_> = touches.collect();
        stream::iter(touches)
            .buffer_unordered(CALLS_IN_FLIGHT)
            .collect::<()>()
            .await;
    }

    /// Touches an entry that was last used 60 to 90 minutes ago. The threshold is random, so that
    /// instances rarely write the same record at the same time.
    pub(super) async fn touch_if_due(&self, invocation: &Invocation, entry: &Entry) {
        let due = invocation.jittered(Policy::TOUCH_INTERVAL) + Policy::TOUCH_INTERVAL / 2;
        if invocation.now().since(entry.last_used_at()) < due {
            return;
        }
        let (module, kind) = (entry.module(), entry.kind());
        let update = self.update(invocation);
        let touched = update.apply(module, kind, &Change::Touch).await;
        self.memory.forget(&module.entry(kind));
        if let Err(error) = touched {
            tracing::warn!(%error, "cannot record the use of an entry");
        }
    }
}

/// The health of servers, by source.
#[derive(Default)]
struct Health(HashMap<SourceKey, Arc<Stored>>);

impl Health {
    /// Returns the reason if the circuit of this source is open.
    fn missing(&self, source: &SourceKey, now: Timestamp) -> Option<Missing> {
        let stored = self.0.get(source)?;
        permits::health(&stored.item)?.missing(now)
    }
}

/// Returns a loaded item.
fn item<'a>(items: &'a Items, key: &ItemKey) -> Option<&'a Item> {
    items.get(key)?.as_deref().map(|stored| &stored.item)
}

/// Returns whether the presence item was read and does not exist: no upload serves this place.
fn has_no_files(place: &CachePlace, items: &Items) -> bool {
    let presence = place.presence.as_ref().and_then(|key| items.get(key));
    presence.is_some_and(Option::is_none)
}

/// Returns the reason for a record that a newer build wrote.
fn unreadable_record() -> Missing {
    let detail = "a newer version of symdepot wrote its record, which this version cannot read";
    Missing::new(Cause::DownloadFailed, detail)
}

/// Returns the more specific of two reasons; "not found" is the least specific.
fn says_more(known: Option<Missing>, other: Missing) -> Option<Missing> {
    match known {
        Some(known) if known.cause != Cause::NotFound => Some(known),
        _ => Some(other),
    }
}

/// Returns the outcome of a lookup as the symbolication uses it.
fn outcome(lookup: &ModuleLookup) -> ModuleOutcome<'_> {
    match &lookup.outcome {
        Some(LookupOutcome::Cache { cache, chosen }) => {
            let Chosen { entry, ready, .. } = &**chosen;
            let considered = Considered {
                candidates: &lookup.candidates,
                used: used(entry, ready),
            };
            let cache = cache.lookup_cache(lookup.kind);
            let serves = ready.features.has_debug_info || ready.features.has_symbols;
            match cache {
                Some(cache) if serves => ModuleOutcome::Found {
                    cache,
                    features: ready.features.clone(),
                    arch: &ready.arch,
                    lacks: ready.lacks.as_deref(),
                    considered,
                },
                // A file was found, but it has neither debug information nor symbols.
                Some(_) => ModuleOutcome::Missing {
                    missing: Missing::not_found(),
                    considered,
                },
                None => ModuleOutcome::Failed {
                    detail: "the kind of the cache does not match its record".to_owned(),
                },
            }
        }
        Some(LookupOutcome::Missing(missing)) => ModuleOutcome::Missing {
            missing: missing.clone(),
            considered: Considered {
                candidates: &lookup.candidates,
                used: None,
            },
        },
        Some(LookupOutcome::Failed { detail }) => ModuleOutcome::Failed {
            detail: detail.clone(),
        },
        None => ModuleOutcome::Failed {
            detail: "the module was not looked up".to_owned(),
        },
    }
}

/// Returns the candidates of all entries of a lookup.
fn tried(lookup: &ModuleLookup, items: &Items) -> Vec<Candidate> {
    let read = lookup
        .places
        .iter()
        .filter_map(|place| item(items, &place.entry));
    let entries = read.filter_map(Item::entry);
    entries
        .flat_map(|entry| entry.candidates().to_vec())
        .collect()
}

fn used<'a>(entry: &'a Entry, ready: &'a Ready) -> Option<(&'a SourceKey, &'a Location)> {
    Some((&entry.module().source, &ready.made_from.first()?.location))
}
