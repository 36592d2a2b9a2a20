//! Frames as the tools of LLVM print them: `#1 0x… in f (path+0xoffset)` of sanitizers, `#1 0x… f
//! (path+0xoffset)` of a stack dump.

use std::ops::Range;

use super::cursor::{LineCursor, TextLine, hex_of, id_at, source_of};

/// What a sanitizer prints for an address in no module.
const NOWHERE: &str = "(<unknown module>)";

/// What prints a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Printer {
    /// A sanitizer: the function follows `in`, and two spaces stand for one without a name.
    Sanitizer,
    /// LLVM, or Chromium: one space follows the address.
    Llvm,
}

/// Where a frame is.
#[derive(Clone, Copy, Debug)]
pub(super) enum PrintedPlace<'a> {
    /// In a module.
    Module {
        path: &'a str,
        offset: u64,
        id: Option<&'a str>,
    },
    /// In a source file.
    Source(&'a str, Option<u32>),
    /// In no module.
    Nowhere,
    /// The text does not say it.
    Unknown,
}

/// A frame in a line.
#[derive(Debug)]
pub(super) struct PrintedFrame<'a> {
    pub(super) printer: Printer,
    pub(super) address: Option<u64>,
    /// The function, after `in` if a sanitizer printed it; empty if the text does not have it.
    pub(super) function: &'a str,
    /// Where the function is, in the text.
    pub(super) name: Range<usize>,
    pub(super) place: PrintedPlace<'a>,
}

impl<'a> PrintedFrame<'a> {
    /// Parses what follows the number of a frame.
    pub(super) fn parse(line: TextLine<'a>, mut cursor: LineCursor<'a>) -> Option<Self> {
        let before = &line.text[..line.text.len() - cursor.rest.len()];
        let address = cursor.hex();
        (address.is_none() || cursor.eat(" ")).then_some(())?;
        let text = cursor.rest.trim_end();
        let is_of_sanitizer = address.is_none() || text.starts_with([' ', '\t']);
        let printer = if is_of_sanitizer || text.starts_with("in ") {
            Printer::Sanitizer
        } else {
            Printer::Llvm
        };
        // gdb prints an address and a function as well, but several spaces after a number.
        let may_be_alone = address.is_some() && !before.ends_with("  ");
        let (function, place) = in_module(text).or_else(|| {
            let alone = may_be_alone.then(|| without_module(text, printer));
            alone.flatten()
        })?;
        let skipped = text.len() - text.trim_start().len();
        let start = if function.is_empty() {
            cursor.at()
        } else {
            cursor.at() + skipped
        };
        // ThreadSanitizer always prints a function.
        (address.is_some() || !function.is_empty()).then_some(Self {
            printer,
            address,
            function,
            name: start..start + function.len(),
            place,
        })
    }

    /// Returns the function, the path and the line of a frame that has the module after them, as
    /// ThreadSanitizer prints it.
    pub(super) fn source_before_module(&self) -> Option<(&'a str, &'a str, Option<u32>)> {
        let is_known = self.address.is_none() && !self.function.contains("<null>");
        let (function, source) = is_known.then(|| split_source(self.function)).flatten()?;
        let (path, line) = source_of(source);
        Some((function, path, line))
    }
}

/// Returns the function in a text, and the module after it.
pub(super) fn in_module(text: &str) -> Option<(&str, PrintedPlace<'_>)> {
    // The offset is the last one in the line: a name may contain parentheses.
    let (before, after) = text.split_at(text.rfind("+0x")?);
    let (offset, after) = after[1..].split_once(')')?;
    let open = before.rfind(" (/").or_else(|| before.rfind(" ("));
    let (function, path) = match open {
        Some(open) => (&before[..open], &before[open + 2..]),
        None => ("", before.strip_prefix('(')?),
    };
    let id = after.trim_start().strip_prefix("(BuildId: ");
    let place = PrintedPlace::Module {
        path,
        offset: hex_of(offset)?,
        id: id.and_then(id_at),
    };
    Some((function.trim(), place))
}

/// Returns the function in a text that has no module, and where it is.
fn without_module(text: &str, printer: Printer) -> Option<(&str, PrintedPlace<'_>)> {
    if let Some(function) = text.strip_suffix(NOWHERE) {
        return Some((function.trim(), PrintedPlace::Nowhere));
    }
    let text = text.trim_start();
    let in_source = match printer {
        Printer::Sanitizer => in_source(text, printer),
        Printer::Llvm => in_brackets(text).or_else(|| in_source(text, printer)),
    };
    let is_unknown = printer == Printer::Llvm && !text.is_empty();
    in_source.or_else(|| is_unknown.then_some((text, PrintedPlace::Unknown)))
}

/// Returns the function in a text, and the source file after it.
fn in_source(text: &str, printer: Printer) -> Option<(&str, PrintedPlace<'_>)> {
    let (function, source) = split_source(text)?;
    let (path, line) = source_of(source);
    let is_found = is_source(path, line, printer) && !is_of_gdb(function);
    is_found.then_some((function, PrintedPlace::Source(path, line)))
}

/// Returns the function in a text, and the source file in brackets after it, as Chromium prints it.
fn in_brackets(text: &str) -> Option<(&str, PrintedPlace<'_>)> {
    let (function, source) = text.strip_suffix(']')?.rsplit_once(" [")?;
    let (path, line) = source_of(source);
    Some((function, PrintedPlace::Source(path, Some(line?))))
}

/// Returns a function, and what follows it if that may be a path.
fn split_source(text: &str) -> Option<(&str, &str)> {
    let (function, source) = text.split_at(start_of_path(text)?);
    let function = function.trim_end();
    let is_name = !function.is_empty() && function != "in";
    is_name.then(|| (function, source.trim_start()))
}

/// Returns where the path begins that a text ends with. A path may contain spaces if it is
/// absolute.
fn start_of_path(text: &str) -> Option<usize> {
    let of_windows = || {
        let drives = text.match_indices(":\\");
        let before = drives.filter_map(|(at, _)| at.checked_sub(2));
        before.filter(|at| text.as_bytes()[*at] == b' ').last()
    };
    text.rfind(" /")
        .or_else(of_windows)
        .or_else(|| text.rfind(' '))
}

/// Returns whether a path is that of a source file. A stack dump has only those with a line.
fn is_source(path: &str, line: Option<u32>, printer: Printer) -> bool {
    let is_file = line.is_some() || path.contains(['/', '.']);
    let is_of_printer = printer == Printer::Sanitizer || line.is_some();
    is_file && is_of_printer && !path.ends_with(')')
}

/// Returns whether the text before a path is that of gdb: `f (arguments) at` or `f () from`.
fn is_of_gdb(function: &str) -> bool {
    function.ends_with(") at") || function.ends_with(") from")
}
