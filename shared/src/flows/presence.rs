//! Maintains the items that let readers conclude that a module has no uploaded file.
//!
//! Every upload causes an event, so a module without any event has no file. Two items record this:
//!
//! - [`Presence`], in the partition of a module: the module has files in a scope. Builders write it
//!   after each `dif` item. They remove it after a strongly consistent query that found no `dif`
//!   item, if no builder has written it since. A reader that finds neither a presence nor a ready
//!   cache responds at once, without a write, a message or a wait. The presence lists the code ids
//!   of the files. Each code id has an [`Alias`] that refers to the module. The aliases follow the
//!   same rule: builders write them again, with new revisions, after each `dif` item, and remove
//!   them together with the presence.
//! - [`Generation`], one per scope: the last change to its uploads. Builders write a new one after
//!   everything else that a change writes, and before its message is deleted. Items about the
//!   scope's uploads that a reader read *after* the generation are valid until the generation
//!   changes.
//!
//! A write whose response is lost does no harm, because the message is delivered again and
//! everything is written again. If several builders write at the same time, one write is enough,
//! because each builder writes after its own changes.
//!
//! The reasons and the interleavings are in
//! `docs/decisions/0010-absence-of-an-upload-is-knowledge.md`.

use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};

use super::RecordWriter;
use super::update::{KnownItem, Present};
use crate::cache::{Alias, Generation, Item, ItemKey, ModuleKey, Presence, Stored};
use crate::domain::{CodeId, ModuleId, Scope};
use crate::ports::{Consistency, Fault, Removed};

/// The maximum difference between the clocks of two builders. Readers allow for five times as much,
/// see `memory`.
const CLOCK_SKEW: Duration = Duration::from_secs(60);

/// The maximum number of aliases that are written at a time.
const WRITES_IN_FLIGHT: usize = 16;

/// A file whose presence is recorded.
#[derive(Clone, Copy)]
pub(super) struct FiledAs<'a> {
    /// The code ids that refer to its module.
    pub(super) code_ids: &'a [CodeId],
    /// Whether it has, or may have, source files.
    pub(super) has_sources: bool,
}

/// Writes the presence of a module that has a file, and the aliases from the code ids of the file.
/// Must be called after the `dif` item was written. `known` is the presence as it was read before.
pub(super) async fn write_presence(
    writer: RecordWriter<'_>,
    module: &ModuleKey,
    FiledAs {
        code_ids,
        has_sources,
    }: FiledAs<'_>,
    known: KnownItem,
) -> Result<(), Fault> {
    let change = writer.invocation.token();
    let next = |Present {
                    item,
                    is_written_by_another,
                }: Present<'_>| {
        let (mut listed, had_sources) = match item {
            Some(Item::Presence(present)) => (present.code_ids.clone(), present.has_sources),
            _ => (Vec::new(), false),
        };
        let known = listed.len();
        for code_id in code_ids {
            if !listed.contains(code_id) {
                listed.push(code_id.clone());
            }
        }
        // A write by another builder after our `dif` item is equivalent, unless it lacks a code id
        // or the sources.
        let is_enough = is_written_by_another
            && item.is_some()
            && listed.len() == known
            && (had_sources || !has_sources);
        (!is_enough).then(|| {
            Item::Presence(Presence {
                module: module.clone(),
                change: change.clone(),
                code_ids: listed,
                has_sources: had_sources || has_sources,
            })
        })
    };
    writer.write(&module.presence(), known, next).await?;
    let aliases: Vec<ItemKey> = code_ids.iter().map(|id| alias(module, id)).collect();
    if aliases.is_empty() {
        return Ok(());
    }
    let stored = writer.records.load(&aliases, Consistency::Strong).await?;
    let target = module.clone();
    let item = Item::Alias(Alias { target });
    let renewed = aliases
        .iter()
        .zip(stored)
        .map(|(alias, stored)| renew(writer, alias, &item, stored));
    let renewed: Vec<_> = renewed.collect();
    stream::iter(renewed)
        .buffer_unordered(WRITES_IN_FLIGHT)
        .try_collect()
        .await
}

/// Removes the presence and the aliases of a module, if it has no files left. Returns the items of
/// its partition, read after the caller's removals.
pub(super) async fn remove_presence_if_empty(
    writer: RecordWriter<'_>,
    module: &ModuleKey,
) -> Result<Vec<(ItemKey, Stored)>, Fault> {
    let presence = writer.load(&module.presence()).await?;
    let partition = writer.records.query(&module.partition()).await?;
    let Some(Stored {
        item: Item::Presence(present),
        revision,
    }) = presence.filter(|_| !has_files(&partition))
    else {
        return Ok(partition);
    };
    // The same applies to aliases: remove only those that no file has written again since a query
    // found none.
    let aliases: Vec<ItemKey> = present
        .code_ids
        .iter()
        .map(|id| alias(module, id))
        .collect();
    let stored = writer.records.load(&aliases, Consistency::Strong).await?;
    if !aliases.is_empty() && has_files(&writer.records.query(&module.partition()).await?) {
        return Ok(partition);
    }
    // The presence lists the aliases, so it is removed last.
    for (key, alias) in aliases.iter().zip(stored) {
        let is_ours =
            |stored: &Stored| matches!(&stored.item, Item::Alias(alias) if alias.target == *module);
        if let Some(alias) = alias.filter(is_ours) {
            writer.records.remove(key, &alias.revision).await?;
        }
    }
    match writer.records.remove(&module.presence(), &revision).await? {
        // `Lost`: a file arrived meanwhile.
        Removed::Done | Removed::Lost(_) => Ok(partition),
    }
}

/// Returns the number of files in a partition, including those of newer releases.
pub(super) fn files(partition: &[(ItemKey, Stored)]) -> usize {
    partition.iter().filter(|(key, _)| is_file(key)).count()
}

fn has_files(partition: &[(ItemKey, Stored)]) -> bool {
    files(partition) > 0
}

/// Returns the key of the alias from a code id to a module.
fn alias(module: &ModuleKey, code_id: &CodeId) -> ItemKey {
    ModuleKey::uploads(module.scope.clone(), &ModuleId::Code(code_id.clone())).alias()
}

/// Writes an item with a new revision, even if the same item is stored, so that a concurrent
/// removal based on an earlier read fails. Keeps the stored item if a newer release wrote it, or if
/// another builder wrote the same item meanwhile.
async fn renew(
    writer: RecordWriter<'_>,
    key: &ItemKey,
    item: &Item,
    known: Option<Stored>,
) -> Result<(), Fault> {
    let renewed = |present: Present<'_>| {
        let is_renewed = present.is_written_by_another && present.item == Some(item);
        (!is_renewed).then(|| item.clone())
    };
    writer.write(key, KnownItem::Read(known), renewed).await?;
    Ok(())
}

/// Returns whether the item with this key is a file of its module, even if only a newer release can
/// read the item.
pub(super) fn is_file(key: &ItemKey) -> bool {
    key.sort.starts_with(ItemKey::DIF_PREFIX)
}

/// Gives a scope a new generation: its uploads changed. Must be called after everything else that
/// the change writes. `known` is the generation as it was last read or written. Returns the
/// generation as it was written now.
pub(super) async fn write_generation(
    writer: RecordWriter<'_>,
    scope: &Scope,
    known: KnownItem,
) -> Result<KnownItem, Fault> {
    let looked_at = writer.invocation.now();
    let next = |Present {
                    item,
                    is_written_by_another,
                }: Present<'_>| {
        // If another builder wrote a generation after this write began, it also covers our changes.
        // But if its date is much earlier, that builder was frozen: readers would consider the
        // generation older than our changes.
        let is_enough = match item {
            Some(Item::Generation(other)) => {
                is_written_by_another && other.began_at.plus(CLOCK_SKEW) >= looked_at
            }
            _ => false,
        };
        (!is_enough).then(|| {
            Item::Generation(Generation {
                scope: scope.clone(),
                change: writer.invocation.token(),
                began_at: writer.invocation.now(),
            })
        })
    };
    let written = writer
        .write(&ItemKey::generation(scope), known, next)
        .await?;
    Ok(KnownItem::written(written))
}
