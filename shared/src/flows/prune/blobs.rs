//! Lists the derived caches, chunks of copies and plain SymCaches, and deletes those that no record
//! names (orphans). The bodies of requests, under `requests/`, are not listed: they expire by the
//! bucket's rule.
//!
//! Nearly every blob is named, so the records are first read with eventual consistency, in batches.
//! A blob that its record names is not an orphan. The records of the others are read again with
//! strong consistency before the blobs are deleted.

use std::time::Duration;

use super::progress::Progress;
use super::run::{BlobToDelete, Run, RunStep};
use crate::cache::{Change, Entry, Item, ItemKey};
use crate::domain::Timestamp;
use crate::flows::Updated;
use crate::ports::{BlobSummary, Consistency, Fault};

/// The prefixes of chunks of copies, derived caches and plain SymCaches, in the order in which they
/// are listed.
const PREFIXES: [&str; 3] = [
    ItemKey::COPY_BLOBS,
    ItemKey::DERIVED_BLOBS,
    ItemKey::PLAIN_BLOBS,
];

/// The minimum age of an orphan that may be in use or about to be named. A client is redirected to
/// a plain SymCache for 10 minutes, by URLs that are valid for a minute. The chunks of a copy are
/// written within 15 minutes.
pub const UNNAMED_MIN_AGE: Duration = Duration::from_secs(25 * 60);

/// The interval between the beginnings of two listings: once a day, however late in its hour a run
/// begins.
const LISTING_INTERVAL: Duration = Duration::from_secs(23 * 3600 + 1800);

/// The number of blobs whose records are read together: the limit of one `BatchGetItem` call.
const BLOBS_AT_ONCE: usize = 100;

impl Run<'_> {
    /// Continues the daily listing of blobs, and deletes those without a record. Returns whether
    /// nothing is left to do.
    pub(super) async fn delete_orphans(&self, progress: &mut Progress) -> bool {
        let _span = self.invocation.span("delete orphans");
        let cursor = &mut progress.cursor;
        let now = self.invocation.now();
        if cursor.blobs_after.is_none() {
            // If there is no minimum age, orphans are deleted in every run.
            let is_daily = !self.pruner.settings.orphan_min_age.is_zero();
            if is_daily && now.since(cursor.blobs_began_at) < LISTING_INTERVAL {
                return true;
            }
            cursor.blobs_began_at = now;
        }
        let listing = self.list_blobs(&mut cursor.blobs_after);
        Box::pin(self.in_time(listing)).await.unwrap_or_default()
    }

    async fn list_blobs(&self, after: &mut Option<String>) -> bool {
        let is_in = |prefix: &str, after: &Option<String>| {
            let after = after.as_deref();
            after.is_some_and(|after| after.starts_with(prefix))
        };
        let begin = PREFIXES.iter().position(|prefix| is_in(prefix, after));
        for prefix in &PREFIXES[begin.unwrap_or_default()..] {
            if !is_in(prefix, after) {
                *after = Some((*prefix).to_owned());
            }
            if !self.delete_orphans_in(prefix, after).await {
                return false;
            }
        }
        *after = None;
        true
    }

    async fn delete_orphans_in(&self, prefix: &str, after: &mut Option<String>) -> bool {
        let min_age = match self.pruner.settings.orphan_min_age {
            // A lease names a derived cache before it is created.
            min_age if prefix == ItemKey::DERIVED_BLOBS => min_age,
            min_age => min_age.max(UNNAMED_MIN_AGE),
        };
        loop {
            if self.is_time_up(RunStep::Blobs) {
                return false;
            }
            let page = match self.pruner.caches.list(prefix, after.as_deref()).await {
                Ok(page) => page,
                Err(error) => {
                    self.fail(&error);
                    return false;
                }
            };
            for blobs in page.blobs.chunks(BLOBS_AT_ONCE) {
                if !self.may_read(RunStep::Blobs).await {
                    return false;
                }
                match self.remove_orphans(blobs, min_age).await {
                    Ok(true) => *after = blobs.last().map(|last| last.path.clone()),
                    Ok(false) => return false,
                    Err(error) => {
                        self.fail(&error);
                        return false;
                    }
                }
                self.report().blobs += blobs.len() as u64;
            }
            if !page.more {
                return true;
            }
        }
    }

    /// Deletes the orphans among these blobs that are old enough. Returns whether all blobs were
    /// checked.
    ///
    /// The records of deleted blobs are read with strong consistency, after the listing: a blob
    /// that a build is writing now is younger than these, or named by the build's lease.
    async fn remove_orphans(
        &self,
        blobs: &[BlobSummary],
        min_age: Duration,
    ) -> Result<bool, Fault> {
        let now = self.invocation.now();
        let old = blobs
            .iter()
            .filter(|blob| now.since(blob.modified_at) >= min_age);
        let (old, keys): (Vec<&BlobSummary>, Vec<ItemKey>) = old
            .filter_map(|blob| Some((blob, ItemKey::of_blob(&blob.path)?)))
            .unzip();
        let seen = self.load(&keys, Consistency::Eventual).await?;
        let unnamed = old.into_iter().zip(keys).zip(&seen);
        let unnamed = unnamed.filter(|((blob, _), stored)| {
            let item = stored.as_ref().map(|stored| &stored.item);
            !item.is_some_and(|item| names(item, &blob.path, now))
        });
        let (unnamed, keys): (Vec<&BlobSummary>, Vec<ItemKey>) =
            unnamed.map(|(unnamed, _)| unnamed).unzip();
        let stored = self.load(&keys, Consistency::Strong).await?;
        let (mut to_delete, mut is_all) = (Vec::new(), true);
        for ((blob, key), stored) in unnamed.into_iter().zip(&keys).zip(stored) {
            // An expired lease takes additional calls.
            is_all = !self.is_time_up(RunStep::Blobs);
            if !is_all {
                break;
            }
            let item = stored.map(|stored| stored.item);
            match self.is_named(key, item.as_ref(), &blob.path).await {
                Ok(true) => {}
                Ok(false) => {
                    let path = blob.path.clone();
                    self.report()
                        .note_planned("remove", path.as_str(), "no record names it");
                    to_delete.push(BlobToDelete {
                        path,
                        bytes: blob.bytes,
                    });
                }
                Err(error) => self.fail(&error),
            }
        }
        let deleted = self.delete(to_delete).await;
        let mut report = self.report();
        report.orphans += deleted.len() as u64;
        report.bytes_freed += deleted.iter().map(|blob| blob.bytes).sum::<u64>();
        Ok(is_all)
    }

    /// Returns whether a record names a blob. If only an expired lease names it, the lease is
    /// cleared first, by compare-and-swap. Its holder may be frozen just before it publishes, and
    /// then finds the lease gone.
    async fn is_named(
        &self,
        key: &ItemKey,
        item: Option<&Item>,
        path: &str,
    ) -> Result<bool, Fault> {
        let Some(item) = item else {
            return Ok(false);
        };
        let entry = match item {
            item if names(item, path, self.invocation.now()) => return Ok(true),
            Item::Entry(entry) if is_leased(entry, path) => entry,
            _ => return Ok(false),
        };
        // The lease is expired. An entry under the key of another schema is left to the releases
        // that use this schema.
        if *key != entry.module().entry(entry.kind()) {
            return Ok(true);
        }
        if self.is_dry {
            return Ok(false);
        }
        let cleared = self
            .writer()
            .apply(entry.module(), entry.kind(), &Change::ClearLease)
            .await?;
        Ok(match cleared {
            Updated::Done(entry) => is_ready(&entry, path) || is_leased(&entry, path),
            Updated::Refused(_, Some(entry)) => is_ready(&entry, path) || is_leased(&entry, path),
            // The record was removed meanwhile, or a newer release wrote it: leave it to the next
            // pass.
            Updated::Refused(_, None) | Updated::NotDue => true,
        })
    }
}

/// Returns whether an item names a blob: as a state of an entry, by a live lease, as a chunk of a
/// copy, or possibly in a way that only a newer release can read.
fn names(item: &Item, path: &str, now: Timestamp) -> bool {
    match item {
        Item::Entry(entry) => {
            let is_live = entry.live_lease(now).is_some();
            is_ready(entry, path) || (is_live && is_leased(entry, path))
        }
        Item::Copy(copy) => copy.names(path),
        Item::Newer { .. } => true,
        _ => false,
    }
}

/// Returns whether a blob is a state of an entry.
fn is_ready(entry: &Entry, path: &str) -> bool {
    entry.states().any(|ready| ready.blob.path == path)
}

/// Returns whether the entry's lease, live or expired, names a blob.
fn is_leased(entry: &Entry, path: &str) -> bool {
    entry
        .lease()
        .is_some_and(|lease| path.ends_with(lease.token.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Applied, Kind, ModuleKey, Policy, Token, apply};
    use crate::domain::{ModuleId, Scope, Timestamp};

    #[test]
    fn a_blob_is_referenced_by_its_lease_and_by_unreadable_items() {
        let id = ModuleId::Debug("502fc0a5-1ec1-3e47-9998-684fa139dca7".parse().unwrap());
        let module = ModuleKey::uploads(Scope::Global, &id);
        let (token, now) = (Token::from_random(7), Timestamp::from_secs(1000));
        let path = module.entry(Kind::SymCache).blob(Kind::SymCache, 1, &token);
        let new = Entry::new(module, Kind::SymCache, now);
        let take = Change::TakeLease {
            holder: "1".to_owned(),
            token,
            deadline: now,
        };
        let Ok(Applied::Changed(leased)) = apply(&new, &take, now, &Policy::default()) else {
            panic!("not leased")
        };
        let names = |item: Item, path: &str, at| names(&item, path, Timestamp::from_secs(at));
        assert!(!names(Item::Entry(new), &path, 1000));
        let leased = Item::Entry(leased);
        assert!(names(leased.clone(), &path, 1000));
        let other = "derived/symcache/v1/a/symcache/other";
        assert!(!names(leased.clone(), other, 1000));
        assert!(!names(leased, &path, 2000), "the lease is over");
        assert!(names(Item::Newer { schema: 99 }, &path, 1000));
    }
}
