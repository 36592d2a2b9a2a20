//! Publishing: how a successful build changes its entry.

use std::time::Duration;

use crate::cache::{Entry, Lease, Placeholder, Policy, Probes, Ready};
use crate::domain::{Candidate, DifRef, Missing, Quality, Timestamp};

/// The result of a publish.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Published {
    /// The state was stored, or an equally good state of a newer converter was kept.
    Settled,
    /// The state was not stored: it is worse than the ready state, whose DIF still exists.
    Worse,
}

pub(super) fn publish(next: &mut Entry, built: &Ready, seen: &Seen, now: Timestamp) -> Published {
    if next.ready.is_none() {
        // A revocation may have left only a state of a lower version. Compare with that one.
        next.ready = next.older.take();
    }
    let Some(present) = &next.ready else {
        next.ready = Some(built.clone());
        next.last_used_at = now;
        return Published::Settled;
    };
    let worse = built.rank > present.rank;
    let better_is_gone = !present
        .made_from
        .iter()
        .all(|dif| seen.considered.contains(dif));
    if built.version < present.version {
        // An older build, during a canary or after a rollback. Other older builds read its state;
        // it must not replace the newer one.
        next.older = Some(built.clone());
    } else if worse && (built.version == present.version || !better_is_gone) {
        return Published::Worse;
    } else if built.version > present.version {
        next.older = next.ready.replace(built.clone());
    } else if is_disputed(next, present) || !is_older_work(built, present) {
        next.ready = Some(built.clone());
    }
    Published::Settled
}

/// Returns whether readers cannot read a state although its blob is intact, and it is built again
/// for that reason.
fn is_disputed(entry: &Entry, state: &Ready) -> bool {
    let suspect = entry.suspect.as_ref();
    suspect.is_some_and(|suspect| suspect.disputed.is_some() && suspect.blob == state.blob.path)
}

/// Returns the reason that is stored if the new state is worse than the ready one.
pub(super) fn nothing_as_good() -> Missing {
    Missing::malformed("the usable files yield a worse cache than the one that is ready")
}

/// Returns whether the last build considered a DIF and would give the same result again.
///
/// A failure does not count if the DIF was absent then, or if another converter failed.
pub(super) fn has_considered(entry: &Entry, dif: &DifRef, policy: &Policy) -> bool {
    let would_fail_again = |placeholder: &Placeholder| {
        placeholder.missing.cause.belongs_to_the_converter()
            && placeholder.converter == policy.numbers.converter
    };
    let is_answered = entry.ready.is_some() || entry.missing.as_ref().is_some_and(would_fail_again);
    is_answered && entry.considered.contains(dif)
}

/// Updates when to probe for a better DIF, or for a missing auxiliary file. The interval grows each
/// time a probe finds nothing.
pub(super) fn note_probe(before: &Entry, next: &mut Entry, seen: &Seen, now: Timestamp) {
    let announces = next.module.source.is_uploads();
    // Uploads announce new files. A companion of an upload may be on a symbol server, which does
    // not.
    let is_lesser = |ready: &Ready| ready.quality == Quality::Fallback && !announces;
    let may_improve = |ready: &&Ready| is_lesser(ready) || seen.lacks_companion;
    next.probes = next.ready.as_ref().filter(may_improve).map(|ready| {
        let is_the_same = |former: &Ready| former.made_from == ready.made_from;
        let in_vain = before.ready.as_ref().is_some_and(is_the_same);
        let former = before.probes.filter(|_| in_vain);
        Probes {
            at: now,
            fruitless: former.map_or(0, |former| former.fruitless + 1),
        }
    });
}

/// Returns whether an older converter made a state of the same rank as one of a newer converter, as
/// happens during a canary or after a rollback.
pub(super) fn is_older_work(built: &Ready, present: &Ready) -> bool {
    built.converter < present.converter && built.rank == present.rank
}

/// Updates the fields that every completed build resets, whatever its result.
pub(super) fn finish(before: &Entry, next: &mut Entry, seen: &Seen, policy: &Policy) {
    let converter = policy.numbers.converter;
    next.left_by = leaves_files(before, seen, policy).then_some(converter);
    next.lease = None;
    next.attempts = 0;
    next.releases = 0;
    next.not_before = None;
    next.considered.clone_from(&seen.considered);
    next.candidates = seen
        .candidates
        .iter()
        .take(Seen::MAX_CANDIDATES)
        .cloned()
        .collect();
    // The builder checks the suspect blob of its entry before it builds.
    next.suspect = None;
}

/// Returns whether the build leaves DIFs to newer ones: DIFs that it could not read, or that no
/// newer build has considered beside the state that a newer build made, or all, because it replaced
/// a disputed state of a newer build.
fn leaves_files(before: &Entry, seen: &Seen, policy: &Policy) -> bool {
    let numbers = &policy.numbers;
    let mine = (numbers.version(before.kind), numbers.converter);
    let ready = before.ready.as_ref();
    let is_newer = ready.is_some_and(|ready| (ready.version, ready.converter) > mine);
    let is_new = |dif: &DifRef| !before.considered.contains(dif);
    let has_new = || before.left_by.is_some() || seen.considered.iter().any(is_new);
    let is_disputed = || ready.is_some_and(|ready| is_disputed(before, ready));
    seen.has_unread || is_newer && (has_new() || is_disputed())
}

/// Removes the build request, unless a DIF arrived that this build cannot have seen.
pub(super) fn settle_request(next: &mut Entry, lease: &Lease) {
    if next.dirty == lease.dirty {
        next.build_request = None;
    }
}

/// The DIFs that a build evaluated, and the results.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seen {
    /// Every DIF that the build ranked.
    pub considered: Vec<DifRef>,
    /// Whether there were DIFs whose items the build could not read.
    pub has_unread: bool,
    /// Every candidate that the build tried, with its result. The entry keeps the first
    /// [`Seen::MAX_CANDIDATES`].
    pub candidates: Vec<Candidate>,
    /// The delay before the next attempt, if the source sets it: its `Retry-After`, or the longer
    /// delay for misses of public servers. Otherwise the cause determines the delay.
    pub retry_after: Option<Duration>,
    /// Whether no symbol server has a file that would complete what was published.
    pub lacks_companion: bool,
    /// Why nothing better was published: the failure of a better DIF or of a newer version.
    pub better_failed: Option<Missing>,
}

impl Seen {
    /// The number of candidates that an entry keeps.
    pub const MAX_CANDIDATES: usize = 32;
}
