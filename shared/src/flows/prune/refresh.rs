//! What the last pass found behind is asked for, at the rate at which the refresh lane drains.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Run;
use super::progress::Progress;
use crate::cache::{
    Behind, Change, Drained, Entry, Item, Kind, Lane, Manifest, ModuleKey, wants_refresh,
};
use crate::flows::{Error, Updated};
use crate::ports::{Consistency, LaneMessage, StoreError};

impl Run<'_> {
    /// Asks for entries that are behind; returns what became of the asks before.
    pub(super) async fn refresh(&self, progress: &mut Progress) -> Result<Drained, Error> {
        let now = self.invocation.now();
        let asked = self.entries(&progress.asked).await?;
        let drained = Drained::of(&progress.asked, asked.iter().map(Option::as_ref), now);
        let present = self.entries(&progress.manifest).await?;
        let policy = &self.pruner.settings.policy;
        let wanted = present
            .iter()
            .flatten()
            .filter(|entry| wants_refresh(entry, now, policy))
            .take(drained.quota());
        let mut modules: BTreeMap<&ModuleKey, Vec<&Entry>> = BTreeMap::new();
        for entry in wanted {
            modules.entry(entry.module()).or_default().push(entry);
        }
        let mut standing = Manifest {
            at: now,
            entries: still_asked(&progress.asked, &asked),
        };
        for (module, entries) in modules {
            standing.entries.extend(self.ask(module, &entries).await?);
        }
        standing.trim();
        progress.asked = standing;
        Ok(drained)
    }

    /// Asks for the kinds of one module by one message, so that its DIF is fetched once.
    async fn ask(&self, module: &ModuleKey, entries: &[&Entry]) -> Result<Vec<Behind>, StoreError> {
        let id = self.invocation.token();
        let change = Change::Ask {
            id: id.clone(),
            lane: Lane::Refresh,
        };
        let mut asked = Vec::new();
        for entry in entries {
            if self.is_dry() {
                let to = format!("{} of {}", entry.kind(), module.module);
                let mut report = self.report();
                report.asked += 1;
                report.say("ask for", to, "it is behind, and still used");
                continue;
            }
            match self.update().entry(module, entry.kind(), &change).await? {
                Updated::Done(entry) if entry.ask().is_some_and(|ask| ask.id == id) => {
                    asked.push(Behind {
                        ask: Some(id.clone()),
                        ..Behind::of(&entry)
                    });
                }
                Updated::Done(_) | Updated::Refused(..) | Updated::Retired(_) => {}
            }
        }
        if asked.is_empty() {
            return Ok(asked);
        }
        let mut kinds: Vec<Kind> = asked.iter().map(|behind| behind.kind).collect();
        kinds.sort_unstable();
        let message = LaneMessage::new(Lane::Refresh, module.clone(), kinds, id);
        self.pruner.lanes.send(&[message], Duration::ZERO).await?;
        self.report().asked += asked.len() as u64;
        Ok(asked)
    }

    async fn entries(&self, manifest: &Manifest) -> Result<Vec<Option<Entry>>, StoreError> {
        let keys: Vec<_> = manifest.entries.iter().map(Behind::key).collect();
        let loaded = self.pruner.records.load(&keys, Consistency::Strong).await?;
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

/// Returns the asks that nobody answered yet.
fn still_asked(asked: &Manifest, entries: &[Option<Entry>]) -> Vec<Behind> {
    let stands = |(behind, entry): &(&Behind, &Option<Entry>)| {
        let ask = entry.as_ref().and_then(Entry::ask);
        ask.is_some_and(|ask| Some(&ask.id) == behind.ask.as_ref())
    };
    let pairs = asked.entries.iter().zip(entries).filter(stands);
    pairs.map(|(behind, _)| behind.clone()).collect()
}
