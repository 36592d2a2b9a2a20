//! Publishing: how a successful build changes its entry.

use std::time::Duration;

use crate::cache::{Converter, Entry, Lease, Placeholder, Policy, Probes, Ready};
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
    } else if !is_older_work(built, present) {
        next.ready = Some(built.clone());
    }
    Published::Settled
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
pub(super) fn finish(next: &mut Entry, seen: &Seen) {
    next.lease = None;
    next.attempts = 0;
    next.releases = 0;
    next.not_before = None;
    next.considered.clone_from(&seen.considered);
    next.unread_by = seen.unread_by;
    next.candidates = seen
        .candidates
        .iter()
        .take(Seen::MAX_CANDIDATES)
        .cloned()
        .collect();
    // The builder checks the suspect blob of its entry before it builds.
    next.suspect = None;
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
    /// The converter of the build, if there were DIFs whose items it could not read.
    pub unread_by: Option<Converter>,
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
