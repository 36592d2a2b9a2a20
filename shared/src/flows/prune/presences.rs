//! Makes true again what readers conclude from the absence of a presence: that no upload serves a module.
//!
//! - A module with a `dif` item and without a presence gets one: tables that builds before presences filled have none.
//!   After the repairs of a page, each scope that they concern gets a new generation.
//! - A presence of a module without a `dif` item goes.
//! - An alias goes whose target has no file.
//!
//! The items of a partition lie side by side on the pages of a segment, so a page answers nearly every question about its
//! modules itself. Only where a page or a run begins or ends within a partition is a presence read, and only the targets
//! of aliases lie elsewhere: each alias has its turn in one of [`ALIAS_ROUNDS`] passes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use futures::stream::{self, StreamExt};
use xxhash_rust::xxh3::xxh3_64;

use super::records::SHARE_LEFT;
use super::run::{CALLS_IN_PARALLEL, Run};
use crate::cache::{Alias, Item, ItemKey, ModuleKey, Stored};
use crate::domain::Scope;
use crate::flows::presence;
use crate::flows::update::KnownItem;
use crate::ports::{Consistency, Fault, Removed};

/// Passes in which each alias has its turn once: a day of them.
const ALIAS_ROUNDS: u64 = 24;

/// What a page leaves open.
#[derive(Default)]
struct Unresolved<'a> {
    /// Modules with a `dif` item and without a presence on this page.
    unnoted: BTreeMap<&'a str, &'a ModuleKey>,
    /// Modules with a presence and without a `dif` item on this page.
    unfounded: Vec<&'a ModuleKey>,
    /// Aliases whose turn it is.
    aliases: Vec<(&'a ItemKey, &'a Stored, &'a Alias)>,
}

impl Run<'_> {
    /// Repairs what the items of a page show to be wrong; `false` where the time is up before.
    ///
    /// `neighbour` is the partition of a module with a `dif` item which the page before ended with.
    pub(super) async fn mend_presences(
        &self,
        items: &[(ItemKey, Stored)],
        neighbour: &mut Option<String>,
    ) -> bool {
        let open = self.open(items, neighbour.as_deref());
        let unnoted = open.unnoted.values().map(|module| module.presence());
        let targets = open.aliases.iter();
        let targets = targets.map(|(_, _, alias)| alias.target.presence());
        let keys: Vec<ItemKey> = unnoted.chain(targets).collect();
        let known = match self.load(&keys, Consistency::Eventual).await {
            Ok(known) => known,
            Err(error) => {
                self.fail(&error);
                // The next pass asks the same of the same items.
                vec![None; 0]
            }
        };
        let mut known = known.into_iter();
        let mut is_absent = || matches!(known.next(), Some(None));
        let unnoted = open.unnoted.into_values().filter(|_| is_absent());
        let changed = Mutex::default();
        let unnoted: Vec<_> = unnoted
            .map(|module| self.note_again(module, &changed))
            .collect();
        let aliases = open.aliases.into_iter().filter(|_| is_absent());
        let aliases: Vec<_> = aliases
            .map(|(key, stored, alias)| self.check_alias(key, stored, alias, &changed))
            .collect();
        let unfounded = open.unfounded.into_iter();
        let unfounded: Vec<_> = unfounded.map(|module| self.forget(module)).collect();
        let is_all = self.each(unnoted).await & self.each(unfounded).await;
        let is_all = is_all & self.each(aliases).await;
        *neighbour = with_files_at_the_end(items, neighbour.take());
        // With each page, and once more at the end: the run after one that was killed finds nothing to repair any more.
        let mut changed = changed.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.announce(&mut changed).await;
        is_all
    }

    /// Returns what the items of a page do not answer.
    fn open<'a>(&self, items: &'a [(ItemKey, Stored)], neighbour: Option<&str>) -> Unresolved<'a> {
        let mut open = Unresolved::default();
        let mut with_files: BTreeSet<&str> = BTreeSet::new();
        for (key, stored) in items {
            let partition = key.partition.as_str();
            match &stored.item {
                // The page before has looked after its neighbour.
                _ if neighbour == Some(partition) => {}
                Item::Dif(dif) if dif.module.source.is_uploads() => {
                    with_files.insert(partition);
                    open.unnoted.insert(partition, &dif.module);
                }
                // Files of a newer build.
                _ if key.sort.starts_with(ItemKey::DIF_PREFIX) => {
                    with_files.insert(partition);
                }
                // Its `dif` items come before it.
                Item::Presence(presence) => {
                    open.unnoted.remove(partition);
                    if !with_files.contains(partition) {
                        open.unfounded.push(&presence.module);
                    }
                }
                Item::Alias(alias) if self.is_turn_of(key) => {
                    open.aliases.push((key, stored, alias));
                }
                _ => {}
            }
        }
        open
    }

    /// A dry run looks at every alias.
    fn is_turn_of(&self, alias: &ItemKey) -> bool {
        let (pass, is_dry) = {
            let report = self.report();
            (report.pass, report.dry_run)
        };
        let turn = xxh3_64(alias.partition.as_bytes()) % ALIAS_ROUNDS;
        is_dry || turn == pass % ALIAS_ROUNDS
    }

    /// Makes repairs side by side; `false` where the time is up before all are made.
    async fn each(&self, repairs: Vec<impl Future<Output = Result<(), Fault>>>) -> bool {
        let repairs = repairs.into_iter().map(|repair| async {
            if self.is_time_up(SHARE_LEFT) {
                return false;
            }
            if let Err(error) = repair.await {
                self.fail(&error);
            }
            true
        });
        let repairs: Vec<_> = repairs.collect();
        stream::iter(repairs)
            .buffer_unordered(CALLS_IN_PARALLEL)
            .fold(true, |all, this| std::future::ready(all && this))
            .await
    }

    async fn note_again(
        &self,
        module: &ModuleKey,
        changed: &Mutex<BTreeSet<Scope>>,
    ) -> Result<(), Fault> {
        if !self.is_dry() {
            // First: the walk may be abandoned at any call.
            self.changed_scopes().insert(module.scope.clone());
            presence::note_file(self.update(), module, &[], KnownItem::Nothing).await?;
            let mut changed = changed.lock().unwrap_or_else(PoisonError::into_inner);
            changed.insert(module.scope.clone());
        }
        let mut report = self.report();
        report.presences_noted += 1;
        report.say(
            "note that there are files of",
            told(module),
            "no item said so",
        );
        Ok(())
    }

    async fn forget(&self, module: &ModuleKey) -> Result<(), Fault> {
        if self.is_dry() {
            // Its files may be on another page.
            let partition = self.pruner.records.query(&module.partition()).await?;
            if partition.iter().any(|(key, _)| presence::is_file(key)) {
                return Ok(());
            }
        } else {
            let partition = presence::forget_files(self.update(), module).await?;
            if presence::files(&partition) > 0 {
                return Ok(());
            }
        }
        let mut report = self.report();
        report.presences_forgotten += 1;
        report.say("forget the files of", told(module), "there are none");
        Ok(())
    }

    /// Removes an alias if its target has no file, which a strongly consistent query decides.
    async fn check_alias(
        &self,
        key: &ItemKey,
        stored: &Stored,
        alias: &Alias,
        changed: &Mutex<BTreeSet<Scope>>,
    ) -> Result<(), Fault> {
        let target = &alias.target;
        let partition = self.pruner.records.query(&target.partition()).await?;
        if partition.iter().any(|(key, _)| presence::is_file(key)) {
            // Of a table that an older build filled, whose target this walk has not met yet.
            return self.note_again(target, changed).await;
        }
        let presence = target.presence();
        if partition.iter().any(|(key, _)| *key == presence) {
            return Ok(());
        }
        if !self.is_dry() {
            let removed = self.pruner.records.remove(key, &stored.revision).await?;
            if removed != Removed::Done {
                return Ok(());
            }
            // A builder that brought a file of the target meanwhile may have found the alias still there, and left it.
            if self.update().load(&presence).await?.is_some() {
                self.update()
                    .put(key, stored.item.clone(), |_| true)
                    .await?;
                return Ok(());
            }
        }
        let mut report = self.report();
        report.aliases_removed += 1;
        let to = format!("the alias to {}", told(target));
        report.say("remove", to, "the module has no files");
        Ok(())
    }

    /// Writes a new generation for each of these scopes, in which presences were repaired before. Those whose generation
    /// could not be written are left.
    pub(super) async fn announce(&self, unannounced: &mut BTreeSet<Scope>) {
        for scope in std::mem::take(unannounced) {
            if let Err(error) =
                presence::note_change(self.update(), &scope, KnownItem::Nothing).await
            {
                self.fail(&error);
                unannounced.insert(scope);
            }
        }
    }
}

/// Returns the partition that a page ends with if there are `dif` items in it.
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

/// Names a module for a person.
fn told(module: &ModuleKey) -> String {
    format!("{} in {}", module.id, module.scope)
}
