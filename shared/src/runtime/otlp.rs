//! The form in which spans are exported.
//!
//! Sources: OpenTelemetry Protocol specification, "JSON Protobuf Encoding": ids in hexadecimal,
//! 64-bit numbers as decimal texts, enumerations as numbers; `opentelemetry/proto/trace/v1`.

use std::time::Duration;

use serde_json::{Value, json};

use crate::flows::spans::{AttributeValue, Span, SpanAttribute, SpanKind};

/// The name of what records the spans.
const SCOPE: &str = "symdepot";

/// `STATUS_CODE_ERROR`.
const ERROR: u8 = 2;

/// The bit of `Span.flags` that says that the trace is sampled.
const SAMPLED: u32 = 1;

/// Returns a request to export spans of this resource, as `ExportTraceServiceRequest`.
pub(super) fn request(resource: &[SpanAttribute], spans: &[Span]) -> Value {
    let spans: Vec<Value> = spans.iter().map(span).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": attributes(resource)},
        "scopeSpans": [{
            "scope": {"name": SCOPE, "version": env!("CARGO_PKG_VERSION")},
            "spans": spans,
        }],
    }]})
}

fn span(span: &Span) -> Value {
    let mut written = json!({
        "traceId": span.context.trace.to_string(),
        "spanId": span.context.span.to_string(),
        "flags": SAMPLED,
        "name": span.work.name,
        "kind": kind(span.work.kind),
        "startTimeUnixNano": nanos(span.began),
        "endTimeUnixNano": nanos(span.ended),
        "attributes": attributes(&span.work.attributes),
    });
    if let Some(parent) = span.parent {
        written["parentSpanId"] = parent.to_string().into();
    }
    if span.work.has_failed {
        written["status"] = json!({"code": ERROR});
    }
    written
}

fn kind(kind: SpanKind) -> u8 {
    match kind {
        SpanKind::Internal => 1,
        SpanKind::Server => 2,
        SpanKind::Producer => 4,
        SpanKind::Consumer => 5,
    }
}

fn nanos(time: Duration) -> String {
    time.as_nanos().to_string()
}

fn attributes(attributes: &[SpanAttribute]) -> Vec<Value> {
    let attributes = attributes.iter();
    let attributes = attributes.map(|(key, value)| json!({"key": key, "value": of_value(value)}));
    attributes.collect()
}

fn of_value(value: &AttributeValue) -> Value {
    match value {
        AttributeValue::Text(text) => json!({"stringValue": text}),
        AttributeValue::Number(number) => json!({"intValue": number.to_string()}),
        AttributeValue::Flag(flag) => json!({"boolValue": flag}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::spans::{SpanContext, TracedWork};

    /// The names and forms are those of the specification's `examples/trace.json`; times and
    /// numbers are texts, as its page demands.
    #[test]
    fn spans_are_written_with_the_field_names_of_the_specification() {
        let context: SpanContext = "00-5b8efff798038103d269b633813fc60c-eee19b7ec3c1b174-01"
            .parse()
            .unwrap();
        let parent: SpanContext = "00-5b8efff798038103d269b633813fc60c-0ee19b7ec3c1b173-01"
            .parse()
            .unwrap();
        let span = Span {
            context,
            parent: Some(parent.span),
            began: Duration::from_nanos(1_544_712_660_000_000_001),
            ended: Duration::from_nanos(1_544_712_661_000_000_000),
            work: TracedWork {
                kind: SpanKind::Server,
                name: "I'm a server span".into(),
                attributes: vec![
                    ("my.span.attr", AttributeValue::text("some value")),
                    ("number", AttributeValue::Number(1 << 60)),
                    ("flag", AttributeValue::Flag(true)),
                ],
                has_failed: true,
            },
        };
        let resource = [("service.name", AttributeValue::text("my.service"))];
        let expected = json!({"resourceSpans": [{
            "resource": {"attributes": [
                {"key": "service.name", "value": {"stringValue": "my.service"}},
            ]},
            "scopeSpans": [{
                "scope": {"name": "symdepot", "version": env!("CARGO_PKG_VERSION")},
                "spans": [{
                    "traceId": "5b8efff798038103d269b633813fc60c",
                    "spanId": "eee19b7ec3c1b174",
                    "parentSpanId": "0ee19b7ec3c1b173",
                    "flags": 1,
                    "name": "I'm a server span",
                    "kind": 2,
                    "startTimeUnixNano": "1544712660000000001",
                    "endTimeUnixNano": "1544712661000000000",
                    "attributes": [
                        {"key": "my.span.attr", "value": {"stringValue": "some value"}},
                        {"key": "number", "value": {"intValue": "1152921504606846976"}},
                        {"key": "flag", "value": {"boolValue": true}},
                    ],
                    "status": {"code": 2},
                }],
            }],
        }]});
        assert_eq!(request(&resource, &[span]), expected);
    }
}
