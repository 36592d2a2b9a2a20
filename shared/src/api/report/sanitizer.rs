//! Reports of AddressSanitizer, UndefinedBehaviorSanitizer, ThreadSanitizer and MemorySanitizer
//! (compiler-rt, `sanitizer_stacktrace_printer.cpp`).
//!
//! The addresses are those of the calls, also in frame 0. The module is printed as
//! `(path+0xoffset)`, from LLVM 15 on followed by `(BuildId: …)`. The report of a ThreadSanitizer
//! has no addresses. In a program that is not position independent, the offset is the address
//! itself: then the load address is unknown.

use super::collector::Collector;
use super::cursor::{LineCursor, TextLine, hex_of, id_at, lines, numbered};
use super::model::{Place, ReportFrame};

struct SanitizerLine<'a> {
    address: Option<u64>,
    function: &'a str,
    /// Where the function is, in the text.
    name: std::ops::Range<usize>,
    path: &'a str,
    offset: u64,
    id: Option<&'a str>,
}

pub(super) fn read(bytes: &[u8], out: &mut Collector) {
    for line in lines(bytes) {
        let Some((number, found)) = numbered(line, |cursor| frame(line, cursor)) else {
            continue;
        };
        out.number(number, false);
        let Some(module) = out.module(found.path, found.id) else {
            continue;
        };
        let is_fixed = found.address == Some(found.offset);
        let base = found.address.and_then(|it| it.checked_sub(found.offset));
        if let Some(base) = base.filter(|_| !is_fixed) {
            out.begins(module, base);
        }
        let is_nameless = found.function.is_empty() || found.function.starts_with("<null>");
        // ThreadSanitizer prints the module after file and line, too.
        let has_line = found.address.is_none() && !found.function.contains("<null>");
        out.frame(ReportFrame {
            address: found.address,
            offset: (!is_fixed).then_some(found.offset),
            module: Some(module),
            is_return: false,
            function: (!is_nameless).then(|| name_of(found.function)),
            place: (!has_line).then(|| Place::in_text(found.name, line.range())),
        });
    }
}

/// Returns a path without the architecture that macOS adds to it, as in `/srv/app:arm64`.
fn without_architecture(path: &str) -> &str {
    let architectures = [":arm64", ":arm64e", ":x86_64", ":x86_64h", ":i386"];
    let found = architectures.iter().find_map(|it| path.strip_suffix(it));
    found.unwrap_or(path)
}

/// Returns the function in `in f` of AddressSanitizer, or in `f <null>` of ThreadSanitizer.
fn name_of(text: &str) -> String {
    let text = text.strip_prefix("in ").unwrap_or(text);
    text.strip_suffix(" <null>").unwrap_or(text).to_owned()
}

fn frame<'a>(line: TextLine<'a>, mut cursor: LineCursor<'a>) -> Option<SanitizerLine<'a>> {
    let address = cursor.hex();
    if address.is_some() && !cursor.eat(" ") {
        return None;
    }
    let start = cursor.at();
    // The offset is the last one in the line: a name may contain parentheses.
    let plus = cursor.rest.rfind("+0x")?;
    let (before, after) = cursor.rest.split_at(plus);
    let (offset, after) = after[1..].split_once(')')?;
    let open = before.rfind(" (/").or_else(|| before.rfind(" ("))?;
    let function = before[..open].trim();
    let is_thread = address.is_none();
    if is_thread && function.is_empty() {
        return None;
    }
    let skipped = before[..open].len() - before[..open].trim_start().len();
    let name = start + skipped..start + skipped + function.len();
    let id = after
        .trim_start()
        .strip_prefix("(BuildId: ")
        .and_then(id_at);
    debug_assert!(name.end <= line.range().end);
    let path = &before[open + 2..];
    Some(SanitizerLine {
        address,
        function,
        name,
        path: without_architecture(path),
        offset: hex_of(offset)?,
        id,
    })
}
