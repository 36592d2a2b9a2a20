//! The state that the pruner keeps between runs: its position, the outdated entries that it found,
//! and the builds that it requested.

use super::run::Run;
use crate::cache::{
    Item, ItemKey, OutdatedList, Revision, Rollout, SegmentProgress, Stored, SweepCursor,
    SweepItem, SweepLists,
};
use crate::flows::Error;
use crate::flows::rollout::RolloutReport;
use crate::ports::{Consistency, Fault, Replaced};

/// The number of segments of the table that are scanned in parallel.
const SEGMENTS: usize = 8;

/// The state that the pruner keeps between runs.
#[derive(Debug)]
pub(super) struct Progress {
    /// The revision of the cursor as it was read.
    revision: Option<Revision>,
    /// The position.
    pub(super) cursor: SweepCursor,
    /// The outdated entries that this pass has found so far.
    pub(super) found_in_this_pass: OutdatedList,
    /// The outdated entries that the last complete pass found. Loaded only if a pass begins or ends
    /// in this run.
    pub(super) found_in_last_pass: Option<OutdatedList>,
    /// The builds that were requested at the beginning of this pass; before that, those of the
    /// previous pass. If no pass begins in this run, the stored list stays unchanged.
    pub(super) requested: Option<OutdatedList>,
    /// The counts of the last complete pass.
    pub(super) rollout: Option<Rollout>,
}

impl Progress {
    /// Returns whether a new pass begins, because the last one has scanned all segments.
    pub(super) fn begins_pass(&self) -> bool {
        self.cursor.segments.is_empty()
    }

    fn ends_pass(&self) -> bool {
        let is_done = |segment: &SegmentProgress| *segment == SegmentProgress::Done;
        !self.cursor.segments.is_empty() && self.cursor.segments.iter().all(is_done)
    }
}

impl Run<'_> {
    /// Reads the state. A dry run starts a new pass, based on the last complete one.
    pub(super) async fn read_progress(&self) -> Result<Progress, Error> {
        let keys = [SweepItem::Cursor, SweepItem::Rollout].map(ItemKey::sweep);
        let mut loaded = self.load(&keys, Consistency::Strong).await?.into_iter();
        let mut next = || loaded.next().flatten();
        let stored = next();
        let revision = stored.as_ref().map(|stored| stored.revision.clone());
        let cursor = match stored.map(|stored| stored.item) {
            Some(Item::Sweep(cursor)) => cursor,
            _ => SweepCursor::default(),
        };
        let rollout = match next().map(|stored| stored.item) {
            Some(Item::Rollout(rollout)) => Some(rollout),
            _ => None,
        };
        let lists = cursor.lists;
        let mut progress = Progress {
            revision,
            cursor,
            found_in_this_pass: OutdatedList::default(),
            found_in_last_pass: None,
            requested: None,
            rollout,
        };
        if self.is_dry {
            progress.cursor = SweepCursor {
                pass: progress.cursor.pass,
                ..SweepCursor::default()
            };
        }
        if progress.begins_pass() {
            progress.found_in_last_pass = Some(
                self.read_list(SweepItem::FoundInLastPass, lists.found_in_last_pass)
                    .await?,
            );
            progress.requested = Some(
                self.read_list(SweepItem::Requested, lists.requested)
                    .await?,
            );
        } else {
            progress.found_in_this_pass = self
                .read_list(SweepItem::FoundInThisPass, lists.found_in_this_pass)
                .await?;
        }
        Ok(progress)
    }

    /// Reads a list that is spread over this number of items.
    async fn read_list(
        &self,
        item: impl Fn(usize) -> SweepItem,
        items: usize,
    ) -> Result<OutdatedList, Fault> {
        let keys: Vec<ItemKey> = (0..items.max(1))
            .map(|number| ItemKey::sweep(item(number)))
            .collect();
        let loaded = self.load(&keys, Consistency::Strong).await?;
        let items = loaded.into_iter().filter_map(|stored| match stored?.item {
            Item::OutdatedList(list) => Some(list),
            _ => None,
        });
        Ok(OutdatedList::from_items(items))
    }

    /// Begins a pass: requests rebuilds of outdated entries, and determines what the byte budgets
    /// evict.
    pub(super) async fn begin_pass(&self, progress: &mut Progress) {
        let _span = self.invocation.span("begin pass");
        let drained = self.in_time(self.refresh(progress)).await;
        let drained = drained.unwrap_or_default();
        let settings = &self.pruner.settings;
        let last = progress.rollout.as_ref();
        let cut = last.and_then(|last| last.tally.ages.cut(settings.derived_budget_bytes, last.at));
        let copies_cut =
            last.and_then(|last| last.tally.copy_ages.cut(settings.dif_budget_bytes, last.at));
        progress.found_in_this_pass = OutdatedList::default();
        progress.cursor = SweepCursor {
            pass: progress.cursor.pass + 1,
            began_at: self.invocation.now(),
            segments: vec![SegmentProgress::Begin; SEGMENTS],
            cut,
            copies_cut,
            drained,
            tally: Default::default(),
            ..std::mem::take(&mut progress.cursor)
        };
    }

    /// Ends the pass if all records were scanned, and returns whether they were. The next pass
    /// begins with its counts and its list of outdated entries.
    pub(super) fn end_pass(&self, progress: &mut Progress) -> bool {
        if !progress.ends_pass() {
            return false;
        }
        let cursor = &mut progress.cursor;
        let now = self.invocation.now();
        let numbers = self.pruner.settings.policy.numbers;
        let rollout = Rollout {
            pass: cursor.pass,
            began_at: cursor.began_at,
            at: now,
            converter: numbers.converter,
            tally: std::mem::take(&mut cursor.tally),
            drained: std::mem::take(&mut cursor.drained),
        };
        cursor.segments.clear();
        self.report().rollout = Some(RolloutReport::of(&rollout, &numbers, now));
        progress.rollout = Some(rollout);
        progress.found_in_last_pass = Some(OutdatedList {
            at: now,
            ..std::mem::take(&mut progress.found_in_this_pass)
        });
        true
    }

    /// Writes the state; the cursor last, and only if no other run has written it meanwhile.
    ///
    /// The lists are written without this condition. Runs do not overlap, because the function has
    /// a reserved concurrency of 1. In an account without room for that, two runs may mix the items
    /// of their lists: only those of one run count, and the others are found in the next pass.
    pub(super) async fn write_progress(&self, mut progress: Progress) {
        let SweepLists {
            found_in_this_pass,
            found_in_last_pass,
            requested,
        } = &mut progress.cursor.lists;
        let lists = [
            (
                SweepItem::FoundInThisPass as fn(_) -> _,
                found_in_this_pass,
                Some(progress.found_in_this_pass),
            ),
            (
                SweepItem::FoundInLastPass,
                found_in_last_pass,
                progress.found_in_last_pass,
            ),
            (SweepItem::Requested, requested, progress.requested),
        ];
        for (item, items, list) in lists {
            if let Some(list) = list {
                *items = self.write_list(item, list, *items).await;
            }
        }
        if let Some(rollout) = progress.rollout {
            let key = ItemKey::sweep(SweepItem::Rollout);
            let writer = self.writer();
            let written = writer.put(&key, Item::Rollout(rollout), |_| false);
            if let Err(error) = written.await {
                self.fail(&error);
            }
        }
        let cursor = Stored {
            revision: self.invocation.revision(),
            item: Item::Sweep(progress.cursor),
        };
        let key = ItemKey::sweep(SweepItem::Cursor);
        let expected = progress.revision.as_ref();
        match self.pruner.records.replace(&key, expected, &cursor).await {
            Ok(Replaced::Done) => {}
            // The other run did the same work, so only time is lost.
            Ok(Replaced::Lost(_)) => {
                tracing::warn!("another run of the pruner was active at the same time");
            }
            Err(error) => self.fail(&error),
        }
    }

    /// Writes a list, which took `before` items until now. Returns the number of items to read. At
    /// least one item is written, because releases that know only one item must not use its old
    /// content.
    ///
    /// The items are large, so they are written one by one. After a failure, the rest of the former
    /// list stays, and is not mistaken for a part of this one.
    async fn write_list(
        &self,
        item: impl Fn(usize) -> SweepItem,
        list: OutdatedList,
        before: usize,
    ) -> usize {
        let empty = OutdatedList {
            at: list.at,
            ..OutdatedList::default()
        };
        let mut items = list.into_items();
        if items.is_empty() {
            items.push(empty);
        }
        let (now, writer) = (items.len(), self.writer());
        // A single item cannot be mixed with others, and is not written again if it is equal.
        let written_by = (now > 1).then(|| self.invocation.token());
        let writes = items.into_iter().map(Some).chain(
            // Remove the surplus items of a longer list.
            (now..before).map(|_| None),
        );
        for (number, list) in writes.enumerate() {
            let key = ItemKey::sweep(item(number));
            let written = match list {
                Some(list) => {
                    let list = OutdatedList {
                        written_by: written_by.clone(),
                        ..list
                    };
                    let put = writer.put(&key, Item::OutdatedList(list), |_| false);
                    put.await.map(drop)
                }
                None => {
                    let is_it = |item: &Item| matches!(item, Item::OutdatedList(_));
                    writer.remove(&key, is_it).await
                }
            };
            if let Err(error) = written {
                self.fail(&error);
                return now.max(before);
            }
        }
        now
    }
}
