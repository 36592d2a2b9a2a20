//! Backtraces of gdb: `#1  0x… in name (arguments) from library`, or `at file:line`.
//!
//! All addresses are return addresses, except in frame 0 and in the frame that a signal
//! interrupted. Load addresses come from `info proc mappings` in the same text. A frame without an
//! address is at the beginning of a line, and has its name already.

use super::collector::Collector;
use super::cursor::{LineCursor, lines, numbered};
use super::maps;
use super::model::{Place, ReportFrame};

const SIGNAL: &str = "<signal handler called>";

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
        let is_interrupted = std::mem::replace(&mut after_signal, matches!(found, GdbLine::Signal));
        let GdbLine::Frame {
            address,
            name,
            text,
        } = found
        else {
            continue;
        };
        let function = text.split(" (").next().filter(|name| *name != "??");
        let has_line = text
            .rfind(" at ")
            .is_some_and(|at| text[at..].contains(':'));
        out.frame(ReportFrame {
            address: Some(address),
            is_return: number != 0 && !is_interrupted,
            function: function.map(str::to_owned),
            place: (!has_line).then(|| Place::in_text(name, line.range())),
            ..ReportFrame::default()
        });
    }
    maps::read(bytes, out);
}

enum GdbLine<'a> {
    Frame {
        address: u64,
        name: std::ops::Range<usize>,
        text: &'a str,
    },
    Signal,
}

fn frame(mut cursor: LineCursor<'_>) -> Option<GdbLine<'_>> {
    if cursor.rest.starts_with(SIGNAL) {
        return Some(GdbLine::Signal);
    }
    let address = cursor.hex()?;
    cursor.eat(" in ").then_some(())?;
    let start = cursor.at();
    let text = cursor.rest.trim_end();
    // The names of a sanitizer are followed by a path, those of gdb by their arguments.
    text.contains(" (").then_some(GdbLine::Frame {
        address,
        name: start..start + text.len(),
        text,
    })
}

/// Returns the id of the thread in `1 (Thread 0x7f… (LWP 4711)):`.
fn thread_id(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once("LWP ")?;
    let end = rest.find(|c: char| !c.is_ascii_digit())?;
    rest[..end].parse().ok()
}
