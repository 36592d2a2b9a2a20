//! The reasons why a cache cannot be derived, and conversions from the errors of libraries.

use std::error::Error;
use std::io;

use crate::domain::{Cause, Missing};

/// The reason why a cache was not derived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The reason lies in the DIF.
    Missing(Missing),
    /// Memory ran out. The caller knows the limit, because the caller set it.
    OutOfMemory,
}

pub(super) fn malformed(detail: String) -> Failure {
    Failure::Missing(Missing::malformed(detail))
}

/// The rest of the DIF does not arrive. The parent process knows why, and ignores this.
pub(super) fn not_arrived(error: io::Error) -> Failure {
    malformed(format!("the file did not arrive: {error}"))
}

pub(super) fn unsupported(detail: String) -> Failure {
    Failure::Missing(Missing::new(Cause::Unsupported, detail))
}

/// Writing fails for two reasons only: the size limit, and lack of memory.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::FileTooLarge => malformed(error.to_string()),
            _ => Self::OutOfMemory,
        }
    }
}

/// Returns the kind of the first I/O error among an error and its causes.
pub(super) fn io_error(error: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    let mut error = Some(error);
    while let Some(current) = error {
        if let Some(io) = current.downcast_ref::<io::Error>() {
            return Some(io.kind());
        }
        error = current.source();
    }
    None
}

/// Returns an error and its causes in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}
