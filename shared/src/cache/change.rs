//! Changes to an entry, and [`apply`], the one function that applies them.
//!
//! [`apply`] is the whole protocol: the table of changes, each with its transition. It is pure;
//! stores only compare-and-swap what it returns.

mod names;
mod publish;
mod refused;
mod transition;

pub use self::publish::Seen;
pub use self::refused::Refused;
use self::transition::Transition;
use super::{Entry, Policy, Queue, Ready, Token};
use crate::domain::{DifRef, Missing, Timestamp};

/// A change to an entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// Requests a build. Only the caller whose build request was stored sends the queue message.
    RequestBuild {
        /// The unique id of the build request.
        id: Token,
        /// The queue of its message.
        queue: Queue,
    },
    /// Takes the lease. The attempt is counted before the work begins.
    TakeLease {
        /// The request id of the builder.
        holder: String,
        /// The unique token of the lease.
        token: Token,
        /// The deadline of the builder's invocation.
        deadline: Timestamp,
    },
    /// Extends the lease of a builder that is still working.
    Extend {
        /// The lease's token.
        token: Token,
        /// The deadline of the builder's invocation.
        deadline: Timestamp,
    },
    /// Publishes a derived cache: the commit point of a build.
    Publish {
        /// The lease's token.
        token: Token,
        /// The derived cache, which the builder has loaded, except Microsoft's SymCaches.
        ready: Box<Ready>,
        /// The DIFs that the build evaluated. A DIF that is not among them no longer exists.
        seen: Seen,
    },
    /// Records why the build has nothing to publish.
    Fail {
        /// The lease's token.
        token: Token,
        /// The reason.
        missing: Missing,
        /// The DIFs that the build evaluated.
        seen: Seen,
    },
    /// Releases the lease without a result: the build could not start, or an internal error ended
    /// it. The attempt does not count.
    ReleaseInterrupted {
        /// The lease's token.
        token: Token,
    },
    /// Releases a lease under which nothing was tried. The attempt does not count, and there is no
    /// back-off.
    ReleaseUntried {
        /// The lease's token.
        token: Token,
    },
    /// Releases the lease after the parser was killed. The attempt counts, as if the holder had
    /// crashed.
    ReleaseKilled {
        /// The lease's token.
        token: Token,
    },
    /// Records that the entry was used.
    Touch,
    /// Invalidates the entry: a DIF arrived that may serve it.
    Invalidate {
        /// The DIF.
        dif: DifRef,
        /// The unique id of the dirty mark.
        mark: Token,
    },
    /// Revokes a DIF that was removed or overwritten: no state made from it may be served.
    Revoke {
        /// The DIF that was removed or overwritten.
        dif: DifRef,
        /// The unique id of the dirty mark.
        mark: Token,
    },
    /// Records that a reader could not read the blob.
    Suspect {
        /// The blob's path.
        blob: String,
        /// The id of the build request that this change adds.
        id: Token,
    },
    /// Removes a state whose blob a builder found missing or corrupt.
    ConfirmLoss {
        /// The lease's token.
        token: Token,
        /// The blob's path.
        blob: String,
        /// The id of the build request that this change adds.
        id: Token,
    },
    /// Records that a builder found the blob intact although a reader could not read it. The blob
    /// is rebuilt, at most once within [`Policy::CONFIRM_LOSS_INTERVAL`]. If that build is
    /// interrupted, the next one continues the dispute.
    Dispute {
        /// The lease's token.
        token: Token,
        /// The blob's path.
        blob: String,
        /// The unique id of this change.
        id: Token,
    },
    /// Removes an expired lease.
    ClearLease,
    /// Removes the state that was kept for an older release.
    DropOlder,
    /// Retires the entry, which has been unused for too long.
    Retire,
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every change keeps the entry"
)]
pub enum Applied {
    /// The new entry.
    Changed(Entry),
    /// The caller removes the record if its revision is unchanged.
    Retired,
}

/// Applies a change to an entry. Returns the result, or why the change does not apply.
pub fn apply(
    entry: &Entry,
    change: &Change,
    now: Timestamp,
    policy: &Policy,
) -> Result<Applied, Refused> {
    let mut transition = Transition {
        before: entry,
        next: entry.clone(),
        now,
        policy,
    };
    match change {
        Change::RequestBuild { id, queue } => transition.request_build(id, *queue)?,
        Change::TakeLease {
            holder,
            token,
            deadline,
        } => transition.take_lease(holder, token, *deadline)?,
        Change::Extend { token, deadline } => transition.extend(token, *deadline)?,
        Change::Publish { token, ready, seen } => transition.publish(token, ready, seen)?,
        Change::Fail {
            token,
            missing,
            seen,
        } => transition.fail(token, missing, seen)?,
        Change::ReleaseInterrupted { token } => transition.release_interrupted(token)?,
        Change::ReleaseUntried { token } => transition.release_untried(token)?,
        Change::ReleaseKilled { token } => transition.release_killed(token)?,
        Change::Touch => transition.touch()?,
        Change::Invalidate { dif, mark } => transition.invalidate(dif, mark)?,
        Change::Revoke { dif, mark } => transition.revoke(dif, mark),
        Change::Suspect { blob, id } => transition.suspect(blob, id)?,
        Change::ConfirmLoss { token, blob, id } => transition.confirm_loss(token, blob, id)?,
        Change::Dispute { token, blob, id } => transition.dispute(token, blob, id)?,
        Change::ClearLease => transition.clear_lease()?,
        Change::DropOlder => transition.drop_older()?,
        Change::Retire => return retire(entry, now, policy),
    }
    Ok(Applied::Changed(transition.next))
}

/// Retires the entry, unless it may be in use or is being built.
fn retire(entry: &Entry, now: Timestamp, policy: &Policy) -> Result<Applied, Refused> {
    let has_build = entry.live_lease(now).is_some() || entry.live_request(now).is_some();
    if now < retires_at(entry, policy) || has_build {
        return Err(Refused::InUse);
    }
    Ok(Applied::Retired)
}

impl Change {
    /// Returns whether the stored entry already shows this change's effect. The caller checks this
    /// after every ambiguous write.
    ///
    /// The response to a write may be lost, and a client may repeat a write that succeeded. Then
    /// only the stored entry tells whether the change was made.
    pub fn has_effect(&self, entry: &Entry) -> bool {
        let leased_by = |token: &Token| {
            entry
                .lease
                .as_ref()
                .is_some_and(|lease| lease.token == *token)
        };
        let requested_by = |id: &Token| entry.is_requested_by(id);
        let failed_by = |token: &Token| {
            let placeholder = entry.missing.as_ref();
            placeholder.is_some_and(|placeholder| placeholder.token.as_ref() == Some(token))
        };
        match self {
            Change::RequestBuild { id, .. } => requested_by(id),
            // The lease was taken, or the attempt limit was reached and a placeholder was stored.
            Change::TakeLease { token, .. } => leased_by(token) || failed_by(token),
            Change::Extend { token, deadline } => {
                leased_by(token)
                    && entry
                        .lease
                        .as_ref()
                        .is_some_and(|lease| lease.until >= *deadline)
            }
            // A state that was ready before may be published again, so its path alone says nothing.
            // The lease may be another holder's by now.
            Change::Publish { token, ready, .. } => {
                let mut states = entry.states();
                !leased_by(token) && states.any(|state| state.blob.path == ready.blob.path)
            }
            Change::ReleaseInterrupted { token }
            | Change::ReleaseUntried { token }
            | Change::ReleaseKilled { token } => !leased_by(token),
            Change::Fail { token, .. } => !leased_by(token) && failed_by(token),
            Change::Invalidate { mark, .. } | Change::Revoke { mark, .. } => {
                entry.dirty.as_ref() == Some(mark)
            }
            Change::Suspect { blob, .. } => entry
                .suspect
                .as_ref()
                .is_some_and(|suspect| suspect.blob == *blob),
            Change::ConfirmLoss { blob, .. } => {
                !entry.states().any(|ready| ready.blob.path == *blob)
            }
            Change::Dispute { id, .. } => entry
                .suspect
                .as_ref()
                .is_some_and(|suspect| suspect.disputed.as_ref() == Some(id)),
            Change::Touch | Change::ClearLease | Change::DropOlder | Change::Retire => false,
        }
    }
}

/// Returns when an entry has been unused for long enough to be retired.
pub(super) fn retires_at(entry: &Entry, policy: &Policy) -> Timestamp {
    match (entry.states().next(), &entry.missing) {
        (None, Some(placeholder)) => entry
            .last_used_at
            .max(placeholder.retry_at)
            .plus(Policy::PLACEHOLDER_MAX_UNUSED),
        (None, None) => entry.last_used_at.plus(Policy::PLACEHOLDER_MAX_UNUSED),
        (Some(_), _) => entry.last_used_at.plus(policy.derived_max_unused),
    }
}

#[cfg(test)]
pub(super) mod examples;
#[cfg(test)]
mod tests;
