//! The form in which spans are exported.
//!
//! Sources: OpenTelemetry Protocol specification, "JSON Protobuf Encoding": ids in hexadecimal,
//! 64-bit numbers as decimal texts, enumerations as numbers; "Partial Success";
//! `opentelemetry/proto/trace/v1`.

use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
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

/// What a collector says of spans that it has not accepted.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PartialSuccess {
    /// Their number.
    #[serde(deserialize_with = "number")]
    pub(super) rejected_spans: u64,
    /// Why, or a warning if it has accepted all.
    pub(super) error_message: String,
}

/// Returns what the response to an export says of spans that were not accepted; `None` if it says
/// nothing, or is no `ExportTraceServiceResponse`.
pub(super) fn partial_success(response: &[u8]) -> Option<PartialSuccess> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ExportTraceServiceResponse {
        partial_success: Option<PartialSuccess>,
    }
    let response: ExportTraceServiceResponse = serde_json::from_slice(response).ok()?;
    let said = response.partial_success;
    said.filter(|said| *said != PartialSuccess::default())
}

/// Reads a 64-bit number, which is a text; receivers accept numbers, too.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let number = Value::deserialize(deserializer)?;
    let read = match &number {
        Value::String(text) => text.parse().ok(),
        number => number.as_u64(),
    };
    read.ok_or_else(|| D::Error::custom("no number"))
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

    #[test]
    fn rejected_spans_are_counted_with_the_reason() {
        let said = |text: &str| partial_success(text.as_bytes());
        for all in [
            "",
            "{}",
            "ok",
            r#"{"partialSuccess": null}"#,
            r#"{"partialSuccess": {}}"#,
            r#"{"partialSuccess": {"rejectedSpans": "0"}}"#,
            r#"{"partialSuccess": {"rejectedSpans": "many"}}"#,
        ] {
            assert_eq!(said(all), None, "{all}");
        }
        for some in [
            r#"{"partialSuccess": {"rejectedSpans": "3", "errorMessage": "too old"}}"#,
            r#"{"partialSuccess": {"rejectedSpans": 3, "errorMessage": "too old"}, "new": 1}"#,
        ] {
            let rejected = PartialSuccess {
                rejected_spans: 3,
                error_message: "too old".to_owned(),
            };
            assert_eq!(said(some), Some(rejected), "{some}");
        }
    }

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
