//! Compares the uploads bucket with the upload items, and re-queues uploads whose events were lost.
//!
//! Keys without an item, or whose item describes other bytes, are found by listing the bucket.
//! Items whose key no longer exists are found by checking the key of each item, spread over several
//! passes. Differences are sent to the uploads queue. `derive` compares again, so a superfluous
//! message has no effect.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::stream::{self, StreamExt};

use super::progress::Progress;
use super::run::{CALLS_IN_PARALLEL, Run, RunStep};
use crate::cache::{Converter, Item, ItemKey, Rollout, Stored, Upload, UploadState};
use crate::domain::{Cause, Location};
use crate::flows::sending;
use crate::ports::{Consistency, DifError, Fault, ListedDif, ReconcileMessage};

/// The maximum number of keys that one run sends to the queue because of the items that it scans,
/// and because of the bucket that it lists. The rest of the items is left to the next pass, which
/// scans them again, and the rest of the bucket to the next run.
const KEYS_PER_RUN: u64 = 5000;

/// The approximate maximum number of keys that one pass checks. If there are more, they are spread
/// over several passes.
const CHECKS_PER_PASS: u64 = 5000;

/// The number of missing keys up to which the setting of the bucket is not doubted.
const GONE_WITHOUT_DOUBT: usize = 20;

/// The upload items that a scan found, and that are old enough to be checked.
#[derive(Debug, Default)]
pub(super) struct ToCheck {
    /// Uploads that have been pending for too long.
    pub(super) pending: Vec<Location>,
    /// Uploads with a final state, whose key may no longer exist.
    pub(super) settled: Vec<Location>,
}

/// Selects the keys to check in a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pass: u64,
    rounds: u64,
}

impl Turn {
    /// Returns the selection for a pass, given the number of uploads in the last one.
    pub(super) fn of(pass: u64, last: Option<&Rollout>) -> Self {
        let uploads = last.map_or(0, |last| last.tally.uploads);
        Self {
            pass,
            rounds: uploads.div_ceil(CHECKS_PER_PASS).max(1),
        }
    }

    /// Returns whether a key is checked in this pass.
    pub(super) fn is_due(self, location: &Location) -> bool {
        let hash = xxhash_rust::xxh3::xxh3_64(location.as_str().as_bytes());
        hash % self.rounds == self.pass % self.rounds
    }
}

impl ToCheck {
    /// Adds the uploads of another page.
    pub(super) fn extend(&mut self, other: Self) {
        self.pending.extend(other.pending);
        self.settled.extend(other.settled);
    }
}

impl Run<'_> {
    /// Re-queues uploads whose event was lost after their item was written.
    pub(super) async fn check(&self, mut to_check: ToCheck) {
        let room = KEYS_PER_RUN.saturating_sub(self.report().reconciled);
        to_check
            .pending
            .truncate(usize::try_from(room).unwrap_or(usize::MAX));
        self.reconcile_all(to_check.pending, "it is pending for too long")
            .await;
        let stats: Vec<_> = to_check
            .settled
            .into_iter()
            .map(|location| self.is_gone(location))
            .collect();
        let mut stats = stream::iter(stats).buffer_unordered(CALLS_IN_PARALLEL);
        let (mut gone, mut checked) = (Vec::new(), 0);
        while let Some(checked_now) = stats.next().await {
            let Some((location, is_gone)) = checked_now else {
                continue;
            };
            checked += 1;
            gone.extend(is_gone.then_some(location));
        }
        // A wrong bucket setting must not remove everything from responses.
        if gone.len() > GONE_WITHOUT_DOUBT && gone.len() * 2 > checked {
            tracing::error!(
                gone = gone.len(),
                checked,
                "most uploads seem to be gone; check UPLOADS_BUCKET"
            );
            self.report().doubtful = gone.len() as u64;
            return;
        }
        self.reconcile_all(gone, "its key no longer exists").await;
    }

    /// Returns whether a key no longer exists; `None` if it was not checked, or the check failed.
    async fn is_gone(&self, location: Location) -> Option<(Location, bool)> {
        if self.is_time_up(RunStep::Uploads) {
            return None;
        }
        match self.pruner.uploads.stat(&location).await {
            Err(DifError::Missing(missing)) => Some((location, missing.cause == Cause::NotFound)),
            Ok(_) | Err(DifError::Changed) => Some((location, false)),
            Err(DifError::Fault(error)) => {
                self.fail(&error);
                None
            }
        }
    }

    /// Continues the listing of the bucket, and re-queues keys whose event was lost. Returns
    /// whether the listing is complete.
    pub(super) async fn compare_uploads(&self, progress: &mut Progress) -> bool {
        let _span = self.invocation.span("compare uploads");
        let listing = self.list_uploads(&mut progress.cursor.uploads_after);
        self.in_time(listing).await.unwrap_or_default()
    }

    async fn list_uploads(&self, after: &mut Option<Location>) -> bool {
        let before = self.report().reconciled;
        loop {
            let is_full = self.report().reconciled - before >= KEYS_PER_RUN;
            if is_full || !self.may_read(RunStep::Uploads).await {
                return false;
            }
            let page = match self.pruner.listing.list(after.as_ref()).await {
                Ok(page) => page,
                Err(error) => {
                    self.fail(&error);
                    return false;
                }
            };
            match self.compare(&page.difs).await {
                Ok(true) => {}
                Ok(false) => return false,
                Err(error) => {
                    self.fail(&error);
                    return false;
                }
            }
            match page.difs.last() {
                Some(last) if page.more => *after = Some(last.location.clone()),
                _ => {
                    *after = None;
                    return true;
                }
            }
        }
    }

    /// Compares a page of the listing with the upload items. Returns whether there was time for all
    /// of them.
    async fn compare(&self, difs: &[ListedDif]) -> Result<bool, Fault> {
        let now = self.invocation.now();
        let reconcile_after = self.pruner.settings.reconcile_after;
        let converter = self.pruner.settings.policy.numbers.converter;
        let old: Vec<&ListedDif> = difs
            .iter()
            .filter(|dif| now.since(dif.modified_at) >= reconcile_after)
            .collect();
        let keys: Vec<ItemKey> = old
            .iter()
            .map(|dif| ItemKey::upload(&dif.location))
            .collect();
        // Only a hint: the receiver of the message reads with strong consistency.
        let known = self.load(&keys, Consistency::Eventual).await?;
        let mut lost: BTreeMap<&str, Vec<Location>> = BTreeMap::new();
        for (dif, known) in old.into_iter().zip(known) {
            if let Some(why) = differs(dif, known.as_ref(), converter) {
                lost.entry(why).or_default().push(dif.location.clone());
            }
        }
        let mut is_all = true;
        for (why, locations) in lost {
            is_all &= self.reconcile_all(locations, why).await;
        }
        Ok(is_all)
    }

    /// Sends messages to reconcile keys. Returns whether there was time for all of them.
    async fn reconcile_all(&self, locations: Vec<Location>, why: &str) -> bool {
        let sends: Vec<_> = locations
            .into_iter()
            .map(|location| self.reconcile(location, why))
            .collect();
        stream::iter(sends)
            .buffer_unordered(CALLS_IN_PARALLEL)
            .fold(true, |all, this| std::future::ready(all && this))
            .await
    }

    async fn reconcile(&self, location: Location, why: &str) -> bool {
        if self.is_time_up(RunStep::Uploads) {
            return false;
        }
        if !self.is_dry {
            let message = ReconcileMessage::new(location.clone());
            let queues = &*self.pruner.queues;
            let sent = sending::reconcile(queues, self.invocation, message, Duration::ZERO).await;
            if let Err(error) = sent {
                // The next pass or listing finds the key again.
                self.fail(&error);
                return true;
            }
        }
        let mut report = self.report();
        report.reconciled += 1;
        report.note_planned("reconcile", location.as_str(), why);
        true
    }
}

/// Returns why a key has to be reconciled; `None` if its item describes these bytes.
fn differs(dif: &ListedDif, known: Option<&Stored>, converter: Converter) -> Option<&'static str> {
    match known.map(|stored| &stored.item) {
        None => Some("no event was received for it"),
        Some(Item::Upload(upload)) if upload.is_outdated(converter) => {
            Some("an older release found nothing to file in it")
        }
        Some(Item::Upload(Upload { state, etag, .. })) => match state {
            // The scan of the records handles pending uploads.
            UploadState::Pending => None,
            UploadState::Gone => Some("it exists, but is recorded as removed"),
            UploadState::Applied | UploadState::Ignored { .. } if *etag != dif.etag => {
                Some("no event was received for its bytes")
            }
            UploadState::Applied | UploadState::Ignored { .. } => None,
        },
        // Newer releases handle their own items.
        Some(_) => None,
    }
}
