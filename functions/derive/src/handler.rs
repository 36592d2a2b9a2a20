//! What `derive` does with the messages of its three lanes.

use aws_lambda_events::event::sqs::{BatchItemFailure, SqsBatchResponse, SqsEvent, SqsMessage};
use symdepot::flows::build::Builder;
use symdepot::flows::{Error, Invocation};
use symdepot::runtime;

use crate::events::{self, Work};

/// Does what each message asks for. Those that could not be done come back; the others are done with.
pub(crate) async fn handle(
    builder: &Builder,
    invocation: Invocation,
    event: SqsEvent,
) -> Result<SqsBatchResponse, Error> {
    let mut response = SqsBatchResponse::default();
    for message in &event.records {
        if let Err(error) = serve(builder, &invocation, message).await {
            if matches!(error.downcast_ref(), Some(Error::Doubtful { .. })) {
                runtime::emit_doubtful_loss(invocation.now());
            }
            let id = message.message_id.clone().unwrap_or_default();
            tracing::error!(message = id, error = &*error, "a message comes back");
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
) -> Result<(), Box<dyn std::error::Error>> {
    for work in events::read(message.body.as_deref().unwrap_or_default())? {
        match work {
            Work::Upload(event) => builder.upload(invocation, &event).await?,
            Work::Reconcile(key) => builder.reconcile(invocation, &key).await?,
            Work::Build(message) => builder.serve(invocation, &message).await?,
        }
    }
    Ok(())
}
