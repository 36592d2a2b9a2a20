//! Removes the items of DIFs that no longer exist.

use super::builder::Build;
use crate::cache::{Dif, Item, ItemKey, UploadState};
use crate::flows::presence;
use crate::ports::{Fault, Removed};

impl Build<'_> {
    /// Removes the item of an uploaded DIF whose bytes no longer exist. Returns `false` if it keeps
    /// the item, because the event of the change has yet to be processed.
    pub(super) async fn forget_if_stale(&self, dif: &Dif) -> Result<bool, Fault> {
        let location = &dif.file.location;
        let (writer, key) = (self.writer(), dif.module.dif(location));
        // Read before the upload item, which every upload changes first. If the same bytes are
        // uploaded again after that, their item has another revision, and stays.
        let filed = writer.load(&key).await?;
        let upload = writer.load(&ItemKey::upload(location)).await?;
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
        presence::remove_presence_if_empty(writer, &dif.module).await?;
        Ok(true)
    }
}
