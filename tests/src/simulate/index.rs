//! What the checks need to know about all items and blobs, kept up to date at each write: so no
//! check walks all of them.

use std::collections::{BTreeMap, BTreeSet};

use symdepot::cache::{Item, ItemKey, UploadState};

use super::Moment;
use super::stores::states;

/// What is known about all items and blobs.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// How many states of entries and copies name each blob.
    named: BTreeMap<String, usize>,
    /// The blobs that no record names, and since when: since they were written, or since a record
    /// named them last.
    unnamed: BTreeMap<String, Moment>,
    /// The partitions that have `dif` items, each with their number.
    filed: BTreeMap<String, usize>,
    /// The partitions that have a presence.
    present: BTreeSet<String>,
    /// The partitions that have `dif` items and no presence.
    without_presence: BTreeSet<String>,
    /// The keys of uploads that no builder could read in several attempts.
    given_up: BTreeSet<String>,
}

impl Index {
    /// Records that an item was written in place of another one, or removed.
    pub(super) fn changed(
        &mut self,
        key: &ItemKey,
        before: Option<&Item>,
        after: Option<&Item>,
        now: Moment,
    ) {
        if let Some(item) = before {
            self.take(key, item, now);
        }
        if let Some(item) = after {
            self.add(key, item);
        }
        self.check_presence(key);
    }

    fn add(&mut self, key: &ItemKey, item: &Item) {
        for path in paths(item) {
            self.unnamed.remove(&path);
            *self.named.entry(path).or_default() += 1;
        }
        let partition = &key.partition;
        match item {
            Item::Dif(_) => *self.filed.entry(partition.clone()).or_default() += 1,
            Item::Presence(_) => drop(self.present.insert(partition.clone())),
            Item::Upload(upload) if is_given_up(&upload.state) => {
                self.given_up.insert(upload.key.clone());
            }
            _ => {}
        }
    }

    fn take(&mut self, key: &ItemKey, item: &Item, now: Moment) {
        for path in paths(item) {
            if subtract(&mut self.named, &path) {
                self.unnamed.insert(path, now);
            }
        }
        match item {
            Item::Dif(_) => drop(subtract(&mut self.filed, &key.partition)),
            Item::Presence(_) => drop(self.present.remove(&key.partition)),
            Item::Upload(upload) => drop(self.given_up.remove(&upload.key)),
            _ => {}
        }
    }

    fn check_presence(&mut self, key: &ItemKey) {
        let partition = &key.partition;
        if self.filed.contains_key(partition) && !self.present.contains(partition) {
            self.without_presence.insert(partition.clone());
        } else {
            self.without_presence.remove(partition);
        }
    }

    /// Records that a blob was written.
    pub(super) fn created(&mut self, path: &str, now: Moment) {
        if !self.named.contains_key(path) {
            self.unnamed.insert(path.to_owned(), now);
        }
    }

    /// Records that a blob was removed.
    pub(super) fn deleted(&mut self, path: &str) {
        self.unnamed.remove(path);
    }

    /// Returns whether a record names a blob.
    pub(super) fn names(&self, path: &str) -> bool {
        self.named.contains_key(path)
    }

    /// Returns the blobs that no record names, and since when.
    pub(super) fn unnamed(&self) -> impl Iterator<Item = (&str, Moment)> {
        let unnamed = self.unnamed.iter();
        unnamed.map(|(path, since)| (&**path, *since))
    }

    /// Returns a partition that has `dif` items and no presence.
    pub(super) fn without_presence(&self) -> Option<&str> {
        self.without_presence.first().map(String::as_str)
    }

    /// Returns the keys of the uploads that no builder could read in several attempts.
    pub(super) fn given_up(&self) -> &BTreeSet<String> {
        &self.given_up
    }
}

/// Returns the paths of the blobs that an item names.
pub(super) fn paths(item: &Item) -> Vec<String> {
    match item {
        Item::Entry(entry) => states(entry).map(|ready| ready.blob.path.clone()).collect(),
        Item::Copy(copy) => copy.chunks().map(|(_, _, path)| path).collect(),
        _ => Vec::new(),
    }
}

fn is_given_up(state: &UploadState) -> bool {
    matches!(state, UploadState::Ignored { reason } if reason.contains("gave up"))
}

/// Subtracts one from a count. Returns whether it was the last one.
fn subtract(counts: &mut BTreeMap<String, usize>, key: &str) -> bool {
    let Some(count) = counts.get_mut(key) else {
        return false;
    };
    *count -= 1;
    let is_last = *count == 0;
    if is_last {
        counts.remove(key);
    }
    is_last
}
