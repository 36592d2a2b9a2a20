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

/// The start of the reason why no unwind information is derived for a machine.
const NO_UNWINDING: &str = "unwinding is not supported on";

/// The most characters of a line that an error quotes.
const MAX_QUOTED: usize = 60;

impl Failure {
    /// Returns the failure to derive unwind information of a machine that is not unwound.
    pub(super) fn not_unwound(machine: &str) -> Self {
        unsupported(format!("{NO_UNWINDING} {machine}"))
    }

    /// Returns whether this is why there is no unwind information of a file: the machine that it is
    /// for is not unwound. Nothing is wrong with the file then.
    pub fn is_of_machine(reason: &str) -> bool {
        reason.starts_with(NO_UNWINDING)
    }
}

/// Returns an error and its causes in one line, without control characters.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    chain_in(error, &[])
}

/// Returns an error and its causes in one line, without control characters. An error that quotes a
/// line of `text` has the number of that line.
pub(super) fn chain_in(error: &dyn std::error::Error, text: &[u8]) -> String {
    let mut chained = one_line(&error.to_string(), text);
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = one_line(&error.to_string(), text);
        if !chained.ends_with(&more) {
            chained.push_str(": ");
            chained.push_str(&more);
        }
        cause = error.source();
    }
    chained
}

/// Returns the text of an error in one line, without control characters.
fn one_line(error: &str, text: &[u8]) -> String {
    let lines = || error.lines().map(str::trim_end);
    let lines = match RecordError::of(lines()) {
        Some(record) => record.describe(text),
        None => lines().map(str::trim_start).collect::<Vec<_>>().join(" "),
    };
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    lines.chars().map(shown).collect()
}

/// What the reader of Breakpad symbol files says about a record. `symbolic` quotes the record after
/// each of the rules that it breaks, and points at the place in a line of its own:
///
/// ```text
/// in section "func record body" at
/// "FUNC zz 12 main"
///       ^
/// ,
/// expected a hexadecimal digit at
/// "FUNC zz 12 main"
///       ^
/// ```
struct RecordError<'e> {
    /// The last rule, which is the most specific.
    rule: &'e str,
    record: &'e str,
    /// From 1.
    column: usize,
}

impl<'e> RecordError<'e> {
    /// Reads the lines of an error; `None` if they do not point at a place in a record.
    fn of(lines: impl Iterator<Item = &'e str>) -> Option<Self> {
        let lines: Vec<&str> = lines.collect();
        let pointed = |of: &&[&'e str]| of[2].trim_start() == "^";
        let [rule, record, pointer] = *lines.windows(3).rfind(pointed)? else {
            return None;
        };
        let rule = rule.trim_start();
        let rule = rule.strip_suffix(" at").unwrap_or(rule);
        let record = record.trim_start();
        let record = record.strip_prefix('"').unwrap_or(record);
        Some(Self {
            rule,
            record: record.strip_suffix('"').unwrap_or(record),
            column: pointer.find('^')?,
        })
    }

    /// Describes the error. The number of the line is that of the first one in `text` with the same
    /// record: the reader stops there.
    fn describe(&self, text: &[u8]) -> String {
        let Self {
            rule,
            record,
            column,
        } = self;
        let is_it = |line: &[u8]| line.trim_ascii() == record.as_bytes();
        let number = text.split(|byte| *byte == b'\n').position(is_it);
        let line = match number {
            Some(number) => format!("line {}, ", number + 1),
            // The reader reads the first line alone, and nothing else if it is wrong.
            None if record.starts_with("MODULE ") => "line 1, ".to_owned(),
            None => String::new(),
        };
        let mut quoted: String = record.chars().take(MAX_QUOTED).collect();
        if quoted.len() < record.len() {
            quoted.push('…');
        }
        format!("{line}column {column}: {rule} in \"{quoted}\"")
    }
}

#[cfg(test)]
mod tests {
    use symbolic::debuginfo::Object;
    use symbolic::debuginfo::breakpad::BreakpadModuleRecord;

    use super::*;

    const SYMBOLS: &[u8] =
        b"MODULE Linux x86_64 502FC0A51EC13E479998684FA139DCA70 app\nFUNC zz 12 \0\x1bmain\n";

    #[test]
    fn an_error_in_a_breakpad_record_is_one_line_with_its_place() {
        let object = Object::parse(SYMBOLS).unwrap();
        let Object::Breakpad(symbols) = &object else {
            panic!("{object:?}");
        };
        let error = symbols.func_records().find_map(Result::err).unwrap();
        let expected = "expected a hexadecimal digit in \"FUNC zz 12 \u{fffd}\u{fffd}main\"";
        assert_eq!(
            chain_in(&error, SYMBOLS),
            format!("parsing error: line 2, column 6: {expected}")
        );
        assert_eq!(
            chain(&error),
            format!("parsing error: column 6: {expected}")
        );
    }

    #[test]
    fn an_error_in_the_first_line_of_breakpad_symbols_quotes_only_its_start() {
        let line = [b"MODULE Linux x86_64 ".to_vec(), vec![0; 4000]].concat();
        let line = [line, b" app".to_vec()].concat();
        let error = BreakpadModuleRecord::parse(&line).unwrap_err();
        let text = chain(&error);
        assert!(text.starts_with("parsing error: line 1, column "), "{text}");
        assert!(text.len() < 250, "{text}");
        assert!(!text.contains(char::is_control), "{text:?}");
    }

    #[test]
    fn the_lines_of_any_error_are_joined() {
        let error = io::Error::other("first\n  second\r\n\tthird\u{7}");
        assert_eq!(chain(&error), "first second third\u{fffd}");
    }
}
