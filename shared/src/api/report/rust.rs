//! Backtraces of Rust with `RUST_BACKTRACE=full`: `  3:     0x55… - name`, followed by `at
//! file:line` if there is debug information (`library/std/src/../backtrace/src/print.rs`).
//!
//! All addresses are absolute and are return addresses. A function that was inlined has the number
//! after that of its callee and the same address. A frame with file and line stays as it is. A
//! stack trace may end with a frame at address zero, `  18:                0x0 - <unknown>`, which
//! marks the end and is no function.

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
        let found = frame(line);
        // The text has the line already, of each inlined function: the address is that of them all.
        if is_after_frame
            && found.is_none()
            && let Some((path, line)) = source_in(line.text)
            && let Some(last) = out.last_frame()
        {
            last.place = None;
            last.path = Some(path.to_owned());
            last.line = line;
            last.is_settled = last.function.is_some() && line.is_some();
        }
        let found = found.filter(|found| !found.is_end());
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

/// Returns the path and the line in `at file:line`. A prefix of a log may precede it.
fn source_in(text: &str) -> Option<(&str, Option<u32>)> {
    let text = text.trim();
    if let Some(source) = text.strip_prefix("at ") {
        return Some(source_of(source));
    }
    // Rust indents it.
    let (_, source) = text.split_once("  at ")?;
    let (path, line) = source_of(source);
    // A time looks like a line in a file, except for its path.
    let is_path = line.is_some() && path.contains(['/', '\\', '.']);
    is_path.then_some((path, line))
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
    fn a_frame_with_file_and_line_is_not_looked_up() {
        let text = "   0:     0x1010 - inner\n             at /src/a.rs:1:5\n   \
                    1:     0x1010 - outer\n             at /src/a.rs:9:2\n   \
                    2:     0x1020 - <unknown>\n   \
                    3:     0x1030 - _start\n";
        for prefix in ["", "> ", "app-1  | ", "Nov 23 12:00:00 host app[1]: "] {
            let lines = text.lines().map(|line| format!("{prefix}{line}\n"));
            let other = ["Stopped at 12:01", "listening at http://127.0.0.1:8080"];
            let other = other.map(|line| format!("{prefix}{line}\n"));
            let report = read(&lines.chain(other).collect::<String>());
            let found = report.stacks[0].frames.iter();
            let found: Vec<_> = found
                .map(|it| (it.path.as_deref(), it.line, it.is_settled))
                .collect();
            let expected = [
                (Some("/src/a.rs"), Some(1), true),
                (Some("/src/a.rs"), Some(9), true),
                (None, None, false),
                (None, None, false),
            ];
            assert_eq!(found, expected, "{prefix}");
        }
        // The modules of such frames are not asked for.
        let maps = "1000-2000 r-xp 00000000 fe:00 1 /srv/app\n";
        let (named, _) = text.split_once("   2:").unwrap();
        let report = read(&format!("{named}{maps}"));
        assert!(report.modules.is_empty() && report.is_settled());
    }

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
