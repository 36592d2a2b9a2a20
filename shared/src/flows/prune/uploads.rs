//! Looks after the uploads whose events were lost: the bucket is compared with the upload items.
//!
//! Both ways: keys that no item knows, or knows with other bytes, are found by listing the bucket; items whose key is
//! gone, by asking for the key of each when its turn comes. What differs goes into the uploads lane, where `derive`
//! compares once more, so that a message too many does nothing.

use std::time::Duration;

use super::progress::Progress;
use super::{RESERVE, Run};
use crate::cache::{Item, ItemKey, Rollout, Stored, Upload, UploadState};
use crate::domain::{Cause, Location};
use crate::flows::Error;
use crate::ports::{Consistency, DifError, ListedDif, ReconcileMessage, StoreError};

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

impl Run<'_> {
    /// Has the events made up for that were lost after their item was written.
    pub(super) async fn check(&self, to_check: ToCheck) -> Result<(), Error> {
        for location in to_check.pending {
            self.reconcile(location, "its event is pending for too long")
                .await?;
        }
        let (mut gone, mut checked) = (Vec::new(), 0);
        for location in to_check.settled {
            if self.is_time_up(SHARE_LEFT) {
                break;
            }
            checked += 1;
            match self.pruner.uploads.stat(&location).await {
                Err(DifError::Missing(missing)) if missing.cause == Cause::NotFound => {
                    gone.push(location);
                }
                Ok(_) | Err(DifError::Missing(_) | DifError::Changed) => {}
                Err(DifError::Store(error)) => return Err(error.into()),
            }
        }
        // The wrong bucket must not take everything out of every answer.
        if gone.len() > GONE_WITHOUT_DOUBT && gone.len() * 2 > checked {
            tracing::error!(
                gone = gone.len(),
                checked,
                "is this the right bucket of uploads?"
            );
            self.report().doubtful = gone.len() as u64;
            return Ok(());
        }
        for location in gone {
            self.reconcile(location, "its key is gone").await?;
        }
        Ok(())
    }

    /// Lists the bucket from where the last run stopped, and has those keys looked at that no event told of; tells whether
    /// the listing came to its end.
    pub(super) async fn compare_uploads(&self, progress: &mut Progress) -> Result<bool, Error> {
        let after = &mut progress.cursor.uploads_after;
        loop {
            if self.is_time_up(SHARE_LEFT) || self.report().reconciled >= KEYS_PER_RUN {
                return Ok(false);
            }
            let page = self.pruner.listing.list(after.as_ref()).await?;
            self.compare(&page.difs).await?;
            match page.difs.last() {
                Some(last) if page.more => *after = Some(last.location.clone()),
                _ => {
                    *after = None;
                    return Ok(true);
                }
            }
        }
    }

    async fn compare(&self, difs: &[ListedDif]) -> Result<(), Error> {
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
        let known = self
            .pruner
            .records
            .load(&keys, Consistency::Eventual)
            .await?;
        for (dif, known) in old.into_iter().zip(known) {
            if let Some(why) = differs(dif, known.as_ref()) {
                self.reconcile(dif.location.clone(), why).await?;
            }
        }
        Ok(())
    }

    async fn reconcile(&self, location: Location, why: &'static str) -> Result<(), StoreError> {
        if self.invocation.time_left() < RESERVE {
            return Ok(());
        }
        {
            let mut report = self.report();
            report.reconciled += 1;
            report.say("reconcile", location.as_str(), why);
        }
        if self.is_dry() {
            return Ok(());
        }
        let message = ReconcileMessage {
            reconcile: location,
            hops: 0,
        };
        self.pruner.lanes.reconcile(&message, Duration::ZERO).await
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
