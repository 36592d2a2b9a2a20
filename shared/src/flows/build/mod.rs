//! Builds the derived caches of one module: lease, find, fetch, derive, publish.
//!
//! 1. *Lease*: take the leases of every kind that the module's DIFs may yield, in the order of the
//!    kinds. This precedes the search for DIFs: a DIF that arrives later marks the entries dirty,
//!    and a mark that the lease did not see keeps the build request pending.
//! 2. *Find*: query the DIFs of the module with strong consistency, and rank them for each kind.
//! 3. *Fetch* the best DIF, or use it if it is already open; *derive*; create the blobs. If a DIF
//!    fails, try the next best one.
//! 4. *Publish* each kind: the conditional write is the commit point. A blob that is not published
//!    is an orphan, which `prune` removes.
//!
//! The leases are extended during steps 2 and 3. An internal error releases them. A failure of the
//! DIF is stored as a placeholder.
//!
//! If a message requests many modules of a symbol server, `batch` first checks which of them the
//! server has.

mod batch;
mod builder;
mod companions;
mod lease;
mod losses;
mod made;
mod make;
mod opaque;
mod partition;
mod search;
mod work;

use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::join_all;
use opaque::opaque;

use self::builder::RESERVE;
pub use self::builder::{Builder, OpenDif, Outcome};
use self::lease::{Held, NotTaken};
use self::made::NotMade;
use self::make::out_of_time;
use self::partition::{Partition, comes_of};
use super::{Error, Invocation, permits};
use crate::cache::{
    Converter, Decision, Entry, Kind, LEASE_EXTENSION, ModuleKey, NotAdmitted, Queue, Ready, Token,
    decide,
};
use crate::domain::Timestamp;
use crate::ports::{Fault, QueueMessage};

/// The maximum number of consecutive builds of one module. What arrives during the last one is left
/// to a message.
const MAX_ROUNDS: u32 = 3;

/// The builds that a message or an event requests.
#[derive(Clone, Copy)]
struct Demand<'a> {
    kinds: &'a [Kind],
    /// The build request of the message; `None` if an event requests the build.
    build_request: Option<&'a Token>,
    /// Whether the requester has an older converter, and so may be unable to read what this build
    /// makes.
    requester_is_behind: bool,
}

impl Demand<'_> {
    /// Returns whether the build request is no longer pending: the records hold another one, or
    /// none.
    fn is_over(&self, entries: &[Entry]) -> bool {
        let asked = entries
            .iter()
            .filter(|entry| self.kinds.contains(&entry.kind()));
        let mut requests = asked.filter_map(Entry::build_request);
        self.build_request
            .is_some_and(|id| !requests.any(|build_request| build_request.id == *id))
    }

    /// Returns whether an entry has what this build makes, and the requester cannot read it. The
    /// build request stays pending, so that the requester does not repeat it at short intervals.
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

impl Builder {
    /// Builds the kinds of a module whose build requests are pending, and other kinds that come of
    /// the same DIFs and are due.
    ///
    /// DIFs that arrive meanwhile are built at once, a limited number of times. `open` has the DIFs
    /// that the caller has fetched. After [`Error::Store`], the build requests stay pending.
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

    /// Builds what a message requests, if its build request is still pending.
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
            // What arrived since then has its own build request, and is built in the next round.
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
                // The holder of the first lease is about to take the others. If two builders shared
                // them, both would fetch the DIF.
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

    /// Returns the outcome if the module's source may not be called now; `None` if it may.
    ///
    /// If the circuit is open, the build is delayed only while a build request is live: a later
    /// reader requests the build again.
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

    /// Returns whether to build an entry. A requested kind is due if its build request is pending.
    /// Another kind is due if a reader would request it now.
    fn is_due(&self, entry: Option<&Entry>, asked_for: bool, now: Timestamp) -> bool {
        match entry {
            Some(entry) if asked_for => entry.build_request().is_some(),
            _ => !asked_for && decide(entry, &self.settings.capabilities(), now) == Decision::Build,
        }
    }

    /// Makes the kinds under their leases, and ends the leases: publishes, fails or releases them.
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
                            // A kind that cannot be published does not affect the others.
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
}
