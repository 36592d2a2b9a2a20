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
//! A source file that is looked up on its own is not parsed: `source_file` downloads and encodes it
//! under the lease.
//!
//! If a message requests many modules of a symbol server, `batch` first checks which of them the
//! server has.

mod batch;
mod builder;
mod companions;
mod deriving_time;
mod kind_build;
mod lease;
mod losses;
mod made;
mod make;
mod opaque;
mod open;
mod open_difs;
mod partition;
mod search;
mod search_companions;
mod search_failures;
mod search_maps;
mod search_order;
mod source_file;
mod stale;

use futures::future::join_all;

use self::builder::{Build, RESERVE};
pub use self::builder::{Builder, Outcome, Resend};
use self::deriving_time::DerivingTime;
use self::lease::{HeldLease, LeaseAttempt};
use self::made::{Made, NotMade};
use self::make::{Making, Unfinished, out_of_time};
pub use self::open_difs::{LeftOutCompanions, OpenDif, OpenDifs};
use self::partition::{Partition, comes_of};
use super::update::KnownItem;
use super::{Error, Invocation, permits};
use crate::cache::{
    Capabilities, Decision, Entry, Kind, ModuleKey, NotAdmitted, Queue, Ready, ServerSearch, Token,
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
    /// Whether the requester has an older converter, and so may be unable to read what this release
    /// makes.
    requester_is_behind: bool,
}

impl<'a> Demand<'a> {
    /// Returns the entries of the requested kinds.
    fn requested<'e>(&self, entries: &'e [Entry]) -> impl Iterator<Item = &'e Entry> + use<'a, 'e> {
        let kinds = self.kinds;
        entries
            .iter()
            .filter(move |entry| kinds.contains(&entry.kind()))
    }

    /// Returns whether the build request is no longer pending: the records hold another one, or
    /// none.
    fn is_settled(&self, entries: &[Entry]) -> bool {
        self.build_request.is_some_and(|id| {
            !self
                .requested(entries)
                .any(|entry| entry.is_requested_by(id))
        })
    }

    /// Returns whether an entry has what this release makes, and the requester cannot read it. The
    /// build request stays pending, so that the requester does not repeat it at short intervals.
    fn requester_cannot_read(&self, entry: &Entry, capabilities: &Capabilities) -> bool {
        let made = capabilities.made_version(entry.kind());
        let is_made = |ready: &Ready| {
            Some(ready.version) == made && ready.converter == capabilities.numbers.converter
        };
        self.requester_is_behind
            && entry.suspect().is_none()
            && entry
                .build_request()
                .is_some_and(|build_request| build_request.queue != Queue::Uploads)
            && entry.ready().is_some_and(is_made)
    }
}

impl Builder {
    /// Builds the kinds of a module whose build requests are pending, and other kinds that come of
    /// the same DIFs and are due.
    ///
    /// DIFs that arrive meanwhile are built at once, a limited number of times. `open_difs` are
    /// those that the caller has fetched. After [`Error::Fault`], the build requests stay pending.
    pub async fn build(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        kinds: &[Kind],
        open_difs: &mut OpenDifs,
    ) -> Result<Outcome, Error> {
        let demand = Demand {
            kinds,
            build_request: None,
            requester_is_behind: false,
        };
        self.build_of(invocation, module)
            .build_until_settled(demand, open_difs)
            .await
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
            requester_is_behind: message.min_converter < self.settings.policy.numbers.converter,
        };
        let build = self.build_of(invocation, &message.module);
        build
            .build_until_settled(demand, &mut OpenDifs::default())
            .await
    }
}

/// The result of building once.
enum BuildRound {
    /// Nothing is left to do now.
    Done(Outcome),
    /// What arrived meanwhile can be built at once.
    Again,
}

impl Build<'_> {
    /// Builds until nothing new arrives, a limited number of times.
    async fn build_until_settled(
        &self,
        demand: Demand<'_>,
        open_difs: &mut OpenDifs,
    ) -> Result<Outcome, Error> {
        for round in 0..MAX_ROUNDS {
            // What arrived since then has its own build request, and is built in the next round.
            let build_request = demand.build_request.filter(|_| round == 0);
            let demand = Demand {
                build_request,
                ..demand
            };
            match self.build_once(demand, open_difs).await? {
                BuildRound::Done(outcome) => return Ok(outcome),
                BuildRound::Again => {}
            }
        }
        Ok(Outcome::Later(self.invocation.now()))
    }

    /// Builds what is due now.
    async fn build_once(
        &self,
        demand: Demand<'_>,
        open_difs: &mut OpenDifs,
    ) -> Result<BuildRound, Error> {
        let partition = self.read_partition().await?;
        if demand.is_settled(&partition.entries) {
            return Ok(BuildRound::Done(Outcome::Settled));
        }
        let mut health = KnownItem::Unread;
        if self.needs_server(demand, &partition) {
            let (blocked, known) = self.blocked_outcome(demand, &partition).await?;
            if let Some(outcome) = blocked {
                return Ok(BuildRound::Done(outcome));
            }
            health = known;
        }
        let (held, mut later) = match self.take_leases(demand, &partition).await? {
            Leases::Ours { held, later } => (held, later),
            Leases::OtherBuilder(outcome) => return Ok(BuildRound::Done(outcome)),
        };
        let now = || self.invocation.now();
        if !held.is_empty() {
            match self.build_under_leases(&held, open_difs, health).await? {
                LeasesEnd::Ended { later: at } => later = later.max(at),
                LeasesEnd::NotAdmitted(refused) => {
                    let at = refused.retry_at(now());
                    return Ok(BuildRound::Done(Outcome::Later(at)));
                }
            }
        }
        let now = now();
        Ok(match later {
            None => BuildRound::Done(Outcome::Settled),
            Some(at) if at <= now => BuildRound::Again,
            Some(at) => BuildRound::Done(Outcome::Later(at)),
        })
    }

    /// Returns whether none of the requested kinds can be made without a call to a symbol server.
    fn needs_server(&self, demand: Demand<'_>, partition: &Partition) -> bool {
        let copies = partition.usable_copies(demand.kinds, self.numbers().converter);
        let is_copied = |entry: &Entry| copies.iter().any(|copy| copy.dif.serves(entry.kind()));
        let pending = demand.requested(&partition.entries);
        let mut pending = pending.filter(|entry| entry.build_request().is_some());
        self.module.sought().is_some() && !pending.any(is_copied)
    }

    /// Returns the outcome if the module's source may not be called now, `None` if it may, and the
    /// health of the source as it was read.
    ///
    /// If the circuit is open, the build is delayed only while a build request is live: a later
    /// reader requests the build again.
    async fn blocked_outcome(
        &self,
        demand: Demand<'_>,
        partition: &Partition,
    ) -> Result<(Option<Outcome>, KnownItem), Fault> {
        let (now, most) = (
            self.invocation.now(),
            self.builder.settings.source_max_permits,
        );
        let source = &self.module.source;
        let (reason, health) = permits::reason_to_wait(self.writer(), source, most).await?;
        let mut requested = demand.requested(&partition.entries);
        let outcome = reason.map(|reason| match reason {
            NotAdmitted::CircuitOpen { until }
                if requested.any(|entry| entry.live_request(now).is_some()) =>
            {
                Outcome::Later(until)
            }
            NotAdmitted::Busy if requested.any(|entry| entry.build_request().is_some()) => {
                Outcome::Later(now)
            }
            NotAdmitted::CircuitOpen { .. } | NotAdmitted::Busy => Outcome::Settled,
        });
        Ok((outcome, health))
    }

    /// Takes the leases of all kinds that are due.
    async fn take_leases(
        &self,
        demand: Demand<'_>,
        partition: &Partition,
    ) -> Result<Leases, Error> {
        let capabilities = self.builder.settings.capabilities();
        let now = self.invocation.now();
        let (mut held, mut later) = (Vec::new(), None);
        for kind in self.kinds_to_build(demand, partition) {
            let entry = partition.entry(kind);
            if entry.is_some_and(|entry| demand.requester_cannot_read(entry, &capabilities)) {
                continue;
            }
            let is_requested = demand.kinds.contains(&kind);
            let taken = match entry.and_then(|entry| entry.live_lease(now)) {
                Some(lease) => Ok(LeaseAttempt::HeldByOther { until: lease.until }),
                None if is_due(entry, is_requested, &capabilities, now) => {
                    let stored = partition.stored(kind).cloned();
                    let is_due =
                        |leased: &Entry| is_still_due(leased, is_requested, &capabilities, now);
                    self.take_lease_from(kind, stored, is_due).await
                }
                None => continue,
            };
            match taken {
                Ok(LeaseAttempt::Taken(lease)) => held.push(*lease),
                // The holder of the first lease is about to take the others. If two builders shared
                // them, both would fetch the DIF.
                Ok(LeaseAttempt::HeldByOther { until }) if held.is_empty() => {
                    let mut requested = demand.requested(&partition.entries);
                    let is_pending = requested.any(|entry| entry.build_request().is_some());
                    return Ok(Leases::OtherBuilder(if is_pending {
                        Outcome::OtherBuilder { until }
                    } else {
                        Outcome::Settled
                    }));
                }
                Ok(not_taken) if is_requested => later = later.max(not_taken.retry_at()),
                Ok(_) => {}
                Err(error) => {
                    self.release_untried(&held).await;
                    return Err(error.into());
                }
            }
        }
        Ok(Leases::Ours { held, later })
    }

    /// Returns the kinds that the module's files may yield, and the requested ones, in the order in
    /// which every builder takes their leases.
    fn kinds_to_build(&self, demand: Demand<'_>, partition: &Partition) -> Vec<Kind> {
        let sought = self.module.sought();
        // A search for sources alone must not fetch debug files that no reader needs.
        let is_for_names = demand.kinds.iter().any(|kind| !kind.is_sought_on_request());
        let comes_along = |sought: &ServerSearch, kind: Kind| {
            is_for_names && !kind.is_sought_on_request() && sought.may_yield(kind)
        };
        let may_come = |kind: &Kind| {
            demand.kinds.contains(kind)
                || comes_of(&partition.difs, *kind)
                || sought
                    .as_ref()
                    .is_some_and(|sought| comes_along(sought, *kind))
        };
        let mut kinds: Vec<Kind> = Kind::DERIVED
            .into_iter()
            .chain(demand.kinds.iter().copied())
            .filter(may_come)
            .collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// Makes the kinds under their leases, and ends the leases: publishes, fails or releases them.
    /// `health` is that of the module's source as it was read.
    async fn build_under_leases(
        &self,
        held: &[HeldLease],
        open_difs: &mut OpenDifs,
        health: KnownItem,
    ) -> Result<LeasesEnd, Error> {
        match self.make_in_time(held, open_difs, health).await {
            Ok(made) => {
                let ended = held
                    .iter()
                    .zip(made)
                    .map(|(lease, made)| async move { (lease, self.finish(lease, made).await) });
                let (mut later, mut failed) = (None, None);
                for (lease, ended) in join_all(ended).await {
                    match ended {
                        Ok(at) => later = later.max(at),
                        Err(error) => {
                            // A kind that cannot be published does not affect the others.
                            self.release_after_error(std::slice::from_ref(lease)).await;
                            failed = Some(error);
                        }
                    }
                }
                failed.map_or(Ok(LeasesEnd::Ended { later }), |error| Err(error.into()))
            }
            Err(NotMade::Fault(error)) => {
                self.release_after_error(held).await;
                Err(error.into())
            }
            Err(NotMade::Doubtful { blob }) => {
                self.release_after_error(held).await;
                Err(Error::Doubtful { blob })
            }
            Err(NotMade::Interrupted) => {
                let later = self.release_after_work(held).await?;
                Ok(LeasesEnd::Ended { later })
            }
            Err(NotMade::NotAdmitted(refused)) => {
                // Several builds saw the same permit. The entry does not back off: the message
                // returns at growing intervals.
                self.release_untried(held).await;
                Ok(LeasesEnd::NotAdmitted(refused))
            }
        }
    }

    /// Makes the kinds, and extends their leases meanwhile. Ends when the time of the invocation
    /// does, even if an extension waits for the store.
    async fn make_in_time(
        &self,
        held: &[HeldLease],
        open_difs: &mut OpenDifs,
        health: KnownItem,
    ) -> Result<Vec<Made>, NotMade> {
        let began = self.invocation.elapsed();
        let deriving = DerivingTime::default();
        let making = Making {
            build: *self,
            open_difs,
            deriving: &deriving,
            health,
        };
        let mut made = Box::pin(making.make(held));
        let left = self.invocation.time_left().saturating_sub(RESERVE);
        tokio::select! {
            biased;
            made = &mut made => return made,
            () = tokio::time::sleep(left) => {}
            never = self.keep_extending(held) => match never {},
        }
        drop(made);
        let has_copies =
            self.module.sought().is_some() && !self.builder.settings.dif_max_unused.is_zero();
        let unfinished = Unfinished {
            derived: deriving.spent(self.invocation.elapsed()),
            // While the units of a file arrive, its parser waits for them.
            is_fetching: open_difs.are_arriving() || !deriving.is_running(),
            has_copies,
        };
        out_of_time(self.invocation, held, began, unfinished)
    }
}

/// How a build under leases ended.
enum LeasesEnd {
    /// It may be worth building again at `later`.
    Ended { later: Option<Timestamp> },
    /// The source may not be called now.
    NotAdmitted(NotAdmitted),
}

/// The leases of one build.
enum Leases {
    /// This build holds these; it may be worth building again at `later`.
    Ours {
        held: Vec<HeldLease>,
        later: Option<Timestamp>,
    },
    /// Another builder builds the module; this is the outcome here.
    OtherBuilder(Outcome),
}

/// Returns whether to build an entry. A requested kind is due if its build request is pending.
/// Another kind is due if a reader would request it now.
fn is_due(
    entry: Option<&Entry>,
    is_requested: bool,
    capabilities: &Capabilities,
    now: Timestamp,
) -> bool {
    match entry {
        Some(entry) if is_requested => entry.build_request().is_some(),
        _ => !is_requested && decide(entry, capabilities, now) == Decision::Build,
    }
}

/// Returns whether an entry is still due now that this build holds its lease. Another builder may
/// have built it after it was read.
fn is_still_due(
    leased: &Entry,
    is_requested: bool,
    capabilities: &Capabilities,
    now: Timestamp,
) -> bool {
    if is_requested {
        return leased.build_request().is_some();
    }
    // The entry is being built, by this build.
    matches!(
        decide(Some(leased), capabilities, now),
        Decision::Build | Decision::Wait { .. }
    )
}
