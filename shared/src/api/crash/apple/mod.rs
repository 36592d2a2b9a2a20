//! Crash reports of Apple's systems, in both formats.
//!
//! - *Text* (`.crash`): up to macOS 11 and iOS 14, of PLCrashReporter, and as other tools convert
//!   reports today. The crate `apple-crash-report-parser` reads it (`text`).
//! - *JSON* (`.ips`): since macOS 12 and iOS 15. Two JSON values, a header of one line and the
//!   report. Apple describes it in "Interpreting the JSON format of a crash report" (`ips`).
//!
//! Both become the same [`CrashReport`]. Its threads have the numbers that the report shows. The
//! last exception's backtrace, if there is one, is a further stack trace without an id. Its
//! addresses are return addresses, including the first.

mod ips;
mod system;
mod text;

use super::{CrashFacts, CrashReport};
use crate::api::limits;
use crate::api::symbolicator::{Frame, Module, Request, Stacktrace};
use crate::domain::{CodeId, DebugId, ObjectType};
use uuid::Uuid;

/// The maximum size of a report, in bytes after decompression. Reports of processes with a thousand
/// threads have about 4 MB.
pub const REPORT_BYTES: usize = 8 * 1024 * 1024;

/// The name of the stack trace of the last exception.
const LAST_EXCEPTION: &str = "Last Exception Backtrace";

/// Why a report cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The report exceeds [`REPORT_BYTES`].
    #[error("the report has {0} bytes, and the limit is {REPORT_BYTES}")]
    TooLong(usize),
    /// The report is not in the text format.
    #[error("not an Apple crash report: {0}")]
    Text(#[from] apple_crash_report_parser::ParseError),
    /// The report is not in the JSON format.
    #[error("not an Apple crash report in JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The report is of another type, such as one about memory or energy use.
    #[error("the report has no threads; its bug_type is {0}, and that of a crash is 309")]
    NotACrash(String),
    /// The report has no threads.
    #[error("not an Apple crash report: it has no threads")]
    NoThreads,
    /// The report has more of something than a request may have.
    #[error("the report has more than {limit} {what}")]
    TooMany {
        /// What exceeds the limit.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

/// Reads a report in either format.
///
/// # Errors
///
/// [`ReportError`] if the file is not a crash report, or exceeds a limit.
pub fn parse_report(file: &[u8]) -> Result<CrashReport, ReportError> {
    if file.len() > REPORT_BYTES {
        return Err(ReportError::TooLong(file.len()));
    }
    let file = file.strip_prefix(b"\xef\xbb\xbf").unwrap_or(file);
    let first = file.iter().find(|byte| !byte.is_ascii_whitespace());
    let parsed = match first {
        Some(b'{') => ips::parse(file)?,
        _ => text::parse(&String::from_utf8_lossy(file))?,
    };
    let ParsedReport {
        facts,
        stacktraces,
        modules,
    } = parsed;
    if stacktraces.is_empty() {
        return Err(ReportError::NoThreads);
    }
    let frames = stacktraces.iter().map(|stacktrace| stacktrace.frames.len());
    for (what, count, limit) in [
        ("threads", stacktraces.len(), limits::STACKTRACES),
        ("frames", frames.sum(), limits::FRAMES),
        ("modules", modules.len(), limits::MODULES),
    ] {
        if count > limit {
            return Err(ReportError::TooMany { what, limit });
        }
    }
    Ok(CrashReport {
        facts: facts.shortened(),
        request: Request {
            stacktraces,
            modules,
            ..Request::default()
        },
        unwinding: Vec::new(),
    })
}

/// The content of a report, in either format.
struct ParsedReport {
    facts: CrashFacts,
    stacktraces: Vec<Stacktrace>,
    modules: Vec<Module>,
}

/// The name of a thread, and of the dispatch queue that it served.
#[derive(Default)]
struct ThreadNames<'a> {
    name: Option<&'a str>,
    queue: Option<&'a str>,
}

impl ThreadNames<'_> {
    /// Returns the name to show: that of the thread, else that of its queue.
    fn shown(&self) -> Option<String> {
        let names = [self.name, self.queue].into_iter().flatten();
        let mut names = names.map(str::trim).filter(|name| !name.is_empty());
        names.next().map(str::to_owned)
    }
}

/// Returns a module of a report. Both of its files have the same name and id.
fn module(id: Uuid, path: &str, address: u64, size: u64) -> Module {
    let is_known = !id.is_nil();
    let path = Some(path).filter(|path| !path.is_empty());
    Module {
        object_type: ObjectType::Macho,
        code_id: is_known.then(|| CodeId::from_binary(id.as_bytes())),
        code_file: path.map(Into::into),
        debug_id: is_known.then(|| DebugId::from_uuid(id)),
        debug_file: path.map(str::to_owned),
        image_addr: crate::api::symbolicator::Hex(address),
        image_size: Some(size),
        ..Module::default()
    }
}

/// Returns the stack trace of the last exception, of which every address is a return address.
fn last_exception(mut frames: Vec<Frame>) -> Option<Stacktrace> {
    for frame in &mut frames {
        frame.adjust_instruction_addr = Some(true);
    }
    (!frames.is_empty()).then(|| Stacktrace {
        thread_name: Some(LAST_EXCEPTION.to_owned()),
        is_requesting: Some(false),
        frames,
        ..Stacktrace::default()
    })
}

#[cfg(test)]
mod tests;
