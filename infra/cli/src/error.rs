//! Errors that end a command. Each says what failed and what to do.

use std::path::{Path, PathBuf};

use symdepot::api::report::ReportError;
use thiserror::Error;

use crate::Exit;
use crate::visible::visible;

/// Why a command failed.
#[derive(Debug, Error)]
pub(crate) enum CliError {
    #[error("cannot start the async runtime: {0}")]
    Runtime(std::io::Error),
    #[error("cannot write the result: {0}")]
    Output(std::io::Error),
    #[error("{path}: {error}", path = shown(path))]
    File {
        path: PathBuf,
        error: std::io::Error,
    },
    #[error("{path} has more than {limit} bytes, the limit of {what}", path = shown(path))]
    TooLarge {
        path: PathBuf,
        what: &'static str,
        limit: u64,
    },
    /// Why a file cannot be inspected, without its path.
    #[error("{0}")]
    Inspection(String),
    #[error("{path}: {error}", path = shown(path))]
    Report { path: PathBuf, error: ReportError },
    #[error("{path}: {cause}", path = shown(path))]
    Unreadable { path: PathBuf, cause: String },
    #[error("{path} is {what}, which this command does not read: {instead}", path = shown(path))]
    OtherReport {
        path: PathBuf,
        what: &'static str,
        instead: &'static str,
    },
    #[cfg(feature = "serve")]
    #[error("{0}")]
    Serve(String),
    #[error("{0}")]
    Settings(String),
    #[error("{0}")]
    Usage(String),
    #[error("{url} does not answer: {cause}. Is it running, and is the address right?")]
    NoAnswer { url: String, cause: String },
    #[error("{url}: {cause}")]
    Connection { url: String, cause: String },
    #[error("{url} refused the request (401): {cause}; {remedy}")]
    Unauthorized {
        url: String,
        cause: String,
        remedy: String,
    },
    #[error("{url} refused the request (403): {cause}")]
    Forbidden { url: String, cause: String },
    #[error("{url} does not read {what}: it is symdepot {version}, and newer versions do")]
    OlderService {
        url: String,
        version: String,
        what: &'static str,
    },
    #[error("{path} has {bytes} bytes{how}; {url} accepts {limit} in a request, and cannot store more", path = shown(path))]
    TooLargeToSend {
        path: PathBuf,
        bytes: u64,
        /// What was done to the file, for people.
        how: &'static str,
        url: String,
        limit: u64,
    },
    #[error("{url} cannot symbolicate it: {cause}")]
    Failed { url: String, cause: String },
    #[error("{url} does not support {path}: it is another service, or an older version")]
    Unsupported { url: String, path: String },
    #[error("{url} answered {status}: {cause}")]
    Status {
        url: String,
        status: u16,
        cause: String,
    },
    /// An upload that was interrupted by a failure which may be over at the next attempt.
    #[error("{0}; run the command again: files that were sent are not sent again")]
    UploadInterrupted(Box<Self>),
    #[error("{what} was not found: {cause}")]
    NotFound { what: String, cause: String },
    #[error("{path} was not sent: {cause}", path = shown(path))]
    NotSent { path: PathBuf, cause: String },
    #[error("no credentials for signing requests to {host}: {cause}")]
    Credentials { host: String, cause: String },
    #[error("the answer of {url} is not what this command expects: {cause}")]
    Answer { url: String, cause: String },
}

/// Returns the path of an input for people, in one line.
pub(crate) fn shown(path: &Path) -> String {
    if path == Path::new("-") {
        "standard input".to_owned()
    } else {
        visible(&path.display().to_string())
    }
}

impl CliError {
    /// Returns why a file cannot be read, without its path.
    pub(crate) fn cause(&self) -> String {
        match self {
            Self::File { error, .. } => error.to_string(),
            Self::TooLarge { what, limit, .. } => {
                format!("it has more than {limit} bytes, the limit of {what}")
            }
            other => other.to_string(),
        }
    }

    /// Returns the error of an upload that was interrupted by this one, with what to do.
    pub(crate) fn of_upload(self) -> Self {
        let is_of_a_moment = match &self {
            Self::Connection { .. } => true,
            Self::Status { status, .. } => matches!(status, 429 | 500 | 502..=504),
            _ => false,
        };
        if is_of_a_moment {
            Self::UploadInterrupted(Box::new(self))
        } else {
            self
        }
    }

    /// Returns the exit code.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Settings(_) | Self::Usage(_) => Exit::Usage,
            Self::NotFound { .. } => Exit::Incomplete,
            _ => Exit::Failed,
        }
    }
}

/// Returns an error with its causes, the most immediate last.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// Returns the cause of an error that has no further cause: what the system says.
pub(crate) fn root(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .last()
        .map(ToString::to_string)
        .unwrap_or_default()
}
