//! What a minidump says in the schema of `minidump-stackwalk`, except for the frames.
//!
//! The processor of that tool makes it. It knows no limits: it walks whatever is a stack, copies
//! texts as often as they are referred to, and follows references in a circle. Therefore it
//! receives a copy of the minidump that has the streams of the report within their limits, the
//! registers of the thread that crashed, and no memory. What it must not see is zero there.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use minidump::format::MINIDUMP_STREAM_TYPE as Stream;
use minidump::system_info::PointerWidth;
use minidump::{Endian, Minidump, MinidumpUnloadedModuleList, Module};
use minidump_processor::{ProcessorOptions, process_minidump_with_options};
use minidump_unwind::{
    CallStack, CallStackInfo, FileError, FileKind, FillSymbolError, FrameSymbolizer, FrameWalker,
    SymbolProvider,
};
use serde_json::{Map, Value};

use super::bounds::{List, THREAD, number};
use super::error::DumpError;
use super::parts::DumpBytes;
use super::ranges::{is_read, records, texts};
use super::references::{REPORT_STREAMS, elements, range, references};
use super::{Dump, DumpFile};
use crate::api::symbolicator::Hex;

/// The streams of every answer that the processor reads, too.
const PLAIN_STREAMS: [u32; 7] = [
    Stream::ThreadListStream as u32,
    Stream::ModuleListStream as u32,
    Stream::ThreadNamesStream as u32,
    Stream::ExceptionStream as u32,
    Stream::SystemInfoStream as u32,
    Stream::MiscInfoStream as u32,
    Stream::BreakpadInfoStream as u32,
];

/// The maximum size of what a stream of the report refers to, in bytes. What several elements refer
/// to counts for each of them, because the processor copies it for each.
const REFERENCES_BYTES: u64 = 4 << 20;

/// The size of the header, and of an element of the directory.
const HEADER: usize = 32;
const ELEMENT: usize = 12;

/// The frames that may be in unloaded modules and are looked up. Each lookup takes a step for each
/// unloaded module.
const UNLOADED_LOOKUPS: usize = 8_192;

/// The unloaded modules that are listed for a frame.
const UNLOADED_LISTED: usize = 16;

/// What a minidump says in the schema, except for the frames.
#[derive(Debug)]
pub struct ReportHead {
    /// The JSON.
    pub json: Map<String, Value>,
    /// Whether addresses have 32 bits.
    pub is_narrow: bool,
    unloaded: MinidumpUnloadedModuleList,
    lookups_left: usize,
}

/// No names and no unwind information: the copy has no stacks.
struct NoSymbols;

#[async_trait]
impl SymbolProvider for NoSymbols {
    async fn fill_symbol(
        &self,
        _: &(dyn Module + Sync),
        _: &mut (dyn FrameSymbolizer + Send),
    ) -> Result<(), FillSymbolError> {
        Err(FillSymbolError {})
    }

    async fn walk_frame(
        &self,
        _: &(dyn Module + Sync),
        _: &mut (dyn FrameWalker + Send),
    ) -> Option<()> {
        None
    }

    async fn get_file_path(
        &self,
        _: &(dyn Module + Sync),
        _: FileKind,
    ) -> Result<PathBuf, FileError> {
        Err(FileError::NotFound)
    }
}

impl ReportHead {
    /// Reads what a minidump says in this schema.
    ///
    /// # Errors
    ///
    /// [`DumpError`] if streams share bytes, so that what one of them says depends on another.
    pub fn read(bytes: &DumpBytes, file: &DumpFile, dump: &Dump<'_>) -> Result<Self, DumpError> {
        let copy = ReportCopy::of(bytes, file, dump)?.made(bytes)?;
        let copy = DumpFile::open(&copy)?.0;
        let options = ProcessorOptions::stable_basic();
        // Nothing is read, so nothing is awaited.
        let state = process_minidump_with_options(&copy, &NoSymbols, options).now_or_never();
        let mut state = state.and_then(Result::ok).ok_or(DumpError::Overlapping)?;
        // The threads of the copy are those of the answer, unless their list exceeds its limits.
        state.threads.resize_with(dump.threads.len(), || {
            CallStack::with_info(0, CallStackInfo::MissingContext)
        });
        state.requesting_thread = dump.threads.iter().position(|thread| thread.is_requesting);
        let mut json = Vec::new();
        let written = state.print_json(&mut json, false);
        let json = written.and_then(|()| serde_json::from_slice(&json));
        Ok(Self {
            json: json.map_err(|_| DumpError::Overlapping)?,
            is_narrow: state.system_info.cpu.pointer_width() == PointerWidth::Bits32,
            unloaded: state.unloaded_modules,
            lookups_left: UNLOADED_LOOKUPS,
        })
    }

    /// Returns the unloaded modules that were once at an address, with the offsets in them.
    pub fn unloaded_at(&mut self, address: u64) -> BTreeMap<String, BTreeSet<Hex>> {
        let mut offsets: BTreeMap<String, BTreeSet<Hex>> = BTreeMap::new();
        if self.lookups_left == 0 {
            return offsets;
        }
        self.lookups_left -= 1;
        let modules = self.unloaded.modules_at_address(address);
        for module in modules.take(UNLOADED_LISTED) {
            let offset = Hex(address - module.raw.base_of_image);
            offsets
                .entry(module.name.clone())
                .or_default()
                .insert(offset);
        }
        offsets
    }
}

/// What is copied for the processor.
struct ReportCopy {
    /// The ranges that are copied.
    ranges: Vec<Range<u64>>,
    /// The ranges that are zero in the copy.
    zeros: Vec<Range<usize>>,
    /// What is different in the copy: its list of threads.
    others: Vec<(usize, Vec<u8>)>,
}

impl ReportCopy {
    fn of(bytes: &DumpBytes, file: &DumpFile, dump: &Dump<'_>) -> Result<Self, DumpError> {
        let DumpFile(minidump) = file;
        let directory = minidump.header.stream_directory_rva as usize;
        let count = minidump.header.stream_count as usize;
        let (mut kept, mut zeros) = (BTreeMap::new(), Vec::new());
        let mut ranges = records(minidump);
        ranges.extend(texts(minidump, bytes));
        for element in (0..count).map(|at| directory + at * ELEMENT) {
            let number = |at| number(&bytes.file, element + at, minidump.endian).unwrap_or(0);
            let (kind, size, start) = (number(0), number(4), number(8));
            let kind = u32::try_from(kind).unwrap_or(0);
            let place = start..start.saturating_add(size);
            let references = if kept.contains_key(&kind) {
                None
            } else {
                references_within(kind, place.clone(), bytes, minidump)
            };
            match references {
                Some(references) => {
                    ranges.extend(references);
                    kept.insert(kind, (element, place));
                }
                None => zeros.push(element..element + ELEMENT),
            }
        }
        let mut disjoint = vec![0..HEADER, directory..directory + count * ELEMENT];
        let places = kept.values().map(|(_, place)| place);
        disjoint.extend(places.filter(|place| !place.is_empty()).cloned());
        disjoint.sort_by_key(|range| (range.start, range.end));
        if disjoint.windows(2).any(|pair| pair[0].end > pair[1].start) {
            return Err(DumpError::Overlapping);
        }
        ranges.extend(
            disjoint
                .iter()
                .map(|place| place.start as u64..place.end as u64),
        );
        let stream = |kind: Stream| {
            let (element, place) = kept.get(&(kind as u32)).cloned().unwrap_or_default();
            let start = place.start;
            (element, start, bytes.file.get(place).unwrap_or_default())
        };
        let mut others = Vec::new();
        let (element, start, threads) = stream(Stream::ThreadListStream);
        if !threads.is_empty() {
            let threads = threads_of_answer(threads, dump);
            let length = word(threads.len(), minidump.endian);
            others = vec![(element + 4, length.to_vec()), (start, threads)];
        }
        let (_, start, handles) = stream(Stream::HandleDataStream);
        zeros.extend(of_handles(start, handles, minidump.endian));
        Ok(Self {
            ranges,
            zeros,
            others,
        })
    }

    fn made(&self, bytes: &DumpBytes) -> Result<DumpBytes, DumpError> {
        let copy = bytes.copied(&self.ranges, &self.zeros, &self.others);
        copy.map_err(|_| DumpError::Overlapping)
    }
}

/// Returns what a stream refers to; `None` if the stream is not one of the report, was not read, or
/// exceeds its limits.
fn references_within(
    kind: u32,
    place: Range<usize>,
    bytes: &DumpBytes,
    minidump: &Minidump<'_, Bytes>,
) -> Option<Vec<Range<u64>>> {
    let stream = bytes.file.get(place.clone())?;
    // The parser may have chosen another stream of this type.
    let chosen = minidump.get_raw_stream(kind).ok()?;
    let is_chosen = chosen.as_ptr() == stream.as_ptr() && chosen.len() == stream.len();
    let place = place.start as u64..place.end as u64;
    let within = is_read(bytes, std::slice::from_ref(&place));
    if !is_chosen || !within {
        return None;
    }
    if PLAIN_STREAMS.contains(&kind) {
        return Some(Vec::new());
    }
    let (_, most) = REPORT_STREAMS.iter().find(|(report, _)| *report == kind)?;
    if stream.len() > *most {
        return None;
    }
    let references = references(kind, stream, minidump.endian, |start| {
        let length = number(&bytes.file, start, minidump.endian).unwrap_or(0);
        range(start as u64, 4 + length as u64)
    });
    // The processor does not copy what lies beyond the file.
    let length = bytes.length() as u64;
    let references: Vec<Range<u64>> = references
        .into_iter()
        .filter(|range| range.end <= length)
        .collect();
    let total: u64 = references.iter().map(|range| range.end - range.start).sum();
    (total <= REFERENCES_BYTES && is_read(bytes, &references)).then_some(references)
}

/// Returns the list of the threads of the answer, in its order, with what the processor may see of
/// them: no stacks, and only the registers of the thread that crashed. For each listed thread, the
/// processor needs some kilobytes.
fn threads_of_answer(stream: &[u8], dump: &Dump<'_>) -> Vec<u8> {
    const STACK: Range<usize> = 32..40;
    const CONTEXT: Range<usize> = 40..48;
    let listed: Vec<&[u8]> = List::of(stream, THREAD, dump.endian).elements().collect();
    let threads = dump.threads.iter();
    let threads = threads.filter_map(|thread| Some((listed.get(thread.listed)?, thread)));
    let mut elements = Vec::new();
    let mut count = 0;
    for (element, thread) in threads {
        let mut element = element.to_vec();
        element[STACK].fill(0);
        if !thread.is_requesting {
            element[CONTEXT].fill(0);
        }
        elements.extend(element);
        count += 1;
    }
    [&word(count, dump.endian)[..], &elements].concat()
}

/// Returns a number in 32 bits.
fn word(number: usize, endian: Endian) -> [u8; 4] {
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    match endian {
        Endian::Little => number.to_le_bytes(),
        Endian::Big => number.to_be_bytes(),
    }
}

/// Returns what the processor must not see of the handles: further information, each part of which
/// refers to the next one.
fn of_handles(start: usize, stream: &[u8], endian: Endian) -> Vec<Range<usize>> {
    const NEXT: Range<usize> = 32..36;
    let size = number(stream, 4, endian).unwrap_or(0);
    let first = start + number(stream, 0, endian).unwrap_or(0);
    let count = elements(stream, endian).count();
    let elements = (0..count).map(|at| first + at * size);
    let hidden = elements.filter(|_| size >= NEXT.end);
    hidden
        .map(|element| element + NEXT.start..element + NEXT.end)
        .collect()
}
