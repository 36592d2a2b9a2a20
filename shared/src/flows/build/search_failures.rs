//! Why the search of a symbol server found no file for a kind.

use std::time::Duration;

use crate::cache::Kind;
use crate::domain::{FileType, Location, Missing};
use crate::ports::Concerns;

/// A location that was requested.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestedLocation<'a> {
    pub(super) location: &'a Location,
    /// The type of the file that was sought there; `None` if any file of the module might be found.
    pub(super) file_type: Option<FileType>,
    /// How long the request took.
    pub(super) took: Duration,
}

/// The failures of a search, each with a reason that is more specific than "not found".
#[derive(Debug, Default)]
pub(super) struct SearchFailures(Vec<SearchFailure>);

#[derive(Debug)]
struct SearchFailure {
    missing: Missing,
    concerns: Concerns,
    /// The type of the files that were not found for this reason; `None` if it concerns all files.
    file_type: Option<FileType>,
}

impl SearchFailures {
    /// Returns the failure of a search that found no file at all for this reason.
    pub(super) fn of_all_files(missing: Missing) -> Self {
        let mut failures = Self::default();
        failures.add(missing, Concerns::Location, None);
        failures
    }

    /// Adds the reason why no file of a type was found, or no file at all (`None`).
    pub(super) fn add(
        &mut self,
        missing: Missing,
        concerns: Concerns,
        file_type: Option<FileType>,
    ) {
        self.0.push(SearchFailure {
            missing,
            concerns,
            file_type,
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns why no file was found that a kind can be made from; `None` if there was none where
    /// one was sought.
    ///
    /// A failure that may be over soon outweighs one that would be the same in an hour: the file
    /// may be where it occurred.
    pub(super) fn of(&self, kind: Kind) -> Option<&Missing> {
        let may_have_it = |failure: &&SearchFailure| {
            failure
                .file_type
                .is_none_or(|file_type| kind.comes_of(file_type))
        };
        let failures = self.0.iter().filter(may_have_it);
        let decisive = failures.reduce(|known, failure| {
            if failure.outweighs(known) {
                failure
            } else {
                known
            }
        });
        decisive.map(|failure| &failure.missing)
    }
}

impl SearchFailure {
    fn outweighs(&self, known: &Self) -> bool {
        let is_short = self.missing.cause.is_of_a_moment();
        let is_the_servers = is_short && self.concerns == Concerns::Server;
        is_the_servers || is_short && !known.missing.cause.is_of_a_moment()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Cause;

    #[test]
    fn a_failure_concerns_the_kinds_that_come_of_the_sought_files() {
        let mut failures = SearchFailures::default();
        assert!(failures.is_empty());
        let refused = Missing::new(Cause::PermissionDenied, "403");
        let bundle = Some(FileType::SourceBundle);
        failures.add(refused.clone(), Concerns::Location, bundle);
        let malformed = Missing::malformed("another module");
        let debug = Some(FileType::ElfDebug);
        failures.add(malformed.clone(), Concerns::Location, debug);
        assert_eq!(failures.of(Kind::SourceCode), Some(&refused));
        assert_eq!(failures.of(Kind::SymCache), Some(&malformed));
        assert_eq!(failures.of(Kind::PpdbCache), None);
        let unknown = SearchFailures::of_all_files(refused.clone());
        assert_eq!(unknown.of(Kind::PpdbCache), Some(&refused));
    }

    #[test]
    fn the_first_failure_that_may_be_over_soon_is_decisive_unless_the_server_fails_later() {
        let mut failures = SearchFailures::default();
        let debug = Some(FileType::ElfDebug);
        let mut decisive_after = |cause, detail: &str, concerns, file_type| {
            failures.add(Missing::new(cause, detail), concerns, file_type);
            failures.of(Kind::SymCache).unwrap().detail.clone()
        };
        let location = Concerns::Location;
        let refused = decisive_after(Cause::PermissionDenied, "refused", location, debug);
        let bad = decisive_after(Cause::Malformed, "bad", location, debug);
        let slow = decisive_after(Cause::Timeout, "slow", location, debug);
        let failed = decisive_after(Cause::DownloadFailed, "failed", location, debug);
        let down = decisive_after(Cause::Timeout, "down", Concerns::Server, None);
        let all = [refused, bad, slow, failed, down];
        assert_eq!(all, ["refused", "refused", "slow", "slow", "down"]);
    }
}
