//! Backtraces of Rust with `RUST_BACKTRACE=full`: `  3:     0x55… - name`, followed by `at
//! file:line` if there is debug information (`library/std/src/../backtrace/src/print.rs`).
//!
//! All addresses are absolute and are return addresses. A function that was inlined has the number
//! after that of its callee and the same address. A stack trace may end with a frame at address
//! zero, `  18:                0x0 - <unknown>`, which marks the end and is no function.

use super::collector::Collector;
use super::cursor::{LineCursor, TextLine, lines, source_of};
use super::maps;
use super::model::{Place, ReportFrame};

/// The name of a function that is not known.
const UNKNOWN: &str = "<unknown>";

/// The maximum number of colons in a line that are tried as the one after the number.
const MAX_TRIES: usize = 8;

pub(super) fn read(bytes: &[u8], out: &mut Collector) {
    let mut is_after_frame = false;
    for line in lines(bytes) {
        let source = line.text.trim().strip_prefix("at ");
        // The text has the line already.
        if let Some(source) = source.filter(|_| is_after_frame)
            && let Some(last) = out.last_frame()
        {
            let (path, line) = source_of(source);
            last.place = None;
            last.path = Some(path.to_owned());
            last.line = line;
        }
        let found = frame(line).filter(|found| !found.is_end());
        is_after_frame = found.is_some();
        let Some(found) = found else {
            continue;
        };
        out.number(found.number, false);
        let frame = ReportFrame {
            number: Some(found.number),
            address: Some(found.address),
            is_return: true,
            function: (found.function != UNKNOWN).then(|| found.function.to_owned()),
            place: Some(Place::in_text(found.name, line.range())),
            ..ReportFrame::default()
        };
        out.frame(line, frame);
    }
    maps::read(bytes, out);
}

struct RustLine<'a> {
    number: u64,
    address: u64,
    function: &'a str,
    name: std::ops::Range<usize>,
}

impl RustLine<'_> {
    /// Returns whether the line marks the end of a stack trace.
    fn is_end(&self) -> bool {
        self.address == 0 && self.function == UNKNOWN
    }
}

fn frame(line: TextLine<'_>) -> Option<RustLine<'_>> {
    // A prefix of a log may precede the number.
    let mut colons = line.text.match_indices(": ").take(MAX_TRIES);
    colons.find_map(|(at, _)| {
        let digits = line.text[..at]
            .rsplit(|c: char| !c.is_ascii_digit())
            .next()?;
        let number = digits.parse().ok()?;
        let mut cursor = LineCursor::new(line);
        cursor.rest = &line.text[at + 1..];
        cursor.spaces();
        let address = cursor.hex()?;
        cursor.eat(" - ").then_some(())?;
        let start = cursor.at();
        let function = cursor.rest.trim_end();
        (!function.is_empty()).then_some(RustLine {
            number,
            address,
            function,
            name: start..start + function.len(),
        })
    })
}

#[cfg(test)]
mod tests {
    use crate::api::report::tests::{frames, read, rewritten};

    #[test]
    fn the_mark_at_the_end_is_no_frame() {
        let text = "  16:     0x1010 - <unknown>\n  17:     0x1020 - _start\n  \
                    18:                0x0 - <unknown>\n             at a.rs:1\n";
        let report = read(text);
        assert_eq!(frames(&report), [(0x1010, true), (0x1020, true)]);
        assert_eq!(report.stacks[0].frames[1].path, None);
        let end = text.split_once("  18:").unwrap().1;
        assert!(rewritten(text, &[("f", None)]).ends_with(end));
        // A function that has a name is one.
        let named = read("   0:                0x0 - f\n   1:     0x1010 - g\n");
        assert_eq!(frames(&named), [(0, true), (0x1010, true)]);
    }
}
