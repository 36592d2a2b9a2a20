//! The spans of an invocation: what it did when, as part of a trace.
//!
//! The invocation, or each message of it, has one span. Phases and sent messages are children of
//! that span. Names and attributes have no part of a crash, no name of a file or module, no
//! credential, and no address: a trace leaves the account.

use std::borrow::Cow;
use std::time::Duration;

pub use crate::domain::{Sampler, SpanContext, SpanId, TraceId};

/// The maximum number of spans of one invocation, besides its own. Further ones are not recorded.
const MAX_SPANS: usize = 128;

/// The number of spans after which those of sent messages are not recorded: a run of `prune` may
/// send thousands of messages, and its later phases are to be recorded, too.
const MAX_SPANS_BEFORE_SENDING: usize = 96;

/// A span that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The trace, and the id of the span.
    pub context: SpanContext,
    /// The span that caused it.
    pub parent: Option<SpanId>,
    /// When it began, as the time since 1970.
    pub began: Duration,
    /// When it ended.
    pub ended: Duration,
    /// What was done in it.
    pub work: TracedWork,
}

/// What a span is to the others of its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// A part of an invocation.
    Internal,
    /// An invocation that responds.
    Server,
    /// The sending of messages.
    Producer,
    /// The processing of a message.
    Consumer,
}

/// The name and the value of an attribute.
pub type SpanAttribute = (&'static str, AttributeValue);

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeValue {
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
    /// A flag.
    Flag(bool),
}

impl AttributeValue {
    /// Returns the value of a text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }
}

/// What is done in a span.
#[derive(Clone, Debug, PartialEq)]
pub struct TracedWork {
    /// What the span is to the others of its trace.
    pub kind: SpanKind,
    /// Its name, of which there are few.
    pub name: Cow<'static, str>,
    /// Its attributes.
    pub attributes: Vec<SpanAttribute>,
    /// Whether it failed.
    pub has_failed: bool,
}

/// The spans that an invocation records.
#[derive(Debug, Default)]
pub(super) struct Recording {
    /// The span of the invocation, or of the message that it processes.
    pub(super) current: Option<Current>,
    /// Those that have ended.
    pub(super) ended: Vec<Span>,
}

/// The span of an invocation, or of the message that it processes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Current {
    pub(super) context: SpanContext,
    pub(super) parent: Option<SpanId>,
    pub(super) began: Duration,
}

impl Recording {
    /// Returns the current span, if a child of this kind is recorded, too.
    pub(super) fn parent(&self, kind: SpanKind) -> Option<SpanContext> {
        let most = match kind {
            SpanKind::Producer => MAX_SPANS_BEFORE_SENDING,
            _ => MAX_SPANS,
        };
        let current = self.current.map(|current| current.context);
        current.filter(|context| context.is_sampled && self.ended.len() < most)
    }

    /// Ends the current span, which is recorded if it is described.
    pub(super) fn end(&mut self, work: Option<TracedWork>, now: Duration) {
        if let (Some(current), Some(work)) = (self.current.take(), work) {
            self.ended.push(Span {
                context: current.context,
                parent: current.parent,
                began: current.began,
                ended: now,
                work,
            });
        }
    }
}
