//! A request becomes a response.
//!
//! 1. *Plan* (pure): which modules do the frames lie in?
//! 2. *Look up*: the entries of all of them, in every scope that the request may read, in one round of reads; from memory
//!    where this instance read them seconds ago.
//! 3. *Decide* (pure): use, wait, or ask for a build. Asking sends a message; then the entries are read again and again,
//!    until everything is decided or the time is up: then the request is *pending*.
//! 4. *Read* the blobs, side by side. One that cannot be read is a suspect: reported, and waited for.
//! 5. *Symbolicate* (pure), and note the use of what was not used for an hour.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};

use super::memory::Memory;
use super::opening::{Open, Opening, ReadError};
use super::waiting::Waiting;
use super::{Error, Invocation, Settings, Update, Updated, definitions, visits};
use crate::api::symbolicator::{Completed, Request, Selected};
use crate::cache::{
    Change, Decision, Entry, Item, ItemKey, Kind, Lane, ModuleKey, Policy, Ready, Sought, decide,
};
use crate::domain::{
    Candidate, Cause, FileType, HttpSource, Location, Missing, ModuleId, ObjectId, Quality, Scope,
    SourceKey,
};
use crate::ports::{BlobStore, Consistency, LaneMessage, Lanes, RecordStore, StoreError};
use crate::symbolicate::{Considered, ModuleOutcome, Plan, Stats, plan, symbolicate_remembering};

/// Blobs read at a time.
const READS_IN_FLIGHT: usize = 8;

/// Answers requests.
#[derive(Clone, Debug)]
pub struct Symbolicator {
    /// The records.
    pub records: Arc<dyn RecordStore>,
    /// The bucket of derived caches.
    pub caches: Arc<dyn BlobStore>,
    /// The queues of builds.
    pub lanes: Arc<dyn Lanes>,
    /// What this instance remembers.
    pub memory: Arc<Memory>,
    /// The settings.
    pub settings: Settings,
}

/// What came of a request.
#[derive(Debug)]
pub enum Answer {
    /// It is finished.
    Completed(Box<Completed>, Stats),
    /// Something is being built that it needs.
    Pending,
}

/// A cache that the request needs, and what is known of it.
struct Lookup {
    kind: Kind,
    /// The places where the module may be found, in order.
    modules: Vec<ModuleKey>,
    /// Whether the request wants to see what was tried.
    shows_candidates: bool,
    /// What was tried in all places, if it does.
    candidates: Vec<Candidate>,
    outcome: Option<Found>,
}

/// What came of a lookup.
enum Found {
    Cache { cache: Open, chosen: Box<Chosen> },
    Missing(Missing),
    Failed { detail: String },
}

/// What a request asks, and what opens the caches for it.
struct Asked<'a> {
    request: &'a Request,
    plan: &'a Plan,
    opening: Opening<'a>,
}

impl Asked<'_> {
    /// Opens the cache at a place of the plan, so far as the request needs it.
    async fn open(&self, place: usize, chosen: &Chosen) -> Result<Open, ReadError> {
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
}

/// What to do next about a lookup.
enum Next {
    Use(Box<Chosen>),
    Give(Missing),
    Wait,
}

/// A place that may still have something.
struct Awaited {
    /// Its number among the places.
    at: usize,
    /// Whether it may have something indeed: a record says so, or nobody would tell.
    is_likely: bool,
    /// Whether somebody is at work, or asked.
    is_asked_for: bool,
}

impl Symbolicator {
    /// Answers a request, waiting up to `wait` for what is being built.
    pub async fn answer(
        &self,
        invocation: &Invocation,
        request: &Request,
        scope: &Scope,
        wait: Duration,
    ) -> Result<Answer, Error> {
        let selected = request
            .sources
            .select(&self.sources(), self.settings.request_sources.is_some())
            .map_err(|error| Error::Invalid {
                detail: error.body().causes.join("; "),
            })?;
        let sources = self.named(invocation, selected).await?;
        let plan = plan(request);
        let mut lookups: Vec<Lookup> = plan
            .wanted()
            .iter()
            .map(|wanted| Lookup {
                kind: wanted.kind,
                modules: self.places(&wanted.object_id, scope, &sources, Sought::new),
                shows_candidates: request.options.dif_candidates,
                candidates: Vec::new(),
                outcome: None,
            })
            .collect();
        self.follow_aliases(invocation, &plan, &mut lookups).await?;
        let asked = Asked {
            request,
            plan: &plan,
            opening: Opening::new(&*self.caches, &self.memory),
        };
        if !self.resolve(invocation, &asked, &mut lookups, wait).await? {
            return Ok(Answer::Pending);
        }
        let outcomes: Vec<ModuleOutcome<'_>> = lookups.iter().map(outcome).collect();
        let (completed, mut stats) =
            symbolicate_remembering(request, &plan, &outcomes, self.memory.names());
        stats.reads = asked.opening.counts();
        self.touch(invocation, &lookups).await;
        Ok(Answer::Completed(Box::new(completed), stats))
    }

    /// Returns the keys of all sources, in the order in which they are searched.
    pub(super) fn sources(&self) -> Vec<SourceKey> {
        std::iter::once(SourceKey::uploads())
            .chain(
                self.settings
                    .sources
                    .iter()
                    .map(|server| server.key().clone()),
            )
            .collect()
    }

    /// Returns the keys of the selected sources, and the definitions of those that the request defines, which are kept for
    /// whoever builds.
    async fn named(
        &self,
        invocation: &Invocation,
        selected: Vec<Selected>,
    ) -> Result<Vec<(SourceKey, Option<HttpSource>)>, StoreError> {
        let mut named = Vec::with_capacity(selected.len());
        for source in selected {
            match (source, &self.settings.request_sources) {
                (Selected::Configured(key), _) => named.push((key, None)),
                (Selected::Defined(source), Some(secret)) => {
                    let key = secret.key_of(&source);
                    let item = ItemKey::source(&key);
                    let loaded = self.load(invocation, std::slice::from_ref(&item)).await?;
                    let mut loaded = loaded.iter().flatten();
                    if !loaded.any(|item| definitions::is_kept(item, invocation.now())) {
                        definitions::keep(self.update(invocation), secret, &key, &source).await?;
                        self.memory.forget(&item);
                    }
                    named.push((key, Some(*source)));
                }
                (Selected::Defined(_), None) => {}
            }
        }
        Ok(named)
    }

    /// Returns where a module may be found, the nearest first: in each source, in each scope that the request may read. `seek` says
    /// what it is sought for.
    pub(super) fn places(
        &self,
        module: &ObjectId,
        scope: &Scope,
        sources: &[(SourceKey, Option<HttpSource>)],
        seek: impl Fn(&ObjectId, Vec<(FileType, Location)>) -> Sought,
    ) -> Vec<ModuleKey> {
        let id = ModuleId::of(module.debug_id, module.code_id.as_ref());
        let mut places = Vec::new();
        for (key, defined) in sources {
            match defined.as_ref().or_else(|| self.settings.source(key)) {
                Some(source) => {
                    let sought = seek(module, source.locations(module));
                    let is_everybodys = source.is_public && defined.is_none();
                    let scope = match is_everybodys {
                        true => Scope::Global,
                        false => scope.clone(),
                    };
                    let is_sought = !sought.locations.is_empty();
                    places
                        .extend(is_sought.then(|| ModuleKey::server(scope, key.clone(), &sought)));
                }
                None => {
                    let readable = scope.readable().into_iter().zip(std::iter::repeat(&id));
                    places.extend(
                        readable.filter_map(|(scope, id)| {
                            Some(ModuleKey::uploads(scope, id.as_ref()?))
                        }),
                    );
                }
            }
        }
        places
    }

    /// Modules that have only a code id may be filed under the debug id of the same object.
    async fn follow_aliases(
        &self,
        invocation: &Invocation,
        plan: &Plan,
        lookups: &mut [Lookup],
    ) -> Result<(), StoreError> {
        let is_by_code = |(_, wanted): &(usize, &crate::symbolicate::Wanted)| {
            matches!(
                ModuleId::of(wanted.object_id.debug_id, wanted.object_id.code_id.as_ref()),
                Some(ModuleId::Code(_))
            )
        };
        let by_code: Vec<usize> = plan
            .wanted()
            .iter()
            .enumerate()
            .filter(is_by_code)
            .map(|(at, _)| at)
            .collect();
        let is_upload = |module: &&ModuleKey| module.source.announces_changes();
        let keys: Vec<ItemKey> = by_code
            .iter()
            .flat_map(|at| lookups[*at].modules.iter().filter(is_upload))
            .map(ModuleKey::alias)
            .collect();
        let mut aliases = self.load(invocation, &keys).await?.into_iter();
        for at in by_code {
            let modules = lookups[at].modules.iter_mut();
            for module in modules.filter(|module| module.source.announces_changes()) {
                if let Some(Some(Item::Alias(alias))) =
                    aliases.next().as_ref().map(Option::as_deref)
                {
                    *module = alias.target.clone();
                }
            }
        }
        Ok(())
    }

    /// Looks up, decides, asks and reads until every lookup has an outcome; `false` if the time was up before.
    async fn resolve(
        &self,
        invocation: &Invocation,
        asked: &Asked<'_>,
        lookups: &mut [Lookup],
        wait: Duration,
    ) -> Result<bool, Error> {
        let mut waiting = Waiting::new(invocation, wait);
        let mut unreadable: HashSet<String> = HashSet::new();
        loop {
            let is_last = waiting.is_over();
            self.look(invocation, asked, lookups, is_last, &mut unreadable)
                .await?;
            if lookups.iter().all(|lookup| lookup.outcome.is_some()) {
                return Ok(true);
            }
            if is_last {
                return Ok(false);
            }
            waiting.pause().await;
        }
    }

    /// One round: the entries of all lookups without an outcome, then the blobs of those that can be used.
    async fn look(
        &self,
        invocation: &Invocation,
        asked: &Asked<'_>,
        lookups: &mut [Lookup],
        is_last: bool,
        unreadable: &mut HashSet<String>,
    ) -> Result<(), Error> {
        let open: Vec<usize> = (0..lookups.len())
            .filter(|at| lookups[*at].outcome.is_none())
            .collect();
        let key = |at: &usize| {
            let lookup = &lookups[*at];
            lookup
                .modules
                .iter()
                .map(|module| module.entry(lookup.kind))
                .collect::<Vec<_>>()
        };
        let keys: Vec<ItemKey> = open.iter().flat_map(key).collect();
        let mut items = self.load(invocation, &keys).await?.into_iter();
        let mut to_read = Vec::new();
        for at in open {
            let items: Vec<Option<Arc<Item>>> =
                items.by_ref().take(lookups[at].modules.len()).collect();
            if lookups[at].shows_candidates {
                lookups[at].candidates = tried(&items);
            }
            match self
                .next(invocation, &lookups[at], &items, is_last, unreadable)
                .await?
            {
                Next::Use(chosen) => to_read.push((at, chosen)),
                Next::Give(missing) => lookups[at].outcome = Some(Found::Missing(missing)),
                Next::Wait => {}
            }
        }
        let mut reads = stream::iter(to_read)
            .map(|(at, chosen)| async move {
                let read = asked.open(at, &chosen).await;
                (at, chosen, read)
            })
            .buffer_unordered(READS_IN_FLIGHT);
        while let Some((at, chosen, read)) = reads.next().await {
            let blob = &chosen.ready.blob.path;
            match read {
                Ok(cache) => lookups[at].outcome = Some(Found::Cache { cache, chosen }),
                Err(ReadError::Store(error)) => {
                    tracing::warn!(blob, %error, "could not read a blob");
                    lookups[at].outcome = Some(Found::Failed {
                        detail: error.to_string(),
                    });
                }
                Err(fault) => {
                    tracing::warn!(blob, %fault, "a blob is not what its record says");
                    self.report(invocation, &chosen).await?;
                    unreadable.insert(blob.clone());
                }
            }
        }
        Ok(())
    }

    /// Decides what to do about a lookup, and asks for what must be built.
    async fn next(
        &self,
        invocation: &Invocation,
        lookup: &Lookup,
        items: &[Option<Arc<Item>>],
        is_last: bool,
        unreadable: &HashSet<String>,
    ) -> Result<Next, StoreError> {
        let mut best: Option<Box<Chosen>> = None;
        let mut missing: Option<Missing> = None;
        let mut waits_for: Vec<Awaited> = Vec::new();
        let reader = self.settings.reader();
        for (at, (module, item)) in lookup.modules.iter().zip(items).enumerate() {
            let entry = item.as_deref().and_then(Item::entry);
            let decision = decide(entry, &reader, invocation.now());
            let may_improve =
                matches!(decision, Decision::UseAndUpgrade(_) | Decision::UseOlder(_));
            match (decision, entry) {
                (
                    Decision::Use(ready)
                    | Decision::UseAndUpgrade(ready)
                    | Decision::UseOlder(ready),
                    Some(entry),
                ) => {
                    if unreadable.contains(&ready.blob.path) {
                        waits_for.push(Awaited {
                            at,
                            is_likely: true,
                            is_asked_for: true,
                        });
                        continue;
                    }
                    if may_improve && self.resting(invocation, module).await?.is_none() {
                        self.ask(invocation, module, lookup.kind, Lane::Refresh)
                            .await?;
                    }
                    if best
                        .as_ref()
                        .is_none_or(|best| ready.rank < best.ready.rank)
                    {
                        best = Some(Box::new(Chosen {
                            entry: entry.clone(),
                            ready: ready.clone(),
                            at,
                        }));
                    }
                }
                (Decision::Missing(placeholder), Some(_)) => {
                    missing = says_more(missing, placeholder.missing.clone());
                }
                (Decision::Wait { .. }, _) => waits_for.push(Awaited {
                    at,
                    is_likely: true,
                    is_asked_for: true,
                }),
                (_, entry) => waits_for.push(Awaited {
                    at,
                    is_likely: entry.is_some() || !module.source.announces_changes(),
                    is_asked_for: false,
                }),
            }
        }
        // Wait only for what could beat it: a better file, or the owner's own, that is likely to be there.
        let could_beat = |chosen: &Chosen, other: &Awaited| {
            let is_upload = lookup.modules[other.at].source.announces_changes();
            let is_nearer = is_upload && other.at < chosen.at;
            other.is_likely && (is_nearer || chosen.ready.quality == Quality::Fallback)
        };
        let is_settled = |waits_for: &[Awaited]| match &best {
            Some(chosen) => is_last || !waits_for.iter().any(|other| could_beat(chosen, other)),
            None => waits_for.is_empty(),
        };
        if !is_settled(&waits_for) {
            // Nobody need wait for a source that nobody asks now.
            let mut asked = Vec::with_capacity(waits_for.len());
            for awaited in waits_for {
                match self
                    .resting(invocation, &lookup.modules[awaited.at])
                    .await?
                {
                    Some(resting) => missing = says_more(missing, resting),
                    None => asked.push(awaited),
                }
            }
            waits_for = asked;
        }
        if is_settled(&waits_for) {
            return Ok(match best {
                Some(chosen) => Next::Use(chosen),
                None => Next::Give(missing.unwrap_or_else(Missing::not_found)),
            });
        }
        for awaited in waits_for.iter().filter(|awaited| !awaited.is_asked_for) {
            self.ask(
                invocation,
                &lookup.modules[awaited.at],
                lookup.kind,
                Lane::Eager,
            )
            .await?;
        }
        Ok(Next::Wait)
    }

    /// Tells why nobody asks a module's source now; not to be remembered of the module.
    pub(super) async fn resting(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
    ) -> Result<Option<Missing>, StoreError> {
        if module.source.announces_changes() {
            return Ok(None);
        }
        let key = ItemKey::health(&module.source);
        let loaded = self.load(invocation, &[key]).await?;
        let mut health = loaded
            .iter()
            .flatten()
            .filter_map(|item| visits::health(item));
        Ok(health.find_map(|health| health.missing(invocation.now())))
    }

    /// Asks for a build, unless somebody else did: who writes the ask sends the message.
    pub(super) async fn ask(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        kind: Kind,
        lane: Lane,
    ) -> Result<(), StoreError> {
        let id = invocation.token();
        let change = Change::Ask {
            id: id.clone(),
            lane,
        };
        match self.change(invocation, module, kind, &change).await? {
            Updated::Done(entry) if entry.ask().is_some_and(|ask| ask.id == id) => {
                self.send(module, kind, lane, id).await
            }
            Updated::Done(_) | Updated::Refused(..) | Updated::Retired(_) => Ok(()),
        }
    }

    async fn send(
        &self,
        module: &ModuleKey,
        kind: Kind,
        lane: Lane,
        ask: crate::cache::Token,
    ) -> Result<(), StoreError> {
        let message = LaneMessage::new(lane, module.clone(), vec![kind], ask);
        self.lanes.send(&[message], Duration::ZERO).await
    }

    /// Reports a blob that cannot be read, and has it built again.
    async fn report(&self, invocation: &Invocation, chosen: &Chosen) -> Result<(), StoreError> {
        let Chosen { entry, ready, .. } = chosen;
        let id = invocation.token();
        let change = Change::Suspect {
            blob: ready.blob.path.clone(),
            id: id.clone(),
        };
        match self
            .change(invocation, entry.module(), entry.kind(), &change)
            .await?
        {
            Updated::Done(changed) if changed.ask().is_some_and(|ask| ask.id == id) => {
                self.send(entry.module(), entry.kind(), Lane::Eager, id)
                    .await
            }
            Updated::Done(_) | Updated::Refused(..) | Updated::Retired(_) => Ok(()),
        }
    }

    /// Loads items, from memory where it has them.
    pub(super) async fn load(
        &self,
        invocation: &Invocation,
        keys: &[ItemKey],
    ) -> Result<Vec<Option<Arc<Item>>>, StoreError> {
        let mut items: Vec<Option<Option<Arc<Item>>>> =
            keys.iter().map(|key| self.memory.item(key)).collect();
        let unknown: Vec<usize> = (0..keys.len()).filter(|at| items[*at].is_none()).collect();
        if !unknown.is_empty() {
            let wanted: Vec<ItemKey> = unknown.iter().map(|at| keys[*at].clone()).collect();
            let loaded = self.records.load(&wanted, Consistency::Strong).await?;
            for (at, stored) in unknown.into_iter().zip(loaded) {
                let item = stored.map(|stored| Arc::new(stored.item));
                self.memory
                    .remember(invocation, keys[at].clone(), item.clone());
                items[at] = Some(item);
            }
        }
        Ok(items.into_iter().map(Option::flatten).collect())
    }

    /// Notes the use of entries that were not used for an hour; which of many instances does, is left to chance.
    async fn touch(&self, invocation: &Invocation, lookups: &[Lookup]) {
        for lookup in lookups {
            if let Some(Found::Cache { chosen, .. }) = &lookup.outcome {
                self.touch_if_due(invocation, &chosen.entry).await;
            }
        }
    }

    /// Notes the use of an entry that was not used for an hour.
    pub(super) async fn touch_if_due(&self, invocation: &Invocation, entry: &Entry) {
        let due = invocation.jittered(Policy::TOUCH_INTERVAL) + Policy::TOUCH_INTERVAL / 2;
        if invocation.now().since(entry.last_used_at()) < due {
            return;
        }
        let touched = self
            .change(invocation, entry.module(), entry.kind(), &Change::Touch)
            .await;
        if let Err(error) = touched {
            tracing::warn!(%error, "could not note a use");
        }
    }

    pub(super) fn update<'a>(&'a self, invocation: &'a Invocation) -> Update<'a> {
        Update {
            records: &*self.records,
            policy: &self.settings.policy,
            invocation,
        }
    }

    async fn change(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        kind: Kind,
        change: &Change,
    ) -> Result<Updated, StoreError> {
        let updated = self.update(invocation).entry(module, kind, change).await;
        self.memory.forget(&module.entry(kind));
        updated
    }
}

/// Returns of two reasons the one that says more: that a file is nowhere says least.
fn says_more(known: Option<Missing>, other: Missing) -> Option<Missing> {
    match known {
        Some(known) if known.cause != Cause::NotFound => Some(known),
        _ => Some(other),
    }
}

/// Returns what the pure core is told of a lookup.
fn outcome(lookup: &Lookup) -> ModuleOutcome<'_> {
    match &lookup.outcome {
        Some(Found::Cache { cache, chosen }) => {
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
        Some(Found::Missing(missing)) => ModuleOutcome::Missing {
            missing: missing.clone(),
            considered: Considered {
                candidates: &lookup.candidates,
                used: None,
            },
        },
        Some(Found::Failed { detail }) => ModuleOutcome::Failed {
            detail: detail.clone(),
        },
        None => ModuleOutcome::Failed {
            detail: "it was not looked up".to_owned(),
        },
    }
}

/// Returns what was tried according to these entries.
fn tried(items: &[Option<Arc<Item>>]) -> Vec<Candidate> {
    let candidates = |item: &Arc<Item>| match &**item {
        Item::Entry(entry) => entry.candidates().to_vec(),
        _ => Vec::new(),
    };
    items.iter().flatten().flat_map(candidates).collect()
}

fn used<'a>(entry: &'a Entry, ready: &'a Ready) -> Option<(&'a SourceKey, &'a Location)> {
    Some((&entry.module().source, &ready.made_from.first()?.location))
}
