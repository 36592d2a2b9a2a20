//! What both formats have in common: the content of a report, and why it cannot be read.

use uuid::Uuid;

use crate::api::crash::CrashFacts;
use crate::api::limits;
use crate::api::symbolicator::{Frame, Hex, Module, Stacktrace};
use crate::domain::{CodeId, DebugId, ObjectType, interrupts_its_caller};

/// The maximum size of a report, in bytes after decompression. Reports of processes with a thousand
/// threads have about 4 MB.
pub const REPORT_BYTES: usize = 8 * 1024 * 1024;

/// The name of the stack trace of the last exception.
pub(super) const LAST_EXCEPTION: &str = "Last Exception Backtrace";

/// The name of the stack trace of an exception that an application or a library noted for the
/// report, before its number.
pub(super) const APPLICATION_BACKTRACE: &str = "Application Specific Backtrace";

/// Why a report cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum AppleReportError {
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

/// The content of a report, in either format.
pub(super) struct ParsedReport {
    pub(super) facts: CrashFacts,
    pub(super) stacktraces: Vec<Stacktrace>,
    pub(super) modules: Vec<Module>,
}

/// What was found of a report so far. The readers count each thread, frame and module before they
/// keep it: a report of few bytes per frame is refused before it takes a multiple of its size in
/// memory.
#[derive(Debug, Default)]
pub(super) struct ReportCounts {
    threads: usize,
    frames: usize,
    modules: usize,
}

impl ReportCounts {
    pub(super) fn add_thread(&mut self) -> Result<(), AppleReportError> {
        add(&mut self.threads, "threads", limits::STACKTRACES)
    }

    pub(super) fn add_frame(&mut self) -> Result<(), AppleReportError> {
        add(&mut self.frames, "frames", limits::FRAMES)
    }

    pub(super) fn add_module(&mut self) -> Result<(), AppleReportError> {
        add(&mut self.modules, "modules", limits::MODULES)
    }
}

/// Counts one more of something.
fn add(count: &mut usize, what: &'static str, limit: usize) -> Result<(), AppleReportError> {
    if *count >= limit {
        return Err(AppleReportError::TooMany { what, limit });
    }
    *count += 1;
    Ok(())
}

/// The name of a thread, and of the dispatch queue that it served.
#[derive(Default)]
pub(super) struct ThreadNames<'a> {
    pub(super) name: Option<&'a str>,
    pub(super) queue: Option<&'a str>,
}

impl ThreadNames<'_> {
    /// Returns the name to show: that of the thread, else that of its queue.
    pub(super) fn shown(&self) -> Option<String> {
        let names = [self.name, self.queue].into_iter().flatten();
        let mut names = names.map(str::trim).filter(|name| !name.is_empty());
        names.next().map(str::to_owned)
    }
}

/// Returns a module of a report. Both of its files have the same name and id.
pub(super) fn module(id: Uuid, path: &str, address: u64, size: u64) -> Module {
    let is_known = !id.is_nil();
    let path = Some(path).filter(|path| !path.is_empty());
    Module {
        object_type: ObjectType::Macho,
        code_id: is_known.then(|| CodeId::from_binary(id.as_bytes())),
        code_file: path.map(Into::into),
        debug_id: is_known.then(|| DebugId::from_uuid(id)),
        debug_file: path.map(str::to_owned),
        image_addr: Hex(address),
        image_size: Some(size),
        ..Module::default()
    }
}

/// Returns the frames of a thread. Those that a signal interrupted are marked: nothing returns to
/// their addresses. Without a mark, each frame but the topmost one is at a return address.
pub(super) fn of_thread(mut frames: Vec<Frame>) -> Vec<Frame> {
    let interrupted = interrupted(&frames);
    if !interrupted.is_empty() {
        // If any frame is marked, the topmost one counts as a caller unless it is marked, too.
        mark_exact(&mut frames, [0].into_iter().chain(interrupted));
    }
    frames
}

/// Returns the indices of the frames that a signal interrupted: each is behind the function that
/// called the handler.
fn interrupted(frames: &[Frame]) -> Vec<usize> {
    let callees = (1..frames.len()).zip(frames);
    let after_trampoline = callees
        .filter(|(_, callee)| {
            let function = callee.function.as_deref();
            let address = callee.instruction_addr.0;
            function.is_some_and(|function| interrupts_its_caller(function, address))
        })
        .map(|(at, _)| at);
    after_trampoline.collect()
}

/// Marks frames whose address is that of the next instruction, not a return address.
fn mark_exact(frames: &mut [Frame], exact: impl IntoIterator<Item = usize>) {
    for at in exact {
        if let Some(frame) = frames.get_mut(at) {
            frame.adjust_instruction_addr = Some(false);
        }
    }
}

/// Returns the stack trace of the backtrace of an exception, of which every address is a return
/// address, except for those that a signal interrupted; `None` if it has no frames.
pub(super) fn backtrace(name: &str, mut frames: Vec<Frame>) -> Option<Stacktrace> {
    let interrupted = interrupted(&frames);
    for frame in &mut frames {
        frame.adjust_instruction_addr = Some(true);
        // `backtrace_symbols` names the module in place of a function that it does not know.
        if frame.function == frame.package {
            frame.function = None;
        }
    }
    mark_exact(&mut frames, interrupted);
    (!frames.is_empty()).then(|| Stacktrace {
        thread_name: Some(name.to_owned()),
        is_requesting: Some(false),
        frames,
        ..Stacktrace::default()
    })
}

/// Returns the name of a backtrace whose header in a report in text is this line.
pub(in crate::api) fn backtrace_name(line: &str) -> Option<&str> {
    let name = line.trim_end().strip_suffix(':')?;
    let number = name.strip_prefix(APPLICATION_BACKTRACE);
    let is_number = |text: &str| text.trim_start().parse::<u32>().is_ok();
    (name == LAST_EXCEPTION || number.is_some_and(is_number)).then_some(name)
}
