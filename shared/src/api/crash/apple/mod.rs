//! Crash reports of Apple's systems, in both formats.
//!
//! - *Text* (`.crash`): up to macOS 11 and iOS 14, of PLCrashReporter, and as other tools convert
//!   reports today. The crate `apple-crash-report-parser` reads it (`text`). Devices up to iOS 14
//!   store it as `.ips`, after a header of one line in JSON, which repeats what the text says.
//! - *JSON* (`.ips`): since macOS 12 and iOS 15. Two JSON values, a header of one line and the
//!   report. Apple describes it in "Interpreting the JSON format of a crash report" (`ips`).
//!
//! Reports that were copied may be in UTF-16, or quoted (`decoded`).
//!
//! Both become the same [`ReadCrash`]. Its threads have the numbers that the report shows. The
//! backtraces of exceptions are further stack traces without an id: that of the last exception, and
//! those that an application or a library noted for the report. Their addresses are return
//! addresses, including the first.
//!
//! A frame behind `_sigtramp`, which calls the handlers of signals, was interrupted: its address is
//! no return address.
//!
//! A function that the report marks as inlined is no frame of its own: it has the address of the
//! next frame, of which all inlined functions are looked up. In modules without a debug file, that
//! of the next frame alone is known.

mod decoded;
mod frame_text;
mod ips;
mod lenient;
mod parsed;
mod system;
mod text;

use serde::de::IgnoredAny;

pub(in crate::api) use self::decoded::decoded;
pub(in crate::api) use self::frame_text::{FrameText, last_parentheses};
pub(in crate::api) use self::parsed::backtrace_name;
pub use self::parsed::{AppleReportError, REPORT_BYTES};
use self::parsed::{ParsedReport, ReportCounts};
use super::ReadCrash;
use crate::api::symbolicator::Request;

/// Reads a report in either format.
///
/// # Errors
///
/// [`AppleReportError`] if the file is not a crash report, or exceeds a limit.
pub fn parse_report(file: &[u8]) -> Result<ReadCrash, AppleReportError> {
    if file.len() > REPORT_BYTES {
        return Err(AppleReportError::TooLong(file.len()));
    }
    let file = decoded(file);
    let file = file.trim_ascii_start();
    let parsed = match text_of(file) {
        Some(text) => text::parse(text, &mut ReportCounts::default())?,
        None => ips::parse(file)?,
    };
    let ParsedReport {
        facts,
        stacktraces,
        modules,
    } = parsed;
    if stacktraces.is_empty() {
        return Err(AppleReportError::NoThreads);
    }
    Ok(ReadCrash {
        facts: facts.shortened(),
        request: Request {
            stacktraces,
            modules,
            ..Request::default()
        },
        ..ReadCrash::default()
    })
}

/// Returns the text of a report in the text format, without a header in JSON; `None` for a report
/// in JSON.
fn text_of(file: &str) -> Option<&str> {
    if !file.starts_with('{') {
        return Some(file);
    }
    let (header, text) = file.split_once('\n')?;
    let text = text.trim_ascii_start();
    let is_text = !text.is_empty() && !text.starts_with('{');
    let has_header = is_text && serde_json::from_str::<IgnoredAny>(header).is_ok();
    has_header.then_some(text)
}

#[cfg(test)]
mod tests;
