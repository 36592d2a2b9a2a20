//! Writes a report with the names that were found: everything but the names stays byte for byte.

use std::ops::Range;

use super::model::{CrashReport, Place, ReportFormat};
use super::plain::escapes_in;
use crate::api::symbolicator::{Completed, CompletedFrame, FrameOrder, FrameStatus};

/// A function that a frame is in. A frame in inlined code has several, the innermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameName {
    /// The name.
    pub function: String,
    /// The path of its source file.
    pub path: Option<String>,
    /// The line in it; `None` if unknown.
    pub line: Option<u32>,
}

/// How the lines of a text end.
#[derive(Clone, Copy)]
enum LineEnding {
    Lf,
    CrLf,
}

impl LineEnding {
    /// Returns how the line of a frame ends, or else the line before it.
    fn of(bytes: &[u8], place: &Place) -> Self {
        let after = bytes.get(place.line.end..).unwrap_or_default();
        let before = bytes.get(..place.line.start).unwrap_or_default();
        let is_cr_lf = match (after.is_empty(), place.in_json) {
            (true, _) => before.ends_with(b"\r\n"),
            (false, true) => after.starts_with(br"\r\n"),
            (false, false) => after.starts_with(b"\r\n"),
        };
        if is_cr_lf { Self::CrLf } else { Self::Lf }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Lf => "\n",
            Self::CrLf => "\r\n",
        }
    }
}

/// How a format writes a name: what precedes the function, what is between it and the place in the
/// source, and what follows.
struct Style {
    before: &'static str,
    between: &'static str,
    after: &'static str,
    /// What follows the function if it has no place in the source.
    without_source: String,
}

impl Style {
    /// Returns how the names are written that replace the text at a place.
    fn of(format: ReportFormat, has_address: bool, place: &Place, bytes: &[u8]) -> Self {
        let (before, between, after) = match format {
            // ThreadSanitizer prints no address.
            ReportFormat::Sanitizer if has_address => ("in ", " ", ""),
            ReportFormat::Sanitizer => ("", " ", ""),
            ReportFormat::Android => (" (", " ", ")"),
            ReportFormat::Glibc => ("(", " at ", ")"),
            ReportFormat::Glog if place.name.is_empty() => ("  ", " at ", ""),
            ReportFormat::Rust => ("", "\n                               at ", ""),
            ReportFormat::Gdb => ("", " () at ", ""),
            // A name is inserted at the end of the line, or before the module.
            ReportFormat::Llvm if !place.name.is_empty() => ("", " ", ""),
            ReportFormat::Llvm if place.name.end >= place.line.end => (" ", " ", ""),
            ReportFormat::Llvm => ("", " ", " "),
            _ => ("", " at ", ""),
        };
        let without_source = match format {
            ReportFormat::Gdb => library_of_gdb(place, bytes),
            _ => String::new(),
        };
        Self {
            before,
            between,
            after,
            without_source,
        }
    }

    fn write(&self, name: &FrameName, ending: LineEnding) -> String {
        let mut text = format!("{}{}", self.before, name.function);
        if let Some(path) = &name.path {
            text.push_str(&self.between.replace('\n', ending.text()));
            text.push_str(path);
            if let Some(line) = name.line {
                text.push_str(&format!(":{line}"));
            }
        } else {
            text.push_str(&self.without_source);
        }
        text.push_str(self.after);
        text
    }
}

/// Returns what gdb prints behind a function without file and line: that it has arguments, and the
/// library, if the text has it.
fn library_of_gdb(place: &Place, bytes: &[u8]) -> String {
    let before = bytes.get(place.name.clone()).unwrap_or_default();
    let before = std::str::from_utf8(before).unwrap_or_default();
    let library = before.rsplit_once(" from ").map(|(_, path)| path.trim());
    // Colours are written again after the name.
    let is_path = |path: &&str| path.starts_with('/') && !path.contains(['\x1b', '\n', '(']);
    match library.filter(is_path).filter(|_| !place.in_json) {
        Some(library) => format!(" () from {library}"),
        None => " ()".to_owned(),
    }
}

impl CrashReport {
    /// Returns the names of each frame of each stack trace. A frame whose address is in no function
    /// has none.
    pub fn names(&self, completed: &Completed) -> Vec<Vec<Vec<FrameName>>> {
        let stacks = self.stacks.iter().enumerate();
        let names = stacks.map(|(index, stack)| {
            let mut names = vec![Vec::new(); stack.frames.len()];
            let found = completed.stacktraces.get(index);
            for frame in found.into_iter().flat_map(|found| &found.frames) {
                let at = frame.original_index.and_then(|at| self.index_of(index, at));
                let place = at.and_then(|at| names.get_mut(at));
                if let Some((place, name)) = place.zip(name_of(frame)) {
                    place.push(name);
                }
            }
            names
        });
        names.collect()
    }

    /// Returns the index in a stack trace of the frame with this `original_index` in the response,
    /// which counts from the callee, whatever the order of the request is. Those of a minidump have
    /// gaps, where the service left out frames that it was not sure of.
    pub fn index_of(&self, stack: usize, original_index: usize) -> Option<usize> {
        let frames = &self.stacks.get(stack)?.frames;
        if self.format == ReportFormat::Minidump {
            let number = Some(original_index as u64);
            return frames.binary_search_by_key(&number, |it| it.number).ok();
        }
        let order = self.request.as_ref().map(|it| it.options.frame_order);
        let from_end = frames.len().checked_sub(original_index)?.checked_sub(1)?;
        Some(match order {
            Some(FrameOrder::CallerFirst) => from_end,
            _ => original_index,
        })
    }

    /// Returns the text of the report with the names of a response. `bytes` is the text that the
    /// report was read from. Frames without names, and those that have file and line in the text
    /// already, stay as they are. A report that is a request is returned unchanged.
    pub fn text(&self, bytes: &[u8], completed: &Completed) -> Vec<u8> {
        let names = self.names(completed);
        let mut replaced = Vec::new();
        for (stack, names) in self.stacks.iter().zip(&names) {
            for (frame, names) in stack.frames.iter().zip(names) {
                if let (Some(place), false) = (&frame.place, names.is_empty()) {
                    let has_address = frame.address.is_some();
                    let style = Style::of(self.format, has_address, place, bytes);
                    let ending = LineEnding::of(bytes, place);
                    let texts = names.iter().map(|name| style.write(name, ending));
                    let texts = texts.collect();
                    replaced.push((place, texts));
                }
            }
        }
        // Apple's reports have the stack trace of the last exception before those of threads.
        replaced.sort_by_key(|(place, _)| place.name.start);
        write(bytes, &replaced)
    }
}

/// Replaces the names at these places, which are in the order of the text.
fn write(bytes: &[u8], replaced: &[(&Place, Vec<String>)]) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes.len());
    let mut at = 0;
    for (number, (place, names)) in replaced.iter().enumerate() {
        let part = |range: Range<usize>| bytes.get(range).unwrap_or_default();
        // A place outside of the text, or before the last one, is not of this text.
        if place.name.start < at || place.name.end > bytes.len() {
            continue;
        }
        text.extend_from_slice(part(at..place.name.start));
        at = place.name.end;
        // A colour that ends in what is replaced still ends there.
        let escapes = escapes_in(part(place.name.clone()));
        let same_line = |other: Option<&(&Place, Vec<String>)>| {
            other.is_some_and(|(other, _)| other.line == place.line)
        };
        let before = number
            .checked_sub(1)
            .and_then(|before| replaced.get(before));
        if same_line(before) || same_line(replaced.get(number + 1)) {
            let joined = names.join(", inlined in ");
            text.extend_from_slice(&escaped(&joined, place.in_json));
            text.extend_from_slice(&escapes);
            continue;
        }
        for (index, name) in names.iter().enumerate() {
            if index > 0 {
                text.extend_from_slice(part(place.name.end..place.line.end));
                let ending = LineEnding::of(bytes, place);
                text.extend_from_slice(&escaped(ending.text(), place.in_json));
                text.extend_from_slice(part(place.line.start..place.name.start));
            }
            text.extend_from_slice(&escaped(name, place.in_json));
            text.extend_from_slice(&escapes);
        }
    }
    text.extend_from_slice(bytes.get(at..).unwrap_or_default());
    text
}

/// Returns a text as it is written inside a JSON string.
fn escaped(text: &str, in_json: bool) -> Vec<u8> {
    if !in_json {
        return text.as_bytes().to_vec();
    }
    let json = serde_json::Value::from(text).to_string();
    json.as_bytes()[1..json.len() - 1].to_vec()
}

fn name_of(frame: &CompletedFrame) -> Option<FrameName> {
    if frame.status != FrameStatus::Symbolicated {
        return None;
    }
    let found = &frame.frame;
    let function = found.function.as_ref().or(found.symbol.as_ref())?;
    let path = found.abs_path.as_ref().or(found.filename.as_ref());
    Some(FrameName {
        function: function.to_string(),
        path: path
            .filter(|path| !path.is_empty())
            .map(|path| path.to_string()),
        line: found.lineno.filter(|line| *line != 0),
    })
}
