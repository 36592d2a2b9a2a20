//! Crash files: minidumps and Apple's crash reports. The service reads them itself; here they are
//! recognised, and become reports whose frames are shown like those of any other format.

use std::collections::HashMap;
use std::ops::Range;

use memchr::memmem;

use super::cursor::{LineCursor, TextLine, lines};
use super::model::{CrashReport, Place, ReportFormat, ReportFrame, ReportModule, ReportStack};
use super::plain::JsonFields;
use crate::api::crash::apple::{
    AppleReportError, FrameText, REPORT_BYTES, backtrace_name, decoded, parse_report,
};
use crate::api::symbolicator::{Completed, CompletedStacktrace, Stacktrace};

/// The first bytes of a minidump: `MINIDUMP_SIGNATURE` of `minidumpapiset.h`, in both byte orders.
const MINIDUMP_MAGICS: [&[u8]; 2] = [b"MDMP", b"PMDM"];

/// The header of the list of modules in Apple's text format.
const APPLE_MODULES: &[u8] = b"Binary Images:";

/// The field that the header of each of Apple's reports in JSON has: its first line.
const APPLE_TYPE: &str = "bug_type";

/// Fields that the body of each of them has.
const APPLE_FIELDS: [&str; 2] = ["threads", "usedImages"];

/// Fields of Apple's text format that are in the first lines of a report.
const APPLE_HEADINGS: [&str; 2] = ["Incident Identifier:", "Exception Type:"];

/// A kind of crash file, each with a route of its own in the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CrashFileKind {
    /// A minidump.
    Minidump,
    /// A crash report of one of Apple's systems, as text or JSON.
    Apple,
}

impl CrashFileKind {
    /// Recognises a crash file by its contents; `None` if the bytes are none.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        if MINIDUMP_MAGICS.iter().any(|magic| bytes.starts_with(magic)) {
            return Some(Self::Minidump);
        }
        let is_apple =
            is_apple(bytes) || bytes.len() <= REPORT_BYTES && is_apple(decoded(bytes).as_bytes());
        is_apple.then_some(Self::Apple)
    }
}

/// Recognises a report of one of Apple's systems. One that was copied may lack its first line or
/// its list of modules.
fn is_apple(text: &[u8]) -> bool {
    let mut lines = text.split(|byte| *byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let header: Option<JsonFields<'_>> = serde_json::from_slice(first).ok();
    let is_header = |header: JsonFields<'_>| header.get(APPLE_TYPE).is_some();
    header.is_some_and(is_header) || is_apple_body(text) || is_apple_text(text)
}

/// Returns whether a text is the JSON of a report, with any header or none.
fn is_apple_body(text: &[u8]) -> bool {
    let has = |name: &str| memmem::find(text, name.as_bytes()).is_some();
    if !text.trim_ascii_start().starts_with(b"{") || !APPLE_FIELDS.into_iter().all(has) {
        return false;
    }
    let values = serde_json::Deserializer::from_slice(text);
    let values = values.into_iter::<JsonFields<'_>>();
    let mut objects = values.take(2).filter_map(Result::ok);
    objects.any(|fields| APPLE_FIELDS.iter().all(|name| fields.get(name).is_some()))
}

/// Returns whether a text has the list of modules of a report in text; or else a field that only
/// such reports have, and the header of the thread that crashed.
fn is_apple_text(text: &[u8]) -> bool {
    let (mut has_field, mut has_thread) = (false, false);
    text.split(|byte| *byte == b'\n').any(|line| {
        has_field |= APPLE_HEADINGS
            .iter()
            .any(|it| line.starts_with(it.as_bytes()));
        has_thread |= is_crashed_thread(line);
        has_field && has_thread || line.trim_ascii_end() == APPLE_MODULES
    })
}

/// Returns whether a line is a header such as `Thread 3 Crashed:: Dispatch queue: main`.
fn is_crashed_thread(line: &[u8]) -> bool {
    let Some(rest) = line.strip_prefix(b"Thread ") else {
        return false;
    };
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit());
    let digits = digits.count();
    digits > 0 && rest[digits..].starts_with(b" Crashed")
}

impl CrashReport {
    /// Returns the report in a minidump, whose stack traces are known from the response alone. The
    /// addresses are those of the response.
    pub fn of_minidump(completed: &Completed) -> Self {
        Self {
            format: ReportFormat::Minidump,
            modules: completed
                .modules
                .iter()
                .map(|it| ReportModule::of(&it.module))
                .collect(),
            stacks: completed.stacktraces.iter().map(stack).collect(),
            others: Vec::new(),
            request: None,
        }
    }

    /// Reads one of Apple's reports. Names are written only into those in text.
    ///
    /// # Errors
    ///
    /// [`AppleReportError`] if it is not a crash report, or exceeds a limit.
    pub fn of_apple(bytes: &[u8]) -> Result<Self, AppleReportError> {
        let request = parse_report(bytes)?.request;
        let lines = frame_lines(bytes, &request.stacktraces);
        let mut report = Self::of_request(request);
        report.format = ReportFormat::Apple;
        report.find_places(&lines);
        Ok(report)
    }

    /// Sets the places of frames, by the addresses in their lines and by the order or the numbers
    /// of these. The place of a frame that is not found exactly stays unknown. The place of a chain
    /// of inlined functions is that of all its lines.
    fn find_places(&mut self, lines: &[FrameLine]) {
        let mut placed = vec![0; self.stacks.len()];
        let mut chain: Option<&FrameLine> = None;
        for (at, line) in lines.iter().enumerate() {
            let first = chain.take().unwrap_or(line);
            let next = lines.get(at + 1);
            if line.is_inlined && next.is_some_and(|next| next.has_address_of(line)) {
                chain = Some(first);
                continue;
            }
            let frames = &mut self.stacks[line.stack].frames;
            let is_here = |at: &usize| {
                let frame = frames.get(*at);
                frame.is_some_and(|frame| frame.address == Some(line.address))
            };
            let numbers = [placed[line.stack], line.number];
            if let Some(number) = numbers.into_iter().find(is_here) {
                let name = first.name.start..line.name.end;
                let range = first.line.start..line.line.end;
                frames[number].place = Some(Place::in_text(name, range));
                placed[line.stack] = number + 1;
            }
        }
    }
}

/// The line of a frame in a report in text.
struct FrameLine {
    /// The index of its stack trace.
    stack: usize,
    number: usize,
    address: u64,
    is_inlined: bool,
    /// The bytes of its name, and of the line.
    name: Range<usize>,
    line: Range<usize>,
}

impl FrameLine {
    fn has_address_of(&self, other: &Self) -> bool {
        (self.stack, self.address) == (other.stack, other.address)
    }
}

/// Finds the lines of frames in the text of a report.
fn frame_lines(bytes: &[u8], stacktraces: &[Stacktrace]) -> Vec<FrameLine> {
    let (mut found, mut stack) = (Vec::new(), None);
    let headers = StackHeaders::of(stacktraces);
    for line in lines(bytes) {
        if let Some(index) = headers.begun_stack(line.text) {
            stack = index;
        } else if let (Some(stack), Some((number, address, name))) = (stack, frame_line(line)) {
            let text = &line.text[name.start - line.start..];
            found.push(FrameLine {
                stack,
                number,
                address,
                is_inlined: FrameText::parse(text).is_inlined,
                name,
                line: line.range(),
            });
        }
    }
    found
}

/// The indexes of stack traces by what their headers say: of several with the same header, the
/// first.
#[derive(Default)]
struct StackHeaders<'a> {
    threads: HashMap<u64, usize>,
    /// Those without a thread, by name.
    backtraces: HashMap<&'a str, usize>,
}

impl<'a> StackHeaders<'a> {
    fn of(stacktraces: &'a [Stacktrace]) -> Self {
        let mut headers = Self::default();
        for (index, stacktrace) in stacktraces.iter().enumerate() {
            match (stacktrace.thread_id, stacktrace.thread_name.as_deref()) {
                (Some(thread), _) => {
                    headers.threads.entry(thread).or_insert(index);
                }
                (None, Some(name)) => {
                    headers.backtraces.entry(name).or_insert(index);
                }
                (None, None) => {}
            }
        }
        headers
    }

    /// Returns the index of the stack trace whose header a line is, if it is known; `None` if the
    /// line is no header.
    fn begun_stack(&self, line: &str) -> Option<Option<usize>> {
        if let Some(thread) = line.strip_prefix("Thread ") {
            let digits = thread.split(|c: char| !c.is_ascii_digit()).next();
            let thread: Option<u64> = digits.and_then(|digits| digits.parse().ok());
            return Some(thread.and_then(|thread| self.threads.get(&thread).copied()));
        }
        let name = backtrace_name(line)?;
        Some(self.backtraces.get(name).copied())
    }
}

/// Returns the number and the address of a frame in Apple's text format, and the place of its name:
/// `1   Ledger   0x0000000100003f00 0x100000000 + 16128`.
fn frame_line(line: TextLine<'_>) -> Option<(usize, u64, Range<usize>)> {
    let mut cursor = LineCursor::new(line);
    let number = usize::try_from(cursor.number()?).ok()?;
    // The name of the module may contain spaces.
    while cursor.spaces() {
        if let Some(address) = cursor.hex() {
            let end = line.start + line.text.trim_end().len();
            return (cursor.spaces() && cursor.at() < end)
                .then(|| (number, address, cursor.at()..end));
        }
        cursor.word();
    }
    None
}

/// Returns the frames as they were before those of inlined functions were added, with the numbers
/// that they had.
fn stack(completed: &CompletedStacktrace) -> ReportStack {
    let mut frames: Vec<ReportFrame> = Vec::new();
    let mut last = None;
    for frame in &completed.frames {
        if frame.original_index.is_none() || frame.original_index != last {
            frames.push(ReportFrame {
                number: frame.original_index.map(|index| index as u64),
                address: Some(frame.frame.instruction_addr.0),
                ..ReportFrame::default()
            });
        }
        last = frame.original_index;
    }
    ReportStack {
        thread_id: completed.thread_id,
        frames,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::report::FrameName;

    /// A report with two frames, the second of which has no name, and a module with a space in its
    /// name.
    const APPLE: &str = "\
Process:               My Ledger [812]
OS Version:            macOS 11.6.1 (20G224)
Crashed Thread:        0

Exception Type:        EXC_CRASH (SIGABRT)

Last Exception Backtrace:
0   CoreFoundation                \t0x0000000190001000 __exceptionPreprocess + 240

Thread 0 Crashed:
0   libsystem_kernel.dylib        \t0x0000000191000010 mach_msg_trap + 8
1   My Ledger                     \t0x0000000100003f00 0x100000000 + 16128

Binary Images:
       0x100000000 -        0x100007fff +My Ledger (3.2 - 77) <8A1F4E8C-52F0-3D0B-9C6A-0B4E29D1C1AA> /Applications/My Ledger
";

    fn completed(frames: serde_json::Value) -> Completed {
        let threads = [
            json!({"thread_id": 0, "frames": frames}),
            json!({"frames": []}),
        ];
        serde_json::from_value(json!({"stacktraces": threads, "modules": []})).unwrap()
    }

    #[test]
    fn crash_files_are_recognised_by_their_contents() {
        let of = |bytes: &[u8]| CrashFileKind::of(bytes);
        assert_eq!(of(b"MDMP\x93\xa7"), Some(CrashFileKind::Minidump));
        assert_eq!(of(b"PMDM\xa7\x93"), Some(CrashFileKind::Minidump));
        assert_eq!(of(APPLE.as_bytes()), Some(CrashFileKind::Apple));
        let windows = APPLE.replace('\n', "\r\n");
        assert_eq!(of(windows.as_bytes()), Some(CrashFileKind::Apple));
        let quoted = format!("> {}", APPLE.replace('\n', "\n> "));
        for copied in [windows.replace("\r\n", "\r"), quoted] {
            let found = of(copied.as_bytes());
            assert_eq!(found, Some(CrashFileKind::Apple), "{copied}");
        }
        let units = APPLE.encode_utf16().flat_map(u16::to_be_bytes);
        let utf_16: Vec<u8> = [0xfe, 0xff].into_iter().chain(units).collect();
        assert_eq!(of(&utf_16), Some(CrashFileKind::Apple));
        let json = b"{\"app_name\":\"a\",\"bug_type\":\"309\"}\n{\n}";
        assert_eq!(of(json), Some(CrashFileKind::Apple));
        let body = b"{\n  \"threads\": [],\n  \"usedImages\": []\n}\n";
        let headless = [&b"{\"name\": \"App\"}\n"[..], body].concat();
        for json in [&body[..], &headless] {
            assert_eq!(of(json), Some(CrashFileKind::Apple));
        }
        let (without_modules, _) = APPLE.split_once("Binary Images:").unwrap();
        assert_eq!(of(without_modules.as_bytes()), Some(CrashFileKind::Apple));
        for other in [
            &b""[..],
            b"{\"stacktraces\": [], \"modules\": []}",
            b"#0 0x1234 in main",
            b"the words Binary Images: in a line",
            b"Exception Type: EXC_CRASH\nThread 0:\nThread  Crashed:\n",
            b"Thread 0 Crashed:\n",
            b"{\"threads\": {\"usedImages\": []}}",
        ] {
            assert_eq!(of(other), None, "{}", String::from_utf8_lossy(other));
        }
    }

    #[test]
    fn names_replace_those_of_an_apple_report_and_nothing_else_changes() {
        let report = CrashReport::of_apple(APPLE.as_bytes()).unwrap();
        let named = |function: &str, line: u32| {
            json!({
                "status": "symbolicated", "original_index": 1, "instruction_addr": "0x100003eff",
                "function": function, "abs_path": "/src/ledger.swift", "lineno": line,
            })
        };
        let completed = completed(json!([named("check", 7), named("main", 12)]));
        let text = report.text(APPLE.as_bytes(), &completed);
        let line =
            |name: &str| format!("1   My Ledger                     \t0x0000000100003f00 {name}");
        let expected = APPLE.replace(
            &line("0x100000000 + 16128"),
            &[
                line("check at /src/ledger.swift:7"),
                line("main at /src/ledger.swift:12"),
            ]
            .join("\n"),
        );
        assert_eq!(String::from_utf8(text).unwrap(), expected);
        let unchanged = report.text(APPLE.as_bytes(), &Completed::default());
        assert_eq!(unchanged, APPLE.as_bytes());
    }

    #[test]
    fn every_frame_of_an_apple_report_is_found_in_its_text() {
        let report = CrashReport::of_apple(APPLE.as_bytes()).unwrap();
        let mut names = Vec::new();
        for frame in report.stacks.iter().flat_map(|stack| &stack.frames) {
            let place = frame.place.as_ref().unwrap();
            names.push((frame.address.unwrap(), &APPLE[place.name.clone()]));
        }
        let expected = [
            (0x1_9100_0010, "mach_msg_trap + 8"),
            (0x1_0000_3f00, "0x100000000 + 16128"),
            (0x1_9000_1000, "__exceptionPreprocess + 240"),
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn the_header_of_a_stack_trace_is_that_of_the_first_with_its_number_or_name() {
        let of = |thread_id, name: &str| Stacktrace {
            thread_id,
            thread_name: Some(name.to_owned()),
            ..Stacktrace::default()
        };
        let name = "Last Exception Backtrace";
        let stacktraces = [
            of(Some(7), name),
            of(None, name),
            of(Some(7), ""),
            of(None, name),
        ];
        let headers = StackHeaders::of(&stacktraces);
        for (line, expected) in [
            ("Thread 7 Crashed:: main", Some(Some(0))),
            ("Thread 8:", Some(None)),
            ("Thread x", Some(None)),
            ("Last Exception Backtrace:", Some(Some(1))),
            ("Application Specific Backtrace 1:", Some(None)),
            ("0   app   0x10 f", None),
        ] {
            assert_eq!(headers.begun_stack(line), expected, "{line}");
        }
    }

    #[test]
    fn the_last_exception_and_the_threads_get_their_names() {
        let report = CrashReport::of_apple(APPLE.as_bytes()).unwrap();
        let frame = |index: usize, function: &str| {
            json!({
                "status": "symbolicated", "original_index": index, "instruction_addr": "0x10",
                "function": function,
            })
        };
        let completed = json!({
            "modules": [],
            "stacktraces": [{"frames": [frame(1, "of_thread")]}, {"frames": [frame(0, "of_exception")]}],
        });
        let completed: Completed = serde_json::from_value(completed).unwrap();
        let text = String::from_utf8(report.text(APPLE.as_bytes(), &completed)).unwrap();
        let at = |name: &str| text.find(name).unwrap_or_else(|| panic!("{name}: {text}"));
        assert!(at("of_exception") < at("Thread 0") && at("Thread 0") < at("of_thread"));
    }

    #[test]
    fn the_lines_of_a_chain_of_inlined_functions_are_replaced_together() {
        // Tools number the inlined functions, or give them the number of the frame.
        for [first, second, caller] in [[0, 1, 2], [0, 0, 1]] {
            let text = format!(
                "Thread 0 Crashed:\n\
                 {first}   app   0x0000000000000010 push + 0 (a.h:5) [inlined]\n\
                 {second}   app   0x0000000000000010 run(int) + 92 (a.cpp:18)\n\
                 {caller}   app   0x0000000000000010 run(int) + 92 (a.cpp:18)\n\n"
            );
            let report = CrashReport::of_apple(text.as_bytes()).unwrap();
            assert_eq!(report.stacks[0].frames.len(), 2);
            let frame = |index: usize, function: &str| {
                json!({
                    "status": "symbolicated", "original_index": index, "instruction_addr": "0x10",
                    "function": function,
                })
            };
            let frames = [frame(0, "push"), frame(0, "run"), frame(1, "caller")];
            let written = report.text(text.as_bytes(), &completed(json!(frames)));
            let expected = format!(
                "Thread 0 Crashed:\n\
                 {first}   app   0x0000000000000010 push\n\
                 {first}   app   0x0000000000000010 run\n\
                 {caller}   app   0x0000000000000010 caller\n\n"
            );
            assert_eq!(String::from_utf8(written).unwrap(), expected);
            let unchanged = report.text(text.as_bytes(), &Completed::default());
            assert_eq!(String::from_utf8(unchanged).unwrap(), text);
        }
    }

    #[test]
    fn each_backtrace_of_an_exception_gets_its_own_names() {
        let noted = "Application Specific Backtrace 1:\n0   app   0x0000000000000010 app + 16\n\n";
        let text = APPLE.replace("Last Exception", &format!("{noted}Last Exception"));
        let report = CrashReport::of_apple(text.as_bytes()).unwrap();
        let named = |function: &str| {
            json!({"frames": [{
                "status": "symbolicated", "original_index": 0, "instruction_addr": "0x10",
                "function": function,
            }]})
        };
        let stacktraces = [named("of_thread"), named("of_noted"), named("of_last")];
        let completed = json!({"modules": [], "stacktraces": stacktraces});
        let completed: Completed = serde_json::from_value(completed).unwrap();
        let text = String::from_utf8(report.text(text.as_bytes(), &completed)).unwrap();
        let at = |name: &str| text.find(name).unwrap_or_else(|| panic!("{name}: {text}"));
        assert!(at("of_noted") < at("Last Exception") && at("Last Exception") < at("of_last"));
        assert!(at("of_last") < at("Thread 0") && at("Thread 0") < at("of_thread"));
    }

    #[test]
    fn a_minidump_has_the_frames_of_the_response_without_those_of_inlined_functions() {
        let frame = |index: usize, address: &str, function: &str| {
            json!({
                "status": "symbolicated", "original_index": index, "instruction_addr": address,
                "function": function,
            })
        };
        let frames = json!([
            frame(0, "0x10", "inner"),
            frame(0, "0x10", "outer"),
            frame(1, "0x20", "main"),
        ]);
        let completed = completed(frames);
        let report = CrashReport::of_minidump(&completed);
        let addresses: Vec<_> = report.stacks[0]
            .frames
            .iter()
            .map(|it| it.address)
            .collect();
        assert_eq!(addresses, [Some(0x10), Some(0x20)]);
        let functions = |names: &[FrameName]| -> Vec<String> {
            names.iter().map(|name| name.function.clone()).collect()
        };
        let names = report.names(&completed);
        let names: Vec<_> = names[0].iter().map(|names| functions(names)).collect();
        assert_eq!(names, [vec!["inner", "outer"], vec!["main"]]);
        assert!(report.lacks().is_empty());
    }

    #[test]
    fn each_frame_of_a_minidump_has_its_own_name_although_others_were_left_out() {
        let functions: [(u64, &str); 4] =
            [(0, "first"), (1, "second"), (3, "fourth"), (4, "fifth")];
        let frames = functions.map(|(index, function)| {
            json!({
                "status": "symbolicated", "original_index": index, "instruction_addr": "0x10",
                "function": function,
            })
        });
        let completed = completed(json!(frames));
        let report = CrashReport::of_minidump(&completed);
        let names = report.names(&completed);
        let of_frames = report.stacks[0].frames.iter().zip(&names[0]);
        let found: Vec<_> = of_frames
            .map(|(frame, names)| (frame.number.unwrap(), names[0].function.as_str()))
            .collect();
        assert_eq!(found, functions);
        assert_eq!(report.index_of(0, 3), Some(2));
        assert_eq!(report.index_of(0, 2), None);
    }
}
