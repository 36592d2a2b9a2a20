//! One invocation after the other: what every function does alike, so that nobody has to compare.

use std::fmt::Debug;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lambda_runtime::{Context, Diagnostic, LambdaEvent, service_fn};
use rand::TryRng;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::Instrument;

use crate::flows::{Error, Invocation};

/// Serves events until the sandbox ends: each in a span with its request id, each with a summary line.
pub async fn run<Event, Answer, Handler, Handling>(
    handler: Handler,
) -> Result<(), lambda_runtime::Error>
where
    Event: DeserializeOwned + Send,
    Answer: Serialize + Debug,
    Handler: Fn(Invocation, Event) -> Handling,
    Handling: Future<Output = Result<Answer, Error>>,
{
    let handler = &handler;
    lambda_runtime::run(service_fn(move |event: LambdaEvent<Event>| {
        let invocation = invocation(&event.context);
        let span = tracing::info_span!("invocation", request_id = invocation.request_id());
        async move {
            let answer = handler(invocation, event.payload).await;
            match &answer {
                Ok(_) => tracing::debug!("done"),
                Err(error) => tracing::error!(error = error.name(), "{}", chain(error)),
            }
            answer.map_err(|error| diagnostic(&error))
        }
        .instrument(span)
    }))
    .await
}

/// Returns the time since 1970: the one place that reads the wall clock.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that reads the clock"
)]
pub(super) fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// Begins an invocation: the one place that draws chance.
pub fn invocation(context: &Context) -> Invocation {
    let now = since_epoch();
    let time_left = Duration::from_millis(context.deadline).saturating_sub(now);
    let mut seed = [0; 32];
    if rand::rngs::SysRng.try_fill_bytes(&mut seed).is_err() {
        // Never seen on Linux. Tokens must still differ from one invocation to the next: its id does.
        let id = context.request_id.as_bytes();
        for (byte, id) in seed.iter_mut().zip(id.iter().rev()) {
            *byte = *id;
        }
    }
    Invocation::new(context.request_id.clone(), now, time_left, seed)
}

/// Returns what Lambda reports of an error: a stable word, and what happened.
pub fn diagnostic(error: &Error) -> Diagnostic {
    Diagnostic {
        error_type: error.name().to_owned(),
        error_message: chain(error),
    }
}

/// Returns an error with everything that caused it, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::{StoreError, StoreErrorKind};

    /// L10.
    #[test]
    fn a_failure_is_logged_with_its_causes() {
        let error = StoreError::new(StoreErrorKind::Denied, "PutItem of an upload");
        let error = Error::from(error.caused_by("AccessDenied: not your table"));
        let line = chain(&error);
        assert!(line.contains("PutItem of an upload"), "{line}");
        assert!(line.ends_with(": AccessDenied: not your table"), "{line}");
    }
}
