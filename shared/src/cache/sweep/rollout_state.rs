//! Which entries are outdated, and which of these are rebuilt.

use crate::cache::change::retires_at;
use crate::cache::{Entry, Kind, Policy, Ready, ReleaseNumbers};
use crate::domain::{Cause, Timestamp};

/// An entry's state in the rollout of the current converter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolloutState {
    /// It was made by this version and converter, or newer ones.
    Current,
    /// It is outdated: this release would make a newer one.
    Behind,
    /// It is outdated, but the DIF that it was made from no longer exists.
    DifGone,
    /// It has no ready state, or no current one, for this reason.
    Failed(Cause),
    /// It has no result yet: its build is requested or in progress.
    Unbuilt,
}

/// Returns an entry's state in the rollout of a release.
pub fn rollout_state(entry: &Entry, numbers: &ReleaseNumbers, now: Timestamp) -> RolloutState {
    match (&entry.ready, &entry.missing) {
        // An older release deferred files to this one.
        (Some(_), _) if entry.defers_files_to(numbers.converter) => RolloutState::Behind,
        // Readers use the state that is ready, so no reader would request the build again.
        (Some(_), _) if entry.has_lost_request(now) => RolloutState::Behind,
        (Some(ready), _) if is_current(ready, entry.kind, numbers) => RolloutState::Current,
        (Some(_), Some(failed)) if failed.converter >= numbers.converter => {
            let cause = failed.missing.cause;
            let is_gone = cause == Cause::NotFound;
            // For uploads, `retry_at` does not matter: a new upload removes the placeholder.
            if is_gone && entry.module.source.is_uploads() {
                RolloutState::DifGone
            } else if failed.retry_at <= now {
                RolloutState::Behind
            } else if is_gone {
                RolloutState::DifGone
            } else {
                RolloutState::Failed(cause)
            }
        }
        (Some(_), _) => RolloutState::Behind,
        (None, Some(failed)) => RolloutState::Failed(failed.missing.cause),
        (None, None) => RolloutState::Unbuilt,
    }
}

fn is_current(ready: &Ready, kind: Kind, numbers: &ReleaseNumbers) -> bool {
    if kind.is_opaque() {
        // No converter made it. A newer transcoder is used only when a client requests the cache.
        return true;
    }
    let (made, current) = (
        (ready.version, ready.converter),
        (numbers.version(kind), numbers.converter),
    );
    made >= current
}

/// Returns whether the pruner requests a build of an entry: the entry is outdated, a reader would
/// use the result, and no build is pending or in progress.
///
/// Entries of sources that a request defined are not rebuilt.
pub fn wants_refresh(entry: &Entry, now: Timestamp, policy: &Policy) -> bool {
    rollout_state(entry, &policy.numbers, now) == RolloutState::Behind
        && !entry.module.source.is_defined()
        && retires_at(entry, policy) > now
        && entry.live_lease(now).is_none()
        && entry.live_request(now).is_none()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cache::change::examples::{
        BEGIN, after, dif, entry, entry_of_a_symbol_server, take, then, token,
    };
    use crate::cache::sweep::examples::{NUMBERS, failed, ready};
    use crate::cache::{Change, Converter};

    fn left(entry: Entry, by: Converter) -> Entry {
        let deferred_by = Some(by);
        Entry {
            deferred_by,
            ..entry
        }
    }

    #[test]
    fn an_entry_is_outdated_if_this_release_would_make_it_differently() {
        let (older, newer) = (Converter(0), Converter(Converter::CURRENT.0 + 1));
        let behind = || ready(|ready| ready.converter = older);
        let current = Converter::CURRENT;
        let now = BEGIN;
        let table = [
            ("current", ready(|_| {}), RolloutState::Current),
            (
                "of a newer converter",
                ready(|ready| ready.converter = newer),
                RolloutState::Current,
            ),
            (
                "of a newer version",
                ready(|ready| ready.version += 1),
                RolloutState::Current,
            ),
            ("of an older converter", behind(), RolloutState::Behind),
            (
                "of a lower version",
                ready(|ready| ready.version -= 1),
                RolloutState::Behind,
            ),
            (
                "behind, failed before",
                failed(behind(), Cause::Malformed, older),
                RolloutState::Behind,
            ),
            (
                "behind, failed now",
                failed(behind(), Cause::Malformed, current),
                RolloutState::Failed(Cause::Malformed),
            ),
            (
                "behind, its DIF gone",
                failed(behind(), Cause::NotFound, current),
                RolloutState::DifGone,
            ),
            (
                "nothing, failed",
                failed(entry(), Cause::Crashed, current),
                RolloutState::Failed(Cause::Crashed),
            ),
            (
                "current, failed before",
                failed(ready(|_| {}), Cause::Timeout, older),
                RolloutState::Current,
            ),
            (
                "current, files left by an older release",
                left(ready(|_| {}), older),
                RolloutState::Behind,
            ),
            (
                "current, files left by this release",
                left(ready(|_| {}), current),
                RolloutState::Current,
            ),
            ("new", entry(), RolloutState::Unbuilt),
            (
                "new, of a silent source",
                entry_of_a_symbol_server(),
                RolloutState::Unbuilt,
            ),
        ];
        for (what, entry, expected) in table {
            assert_eq!(rollout_state(&entry, &NUMBERS, now), expected, "{what}");
        }
        // A failed build is retried after its retry time.
        let later = now.plus(Duration::from_secs(48 * 3600));
        assert_eq!(
            rollout_state(
                &failed(behind(), Cause::Malformed, current),
                &NUMBERS,
                later
            ),
            RolloutState::Behind
        );
    }

    /// Finding S17 in `docs/protocol.md`.
    #[test]
    fn an_entry_whose_build_request_was_lost_is_behind() {
        let policy = Policy::default();
        let invalidate = Change::Invalidate {
            dif: dif("b"),
            mark: token(7),
        };
        let requested = then(&ready(|_| {}), &invalidate, 10);
        let lost = 10 + 6 * 3600;
        for (seconds, expected) in [
            (lost - 1, RolloutState::Current),
            (lost, RolloutState::Behind),
        ] {
            let now = after(seconds);
            assert_eq!(
                rollout_state(&requested, &NUMBERS, now),
                expected,
                "{seconds}"
            );
            let is_behind = expected == RolloutState::Behind;
            assert_eq!(wants_refresh(&requested, now, &policy), is_behind);
        }
        let leased = then(&requested, &take(2), lost);
        let held = rollout_state(&leased, &NUMBERS, after(lost));
        assert_eq!(held, RolloutState::Current);
    }

    #[test]
    fn only_entries_that_a_reader_would_use_are_refreshed() {
        let policy = Policy::default();
        let behind = ready(|ready| ready.converter = Converter(0));
        assert!(wants_refresh(&behind, BEGIN, &policy));
        assert!(!wants_refresh(&ready(|_| {}), BEGIN, &policy));
        let unused = BEGIN.plus(policy.derived_max_unused + Duration::from_secs(3600));
        assert!(!wants_refresh(&behind, unused, &policy));
        assert!(!wants_refresh(&then(&behind, &take(2), 0), BEGIN, &policy));
    }
}
