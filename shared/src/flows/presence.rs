//! What readers may conclude from the absence of an upload.
//!
//! Uploads announce themselves, so a module of which no event told has no file. Two items make that knowledge:
//!
//! - [`Presence`], in the partition of a module: the module has files in a scope. Builders write it after each `dif` item,
//!   and remove it after a strongly consistent query that found no `dif` item, if nobody wrote it since. A reader that
//!   finds neither it nor a ready cache answers at once: it writes nothing, asks nobody and waits for nothing.
//! - [`Generation`], one for each scope: the last change to its uploads. Builders write a new one after everything else
//!   that a change writes, and before its message is deleted. What a reader read of the scope's uploads *after* it read
//!   the generation stands as long as the generation does.
//!
//! A write whose answer is lost is no harm: the message comes back and everything is written again. Of builders that
//! write at the same moment one is enough, because all of them write after their changes.
//!
//! The reasons and the interleavings: `docs/decisions/0010-absence-of-an-upload-is-knowledge.md`.

use super::Update;
use crate::cache::{Generation, Item, ItemKey, ModuleKey, Presence};
use crate::domain::Scope;
use crate::ports::{Removed, StoreError};

/// Notes that a module has a file. Call it after the `dif` item is written.
pub(super) async fn note_file(update: Update<'_>, module: &ModuleKey) -> Result<(), StoreError> {
    let presence = Item::Presence(Presence {
        module: module.clone(),
        change: update.invocation.token(),
    });
    // A write that another builder's came before is not needed: that one, too, came after our `dif` item.
    let mut is_first = true;
    let noted = |present: Option<&Item>| {
        let is_needed = std::mem::take(&mut is_first) || present.is_none();
        is_needed.then(|| presence.clone())
    };
    update.make(&module.presence(), noted).await?;
    Ok(())
}

/// Forgets that a module has files, if it has none any more; tells whether it did.
pub(super) async fn forget_files(
    update: Update<'_>,
    module: &ModuleKey,
) -> Result<bool, StoreError> {
    let key = module.presence();
    let Some(present) = update.load(&key).await? else {
        return Ok(false);
    };
    if !matches!(present.item, Item::Presence(_)) {
        return Ok(false);
    }
    let partition = update.records.query(&module.partition()).await?;
    if partition.iter().any(|(key, _)| is_file(key)) {
        return Ok(false);
    }
    match update.records.remove(&key, &present.revision).await? {
        Removed::Done => Ok(true),
        // A file came meanwhile.
        Removed::Lost(_) => Ok(false),
    }
}

/// Tells whether the item with this key stands for a file of its module, also where only a newer build can read the item.
pub(super) fn is_file(key: &ItemKey) -> bool {
    key.sort.starts_with(ItemKey::DIF_PREFIX)
}

/// Notes that the uploads of a scope changed. Call it after everything else that the change writes.
pub(super) async fn note_change(update: Update<'_>, scope: &Scope) -> Result<(), StoreError> {
    let mut is_first = true;
    let noted = |_: Option<&Item>| {
        // A generation that another builder began since we looked began after our writes, too.
        std::mem::take(&mut is_first).then(|| {
            Item::Generation(Generation {
                scope: scope.clone(),
                change: update.invocation.token(),
                began_at: update.invocation.now(),
            })
        })
    };
    update.make(&ItemKey::generation(scope), noted).await?;
    Ok(())
}
