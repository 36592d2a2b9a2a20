//! Handles the messages of the three queues of `derive`.

use aws_lambda_events::event::sqs::{BatchItemFailure, SqsBatchResponse, SqsEvent, SqsMessage};
use symdepot::flows::build::Builder;
use symdepot::flows::retries::Received;
use symdepot::flows::{Error, Invocation};
use symdepot::ports::Needs;
use symdepot::runtime::{self, MessageSummary, Reports};

use crate::events::{self, MessageContent, Unreadable};

/// The number of deliveries of a message so far, this one included (SQS API reference,
/// `ReceiveMessage`).
const RECEIVE_COUNT: &str = "ApproximateReceiveCount";

/// Why a message could not be processed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// A flow failed.
    #[error(transparent)]
    Flow(#[from] Error),
    /// The message cannot be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// Only a newer release can read the message.
    #[error(
        "the message needs a release with schema {} and converter {}",
        .0.schema,
        .0.min_converter.0
    )]
    Newer(Needs),
}

impl Failure {
    /// Returns its name in logs.
    fn name(&self) -> &'static str {
        match self {
            Self::Flow(error) => error.name(),
            Self::Unreadable(_) => "Unreadable",
            Self::Newer(_) => "Newer",
        }
    }
}

/// Processes the messages of an event. Messages that fail are retried; the others are deleted.
pub(crate) async fn handle(
    builder: &Builder,
    Reports { metrics, traces }: &Reports,
    invocation: Invocation,
    event: SqsEvent,
) -> Result<SqsBatchResponse, Error> {
    let mut response = SqsBatchResponse::default();
    for message in &event.records {
        let began = invocation.elapsed();
        let mut summary = MessageSummary {
            receives: Some(receives(message)),
            ..MessageSummary::default()
        };
        let contents = events::read(message.body.as_deref().unwrap_or_default());
        let sender = contents
            .as_ref()
            .ok()
            .and_then(|contents| contents.first()?.sender());
        traces.begin(&invocation, sender);
        let served = match contents {
            Ok(contents) => serve(builder, &invocation, contents, &mut summary).await,
            Err(error) => Err(error.into()),
        };
        let notes = invocation.take_notes();
        let summary = MessageSummary {
            outcome: Some(if served.is_ok() { "done" } else { "retried" }),
            error: served.as_ref().err().map(Failure::name),
            file_bytes: (notes.file_bytes > 0).then_some(notes.file_bytes),
            kinds: listed(&notes.kinds),
            cause: notes.cause,
            seconds: Some((invocation.elapsed() - began).as_secs_f64()),
            waited_ms: Some(runtime::millis(notes.waited)),
            trace_id: invocation.trace_id().map(|id| id.to_string()),
            ..summary
        };
        summary.log();
        let id = message.message_id.as_deref().unwrap_or_default();
        traces.end(&invocation, || summary.span(id));
        if let Err(failure) = served {
            if matches!(failure, Failure::Flow(Error::Doubtful { .. })) {
                metrics.emit_doubtful_loss(invocation.now());
            }
            let error = runtime::chain(&failure);
            tracing::error!(message = id, error, "message will be retried");
            retry_later(builder, message).await;
            let mut failure = BatchItemFailure::default();
            failure.item_identifier = id.to_owned();
            response.batch_item_failures.push(failure);
        }
    }
    traces.flush(&invocation).await;
    Ok(response)
}

async fn serve(
    builder: &Builder,
    invocation: &Invocation,
    contents: Vec<MessageContent>,
    summary: &mut MessageSummary,
) -> Result<(), Failure> {
    for content in contents {
        content.name_in(summary);
        match content {
            MessageContent::Upload(event) => builder.apply_upload_event(invocation, &event).await?,
            MessageContent::Reconcile(message) => builder.reconcile(invocation, &message).await?,
            MessageContent::Build(message) => Box::pin(builder.serve(invocation, &message)).await?,
            MessageContent::Newer(needs) => return Err(Failure::Newer(needs)),
        }
    }
    Ok(())
}

/// Returns how often a message was received.
fn receives(message: &SqsMessage) -> u32 {
    let receives = message.attributes.get(RECEIVE_COUNT);
    receives.and_then(|count| count.parse().ok()).unwrap_or(1)
}

/// Returns a list for the log; `None` if it is empty.
fn listed(kinds: impl IntoIterator<Item = impl ToString>) -> Option<String> {
    let kinds: Vec<String> = kinds.into_iter().map(|kind| kind.to_string()).collect();
    (!kinds.is_empty()).then(|| kinds.join(","))
}

/// Schedules the retry of a message. If that fails, the message is retried after its visibility
/// timeout.
async fn retry_later(builder: &Builder, message: &SqsMessage) {
    let (Some(queue), Some(receipt)) = (&message.event_source_arn, &message.receipt_handle) else {
        return;
    };
    let received = Received {
        queue: queue.clone(),
        receipt: receipt.clone(),
    };
    if let Err(error) = builder.retry_later(&received, receives(message)).await {
        let error = runtime::chain(&error);
        tracing::warn!(
            error,
            "message will be retried after its visibility timeout"
        );
    }
}
