//! What holds when nothing is left to do.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::FutureExt;
use symdepot::cache::{Entry, Item, Kind, Stored, UploadState};
use symdepot::domain::{Cause, DifRef, Location};
use symdepot::ports::{DifReader, DifStat};

use super::{Fleet, Function, LAST_PASSES_EVERY, LAST_ROUNDS};
use crate::simulate::stores::Counts;
use crate::simulate::{Moment, describe, programs, servers, stores, timestamp, workload};

/// The time between two beginnings of listings of all blobs in the end: they begin 23.5 hours
/// apart, and the pruner runs every four hours.
const LISTED_WITHIN: Duration = Duration::from_secs(28 * 3600);

/// The kinds of caches that are derived from the files of the workload.
const KINDS: usize = 2;

/// The most writes for a message or a derivation: of the build request, the lease, its extensions,
/// the result, copies, permits and the health of a server.
const WRITES_OF_A_BUILD: u64 = 12;

/// The most writes for an entry that is used and then removed.
const WRITES_OF_AN_ENTRY: u64 = 6;

/// The writes for a request that is stored and expires.
const WRITES_OF_A_REQUEST: u64 = 2;

/// The most writes of a pass that finds nothing to do.
const WRITES_OF_A_PASS: u64 = 20;

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
                let is_usable = self.truth.is_usable(key, self.last_release());
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

    /// Checks that no state is made from a lesser file than another one that the last build has
    /// considered and could use: no later build would consider that one again. A placeholder says
    /// why a better file is not used.
    pub(super) fn check_best_considered(&self) {
        let (given_up, last) = (self.given_up(), self.last_release());
        let converter = last.numbers(self.plan.difference).converter;
        for entry in self.stores.entries() {
            let (Kind::SymCache, Some(ready), None) =
                (entry.kind(), entry.ready(), entry.missing())
            else {
                continue;
            };
            let offers = self.truth.offers_of(&entry.module().partition());
            let used = ready.made_from.first().map(|dif| dif.location.as_str());
            let used = offers.iter().find(|(key, _)| Some(*key) == used);
            let Some((_, used)) = used.filter(|_| ready.converter == converter) else {
                continue;
            };
            let is_considered = |key: &str| {
                let mut considered = entry.considered().iter();
                considered.any(|dif| {
                    let stat = self.stores.uploads.stat(&dif.location).now_or_never();
                    let is_it = |stat: DifStat| stat.etag == dif.etag;
                    dif.location.as_str() == key && stat.is_some_and(|stat| stat.is_ok_and(is_it))
                })
            };
            let better = offers.iter().find(|(key, offer)| {
                offer < used
                    && self.truth.is_usable(key, last)
                    && !given_up.contains(*key)
                    && is_considered(key)
            });
            if let Some((key, _)) = better {
                let (module, text) = (describe::module(entry.module()), describe::entry(&entry));
                let detail = format!("{module}, {key}: {text}");
                self.fail("5: the best of the considered files is used", detail);
            }
        }
    }

    /// Returns whether the release that runs in the end cannot read an item.
    fn is_beyond(&self, stored: &Stored) -> bool {
        self.stores.is_beyond(self.last_release(), stored)
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
                // A removal that only a newer release can apply waits for one.
                Item::Dif(dif)
                    if is_exact
                        && !self.truth.has(dif.file.location.as_str())
                        && !self.is_beyond(stored) =>
                {
                    self.fail("a removed file is not filed", label);
                }
                // What a newer release has begun, only a newer release can end.
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
        let Some((since, before, stored)) = self.before_last else {
            return;
        };
        let counts = &mut ledger.counts;
        counts.last_builds = counts.builds - before.builds;
        counts.last_messages = counts.messages - before.messages;
        counts.last_writes = counts.writes - before.writes;
        let builds = counts.last_builds;
        drop(ledger);
        let servers = servers::count(self.plan.has_servers, self.plan.adds_server);
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
        self.check_last_costs(since, before, (entries.max(stored as u64), most));
    }

    /// Checks the messages and the writes since nothing changed any more. Each build may have a
    /// message, and what a symbol server fails to give is requested again in each round. Besides,
    /// entries are touched, requests are stored and expire, and the pruner keeps its progress.
    fn check_last_costs(&self, since: Moment, before: Counts, (entries, most): (u64, u64)) {
        let counts = self.stores.ledger().counts;
        let servers = servers::count(self.plan.has_servers, self.plan.adds_server);
        let of_servers = (KINDS * servers * self.plan.modules) as u64;
        let most = most + u64::from(LAST_ROUNDS) * of_servers;
        let (messages, writes) = (counts.last_messages, counts.last_writes);
        if messages > most {
            let detail = format!("{messages} messages without a change, at most {most}");
            self.fail("8: the number of messages is bounded", detail);
        }
        let passes = 2 + (self.now - since).as_secs() / LAST_PASSES_EVERY.as_secs();
        let pending = counts.pending - before.pending;
        let most = WRITES_OF_A_BUILD * (messages + counts.last_builds)
            + WRITES_OF_AN_ENTRY * entries
            + WRITES_OF_A_REQUEST * pending
            + WRITES_OF_A_PASS * passes;
        if writes > most {
            let detail = format!("{writes} writes without a change, at most {most}");
            self.fail("8: the number of writes is bounded", detail);
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
        self.check_best_considered();
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
