//! Traces: their ids, the context that requests and messages carry, and which traces are recorded.
//!
//! Source of the text of a context: W3C Trace Context, "traceparent Header".

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The length of a context of the version `00`.
const TEXT_LENGTH: usize = 55;

/// The id of a trace; not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId(u128);

/// The id of a span; not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId(u64);

impl TraceId {
    /// Returns the id of these random bits.
    pub fn from_random(bits: u128) -> Self {
        Self(bits.max(1))
    }
}

impl SpanId {
    /// Returns the id of these random bits.
    pub fn from_random(bits: u64) -> Self {
        Self(bits.max(1))
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A span, as requests and messages name the one that caused them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanContext {
    /// The trace.
    pub trace: TraceId,
    /// The span.
    pub span: SpanId,
    /// Whether the trace is recorded.
    pub is_sampled: bool,
}

impl fmt::Display for SpanContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = u8::from(self.is_sampled);
        write!(f, "00-{}-{}-{flags:02x}", self.trace, self.span)
    }
}

/// A text is not the context of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a traceparent")]
pub struct InvalidSpanContext;

impl FromStr for SpanContext {
    type Err = InvalidSpanContext;

    /// Parses a context. Of a version that is not known, the fields of version `00` are read.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or(InvalidSpanContext)
    }
}

fn parse(text: &str) -> Option<SpanContext> {
    let known = text.get(..TEXT_LENGTH)?;
    let rest = &text[TEXT_LENGTH..];
    let fields: Vec<&str> = known.split('-').collect();
    let [version, trace, span, flags] = fields[..] else {
        return None;
    };
    let is_allowed = match version {
        "00" => rest.is_empty(),
        "ff" => false,
        _ => rest.is_empty() || rest.starts_with('-'),
    };
    let is_hex = |text: &str, digits: usize| {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        text.len() == digits && text.bytes().all(is_digit)
    };
    let has_digits =
        is_hex(version, 2) && is_hex(trace, 32) && is_hex(span, 16) && is_hex(flags, 2);
    if !(is_allowed && has_digits) {
        return None;
    }
    let trace = u128::from_str_radix(trace, 16).ok().filter(|id| *id != 0)?;
    let span = u64::from_str_radix(span, 16).ok().filter(|id| *id != 0)?;
    let flags = u8::from_str_radix(flags, 16).ok()?;
    Some(SpanContext {
        trace: TraceId(trace),
        span: SpanId(span),
        is_sampled: flags & 1 == 1,
    })
}

impl Serialize for SpanContext {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl SpanContext {
    /// Reads the context of a message. A value that is not one is none: a trace must not keep a
    /// message from being processed.
    pub fn lenient<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Self>, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        Ok(value.as_str().and_then(|text| text.parse().ok()))
    }
}

/// Decides which traces are recorded.
///
/// Source: OpenTelemetry specification, "Trace SDK", "Built-in samplers".
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    /// Whether a trace that was begun by a caller is recorded as the caller decided.
    pub follows_parent: bool,
    /// The share of the other traces that is recorded, from 0 to 1.
    pub ratio: f64,
}

impl Sampler {
    /// Returns the sampler of the values of `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG`.
    ///
    /// # Errors
    ///
    /// What is wrong with the name; or with the argument.
    pub fn named(name: &str, argument: &str) -> Result<Self, SamplerError> {
        let (follows_parent, kind) = match name.strip_prefix("parentbased_") {
            Some(kind) => (true, kind),
            None => (false, name),
        };
        let ratio = match kind {
            "always_on" => 1.0,
            "always_off" => 0.0,
            "traceidratio" => argument
                .parse()
                .ok()
                .filter(|ratio| (0.0..=1.0).contains(ratio))
                .ok_or(SamplerError::Argument)?,
            _ => return Err(SamplerError::Name),
        };
        Ok(Self {
            follows_parent,
            ratio,
        })
    }

    /// Returns whether a trace is recorded. All services that sample by the id record the same
    /// traces.
    pub fn samples(self, trace: TraceId, parent: Option<SpanContext>) -> bool {
        if let Some(parent) = parent.filter(|_| self.follows_parent) {
            return parent.is_sampled;
        }
        // The low 63 bits: what the SDKs of OpenTelemetry compare.
        let bits = (trace.0 as u64) >> 1;
        bits < (self.ratio * (1_u64 << 63) as f64) as u64
    }
}

/// Why there is no such sampler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplerError {
    /// The name is unknown.
    Name,
    /// The argument is not a number from 0 to 1.
    Argument,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the W3C's document.
    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read_and_written_as_the_w3c_defines_it() {
        let context: SpanContext = EXAMPLE.parse().unwrap();
        assert_eq!(
            context.trace.to_string(),
            "4bf92f3577b34da6a3ce929d0e0e4736"
        );
        assert_eq!(context.span.to_string(), "00f067aa0ba902b7");
        assert!(context.is_sampled);
        assert_eq!(context.to_string(), EXAMPLE);
        let later = EXAMPLE.replacen("00", "cc", 1) + "-what-the-future-will-be-like";
        assert_eq!(later.parse(), Ok(context));
        let unsampled: SpanContext = EXAMPLE.replace("-01", "-00").parse().unwrap();
        assert!(!unsampled.is_sampled);
    }

    #[test]
    fn other_texts_are_no_traceparent() {
        for wrong in [
            "",
            "00",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0é",
        ] {
            assert_eq!(wrong.parse::<SpanContext>(), Err(InvalidSpanContext));
        }
    }

    #[test]
    fn a_sampler_follows_the_caller_or_the_id_of_the_trace() {
        let half = Sampler::named("parentbased_traceidratio", "0.5").unwrap();
        let below = TraceId::from_random(u128::from(u64::MAX / 2));
        let above = TraceId::from_random(u128::from(u64::MAX / 2 + 2));
        assert!(half.samples(below, None) && !half.samples(above, None));
        let caller: SpanContext = EXAMPLE.parse().unwrap();
        assert!(half.samples(above, Some(caller)));
        let alone = Sampler::named("traceidratio", "0.5").unwrap();
        assert!(!alone.samples(above, Some(caller)));
        let all = Sampler::named("always_on", "").unwrap();
        assert!(all.samples(TraceId::from_random(u128::MAX >> 1), None));
        let none = Sampler::named("parentbased_always_off", "").unwrap();
        assert!(!none.samples(TraceId::from_random(0), None));
        let wrong = |name, argument| Sampler::named(name, argument).unwrap_err();
        assert_eq!(wrong("sometimes", "1"), SamplerError::Name);
        assert_eq!(wrong("traceidratio", "1.5"), SamplerError::Argument);
    }
}
