//! Backtraces of gdb: `#1  0x… in name (arguments) from library`, or `at file:line`.
//!
//! All addresses are return addresses, except in frame 0 and in the frame that a signal
//! interrupted. Load addresses come from `info proc mappings` in the same text.
//!
//! Two kinds of frames have no address, and always file and line (gdb's `frame_show_address`):
//!
//! - Of functions that were inlined, gdb prints the address in front of the innermost one. The
//!   others, up to the one that was really called, follow without an address.
//! - A frame of which the address is exact, and at the beginning of a line.
//!
//! Both stay in the report as the text has them, and are not looked up. The response also names
//! those of the first kind ([`CrashReport::repeated`](super::CrashReport::repeated)).

use super::collector::Collector;
use super::cursor::{LineCursor, TextLine, lines, numbered, source_of};
use super::maps;
use super::model::{Place, ReportFrame};

/// What gdb prints in place of the function that a signal handler returns to.
pub(super) const SIGNAL: &str = "<signal handler called>";

/// What precedes file and line.
const AT: &str = " at ";

pub(super) fn read(bytes: &[u8], out: &mut Collector) {
    let mut after_signal = false;
    for line in lines(bytes) {
        if let Some(rest) = line.text.strip_prefix("Thread ") {
            out.begin(thread_id(rest));
            continue;
        }
        let Some((number, found)) = numbered(line, frame) else {
            continue;
        };
        // A sanitizer writes one space after every number.
        if number < 10 && !line.text.contains(&format!("#{number}  ")) {
            continue;
        }
        out.number(number, false);
        let is_interrupted = after_signal && number != 0;
        after_signal = found.function == Some(SIGNAL);
        out.frame(line, report_frame(line, number, is_interrupted, found));
    }
    maps::read(bytes, out);
}

fn report_frame(
    line: TextLine<'_>,
    number: u64,
    is_interrupted: bool,
    found: GdbLine<'_>,
) -> ReportFrame {
    let is_replaced = found.address.is_some() && found.source.is_none();
    ReportFrame {
        number: Some(number),
        address: found.address,
        is_return: found.address.is_some() && number != 0 && !is_interrupted,
        function: found.function.map(str::to_owned),
        path: found.source.map(|(path, _)| path.to_owned()),
        line: found.source.map(|(_, line)| line),
        is_settled: found.address.is_none(),
        place: is_replaced.then(|| Place::in_text(found.name, line.range())),
        ..ReportFrame::default()
    }
}

struct GdbLine<'a> {
    address: Option<u64>,
    function: Option<&'a str>,
    source: Option<(&'a str, u32)>,
    name: std::ops::Range<usize>,
}

fn frame(mut cursor: LineCursor<'_>) -> Option<GdbLine<'_>> {
    let address = cursor.hex();
    if address.is_some() {
        // The address of a call was signed (Arm's pointer authentication).
        cursor.eat(" [PAC]");
        cursor.eat(" in ").then_some(())?;
    }
    let start = cursor.at();
    let text = cursor.rest.trim_end();
    let name = start..start + text.len();
    if text == SIGNAL {
        return Some(GdbLine {
            address,
            function: Some(SIGNAL),
            source: None,
            name,
        });
    }
    // The names of a sanitizer are followed by a path, those of gdb by their arguments.
    let (function, arguments) = text.split_at(start_of_arguments(text)?);
    let at = arguments.rfind(AT).map(|at| &arguments[at + AT.len()..]);
    let source = at.map(source_of);
    let source = source.and_then(|(path, line)| Some((path, line?)));
    // What is between the address and the arguments is the function. Without an address, it is
    // known, and followed by its line, unless gdb broke the line.
    let is_named = !function.is_empty() && (source.is_some() || arguments.ends_with(','));
    (address.is_some() || is_named).then_some(GdbLine {
        address,
        function: Some(function).filter(|name| *name != "??"),
        source,
        name,
    })
}

/// Returns where the arguments begin. The types in the name of a function may contain parentheses.
fn start_of_arguments(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut starts = text.match_indices([' ', '<', '>']).filter(|(at, found)| {
        match *found {
            "<" => depth += 1,
            ">" if !text[..*at].ends_with('-') => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && text[*at..].starts_with(" (")
    });
    // The brackets of an operator are not paired.
    let start = starts.next().map(|(at, _)| at);
    start.or_else(|| text.find(" ("))
}

/// Returns the id of the thread in `1 (Thread 0x7f… (LWP 4711)):`.
fn thread_id(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once("LWP ")?;
    let end = rest.find(|c: char| !c.is_ascii_digit())?;
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::SIGNAL;
    use crate::api::report::CrashReport;
    use crate::api::report::tests::{read, rewritten};

    /// Returns the number, the address and the function of each frame, and whether its address is a
    /// return address.
    fn shown(report: &CrashReport) -> Vec<(u64, Option<u64>, &str, bool)> {
        let frames = report.stacks.iter().flat_map(|stack| &stack.frames);
        let shown = frames.map(|it| {
            let function = it.function.as_deref().unwrap_or("?");
            (it.number.unwrap(), it.address, function, it.is_return)
        });
        shown.collect()
    }

    #[test]
    fn frames_without_an_address_stay_and_a_signal_concerns_the_next_frame_only() {
        let report = read(
            "#4  0x0000555555555152 in h (s=<optimized out>) at gs.c:12\n\
             #5  <signal handler called>\n\
             #6  mid (p=p@entry=0x0, k=k@entry=1) at gs.c:4\n\
             #7  0x0000555555555163 in outer (k=k@entry=1) at gs.c:7\n",
        );
        let expected = [
            (4, Some(0x5555_5555_5152), "h", true),
            (5, None, SIGNAL, false),
            (6, None, "mid", false),
            (7, Some(0x5555_5555_5163), "outer", true),
        ];
        assert_eq!(shown(&report), expected);
        let mid = &report.stacks[0].frames[2];
        assert_eq!((mid.path.as_deref(), mid.line), (Some("gs.c"), Some(4)));
        assert!(mid.is_settled && report.is_named(mid));
        // The response has their indexes, too.
        assert_eq!(report.request().stacktraces[0].frames.len(), 4);
    }

    #[test]
    fn the_types_in_a_name_are_part_of_it() {
        for function in [
            "call_once<(), (dyn Fn() -> i32)>",
            "operator<",
            "a<b>::c->d",
            "f",
        ] {
            let text = format!("#0  {function} (self=<optimized out>, f=(1)) at a.rs:1\n");
            assert_eq!(shown(&read(&text)), [(0, None, function, false)]);
        }
    }

    #[test]
    fn a_frame_in_two_lines_is_not_lost() {
        let text = "#0  f (a=1,\n    b=2) at a.c:3\n#1  0x10 in g (a=1,\n    b=2) at a.c:4\n";
        let report = read(text);
        let expected = [(0, None, "f", false), (1, Some(0x10), "g", true)];
        assert_eq!(shown(&report), expected);
    }

    #[test]
    fn words_after_a_number_are_no_function() {
        for text in [
            "#1  f (a)",
            "#1  f (a) in b.c:3",
            "#1  (a) at b.c:3",
            "#1 f (a) at b.c:3",
        ] {
            assert!(CrashReport::read(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn colours_are_no_part_of_a_frame_and_stay_in_the_text() {
        let text = "#0  \x1b[34m0x0000000000001010\x1b[m in \x1b[33m??\x1b[m ()\nend";
        assert_eq!(shown(&read(text)), [(0, Some(0x1010), "?", false)]);
        let named = "#0  \x1b[34m0x0000000000001010\x1b[m in \x1b[33mf () at /src/a.c:3\x1b[m\nend";
        assert_eq!(rewritten(text, &[("f", Some(3))]), named);
    }
}
