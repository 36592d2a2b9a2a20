//! Transitions: how each change but a publish, a failure and a retirement turns an entry into the
//! next one.

use std::time::Duration;

use super::refused::Refused;
use crate::cache::{
    BuildRequest, Entry, LEASE_LENGTH, Lease, Placeholder, Policy, Queue, Ready, Suspect, Token,
};
use crate::domain::{Cause, DifRef, Missing, Timestamp};

/// One change in progress: the entry before it, and the entry that it makes. A refused change has
/// no effect, because the caller drops the transition.
pub(super) struct Transition<'a> {
    /// The stored entry.
    pub(super) before: &'a Entry,
    /// The entry after the change. At first a copy of the stored one.
    pub(super) next: Entry,
    pub(super) now: Timestamp,
    pub(super) policy: &'a Policy,
}

impl Transition<'_> {
    pub(super) fn request_build(&mut self, id: &Token, queue: Queue) -> Result<(), Refused> {
        let next = &mut self.next;
        let overrides = queue == Queue::Eager
            && next
                .build_request
                .as_ref()
                .is_some_and(|build_request| build_request.queue != Queue::Eager);
        if next.live_request(self.now).is_some() && !overrides {
            return Err(Refused::Requested);
        }
        next.build_request = Some(BuildRequest {
            id: id.clone(),
            queue,
            at: self.now,
        });
        Ok(())
    }

    /// Takes the lease. If the attempt limit is reached, stores a placeholder instead.
    pub(super) fn take_lease(
        &mut self,
        holder: &str,
        token: &Token,
        deadline: Timestamp,
    ) -> Result<(), Refused> {
        let now = self.now;
        if self.next.live_lease(now).is_some() {
            return Err(Refused::Leased);
        }
        let not_before = self.next.not_before;
        if let Some(until) = not_before.filter(|not_before| now < *not_before) {
            return Err(Refused::BackingOff { until });
        }
        if self.next.attempts >= self.policy.max_attempts {
            let crashed = Missing::new(
                Cause::Crashed,
                format!(
                    "gave up after {} attempts: the builder or its parser was killed each time",
                    self.next.attempts
                ),
            );
            self.next.missing = Some(self.placeholder(&crashed, None, token));
            // The dispute ends: the hourly limit applies to the next report of the blob.
            self.next.suspect = None;
            self.next.lease = None;
            self.next.build_request = None;
            self.next.attempts = 0;
            self.next.deferred_by = None;
            return Ok(());
        }
        self.next.attempts += 1;
        self.next.lease = Some(Lease {
            holder: holder.to_owned(),
            token: token.clone(),
            until: lease_end(deadline, now),
            dirty: self.next.dirty.clone(),
        });
        Ok(())
    }

    pub(super) fn extend(&mut self, token: &Token, deadline: Timestamp) -> Result<(), Refused> {
        let end = lease_end(deadline, self.now);
        let lease = self.own_lease(token)?;
        lease.until = lease.until.max(end);
        Ok(())
    }

    /// Returns the lease, if it is live and has this token.
    pub(super) fn own_lease(&mut self, token: &Token) -> Result<&mut Lease, Refused> {
        let now = self.now;
        self.next
            .lease
            .as_mut()
            .filter(|lease| lease.token == *token && now < lease.until)
            .ok_or(Refused::LeaseLost)
    }

    pub(super) fn release_interrupted(&mut self, token: &Token) -> Result<(), Refused> {
        self.own_lease(token)?;
        self.give_up_lease();
        Ok(())
    }

    /// Removes the lease, as if it had not been taken, and sets a back-off.
    pub(super) fn give_up_lease(&mut self) {
        self.next.attempts = self.next.attempts.saturating_sub(1);
        self.back_off();
    }

    pub(super) fn release_untried(&mut self, token: &Token) -> Result<(), Refused> {
        self.own_lease(token)?;
        self.next.attempts = self.next.attempts.saturating_sub(1);
        self.next.lease = None;
        Ok(())
    }

    pub(super) fn release_killed(&mut self, token: &Token) -> Result<(), Refused> {
        self.own_lease(token)?;
        self.back_off();
        Ok(())
    }

    /// Removes the lease, and sets a back-off that grows with each release.
    fn back_off(&mut self) {
        let next = &mut self.next;
        next.lease = None;
        next.releases += 1;
        let back_off = Policy::back_off_after_release(next.releases);
        next.not_before = Some(self.now.plus(back_off));
    }

    pub(super) fn touch(&mut self) -> Result<(), Refused> {
        if self.before.states().next().is_none() {
            return Err(Refused::Nothing);
        }
        if self.now.since(self.before.last_used_at) < Policy::TOUCH_INTERVAL {
            return Err(Refused::TooSoon);
        }
        self.next.last_used_at = self.now;
        Ok(())
    }

    pub(super) fn invalidate(&mut self, dif: &DifRef, mark: &Token) -> Result<(), Refused> {
        let is_made_from_it = |ready: &Ready| ready.made_from.contains(dif);
        if self.before.states().any(is_made_from_it) || self.has_considered(dif) {
            return Err(Refused::Considered);
        }
        self.mark_dirty(mark);
        Ok(())
    }

    /// Returns whether the last build considered a DIF and would give the same result again.
    ///
    /// A failure does not count if the DIF was absent then, or if another converter failed.
    fn has_considered(&self, dif: &DifRef) -> bool {
        let entry = self.before;
        let would_fail_again = |placeholder: &Placeholder| {
            placeholder.missing.cause.belongs_to_the_converter()
                && placeholder.converter == self.policy.numbers.converter
        };
        let is_answered =
            entry.ready.is_some() || entry.missing.as_ref().is_some_and(would_fail_again);
        is_answered && entry.considered.contains(dif)
    }

    pub(super) fn revoke(&mut self, dif: &DifRef, mark: &Token) {
        let is_made_from_it = |ready: &mut Ready| ready.made_from.contains(dif);
        self.next.ready.take_if(is_made_from_it);
        self.next.older.take_if(is_made_from_it);
        self.next.considered.retain(|considered| considered != dif);
        self.next.lease = None;
        self.mark_dirty(mark);
    }

    fn mark_dirty(&mut self, mark: &Token) {
        let next = &mut self.next;
        // If the response to a mark was lost, the mark is written again, perhaps over another one.
        // The lease may carry this mark, but its build has not seen the other one: clear the
        // lease's mark, so that it differs from the entry's.
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
        // The mark is also the id of the build request. A pending build request is kept, because
        // its message has been sent and a reader may be waiting for it.
        let _ = self.request_build(mark, Queue::Uploads);
    }

    /// Notes that a blob may be lost or damaged, and requests a build.
    pub(super) fn suspect(&mut self, blob: &str, id: &Token) -> Result<(), Refused> {
        self.check_has_blob(blob)?;
        // A build that has disputed the blob may be about to replace it.
        let former = self.next.suspect.take();
        let former = former.filter(|suspect| suspect.blob == *blob);
        self.next.suspect = Some(Suspect {
            blob: blob.to_owned(),
            at: self.now,
            disputed: former.and_then(|suspect| suspect.disputed),
        });
        let _ = self.request_build(id, Queue::Eager);
        Ok(())
    }

    pub(super) fn confirm_loss(
        &mut self,
        token: &Token,
        blob: &str,
        id: &Token,
    ) -> Result<(), Refused> {
        self.own_lease(token)?;
        self.check_has_blob(blob)?;
        self.begin_replacing()?;
        let is_lost = |ready: &mut Ready| ready.blob.path == blob;
        self.next.ready.take_if(is_lost);
        self.next.older.take_if(is_lost);
        self.next.suspect = None;
        let _ = self.request_build(id, Queue::Eager);
        Ok(())
    }

    pub(super) fn dispute(&mut self, token: &Token, blob: &str, id: &Token) -> Result<(), Refused> {
        self.own_lease(token)?;
        let suspect = self.next.suspect.as_mut();
        let suspect = suspect.filter(|suspect| suspect.blob == blob);
        let disputed = &mut suspect.ok_or(Refused::Nothing)?.disputed;
        if disputed.is_some() {
            // The build that disputed it was interrupted: nothing was replaced since.
            self.next.lost_at = Some(self.now);
            return Ok(());
        }
        *disputed = Some(id.clone());
        self.begin_replacing()
    }

    /// Checks that a state of the entry has this blob.
    fn check_has_blob(&self, blob: &str) -> Result<(), Refused> {
        if !self.next.states().any(|ready| ready.blob.path == blob) {
            return Err(Refused::Nothing);
        }
        Ok(())
    }

    /// Limits how often a blob is replaced because readers could not read it, regardless of what
    /// they report about the new blob.
    fn begin_replacing(&mut self) -> Result<(), Refused> {
        let now = self.now;
        let is_too_soon = |at| now.since(at) < Policy::CONFIRM_LOSS_INTERVAL;
        if self.next.lost_at.is_some_and(is_too_soon) {
            return Err(Refused::TooSoon);
        }
        self.next.lost_at = Some(now);
        Ok(())
    }

    pub(super) fn clear_lease(&mut self) -> Result<(), Refused> {
        let now = self.now;
        let expired = self.next.lease.take_if(|lease| now >= lease.until);
        if expired.is_none() {
            return Err(Refused::Nothing);
        }
        Ok(())
    }

    /// Removes the state of an older version, if no build needs it.
    pub(super) fn drop_older(&mut self) -> Result<(), Refused> {
        let (next, now) = (&mut self.next, self.now);
        // After a rollback, the older state is the only one that this release can read.
        let version = self.policy.numbers.version(next.kind);
        let is_newer = |ready: &Ready| ready.version > version;
        if next.older.is_some() && next.ready.as_ref().is_some_and(is_newer) {
            return Err(Refused::InUse);
        }
        let newer_for = next.ready.as_ref().map(|ready| now.since(ready.derived_at));
        if next.older.is_none() || newer_for.is_none_or(|age| age < Policy::OLDER_MAX_UNUSED) {
            return Err(Refused::Nothing);
        }
        // Only its holder removes states of a leased entry, or a removal that revokes the lease. By
        // the holder's clock, a lease that has expired here may still be live.
        if next.lease.is_some() {
            return Err(Refused::InUse);
        }
        next.older = None;
        Ok(())
    }

    /// Returns the placeholder of a failure, which continues the series of the stored one.
    pub(super) fn placeholder(
        &self,
        missing: &Missing,
        retry_after: Option<Duration>,
        token: &Token,
    ) -> Placeholder {
        let policy = self.policy;
        let repeats = match &self.before.missing {
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
            retry_at: self.now.plus(wait + wait.mul_f64(token.fraction() / 10.0)),
            converter: policy.numbers.converter,
            repeats,
            token: Some(token.clone()),
        }
    }
}

/// Returns when a lease ends: at the holder's deadline at the latest, but always after `now`. The
/// deadline may be in the past because clocks differ.
fn lease_end(deadline: Timestamp, now: Timestamp) -> Timestamp {
    deadline
        .min(now.plus(LEASE_LENGTH))
        .max(now.plus(Duration::from_secs(1)))
}
