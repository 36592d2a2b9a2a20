//! The message of systemd-coredump (`elf-util.c`), as in the journal or in `coredumpctl info`.
//!
//! A frame is `#0  0x… name (module + 0xoffset)`. All addresses are return addresses, except that
//! of frame 0 and of the frame that a signal interrupted. Ids are in lines of their own: `Module x
//! with build-id …`, or `…, build-id=…`. Older versions print `Found module x with build-id: …`.

use super::collector::Collector;
use super::cursor::{DELETED, LineCursor, hex_of, id_at, lines, numbered};
use super::model::{Place, ReportFrame};

/// What systemd-coredump prints for a function and a module that it does not know.
const UNKNOWN: &str = "n/a";

pub(super) fn read(bytes: &[u8], out: &mut Collector) {
    read_process(bytes, &mut Vec::new(), out);
}

/// Reads a message about a process. `ids` are those of its modules that are not in the message.
pub(super) fn read_process(bytes: &[u8], ids: &mut Vec<(String, String)>, out: &mut Collector) {
    for line in lines(bytes) {
        if line.text.contains(") of user ") && line.text.contains(" dumped core") {
            end_of_process(ids, out);
            continue;
        }
        if let Some((_, rest)) = line.text.split_once("Stack trace of thread ") {
            out.start_stack(rest.trim_end().trim_end_matches(':').parse().ok());
            continue;
        }
        ids.extend(id_of_module(line.text));
        let Some((number, found)) = numbered(line, frame) else {
            continue;
        };
        out.number(number, false);
        let after_signal = out.is_after_trampoline();
        let is_known = found.module != UNKNOWN;
        let module = is_known.then(|| out.module(found.module, None)).flatten();
        if is_known && module.is_none() {
            continue;
        }
        let offset = found.offset.filter(|_| is_known);
        let base = offset.and_then(|offset| found.address.checked_sub(offset));
        if let (Some(module), Some(base)) = (module, base) {
            out.set_base(module, base);
        }
        let frame = ReportFrame {
            number: Some(number),
            address: Some(found.address),
            offset,
            module,
            is_return: number != 0 && !after_signal,
            function: (found.function != UNKNOWN).then(|| found.function.to_owned()),
            is_settled: !is_known,
            place: Some(Place::in_text(found.name, line.range())),
            ..ReportFrame::default()
        };
        out.frame(line, frame);
    }
    end_of_process(ids, out);
}

/// Applies the ids of the modules of a process, which are printed before or after its frames.
fn end_of_process(ids: &mut Vec<(String, String)>, out: &mut Collector) {
    for (name, id) in ids.drain(..) {
        out.identify(&name, &id);
    }
    out.new_process();
}

struct SystemdLine<'a> {
    address: u64,
    function: &'a str,
    name: std::ops::Range<usize>,
    module: &'a str,
    offset: Option<u64>,
}

fn frame(mut cursor: LineCursor<'_>) -> Option<SystemdLine<'_>> {
    let address = cursor.hex()?;
    cursor.eat(" ").then_some(())?;
    let start = cursor.at();
    let rest = cursor.rest.trim_end().strip_suffix(')')?;
    // The path of a file that was replaced ends with ` (deleted)`.
    let (function, place) = rest.split_once(" (")?;
    let (module, offset) = match place.rsplit_once(" + ") {
        Some((module, offset)) => (
            module.strip_suffix(DELETED).unwrap_or(module),
            Some(hex_of(offset)?),
        ),
        // Before systemd 245, the offset is not printed.
        None => (place, None),
    };
    // What gdb prints for a function has arguments in the place of the module.
    let is_function = !function.is_empty() && !function.starts_with("in ");
    (is_function && !module.is_empty() && !module.contains("+0x")).then_some(SystemdLine {
        address,
        function,
        name: start..start + function.len(),
        module,
        offset,
    })
}

/// Returns the module and the id in a line that says both.
fn id_of_module(text: &str) -> Option<(String, String)> {
    let found = text.split_once("Module ");
    let (_, rest) = found.or_else(|| text.split_once("Found module "))?;
    let name = rest.split_whitespace().next()?.trim_end_matches([',', ':']);
    let marks = ["with build-id ", "with build-id: ", "build-id="];
    let (_, id) = marks.iter().find_map(|mark| rest.split_once(*mark))?;
    Some((name.to_owned(), id_at(id)?.to_owned()))
}

#[cfg(test)]
mod tests {
    use crate::api::report::tests::{frames, read};

    #[test]
    fn the_ids_of_old_and_new_messages_are_read() {
        let id = "11".repeat(20);
        let report = read(&format!(
            "Process 1 (a) of user 0 dumped core.\n\n\
             Found module /srv/a with build-id: {id}\n\
             Found module b.so without build-id.\n\
             Module c.so with build-id {id}\n\
             Module d.so without build-id.\n\
             Stack trace of thread 1:\n\
             #0  0x0000000000001010 n/a (/srv/a + 0x10)\n\
             #1  0x0000000000002010 n/a (b.so + 0x10)\n\
             #2  0x0000000000003010 n/a (c.so + 0x10)\n\
             #3  0x0000000000004010 n/a (d.so + 0x10)\n"
        ));
        let ids = report.modules.iter().map(|module| module.code_id.as_ref());
        let ids: Vec<_> = ids.map(|it| it.map(|id| id.as_str())).collect();
        let id = Some(id.as_str());
        assert_eq!(ids, [id, None, id, None]);
    }

    #[test]
    fn the_first_frame_of_a_part_of_a_stack_trace_has_a_return_address() {
        let report = read(
            "#3  0x0000000000001010 n/a (app + 0x10)\n\
             #4  0x0000000000001020 n/a (app + 0x20)\n",
        );
        assert_eq!(frames(&report), [(0x1010, true), (0x1020, true)]);
    }
}
