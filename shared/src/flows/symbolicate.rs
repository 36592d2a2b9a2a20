//! A request becomes a response.
//!
//! 1. *Plan* (pure): which modules do the frames lie in?
//! 2. *Look up*: the entries of all of them, in every place that the request may read, in one round of reads; from memory
//!    as long as that may be believed (`items`).
//! 3. *Decide* (pure): use, wait, or ask for a build (`asking`). What no upload serves is known from the same round: it
//!    is missing, and nobody is asked. The request is kept before it asks, so that any instance can continue it.
//! 4. *Read* the blobs, side by side. One that cannot be read is a suspect: reported, and waited for.
//! 5. Look again until everything is decided or the time is up: then the request is *pending*.
//! 6. *Symbolicate* (pure), and note the use of what was not used for an hour.

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

/// Blobs read at a time.
const READS_IN_FLIGHT: usize = 64;

/// Builds that one request asks for at most: whoever continues it asks for the next ones.
const MAX_BUILD_REQUESTS: usize = 256;

/// What came of a request.
#[derive(Debug)]
pub enum SymbolicateOutcome {
    /// It is finished.
    Completed(Box<Completed>, Stats),
    /// Something is being built that it needs. It is kept under its id.
    Pending,
}

/// A request as it came, to be kept while what it needs is being built.
#[derive(Clone, Copy, Debug)]
pub struct Kept<'a> {
    /// The id that its caller is told.
    pub id: &'a str,
    /// Its body; none if the request is kept already.
    pub body: Option<&'a [u8]>,
}

/// A cache that the request needs, and what is known of it.
struct ModuleLookup {
    kind: Kind,
    /// The places where the module may be found, in order.
    places: Vec<CachePlace>,
    /// Whether the request wants to see what was tried.
    shows_candidates: bool,
    /// What was tried in all places, if it does.
    candidates: Vec<Candidate>,
    outcome: Option<LookupOutcome>,
}

/// A place where a module may be found, and the keys of the items that tell.
struct CachePlace {
    module: ModuleKey,
    entry: ItemKey,
    /// Of an upload: whether the module has files.
    presence: Option<ItemKey>,
    /// Of an upload that is looked up by its code id: where it may be filed under its debug id.
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

/// Items by their keys.
type Items = HashMap<ItemKey, Option<Arc<Stored>>>;

/// What came of a lookup.
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

/// What a request asks, and what opens the caches for it.
struct RequestContext<'a> {
    request: &'a Request,
    plan: &'a Plan,
    opening: Opening<'a>,
}

impl RequestContext<'_> {
    /// Opens the cache at a place of the plan, so far as the request needs it.
    async fn open(&self, place: usize, chosen: &Chosen) -> Result<LoadedCache, ReadError> {
        let Chosen { entry, ready, .. } = chosen;
        let needed = |arch| self.plan.addresses(self.request, place, arch);
        self.opening.open(entry.kind(), ready, needed).await
    }
}

/// A state that can be used, and the entry that it belongs to.
struct Chosen {
    entry: Entry,
    ready: Ready,
    /// The number of its place.
    at: usize,
    /// The record that it was read from.
    stored: Arc<Stored>,
}

/// What to do next about a lookup.
enum Next {
    Use(Box<Chosen>),
    Give(Missing),
    Wait(Vec<Awaited>),
}

/// A place that may still have something.
struct Awaited {
    /// Its number among the places.
    at: usize,
    /// Whether somebody is at work, or asked.
    is_requested: bool,
}

/// What one round tells of a lookup.
struct Decided {
    next: Next,
    /// Places of which something better may come, for which nobody asked yet.
    to_improve: Vec<usize>,
}

/// A request on its way through the rounds.
struct Rounds<'a> {
    kept: Kept<'a>,
    scope: &'a Scope,
    is_kept: bool,
    /// Builds that may still be asked for.
    requests_left: usize,
    /// Blobs that cannot be read.
    unreadable: HashSet<String>,
}

/// What a round leaves to wait for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// Nothing: everything is decided.
    Nothing,
    /// Builds that are asked for.
    Builds,
    /// Only builds that this request may not ask for any more.
    Unrequested,
}

impl Symbolicator {
    /// Answers a request, waiting up to `wait` for what is being built. It is kept before it asks for anything.
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

    /// Tells where a lookup searched, and which of the files that it found cannot be read.
    fn searched(&self, lookup: &ModuleLookup) -> Searched {
        let place = |place: &CachePlace| {
            let ModuleKey { source, scope, .. } = &place.module;
            if !source.is_uploads() {
                return source.id().to_owned();
            }
            match self.memory.last_generation(scope) {
                Some(None) => format!("the uploads of {scope} (nothing was read there yet)"),
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
        // A module that is found by several ids has a place for each.
        places.dedup();
        Searched {
            places,
            damaged: match &lookup.outcome {
                Some(LookupOutcome::Cache { chosen, .. }) => damaged(chosen),
                _ => None,
            },
        }
    }

    /// Keeps the request, unless it is kept.
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

    /// Looks up, decides, asks and reads until every lookup has an outcome; `false` if the time was up before.
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

    /// One round: the entries of all lookups without an outcome, then the blobs of those that can be used.
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
        // Asking and reading wait for nothing of each other.
        let reads = self.read_blobs(invocation, asked, lookups, to_read, progress);
        let (asked, read) =
            futures::future::join(self.request_builds(invocation, to_request), reads).await;
        asked?;
        Ok(match read? {
            Left::Nothing => left,
            other => other,
        })
    }

    /// Reads the blobs of these lookups, side by side.
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
                    tracing::warn!(blob, %error, "could not read a blob");
                    lookups[at].outcome = Some(LookupOutcome::Failed {
                        detail: error.to_string(),
                    });
                }
                Err(fault) => {
                    tracing::warn!(blob, %fault, "a blob is not what its record says");
                    self.report(invocation, &chosen).await?;
                    progress.unreadable.insert(blob.clone());
                    left = Left::Builds;
                }
            }
        }
        Ok(left)
    }

    /// Loads what tells about these lookups, in one round of reads; in a second one what aliases lead to.
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

    /// Returns the items that tell about a lookup. Behind what this instance remembers as ready, and nothing could be
    /// better than, there is no need to look.
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

    /// Returns the quality of what is ready and needs nothing else.
    fn ready(&self, invocation: &Invocation, stored: &Stored) -> Option<Quality> {
        let entry = stored.item.entry()?;
        match decide(Some(entry), &self.settings.capabilities(), invocation.now()) {
            Decision::Use(ready) => Some(ready.quality),
            _ => None,
        }
    }

    /// Decides what to do about a lookup, of what was read of its places.
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
            // A place that was not looked at is behind what nothing could be better than.
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
                        // The build that would replace it has failed: what it said is all there is.
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
                // Uploads announce themselves: what no event told of is not there.
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
        // Wait only for what could beat it: a better file, or the owner's own.
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
            // There is no use in waiting for a source that is not asked now.
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

    /// Loads what is known of the servers that a lookup might wait for, or ask.
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

    /// Loads what is known of servers.
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

    /// Tells why a module's source is not asked now; not to be remembered of the module.
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

    /// Reports a blob that cannot be read, and has it built again.
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

    /// Notes the use of entries that were not used for an hour; which of many instances does, is left to chance.
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

    /// Notes the use of an entry that was not used for an hour.
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
            tracing::warn!(%error, "could not note a use");
        }
    }
}

/// What is known of the health of servers.
#[derive(Default)]
struct Health(HashMap<SourceKey, Arc<Stored>>);

impl Health {
    /// Tells why a server is not asked now.
    fn missing(&self, source: &SourceKey, now: Timestamp) -> Option<Missing> {
        let stored = self.0.get(source)?;
        permits::health(&stored.item)?.missing(now)
    }
}

/// Returns an item that was read.
fn item<'a>(items: &'a Items, key: &ItemKey) -> Option<&'a Item> {
    items.get(key)?.as_deref().map(|stored| &stored.item)
}

/// Tells whether it is known that nobody uploaded a file of the module to this place.
fn has_no_files(place: &CachePlace, items: &Items) -> bool {
    let presence = place.presence.as_ref().and_then(|key| items.get(key));
    presence.is_some_and(Option::is_none)
}

/// Returns why there is nothing where a newer build wrote the record.
fn unreadable_record() -> Missing {
    let detail = "its record cannot be read by this version of symdepot: a newer one wrote it";
    Missing::new(Cause::DownloadFailed, detail)
}

/// Returns of two reasons the one that says more: that a file is nowhere says least.
fn says_more(known: Option<Missing>, other: Missing) -> Option<Missing> {
    match known {
        Some(known) if known.cause != Cause::NotFound => Some(known),
        _ => Some(other),
    }
}

/// Returns what the pure core is told of a lookup.
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
                // A file was found, but there is nothing in it to symbolicate with.
                Some(_) => ModuleOutcome::Missing {
                    missing: Missing::not_found(),
                    considered,
                },
                None => ModuleOutcome::Failed {
                    detail: "the cache is of another kind than its record says".to_owned(),
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
            detail: "it was not looked up".to_owned(),
        },
    }
}

/// Returns what was tried according to the entries of a lookup.
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
