//! The health of a symbol server: whether it answers, and who asks it at a time.
//!
//! One item for each source is what the whole fleet knows of it. A builder *visits* a source: it is admitted before its first
//! question, and says on leaving whether the source could be reached. What it answered about a file, however bad, is not noted here:
//! this is shared by all scopes.
//!
//! - So many visits at a time and no more: one slow server must not take every builder.
//! - The *circuit breaker*: after [`SourceHealth::FAILURES_TO_OPEN`] visits in a row without an answer nobody asks for a while,
//!   longer each time; then one visit alone finds out whether the source answers again. A source that says for how long it wants
//!   to be left alone is left alone for as long.
//!
//! What is refused here is never remembered of a module: nobody has asked for it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{LEASE_LENGTH, Token};
use crate::domain::{Cause, Missing, SourceKey, Timestamp};

/// What the fleet knows of a symbol server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceHealth {
    /// The source.
    pub source: SourceKey,
    /// Visits in a row that it did not answer.
    pub failures: u32,
    /// Until when nobody asks it.
    #[serde(
        default,
        rename = "rests_until",
        skip_serializing_if = "Option::is_none"
    )]
    pub open_until: Option<Timestamp>,
    /// What went wrong last.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Who asks it now.
    #[serde(default, rename = "visits", skip_serializing_if = "Vec::is_empty")]
    pub permits: Vec<Permit>,
    /// From when on it may be forgotten.
    pub expires_at: Timestamp,
}

/// Somebody who asks a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permit {
    /// What tells this visit from every other.
    pub id: Token,
    /// When it is taken for lost, unless it is extended.
    pub until: Timestamp,
}

/// Why a source is not to be asked now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    /// It does not answer: nobody asks until this time.
    CircuitOpen {
        /// That time.
        until: Timestamp,
    },
    /// As many ask as may.
    Busy,
}

/// How a visit ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CallOutcome {
    /// The source answered, be it that it has nothing, or that it fails for this file.
    #[default]
    Answered,
    /// It could not be reached, or wants to be left alone.
    Failed {
        /// What went wrong.
        detail: String,
        /// How long it wants to be left alone, where it said so.
        retry_after: Option<Duration>,
    },
}

impl SourceHealth {
    /// Visits in a row without an answer before nobody asks any more.
    pub const FAILURES_TO_OPEN: u32 = 5;

    /// The shortest time that a source rests, and the longest.
    const RESTS: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(900));

    /// The longest that a source may want to be left alone.
    const LONGEST_WISH: Duration = Duration::from_secs(3600);

    /// How long an item is kept that nobody changes.
    const KEPT: Duration = Duration::from_secs(24 * 3600);

    /// Returns what is known of a source that nobody asked yet.
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

    /// Tells why a source is not to be asked now; at most `most` may ask at a time.
    pub fn refuses(&self, now: Timestamp, most: usize) -> Option<NotAdmitted> {
        if let Some(until) = self.open_until.filter(|until| now < *until) {
            return Some(NotAdmitted::CircuitOpen { until });
        }
        // One finds out for all whether it answers again.
        let is_open = self.failures >= Self::FAILURES_TO_OPEN;
        let most = if is_open { 1 } else { most.max(1) };
        let live = self
            .permits
            .iter()
            .filter(|permit| now < permit.until)
            .count();
        (live >= most).then_some(NotAdmitted::Busy)
    }

    /// Returns what a reader is told of a module while nobody asks this source; not to be remembered.
    pub fn missing(&self, now: Timestamp) -> Option<Missing> {
        let until = self.open_until.filter(|until| now < *until)?;
        let detail = format!(
            "{} does not answer ({}); it is asked again in {} s",
            self.source.id(),
            self.detail,
            until.since(now).as_secs()
        );
        Some(Missing::new(Cause::DownloadFailed, detail))
    }

    /// Begins a visit, or says why not.
    pub fn acquire(&mut self, id: &Token, now: Timestamp, most: usize) -> Result<(), NotAdmitted> {
        self.permits.retain(|permit| now < permit.until);
        if self.permits.iter().any(|permit| permit.id == *id) {
            return Ok(());
        }
        if let Some(refused) = self.refuses(now, most) {
            return Err(refused);
        }
        self.permits.push(Permit {
            id: id.clone(),
            until: now.plus(LEASE_LENGTH),
        });
        self.expires_at = now.plus(Self::KEPT);
        Ok(())
    }

    /// Holds on to a visit; tells whether it goes on.
    pub fn extend(&mut self, id: &Token, now: Timestamp) -> bool {
        let permit = self.permits.iter_mut().find(|permit| permit.id == *id);
        if let Some(permit) = permit {
            permit.until = now.plus(LEASE_LENGTH);
            return true;
        }
        false
    }

    /// Ends a visit.
    pub fn release(&mut self, id: &Token, outcome: &CallOutcome, now: Timestamp) {
        self.permits.retain(|permit| permit.id != *id);
        self.expires_at = now.plus(Self::KEPT);
        match outcome {
            CallOutcome::Answered => {
                self.failures = 0;
                self.open_until = None;
                self.detail.clear();
            }
            CallOutcome::Failed {
                detail,
                retry_after,
            } => {
                let is_open = self.open_until.is_some_and(|until| now < until);
                // Visits that began before it was left alone say nothing new.
                if !is_open {
                    self.failures = self.failures.saturating_add(1);
                }
                let wish = retry_after.map(|wish| wish.min(Self::LONGEST_WISH));
                let back_off = (!is_open).then(|| self.back_off()).flatten();
                let until = wish.max(back_off).map(|back_off| now.plus(back_off));
                self.open_until = self.open_until.max(until);
                self.detail.clone_from(detail);
            }
        }
    }

    /// Returns how long the source rests after so many failures: twice as long after each that finds it dead still.
    fn back_off(&self) -> Option<Duration> {
        let times = self.failures.checked_sub(Self::FAILURES_TO_OPEN)?;
        Some((Self::RESTS.0 * (1 << times.min(10))).min(Self::RESTS.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 3;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(1_000_000 + seconds)
    }

    fn id(number: u128) -> Token {
        Token::from_random(number)
    }

    fn health() -> SourceHealth {
        SourceHealth::new(SourceKey::uploads(), at(0))
    }

    fn failed() -> CallOutcome {
        CallOutcome::Failed {
            detail: "timeout".to_owned(),
            retry_after: None,
        }
    }

    /// Visits without an answer, one after the other, each as soon as it may.
    fn fail(health: &mut SourceHealth, times: u32) {
        for number in 0..times {
            let now = health.open_until.unwrap_or(at(0));
            health.acquire(&id(number.into()), now, MOST).unwrap();
            health.release(&id(number.into()), &failed(), now);
        }
    }

    #[test]
    fn so_many_ask_at_a_time_and_no_more_until_one_leaves_or_is_lost() {
        let mut health = health();
        for number in 0..3 {
            assert_eq!(health.acquire(&id(number), at(0), MOST), Ok(()));
        }
        assert_eq!(health.acquire(&id(3), at(0), MOST), Err(NotAdmitted::Busy));
        // Who repeats a write that had landed is in already.
        assert_eq!(health.acquire(&id(2), at(0), MOST), Ok(()));
        assert!(health.extend(&id(0), at(50)));
        health.release(&id(1), &CallOutcome::Answered, at(50));
        assert_eq!(health.acquire(&id(3), at(50), MOST), Ok(()));
        // The third vanished; the first goes on.
        assert_eq!(health.acquire(&id(4), at(61), MOST), Ok(()));
        assert_eq!(health.acquire(&id(5), at(61), MOST), Err(NotAdmitted::Busy));
        assert!(!health.extend(&id(2), at(61)));
    }

    #[test]
    fn a_source_that_does_not_answer_rests_ever_longer_and_one_visit_finds_out() {
        let mut health = health();
        fail(&mut health, 4);
        assert_eq!((health.open_until, health.missing(at(0))), (None, None));
        let mut back_offs = Vec::new();
        for _ in 0..7 {
            let before = health.open_until.unwrap_or(at(0));
            fail(&mut health, 1);
            back_offs.push(health.open_until.unwrap().since(before).as_secs());
        }
        assert_eq!(back_offs, [30, 60, 120, 240, 480, 900, 900]);
        let until = health.open_until.unwrap();
        let is_open = Err(NotAdmitted::CircuitOpen { until });
        let just_before = Timestamp::from_secs(until.as_secs() - 1);
        assert_eq!(health.acquire(&id(100), just_before, MOST), is_open);
        assert!(health.missing(just_before).is_some());
        assert_eq!(health.missing(until), None);
        assert_eq!(health.acquire(&id(100), until, MOST), Ok(()));
        assert_eq!(
            health.acquire(&id(101), until, MOST),
            Err(NotAdmitted::Busy)
        );
        health.release(&id(100), &CallOutcome::Answered, until);
        assert_eq!((health.failures, health.open_until), (0, None));
        assert_eq!(health.acquire(&id(101), until, MOST), Ok(()));
    }

    #[test]
    fn visits_that_began_before_the_rest_do_not_prolong_it() {
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
    fn a_source_is_left_alone_for_as_long_as_it_wants_within_an_hour() {
        for (wish, rest) in [(7, 7), (3600, 3600), (999_999, 3600)] {
            let mut health = health();
            health.acquire(&id(0), at(0), MOST).unwrap();
            let failed = CallOutcome::Failed {
                detail: "429 Too Many Requests".to_owned(),
                retry_after: Some(Duration::from_secs(wish)),
            };
            health.release(&id(0), &failed, at(0));
            assert_eq!(health.open_until, Some(at(rest)), "{wish}");
            let missing = health.missing(at(1)).unwrap();
            assert!(missing.detail.contains("429"), "{}", missing.detail);
        }
    }
}
