//! Handles the messages of the three queues of `derive`.

use aws_lambda_events::event::sqs::{BatchItemFailure, SqsBatchResponse, SqsEvent, SqsMessage};
use symdepot::flows::build::Builder;
use symdepot::flows::retries::Received;
use symdepot::flows::{Error, Invocation};
use symdepot::runtime::{self, Metrics};

use crate::events::{self, Unreadable, Work};

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
    /// Only a newer build can read the message.
    #[error("the message needs a build with schema {schema} and converter {min_converter}")]
    Newer {
        /// The schema of the message.
        schema: u32,
        /// The least converter that may serve it.
        min_converter: u32,
    },
}

/// Processes the messages of an event. Messages that fail are retried; the others are deleted.
pub(crate) async fn handle(
    builder: &Builder,
    metrics: &Metrics,
    invocation: Invocation,
    event: SqsEvent,
) -> Result<SqsBatchResponse, Error> {
    let mut response = SqsBatchResponse::default();
    for message in &event.records {
        if let Err(failure) = serve(builder, &invocation, message).await {
            if matches!(failure, Failure::Flow(Error::Doubtful { .. })) {
                metrics.emit_doubtful_loss(invocation.now());
            }
            let id = message.message_id.clone().unwrap_or_default();
            let error = runtime::chain(&failure);
            tracing::error!(message = id, error, "message will be retried");
            retry_later(builder, message).await;
            let mut failure = BatchItemFailure::default();
            failure.item_identifier = id;
            response.batch_item_failures.push(failure);
        }
    }
    Ok(response)
}

async fn serve(
    builder: &Builder,
    invocation: &Invocation,
    message: &SqsMessage,
) -> Result<(), Failure> {
    for work in events::read(message.body.as_deref().unwrap_or_default())? {
        match work {
            Work::Upload(event) => builder.upload(invocation, &event).await?,
            Work::Reconcile(message) => builder.reconcile(invocation, &message).await?,
            Work::Build(message) => Box::pin(builder.serve(invocation, &message)).await?,
            Work::Newer {
                schema,
                min_converter,
            } => {
                return Err(Failure::Newer {
                    schema,
                    min_converter,
                });
            }
        }
    }
    Ok(())
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
    let receives = message.attributes.get(RECEIVE_COUNT);
    let receives = receives.and_then(|count| count.parse().ok()).unwrap_or(1);
    if let Err(error) = builder.retry_later(&received, receives).await {
        let error = runtime::chain(&error);
        tracing::warn!(
            error,
            "message will be retried after its visibility timeout"
        );
    }
}
