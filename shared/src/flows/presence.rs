//! What readers may conclude from the absence of an upload.
//!
//! Uploads announce themselves, so a module of which no event told has no file. Two items make that
//! knowledge:
//!
//! - [`Presence`], in the partition of a module: the module has files in a scope. Builders write it
//!   after each `dif` item, and remove it after a strongly consistent query that found no `dif`
//!   item, if no builder wrote it since. A reader that finds neither it nor a ready cache answers at
//!   once: it writes nothing, asks for nothing and waits for nothing. It names the code ids of these
//!   files. Each has an [`Alias`] that leads to the module, and all of them are removed with it, by
//!   the same rule: builders write them again, with new revisions, after each `dif` item.
//! - [`Generation`], one for each scope: the last change to its uploads. Builders write a new one
//!   after everything else that a change writes, and before its message is deleted. What a reader
//!   read of the scope's uploads *after* it read the generation stands as long as the generation
//!   does.
//!
//! A write whose answer is lost is no harm: the message comes back and everything is written again.
//! Of builders that write at the same moment one is enough, because all of them write after their
//! changes.
//!
//! The reasons and the interleavings: `docs/decisions/0010-absence-of-an-upload-is-knowledge.md`.

use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};

use super::Update;
use super::update::{KnownItem, Present};
use crate::cache::{Alias, Generation, Item, ItemKey, ModuleKey, Presence, Stored};
use crate::domain::{CodeId, ModuleId, Scope};
use crate::ports::{Consistency, Fault, Removed};

/// The clocks of two builders differ by no more. Readers allow for five times as much, see `memory`.
const CLOCK_SKEW: Duration = Duration::from_secs(60);

/// Aliases of a module that are written at a time.
const WRITES_IN_FLIGHT: usize = 16;

/// Notes that a module has a file, and that these code ids lead to it. Call it after the `dif` item
/// is written. `known` is the presence as it was read before.
pub(super) async fn note_file(
    update: Update<'_>,
    module: &ModuleKey,
    code_ids: &[CodeId],
    known: KnownItem,
) -> Result<(), Fault> {
    let change = update.invocation.token();
    let noted = |Present { item, is_rivals }: Present<'_>| {
        let mut noted = match item {
            Some(Item::Presence(present)) => present.code_ids.clone(),
            _ => Vec::new(),
        };
        let known = noted.len();
        for code_id in code_ids {
            if !noted.contains(code_id) {
                noted.push(code_id.clone());
            }
        }
        // Another builder's write, which came after our `dif` item, does as well, unless it lacks a
        // code id.
        let is_enough = is_rivals && item.is_some() && noted.len() == known;
        (!is_enough).then(|| {
            Item::Presence(Presence {
                module: module.clone(),
                change: change.clone(),
                code_ids: noted,
            })
        })
    };
    update.write(&module.presence(), known, noted).await?;
    let aliases: Vec<ItemKey> = code_ids.iter().map(|id| alias(module, id)).collect();
    if aliases.is_empty() {
        return Ok(());
    }
    let stored = update.records.load(&aliases, Consistency::Strong).await?;
    let target = module.clone();
    let item = Item::Alias(Alias { target });
    let renewed = aliases
        .iter()
        .zip(stored)
        .map(|(alias, stored)| renew(update, alias, &item, stored));
    let renewed: Vec<_> = renewed.collect();
    stream::iter(renewed)
        .buffer_unordered(WRITES_IN_FLIGHT)
        .try_collect()
        .await
}

/// Forgets that a module has files, and the code ids that lead to it, if it has none any more.
/// Returns what is in its partition, read after the caller's removals.
pub(super) async fn forget_files(
    update: Update<'_>,
    module: &ModuleKey,
) -> Result<Vec<(ItemKey, Stored)>, Fault> {
    let presence = update.load(&module.presence()).await?;
    let partition = update.records.query(&module.partition()).await?;
    let Some(Stored {
        item: Item::Presence(present),
        revision,
    }) = presence.filter(|_| !has_files(&partition))
    else {
        return Ok(partition);
    };
    // Of the aliases, too, only those go that no file has brought again since a query found none.
    let aliases: Vec<ItemKey> = present
        .code_ids
        .iter()
        .map(|id| alias(module, id))
        .collect();
    let stored = update.records.load(&aliases, Consistency::Strong).await?;
    if !aliases.is_empty() && has_files(&update.records.query(&module.partition()).await?) {
        return Ok(partition);
    }
    // The presence names the aliases: it goes last.
    for (key, alias) in aliases.iter().zip(stored) {
        let is_ours =
            |stored: &Stored| matches!(&stored.item, Item::Alias(alias) if alias.target == *module);
        if let Some(alias) = alias.filter(is_ours) {
            update.records.remove(key, &alias.revision).await?;
        }
    }
    match update.records.remove(&module.presence(), &revision).await? {
        // Lost: a file came meanwhile.
        Removed::Done | Removed::Lost(_) => Ok(partition),
    }
}

/// Returns the number of files that a partition holds, those of newer builds included.
pub(super) fn files(partition: &[(ItemKey, Stored)]) -> usize {
    partition.iter().filter(|(key, _)| is_file(key)).count()
}

fn has_files(partition: &[(ItemKey, Stored)]) -> bool {
    files(partition) > 0
}

/// Returns the key of the alias that leads from a code id to a module.
fn alias(module: &ModuleKey, code_id: &CodeId) -> ItemKey {
    ModuleKey::uploads(module.scope.clone(), &ModuleId::Code(code_id.clone())).alias()
}

/// Writes an item with a new revision, even if the same is stored: who is about to remove what they
/// read before then loses. Leaves alone what a newer build wrote, and the same item written by
/// others meanwhile.
async fn renew(
    update: Update<'_>,
    key: &ItemKey,
    item: &Item,
    known: Option<Stored>,
) -> Result<(), Fault> {
    let renewed = |present: Present<'_>| {
        let is_renewed = present.is_rivals && present.item == Some(item);
        (!is_renewed).then(|| item.clone())
    };
    update.write(key, KnownItem::Before(known), renewed).await?;
    Ok(())
}

/// Tells whether the item with this key stands for a file of its module, also where only a newer build can read the item.
pub(super) fn is_file(key: &ItemKey) -> bool {
    key.sort.starts_with(ItemKey::DIF_PREFIX)
}

/// Notes that the uploads of a scope changed. Call it after everything else that the change writes.
/// `known` is the generation as it was read or written before; returns it as it was written now.
pub(super) async fn note_change(
    update: Update<'_>,
    scope: &Scope,
    known: KnownItem,
) -> Result<KnownItem, Fault> {
    let looked_at = update.invocation.now();
    let noted = |Present { item, is_rivals }: Present<'_>| {
        // A generation that another builder began since we looked began after our writes, too. One that is dated earlier
        // was written by a builder that was frozen: readers would take it for older than our writes.
        let is_enough = match item {
            Some(Item::Generation(other)) => {
                is_rivals && other.began_at.plus(CLOCK_SKEW) >= looked_at
            }
            _ => false,
        };
        (!is_enough).then(|| {
            Item::Generation(Generation {
                scope: scope.clone(),
                change: update.invocation.token(),
                began_at: update.invocation.now(),
            })
        })
    };
    let written = update
        .write(&ItemKey::generation(scope), known, noted)
        .await?;
    Ok(KnownItem::written(written))
}
