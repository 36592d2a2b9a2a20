//! Which entries are outdated, and which of these are rebuilt.

use crate::cache::change::retires_at;
use crate::cache::{BuildNumbers, Entry, Kind, Policy, Ready};
use crate::domain::{Cause, Timestamp};

/// An entry's state in the rollout of the current converter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It was made by this version and converter, or newer ones.
    Current,
    /// It is outdated: this build would make a newer one.
    Behind,
    /// It is outdated, but the DIF that it was made from no longer exists.
    DifGone,
    /// It has no ready state, or no current one, for this reason.
    Failed(Cause),
    /// It has no result yet: its build is requested or in progress.
    Unbuilt,
}

/// Returns an entry's state in the rollout of a build of the code.
pub fn standing(entry: &Entry, numbers: &BuildNumbers, now: Timestamp) -> Standing {
    match (&entry.ready, &entry.missing) {
        // An older build left files to this one.
        (Some(_), _) if entry.leaves_files_to(numbers.converter) => Standing::Behind,
        // Readers use the state that is ready, so no reader would request the build again.
        (Some(_), _) if entry.has_lost_request(now) => Standing::Behind,
        (Some(ready), _) if is_current(ready, entry.kind, numbers) => Standing::Current,
        (Some(_), Some(failed)) if failed.converter >= numbers.converter => {
            let cause = failed.missing.cause;
            let is_gone = cause == Cause::NotFound;
            // For uploads, `retry_at` does not matter: a new upload removes the placeholder.
            if is_gone && entry.module.source.is_uploads() {
                Standing::DifGone
            } else if failed.retry_at <= now {
                Standing::Behind
            } else if is_gone {
                Standing::DifGone
            } else {
                Standing::Failed(cause)
            }
        }
        (Some(_), _) => Standing::Behind,
        (None, Some(failed)) => Standing::Failed(failed.missing.cause),
        (None, None) => Standing::Unbuilt,
    }
}

fn is_current(ready: &Ready, kind: Kind, numbers: &BuildNumbers) -> bool {
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
    standing(entry, &policy.numbers, now) == Standing::Behind
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
        let left_by = Some(by);
        Entry { left_by, ..entry }
    }

    #[test]
    fn an_entry_is_outdated_if_this_build_would_make_it_differently() {
        let (older, newer) = (Converter(0), Converter(Converter::CURRENT.0 + 1));
        let behind = || ready(|ready| ready.converter = older);
        let current = Converter::CURRENT;
        let now = BEGIN;
        let table = [
            ("current", ready(|_| {}), Standing::Current),
            (
                "of a newer converter",
                ready(|ready| ready.converter = newer),
                Standing::Current,
            ),
            (
                "of a newer version",
                ready(|ready| ready.version += 1),
                Standing::Current,
            ),
            ("of an older converter", behind(), Standing::Behind),
            (
                "of a lower version",
                ready(|ready| ready.version -= 1),
                Standing::Behind,
            ),
            (
                "behind, failed before",
                failed(behind(), Cause::Malformed, older),
                Standing::Behind,
            ),
            (
                "behind, failed now",
                failed(behind(), Cause::Malformed, current),
                Standing::Failed(Cause::Malformed),
            ),
            (
                "behind, its DIF gone",
                failed(behind(), Cause::NotFound, current),
                Standing::DifGone,
            ),
            (
                "nothing, failed",
                failed(entry(), Cause::Crashed, current),
                Standing::Failed(Cause::Crashed),
            ),
            (
                "current, failed before",
                failed(ready(|_| {}), Cause::Timeout, older),
                Standing::Current,
            ),
            (
                "current, files left by an older build",
                left(ready(|_| {}), older),
                Standing::Behind,
            ),
            (
                "current, files left by this build",
                left(ready(|_| {}), current),
                Standing::Current,
            ),
            ("new", entry(), Standing::Unbuilt),
            (
                "new, of a silent source",
                entry_of_a_symbol_server(),
                Standing::Unbuilt,
            ),
        ];
        for (what, entry, expected) in table {
            assert_eq!(standing(&entry, &NUMBERS, now), expected, "{what}");
        }
        // A failed build is retried after its retry time.
        let later = now.plus(Duration::from_secs(48 * 3600));
        assert_eq!(
            standing(
                &failed(behind(), Cause::Malformed, current),
                &NUMBERS,
                later
            ),
            Standing::Behind
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
        for (seconds, expected) in [(lost - 1, Standing::Current), (lost, Standing::Behind)] {
            let now = after(seconds);
            assert_eq!(standing(&requested, &NUMBERS, now), expected, "{seconds}");
            let is_behind = expected == Standing::Behind;
            assert_eq!(wants_refresh(&requested, now, &policy), is_behind);
        }
        let leased = then(&requested, &take(2), lost);
        let held = standing(&leased, &NUMBERS, after(lost));
        assert_eq!(held, Standing::Current);
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
