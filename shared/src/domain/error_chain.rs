//! What an error says together with its causes.

use std::error::Error;

/// Returns an error with all its causes, on one line.
pub fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
