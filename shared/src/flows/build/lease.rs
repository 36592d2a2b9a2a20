//! Leases: taking, extending and ending the right to build a kind of a module.

use super::builder::Build;
use super::made::{Made, MadeOutcome};
use crate::cache::{Change, Entry, Kind, Refused, Stored, Token};
use crate::domain::{Cause, Timestamp};
use crate::flows::error::Error;
use crate::flows::update::Updated;
use crate::ports::Fault;

/// A lease that this build holds.
pub(super) struct HeldLease {
    pub(super) kind: Kind,
    pub(super) token: Token,
    /// The record with the lease as it was written, so that ending the lease need not read it
    /// again.
    pub(super) stored: Option<Stored>,
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
        let update = self.update();
        let (updated, stored) = update
            .apply_from(self.module, kind, &change, stored)
            .await?;
        Ok(match updated {
            Updated::Done(entry) if entry.lease().is_some_and(|lease| lease.token == token) => {
                let held = HeldLease {
                    kind,
                    token,
                    stored,
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

    pub(super) async fn extend(&self, held: &[HeldLease]) {
        for HeldLease { kind, token, .. } in held {
            self.extend_one(*kind, token).await;
        }
    }

    pub(super) async fn extend_one(&self, kind: Kind, token: &Token) {
        let change = Change::Extend {
            token: token.clone(),
            deadline: self.invocation.deadline(),
        };
        let module = self.module;
        // The publish detects a lost lease. A lease survives two failed extensions.
        if let Err(error) = self.update().apply(module, kind, &change).await {
            tracing::warn!(%kind, module = module.id, %error, "cannot extend lease");
        }
    }

    /// Ends a lease with the result. Returns when to build again, if a build request is still
    /// pending.
    pub(super) async fn finish(
        &self,
        HeldLease {
            kind,
            token,
            stored,
        }: &HeldLease,
        Made { outcome, seen }: Made,
    ) -> Result<Option<Timestamp>, Fault> {
        let _span = self.invocation.span("publish");
        let token = token.clone();
        self.invocation.note(|notes| match &outcome {
            MadeOutcome::Ready(_) => drop(notes.kinds.insert(*kind)),
            MadeOutcome::Missing(missing) => notes.cause = Some(missing.cause.as_str()),
            MadeOutcome::Later => {}
        });
        let change = match outcome {
            MadeOutcome::Ready(ready) => Change::Publish { token, ready, seen },
            // The parser may have been killed from outside, so this is not yet a failure of the
            // DIF. After the maximum number of such attempts, the next `TakeLease` fails the entry
            // as crashed.
            MadeOutcome::Missing(missing) if missing.cause == Cause::Crashed => {
                Change::Abandon { token }
            }
            MadeOutcome::Missing(missing) => Change::Fail {
                token,
                missing,
                seen,
            },
            MadeOutcome::Later => Change::Release { token },
        };
        let now = self.invocation.now();
        let update = self.update();
        let ended = update.apply_from(self.module, *kind, &change, stored.clone());
        let (ended, _) = ended.await?;
        Ok(match ended {
            Updated::Done(entry) | Updated::Refused(_, Some(entry))
                if entry.build_request().is_some() =>
            {
                Some(entry.not_before().unwrap_or(now).max(now))
            }
            Updated::Done(_) | Updated::Refused(..) | Updated::NotDue => None,
        })
    }

    /// Releases leases under which nothing was tried.
    pub(super) async fn release_untried(&self, held: &[HeldLease]) {
        for HeldLease { kind, token, .. } in held {
            let token = token.clone();
            let change = Change::HandOver { token };
            // A lease that cannot be released now will expire.
            let _ = self.update().apply(self.module, *kind, &change).await;
        }
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
        let (mut later, mut failed) = (None, None);
        for HeldLease { kind, token, .. } in held {
            let change = Change::Release {
                token: token.clone(),
            };
            match self.update().apply(self.module, *kind, &change).await {
                Ok(Updated::Done(entry)) => later = later.max(entry.not_before()),
                Ok(Updated::Refused(..) | Updated::NotDue) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(later), |error| Err(error.into()))
    }
}
