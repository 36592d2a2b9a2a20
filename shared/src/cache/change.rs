//! What may happen to an entry: the one transition.
//!
//! [`apply`] is the whole protocol. It is pure; stores only compare and swap what it returns.

use std::time::Duration;

use super::{
    BuildRequest, Converter, Entry, LEASE_LENGTH, Lease, Placeholder, Policy, Probes, Queue, Ready,
    Suspect, Token, current_version,
};
use crate::domain::{Candidate, Cause, DifRef, Missing, Quality, Timestamp};

/// Something that may happen to an entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// Asks for a build. Whoever's ask is written sends the message, and nobody else.
    RequestBuild {
        /// What tells this ask from every other.
        id: Token,
        /// The queue of its message.
        queue: Queue,
    },
    /// Takes the right to build, and counts the attempt before the work begins.
    TakeLease {
        /// The request id of the builder.
        holder: String,
        /// What tells this lease from every other.
        token: Token,
        /// When the builder itself must end.
        deadline: Timestamp,
    },
    /// Holds on to the lease while the work goes on.
    Extend {
        /// The lease's token.
        token: Token,
        /// When the builder itself must end.
        deadline: Timestamp,
    },
    /// Publishes what was built: the commit point of a build.
    Publish {
        /// The lease's token.
        token: Token,
        /// What was built, loaded by its builder.
        ready: Box<Ready>,
        /// What the build looked at. A DIF that it does not name is gone.
        seen: Seen,
    },
    /// Notes why there was nothing to publish.
    Fail {
        /// The lease's token.
        token: Token,
        /// Why.
        missing: Missing,
        /// What the build looked at.
        seen: Seen,
    },
    /// Gives the lease back undone: the work could not be begun, or a fault of ours ended it.
    Release {
        /// The lease's token.
        token: Token,
    },
    /// Gives the lease back to another build that is about to take it: the ask stands, and nothing rests.
    HandOver {
        /// The lease's token.
        token: Token,
    },
    /// Gives the lease up, because what it was for was killed: the attempt counts, as that of a holder who vanished.
    Abandon {
        /// The lease's token.
        token: Token,
    },
    /// Notes that it was used.
    Touch,
    /// A DIF arrived that may serve it.
    Invalidate {
        /// The DIF.
        dif: DifRef,
        /// What tells this mark from every other.
        mark: Token,
    },
    /// A DIF was removed or overwritten: nothing made from it may be served.
    Revoke {
        /// The DIF that is no more.
        dif: DifRef,
        /// What tells this mark from every other.
        mark: Token,
    },
    /// A reader could not read the blob.
    Suspect {
        /// The blob's path.
        blob: String,
        /// The ask that comes with it.
        id: Token,
    },
    /// A builder found the blob gone, or with other bytes than were published.
    ConfirmLoss {
        /// The blob's path.
        blob: String,
        /// The ask that comes with it.
        id: Token,
    },
    /// A builder found the blob as it was published, although a reader could not read it: the blob is built again, at
    /// most once within [`Policy::CONFIRM_LOSS_INTERVAL`].
    Dispute {
        /// The blob's path.
        blob: String,
        /// What tells this change from every other.
        id: Token,
    },
    /// Removes a dead lease.
    ClearLease,
    /// Forgets the state that was kept for an older build.
    DropOlder,
    /// Removes the entry: it was not used for too long.
    Retire,
}

/// What a build looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seen {
    /// Every DIF it ranked.
    pub considered: Vec<DifRef>,
    /// Every candidate it tried, and what became of it; the first [`Seen::MAX_CANDIDATES`] are kept.
    pub candidates: Vec<Candidate>,
    /// How long its source wants to be left alone, where that is not for the rules of the cause to say.
    pub retry_after: Option<Duration>,
    /// Why nothing better came of it than what is published: the failure of a better DIF, or of a newer version.
    pub better_failed: Option<Missing>,
}

impl Seen {
    /// Candidates that an entry keeps.
    pub const MAX_CANDIDATES: usize = 32;
}

/// What an entry becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every change keeps the entry"
)]
pub enum Applied {
    /// This.
    Changed(Entry),
    /// Nothing: the record is to be removed if its revision is unchanged.
    Retired,
}

/// Why a change does not apply to what is stored. An outcome, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// An ask stands already.
    Requested,
    /// Somebody else holds the lease.
    Leased,
    /// The entry rests until a time.
    BackingOff {
        /// That time.
        until: Timestamp,
    },
    /// The lease ran out, or was taken away.
    LeaseLost,
    /// It was done not long ago.
    TooSoon,
    /// The last build knew of this DIF.
    Considered,
    /// There is nothing that it applies to.
    Nothing,
    /// It is in use.
    InUse,
}

/// Applies a change to an entry: what it becomes, or why the change does not apply.
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
            let lease = own_lease(&mut next, token, now)?.clone();
            let is_refused = publish(&mut next, ready, seen, now) == Published::Worse;
            finish(&mut next, seen);
            let unmet = seen.better_failed.clone();
            let unmet = unmet.or_else(|| is_refused.then(nothing_as_good));
            next.missing = unmet
                .map(|missing| placeholder(entry, &missing, seen.retry_after, token, now, policy));
            note_probe(entry, &mut next, now);
            settle_request(&mut next, &lease);
        }
        Change::Fail {
            token,
            missing,
            seen,
        } => {
            let lease = own_lease(&mut next, token, now)?.clone();
            if next.dirty != lease.dirty {
                release(&mut next, now);
            } else {
                let wait = seen.retry_after;
                next.missing = Some(placeholder(entry, missing, wait, token, now, policy));
                finish(&mut next, seen);
                settle_request(&mut next, &lease);
            }
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
            if states(entry).next().is_none() {
                return Err(Refused::Nothing);
            }
            if now.since(next.last_used_at) < Policy::TOUCH_INTERVAL {
                return Err(Refused::TooSoon);
            }
            next.last_used_at = now;
        }
        Change::Invalidate { dif, mark } => {
            let made_from_it = states(entry).any(|ready| ready.made_from.contains(dif));
            if made_from_it || has_considered(entry, dif) {
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
        Change::Suspect { blob, id } => {
            if !states(entry).any(|ready| ready.blob.path == *blob) {
                return Err(Refused::Nothing);
            }
            next.suspect = Some(Suspect {
                blob: blob.clone(),
                at: now,
                disputed: None,
            });
            let _ = request_build(&mut next, id, Queue::Eager, now);
        }
        Change::ConfirmLoss { blob, id } => confirm_loss(&mut next, blob, id, now)?,
        Change::Dispute { blob, id } => dispute(&mut next, blob, id, now)?,
        Change::ClearLease => {
            if next.lease.take_if(|lease| now >= lease.until).is_none() {
                return Err(Refused::Nothing);
            }
        }
        Change::DropOlder => {
            // After a rollback this build reads the older state, and nothing else.
            let is_read = |ready: &Ready| ready.version > current_version(entry.kind);
            if next.older.is_some() && next.ready.as_ref().is_some_and(is_read) {
                return Err(Refused::InUse);
            }
            let newer_for = next.ready.as_ref().map(|ready| now.since(ready.derived_at));
            if next.older.is_none() || newer_for.is_none_or(|age| age < Policy::OLDER_MAX_UNUSED) {
                return Err(Refused::Nothing);
            }
            next.older = None;
        }
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

impl Change {
    /// Tells whether what is stored already shows this change's effect: asked after every ambiguous write.
    ///
    /// The answer to a write may be lost, and a client may repeat a write that landed: then the stored entry, not
    /// the answer, tells whether it happened.
    pub fn has_effect(&self, entry: &Entry) -> bool {
        let leased_by = |token: &Token| {
            entry
                .lease
                .as_ref()
                .is_some_and(|lease| lease.token == *token)
        };
        let requested_by = |id: &Token| {
            entry
                .build_request
                .as_ref()
                .is_some_and(|build_request| build_request.id == *id)
        };
        let failed_by = |token: &Token| {
            let placeholder = entry.missing.as_ref();
            placeholder.is_some_and(|placeholder| placeholder.token.as_ref() == Some(token))
        };
        match self {
            Change::RequestBuild { id, .. } => requested_by(id),
            // The lease was given, or denied for good because of too many attempts.
            Change::TakeLease { token, .. } => leased_by(token) || failed_by(token),
            Change::Extend { token, deadline } => {
                leased_by(token)
                    && entry
                        .lease
                        .as_ref()
                        .is_some_and(|lease| lease.until >= *deadline)
            }
            Change::Publish { ready, .. } => {
                states(entry).any(|state| state.blob.path == ready.blob.path)
            }
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
                !states(entry).any(|ready| ready.blob.path == *blob)
            }
            Change::Dispute { id, .. } => entry
                .suspect
                .as_ref()
                .is_some_and(|suspect| suspect.disputed.as_ref() == Some(id)),
            Change::Touch | Change::ClearLease | Change::DropOlder | Change::Retire => false,
        }
    }
}

/// Returns when an entry has been unused for too long.
pub(super) fn retires_at(entry: &Entry, policy: &Policy) -> Timestamp {
    match (states(entry).next(), &entry.missing) {
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
                "{} attempts to derive it ended without a word",
                next.attempts
            ),
        );
        next.missing = Some(placeholder(next, &crashed, None, token, now, policy));
        next.lease = None;
        next.build_request = None;
        next.attempts = 0;
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

/// A lease ends with its holder at the latest, but always after it began: a deadline may lie behind us.
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

/// What became of a state that was to be published.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Published {
    /// It is stored, or a newer converter's work of the same rank stands.
    Settled,
    /// It is worse than the state that stands, whose DIF still exists.
    Worse,
}

fn publish(next: &mut Entry, built: &Ready, seen: &Seen, now: Timestamp) -> Published {
    if next.ready.is_none() {
        // What a removal left of a lower version is what there is: what was built is weighed against it.
        next.ready = next.older.take();
    }
    let Some(present) = &next.ready else {
        next.ready = Some(built.clone());
        next.last_used_at = now;
        return Published::Settled;
    };
    let worse = built.rank > present.rank;
    let better_is_gone = !present
        .made_from
        .iter()
        .all(|dif| seen.considered.contains(dif));
    if built.version < present.version {
        // An older build in a canary or after a rollback: it serves its own kind, and replaces nothing newer.
        next.older = Some(built.clone());
    } else if worse && (built.version == present.version || !better_is_gone) {
        return Published::Worse;
    } else if built.version > present.version {
        next.older = next.ready.replace(built.clone());
    } else if !is_older_work(built, present) {
        next.ready = Some(built.clone());
    }
    Published::Settled
}

/// Returns why a state stays that a build could not match.
fn nothing_as_good() -> Missing {
    Missing::malformed("what can be made of the files that can be used is worse than what is ready")
}

/// Tells whether the last build knew of a DIF, and would do the same with it again.
///
/// A failure is no answer if the DIF was absent then, or if it is another converter's.
fn has_considered(entry: &Entry, dif: &DifRef) -> bool {
    let would_fail_again = |placeholder: &Placeholder| {
        placeholder.missing.cause.belongs_to_the_converter()
            && placeholder.converter == Converter::CURRENT
    };
    let is_answered = entry.ready.is_some() || entry.missing.as_ref().is_some_and(would_fail_again);
    is_answered && entry.considered.contains(dif)
}

/// Notes when to look for something better again: seldomer each time that nothing was found.
fn note_probe(before: &Entry, next: &mut Entry, now: Timestamp) {
    let announces = next.module.source.is_uploads();
    let may_improve = |ready: &&Ready| ready.quality == Quality::Fallback && !announces;
    next.probes = next.ready.as_ref().filter(may_improve).map(|ready| {
        let is_the_same = |former: &Ready| former.made_from == ready.made_from;
        let in_vain = before.ready.as_ref().is_some_and(is_the_same);
        let former = before.probes.filter(|_| in_vain);
        Probes {
            at: now,
            fruitless: former.map_or(0, |former| former.fruitless + 1),
        }
    });
}

/// Tells whether an older converter made what is no better than what a newer one made: in a canary, or after a
/// rollback.
fn is_older_work(built: &Ready, present: &Ready) -> bool {
    built.converter < present.converter && built.rank == present.rank
}

/// What ends with every build, whatever came of it.
fn finish(next: &mut Entry, seen: &Seen) {
    next.lease = None;
    next.attempts = 0;
    next.releases = 0;
    next.not_before = None;
    next.considered.clone_from(&seen.considered);
    next.candidates = seen
        .candidates
        .iter()
        .take(Seen::MAX_CANDIDATES)
        .cloned()
        .collect();
    // A builder judges the suspect of its entry before it builds.
    next.suspect = None;
}

/// The ask is answered, unless something arrived that this build cannot have seen.
fn settle_request(next: &mut Entry, lease: &Lease) {
    if next.dirty == lease.dirty {
        next.build_request = None;
    }
}

fn release(next: &mut Entry, now: Timestamp) {
    next.attempts = next.attempts.saturating_sub(1);
    back_off(next, now);
}

/// The lease ends undone, and the entry rests, longer each time.
fn back_off(next: &mut Entry, now: Timestamp) {
    next.lease = None;
    next.releases += 1;
    next.not_before = Some(now.plus(Policy::back_off_after_release(next.releases)));
}

fn mark_dirty(next: &mut Entry, mark: &Token, now: Timestamp) {
    // A mark whose answer was lost is written again, perhaps over another one: its build has seen the first alone.
    let is_of_this_mark = |lease: &&mut Lease| lease.dirty.as_ref() == Some(mark);
    if let Some(lease) = next.lease.as_mut().filter(is_of_this_mark) {
        lease.dirty = None;
    }
    next.dirty = Some(mark.clone());
    next.missing = None;
    // Whoever is at work now may still vanish over it.
    next.attempts = u32::from(next.lease.is_some());
    next.releases = 0;
    next.not_before = None;
    // The mark serves as the ask's id. A standing ask stays: its message is on its way, and somebody may wait for it.
    let _ = request_build(next, mark, Queue::Uploads, now);
}

fn confirm_loss(next: &mut Entry, blob: &str, id: &Token, now: Timestamp) -> Result<(), Refused> {
    if !states(next).any(|ready| ready.blob.path == blob) {
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

/// A blob that readers cannot read is replaced at most once within a time, whatever they say of the new one.
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
    let wait = retry_after.unwrap_or_else(|| match missing.cause {
        // Doubling from a minute up to the time of any other miss.
        Cause::DownloadFailed | Cause::Timeout => (policy.retry_after(missing.cause)
            * (1 << repeats.min(10)))
        .min(policy.retry_misses_after),
        cause => policy.retry_after(cause),
    });
    Placeholder {
        missing: missing.clone(),
        retry_at: now.plus(wait + wait.mul_f64(token.fraction() / 10.0)),
        converter: Converter::CURRENT,
        repeats,
        token: Some(token.clone()),
    }
}

fn states(entry: &Entry) -> impl Iterator<Item = &Ready> {
    entry.ready.iter().chain(&entry.older)
}

#[cfg(test)]
pub(super) mod examples;
#[cfg(test)]
mod tests;
