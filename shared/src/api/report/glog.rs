//! Stack traces of glog (`src/signalhandler.cc`, `src/utilities.cc`) and Abseil
//! (`absl/debugging/internal/examine_stack.cc`): `    @     0x55… f()`. Abseil prints the size of
//! the frame before the function, or `(unknown)`.
//!
//! All addresses are absolute. `PC: @     0x55… f()` has the address that the signal interrupted;
//! it begins a stack trace, before or after the line that names the signal. The other addresses are
//! return addresses, also the first one, except that of a frame after a signal handler: the
//! interrupted one is printed again there.

use std::ops::Range;

use super::collector::Collector;
use super::cursor::{LineCursor, TextLine, lines};
use super::maps;
use super::model::{Place, ReportFrame};

/// What is printed for a function, or for the size of a frame, that is not known.
const UNKNOWN: &str = "(unknown)";

/// What precedes the address that a signal interrupted.
const INTERRUPTED: &str = "PC: ";

/// What precedes any other frame.
const INDENTATION: &str = "    ";

/// How a line ends that precedes a stack trace.
const HEADER: &str = " ***";

/// The maximum number of `@` in a line that are tried as the beginning of a frame.
const MAX_TRIES: usize = 8;

pub(super) fn read(bytes: &[u8], out: &mut Collector) {
    let mut is_begun = false;
    let mut interrupted = None;
    for line in lines(bytes) {
        let Some(found) = frame(line) else {
            if !is_begun && line.text.trim_end().ends_with(HEADER) {
                out.new_process();
                interrupted = None;
            }
            continue;
        };
        if found.is_interrupted {
            out.new_process();
            interrupted = Some(found.address);
        }
        is_begun = found.is_interrupted;
        let is_return = Some(found.address) != interrupted && !out.is_after_trampoline();
        let frame = ReportFrame {
            address: Some(found.address),
            is_return,
            function: found.function.map(str::to_owned),
            place: Some(Place::in_text(found.name, line.range())),
            ..ReportFrame::default()
        };
        out.frame(line, frame);
    }
    maps::read(bytes, out);
}

struct GlogLine<'a> {
    address: u64,
    /// Whether the address is that of the instruction that a signal interrupted.
    is_interrupted: bool,
    function: Option<&'a str>,
    name: Range<usize>,
}

fn frame(line: TextLine<'_>) -> Option<GlogLine<'_>> {
    let mut tries = line.text.match_indices("@ ").take(MAX_TRIES);
    tries.find_map(|(at, mark)| {
        // A prefix of a log may precede the indentation.
        let before = &line.text[..at];
        let is_interrupted = before.ends_with(INTERRUPTED);
        let is_indented = before.is_empty() || before.ends_with(INDENTATION);
        (is_interrupted || is_indented).then_some(())?;
        let mut cursor = LineCursor::new(line);
        cursor.rest = &line.text[at + mark.len()..];
        cursor.spaces();
        let address = cursor.hex()?;
        let after = cursor.rest.trim_end();
        (after.is_empty() || after.starts_with(' ')).then_some(())?;
        let text = without_size(after);
        let end = cursor.at() + after.len();
        Some(GlogLine {
            address,
            is_interrupted,
            function: Some(text).filter(|text| !text.is_empty() && *text != UNKNOWN),
            name: end - text.len()..end,
        })
    })
}

/// Returns what follows the size of the frame that Abseil prints between spaces, two of which
/// precede a function; without a size, the whole text. The text is empty if it ends with the size.
fn without_size(text: &str) -> &str {
    let text = text.trim_start();
    let (first, rest) = text.split_once("  ").unwrap_or((text, ""));
    let is_number = !first.is_empty() && first.bytes().all(|byte| byte.is_ascii_digit());
    if is_number || first == UNKNOWN && !rest.is_empty() {
        rest.trim_start()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use crate::api::report::tests::{frames, read, rewritten};
    use crate::api::report::{CrashReport, Lack, ReportFormat};

    /// As glog prints it in a signal handler.
    const GLOG: &str = "\
*** Aborted at 1700000000 (unix time) try \"date -d @1700000000\" if you are using GNU date ***
PC: @     0x55fc7cc32290 (unknown)
*** SIGSEGV (@0x0) received by PID 7 (TID 0x7f0000) from PID 0; stack trace: ***
    @     0x7f822a680050 (unknown)
    @     0x55fc7cc32290 (unknown)
    @           0x400b5a ns::run()
    @     0x7f822a66b24a (unknown)
";

    /// As Abseil prints it.
    const ABSEIL: &str = "\
*** SIGSEGV received at time=1700000000 on cpu 3 ***
PC: @     0x55d0c8a1b2c3  (unknown)  absl::Foo()
    @     0x7f822a680050  (unknown)  (unknown)
    @     0x55d0c8a1b2c3         64  absl::Foo()
    @ ... and at least 2 more frames
";

    #[test]
    fn all_but_the_interrupted_address_are_return_addresses() {
        let report = read(GLOG);
        assert_eq!(report.format, ReportFormat::Glog);
        let expected = [
            (0x55fc_7cc3_2290, false),
            (0x7f82_2a68_0050, true),
            (0x55fc_7cc3_2290, false),
            (0x40_0b5a, true),
            (0x7f82_2a66_b24a, true),
        ];
        assert_eq!(frames(&report), expected);
        assert_eq!(report.stacks.len(), 1);
        let functions = report.stacks[0].frames.iter();
        let functions: Vec<_> = functions.map(|it| it.function.as_deref()).collect();
        assert_eq!(functions, [None, None, None, Some("ns::run()"), None]);
        let report = read(ABSEIL);
        let expected = [
            (0x55d0_c8a1_b2c3, false),
            (0x7f82_2a68_0050, true),
            (0x55d0_c8a1_b2c3, false),
        ];
        assert_eq!(frames(&report), expected);
        // The name of the trampoline tells that the next address was interrupted.
        let named = ABSEIL.replace("(unknown)  (unknown)", "       16  __restore_rt");
        assert!(!frames(&read(&named))[2].1);
    }

    #[test]
    fn a_signal_and_a_failed_check_begin_a_stack_trace_each() {
        let check = "F1123 12:00:00.000000 7 a.cc:3] Check failed: x\n\
                     *** Check failure stack trace: ***\n    @     0x55fc7cc32290  main\n";
        // Older versions print the address after the line that names the signal.
        let older = "*** SIGSEGV (@0x0) received by PID 7; stack trace: ***\n\
                     PC: @           0x400b5a f()\n    @           0x400b5a f()\n";
        let report = read(&format!("{check}{GLOG}{older}{ABSEIL}{check}"));
        let counts = report.stacks.iter().map(|stack| stack.frames.len());
        assert_eq!(counts.collect::<Vec<_>>(), [1, 5, 2, 3, 1]);
    }

    #[test]
    fn names_replace_those_of_the_text_or_follow_the_address() {
        let name = |line: &str| rewritten(&format!("{line}\n"), &[("f(int)", Some(3))]);
        for (line, expected) in [
            (
                "    @     0x7f822a680050 (unknown)",
                "    @     0x7f822a680050 f(int) at /src/a.c:3\n",
            ),
            (
                "PC: @           0x400b5a  main",
                "PC: @           0x400b5a  f(int) at /src/a.c:3\n",
            ),
            (
                "    @     0x55d0c8a1b2c3         64  absl::Foo()",
                "    @     0x55d0c8a1b2c3         64  f(int) at /src/a.c:3\n",
            ),
            (
                "    @     0x55d0c8a1b2c3  (unknown)  absl::Foo()",
                "    @     0x55d0c8a1b2c3  (unknown)  f(int) at /src/a.c:3\n",
            ),
            (
                "    @     0x55d0c8a1b2c3         64",
                "    @     0x55d0c8a1b2c3         64  f(int) at /src/a.c:3\n",
            ),
            (
                "    @     0x55d0c8a1b2c3",
                "    @     0x55d0c8a1b2c3  f(int) at /src/a.c:3\n",
            ),
        ] {
            assert_eq!(name(line), expected);
        }
    }

    #[test]
    fn lines_may_follow_a_prefix_of_a_log() {
        for prefix in ["Nov 23 12:00:00 host app[1]: ", "app-1  | ", "> ", "    "] {
            let lines = GLOG.lines().map(|line| format!("{prefix}{line}\r\n"));
            let report = read(&lines.collect::<String>());
            assert_eq!(frames(&report), frames(&read(GLOG)), "{prefix}");
            assert_eq!(report.stacks.len(), 1, "{prefix}");
        }
    }

    #[test]
    fn addresses_are_located_by_maps_and_lacking_without_them() {
        let report = read(GLOG);
        assert_eq!(report.lacks(), [Lack::Modules]);
        let maps = "55fc7cc31000-55fc7cc33000 r-xp 00000000 fe:00 1 /srv/app\n";
        let report = read(&format!("{GLOG}{maps}"));
        let pc = &report.stacks[0].frames[0];
        assert_eq!(report.located(pc), Some((0, 0x1290)));
    }

    #[test]
    fn an_address_in_another_place_is_no_frame() {
        for text in [
            "mail to a@ 0x10",
            "    @ 0x10x",
            "    @ ... and at least 2 more frames",
            "SIGSEGV (@0x0)",
        ] {
            assert!(CrashReport::read(text.as_bytes()).is_err(), "{text}");
        }
    }
}
