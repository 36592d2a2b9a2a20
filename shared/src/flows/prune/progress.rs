//! What the sweep keeps from one run to the next: where it is, what it found behind, what it asked for.

use super::Run;
use crate::cache::{
    Converter, Item, ItemKey, Manifest, Revision, Rollout, SegmentProgress, Stored, SweepCursor,
    SweepItem,
};
use crate::flows::Error;
use crate::flows::rollout::RolloutReport;
use crate::ports::{Consistency, Replaced};

/// Parts of the table that are walked side by side.
const SEGMENTS: usize = 8;

/// What the sweep keeps from one run to the next.
#[derive(Debug)]
pub(super) struct Progress {
    /// The revision of the cursor as it was read.
    revision: Option<Revision>,
    /// Where it is.
    pub(super) cursor: SweepCursor,
    /// What this pass found behind so far.
    pub(super) gathering: Manifest,
    /// What the last whole pass found behind.
    pub(super) manifest: Manifest,
    /// What was asked for when this pass began; before, what the last one asked for.
    pub(super) asked: Manifest,
    /// What the last whole pass counted.
    pub(super) rollout: Option<Rollout>,
}

impl Progress {
    /// Tells whether a new pass begins: the last one has walked all segments.
    pub(super) fn begins_pass(&self) -> bool {
        self.cursor.segments.is_empty()
    }

    fn ends_pass(&self) -> bool {
        let is_done = |segment: &SegmentProgress| *segment == SegmentProgress::Done;
        !self.cursor.segments.is_empty() && self.cursor.segments.iter().all(is_done)
    }
}

impl Run<'_> {
    /// Reads where the sweep is. A dry run begins anew, with what the last whole pass left.
    pub(super) async fn progress(&self) -> Result<Progress, Error> {
        let keys = [
            SweepItem::Cursor,
            SweepItem::Gathering,
            SweepItem::Manifest,
            SweepItem::Asked,
            SweepItem::Rollout,
        ]
        .map(ItemKey::sweep);
        let records = &self.pruner.records;
        let mut loaded = records.load(&keys, Consistency::Strong).await?.into_iter();
        let mut next = || loaded.next().flatten();
        let stored = next();
        let revision = stored.as_ref().map(|stored| stored.revision.clone());
        let cursor = match stored.map(|stored| stored.item) {
            Some(Item::Sweep(cursor)) => cursor,
            _ => SweepCursor::default(),
        };
        let mut manifest = || match next().map(|stored| stored.item) {
            Some(Item::Manifest(manifest)) => manifest,
            _ => Manifest::default(),
        };
        let (gathering, manifest, asked) = (manifest(), manifest(), manifest());
        let rollout = match next().map(|stored| stored.item) {
            Some(Item::Rollout(rollout)) => Some(rollout),
            _ => None,
        };
        let mut progress = Progress {
            revision,
            cursor,
            gathering,
            manifest,
            asked,
            rollout,
        };
        if self.is_dry() {
            progress.cursor = SweepCursor {
                pass: progress.cursor.pass,
                ..SweepCursor::default()
            };
        }
        Ok(progress)
    }

    /// Begins a pass: asks for what is behind, and sets the byte budget's cut.
    pub(super) async fn begin_pass(&self, progress: &mut Progress) -> Result<(), Error> {
        let drained = self.refresh(progress).await?;
        let settings = &self.pruner.settings;
        let last = progress.rollout.as_ref();
        let cut = last.and_then(|last| last.tally.ages.cut(settings.derived_budget_bytes, last.at));
        let copies_cut =
            last.and_then(|last| last.tally.copy_ages.cut(settings.dif_budget_bytes, last.at));
        progress.gathering = Manifest::default();
        progress.cursor = SweepCursor {
            pass: progress.cursor.pass + 1,
            began_at: self.invocation.now(),
            segments: vec![SegmentProgress::Begin; SEGMENTS],
            cut,
            copies_cut,
            drained,
            tally: Default::default(),
            uploads_after: progress.cursor.uploads_after.take(),
            blobs_after: progress.cursor.blobs_after.take(),
        };
        self.report().pass = progress.cursor.pass;
        Ok(())
    }

    /// Ends a pass if all records were walked: what it counted and found behind is what the next one begins with.
    pub(super) fn end_pass(&self, progress: &mut Progress) -> bool {
        if !progress.ends_pass() {
            return false;
        }
        let cursor = &mut progress.cursor;
        let now = self.invocation.now();
        let rollout = Rollout {
            pass: cursor.pass,
            began_at: cursor.began_at,
            at: now,
            converter: Converter::CURRENT,
            tally: std::mem::take(&mut cursor.tally),
            drained: std::mem::take(&mut cursor.drained),
        };
        cursor.segments.clear();
        self.report().rollout = Some(RolloutReport::of(&rollout, now));
        progress.rollout = Some(rollout);
        progress.manifest = std::mem::take(&mut progress.gathering);
        progress.manifest.at = now;
        progress.manifest.trim();
        true
    }

    /// Writes where the sweep is; the cursor last, and only if no other run did meanwhile.
    pub(super) async fn keep(&self, mut progress: Progress) -> Result<(), Error> {
        progress.gathering.trim();
        let manifests = [
            (SweepItem::Gathering, progress.gathering),
            (SweepItem::Manifest, progress.manifest),
            (SweepItem::Asked, progress.asked),
        ];
        for (key, manifest) in manifests {
            self.put(key, Item::Manifest(manifest)).await?;
        }
        if let Some(rollout) = progress.rollout {
            self.put(SweepItem::Rollout, Item::Rollout(rollout)).await?;
        }
        let cursor = Stored {
            revision: self.invocation.revision(),
            item: Item::Sweep(progress.cursor),
        };
        let key = ItemKey::sweep(SweepItem::Cursor);
        let expected = progress.revision.as_ref();
        match self.pruner.records.replace(&key, expected, &cursor).await? {
            Replaced::Done => Ok(()),
            // It did the same work; nothing is lost but the time.
            Replaced::Lost(_) => {
                tracing::warn!("another sweep ran at the same time");
                Ok(())
            }
        }
    }

    async fn put(&self, key: SweepItem, item: Item) -> Result<(), Error> {
        let key = ItemKey::sweep(key);
        self.update().put(&key, item, |_| false).await?;
        Ok(())
    }
}
