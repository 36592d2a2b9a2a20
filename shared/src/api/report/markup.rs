//! The symbolizer markup of LLVM (`llvm/docs/SymbolizerMarkupFormat.rst`): elements like
//! `{{{bt:0:0x7acba69d5100:pc}}}`, in a log that also says what is mapped where.
//!
//! The address in a `bt` element is a return address unless it is marked `pc`, also in frame 0. The
//! address in a `pc` element is exact unless it is marked `ra`.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::collector::Collector;
use super::cursor::{TextLine, hex_of, lines};
use super::model::{Place, ReportFrame};

/// The maximum number of fields of an element.
const FIELDS: usize = 8;

/// The maximum number of mappings. Processes have some thousand.
const MAPPINGS: usize = 1 << 16;

#[derive(Default)]
struct MarkupContext {
    /// The indexes of modules, by the ids of the log.
    modules: HashMap<u64, usize>,
    /// By first address: the end, the module, and the address in the module of the first byte.
    mappings: BTreeMap<u64, (u64, usize, u64)>,
}

impl MarkupContext {
    /// Returns the module and the address in it.
    fn located(&self, address: u64) -> Option<(usize, u64)> {
        let (start, (end, module, relative)) = self.mappings.range(..=address).next_back()?;
        let offset = (address - start).checked_add(*relative)?;
        (address < *end).then_some((*module, offset))
    }
}

pub(super) fn read(bytes: &[u8], out: &mut Collector) {
    let mut context = MarkupContext::default();
    for line in lines(bytes) {
        for (range, fields) in elements(line) {
            match fields.as_slice() {
                ["reset"] => {
                    context = MarkupContext::default();
                    out.new_process();
                }
                ["module", id, name, "elf", build_id] => {
                    let build_id = (!build_id.is_empty()).then_some(*build_id);
                    if let (Some(id), Some(module)) = (number_of(id), out.module(name, build_id)) {
                        context.modules.insert(id, module);
                    }
                }
                ["mmap", start, size, "load", id, _mode, relative] => {
                    let mapping = mapping(&context, [start, size, id, relative]);
                    if let Some((range, module, relative)) = mapping {
                        if let Some(base) = range.start.checked_sub(relative) {
                            out.set_base(module, base);
                        }
                        if context.mappings.len() < MAPPINGS {
                            let found = (range.end, module, relative);
                            context.mappings.insert(range.start, found);
                        }
                    }
                }
                ["bt", number, address, kind @ ..] => {
                    if let (Some(number), Some(address)) = (number_of(number), hex_of(address)) {
                        out.number(number, true);
                        let found = (range, address, kind != ["pc"]);
                        frame(&context, out, line, Some(number), found);
                    }
                }
                ["pc", address, kind @ ..] => {
                    if let Some(address) = hex_of(address) {
                        let found = (range, address, kind == ["ra"]);
                        frame(&context, out, line, None, found);
                    }
                }
                _ => {}
            }
        }
    }
}

fn frame(
    context: &MarkupContext,
    out: &mut Collector,
    line: TextLine<'_>,
    number: Option<u64>,
    found: (Range<usize>, u64, bool),
) {
    let (name, address, is_return) = found;
    let located = context.located(address);
    let frame = ReportFrame {
        number,
        address: Some(address),
        offset: located.map(|(_, offset)| offset),
        module: located.map(|(module, _)| module),
        is_return,
        place: Some(Place::in_text(name, line.range())),
        ..ReportFrame::default()
    };
    out.frame(line, frame);
}

fn mapping(context: &MarkupContext, fields: [&str; 4]) -> Option<(Range<u64>, usize, u64)> {
    let [start, size, id, relative] = fields;
    let module = *context.modules.get(&number_of(id)?)?;
    let start = hex_of(start)?;
    let end = start.checked_add(number_of(size)?)?;
    (start < end).then_some((start..end, module, number_of(relative)?))
}

/// Returns a number, decimal or hexadecimal with prefix.
fn number_of(text: &str) -> Option<u64> {
    hex_of(text).or_else(|| text.parse().ok())
}

/// Returns the elements of a line, with their places in the text.
fn elements<'a>(line: TextLine<'a>) -> impl Iterator<Item = (Range<usize>, Vec<&'a str>)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let open = at + line.text[at..].find("{{{")?;
        let inside = open + 3;
        let close = inside + line.text[inside..].find("}}}")?;
        at = close + 3;
        let fields = line.text[inside..close].splitn(FIELDS, ':').collect();
        Some((line.start + open..line.start + at, fields))
    })
}
