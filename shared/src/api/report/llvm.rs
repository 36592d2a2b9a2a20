//! Stack dumps of LLVM's tools (`llvm/lib/Support/Unix/Signals.inc`) and of Chromium
//! (`base/debug/stack_trace_posix.cc`).
//!
//! - With a symbolizer, LLVM prints `#1 0x… f (path+0xoffset)`, or `#1 0x… f file:line`, where each
//!   inlined function is a frame. A frame of the latter kind stays as it is.
//! - Without one, it prints `1  module  0x… f + 54`, without the load address.
//! - Chromium prints `#1 0x… f()`, and `#1 0x… (path+0xoffset)` for functions without a name.
//!   There, the offset is that of the call, one less than that of the address.
//!
//! All addresses are return addresses, also in frame 0, which is in the function that collects
//! them. That of a frame after a signal handler is exact, but only the name of the function that
//! the handler returns to tells which it is.

use super::collector::Collector;
use super::cursor::{LineCursor, TextLine, lines};
use super::maps;
use super::model::{Place, ReportFrame};
use super::printed::{PrintedFrame, PrintedPlace, Printer};
use super::sanitizer;

/// What precedes the frames without a symbolizer.
const WITHOUT_SYMBOLIZER: &str = "Stack dump without symbol names";

/// What the functions begin with that collect Chromium's stack traces.
const CHROMIUM: &str = "base::debug::";

/// What Chromium prints for a function that it does not know.
const UNKNOWN: &str = "<unknown>";

/// How LLVM prints the address zero: the number has no prefix then.
const ZERO: &str = "000000000000000000";

/// The size of pages, on which modules begin.
const PAGE: u64 = 0x1000;

/// The numbers of characters of an address without a symbolizer: all digits of 32 and of 64 bits.
const WIDTHS: [usize; 2] = [10, 18];

/// The maximum number of words in a line that are tried as the beginning of a frame.
const MAX_TRIES: usize = 16;

pub(super) fn read(bytes: &[u8], out: &mut Collector) {
    let mut is_chromium = false;
    for (line, number, found) in sanitizer::frames(bytes, Printer::Llvm) {
        if number == 0 {
            is_chromium = found.function.starts_with(CHROMIUM);
        }
        if matches!(found.place, PrintedPlace::Unknown) && !is_chromium {
            continue;
        }
        out.number(number, false);
        let after_signal = out.is_after_trampoline();
        if let Some(frame) = report_frame(line, number, found, out) {
            let is_return = frame.is_return && !after_signal;
            out.frame(line, ReportFrame { is_return, ..frame });
        }
    }
    read_unsymbolized(bytes, out);
    maps::read(bytes, out);
}

fn report_frame(
    line: TextLine<'_>,
    number: u64,
    found: PrintedFrame<'_>,
    out: &mut Collector,
) -> Option<ReportFrame> {
    let is_nameless = found.function.is_empty() || found.function == UNKNOWN;
    let frame = ReportFrame {
        number: Some(number),
        address: found.address,
        function: (!is_nameless).then(|| found.function.to_owned()),
        ..ReportFrame::default()
    };
    let place = || Some(Place::in_text(found.name.clone(), line.range()));
    Some(match found.place {
        PrintedPlace::Module { path, offset, id } => {
            let module = out.module(path, id)?;
            let address = found.address?;
            let distance = address.checked_sub(offset)?;
            let lag = u64::from(distance % PAGE == 1);
            let base = distance - lag;
            // In a program that is not position independent, the offset is the address.
            let is_fixed = base == 0;
            if !is_fixed {
                out.set_base(module, base);
            }
            ReportFrame {
                offset: (!is_fixed).then_some(offset + lag),
                module: Some(module),
                is_return: true,
                place: place(),
                ..frame
            }
        }
        PrintedPlace::Source(path, source_line) => ReportFrame {
            path: Some(path.to_owned()),
            line: source_line,
            is_settled: true,
            ..frame
        },
        PrintedPlace::Nowhere => ReportFrame {
            is_settled: true,
            ..frame
        },
        PrintedPlace::Unknown => ReportFrame {
            is_return: true,
            place: place(),
            ..frame
        },
    })
}

/// Reads the frames that are printed without a symbolizer, in lines in which none was found.
fn read_unsymbolized(bytes: &[u8], out: &mut Collector) {
    let mut is_dump = false;
    // The number of the next frame.
    let mut next = 0;
    let taken: Vec<usize> = out.lines().iter().map(|it| it.start).collect();
    for line in lines(bytes) {
        if line.text.contains(WITHOUT_SYMBOLIZER) {
            (is_dump, next) = (true, 0);
            out.start_stack(None);
        }
        let may_be = is_dump && taken.binary_search(&line.start).is_err();
        let Some(found) = may_be.then(|| unsymbolized(line, next)).flatten() else {
            continue;
        };
        next = found.number.saturating_add(1);
        out.number(found.number, false);
        let Some(module) = out.module(found.module, None) else {
            continue;
        };
        let frame = ReportFrame {
            number: Some(found.number),
            address: Some(found.address),
            module: Some(module),
            is_return: true,
            function: found.function.map(str::to_owned),
            place: Some(Place::in_text(found.name, line.range())),
            ..ReportFrame::default()
        };
        out.frame(line, frame);
    }
    if is_dump {
        maps::read_named(bytes, out);
    }
}

struct UnsymbolizedLine<'a> {
    number: u64,
    module: &'a str,
    address: u64,
    function: Option<&'a str>,
    name: std::ops::Range<usize>,
}

/// Returns the frame in a line. A prefix of a log may have numbers as well: the number of the frame
/// is the one that is expected `next`, or else the last one.
fn unsymbolized(line: TextLine<'_>, next: u64) -> Option<UnsymbolizedLine<'_>> {
    let mut cursor = LineCursor::new(line);
    let tries = (0..MAX_TRIES).filter_map(|_| {
        cursor.spaces();
        let here = cursor;
        cursor.word();
        unsymbolized_at(line, here, next)
    });
    tries.max_by_key(|found| found.number == next)
}

fn unsymbolized_at<'a>(
    line: TextLine<'a>,
    mut cursor: LineCursor<'a>,
    next: u64,
) -> Option<UnsymbolizedLine<'a>> {
    let is_first = cursor.rest.len() == line.text.trim_start_matches([' ', '\t']).len();
    let number = cursor.number()?;
    cursor.spaces().then_some(())?;
    let from = cursor.rest;
    // The name of the module may contain spaces.
    let (module, address, width) = loop {
        cursor.word();
        let module = &from[..from.len() - cursor.rest.len()];
        cursor.spaces().then_some(())?;
        let before = cursor.rest.len();
        let address = cursor.hex();
        if let Some(address) = address.or_else(|| cursor.eat(ZERO).then_some(0)) {
            break (module, address, before - cursor.rest.len());
        }
    };
    // Any text may follow a number in the middle of a line, such as that of a day.
    let may_be_name = !module.contains(':');
    let is_expected = number == next && WIDTHS.contains(&width);
    (may_be_name && (is_first || is_expected)).then_some(())?;
    let is_separated = cursor.spaces();
    let start = cursor.at();
    let text = cursor.rest.trim_end();
    let function = text.rsplit_once(" + ").map_or(text, |(name, _)| name);
    let is_name = !function.is_empty();
    (is_separated || !is_name).then_some(UnsymbolizedLine {
        number,
        module,
        address,
        function: is_name.then_some(function),
        name: start..start + text.len(),
    })
}

#[cfg(test)]
mod tests {
    use crate::api::report::tests::{frames, read, rewritten};
    use crate::api::report::{CrashReport, Lack, ReportFormat};

    const DUMP: &str = "\
Stack dump:
0.\tProgram arguments: x
 #0 0x000055ce027741c1 trace() (/srv/app+0x11c1)
 #1 0x000055ce027741e2 onsig(int) /src/a.cc:7:3
 #2 0x00007f853161e050 (/lib/libc.so.6+0x3c050)
 #3 0x000055ce0277421b mid(int volatile*, int) (/srv/app+0x121b)
";

    #[test]
    fn the_addresses_of_a_stack_dump_are_return_addresses() {
        let report = read(DUMP);
        assert_eq!(report.format, ReportFormat::Llvm);
        let expected = [
            (0x55ce_0277_41c1, true),
            (0x55ce_0277_41e2, false),
            (0x7f85_3161_e050, true),
            (0x55ce_0277_421b, true),
        ];
        assert_eq!(frames(&report), expected);
        let settled: Vec<bool> = report.stacks[0]
            .frames
            .iter()
            .map(|it| it.is_settled)
            .collect();
        assert_eq!(settled, [false, true, false, false]);
        let bases: Vec<_> = report.modules.iter().map(|it| it.base).collect();
        assert_eq!(bases, [Some(0x55ce_0277_3000), Some(0x7f85_315e_2000)]);
        for name in ["__restore_rt", "runtime.sigpanic"] {
            let interrupted = DUMP.replace(" (/lib/", &format!(" {name} (/lib/"));
            let report = read(&interrupted);
            assert_eq!(frames(&report)[3], (0x55ce_0277_421b, false), "{name}");
        }
    }

    #[test]
    fn names_are_written_without_a_word_before_them() {
        let expected = DUMP
            .replace("trace()", "f /src/a.c:3")
            .replace("0x00007f853161e050 (", "0x00007f853161e050 f /src/a.c:3 (")
            .replace("mid(int volatile*, int)", "f /src/a.c:3");
        assert_eq!(rewritten(DUMP, &[("f", Some(3))]), expected);
    }

    #[test]
    fn frames_without_a_symbolizer_have_their_modules() {
        let text = "\
Stack dump without symbol names (ensure you have llvm-symbolizer in your PATH):
0  libLLVM.so.19.1      0x00007f9c4e2b73c6 llvm::sys::PrintStackTrace(llvm::raw_ostream&, int) + 54
1  my clang             0x00007f9c4e1fd210
2  libc.so.6            000000000000000000 f + 18
";
        let report = read(text);
        assert_eq!(report.format, ReportFormat::Llvm);
        let found: Vec<_> = report.stacks[0]
            .frames
            .iter()
            .map(|it| {
                (
                    it.function.as_deref(),
                    it.address.unwrap(),
                    it.module.unwrap(),
                )
            })
            .collect();
        let print = "llvm::sys::PrintStackTrace(llvm::raw_ostream&, int)";
        let expected = [
            (Some(print), 0x7f9c_4e2b_73c6, 0),
            (None, 0x7f9c_4e1f_d210, 1),
            (Some("f"), 0, 2),
        ];
        assert_eq!(found, expected);
        assert_eq!(report.modules[1].name, "my clang");
        let lack = Lack::Base {
            module: "my clang".to_owned(),
        };
        assert!(report.lacks().contains(&lack), "{:?}", report.lacks());
        let maps = "7f9c4e000000-7f9c4f000000 r-xp 00000000 fe:00 1 /usr/lib/libLLVM.so.19.1\n";
        let with_maps = read(&format!("{text}{maps}"));
        assert_eq!(with_maps.modules[0].name, "/usr/lib/libLLVM.so.19.1");
        assert_eq!(with_maps.modules[0].base, Some(0x7f9c_4e00_0000));
        let named = rewritten(text, &[("g", None)]);
        assert!(named.contains("0x00007f9c4e2b73c6 g\n"), "{named}");
        assert!(named.contains("0x00007f9c4e1fd210 g\n"), "{named}");
        // The same lines are those of other programs without the line before them.
        let (_, others) = text.split_once('\n').unwrap();
        assert!(CrashReport::read(others.as_bytes()).is_err());
    }

    #[test]
    fn frames_without_a_symbolizer_may_follow_the_prefix_of_a_log() {
        let text = "\
Stack dump without symbol names (ensure you have llvm-symbolizer in your PATH):
0  libLLVM.so.19.1      0x00007f9c4e2b73c6 f(int) + 54
1  my 22 clang          0x00007f9c4e1fd210
registers rax 0x12
allocated 16 bytes at 0x000055d0c0ffee00 by X
2  libc.so.6            0x00007f9c4e1fd211 g + 18
";
        for prefix in [
            "",
            "> ",
            "app-1  | ",
            "Nov 23 12:00:00 host app[1]: ",
            "23 Nov 2026 12:00:00 app: ",
        ] {
            let lines = text.lines().map(|line| format!("{prefix}{line}\n"));
            let report = read(&lines.collect::<String>());
            let found = report.stacks[0].frames.iter();
            let found: Vec<_> = found
                .map(|it| {
                    let module = report.modules[it.module.unwrap()].name.as_str();
                    (it.number.unwrap(), module, it.function.as_deref())
                })
                .collect();
            let expected = [
                (0, "libLLVM.so.19.1", Some("f(int)")),
                (1, "my 22 clang", None),
                (2, "libc.so.6", Some("g")),
            ];
            assert_eq!(found, expected, "{prefix}");
        }
    }

    #[test]
    fn frames_of_chromium_have_names_or_modules() {
        let report = read(
            "Received signal 11 SEGV_MAPERR 000000000000\n\
             #0 0x55555ac855f9 base::debug::CollectStackTrace()\n\
             #1 0x55555abfafe3 base::debug::StackTrace() [../../base/stack_trace.cc:280:20]\n\
             #2 0x7ffff7fa73c0 (/lib/libpthread-2.31.so+0x153bf)\n\
             #3 0x55555f3806a8 <unknown>\n\
             #4 0x55555f3806a9 main\n",
        );
        assert_eq!(report.format, ReportFormat::Llvm);
        let found = report.stacks[0].frames.iter();
        let found: Vec<_> = found
            .map(|it| (it.function.as_deref(), it.is_settled))
            .collect();
        let expected = [
            (Some("base::debug::CollectStackTrace()"), false),
            (Some("base::debug::StackTrace()"), true),
            (None, false),
            (None, false),
            (Some("main"), false),
        ];
        assert_eq!(found, expected);
        // The offset is that of the call.
        let thread_library = &report.stacks[0].frames[2];
        assert_eq!(
            (thread_library.offset, thread_library.is_return),
            (Some(0x153c0), true)
        );
        assert_eq!(report.modules[0].base, Some(0x7fff_f7f9_2000));
        // Words after an address are no function otherwise.
        let text = "#0 0x55555ac855f9 other words\n#1 0x55555abfafe3 main\n";
        assert!(CrashReport::read(text.as_bytes()).is_err());
    }
}
