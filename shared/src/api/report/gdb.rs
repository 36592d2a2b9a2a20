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
//!
//! On a terminal, gdb breaks a frame that is too long for a line: before its arguments, between
//! them, before ` at` and before ` from`. The lines that follow are indented by three or four
//! columns.

use std::ops::Range;

use super::collector::Collector;
use super::cursor::{LineCursor, TextLine, lines, lines_from, numbered, source_of};
use super::maps;
use super::model::{Place, ReportFrame};

/// What gdb prints in place of the function that a signal handler returns to.
pub(super) const SIGNAL: &str = "<signal handler called>";

/// What precedes file and line.
const AT: &str = " at ";

/// What precedes the number of a thread, before its stack trace.
const THREAD: &str = "Thread ";

/// What precedes the id of the thread in the same line.
const ID: &str = "LWP ";

/// The maximum number of places in a line at which the header of a thread may begin.
const MAX_TRIES: usize = 8;

/// By how many columns the lines of a frame may be indented, after the first one. `bt full` indents
/// local variables by eight.
const INDENTATION: Range<usize> = 1..8;

/// The maximum number of lines of a frame. Each line has at least one argument.
const MAX_LINES: usize = 32;

/// The number of bytes of a frame after which no further line is part of it.
const MAX_JOINED: usize = 16 << 10;

pub(super) fn read(bytes: &[u8], out: &mut Collector) {
    let mut after_signal = false;
    // Where the line after the last frame begins.
    let mut next = 0;
    for line in lines(bytes) {
        if line.start < next {
            continue;
        }
        if let Some(thread) = thread(line.text) {
            out.start_stack(thread_id(thread));
            continue;
        }
        let found = numbered(line, |cursor| frame(bytes, line, cursor));
        let Some((number, found)) = found else {
            continue;
        };
        // A sanitizer writes one space after every number.
        if number < 10 && !line.text.contains(&format!("#{number}  ")) {
            continue;
        }
        next = found.next;
        out.number(number, false);
        let is_interrupted = after_signal && number != 0;
        after_signal = found.function.as_deref() == Some(SIGNAL);
        out.frame(line, report_frame(number, is_interrupted, found));
    }
    maps::read(bytes, out);
}

fn report_frame(number: u64, is_interrupted: bool, found: GdbFrame) -> ReportFrame {
    let is_replaced = found.address.is_some() && found.source.is_none();
    let (path, line) = found.source.unzip();
    ReportFrame {
        number: Some(number),
        address: found.address,
        is_return: found.address.is_some() && number != 0 && !is_interrupted,
        function: found.function,
        path,
        line,
        is_settled: found.address.is_none(),
        place: is_replaced.then_some(found.place),
        ..ReportFrame::default()
    }
}

struct GdbFrame {
    address: Option<u64>,
    function: Option<String>,
    source: Option<(String, u32)>,
    place: Place,
    /// Where the line after it begins.
    next: usize,
}

/// Reads the frame whose first line this is, after its number.
fn frame(bytes: &[u8], line: TextLine<'_>, mut cursor: LineCursor<'_>) -> Option<GdbFrame> {
    let before = &line.text[..line.text.len() - cursor.rest.len()];
    let column = before.rfind('#')?;
    let address = cursor.hex();
    if address.is_some() {
        // The address of a call was signed (Arm's pointer authentication).
        cursor.eat(" [PAC]");
        cursor.eat(" in ").then_some(())?;
    }
    let start = cursor.at();
    let (text, last) = joined(bytes, line, column, cursor.rest);
    let (function, source) = if text == SIGNAL {
        (SIGNAL, None)
    } else {
        // The names of a sanitizer are followed by a path, those of gdb by their arguments.
        let (function, arguments) = text.split_at(start_of_arguments(&text)?);
        let at = arguments.rfind(AT).map(|at| &arguments[at + AT.len()..]);
        let source = at.map(source_of);
        let source = source.and_then(|(path, line)| Some((path, line?)));
        // What is between the address and the arguments is the function. Without an address, it is
        // known, and followed by its line, unless the text was cut.
        let is_named = !function.is_empty() && (source.is_some() || arguments.ends_with(','));
        (address.is_some() || is_named).then_some(())?;
        (function, source)
    };
    let end = last.start + last.text.trim_end().len();
    Some(GdbFrame {
        address,
        function: (function != "??").then(|| function.to_owned()),
        source: source.map(|(path, line)| (path.to_owned(), line)),
        place: Place::in_text(start..end, line.start..last.range().end),
        next: last.next,
    })
}

/// Returns the text of a frame in one line, and the last of its lines. `rest` is what the first
/// line has of it, `column` is where the `#` is there.
fn joined<'a>(
    bytes: &'a [u8],
    first: TextLine<'a>,
    column: usize,
    rest: &str,
) -> (String, TextLine<'a>) {
    let mut text = rest.trim_end().to_owned();
    let mut last = first;
    let mut may_have_arguments = text.contains(" (");
    let mut has_arguments = after_brackets(&text).is_some();
    for line in lines_from(bytes, first.next).take(MAX_LINES) {
        let Some(piece) = indented(line.text, column) else {
            break;
        };
        let is_argument = may_have_arguments && text.ends_with([',', '(']);
        let is_list = !has_arguments && !text.is_empty() && piece.starts_with('(');
        let is_continued = is_argument || is_list || text.ends_with(')') && is_place(piece);
        // A line in between may have been omitted.
        if !is_continued || line.start != last.next || text.len() > MAX_JOINED {
            break;
        }
        if !text.ends_with('(') {
            text.push(' ');
        }
        text.push_str(piece);
        last = line;
        (may_have_arguments, has_arguments) = (true, true);
    }
    (text, last)
}

/// Returns what is in a line, if it is indented like those of a frame after the first one.
/// `column` is where the frame begins in its first line: all lines may follow a prefix of a log.
fn indented(line: &str, column: usize) -> Option<&str> {
    let rest = line.get(column..)?.trim_end();
    let text = rest.trim_start_matches(' ');
    let is_indented = INDENTATION.contains(&(rest.len() - text.len()));
    (is_indented && !text.starts_with('#')).then_some(text)
}

/// Returns whether a text says where a function is: its file and line, or its library.
fn is_place(text: &str) -> bool {
    let source = text.strip_prefix("at ").map(source_of);
    source.is_some_and(|(_, line)| line.is_some()) || text.starts_with("from ")
}

/// Returns where the arguments begin. The types in the name of a function may contain parentheses.
fn start_of_arguments(text: &str) -> Option<usize> {
    // The brackets of an operator are not paired.
    after_brackets(text).or_else(|| text.find(" ("))
}

/// Returns where the arguments begin after a name whose brackets are paired.
fn after_brackets(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut starts = text.match_indices([' ', '<', '>']).filter(|(at, found)| {
        match *found {
            "<" => depth += 1,
            ">" if !text[..*at].ends_with('-') => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && text[*at..].starts_with(" (")
    });
    starts.next().map(|(at, _)| at)
}

/// Returns what follows `Thread ` in the line before a stack trace, `Thread 1 (Thread 0x7f… (LWP
/// 4711)):`. A prefix of a log may precede it.
fn thread(line: &str) -> Option<&str> {
    let is_whole = line.trim_end().ends_with("):");
    let id = line.rfind(ID);
    let mut headers = line.match_indices(THREAD).take(MAX_TRIES);
    headers.find_map(|(at, _)| {
        let (before, rest) = (&line[..at], &line[at + THREAD.len()..]);
        // With several programs, the number of a thread follows that of its program: `1.2`.
        let after = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let is_numbered = after.len() < rest.len() && after.starts_with(" (");
        let is_header = is_whole || id > Some(at);
        let is_alone = before.is_empty() || before.ends_with([' ', '\t']);
        (is_numbered && is_header && is_alone).then_some(rest)
    })
}

/// Returns the id of the thread in `1 (Thread 0x7f… (LWP 4711)):`.
fn thread_id(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once(ID)?;
    let end = rest.find(|c: char| !c.is_ascii_digit())?;
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::SIGNAL;
    use crate::api::report::tests::{read, rewritten};
    use crate::api::report::{CrashReport, ReportFormat};

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
    fn a_frame_may_be_broken_over_several_lines_also_in_a_log() {
        let text = "\
#0  __pthread_kill_implementation (no_tid=0, signo=6, threadid=<optimized out>)
    at ./nptl/pthread_kill.c:44
#1  0x00007ffff705a15f in __pthread_kill_internal
    (signo=6, threadid=<optimized out>) at ./nptl/pthread_kill.c:78
#2  0x00007ffff7c42476 in __GI_raise (sig=sig@entry=6)
    at ../sysdeps/posix/raise.c:26
#3  0x0000555555555210 in call_once<(), (dyn Fn() -> i32)>
    (argc=1, argv=0x10,
    end=0x0)
    at /src/a.rs:9
#4  0x00007ffff7c29d90 in ?? ()
   from /lib/libc.so.6
#5  main (argc=1, argv=0x10) at /src/a.rs:20
";
        let expected = [
            (None, "__pthread_kill_implementation", Some(44)),
            (Some(0x7fff_f705_a15f), "__pthread_kill_internal", Some(78)),
            (Some(0x7fff_f7c4_2476), "__GI_raise", Some(26)),
            (
                Some(0x5555_5555_5210),
                "call_once<(), (dyn Fn() -> i32)>",
                Some(9),
            ),
            (Some(0x7fff_f7c2_9d90), "?", None),
            (None, "main", Some(20)),
        ];
        for prefix in [
            "",
            "> ",
            "    ",
            "app-1  | ",
            "Nov 23 12:00:00 host app[1]: ",
        ] {
            for ending in ["\n", "\r\n"] {
                let lines = text.lines().map(|line| format!("{prefix}{line}{ending}"));
                let log: String = lines.collect();
                let report = read(&log);
                let frames = report.stacks[0].frames.iter();
                let found: Vec<_> = frames
                    .map(|it| (it.address, it.function.as_deref().unwrap_or("?"), it.line))
                    .collect();
                assert_eq!(found, expected, "{prefix}");
                // Frames that have their lines stay as they are.
                let unnamed = format!("?? (){ending}{prefix}   from /lib/libc.so.6");
                let named = log.replace(&unnamed, "f () at /src/a.c:3");
                assert_eq!(rewritten(&log, &[("f", Some(3))]), named);
            }
        }
    }

    #[test]
    fn a_name_replaces_all_lines_of_a_frame() {
        let text = "> #1  0x1010 in g\r\n>     (a=1,\r\n>     b=2)\r\n>    from /a.so\r\n> end";
        let named =
            "> #1  0x1010 in f () at /src/a.c:3\r\n> #1  0x1010 in h () from /a.so\r\n> end";
        assert_eq!(rewritten(text, &[("f", Some(3)), ("h", None)]), named);
        let logged = "{\"log\":\"#1  0x1010 in g ()\\n\"}\n{\"log\":\"   from /a.so\\n\",\"at\":2}";
        let named = "{\"log\":\"#1  0x1010 in f ()\\n\",\"at\":2}";
        assert_eq!(rewritten(logged, &[("f", None)]), named);
        // A name that replaced both lines would leave half of the JSON.
        let partly = "{\"log\":\"#1  0x1010 in g ()\\n\"}\n   from /a.so\n";
        assert_eq!(rewritten(partly, &[("f", None)]), partly);
    }

    #[test]
    fn a_backtrace_is_that_of_gdb_although_each_frame_is_broken_behind_its_arguments() {
        let text = "#2  0x00007ffff7c42476 in raise (sig=6)\n    at ../raise.c:26\n";
        let report = read(text);
        let frame = &report.stacks[0].frames[0];
        assert_eq!((report.format, frame.line), (ReportFormat::Gdb, Some(26)));
    }

    #[test]
    fn the_lines_after_a_frame_are_no_part_of_it_unless_they_continue_it() {
        for after in [
            "        x = 1) at b.c:3",
            "x = 1) at b.c:3",
            "    #1  x = 1) at b.c:3",
        ] {
            let text = format!("#0  0x1010 in g (a=1,\n{after}\n");
            let named = format!("#0  0x1010 in f ()\n{after}\n");
            assert_eq!(rewritten(&text, &[("f", None)]), named);
        }
        for after in ["    at java.lang.Thread.run(Thread.java:1)", "    x = 1"] {
            let text = format!("#0  0x1010 in g (a=1)\n{after}\n");
            let named = format!("#0  0x1010 in f ()\n{after}\n");
            assert_eq!(rewritten(&text, &[("f", None)]), named);
        }
    }

    #[test]
    fn the_header_of_a_thread_may_follow_the_prefix_of_a_log() {
        let text = "Thread 2 (Thread 0x7ffff7dfc740 (LWP 4712) \"x\"):\n#0  0x1010 in f ()\n\
                    Thread 2.1 (LWP 4711):\n#1  0x1020 in g ()\n\
                    Thread 3 stopped\n#2  0x1030 in h ()\n";
        for prefix in ["", "> ", "Nov 23 12:00:00 host app[1]: "] {
            let lines = text.lines().map(|line| format!("{prefix}{line}\n"));
            let report = read(&lines.collect::<String>());
            let stacks = report.stacks.iter();
            let found: Vec<_> = stacks.map(|it| (it.thread_id, it.frames.len())).collect();
            assert_eq!(found, [(Some(4712), 1), (Some(4711), 2)], "{prefix}");
        }
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
