//! What `backtrace_symbols` and `backtrace_symbols_fd` of glibc print: `path(name+0x1c) [0x…]`,
//! `path(+0x11d5) [0x…]`, or `path [0x…]`.
//!
//! All addresses are return addresses, also the first one, which is in the function that called
//! `backtrace`. An offset without a name is relative to the module, from which its load address
//! follows; an offset after a name is relative to the function.

use super::collector::Collector;
use super::cursor::{TextLine, hex_of, lines};
use super::model::{Place, ReportFrame};

pub(super) fn read(bytes: &[u8], out: &mut Collector) {
    let mut end = None;
    for line in lines(bytes) {
        let Some(found) = frame(line) else {
            continue;
        };
        // The addresses of two backtraces may be those of two processes.
        if end != Some(line.start) {
            out.new_process();
        }
        end = Some(line.range().end + 1);
        let Some(module) = out.module(found.path, None) else {
            continue;
        };
        let offset = found.offset.filter(|offset| *offset != found.address);
        if let Some(base) = offset.and_then(|it| found.address.checked_sub(it)) {
            out.begins(module, base);
        }
        out.frame(ReportFrame {
            address: Some(found.address),
            offset,
            module: Some(module),
            is_return: true,
            function: found.function.map(str::to_owned),
            place: Some(Place::in_text(found.name, line.range())),
        });
    }
}

struct GlibcLine<'a> {
    path: &'a str,
    function: Option<&'a str>,
    offset: Option<u64>,
    address: u64,
    name: std::ops::Range<usize>,
}

fn frame(line: TextLine<'_>) -> Option<GlibcLine<'_>> {
    let inner = line.text.trim_end().strip_suffix(']')?;
    let open = inner.rfind("[0x")?;
    let address = hex_of(&inner[open + 1..])?;
    let before = inner[..open].trim_end();
    let (path, symbol, name) = match before.strip_suffix(')') {
        Some(inside) => {
            let open = inside.rfind('(')?;
            (
                &inside[..open],
                Some(&inside[open + 1..]),
                open..before.len(),
            )
        }
        None => (before, None, before.len()..before.len()),
    };
    // A prefix of a log may precede the path.
    let path = path.split_whitespace().next_back()?;
    let is_path = path.contains('/') && !path.ends_with('/');
    let (function, offset) = match symbol.map(|it| it.rsplit_once('+')) {
        Some(Some(("", offset))) => (None, Some(hex_of(offset)?)),
        Some(Some((function, offset))) => (hex_of(offset).map(|_| function), None),
        Some(None) if symbol != Some("") => return None,
        _ => (None, None),
    };
    (is_path || offset.is_some() || function.is_some()).then_some(GlibcLine {
        path,
        function,
        offset,
        address,
        name: line.start + name.start..line.start + name.end,
    })
}
