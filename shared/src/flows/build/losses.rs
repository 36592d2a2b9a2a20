//! Verifies blobs that readers could not read, and removes the items of DIFs that no longer exist.

use super::builder::Build;
use super::lease::HeldLease;
use super::made::NotMade;
use super::partition::Partition;
use crate::cache::{Change, Dif, Entry, Item, ItemKey, Kind, Losses, Ready, Refused, UploadState};
use crate::debuginfo::{self, MAX_WHOLE_BYTES, SliceIndex};
use crate::domain::{Cause, Missing};
use crate::flows::presence;
use crate::flows::update::Updated;
use crate::ports::{Fault, Removed};

/// The verdict about an entry whose blob a reader could not read.
enum Judged {
    /// Build the entry; this is the entry now, if it was changed.
    Build(Option<Box<Entry>>),
    /// Do not build the entry, for this reason.
    GiveUp(Missing),
}

impl Build<'_> {
    /// Judges the suspect blobs of the kinds whose leases are held, and updates their entries.
    /// Returns the kinds that are not to be built, with the reasons.
    pub(super) async fn judge_suspects(
        &self,
        held: &[HeldLease],
        partition: &mut Partition,
    ) -> Result<Vec<(Kind, Missing)>, NotMade> {
        let mut given_up = Vec::new();
        for entry in &mut partition.entries {
            if let Some(lease) = held.iter().find(|lease| lease.kind == entry.kind()) {
                match self.judge_suspect(entry, lease).await? {
                    Judged::Build(Some(judged)) => *entry = *judged,
                    Judged::Build(None) => {}
                    Judged::GiveUp(missing) => given_up.push((entry.kind(), missing)),
                }
            }
        }
        Ok(given_up)
    }

    /// Verifies a blob that a reader reported as suspect. If the blob is missing, or has other
    /// bytes than were published, its state is removed and built again. If the blob is intact, it
    /// is built again, but the state stays. Each entry is rebuilt for this at most hourly.
    ///
    /// If too many blobs seem lost at a time, returns [`NotMade::Doubtful`] and changes nothing:
    /// new blobs would go to the wrong bucket, too.
    async fn judge_suspect(&self, entry: &Entry, lease: &HeldLease) -> Result<Judged, NotMade> {
        let Some(suspect) = entry.suspect() else {
            return Ok(Judged::Build(None));
        };
        let path = &suspect.blob;
        let Some(state) = entry.states().find(|state| state.blob.path == *path) else {
            return Ok(Judged::Build(None));
        };
        let is_sound = self.is_sound(entry.kind(), state).await?;
        if !is_sound && !self.may_be_lost().await? {
            return Err(NotMade::Doubtful { blob: path.clone() });
        }
        let (blob, id) = (path.clone(), self.invocation.token());
        let token = lease.token.clone();
        let change = if is_sound {
            Change::Dispute { token, blob, id }
        } else {
            Change::ConfirmLoss { token, blob, id }
        };
        let updated = self
            .update()
            .apply(entry.module(), entry.kind(), &change)
            .await?;
        Ok(match updated {
            Updated::Refused(Refused::TooSoon, _) => {
                let how = if is_sound {
                    "is intact, but cannot be read"
                } else {
                    "is missing or corrupt again"
                };
                let detail =
                    format!("its cache {how}, and was already replaced within the last hour");
                Judged::GiveUp(Missing::new(Cause::DownloadFailed, detail))
            }
            Updated::Done(entry) => Judged::Build(Some(Box::new(entry))),
            Updated::Refused(..) | Updated::NotDue => Judged::Build(None),
        })
    }

    /// Returns whether the blob of a state exists and matches the record. Of a large blob, only the
    /// index and the length are verified: all of it may exceed the memory that a parser leaves.
    async fn is_sound(&self, kind: Kind, state: &Ready) -> Result<bool, Fault> {
        let (caches, blob) = (&self.builder.caches, &state.blob);
        if blob.bytes <= MAX_WHOLE_BYTES {
            let whole = caches.get(&blob.path, None).await?;
            return Ok(whole.is_some_and(|whole| debuginfo::is_sound(kind, state, &whole)));
        }
        let from = blob.index.map_or(blob.bytes - 1, |at| at.offset);
        // A byte behind the end shows that the blob is too long.
        let range = from..blob.bytes.saturating_add(1);
        let Some(end) = caches.get(&blob.path, Some(range)).await? else {
            return Ok(false);
        };
        Ok(match blob.index {
            Some(_) => SliceIndex::open(kind, state, &end).is_ok(),
            None => end.len() == 1,
        })
    }

    /// Removes the item of an uploaded DIF whose bytes no longer exist. Returns `false` if it keeps
    /// the item, because the event of the change has yet to be processed.
    pub(super) async fn forget_if_stale(&self, dif: &Dif) -> Result<bool, Fault> {
        let location = &dif.file.location;
        let (update, key) = (self.update(), dif.module.dif(location));
        // Read before the upload item, which every upload changes first. If the same bytes are
        // uploaded again after that, their item has another revision, and stays.
        let filed = update.load(&key).await?;
        let upload = update.load(&ItemKey::upload(location)).await?;
        let is_current = match upload.map(|stored| stored.item) {
            Some(Item::Upload(upload)) => match upload.state {
                UploadState::Pending => true,
                // Its etag is that of the removed bytes.
                UploadState::Gone => false,
                UploadState::Applied | UploadState::Ignored { .. } => upload.etag == dif.file.etag,
            },
            // A newer release wrote it.
            Some(_) => true,
            None => false,
        };
        if is_current {
            return Ok(false);
        }
        let is_it = |item: &Item| matches!(item, Item::Dif(present) if present.file == dif.file);
        if let Some(filed) = filed.filter(|filed| is_it(&filed.item)) {
            let records = &self.builder.records;
            match records.remove(&key, &filed.revision).await? {
                Removed::Done | Removed::Lost(_) => {}
            }
        }
        presence::forget_files(update, &dif.module).await?;
        Ok(true)
    }

    /// Counts a loss. Returns `false` if the hourly limit is reached.
    async fn may_be_lost(&self) -> Result<bool, Fault> {
        let most = self.builder.settings.max_losses_per_hour;
        let counted = |present: Option<&Item>| {
            let losses = match present {
                Some(Item::Losses(losses)) => *losses,
                _ => Losses::default(),
            };
            losses
                .with_one_more(self.invocation.now(), most)
                .map(Item::Losses)
        };
        self.update().put_with(&ItemKey::losses(), counted).await
    }
}
