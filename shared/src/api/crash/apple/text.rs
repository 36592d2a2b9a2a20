//! Reports in the text format.
//!
//! `apple-crash-report-parser` reads them, except for some things, which are changed before:
//!
//! - the backtraces of exceptions, which are given to it as threads;
//! - the header of the registers of ARM, and modules without an architecture, as macOS writes them,
//!   which it does not know;
//! - facts that it cannot read, and that would make the whole report invalid, and lines in the list
//!   of modules that would end it: they are left out;
//! - lines of excessive length.
//!
//! It does not tell functions from what follows them (`frame_text`).

use std::borrow::Cow;
use std::collections::BTreeMap;

use apple_crash_report_parser::{self as parser, AppleCrashReport};

use super::frame_text::{FrameText, last_parentheses};
use super::parsed::{
    AppleReportError, LAST_EXCEPTION, ParsedReport, ReportCounts, ThreadNames, backtrace,
    backtrace_name, module, of_thread,
};
use super::system::{OsVersion, architecture};
use crate::api::crash::CrashFacts;
use crate::api::symbolicator::{Frame, Hex, Stacktrace, SystemInfo};

/// The maximum length of a line, in bytes. The rest of a longer line is not read: the parser
/// matches each line with regular expressions. The longest lines are those of mangled names.
const LINE_BYTES: usize = 16 * 1024;

/// The number of the threads as which the parser reads the backtraces of exceptions. No report has
/// so many threads.
const BACKTRACE_THREAD: u64 = u64::MAX;

/// The header of the list of modules.
const MODULES_HEADER: &str = "Binary Images:";

/// The facts whose form the parser checks.
const CHECKED: [&str; 3] = ["Incident Identifier:", "Report Version:", "Date/Time:"];

/// The beginnings of the names of architectures in the list of modules.
const ARCHITECTURES: [&str; 5] = ["arm", "i386", "ppc", "unknown", "x86_64"];

/// The end of the header of the registers, where a width may follow in parentheses.
const THREAD_STATE: &str = " Thread State";

/// What precedes the name of a dispatch queue.
const QUEUE: &str = "Dispatch queue:";

/// Reads a report. The counts may have parts of the same report that were read before.
pub(super) fn parse(
    text: &str,
    counts: &mut ReportCounts,
) -> Result<ParsedReport, AppleReportError> {
    let report: AppleCrashReport = prepared(text, counts)?.parse()?;
    let facts = facts(&report);
    let (mut stacktraces, mut backtraces) = (Vec::new(), Vec::new());
    for thread in report.threads {
        if thread.id == BACKTRACE_THREAD {
            let name = thread.name.as_deref().unwrap_or(LAST_EXCEPTION);
            backtraces.extend(backtrace(name, frames(thread.frames)));
        } else {
            stacktraces.push(stacktrace(thread));
        }
    }
    stacktraces.append(&mut backtraces);
    // A module at zero stands for all addresses outside of the others: `0x0 - 0xffffffffffffffff
    // ??? (*)`, as macOS converts a report in JSON to text.
    let modules = report.binary_images.into_iter();
    let modules = modules
        .filter(|image| image.addr.0 != 0)
        .map(|image| module(image.uuid, &image.path, image.addr.0, image.size));
    Ok(ParsedReport {
        facts,
        stacktraces,
        modules: modules.collect(),
    })
}

/// Returns the text as it is given to the parser, which has no limits: what it will find is counted
/// here.
fn prepared(text: &str, counts: &mut ReportCounts) -> Result<String, AppleReportError> {
    let mut prepared = String::with_capacity(text.len());
    let (mut is_backtrace, mut is_module) = (false, false);
    for line in text.lines() {
        let line = &line[..line.floor_char_boundary(LINE_BYTES)];
        let addresses = line.trim().strip_prefix('(').filter(|_| is_backtrace);
        let is_checked = CHECKED
            .iter()
            .any(|fact| line.trim_start().starts_with(fact));
        if is_checked && line.parse::<AppleCrashReport>().is_err() {
            continue;
        }
        is_module |= line.starts_with(MODULES_HEADER);
        if is_module && line.trim_start().starts_with("0x") {
            let module = with_architecture(line).filter(|module| is_known(module));
            let Some(module) = module else { continue };
            counts.add_module()?;
            prepared.push_str(&module);
        } else if let Some(name) = backtrace_name(line) {
            is_backtrace = true;
            counts.add_thread()?;
            prepared.push_str(&format!("Thread {BACKTRACE_THREAD}: {name}"));
        } else if let Some(addresses) = addresses {
            prepared.push_str(&as_frames(addresses, counts)?);
        } else {
            is_backtrace &= !line.starts_with("Thread ");
            if begins_thread(line) {
                counts.add_thread()?;
            } else if may_be_frame(line) {
                counts.add_frame()?;
            }
            match state_header(line) {
                Some(header) => prepared.extend([header, ":"]),
                None => prepared.push_str(line),
            }
        }
        prepared.push('\n');
    }
    Ok(prepared)
}

/// Returns whether the parser begins a thread at a line.
fn begins_thread(line: &str) -> bool {
    let after = line.strip_prefix("Thread ").and_then(after_number);
    let after = after.map(|after| after.strip_prefix(" Crashed").unwrap_or(after));
    after.is_some_and(|after| after.starts_with(':'))
}

/// Returns whether the parser may read a line as a frame.
fn may_be_frame(line: &str) -> bool {
    let after = after_number(line);
    after.is_some_and(|after| after.starts_with(char::is_whitespace) && after.contains("0x"))
}

/// Returns what follows the number that a text begins with.
fn after_number(text: &str) -> Option<&str> {
    let after = text.trim_start_matches(|c: char| c.is_ascii_digit());
    (after.len() < text.len()).then_some(after)
}

/// Returns a line of the list of modules as the parser knows it, with an architecture.
fn with_architecture(line: &str) -> Option<String> {
    let (before, id) = line.split_once(" <")?;
    let before = before.trim_end();
    let version = last_parentheses(before).unwrap_or(before.len());
    let (name, version) = before.split_at(version);
    // The parser ends a version at its first parenthesis.
    let version = match version.trim().strip_prefix('(') {
        Some(version) => format!("({})", version.replace(['(', ')'], "")),
        None => String::new(),
    };
    let last = name.split_whitespace().next_back()?;
    let has_architecture = ARCHITECTURES.iter().any(|known| last.starts_with(known));
    // The range of addresses, and the name.
    let is_name = name.split_whitespace().count() < 5;
    let architecture = if has_architecture && !is_name {
        ""
    } else {
        " unknown"
    };
    Some(format!("{name}{architecture} {version} <{id}"))
}

/// Returns whether the parser reads a line of the list of modules.
fn is_known(module: &str) -> bool {
    let list = format!("{MODULES_HEADER}\n{module}\n");
    let report = list.parse::<AppleCrashReport>();
    report.is_ok_and(|report| !report.binary_images.is_empty())
}

/// Returns the beginning of a header such as `Thread 1 crashed with ARM Thread State (64-bit):`.
fn state_header(line: &str) -> Option<&str> {
    let (before, after) = line.split_once(THREAD_STATE)?;
    let has_width = after.trim_start().starts_with('(') && after.trim_end().ends_with("):");
    let is_header = before.starts_with("Thread ") && before.contains(" crashed with ");
    (is_header && has_width).then(|| &line[..before.len() + THREAD_STATE.len()])
}

/// Returns the lines of frames for a list of addresses, the form of backtraces without names.
fn as_frames(addresses: &str, counts: &mut ReportCounts) -> Result<String, AppleReportError> {
    let addresses = addresses.trim_end_matches(')').split_whitespace();
    let mut lines = Vec::new();
    for address in addresses.filter(|address| address.starts_with("0x")) {
        counts.add_frame()?;
        lines.push(format!("0   ???   {address} {address} + 0"));
    }
    Ok(lines.join("\n"))
}

fn facts(report: &AppleCrashReport) -> CrashFacts {
    let metadata = |name: &str| -> Option<&str> {
        let value: Option<&String> = report.metadata.get(name);
        value.map(String::as_str).filter(|value| !value.is_empty())
    };
    let OsVersion {
        name,
        version,
        build,
    } = OsVersion::split(metadata("OS Version").unwrap_or_default());
    let information = report.application_specific_information.as_deref();
    let details = ["Exception Message", "Exception Subtype", "Exception Codes"];
    let details = information
        .map(str::trim_end)
        .filter(|text| !text.is_empty())
        .or_else(|| details.into_iter().find_map(metadata));
    let timestamp = report.timestamp.map(|time| time.timestamp());
    CrashFacts {
        timestamp: timestamp.and_then(|seconds| u64::try_from(seconds).ok()),
        system_info: Some(SystemInfo {
            os_name: name,
            os_version: version,
            os_build: build,
            cpu_arch: architecture(report.code_type.as_deref().unwrap_or_default()).to_owned(),
            device_model: metadata("Hardware Model").unwrap_or_default().to_owned(),
        }),
        crashed: Some(true),
        crash_reason: metadata("Exception Type").map(str::to_owned),
        crash_details: details.map(str::to_owned),
        assertion: None,
    }
}

fn stacktrace(thread: parser::Thread) -> Stacktrace {
    let registers: Option<BTreeMap<String, parser::Addr>> = thread.registers;
    let registers = registers.unwrap_or_default().into_iter();
    let names = match (&thread.name, &thread.dispatch_queue) {
        (Some(name), None) => names(name),
        (name, queue) => ThreadNames {
            name: name.as_deref(),
            queue: queue.as_deref(),
        },
    };
    Stacktrace {
        thread_id: Some(thread.id),
        thread_name: names.shown(),
        is_requesting: Some(thread.crashed),
        registers: registers
            .map(|(name, value)| (name, Hex(value.0)))
            .collect(),
        frames: of_thread(frames(thread.frames)),
    }
}

/// Splits the rest of a thread's header, such as `: name  Dispatch queue: com.apple.main-thread`.
fn names(text: &str) -> ThreadNames<'_> {
    let text = text.trim_start_matches(':');
    match text.split_once(QUEUE) {
        Some((name, queue)) => ThreadNames {
            name: Some(name),
            queue: Some(queue),
        },
        None => ThreadNames {
            name: Some(text),
            queue: None,
        },
    }
}

/// Returns the frames of a thread. Functions that are inlined into that of the next frame are left
/// out: they are found again by its address.
fn frames(frames: Vec<parser::Frame>) -> Vec<Frame> {
    let mut called = Vec::with_capacity(frames.len());
    let mut frames = frames.into_iter().peekable();
    while let Some(frame) = frames.next() {
        let text = text_of(&frame);
        let text = FrameText::parse(&text);
        let next = frames.peek().map(|next| next.instruction_addr);
        if !text.is_inlined || next != Some(frame.instruction_addr) {
            called.push(as_frame(&frame, text));
        }
    }
    called
}

fn as_frame(frame: &parser::Frame, text: FrameText<'_>) -> Frame {
    Frame {
        instruction_addr: Hex(frame.instruction_addr.0),
        package: frame.module.as_deref().map(Into::into),
        function: text.function.map(Into::into),
        filename: text.place.map(|place| place.file.into()),
        lineno: text.place.map(|place| place.line),
        ..Frame::default()
    }
}

/// Returns the text of a frame after its address. The parser splits it at the first parenthesis
/// after a space, and leaves an offset in the name.
fn text_of(frame: &parser::Frame) -> Cow<'_, str> {
    let symbol = frame.symbol.as_deref().unwrap_or_default();
    match (&frame.filename, frame.lineno) {
        (Some(file), Some(line)) => Cow::Owned(format!("{symbol} ({file}:{line})")),
        _ => Cow::Borrowed(symbol),
    }
}
