//! Leases: taking, extending and ending the right to build a kind of a module.

use super::builder::Builder;
use super::made::{Made, MadeOf};
use crate::cache::{Change, Kind, ModuleKey, Refused, Stored, Token};
use crate::domain::{Cause, Timestamp};
use crate::flows::error::Error;
use crate::flows::invocation::Invocation;
use crate::flows::update::Updated;
use crate::ports::Fault;

/// A lease that this build holds.
pub(super) struct Held {
    pub(super) kind: Kind,
    pub(super) token: Token,
    /// The record with the lease as it was written, so that ending the lease need not read it
    /// again.
    pub(super) stored: Option<Stored>,
}

/// Why a lease was not taken.
pub(super) enum NotTaken {
    /// Another builder holds it, until this time at the latest.
    Leased { until: Timestamp },
    /// The entry backs off until this time.
    BackingOff { until: Timestamp },
    /// The entry failed as crashed instead, or this build may not change it.
    NotOurs,
}

impl NotTaken {
    /// Returns when to try again, if at all. By that time, a live holder has settled the build
    /// request.
    pub(super) fn look_again(&self) -> Option<Timestamp> {
        match self {
            Self::Leased { until } | Self::BackingOff { until } => Some(*until),
            Self::NotOurs => None,
        }
    }
}

impl Builder {
    /// Takes the lease of a kind, starting with its record as it was read.
    pub(super) async fn take_lease_from(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        kind: Kind,
        stored: Option<Stored>,
    ) -> Result<Result<Held, NotTaken>, Fault> {
        let token = invocation.token();
        let change = Change::TakeLease {
            holder: invocation.request_id().to_owned(),
            token: token.clone(),
            deadline: invocation.deadline(),
        };
        let update = self.update(invocation);
        let (updated, stored) = update.apply_from(module, kind, &change, stored).await?;
        Ok(match updated {
            Updated::Done(entry) if entry.lease().is_some_and(|lease| lease.token == token) => {
                Ok(Held {
                    kind,
                    token,
                    stored,
                })
            }
            Updated::Refused(Refused::Leased, Some(entry)) => Err(match entry.lease() {
                Some(lease) => NotTaken::Leased { until: lease.until },
                None => NotTaken::NotOurs,
            }),
            Updated::Refused(Refused::BackingOff { until }, _) => {
                Err(NotTaken::BackingOff { until })
            }
            Updated::Done(_) | Updated::Refused(..) | Updated::Retired(_) => Err(NotTaken::NotOurs),
        })
    }

    pub(super) async fn extend(&self, invocation: &Invocation, module: &ModuleKey, held: &[Held]) {
        for Held { kind, token, .. } in held {
            self.extend_one(invocation, module, *kind, token).await;
        }
    }

    pub(super) async fn extend_one(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        kind: Kind,
        token: &Token,
    ) {
        let change = Change::Extend {
            token: token.clone(),
            deadline: invocation.deadline(),
        };
        // The publish detects a lost lease. A lease survives two failed extensions.
        if let Err(error) = self.update(invocation).apply(module, kind, &change).await {
            tracing::warn!(%kind, module = module.id, %error, "cannot extend lease");
        }
    }

    /// Ends a lease with the result. Returns when to build again, if a build request is still
    /// pending.
    pub(super) async fn finish(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        Held {
            kind,
            token,
            stored,
        }: &Held,
        Made { outcome, seen }: Made,
    ) -> Result<Option<Timestamp>, Fault> {
        let token = token.clone();
        let change = match outcome {
            MadeOf::Ready(ready) => Change::Publish { token, ready, seen },
            // The parser may have been killed from outside, so this is not yet a failure of the
            // DIF. After the maximum number of such attempts, the next `TakeLease` fails the entry
            // as crashed.
            MadeOf::Missing(missing) if missing.cause == Cause::Crashed => {
                Change::Abandon { token }
            }
            MadeOf::Missing(missing) => Change::Fail {
                token,
                missing,
                seen,
            },
            MadeOf::Later => Change::Release { token },
        };
        let now = invocation.now();
        let update = self.update(invocation);
        let ended = update.apply_from(module, *kind, &change, stored.clone());
        let (ended, _) = ended.await?;
        Ok(match ended {
            Updated::Done(entry) | Updated::Refused(_, Some(entry))
                if entry.build_request().is_some() =>
            {
                Some(entry.not_before().unwrap_or(now).max(now))
            }
            Updated::Done(_) | Updated::Refused(..) | Updated::Retired(_) => None,
        })
    }

    /// Releases leases under which no work was done.
    pub(super) async fn hand_over(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        held: &[Held],
    ) {
        for Held { kind, token, .. } in held {
            let token = token.clone();
            let change = Change::HandOver { token };
            // A lease that cannot be released now will expire.
            let _ = self.update(invocation).apply(module, *kind, &change).await;
        }
    }

    /// Releases the leases without a result. Returns when to build again.
    pub(super) async fn give_back(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        held: &[Held],
    ) -> Result<Option<Timestamp>, Error> {
        let mut later = None;
        for Held { kind, token, .. } in held {
            let change = Change::Release {
                token: token.clone(),
            };
            if let Updated::Done(entry) = self
                .update(invocation)
                .apply(module, *kind, &change)
                .await?
            {
                later = later.max(entry.not_before());
            }
        }
        Ok(later)
    }
}
