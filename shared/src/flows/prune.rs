//! The schedule: removes what is no longer used.
//!
//! 1. Walk all records. An entry that nobody used for too long is retired: the record goes first, if nobody changed it
//!    meanwhile (the commit point), then its blobs. A crash between leaves orphans, never a record without its blob.
//! 2. Walk all blobs that are older than a build can take. One that its entry does not name, read strongly, is an orphan.
//!
//! Both stop well before the function's deadline; the next run begins anew.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::{Error, Invocation, Settings, Update, Updated};
use crate::cache::{Change, Entry, Item, ItemKey, Stored};
use crate::ports::{BlobStore, BlobSummary, Consistency, Cursor, RecordStore, StoreError};

/// Time kept back at the end of an invocation.
const RESERVE: Duration = Duration::from_secs(5);

/// Removes what is no longer used.
#[derive(Clone, Debug)]
pub struct Pruner {
    /// The records.
    pub records: Arc<dyn RecordStore>,
    /// The bucket of derived caches.
    pub caches: Arc<dyn BlobStore>,
    /// The settings.
    pub settings: Settings,
}

/// What a run did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// Whether the time sufficed for everything.
    pub complete: bool,
    /// Items that were read, by type.
    pub items: BTreeMap<&'static str, u64>,
    /// Entries that nobody used for too long.
    pub retired: u64,
    /// Leases whose holders vanished.
    pub leases_cleared: u64,
    /// States that were kept for an older build.
    pub older_dropped: u64,
    /// Items that had expired by themselves.
    pub expired: u64,
    /// Blobs that were looked at.
    pub blobs: u64,
    /// Blobs that no record names.
    pub orphans: u64,
    /// Bytes of the blobs that were removed.
    pub bytes_freed: u64,
}

impl Pruner {
    /// Removes what is no longer used, or with `dry_run` counts it.
    pub async fn prune(&self, invocation: &Invocation, dry_run: bool) -> Result<Report, Error> {
        let mut report = Report {
            dry_run,
            ..Report::default()
        };
        report.complete = self.sweep_records(invocation, &mut report).await?
            && self.sweep_blobs(invocation, &mut report).await?;
        Ok(report)
    }

    async fn sweep_records(
        &self,
        invocation: &Invocation,
        report: &mut Report,
    ) -> Result<bool, StoreError> {
        let mut cursor: Option<Cursor> = None;
        loop {
            let page = self.records.page(cursor.as_ref()).await?;
            for (key, stored) in &page.items {
                self.sweep_item(invocation, key, stored, report).await?;
            }
            match page.next {
                None => return Ok(true),
                Some(_) if invocation.time_left() < RESERVE => return Ok(false),
                next => cursor = next,
            }
        }
    }

    async fn sweep_item(
        &self,
        invocation: &Invocation,
        key: &ItemKey,
        stored: &Stored,
        report: &mut Report,
    ) -> Result<(), StoreError> {
        *report.items.entry(name(&stored.item)).or_default() += 1;
        match &stored.item {
            Item::Entry(entry) => self.sweep_entry(invocation, entry, report).await,
            item if item.expires_at().is_some_and(|at| at <= invocation.now()) => {
                report.expired += 1;
                if !report.dry_run {
                    self.records.remove(key, &stored.revision).await?;
                }
                Ok(())
            }
            Item::Alias(_)
            | Item::Upload(_)
            | Item::Dif(_)
            | Item::Request(_)
            | Item::Newer { .. } => Ok(()),
        }
    }

    async fn sweep_entry(
        &self,
        invocation: &Invocation,
        entry: &Entry,
        report: &mut Report,
    ) -> Result<(), StoreError> {
        for (change, count) in [
            (Change::Retire, Counted::Retired),
            (Change::ClearLease, Counted::LeaseCleared),
            (Change::DropOlder, Counted::OlderDropped),
        ] {
            // What was read may be a second old: it is only a hint, `apply` judges what is stored.
            let hint = crate::cache::apply(entry, &change, invocation.now(), &self.settings.policy);
            if hint.is_err() {
                continue;
            }
            let updated = match report.dry_run {
                true => Updated::Retired(entry.clone()),
                false => {
                    self.update(invocation)
                        .entry(entry.module(), entry.kind(), &change)
                        .await?
                }
            };
            let refused = matches!(updated, Updated::Refused(..));
            match count {
                _ if refused => {}
                Counted::Retired => {
                    report.retired += 1;
                    return self.remove_blobs(entry, report).await;
                }
                Counted::LeaseCleared => report.leases_cleared += 1,
                Counted::OlderDropped => report.older_dropped += 1,
            }
        }
        Ok(())
    }

    async fn remove_blobs(&self, entry: &Entry, report: &mut Report) -> Result<(), StoreError> {
        for ready in entry.ready().into_iter().chain(entry.older()) {
            report.bytes_freed += ready.blob.bytes;
            if !report.dry_run {
                self.caches.delete(&ready.blob.path).await?;
            }
        }
        Ok(())
    }

    async fn sweep_blobs(
        &self,
        invocation: &Invocation,
        report: &mut Report,
    ) -> Result<bool, StoreError> {
        let mut after: Option<String> = None;
        loop {
            let page = self.caches.list("derived/", after.as_deref()).await?;
            let old = |blob: &&BlobSummary| {
                invocation.now().since(blob.modified_at) >= self.settings.orphan_min_age
            };
            report.blobs += page.blobs.len() as u64;
            let old: Vec<&BlobSummary> = page.blobs.iter().filter(old).collect();
            self.remove_orphans(&old, report).await?;
            match page.blobs.last() {
                Some(last) if page.more && invocation.time_left() >= RESERVE => {
                    after = Some(last.path.clone())
                }
                Some(_) if page.more => return Ok(false),
                _ => return Ok(true),
            }
        }
    }

    /// Removes those of these blobs that no record names. The records are read strongly, after the listing: what a
    /// build is writing now is younger than any blob here, or named by its lease.
    async fn remove_orphans(
        &self,
        blobs: &[&BlobSummary],
        report: &mut Report,
    ) -> Result<(), StoreError> {
        let keyed: Vec<(&BlobSummary, ItemKey)> = blobs
            .iter()
            .filter_map(|blob| Some((*blob, ItemKey::of_blob(&blob.path)?)))
            .collect();
        let keys: Vec<ItemKey> = keyed.iter().map(|(_, key)| key.clone()).collect();
        let stored = self.records.load(&keys, Consistency::Strong).await?;
        for ((blob, _), stored) in keyed.iter().zip(&stored) {
            if stored
                .as_ref()
                .is_some_and(|stored| names(&stored.item, &blob.path))
            {
                continue;
            }
            report.orphans += 1;
            report.bytes_freed += blob.bytes;
            if !report.dry_run {
                self.caches.delete(&blob.path).await?;
            }
        }
        Ok(())
    }

    fn update<'a>(&'a self, invocation: &'a Invocation) -> Update<'a> {
        Update {
            records: &*self.records,
            policy: &self.settings.policy,
            invocation,
        }
    }
}

#[derive(Clone, Copy)]
enum Counted {
    Retired,
    LeaseCleared,
    OlderDropped,
}

/// Tells whether an item names a blob: as its state, or by the token of the lease under which it is being made.
fn names(item: &Item, path: &str) -> bool {
    match item {
        Item::Entry(entry) => {
            let states = entry.ready().into_iter().chain(entry.older());
            let leased = entry
                .lease()
                .is_some_and(|lease| path.ends_with(lease.token.as_str()));
            leased || states.into_iter().any(|ready| ready.blob.path == path)
        }
        // A newer build may name it in a way that this one cannot read.
        Item::Newer { .. } => true,
        Item::Alias(_) | Item::Upload(_) | Item::Dif(_) | Item::Request(_) => false,
    }
}

fn name(item: &Item) -> &'static str {
    match item {
        Item::Entry(_) => "entry",
        Item::Alias(_) => "alias",
        Item::Upload(_) => "upload",
        Item::Dif(_) => "dif",
        Item::Request(_) => "request",
        Item::Newer { .. } => "newer",
    }
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
        assert!(!names(&Item::Entry(new), &path));
        assert!(names(&Item::Entry(leased.clone()), &path));
        assert!(!names(
            &Item::Entry(leased),
            "derived/symcache/v1/a/symcache/other"
        ));
        assert!(names(&Item::Newer { schema: 99 }, &path));
    }
}
