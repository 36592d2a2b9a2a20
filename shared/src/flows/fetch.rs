//! Fetching a DIF into scratch space.

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};

use crate::domain::{Cause, Location, Missing};
use crate::ports::{Deriver, DifError, DifReader, DifStat, ParseError, Parser, Scratch};

/// Bytes a range read asks for.
const RANGE_BYTES: u64 = 8 << 20;

/// Range reads under way at a time.
const RANGES_IN_FLIGHT: usize = 4;

/// Bytes read of each end of a DIF that is too large to fetch: its ids are usually there.
const END_BYTES: u64 = 4 << 20;

/// Fetches the whole DIF and begins to parse it.
///
/// A file over `max_bytes`, or over what scratch space has, is [`Cause::TooLarge`].
pub async fn fetch(
    reader: &dyn DifReader,
    deriver: &dyn Deriver,
    location: &Location,
    stat: &DifStat,
    max_bytes: u64,
) -> Result<Box<dyn Parser>, DifError> {
    if stat.size > max_bytes {
        let detail = format!(
            "its {} bytes exceed the limit of {max_bytes} bytes for a file",
            stat.size
        );
        return Err(DifError::Missing(Missing::new(
            Cause::TooLarge { limit: max_bytes },
            detail,
        )));
    }
    let mut scratch = deriver.reserve(stat.size).map_err(from_parse)?;
    read_into(
        reader,
        location,
        &stat.etag,
        &mut *scratch,
        ranges(0, stat.size),
    )
    .await?;
    deriver.open(scratch, false).await.map_err(from_parse)
}

/// Fetches both ends of a DIF that is too large, and begins to parse what there is.
///
/// The rest reads as zeros. That is enough for the ids of most files, and for nothing else.
pub async fn fetch_ends(
    reader: &dyn DifReader,
    deriver: &dyn Deriver,
    location: &Location,
    stat: &DifStat,
) -> Result<Box<dyn Parser>, DifError> {
    let head = stat.size.min(END_BYTES);
    let tail = stat.size.saturating_sub(END_BYTES).max(head);
    let mut scratch = deriver
        .reserve(head + (stat.size - tail))
        .map_err(from_parse)?;
    let ends = ranges(0, head).chain(ranges(tail, stat.size));
    read_into(reader, location, &stat.etag, &mut *scratch, ends).await?;
    deriver.open(scratch, true).await.map_err(from_parse)
}

async fn read_into(
    reader: &dyn DifReader,
    location: &Location,
    etag: &str,
    scratch: &mut dyn Scratch,
    ranges: impl Iterator<Item = std::ops::Range<u64>>,
) -> Result<(), DifError> {
    let mut reads = stream::iter(ranges)
        .map(|range| async move {
            let offset = range.start;
            Ok::<(u64, Bytes), DifError>((offset, reader.read(location, etag, range).await?))
        })
        .buffer_unordered(RANGES_IN_FLIGHT);
    while let Some((offset, bytes)) = reads.try_next().await? {
        scratch.write_at(offset, bytes).await?;
    }
    Ok(())
}

fn ranges(start: u64, end: u64) -> impl Iterator<Item = std::ops::Range<u64>> {
    (start..end)
        .step_by(RANGE_BYTES as usize)
        .map(move |from| from..end.min(from + RANGE_BYTES))
}

/// What a parser reports is worth as much as what a source reports.
pub(super) fn from_parse(error: ParseError) -> DifError {
    match error {
        ParseError::Missing(missing) => DifError::Missing(missing),
        ParseError::Store(error) => DifError::Store(error),
    }
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
