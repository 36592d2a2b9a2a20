//! Building the derived caches of one module: lease, find, fetch, derive, publish.
//!
//! 1. Take the leases of every kind that may come of it, in the order of the kinds, before looking for DIFs: what
//!    arrives later marks the entries, and a mark that the lease did not see keeps its ask alive.
//! 2. Find the DIFs of the module, strongly consistent, and rank them for each kind.
//! 3. Fetch the best one (or use the copy that is open already), derive, create the blobs. A DIF that fails makes room
//!    for the next best.
//! 4. Publish each kind: the conditional write is the commit point. What is not published is an orphan for `prune`.
//!
//! While 2 and 3 go on, the leases are extended. A fault of ours gives them back; a fault of the DIF is remembered.
//!
//! Where a message asks for many modules of a symbol server, one visit finds out first which of them it has (`visit`).

mod batch;
mod companions;
mod opaque;
mod search;
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use companions::FiledCompanions;
use futures::future::{join_all, try_join_all};
use opaque::{opaque, transcoding};
use search::Search;
use work::{Target, Work};

use super::{Error, Invocation, Settings, Update, Updated, fetch, permits, presence};
use crate::cache::{
    BlobRef, Change, Converter, Decision, DeriveJob, Derived, Dif, DifCopy, Entry, Item, ItemKey,
    Kind, LEASE_EXTENSION, Losses, ModuleKey, NotAdmitted, Placeholder, Queue, Ready, Refused,
    Seen, Stored, Token, UploadState, decide,
};
use crate::debuginfo;
use crate::domain::{
    Cause, DebugId, DifRef, Features, FileType, Inspection, Missing, ModuleId, ObjectMeta, Rank,
    Timestamp,
};
use crate::ports::{
    BlobStore, Deriver, DifError, DifReader, Fault, Parser, QueueMessage, Queues, RecordStore,
    SymbolServers,
};

/// Time kept back at the end of an invocation: to publish, or to give the leases back.
const RESERVE: Duration = Duration::from_secs(5);

/// Builds of one module in a row: what arrives during the last is left to a message.
const MAX_ROUNDS: u32 = 3;

/// Builds derived caches.
#[derive(Clone, Debug)]
pub struct Builder {
    /// The records.
    pub records: Arc<dyn RecordStore>,
    /// The bucket of derived caches.
    pub caches: Arc<dyn BlobStore>,
    /// The bucket that users upload to.
    pub uploads: Arc<dyn DifReader>,
    /// The symbol servers.
    pub servers: Arc<dyn SymbolServers>,
    /// The queues of builds.
    pub queues: Arc<dyn Queues>,
    /// Parses DIFs.
    pub deriver: Arc<dyn Deriver>,
    /// The settings.
    pub settings: Settings,
}

/// A DIF that is fetched and being parsed.
#[derive(Debug)]
pub struct OpenDif {
    /// Which one.
    pub dif: DifRef,
    /// Its companions, which are open with it.
    pub beside: Vec<DifRef>,
    /// Its parser.
    pub parser: Box<dyn Parser>,
    /// What is in it.
    pub inspection: Inspection,
    /// How long fetching it took.
    pub took: Duration,
}

/// What a build leaves to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing: no ask stands that it could have answered.
    Settled,
    /// Somebody else is at work, or the entry rests: come back at this time.
    Later(Timestamp),
}

/// A kind whose lease this build holds.
struct Held {
    kind: Kind,
    token: Token,
    /// The record with the lease, as it was written: what ends the lease need not read it again.
    stored: Option<Stored>,
}

/// Why there is no lease.
enum NotTaken {
    /// Somebody else holds it, until this time at the latest.
    Leased { until: Timestamp },
    /// The entry rests.
    BackingOff { until: Timestamp },
    /// It was given up as crashed, or is not ours to touch.
    NotOurs,
}

impl NotTaken {
    /// Returns when to look again, if at all: a holder that lives settles the ask itself.
    fn look_again(&self) -> Option<Timestamp> {
        match self {
            Self::Leased { until } | Self::BackingOff { until } => Some(*until),
            Self::NotOurs => None,
        }
    }
}

/// Why nothing was made, and the leases are given back.
enum NotMade {
    /// A store failed.
    Store(Fault),
    /// A blob seems lost, and is not taken for it.
    Doubtful {
        /// The blob.
        blob: String,
    },
    /// What was fetched is not what is there now, or it is not the time to ask for it.
    Later,
}

/// What a message asks for.
#[derive(Clone, Copy)]
struct Demand<'a> {
    kinds: &'a [Kind],
    /// The ask of the message; none where an event is the reason.
    build_request: Option<&'a Token>,
    /// Whether whoever asks cannot read what this build makes.
    requester_is_behind: bool,
}

impl Demand<'_> {
    /// Tells whether the ask is over: another one, or none, is in the records.
    fn is_over(&self, entries: &[Entry]) -> bool {
        let asked = entries
            .iter()
            .filter(|entry| self.kinds.contains(&entry.kind()));
        let mut requests = asked.filter_map(Entry::build_request);
        self.build_request
            .is_some_and(|id| !requests.any(|build_request| build_request.id == *id))
    }

    /// Tells whether an entry has what this build makes, and whoever asks cannot read it. The ask stays: it keeps those
    /// who ask again in short intervals from doing so.
    fn is_beyond(&self, entry: &Entry, made: Option<u32>) -> bool {
        let is_made =
            |ready: &Ready| Some(ready.version) == made && ready.converter == Converter::CURRENT;
        self.requester_is_behind
            && entry.suspect().is_none()
            && entry
                .build_request()
                .is_some_and(|build_request| build_request.queue == Queue::Eager)
            && entry.ready().is_some_and(is_made)
    }
}

impl From<Fault> for NotMade {
    fn from(error: Fault) -> Self {
        Self::Store(error)
    }
}

impl From<DifError> for NotMade {
    fn from(error: DifError) -> Self {
        match error {
            DifError::Store(error) => Self::Store(error),
            // Of uploads, the event of the new bytes is on its way.
            DifError::Changed | DifError::Missing(_) => Self::Later,
        }
    }
}

/// What is stored in the partition of a module.
#[derive(Default)]
struct Partition {
    entries: Vec<Entry>,
    /// The same, as they are stored.
    stored: Vec<(Kind, Stored)>,
    difs: Vec<Dif>,
    copies: Vec<DifCopy>,
}

/// What a cache is made of.
struct Origin {
    made_from: Vec<DifRef>,
    rank: Rank,
    features: Features,
    arch: String,
    file_type: FileType,
}

/// What came of one kind.
struct Made {
    outcome: MadeOf,
    seen: Seen,
}

/// What came of one kind.
enum MadeOf {
    /// A cache.
    Ready(Box<Ready>),
    /// Nothing, for a reason that is remembered.
    Missing(Missing),
    /// Nothing yet: a file is being replaced, and its event is on its way.
    Later,
}

impl Builder {
    /// Builds the kinds of a module for which an ask stands, and those that come of the same DIF and are due.
    ///
    /// What arrives meanwhile is built at once, unless it goes on arriving. `open` is what the caller has fetched
    /// already. [`Error::Store`] leaves the asks standing.
    pub async fn build(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        kinds: &[Kind],
        open: &mut Vec<OpenDif>,
    ) -> Result<Outcome, Error> {
        let demand = Demand {
            kinds,
            build_request: None,
            requester_is_behind: false,
        };
        self.meet(invocation, module, demand, open).await
    }

    /// Builds what a message asks for, if its ask is not over.
    pub(super) async fn build_requested(
        &self,
        invocation: &Invocation,
        message: &QueueMessage,
    ) -> Result<Outcome, Error> {
        let demand = Demand {
            kinds: &message.kinds,
            build_request: Some(&message.build_request),
            requester_is_behind: message.min_converter < Converter::CURRENT,
        };
        self.meet(invocation, &message.module, demand, &mut Vec::new())
            .await
    }

    async fn meet(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        demand: Demand<'_>,
        open: &mut Vec<OpenDif>,
    ) -> Result<Outcome, Error> {
        let mut outcome = Outcome::Settled;
        for round in 0..MAX_ROUNDS {
            // What arrived since has an ask of its own, and is built at once all the same.
            let build_request = demand.build_request.filter(|_| round == 0);
            let demand = Demand {
                build_request,
                ..demand
            };
            outcome = self.build_once(invocation, module, demand, open).await?;
            if !matches!(outcome, Outcome::Later(at) if at <= invocation.now()) {
                break;
            }
        }
        Ok(outcome)
    }

    async fn build_once(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        demand: Demand<'_>,
        open: &mut Vec<OpenDif>,
    ) -> Result<Outcome, Error> {
        let kinds = demand.kinds;
        let Partition {
            entries,
            stored,
            difs,
            copies,
        } = self.look(module).await?;
        if demand.is_over(&entries) {
            return Ok(Outcome::Settled);
        }
        let mut later = None;
        let mut held = Vec::new();
        let sought = module.sought();
        if sought.is_some()
            && copies.is_empty()
            && let Some(outcome) = self.put_off(invocation, module, kinds, &entries).await?
        {
            return Ok(outcome);
        }
        let reader = self.settings.capabilities();
        let may_come = |kind: &Kind| {
            kinds.contains(kind)
                || comes_of(&difs, *kind)
                || sought
                    .as_ref()
                    .is_some_and(|sought| sought.may_yield(*kind))
        };
        let now = invocation.now();
        let mut candidates: Vec<Kind> = Kind::DERIVED
            .into_iter()
            .chain(kinds.iter().copied())
            .collect();
        candidates.sort_unstable();
        candidates.dedup();
        for kind in candidates.into_iter().filter(may_come) {
            let entry = entries.iter().find(|entry| entry.kind() == kind);
            if entry.is_some_and(|entry| demand.is_beyond(entry, reader.made_version(kind))) {
                continue;
            }
            let is_due = self.is_due(entry, kinds.contains(&kind), now);
            let taken = match entry.and_then(|entry| entry.live_lease(now)) {
                Some(lease) => Ok(Err(NotTaken::Leased { until: lease.until })),
                None if is_due => {
                    let known = stored.iter().find(|(of, _)| *of == kind);
                    let known = known.map(|(_, stored)| stored.clone());
                    self.take_lease_from(invocation, module, kind, known).await
                }
                None => continue,
            };
            match taken {
                Ok(Ok(lease)) => held.push(lease),
                // Whoever has the first kind is about to take the others: two who share them would fetch the DIF twice.
                Ok(Err(leased @ NotTaken::Leased { .. })) if held.is_empty() => {
                    let is_requested = |entry: &Entry| {
                        kinds.contains(&entry.kind()) && entry.build_request().is_some()
                    };
                    let at = leased.look_again();
                    let at = at.filter(|_| entries.iter().any(is_requested));
                    return Ok(at.map_or(Outcome::Settled, Outcome::Later));
                }
                Ok(Err(not_taken)) if kinds.contains(&kind) => {
                    later = later.max(not_taken.look_again());
                }
                Ok(Err(_)) => {}
                Err(error) => {
                    self.hand_over(invocation, module, &held).await;
                    return Err(error.into());
                }
            }
        }
        if !held.is_empty() {
            let again = self.work(invocation, module, &held, open).await?;
            later = later.max(again);
        }
        Ok(later.map_or(Outcome::Settled, Outcome::Later))
    }

    /// Puts a build off whose source is not to be asked now.
    ///
    /// Where the source does not answer, a message comes back only as long as its ask stands: whoever asks later asks anew.
    async fn put_off(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        kinds: &[Kind],
        entries: &[Entry],
    ) -> Result<Option<Outcome>, Fault> {
        let (now, most) = (invocation.now(), self.settings.source_max_permits);
        let records = &*self.records;
        let refused = permits::refused(records, invocation, &module.source, most).await?;
        let mut asked = entries.iter().filter(|entry| kinds.contains(&entry.kind()));
        Ok(refused.map(|refused| match refused {
            NotAdmitted::CircuitOpen { until }
                if asked.any(|entry| entry.live_request(now).is_some()) =>
            {
                Outcome::Later(until)
            }
            NotAdmitted::Busy if asked.any(|entry| entry.build_request().is_some()) => {
                Outcome::Later(now)
            }
            NotAdmitted::CircuitOpen { .. } | NotAdmitted::Busy => Outcome::Settled,
        }))
    }

    /// Tells whether a build should be made of an entry: an ask stands for it, or a reader would ask now.
    fn is_due(&self, entry: Option<&Entry>, asked_for: bool, now: Timestamp) -> bool {
        match entry {
            Some(entry) if asked_for => entry.build_request().is_some(),
            _ => !asked_for && decide(entry, &self.settings.capabilities(), now) == Decision::Build,
        }
    }

    /// Takes the lease of a kind whose record was read; else says what is in the way.
    async fn take_lease_from(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        kind: Kind,
        stored: Option<Stored>,
    ) -> Result<Result<Held, NotTaken>, Fault> {
        let token = invocation.token();
        let change = Change::TakeLease {
            holder: invocation.request_id().to_owned(),
            token: token.clone(),
            deadline: invocation.deadline(),
        };
        let update = self.update(invocation);
        let (updated, stored) = update.apply_from(module, kind, &change, stored).await?;
        Ok(match updated {
            Updated::Done(entry) if entry.lease().is_some_and(|lease| lease.token == token) => {
                Ok(Held {
                    kind,
                    token,
                    stored,
                })
            }
            Updated::Refused(Refused::Leased, Some(entry)) => Err(match entry.lease() {
                Some(lease) => NotTaken::Leased { until: lease.until },
                None => NotTaken::NotOurs,
            }),
            Updated::Refused(Refused::BackingOff { until }, _) => {
                Err(NotTaken::BackingOff { until })
            }
            Updated::Done(_) | Updated::Refused(..) | Updated::Retired(_) => Err(NotTaken::NotOurs),
        })
    }

    /// Does the work under the leases, and ends them: published, failed, or given back.
    async fn work(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        held: &[Held],
        open: &mut Vec<OpenDif>,
    ) -> Result<Option<Timestamp>, Error> {
        let began = invocation.elapsed();
        let is_fetching = AtomicBool::new(false);
        let made = {
            let mut make = Box::pin(self.make(invocation, module, held, open, &is_fetching));
            let time_up = tokio::time::sleep(invocation.time_left().saturating_sub(RESERVE));
            let mut time_up = std::pin::pin!(time_up);
            loop {
                tokio::select! {
                    made = &mut make => break made,
                    () = &mut time_up => {
                        let is_fetching = is_fetching.load(Ordering::Relaxed);
                        break out_of_time(invocation, held, began, is_fetching);
                    }
                    () = tokio::time::sleep(LEASE_EXTENSION) => self.extend(invocation, module, held).await,
                }
            }
        };
        match made {
            Ok(made) => {
                let ended = held.iter().zip(made).map(|(lease, made)| async move {
                    (lease, self.finish(invocation, module, lease, made).await)
                });
                let (mut later, mut failed) = (None, None);
                for (lease, ended) in join_all(ended).await {
                    match ended {
                        Ok(at) => later = later.max(at),
                        Err(error) => {
                            // One that cannot be published keeps no other from it.
                            let _ = self
                                .give_back(invocation, module, std::slice::from_ref(lease))
                                .await;
                            failed = Some(error);
                        }
                    }
                }
                failed.map_or(Ok(later), |error| Err(error.into()))
            }
            Err(NotMade::Store(error)) => {
                self.give_back(invocation, module, held).await?;
                Err(error.into())
            }
            Err(NotMade::Doubtful { blob }) => {
                self.give_back(invocation, module, held).await?;
                Err(Error::Doubtful { blob })
            }
            Err(NotMade::Later) => self.give_back(invocation, module, held).await,
        }
    }

    async fn extend(&self, invocation: &Invocation, module: &ModuleKey, held: &[Held]) {
        for Held { kind, token, .. } in held {
            self.extend_one(invocation, module, *kind, token).await;
        }
    }

    async fn extend_one(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        kind: Kind,
        token: &Token,
    ) {
        let change = Change::Extend {
            token: token.clone(),
            deadline: invocation.deadline(),
        };
        // A lease that was lost is found out by the publish; two extensions may fail before one is.
        if let Err(error) = self.update(invocation).apply(module, kind, &change).await {
            tracing::warn!(%kind, module = module.id, %error, "could not extend a lease");
        }
    }

    /// Ends a lease with what was made; returns when to come back for what arrived meanwhile.
    async fn finish(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        Held {
            kind,
            token,
            stored,
        }: &Held,
        Made { outcome, seen }: Made,
    ) -> Result<Option<Timestamp>, Fault> {
        let token = token.clone();
        let change = match outcome {
            MadeOf::Ready(ready) => Change::Publish { token, ready, seen },
            // Somebody may have killed the parser. When as many attempts have ended so as may, no lease is given.
            MadeOf::Missing(missing) if missing.cause == Cause::Crashed => {
                Change::Abandon { token }
            }
            MadeOf::Missing(missing) => Change::Fail {
                token,
                missing,
                seen,
            },
            MadeOf::Later => Change::Release { token },
        };
        let now = invocation.now();
        let update = self.update(invocation);
        let ended = update.apply_from(module, *kind, &change, stored.clone());
        let (ended, _) = ended.await?;
        Ok(match ended {
            Updated::Done(entry) | Updated::Refused(_, Some(entry))
                if entry.build_request().is_some() =>
            {
                Some(entry.not_before().unwrap_or(now).max(now))
            }
            Updated::Done(_) | Updated::Refused(..) | Updated::Retired(_) => None,
        })
    }

    /// Gives the leases back before any work was done under them.
    async fn hand_over(&self, invocation: &Invocation, module: &ModuleKey, held: &[Held]) {
        for Held { kind, token, .. } in held {
            let token = token.clone();
            let change = Change::HandOver { token };
            // What cannot be given back now runs out by itself.
            let _ = self.update(invocation).apply(module, *kind, &change).await;
        }
    }

    /// Gives the leases back undone; returns when to come back.
    async fn give_back(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        held: &[Held],
    ) -> Result<Option<Timestamp>, Error> {
        let mut later = None;
        for Held { kind, token, .. } in held {
            let change = Change::Release {
                token: token.clone(),
            };
            if let Updated::Done(entry) = self
                .update(invocation)
                .apply(module, *kind, &change)
                .await?
            {
                later = later.max(entry.not_before());
            }
        }
        Ok(later)
    }

    /// Makes each kind that is held, in that order.
    async fn make(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        held: &[Held],
        open: &mut Vec<OpenDif>,
        is_fetching: &AtomicBool,
    ) -> Result<Vec<Made>, NotMade> {
        let Partition {
            mut entries,
            mut difs,
            mut copies,
            ..
        } = self.look(module).await?;
        let mut given_up: Vec<(Kind, Missing)> = Vec::new();
        for entry in &mut entries {
            if held.iter().any(|lease| lease.kind == entry.kind()) {
                match self.judge_suspect(invocation, entry).await? {
                    Judged::Build(Some(judged)) => *entry = *judged,
                    Judged::Build(None) => {}
                    Judged::GiveUp(missing) => given_up.push((entry.kind(), missing)),
                }
            }
        }
        let mut search = Search::default();
        if let Some(sought) = module.sought() {
            let kinds: Vec<Kind> = held.iter().map(|lease| lease.kind).collect();
            if entries.iter().any(|entry| failed_here(entry, &kinds)) {
                // The file may have been mended where it came from.
                copies.clear();
            }
            is_fetching.store(true, Ordering::Relaxed);
            let searching = self.search(invocation, module, &sought, &kinds, &copies, open);
            search = Box::pin(searching).await?;
            difs.append(&mut search.difs);
        }
        let companions = self.companions(module, &difs).await?;
        let mut work: Vec<Work> = held
            .iter()
            .map(|lease| {
                let entry = entries.iter().find(|entry| entry.kind() == lease.kind);
                let mut work = Work::begin(lease, entry, (&difs, &companions), &self.settings);
                if let Some((_, missing)) = given_up.iter().find(|(kind, _)| *kind == lease.kind) {
                    work.give_up(missing.clone());
                }
                work
            })
            .collect();
        // Each round fetches one DIF and derives from it all kinds for which it is the best that is left.
        while let Some(dif) = work.iter().find_map(Work::next_dif).cloned() {
            is_fetching.store(true, Ordering::Relaxed);
            let answers = match self
                .derive_from(
                    invocation,
                    (module, &dif),
                    &companions,
                    &work,
                    open,
                    is_fetching,
                )
                .await
            {
                Ok(answers) => answers,
                Err(DifError::Missing(missing)) => {
                    if missing.cause == Cause::NotFound && module.source.is_uploads() {
                        self.forget_if_stale(invocation, &dif).await?;
                    }
                    vec![Err(missing); work.len()]
                }
                Err(DifError::Changed) if module.source.is_uploads() => {
                    if !self.forget_if_stale(invocation, &dif).await? {
                        work.iter_mut().for_each(|work| work.is_awaiting(&dif));
                    }
                    let detail = "the file was overwritten; its event brings the new one";
                    vec![Err(Missing::new(Cause::NotFound, detail)); work.len()]
                }
                Err(other) => return Err(other.into()),
            };
            let took = open
                .iter()
                .find(|open| open.dif == dif.file)
                .map(|open| open.took);
            let wanting = work
                .iter_mut()
                .filter(|work| work.next_dif().is_some_and(|next| next.file == dif.file));
            for (work, answer) in wanting.zip(answers) {
                work.settle(&dif, answer, took);
            }
        }
        Ok(work
            .into_iter()
            .map(|work| work.end((&difs, &companions), &search))
            .collect())
    }

    /// Derives what is wanted of one DIF and stores the blobs: one answer for each kind that wants it, in order.
    async fn derive_from(
        &self,
        invocation: &Invocation,
        (module, dif): (&ModuleKey, &Dif),
        companions: &FiledCompanions,
        work: &[Work<'_>],
        open: &mut Vec<OpenDif>,
        is_fetching: &AtomicBool,
    ) -> Result<Vec<Result<Ready, Missing>>, DifError> {
        let targets: Vec<Target> = work.iter().filter_map(|work| work.target(dif)).collect();
        if dif.file_type == FileType::MsSymCache {
            return self.take_over(invocation, module, dif, &targets).await;
        }
        let needs_them = targets
            .iter()
            .map(|target| companions.of(&dif.file, target.lease.kind))
            .find(|companions| !companions.is_empty());
        let companions = needs_them.unwrap_or_default();
        let open = self.open(invocation, module, (dif, companions), open);
        let open = open.await?;
        is_fetching.store(false, Ordering::Relaxed);
        let objects = objects_of(&open.inspection, module);
        let mut answers: Vec<Option<Result<Ready, Missing>>> = vec![None; targets.len()];
        // Kinds of the same object are derived side by side; the best object may differ from kind to kind.
        for object in &objects {
            let kind = |at: usize| targets[at].lease.kind;
            let serves = |at: &usize| {
                best_object(&objects, kind(*at)).is_some_and(|best| best.index == object.index)
            };
            let here = (0..targets.len()).filter(serves);
            let (to_transcode, to_derive): (Vec<usize>, Vec<usize>) =
                here.partition(|at| kind(*at).is_opaque());
            let rank = |at: usize| Rank::of(&object.features, kind(at).purpose());
            let job = |at: &usize| DeriveJob {
                kind: kind(*at),
                rank: rank(*at),
            };
            let jobs: Vec<DeriveJob> = to_derive.iter().map(job).collect();
            let mut made: Vec<(usize, Result<Derived, Missing>)> = Vec::new();
            if !jobs.is_empty() {
                let derived = open.parser.derive(object.index, &jobs).await;
                made.extend(
                    to_derive
                        .into_iter()
                        .zip(derived.map_err(fetch::from_parse)?),
                );
            }
            for at in to_transcode {
                let transcoding = transcoding(module, dif, object, targets[at].version);
                let transcoded = open.parser.transcode(object.index, &transcoding).await;
                let transcoded = transcoded.map_err(fetch::from_parse)?;
                made.push((at, transcoded.map(|bytes| opaque(kind(at), bytes))));
            }
            let stored = made.into_iter().map(|(at, made)| {
                let about = Origin {
                    made_from: open.made_into(kind(at)),
                    rank: rank(at),
                    features: object.features.clone(),
                    arch: object.arch.clone(),
                    file_type: object.file_type,
                };
                let target = targets[at];
                async move {
                    Ok::<_, Fault>(match made {
                        Err(missing) => (at, Err(missing)),
                        Ok(derived) => {
                            let stored = self.store(invocation, module, target, about, derived);
                            (at, Ok(stored.await?))
                        }
                    })
                }
            });
            for (at, answer) in try_join_all(stored).await? {
                answers[at] = Some(answer);
            }
        }
        let none = || {
            Err(Missing::malformed(format!(
                "{} has no such object any more",
                dif.file.location
            )))
        };
        Ok(answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(none))
            .collect())
    }

    /// Opens a DIF and its companions, unless they are open.
    async fn open<'a>(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        (dif, companions): (&Dif, &[Dif]),
        open: &'a mut Vec<OpenDif>,
    ) -> Result<&'a mut OpenDif, DifError> {
        let is_it = |open: &OpenDif| {
            let beside = open.beside.iter();
            open.dif == dif.file && beside.eq(companions.iter().map(|companion| &companion.file))
        };
        if !open.iter().any(is_it) {
            open.clear(); // gives its scratch space back before more is reserved
            if module.source.is_uploads() {
                open.push(self.open_upload(invocation, dif, companions).await?);
            } else {
                self.open_again(invocation, module, dif, open).await?;
            }
        }
        open.iter_mut()
            .find(|open| open.dif == dif.file)
            .ok_or_else(|| DifError::Missing(Missing::not_found()))
    }

    /// Opens an uploaded DIF, together with its companions; alone where they cannot be fetched.
    async fn open_upload(
        &self,
        invocation: &Invocation,
        dif: &Dif,
        companions: &[Dif],
    ) -> Result<OpenDif, DifError> {
        let began = invocation.elapsed();
        let (mut parser, beside) = match self.fetch_upload(dif, companions).await {
            // What takes a companion away has an event of its own.
            Err(DifError::Missing(_) | DifError::Changed) if !companions.is_empty() => {
                (self.fetch_upload(dif, &[]).await?, &[][..])
            }
            fetched => (fetched?, companions),
        };
        let took = invocation.elapsed() - began;
        let inspection = parser.inspect().await.map_err(fetch::from_parse)?;
        let beside = beside.iter().map(|companion| companion.file.clone());
        Ok(OpenDif {
            dif: dif.file.clone(),
            beside: beside.collect(),
            parser,
            inspection,
            took,
        })
    }

    async fn fetch_upload(
        &self,
        dif: &Dif,
        companions: &[Dif],
    ) -> Result<Box<dyn Parser>, DifError> {
        let difs: Vec<&Dif> = std::iter::once(dif).chain(companions).collect();
        let max = self.settings.dif_max_bytes;
        fetch::fetch_together(&*self.uploads, &*self.deriver, &difs, max).await
    }

    /// Creates the blob. Only this build knows its path: one that is there already is its own, written twice.
    async fn store(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        Target { lease, version }: Target<'_>,
        origin: Origin,
        derived: Derived,
    ) -> Result<Ready, Fault> {
        let path = module
            .entry(lease.kind)
            .blob(lease.kind, version, &lease.token);
        let blob = BlobRef {
            path: path.clone(),
            bytes: derived.blob.len() as u64,
            checksum: derived.checksum,
            index: match lease.kind.is_opaque() {
                true => None,
                false => debuginfo::index_of(&derived.blob),
            },
        };
        let lacks = derived.lacks;
        self.caches.create(&path, derived.blob).await?;
        Ok(Ready {
            version,
            blob,
            quality: origin.rank.quality(),
            rank: origin.rank,
            features: origin.features,
            arch: origin.arch,
            file_type: origin.file_type,
            made_from: origin.made_from,
            lacks,
            derived_at: invocation.now(),
            converter: Converter::CURRENT,
        })
    }

    /// Judges what a reader said of a blob. One that is gone, or has other bytes than were published, is taken away; one
    /// that is as it was published is built again, too, but no state is taken away for it. Either happens once an hour at
    /// most.
    ///
    /// Where too many blobs seem lost at a time, none is: nothing is built either, as it would go into the wrong bucket.
    async fn judge_suspect(
        &self,
        invocation: &Invocation,
        entry: &Entry,
    ) -> Result<Judged, NotMade> {
        let Some(suspect) = entry.suspect() else {
            return Ok(Judged::Build(None));
        };
        let path = &suspect.blob;
        let mut states = entry.ready().into_iter().chain(entry.older());
        let Some(state) = states.find(|state| state.blob.path == *path) else {
            return Ok(Judged::Build(None));
        };
        let blob = self.caches.get(path, None).await?;
        let is_sound = blob.is_some_and(|blob| debuginfo::is_sound(entry.kind(), state, &blob));
        if !is_sound && !self.may_be_lost(invocation).await? {
            return Err(NotMade::Doubtful { blob: path.clone() });
        }
        let (blob, id) = (path.clone(), invocation.token());
        let change = match is_sound {
            true => Change::Dispute { blob, id },
            false => Change::ConfirmLoss { blob, id },
        };
        let update = self.update(invocation);
        let updated = update.apply(entry.module(), entry.kind(), &change).await?;
        Ok(match updated {
            Updated::Refused(Refused::TooSoon, _) => {
                let how = match is_sound {
                    true => "is as it was published, and cannot be read",
                    false => "was lost or damaged again",
                };
                let detail = format!("its cache {how}; it was replaced within the last hour");
                Judged::GiveUp(Missing::new(Cause::DownloadFailed, detail))
            }
            Updated::Done(entry) => Judged::Build(Some(Box::new(entry))),
            Updated::Refused(..) | Updated::Retired(_) => Judged::Build(None),
        })
    }

    /// Removes the item of an uploaded DIF whose bytes are gone, unless an event that tells more is on its way; tells
    /// whether none is.
    async fn forget_if_stale(&self, invocation: &Invocation, dif: &Dif) -> Result<bool, Fault> {
        let location = &dif.file.location;
        let update = self.update(invocation);
        let upload = update.load(&ItemKey::upload(location)).await?;
        let is_current = match upload.map(|stored| stored.item) {
            Some(Item::Upload(upload)) => {
                upload.state == UploadState::Pending || upload.etag == dif.file.etag
            }
            // A newer build's.
            Some(_) => true,
            None => false,
        };
        if is_current {
            return Ok(false);
        }
        let is_it = |item: &Item| matches!(item, Item::Dif(present) if present.file == dif.file);
        update.remove(&dif.module.dif(location), is_it).await?;
        presence::forget_files(update, &dif.module).await?;
        Ok(true)
    }

    /// Counts a loss, unless there were as many as there may be.
    async fn may_be_lost(&self, invocation: &Invocation) -> Result<bool, Fault> {
        let most = self.settings.max_losses_per_hour;
        let counted = |present: Option<&Item>| {
            let losses = match present {
                Some(Item::Losses(losses)) => *losses,
                _ => Losses::default(),
            };
            losses
                .with_one_more(invocation.now(), most)
                .map(Item::Losses)
        };
        self.update(invocation)
            .put_with(&ItemKey::losses(), counted)
            .await
    }

    /// Reads a module's partition, strongly consistent.
    async fn look(&self, module: &ModuleKey) -> Result<Partition, Fault> {
        let mut known = Partition::default();
        for (_, stored) in self.records.query(&module.partition()).await? {
            match stored.item {
                Item::Entry(ref entry) => {
                    known.entries.push(entry.clone());
                    known.stored.push((entry.kind(), stored));
                }
                Item::Dif(dif) => known.difs.push(dif),
                Item::Copy(copy) => known.copies.push(copy),
                Item::Alias(_)
                | Item::Presence(_)
                | Item::Generation(_)
                | Item::Objects(_)
                | Item::Overflow(_)
                | Item::Upload(_)
                | Item::Request(_)
                | Item::Source(_)
                | Item::Wanted(_)
                | Item::Health(_)
                | Item::Losses(_)
                | Item::Sweep(_)
                | Item::Manifest(_)
                | Item::Rollout(_)
                | Item::Newer { .. } => {}
            }
        }
        Ok(known)
    }

    /// Returns what changes the records in this invocation.
    pub(super) fn update<'a>(&'a self, invocation: &'a Invocation) -> Update<'a> {
        Update {
            records: &*self.records,
            policy: &self.settings.policy,
            invocation,
        }
    }
}

/// The time is up. Work that had most of an invocation would not end in another one either; else it is given back.
///
/// A source that did not hand the file out in time says nothing about the file.
fn out_of_time(
    invocation: &Invocation,
    held: &[Held],
    began: Duration,
    is_fetching: bool,
) -> Result<Vec<Made>, NotMade> {
    let worked = invocation.elapsed() - began;
    if worked < began {
        return Err(NotMade::Later);
    }
    let seconds = worked.as_secs();
    let missing = match is_fetching {
        true => {
            let detail = format!("fetching it did not end within {seconds} s");
            Missing::new(Cause::Timeout, detail)
        }
        false => Missing::malformed(format!(
            "deriving it did not end within {seconds} s, the time that a function has"
        )),
    };
    Ok(held
        .iter()
        .map(|_| Made {
            outcome: MadeOf::Missing(missing.clone()),
            seen: Seen::default(),
        })
        .collect())
}

/// What to do about an entry whose blob a reader could not read.
enum Judged {
    /// Build it; the entry as it is now, where it was changed.
    Build(Option<Box<Entry>>),
    /// Do not build it again, for this reason.
    GiveUp(Missing),
}

/// Tells whether this converter failed over an entry of these kinds.
fn failed_here(entry: &Entry, kinds: &[Kind]) -> bool {
    let by_this = |placeholder: &Placeholder| {
        placeholder.missing.cause.belongs_to_the_converter()
            && placeholder.converter == Converter::CURRENT
    };
    kinds.contains(&entry.kind()) && entry.missing().is_some_and(by_this)
}

/// Tells whether a kind comes of any of these DIFs.
fn comes_of(difs: &[Dif], kind: Kind) -> bool {
    difs.iter().any(|dif| kind.comes_of(dif.file_type))
}

/// Returns the objects of a module in a DIF.
fn objects_of(inspection: &Inspection, module: &ModuleKey) -> Vec<ObjectMeta> {
    let sought = module.sought();
    // An archive may have ten thousand objects: ids are compared, and written out only where that does not tell.
    let debug_id = module.id.strip_prefix("debug_id:");
    let debug_id: Option<DebugId> = debug_id.and_then(|text| text.parse().ok());
    let is_filed_here = |object: &&ObjectMeta| match (&sought, debug_id) {
        (Some(sought), _) => search::is_sought(object, sought),
        (None, Some(debug_id)) => object.debug_id == Some(debug_id),
        (None, None) => ModuleId::of(object.debug_id, object.code_id.as_ref())
            .is_some_and(|id| id.to_string() == module.id),
    };
    inspection
        .objects
        .iter()
        .filter(is_filed_here)
        .cloned()
        .collect()
}

/// Returns the object that serves a kind best, the first of equals.
fn best_object(objects: &[ObjectMeta], kind: Kind) -> Option<&ObjectMeta> {
    let serves = |object: &&ObjectMeta| kind.comes_of(object.file_type);
    objects
        .iter()
        .filter(serves)
        .min_by_key(|object| Rank::of(&object.features, kind.purpose()))
}
