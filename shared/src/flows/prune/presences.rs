//! Corrects the items from which readers conclude that no upload serves a module.
//!
//! - A module with a `dif` item and without a presence gets one. Tables from releases before
//!   presences existed have none. After the corrections of a page, each scope that they concern
//!   gets a new generation.
//! - The presence of a module without a `dif` item is removed.
//! - An alias whose target has no file is removed.
//!
//! The items of a partition are adjacent in the pages of a segment, so a page nearly always shows
//! all items of its modules. A presence is read only if a page or a run begins or ends within a
//! partition. Only the targets of aliases are in other partitions: each alias is checked in one of
//! [`ALIAS_ROUNDS`] passes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use futures::stream::{self, StreamExt};

use super::report::described;
use super::run::{CALLS_IN_PARALLEL, CheckRotation, Run, RunStep};
use crate::cache::{Alias, Item, ItemKey, ModuleKey, Stored};
use crate::domain::Scope;
use crate::flows::presence::{self, FiledAs};
use crate::flows::update::KnownItem;
use crate::ports::{Consistency, Fault, Removed};

/// The number of passes over which the checks of aliases are spread: the passes of a day.
const ALIAS_ROUNDS: u64 = 24;

/// Returns the selection of aliases for a pass.
pub(super) fn turn_of_aliases(pass: u64) -> CheckRotation {
    CheckRotation {
        pass,
        rounds: ALIAS_ROUNDS,
    }
}

/// What the items of a page do not show.
#[derive(Default)]
struct Unresolved<'a> {
    /// Modules with a `dif` item and without a presence on this page.
    unnoted: BTreeMap<&'a str, &'a ModuleKey>,
    /// Modules with a presence and without a `dif` item on this page.
    unfounded: Vec<&'a ModuleKey>,
    /// Aliases to check in this pass.
    aliases: Vec<(&'a ItemKey, &'a Stored, &'a Alias)>,
}

impl Run<'_> {
    /// Corrects what the items of a page show to be wrong. Returns `false` if the time is up before
    /// all corrections are made.
    ///
    /// `neighbour` is the partition that the previous page ended with, if it has a `dif` item.
    /// `turn` selects the aliases to check; a dry run checks all.
    pub(super) async fn correct_presences(
        &self,
        items: &[(ItemKey, Stored)],
        neighbour: &mut Option<String>,
        turn: CheckRotation,
    ) -> bool {
        let is_due = |alias: &ItemKey| self.is_dry || turn.is_due(alias.partition.as_bytes());
        let unresolved = unresolved(items, neighbour.as_deref(), is_due);
        let unnoted = unresolved.unnoted.values().map(|module| module.presence());
        let targets = unresolved.aliases.iter();
        let targets = targets.map(|(_, _, alias)| alias.target.presence());
        let keys: Vec<ItemKey> = unnoted.chain(targets).collect();
        let mut of_unnoted = match self.load(&keys, Consistency::Eventual).await {
            Ok(known) => known,
            Err(error) => {
                self.fail(&error);
                // The next pass checks the same items again.
                Vec::new()
            }
        };
        let of_targets = of_unnoted.split_off(unresolved.unnoted.len().min(of_unnoted.len()));
        let corrected = Mutex::default();
        let unnoted: Vec<_> = unresolved
            .unnoted
            .into_values()
            .zip(of_unnoted)
            .filter(|(_, presence)| presence.is_none())
            .map(|(module, _)| self.restore_presence(module, &corrected))
            .collect();
        let aliases: Vec<_> = unresolved
            .aliases
            .into_iter()
            .zip(of_targets)
            .filter(|(_, presence)| presence.is_none())
            .map(|((key, stored, alias), _)| self.check_alias(key, stored, alias, &corrected))
            .collect();
        let unfounded = unresolved.unfounded.into_iter();
        let unfounded: Vec<_> = unfounded.map(|module| self.forget(module)).collect();
        let is_all = self.each(unnoted).await & self.each(unfounded).await;
        let is_all = is_all & self.each(aliases).await;
        *neighbour = with_files_at_the_end(items, neighbour.take());
        // After each page, and again at the end: after a run that was killed, the next run finds
        // nothing left to correct, and would write no generation.
        let mut corrected = corrected
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        self.write_generations(&mut corrected).await;
        is_all
    }

    /// Makes corrections concurrently. Returns `false` if the time is up before all are made.
    async fn each(&self, corrections: Vec<impl Future<Output = Result<(), Fault>>>) -> bool {
        let corrections = corrections.into_iter().map(|correction| async {
            if self.is_time_up(RunStep::Records) {
                return false;
            }
            if let Err(error) = correction.await {
                self.fail(&error);
            }
            true
        });
        let corrections: Vec<_> = corrections.collect();
        stream::iter(corrections)
            .buffer_unordered(CALLS_IN_PARALLEL)
            .fold(true, |all, this| std::future::ready(all && this))
            .await
    }

    async fn restore_presence(
        &self,
        module: &ModuleKey,
        corrected: &Mutex<BTreeSet<Scope>>,
    ) -> Result<(), Fault> {
        if !self.is_dry {
            // Record the scope first, because the step may be abandoned at any call.
            self.corrected_scopes().insert(module.scope.clone());
            let filed = FiledAs {
                code_ids: &[],
                // Its files were not read, so they may have sources.
                has_sources: true,
            };
            presence::write_presence(self.writer(), module, filed, KnownItem::Unread).await?;
            let mut corrected = corrected.lock().unwrap_or_else(PoisonError::into_inner);
            corrected.insert(module.scope.clone());
        }
        let mut report = self.report();
        report.presences_noted += 1;
        report.note_planned(
            "add the presence item of",
            described(module),
            "the module has files",
        );
        Ok(())
    }

    async fn forget(&self, module: &ModuleKey) -> Result<(), Fault> {
        if self.is_dry {
            // The files may be on another page.
            let partition = self.pruner.records.query(&module.partition()).await?;
            if partition.iter().any(|(key, _)| presence::is_file(key)) {
                return Ok(());
            }
        } else {
            let partition = presence::remove_presence_if_empty(self.writer(), module).await?;
            if presence::files(&partition) > 0 {
                return Ok(());
            }
        }
        let mut report = self.report();
        report.presences_forgotten += 1;
        report.note_planned(
            "remove the presence item of",
            described(module),
            "the module has no files",
        );
        Ok(())
    }

    /// Removes an alias if a strongly consistent query shows that its target has no file.
    async fn check_alias(
        &self,
        key: &ItemKey,
        stored: &Stored,
        alias: &Alias,
        corrected: &Mutex<BTreeSet<Scope>>,
    ) -> Result<(), Fault> {
        let target = &alias.target;
        let partition = self.pruner.records.query(&target.partition()).await?;
        if partition.iter().any(|(key, _)| presence::is_file(key)) {
            // The target is from an older release, without a presence, and this scan has not
            // reached it yet.
            return self.restore_presence(target, corrected).await;
        }
        let presence = target.presence();
        if partition.iter().any(|(key, _)| *key == presence) {
            return Ok(());
        }
        if !self.is_dry {
            let removed = self.pruner.records.remove(key, &stored.revision).await?;
            if removed != Removed::Done {
                return Ok(());
            }
            // A builder that added a file of the target meanwhile may have seen the alias before
            // its removal, and kept it. Write it again.
            if self.writer().load(&presence).await?.is_some() {
                self.writer()
                    .put(key, stored.item.clone(), |_| true)
                    .await?;
                return Ok(());
            }
        }
        let mut report = self.report();
        report.aliases_removed += 1;
        let to = format!("the alias to {}", described(target));
        report.note_planned("remove", to, "the module has no files");
        Ok(())
    }

    /// Writes the generations again, for pages that were abandoned. What cannot be written is left
    /// to the next run.
    pub(super) async fn announce_corrections(&self, unannounced: &mut BTreeSet<Scope>) {
        unannounced.append(&mut self.corrected_scopes());
        self.write_generations(unannounced).await;
    }

    /// Writes a new generation for each of these scopes, in which presences were corrected.
    /// Scopes whose generation could not be written remain in the set.
    async fn write_generations(&self, unannounced: &mut BTreeSet<Scope>) {
        for scope in std::mem::take(unannounced) {
            if let Err(error) =
                presence::write_generation(self.writer(), &scope, KnownItem::Unread).await
            {
                self.fail(&error);
                unannounced.insert(scope);
            }
        }
    }
}

/// Returns what the items of a page do not show, and the aliases that are due.
fn unresolved<'a>(
    items: &'a [(ItemKey, Stored)],
    neighbour: Option<&str>,
    is_due: impl Fn(&ItemKey) -> bool,
) -> Unresolved<'a> {
    let mut unresolved = Unresolved::default();
    let mut with_files: BTreeSet<&str> = BTreeSet::new();
    for (key, stored) in items {
        let partition = key.partition.as_str();
        match &stored.item {
            // The previous page has shown that this partition has files.
            _ if neighbour == Some(partition) => {}
            Item::Dif(dif) if dif.module.source.is_uploads() => {
                with_files.insert(partition);
                unresolved.unnoted.insert(partition, &dif.module);
            }
            // A file of a newer release.
            _ if key.sort.starts_with(ItemKey::DIF_PREFIX) => {
                with_files.insert(partition);
            }
            // The `dif` items of a partition precede its presence.
            Item::Presence(presence) => {
                unresolved.unnoted.remove(partition);
                if !with_files.contains(partition) {
                    unresolved.unfounded.push(&presence.module);
                }
            }
            Item::Alias(alias) if is_due(key) => {
                unresolved.aliases.push((key, stored, alias));
            }
            _ => {}
        }
    }
    unresolved
}

/// Returns the partition that a page ends with, if it has `dif` items.
fn with_files_at_the_end(items: &[(ItemKey, Stored)], before: Option<String>) -> Option<String> {
    let (last, _) = items.last()?;
    let mut same = items
        .iter()
        .rev()
        .take_while(|(key, _)| key.partition == last.partition);
    let has_files = same.any(|(key, _)| presence::is_file(key));
    let is_same = before.as_ref() == Some(&last.partition);
    (has_files || is_same).then(|| last.partition.clone())
}
