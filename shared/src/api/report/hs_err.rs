//! Error logs of the JVM (`hs_err_pid….log`, HotSpot's `vmError.cpp`): the native frames, `C
//! [lib.so+0x10f9]  name+0x9`.
//!
//! The offsets are relative to the module. They are those of return addresses, except in the first
//! frame. The paths and load addresses are in the section of the dynamic libraries. An address in
//! none of them is printed alone.

use super::collector::Collector;
use super::cursor::{LineCursor, TextLine, lines};
use super::maps;
use super::model::{Place, ReportFrame};

/// What begins the native frames of the thread that crashed.
const NATIVE: &str = "Native frames:";

/// What precedes the first frame in the summary.
const PROBLEMATIC: &str = "# Problematic frame:";

/// The maximum number of letters in a line that are tried as the beginning of a frame.
const MAX_TRIES: usize = 8;

pub(super) fn read(bytes: &[u8], out: &mut Collector) {
    let mut is_first = true;
    for line in lines(bytes) {
        if line.text.contains(NATIVE) || line.text.contains(PROBLEMATIC) {
            out.start_stack(None);
            is_first = true;
            continue;
        }
        // Frames of Java are in between.
        let is_top = std::mem::replace(&mut is_first, false);
        let Some(found) = frame(line) else {
            continue;
        };
        let frame = match found {
            HsErrLine::Nowhere { address } => ReportFrame {
                address: Some(address),
                is_settled: true,
                ..ReportFrame::default()
            },
            HsErrLine::InModule(found) => {
                let Some(module) = out.module(found.module, None) else {
                    continue;
                };
                ReportFrame {
                    offset: Some(found.offset),
                    module: Some(module),
                    is_return: !is_top,
                    function: found.function.map(str::to_owned),
                    place: Some(Place::in_text(found.name, line.range())),
                    ..ReportFrame::default()
                }
            }
        };
        out.frame(line, frame);
    }
    maps::read_named(bytes, out);
}

enum HsErrLine<'a> {
    InModule(FoundFrame<'a>),
    Nowhere { address: u64 },
}

struct FoundFrame<'a> {
    module: &'a str,
    offset: u64,
    function: Option<&'a str>,
    name: std::ops::Range<usize>,
}

fn frame(line: TextLine<'_>) -> Option<HsErrLine<'_>> {
    // C is native code, V is code of the JVM. A prefix of a log may precede the letter.
    let letters = line.text.match_indices(['C', 'V']);
    let letters = letters.filter(|(at, _)| {
        let before = &line.text[..*at];
        before.is_empty() || before.ends_with([' ', '\t'])
    });
    letters.take(MAX_TRIES).find_map(|(at, letter)| {
        let mut cursor = LineCursor::new(line);
        cursor.rest = &line.text[at + letter.len()..];
        cursor.eat("  ").then(|| native_frame(cursor)).flatten()
    })
}

/// Reads what follows the letter of a frame.
fn native_frame(mut cursor: LineCursor<'_>) -> Option<HsErrLine<'_>> {
    if let Some(address) = cursor.hex() {
        let is_alone = cursor.rest.trim_end().is_empty();
        return is_alone.then_some(HsErrLine::Nowhere { address });
    }
    cursor.eat("[").then_some(())?;
    let module = cursor.until("+0x")?;
    let offset = cursor.digits()?;
    cursor.eat("]").then_some(())?;
    cursor.spaces();
    let start = cursor.at();
    let text = cursor.rest.trim_end();
    let function = text.rsplit_once("+0x").map_or(text, |(name, _)| name);
    Some(HsErrLine::InModule(FoundFrame {
        module,
        offset,
        function: (!function.is_empty()).then_some(function),
        name: start..start + text.len(),
    }))
}

#[cfg(test)]
mod tests {
    use crate::api::report::tests::{frames, read};

    #[test]
    fn an_address_in_no_module_is_a_frame() {
        let report = read(
            "# Problematic frame:\n# C  0x0000000000000000\n\
             Native frames: (J=compiled Java code, C=native code)\n\
             C  0x0000000000000000\nC  [libj.so+0x1128]  lvl2+0x9\nj  C.go(I)I+0\n",
        );
        assert_eq!(frames(&report), [(0, false), (0, false), (0x1128, true)]);
        assert!(report.stacks[1].frames[0].is_settled);
        assert_eq!(report.lacks().len(), 1);
    }

    #[test]
    fn a_frame_may_follow_the_prefix_of_a_log() {
        let report = read(
            "app-1  | Native frames: (J=compiled Java code, C=native code)\n\
             app-1  | C  [libj.so+0x1128]  lvl2+0x9\n\
             app-1  | ABC  [libj.so+0x1130]  a+0x9\n\
             C V app-1  | V  [libjvm.so+0x1140]  f(int)+0x4\n",
        );
        assert_eq!(frames(&report), [(0x1128, false), (0x1140, true)]);
        let functions = report.stacks[0].frames.iter();
        let functions: Vec<_> = functions.map(|it| it.function.as_deref()).collect();
        assert_eq!(functions, [Some("lvl2"), Some("f(int)")]);
    }
}
