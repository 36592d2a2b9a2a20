//! Parsers of files that clients send, run so that a panic harms nothing else.

use crate::debuginfo::caught;

/// Runs a parser of a file that a client sent. A panic is an error like any other. Its message is
/// neither logged nor part of the error, because it may quote the file.
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
        Err(_) => {
            tracing::error!(what, "the parser of a crash file panicked");
            Err(format!("the parser cannot read this {what}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("it is empty")]
    struct Empty;

    #[test]
    fn a_parser_that_panics_has_an_error_that_names_the_file_and_nothing_in_it() {
        let panicking = || -> Result<(), Empty> { panic!("secret {}", 7) };
        let failed = parsed("report", panicking);
        assert_eq!(failed, Err("the parser cannot read this report".to_owned()));
        assert_eq!(
            parsed("report", || Err::<(), _>(Empty)),
            Err("it is empty".to_owned())
        );
        assert_eq!(parsed("report", || Ok::<_, Empty>(1)), Ok(1));
    }
}
