//! Runs invocations one after the other: the code that all functions share.

use std::fmt::{Debug, Display};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lambda_runtime::{Context, Diagnostic, LambdaEvent, service_fn};
use rand::TryRng;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::Instrument;

use crate::domain::chain;
use crate::flows::{Error, Invocation};

/// Serves events until the sandbox ends, each in a span with its request id.
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
        let id = &event.context.request_id;
        let span = tracing::info_span!("invocation", request_id = id);
        async move {
            let invocation = invocation?;
            let answer = handler(invocation, event.payload).await;
            match &answer {
                Ok(_) => tracing::debug!("invocation completed"),
                Err(error) => tracing::error!(error = error.name(), "{}", chain(error)),
            }
            answer.map_err(|error| diagnostic(&error))
        }
        .instrument(span)
    }))
    .await
}

/// Returns the exit code of a function that ended so, after writing the error.
pub fn exit_code<E: Display>(ended: Result<(), E>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the time since 1970. This is the only place that reads the wall clock.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that reads the clock"
)]
pub(super) fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// Returns whole milliseconds, for logs.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Begins an invocation. This is the only place that draws random numbers from the system.
///
/// # Errors
///
/// The operating system provides no random numbers. Predictable tokens and repeated nonces would be
/// worse than an event that is delivered again.
pub fn invocation(context: &Context) -> Result<Invocation, Diagnostic> {
    let now = since_epoch();
    let time_left = Duration::from_millis(context.deadline).saturating_sub(now);
    let seed = seed(&mut rand::rngs::SysRng)?;
    Ok(Invocation::new(
        context.request_id.clone(),
        now,
        time_left,
        seed,
    ))
}

fn seed(source: &mut impl TryRng) -> Result<[u8; 32], Diagnostic> {
    let mut seed = [0; 32];
    match source.try_fill_bytes(&mut seed) {
        Ok(()) => Ok(seed),
        Err(error) => {
            let problem = format!("the operating system provides no randomness: {error}");
            tracing::error!(error = "Randomness", "{problem}");
            Err(Diagnostic {
                error_type: "Randomness".to_owned(),
                error_message: problem,
            })
        }
    }
}

/// Returns the form of an error that Lambda reports: a stable name, and the message.
pub fn diagnostic(error: &Error) -> Diagnostic {
    Diagnostic {
        error_type: error.name().to_owned(),
        error_message: chain(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::{Fault, FaultKind};

    #[test]
    fn a_failure_is_logged_with_its_causes() {
        let error = Fault::new(FaultKind::Denied, "PutItem of an upload");
        let error = Error::from(error.caused_by("AccessDenied: not your table"));
        let line = chain(&error);
        assert!(line.contains("PutItem of an upload"), "{line}");
        assert!(line.ends_with(": AccessDenied: not your table"), "{line}");
    }

    /// A source without random numbers.
    struct Empty;

    impl TryRng for Empty {
        type Error = std::io::Error;

        fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
            Err(std::io::ErrorKind::Unsupported.into())
        }

        fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
            Err(std::io::ErrorKind::Unsupported.into())
        }

        fn try_fill_bytes(&mut self, _: &mut [u8]) -> Result<(), Self::Error> {
            Err(std::io::ErrorKind::Unsupported.into())
        }
    }

    #[test]
    fn an_invocation_without_randomness_fails() {
        let failed = seed(&mut Empty).unwrap_err();
        assert_eq!(failed.error_type, "Randomness");
        assert!(failed.error_message.contains("no randomness"), "{failed:?}");
        assert_ne!(seed(&mut rand::rngs::SysRng).unwrap(), [0; 32]);
    }
}
