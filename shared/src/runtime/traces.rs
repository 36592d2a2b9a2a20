//! Records and exports the traces of a function.
//!
//! The sandbox is frozen after the response, so spans are sent before the invocation ends, which
//! costs one round trip. A collector that does not accept them costs [`TIME_LIMIT`] at most, and is
//! then left alone for [`PAUSE`]; the result of the invocation does not depend on it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::{MessageSummary, RawEnv, RequestSummary, RunSummary, TraceSettings, otlp};
use crate::adapters::http::HttpCollector;
use crate::flows::Invocation;
use crate::flows::spans::{
    AttributeValue, Sampler, SpanAttribute, SpanContext, SpanKind, TracedWork,
};

/// The maximum time that one invocation spends on its export.
const TIME_LIMIT: Duration = Duration::from_secs(1);

/// How long a collector is not called after it failed.
const PAUSE: Duration = Duration::from_secs(30);

/// The part of an invocation's time that an export leaves to the response.
const RESERVE: Duration = Duration::from_millis(500);

/// Records and exports traces, or does nothing.
#[derive(Debug, Default)]
pub struct Traces(Option<Export>);

#[derive(Debug)]
struct Export {
    sampler: Sampler,
    resource: Vec<SpanAttribute>,
    collector: HttpCollector,
    is_warm: AtomicBool,
    /// The time since 1970 before which the collector is not called.
    not_before: Mutex<Duration>,
}

impl Traces {
    /// Returns what exports the traces of the function with these attributes.
    pub(super) fn new(settings: &TraceSettings, function: Vec<SpanAttribute>) -> Self {
        let headers = settings.headers.clone();
        let collector = HttpCollector::new(settings.endpoint.clone(), headers, TIME_LIMIT);
        let collector = match collector {
            Ok(collector) => collector,
            Err(error) => {
                tracing::error!(error, "no traces are exported");
                return Self(None);
            }
        };
        let mut resource = vec![(
            "service.name",
            AttributeValue::text(settings.service.clone()),
        )];
        resource.extend(function);
        Self(Some(Export {
            sampler: settings.sampler,
            resource,
            collector,
            is_warm: AtomicBool::new(false),
            not_before: Mutex::default(),
        }))
    }

    /// Begins the span of an invocation, or of a message that it processes, in the trace of the
    /// span that caused it.
    pub fn begin(&self, invocation: &Invocation, parent: Option<SpanContext>) {
        if let Some(export) = &self.0 {
            invocation.begin_trace(parent, export.sampler);
        }
    }

    /// Same as [`Traces::begin`], for a request with this `traceparent` header.
    pub fn begin_request(&self, invocation: &Invocation, traceparent: Option<&str>) {
        self.begin(
            invocation,
            traceparent.and_then(|text| text.trim().parse().ok()),
        );
    }

    /// Ends the span of the invocation, or of the message. `describe` is called if it is recorded.
    pub fn end(&self, invocation: &Invocation, describe: impl FnOnce() -> TracedWork) {
        let Some(export) = &self.0 else { return };
        let is_warm = export.is_warm.swap(true, Ordering::Relaxed);
        invocation.end_trace(|| {
            let mut work = describe();
            let id = invocation.request_id().to_owned();
            work.attributes.extend([
                ("faas.invocation_id", AttributeValue::text(id)),
                ("faas.coldstart", AttributeValue::Flag(!is_warm)),
            ]);
            work
        });
    }

    /// Sends the spans of an invocation that is about to end.
    pub async fn flush(&self, invocation: &Invocation) {
        let Some(export) = &self.0 else { return };
        let spans = invocation.take_spans();
        let left = invocation.time_left().saturating_sub(RESERVE);
        if spans.is_empty() || left.is_zero() || invocation.since_epoch() < *export.not_before() {
            return;
        }
        let body = otlp::request(&export.resource, &spans).to_string();
        let sent = export.collector.send(body.into_bytes());
        let sent = tokio::time::timeout(left.min(TIME_LIMIT), sent).await;
        let late = |_| Err("the collector did not answer in time".to_owned());
        match sent.unwrap_or_else(late) {
            Ok(response) => {
                if let Some(said) = otlp::partial_success(&response) {
                    let (error, spans) = (said.error_message, said.rejected_spans);
                    tracing::warn!(error, spans, "spans were rejected");
                }
            }
            Err(error) => {
                *export.not_before() = invocation.since_epoch() + PAUSE;
                let (spans, pause_s) = (spans.len(), PAUSE.as_secs());
                tracing::warn!(error, spans, pause_s, "spans were not exported");
            }
        }
    }
}

impl Export {
    fn not_before(&self) -> std::sync::MutexGuard<'_, Duration> {
        self.not_before
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl RequestSummary {
    /// Returns the span of the request.
    ///
    /// Source of the names: OpenTelemetry semantic conventions, "HTTP Server" and "FaaS".
    pub fn span(&self) -> TracedWork {
        let method = self.method.as_deref().unwrap_or_default();
        let mut attributes = vec![
            ("faas.trigger", AttributeValue::text("http")),
            ("http.request.method", AttributeValue::text(method)),
        ];
        add(&mut attributes, "http.route", self.route);
        add(&mut attributes, "symdepot.outcome", self.outcome);
        add(&mut attributes, "enduser.pseudo.id", self.caller.as_deref());
        let status = self.status.map(i64::from).map(AttributeValue::Number);
        attributes.extend(status.map(|status| ("http.response.status_code", status)));
        let name = match self.route {
            Some(route) => format!("{method} {route}"),
            None => method.to_owned(),
        };
        TracedWork {
            kind: SpanKind::Server,
            name: name.into(),
            attributes,
            has_failed: self.status >= Some(500),
        }
    }
}

impl MessageSummary {
    /// Returns the span of the message with this id.
    ///
    /// Source of the names: OpenTelemetry semantic conventions, "Messaging Spans".
    pub fn span(&self, id: &str) -> TracedWork {
        // Events of the bucket arrive in the uploads queue.
        let queue = self.queue.unwrap_or("uploads");
        let mut attributes = vec![
            ("faas.trigger", AttributeValue::text("pubsub")),
            ("messaging.system", AttributeValue::text("aws_sqs")),
            ("messaging.operation.name", AttributeValue::text("process")),
            ("messaging.operation.type", AttributeValue::text("process")),
            ("messaging.destination.name", AttributeValue::text(queue)),
            ("messaging.message.id", AttributeValue::text(id)),
        ];
        add(&mut attributes, "symdepot.work", self.work);
        add(&mut attributes, "symdepot.outcome", self.outcome);
        add(&mut attributes, "symdepot.kinds", self.kinds.as_deref());
        add(&mut attributes, "symdepot.cause", self.cause);
        add(&mut attributes, "error.type", self.error);
        TracedWork {
            kind: SpanKind::Consumer,
            name: format!("process {queue}").into(),
            attributes,
            has_failed: self.error.is_some(),
        }
    }
}

impl RunSummary {
    /// Returns the span of the run.
    ///
    /// Source of the names: OpenTelemetry semantic conventions, "Instrumenting AWS Lambda".
    pub fn span(&self) -> TracedWork {
        let mut attributes = vec![("faas.trigger", AttributeValue::text("timer"))];
        let dry_run = self.dry_run.map(AttributeValue::Flag);
        attributes.extend(dry_run.map(|flag| ("symdepot.dry_run", flag)));
        TracedWork {
            kind: SpanKind::Server,
            name: "prune".into(),
            attributes,
            has_failed: self.failed.unwrap_or_default() > 0,
        }
    }
}

/// Returns what identifies a function in its traces.
pub(super) fn identity(env: &RawEnv) -> Vec<SpanAttribute> {
    let of_lambda = [
        ("faas.name", "AWS_LAMBDA_FUNCTION_NAME"),
        ("faas.version", "AWS_LAMBDA_FUNCTION_VERSION"),
        ("cloud.region", "AWS_REGION"),
    ];
    let mut identity = vec![
        ("cloud.provider", AttributeValue::text("aws")),
        ("cloud.platform", AttributeValue::text("aws_lambda")),
    ];
    let of_lambda = of_lambda.into_iter();
    identity.extend(of_lambda.filter_map(|(name, variable)| {
        Some((
            name,
            AttributeValue::text(env.of_lambda(variable)?.as_str()),
        ))
    }));
    identity
}

fn add(attributes: &mut Vec<SpanAttribute>, name: &'static str, value: Option<&str>) {
    attributes.extend(value.map(|value| (name, AttributeValue::text(value))));
}
