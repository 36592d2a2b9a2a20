//! The walk over all blobs: removes those that no record names.

use super::progress::Progress;
use super::{RESERVE, Run};
use crate::cache::{Change, Entry, Item, ItemKey};
use crate::flows::{Error, Updated};
use crate::ports::{BlobSummary, Consistency, StoreError};

/// Where parts of copies, derived caches and plain SymCaches lie, in the order in which they are walked.
const PREFIXES: [&str; 3] = ["copies/", "derived/", "plain/"];

impl Run<'_> {
    /// Walks the blobs from where the last run stopped; tells whether it came to their end.
    pub(super) async fn sweep_blobs(&self, progress: &mut Progress) -> Result<bool, Error> {
        let after = &mut progress.cursor.blobs_after;
        let is_under = |prefix: &&str| {
            let after = after.as_deref();
            after.is_some_and(|after| after.starts_with(*prefix))
        };
        let begin = PREFIXES.iter().position(is_under).unwrap_or_default();
        for prefix in &PREFIXES[begin..] {
            if !self.sweep_prefix(prefix, after).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn sweep_prefix(&self, prefix: &str, after: &mut Option<String>) -> Result<bool, Error> {
        loop {
            if self.invocation.time_left() < RESERVE {
                return Ok(false);
            }
            let page = self.pruner.caches.list(prefix, after.as_deref()).await?;
            self.report().blobs += page.blobs.len() as u64;
            let min_age = self.pruner.settings.orphan_min_age;
            let now = self.invocation.now();
            let old: Vec<&BlobSummary> = page
                .blobs
                .iter()
                .filter(|blob| now.since(blob.modified_at) >= min_age)
                .collect();
            self.remove_orphans(&old).await?;
            match page.blobs.last() {
                Some(last) if page.more => *after = Some(last.path.clone()),
                _ => {
                    *after = None;
                    return Ok(true);
                }
            }
        }
    }

    /// Removes those of these blobs that no record names. The records are read strongly, after the listing: what a
    /// build is writing now is younger than any blob here, or named by its lease.
    async fn remove_orphans(&self, blobs: &[&BlobSummary]) -> Result<(), StoreError> {
        let keyed: Vec<(&BlobSummary, ItemKey)> = blobs
            .iter()
            .filter_map(|blob| Some((*blob, ItemKey::of_blob(&blob.path)?)))
            .collect();
        let keys: Vec<ItemKey> = keyed.iter().map(|(_, key)| key.clone()).collect();
        let records = &self.pruner.records;
        let stored = records.load(&keys, Consistency::Strong).await?;
        for ((blob, _), stored) in keyed.iter().zip(&stored) {
            let item = stored.as_ref().map(|stored| &stored.item);
            if self.is_named(item, &blob.path).await? {
                continue;
            }
            {
                let mut report = self.report();
                report.orphans += 1;
                report.bytes_freed += blob.bytes;
                report.say("remove", blob.path.as_str(), "no record names it");
            }
            if !self.is_dry() {
                self.pruner.caches.delete(&blob.path).await?;
            }
        }
        Ok(())
    }

    /// Tells whether a record names a blob. A dead lease that does is cleared first, by compare-and-swap: its holder may
    /// freeze just before it publishes, and finds then that the lease is gone.
    async fn is_named(&self, item: Option<&Item>, path: &str) -> Result<bool, StoreError> {
        let entry = match item {
            None => return Ok(false),
            Some(Item::Entry(entry)) => entry,
            Some(Item::Copy(copy)) => return Ok(copy.names(path)),
            Some(item) => return Ok(is_of_a_newer_build(item)),
        };
        let is_dead = entry.live_lease(self.invocation.now()).is_none();
        if is_ready(entry, path) || !is_leased(entry, path) {
            return Ok(is_ready(entry, path));
        }
        if !is_dead || self.is_dry() {
            return Ok(!is_dead);
        }
        let cleared = self
            .update()
            .entry(entry.module(), entry.kind(), &Change::ClearLease)
            .await?;
        Ok(match cleared {
            Updated::Done(entry) => is_ready(&entry, path) || is_leased(&entry, path),
            Updated::Refused(_, Some(entry)) => is_ready(&entry, path) || is_leased(&entry, path),
            // Removed meanwhile, or a newer build's: the next sweep tells which.
            Updated::Refused(_, None) | Updated::Retired(_) => true,
        })
    }
}

/// Tells whether a blob is a state of an entry.
fn is_ready(entry: &Entry, path: &str) -> bool {
    let mut states = entry.ready().into_iter().chain(entry.older());
    states.any(|ready| ready.blob.path == path)
}

/// Tells whether a blob is named by the lease under which it was made.
fn is_leased(entry: &Entry, path: &str) -> bool {
    entry
        .lease()
        .is_some_and(|lease| path.ends_with(lease.token.as_str()))
}

/// A newer build may name a blob in a way that this one cannot read.
fn is_of_a_newer_build(item: &Item) -> bool {
    matches!(item, Item::Newer { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Applied, Kind, ModuleKey, Policy, Token, apply};
    use crate::domain::{ModuleId, Scope, Timestamp};

    #[test]
    fn a_blob_is_named_by_the_lease_that_makes_it_and_by_what_cannot_be_read() {
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
        assert!(!is_leased(&new, &path));
        assert!(is_leased(&leased, &path));
        assert!(!is_leased(&leased, "derived/symcache/v1/a/symcache/other"));
        assert!(is_of_a_newer_build(&Item::Newer { schema: 99 }));
    }
}
