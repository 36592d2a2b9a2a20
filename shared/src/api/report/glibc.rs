//! What `backtrace_symbols` and `backtrace_symbols_fd` of glibc print: `path(name+0x1c) [0x…]`,
//! `path(+0x11d5) [0x…]`, `path [0x…]`, or `[0x…]` in a program that is linked statically. Godot
//! adds ` (file:line)`.
//!
//! All addresses are return addresses, also the first one, which is in the function that called
//! `backtrace`. An offset without a name is relative to the module, from which its load address
//! follows; an offset after a name is relative to the function. A program that is not position
//! independent has neither: its load address, and that of a library of which all functions are
//! named, is in the memory map that glibc before 2.26 prints after the backtrace.
//!
//! `std::stacktrace` of libstdc++ prints `1# name at file:line [0x…]`, where the address is that of
//! the call. Such a frame stays as it is, unless the name is absent.

use std::ops::Range;

use super::collector::Collector;
use super::cursor::{TextLine, hex_of, lines, source_of};
use super::maps;
use super::model::{Place, ReportFrame};

pub(super) fn read(bytes: &[u8], out: &mut Collector) {
    let mut next = None;
    for line in lines(bytes) {
        let Some(found) = frame(line) else {
            continue;
        };
        // The addresses of two backtraces may be those of two processes.
        if next != Some(line.start) {
            out.new_process();
        }
        next = Some(line.next);
        if let Some(frame) = report_frame(line, found, out) {
            out.frame(line, frame);
        }
    }
    maps::read(bytes, out);
}

fn report_frame(
    line: TextLine<'_>,
    found: GlibcLine<'_>,
    out: &mut Collector,
) -> Option<ReportFrame> {
    let frame = ReportFrame {
        address: Some(found.address),
        function: found.function.map(str::to_owned),
        ..ReportFrame::default()
    };
    let place = || Some(Place::in_text(found.name.clone(), line.range()));
    Some(match found.place {
        GlibcPlace::Module {
            path,
            offset,
            function_offset,
        } => {
            let module = out.module(path, None)?;
            let offset = offset.filter(|offset| *offset != found.address);
            if let Some(base) = offset.and_then(|it| found.address.checked_sub(it)) {
                out.set_base(module, base);
            }
            ReportFrame {
                offset,
                module: Some(module),
                is_return: true,
                function_offset,
                place: place(),
                ..frame
            }
        }
        GlibcPlace::Unknown => ReportFrame {
            is_return: true,
            place: place(),
            ..frame
        },
        GlibcPlace::Source { number, source } => ReportFrame {
            number: Some(number),
            path: source.map(|(path, _)| path.to_owned()),
            line: source.map(|(_, line)| line),
            is_settled: source.is_some(),
            place: source.is_none().then(place).flatten(),
            ..frame
        },
    })
}

/// Where a frame is.
#[derive(Clone, Copy)]
enum GlibcPlace<'a> {
    Module {
        path: &'a str,
        offset: Option<u64>,
        function_offset: Option<u64>,
    },
    /// A frame of `std::stacktrace`, which names its source file if that is known.
    Source {
        number: u64,
        source: Option<(&'a str, u32)>,
    },
    Unknown,
}

struct GlibcLine<'a> {
    function: Option<&'a str>,
    address: u64,
    place: GlibcPlace<'a>,
    name: Range<usize>,
}

fn frame(line: TextLine<'_>) -> Option<GlibcLine<'_>> {
    let open = line.text.rfind("[0x")?;
    let (address, after) = line.text[open + 1..].split_once(']')?;
    let address = hex_of(address)?;
    let after = after.trim();
    let before = line.text[..open].trim_end();
    if before.is_empty() {
        let at = line.start + open;
        return after.is_empty().then_some(GlibcLine {
            function: None,
            address,
            place: GlibcPlace::Unknown,
            name: at..at,
        });
    }
    let found = if after.is_empty() {
        numbered(before).or_else(|| in_module(before, after))
    } else {
        in_module(before, after)
    };
    let (function, place, name) = found?;
    Some(GlibcLine {
        function,
        address,
        place,
        name: line.start + name.start..line.start + name.end,
    })
}

/// The function, the place, and where the name is in the text.
type FoundInLine<'a> = (Option<&'a str>, GlibcPlace<'a>, Range<usize>);

/// Reads `path(name+0x1c)`, `path(+0x11d5)`, `path()` or `path`, and the text after the address.
fn in_module<'a>(before: &'a str, after: &str) -> Option<FoundInLine<'a>> {
    let (path, symbol, name) = match before.strip_suffix(')') {
        Some(inside) => {
            let open = inside.rfind('(')?;
            let symbol = Some(&inside[open + 1..]);
            (&inside[..open], symbol, open..before.len())
        }
        None => (before, None, before.len()..before.len()),
    };
    // A prefix of a log may precede the path.
    let path = path.split_whitespace().next_back()?;
    let is_path = path.contains('/') && !path.ends_with('/') && source_of(path).1.is_none();
    let (function, offset, function_offset) = match symbol.map(|it| it.rsplit_once('+')) {
        Some(Some(("", offset))) => (None, Some(hex_of(offset)?), None),
        Some(Some((function, offset))) => {
            let offset = hex_of(offset);
            (offset.map(|_| function), None, offset)
        }
        Some(None) if symbol != Some("") => return None,
        _ => (None, None, None),
    };
    // Any text may follow an offset in parentheses.
    let has_source = symbol.is_some() && after.starts_with('(') && after.ends_with(')');
    let is_certain = offset.is_some() || function.is_some() || has_source;
    let is_found = is_certain || is_path && (after.is_empty() || symbol.is_some());
    let place = GlibcPlace::Module {
        path,
        offset,
        function_offset,
    };
    is_found.then_some((function, place, name))
}

/// Reads `1# name at file:line`, where the name may be absent, and then also the file.
fn numbered(before: &str) -> Option<FoundInLine<'_>> {
    let (number, text) = before.split_once("# ")?;
    let number = number.rsplit([' ', '\t']).next()?.parse().ok()?;
    let (function, source) = text.rsplit_once(" at ")?;
    let (path, line) = source_of(source);
    let (function, line) = (function.trim(), line?);
    let is_known = !function.is_empty() && !path.is_empty();
    let place = GlibcPlace::Source {
        number,
        source: is_known.then_some((path, line)),
    };
    let function = Some(function).filter(|name| !name.is_empty());
    Some((function, place, before.len() - text.len()..before.len()))
}

#[cfg(test)]
mod tests {
    use crate::api::report::tests::{frames, read, rewritten};
    use crate::api::report::{CrashReport, Lack};

    #[test]
    fn a_static_program_prints_addresses_alone() {
        let text = "[0x40166d]\n[0x40168e]\n";
        let mut report = read(text);
        assert_eq!(frames(&report), [(0x40_166d, true), (0x40_168e, true)]);
        assert_eq!(
            (report.stacks.len(), report.lacks()),
            (1, vec![Lack::Modules])
        );
        assert_eq!(
            rewritten(text, &[("f", None)]),
            "(f)[0x40166d]\n(f)[0x40168e]\n"
        );
        let maps = "00400000-00500000 r-xp 00000000 fe:00 1 /srv/app\n";
        report = read(&format!("{text}{maps}"));
        assert_eq!(
            report.located(&report.stacks[0].frames[0]),
            Some((0, 0x166d))
        );
        for other in [
            "a [0x40166d]",
            "[0x40166d] a",
            "[0x40166d",
            "a[0] [0x40166d]",
        ] {
            assert!(CrashReport::read(other.as_bytes()).is_err(), "{other}");
        }
    }

    #[test]
    fn a_module_begins_where_the_memory_map_has_its_file() {
        let backtrace = "*** Error in `./app': double free or corruption (fasttop): 0x10 ***\n\
             ======= Backtrace: =========\n\
             /usr/lib/libwork.so(work+0x5)[0x7f5b10001005]\n\
             ./app[0x4005b6]\n\
             ./app(main+0x20)[0x4005d6]\n\
             ./tool[0x4005b6]\n";
        let map = "======= Memory map: ========\n\
             00400000-00401000 r-xp 00000000 08:01 1234               /home/u/app\n\
             00600000-00601000 rw-p 00000000 08:01 1234               /home/u/app\n\
             01c9b000-01cbc000 rw-p 00000000 00:00 0                  [heap]\n\
             7f5b10000000-7f5b10002000 r-xp 00000000 08:01 77         /usr/lib/libwork.so\n\
             7f5b10002000-7f5b10003000 rw-p 00001000 08:01 77         /usr/lib/libwork.so\n";
        let located = |text: &str| {
            let report = read(text);
            let [stack] = report.stacks.as_slice() else {
                panic!("{:?}", report.stacks);
            };
            let frames = stack.frames.iter();
            let found: Vec<_> = frames.map(|frame| report.located(frame)).collect();
            let bases = report.modules.iter().map(|module| module.base);
            (found, bases.collect::<Vec<_>>())
        };
        let (found, bases) = located(&format!("{backtrace}{map}"));
        let expected = [Some((0, 0x1005)), Some((1, 0x5b6)), Some((1, 0x5d6)), None];
        assert_eq!(found, expected);
        assert_eq!(bases, [Some(0x7f5b_1000_0000), Some(0x40_0000), None]);
        // Without the map, and with that of another process.
        let elsewhere = map.replace("0040", "0050").replace("7f5b1", "7f5b2");
        for text in [backtrace.to_owned(), format!("{backtrace}{elsewhere}")] {
            let (_, bases) = located(&text);
            assert_eq!(bases, [None::<u64>; 3], "{text}");
        }
    }

    #[test]
    fn text_may_follow_the_address() {
        let report = read(
            "[1] /lib/libc.so.6(+0x3c050) [0x7f853161e050]\n\
             [2] /srv/app(+0x121b) [0x55ce0277421b] (??:0)\n\
             [3] godot() [0x4da3358] (/core/core_bind.cpp:336 (discriminator 2))\n\
             [bt] (4) /srv/app(f+0x1b) [0x55ce0277431b] ERROR\n",
        );
        let names: Vec<&str> = report.modules.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["/lib/libc.so.6", "/srv/app", "godot"]);
        let offsets = report.stacks[0].frames.iter();
        let offsets: Vec<_> = offsets.map(|it| (it.offset, it.function_offset)).collect();
        let expected = [
            (Some(0x3c050), None),
            (Some(0x121b), None),
            (None, None),
            (None, Some(0x1b)),
        ];
        assert_eq!(offsets, expected);
    }

    #[test]
    fn a_frame_of_the_standard_library_names_its_source_file() {
        let text = "   0# trace() at /src/crash.cc:8 [0x55ce027741c1]\n   1#      at :0 [0x55ce02774315]\n";
        let report = read(text);
        assert_eq!(report.modules, []);
        let [first, second] = report.stacks[0].frames.as_slice() else {
            panic!("{:?}", report.stacks);
        };
        let (function, path) = (first.function.as_deref(), first.path.as_deref());
        assert_eq!((function, path), (Some("trace()"), Some("/src/crash.cc")));
        assert_eq!((first.line, first.is_settled), (Some(8), true));
        assert_eq!((&second.function, second.is_settled), (&None, false));
        assert_eq!((first.number, second.number), (Some(0), Some(1)));
    }

    #[test]
    fn lines_that_end_as_on_windows_are_one_backtrace() {
        let report = read("./app(+0x10)[0x1010]\r\n./app(main+0x4)[0x1014]\r\n");
        assert_eq!(report.stacks.len(), 1);
    }
}
