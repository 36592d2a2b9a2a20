//! Error logs of the JVM (`hs_err_pid….log`, HotSpot's `vmError.cpp`): the native frames, `C
//! [lib.so+0x10f9]  name+0x9`.
//!
//! The offsets are relative to the module. They are those of return addresses, except in the first
//! frame. The paths and load addresses are in the section of the dynamic libraries.

use super::collector::Collector;
use super::cursor::{LineCursor, TextLine, lines};
use super::maps;
use super::model::{Place, ReportFrame, file_name};

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
        let Some(module) = out.module(found.module, None) else {
            continue;
        };
        out.frame(ReportFrame {
            offset: Some(found.offset),
            module: Some(module),
            is_return: !is_top,
            function: found.function.map(str::to_owned),
            place: Some(Place::in_text(found.name, line.range())),
            ..ReportFrame::default()
        });
    }
    for file in maps::mapped(bytes) {
        if let Some(module) = out.without_path(file_name(file.path)) {
            out.set_path(module, file.path);
            out.begins(module, file.range.start);
            out.extends(module, file.range.end);
        }
    }
}

struct HsErrLine<'a> {
    module: &'a str,
    offset: u64,
    function: Option<&'a str>,
    name: std::ops::Range<usize>,
}

fn frame(line: TextLine<'_>) -> Option<HsErrLine<'_>> {
    let mut cursor = LineCursor::new(line);
    cursor.eat("# ");
    // C is native code, V is code of the JVM.
    let is_native = cursor.eat("C  [") || cursor.eat("V  [");
    is_native.then_some(())?;
    let module = cursor.until("+0x")?;
    let offset = cursor.digits()?;
    cursor.eat("]").then_some(())?;
    cursor.spaces();
    let start = cursor.at();
    let text = cursor.rest.trim_end();
    let function = text.rsplit_once("+0x").map_or(text, |(name, _)| name);
    Some(HsErrLine {
        module,
        offset,
        function: (!function.is_empty()).then_some(function),
        name: start..start + text.len(),
    })
}
