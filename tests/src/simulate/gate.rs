//! The gate of an instance: each call to a port waits here until the scheduler lets it pass.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use symdepot::adapters::faulty::Operation;
use symdepot::ports::Consistency;

use super::Moment;

/// What waits at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// A read of items, with this consistency.
    Load(Consistency),
    /// Another call to a store or a queue.
    Port(Operation),
    /// The inspection of a DIF by a parser.
    Inspect,
    /// The derivation of caches by a parser.
    Derive,
    /// A download from a symbol server.
    Download,
    /// The arrival of a response whose call took effect before.
    Response,
}

impl Call {
    /// Returns whether the call goes to a store or a queue, which may fail for a moment.
    pub(super) fn is_remote(self) -> bool {
        match self {
            // The signing of a URL is local.
            Self::Port(operation) => operation != Operation::PresignBlob,
            Self::Load(_) => true,
            Self::Inspect | Self::Derive | Self::Download | Self::Response => false,
        }
    }

    /// Returns whether the call changes something.
    pub(super) fn writes(self) -> bool {
        matches!(self, Self::Port(operation) if operation.writes())
    }
}

impl fmt::Display for Call {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load(consistency) => write!(formatter, "Load({consistency:?})"),
            Self::Port(operation) => write!(formatter, "{operation:?}"),
            Self::Inspect | Self::Derive | Self::Download | Self::Response => {
                write!(formatter, "{self:?}")
            }
        }
    }
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fate {
    /// It succeeds.
    Succeeds,
    /// It fails without an effect.
    FailsBefore,
    /// It has its effect, and its response is lost.
    FailsAfter,
    /// It is throttled, without an effect.
    Throttled,
    /// It has its effect, the response is lost, and the client of the store repeats it.
    Repeated,
    /// It has its effect now, and the response arrives after this time.
    Late(Duration),
    /// It fails after this time; whether it has its effect is the second value.
    Silent(Duration, bool),
    /// It reads what was stored this long ago, if the read is eventually consistent.
    Stale(Duration),
    /// The parser is killed.
    ParserKilled,
}

/// The gate of one instance. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Gate {
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Debug, Default)]
struct Waiting {
    calls: BTreeMap<u64, WaitingCall>,
    registered: u64,
}

#[derive(Debug)]
struct WaitingCall {
    call: Call,
    /// The call does not pass before this time.
    not_before: Moment,
    fate: Option<Fate>,
    waker: Option<Waker>,
}

impl Gate {
    /// Waits until the scheduler lets a call pass, at `not_before` at the earliest.
    pub(super) async fn pass(&self, call: Call, not_before: Moment) -> Fate {
        let id = {
            let mut waiting = self.lock();
            waiting.registered += 1;
            let id = waiting.registered;
            let call = WaitingCall {
                call,
                not_before,
                fate: None,
                waker: None,
            };
            waiting.calls.insert(id, call);
            id
        };
        Passing { gate: self, id }.await
    }

    /// Returns the calls that may pass now, with their numbers.
    pub(super) fn ready(&self, now: Moment) -> Vec<(u64, Call)> {
        let waiting = self.lock();
        let ready = waiting
            .calls
            .iter()
            .filter(|(_, call)| call.fate.is_none() && call.not_before <= now);
        ready.map(|(id, call)| (*id, call.call)).collect()
    }

    /// Returns whether a call may pass now.
    pub(super) fn is_ready(&self, now: Moment) -> bool {
        let waiting = self.lock();
        let mut calls = waiting.calls.values();
        calls.any(|call| call.fate.is_none() && call.not_before <= now)
    }

    /// Returns the earliest time at which a waiting call may pass. Calls that were let pass do not
    /// count: the invocation may do something else before it looks at them.
    pub(super) fn earliest(&self) -> Option<Moment> {
        let waiting = self.lock();
        let calls = waiting.calls.values().filter(|call| call.fate.is_none());
        calls.map(|call| call.not_before).min()
    }

    /// Makes a call reach its store later.
    pub(super) fn postpone(&self, id: u64, until: Moment) {
        if let Some(call) = self.lock().calls.get_mut(&id) {
            call.not_before = until;
        }
    }

    /// Lets a call pass.
    pub(super) fn let_pass(&self, id: u64, fate: Fate) {
        let waker = self.lock().calls.get_mut(&id).and_then(|call| {
            call.fate = Some(fate);
            call.waker.take()
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that waits at a gate. Dropping it takes the call back.
struct Passing<'a> {
    gate: &'a Gate,
    id: u64,
}

impl Future for Passing<'_> {
    type Output = Fate;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Fate> {
        let mut waiting = self.gate.lock();
        match waiting.calls.get_mut(&self.id) {
            Some(WaitingCall {
                fate: Some(fate), ..
            }) => Poll::Ready(*fate),
            Some(call) => {
                call.waker = Some(context.waker().clone());
                Poll::Pending
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.gate.lock().calls.remove(&self.id);
    }
}
