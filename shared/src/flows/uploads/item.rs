//! Reads and writes upload items.

use super::changes::UploadChanges;
use super::event::{UploadEvent, is_outdated, is_same, pending_again};
use crate::cache::{Item, ItemKey, Stored, Upload, UploadProgress, UploadState};
use crate::domain::Location;
use crate::flows::update::{KnownItem, Present};
use crate::ports::Fault;

/// The upload item as the event wrote it last.
pub(super) struct WrittenUpload {
    pub(super) upload: Upload,
    /// The stored form of this item.
    pub(super) stored: KnownItem,
}

impl UploadChanges<'_> {
    /// Writes the pending upload item at the beginning of an event, based on the item that it
    /// replaces, so that the effects of a concurrent earlier event are seen and undone. Returns the
    /// written item; `None` if nothing is left to do for the event.
    pub(super) async fn write_pending(
        &self,
        event: &UploadEvent,
        known: KnownItem,
        mut item: impl FnMut(Option<&Upload>) -> Upload,
    ) -> Result<Option<WrittenUpload>, Fault> {
        let key = ItemKey::upload(&Location::new(event.key.as_str()));
        let next = |present: Present<'_>| {
            let known = present.item.and_then(Item::upload);
            let is_outdated = known.is_some_and(|known| is_outdated(event, known));
            (!is_outdated).then(|| Item::Upload(item(known)))
        };
        let stored = self.writer().write(&key, known, next).await?;
        let upload = |stored: &Stored| stored.item.upload().cloned();
        Ok(stored.and_then(|stored| {
            Some(WrittenUpload {
                upload: upload(&stored)?,
                stored: KnownItem::Read(Some(stored)),
            })
        }))
    }

    /// Makes an upload item that was read pending, as if its last event was delivered again. A key
    /// without an item gets none. Returns the item as it is known then; `None` if another
    /// invocation has changed it since the read.
    pub(super) async fn write_pending_again(
        &self,
        known: KnownItem,
        hops: u32,
    ) -> Result<Option<KnownItem>, Fault> {
        let Some(read) = known.item().and_then(Item::upload).cloned() else {
            return Ok(Some(known));
        };
        let pending = pending_again(&read, hops);
        if pending == read {
            return Ok(Some(known));
        }
        let next = |present: Present<'_>| {
            let is_as_read = present.item.and_then(Item::upload) == Some(&read);
            is_as_read.then(|| Item::Upload(pending.clone()))
        };
        let key = ItemKey::upload(&read.location());
        let written = self.writer().write(&key, known, next).await?;
        Ok(written.map(|written| KnownItem::Read(Some(written))))
    }

    /// Writes an upload item, unless a later event of its key was received. `known` is the replaced
    /// item as it was last read or written. Returns the written item. Removes the chunks of objects
    /// that only the replaced item named.
    pub(super) async fn put_upload(
        &self,
        upload: Upload,
        known: KnownItem,
    ) -> Result<Option<KnownItem>, Fault> {
        self.put_unless(upload, known, |_| false).await
    }

    /// Writes an upload item as [`UploadChanges::put_upload`] does, unless `keep` accepts the
    /// stored one.
    async fn put_unless(
        &self,
        upload: Upload,
        known: KnownItem,
        mut keep: impl FnMut(&Upload) -> bool,
    ) -> Result<Option<KnownItem>, Fault> {
        let location = upload.location();
        let mut former = None;
        let next = |present: Present<'_>| {
            if let Some(present) = present.item.and_then(Item::upload) {
                if upload.sequencer < present.sequencer || keep(present) {
                    return None;
                }
                former.clone_from(&present.object_set);
            }
            Some(Item::Upload(upload.clone()))
        };
        let key = ItemKey::upload(&location);
        let written = self.writer().write(&key, known, next).await?;
        let superseded = former.filter(|former| Some(former) != upload.object_set.as_ref());
        if let Some(superseded) = superseded.filter(|_| written.is_some()) {
            self.remove_objects(&location, &superseded).await?;
        }
        Ok(written.map(|written| KnownItem::Read(Some(written))))
    }

    /// Writes the item of an upload that is ignored, as [`UploadChanges::put_upload`] does, unless
    /// another delivery of its event has named the objects in the same bytes meanwhile. Returns
    /// whether nothing is left to do.
    pub(super) async fn put_ignored(
        &self,
        ignored: Upload,
        written: &WrittenUpload,
    ) -> Result<bool, Fault> {
        let mut is_read = false;
        let read_by_another = |stored: &Upload| {
            is_read = stored.names_objects()
                && stored.progress != UploadProgress::Withdrawn
                && is_same(stored, &ignored)
                && *stored != written.upload;
            is_read
        };
        let known = written.stored.clone();
        self.put_unless(ignored.clone(), known, read_by_another)
            .await?;
        Ok(!is_read)
    }

    /// Changes the stored upload item of a key, if `change` returns `Some`. `known` is the item as
    /// it was last read or written. Returns the item as it was written now.
    pub(super) async fn amend(
        &self,
        key: &str,
        known: KnownItem,
        mut change: impl FnMut(&mut Upload) -> Option<()>,
    ) -> Result<KnownItem, Fault> {
        let next = |present: Present<'_>| {
            let mut next = present.item.and_then(Item::upload)?.clone();
            change(&mut next).map(|()| Item::Upload(next))
        };
        let key = ItemKey::upload(&Location::new(key));
        let written = self.writer().write(&key, known, next).await?;
        Ok(KnownItem::written(written))
    }

    /// Returns whether an upload still describes its key. Two deliveries of one event may have read
    /// different bytes; the item names those of the later one.
    pub(super) async fn is_current(&self, upload: &Upload) -> Result<bool, Fault> {
        let key = ItemKey::upload(&upload.location());
        let known: Option<Upload> = self.builder.records.one(key).await?;
        Ok(known.is_some_and(|known| is_same(&known, upload) && known.state != UploadState::Gone))
    }
}
