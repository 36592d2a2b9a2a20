//! Which changes of entries, refusals, decisions of readers and fates of calls occurred, and in
//! which mixture of releases.
//!
//! The product traces each change that it applies to an entry, and each refusal; the simulation
//! listens. Decisions of readers are made again from what they have read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use symdepot::cache::{Capabilities, Decision, Entry, decide};
use symdepot::domain::Timestamp;
use symdepot::ports::Consistency;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::gate::{Call, Fate};
use super::releases::Release;

/// The changes of `apply`, each with the ways in which it is refused.
const CHANGES: [(&str, &[&str]); 17] = [
    ("request a build", &["requested"]),
    ("take the lease", &["leased", "backing off"]),
    ("extend", &["lease lost"]),
    ("publish", &["lease lost"]),
    ("fail", &["lease lost"]),
    ("release interrupted", &["lease lost"]),
    ("release untried", &["lease lost"]),
    ("release killed", &["lease lost"]),
    ("touch", &["nothing", "too soon"]),
    ("invalidate", &["considered"]),
    ("revoke", &[]),
    ("suspect", &["nothing"]),
    ("confirm loss", &["lease lost", "nothing", "too soon"]),
    ("dispute", &["lease lost", "nothing", "too soon"]),
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

/// What cannot happen, and why. A run in which it happens fails its test.
const CANNOT: &[(&str, &str)] = &[
    (
        "refusal: confirm loss, nothing",
        "a builder reads the state under its lease, and only its holder removes states of a leased \
         entry, or a removal that revokes the lease",
    ),
    (
        "refusal: dispute, nothing (one release)",
        "it takes two readable states of an entry, whose readers report one after the other, and one \
         release makes one version of what it reads",
    ),
    (
        "decision: use older (one release)",
        "what is derived has the version of the only release, and Microsoft's SymCaches are not made \
         here",
    ),
    (
        "decision: use older (the older release)",
        "no release makes a lower version than the older one",
    ),
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

/// Which releases there are, and which one acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mixture {
    /// There was no deploy yet.
    Alone,
    /// The older release acts, beside or after the newer one.
    Older,
    /// The newer release acts, beside or after the older one.
    Newer,
}

impl Mixture {
    const ALL: [Self; 3] = [Self::Alone, Self::Older, Self::Newer];

    /// Returns the mixture in which a release acts.
    pub(super) fn of(has_deployed: bool, release: Release) -> Self {
        match (has_deployed, release) {
            (false, _) => Self::Alone,
            (true, Release::Older) => Self::Older,
            (true, Release::Newer) => Self::Newer,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Alone => "one release",
            Self::Older => "the older release",
            Self::Newer => "the newer release",
        }
    }
}

/// What is counted: an index of one of the tables above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    Change(usize),
    /// A change, and one of the ways in which it is refused.
    Refusal(usize, usize),
    Decision(usize),
    Fate(usize),
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Change(change) => write!(f, "change: {}", CHANGES[change].0),
            Self::Refusal(change, how) => {
                let (change, refusals) = CHANGES[change];
                write!(f, "refusal: {change}, {}", refusals[how])
            }
            Self::Decision(decision) => write!(f, "decision: {}", DECISIONS[decision]),
            Self::Fate(fate) => write!(f, "fate: {}", FATES[fate]),
        }
    }
}

/// A row of the coverage.
type Row = (What, Option<Mixture>);

/// How often each change, refusal, decision and fate occurred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    counts: BTreeMap<Row, u64>,
    /// What the product has traced, and the tables do not name.
    unknown: BTreeSet<String>,
}

impl Coverage {
    fn count(&mut self, what: What, mixture: Option<Mixture>) {
        *self.counts.entry((what, mixture)).or_default() += 1;
    }

    /// Adds the counts of another run.
    pub(super) fn add(&mut self, other: &Self) {
        for (row, count) in &other.counts {
            *self.counts.entry(*row).or_default() += count;
        }
        self.unknown.extend(other.unknown.iter().cloned());
    }

    /// Returns what never happened although it can.
    pub fn never(&self) -> Vec<String> {
        let missing = all().filter(|row| !self.counts.contains_key(row));
        let missing = missing.map(shown);
        missing.filter(|row| why_never(row).is_none()).collect()
    }

    /// Returns what is said to be impossible, and happened. Also what the product traces and no
    /// table names.
    pub fn contradictions(&self) -> Vec<String> {
        let happened = self.counts.keys().map(|row| shown(*row));
        let happened = happened.filter(|row| why_never(row).is_some());
        happened.chain(self.unknown.iter().cloned()).collect()
    }

    /// Counts the fate of a call.
    pub(super) fn fate(&mut self, call: Call, fate: Fate) {
        let fate = match fate {
            Fate::FailsBefore => "fails before",
            Fate::FailsAfter => "fails after",
            Fate::Throttled => "throttled",
            Fate::Repeated => "repeated",
            Fate::Silent(..) => "silent",
            Fate::Stale(_) if call == Call::Load(Consistency::Eventual) => "stale",
            Fate::ParserKilled => "parser killed",
            Fate::Succeeds | Fate::Late(_) | Fate::Stale(_) => return,
        };
        match place(&FATES, fate) {
            Some(fate) => self.count(What::Fate(fate), None),
            None => drop(self.unknown.insert(fate.to_owned())),
        }
    }

    /// Counts the decision of a reader about an entry that it has read.
    pub(super) fn decision(
        &mut self,
        mixture: Mixture,
        entry: Option<&Entry>,
        capabilities: &Capabilities,
        now: Timestamp,
    ) {
        let failed = entry.and_then(Entry::missing).is_some();
        let decision = match decide(entry, capabilities, now) {
            Decision::Use(_) if failed => "use, although a better build failed",
            Decision::Use(_) => "use",
            Decision::UseAndUpgrade(_) => "use and upgrade",
            Decision::UseOlder(_) => "use older",
            Decision::Missing(_) => "missing",
            Decision::Wait { .. } => "wait",
            Decision::Build => "build",
        };
        match place(&DECISIONS, decision) {
            Some(decision) => self.count(What::Decision(decision), Some(mixture)),
            None => drop(self.unknown.insert(decision.to_owned())),
        }
    }

    /// Counts what the product has traced.
    pub(super) fn traced(&mut self, mixture: Mixture, traced: Traced) {
        match traced {
            Traced::Known(what) => self.count(what, Some(mixture)),
            Traced::Unknown(what) => drop(self.unknown.insert(what)),
        }
    }
}

fn place(table: &[&str], name: &str) -> Option<usize> {
    table.iter().position(|known| *known == name)
}

/// Returns everything that is counted, so that what never happened is seen.
fn all() -> impl Iterator<Item = Row> {
    let changes = CHANGES
        .iter()
        .enumerate()
        .flat_map(|(change, (_, refusals))| {
            let refusals = (0..refusals.len()).map(move |how| What::Refusal(change, how));
            std::iter::once(What::Change(change)).chain(refusals)
        });
    let decisions = (0..DECISIONS.len()).map(What::Decision);
    let each = changes.chain(decisions);
    let each = each.flat_map(|what| Mixture::ALL.map(|mixture| (what, Some(mixture))));
    each.chain((0..FATES.len()).map(|fate| (What::Fate(fate), None)))
}

fn shown((what, mixture): Row) -> String {
    match mixture {
        Some(mixture) => format!("{what} ({})", mixture.text()),
        None => what.to_string(),
    }
}

/// Returns why a row cannot happen; `None` if it can.
fn why_never(row: &str) -> Option<&'static str> {
    let mut rows = CANNOT.iter().filter(|(known, _)| row.starts_with(known));
    rows.next().map(|(_, why)| *why)
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (row, count) in &self.counts {
            writeln!(f, "{}: {count}", shown(*row))?;
        }
        for row in all().map(shown) {
            if let Some(why) = why_never(&row) {
                writeln!(f, "cannot happen: {row}, because {why}")?;
            }
        }
        for row in self.contradictions() {
            writeln!(f, "happened although it cannot: {row}")?;
        }
        match &self.never()[..] {
            [] => write!(f, "everything else happened"),
            never => write!(f, "did not happen in this run: {}", never.join("; ")),
        }
    }
}

/// A change that the product has applied to an entry, or refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Traced {
    Known(What),
    /// It is in no table.
    Unknown(String),
}

impl Traced {
    fn of(change: &str, refused: Option<&str>) -> Self {
        let known = || {
            let at = CHANGES.iter().position(|(known, _)| *known == change)?;
            Some(match refused {
                Some(refused) => What::Refusal(at, place(CHANGES[at].1, refused)?),
                None => What::Change(at),
            })
        };
        known().map_or_else(
            || Self::Unknown(format!("{change}, refused: {refused:?}")),
            Self::Known,
        )
    }
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
        let mut fields = Fields::default();
        event.record(&mut fields);
        let traced = Traced::of(&fields.change, fields.refused.as_deref());
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.push(traced);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The fields of what the product traces.
#[derive(Default)]
struct Fields {
    change: String,
    refused: Option<String>,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "change" => value.clone_into(&mut self.change),
            "refused" => self.refused = Some(value.to_owned()),
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}
