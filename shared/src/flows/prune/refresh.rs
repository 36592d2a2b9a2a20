//! Requests rebuilds of the entries that the last pass found outdated, at the rate at which the
//! refresh queue is drained.

use std::collections::HashMap;
use std::time::Duration;

use futures::stream::{self, StreamExt};

use super::progress::Progress;
use super::report::described_entry;
use super::run::{CALLS_IN_PARALLEL, Run, RunStep};
use crate::cache::{
    Change, Drained, Entry, Item, Kind, ModuleKey, OutdatedEntry, OutdatedList, Queue,
    wants_refresh,
};
use crate::flows::{Updated, sending};
use crate::ports::{Consistency, Fault, QueueMessage};

/// The number of entries of a list that are loaded together.
const ENTRIES_AT_ONCE: usize = 1000;

/// The number of modules whose messages are sent together. If the function is killed, at most this
/// many build requests have no message.
const MODULES_AT_ONCE: usize = 100;

/// The entries of one module that were requested, and their message.
struct Requested {
    message: QueueMessage,
    entries: Vec<OutdatedEntry>,
}

impl Run<'_> {
    /// Requests rebuilds of outdated entries. Returns what became of the previous requests.
    pub(super) async fn refresh(&self, progress: &mut Progress) -> Drained {
        let now = self.invocation.now();
        let requested = progress.requested.take().unwrap_or_default();
        let outdated = progress.found_in_last_pass.take().unwrap_or_default();
        let entries = match self.entries(&requested.entries).await {
            Ok(entries) => entries,
            Err(error) => {
                // The rate of the queue is unknown: this pass requests nothing, and the next one
                // evaluates the same build requests.
                self.fail(&error);
                return Drained::default();
            }
        };
        let drained = Drained::of(&requested, entries.iter().map(Option::as_ref), now);
        let mut pending = OutdatedList {
            at: now,
            entries: still_pending_of(&requested, &entries),
            ..OutdatedList::default()
        };
        let due = self.due_entries(&outdated, drained.quota()).await;
        for modules in by_module(due).chunks(MODULES_AT_ONCE) {
            if self.is_time_up(RunStep::Refresh) {
                break;
            }
            pending.entries.extend(self.request_builds(modules).await);
        }
        pending.trim();
        progress.requested = Some(pending);
        drained
    }

    /// Returns the entries of a list to request, the most recently used first, and at most `quota`.
    async fn due_entries(&self, outdated: &OutdatedList, quota: usize) -> Vec<Entry> {
        let policy = &self.pruner.settings.policy;
        let mut due = Vec::new();
        for some in outdated.entries.chunks(ENTRIES_AT_ONCE) {
            if due.len() >= quota || self.is_time_up(RunStep::Refresh) {
                break;
            }
            match self.entries(some).await {
                Ok(present) => {
                    let now = self.invocation.now();
                    let present = present.into_iter().flatten();
                    due.extend(present.filter(|entry| wants_refresh(entry, now, policy)));
                }
                Err(error) => self.fail(&error),
            }
        }
        due.truncate(quota);
        due
    }

    /// Requests the entries of some modules. Returns those whose build request was stored.
    async fn request_builds(&self, modules: &[Vec<Entry>]) -> Vec<OutdatedEntry> {
        let requests: Vec<_> = modules
            .iter()
            .map(|entries| self.request_build(entries))
            .collect();
        let requests: Vec<Option<Requested>> = stream::iter(requests)
            .buffer_unordered(CALLS_IN_PARALLEL)
            .collect()
            .await;
        let (messages, requested): (Vec<_>, Vec<_>) = requests
            .into_iter()
            .flatten()
            .map(|Requested { message, entries }| (message, entries))
            .unzip();
        if messages.is_empty() {
            return Vec::new();
        }
        let queues = &*self.pruner.queues;
        let sent = sending::send(queues, self.invocation, messages, Duration::ZERO).await;
        if let Err(error) = sent {
            // A build request without a message expires.
            self.fail(&error);
        }
        let requested: Vec<OutdatedEntry> = requested.into_iter().flatten().collect();
        self.report().requested += requested.len() as u64;
        requested
    }

    /// Requests the kinds of one module with one message, so that its DIF is fetched once.
    async fn request_build(&self, entries: &[Entry]) -> Option<Requested> {
        let id = self.invocation.token();
        let change = Change::RequestBuild {
            id: id.clone(),
            queue: Queue::Refresh,
        };
        let mut requested = Vec::new();
        for entry in entries {
            let (module, kind) = (entry.module(), entry.kind());
            if self.is_dry {
                let to = described_entry(entry);
                let mut report = self.report();
                report.requested += 1;
                report.note_planned("request a build of", to, "it is outdated, and still used");
                continue;
            }
            match self.writer().apply(module, kind, &change).await {
                Ok(Updated::Done(entry)) if entry.is_requested_by(&id) => {
                    requested.push(OutdatedEntry {
                        build_request: Some(id.clone()),
                        ..OutdatedEntry::of(&entry)
                    });
                }
                Ok(Updated::Done(_) | Updated::Refused(..) | Updated::NotDue) => {}
                Err(error) => self.fail(&error),
            }
        }
        let module = requested.first()?.module.clone();
        let converter = self.pruner.settings.policy.numbers.converter;
        let mut kinds: Vec<Kind> = requested.iter().map(|entry| entry.kind).collect();
        kinds.sort_unstable();
        Some(Requested {
            message: QueueMessage::new(Queue::Refresh, module, kinds, id, converter),
            entries: requested,
        })
    }

    /// Returns the stored entries. Eventual consistency suffices, because changing an entry reads
    /// it again.
    async fn entries(&self, list: &[OutdatedEntry]) -> Result<Vec<Option<Entry>>, Fault> {
        let keys: Vec<_> = list.iter().map(OutdatedEntry::key).collect();
        let loaded = self.load(&keys, Consistency::Eventual).await?;
        let entry = |item| match item {
            Item::Entry(entry) => Some(entry),
            _ => None,
        };
        Ok(loaded
            .into_iter()
            .map(|stored| stored.and_then(|stored| entry(stored.item)))
            .collect())
    }
}

/// Groups the entries by module, in the order in which the modules first occur.
fn by_module(entries: Vec<Entry>) -> Vec<Vec<Entry>> {
    let mut modules: Vec<Vec<Entry>> = Vec::new();
    let mut places: HashMap<ModuleKey, usize> = HashMap::new();
    for entry in entries {
        let place = places
            .entry(entry.module().clone())
            .or_insert(modules.len());
        match modules.get_mut(*place) {
            Some(module) => module.push(entry),
            None => modules.push(vec![entry]),
        }
    }
    modules
}

/// Returns the build requests that are still pending.
fn still_pending_of(requested: &OutdatedList, entries: &[Option<Entry>]) -> Vec<OutdatedEntry> {
    let is_pending = |(listed, entry): &(&OutdatedEntry, &Option<Entry>)| {
        let pending = entry.as_ref().and_then(Entry::build_request);
        pending.is_some_and(|pending| Some(&pending.id) == listed.build_request.as_ref())
    };
    let pairs = requested.entries.iter().zip(entries).filter(is_pending);
    pairs.map(|(listed, _)| listed.clone()).collect()
}
