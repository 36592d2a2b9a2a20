//! The message of systemd-coredump (`elf-util.c`), as in the journal or in `coredumpctl info`.
//!
//! A frame is `#0  0x… name (module + 0xoffset)`. All addresses are return addresses, except that
//! of frame 0 and of the frame that a signal interrupted. Ids are in lines of their own: `Module x
//! with build-id …`, or `…, build-id=…`.

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
            out.begin(rest.trim_end().trim_end_matches(':').parse().ok());
            continue;
        }
        ids.extend(id_of_module(line.text));
        let Some((number, found)) = numbered(line, frame) else {
            continue;
        };
        out.number(number, false);
        let after_signal = out.is_after_trampoline();
        let is_top = out.is_at_top();
        let is_known = found.module != UNKNOWN;
        let module = is_known.then(|| out.module(found.module, None)).flatten();
        if is_known && module.is_none() {
            continue;
        }
        let offset = found.offset.filter(|_| is_known);
        let base = offset.and_then(|offset| found.address.checked_sub(offset));
        if let (Some(module), Some(base)) = (module, base) {
            out.begins(module, base);
        }
        let frame = ReportFrame {
            number: Some(number),
            address: Some(found.address),
            offset,
            module,
            is_return: !is_top && !after_signal,
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
    (!function.is_empty() && !module.is_empty() && !module.contains("+0x")).then_some(SystemdLine {
        address,
        function,
        name: start..start + function.len(),
        module,
        offset,
    })
}

/// Returns the module and the id in a line that says both.
fn id_of_module(text: &str) -> Option<(String, String)> {
    let (_, rest) = text.split_once("Module ")?;
    let name = rest.split_whitespace().next()?.trim_end_matches([',', ':']);
    let at = rest
        .find("with build-id ")
        .map(|at| at + "with build-id ".len());
    let at = at.or_else(|| rest.find("build-id=").map(|at| at + "build-id=".len()))?;
    Some((name.to_owned(), id_at(&rest[at..])?.to_owned()))
}
