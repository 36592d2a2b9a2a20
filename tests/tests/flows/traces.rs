//! Traces: the context of a caller continues in messages, and in what is done for them.

use std::time::Duration;

use serde_json::{Value, json};
use symdepot::domain::{Sampler, Scope};
use symdepot::flows::Invocation;
use symdepot::flows::requests::CallState;
use symdepot::flows::spans::{AttributeValue, Span, SpanContext, SpanKind, TracedWork};
use symdepot::flows::symbolicate::SymbolicateOutcome;
use symdepot::ports::{QueueMessage, ReadMessage, ReconcileMessage};
use symdepot_tests::harness::{World, sample_crash};

/// The example of the W3C's document.
const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

const ALL: Sampler = Sampler {
    follows_parent: true,
    ratio: 1.0,
};

const HALF_A_MINUTE: Duration = Duration::from_secs(30);

fn work() -> TracedWork {
    TracedWork {
        kind: SpanKind::Server,
        name: "entry".into(),
        attributes: Vec::new(),
        has_failed: false,
    }
}

fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let mut found = spans.iter().filter(|span| span.work.name == name);
    found.next().unwrap_or_else(|| panic!("{name}: {spans:#?}"))
}

/// Requests the names of the sample crash without waiting, in this invocation.
async fn request(world: &World, invocation: &Invocation) -> QueueMessage {
    let call = CallState::first(
        "0e6a4d6c-1f5c-4f0e-8a54-1d5a4f1f3f4e",
        &Scope::Global,
        Duration::ZERO,
    );
    let service = world.service();
    let crash = sample_crash();
    let answer = service.answer(invocation, &crash, call);
    let answer = Box::pin(answer).await.unwrap();
    assert!(matches!(answer, SymbolicateOutcome::Pending));
    world.queues.drain().remove(0).message
}

/// Returns a world in which the next request needs a build.
async fn world() -> World {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.pass(Duration::from_secs(8 * 24 * 3600)).await;
    world.prune().await.unwrap();
    world.queues.drain();
    world
}

#[tokio::test(start_paused = true)]
async fn the_trace_of_a_caller_continues_in_the_message_and_in_its_build() {
    let world = world().await;
    let invocation = world.invocation(HALF_A_MINUTE);
    let caller: SpanContext = CALLER.parse().unwrap();
    invocation.begin_trace(Some(caller), ALL);
    let message = request(&world, &invocation).await;
    invocation.end_trace(work);
    let spans = invocation.take_spans();
    let (entry, send) = (named(&spans, "entry"), named(&spans, "send eager"));
    assert_eq!(entry.parent, Some(caller.span));
    assert!(spans.iter().all(|span| span.context.trace == caller.trace));
    assert_eq!(send.parent, Some(entry.context.span));
    assert_eq!(send.work.kind, SpanKind::Producer);
    assert!(
        send.work
            .attributes
            .contains(&("messaging.batch.message_count", AttributeValue::Number(1)))
    );
    assert_eq!(message.trace, Some(send.context));
    assert_eq!(named(&spans, "look up").parent, Some(entry.context.span));

    let builder = world.invocation(HALF_A_MINUTE);
    builder.begin_trace(message.trace, ALL);
    world.serve_in(&builder, &message).await.unwrap();
    builder.end_trace(work);
    let spans = builder.take_spans();
    let entry = named(&spans, "entry");
    assert_eq!(entry.parent, Some(send.context.span));
    assert_eq!(entry.context.trace, caller.trace);
    for phase in ["fetch", "derive", "publish"] {
        let phase = named(&spans, phase);
        assert_eq!(phase.parent, Some(entry.context.span), "{phase:?}");
        assert!(phase.began >= entry.began && phase.ended <= entry.ended);
    }
}

#[tokio::test(start_paused = true)]
async fn a_trace_that_is_not_recorded_is_none_in_all_functions() {
    let world = world().await;
    let invocation = world.invocation(HALF_A_MINUTE);
    let caller = CALLER.replace("-01", "-00").parse().unwrap();
    invocation.begin_trace(Some(caller), ALL);
    let message = request(&world, &invocation).await;
    let context = message.trace.unwrap();
    assert_eq!((context.trace, context.is_sampled), (caller.trace, false));
    invocation.end_trace(|| panic!("it is not recorded"));
    assert_eq!(invocation.take_spans(), []);
}

#[tokio::test(start_paused = true)]
async fn without_tracing_messages_have_no_context() {
    let world = world().await;
    let invocation = world.invocation(HALF_A_MINUTE);
    let message = request(&world, &invocation).await;
    assert_eq!(message.trace, None);
    let json = serde_json::to_value(&message).unwrap();
    assert!(json.get("trace").is_none(), "{json}");
    assert_eq!(invocation.take_spans(), []);
}

#[tokio::test(start_paused = true)]
async fn messages_of_older_releases_and_with_an_unreadable_context_are_read() {
    let world = world().await;
    let invocation = world.invocation(HALF_A_MINUTE);
    invocation.begin_trace(None, ALL);
    let message = request(&world, &invocation).await;
    let sent = serde_json::to_value(&message).unwrap();
    let trace = sent["trace"].as_str().unwrap();
    assert_eq!(trace.parse().ok(), message.trace);
    let read = |json: Value| match QueueMessage::read(json).unwrap() {
        ReadMessage::Message(message) => message,
        ReadMessage::Newer(needs) => panic!("{needs:?}"),
    };
    assert_eq!(read(sent.clone()), message);
    let untraced = QueueMessage {
        trace: None,
        ..message
    };
    let mut older = sent.clone();
    older.as_object_mut().unwrap().remove("trace");
    assert_eq!(read(older), untraced);
    for unreadable in [json!("00-of-tomorrow"), json!(7), json!(null), json!({})] {
        let mut other = sent.clone();
        other["trace"] = unreadable;
        assert_eq!(read(other), untraced);
    }
    let reconcile: ReconcileMessage =
        serde_json::from_str(r#"{"reconcile": "global/a", "trace": 7}"#).unwrap();
    assert_eq!(reconcile.trace, None);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_sends_many_messages_still_has_spans_of_its_phases() {
    let world = World::new();
    for number in 0..150 {
        world.put(
            &format!("global/{number}.txt"),
            "an upload without an event",
        );
    }
    world.pass(Duration::from_secs(3600)).await;
    let invocation = world.invocation(HALF_A_MINUTE);
    invocation.begin_trace(None, ALL);
    world.pruner().prune(&invocation, false).await.unwrap();
    invocation.end_trace(work);
    let spans = invocation.take_spans();
    let sent = spans.iter().filter(|span| span.work.name == "send uploads");
    // The others of the first 96 are the beginning of the pass, the scan of the records and the
    // check of the uploads.
    assert_eq!(sent.count(), 93);
    named(&spans, "delete orphans");
}
