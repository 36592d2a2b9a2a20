//! Tombstones of Android as text, and the crashes in logcat (libunwindstack,
//! `Unwinder::FormatFrame`).
//!
//! The addresses are relative to the module, and were adjusted to the calls.

use super::collector::Collector;
use super::cursor::{LineCursor, TextLine, id_at, lines, numbered};
use super::model::{Place, ReportFrame};

pub(super) fn read(bytes: &[u8], out: &mut Collector) {
    for line in lines(bytes) {
        let Some((number, found)) = numbered(line, |cursor| frame(line, cursor)) else {
            continue;
        };
        out.number(number, false);
        let Some(module) = out.module(found.path, found.id) else {
            continue;
        };
        out.frame(ReportFrame {
            offset: Some(found.offset),
            module: Some(module),
            function: found.function.map(str::to_owned),
            place: Some(Place::in_text(found.name, line.range())),
            ..ReportFrame::default()
        });
    }
}

struct AndroidLine<'a> {
    offset: u64,
    path: &'a str,
    function: Option<&'a str>,
    name: std::ops::Range<usize>,
    id: Option<&'a str>,
}

fn frame<'a>(line: TextLine<'a>, mut cursor: LineCursor<'a>) -> Option<AndroidLine<'a>> {
    if !cursor.eat("pc ") {
        return None;
    }
    cursor.eat("0x");
    let offset = cursor.digits()?;
    cursor.spaces().then_some(())?;
    let start = cursor.at();
    let rest = cursor.rest;
    let id_start = rest.rfind(" (BuildId: ");
    let id = id_start.and_then(|at| id_at(&rest[at + " (BuildId: ".len()..]));
    let before_id = rest[..id_start.unwrap_or(rest.len())].trim_end();
    // A library inside an APK is followed by its place in it.
    let path_end = before_id.find(" (").unwrap_or(before_id.len());
    let path = &before_id[..path_end];
    let mut after = path_end;
    if before_id[after..].starts_with(" (offset ") {
        after += before_id[after..].find(')')? + 1;
    }
    let symbol = before_id[after..].trim_start();
    let inner = symbol.strip_prefix('(').and_then(|it| it.strip_suffix(')'));
    let function = inner.map(|it| it.rsplit_once('+').map_or(it, |(name, _)| name));
    let name = start + after..start + before_id.len();
    debug_assert!(name.end <= line.range().end);
    (!path.is_empty()).then_some(AndroidLine {
        offset,
        path,
        function,
        name,
        id,
    })
}
