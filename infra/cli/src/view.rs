//! A symbolicated report, as it is printed. Addresses are shown as the report has them.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use anstyle::{AnsiColor, Style};
use serde_json::{Value, json};
use symdepot::api::report::{CrashReport, FrameName, ReportFrame};
use symdepot::api::symbolicator::{Completed, CompletedModule, FrameStatus, ModuleStatus};

use crate::visible::visible;

/// The version of all JSON that this program prints. It changes if a field does.
pub(crate) const SCHEMA: u32 = 1;

const DIM: Style = Style::new().dimmed();
const BOLD: Style = Style::new().bold();
const YELLOW: Style = AnsiColor::Yellow.on_default();

/// The last second of the year 9999, the last one that dates have.
const LAST_SECOND: u64 = 253_402_300_799;

/// Returns a time, in seconds since 1970, as in a header of HTTP. It may come from anywhere.
pub(crate) fn date(seconds: u64) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds.min(LAST_SECOND)))
}

/// Returns JSON with a line break at its end.
pub(crate) fn json(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Returns the JSON of a report whose modules the service still prepares.
pub(crate) fn pending_json() -> String {
    json(&json!({"schema": SCHEMA, "status": "pending"}))
}

/// A symbolicated report.
pub(crate) struct View<'a> {
    report: &'a CrashReport,
    names: &'a [Vec<Vec<FrameName>>],
    completed: &'a Completed,
    lacks: &'a [String],
    /// The status of each frame in the response.
    statuses: Vec<Vec<Option<FrameStatus>>>,
    /// Whether each frame only repeats another one. Such a frame is not shown.
    repeated: Vec<Vec<bool>>,
    /// Whether the files of each module could say more than the report does.
    needed: Vec<bool>,
}

impl<'a> View<'a> {
    pub(crate) fn of(
        report: &'a CrashReport,
        names: &'a [Vec<Vec<FrameName>>],
        completed: &'a Completed,
        lacks: &'a [String],
    ) -> Self {
        Self {
            report,
            names,
            completed,
            lacks,
            statuses: statuses(report, completed),
            repeated: report.repeated(names),
            needed: report.needed_modules(),
        }
    }

    /// Returns the number of frames that are shown without a name, neither that of the response nor
    /// that of the report.
    pub(crate) fn nameless(&self) -> usize {
        let is_nameless = |stack: usize, index: usize, frame: &ReportFrame| {
            self.names[stack][index].is_empty() && !self.report.is_named(frame)
        };
        let of_stack = |stack: usize| {
            let frames = self.shown(stack);
            let nameless = frames.filter(|(index, frame)| is_nameless(stack, *index, frame));
            nameless.count()
        };
        (0..self.report.stacks.len()).map(of_stack).sum()
    }

    /// Returns how many frames have no name, and which modules have no symbols, in a line for
    /// people; `None` if all frames have names.
    pub(crate) fn nameless_line(&self) -> Option<String> {
        let nameless = self.nameless();
        if nameless == 0 {
            return None;
        }
        let lacking = self.used_modules();
        let lacking = lacking.filter(|module| module.debug_status != ModuleStatus::Found);
        let names = lacking.map(|module| module.module.code_file.as_deref().unwrap_or("?"));
        let names: Vec<String> = names.map(visible).collect();
        let frames = counted(nameless, "frame");
        Some(if names.is_empty() {
            format!("{frames} without a name")
        } else {
            format!(
                "{frames} without a name; without symbols: {}",
                names.join(", ")
            )
        })
    }

    /// Returns the number of frames that are shown.
    fn frames(&self) -> usize {
        self.repeated.iter().flatten().filter(|it| !**it).count()
    }

    /// Returns the frames of a stack trace that are shown, with their indexes.
    fn shown(&self, stack: usize) -> impl Iterator<Item = (usize, &ReportFrame)> {
        let frames = self.report.stacks.get(stack).map(|it| &it.frames);
        let frames = frames.into_iter().flatten().enumerate();
        frames.filter(move |(index, _)| {
            let repeated = self.repeated.get(stack);
            repeated.and_then(|stack| stack.get(*index)) != Some(&true)
        })
    }

    /// Returns whether nothing is shown of a stack trace, because its frames are in another one.
    fn is_hidden(&self, stack: usize) -> bool {
        let repeated = self.repeated.get(stack);
        repeated.is_some_and(|frames| !frames.is_empty() && frames.iter().all(|it| *it))
    }

    fn heading(&self) -> String {
        let lacking = self.used_modules();
        let lacking = lacking.filter(|module| module.debug_status != ModuleStatus::Found);
        format!(
            "{} · {} · {} without a name · {}, {} without symbols",
            self.report.format.name(),
            counted(self.frames(), "frame"),
            self.nameless(),
            counted(self.used_modules().count(), "module"),
            lacking.count(),
        )
    }

    /// Returns the heading of a stack trace: the number and the name of its thread.
    fn thread(&self, stack: usize) -> Option<String> {
        let id = self.report.stacks.get(stack)?.thread_id;
        let completed = self.completed.stacktraces.get(stack);
        let name = completed.and_then(|stack| stack.thread_name.as_deref());
        let name = name.filter(|name| !name.is_empty());
        let mut heading = match (id, name) {
            (Some(id), Some(name)) => format!("thread {id} ({name})"),
            (Some(id), None) => format!("thread {id}"),
            (None, Some(name)) => name.to_owned(),
            (None, None) => return None,
        };
        let crashed = completed.is_some_and(|stack| stack.is_requesting == Some(true));
        if crashed && self.completed.crashed == Some(true) {
            heading.push_str(" crashed");
        }
        Some(heading)
    }

    /// Returns the status of a frame in the response; `None` if the response does not have it.
    fn status(&self, stack: usize, frame: usize) -> Option<FrameStatus> {
        self.statuses.get(stack)?.get(frame).copied().flatten()
    }

    /// Returns the address of a frame, as in the report.
    fn address(&self, frame: &ReportFrame) -> String {
        match (frame.address, frame.offset) {
            (Some(address), _) => format!("{address:#018x}"),
            (None, Some(offset)) => format!("+{offset:#x}"),
            (None, None) => String::new(),
        }
    }

    /// Returns where a frame without a name is: its module and the offset, or what the report says.
    fn place(&self, frame: &ReportFrame) -> String {
        let located = self.report.located(frame);
        let module = located.map(|(module, _)| module).or(frame.module);
        let name = module.and_then(|module| self.report.modules.get(module));
        let place = match (name, located) {
            (Some(module), Some((_, offset))) => format!("{} + {offset:#x}", module.file_name()),
            (Some(module), None) => module.file_name().to_owned(),
            _ => "in no known module".to_owned(),
        };
        match &frame.function {
            Some(function) => format!("{function} ({place})"),
            None => place,
        }
    }

    /// Returns what the report says about the source of a frame that it names itself as well as it
    /// can be named.
    fn reported(&self, frame: &ReportFrame) -> Option<(String, String)> {
        let function = frame.function.clone().filter(|_| frame.has_final_name())?;
        let name = FrameName {
            function,
            path: frame.path.clone(),
            line: frame.line,
        };
        let note = match source(&name) {
            source if source.is_empty() => "from the report".to_owned(),
            source => format!("{source}  from the report"),
        };
        Some((name.function, note))
    }

    /// Returns the text for people, with colours.
    pub(crate) fn human(&self) -> String {
        let mut text = format!("{BOLD}{}{BOLD:#}\n", self.heading());
        for fact in facts(self.completed) {
            let _ = writeln!(text, "{}", visible(&fact));
        }
        let stacks = 0..self.report.stacks.len();
        for number in stacks.filter(|number| !self.is_hidden(*number)) {
            text.push('\n');
            if let Some(thread) = self.thread(number) {
                let _ = writeln!(text, "{}", visible(&thread));
            }
            for (index, frame) in self.shown(number) {
                self.human_frame(&mut text, (number, index), frame);
            }
        }
        self.human_modules(&mut text);
        for lack in self.lacks {
            let _ = writeln!(text, "\n{YELLOW}{}{YELLOW:#}", visible(lack));
        }
        text
    }

    fn human_frame(&self, text: &mut String, at: (usize, usize), frame: &ReportFrame) {
        let address = self.address(frame);
        let names = &self.names[at.0][at.1];
        let lead = format!("  #{:<3}{address:>18}  ", number_of(at.1, frame));
        let reported = self.reported(frame).filter(|_| names.is_empty());
        if let Some((function, note)) = reported {
            let (function, note) = (visible(&function), visible(&note));
            let _ = writeln!(text, "{lead}{function}  {DIM}{note}{DIM:#}");
        } else if names.is_empty() {
            let place = visible(&self.place(frame));
            let status = status_text(self.status(at.0, at.1));
            let _ = writeln!(
                text,
                "{lead}{YELLOW}{place}{YELLOW:#}  {DIM}{status}{DIM:#}"
            );
        }
        for (number, name) in names.iter().enumerate() {
            let lead = match number {
                0 => lead.clone(),
                _ => " ".repeat(lead.len()),
            };
            let is_inlined = number + 1 < names.len();
            let inlined = if is_inlined { "  inlined" } else { "" };
            let function = visible(&name.function);
            let source = visible(&source(name));
            let place = if source.is_empty() && !is_inlined {
                String::new()
            } else {
                format!("  {DIM}{source}{inlined}{DIM:#}")
            };
            let _ = writeln!(text, "{lead}{function}{place}");
        }
    }

    fn human_modules(&self, text: &mut String) {
        let used: Vec<_> = self.used_modules().collect();
        if used.is_empty() {
            return;
        }
        text.push_str("\nmodules\n");
        for module in used {
            let name = visible(module.module.code_file.as_deref().unwrap_or("?"));
            let _ = writeln!(text, "  {name}  {}", status_of(module));
            if let Some(detail) = &module.debug_detail {
                let _ = writeln!(text, "    {DIM}{}{DIM:#}", visible(detail));
            }
        }
    }

    /// Returns the modules that frames lie in, except those of which the report says everything and
    /// the service has nothing.
    fn used_modules(&self) -> impl Iterator<Item = &CompletedModule> {
        let modules = self.completed.modules.iter().enumerate();
        let used = modules.filter(move |(index, module)| match module.debug_status {
            ModuleStatus::Found => true,
            ModuleStatus::Unused => false,
            _ => self.needed.get(*index) != Some(&false),
        });
        used.map(|(_, module)| module)
    }

    /// Returns tables in Markdown.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!("**{}**\n", self.heading());
        for fact in facts(self.completed) {
            let _ = write!(text, "\n{}\n", cell(&fact));
        }
        let stacks = 0..self.report.stacks.len();
        for number in stacks.filter(|number| !self.is_hidden(*number)) {
            if let Some(thread) = self.thread(number) {
                let _ = write!(text, "\n{}\n", cell(&thread));
            }
            text.push_str("\n| # | Address | Function | Source |\n|---|---|---|---|\n");
            for (index, frame) in self.shown(number) {
                self.markdown_frame(&mut text, (number, index), frame);
            }
        }
        let mut modules = self.used_modules().peekable();
        if modules.peek().is_some() {
            text.push_str("\n| Module | Status | Detail |\n|---|---|---|\n");
        }
        for module in modules {
            let name = cell(module.module.code_file.as_deref().unwrap_or("?"));
            let detail = cell(module.debug_detail.as_deref().unwrap_or_default());
            let _ = writeln!(text, "| {name} | {} | {detail} |", status_of(module));
        }
        for lack in self.lacks {
            let _ = write!(text, "\n> {}\n", visible(lack));
        }
        text
    }

    fn markdown_frame(&self, text: &mut String, at: (usize, usize), frame: &ReportFrame) {
        let names = &self.names[at.0][at.1];
        let lead = format!("| {} | {} |", number_of(at.1, frame), self.address(frame));
        for name in names {
            let (function, source) = (cell(&name.function), cell(&source(name)));
            let _ = writeln!(text, "{lead} {function} | {source} |");
        }
        if !names.is_empty() {
            return;
        }
        let (place, note) = self.reported(frame).unwrap_or_else(|| {
            let status = status_text(self.status(at.0, at.1));
            (self.place(frame), status.to_owned())
        });
        let _ = writeln!(text, "{lead} {} | {} |", cell(&place), cell(&note));
    }

    /// Returns JSON.
    pub(crate) fn json(&self) -> String {
        let stacks = self
            .report
            .stacks
            .iter()
            .enumerate()
            .filter(|(number, _)| !self.is_hidden(*number))
            .map(|(number, stack)| {
                let frames: Vec<Value> = self
                    .shown(number)
                    .map(|(index, frame)| self.json_frame(number, index, frame))
                    .collect();
                let completed = self.completed.stacktraces.get(number);
                json!({
                    "thread_id": stack.thread_id,
                    "thread_name": completed.and_then(|stack| stack.thread_name.as_ref()),
                    "is_requesting": completed.and_then(|stack| stack.is_requesting),
                    "frames": frames,
                })
            });
        let modules = self.completed.modules.iter().map(|module| {
            json!({
                "name": module.module.code_file, "code_id": module.module.code_id,
                "debug_id": module.module.debug_id, "status": module.debug_status,
                "detail": module.debug_detail,
            })
        });
        json(&json!({
            "schema": SCHEMA,
            "status": "completed",
            "format": self.report.format.name(),
            "crash_reason": self.completed.crash_reason,
            "crash_details": self.completed.crash_details,
            "system_info": self.completed.system_info,
            "timestamp": self.completed.timestamp,
            "frames": self.frames(),
            "frames_without_names": self.nameless(),
            "stacktraces": stacks.collect::<Vec<_>>(),
            "modules": modules.collect::<Vec<_>>(),
            "lacks": self.lacks,
        }))
    }

    fn json_frame(&self, stack: usize, index: usize, frame: &ReportFrame) -> Value {
        let located = self.report.located(frame);
        let module = located.map(|(module, _)| module).or(frame.module);
        let hex = |number: Option<u64>| number.map(|number| format!("{number:#x}"));
        let names = self.names[stack][index].iter();
        let names = names
            .map(|name| json!({"function": name.function, "path": name.path, "line": name.line}));
        let reported = frame
            .function
            .as_ref()
            .map(|function| json!({"function": function, "path": frame.path, "line": frame.line}));
        json!({
            "number": number_of(index, frame),
            "address": hex(frame.address),
            "module": module,
            "offset": hex(located.map(|(_, offset)| offset)),
            "status": self.status(stack, index).filter(|_| !frame.is_settled),
            "names": names.collect::<Vec<_>>(),
            "reported": reported,
        })
    }
}

/// Returns the number of a frame: that in the report, or else its index.
fn number_of(index: usize, frame: &ReportFrame) -> u64 {
    frame.number.unwrap_or(index as u64)
}

/// Returns what a crash file says about the crash, line by line.
fn facts(completed: &Completed) -> Vec<String> {
    let reasons = [
        &completed.crash_reason,
        &completed.crash_details,
        &completed.assertion,
    ];
    let lines = reasons.into_iter().flatten().flat_map(|text| text.lines());
    let mut facts: Vec<String> = lines.map(str::to_owned).collect();
    if let Some(system) = &completed.system_info {
        let parts = [
            &system.os_name,
            &system.os_version,
            &system.os_build,
            &system.cpu_arch,
            &system.device_model,
        ];
        let known = parts.into_iter().filter(|part| !part.is_empty());
        facts.push(known.map(String::as_str).collect::<Vec<_>>().join(" "));
    }
    facts.retain(|fact| !fact.trim().is_empty());
    facts
}

/// Returns the status of each frame of a report.
fn statuses(report: &CrashReport, completed: &Completed) -> Vec<Vec<Option<FrameStatus>>> {
    let stacks = report.stacks.iter().enumerate().map(|(number, stack)| {
        let mut statuses = vec![None; stack.frames.len()];
        let found = completed.stacktraces.get(number);
        for frame in found.into_iter().flat_map(|found| &found.frames) {
            let at = frame
                .original_index
                .and_then(|at| report.index_of(number, at));
            if let Some(status) = at.and_then(|at| statuses.get_mut(at)) {
                *status = Some(frame.status);
            }
        }
        statuses
    });
    stacks.collect()
}

fn counted(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

fn source(name: &FrameName) -> String {
    match (&name.path, name.line) {
        (Some(path), Some(line)) => format!("{path}:{line}"),
        (Some(path), None) => path.clone(),
        (None, _) => String::new(),
    }
}

/// Returns a text as a cell of a table in Markdown, in which it is only text.
fn cell(text: &str) -> String {
    let mut cell = String::new();
    for c in visible(text).chars() {
        if matches!(c, '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>') {
            cell.push('\\');
        }
        cell.push(c);
    }
    cell
}

fn status_text(status: Option<FrameStatus>) -> &'static str {
    match status {
        Some(FrameStatus::Symbolicated) | None => "no name",
        Some(FrameStatus::MissingSymbol) => "no function of the module has this address",
        Some(FrameStatus::UnknownImage) => "no module has this address",
        Some(FrameStatus::Missing) => "no symbols",
        Some(FrameStatus::Malformed) => "the symbols cannot be read",
    }
}

fn status_of(module: &CompletedModule) -> &'static str {
    match module.debug_status {
        ModuleStatus::Found => "found",
        ModuleStatus::Unused => "unused",
        ModuleStatus::Missing => "missing",
        ModuleStatus::Malformed => "malformed",
        ModuleStatus::FetchingFailed => "fetching failed",
        ModuleStatus::Timeout => "timeout",
        ModuleStatus::Unsupported => "unsupported",
        ModuleStatus::Other => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_only_text_in_markdown() {
        assert_eq!(cell("<img src=x> | `a`"), "\\<img src=x\\> \\| \\`a\\`");
    }
}
