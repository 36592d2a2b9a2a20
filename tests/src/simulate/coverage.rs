//! Which changes of entries, refusals, decisions of readers and fates of calls occurred, and in
//! which mixture of builds.
//!
//! The product traces each change that it applies to an entry, and each refusal; the simulation
//! listens. Decisions of readers are made again from what they have read.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use symdepot::cache::{Capabilities, Decision, Entry, decide};
use symdepot::domain::Timestamp;
use symdepot::ports::Consistency;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::builds::Build;
use super::gate::{Call, Fate};

/// The changes of `apply`, each with the ways in which it is refused.
const CHANGES: [(&str, &[&str]); 17] = [
    ("request a build", &["requested"]),
    ("take the lease", &["leased", "backing off"]),
    ("extend", &["lease lost"]),
    ("publish", &["lease lost"]),
    ("fail", &["lease lost"]),
    ("release", &["lease lost"]),
    ("hand over", &["lease lost"]),
    ("abandon", &["lease lost"]),
    ("touch", &["nothing", "too soon"]),
    ("invalidate", &["considered"]),
    ("revoke", &[]),
    ("suspect", &["nothing"]),
    ("confirm loss", &["nothing", "too soon"]),
    ("dispute", &["nothing", "too soon"]),
    ("clear lease", &["nothing"]),
    ("drop older", &["nothing", "in use"]),
    ("retire", &["in use"]),
];

/// The decisions of `decide`.
const DECISIONS: [&str; 7] = [
    "use",
    "use, although a better build failed",
    "use and upgrade",
    "use older",
    "missing",
    "wait",
    "build",
];

/// The fates of calls.
const FATES: [&str; 7] = [
    "fails before",
    "fails after",
    "throttled",
    "repeated",
    "silent",
    "stale",
    "parser killed",
];

/// Which builds there are, and which one acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mixture {
    /// There was no deploy yet.
    Alone,
    /// The older build acts, beside or after the newer one.
    Older,
    /// The newer build acts, beside or after the older one.
    Newer,
}

impl Mixture {
    const ALL: [Self; 3] = [Self::Alone, Self::Older, Self::Newer];

    /// Returns the mixture in which a build acts.
    pub(super) fn of(has_deployed: bool, build: Build) -> Self {
        match (has_deployed, build) {
            (false, _) => Self::Alone,
            (true, Build::Older) => Self::Older,
            (true, Build::Newer) => Self::Newer,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Alone => "one build",
            Self::Older => "the older build",
            Self::Newer => "the newer build",
        }
    }
}

/// How often each change, refusal, decision and fate occurred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    counts: BTreeMap<(String, Option<Mixture>), u64>,
}

impl Coverage {
    fn count(&mut self, what: String, mixture: Option<Mixture>) {
        *self.counts.entry((what, mixture)).or_default() += 1;
    }

    /// Adds the counts of another run.
    pub(super) fn add(&mut self, other: &Self) {
        for (what, count) in &other.counts {
            *self.counts.entry(what.clone()).or_default() += count;
        }
    }

    /// Returns what never happened.
    pub fn never(&self) -> Vec<String> {
        let missing = all().into_iter();
        let missing = missing.filter(|row| !self.counts.contains_key(row));
        missing.map(|row| shown(&row)).collect()
    }

    /// Counts the fate of a call.
    pub(super) fn fate(&mut self, call: Call, fate: Fate) {
        let what = match fate {
            Fate::FailsBefore => "fails before",
            Fate::FailsAfter => "fails after",
            Fate::Throttled => "throttled",
            Fate::Repeated => "repeated",
            Fate::Silent(..) => "silent",
            Fate::Stale(_) if call == Call::Load(Consistency::Eventual) => "stale",
            Fate::ParserKilled => "parser killed",
            Fate::Succeeds | Fate::Late(_) | Fate::Stale(_) => return,
        };
        self.count(format!("fate: {what}"), None);
    }

    /// Counts the decision of a reader about an entry that it has read.
    pub(super) fn decision(
        &mut self,
        mixture: Mixture,
        entry: Option<&Entry>,
        reader: &Capabilities,
        now: Timestamp,
    ) {
        let failed = entry.and_then(Entry::missing).is_some();
        let what = match decide(entry, reader, now) {
            Decision::Use(_) if failed => "use, although a better build failed",
            Decision::Use(_) => "use",
            Decision::UseAndUpgrade(_) => "use and upgrade",
            Decision::UseOlder(_) => "use older",
            Decision::Missing(_) => "missing",
            Decision::Wait { .. } => "wait",
            Decision::Build => "build",
        };
        self.count(format!("decision: {what}"), Some(mixture));
    }

    /// Counts what the product has traced.
    pub(super) fn traced(&mut self, mixture: Mixture, traced: Traced) {
        let Traced { change, refused } = traced;
        let what = match refused {
            Some(refused) => format!("refusal: {change}, {refused}"),
            None => format!("change: {change}"),
        };
        self.count(what, Some(mixture));
    }
}

/// Returns everything that is counted, so that what never happened is seen.
fn all() -> Vec<(String, Option<Mixture>)> {
    let mut rows = Vec::new();
    let mut each = |what: String| {
        rows.extend(Mixture::ALL.map(|mixture| (what.clone(), Some(mixture))));
    };
    for (change, refusals) in CHANGES {
        each(format!("change: {change}"));
        for refused in refusals {
            each(format!("refusal: {change}, {refused}"));
        }
    }
    for decision in DECISIONS {
        each(format!("decision: {decision}"));
    }
    rows.extend(FATES.map(|fate| (format!("fate: {fate}"), None)));
    rows
}

fn shown((what, mixture): &(String, Option<Mixture>)) -> String {
    match mixture {
        Some(mixture) => format!("{what} ({})", mixture.text()),
        None => what.clone(),
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (row, count) in &self.counts {
            writeln!(f, "{}: {count}", shown(row))?;
        }
        match &self.never()[..] {
            [] => write!(f, "nothing of these never happened"),
            never => write!(f, "never happened: {}", never.join("; ")),
        }
    }
}

/// A change that the product has applied to an entry, or refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Traced {
    change: String,
    refused: Option<String>,
}

/// Listens to what the product traces in this thread.
#[derive(Clone, Debug, Default)]
pub(super) struct Listener {
    heard: Arc<Mutex<Vec<Traced>>>,
}

impl Listener {
    /// Returns what was traced since the last call.
    pub(super) fn take(&self) -> Vec<Traced> {
        std::mem::take(&mut *self.heard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::TRACE && metadata.target() == "symdepot::flows::update"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut traced = Traced::default();
        event.record(&mut traced);
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.push(traced);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Visit for Traced {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "change" => value.clone_into(&mut self.change),
            "refused" => self.refused = Some(value.to_owned()),
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}
