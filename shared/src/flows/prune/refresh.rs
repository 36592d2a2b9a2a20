//! What the last pass found behind is requested for, at the rate at which the refresh lane drains.

use std::collections::HashMap;
use std::time::Duration;

use futures::stream::{self, StreamExt};

use super::progress::Progress;
use super::run::{CALLS_IN_PARALLEL, Run};
use crate::cache::{
    Behind, Change, Drained, Entry, Item, Kind, Manifest, ModuleKey, Queue, wants_refresh,
};
use crate::flows::Updated;
use crate::ports::{Consistency, Fault, QueueMessage};

/// What the asks leave of the run to the walks.
const SHARE_LEFT: f64 = 0.7;

/// Entries of a list that are looked at together.
const ENTRIES_AT_ONCE: usize = 1000;

/// Modules whose messages are sent together: so many are requested for without one if the function is killed.
const MODULES_AT_ONCE: usize = 100;

/// The entries of one module that are requested for.
struct Requested {
    message: QueueMessage,
    entries: Vec<Behind>,
}

impl Run<'_> {
    /// Asks for entries that are behind; returns what became of the asks before.
    pub(super) async fn refresh(&self, progress: &mut Progress) -> Drained {
        let now = self.invocation.now();
        let requested = progress.requested.take().unwrap_or_default();
        let manifest = progress.manifest.take().unwrap_or_default();
        let entries = match self.entries(&requested.entries).await {
            Ok(entries) => entries,
            Err(error) => {
                // Nothing is known of the lane: this pass asks for nothing, and the next one looks at the same asks.
                self.fail(&error);
                return Drained::default();
            }
        };
        let drained = Drained::of(&requested, entries.iter().map(Option::as_ref), now);
        let mut standing = Manifest {
            at: now,
            entries: still_requested(&requested, &entries),
        };
        let wanted = self.wanted(&manifest, drained.quota()).await;
        for modules in by_module(wanted).chunks(MODULES_AT_ONCE) {
            if self.is_time_up(SHARE_LEFT) {
                break;
            }
            standing.entries.extend(self.request_builds(modules).await);
        }
        standing.trim();
        progress.requested = Some(standing);
        drained
    }

    /// Returns the entries of a list that are to be requested for, the most recently used first, and no more than `quota`.
    async fn wanted(&self, manifest: &Manifest, quota: usize) -> Vec<Entry> {
        let policy = &self.pruner.settings.policy;
        let mut wanted = Vec::new();
        for some in manifest.entries.chunks(ENTRIES_AT_ONCE) {
            if wanted.len() >= quota || self.is_time_up(SHARE_LEFT) {
                break;
            }
            match self.entries(some).await {
                Ok(present) => {
                    let now = self.invocation.now();
                    let present = present.into_iter().flatten();
                    wanted.extend(present.filter(|entry| wants_refresh(entry, now, policy)));
                }
                Err(error) => self.fail(&error),
            }
        }
        wanted.truncate(quota);
        wanted
    }

    /// Asks for the entries of some modules; returns the asks.
    async fn request_builds(&self, modules: &[Vec<Entry>]) -> Vec<Behind> {
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
        if let Err(error) = self.pruner.queues.send(&messages, Duration::ZERO).await {
            // Asks whose message was not sent are taken for lost in time.
            self.fail(&error);
        }
        let requested: Vec<Behind> = requested.into_iter().flatten().collect();
        self.report().requested += requested.len() as u64;
        requested
    }

    /// Asks for the kinds of one module by one message, so that its DIF is fetched once.
    async fn request_build(&self, entries: &[Entry]) -> Option<Requested> {
        let id = self.invocation.token();
        let change = Change::RequestBuild {
            id: id.clone(),
            queue: Queue::Refresh,
        };
        let mut requested = Vec::new();
        for entry in entries {
            let (module, kind) = (entry.module(), entry.kind());
            if self.is_dry() {
                let to = format!("{kind} of {}", module.id);
                let mut report = self.report();
                report.requested += 1;
                report.say("ask for", to, "it is behind, and still used");
                continue;
            }
            match self.update().apply(module, kind, &change).await {
                Ok(Updated::Done(entry))
                    if entry
                        .build_request()
                        .is_some_and(|build_request| build_request.id == id) =>
                {
                    requested.push(Behind {
                        build_request: Some(id.clone()),
                        ..Behind::of(&entry)
                    });
                }
                Ok(Updated::Done(_) | Updated::Refused(..) | Updated::Retired(_)) => {}
                Err(error) => self.fail(&error),
            }
        }
        let module = requested.first()?.module.clone();
        let mut kinds: Vec<Kind> = requested.iter().map(|behind| behind.kind).collect();
        kinds.sort_unstable();
        Some(Requested {
            message: QueueMessage::new(Queue::Refresh, module, kinds, id),
            entries: requested,
        })
    }

    /// Returns the entries that are stored now. Who changes one of them reads it strongly.
    async fn entries(&self, list: &[Behind]) -> Result<Vec<Option<Entry>>, Fault> {
        let keys: Vec<_> = list.iter().map(Behind::key).collect();
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

/// Puts the entries of each module together, in the order in which the modules come first.
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

/// Returns the asks that were not answered yet.
fn still_requested(requested: &Manifest, entries: &[Option<Entry>]) -> Vec<Behind> {
    let stands = |(behind, entry): &(&Behind, &Option<Entry>)| {
        let build_request = entry.as_ref().and_then(Entry::build_request);
        build_request
            .is_some_and(|build_request| Some(&build_request.id) == behind.build_request.as_ref())
    };
    let pairs = requested.entries.iter().zip(entries).filter(stands);
    pairs.map(|(behind, _)| behind.clone()).collect()
}
