//! Fetches DIFs from the uploads bucket into scratch space, in ranges.
//!
//! `download` fetches those of symbol servers.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt as _, try_join};
use futures::stream::{self, StreamExt, TryStreamExt};

use super::dif_parser::DifParser;
use crate::cache::Dif;
use crate::debuginfo::{FileEnds, MemberPlace, needless_ranges, units_range};
use crate::domain::{Cause, Location, Missing, Written, WrittenFile};
use crate::ports::{Deriver, DifError, DifReader, DifStat, Scratch};

/// The bytes per range read.
const RANGE_BYTES: u64 = 8 << 20;

/// The maximum number of range reads at a time.
const RANGES_IN_FLIGHT: usize = 4;

/// DIFs up to this size, in bytes, are read whole. For a larger one, the parts that nothing reads
/// are worth a round trip to find out where they are.
const READ_WHOLE_BYTES: u64 = 16 << 20;

/// The bytes that are read of each end of a large DIF first: the section headers are usually there.
const HEADER_BYTES: u64 = 1 << 20;

/// The minimum size of a part that is left out, in bytes: a further range read takes as long as
/// reading some more bytes.
const MIN_GAP_BYTES: u64 = 1 << 20;

/// The minimum size of the units of a DIF for which its parser starts before they have arrived, in
/// bytes.
const MIN_LATE_BYTES: u64 = RANGE_BYTES;

/// The bytes that are read of each end of a DIF that is too large to fetch: its ids are usually
/// there.
const END_BYTES: u64 = 4 << 20;

/// Fetches a DIF and starts a parser of it. Of a large ELF file, sections that nothing reads are
/// left out, and read as zeros; its units arrive while the parser works.
///
/// A file over `max_bytes`, or over the scratch space, is [`Cause::TooLarge`].
pub async fn fetch(
    reader: &Arc<dyn DifReader>,
    deriver: &dyn Deriver,
    location: &Location,
    stat: &DifStat,
    max_bytes: u64,
) -> Result<DifParser, DifError> {
    if stat.size > max_bytes {
        return Err(DifError::Missing(too_large(stat.size, max_bytes)));
    }
    let mut scratch = deriver.reserve(stat.size)?;
    let late = if stat.size <= READ_WHOLE_BYTES {
        let whole = ranges(0, stat.size);
        read_into(&**reader, location, &stat.etag, &mut *scratch, whole).await?;
        None
    } else {
        let reads_early = deriver.parses_while_arriving();
        read_needed(&**reader, location, stat, &mut *scratch, reads_early).await?
    };
    let Some(late) = late else {
        let parser = deriver.open(scratch, Written::Whole).await?;
        return Ok(DifParser::complete(parser));
    };
    let (parser, mut scratch) = deriver.open_arriving(scratch, late.clone()).await?;
    let (reader, location, etag) = (Arc::clone(reader), location.clone(), stat.etag.clone());
    let rest = async move {
        let late = ranges(late.start, late.end);
        read_into(&*reader, &location, &etag, &mut *scratch, late).await
    };
    Ok(DifParser::arriving(parser, rest.boxed()))
}

/// Reads both ends of a large DIF, then what is needed of the rest. If the parser `reads_early`,
/// before everything has arrived, a part is left for later, which is returned.
async fn read_needed(
    reader: &dyn DifReader,
    location: &Location,
    stat: &DifStat,
    scratch: &mut dyn Scratch,
    reads_early: bool,
) -> Result<Option<Range<u64>>, DifError> {
    let DifStat { etag, size } = stat;
    let middle = HEADER_BYTES..size - HEADER_BYTES;
    let (head, tail) = try_join(
        reader.read(location, etag, 0..middle.start),
        reader.read(location, etag, middle.end..*size),
    )
    .await?;
    let ends = FileEnds {
        head: &head,
        tail: &tail,
        size: *size,
    };
    let needless = needless_ranges(ends);
    let late = units_range(ends).filter(|_| reads_early);
    let late = late.map(|units| units.start.max(middle.start)..units.end.min(middle.end));
    let late = late.filter(|late| late.end.saturating_sub(late.start) >= MIN_LATE_BYTES);
    scratch.write_at(0, head).await?;
    scratch.write_at(middle.end, tail).await?;
    let mut left_out: Vec<Range<u64>> = needless.into_iter().chain(late.clone()).collect();
    left_out.sort_unstable_by_key(|range| range.start);
    let needed = outside(middle, &left_out).into_iter();
    let needed = needed.flat_map(|range| ranges(range.start, range.end));
    read_into(reader, location, etag, scratch, needed).await?;
    Ok(late)
}

/// Returns the parts of a range that lie outside of ascending gaps. Small gaps are not left out.
fn outside(range: Range<u64>, gaps: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut parts = Vec::new();
    let mut start = range.start;
    for gap in gaps {
        let gap = gap.start.max(start)..gap.end.min(range.end);
        if gap.end.saturating_sub(gap.start) >= MIN_GAP_BYTES {
            parts.push(start..gap.start);
            start = gap.end;
        }
    }
    parts.push(start..range.end);
    parts
}

/// Reads uploads to their places in scratch space.
pub(super) async fn read_all(
    reader: &dyn DifReader,
    files: &[(&Dif, &WrittenFile)],
    scratch: &mut dyn Scratch,
) -> Result<(), DifError> {
    let parts = files.iter().flat_map(|(dif, place)| {
        let parts = ranges(0, place.length);
        parts.map(|range| (&dif.file, place.offset, range))
    });
    // Boxed, because otherwise the compiler cannot prove that these futures are `Send`.
    let reads = parts.map(|(dif, begin, range)| {
        let offset = begin + range.start;
        async move {
            let bytes = reader.read(&dif.location, &dif.etag, range).await?;
            Ok::<_, DifError>((offset, bytes))
        }
        .boxed()
    });
    let reads: Vec<BoxFuture<'_, _>> = reads.collect();
    let mut reads = stream::iter(reads).buffer_unordered(RANGES_IN_FLIGHT);
    while let Some((offset, bytes)) = reads.try_next().await? {
        scratch.write_at(offset, bytes).await?;
    }
    Ok(())
}

/// Reserves scratch space for DIFs that complete each other. Returns where each belongs.
///
/// DIFs whose total size exceeds `max_bytes`, or the scratch space, are [`Cause::TooLarge`].
pub(super) fn room_for(
    deriver: &dyn Deriver,
    difs: &[&Dif],
    max_bytes: u64,
) -> Result<(Vec<WrittenFile>, Box<dyn Scratch>), DifError> {
    let mut end = 0;
    let files = difs.iter().map(|dif| {
        let offset = end;
        end = (offset + dif.size).next_multiple_of(MemberPlace::ALIGNMENT);
        WrittenFile {
            offset,
            length: dif.size,
            id: dif.auxiliary_id,
        }
    });
    let files: Vec<_> = files.collect();
    if end > max_bytes {
        return Err(DifError::Missing(too_large(end, max_bytes)));
    }
    Ok((files, deriver.reserve(end)?))
}

/// Fetches both ends of a DIF that is too large, and starts a parser of them.
///
/// The rest reads as zeros. This suffices for the ids of most files, and for nothing else.
pub async fn fetch_ends(
    reader: &dyn DifReader,
    deriver: &dyn Deriver,
    location: &Location,
    stat: &DifStat,
) -> Result<DifParser, DifError> {
    let head = stat.size.min(END_BYTES);
    let tail = stat.size.saturating_sub(END_BYTES).max(head);
    let mut scratch = deriver.reserve(head + (stat.size - tail))?;
    let ends = ranges(0, head).chain(ranges(tail, stat.size));
    read_into(reader, location, &stat.etag, &mut *scratch, ends).await?;
    let parser = deriver.open(scratch, Written::InPart).await?;
    Ok(DifParser::complete(parser))
}

/// Returns why a file of this size is not fetched.
pub(super) fn too_large(size: u64, limit: u64) -> Missing {
    let detail = format!("its {size} bytes exceed the limit of {limit} bytes for a file");
    Missing::new(Cause::TooLarge { limit }, detail)
}

/// Reads ranges of an upload to their places in scratch space, in order.
async fn read_into(
    reader: &dyn DifReader,
    location: &Location,
    etag: &str,
    scratch: &mut dyn Scratch,
    ranges: impl Iterator<Item = Range<u64>>,
) -> Result<(), DifError> {
    let mut reads = stream::iter(ranges)
        .map(|range| async move {
            let offset = range.start;
            Ok::<(u64, Bytes), DifError>((offset, reader.read(location, etag, range).await?))
        })
        .buffered(RANGES_IN_FLIGHT);
    while let Some((offset, bytes)) = reads.try_next().await? {
        scratch.write_at(offset, bytes).await?;
    }
    Ok(())
}

fn ranges(start: u64, end: u64) -> impl Iterator<Item = Range<u64>> {
    (start..end)
        .step_by(RANGE_BYTES as usize)
        .map(move |from| from..end.min(from + RANGE_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_a_file_once() {
        assert_eq!(ranges(0, 0).count(), 0);
        let covered: Vec<_> = ranges(0, 2 * RANGE_BYTES + 1).collect();
        assert_eq!(covered.first().unwrap().start, 0);
        assert!(covered.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!(covered.last().unwrap().end, 2 * RANGE_BYTES + 1);
    }
}
