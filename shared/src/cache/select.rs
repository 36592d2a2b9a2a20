//! The reader's decision about a lookup: which of several entries to use, what to wait for, and
//! which builds to request.
//!
//! A module may be found in several places: in the uploads of each scope that a request may read,
//! and on each symbol server. Microsoft's SymCaches also have one entry per major version.
//! [`decide()`] judges one entry; [`select`] compares all of them.

use std::collections::BTreeMap;

use super::{Capabilities, Decision, Entry, Kind, OpenCircuit, Placeholder, Ready, decide};
use crate::domain::{Cause, FormatVersion, Missing, Quality, Timestamp};

/// An entry that could serve a lookup, and what is known about its place.
#[derive(Clone, Debug)]
pub struct PlaceState<'a> {
    /// The kind of the entry.
    pub kind: Kind,
    /// The record of the entry.
    pub record: PlaceRecord<'a>,
    /// Whether the place is the uploads of a scope. Uploads take precedence over the places that
    /// follow them, even over better files.
    pub is_uploads: bool,
    /// Whether the place may have files of the module. The uploads have none if the module has no
    /// presence item.
    pub may_have_files: bool,
    /// The circuit of the symbol server, if it is open.
    pub circuit: Option<OpenCircuit>,
}

/// The record of an entry that could serve a lookup.
#[derive(Clone, Copy, Debug)]
pub enum PlaceRecord<'a> {
    /// The record was not read, because the place cannot be better than another one.
    Unread,
    /// There is no record.
    Absent,
    /// The record.
    Entry(&'a Entry),
    /// A newer release wrote the record, and this release cannot read it.
    Newer,
}

impl PlaceRecord<'_> {
    /// Returns whether no build of the entry has ended yet.
    fn is_unsearched(&self) -> bool {
        match self {
            Self::Absent => true,
            Self::Entry(entry) => entry.missing().is_none() && entry.ready().is_none(),
            Self::Unread | Self::Newer => false,
        }
    }

    /// Returns the next build of the entry if the last one failed because the source did, so that
    /// it is not known whether the source has the file.
    fn build_after_failed_search(&self, now: Timestamp) -> Option<BuildState> {
        let Self::Entry(entry) = self else {
            return None;
        };
        let failed = entry.missing().filter(|_| entry.ready().is_none())?;
        failed
            .missing
            .cause
            .is_of_a_moment()
            .then(|| BuildState::of(entry, now))
    }
}

/// What a reader looks for.
#[derive(Clone, Copy, Debug)]
pub struct Criteria<'a> {
    /// What this release can read and derive.
    pub capabilities: &'a Capabilities,
    /// Which of several states is the best.
    pub preference: Preference,
    /// The blobs that this reader could not read.
    pub unreadable: &'a UnreadableBlobs,
    /// Whether the reader can wait for a better state than the best existing one.
    pub may_wait: bool,
    /// The current time.
    pub now: Timestamp,
}

/// The blobs that a reader could not read and has reported, each at most twice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct UnreadableBlobs {
    /// Whether each was reported again, by its path.
    is_reported_again: BTreeMap<String, bool>,
}

impl UnreadableBlobs {
    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.is_reported_again.is_empty()
    }

    /// Adds a blob that was reported.
    pub fn add(&mut self, path: String) {
        self.is_reported_again.entry(path).or_insert(false);
    }

    /// Records that blobs were reported again.
    pub fn note_reported_again(&mut self, paths: Vec<String>) {
        let paths = paths.into_iter().map(|path| (path, true));
        self.is_reported_again.extend(paths);
    }
}

/// Which of several states is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    /// The state that was derived from the best DIF. Of equal ones, the first.
    BestDif,
    /// The highest version that a client reads. Of equal ones, the first.
    HighestVersion {
        /// The version of the client.
        client: FormatVersion,
        /// The highest version that a build can make for the client; `None` if it can make none.
        made: Option<FormatVersion>,
    },
}

/// The decision about a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection<'a> {
    /// The best state that exists. It should be used now if nothing is awaited.
    pub best: Option<SelectedState<'a>>,
    /// The places to wait for. A build must be requested where none is pending.
    pub waits_for: Vec<PlaceToBuild<'a>>,
    /// The places that could provide a better state than the best one, if the reader cannot wait
    /// for them. A build must be requested where none is pending, for the readers that follow.
    pub for_later_readers: Vec<PlaceToBuild<'a>>,
    /// Places with a usable state that a build would renew or improve, and sources that could not
    /// be searched and precede the best state. No reader waits for them.
    pub to_improve: Vec<PlaceToBuild<'a>>,
    /// Why there is no state, if there is none and nothing is awaited.
    pub missing: Missing,
    /// When the last of the sources that failed for a moment may be called again.
    pub retry_at: Option<Timestamp>,
    /// When the first circuit becomes half-open of those that alone keep places from being awaited.
    pub circuit_open_until: Option<Timestamp>,
}

/// A state to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectedState<'a> {
    /// The index of its place.
    pub at: usize,
    /// The entry that it belongs to.
    pub entry: &'a Entry,
    /// The state.
    pub ready: &'a Ready,
}

/// A place that a build could serve, or serve better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceToBuild<'a> {
    /// The index of the place.
    pub at: usize,
    /// Whether the build is requested, or in progress.
    pub build: BuildState,
    /// The path of the blob to report again, because the next build would not know that it cannot
    /// be read.
    pub suspect: Option<&'a str>,
}

impl PlaceToBuild<'_> {
    /// Returns whether the build is requested or in progress.
    pub fn is_requested(&self) -> bool {
        self.build.is_requested()
    }

    /// Returns whether the build is in progress.
    pub fn is_in_progress(&self) -> bool {
        self.build == BuildState::InProgress
    }
}

/// The state of a build that could make a state, or a better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildState {
    /// No build is requested.
    Unrequested,
    /// No reader needs to request it: its message is in a queue, or the entry backs off, or a newer
    /// release has just published.
    Queued,
    /// A builder holds the lease.
    InProgress,
}

impl BuildState {
    fn of(entry: &Entry, now: Timestamp) -> Self {
        if entry.live_lease(now).is_some() {
            Self::InProgress
        } else if entry.live_request(now).is_some() {
            Self::Queued
        } else {
            Self::Unrequested
        }
    }

    fn is_requested(self) -> bool {
        self != Self::Unrequested
    }
}

/// What one place contributes.
enum Contribution<'a> {
    Usable {
        entry: &'a Entry,
        ready: &'a Ready,
        /// The build that would renew or improve the state, if one would.
        improvement: Option<BuildState>,
    },
    /// The reason, and when the source may be called again if it failed for a moment.
    Missing(Missing, Option<Timestamp>),
    /// A build could make a state.
    Buildable {
        build: BuildState,
        /// The blob to report again.
        suspect: Option<&'a str>,
    },
    /// The reader cannot use the state, and no build would change that.
    Nothing,
}

/// Selects among the entries that could serve a lookup, in the order of precedence.
pub fn select<'a>(places: &[PlaceState<'a>], criteria: &Criteria<'_>) -> Selection<'a> {
    let mut selection = Selection {
        best: None,
        waits_for: Vec::new(),
        for_later_readers: Vec::new(),
        to_improve: Vec::new(),
        missing: Missing::not_found(),
        retry_at: None,
        circuit_open_until: None,
    };
    for (at, place) in places.iter().enumerate() {
        let to_build = |build, suspect| PlaceToBuild { at, build, suspect };
        match contribution(place, criteria) {
            Contribution::Usable {
                entry,
                ready,
                improvement,
            } => {
                let improvement = improvement.filter(|_| place.circuit.is_none());
                let to_improve = improvement.map(|build| to_build(build, None));
                selection.to_improve.extend(to_improve);
                let selected = SelectedState { at, entry, ready };
                if selection
                    .best
                    .is_none_or(|best| criteria.prefers(selected, best))
                {
                    selection.best = Some(selected);
                }
            }
            Contribution::Missing(missing, retry_at) => {
                selection.note_missing(missing);
                selection.retry_at = selection.retry_at.max(retry_at);
            }
            Contribution::Buildable { build, suspect } => {
                selection.waits_for.push(to_build(build, suspect));
            }
            Contribution::Nothing => {}
        }
    }
    selection.leave_failed_sources(places, criteria);
    if !criteria.may_wait {
        selection.stop_waiting(places, criteria);
    }
    selection.drop_needless(places, criteria);
    selection
}

impl<'a> Selection<'a> {
    /// Keeps the more specific of two reasons; "not found" is the least specific.
    fn note_missing(&mut self, missing: Missing) {
        if self.missing.cause == Cause::NotFound {
            self.missing = missing;
        }
    }

    /// Leaves sources that could not be searched, and that may have a file as good as the best
    /// state, to builds for later readers: such a source may fail again and again.
    fn leave_failed_sources(&mut self, places: &[PlaceState<'_>], criteria: &Criteria<'_>) {
        let is_unbeatable = |best: &SelectedState<'_>| {
            criteria.preference == Preference::BestDif && criteria.is_unbeatable(best.ready)
        };
        let Some(best) = self.best.filter(is_unbeatable) else {
            return;
        };
        let failed = |awaited: &PlaceToBuild<'a>| {
            let place = &places[awaited.at];
            let is_nearer = awaited.at < best.at && !place.is_uploads && place.circuit.is_none();
            let build = place.record.build_after_failed_search(criteria.now)?;
            is_nearer.then_some(PlaceToBuild { build, ..*awaited })
        };
        self.to_improve
            .extend(self.waits_for.iter().filter_map(failed));
        self.waits_for.retain(|awaited| failed(awaited).is_none());
    }

    /// Uses the best state, if there is one, without waiting for a better one.
    fn stop_waiting(&mut self, places: &[PlaceState<'_>], criteria: &Criteria<'_>) {
        if let Some(best) = self.best {
            let mut awaited = std::mem::take(&mut self.waits_for);
            awaited.retain(|awaited| {
                let place = &places[awaited.at];
                place.circuit.is_none() && criteria.could_beat(best, *awaited, place)
            });
            self.for_later_readers = awaited;
        }
    }

    /// Drops awaited places that could not beat the best state, and those whose circuit is open.
    fn drop_needless(&mut self, places: &[PlaceState<'_>], criteria: &Criteria<'_>) {
        if self.is_settled(places, criteria) {
            self.waits_for.clear();
        }
        let closed = |awaited: &PlaceToBuild<'_>| places[awaited.at].circuit.is_none();
        let (waits_for, open) = std::mem::take(&mut self.waits_for)
            .into_iter()
            .partition(closed);
        self.waits_for = waits_for;
        let open: Vec<PlaceToBuild<'a>> = open;
        for circuit in open
            .iter()
            .filter_map(|awaited| places[awaited.at].circuit.as_ref())
        {
            let earlier = self.circuit_open_until.unwrap_or(circuit.until);
            self.circuit_open_until = Some(earlier.min(circuit.until));
            self.note_missing(circuit.missing.clone());
        }
        if self.is_settled(places, criteria) {
            self.waits_for.clear();
        }
        // Making one of Microsoft's SymCaches is expensive: leave the symbol servers out while the
        // uploads may have the file.
        if matches!(criteria.preference, Preference::HighestVersion { .. }) {
            let is_upload = |awaited: &PlaceToBuild<'_>| places[awaited.at].is_uploads;
            if self.waits_for.iter().chain(&self.to_improve).any(is_upload) {
                self.waits_for
                    .retain(|awaited| awaited.is_requested() || is_upload(awaited));
                self.to_improve.retain(is_upload);
            }
        }
    }

    /// Returns whether no awaited place could beat the best state.
    fn is_settled(&self, places: &[PlaceState<'_>], criteria: &Criteria<'_>) -> bool {
        let Some(best) = self.best else {
            return self.waits_for.is_empty();
        };
        let could_beat =
            |awaited: &PlaceToBuild<'_>| criteria.could_beat(best, *awaited, &places[awaited.at]);
        !self.waits_for.iter().any(could_beat)
    }
}

fn contribution<'a>(place: &PlaceState<'a>, criteria: &Criteria<'_>) -> Contribution<'a> {
    let entry = match place.record {
        PlaceRecord::Unread => return Contribution::Nothing,
        PlaceRecord::Absent => None,
        PlaceRecord::Entry(entry) => Some(entry),
        PlaceRecord::Newer => return Contribution::Missing(unreadable_record(), None),
    };
    let decision = decide(entry, criteria.capabilities, criteria.now);
    let may_improve = match (&decision, criteria.preference) {
        (Decision::UseOlder(_), _) => true,
        // The version stays the same whichever DIF it is made from.
        (Decision::UseAndUpgrade(_), preference) => preference == Preference::BestDif,
        _ => false,
    };
    match (decision, entry) {
        (
            Decision::Use(ready) | Decision::UseAndUpgrade(ready) | Decision::UseOlder(ready),
            Some(entry),
        ) => {
            let unreadable = &criteria.unreadable.is_reported_again;
            match unreadable.get(&ready.blob.path) {
                Some(is_reported_again) => {
                    instead_of_unreadable(entry, ready, *is_reported_again, criteria.now)
                }
                None if criteria.reads(ready) => Contribution::Usable {
                    entry,
                    ready,
                    improvement: may_improve.then(|| BuildState::of(entry, criteria.now)),
                },
                None => Contribution::Nothing,
            }
        }
        (Decision::Missing(placeholder), _) => placeholder_of(placeholder),
        // The reason in an outdated placeholder is more specific than "not found".
        _ if !place.may_have_files => match entry.and_then(Entry::missing) {
            Some(placeholder) => Contribution::Missing(placeholder.missing.clone(), None),
            None => Contribution::Missing(Missing::not_found(), None),
        },
        (Decision::Wait { .. }, _) => {
            let is_leased = |entry: &Entry| entry.live_lease(criteria.now).is_some();
            Contribution::Buildable {
                build: if entry.is_some_and(is_leased) {
                    BuildState::InProgress
                } else {
                    BuildState::Queued
                },
                suspect: None,
            }
        }
        // The build request of another queue may wait for hours there.
        _ if criteria.may_build(place.kind) => Contribution::Buildable {
            build: BuildState::Unrequested,
            suspect: None,
        },
        _ => Contribution::Nothing,
    }
}

/// Returns what a place contributes whose state this reader could not read, and has reported.
///
/// A build that finds the blob intact may not replace it, and stores why. An upload removes that
/// reason, and the builds that follow keep the state: none of them knows of the report. So the
/// reader reports the blob again, once.
fn instead_of_unreadable<'a>(
    entry: &'a Entry,
    ready: &'a Ready,
    is_reported_again: bool,
    now: Timestamp,
) -> Contribution<'a> {
    let blob = &ready.blob.path;
    if let Some(failed) = entry.missing().filter(|failed| now < failed.retry_at) {
        return Contribution::Missing(failed.missing.clone(), None);
    }
    let build = BuildState::of(entry, now);
    let is_suspect = entry.suspect().is_some_and(|suspect| suspect.blob == *blob);
    if build.is_requested() || is_suspect {
        let suspect = None;
        return Contribution::Buildable { build, suspect };
    }
    if !is_reported_again {
        Contribution::Buildable {
            build,
            suspect: Some(blob),
        }
    } else {
        let detail = "its cache cannot be read, and no build has replaced it";
        Contribution::Missing(Missing::new(Cause::DownloadFailed, detail), None)
    }
}

fn placeholder_of(placeholder: &Placeholder) -> Contribution<'static> {
    let retry_at = placeholder
        .missing
        .cause
        .is_of_a_moment()
        .then_some(placeholder.retry_at);
    Contribution::Missing(placeholder.missing.clone(), retry_at)
}

/// Returns the reason for a record that a newer release wrote.
fn unreadable_record() -> Missing {
    let detail = "a newer version of symdepot wrote its record, which this version cannot read";
    Missing::new(Cause::DownloadFailed, detail)
}

impl Criteria<'_> {
    /// Returns whether the reader can use a state.
    fn reads(&self, ready: &Ready) -> bool {
        match self.preference {
            Preference::BestDif => true,
            Preference::HighestVersion { client, .. } => {
                client.reads(FormatVersion::from_u32(ready.version))
            }
        }
    }

    /// Returns whether a build could make an entry of this kind for the reader.
    fn may_build(&self, kind: Kind) -> bool {
        match self.preference {
            Preference::BestDif => true,
            Preference::HighestVersion { made, .. } => {
                made.is_some_and(|made| kind == Kind::MsSymCache(made.major))
            }
        }
    }

    /// Returns whether a state is better than an earlier one.
    fn prefers(&self, selected: SelectedState<'_>, best: SelectedState<'_>) -> bool {
        match self.preference {
            Preference::BestDif => selected.ready.rank < best.ready.rank,
            Preference::HighestVersion { .. } => best.ready.version < selected.ready.version,
        }
    }

    /// Returns whether no build can make a better state than this one.
    pub fn is_unbeatable(&self, ready: &Ready) -> bool {
        match self.preference {
            Preference::BestDif => ready.quality == Quality::Preferred,
            Preference::HighestVersion { made, .. } => {
                made.is_none_or(|made| made.as_u32() <= ready.version)
            }
        }
    }

    /// Returns whether an awaited place could provide a better state: a better file, or one as good
    /// in a place that takes precedence. A source that did not have the file is not awaited for
    /// one as good again.
    fn could_beat(
        &self,
        best: SelectedState<'_>,
        awaited: PlaceToBuild<'_>,
        place: &PlaceState<'_>,
    ) -> bool {
        let is_nearer = match self.preference {
            Preference::BestDif => {
                awaited.at < best.at && (place.is_uploads || place.record.is_unsearched())
            }
            // An uploaded SymCache may have a higher version than a build can make.
            Preference::HighestVersion { .. } => place.is_uploads && awaited.is_requested(),
        };
        is_nearer || !self.is_unbeatable(best.ready)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::cache::change::examples::{
        Offer, after, dif, entry, entry_of_a_symbol_server, fail, publish, request_build, state,
        take, then, token,
    };
    use crate::cache::{Change, ModuleKey, Queue, ReleaseNumbers, current_version};
    use crate::domain::{ModuleId, Scope};

    fn version(text: &str) -> FormatVersion {
        text.parse().unwrap()
    }

    fn capabilities(transcoded: &[&str]) -> Capabilities {
        Capabilities {
            numbers: ReleaseNumbers::CURRENT,
            limits: vec![1000],
            transcoded: transcoded.iter().copied().map(version).collect(),
        }
    }

    fn leased(entry: &Entry) -> Entry {
        then(entry, &take(1), 0)
    }

    fn ready(entry: &Entry, version: u32, offer: Offer) -> Entry {
        let leased = leased(entry);
        let ready = state(&leased, 1, version, offer, &dif("a"));
        then(&leased, &publish(1, ready, &[dif("a")]), 0)
    }

    fn failed(entry: &Entry, cause: Cause) -> Entry {
        then(&leased(entry), &fail(1, cause, &[dif("a")]), 0)
    }

    /// A record, whether its place may have files, and whether its circuit is open.
    struct Example {
        name: &'static str,
        record: Option<Entry>,
        is_newer: bool,
        may_have_files: bool,
        is_circuit_open: bool,
    }

    fn example(name: &'static str, record: Option<Entry>) -> Example {
        Example {
            name,
            record,
            is_newer: false,
            may_have_files: true,
            is_circuit_open: false,
        }
    }

    impl Example {
        fn state(&self, kind: Kind, is_uploads: bool) -> PlaceState<'_> {
            let open = || OpenCircuit {
                until: after(60),
                missing: Missing::new(Cause::DownloadFailed, "the circuit is open"),
            };
            PlaceState {
                kind,
                record: match &self.record {
                    _ if self.is_newer => PlaceRecord::Newer,
                    Some(entry) => PlaceRecord::Entry(entry),
                    None => PlaceRecord::Absent,
                },
                is_uploads,
                may_have_files: self.may_have_files,
                circuit: self.is_circuit_open.then(open),
            }
        }
    }

    /// Describes a selection; `names` are those of the places.
    fn described(selection: &Selection<'_>, names: &[&str]) -> String {
        let list = |places: &[PlaceToBuild<'_>], verb: &str, pending: &str| {
            let mut text = String::new();
            for place in places {
                let verb = if place.is_requested() { pending } else { verb };
                write!(text, ", {verb} {}", names[place.at]).unwrap();
            }
            text
        };
        let awaited = list(&selection.waits_for, "build", "await");
        let later = list(&selection.for_later_readers, "then build", "building");
        let improved = list(&selection.to_improve, "renew", "renewing");
        let decided = match (selection.best, &*selection.waits_for) {
            (Some(best), []) => format!("use {}", names[best.at]),
            (Some(best), _) => format!("have {}", names[best.at]),
            (None, []) => format!("{:?}", selection.missing.cause),
            (None, _) => "wait".to_owned(),
        };
        format!("{decided}{awaited}{later}{improved}")
    }

    #[test]
    fn every_pair_of_uploads_and_symbol_server_has_its_selection() {
        let current = current_version(Kind::SymCache);
        let (upload, server) = (entry(), entry_of_a_symbol_server());
        let uploads = [
            Example {
                may_have_files: false,
                ..example("no files", None)
            },
            example("not built", None),
            example("leased", Some(leased(&upload))),
            example("debug", Some(ready(&upload, current, Offer::Debug))),
            example("symbols", Some(ready(&upload, current, Offer::Symbols))),
            example("malformed", Some(failed(&upload, Cause::Malformed))),
            Example {
                is_newer: true,
                ..example("newer release", None)
            },
        ];
        let requested = then(&server, &request_build(1, Queue::Eager), 0);
        let servers = [
            example("not searched", None),
            Example {
                is_circuit_open: true,
                ..example("circuit open", None)
            },
            example("requested", Some(requested)),
            example("debug", Some(ready(&server, current, Offer::Debug))),
            example("older", Some(ready(&server, current - 1, Offer::Debug))),
            example("symbols", Some(ready(&server, current, Offer::Symbols))),
            example("not found", Some(failed(&server, Cause::NotFound))),
            example("timeout", Some(failed(&server, Cause::Timeout))),
        ];
        let mut table = format!(
            "{:14}| {:14}| {:40}| when the time is up\n",
            "uploads", "server", "while waiting"
        );
        for (first, second) in uploads
            .iter()
            .flat_map(|first| servers.iter().map(move |second| (first, second)))
        {
            let places = [
                first.state(Kind::SymCache, true),
                second.state(Kind::SymCache, false),
            ];
            let [waiting, last] = [true, false].map(|may_wait| {
                let criteria = Criteria {
                    capabilities: &capabilities(&[]),
                    preference: Preference::BestDif,
                    unreadable: &UnreadableBlobs::default(),
                    may_wait,
                    now: after(1),
                };
                described(&select(&places, &criteria), &["uploads", "server"])
            });
            writeln!(
                table,
                "{:14}| {:14}| {waiting:40}| {last}",
                first.name, second.name
            )
            .unwrap();
        }
        insta::assert_snapshot!("selections", table);
    }

    #[test]
    fn of_equal_files_that_of_the_first_source_is_used() {
        let current = current_version(Kind::SymCache);
        let first = entry_of_a_symbol_server();
        let requested = then(&first, &request_build(1, Queue::Eager), 0);
        let an_hour = 3600;
        let later = example("second", Some(ready(&first, current, Offer::Debug)));
        let names = ["first", "second"];
        for (record, now, waiting, last) in [
            (
                None,
                1,
                "have second, build first",
                "use second, then build first",
            ),
            (
                Some(requested),
                1,
                "have second, await first",
                "use second, building first",
            ),
            (
                Some(leased(&first)),
                1,
                "have second, await first",
                "use second, building first",
            ),
            (
                Some(ready(&first, current, Offer::Debug)),
                1,
                "use first",
                "use first",
            ),
            (
                Some(ready(&first, current, Offer::Symbols)),
                1,
                "use second",
                "use second",
            ),
            // What it did not have is not sought there again.
            (
                Some(failed(&first, Cause::NotFound)),
                an_hour * 30,
                "use second",
                "use second",
            ),
            (
                Some(failed(&first, Cause::Timeout)),
                1,
                "use second",
                "use second",
            ),
            (
                Some(failed(&first, Cause::Timeout)),
                an_hour * 2,
                "use second, renew first",
                "use second, renew first",
            ),
        ] {
            let earlier = example("first", record);
            let places = [
                earlier.state(Kind::SymCache, false),
                later.state(Kind::SymCache, false),
            ];
            let [while_waiting, at_last] = [true, false].map(|may_wait| {
                let criteria = Criteria {
                    capabilities: &capabilities(&[]),
                    preference: Preference::BestDif,
                    unreadable: &UnreadableBlobs::default(),
                    may_wait,
                    now: after(now),
                };
                described(&select(&places, &criteria), &names)
            });
            assert_eq!(
                (&*while_waiting, &*at_last),
                (waiting, last),
                "{:?}",
                earlier.record
            );
        }
    }

    #[test]
    fn a_client_of_microsofts_protocol_gets_the_highest_version_that_it_reads() {
        let id = ModuleId::Debug("502fc0a5-1ec1-3e47-9998-684fa139dca7".parse().unwrap());
        let uploads = ModuleKey::uploads(Scope::Global, &id);
        let of = |major: u16| Entry::new(uploads.clone(), Kind::MsSymCache(major), after(0));
        let file = |text: &str| {
            let version = version(text);
            Some(ready(&of(version.major), version.as_u32(), Offer::Debug))
        };
        let requested = |major| Some(then(&of(major), &request_build(1, Queue::Eager), 0));
        // The records of version 4 and 3 of the uploads, and of version 3 of a server.
        let cases = [
            ("nothing", [None, None, None]),
            ("an upload of 4", [file("4.1.0"), None, None]),
            ("an upload of 3", [None, file("3.9.0"), None]),
            ("a transcoded file", [None, None, file("3.5.0")]),
            ("an older transcoded file", [None, None, file("3.1.0")]),
            ("an older upload", [None, file("3.1.0"), None]),
            (
                "an upload of 4 in progress",
                [requested(4), file("3.5.0"), None],
            ),
            (
                "an upload of 3 in progress",
                [None, requested(3), file("3.1.0")],
            ),
            ("a build in progress", [None, None, requested(3)]),
        ];
        let capabilities = capabilities(&["3.5.0"]);
        let mut table = String::new();
        for (name, records) in cases {
            for client in ["3.0.0", "4.0.0"] {
                let client = version(client);
                let criteria = Criteria {
                    capabilities: &capabilities,
                    preference: Preference::HighestVersion {
                        client,
                        made: Some(version("3.5.0")),
                    },
                    unreadable: &UnreadableBlobs::default(),
                    may_wait: true,
                    now: after(1),
                };
                let examples = records.clone().map(|record| example(name, record));
                let kinds = [(4, true), (3, true), (3, false)];
                let places: Vec<PlaceState<'_>> = examples
                    .iter()
                    .zip(kinds)
                    .filter(|(_, (major, _))| *major <= client.major)
                    .map(|(example, (major, is_uploads))| PlaceState {
                        may_have_files: !is_uploads || example.record.is_some(),
                        ..example.state(Kind::MsSymCache(major), is_uploads)
                    })
                    .collect();
                let names = ["uploaded 4", "uploaded 3", "server's 3"];
                let selection = select(&places, &criteria);
                let described = described(&selection, &names[3 - places.len()..]);
                writeln!(table, "{name:27}| client {client} | {described}").unwrap();
            }
        }
        insta::assert_snapshot!("versions", table);
    }

    /// Selects among one entry whose blob the reader could not read.
    fn without_its_blob(entry: Entry, is_reported_again: bool) -> (Option<bool>, String) {
        let path = entry.ready().unwrap().blob.path.clone();
        let mut unreadable = UnreadableBlobs::default();
        unreadable.add(path.clone());
        if is_reported_again {
            unreadable.note_reported_again(vec![path.clone()]);
        }
        let example = example("unreadable", Some(entry));
        let place = example.state(Kind::SymCache, true);
        let criteria = Criteria {
            capabilities: &capabilities(&[]),
            preference: Preference::BestDif,
            unreadable: &unreadable,
            may_wait: false,
            now: after(1),
        };
        let selection = select(std::slice::from_ref(&place), &criteria);
        assert_eq!(selection.best, None);
        let awaited = selection.waits_for.first();
        if let Some(suspect) = awaited.and_then(|awaited| awaited.suspect) {
            assert_eq!(suspect, path);
        }
        let reports = awaited.map(|awaited| awaited.suspect.is_some());
        (reports, described(&selection, &["uploads"]))
    }

    #[test]
    fn a_blob_that_cannot_be_read_is_never_selected_again() {
        let ready = ready(&entry(), current_version(Kind::SymCache), Offer::Debug);
        let reported = Change::Suspect {
            blob: ready.ready().unwrap().blob.path.clone(),
            id: token(7),
        };
        let suspect = then(&ready, &reported, 0);
        // The message of its build request was lost.
        let mut unrequested = suspect.clone();
        unrequested.build_request = None;
        let failed = then(
            &leased(&suspect),
            &fail(1, Cause::DownloadFailed, &[dif("a")]),
            0,
        );
        // An upload has ended the failure, and a build kept the state.
        let kept = Entry {
            missing: None,
            ..failed.clone()
        };
        let is_reported = true;
        for (name, entry, is_reported_again, expected) in [
            (
                "is built",
                suspect,
                false,
                (Some(false), "wait, await uploads"),
            ),
            (
                "is known",
                unrequested,
                false,
                (Some(false), "wait, build uploads"),
            ),
            ("failed", failed.clone(), false, (None, "DownloadFailed")),
            (
                "failed again",
                failed,
                is_reported,
                (None, "DownloadFailed"),
            ),
            (
                "is kept",
                kept.clone(),
                false,
                (Some(true), "wait, build uploads"),
            ),
            ("is kept again", kept, is_reported, (None, "DownloadFailed")),
        ] {
            let (reports, described) = without_its_blob(entry, is_reported_again);
            assert_eq!((reports, &*described), expected, "{name}");
        }
    }
}
