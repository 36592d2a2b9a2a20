//! The stores that all instances share, and the ledger of what happened to them.
//!
//! The ledger checks each write: what `docs/protocol.md` says always holds.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use symdepot::adapters::faulty::Operation;
use symdepot::adapters::memory::{MemoryBlobs, MemoryDifs, MemoryQueues, MemoryRecords};
use symdepot::cache::{
    Capabilities, Entry, Item, ItemKey, Kind, Ready, Revision, SCHEMA, Stored, UploadState,
};
use symdepot::domain::{Location, Sequencer};
use symdepot::flows::Settings;
use symdepot::ports::{
    BlobStore, Created, Fault, NotDeleted, QueueMessage, Queues, ReconcileMessage, RecordStore,
    Removed, Replaced,
};

use super::checks::{Published, UnchangedBuilds};
use super::coverage::{Coverage, Mixture};
use super::describe::{self, Labels};
use super::fleet::Function;
use super::index::Index;
use super::mistakes::Mistake;
use super::releases::Release;
use super::trace::Trace;
use super::{Moment, Plan, index, servers, timestamp};

/// How long former items are kept, for reads that return the past.
const PAST: Duration = Duration::from_secs(10);

/// Who calls a port.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    /// The name of the instance.
    pub(super) instance: Arc<str>,
    /// The id of its invocation.
    pub(super) invocation: Arc<str>,
    /// The release that it runs.
    pub(super) release: Release,
    /// Its function.
    pub(super) function: Function,
    /// Whether it has the symbol server that is configured later.
    pub(super) is_configured: bool,
}

/// What broke, in a run that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The property, as `docs/protocol.md` names it.
    pub property: &'static str,
    /// What was seen.
    pub detail: String,
}

/// How often something happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Steps of the scheduler.
    pub steps: u64,
    /// Caches that were derived.
    pub builds: u64,
    /// Messages that were sent.
    pub messages: u64,
    /// Items that were written.
    pub writes: u64,
    /// Requests that were answered with a result.
    pub answers: u64,
    /// Requests that ended as pending.
    pub pending: u64,
    /// Invocations that ended with an error.
    pub errors: u64,
    /// Calls with an injected fault.
    pub faults: u64,
    /// Instances that were killed.
    pub kills: u64,
    /// Instances that were frozen.
    pub freezes: u64,
    /// Messages that were received too often.
    pub dead_letters: u64,
    /// Caches that were derived in the end, when nothing changed any more.
    pub last_builds: u64,
    /// Messages that were sent in the end.
    pub last_messages: u64,
    /// Items that were written in the end.
    pub last_writes: u64,
}

impl Counts {
    fn each(&mut self) -> [(&'static str, &mut u64); 14] {
        let Self {
            steps,
            builds,
            messages,
            writes,
            answers,
            pending,
            errors,
            faults,
            kills,
            freezes,
            dead_letters,
            last_builds,
            last_messages,
            last_writes,
        } = self;
        [
            ("steps", steps),
            ("caches derived", builds),
            ("messages sent", messages),
            ("items written", writes),
            ("requests answered", answers),
            ("requests left pending", pending),
            ("invocations that failed", errors),
            ("faults of calls", faults),
            ("instances killed", kills),
            ("instances frozen", freezes),
            ("dead letters", dead_letters),
            ("caches derived in the end", last_builds),
            ("messages sent in the end", last_messages),
            ("items written in the end", last_writes),
        ]
    }

    /// Adds the counts of another run.
    pub(super) fn add(&mut self, mut other: Self) {
        for ((_, sum), (_, count)) in self.each().into_iter().zip(other.each()) {
            *sum += *count;
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut counts = *self;
        let each = counts
            .each()
            .map(|(name, count)| format!("{name}: {count}"));
        f.write_str(&each.join(", "))
    }
}

/// What is known about the whole run.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) now: Moment,
    pub(super) trace: Trace,
    pub(super) labels: Labels,
    pub(super) counts: Counts,
    pub(super) coverage: Coverage,
    pub(super) index: Index,
    /// The calls of each function.
    pub(super) calls: BTreeMap<(Function, Operation), u64>,
    pub(super) failure: Option<Failure>,
    /// Whether there was a deploy.
    pub(super) has_deployed: bool,
    /// Blobs that were damaged on purpose.
    pub(super) damaged: Vec<String>,
    /// Events that the product applied: the key, the sequencer and the time.
    pub(super) applied: Vec<(String, Sequencer, Moment)>,
    /// A blob that is stored late, if that is the planted mistake.
    late: Option<(String, Bytes)>,
    /// Counts what symbol servers say.
    pub(super) drawn: u64,
    /// Whether readers may get other bytes than are stored.
    pub(super) garbles_reads: bool,
    /// When the blob of an entry was last replaced because readers could not read it.
    pub(super) replaced: BTreeMap<ItemKey, Moment>,
    /// When a response last had a name of a module, by the partition of the module.
    pub(super) used: BTreeMap<String, Moment>,
    /// The last builds that ended with a ready state.
    pub(super) published: BTreeMap<ItemKey, Published>,
    /// The builds of entries that ended without a change.
    pub(super) unchanged_builds: BTreeMap<ItemKey, UnchangedBuilds>,
    /// The revisions of items that were written with a schema of the newer release.
    newer: HashSet<Revision>,
    past: BTreeMap<ItemKey, VecDeque<(Moment, Option<Stored>)>>,
}

impl Ledger {
    /// Returns the mixture of releases in which one acts.
    pub(super) fn mixture(&self, release: Release) -> Mixture {
        Mixture::of(self.has_deployed, release)
    }

    /// Adds a line to the trace. The line is made only if lines are kept.
    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        self.trace.add(self.now, line);
    }

    /// Records that a property does not hold. Only the first failure counts.
    pub(super) fn fail(&mut self, property: &'static str, detail: String) {
        self.note(|| format!("FAILED: {property}: {detail}"));
        self.failure.get_or_insert(Failure { property, detail });
    }
}

/// The stores that all instances share.
#[derive(Debug)]
pub(super) struct Stores {
    pub(super) records: MemoryRecords,
    pub(super) caches: MemoryBlobs,
    pub(super) uploads: MemoryDifs,
    pub(super) queues: MemoryQueues,
    pub(super) mistake: Option<Mistake>,
    /// The module that is sought at each location of a symbol server.
    pub(super) locations: BTreeMap<Location, usize>,
    /// What each release can read and make.
    capabilities: [Capabilities; 2],
    /// The time without use after which a cache is removed, if no other reason removes it and each
    /// use is recorded.
    pub(super) kept_for: Option<Duration>,
    ledger: Mutex<Ledger>,
}

impl Stores {
    pub(super) fn new(plan: &Plan, trace: Trace) -> Self {
        Self {
            records: MemoryRecords::new(),
            caches: MemoryBlobs::new(),
            uploads: MemoryDifs::new(),
            queues: MemoryQueues::new(),
            mistake: plan.mistake,
            locations: if plan.has_servers {
                servers::locations(plan.modules)
            } else {
                BTreeMap::new()
            },
            capabilities: Release::ALL.map(|release| {
                let mut settings = Settings::default();
                settings.policy.numbers = release.numbers(plan.difference);
                settings.capabilities()
            }),
            kept_for: plan.kept_for(),
            ledger: Mutex::new(Ledger {
                trace,
                garbles_reads: plan.garbles_reads,
                ..Ledger::default()
            }),
        }
    }

    /// Returns the ledger. The guard must not be held during a call to these stores.
    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Moment {
        self.ledger().now
    }

    /// Sets the time.
    pub(super) fn set_now(&self, now: Moment) {
        self.ledger().now = now;
        let at = timestamp(now);
        self.caches.set_now(at);
        self.uploads.set_now(at);
    }

    /// Returns every entry.
    pub(super) fn entries(&self) -> Vec<Entry> {
        let items = self.records.items().into_iter();
        let entries = items.filter_map(|(_, stored)| match stored.item {
            Item::Entry(entry) => Some(entry),
            _ => None,
        });
        entries.collect()
    }

    /// Reads items as they were `age` ago.
    pub(super) fn load(
        &self,
        writer: &Writer,
        keys: &[ItemKey],
        age: Duration,
    ) -> Vec<Option<Stored>> {
        let ledger = self.ledger();
        let at = ledger.now.saturating_sub(age);
        let as_of = |key: &ItemKey| {
            let former = ledger.past.get(key).into_iter().flatten();
            let mut former = former.filter(|(replaced_at, _)| !age.is_zero() && *replaced_at > at);
            match former.next() {
                Some((_, stored)) => stored.clone(),
                None => self.records.peek(key),
            }
        };
        let loaded = keys.iter().map(as_of).collect();
        match self.mistake {
            Some(mistake) => {
                drop(ledger);
                mistake.loaded(self, writer, keys, loaded)
            }
            None => loaded,
        }
    }

    /// Returns an item as a release reads it.
    pub(super) fn seen(&self, release: Release, stored: Stored) -> Stored {
        if self.is_beyond(release, &stored) {
            Stored {
                item: Item::Newer { schema: SCHEMA + 1 },
                ..stored
            }
        } else {
            stored
        }
    }

    /// Returns whether a release may not replace or remove the stored item.
    fn protects(&self, release: Release, present: Option<&Stored>) -> bool {
        present.is_some_and(|present| self.is_beyond(release, present))
    }

    /// Returns whether an item has a newer schema than a release reads.
    pub(super) fn is_beyond(&self, release: Release, stored: &Stored) -> bool {
        let is_trusted = self.mistake == Some(Mistake::NewerItemsAreTrusted);
        !is_trusted && !release.reads(SCHEMA + 1) && self.ledger().newer.contains(&stored.revision)
    }

    /// Counts what a reader decides about the entries that it has read.
    pub(super) fn decide(&self, release: Release, keys: &[ItemKey], loaded: &[Option<Stored>]) {
        let reader = &self.capabilities[release as usize];
        let mut ledger = self.ledger();
        let now = timestamp(ledger.now);
        let each = keys.iter().zip(loaded);
        for (_, stored) in each.filter(|(key, _)| Kind::from_text(&key.sort).is_some()) {
            let entry = stored.as_ref().and_then(|stored| stored.item.entry());
            let mixture = ledger.mixture(release);
            ledger.coverage.decision(mixture, entry, reader, now);
        }
    }

    /// Writes an item, and checks what changed.
    pub(super) fn replace(
        &self,
        writer: &Writer,
        key: &ItemKey,
        expected: Option<&Revision>,
        next: &Stored,
    ) -> Result<Replaced, Fault> {
        let before = self.records.peek(key);
        if before.as_ref().map(|before| &before.revision) == Some(&next.revision) {
            return Ok(Replaced::Done); // The client repeats its write.
        }
        if self.protects(writer.release, before.as_ref()) {
            return Ok(Replaced::Lost(before));
        }
        let mut next = next.clone();
        let mut expected = expected.cloned();
        if let Some(mistake) = self.mistake {
            if let Some(fault) = mistake.refusal(&next.item) {
                return Err(fault);
            }
            let present = before.as_ref().map(|before| &before.item);
            if mistake.forgets_write(self, present, &next.item) {
                return Ok(Replaced::Done);
            }
            next.item = mistake.altered(before.as_ref().map(|before| &before.item), next.item);
            if mistake.ignores_revision(&next.item) {
                expected = before.as_ref().map(|before| before.revision.clone());
            }
        }
        let replaced = ready_now(self.records.replace(key, expected.as_ref(), &next))?;
        if replaced == Replaced::Done {
            self.check_schema(writer, key, before.as_ref());
            let mut ledger = self.ledger();
            ledger.counts.writes += 1;
            if writer.release.schema(&next.item) > SCHEMA {
                ledger.newer.insert(next.revision.clone());
            }
            ledger.changed(key, before.as_ref(), Some(&next));
            ledger.remember(key, before.clone());
            if let Item::Upload(upload) = &next.item
                && upload.state != UploadState::Pending
            {
                let applied = (upload.key.clone(), upload.sequencer.clone(), ledger.now);
                ledger.applied.push(applied);
            }
            drop(ledger);
            if let Item::Entry(entry) = &next.item {
                let before = before.as_ref().and_then(|before| before.item.entry());
                self.check_entry(writer, key, before, entry);
                if self.mistake == Some(Mistake::SuspectsOfOthersAreRemoved) {
                    self.remove_suspects(writer, key);
                }
            }
        } else if self.mistake == Some(Mistake::LostRacesCountAsDone) {
            return Ok(Replaced::Done);
        }
        Ok(replaced)
    }

    /// Removes the suspect states of the other kinds of a module: a planted mistake.
    fn remove_suspects(&self, writer: &Writer, key: &ItemKey) {
        let items = ready_now(self.records.query(&key.partition)).unwrap_or_default();
        for (other, stored) in items.into_iter().filter(|(other, _)| other != key) {
            let Some(before) = stored.item.entry() else {
                continue;
            };
            let Some(entry) = Mistake::without_suspect(before) else {
                continue;
            };
            self.check_entry(writer, &other, Some(before), &entry);
            let next = Stored {
                item: Item::Entry(entry),
                ..stored.clone()
            };
            let replaced = ready_now(self.records.replace(&other, Some(&stored.revision), &next));
            if matches!(replaced, Ok(Replaced::Done)) {
                self.ledger().changed(&other, Some(&stored), Some(&next));
            }
        }
    }

    /// Checks that the item that was replaced or removed just now has no schema that the release
    /// does not read: it would have dropped what it does not know.
    fn check_schema(&self, writer: &Writer, key: &ItemKey, before: Option<&Stored>) {
        let mut ledger = self.ledger();
        let is_newer = before.is_some_and(|before| ledger.newer.contains(&before.revision));
        if is_newer && !writer.release.reads(SCHEMA + 1) {
            let (key, by) = (ledger.labels.key(key), &writer.instance);
            let property = "a release changes no item of a newer schema";
            ledger.fail(property, format!("{by} changes {key}"));
        }
    }

    /// Removes an item.
    pub(super) fn remove(
        &self,
        writer: &Writer,
        key: &ItemKey,
        expected: &Revision,
    ) -> Result<Removed, Fault> {
        let before = self.records.peek(key);
        if let Some(present) = before
            .clone()
            .filter(|_| self.protects(writer.release, before.as_ref()))
        {
            return Ok(Removed::Lost(present));
        }
        if let (Some(mistake), Some(before)) = (self.mistake, &before)
            && mistake.forgets_removal(&before.item)
        {
            return Ok(Removed::Done);
        }
        let mut expected = expected.clone();
        if self.mistake == Some(Mistake::PresencesAreRemovedUnfenced)
            && let Some(present) = &before
            && matches!(present.item, Item::Presence(_))
        {
            expected = present.revision.clone();
        }
        let removed = ready_now(self.records.remove(key, &expected))?;
        if removed == Removed::Done {
            self.check_schema(writer, key, before.as_ref());
        }
        if let (Removed::Done, Some(Item::Entry(entry))) =
            (&removed, before.as_ref().map(|before| &before.item))
        {
            self.check_retired(entry);
            let mut ledger = self.ledger();
            ledger.published.remove(key);
            ledger.replaced.remove(key);
            ledger.unchanged_builds.remove(key);
        }
        if self.mistake == Some(Mistake::PresencesAreRetired)
            && let Some(Item::Entry(entry)) = before.as_ref().map(|before| &before.item)
        {
            let presence = entry.module().presence();
            if let Some(present) = self.records.peek(&presence) {
                ready_now(self.records.remove(&presence, &present.revision))?;
                self.ledger().changed(&presence, Some(&present), None);
            }
        }
        if removed == Removed::Done && before.is_some() {
            let mut ledger = self.ledger();
            ledger.counts.writes += 1;
            ledger.changed(key, before.as_ref(), None);
            ledger.remember(key, before);
        }
        Ok(removed)
    }

    /// Writes a blob.
    pub(super) fn create(&self, path: &str, body: Bytes) -> Result<Created, Fault> {
        match self.mistake {
            Some(Mistake::BlobsAreNotStored) => return Ok(Created::New),
            Some(Mistake::BlobsAreStoredLate) => {
                let late = self.ledger().late.replace((path.to_owned(), body));
                if let Some((path, body)) = late {
                    self.create_now(&path, body)?;
                }
                return Ok(Created::New);
            }
            _ => {}
        }
        self.create_now(path, body)
    }

    fn create_now(&self, path: &str, body: Bytes) -> Result<Created, Fault> {
        let created = ready_now(self.caches.create(path, body))?;
        if created == Created::New {
            let mut ledger = self.ledger();
            let now = ledger.now;
            ledger.index.created(path, now);
        }
        Ok(created)
    }

    /// Reads a blob, or a part of it. One of a few readers may get other bytes.
    pub(super) fn get(
        &self,
        writer: &Writer,
        path: &str,
        range: Option<Range<u64>>,
    ) -> Result<Option<Bytes>, Fault> {
        let found = ready_now(self.caches.get(path, range))?;
        let mut ledger = self.ledger();
        if !ledger.garbles_reads || writer.function != Function::Symbolicate {
            return Ok(found);
        }
        ledger.drawn += 1;
        let is_garbled = ledger.drawn.is_multiple_of(3);
        Ok(found.map(|bytes| {
            if is_garbled {
                bytes.iter().map(|byte| !byte).collect()
            } else {
                bytes
            }
        }))
    }

    /// Removes blobs that no record may name.
    pub(super) fn delete_many(
        &self,
        writer: &Writer,
        paths: &[String],
    ) -> Result<Vec<NotDeleted>, Fault> {
        let named = paths.iter().find(|path| self.ledger().index.names(path));
        if let Some(path) = named {
            let mut user = None;
            self.records.for_each(|key, stored| {
                if index::paths(&stored.item).contains(path) {
                    user = Some((key.clone(), describe::item(&stored.item)));
                }
            });
            let (by, blob) = (&writer.instance, describe::path(path));
            let mut ledger = self.ledger();
            let user = user.map(|(key, text)| format!("{}: {text}", ledger.labels.key(&key)));
            let user = user.unwrap_or_default();
            let detail = format!("{by} deletes {blob}, which is in use: {user}");
            ledger.fail("7: no live blob is deleted", detail);
        }
        let not_deleted = ready_now(self.caches.delete_many(paths))?;
        let mut ledger = self.ledger();
        paths.iter().for_each(|path| ledger.index.deleted(path));
        Ok(not_deleted)
    }

    pub(super) fn send(&self, messages: &[QueueMessage], delay: Duration) -> Result<(), Fault> {
        let messages: Vec<QueueMessage> = match self.mistake {
            Some(mistake) => mistake.sent(messages),
            None => messages.to_vec(),
        };
        self.ledger().counts.messages += messages.len() as u64;
        ready_now(self.queues.send(&messages, delay))
    }

    pub(super) fn reconcile(
        &self,
        message: &ReconcileMessage,
        delay: Duration,
    ) -> Result<(), Fault> {
        self.ledger().counts.messages += 1;
        ready_now(self.queues.reconcile(message, delay))
    }
}

impl Ledger {
    /// Records that an item was written in place of another one, or removed.
    fn changed(&mut self, key: &ItemKey, before: Option<&Stored>, after: Option<&Stored>) {
        let (before, after) = (
            before.map(|stored| &stored.item),
            after.map(|stored| &stored.item),
        );
        self.index.changed(key, before, after, self.now);
    }

    fn remember(&mut self, key: &ItemKey, before: Option<Stored>) {
        let now = self.now;
        let past = self.past.entry(key.clone()).or_default();
        while past.front().is_some_and(|(at, _)| *at + PAST < now) {
            past.pop_front();
        }
        past.push_back((now, before));
    }
}

/// Returns the states of an entry.
pub(super) fn states(entry: &Entry) -> impl Iterator<Item = &Ready> {
    entry.ready().into_iter().chain(entry.older())
}

/// Waits for a call of a memory adapter, which never waits.
pub(super) fn ready_now<T>(call: impl Future<Output = T>) -> T {
    call.now_or_never()
        .unwrap_or_else(|| unreachable!("memory adapters do not wait"))
}
