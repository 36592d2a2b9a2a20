//! Parsers of files that clients send, run so that a panic harms nothing else.

use crate::debuginfo::caught;

/// Runs a parser of a file that a client sent. A panic is an error like any other.
///
/// # Errors
///
/// The parser failed or panicked. The message says what is wrong with the file; `what` names the
/// kind of file.
pub fn parsed<T, E: std::error::Error>(
    what: &str,
    parse: impl FnOnce() -> Result<T, E>,
) -> Result<T, String> {
    match caught(parse) {
        Ok(parsed) => parsed.map_err(|error| error.to_string()),
        Err(panic) => {
            tracing::error!(panic, what, "the parser of a crash file panicked");
            Err(format!("the parser cannot read this {what}"))
        }
    }
}
