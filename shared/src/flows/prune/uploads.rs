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
use super::run::{CALLS_IN_PARALLEL, CheckRotation, Run, RunStep};
use crate::cache::{Converter, Item, ItemKey, Rollout, Stored, Upload, UploadState};
use crate::domain::{Cause, Location};
use crate::flows::sending;
use crate::ports::{Consistency, DifError, Fault, ListedDif, ReconcileMessage};

/// The maximum number of keys that one run sends to the queue because of the items that it scans,
/// and because of the bucket that it lists. The rest of the items is left to the next pass, which
/// scans them again, and the rest of the bucket to the next run.
const KEYS_PER_RUN: usize = 5000;

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

/// Returns the selection of uploads for a pass, given the number of uploads in the last one.
pub(super) fn turn_of_uploads(pass: u64, last: Option<&Rollout>) -> CheckRotation {
    let uploads = last.map_or(0, |last| last.tally.uploads);
    CheckRotation {
        pass,
        rounds: uploads.div_ceil(CHECKS_PER_PASS).max(1),
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
    pub(super) async fn check_uploads(&self, to_check: ToCheck) {
        let _span = self.invocation.span("check uploads");
        self.in_time(self.reconcile_lost(to_check)).await;
    }

    async fn reconcile_lost(&self, mut to_check: ToCheck) {
        to_check.pending.truncate(KEYS_PER_RUN);
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
        let mut sent = 0;
        loop {
            if sent >= KEYS_PER_RUN || !self.may_read(RunStep::Uploads).await {
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
                Ok(Some(of_page)) => sent += of_page,
                Ok(None) => return false,
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

    /// Compares a page of the listing with the upload items. Returns the number of keys that were
    /// sent to the queue; `None` if there was no time for all of them.
    async fn compare(&self, difs: &[ListedDif]) -> Result<Option<usize>, Fault> {
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
        let mut sent = Some(0);
        for (why, locations) in lost {
            sent = sum(sent, self.reconcile_all(locations, why).await);
        }
        Ok(sent)
    }

    /// Sends messages to reconcile keys. Returns the number of keys that were sent; `None` if there
    /// was no time for all of them.
    async fn reconcile_all(&self, locations: Vec<Location>, why: &str) -> Option<usize> {
        let sends: Vec<_> = locations
            .into_iter()
            .map(|location| self.reconcile(location, why))
            .collect();
        stream::iter(sends)
            .buffer_unordered(CALLS_IN_PARALLEL)
            .fold(Some(0), |sent, one| std::future::ready(sum(sent, one)))
            .await
    }

    async fn reconcile(&self, location: Location, why: &str) -> Option<usize> {
        if self.is_time_up(RunStep::Uploads) {
            return None;
        }
        if !self.is_dry {
            let message = ReconcileMessage::new(location.clone());
            let queues = &*self.pruner.queues;
            let sent = sending::reconcile(queues, self.invocation, message, Duration::ZERO).await;
            if let Err(error) = sent {
                // The next pass or listing finds the key again.
                self.fail(&error);
                return Some(0);
            }
        }
        let mut report = self.report();
        report.reconciled += 1;
        report.note_planned("reconcile", location.as_str(), why);
        Some(1)
    }
}

/// Returns the sum of two counts; `None` if there was no time for one of them.
fn sum(one: Option<usize>, other: Option<usize>) -> Option<usize> {
    Some(one? + other?)
}

/// Returns why a key has to be reconciled; `None` if its item describes these bytes.
fn differs(dif: &ListedDif, known: Option<&Stored>, converter: Converter) -> Option<&'static str> {
    match known.map(|stored| &stored.item) {
        None => Some("no event was received for it"),
        Some(Item::Upload(upload)) if upload.was_ignored_by_older(converter) => {
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
