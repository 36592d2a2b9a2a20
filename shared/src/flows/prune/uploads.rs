//! Looks after the uploads whose events were lost: the bucket is compared with the upload items.
//!
//! Both ways: keys that no item knows, or knows with other bytes, are found by listing the bucket; items whose key is
//! gone, by asking for the key of each when its turn comes. What differs goes into the uploads lane, where `derive`
//! compares once more, so that a message too many does nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::stream::{self, StreamExt};

use super::progress::Progress;
use super::run::{CALLS_IN_PARALLEL, Run};
use crate::cache::{Item, ItemKey, Rollout, Stored, Upload, UploadState};
use crate::domain::{Cause, Location};
use crate::ports::{Consistency, DifError, Fault, ListedDif, ReconcileMessage};

/// What the comparison leaves of the run to the walk over the blobs.
const SHARE_LEFT: f64 = 0.2;

/// Keys that one run sends into the lane at most: the rest has its turn in the next.
const KEYS_PER_RUN: u64 = 5000;

/// Keys that one pass asks the bucket for at most, about: with more, each has its turn in a later pass.
const CHECKS_PER_PASS: u64 = 5000;

/// So many keys may be gone without a word before it is doubted that this is the right bucket.
const GONE_WITHOUT_DOUBT: usize = 20;

/// Upload items that a walk over the records met, and that are old enough to be looked after.
#[derive(Debug, Default)]
pub(super) struct ToCheck {
    /// Those whose event is being worked on for too long.
    pub(super) pending: Vec<Location>,
    /// Those that are settled: is their key still there?
    pub(super) settled: Vec<Location>,
}

/// Whose turn it is in a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pass: u64,
    rounds: u64,
}

impl Turn {
    /// Returns the turn of a pass, by the uploads that the last one counted.
    pub(super) fn of(pass: u64, last: Option<&Rollout>) -> Self {
        let uploads = last.map_or(0, |last| last.tally.uploads);
        Self {
            pass,
            rounds: uploads.div_ceil(CHECKS_PER_PASS).max(1),
        }
    }

    /// Tells whether it is the turn of a key.
    pub(super) fn is_due(self, location: &Location) -> bool {
        let hash = xxhash_rust::xxh3::xxh3_64(location.as_str().as_bytes());
        hash % self.rounds == self.pass % self.rounds
    }
}

impl ToCheck {
    /// Adds what another page met.
    pub(super) fn extend(&mut self, other: Self) {
        self.pending.extend(other.pending);
        self.settled.extend(other.settled);
    }
}

impl Run<'_> {
    /// Makes up for events that were lost after their item was written.
    pub(super) async fn check(&self, to_check: ToCheck) {
        self.reconcile_all(to_check.pending, "its event is pending for too long")
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
        // The wrong bucket must not take everything out of every answer.
        if gone.len() > GONE_WITHOUT_DOUBT && gone.len() * 2 > checked {
            tracing::error!(
                gone = gone.len(),
                checked,
                "is this the right bucket of uploads?"
            );
            self.report().doubtful = gone.len() as u64;
            return;
        }
        self.reconcile_all(gone, "its key is gone").await;
    }

    /// Tells whether there is nothing at a key; `None` where it was not asked for, or the store did not say.
    async fn is_gone(&self, location: Location) -> Option<(Location, bool)> {
        if self.is_time_up(SHARE_LEFT) {
            return None;
        }
        match self.pruner.uploads.stat(&location).await {
            Err(DifError::Missing(missing)) => Some((location, missing.cause == Cause::NotFound)),
            Ok(_) | Err(DifError::Changed) => Some((location, false)),
            Err(DifError::Store(error)) => {
                self.fail(&error);
                None
            }
        }
    }

    /// Lists the bucket from where the last run stopped, and has those keys looked at that no event told of; tells whether
    /// the listing came to its end.
    pub(super) async fn compare_uploads(&self, progress: &mut Progress) -> bool {
        let walk = self.walk_uploads(&mut progress.cursor.uploads_after);
        self.in_time(walk).await.unwrap_or_default()
    }

    async fn walk_uploads(&self, after: &mut Option<Location>) -> bool {
        loop {
            let is_full = self.report().reconciled >= KEYS_PER_RUN;
            if is_full || !self.may_read(SHARE_LEFT).await {
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

    /// Compares a page of the listing with the upload items; tells whether it had the time for all of it.
    async fn compare(&self, difs: &[ListedDif]) -> Result<bool, Fault> {
        let now = self.invocation.now();
        let patience = self.pruner.settings.reconcile_after;
        let old: Vec<&ListedDif> = difs
            .iter()
            .filter(|dif| now.since(dif.modified_at) >= patience)
            .collect();
        let keys: Vec<ItemKey> = old
            .iter()
            .map(|dif| ItemKey::upload(&dif.location))
            .collect();
        // Only a hint: who serves the message reads strongly.
        let known = self.load(&keys, Consistency::Eventual).await?;
        let mut lost: BTreeMap<&str, Vec<Location>> = BTreeMap::new();
        for (dif, known) in old.into_iter().zip(known) {
            if let Some(why) = differs(dif, known.as_ref()) {
                lost.entry(why).or_default().push(dif.location.clone());
            }
        }
        let mut is_all = true;
        for (why, locations) in lost {
            is_all &= self.reconcile_all(locations, why).await;
        }
        Ok(is_all)
    }

    /// Has keys looked at; tells whether there was time for all of them.
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
        if self.is_time_up(SHARE_LEFT) {
            return false;
        }
        if self.is_dry() {
            let mut report = self.report();
            report.reconciled += 1;
            report.say("reconcile", location.as_str(), why);
            return true;
        }
        let message = ReconcileMessage {
            reconcile: location,
            hops: 0,
        };
        match self.pruner.queues.reconcile(&message, Duration::ZERO).await {
            Ok(()) => self.report().reconciled += 1,
            // The next pass, or the next listing, meets the key again.
            Err(error) => self.fail(&error),
        }
        true
    }
}

/// Tells why a key has to be looked at; `None` where its item is about these bytes.
fn differs(dif: &ListedDif, known: Option<&Stored>) -> Option<&'static str> {
    match known.map(|stored| &stored.item) {
        None => Some("no event told of it"),
        Some(Item::Upload(Upload { state, etag, .. })) => match state {
            // The walk over the records looks after these.
            UploadState::Pending => None,
            UploadState::Gone => Some("it is there, and was said to be gone"),
            UploadState::Applied | UploadState::Ignored { .. } if *etag != dif.etag => {
                Some("no event told of its bytes")
            }
            UploadState::Applied | UploadState::Ignored { .. } => None,
        },
        // A newer build looks after its own.
        Some(_) => None,
    }
}
