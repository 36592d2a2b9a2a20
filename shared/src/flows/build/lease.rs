//! Leases: taking, extending and ending the right to build a kind of a module.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::join_all;

use super::builder::Build;
use super::made::{Made, MadeOutcome};
use crate::cache::{Change, Entry, Kind, LEASE_EXTENSION, Refused, Stored, Token};
use crate::domain::{Cause, Missing, Timestamp};
use crate::flows::error::Error;
use crate::flows::update::Updated;
use crate::ports::{Fault, FaultKind};

/// A lease that this build holds.
#[derive(Clone)]
pub(super) struct HeldLease {
    pub(super) kind: Kind,
    pub(super) token: Token,
    record: LeaseRecord,
}

/// The record with a lease as it was last written or read, so that extending and ending the lease
/// need not read it again. Clones share it.
#[derive(Clone)]
struct LeaseRecord(Arc<Mutex<Option<Stored>>>);

impl LeaseRecord {
    fn new(stored: Option<Stored>) -> Self {
        Self(Arc::new(Mutex::new(stored)))
    }

    fn get(&self) -> Option<Stored> {
        let stored = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stored.clone()
    }

    fn set(&self, stored: Option<Stored>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = stored;
    }
}

/// The result of an attempt to take a lease.
pub(super) enum LeaseAttempt {
    /// This build holds it.
    Taken(Box<HeldLease>),
    /// Another builder holds it, until this time at the latest.
    HeldByOther { until: Timestamp },
    /// The entry backs off until this time.
    BackingOff { until: Timestamp },
    /// This build has nothing to do: the entry failed as crashed instead, only a newer release may
    /// change it, or another builder has built it since it was read.
    NotDue,
}

impl LeaseAttempt {
    /// Returns when to try again, if at all. By that time, a live holder has settled the build
    /// request.
    pub(super) fn retry_at(&self) -> Option<Timestamp> {
        match self {
            Self::HeldByOther { until } | Self::BackingOff { until } => Some(*until),
            Self::Taken(_) | Self::NotDue => None,
        }
    }
}

impl Build<'_> {
    /// Takes the lease of a kind that is due, starting with its record as it was read. `is_due`
    /// says whether the entry that the lease was taken of is still due.
    pub(super) async fn take_lease_from(
        &self,
        kind: Kind,
        stored: Option<Stored>,
        is_due: impl Fn(&Entry) -> bool,
    ) -> Result<LeaseAttempt, Fault> {
        let token = self.invocation.token();
        let change = Change::TakeLease {
            holder: self.invocation.request_id().to_owned(),
            token: token.clone(),
            deadline: self.invocation.deadline(),
        };
        let writer = self.writer();
        let (updated, stored) = writer
            .apply_from(self.module, kind, &change, stored)
            .await?;
        Ok(match updated {
            Updated::Done(entry) if entry.lease().is_some_and(|lease| lease.token == token) => {
                let held = HeldLease {
                    kind,
                    token,
                    record: LeaseRecord::new(stored),
                };
                if is_due(&entry) {
                    LeaseAttempt::Taken(Box::new(held))
                } else {
                    self.release_untried(std::slice::from_ref(&held)).await;
                    LeaseAttempt::NotDue
                }
            }
            Updated::Refused(Refused::Leased, Some(entry)) => match entry.lease() {
                Some(lease) => LeaseAttempt::HeldByOther { until: lease.until },
                None => LeaseAttempt::NotDue,
            },
            Updated::Refused(Refused::BackingOff { until }, _) => {
                LeaseAttempt::BackingOff { until }
            }
            Updated::Done(_) | Updated::Refused(..) | Updated::NotDue => LeaseAttempt::NotDue,
        })
    }

    /// Extends leases until this is dropped.
    pub(super) async fn keep_extending(&self, held: &[HeldLease]) -> Infallible {
        loop {
            tokio::time::sleep(LEASE_EXTENSION).await;
            self.extend(held).await;
        }
    }

    pub(super) async fn extend(&self, held: &[HeldLease]) {
        join_all(held.iter().map(|lease| self.extend_one(lease))).await;
    }

    async fn extend_one(&self, lease: &HeldLease) {
        let change = Change::Extend {
            token: lease.token.clone(),
            deadline: self.invocation.deadline(),
        };
        let (kind, module) = (lease.kind, &self.module.id);
        // The publish detects a lost lease. A lease survives two failed extensions.
        if let Err(error) = self.change_leased(lease, &change).await {
            tracing::warn!(%kind, module, %error, "cannot extend lease");
        }
    }

    /// Changes the entry of a lease, starting with its record as it was last written or read.
    pub(super) async fn change_leased(
        &self,
        lease: &HeldLease,
        change: &Change,
    ) -> Result<Updated, Fault> {
        let writer = self.writer();
        let known = lease.record.get();
        let changed = writer.apply_from(self.module, lease.kind, change, known);
        let (updated, stored) = changed.await?;
        lease.record.set(stored);
        Ok(updated)
    }

    /// Ends a lease with the result. Returns when to build again, if a build request is still
    /// pending.
    pub(super) async fn finish(
        &self,
        lease: &HeldLease,
        Made { outcome, seen }: Made,
    ) -> Result<Option<Timestamp>, Fault> {
        let _span = self.invocation.span("publish");
        let token = lease.token.clone();
        self.invocation.note(|notes| match &outcome {
            MadeOutcome::Ready(_) => drop(notes.kinds.insert(lease.kind)),
            MadeOutcome::Missing(missing) => notes.cause = Some(missing.cause.as_str()),
            MadeOutcome::AwaitsEvent | MadeOutcome::NotAdmitted(_) => {}
        });
        let now = self.invocation.now();
        let retry_at = match &outcome {
            MadeOutcome::NotAdmitted(refused) => refused.clone().retry_at(now),
            MadeOutcome::Ready(_) | MadeOutcome::Missing(_) | MadeOutcome::AwaitsEvent => now,
        };
        let change = match outcome {
            MadeOutcome::Ready(ready) => Change::Publish { token, ready, seen },
            // The parser may have been killed from outside, so this is not yet a failure of the
            // DIF. After the maximum number of such attempts, the next `TakeLease` fails the entry
            // as crashed.
            MadeOutcome::Missing(missing) if missing.cause == Cause::Crashed => {
                Change::ReleaseKilled { token }
            }
            MadeOutcome::Missing(missing) => Change::Fail {
                token,
                missing,
                seen,
            },
            MadeOutcome::AwaitsEvent => Change::ReleaseInterrupted { token },
            MadeOutcome::NotAdmitted(_) => Change::ReleaseUntried { token },
        };
        let mut updated = self.change_leased(lease, &change).await;
        let is_too_large = |error: &Fault| error.kind() == FaultKind::TooLarge;
        if updated.as_ref().is_err_and(is_too_large)
            && let Change::Publish { token, seen, .. } = change
        {
            // It would be too large again.
            let missing = Missing::malformed("its record would exceed the maximum size of an item");
            tracing::warn!(kind = %lease.kind, "the record has no room for what was derived");
            self.invocation.note(|notes| {
                notes.kinds.remove(&lease.kind);
                notes.cause = Some(missing.cause.as_str());
            });
            let failed = Change::Fail {
                token,
                missing,
                seen,
            };
            updated = self.change_leased(lease, &failed).await;
        }
        Ok(match updated? {
            Updated::Done(entry) | Updated::Refused(_, Some(entry))
                if entry.build_request().is_some() =>
            {
                entry.not_before().max(Some(retry_at))
            }
            Updated::Done(_) | Updated::Refused(..) | Updated::NotDue => None,
        })
    }

    /// Releases leases under which nothing was tried.
    pub(super) async fn release_untried(&self, held: &[HeldLease]) {
        let released = held.iter().map(|lease| async move {
            let token = lease.token.clone();
            // A lease that cannot be released now will expire.
            let _ = self
                .change_leased(lease, &Change::ReleaseUntried { token })
                .await;
        });
        join_all(released).await;
    }

    /// Releases the leases after an error, which is the one to report.
    pub(super) async fn release_after_error(&self, held: &[HeldLease]) {
        if let Err(error) = self.release_after_work(held).await {
            tracing::warn!(%error, "cannot release a lease; it will expire");
        }
    }

    /// Releases the leases after work without a result. Returns when to build again.
    ///
    /// # Errors
    ///
    /// The first error of the store, after the other leases are released.
    pub(super) async fn release_after_work(
        &self,
        held: &[HeldLease],
    ) -> Result<Option<Timestamp>, Error> {
        let released = held.iter().map(|lease| async move {
            let token = lease.token.clone();
            self.change_leased(lease, &Change::ReleaseInterrupted { token })
                .await
        });
        let (mut later, mut failed) = (None, None);
        for released in join_all(released).await {
            match released {
                Ok(Updated::Done(entry)) => later = later.max(entry.not_before()),
                Ok(Updated::Refused(..) | Updated::NotDue) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(later), |error| Err(error.into()))
    }
}
