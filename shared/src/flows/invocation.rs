//! The context of one invocation: its id, the clock, the deadline, the randomness, and notes of
//! what it did.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;
use uuid::Uuid;

use crate::cache::{Revision, Token};
use crate::domain::{AccessToken, Timestamp};
use crate::flows::notes::Notes;
use crate::flows::spans::{
    Current, Recording, Sampler, Span, SpanAttribute, SpanContext, SpanId, SpanKind, TraceId,
    TracedWork,
};

/// One invocation of a function. Its time and its seed come from the edge.
pub struct Invocation {
    request_id: String,
    epoch_at_start: Duration,
    started: Instant,
    deadline: Instant,
    chance: Mutex<StdRng>,
    notes: Mutex<Notes>,
    recording: Mutex<Recording>,
}

impl Invocation {
    /// Begins an invocation.
    ///
    /// `epoch_at_start` is the time since 1970, `time_left` is how long the function may run, and
    /// `seed` is random.
    pub fn new(
        request_id: String,
        epoch_at_start: Duration,
        time_left: Duration,
        seed: [u8; 32],
    ) -> Self {
        let started = Instant::now();
        Self {
            request_id,
            epoch_at_start,
            started,
            deadline: started + time_left,
            chance: Mutex::new(StdRng::from_seed(seed)),
            notes: Mutex::default(),
            recording: Mutex::default(),
        }
    }

    /// Returns the id of this invocation in logs and leases.
    pub fn request_id(&self) -> &str {
        &self.request_id
    }

    /// Returns the current time.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_secs(self.since_epoch().as_secs())
    }

    /// Returns the time since 1970 by the wall clock, which is read once per invocation.
    pub fn since_epoch(&self) -> Duration {
        self.epoch_at_start + self.started.elapsed()
    }

    /// Returns the time since the invocation began.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns how long the invocation may still run.
    pub fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Returns the time by which the invocation ends, for use in leases.
    pub fn deadline(&self) -> Timestamp {
        self.now().plus(self.time_left())
    }

    /// Draws an id for a request.
    pub fn uuid(&self) -> Uuid {
        uuid::Builder::from_random_bytes(self.draw()).into_uuid()
    }

    /// Draws a token.
    pub fn token(&self) -> Token {
        Token::from_random(self.draw())
    }

    /// Draws a revision.
    pub fn revision(&self) -> Revision {
        Revision::from_random(self.draw())
    }

    /// Draws an access token. The generator is a cryptographic one, and its seed has 256 random
    /// bits of the operating system.
    pub fn access_token(&self) -> AccessToken {
        AccessToken::from_random(self.draw())
    }

    /// Draws a nonce for encryption.
    pub fn nonce(&self) -> [u8; 12] {
        self.draw()
    }

    /// Returns a random time between half of `duration` and `duration`.
    pub fn jittered(&self, duration: Duration) -> Duration {
        duration.mul_f64(0.5 + self.draw::<f64>() / 2.0)
    }

    /// Adds to the notes of what this invocation did.
    pub(super) fn note(&self, add: impl FnOnce(&mut Notes)) {
        add(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the notes since the last call.
    pub fn take_notes(&self) -> Notes {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *notes)
    }

    /// Begins the span of this invocation, or of a message that it processes. It continues the
    /// trace of `parent`, or else begins a new one. Without this call, nothing is recorded.
    pub fn begin_trace(&self, parent: Option<SpanContext>, sampler: Sampler) {
        let trace = parent.map(|parent| parent.trace);
        let trace = trace.unwrap_or_else(|| TraceId::from_random(self.draw()));
        let context = SpanContext {
            trace,
            span: SpanId::from_random(self.draw()),
            is_sampled: sampler.samples(trace, parent),
        };
        self.recording().current = Some(Current {
            context,
            parent: parent.map(|parent| parent.span),
            began: self.since_epoch(),
        });
    }

    /// Ends the span of this invocation, or of the message.
    /// `describe` is called if it is recorded.
    pub fn end_trace(&self, describe: impl FnOnce() -> TracedWork) {
        let is_recorded = self.trace_id().is_some();
        let work = is_recorded.then(describe);
        self.recording().end(work, self.since_epoch());
    }

    /// Forgets the trace of this invocation.
    pub fn discard_trace(&self) {
        *self.recording() = Recording::default();
    }

    /// Returns the id of the trace, if it is recorded.
    pub fn trace_id(&self) -> Option<TraceId> {
        let current = self.recording().current.map(|current| current.context);
        let sampled = current.filter(|context| context.is_sampled);
        sampled.map(|context| context.trace)
    }

    /// Returns the spans that have ended since the last call.
    pub fn take_spans(&self) -> Vec<Span> {
        std::mem::take(&mut self.recording().ended)
    }

    /// Begins the span of a phase, which ends when it is dropped.
    pub(super) fn span(&self, name: &'static str) -> OpenSpan<'_> {
        self.span_of(SpanKind::Internal, name)
    }

    /// Begins a span, which ends when it is dropped.
    pub(super) fn span_of(&self, kind: SpanKind, name: &'static str) -> OpenSpan<'_> {
        let parent = self.recording().parent(kind);
        let span = parent.map(|parent| Span {
            context: SpanContext {
                span: SpanId::from_random(self.draw()),
                ..parent
            },
            parent: Some(parent.span),
            began: self.since_epoch(),
            ended: Duration::ZERO,
            work: TracedWork {
                kind,
                name: name.into(),
                attributes: Vec::new(),
                has_failed: false,
            },
        });
        OpenSpan {
            invocation: self,
            span,
        }
    }

    fn recording(&self) -> MutexGuard<'_, Recording> {
        self.recording
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn draw<T>(&self) -> T
    where
        rand::distr::StandardUniform: rand::distr::Distribution<T>,
    {
        self.chance
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .random()
    }
}

/// A span that ends when it is dropped. Without a recorded trace, it is none.
#[must_use]
pub(super) struct OpenSpan<'a> {
    invocation: &'a Invocation,
    span: Option<Span>,
}

impl OpenSpan<'_> {
    /// Returns what messages carry that are sent in this span: it, or the span of the invocation
    /// if this one is not recorded; `None` without a trace.
    pub(super) fn context(&self) -> Option<SpanContext> {
        let own = self.span.as_ref().map(|span| span.context);
        let current = || self.invocation.recording().current;
        own.or_else(|| current().map(|current| current.context))
    }

    /// Adds attributes, if the span is recorded.
    pub(super) fn add(&mut self, attributes: impl FnOnce() -> Vec<SpanAttribute>) {
        if let Some(span) = &mut self.span {
            span.work.attributes.extend(attributes());
        }
    }

    /// Notes whether the span failed.
    pub(super) fn fail_if(&mut self, has_failed: bool) {
        if let Some(span) = &mut self.span {
            span.work.has_failed |= has_failed;
        }
    }
}

impl Drop for OpenSpan<'_> {
    fn drop(&mut self) {
        if let Some(mut span) = self.span.take() {
            span.ended = self.invocation.since_epoch();
            self.invocation.recording().ended.push(span);
        }
    }
}

impl fmt::Debug for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invocation")
            .field("request_id", &self.request_id)
            .field("time_left", &self.time_left())
            .finish()
    }
}
