//! The build of one kind: the DIFs to try, and the results of those that were tried.

use std::time::Duration;

use super::companions::FoundCompanions;
use super::lease::HeldLease;
use super::made::{Made, MadeOutcome};
use super::open_difs::LeftOutCompanions;
use super::partition::comes_of;
use super::search::Search;
use crate::cache::{Capabilities, Dif, Entry, Kind, Ready, Seen};
use crate::domain::{Candidate, Cause, DifRef, Missing, Quality, Rank};
use crate::flows::Settings;
use crate::flows::ranking::{self, Ranked};

/// The build of one kind: what is left to try, and the result so far.
pub(super) struct KindBuild<'a> {
    /// The lease of the kind.
    pub(super) lease: &'a HeldLease,
    left: std::vec::IntoIter<Ranked>,
    outcome: Option<Ready>,
    failure: Option<Missing>,
    /// Why the companions of the DIF that was tried last were left out, if that may change.
    left_out: Option<LeftOutCompanions>,
    /// Why the ready state, which readers cannot read, is not built again.
    given_up: Option<Missing>,
    /// The version and the rank that the first failed DIF would have had.
    failed_at: Option<(u32, Rank)>,
    candidates: Vec<Candidate>,
    /// The DIFs that were tried, in order.
    tried: Vec<DifRef>,
    /// The DIFs that did not exist. They do not count as considered, so that they are tried if they
    /// return.
    absent: Vec<DifRef>,
    /// Whether the event of a replaced DIF has yet to be processed. Without an outcome, the kind is
    /// then built later.
    awaits_event: bool,
    /// The version that this release makes.
    made_version: Option<u32>,
}

/// The files of a module that a build found.
#[derive(Clone, Copy)]
pub(super) struct FoundFiles<'a> {
    pub(super) difs: &'a [Dif],
    pub(super) companions: &'a FoundCompanions,
}

/// What to make from a DIF.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    /// The lease of the kind.
    pub(super) lease: &'a HeldLease,
    /// The version to make.
    pub(super) version: u32,
}

impl<'a> KindBuild<'a> {
    /// Ranks the DIFs for a kind. If the ready state was made from the best one, nothing is left to
    /// do.
    pub(super) fn begin(
        lease: &'a HeldLease,
        entry: Option<&Entry>,
        files: FoundFiles<'_>,
        settings: &Settings,
    ) -> Self {
        let capabilities = settings.capabilities();
        let ranked = ranking::rank(files.difs, lease.kind, &capabilities);
        let (left, failure) = match ranked {
            Ok(ranked) => (ranked, None),
            Err(missing) => (Vec::new(), Some(missing)),
        };
        let best = left.first();
        let made = entry
            .filter(|entry| entry.suspect().is_none())
            .and_then(Entry::ready)
            .filter(|ready| {
                best.is_some_and(|best| {
                    is_what_would_be_made(ready, &capabilities, lease.kind, best, files.companions)
                })
            })
            .cloned();
        let mut kind_build = Self {
            lease,
            left: left.into_iter(),
            outcome: None,
            failure,
            left_out: None,
            given_up: None,
            failed_at: None,
            candidates: Vec::new(),
            tried: Vec::new(),
            absent: Vec::new(),
            awaits_event: false,
            made_version: capabilities.made_version(lease.kind),
        };
        if let (Some(made), Some(dif)) = (made, kind_build.next_dif().cloned()) {
            kind_build.record_result(&dif, Ok(made), None);
        }
        kind_build
    }

    /// Gives up the state that readers cannot read, for this reason: nothing is derived again from
    /// the files that it was made from. Only files that came since the last build are tried, if
    /// they would serve at least as well.
    pub(super) fn give_up(
        &mut self,
        missing: Missing,
        entry: Option<&Entry>,
        companions: &FoundCompanions,
    ) {
        let suspect = entry.and_then(Entry::suspect);
        let mut states = entry.into_iter().flat_map(Entry::states);
        let state = states.find(|state| suspect.is_some_and(|it| it.blob == state.blob.path));
        let made_from = state.map_or(&[][..], |state| &state.made_from);
        let considered = entry.map_or(&[][..], Entry::considered);
        let is_new = |dif: &Dif| !considered.contains(&dif.file) && !made_from.contains(&dif.file);
        let kind = self.lease.kind;
        let has_new = |ranked: &Ranked| {
            let companions = companions.completing(&ranked.dif.file, kind);
            std::iter::once(&ranked.dif).chain(companions).any(is_new)
        };
        let mut left: Vec<Ranked> = self.left.by_ref().collect();
        let is_it = |ranked: &Ranked| made_from.first() == Some(&ranked.dif.file);
        if let Some(at) = left.iter().position(is_it) {
            left.truncate(at + 1);
        }
        left.retain(has_new);
        self.left = left.into_iter();
        self.failure = None;
        self.given_up = Some(missing);
    }

    /// Records that the event of this DIF has yet to be processed, if it is the next one to try.
    pub(super) fn note_awaited_event(&mut self, dif: &Dif) {
        self.awaits_event |= self.next_dif().is_some_and(|next| next.file == dif.file);
    }

    /// Returns the DIF to try next; `None` if there is an outcome or no DIF is left.
    pub(super) fn next_dif(&self) -> Option<&Dif> {
        self.next().map(|ranked| &ranked.dif)
    }

    /// Returns what to make from a DIF, if it is the one to try next.
    pub(super) fn target(&self, dif: &Dif) -> Option<Target<'a>> {
        let next = self.next().filter(|next| next.dif.file == dif.file)?;
        Some(Target {
            lease: self.lease,
            version: next.version,
        })
    }

    fn next(&self) -> Option<&Ranked> {
        let next = self.left.as_slice().first();
        next.filter(|_| self.outcome.is_none())
    }

    /// Records the result of the DIF that was tried, and how long fetching it took.
    pub(super) fn record_result(
        &mut self,
        dif: &Dif,
        result: Result<Ready, Missing>,
        took: Option<Duration>,
    ) {
        let tried = self.left.next();
        self.tried.push(dif.file.clone());
        self.candidates
            .push(ranking::candidate(dif, result.as_ref().err(), took));
        if matches!(&result, Err(missing) if missing.cause == Cause::NotFound) {
            self.absent.push(dif.file.clone());
        }
        match result {
            Ok(ready) => self.outcome = Some(ready),
            // The failure of the best DIF matters more than that of a lesser one.
            Err(missing) => {
                let at = tried.map(|ranked| (ranked.version, ranked.rank));
                self.failed_at = self.failed_at.or(at);
                self.failure = self.failure.take().or(Some(missing));
            }
        }
    }

    /// Records why the companions of the DIF that was tried last were left out, if they were and
    /// the kind is completed by them, and which of them no longer exist.
    pub(super) fn leave_out(&mut self, why: Option<&LeftOutCompanions>, absent: &[DifRef]) {
        self.left_out = why.filter(|_| self.lease.kind.is_completed()).cloned();
        self.absent.extend_from_slice(absent);
    }

    /// Returns whether companions are lacking that the next probe may find.
    fn lacks_companion(&self, search: &Search) -> bool {
        let is_for_next_probe = matches!(self.left_out, Some(LeftOutCompanions::UntilNextProbe));
        self.lease.kind.is_completed() && (search.lacks_companion() || is_for_next_probe)
    }

    /// Returns the result of the kind. `has_unread` says whether there are DIFs whose items this
    /// release cannot read.
    pub(super) fn end(mut self, files: FoundFiles<'_>, search: &Search, has_unread: bool) -> Made {
        let kind = self.lease.kind;
        let considered = self.considered(files);
        let has_file = comes_of(files.difs, kind);
        let is_absent = |missing: &Missing| missing.cause == Cause::NotFound;
        let failure = match search.failures.of(kind) {
            // A file that cannot serve the kind may be the better reason: a PDB of another format.
            Some(missing) if !has_file && self.failure.as_ref().is_none_or(is_absent) => {
                Some(missing.clone())
            }
            _ => self.failure.take(),
        };
        let better_failed = self.better_failed(failure.as_ref());
        let better_failed = better_failed.or_else(|| self.better_is_delayed(search));
        let lacks_companion = self.lacks_companion(search);
        let untried = self.left.map(|ranked| ranked.dif);
        let unused = untried.chain(ranking::unsupported(files.difs, kind).cloned());
        let unused = unused.map(|dif| ranking::candidate(&dif, dif.over_limit.as_ref(), None));
        self.candidates.extend(unused);
        self.candidates.extend(search.tried.iter().cloned());
        Made {
            outcome: match (self.outcome, &search.refused) {
                (Some(ready), _) => MadeOutcome::Ready(Box::new(ready)),
                (None, _) if self.awaits_event => MadeOutcome::AwaitsEvent,
                (None, Some(refused)) if !has_file => MadeOutcome::NotAdmitted(refused.clone()),
                (None, _) => {
                    let missing = failure.or(self.given_up);
                    MadeOutcome::Missing(missing.unwrap_or_else(Missing::not_found))
                }
            },
            seen: Seen {
                better_failed,
                considered,
                has_unread,
                candidates: self.candidates,
                retry_after: search.retry_after,
                lacks_companion,
                has_unasked: search.has_unasked,
            },
        }
    }

    /// Returns the files that need not be tried again until they change: the tried ones first, and
    /// the ranked ones before companions, because the rank of a state is that of its main file.
    fn considered(&self, files: FoundFiles<'_>) -> Vec<DifRef> {
        let mut considered = self.tried.clone();
        let left = self.left.as_slice().iter();
        considered.extend(left.map(|ranked| ranked.dif.file.clone()));
        considered.extend(files.companions.all(self.lease.kind).cloned());
        for dif in files.difs {
            if !considered.contains(&dif.file) {
                considered.push(dif.file.clone());
            }
        }
        // A record has room for this many. A DIF beyond them is tried again after its next event.
        considered.truncate(ranking::MAX_RANKED);
        considered.retain(|dif| !self.absent.contains(dif));
        considered
    }

    /// Returns why a location was not read where a better file than that of the outcome may be, if
    /// the reason may be over soon: the next probe would be an hour later.
    fn better_is_delayed(&self, search: &Search) -> Option<Missing> {
        let ready = self.outcome.as_ref()?;
        let failed = search.failures.of(self.lease.kind)?;
        let is_delayed = ready.quality == Quality::Fallback && failed.cause.is_of_a_moment();
        is_delayed.then(|| failed.clone())
    }

    /// Returns why there is nothing better than the outcome, if something might be. `failure` is
    /// that of the best DIF.
    fn better_failed(&self, failure: Option<&Missing>) -> Option<Missing> {
        let ready = self.outcome.as_ref()?;
        if self.made_version.is_some_and(|made| ready.version < made) {
            // There is no DIF to make the current version from.
            return failure.cloned().or_else(|| Some(Missing::not_found()));
        }
        // Report the failure only of a DIF that would have served better.
        let is_lesser = self
            .failed_at
            .is_some_and(|(version, rank)| ready.version < version || rank < ready.rank);
        let failure = failure.filter(|_| is_lesser).cloned();
        failure.or_else(|| match &self.left_out {
            Some(LeftOutCompanions::Crashed(missing)) => Some(missing.clone()),
            Some(LeftOutCompanions::UntilNextProbe) | None => None,
        })
    }
}

/// Returns whether a ready state is what this release would make from the best DIF, byte for byte,
/// or what a newer release made from it.
fn is_what_would_be_made(
    ready: &Ready,
    capabilities: &Capabilities,
    kind: Kind,
    best: &Ranked,
    companions: &FoundCompanions,
) -> bool {
    let companions = companions.completing(&best.dif.file, kind);
    let files = std::iter::once(&best.dif).chain(companions);
    ready.version == best.version
        // The converter does not affect what transcoders make.
        && (kind.is_opaque() || ready.converter >= capabilities.numbers.converter)
        && ready.made_from.iter().eq(files.map(|file| &file.file))
}
