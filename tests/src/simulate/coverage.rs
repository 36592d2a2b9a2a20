//! Which changes of entries and which decisions of readers occurred in a run.
//!
//! Changes are told from what a write replaces: the flows do not report them.

use std::collections::BTreeMap;
use std::fmt;

use symdepot::cache::{Capabilities, Decision, Entry, decide};
use symdepot::domain::{Cause, Timestamp};
use symdepot::ports::Consistency;

use super::gate::{Call, Fate};
use super::stores::states;

/// Everything that is counted, so that what never happened is seen.
const ALL: [&str; 32] = [
    "change: request a build",
    "change: take the lease",
    "change: take an expired lease",
    "change: give up",
    "change: extend",
    "change: publish",
    "change: publish beside a failure",
    "change: fail",
    "change: release or hand over",
    "change: abandon",
    "change: touch",
    "change: invalidate",
    "change: revoke",
    "change: suspect",
    "change: dispute",
    "change: confirm loss",
    "change: clear lease",
    "change: drop older",
    "change: retire",
    "decision: use",
    "decision: use and upgrade",
    "decision: use older",
    "decision: missing",
    "decision: wait",
    "decision: build",
    "fate: fails before",
    "fate: fails after",
    "fate: throttled",
    "fate: repeated",
    "fate: silent",
    "fate: stale",
    "fate: parser killed",
];

/// How often each change, decision and fate occurred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    counts: BTreeMap<&'static str, u64>,
}

impl Coverage {
    fn count(&mut self, what: &'static str) {
        debug_assert!(ALL.contains(&what), "{what}");
        *self.counts.entry(what).or_default() += 1;
    }

    /// Adds the counts of another run.
    pub(super) fn add(&mut self, other: &Self) {
        for (what, count) in &other.counts {
            *self.counts.entry(what).or_default() += count;
        }
    }

    /// Returns what never happened.
    pub fn never(&self) -> Vec<&'static str> {
        let happened = |what: &&str| self.counts.contains_key(*what);
        ALL.into_iter().filter(|what| !happened(what)).collect()
    }

    /// Counts the fate of a call.
    pub(super) fn fate(&mut self, call: Call, fate: Fate) {
        let what = match fate {
            Fate::FailsBefore => "fate: fails before",
            Fate::FailsAfter => "fate: fails after",
            Fate::Throttled => "fate: throttled",
            Fate::Repeated => "fate: repeated",
            Fate::Silent(..) => "fate: silent",
            Fate::Stale(_) if call == Call::Load(Consistency::Eventual) => "fate: stale",
            Fate::ParserKilled => "fate: parser killed",
            Fate::Succeeds | Fate::Late(_) | Fate::Stale(_) => return,
        };
        self.count(what);
    }

    /// Counts the decision of a reader about an entry that it has read.
    pub(super) fn decision(
        &mut self,
        entry: Option<&Entry>,
        reader: &Capabilities,
        now: Timestamp,
    ) {
        self.count(match decide(entry, reader, now) {
            Decision::Use(_) => "decision: use",
            Decision::UseAndUpgrade(_) => "decision: use and upgrade",
            Decision::UseOlder(_) => "decision: use older",
            Decision::Missing(_) => "decision: missing",
            Decision::Wait { .. } => "decision: wait",
            Decision::Build => "decision: build",
        });
    }

    /// Counts the removal of an entry.
    pub(super) fn retired(&mut self) {
        self.count("change: retire");
    }

    /// Counts a change of an entry.
    pub(super) fn change(&mut self, before: Option<&Entry>, entry: &Entry) {
        let Some(before) = before else {
            self.count(match entry.dirty() {
                Some(_) => "change: invalidate",
                None => "change: request a build",
            });
            return;
        };
        self.count(change(before, entry));
    }
}

/// Returns the change that made one entry of another.
fn change(before: &Entry, entry: &Entry) -> &'static str {
    let (had, has) = (states(before).count(), states(entry).count());
    if before.dirty() != entry.dirty() {
        return match has < had || (before.lease().is_some() && entry.lease().is_none()) {
            true => "change: revoke",
            false => "change: invalidate",
        };
    }
    match (before.lease(), entry.lease()) {
        (None, Some(_)) => return "change: take the lease",
        (Some(was), Some(is)) if was.token != is.token => return "change: take an expired lease",
        (Some(was), Some(is)) if was.until < is.until => return "change: extend",
        (Some(_), None) => return end_of_build(before, entry),
        _ => {}
    }
    let is_disputed = |entry: &Entry| {
        let suspect = entry.suspect();
        suspect.is_some_and(|suspect| suspect.disputed.is_some())
    };
    if !is_disputed(before) && is_disputed(entry) {
        "change: dispute"
    } else if has < had && before.older().is_some() && entry.ready() == before.ready() {
        "change: drop older"
    } else if has < had {
        "change: confirm loss"
    } else if before.suspect() != entry.suspect() {
        "change: suspect"
    } else if before.build_request() != entry.build_request() && entry.build_request().is_some() {
        "change: request a build"
    } else if before.missing() != entry.missing() {
        "change: give up"
    } else {
        "change: touch"
    }
}

/// Returns the change that ended a build.
fn end_of_build(before: &Entry, entry: &Entry) -> &'static str {
    let mut published = states(entry);
    let is_new = published.any(|ready| {
        let mut known = states(before);
        !known.any(|known| known.blob.path == ready.blob.path)
    });
    let crashed = entry
        .missing()
        .filter(|_| entry.missing() != before.missing());
    let crashed = crashed.filter(|missing| missing.missing.cause == Cause::Crashed);
    match (is_new, entry.missing() != before.missing()) {
        (true, _) if entry.missing().is_some() => "change: publish beside a failure",
        (true, _) => "change: publish",
        (false, true) if crashed.is_some() && entry.build_request().is_none() => "change: give up",
        (false, true) => "change: fail",
        (false, false) if entry.attempts() < before.attempts() => "change: release or hand over",
        (false, false) if entry.not_before() != before.not_before() => "change: abandon",
        (false, false) => "change: clear lease",
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in &self.counts {
            writeln!(f, "{what}: {count}")?;
        }
        match &self.never()[..] {
            [] => write!(f, "nothing of these never happened"),
            never => write!(f, "never happened: {}", never.join(", ")),
        }
    }
}
