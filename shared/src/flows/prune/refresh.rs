//! What the last pass found behind is asked for, at the rate at which the refresh lane drains.

use std::collections::HashMap;
use std::time::Duration;

use futures::stream::{self, StreamExt};

use super::progress::Progress;
use super::{CALLS_IN_PARALLEL, Run};
use crate::cache::{
    Behind, Change, Drained, Entry, Item, Kind, Lane, Manifest, ModuleKey, wants_refresh,
};
use crate::flows::Updated;
use crate::ports::{Consistency, LaneMessage, StoreError};

/// What the asks leave of the run to the walks.
const SHARE_LEFT: f64 = 0.7;

/// Entries of a list that are looked at together.
const ENTRIES_AT_ONCE: usize = 1000;

/// Modules whose messages are sent together: so many are asked for without one if the function is killed.
const MODULES_AT_ONCE: usize = 100;

/// The entries of one module that are asked for.
struct Asked {
    message: LaneMessage,
    entries: Vec<Behind>,
}

impl Run<'_> {
    /// Asks for entries that are behind; returns what became of the asks before.
    pub(super) async fn refresh(&self, progress: &mut Progress) -> Drained {
        let now = self.invocation.now();
        let asked = progress.asked.take().unwrap_or_default();
        let manifest = progress.manifest.take().unwrap_or_default();
        let entries = match self.entries(&asked.entries).await {
            Ok(entries) => entries,
            Err(error) => {
                // Nothing is known of the lane: this pass asks for nothing, and the next one looks at the same asks.
                self.fail(&error);
                return Drained::default();
            }
        };
        let drained = Drained::of(&asked, entries.iter().map(Option::as_ref), now);
        let mut standing = Manifest {
            at: now,
            entries: still_asked(&asked, &entries),
        };
        let wanted = self.wanted(&manifest, drained.quota()).await;
        for modules in by_module(wanted).chunks(MODULES_AT_ONCE) {
            if self.is_time_up(SHARE_LEFT) {
                break;
            }
            standing.entries.extend(self.ask(modules).await);
        }
        standing.trim();
        progress.asked = Some(standing);
        drained
    }

    /// Returns the entries of a list that are to be asked for, the most recently used first, and no more than `quota`.
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
    async fn ask(&self, modules: &[Vec<Entry>]) -> Vec<Behind> {
        let asks: Vec<_> = modules
            .iter()
            .map(|entries| self.ask_for(entries))
            .collect();
        let asks: Vec<Option<Asked>> = stream::iter(asks)
            .buffer_unordered(CALLS_IN_PARALLEL)
            .collect()
            .await;
        let (messages, asked): (Vec<_>, Vec<_>) = asks
            .into_iter()
            .flatten()
            .map(|Asked { message, entries }| (message, entries))
            .unzip();
        if messages.is_empty() {
            return Vec::new();
        }
        if let Err(error) = self.pruner.lanes.send(&messages, Duration::ZERO).await {
            // Asks whose message was not sent are taken for lost in time.
            self.fail(&error);
        }
        let asked: Vec<Behind> = asked.into_iter().flatten().collect();
        self.report().asked += asked.len() as u64;
        asked
    }

    /// Asks for the kinds of one module by one message, so that its DIF is fetched once.
    async fn ask_for(&self, entries: &[Entry]) -> Option<Asked> {
        let id = self.invocation.token();
        let change = Change::Ask {
            id: id.clone(),
            lane: Lane::Refresh,
        };
        let mut asked = Vec::new();
        for entry in entries {
            let (module, kind) = (entry.module(), entry.kind());
            if self.is_dry() {
                let to = format!("{kind} of {}", module.module);
                let mut report = self.report();
                report.asked += 1;
                report.say("ask for", to, "it is behind, and still used");
                continue;
            }
            match self.update().entry(module, kind, &change).await {
                Ok(Updated::Done(entry)) if entry.ask().is_some_and(|ask| ask.id == id) => {
                    asked.push(Behind {
                        ask: Some(id.clone()),
                        ..Behind::of(&entry)
                    });
                }
                Ok(Updated::Done(_) | Updated::Refused(..) | Updated::Retired(_)) => {}
                Err(error) => self.fail(&error),
            }
        }
        let module = asked.first()?.module.clone();
        let mut kinds: Vec<Kind> = asked.iter().map(|behind| behind.kind).collect();
        kinds.sort_unstable();
        Some(Asked {
            message: LaneMessage::new(Lane::Refresh, module, kinds, id),
            entries: asked,
        })
    }

    /// Returns the entries that are stored now. Who changes one of them reads it strongly.
    async fn entries(&self, list: &[Behind]) -> Result<Vec<Option<Entry>>, StoreError> {
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
fn still_asked(asked: &Manifest, entries: &[Option<Entry>]) -> Vec<Behind> {
    let stands = |(behind, entry): &(&Behind, &Option<Entry>)| {
        let ask = entry.as_ref().and_then(Entry::ask);
        ask.is_some_and(|ask| Some(&ask.id) == behind.ask.as_ref())
    };
    let pairs = asked.entries.iter().zip(entries).filter(stands);
    pairs.map(|(behind, _)| behind.clone()).collect()
}
