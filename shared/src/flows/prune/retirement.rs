//! Retires the entries and copies that are unused for too long, or that the byte budgets evict.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::report::described_entry;
use super::run::{BlobToDelete, Run};
use crate::cache::{
    Applied, Change, DifCopy, Entry, EvictionCut, Item, ItemKey, Policy, Stored, entry_bytes,
};
use crate::flows::update::apply_traced;
use crate::ports::{Fault, Removed};

/// Whether an entry or a copy was retired, or would be in a dry run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retirement {
    Retired,
    Kept,
}

/// What the byte budgets evict in this pass.
pub(super) struct EvictionCuts {
    pub(super) derived: Option<EvictionCut>,
    pub(super) copies: Option<EvictionCut>,
}

/// The retirements of one scan of the records.
pub(super) struct Retirements<'a> {
    run: &'a Run<'a>,
    cuts: Mutex<EvictionCuts>,
}

impl<'a> Retirements<'a> {
    pub(super) fn new(run: &'a Run<'a>, cuts: EvictionCuts) -> Self {
        Self {
            run,
            cuts: Mutex::new(cuts),
        }
    }

    /// Returns what is left to evict.
    pub(super) fn into_cuts(self) -> EvictionCuts {
        self.cuts
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn cuts(&self) -> MutexGuard<'_, EvictionCuts> {
        self.cuts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Retires an entry that is unused for too long, or that the byte budget evicts. Removes the
    /// record at the key that was scanned.
    pub(super) async fn retire_if_unused(
        &self,
        key: &ItemKey,
        stored: &Stored,
        entry: &Entry,
        to_delete: &mut Vec<BlobToDelete>,
    ) -> Result<Retirement, Fault> {
        let run = self.run;
        let (now, settings) = (run.invocation.now(), &run.pruner.settings);
        let by_age = run.would_apply(entry, &Change::Retire, &settings.policy);
        let bytes = entry_bytes(entry);
        let cut = self.cuts().derived;
        let cut_at = cut.and_then(|cut| cut.applies(entry.last_used_at(), bytes));
        // An eviction is a retirement with a shorter limit, so entries that were used or leased
        // meanwhile stay.
        let policy = match cut_at {
            Some(cut_at) if !by_age => Policy {
                derived_max_unused: now.since(cut_at),
                ..settings.policy
            },
            _ => settings.policy,
        };
        if !by_age && (cut_at.is_none() || !run.would_apply(entry, &Change::Retire, &policy)) {
            return Ok(Retirement::Kept);
        }
        let retired = if run.is_dry {
            Some(entry.clone())
        } else {
            self.remove_entry(key, stored, &policy).await?
        };
        let Some(retired) = retired else {
            return Ok(Retirement::Kept);
        };
        if let Some(cut) = &mut self.cuts().derived {
            cut.freed(entry.last_used_at(), bytes);
        }
        let why = reason(
            (!by_age).then_some("the byte budget"),
            now.since(entry.last_used_at()),
        );
        {
            let mut report = run.report();
            report.retired += 1;
            report.over_budget += u64::from(!by_age);
            report.note_planned("retire", described_entry(entry), why);
        }
        to_delete.extend(retired.states().map(|ready| BlobToDelete {
            path: ready.blob.path.clone(),
            bytes: ready.blob.bytes,
        }));
        Ok(Retirement::Retired)
    }

    /// Removes the record of an entry if it may still be retired. Returns the entry as it was then.
    ///
    /// The scanned page may be a second old: the removal is conditional on the revision, and a
    /// changed record is checked again.
    async fn remove_entry(
        &self,
        key: &ItemKey,
        stored: &Stored,
        policy: &Policy,
    ) -> Result<Option<Entry>, Fault> {
        let mut stored = stored.clone();
        loop {
            let Item::Entry(entry) = &stored.item else {
                return Ok(None);
            };
            let now = self.run.invocation.now();
            if !matches!(
                apply_traced(entry, &Change::Retire, now, policy),
                Ok(Applied::Retired)
            ) {
                return Ok(None);
            }
            let records = &self.run.pruner.records;
            match records.remove(key, &stored.revision).await? {
                Removed::Done => return Ok(Some(entry.clone())),
                Removed::Lost(current) => stored = current,
            }
        }
    }

    /// Retires a copy of a DIF that is unused for too long, or that its byte budget evicts.
    pub(super) async fn retire_copy_if_unused(
        &self,
        key: &ItemKey,
        stored: &Stored,
        copy: &DifCopy,
        to_delete: &mut Vec<BlobToDelete>,
    ) -> Result<Retirement, Fault> {
        let run = self.run;
        let (now, settings) = (run.invocation.now(), &run.pruner.settings);
        let by_age = copy.is_unused(now, settings.dif_max_unused);
        let cut = self.cuts().copies;
        let is_cut = cut.is_some_and(|cut| cut.applies(copy.last_used_at, copy.bytes).is_some());
        if !by_age && !is_cut {
            return Ok(Retirement::Kept);
        }
        if !run.is_dry {
            // If a build has used the copy meanwhile, its revision has changed, and it stays.
            let removed = run.pruner.records.remove(key, &stored.revision).await?;
            if removed != Removed::Done {
                return Ok(Retirement::Kept);
            }
        }
        // The item only has the total size of all chunks: attribute it to the first one.
        let chunks = copy.chunks().enumerate();
        to_delete.extend(chunks.map(|(number, (_, _, path))| {
            let bytes = if number == 0 { copy.bytes } else { 0 };
            BlobToDelete { path, bytes }
        }));
        if let Some(cut) = &mut self.cuts().copies {
            cut.freed(copy.last_used_at, copy.bytes);
        }
        let why = reason(
            (!by_age).then_some("the byte budget of copies"),
            now.since(copy.last_used_at),
        );
        let location = &copy.dif.file.location;
        let mut report = run.report();
        report.copies_retired += 1;
        report.note_planned("retire", format!("the copy of {location}"), why);
        Ok(Retirement::Retired)
    }
}

/// Returns why something is retired, for people. `exceeded` is the budget that evicts it, if it is
/// not unused for too long.
fn reason(exceeded: Option<&str>, unused: Duration) -> String {
    let unused = format!("unused for {} s", unused.as_secs());
    match exceeded {
        Some(budget) => format!("over {budget}, {unused}"),
        None => unused,
    }
}
