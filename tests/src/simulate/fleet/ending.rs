//! What holds when nothing is left to do.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::FutureExt;
use symdepot::cache::{Entry, Item, Stored, UploadState};
use symdepot::domain::{Cause, DifRef, Location};
use symdepot::ports::{DifReader, DifStat};

use super::super::{Moment, describe, programs, stores, timestamp, workload};
use super::{Fleet, Function};

/// The time between two beginnings of listings of all blobs in the end: they begin 23.5 hours
/// apart, and the pruner runs every four hours.
const LISTED_WITHIN: Duration = Duration::from_secs(28 * 3600);

/// The kinds of caches that are derived from the files of the workload.
const KINDS: usize = 2;

impl Fleet {
    /// Checks that the last build of each entry has considered each file of its module.
    pub(super) fn check_considered(&self) {
        let given_up = self.given_up();
        // A build that was given up after several attempts has considered nothing.
        let has_crashed = |entry: &Entry| {
            let missing = entry.missing();
            missing.is_some_and(|missing| missing.missing.cause == Cause::Crashed)
        };
        let entries = self.stores.entries().into_iter();
        for entry in entries.filter(|entry| !has_crashed(entry)) {
            let module = entry.module();
            for key in self.truth.keys_of(&module.partition()) {
                let location = Location::new(key);
                let stat = self.stores.uploads.stat(&location).now_or_never();
                let Some(Ok(DifStat { etag, .. })) = stat else {
                    continue;
                };
                let file = DifRef { location, etag };
                let mut made = stores::states(&entry);
                let is_considered = entry.considered().contains(&file)
                    || made.any(|ready| ready.made_from.contains(&file));
                let is_usable = self.truth.is_usable(key, self.last_build());
                let is_given_up = given_up.contains(key);
                if !is_considered && is_usable && !is_given_up {
                    let text = describe::entry(&entry);
                    let module = describe::module(module);
                    let detail = format!("{module} {}, {key}: {text}", entry.kind());
                    self.fail("5: an upload is never lost", detail);
                }
            }
        }
    }

    /// Returns whether the build that runs in the end cannot read an item.
    fn is_beyond(&self, stored: &Stored) -> bool {
        self.stores.is_beyond(self.last_build(), stored)
    }

    /// Checks that each module with files has a presence, if no builder is at work and none was
    /// disturbed: without a presence, readers believe that there is no file.
    pub(super) fn check_presences(&self) {
        let mut members = self.members.iter();
        let is_building = members
            .any(|member| member.function != Function::Symbolicate && member.instance.is_running());
        if is_building || self.settled_within().is_none() {
            return;
        }
        let mut ledger = self.stores.ledger();
        if let Some(partition) = ledger.index.without_presence() {
            let module = ledger.labels.partition(partition);
            ledger.fail("a module with files has a presence", module);
        }
    }

    /// Checks what is left in the records.
    pub(super) fn check_items(&self) {
        let items = self.stores.records.items();
        let difs = items
            .iter()
            .filter(|(_, stored)| matches!(stored.item, Item::Dif(_)));
        let modules: BTreeSet<&str> = difs.map(|(key, _)| &*key.partition).collect();
        let is_exact = self.settled_within().is_some();
        for (key, stored) in &items {
            let label = self.stores.ledger().labels.key(key);
            match &stored.item {
                Item::Presence(_) if !modules.contains(&*key.partition) => {
                    self.fail("a presence ends with the last file", label);
                }
                Item::Alias(alias) if !modules.contains(&*alias.target.partition()) => {
                    self.fail("an alias ends with the last file of its module", label);
                }
                // A removal that only a newer build can apply waits for one.
                Item::Dif(dif)
                    if is_exact
                        && !self.truth.has(dif.file.location.as_str())
                        && !self.is_beyond(stored) =>
                {
                    self.fail("a removed file is not filed", label);
                }
                // What a newer build has begun, only a newer build can end.
                Item::Upload(upload)
                    if upload.state == UploadState::Pending && !self.is_beyond(stored) =>
                {
                    self.fail("5: each event of an upload ends", upload.key.clone());
                }
                Item::Entry(entry) if is_exact && entry.lease().is_some() => {
                    self.fail("6: no lease stays", describe::entry(entry));
                }
                _ => {}
            }
        }
    }

    /// Checks that little was built since nothing changed any more: each entry at most twice, of
    /// which once because it was unused and removed. A file that kills its parser is tried again
    /// once when its placeholder expires; then the next best file, if there is one, is derived
    /// from.
    fn check_last(&self) {
        let mut ledger = self.stores.ledger();
        let Some((since, before)) = self.before_last else {
            return;
        };
        let counts = &mut ledger.counts;
        counts.last_builds = counts.builds - before.builds;
        counts.last_messages = counts.messages - before.messages;
        counts.last_writes = counts.writes - before.writes;
        let builds = counts.last_builds;
        drop(ledger);
        let servers = match (self.plan.has_servers, self.plan.adds_server) {
            (false, _) => 0,
            (true, false) => 3,
            (true, true) => 4,
        };
        let places = self.plan.scopes + servers;
        let programs = if self.plan.has_programs {
            programs::COUNT
        } else {
            0
        };
        let entries = (KINDS * (places * self.plan.modules + programs)) as u64;
        let policy = &self.settings.policy;
        let seconds = (self.now - since).as_secs();
        let retries = seconds.div_ceil(policy.retry_malformed_after.as_secs());
        let scopes = workload::SCOPES[..self.plan.scopes].iter();
        let killed = scopes.map(|scope| self.truth.killed(scope, self.plan.modules));
        let killed = (KINDS * killed.sum::<usize>()) as u64;
        let most = 2 * entries + killed * retries;
        if builds > most {
            let detail = format!(
                "{builds} builds without a change, at most {most}: {entries} entries, {killed} of \
                 modules with a file that kills its parser"
            );
            self.fail("8: the number of builds is bounded", detail);
        }
    }

    /// Checks what holds when nothing is left to do.
    pub(super) fn check_end(&mut self) {
        self.check_last();
        if self.ended_at.is_none() || self.awaited > 0 {
            self.fail("6: every wait ends", format!("{} requests", self.awaited));
        }
        let left: Vec<String> = self
            .messages
            .values()
            .map(|message| message.body.text())
            .collect();
        if !left.is_empty() {
            self.fail("no message is left", left.join("; "));
        }
        self.check_items();
        self.check_considered();
        self.check_all_issued();
        self.check_orphans();
        let entries = self.stores.entries();
        let named: Vec<&str> = entries
            .iter()
            .flat_map(stores::states)
            .map(|ready| &*ready.blob.path)
            .collect();
        let paths = self.stores.caches.paths();
        let missing = named
            .iter()
            .filter(|path| !paths.iter().any(|known| known == *path));
        let missing: Vec<String> = missing.map(|path| describe::path(path)).collect();
        if !missing.is_empty() && !self.plan.damages_blobs {
            self.fail("7: no record names a missing blob", missing.join(", "));
        }
    }

    /// Checks that the pruner has removed each blob that no record names. It lists them once a day,
    /// and removes those that are older than an hour.
    fn check_orphans(&self) {
        let Some(ended) = self.ended_at else {
            return;
        };
        let ledger = self.stores.ledger();
        let is_owned = |path: &str| path.starts_with("derived/") || path.starts_with("copies/");
        let is_left = |path: &str, since: Moment| {
            let written = self.stores.caches.modified_at(path);
            written.is_some_and(|written| {
                let ripe = written.plus(self.settings.orphan_min_age);
                timestamp(since).max(ripe).plus(LISTED_WITHIN) < timestamp(ended)
            })
        };
        let unnamed = ledger.index.unnamed();
        let orphans = unnamed.filter(|(path, since)| is_owned(path) && is_left(path, *since));
        let orphans: Vec<String> = orphans.map(|(path, _)| describe::path(path)).collect();
        drop(ledger);
        if !orphans.is_empty() {
            self.fail("7: no orphan exists forever", orphans.join(", "));
        }
    }
}
