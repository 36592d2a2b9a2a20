//! Changes to an entry, and [`apply`], the one function that applies them.
//!
//! [`apply`] is the whole protocol. It is pure; stores only compare-and-swap what it returns.

mod names;
mod publish;

use std::time::Duration;

pub use self::publish::Seen;
use self::publish::{
    Published, finish, has_considered, note_probe, nothing_as_good, publish, settle_request,
};
use super::{
    BuildRequest, Entry, LEASE_LENGTH, Lease, Placeholder, Policy, Queue, Ready, Suspect, Token,
};
use crate::domain::{Cause, DifRef, Missing, Timestamp};

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
        /// The derived cache, which the builder has loaded.
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
    Release {
        /// The lease's token.
        token: Token,
    },
    /// Releases the lease to another build that takes it at once. The build request stays pending,
    /// and there is no back-off.
    HandOver {
        /// The lease's token.
        token: Token,
    },
    /// Releases the lease after the parser was killed. The attempt counts, as if the holder had
    /// crashed.
    Abandon {
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
    /// is rebuilt, at most once within [`Policy::CONFIRM_LOSS_INTERVAL`].
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
    /// Removes the state that was kept for an older build.
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

/// Why a change does not apply to the stored entry. A refusal is an outcome, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A build request is already pending.
    Requested,
    /// Another builder holds the lease.
    Leased,
    /// The entry backs off until this time.
    BackingOff {
        /// The end of the back-off.
        until: Timestamp,
    },
    /// The lease expired or was revoked.
    LeaseLost,
    /// The same change was made too recently.
    TooSoon,
    /// The last build already considered this DIF.
    Considered,
    /// The entry has nothing that the change applies to.
    Nothing,
    /// The entry or its older state is in use, or is being built.
    InUse,
}

/// Applies a change to an entry. Returns the result, or why the change does not apply.
pub fn apply(
    entry: &Entry,
    change: &Change,
    now: Timestamp,
    policy: &Policy,
) -> Result<Applied, Refused> {
    let mut next = entry.clone();
    match change {
        Change::RequestBuild { id, queue } => request_build(&mut next, id, *queue, now)?,
        Change::TakeLease {
            holder,
            token,
            deadline,
        } => {
            take_lease(&mut next, holder, token, *deadline, now, policy)?;
        }
        Change::Extend { token, deadline } => {
            let lease = own_lease(&mut next, token, now)?;
            lease.until = lease.until.max(lease_end(*deadline, now));
        }
        Change::Publish { token, ready, seen } => {
            publish_leased(&mut next, entry, token, (ready, seen), now, policy)?;
        }
        Change::Fail {
            token,
            missing,
            seen,
        } => {
            fail(&mut next, entry, token, (missing, seen), now, policy)?;
        }
        Change::Release { token } => {
            own_lease(&mut next, token, now)?;
            release(&mut next, now);
        }
        Change::HandOver { token } => {
            own_lease(&mut next, token, now)?;
            next.attempts = next.attempts.saturating_sub(1);
            next.lease = None;
        }
        Change::Abandon { token } => {
            own_lease(&mut next, token, now)?;
            back_off(&mut next, now);
        }
        Change::Touch => {
            if entry.states().next().is_none() {
                return Err(Refused::Nothing);
            }
            if now.since(next.last_used_at) < Policy::TOUCH_INTERVAL {
                return Err(Refused::TooSoon);
            }
            next.last_used_at = now;
        }
        Change::Invalidate { dif, mark } => {
            let made_from_it = entry.states().any(|ready| ready.made_from.contains(dif));
            if made_from_it || has_considered(entry, dif, policy) {
                return Err(Refused::Considered);
            }
            mark_dirty(&mut next, mark, now);
        }
        Change::Revoke { dif, mark } => {
            next.ready.take_if(|ready| ready.made_from.contains(dif));
            next.older.take_if(|ready| ready.made_from.contains(dif));
            next.considered.retain(|considered| considered != dif);
            next.lease = None;
            mark_dirty(&mut next, mark, now);
        }
        Change::Suspect { blob, id } => suspect(&mut next, blob, id, now)?,
        Change::ConfirmLoss { token, blob, id } => {
            own_lease(&mut next, token, now)?;
            confirm_loss(&mut next, blob, id, now)?;
        }
        Change::Dispute { token, blob, id } => {
            own_lease(&mut next, token, now)?;
            dispute(&mut next, blob, id, now)?;
        }
        Change::ClearLease => {
            if next.lease.take_if(|lease| now >= lease.until).is_none() {
                return Err(Refused::Nothing);
            }
        }
        Change::DropOlder => drop_older(&mut next, now, policy)?,
        Change::Retire => {
            return if retires_at(entry, policy) <= now
                && entry.live_lease(now).is_none()
                && entry.live_request(now).is_none()
            {
                Ok(Applied::Retired)
            } else {
                Err(Refused::InUse)
            };
        }
    }
    Ok(Applied::Changed(next))
}

/// Publishes a state under the lease that the token names.
fn publish_leased(
    next: &mut Entry,
    entry: &Entry,
    token: &Token,
    (ready, seen): (&Ready, &Seen),
    now: Timestamp,
    policy: &Policy,
) -> Result<(), Refused> {
    let lease = own_lease(next, token, now)?.clone();
    let is_refused = publish(next, ready, seen, now) == Published::Worse;
    finish(entry, next, seen, policy);
    let unmet = seen.better_failed.clone();
    let unmet = unmet.or_else(|| is_refused.then(nothing_as_good));
    next.missing =
        unmet.map(|missing| placeholder(entry, &missing, seen.retry_after, token, now, policy));
    note_probe(entry, next, seen, now);
    settle_request(next, &lease);
    Ok(())
}

/// Stores why nothing could be made under the lease that the token names. If the DIFs changed
/// meanwhile, releases the lease instead.
fn fail(
    next: &mut Entry,
    entry: &Entry,
    token: &Token,
    (missing, seen): (&Missing, &Seen),
    now: Timestamp,
    policy: &Policy,
) -> Result<(), Refused> {
    let lease = own_lease(next, token, now)?.clone();
    if next.dirty != lease.dirty {
        release(next, now);
        return Ok(());
    }
    let placeholder = placeholder(entry, missing, seen.retry_after, token, now, policy);
    next.missing = Some(placeholder);
    finish(entry, next, seen, policy);
    settle_request(next, &lease);
    Ok(())
}

/// Notes that a blob may be lost or damaged, and requests a build.
fn suspect(next: &mut Entry, blob: &str, id: &Token, now: Timestamp) -> Result<(), Refused> {
    if !next.states().any(|ready| ready.blob.path == *blob) {
        return Err(Refused::Nothing);
    }
    // A build that has disputed the blob may be about to replace it.
    let former = next.suspect.take();
    let former = former.filter(|suspect| suspect.blob == *blob);
    next.suspect = Some(Suspect {
        blob: blob.to_owned(),
        at: now,
        disputed: former.and_then(|suspect| suspect.disputed),
    });
    let _ = request_build(next, id, Queue::Eager, now);
    Ok(())
}

/// Removes the state of an older version, if no build needs it.
fn drop_older(next: &mut Entry, now: Timestamp, policy: &Policy) -> Result<(), Refused> {
    // After a rollback, the older state is the only one that this build can read.
    let is_newer = |ready: &Ready| ready.version > policy.numbers.version(next.kind);
    if next.older.is_some() && next.ready.as_ref().is_some_and(is_newer) {
        return Err(Refused::InUse);
    }
    let newer_for = next.ready.as_ref().map(|ready| now.since(ready.derived_at));
    if next.older.is_none() || newer_for.is_none_or(|age| age < Policy::OLDER_MAX_UNUSED) {
        return Err(Refused::Nothing);
    }
    // Only its holder removes states of a leased entry, or a removal that revokes the lease. By the
    // holder's clock, a lease that has expired here may still be live.
    if next.lease.is_some() {
        return Err(Refused::InUse);
    }
    next.older = None;
    Ok(())
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
            Change::Publish { ready, .. } => entry
                .states()
                .any(|state| state.blob.path == ready.blob.path),
            Change::Release { token } | Change::HandOver { token } | Change::Abandon { token } => {
                !leased_by(token)
            }
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

fn request_build(
    next: &mut Entry,
    id: &Token,
    queue: Queue,
    now: Timestamp,
) -> Result<(), Refused> {
    let overrides = queue == Queue::Eager
        && next
            .build_request
            .as_ref()
            .is_some_and(|build_request| build_request.queue != Queue::Eager);
    if next.live_request(now).is_some() && !overrides {
        return Err(Refused::Requested);
    }
    next.build_request = Some(BuildRequest {
        id: id.clone(),
        queue,
        at: now,
    });
    Ok(())
}

fn take_lease(
    next: &mut Entry,
    holder: &str,
    token: &Token,
    deadline: Timestamp,
    now: Timestamp,
    policy: &Policy,
) -> Result<(), Refused> {
    if next.live_lease(now).is_some() {
        return Err(Refused::Leased);
    }
    if let Some(until) = next.not_before.filter(|not_before| now < *not_before) {
        return Err(Refused::BackingOff { until });
    }
    if next.attempts >= policy.max_attempts {
        let crashed = Missing::new(
            Cause::Crashed,
            format!(
                "gave up after {} attempts: the builder or its parser was killed each time",
                next.attempts
            ),
        );
        next.missing = Some(placeholder(next, &crashed, None, token, now, policy));
        next.lease = None;
        next.build_request = None;
        next.attempts = 0;
        next.left_by = None;
        return Ok(());
    }
    next.attempts += 1;
    next.lease = Some(Lease {
        holder: holder.to_owned(),
        token: token.clone(),
        until: lease_end(deadline, now),
        dirty: next.dirty.clone(),
    });
    Ok(())
}

/// Returns when a lease ends: at the holder's deadline at the latest, but always after `now`. The
/// deadline may be in the past because clocks differ.
fn lease_end(deadline: Timestamp, now: Timestamp) -> Timestamp {
    deadline
        .min(now.plus(LEASE_LENGTH))
        .max(now.plus(Duration::from_secs(1)))
}

fn own_lease<'a>(
    next: &'a mut Entry,
    token: &Token,
    now: Timestamp,
) -> Result<&'a mut Lease, Refused> {
    next.lease
        .as_mut()
        .filter(|lease| lease.token == *token && now < lease.until)
        .ok_or(Refused::LeaseLost)
}

fn release(next: &mut Entry, now: Timestamp) {
    next.attempts = next.attempts.saturating_sub(1);
    back_off(next, now);
}

/// Removes the lease, and sets a back-off that grows with each release.
fn back_off(next: &mut Entry, now: Timestamp) {
    next.lease = None;
    next.releases += 1;
    next.not_before = Some(now.plus(Policy::back_off_after_release(next.releases)));
}

fn mark_dirty(next: &mut Entry, mark: &Token, now: Timestamp) {
    // If the response to a mark was lost, the mark is written again, perhaps over another one. The
    // lease may carry this mark, but its build has not seen the other one: clear the lease's mark,
    // so that it differs from the entry's.
    let is_of_this_mark = |lease: &&mut Lease| lease.dirty.as_ref() == Some(mark);
    if let Some(lease) = next.lease.as_mut().filter(is_of_this_mark) {
        lease.dirty = None;
    }
    next.dirty = Some(mark.clone());
    next.missing = None;
    // The current holder may still crash: keep its attempt counted.
    next.attempts = u32::from(next.lease.is_some());
    next.releases = 0;
    next.not_before = None;
    // The mark is also the id of the build request. A pending build request is kept, because its
    // message has been sent and a reader may be waiting for it.
    let _ = request_build(next, mark, Queue::Uploads, now);
}

fn confirm_loss(next: &mut Entry, blob: &str, id: &Token, now: Timestamp) -> Result<(), Refused> {
    if !next.states().any(|ready| ready.blob.path == blob) {
        return Err(Refused::Nothing);
    }
    begin_replacing(next, now)?;
    let is_lost = |ready: &mut Ready| ready.blob.path == blob;
    next.ready.take_if(is_lost);
    next.older.take_if(is_lost);
    next.suspect = None;
    let _ = request_build(next, id, Queue::Eager, now);
    Ok(())
}

fn dispute(next: &mut Entry, blob: &str, id: &Token, now: Timestamp) -> Result<(), Refused> {
    let suspect = next.suspect.as_mut().filter(|suspect| suspect.blob == blob);
    let suspect = suspect.ok_or(Refused::Nothing)?;
    suspect.disputed = Some(id.clone());
    begin_replacing(next, now)
}

/// Limits how often a blob is replaced because readers could not read it, regardless of what they
/// report about the new blob.
fn begin_replacing(next: &mut Entry, now: Timestamp) -> Result<(), Refused> {
    let is_too_soon = |at| now.since(at) < Policy::CONFIRM_LOSS_INTERVAL;
    if next.lost_at.is_some_and(is_too_soon) {
        return Err(Refused::TooSoon);
    }
    next.lost_at = Some(now);
    Ok(())
}

fn placeholder(
    before: &Entry,
    missing: &Missing,
    retry_after: Option<Duration>,
    token: &Token,
    now: Timestamp,
    policy: &Policy,
) -> Placeholder {
    let repeats = match &before.missing {
        Some(last) if last.missing.cause == missing.cause => last.repeats + 1,
        _ => 0,
    };
    // A source says nothing about files that were fetched and cannot be converted.
    let retry_after = retry_after.filter(|_| !missing.cause.belongs_to_the_converter());
    let wait = retry_after.unwrap_or_else(|| match missing.cause {
        // Doubles from one minute up to the delay for other misses.
        cause if cause.is_of_a_moment() => {
            let doubled = policy.retry_after(cause) * (1 << repeats.min(10));
            doubled.min(policy.retry_misses_after)
        }
        cause => policy.retry_after(cause),
    });
    Placeholder {
        missing: missing.clone(),
        retry_at: now.plus(wait + wait.mul_f64(token.fraction() / 10.0)),
        converter: policy.numbers.converter,
        repeats,
        token: Some(token.clone()),
    }
}

#[cfg(test)]
pub(super) mod examples;
#[cfg(test)]
mod tests;
