//! Why something cannot be derived, and how errors of libraries become that.

use std::error::Error;
use std::io;

use crate::domain::{Cause, Missing};

/// Why nothing was derived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// For a reason in the DIF.
    Missing(Missing),
    /// There is not enough memory. The caller that set the limit knows it.
    OutOfMemory,
}

pub(super) fn malformed(detail: String) -> Failure {
    Failure::Missing(Missing::malformed(detail))
}

pub(super) fn unsupported(detail: String) -> Failure {
    Failure::Missing(Missing::new(Cause::Unsupported, detail))
}

/// Writing fails for two reasons only: the limit, and want of memory.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::FileTooLarge => malformed(error.to_string()),
            _ => Self::OutOfMemory,
        }
    }
}

/// Returns the kind of the I/O error that caused another, if one did.
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

/// Returns an error and what caused it, in one line.
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
