//! The decisions of the pruner: which entries are outdated, what the byte budgets evict, how many
//! builds the refresh queue can take, and when a rollout is complete.
//!
//! A *pass* is one traversal of all records. The counts of a pass determine the actions of the next
//! one:
//!
//! 1. A pass collects the outdated entries, most recently used first, and the next pass requests
//!    their builds. The list is spread over several items, because it is larger than one item may
//!    be. Requests during the traversal would need no list, but the traversal meets the entries in
//!    the order of hashes, and a rollout should first reach the entries that clients use.
//! 2. The histogram of bytes by age of last use determines what the byte budget evicts.
//! 3. The build requests of a pass that are complete when the next one begins give the rate at
//!    which the refresh queue is drained.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::change::retires_at;
use super::{BuildNumbers, DifCopy, Entry, ItemKey, Kind, ModuleKey, Policy, Ready, Token};
use crate::domain::{Cause, Timestamp};

/// The number of builds to request if the rate of the queue is unknown: an hour's work of five
/// builders that take half a minute for each.
const FIRST_REQUESTS: usize = 500;

/// The largest number of requests of a pass, as a multiple of the completed requests of the
/// previous pass.
const MOST_GROWTH: u64 = 16;

/// The maximum number of items of a manifest.
const MANIFEST_ITEMS: usize = 16;

/// The maximum number of entries in one item of a manifest.
const MANIFEST_ENTRIES: usize = 1500;

/// The maximum bytes of the entries in one item of a manifest; DynamoDB allows 400 KB per item.
const MANIFEST_BYTES: usize = 300 * 1024;

/// The bytes of an entry of a manifest besides its texts, rounded up.
const BEHIND_BYTES: usize = 120;

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

/// The counts of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// The entries of each kind, by the kind's text. All versions of Microsoft's SymCaches count as
    /// one kind.
    pub kinds: BTreeMap<String, KindTally>,
    /// Upload items whose file was not removed.
    pub uploads: u64,
    /// The bytes of derived caches, by the age of their entry's last use.
    pub ages: Ages,
    /// Copies of DIFs.
    #[serde(default)]
    pub copies: u64,
    /// The bytes of copies, by the age of their last use.
    #[serde(default)]
    pub copy_ages: Ages,
}

/// The counts of a pass for one kind. Each entry counts in one of `current`, `behind`, `dif_gone`,
/// `failed` and `unbuilt`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct KindTally {
    /// Entries that are current.
    pub current: u64,
    /// Entries that are outdated.
    pub behind: u64,
    /// Entries that are outdated and whose DIF no longer exists.
    pub dif_gone: u64,
    /// Entries without a ready state, or without a current one, by cause.
    pub failed: BTreeMap<String, u64>,
    /// Entries without a result yet.
    pub unbuilt: u64,
    /// Entries that keep a state of a lower version next to the newer one.
    pub older: u64,
    /// Entries whose build request waits in the refresh queue.
    #[serde(alias = "in_lane")]
    pub in_queue: u64,
    /// The bytes of their blobs.
    pub bytes: u64,
}

impl Tally {
    /// Counts an entry. Of entries of sources that a request defined, only the bytes count.
    pub fn count(&mut self, entry: &Entry, numbers: &BuildNumbers, now: Timestamp) {
        let bytes = entry_bytes(entry);
        self.ages.add(now.since(entry.last_used_at), bytes);
        if entry.module.source.is_defined() {
            return;
        }
        let kind = self.kinds.entry(counted_as(entry.kind)).or_default();
        match standing(entry, numbers, now) {
            Standing::Current => kind.current += 1,
            Standing::Behind => kind.behind += 1,
            Standing::DifGone => kind.dif_gone += 1,
            Standing::Failed(cause) => {
                *kind.failed.entry(cause.as_str().to_owned()).or_default() += 1;
            }
            Standing::Unbuilt => kind.unbuilt += 1,
        }
        kind.older += u64::from(entry.older.is_some());
        let in_queue = |queue| queue == super::Queue::Refresh && entry.live_request(now).is_some();
        kind.in_queue += u64::from(
            entry
                .build_request
                .as_ref()
                .is_some_and(|build_request| in_queue(build_request.queue)),
        );
        kind.bytes += bytes;
    }

    /// Counts a copy of a DIF.
    pub fn count_copy(&mut self, copy: &DifCopy, now: Timestamp) {
        self.copies += 1;
        self.copy_ages.add(now.since(copy.last_used_at), copy.bytes);
    }

    /// Adds other counts to these.
    pub fn merge(&mut self, other: &Self) {
        for (name, other) in &other.kinds {
            let KindTally {
                current,
                behind,
                dif_gone,
                failed,
                unbuilt,
                older,
                in_queue,
                bytes,
            } = other;
            let kind = self.kinds.entry(name.clone()).or_default();
            kind.current += current;
            kind.behind += behind;
            kind.dif_gone += dif_gone;
            for (cause, count) in failed {
                *kind.failed.entry(cause.clone()).or_default() += count;
            }
            kind.unbuilt += unbuilt;
            kind.older += older;
            kind.in_queue += in_queue;
            kind.bytes += bytes;
        }
        self.uploads += other.uploads;
        self.ages.merge(&other.ages);
        self.copies += other.copies;
        self.copy_ages.merge(&other.copy_ages);
    }

    /// Returns the number of outdated entries.
    pub fn behind(&self) -> u64 {
        self.kinds.values().map(|kind| kind.behind).sum()
    }
}

/// Returns the text that a kind is counted under. Uploads can name any number of versions of
/// Microsoft's SymCaches. These count as one kind, so that no upload can make the tally exceed its
/// item.
fn counted_as(kind: Kind) -> String {
    if kind.is_opaque() {
        "mssymcache".to_owned()
    } else {
        kind.to_string()
    }
}

/// Returns the bytes of the blobs that an entry names.
pub fn entry_bytes(entry: &Entry) -> u64 {
    entry.states().map(|ready| ready.blob.bytes).sum()
}

/// A histogram of bytes by the time since the last use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ages(Vec<u64>);

/// The lower bounds of the buckets of the histogram, in hours; the last bucket has no upper bound.
const AGE_HOURS: [u64; 20] = [
    0, 2, 3, 4, 6, 8, 12, 16, 24, 36, 48, 72, 96, 120, 144, 168, 240, 336, 720, 2160,
];

/// The lower bound of the second bucket. Lower ages cannot be distinguished, because a use is
/// recorded once per hour.
const YOUNGEST: Duration = Duration::from_secs(AGE_HOURS[1] * 3600);

impl Ages {
    fn add(&mut self, age: Duration, bytes: u64) {
        let hours = age.as_secs() / 3600;
        let bucket = AGE_HOURS.partition_point(|begin| *begin <= hours) - 1;
        self.0.resize(AGE_HOURS.len(), 0);
        self.0[bucket] += bytes;
    }

    fn merge(&mut self, other: &Self) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        for (bytes, other) in self.0.iter_mut().zip(&other.0) {
            *bytes += other;
        }
    }

    /// Returns the total bytes.
    pub fn bytes(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the buckets that are not empty: the lower bound of each in hours, and its bytes.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let buckets = AGE_HOURS.into_iter().zip(self.0.iter().copied());
        buckets.filter(|(_, bytes)| *bytes > 0)
    }

    /// Returns what must be evicted for the rest to fit into `budget` bytes (0: no limit); `None`
    /// if everything fits.
    ///
    /// `counted_at` is when the ages were counted. Nothing that was used within the two hours
    /// before is evicted, whatever the budget.
    pub fn cut(&self, budget: u64, counted_at: Timestamp) -> Option<EvictionCut> {
        let budget = Some(budget).filter(|budget| *budget > 0)?;
        let mut excess = self
            .bytes()
            .checked_sub(budget)
            .filter(|bytes| *bytes > 0)?;
        let used_before = |hours: u64| {
            let at = counted_at.as_secs().saturating_sub(hours * 3600);
            Timestamp::from_secs(at)
        };
        let mut all_before = Timestamp::default();
        let buckets = self.buckets().collect::<Vec<_>>().into_iter().rev();
        for (begin, bytes) in buckets.filter(|(begin, _)| begin * 3600 >= YOUNGEST.as_secs()) {
            if bytes >= excess {
                return Some(EvictionCut {
                    all_before,
                    some_before: used_before(begin),
                    some_bytes: excess,
                });
            }
            excess -= bytes;
            all_before = used_before(begin);
        }
        Some(EvictionCut {
            all_before,
            some_before: all_before,
            some_bytes: 0,
        })
    }
}

/// What a byte budget evicts: the least recently used first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvictionCut {
    /// Everything that was last used at this time or before is evicted.
    pub all_before: Timestamp,
    /// Of what was last used after `all_before` and until this time, only as much is evicted as is
    /// needed.
    pub some_before: Timestamp,
    /// The bytes that still have to be freed by evicting from that interval.
    pub some_bytes: u64,
}

impl EvictionCut {
    /// Returns the cut-off for an item with this size and last use: it is evicted if it was last
    /// used at that time or before. `None` if it stays.
    pub fn applies(&self, last_used_at: Timestamp, bytes: u64) -> Option<Timestamp> {
        if bytes == 0 {
            return None;
        }
        if last_used_at <= self.all_before {
            Some(self.all_before)
        } else if last_used_at <= self.some_before && self.some_bytes > 0 {
            Some(self.some_before)
        } else {
            None
        }
    }

    /// Records that an item with this size and last use was evicted.
    pub fn freed(&mut self, last_used_at: Timestamp, bytes: u64) {
        if last_used_at > self.all_before {
            self.some_bytes = self.some_bytes.saturating_sub(bytes);
        }
    }
}

/// An entry that is outdated, or whose rebuild was requested for that reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Behind {
    /// The module.
    #[serde(flatten)]
    pub module: ModuleKey,
    /// The kind.
    pub kind: Kind,
    /// When the entry was last used.
    pub last_used_at: Timestamp,
    /// The id of the build request, if there is one.
    #[serde(default, rename = "ask", skip_serializing_if = "Option::is_none")]
    pub build_request: Option<Token>,
}

impl Behind {
    /// Returns an entry's line in a manifest.
    pub fn of(entry: &Entry) -> Self {
        Self {
            module: entry.module.clone(),
            kind: entry.kind,
            last_used_at: entry.last_used_at,
            build_request: None,
        }
    }

    /// Returns the entry's key.
    pub fn key(&self) -> ItemKey {
        self.module.entry(self.kind)
    }

    fn bytes(&self) -> usize {
        let ModuleKey {
            scope,
            source,
            id: module,
        } = &self.module;
        BEHIND_BYTES + scope.as_str().len() + source.to_string().len() + module.len()
    }
}

/// Entries in the order of their last use, most recent first. A stored manifest is spread over
/// several items, each of which is a manifest of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// When it was written.
    pub at: Timestamp,
    /// The entries.
    pub entries: Vec<Behind>,
}

impl Manifest {
    /// Adds an entry. Drops the least recently used ones if the list has grown too long.
    pub fn add(&mut self, behind: Behind) {
        self.entries.push(behind);
        if self.entries.len() >= 2 * MANIFEST_ITEMS * MANIFEST_ENTRIES {
            self.trim();
        }
    }

    /// Sorts the entries, and drops those that do not fit into the items.
    pub fn trim(&mut self) {
        self.entries
            .retain(|behind| behind.bytes() <= MANIFEST_BYTES);
        self.entries
            .sort_by_key(|behind| std::cmp::Reverse(behind.last_used_at));
        let room = self.lengths().into_iter().sum();
        self.entries.truncate(room);
    }

    /// Splits the manifest into the items that store it.
    pub fn into_items(mut self) -> Vec<Self> {
        self.trim();
        let (at, lengths) = (self.at, self.lengths());
        let mut entries = self.entries.into_iter();
        let mut item = |length| Self {
            at,
            entries: entries.by_ref().take(length).collect(),
        };
        lengths.into_iter().map(&mut item).collect()
    }

    /// Joins the items of a stored manifest.
    pub fn from_items(items: impl IntoIterator<Item = Self>) -> Self {
        let mut items = items.into_iter();
        let mut whole = items.next().unwrap_or_default();
        whole.entries.extend(items.flat_map(|item| item.entries));
        whole
    }

    /// Returns how many of the entries, in their order, each item holds.
    fn lengths(&self) -> Vec<usize> {
        let mut lengths = Vec::new();
        let mut bytes = 0;
        for behind in &self.entries {
            bytes += behind.bytes();
            let items = lengths.len();
            match lengths.last_mut() {
                Some(length) if *length < MANIFEST_ENTRIES && bytes <= MANIFEST_BYTES => {
                    *length += 1;
                }
                _ if items == MANIFEST_ITEMS => break,
                _ => {
                    lengths.push(1);
                    bytes = behind.bytes();
                }
            }
        }
        lengths
    }
}

/// The results of the build requests of the previous pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Drained {
    /// Build requests that are complete.
    pub answered: u64,
    /// Build requests that are still pending.
    pub standing: u64,
    /// The time since they were sent, in seconds.
    pub seconds: u64,
    /// The time from the requests until the last resulting cache was published, in seconds, if
    /// a cache was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<u64>,
}

impl Drained {
    /// Compares build requests with their entries; `None` is an entry that no longer exists.
    pub fn of<'a>(
        asked: &Manifest,
        entries: impl IntoIterator<Item = Option<&'a Entry>>,
        now: Timestamp,
    ) -> Self {
        let mut drained = Self::default();
        if asked.entries.is_empty() {
            return drained;
        }
        drained.seconds = now.since(asked.at).as_secs();
        for (behind, entry) in asked.entries.iter().zip(entries) {
            let build_request = entry.and_then(|entry| {
                entry
                    .build_request
                    .as_ref()
                    .map(|build_request| (entry, build_request))
            });
            match build_request.filter(|(_, build_request)| {
                Some(&build_request.id) == behind.build_request.as_ref()
            }) {
                None => {
                    drained.answered += 1;
                    let ready = entry.and_then(|entry| entry.ready.as_ref());
                    let published = ready.map(|ready| ready.derived_at);
                    let published = published.filter(|published| *published >= asked.at);
                    let after = published.map(|published| published.since(asked.at).as_secs());
                    drained.busy = drained.busy.max(after);
                }
                Some((entry, _)) if entry.live_request(now).is_some() => drained.standing += 1,
                // The message is assumed to be lost.
                Some(_) => {}
            }
        }
        drained
    }

    /// Returns how many builds to request now, so that as many are pending as the queue completed
    /// since the last pass. If it completed all of them, as many as it could have completed at that
    /// rate in the whole time.
    pub fn quota(&self) -> usize {
        let to_count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let (answered, standing) = (to_count(self.answered), to_count(self.standing));
        if standing > 0 {
            return answered.saturating_sub(standing);
        }
        let growth = match self.busy {
            Some(busy) => (self.seconds / busy.max(1)).clamp(1, MOST_GROWTH),
            None => 2,
        };
        answered
            .saturating_mul(to_count(growth))
            .max(FIRST_REQUESTS)
    }

    /// Estimates when this many outdated entries will be rebuilt.
    pub fn estimate(&self, behind: u64, now: Timestamp) -> Estimate {
        match (behind, self.answered, self.standing) {
            (0, ..) => Estimate::Complete,
            (_, 0, 0) => Estimate::Unknown {
                reason: "no build was requested yet: the next pass requests some".to_owned(),
            },
            (_, 0, standing) => Estimate::Unknown {
                reason: format!(
                    "none of {standing} build requests was completed since the last pass"
                ),
            },
            (behind, answered, _) => {
                // If the queue completed all requests early, the next pass requests more.
                let most = MANIFEST_ITEMS * MANIFEST_ENTRIES;
                let next = self.busy.map_or(0, |_| self.quota().min(most));
                let rate = answered.max(u64::try_from(next).unwrap_or(answered));
                let seconds = behind.saturating_mul(self.seconds.max(1)) / rate;
                Estimate::At {
                    expected_at: now.plus(Duration::from_secs(seconds)),
                }
            }
        }
    }
}

/// The expected end of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(tag = "estimate", rename_all = "snake_case")]
pub enum Estimate {
    /// The rollout is complete.
    Complete,
    /// The rollout completes at this time, at the rate of the last pass.
    At {
        /// The expected time.
        expected_at: Timestamp,
    },
    /// The end cannot be estimated yet.
    Unknown {
        /// The reason.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::super::change::examples::{
        BEGIN, Offer, after, built, dif, entry, entry_of_a_symbol_server, fail, take, then, token,
    };
    use super::*;
    use crate::cache::{Change, Converter};

    const NUMBERS: BuildNumbers = BuildNumbers::CURRENT;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    fn ready(change: impl FnOnce(&mut Ready)) -> Entry {
        let mut entry = built(NUMBERS.symcache, Offer::Debug, &dif("a"));
        change(entry.ready.as_mut().unwrap());
        entry
    }

    fn left(entry: Entry, by: Converter) -> Entry {
        let left_by = Some(by);
        Entry { left_by, ..entry }
    }

    fn failed(mut with: Entry, cause: Cause, converter: Converter) -> Entry {
        let failed = then(&then(&entry(), &take(1), 0), &fail(1, cause, &[]), 0);
        with.missing = failed.missing;
        with.missing.as_mut().unwrap().converter = converter;
        with
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

    fn aged(hours_and_bytes: &[(u64, u64)]) -> Ages {
        let mut ages = Ages::default();
        for (hours, bytes) in hours_and_bytes {
            ages.add(Duration::from_secs(hours * 3600), *bytes);
        }
        ages
    }

    #[test]
    fn a_budget_removes_the_least_recently_used_first_and_no_more_than_necessary() {
        let now = at(1_000 * 3600);
        let hours_ago = |hours: u64| at((1_000 - hours) * 3600);
        let ages = aged(&[(0, 100), (5, 20), (30, 50), (100, 30)]);
        assert_eq!(ages.bytes(), 200);
        assert_eq!(ages.cut(200, now), None);
        let cut = |budget| ages.cut(budget, now).unwrap();
        let never = Timestamp::default();
        for (budget, all_before, some_before, some_bytes) in [
            (199, never, hours_ago(96), 1),
            (170, never, hours_ago(96), 30),
            (169, hours_ago(96), hours_ago(24), 1),
            (101, hours_ago(24), hours_ago(4), 19),
            // What was used recently is kept.
            (50, hours_ago(4), hours_ago(4), 0),
        ] {
            let expected = EvictionCut {
                all_before,
                some_before,
                some_bytes,
            };
            assert_eq!(cut(budget), expected, "{budget}");
        }
    }

    #[test]
    fn an_eviction_spares_later_uses_and_stops_when_enough_is_freed() {
        let mut cut = EvictionCut {
            all_before: at(50),
            some_before: at(100),
            some_bytes: 15,
        };
        assert_eq!(cut.applies(at(100), 10), Some(at(100)));
        cut.freed(at(100), 10);
        assert_eq!(cut.applies(at(100), 10), Some(at(100)));
        assert_eq!(cut.some_bytes, 5);
        cut.freed(at(100), 10);
        assert_eq!(cut.applies(at(100), 10), None);
        assert_eq!(cut.applies(at(50), 10), Some(at(50)));
        assert_eq!(cut.applies(at(50), 0), None);
        cut.some_bytes = 1;
        assert_eq!(cut.applies(at(101), 10), None);
    }

    #[test]
    fn as_many_builds_are_requested_as_the_queue_processed() {
        let quota = |answered, standing, busy| {
            let drained = Drained {
                answered,
                standing,
                seconds: 3600,
                busy,
            };
            drained.quota()
        };
        assert_eq!(quota(0, 0, None), FIRST_REQUESTS);
        assert_eq!(quota(2, 0, Some(1)), FIRST_REQUESTS);
        assert_eq!(quota(1000, 100, None), 900);
        assert_eq!(quota(1000, 100, Some(3500)), 900);
        assert_eq!(quota(10, 30, None), 0);
        assert_eq!(quota(0, 1, None), 0);
        // All were completed, with or without time to spare.
        assert_eq!(quota(1000, 0, None), 2000);
        assert_eq!(quota(1000, 0, Some(900)), 4000);
        assert_eq!(quota(1000, 0, Some(3599)), 1000);
        assert_eq!(quota(1000, 0, Some(0)), 16_000);
    }

    /// Finding P22 in `docs/protocol.md`.
    #[test]
    fn the_last_requested_cache_says_how_long_the_queue_was_busy() {
        let asked = |entry: &Entry| Behind {
            build_request: Some(Token::from_random(1)),
            ..Behind::of(entry)
        };
        let made_after = |seconds: u64| {
            let at = BEGIN.plus(Duration::from_secs(seconds));
            ready(|ready| ready.derived_at = at)
        };
        let entries = [made_after(30), made_after(200), entry()];
        let requests = Manifest {
            at: BEGIN,
            entries: entries.iter().map(asked).collect(),
        };
        let now = BEGIN.plus(Duration::from_secs(3600));
        let drained = Drained::of(&requests, entries.iter().map(Some), now);
        assert_eq!((drained.answered, drained.busy), (3, Some(200)));
        let never = Drained::of(&requests, entries.iter().map(|_| None), now);
        assert_eq!((never.answered, never.busy), (3, None));
    }

    #[test]
    fn a_rollout_is_estimated_from_the_last_pass_or_says_why_not() {
        let drained = |answered, standing| Drained {
            answered,
            standing,
            seconds: 3600,
            busy: None,
        };
        let unknown = |estimate| matches!(estimate, Estimate::Unknown { .. });
        assert_eq!(drained(0, 0).estimate(0, at(0)), Estimate::Complete);
        assert!(unknown(drained(0, 0).estimate(1, at(0))));
        assert!(unknown(drained(0, 9).estimate(1, at(0))));
        assert_eq!(
            drained(100, 0).estimate(250, at(1000)),
            Estimate::At {
                expected_at: at(10_000)
            }
        );
        // The queue needed half of the time: the next pass requests twice as many.
        let early = Drained {
            busy: Some(1800),
            ..drained(1000, 0)
        };
        assert_eq!(
            early.estimate(20_000, at(1000)),
            Estimate::At {
                expected_at: at(37_000)
            }
        );
    }

    #[test]
    fn a_manifest_keeps_the_most_recently_used_that_fit() {
        let behind = |number: u64, module: String| {
            let mut line = Behind::of(&entry());
            line.last_used_at = at(number);
            line.module.id = module;
            line
        };
        let mut manifest = Manifest {
            at: at(7),
            entries: Vec::new(),
        };
        for number in 0..60_000 {
            manifest.add(behind(number, "debug_id".to_owned()));
        }
        manifest.trim();
        assert_eq!(manifest.entries.len(), MANIFEST_ITEMS * MANIFEST_ENTRIES);
        assert_eq!(manifest.entries[0].last_used_at, at(59_999));
        for number in 60_000..60_100 {
            manifest.add(behind(number, "x".repeat(10_000)));
        }
        manifest.add(behind(99_999, "x".repeat(MANIFEST_BYTES)));
        manifest.trim();
        assert_eq!(manifest.entries[0].last_used_at, at(60_099));
        let items = manifest.clone().into_items();
        assert_eq!(items.len(), MANIFEST_ITEMS);
        for item in &items {
            let json = serde_json::to_vec(item).unwrap();
            assert!(json.len() < 400 << 10, "{}", json.len());
            assert!(item.entries.len() <= MANIFEST_ENTRIES && item.at == at(7));
        }
        assert_eq!(Manifest::from_items(items), manifest);
        assert_eq!(Manifest::default().into_items(), []);
    }

    /// Finding L6 in `docs/protocol.md`.
    #[test]
    fn uploads_that_name_five_thousand_versions_do_not_make_the_tally_larger() {
        let mut tally = Tally::default();
        for major in 3..5003 {
            let mut entry = ready(|_| {});
            entry.kind = Kind::MsSymCache(major);
            tally.count(&entry, &NUMBERS, BEGIN);
        }
        assert_eq!(tally.kinds["mssymcache"].current, 5000);
        let json = serde_json::to_vec(&tally).unwrap();
        assert!(json.len() < 1000, "{}", json.len());
    }

    #[test]
    fn tallies_of_segments_add_up() {
        let entries = [
            ready(|_| {}),
            ready(|ready| ready.converter = Converter(0)),
            failed(entry(), Cause::Malformed, Converter::CURRENT),
            entry(),
        ];
        let (mut whole, mut parts) = (Tally::default(), Tally::default());
        for entry in &entries {
            whole.count(entry, &NUMBERS, BEGIN);
            let mut part = Tally::default();
            part.count(entry, &NUMBERS, BEGIN);
            parts.merge(&part);
        }
        assert_eq!(whole, parts);
        let kind = &whole.kinds["symcache"];
        assert_eq!(
            (
                kind.current,
                kind.behind,
                kind.failed["malformed"],
                kind.unbuilt
            ),
            (1, 1, 1, 1)
        );
        assert_eq!(whole.ages.bytes(), kind.bytes);
    }
}
