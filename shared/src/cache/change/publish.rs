//! Publishing and failing: how a completed build changes its entry.

use std::time::Duration;

use super::refused::Refused;
use super::transition::Transition;
use crate::cache::{Entry, Lease, Policy, Probes, Ready, Token};
use crate::domain::{Candidate, DifRef, Download, Missing, Quality};

/// Whether the state of a build was stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Published {
    /// The state was stored, or an equally good state of a newer converter was kept.
    Settled,
    /// The state was not stored: it is worse than the ready state, whose DIF still exists.
    Worse,
}

impl Transition<'_> {
    /// Publishes a state under the lease that the token names.
    pub(super) fn publish(
        &mut self,
        token: &Token,
        built: &Ready,
        seen: &Seen,
    ) -> Result<(), Refused> {
        let lease = self.own_lease(token)?.clone();
        let is_refused = self.store(built, seen) == Published::Worse;
        self.complete(seen);
        let unmet = seen.better_failed.clone();
        let unmet = unmet.or_else(|| is_refused.then(nothing_as_good));
        self.next.missing =
            unmet.map(|missing| self.placeholder(&missing, seen.retry_after, token));
        self.note_probe(seen);
        self.settle_request(&lease);
        Ok(())
    }

    /// Stores why nothing could be made under the lease that the token names. If the DIFs changed
    /// meanwhile, releases the lease instead.
    pub(super) fn fail(
        &mut self,
        token: &Token,
        missing: &Missing,
        seen: &Seen,
    ) -> Result<(), Refused> {
        let lease = self.own_lease(token)?.clone();
        if self.next.dirty != lease.dirty {
            self.give_up_lease();
            return Ok(());
        }
        self.next.missing = Some(self.placeholder(missing, seen.retry_after, token));
        self.complete(seen);
        self.settle_request(&lease);
        Ok(())
    }

    /// Stores a state, unless the present one is better.
    fn store(&mut self, built: &Ready, seen: &Seen) -> Published {
        let next = &mut self.next;
        if next.ready.is_none() {
            // A revocation may have left only a state of a lower version. Compare with that one.
            next.ready = next.older.take();
        }
        let Some(present) = &next.ready else {
            next.ready = Some(built.clone());
            next.last_used_at = self.now;
            return Published::Settled;
        };
        let worse = built.rank > present.rank;
        // The rank is that of the main file. An entry does not note all companions as considered.
        let main = present.made_from.first();
        let better_is_gone = main.is_some_and(|main| !seen.considered.contains(main));
        if built.version < present.version {
            // An older release, during a canary or after a rollback. Other older releases read its
            // state; it must not replace the newer one.
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

    /// Updates the fields that every completed build resets, whatever its result.
    fn complete(&mut self, seen: &Seen) {
        let defers_files = defers_files(self.before, seen, self.policy);
        let next = &mut self.next;
        next.deferred_by = defers_files.then_some(self.policy.numbers.converter);
        next.lease = None;
        next.attempts = 0;
        next.releases = 0;
        next.not_before = None;
        next.considered.clone_from(&seen.considered);
        next.candidates = seen.kept_candidates().cloned().collect();
        // The builder checks the suspect blob of its entry before it builds.
        next.suspect = None;
    }

    /// Updates when to probe for a better DIF, or for a missing auxiliary file. The interval grows
    /// each time a probe finds nothing.
    fn note_probe(&mut self, seen: &Seen) {
        let (before, next) = (self.before, &mut self.next);
        let announces = next.module.source.is_uploads();
        // Uploads announce new files. A companion of an upload may be on a symbol server, which
        // does not.
        let is_lesser = |ready: &Ready| ready.quality == Quality::Fallback && !announces;
        let may_improve = |ready: &&Ready| is_lesser(ready) || seen.lacks_companion;
        next.probes = next.ready.as_ref().filter(may_improve).map(|ready| {
            let is_the_same = |former: &Ready| former.made_from == ready.made_from;
            let is_unchanged = before.ready.as_ref().is_some_and(is_the_same);
            let former = before.probes.filter(|_| is_unchanged);
            // A server that was not asked may have the file, and may be asked soon.
            let more = u32::from(!seen.has_unasked);
            Probes {
                at: self.now,
                fruitless: former.map_or(0, |former| former.fruitless + more),
            }
        });
    }

    /// Removes the build request, unless a DIF arrived that this build cannot have seen.
    fn settle_request(&mut self, lease: &Lease) {
        if self.next.dirty == lease.dirty {
            self.next.build_request = None;
        }
    }
}

/// Returns whether readers cannot read a state although its blob is intact, and it is built again
/// for that reason.
fn is_disputed(entry: &Entry, state: &Ready) -> bool {
    let suspect = entry.suspect.as_ref();
    suspect.is_some_and(|suspect| suspect.disputed.is_some() && suspect.blob == state.blob.path)
}

/// Returns the reason that is stored if the new state is worse than the ready one.
fn nothing_as_good() -> Missing {
    Missing::malformed("the usable files yield a worse cache than the one that is ready")
}

/// Returns whether an older converter made a state of the same rank as one of a newer converter, as
/// happens during a canary or after a rollback.
fn is_older_work(built: &Ready, present: &Ready) -> bool {
    built.converter < present.converter && built.rank == present.rank
}

/// Returns whether the build defers DIFs to newer releases: DIFs that it could not read, or that no
/// newer release has considered beside the state that a newer release made, or all, because it
/// replaced a disputed state of a newer release.
fn defers_files(before: &Entry, seen: &Seen, policy: &Policy) -> bool {
    let numbers = &policy.numbers;
    let mine = (numbers.version(before.kind), numbers.converter);
    let ready = before.ready.as_ref();
    let is_newer = ready.is_some_and(|ready| (ready.version, ready.converter) > mine);
    let is_new = |dif: &DifRef| !before.considered.contains(dif);
    let has_new = || before.deferred_by.is_some() || seen.considered.iter().any(is_new);
    let is_disputed = || ready.is_some_and(|ready| is_disputed(before, ready));
    seen.has_unread || is_newer && (has_new() || is_disputed())
}

/// The DIFs that a build evaluated, and the results.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seen {
    /// Every DIF that the build ranked.
    pub considered: Vec<DifRef>,
    /// Whether there were DIFs whose items the build could not read.
    pub has_unread: bool,
    /// Every candidate that the build tried, with its result: the files that it used first. The
    /// entry keeps the first [`Seen::MAX_CANDIDATES`], as far as it has room for their texts.
    pub candidates: Vec<Candidate>,
    /// The delay before the next attempt, if the source sets it: its `Retry-After`, or the longer
    /// delay for misses of public servers. Otherwise the cause determines the delay.
    pub retry_after: Option<Duration>,
    /// Whether no symbol server has a file that would complete what was published.
    pub lacks_companion: bool,
    /// Whether there was a symbol server that was not asked: all its permits were in use, or this
    /// instance does not know it. A server that does not respond counts as one without the file.
    pub has_unasked: bool,
    /// Why nothing better was published: the failure of a better DIF or of a newer version.
    pub better_failed: Option<Missing>,
}

impl Seen {
    /// The number of candidates that an entry keeps.
    pub const MAX_CANDIDATES: usize = 32;

    /// The maximum size of the texts of the candidates that an entry keeps, in bytes. Servers
    /// choose some of these texts, and an entry over the 400 KB of an item cannot be stored.
    pub const MAX_CANDIDATE_BYTES: usize = 64 << 10;

    /// Returns the candidates that an entry keeps. One for which there is no room is left out.
    fn kept_candidates(&self) -> impl Iterator<Item = &Candidate> {
        let mut room = Self::MAX_CANDIDATE_BYTES;
        let fits = move |candidate: &&Candidate| {
            let rest = room.checked_sub(text_bytes(candidate));
            room = rest.unwrap_or(room);
            rest.is_some()
        };
        self.candidates
            .iter()
            .filter(fits)
            .take(Self::MAX_CANDIDATES)
    }
}

/// Returns the size of the texts of a candidate, in bytes.
fn text_bytes(candidate: &Candidate) -> usize {
    let details = match &candidate.download {
        Download::NoPerm { details } | Download::Error { details } => details.len(),
        Download::Ok { .. } | Download::Malformed | Download::NotFound => 0,
    };
    let fault = candidate.fault.as_ref().map_or(0, String::len);
    candidate.location.as_str().len() + details + fault
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Cause, Location};

    /// Returns a candidate whose location has this many bytes and begins with this letter.
    fn candidate(letter: &str, bytes: usize, missing: &Missing) -> Candidate {
        let source = serde_json::from_value("a-symbol-server".into()).unwrap();
        Candidate::absent(&source, Location::new(letter.repeat(bytes)), missing)
    }

    fn kept(candidates: Vec<Candidate>) -> String {
        let seen = Seen {
            candidates,
            ..Seen::default()
        };
        let kept = seen.kept_candidates();
        kept.map(|candidate| &candidate.location.as_str()[..1])
            .collect()
    }

    #[test]
    fn an_entry_has_room_for_32_candidates_of_usual_size() {
        let failed = Missing::new(Cause::DownloadFailed, "x".repeat(1000));
        let usual = vec![candidate("a", 1000, &failed); 40];
        assert_eq!(kept(usual), "a".repeat(32));
    }

    #[test]
    fn an_entry_leaves_out_candidates_for_whose_texts_it_has_no_room() {
        let absent = Missing::not_found();
        let long = vec![candidate("a", 15_000, &absent); 40];
        assert_eq!(kept(long), "aaaa");
        // A later candidate may still fit.
        let mixed = vec![
            candidate("a", 10, &absent),
            candidate("b", 100_000, &absent),
            candidate("c", 10, &absent),
        ];
        assert_eq!(kept(mixed), "ac");
        let mut faulty = candidate("a", 10, &absent);
        faulty.fault = Some("x".repeat(100_000));
        assert_eq!(kept(vec![faulty, candidate("c", 10, &absent)]), "c");
    }
}
