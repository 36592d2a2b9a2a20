//! Changes records: reads, applies the change, and writes by compare-and-swap, with retries.

use std::collections::HashMap;

use super::Invocation;
use crate::cache::{
    Applied, Change, Entry, Item, ItemKey, Kind, ModuleKey, Policy, Refused, Revision, Stored,
    apply,
};
use crate::domain::Timestamp;
use crate::ports::{Consistency, Fault, FaultKind, RecordStore, Removed, Replaced};

/// The number of times that a write may fail with an unknown outcome before the error is returned.
const MAX_AMBIGUOUS: u32 = 3;

/// Changes the entries of a record store.
#[derive(Clone, Copy, Debug)]
pub struct RecordWriter<'a> {
    /// The store.
    pub records: &'a dyn RecordStore,
    /// The cache rules.
    pub policy: &'a Policy,
    /// The clock and the randomness.
    pub invocation: &'a Invocation,
}

/// The result of a change. A lost race is an outcome, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Updated {
    /// The effect is stored; this is the entry now.
    Done(Entry),
    /// The change does not apply to the stored entry; `None` if there is none, or if a newer
    /// release wrote it.
    Refused(Refused, Option<Entry>),
    /// Another invocation changed the entry meanwhile, and the change is no longer due.
    NotDue,
}

/// What the caller knows about an item that it is about to write.
#[derive(Clone, Debug, Default)]
#[expect(clippy::large_enum_variant, reason = "few exist at a time")]
pub(super) enum KnownItem {
    /// Nothing: the item is read first.
    #[default]
    Unread,
    /// The item as the caller last read or wrote it; `None` if it did not exist.
    Read(Option<Stored>),
}

impl KnownItem {
    /// Returns the item, if it was read and exists.
    pub(super) fn item(&self) -> Option<&Item> {
        match self {
            Self::Unread | Self::Read(None) => None,
            Self::Read(Some(stored)) => Some(&stored.item),
        }
    }

    /// Returns whether a newer release wrote the item, so that this release cannot read it.
    pub(super) fn is_of_newer_release(&self) -> bool {
        matches!(self.item(), Some(Item::Newer { .. }))
    }

    /// Returns what is known after [`RecordWriter::write`] returned `written`.
    pub(super) fn written(written: Option<Stored>) -> Self {
        written.map_or(Self::Unread, |written| Self::Read(Some(written)))
    }
}

/// What the caller knows about the entries of a module that it is about to change.
#[derive(Clone, Debug, Default)]
pub(super) enum Entries {
    /// Nothing: the entries are read first.
    #[default]
    Unread,
    /// All entries as the caller read them.
    Read(HashMap<ItemKey, Stored>),
}

impl Entries {
    /// Returns the entries of a partition.
    pub(super) fn of(partition: &[(ItemKey, Stored)]) -> Self {
        let is_entry = |(_, stored): &&(ItemKey, Stored)| stored.item.entry().is_some();
        Self::Read(partition.iter().filter(is_entry).cloned().collect())
    }
}

/// The entry that a change starts with.
pub(super) struct KnownEntry<'a> {
    stored: Option<Stored>,
    /// Whether it was read just now. A refusal counts only then, because another invocation may
    /// have changed the record since.
    is_fresh: bool,
    /// Whether the change is due for an entry that another invocation has changed meanwhile.
    is_due: &'a (dyn Fn(&Entry) -> bool + Sync),
}

impl<'a> KnownEntry<'a> {
    /// Returns the entry of an item that was read just now.
    pub(super) fn fresh(stored: Option<Stored>) -> Self {
        Self {
            is_fresh: true,
            ..Self::read_earlier(stored)
        }
    }

    /// Returns the entry of an item as the caller read it.
    pub(super) fn read_earlier(stored: Option<Stored>) -> Self {
        Self {
            stored,
            is_fresh: false,
            is_due: &|_| true,
        }
    }

    /// Lets a change apply after a lost race only if it is due for the stored entry. Otherwise, the
    /// result is [`Updated::NotDue`].
    pub(super) fn while_due(self, is_due: &'a (dyn Fn(&Entry) -> bool + Sync)) -> Self {
        Self { is_due, ..self }
    }

    /// Replaces the item by what was read just now.
    fn refresh(&mut self, stored: Option<Stored>) {
        self.stored = stored;
        self.is_fresh = true;
    }

    fn entry(&self) -> Option<&Entry> {
        self.stored.as_ref().and_then(|stored| stored.item.entry())
    }

    /// Returns the step after a refusal.
    fn refuse(&self, refused: Refused, entry: Option<Entry>) -> NextStep {
        if self.is_fresh {
            NextStep::Refuse(refused, entry)
        } else {
            NextStep::Read
        }
    }
}

/// The next step to apply a change.
enum NextStep {
    /// Read the stored entry.
    Read,
    /// Store this entry in place of the one with the revision.
    Write(Entry, Option<Revision>),
    /// The change does not apply to this entry.
    Refuse(Refused, Option<Entry>),
}

/// The stored item that a write is about to replace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Present<'a> {
    pub(super) item: Option<&'a Item>,
    /// Whether another invocation wrote it after this write began.
    pub(super) is_written_by_another: bool,
}

impl RecordWriter<'_> {
    /// Changes the entry of a kind of a module. Reads the stored entry, applies the change and
    /// writes the result by compare-and-swap, until the effect is stored or [`apply`] refuses.
    ///
    /// After a failed or ambiguous write, the stored entry tells whether the write happened.
    pub async fn apply(
        &self,
        module: &ModuleKey,
        kind: Kind,
        change: &Change,
    ) -> Result<Updated, Fault> {
        let stored = self.load(&module.entry(kind)).await?;
        let (updated, _) = self
            .apply_to(module, kind, change, KnownEntry::fresh(stored))
            .await?;
        Ok(updated)
    }

    /// Changes the entries of several kinds of a module like [`RecordWriter::apply`], in parallel.
    /// Starts with the entries that the caller read; if these are unread, reads all of them in one
    /// call.
    pub(super) async fn apply_all(
        &self,
        module: &ModuleKey,
        kinds: &[Kind],
        change: &Change,
        known: &Entries,
    ) -> Result<(), Fault> {
        let keys: Vec<_> = kinds.iter().map(|kind| module.entry(*kind)).collect();
        let (stored, is_fresh) = match known {
            Entries::Unread => (self.records.load(&keys, Consistency::Strong).await?, true),
            Entries::Read(entries) => (
                keys.iter().map(|key| entries.get(key).cloned()).collect(),
                false,
            ),
        };
        let each = kinds.iter().zip(stored);
        let changed = each.map(|(kind, stored)| {
            let known = KnownEntry {
                is_fresh,
                ..KnownEntry::read_earlier(stored)
            };
            self.apply_to(module, *kind, change, known)
        });
        futures::future::try_join_all(changed).await?;
        Ok(())
    }

    /// Changes the entry of a kind of a module like [`RecordWriter::apply`], starting with the item
    /// that the caller read. This saves a call if no other invocation changed it since. Also
    /// returns the stored item, if it is known.
    pub async fn apply_from(
        &self,
        module: &ModuleKey,
        kind: Kind,
        change: &Change,
        stored: Option<Stored>,
    ) -> Result<(Updated, Option<Stored>), Fault> {
        self.apply_to(module, kind, change, KnownEntry::read_earlier(stored))
            .await
    }

    /// Applies a change, starting with what is known about the entry.
    pub(super) async fn apply_to(
        &self,
        module: &ModuleKey,
        kind: Kind,
        change: &Change,
        mut known: KnownEntry<'_>,
    ) -> Result<(Updated, Option<Stored>), Fault> {
        let key = module.entry(kind);
        let mut ambiguous = 0;
        loop {
            match self.next_step(module, kind, change, &known)? {
                NextStep::Refuse(refused, present) => {
                    return Ok((Updated::Refused(refused, present), known.stored));
                }
                NextStep::Read => known.refresh(self.load(&key).await?),
                NextStep::Write(next, revision) => {
                    let written = Stored {
                        revision: self.invocation.revision(),
                        item: Item::Entry(next.clone()),
                    };
                    let replaced = self.records.replace(&key, revision.as_ref(), &written);
                    known.refresh(match replaced.await {
                        Ok(Replaced::Done) => return Ok((Updated::Done(next), Some(written))),
                        Ok(Replaced::Lost(current)) => current,
                        Err(error)
                            if error.kind() == FaultKind::Transient
                                && ambiguous < MAX_AMBIGUOUS =>
                        {
                            ambiguous += 1;
                            self.load(&key).await?
                        }
                        Err(error) => return Err(error),
                    });
                    if let Some(current) = known.entry() {
                        if change.has_effect(current) {
                            return Ok((Updated::Done(current.clone()), known.stored));
                        }
                        if !(known.is_due)(current) {
                            return Ok((Updated::NotDue, known.stored));
                        }
                    }
                }
            }
        }
    }

    /// Returns the next step to apply a change to the entry that is known.
    fn next_step(
        &self,
        module: &ModuleKey,
        kind: Kind,
        change: &Change,
        known: &KnownEntry<'_>,
    ) -> Result<NextStep, Fault> {
        let now = self.invocation.now();
        let entry = match known.stored.as_ref().map(|stored| &stored.item) {
            None if !creates(change) => return Ok(known.refuse(Refused::Nothing, None)),
            None => Entry::new(module.clone(), kind, now),
            Some(Item::Entry(entry)) => entry.clone(),
            Some(Item::Newer { .. }) => return Ok(NextStep::Refuse(Refused::InUse, None)),
            Some(_) => {
                let key = module.entry(kind);
                let detail = format!("the item at {key:?} is not an entry");
                return Err(Fault::new(FaultKind::Corrupt, detail));
            }
        };
        let revision = known.stored.as_ref().map(|stored| stored.revision.clone());
        match apply_traced(&entry, change, now, self.policy) {
            Ok(Applied::Changed(next)) => Ok(NextStep::Write(next, revision)),
            Ok(Applied::Retired) => {
                let key = module.entry(kind);
                let detail =
                    format!("the entry at {key:?} would be removed, which only the pruner does");
                Err(Fault::new(FaultKind::Bug, detail))
            }
            Err(refused) => Ok(known.refuse(refused, revision.map(|_| entry))),
        }
    }

    /// Reads an item with strong consistency.
    pub(super) async fn load(&self, key: &ItemKey) -> Result<Option<Stored>, Fault> {
        let mut loaded = self
            .records
            .load(std::slice::from_ref(key), Consistency::Strong)
            .await?;
        Ok(loaded.pop().flatten())
    }

    /// Writes an item that is not an entry, unless a newer release wrote the stored item, or `keep`
    /// returns `true` for the stored item.
    ///
    /// Returns whether the item was written, or was already stored.
    pub async fn put(
        &self,
        key: &ItemKey,
        item: Item,
        mut keep: impl FnMut(&Item) -> bool,
    ) -> Result<bool, Fault> {
        let next = |present: Option<&Item>| match present {
            Some(present) if *present != item && keep(present) => None,
            _ => Some(item.clone()),
        };
        self.put_with(key, next).await
    }

    /// Writes the item that `next` returns for the stored item (`None` if there is none), unless
    /// `next` returns `None` or a newer release wrote the stored item. Not for entries.
    ///
    /// `next` is called again after every lost race, so the written item is always based on the one
    /// that it replaces. Returns whether the item was written, or was already stored.
    pub async fn put_with(
        &self,
        key: &ItemKey,
        mut next: impl FnMut(Option<&Item>) -> Option<Item>,
    ) -> Result<bool, Fault> {
        let mut is_there = false;
        let next = |present: Present<'_>| {
            let item = next(present.item)?;
            is_there = present.item == Some(&item);
            (!is_there).then_some(item)
        };
        let written = self.write(key, KnownItem::Unread, next).await?;
        Ok(written.is_some() || is_there)
    }

    /// Writes an item like [`RecordWriter::put_with`], but also if it is equal to the stored one,
    /// starting with what the caller knows about it. This saves a call if no other invocation
    /// changed it since. `None` from `next` counts only for an item that was read just now.
    ///
    /// Returns the written item.
    pub(super) async fn write(
        &self,
        key: &ItemKey,
        known: KnownItem,
        mut next: impl FnMut(Present<'_>) -> Option<Item>,
    ) -> Result<Option<Stored>, Fault> {
        let (mut stored, mut is_fresh) = match known {
            KnownItem::Read(stored) => (stored, false),
            KnownItem::Unread => (self.load(key).await?, true),
        };
        let mut is_written_by_another = false;
        loop {
            let present = Present {
                item: stored.as_ref().map(|stored| &stored.item),
                is_written_by_another,
            };
            let item = match present.item {
                Some(Item::Newer { .. }) => None,
                _ => next(present),
            };
            let Some(item) = item else {
                if is_fresh {
                    return Ok(None);
                }
                (stored, is_fresh) = (self.load(key).await?, true);
                continue;
            };
            let written = Stored {
                revision: self.invocation.revision(),
                item,
            };
            let revision = stored.as_ref().map(|stored| &stored.revision);
            match self.records.replace(key, revision, &written).await? {
                Replaced::Done => return Ok(Some(written)),
                Replaced::Lost(current) => {
                    // A replacement of an item that was read long ago may have been written before
                    // this write began.
                    is_written_by_another = is_fresh;
                    (stored, is_fresh) = (current, true);
                }
            }
        }
    }

    /// Removes an item that is not an entry, if `matches` accepts the stored one. An item of a
    /// newer release stays.
    pub async fn remove(
        &self,
        key: &ItemKey,
        mut matches: impl FnMut(&Item) -> bool,
    ) -> Result<(), Fault> {
        // A store never removes an item of a newer release, so a retry would never end.
        let mut may_remove = |item: &Item| !matches!(item, Item::Newer { .. }) && matches(item);
        let mut stored = self.load(key).await?;
        while let Some(current) = stored.take().filter(|current| may_remove(&current.item)) {
            match self.records.remove(key, &current.revision).await? {
                Removed::Done => return Ok(()),
                Removed::Lost(current) => stored = Some(current),
            }
        }
        Ok(())
    }
}

/// Applies a change, and traces whether it was refused.
pub(super) fn apply_traced(
    entry: &Entry,
    change: &Change,
    now: Timestamp,
    policy: &Policy,
) -> Result<Applied, Refused> {
    let applied = apply(entry, change, now, policy);
    let refused = applied.as_ref().err().map(Refused::name);
    tracing::trace!(change = change.name(), refused, "change applied");
    applied
}

/// Returns whether a change applies if there is no record yet.
fn creates(change: &Change) -> bool {
    matches!(
        change,
        Change::RequestBuild { .. } | Change::TakeLease { .. } | Change::Invalidate { .. }
    )
}
