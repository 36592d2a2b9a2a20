//! Scans all records: retires entries, clears leases, drops older states, and counts.
//!
//! The counts of a page are kept when the whole page was processed, together with the position
//! after it. A page that a run does not complete is processed again by the next run.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::join_all;

use super::presences::turn_of_aliases;
use super::progress::Progress;
use super::report::described_entry;
use super::retirement::{EvictionCuts, Retirement, Retirements};
use super::run::{BlobToDelete, CheckRotation, Run, RunStep};
use super::uploads::{ToCheck, turn_of_uploads};
use crate::cache::{
    Change, DifCopy, Entry, Item, ItemKey, ObjectChunk, OutdatedEntry, OutdatedList, RolloutState,
    SegmentProgress, Stored, Tally, Upload, UploadState, rollout_state,
};
use crate::domain::{Backoff, Location};
use crate::flows::Updated;
use crate::ports::{Cursor, Fault, MAX_DELETES, Segment};

/// The maximum time before a pending upload is re-queued, unless `RECONCILE_AFTER` is longer.
const LONGEST_RECONCILE_DELAY: Duration = Duration::from_secs(24 * 3600);

/// The combined counts of all segments.
struct Counted {
    segments: Vec<SegmentProgress>,
    tally: Tally,
    outdated: OutdatedList,
    to_check: ToCheck,
}

/// The counts of one page, and the blobs of what was retired on it.
#[derive(Default)]
struct PageCount {
    tally: Tally,
    outdated: Vec<OutdatedEntry>,
    to_check: ToCheck,
    to_delete: Vec<BlobToDelete>,
}

/// One scan of the records.
struct RecordScan<'a> {
    run: &'a Run<'a>,
    counted: Mutex<Counted>,
    retirements: Retirements<'a>,
    turn_of_uploads: CheckRotation,
    turn_of_aliases: CheckRotation,
}

impl Run<'_> {
    /// Continues the scan of the records. Returns the uploads to check.
    pub(super) async fn scan_records(&self, progress: &mut Progress) -> ToCheck {
        let _span = self.invocation.span("scan records");
        let cursor = &mut progress.cursor;
        let scan = RecordScan {
            run: self,
            counted: Mutex::new(Counted {
                segments: cursor.segments.clone(),
                tally: std::mem::take(&mut cursor.tally),
                outdated: std::mem::take(&mut progress.found_in_this_pass),
                to_check: ToCheck::default(),
            }),
            retirements: Retirements::new(
                self,
                EvictionCuts {
                    derived: cursor.cut,
                    copies: cursor.copies_cut,
                },
            ),
            turn_of_uploads: turn_of_uploads(cursor.pass, progress.rollout.as_ref()),
            turn_of_aliases: turn_of_aliases(cursor.pass),
        };
        let of = u32::try_from(cursor.segments.len()).unwrap_or(u32::MAX);
        let segments = (0..of).map(|index| scan.scan_segment(Segment { index, of }));
        self.in_time(join_all(segments)).await;
        let counted = scan
            .counted
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let cuts = scan.retirements.into_cuts();
        cursor.segments = counted.segments;
        cursor.tally = counted.tally;
        cursor.cut = cuts.derived;
        cursor.copies_cut = cuts.copies;
        progress.found_in_this_pass = counted.outdated;
        counted.to_check
    }
}

impl RecordScan<'_> {
    /// Scans a segment, until the time is up or a page cannot be read.
    async fn scan_segment(&self, segment: Segment) {
        let number = segment.index as usize;
        let mut neighbour = None;
        loop {
            let after = match self.counted().segments.get(number) {
                Some(SegmentProgress::Begin) => None,
                Some(SegmentProgress::After(key)) => Some(Cursor(key.clone())),
                Some(SegmentProgress::Done) | None => return,
            };
            if !self.run.may_read(RunStep::Records).await {
                return;
            }
            let records = &self.run.pruner.records;
            let page = match records.page(segment, after.as_ref()).await {
                Ok(page) => page,
                Err(error) => {
                    self.run.fail(&error);
                    return;
                }
            };
            self.run.spend(page.read_units);
            let Some(count) = self.process_page(&page.items, &mut neighbour).await else {
                return;
            };
            let mut counted = self.counted();
            counted.tally.merge(&count.tally);
            for entry in count.outdated {
                counted.outdated.add(entry);
            }
            counted.to_check.extend(count.to_check);
            counted.segments[number] = match page.next {
                Some(Cursor(next)) => SegmentProgress::After(next),
                None => SegmentProgress::Done,
            };
        }
    }

    /// Processes a page; `None` if the time is up before its end.
    async fn process_page(
        &self,
        items: &[(ItemKey, Stored)],
        neighbour: &mut Option<String>,
    ) -> Option<PageCount> {
        let mut count = PageCount::default();
        let mut is_whole = true;
        for (key, stored) in items {
            if self.run.is_time_up(RunStep::Records) {
                is_whole = false;
                break;
            }
            if let Err(error) = self.process_item(key, stored, &mut count).await {
                self.run.fail(&error);
            }
            // An item adds two blobs, or up to a thousand chunks of a copy.
            if count.to_delete.len() >= MAX_DELETES {
                self.remove_blobs(&mut count.to_delete).await;
            }
        }
        self.remove_blobs(&mut count.to_delete).await;
        let is_complete = is_whole
            && self
                .run
                .correct_presences(items, neighbour, self.turn_of_aliases)
                .await;
        is_complete.then_some(count)
    }

    async fn remove_blobs(&self, to_delete: &mut Vec<BlobToDelete>) {
        if !to_delete.is_empty() {
            let deleted = self.run.delete(std::mem::take(to_delete)).await;
            let bytes: u64 = deleted.iter().map(|blob| blob.bytes).sum();
            self.run.report().bytes_freed += bytes;
        }
    }

    /// Processes an item, whatever it is.
    async fn process_item(
        &self,
        key: &ItemKey,
        stored: &Stored,
        count: &mut PageCount,
    ) -> Result<(), Fault> {
        let now = self.run.invocation.now();
        *self
            .run
            .report()
            .items
            .entry(name(&stored.item))
            .or_default() += 1;
        match &stored.item {
            Item::Entry(entry) => self.process_entry(key, stored, entry, count).await,
            Item::Copy(copy) => self.process_copy(key, stored, copy, count).await,
            item if item.expires_at().is_some_and(|at| at <= now) => {
                if !self.run.is_dry {
                    let records = &self.run.pruner.records;
                    records.remove(key, &stored.revision).await?;
                }
                self.run.report().expired += 1;
                Ok(())
            }
            Item::Upload(upload) => {
                self.count_upload(upload, count);
                Ok(())
            }
            Item::Objects(chunk) => self.remove_unnamed_chunk(key, stored, chunk).await,
            Item::Alias(_)
            | Item::Dif(_)
            | Item::Presence(_)
            | Item::Generation(_)
            | Item::Overflow(_)
            | Item::Request(_)
            | Item::Source(_)
            | Item::Health(_)
            | Item::Losses(_)
            | Item::IssuedToken(_)
            | Item::Wanted(_)
            | Item::Sweep(_)
            | Item::OutdatedList(_)
            | Item::Rollout(_)
            | Item::Newer { .. } => Ok(()),
        }
    }

    /// Counts an upload, and notes it if its key is to be compared with the bucket in this run.
    fn count_upload(&self, upload: &Upload, count: &mut PageCount) {
        if upload.state == UploadState::Gone {
            return;
        }
        let age = self.run.invocation.now().since(upload.at);
        let reconcile_after = self.run.pruner.settings.reconcile_after;
        count.tally.uploads += 1;
        let location = Location::new(upload.key.as_str());
        if upload.state == UploadState::Pending {
            if age >= reconcile_delay(reconcile_after, upload.reconciled) {
                count.to_check.pending.push(location);
            }
        } else if age >= reconcile_after
            && self.turn_of_uploads.is_due(location.as_str().as_bytes())
        {
            count.to_check.settled.push(location);
        }
    }

    /// Retires an entry, or counts it and removes what it no longer needs.
    async fn process_entry(
        &self,
        key: &ItemKey,
        stored: &Stored,
        entry: &Entry,
        count: &mut PageCount,
    ) -> Result<(), Fault> {
        let to_delete = &mut count.to_delete;
        let retirement = self
            .retirements
            .retire_if_unused(key, stored, entry, to_delete);
        if retirement.await? == Retirement::Retired {
            return Ok(());
        }
        let now = self.run.invocation.now();
        let numbers = &self.run.pruner.settings.policy.numbers;
        count.tally.count(entry, numbers, now);
        if *key != entry.module().entry(entry.kind()) {
            // The entry is stored under the key of another schema. Releases that use this schema
            // maintain it.
            return Ok(());
        }
        let is_behind = rollout_state(entry, numbers, now) == RolloutState::Behind;
        if is_behind && !entry.module().source.is_defined() {
            count.outdated.push(OutdatedEntry::of(entry));
        }
        if self
            .change(entry, &Change::ClearLease, "clear the expired lease of")
            .await?
        {
            self.run.report().leases_cleared += 1;
        }
        if self
            .change(entry, &Change::DropOlder, "drop the older state of")
            .await?
        {
            self.run.report().older_dropped += 1;
        }
        Ok(())
    }

    /// Retires a copy of a DIF, or counts it.
    async fn process_copy(
        &self,
        key: &ItemKey,
        stored: &Stored,
        copy: &DifCopy,
        count: &mut PageCount,
    ) -> Result<(), Fault> {
        let to_delete = &mut count.to_delete;
        let retirement = self
            .retirements
            .retire_copy_if_unused(key, stored, copy, to_delete);
        if retirement.await? == Retirement::Kept {
            count.tally.count_copy(copy, self.run.invocation.now());
        }
        Ok(())
    }

    /// Removes a chunk of objects that no upload item names, because a builder was killed before it
    /// named or removed the chunk.
    async fn remove_unnamed_chunk(
        &self,
        key: &ItemKey,
        stored: &Stored,
        chunk: &ObjectChunk,
    ) -> Result<(), Fault> {
        let run = self.run;
        if run.invocation.now().since(chunk.at) < ObjectChunk::MAX_UNNAMED {
            return Ok(());
        }
        let upload = ItemKey::upload(&Location::new(chunk.key.as_str()));
        let is_left_over = match run.writer().load(&upload).await?.map(|stored| stored.item) {
            None => true,
            Some(Item::Upload(upload)) => !chunk.is_named_by(&upload),
            Some(_) => false,
        };
        if is_left_over {
            run.report().expired += 1;
            if !run.is_dry {
                run.pruner.records.remove(key, &stored.revision).await?;
            }
        }
        Ok(())
    }

    /// Makes a maintenance change. Returns whether it was applied, or would be.
    async fn change(
        &self,
        entry: &Entry,
        change: &Change,
        what: &'static str,
    ) -> Result<bool, Fault> {
        let run = self.run;
        if !run.would_apply(entry, change, &run.pruner.settings.policy) {
            return Ok(false);
        }
        if !run.is_dry {
            let writer = run.writer();
            let updated = writer.apply(entry.module(), entry.kind(), change).await?;
            if !matches!(updated, Updated::Done(_)) {
                return Ok(false);
            }
        }
        run.report()
            .note_planned(what, described_entry(entry), "it is no longer needed");
        Ok(true)
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns how long an upload may be pending before it is re-queued. The time doubles with each
/// fruitless attempt, up to a day.
fn reconcile_delay(reconcile_after: Duration, reconciled: u32) -> Duration {
    let backoff = Backoff {
        first: reconcile_after,
        longest: reconcile_after.max(LONGEST_RECONCILE_DELAY),
    };
    backoff.after(reconciled)
}

fn name(item: &Item) -> &'static str {
    match item {
        Item::Entry(_) => "entry",
        Item::Alias(_) => "alias",
        Item::Upload(_) => "upload",
        Item::Dif(_) => "dif",
        Item::Presence(_) => "presence",
        Item::Generation(_) => "generation",
        Item::Objects(_) => "objects",
        Item::Overflow(_) => "overflow",
        Item::Copy(_) => "copy",
        Item::Health(_) => "health",
        Item::Losses(_) => "losses",
        Item::IssuedToken(_) => "token",
        Item::Wanted(_) => "wanted",
        Item::Request(_) => "request",
        Item::Source(_) => "source",
        Item::Sweep(_) | Item::OutdatedList(_) | Item::Rollout(_) => "sweep",
        Item::Newer { .. } => "newer",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pending_upload_is_checked_again_after_an_hour_doubling_up_to_a_day() {
        let hours = |reconciled| {
            let delay = reconcile_delay(Duration::from_secs(3600), reconciled);
            delay.as_secs() / 3600
        };
        let delays: Vec<u64> = (0..7).map(hours).collect();
        assert_eq!(delays, [1, 2, 4, 8, 16, 24, 24]);
        assert_eq!(hours(u32::MAX), 24);
        let days = Duration::from_secs(2 * 24 * 3600);
        assert_eq!(reconcile_delay(days, 3), days);
    }
}
