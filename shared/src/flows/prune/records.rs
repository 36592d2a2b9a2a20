//! The walk over all records: retires, clears, drops and counts.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::try_join_all;

use super::Run;
use super::progress::Progress;
use super::uploads::{ToCheck, Turn};
use crate::cache::{
    Behind, Change, Cut, DifCopy, Entry, Item, ItemKey, Manifest, ObjectChunk, Policy,
    SegmentProgress, Standing, Stored, Tally, Upload, UploadState, apply, entry_bytes, standing,
};
use crate::domain::Location;
use crate::flows::{Error, Update, Updated};
use crate::ports::{Cursor, Removed, Segment, StoreError};

/// What the walk leaves of the run to the others.
const SHARE_LEFT: f64 = 0.4;

/// What the walks over the segments count together.
struct Counted {
    tally: Tally,
    behind: Manifest,
    cut: Option<Cut>,
    copies_cut: Option<Cut>,
    read_units: f64,
    to_check: ToCheck,
}

/// One walk over the records.
struct Walk<'a> {
    run: &'a Run<'a>,
    counted: Mutex<Counted>,
    began: Duration,
    turn: Turn,
}

impl Run<'_> {
    /// Walks the records from where the last run stopped; tells whether the pass came to its end.
    pub(super) async fn sweep_records(&self, progress: &mut Progress) -> Result<bool, Error> {
        let cursor = &mut progress.cursor;
        self.report().pass = cursor.pass;
        let walk = Walk {
            run: self,
            counted: Mutex::new(Counted {
                tally: std::mem::take(&mut cursor.tally),
                behind: std::mem::take(&mut progress.gathering),
                cut: cursor.cut,
                copies_cut: cursor.copies_cut,
                read_units: 0.0,
                to_check: ToCheck::default(),
            }),
            began: self.invocation.elapsed(),
            turn: Turn::of(cursor.pass, progress.rollout.as_ref()),
        };
        let of = u32::try_from(cursor.segments.len()).unwrap_or(u32::MAX);
        let segments = (0..of).zip(&cursor.segments);
        let walks = segments.map(|(index, from)| walk.segment(Segment { index, of }, from.clone()));
        cursor.segments = try_join_all(walks).await?;
        let counted = walk
            .counted
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        cursor.tally = counted.tally;
        cursor.cut = counted.cut;
        cursor.copies_cut = counted.copies_cut;
        progress.gathering = counted.behind;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count that no table reaches the limits of"
        )]
        {
            self.report().read_units = counted.read_units.ceil() as u64;
        }
        self.check(counted.to_check).await?;
        Ok(self.end_pass(progress))
    }
}

impl Walk<'_> {
    /// Walks a segment; returns how far.
    async fn segment(
        &self,
        segment: Segment,
        from: SegmentProgress,
    ) -> Result<SegmentProgress, StoreError> {
        let mut after = match from {
            SegmentProgress::Begin => None,
            SegmentProgress::After(key) => Some(Cursor(key)),
            SegmentProgress::Done => return Ok(SegmentProgress::Done),
        };
        loop {
            let records = &self.run.pruner.records;
            let page = records.page(segment, after.as_ref()).await?;
            for (key, stored) in &page.items {
                self.item(key, stored).await?;
            }
            let Some(next) = page.next else {
                self.counted().read_units += page.read_units;
                return Ok(SegmentProgress::Done);
            };
            self.pace(page.read_units).await;
            if self.run.is_time_up(SHARE_LEFT) {
                return Ok(SegmentProgress::After(next.0));
            }
            after = Some(next);
        }
    }

    /// Waits until what was read may have been: all segments share one rate.
    async fn pace(&self, read_units: f64) {
        let consumed = {
            let mut counted = self.counted();
            counted.read_units += read_units;
            counted.read_units
        };
        let rate = self.run.pruner.settings.sweep_read_units;
        if rate > 0 {
            let took = self.run.invocation.elapsed().saturating_sub(self.began);
            let due = Duration::try_from_secs_f64(consumed / rate_of(rate)).unwrap_or_default();
            tokio::time::sleep(due.saturating_sub(took)).await;
        }
    }

    async fn item(&self, key: &ItemKey, stored: &Stored) -> Result<(), StoreError> {
        let now = self.run.invocation.now();
        *self
            .run
            .report()
            .items
            .entry(name(&stored.item))
            .or_default() += 1;
        match &stored.item {
            Item::Entry(entry) => self.entry(entry).await,
            Item::Copy(copy) => self.copy(key, stored, copy).await,
            item if item.expires_at().is_some_and(|at| at <= now) => {
                self.run.report().expired += 1;
                if !self.run.is_dry() {
                    self.run
                        .pruner
                        .records
                        .remove(key, &stored.revision)
                        .await?;
                }
                Ok(())
            }
            Item::Upload(upload) => {
                self.upload(upload);
                Ok(())
            }
            Item::Objects(chunk) => self.objects(key, stored, chunk).await,
            Item::Alias(_)
            | Item::Dif(_)
            | Item::Presence(_)
            | Item::Generation(_)
            | Item::Overflow(_)
            | Item::Request(_)
            | Item::Source(_)
            | Item::Health(_)
            | Item::Losses(_)
            | Item::Wanted(_)
            | Item::Sweep(_)
            | Item::Manifest(_)
            | Item::Rollout(_)
            | Item::Newer { .. } => Ok(()),
        }
    }

    fn upload(&self, upload: &Upload) {
        if upload.state == UploadState::Gone {
            return;
        }
        let age = self.run.invocation.now().since(upload.at);
        let mut counted = self.counted();
        counted.tally.uploads += 1;
        if age < self.run.pruner.settings.reconcile_after {
            return;
        }
        let location = Location::new(upload.key.as_str());
        if upload.state == UploadState::Pending {
            counted.to_check.pending.push(location);
        } else if self.turn.is_due(&location) {
            counted.to_check.settled.push(location);
        }
    }

    async fn entry(&self, entry: &Entry) -> Result<(), StoreError> {
        if self.retire(entry).await? {
            return Ok(());
        }
        if self
            .change(entry, &Change::ClearLease, "clear the lease of")
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
        let now = self.run.invocation.now();
        let mut counted = self.counted();
        counted.tally.count(entry, now);
        let is_behind = standing(entry, now) == Standing::Behind;
        if is_behind && !entry.module().source.is_defined() {
            counted.behind.add(Behind::of(entry));
        }
        Ok(())
    }

    /// Retires an entry that is unused for too long, or over the byte budget.
    async fn retire(&self, entry: &Entry) -> Result<bool, StoreError> {
        let run = self.run;
        let (now, settings) = (run.invocation.now(), &run.pruner.settings);
        let by_age = self.would(entry, &Change::Retire, &settings.policy);
        let bytes = entry_bytes(entry);
        let cut = self.counted().cut;
        let cut_at = cut.and_then(|cut| cut.applies(entry.last_used_at(), bytes));
        // A cut is a shorter patience: what was used meanwhile is in use, and what is at work stays.
        let policy = match cut_at {
            Some(cut_at) if !by_age => Policy {
                derived_max_unused: now.since(cut_at),
                ..settings.policy
            },
            _ => settings.policy,
        };
        if !by_age && (cut_at.is_none() || !self.would(entry, &Change::Retire, &policy)) {
            return Ok(false);
        }
        let update = Update {
            policy: &policy,
            ..run.update()
        };
        if run.is_dry() {
            let unused = now.since(entry.last_used_at()).as_secs();
            let why = match by_age {
                true => format!("unused for {unused} s"),
                false => format!("over the byte budget, unused for {unused} s"),
            };
            run.report().say("retire", told(entry), why);
        } else {
            let updated = update
                .entry(entry.module(), entry.kind(), &Change::Retire)
                .await?;
            if !matches!(updated, Updated::Retired(_)) {
                return Ok(false);
            }
        }
        if let Some(cut) = &mut self.counted().cut {
            cut.freed(entry.last_used_at(), bytes);
        }
        {
            let mut report = run.report();
            report.retired += 1;
            report.over_budget += u64::from(!by_age);
        }
        run.remove_blobs(entry).await?;
        Ok(true)
    }

    /// Retires a copy of a DIF that is unused for too long, or over its byte budget; else counts it.
    async fn copy(&self, key: &ItemKey, stored: &Stored, copy: &DifCopy) -> Result<(), StoreError> {
        let run = self.run;
        let (now, settings) = (run.invocation.now(), &run.pruner.settings);
        let by_age = copy.is_unused(now, settings.dif_max_unused);
        let cut = self.counted().copies_cut;
        let is_cut = cut.is_some_and(|cut| cut.applies(copy.last_used_at, copy.bytes).is_some());
        if !by_age && !is_cut {
            self.counted().tally.count_copy(copy, now);
            return Ok(());
        }
        let unused = now.since(copy.last_used_at).as_secs();
        let why = match by_age {
            true => format!("unused for {unused} s"),
            false => format!("over the byte budget of copies, unused for {unused} s"),
        };
        let location = &copy.dif.dif.location;
        run.report()
            .say("retire", format!("the copy of {location}"), why);
        if !run.is_dry() {
            // Whoever derived from it meanwhile has changed the record: then it stays.
            let removed = run.pruner.records.remove(key, &stored.revision).await?;
            if removed != Removed::Done {
                return Ok(());
            }
            for (_, _, path) in copy.parts() {
                run.pruner.caches.delete(&path).await?;
            }
        }
        if let Some(cut) = &mut self.counted().copies_cut {
            cut.freed(copy.last_used_at, copy.bytes);
        }
        let mut report = run.report();
        report.copies_retired += 1;
        report.bytes_freed += copy.bytes;
        Ok(())
    }

    /// Removes objects of an upload that no upload item names: a builder was killed before it named
    /// them, or before it removed them.
    async fn objects(
        &self,
        key: &ItemKey,
        stored: &Stored,
        chunk: &ObjectChunk,
    ) -> Result<(), StoreError> {
        let run = self.run;
        if run.invocation.now().since(chunk.at) < ObjectChunk::MAX_UNNAMED {
            return Ok(());
        }
        let upload = ItemKey::upload(&Location::new(chunk.key.as_str()));
        let is_left_over = match run.update().load(&upload).await?.map(|stored| stored.item) {
            None => true,
            Some(Item::Upload(upload)) => !chunk.is_named_by(&upload),
            Some(_) => false,
        };
        if is_left_over {
            run.report().expired += 1;
            if !run.is_dry() {
                run.pruner.records.remove(key, &stored.revision).await?;
            }
        }
        Ok(())
    }

    /// Tells whether a change seems to apply. What was read may be a second old: it is only a hint, [`apply`] judges what
    /// is stored.
    fn would(&self, entry: &Entry, change: &Change, policy: &Policy) -> bool {
        apply(entry, change, self.run.invocation.now(), policy).is_ok()
    }

    /// Makes a change of housekeeping; tells whether it applied, or would.
    async fn change(
        &self,
        entry: &Entry,
        change: &Change,
        what: &'static str,
    ) -> Result<bool, StoreError> {
        let run = self.run;
        if !self.would(entry, change, &run.pruner.settings.policy) {
            return Ok(false);
        }
        if run.is_dry() {
            run.report()
                .say(what, told(entry), "nobody needs it any more");
            return Ok(true);
        }
        let updated = run
            .update()
            .entry(entry.module(), entry.kind(), change)
            .await?;
        Ok(matches!(updated, Updated::Done(_)))
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Run<'_> {
    async fn remove_blobs(&self, entry: &Entry) -> Result<(), StoreError> {
        for ready in entry.ready().into_iter().chain(entry.older()) {
            self.report().bytes_freed += ready.blob.bytes;
            if !self.is_dry() {
                self.pruner.caches.delete(&ready.blob.path).await?;
            }
        }
        Ok(())
    }
}

fn rate_of(read_units: u64) -> f64 {
    f64::from(u32::try_from(read_units).unwrap_or(u32::MAX))
}

/// Names an entry for a person.
fn told(entry: &Entry) -> String {
    let module = entry.module();
    format!("{} of {} in {}", entry.kind(), module.module, module.scope)
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
        Item::Wanted(_) => "wanted",
        Item::Request(_) => "request",
        Item::Source(_) => "source",
        Item::Sweep(_) | Item::Manifest(_) | Item::Rollout(_) => "sweep",
        Item::Newer { .. } => "newer",
    }
}
