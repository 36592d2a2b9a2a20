//! The rounds of a request: load, select, then read blobs and request builds, until every lookup
//! has an outcome or the time is up.

use std::time::Duration;

use futures::future;
use futures::stream::{self, StreamExt};

use super::cache_lookup::{CacheLookup, LookupOutcome};
use crate::api::symbolicator::Request;
use crate::cache::{Capabilities, Kind, PlaceToBuild, Queue, Selection, UnreadableBlobs};
use crate::flows::Error;
use crate::flows::build_requests::{BuildToRequest, MAX_BUILD_REQUESTS};
use crate::flows::lookup::{CacheFinder, Chosen, Items, Lookup};
use crate::flows::opening::{LoadedCache, Opening, ReadError};
use crate::flows::requests::{CallState, is_overdue, overdue};
use crate::flows::waiting::{AfterRound, WaitOutcome};
use crate::ports::{Consistency, Fault};
use crate::symbolicate::{Plan, PlannedCacheId, ReadCounts};

/// The maximum number of blobs that are read at a time.
const BLOB_READS_IN_FLIGHT: usize = 64;

/// A request, and its state across the rounds.
pub(super) struct Rounds<'a> {
    pub(super) finder: CacheFinder<'a>,
    pub(super) request: &'a Request,
    pub(super) plan: &'a Plan,
    pub(super) call: CallState<'a>,
    /// When the request began to wait, as the elapsed time of the invocation.
    began: Duration,
    pub(super) opening: Opening<'a>,
    capabilities: Capabilities,
    /// The number of builds that this call may still request.
    requests_left: usize,
    /// The blobs that cannot be read.
    unreadable: UnreadableBlobs,
}

/// What is still awaited after a round, by one lookup or by all of them. Ordered: the greatest of
/// all lookups decides how the request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StillAwaited {
    /// Nothing: every lookup has an outcome.
    Nothing,
    /// Only builds that this call may no longer request.
    Unrequested,
    /// Builds that are requested.
    Queued,
    /// Builds that are in progress.
    Builds,
}

/// A blob to read.
struct BlobToRead {
    /// The index of the lookup that it serves.
    at: usize,
    /// The cache in the plan.
    planned: PlannedCacheId,
    chosen: Box<Chosen>,
}

/// The actions that follow from the selections of one round.
struct Actions {
    to_read: Vec<BlobToRead>,
    /// The builds that this request waits for.
    to_request: Vec<BuildToRequest>,
    /// The builds that serve later requests.
    for_later: Vec<BuildToRequest>,
    /// The number of builds that may still be requested.
    requests_left: usize,
}

impl<'a> Rounds<'a> {
    pub(super) fn new(
        finder: CacheFinder<'a>,
        request: &'a Request,
        plan: &'a Plan,
        call: CallState<'a>,
    ) -> Self {
        Self {
            finder,
            request,
            plan,
            call,
            began: finder.invocation.elapsed(),
            opening: Opening::new(&*finder.service.caches, &finder.service.memory),
            capabilities: finder.service.settings.capabilities(),
            requests_left: MAX_BUILD_REQUESTS,
            unreadable: UnreadableBlobs::default(),
        }
    }

    /// Returns the number of reads, of bytes read, and of hits of the memory so far.
    pub(super) fn reads(&self) -> ReadCounts {
        self.opening.counts()
    }

    /// Repeats rounds until every lookup has an outcome, and returns the lookups. If the time is up
    /// first, or only builds are left that this call may not request, stores the request. If the
    /// request is overdue, these lookups have a timeout as their outcome.
    pub(super) async fn resolve(
        &mut self,
        mut lookups: Vec<CacheLookup>,
    ) -> Result<WaitOutcome<Vec<CacheLookup>>, Error> {
        let waited = self.finder.invocation.elapsed() - self.began;
        let CacheFinder {
            service,
            invocation,
            ..
        } = self.finder;
        let call = self.call.after(waited);
        let mut waiting = service.wait_for_builds(invocation, call);
        loop {
            let (is_last, consistency) = waiting.begin_round();
            let awaited = match self.round(&mut lookups, is_last, consistency).await {
                Err(Error::Fault(error)) if waiting.tolerates(&error) => StillAwaited::Builds,
                awaited => awaited?,
            };
            let next = waiting.after_round(awaited == StillAwaited::Queued);
            match (awaited, next) {
                (StillAwaited::Nothing, _) => return Ok(WaitOutcome::Complete(lookups)),
                (StillAwaited::Builds | StillAwaited::Queued, AfterRound::Pause) => {
                    waiting.pause().await;
                }
                _ if is_overdue(call.age) => {
                    for lookup in lookups.iter_mut().filter(|lookup| lookup.is_undecided()) {
                        lookup.outcome = Some(LookupOutcome::Missing(overdue()));
                    }
                    return Ok(WaitOutcome::Complete(lookups));
                }
                (StillAwaited::Builds | StillAwaited::Queued, AfterRound::TimeIsUp)
                | (StillAwaited::Unrequested, _) => {
                    self.store_request().await?;
                    service.memory.note_pending(invocation, call.id);
                    return Ok(WaitOutcome::Pending);
                }
            }
        }
    }

    /// Runs one round: loads the entries of all lookups without an outcome, requests builds, and
    /// reads the blobs of the caches to use.
    async fn round(
        &mut self,
        lookups: &mut [CacheLookup],
        is_last: bool,
        consistency: Consistency,
    ) -> Result<StillAwaited, Error> {
        let finder = self.finder;
        let round = finder.round(&self.capabilities, &self.unreadable, !is_last, consistency);
        let undecided = lookups.iter_mut().filter(|lookup| lookup.is_undecided());
        let mut undecided: Vec<&mut Lookup> = undecided.map(|lookup| &mut lookup.lookup).collect();
        let span = finder.invocation.span("look up");
        let items = round.load(&mut undecided).await?;
        let undecided: Vec<&Lookup> = undecided.into_iter().map(|lookup| &*lookup).collect();
        let selections = round.select(&undecided, &items).await?;
        drop(span);
        let mut actions = Actions::up_to(self.requests_left);
        let mut awaited = StillAwaited::Nothing;
        let undecided = (0..).zip(lookups.iter_mut());
        let undecided = undecided.filter(|(_, lookup)| lookup.is_undecided());
        for ((at, lookup), selection) in undecided.zip(selections) {
            lookup.note_candidates(&items);
            awaited = awaited.max(actions.add(at, lookup, &selection, &items));
        }
        Ok(awaited.max(self.perform(actions, lookups).await?))
    }

    /// Requests builds and reads blobs, in parallel. Returns whether to wait for the replacement of
    /// a blob that cannot be read.
    async fn perform(
        &mut self,
        actions: Actions,
        lookups: &mut [CacheLookup],
    ) -> Result<StillAwaited, Error> {
        if !actions.to_request.is_empty() {
            self.store_request().await?;
        }
        let Actions {
            to_read,
            mut to_request,
            mut for_later,
            requests_left,
        } = actions;
        for_later.truncate(requests_left);
        self.requests_left = requests_left - for_later.len();
        to_request.append(&mut for_later);
        let requests = self.finder.request_builds(to_request);
        let (requested, read) = future::join(requests, self.read_blobs(to_read, lookups)).await;
        self.unreadable.note_reported_again(requested?);
        let unreadable = read?;
        let awaited = if unreadable.is_empty() {
            StillAwaited::Nothing
        } else {
            StillAwaited::Queued
        };
        for blob in unreadable {
            self.unreadable.add(blob);
        }
        Ok(awaited)
    }

    /// Stores the request, unless it is already stored.
    async fn store_request(&mut self) -> Result<(), Error> {
        if let Some(request) = self.call.to_store {
            let CacheFinder {
                service,
                invocation,
                ..
            } = self.finder;
            let CallState { id, scope, .. } = self.call;
            service
                .store_request(invocation, id, scope, request)
                .await?;
            self.call.to_store = None;
        }
        Ok(())
    }

    /// Reads the blobs of these lookups in parallel. Returns the paths of those that cannot be
    /// read, after reporting them.
    async fn read_blobs(
        &self,
        to_read: Vec<BlobToRead>,
        lookups: &mut [CacheLookup],
    ) -> Result<Vec<String>, Error> {
        if to_read.is_empty() {
            return Ok(Vec::new());
        }
        let _span = self.finder.invocation.span("read blobs");
        let mut reads = stream::iter(to_read)
            .map(|blob| async move {
                let read = self.open(&blob).await;
                (blob, read)
            })
            .buffer_unordered(BLOB_READS_IN_FLIGHT);
        let mut unreadable = Vec::new();
        while let Some((BlobToRead { at, chosen, .. }, read)) = reads.next().await {
            match read {
                Ok(cache) => lookups[at].outcome = Some(LookupOutcome::Cache { cache, chosen }),
                // It says nothing about the module.
                Err(ReadError::Fault(fault)) => return Err(fault.into()),
                Err(error) => match error.no_room() {
                    Some(missing) => lookups[at].outcome = Some(LookupOutcome::Missing(missing)),
                    None => {
                        self.report_unreadable(&chosen, &error).await?;
                        unreadable.push(chosen.ready.blob.path.clone());
                    }
                },
            }
        }
        Ok(unreadable)
    }

    /// Reports a blob that does not match its record.
    pub(super) async fn report_unreadable(
        &self,
        chosen: &Chosen,
        fault: &ReadError,
    ) -> Result<(), Fault> {
        let blob = &chosen.ready.blob.path;
        tracing::warn!(blob, %fault, "blob does not match its record; a rebuild is requested");
        self.finder.report_unreadable(chosen).await
    }

    /// Opens the parts of a cache that the request needs.
    async fn open(&self, blob: &BlobToRead) -> Result<LoadedCache, ReadError> {
        let Chosen { entry, ready, .. } = &*blob.chosen;
        let needed = |arch| self.plan.addresses(self.request, blob.planned, arch);
        self.opening.open(entry.kind(), ready, needed).await
    }
}

impl Actions {
    fn up_to(requests_left: usize) -> Self {
        Self {
            to_read: Vec::new(),
            to_request: Vec::new(),
            for_later: Vec::new(),
            requests_left,
        }
    }

    /// Adds what follows from the selection for the lookup at this index. Returns what it still
    /// awaits.
    fn add(
        &mut self,
        at: usize,
        lookup: &mut CacheLookup,
        selection: &Selection<'_>,
        items: &Items,
    ) -> StillAwaited {
        let build = |to_build: &PlaceToBuild<'_>, queue| BuildToRequest {
            suspect: to_build.suspect.map(str::to_owned),
            ..BuildToRequest::of(&lookup.places()[to_build.at], items, queue)
        };
        let without_waiting = [
            (&selection.for_later_readers, Queue::Eager),
            (&selection.to_improve, Queue::Refresh),
        ];
        for (places, queue) in without_waiting {
            let unrequested = places.iter().filter(|place| !place.is_requested());
            self.for_later
                .extend(unrequested.map(|place| build(place, queue)));
        }
        if !selection.waits_for.is_empty() {
            let (pending, unrequested): (Vec<_>, Vec<_>) = selection
                .waits_for
                .iter()
                .partition(|place| place.is_requested());
            let requested = unrequested.len().min(self.requests_left);
            self.requests_left -= requested;
            let requested = &unrequested[..requested];
            self.to_request
                .extend(requested.iter().map(|place| build(place, Queue::Eager)));
            return if pending.iter().any(|place| place.is_in_progress()) {
                StillAwaited::Builds
            } else if pending.is_empty() && requested.is_empty() {
                StillAwaited::Unrequested
            } else {
                StillAwaited::Queued
            };
        }
        match selection.best {
            Some(selected) => {
                let place = &lookup.places()[selected.at];
                let chosen = Box::new(Chosen::new(selected, place, items));
                if chosen.entry.kind() == Kind::SourceCode {
                    lookup.outcome = Some(LookupOutcome::Chosen(chosen));
                } else {
                    self.to_read.push(BlobToRead {
                        at,
                        planned: lookup.planned,
                        chosen,
                    });
                }
            }
            None => lookup.outcome = Some(LookupOutcome::Missing(selection.missing.clone())),
        }
        StillAwaited::Nothing
    }
}
