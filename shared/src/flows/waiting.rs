//! The polling loop of a request that waits for builds: reads follow each other at growing
//! intervals until the time is up.
//!
//! A request that waits holds a run of the function. If `derive` has no runs of its own, requests
//! could hold all runs of the account while the builds that they wait for cannot begin. Then, a
//! request whose builds are all in queues holds a run only until it is `QUEUED_WAIT` old. After
//! that, it waits only for builds that are in progress, which have a run. A client that then polls
//! without a pause would poll fifty times a second: its requests are held ([`Waiting::held`]). A
//! request that no other call can continue waits as long as it may.

use std::time::Duration;

use super::requests::CallState;
use super::{HttpService, Invocation};
use crate::ports::{Consistency, Fault, FaultKind};

/// The first pause between two reads; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause within [`FIRST_SECONDS`].
const LONGEST_PAUSE_AT_FIRST: Duration = Duration::from_millis(500);

/// The longest pause after [`FIRST_SECONDS`]. A thousand requests that wait for one module must not
/// overload its partition.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// After this time the file is probably large, so reads can be rarer.
const FIRST_SECONDS: Duration = Duration::from_secs(5);

/// A request whose id was answered `pending` within this time is held. Clients that pause, as the
/// response asks them to, repeat it later.
const REPEATED_WITHIN: Duration = Duration::from_millis(500);

/// How long a request is held at most; at least half of that.
const LONGEST_HOLD: Duration = Duration::from_secs(2);

/// Requests with shorter timeouts than this are not held.
const MIN_TIMEOUT_TO_HOLD: Duration = Duration::from_secs(1);

/// How the rounds of a request end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitOutcome<T> {
    /// Nothing is awaited any longer.
    Complete(T),
    /// The request is stored, and another call continues it.
    Pending,
}

/// What follows a round that awaits builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterRound {
    /// Another round, after a pause.
    Pause,
    /// The time for waiting is up.
    TimeIsUp,
}

/// A request that waits for builds.
pub(super) struct Waiting<'a> {
    invocation: &'a Invocation,
    began: Duration,
    wait: Duration,
    queued_wait: Duration,
    /// Whether all awaited builds are in queues.
    only_queued: bool,
    /// Whether the client polls without a pause, so that the wait for builds in queues is a hold.
    is_held: bool,
    is_last_round: bool,
    pause: Duration,
    has_paused: bool,
}

impl HttpService {
    /// Begins to wait for the builds of a request.
    pub(super) fn wait_for_builds<'a>(
        &self,
        invocation: &'a Invocation,
        call: CallState<'_>,
    ) -> Waiting<'a> {
        let CallState {
            wait_limit,
            age,
            is_only_call,
            ..
        } = call;
        let queued_wait = self.settings.queued_wait.filter(|_| !is_only_call);
        let waiting = Waiting::new(invocation, wait_limit, queued_wait, age);
        let since = self.memory.since_pending(invocation, call.id);
        if since.is_some_and(|since| since < REPEATED_WITHIN) {
            waiting.held()
        } else {
            waiting
        }
    }
}

impl<'a> Waiting<'a> {
    /// Begins to wait for at most `wait`. With a `queued_wait`, the request waits for at most that
    /// time while no build is in progress. It has been pending for `age`, which counts.
    pub(super) fn new(
        invocation: &'a Invocation,
        wait: Duration,
        queued_wait: Option<Duration>,
        age: Duration,
    ) -> Self {
        let queued_wait = queued_wait.map_or(wait, |longest| longest.saturating_sub(age));
        Self {
            invocation,
            began: invocation.elapsed(),
            wait,
            queued_wait: queued_wait.min(wait),
            only_queued: false,
            is_held: false,
            is_last_round: false,
            pause: FIRST_PAUSE,
            has_paused: false,
        }
    }

    /// Holds a request that its client repeats without a pause. While all builds are in queues, the
    /// time of the hold is one pause between two reads. The client has its run for as long as
    /// before, but for one request in place of fifty.
    #[must_use]
    fn held(mut self) -> Self {
        let hold = self.invocation.jittered(LONGEST_HOLD).min(self.wait);
        if self.wait >= MIN_TIMEOUT_TO_HOLD && self.queued_wait < hold {
            self.queued_wait = hold;
            self.is_held = true;
        }
        self
    }

    /// Returns the consistency of the next read. The first read may precede a write and is strongly
    /// consistent. The repetitions are eventually consistent, which costs half as much.
    pub(super) fn consistency(&self) -> Consistency {
        if !self.has_paused {
            Consistency::Strong
        } else {
            Consistency::Eventual
        }
    }

    /// Returns whether to continue after this error. A temporary failure of a repeated read is
    /// tolerated, because many requests that wait for one record can overload the table for a
    /// moment. A failure of the first read is not tolerated.
    pub(super) fn tolerates(&self, error: &Fault) -> bool {
        let is_tolerated = self.has_paused && error.kind() == FaultKind::Transient;
        if is_tolerated {
            tracing::warn!(%error, "cannot read the awaited items; will retry");
        }
        is_tolerated
    }

    fn waited(&self) -> Duration {
        self.invocation.elapsed() - self.began
    }

    /// Begins a round. Returns whether it is to be the last one, and the consistency of its reads.
    pub(super) fn begin_round(&mut self) -> (bool, Consistency) {
        self.is_last_round = self.is_over();
        (self.is_last_round, self.consistency())
    }

    /// Returns what follows the round, which awaits builds. With `only_queued`, all of them are in
    /// queues.
    pub(super) fn after_round(&mut self, only_queued: bool) -> AfterRound {
        self.note(only_queued);
        // The round that was to be the last one may have found that a build has begun, which
        // extends the time.
        if self.is_last_round && self.is_over() {
            AfterRound::TimeIsUp
        } else {
            AfterRound::Pause
        }
    }

    /// Notes whether none of the awaited builds is in progress: all of them are in queues.
    pub(super) fn note(&mut self, only_queued: bool) {
        self.only_queued = only_queued;
    }

    fn left(&self) -> Duration {
        let limit = if self.only_queued {
            self.queued_wait
        } else {
            self.wait
        };
        limit.saturating_sub(self.waited())
    }

    /// Returns whether the time is up, so that the next read is the last one.
    pub(super) fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// Waits until the next read is due.
    pub(super) async fn pause(&mut self) {
        self.has_paused = true;
        let _span = self.invocation.span("wait for builds");
        let waited = self.waited();
        let pause = if self.is_held && self.only_queued {
            self.left()
        } else {
            self.invocation.jittered(self.pause).min(self.left())
        };
        tokio::time::sleep(pause).await;
        self.invocation.note(|notes| notes.waited += pause);
        let longest = if waited < FIRST_SECONDS {
            LONGEST_PAUSE_AT_FIRST
        } else {
            LONGEST_PAUSE
        };
        self.pause = (self.pause * 2).min(longest);
    }
}
