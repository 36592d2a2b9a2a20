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

pub(super) fn read(bytes: &[u8], out: &mut Collector) {
    let mut is_first = true;
    for line in lines(bytes) {
        if line.text.starts_with(NATIVE) || line.text.starts_with("# Problematic frame:") {
            out.begin(None);
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
    let mut cursor = LineCursor::new(line);
    cursor.eat("# ");
    // C is native code, V is code of the JVM.
    let is_native = cursor.eat("C  ") || cursor.eat("V  ");
    is_native.then_some(())?;
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
}
