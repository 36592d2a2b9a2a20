//! Errors of invocations, in Lambda's terms, and of the start of all functions.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::quotas::{MAX_ANSWER, MAX_EVENT};

/// Why a function gave no response, in Lambda's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionError {
    /// The stable type of the error.
    pub error_type: String,
    /// The description for humans.
    pub error_message: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Reported,
    Crashed,
    TimedOut,
    CannotStart,
    AnswerTooLarge,
    EventTooLarge,
    Throttled,
    Recursive,
    Stopping,
}

impl FunctionError {
    fn new(kind: Kind, error_type: &str, error_message: String) -> Self {
        Self {
            error_type: error_type.to_owned(),
            error_message,
            kind,
        }
    }

    pub(super) fn reported(error_type: String, error_message: String) -> Self {
        Self {
            error_type,
            error_message,
            kind: Kind::Reported,
        }
    }

    pub(super) fn crashed(request_id: Option<&str>, how: &str) -> Self {
        let message = match request_id {
            Some(id) => format!("RequestId: {id} Error: {how}"),
            None => format!("Error: {how} before it requested its first event"),
        };
        Self::new(Kind::Crashed, "Runtime.ExitError", message)
    }

    pub(super) fn timed_out(request_id: &str, limit: Duration) -> Self {
        let message = format!(
            "RequestId: {request_id} Error: Task timed out after {:.2} seconds",
            limit.as_secs_f64()
        );
        Self::new(Kind::TimedOut, "Sandbox.Timedout", message)
    }

    pub(super) fn init_timeout(limit: Duration) -> Self {
        let message = format!(
            "the process requested no event within {} seconds of its start",
            limit.as_secs()
        );
        Self::new(Kind::TimedOut, "Sandbox.Timedout", message)
    }

    pub(super) fn cannot_start(binary: &Path, error: &std::io::Error) -> Self {
        Self::new(
            Kind::CannotStart,
            "Runtime.InvalidEntrypoint",
            format!("cannot start {}: {error}", binary.display()),
        )
    }

    pub(super) fn answer_too_large() -> Self {
        let limit = MAX_ANSWER;
        let message =
            format!("Response payload size exceeded maximum allowed payload size ({limit} bytes).");
        Self::new(
            Kind::AnswerTooLarge,
            "Function.ResponseSizeTooLarge",
            message,
        )
    }

    pub(super) fn event_too_large(bytes: usize) -> Self {
        let message = format!(
            "{bytes} byte payload is too large for the Event invocation type (limit {MAX_EVENT} bytes)"
        );
        Self::new(Kind::EventTooLarge, "RequestTooLargeException", message)
    }

    pub(super) fn throttled() -> Self {
        Self::new(
            Kind::Throttled,
            "TooManyRequestsException",
            "Rate Exceeded.".to_owned(),
        )
    }

    /// The text of Lambda's API reference (`RecursiveInvocationException`).
    pub(super) fn recursive() -> Self {
        let message = "Lambda has detected your function being invoked in a recursive loop with other Amazon Web Services resources and stopped your function's invocation.";
        Self::new(
            Kind::Recursive,
            "RecursiveInvocationException",
            message.to_owned(),
        )
    }

    pub(super) fn unknown(name: &str) -> Self {
        Self::new(
            Kind::CannotStart,
            "ResourceNotFoundException",
            format!("Function not found: {name}"),
        )
    }

    pub(super) fn stopping() -> Self {
        Self::new(
            Kind::Stopping,
            "ServiceException",
            "the local stack is stopping".to_owned(),
        )
    }

    /// Returns whether the invocation was killed at its deadline.
    pub fn is_timeout(&self) -> bool {
        self.kind == Kind::TimedOut
    }

    /// Returns whether the event was refused because of its size.
    pub fn is_event_too_large(&self) -> bool {
        self.kind == Kind::EventTooLarge
    }

    /// Returns whether the event was refused because of the account's limit.
    pub fn is_throttled(&self) -> bool {
        self.kind == Kind::Throttled
    }

    /// Returns whether the stop of the stack has refused or killed the invocation.
    pub(crate) fn is_stopping(&self) -> bool {
        self.kind == Kind::Stopping
    }

    pub(super) fn is_answer_too_large(&self) -> bool {
        self.kind == Kind::AnswerTooLarge
    }

    /// Returns the error in the format of Lambda's Invoke.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({ "errorType": self.error_type, "errorMessage": self.error_message })
    }
}

impl fmt::Display for FunctionError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.error_type, self.error_message)
    }
}

impl std::error::Error for FunctionError {}

/// Why the functions cannot be prepared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FunctionsError {
    /// Binaries do not exist.
    #[error("function binaries are missing: {}; build the functions, or set their folder with --functions", list(.0))]
    MissingBinaries(Vec<PathBuf>),
    /// The data folder cannot be written.
    #[error("cannot prepare the data folder {}: {source}", folder.display())]
    Data {
        /// The folder.
        folder: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The first processes of these functions did not begin to work. As a rule, a setting is wrong.
    #[error("{}", lines(.0))]
    EndedEarly(Vec<EndedEarly>),
}

/// A function whose first process ended before its first event, or requested none in time.
#[derive(Debug, thiserror::Error)]
#[error(
    "the function {function} ended before its first event; its log is {}, and ends with: {why}",
    log.display()
)]
pub struct EndedEarly {
    /// The function.
    pub function: String,
    /// What the process wrote last, or else how it ended.
    pub why: String,
    /// The file with all that it wrote.
    pub log: PathBuf,
}

/// Returns a line for each reason: one wrong setting may end several functions.
fn lines(ended: &[EndedEarly]) -> String {
    let mut groups: Vec<Vec<&EndedEarly>> = Vec::new();
    for one in ended {
        let has_reason = |group: &&mut Vec<&EndedEarly>| group.iter().any(|it| it.why == one.why);
        match groups.iter_mut().find(has_reason) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    let lines: Vec<String> = groups.iter().map(|group| line(group)).collect();
    lines.join("\n")
}

/// Returns the line of functions that ended for one reason.
fn line(group: &[&EndedEarly]) -> String {
    if let [one] = group {
        return one.to_string();
    }
    let functions: Vec<&str> = group.iter().map(|it| it.function.as_str()).collect();
    let logs: Vec<String> = group
        .iter()
        .map(|it| it.log.display().to_string())
        .collect();
    format!(
        "the functions {} ended before their first events; their logs are {}, and end with: {}",
        in_words(&functions),
        in_words(&logs),
        group.first().map_or("", |it| it.why.as_str())
    )
}

/// Lists texts as a sentence does.
fn in_words<T: std::borrow::Borrow<str>>(texts: &[T]) -> String {
    match texts {
        [before @ .., last] if !before.is_empty() => {
            format!("{} and {}", before.join(", "), last.borrow())
        }
        _ => texts.join(", "),
    }
}

fn list(paths: &[PathBuf]) -> String {
    paths
        .iter()
        .map(|path| path.display().to_string())
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_reason_for_which_several_functions_ended_is_said_once() {
        let ended = |function: &str, why: &str| EndedEarly {
            function: function.to_owned(),
            why: why.to_owned(),
            log: format!("/data/logs/{function}.log").into(),
        };
        let both = [
            ended("first", "AUTH is wrong"),
            ended("second", "no memory"),
            ended("third", "AUTH is wrong"),
            ended("fourth", "AUTH is wrong"),
        ];
        assert_eq!(
            FunctionsError::EndedEarly(both.into()).to_string(),
            "the functions first, third and fourth ended before their first events; their logs are /data/logs/first.log, /data/logs/third.log and /data/logs/fourth.log, and end with: AUTH is wrong\n\
             the function second ended before its first event; its log is /data/logs/second.log, and ends with: no memory"
        );
    }
}
