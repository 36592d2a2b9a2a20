//! Which parts of a large minidump are read: the header and the directory, the streams in use, what
//! they refer to, and the stacks; never the heap.
//!
//! The format is described in Microsoft's "MINIDUMP_HEADER structure" and the pages of the streams.

use std::ops::Range;

use bytes::Bytes;
use minidump::format::MINIDUMP_STREAM_TYPE as Stream;
use minidump::{Endian, Minidump};

use super::bounds::{self, List, MODULE, TEXT_BYTES, THREAD, THREAD_NAME, number};
use super::client_stacks::{self, CLIENT_STACKS};
use super::error::DumpError;
use super::parts::DumpBytes;
use super::references::{REPORT_STREAMS, range, references};
use super::{Dump, DumpFile, THREADS};
use crate::domain::ResponseFormat;

/// A file of at most this size is read as a whole.
pub const WHOLE_BYTES: u64 = 4 * 1024 * 1024;

/// The most bytes that are read of a larger file.
pub const READ_BYTES: u64 = 32 * 1024 * 1024;

/// The most parts that are read of a larger file.
pub const READ_PARTS: usize = 2_048;

/// What is read first: the header, the directory, and what most writers put after it.
const HEAD_BYTES: u64 = 64 * 1024;

/// The bytes of the stacks of a larger file, all together. They leave room for everything else.
const STACKS_READ_BYTES: u64 = 20 * 1024 * 1024;

/// The most stacks that are read of a larger file.
const STACKS_READ: usize = 1_024;

/// The bytes below the stack pointer that are read: a function may use them without moving it.
const RED_ZONE: u64 = 4 * 1024;

/// The bytes that are read of a name whose length is unknown: that of the longest common path.
const NAME_BYTES: u64 = 4 + 2 * 260;

/// The most bytes of the registers of a thread. Those of x86-64 with all extensions have 11 KB.
const CONTEXT_BYTES: usize = 64 * 1024;

/// What is to be read of a minidump, as far as the parts that were read say.
#[derive(Debug, Default)]
pub struct NeededRanges {
    /// The ranges. Some of them may be read already.
    pub ranges: Vec<Range<u64>>,
    /// The number of stacks that are not among them.
    pub stacks_unread: usize,
}

/// The streams that are read, with the maximum size of each.
fn streams() -> [(u32, usize); 11] {
    let small = CONTEXT_BYTES;
    [
        (
            Stream::ThreadListStream as u32,
            bounds::LISTED_THREADS * THREAD + 8,
        ),
        (
            Stream::ModuleListStream as u32,
            bounds::LISTED_MODULES * MODULE + 8,
        ),
        (
            Stream::MemoryListStream as u32,
            bounds::REGIONS * bounds::REGION + 8,
        ),
        (
            Stream::Memory64ListStream as u32,
            bounds::REGIONS * bounds::REGION + 16,
        ),
        (
            Stream::ThreadNamesStream as u32,
            bounds::LISTED_THREADS * THREAD_NAME + 8,
        ),
        (Stream::ExceptionStream as u32, small),
        (Stream::SystemInfoStream as u32, small),
        (Stream::MiscInfoStream as u32, small),
        (Stream::BreakpadInfoStream as u32, small),
        (Stream::AssertionInfoStream as u32, small),
        (CLIENT_STACKS, client_stacks::STREAM_BYTES),
    ]
}

/// Returns what is to be read for an answer of this format, judging by what was read. If all of it
/// is read, there is no more.
///
/// # Errors
///
/// [`DumpError`] if the file is not a minidump, or exceeds a limit.
pub fn needed(file: &DumpBytes, format: ResponseFormat) -> Result<NeededRanges, DumpError> {
    let head = 0..HEAD_BYTES;
    if file.parts().next().is_none() {
        return Ok(NeededRanges {
            ranges: vec![head],
            ..NeededRanges::default()
        });
    }
    let mut ranges = vec![head];
    bounds::check_header(&file.file)?;
    ranges.extend(directory(&file.file));
    if !is_read(file, &ranges) {
        return Ok(only(ranges));
    }
    let dump = Minidump::read(file.file.clone())?;
    for (kind, most) in streams() {
        let stream = dump.all_streams().find(|stream| stream.stream_type == kind);
        let Some(location) = stream.map(|stream| stream.location) else {
            continue;
        };
        let size = location.data_size as usize;
        if size > most && is_inside(file, location.rva, location.data_size) {
            return Err(DumpError::too_many("bytes in a stream", most));
        }
        ranges.push(range(location.rva.into(), location.data_size.into()));
    }
    if format == ResponseFormat::Stackwalk {
        ranges.extend(report_streams(&dump).map(|(_, place)| place));
    }
    if !is_read(file, &ranges) {
        return Ok(only(ranges));
    }
    bounds::check_counts(&dump)?;
    ranges.extend(records(&dump));
    ranges.extend(texts(&dump, file));
    if format == ResponseFormat::Stackwalk {
        ranges.extend(report_references(&dump, file));
    }
    if !is_read(file, &ranges) {
        return Ok(only(ranges));
    }
    drop(dump);
    let dump = DumpFile::open(file)?;
    let (stacks, stacks_unread) = stacks(&Dump::read(&dump)?, &file.file);
    ranges.extend(stacks);
    Ok(NeededRanges {
        ranges,
        stacks_unread,
    })
}

fn only(ranges: Vec<Range<u64>>) -> NeededRanges {
    NeededRanges {
        ranges,
        ..NeededRanges::default()
    }
}

fn is_inside(file: &DumpBytes, start: u32, length: u32) -> bool {
    let end = u64::from(start) + u64::from(length);
    usize::try_from(end).is_ok_and(|end| end <= file.length())
}

/// Returns whether all of these ranges were read, as far as the file has them.
pub(super) fn is_read(file: &DumpBytes, ranges: &[Range<u64>]) -> bool {
    let parts = ReadParts::of(file);
    ranges.iter().all(|range| parts.contain(range))
}

/// The parts of a file that were read, in order.
struct ReadParts {
    parts: Vec<Range<u64>>,
    /// The length of the file.
    length: u64,
}

impl ReadParts {
    fn of(file: &DumpBytes) -> Self {
        let parts = file.parts();
        let parts = parts.map(|(part, _)| part.start as u64..part.end as u64);
        Self {
            parts: parts.collect(),
            length: u64::try_from(file.length()).unwrap_or(u64::MAX),
        }
    }

    /// Returns whether a range was read, as far as the file has it.
    fn contain(&self, range: &Range<u64>) -> bool {
        let (mut start, end) = (range.start, range.end.min(self.length));
        // Adjacent parts may share a range.
        let first = self.parts.partition_point(|part| part.end <= start);
        for part in self.parts.get(first..).unwrap_or_default() {
            if start >= end || part.start > start {
                break;
            }
            start = part.end;
        }
        start >= end
    }
}

/// Returns the place of the directory: an offset and a number of elements in the header.
fn directory(file: &[u8]) -> Option<Range<u64>> {
    const ELEMENT: u64 = 12;
    let endian = bounds::endian(file)?;
    let count = number(file, 8, endian)? as u64;
    let start = number(file, 12, endian)? as u64;
    Some(range(start, count * ELEMENT))
}

/// Returns the elements of a list.
fn elements<'a>(
    dump: &'a Minidump<'_, Bytes>,
    stream: Stream,
    size: usize,
) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    let bytes = dump.get_raw_stream(stream as u32).unwrap_or_default();
    List::of(bytes, size, dump.endian).elements()
}

/// Returns the place that a size and an offset in a record describe, unless it is too large.
fn location(record: &[u8], at: usize, most: usize, endian: Endian) -> Option<Range<u64>> {
    let size = number(record, at, endian).filter(|size| *size <= most)?;
    let start = number(record, at + 4, endian)?;
    Some(range(start as u64, size as u64))
}

/// Returns the places of the registers and of the debug records.
pub(super) fn records(dump: &Minidump<'_, Bytes>) -> Vec<Range<u64>> {
    let endian = dump.endian;
    let threads = elements(dump, Stream::ThreadListStream, THREAD).take(THREADS);
    let threads = threads.filter_map(|thread| location(thread, 40, CONTEXT_BYTES, endian));
    let modules = elements(dump, Stream::ModuleListStream, MODULE);
    let modules = modules.filter_map(|module| location(module, 76, TEXT_BYTES, endian));
    let exception = dump.get_raw_stream(Stream::ExceptionStream as u32).ok();
    let exception = exception.and_then(|exception| location(exception, 160, CONTEXT_BYTES, endian));
    threads.chain(modules).chain(exception).collect()
}

/// Returns the places of the names. The length of a name is before it.
pub(super) fn texts(dump: &Minidump<'_, Bytes>, file: &DumpBytes) -> Vec<Range<u64>> {
    let endian = dump.endian;
    let modules = elements(dump, Stream::ModuleListStream, MODULE);
    let modules = modules.filter_map(|module| number(module, 20, endian));
    let names = elements(dump, Stream::ThreadNamesStream, THREAD_NAME);
    let names = names.filter_map(|name| number(name, 4, endian));
    let system = dump.get_raw_stream(Stream::SystemInfoStream as u32).ok();
    let version = system.and_then(|info| number(info, 24, endian));
    let texts = modules.chain(names).chain(version);
    let parts = ReadParts::of(file);
    texts
        .map(|start| text(start, endian, file, &parts))
        .collect()
}

/// Returns the place of a text that begins at an offset with its length.
fn text(start: usize, endian: Endian, file: &DumpBytes, parts: &ReadParts) -> Range<u64> {
    let place = start as u64;
    if !parts.contain(&range(place, 4)) {
        return range(place, NAME_BYTES);
    }
    let length = number(&file.file, start, endian).unwrap_or(0);
    // A longer one is refused when all of them are read.
    range(place, 4 + length.min(TEXT_BYTES) as u64)
}

/// Returns the places of the streams that are only in a report, by their types. Streams that are
/// too large are not in it.
fn report_streams(dump: &Minidump<'_, Bytes>) -> impl Iterator<Item = (u32, Range<u64>)> {
    dump.all_streams().filter_map(|stream| {
        let location = stream.location;
        let (kind, most) = REPORT_STREAMS
            .into_iter()
            .find(|(kind, _)| *kind == stream.stream_type)?;
        let is_within = location.data_size as usize <= most;
        is_within.then(|| (kind, range(location.rva.into(), location.data_size.into())))
    })
}

/// Returns the places that these streams refer to.
fn report_references(dump: &Minidump<'_, Bytes>, file: &DumpBytes) -> Vec<Range<u64>> {
    let parts = ReadParts::of(file);
    let streams = report_streams(dump).flat_map(|(kind, _)| {
        let stream = dump.get_raw_stream(kind).unwrap_or_default();
        references(kind, stream, dump.endian, |start| {
            text(start, dump.endian, file, &parts)
        })
    });
    streams.collect()
}

/// Returns the places of the stacks from their stack pointers on, and the number of those that are
/// not read. The thread that crashed is the first.
fn stacks(dump: &Dump<'_>, file: &Bytes) -> (Vec<Range<u64>>, usize) {
    let (mut ranges, mut unread, mut left) = (Vec::new(), 0, STACKS_READ_BYTES);
    let (first, others): (Vec<_>, Vec<_>) =
        dump.threads.iter().partition(|thread| thread.is_requesting);
    for thread in first.into_iter().chain(others) {
        let Some(stack) = stack(dump, thread, file) else {
            continue;
        };
        let length = stack.end - stack.start;
        if length > left || ranges.len() == STACKS_READ {
            unread += 1;
            continue;
        }
        left -= length;
        ranges.push(stack);
    }
    (ranges, unread)
}

/// Returns the place of the part of a stack that is walked.
fn stack(dump: &Dump<'_>, thread: &super::DumpThread, file: &Bytes) -> Option<Range<u64>> {
    let part = dump.stack(thread)?.memory;
    let pointer = thread.context.as_ref()?.get_stack_pointer();
    let below = pointer
        .saturating_sub(RED_ZONE)
        .saturating_sub(part.base_address);
    // The parser refers to bytes of the file, and does not copy them.
    let start = part
        .bytes
        .as_ptr()
        .addr()
        .checked_sub(file.as_ptr().addr())?;
    let (start, length) = (start as u64, part.bytes.len() as u64);
    Some(start + below.min(length)..start + length)
}
