//! The health of a symbol server: its circuit breaker, and the permits to call it.
//!
//! Each source has one item, which the whole fleet shares. A builder acquires a *permit* before its
//! first call to a source, and reports on release whether the call *failed*: the source could not
//! be reached, or asked for a pause. An error about a file is not a failure here, because all
//! scopes share the item.
//!
//! - The number of permits is limited, so that one slow server cannot occupy every builder.
//! - The circuit opens after [`SourceHealth::FAILURES_TO_OPEN`] consecutive failures. It stays open
//!   for a back-off that grows each time. Then it is half-open: a single trial call decides whether
//!   it closes. A `Retry-After` of the source also opens the circuit, for that time.
//!
//! A refusal here is never stored for a module, because no call was made for the module.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{LEASE_LENGTH, Token};
use crate::domain::{Backoff, Cause, Missing, SourceKey, Timestamp};

/// An open circuit, as readers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenCircuit {
    /// When it becomes half-open.
    pub until: Timestamp,
    /// Why the caches of its source are missing. It must not be stored.
    pub missing: Missing,
}

/// The health of a symbol server, shared by the whole fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceHealth {
    /// The source.
    pub source: SourceKey,
    /// The number of consecutive failures.
    pub failures: u32,
    /// When the open circuit becomes half-open.
    #[serde(
        default,
        rename = "rests_until",
        skip_serializing_if = "Option::is_none"
    )]
    pub open_until: Option<Timestamp>,
    /// The last failure.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// The permits that are in use.
    #[serde(default, rename = "visits", skip_serializing_if = "Vec::is_empty")]
    pub permits: Vec<Permit>,
    /// When the store may delete the item.
    pub expires_at: Timestamp,
}

/// The right to call a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permit {
    /// The unique id of the permit.
    pub id: Token,
    /// When the permit expires unless it is extended.
    pub until: Timestamp,
}

/// Why a source may not be called now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    /// The circuit is open until this time.
    CircuitOpen {
        /// When the circuit becomes half-open.
        until: Timestamp,
    },
    /// All permits are in use.
    Busy,
}

impl NotAdmitted {
    /// Returns when to ask again: now, at growing intervals, if only permits are lacking.
    pub fn retry_at(self, now: Timestamp) -> Timestamp {
        match self {
            Self::CircuitOpen { until } => until,
            Self::Busy => now,
        }
    }
}

/// The outcome of the calls that a permit was used for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CallOutcome {
    /// The source was not called, or no call has ended.
    #[default]
    NotCalled,
    /// The source responded, perhaps that it lacks the file or with an error about this file.
    Answered,
    /// The source could not be reached, or asked for a pause.
    Failed {
        /// The failure.
        detail: String,
        /// The `Retry-After` of the source, if it sent one.
        retry_after: Option<Duration>,
    },
}

impl CallOutcome {
    /// Records a response of the source. A failure outweighs it.
    pub fn answered(&mut self) {
        if *self == Self::NotCalled {
            *self = Self::Answered;
        }
    }
}

impl SourceHealth {
    /// The number of consecutive failures that opens the circuit.
    pub const FAILURES_TO_OPEN: u32 = 5;

    /// How long the circuit stays open, after each consecutive failed trial call.
    const BACKOFF: Backoff = Backoff {
        first: Duration::from_secs(30),
        longest: Duration::from_secs(900),
    };

    /// The longest `Retry-After` that is honored.
    const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(3600);

    /// How long an unchanged item is kept.
    const KEPT: Duration = Duration::from_secs(24 * 3600);

    /// Returns the health of a source that was never called.
    pub fn new(source: SourceKey, now: Timestamp) -> Self {
        Self {
            source,
            failures: 0,
            open_until: None,
            detail: String::new(),
            permits: Vec::new(),
            expires_at: now.plus(Self::KEPT),
        }
    }

    /// Returns why the source may not be called now; `None` if it may. At most `max_permits` are
    /// given.
    pub fn refuses(&self, now: Timestamp, max_permits: usize) -> Option<NotAdmitted> {
        if let Some(until) = self.open_until.filter(|until| now < *until) {
            return Some(NotAdmitted::CircuitOpen { until });
        }
        // A half-open circuit allows one trial call.
        let is_half_open = self.failures >= Self::FAILURES_TO_OPEN;
        let max_permits = if is_half_open { 1 } else { max_permits.max(1) };
        let live = self
            .permits
            .iter()
            .filter(|permit| now < permit.until)
            .count();
        (live >= max_permits).then_some(NotAdmitted::Busy)
    }

    /// Returns until when the circuit is open, and the reason for readers.
    pub fn open_circuit(&self, now: Timestamp) -> Option<OpenCircuit> {
        let until = self.open_until.filter(|until| now < *until)?;
        let detail = format!(
            "{} does not respond ({}); next attempt in {} s",
            self.source.id(),
            self.detail,
            until.since(now).as_secs()
        );
        Some(OpenCircuit {
            until,
            missing: Missing::new(Cause::DownloadFailed, detail),
        })
    }

    /// Acquires a permit, or returns why not.
    pub fn acquire(
        &mut self,
        id: &Token,
        now: Timestamp,
        max_permits: usize,
    ) -> Result<(), NotAdmitted> {
        self.permits.retain(|permit| now < permit.until);
        if self.permits.iter().any(|permit| permit.id == *id) {
            return Ok(());
        }
        if let Some(refused) = self.refuses(now, max_permits) {
            return Err(refused);
        }
        self.permits.push(Permit {
            id: id.clone(),
            until: now.plus(LEASE_LENGTH),
        });
        self.expires_at = now.plus(Self::KEPT);
        Ok(())
    }

    /// Extends a permit. Returns whether the permit is still valid.
    pub fn extend(&mut self, id: &Token, now: Timestamp) -> bool {
        let permit = self.permits.iter_mut().find(|permit| permit.id == *id);
        if let Some(permit) = permit {
            permit.until = now.plus(LEASE_LENGTH);
            return true;
        }
        false
    }

    /// Releases a permit.
    pub fn release(&mut self, id: &Token, outcome: &CallOutcome, now: Timestamp) {
        self.permits.retain(|permit| permit.id != *id);
        self.expires_at = now.plus(Self::KEPT);
        // A call that began before the circuit opened says nothing new.
        let is_open = self.open_until.is_some_and(|until| now < until);
        match outcome {
            CallOutcome::NotCalled => {}
            CallOutcome::Answered if is_open => {}
            CallOutcome::Answered => {
                self.failures = 0;
                self.open_until = None;
                self.detail.clear();
            }
            CallOutcome::Failed {
                detail,
                retry_after,
            } => {
                if !is_open {
                    self.failures = self.failures.saturating_add(1);
                }
                let retry_after = retry_after.map(|time| time.min(Self::LONGEST_RETRY_AFTER));
                let back_off = (!is_open).then(|| self.back_off()).flatten();
                let until = retry_after.max(back_off).map(|back_off| now.plus(back_off));
                self.open_until = self.open_until.max(until);
                self.detail.clone_from(detail);
            }
        }
    }

    /// Returns the back-off after the failures so far. It doubles with each failed trial call.
    fn back_off(&self) -> Option<Duration> {
        let failed_trials = self.failures.checked_sub(Self::FAILURES_TO_OPEN)?;
        Some(Self::BACKOFF.after(failed_trials))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_PERMITS: usize = 3;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(1_000_000 + seconds)
    }

    fn id(number: u128) -> Token {
        Token::from_random(number)
    }

    fn health() -> SourceHealth {
        SourceHealth::new(SourceKey::Uploads, at(0))
    }

    fn failed() -> CallOutcome {
        CallOutcome::Failed {
            detail: "timeout".to_owned(),
            retry_after: None,
        }
    }

    /// Fails several calls in sequence, each as soon as it is allowed.
    fn fail(health: &mut SourceHealth, times: u32) {
        for number in 0..times {
            let now = health.open_until.unwrap_or(at(0));
            health
                .acquire(&id(number.into()), now, MAX_PERMITS)
                .unwrap();
            health.release(&id(number.into()), &failed(), now);
        }
    }

    #[test]
    fn permits_are_bounded_until_one_is_released_or_expires() {
        let mut health = health();
        for number in 0..3 {
            assert_eq!(health.acquire(&id(number), at(0), MAX_PERMITS), Ok(()));
        }
        assert_eq!(
            health.acquire(&id(3), at(0), MAX_PERMITS),
            Err(NotAdmitted::Busy)
        );
        // A repeated write that had already succeeded is accepted.
        assert_eq!(health.acquire(&id(2), at(0), MAX_PERMITS), Ok(()));
        assert!(health.extend(&id(0), at(50)));
        health.release(&id(1), &CallOutcome::Answered, at(50));
        assert_eq!(health.acquire(&id(3), at(50), MAX_PERMITS), Ok(()));
        // The third permit expired; the first was extended.
        assert_eq!(health.acquire(&id(4), at(61), MAX_PERMITS), Ok(()));
        assert_eq!(
            health.acquire(&id(5), at(61), MAX_PERMITS),
            Err(NotAdmitted::Busy)
        );
        assert!(!health.extend(&id(2), at(61)));
    }

    #[test]
    fn a_call_that_began_before_the_circuit_opened_does_not_close_it() {
        let mut health = health();
        for number in 0..2 {
            health.acquire(&id(number), at(0), MAX_PERMITS).unwrap();
        }
        let put_off = CallOutcome::Failed {
            detail: "429".to_owned(),
            retry_after: Some(Duration::from_secs(600)),
        };
        health.release(&id(0), &put_off, at(1));
        health.release(&id(1), &CallOutcome::Answered, at(2));
        assert_eq!(health.open_until, Some(at(601)));
        health.acquire(&id(2), at(601), MAX_PERMITS).unwrap();
        health.release(&id(2), &CallOutcome::Answered, at(602));
        assert_eq!(health.open_until, None);
    }

    #[test]
    fn the_circuit_stays_open_for_longer_each_time_and_one_call_tests_the_source() {
        let mut health = health();
        fail(&mut health, 4);
        assert_eq!(
            (health.open_until, health.open_circuit(at(0))),
            (None, None)
        );
        let mut back_offs = Vec::new();
        for _ in 0..7 {
            let before = health.open_until.unwrap_or(at(0));
            fail(&mut health, 1);
            back_offs.push(health.open_until.unwrap().since(before).as_secs());
        }
        assert_eq!(back_offs, [30, 60, 120, 240, 480, 900, 900]);
        let until = health.open_until.unwrap();
        let refused = Err(NotAdmitted::CircuitOpen { until });
        let just_before = Timestamp::from_secs(until.as_secs() - 1);
        assert_eq!(health.acquire(&id(100), just_before, MAX_PERMITS), refused);
        assert!(health.open_circuit(just_before).is_some());
        assert_eq!(health.open_circuit(until), None);
        assert_eq!(health.acquire(&id(100), until, MAX_PERMITS), Ok(()));
        assert_eq!(
            health.acquire(&id(101), until, MAX_PERMITS),
            Err(NotAdmitted::Busy)
        );
        health.release(&id(100), &CallOutcome::Answered, until);
        assert_eq!((health.failures, health.open_until), (0, None));
        assert_eq!(health.acquire(&id(101), until, MAX_PERMITS), Ok(()));
    }

    #[test]
    fn a_permit_without_a_call_only_makes_room_for_the_trial_call() {
        let mut health = health();
        fail(&mut health, SourceHealth::FAILURES_TO_OPEN);
        let until = health.open_until.unwrap();
        health.acquire(&id(100), until, MAX_PERMITS).unwrap();
        let failures = health.failures;
        health.release(&id(100), &CallOutcome::default(), until);
        assert_eq!(
            (health.failures, health.open_until),
            (failures, Some(until))
        );
        // The next call is the trial call.
        assert_eq!(health.acquire(&id(101), until, MAX_PERMITS), Ok(()));
        assert_eq!(
            health.acquire(&id(102), until, MAX_PERMITS),
            Err(NotAdmitted::Busy)
        );
    }

    #[test]
    fn a_failure_outweighs_the_responses_of_a_source() {
        let mut outcome = CallOutcome::default();
        outcome.answered();
        assert_eq!(outcome, CallOutcome::Answered);
        outcome = failed();
        outcome.answered();
        assert_eq!(outcome, failed());
    }

    #[test]
    fn calls_that_began_before_the_circuit_opened_do_not_keep_it_open() {
        let mut health = health();
        for number in 0..20 {
            health.acquire(&id(number), at(0), 20).unwrap();
        }
        for number in 0..20 {
            health.release(&id(number), &failed(), at(1));
        }
        assert_eq!(health.failures, SourceHealth::FAILURES_TO_OPEN);
        assert_eq!(health.open_until, Some(at(31)));
    }

    #[test]
    fn a_source_may_ask_for_a_pause_of_up_to_an_hour() {
        for (wish, rest) in [(7, 7), (3600, 3600), (999_999, 3600)] {
            let mut health = health();
            health.acquire(&id(0), at(0), MAX_PERMITS).unwrap();
            let failed = CallOutcome::Failed {
                detail: "429 Too Many Requests".to_owned(),
                retry_after: Some(Duration::from_secs(wish)),
            };
            health.release(&id(0), &failed, at(0));
            assert_eq!(health.open_until, Some(at(rest)), "{wish}");
            let missing = health.open_circuit(at(1)).unwrap().missing;
            assert!(missing.detail.contains("429"), "{}", missing.detail);
        }
    }
}
