//! Verifies blobs that readers could not read. A blob that is lost or disputed is replaced.

use super::builder::Build;
use super::lease::HeldLease;
use super::made::NotMade;
use super::partition::Partition;
use crate::cache::{Change, Entry, Item, ItemKey, Kind, Losses, Ready, Refused};
use crate::debuginfo::{self, MAX_WHOLE_BYTES, SliceIndex};
use crate::domain::{Cause, Missing};
use crate::flows::update::Updated;
use crate::ports::Fault;

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
            .writer()
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
        self.writer().put_with(&ItemKey::losses(), counted).await
    }
}
