//! Fetching a DIF into scratch space.

use bytes::{Bytes, BytesMut};
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::mpsc::Sender;

use crate::domain::{Cause, HttpSource, Location, Missing};
use crate::ports::{
    Deriver, DifError, DifReader, DifStat, Download, ParseError, Parser, Scratch, ServerFailure,
    SymbolServers,
};

/// Bytes a range read asks for.
const RANGE_BYTES: u64 = 8 << 20;

/// Bytes of a stream that are written at a time.
const CHUNK_BYTES: usize = 1 << 20;

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
        return Err(DifError::Missing(too_large(stat.size, max_bytes)));
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

/// Fetches a DIF from a symbol server and begins to parse it; returns its etag and size, too.
///
/// A file over `max_bytes`, or over what scratch space has, is [`Cause::TooLarge`]. Where the server does not say how large
/// the file is, `unsaid_bytes` of scratch space are reserved. What arrives goes to `copy`, too, as long as it is wanted there.
pub async fn fetch_from_server(
    servers: &dyn SymbolServers,
    deriver: &dyn Deriver,
    source: &HttpSource,
    location: &Location,
    max_bytes: u64,
    unsaid_bytes: u64,
    copy: Sender<Bytes>,
) -> Result<(DifStat, Box<dyn Parser>), FromServer> {
    let Download {
        etag,
        size,
        mut body,
    } = servers.get(source, location).await?;
    let too_large = |size| ParseError::Missing(too_large(size, max_bytes));
    let room = size.unwrap_or(unsaid_bytes.min(max_bytes));
    if room > max_bytes {
        return Err(too_large(room).into());
    }
    let mut scratch = deriver.reserve(room)?;
    let mut written = 0;
    let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
    loop {
        let next = body.try_next().await?;
        let is_last = next.is_none();
        chunk.extend_from_slice(&next.unwrap_or_default());
        if written + chunk.len() as u64 > room {
            return Err(too_large(written + chunk.len() as u64).into());
        }
        if is_last || chunk.len() >= CHUNK_BYTES {
            let bytes = chunk.split().freeze();
            let length = bytes.len() as u64;
            // A copy that nobody makes, or could not be stored, wants no more.
            let _ = copy.send(bytes.clone()).await;
            scratch
                .write_at(written, bytes)
                .await
                .map_err(ParseError::from)?;
            written += length;
        }
        if is_last {
            break;
        }
    }
    let stat = DifStat {
        etag,
        size: written,
    };
    Ok((stat, deriver.open(scratch, false).await?))
}

/// Why there is no DIF from a server: for its reasons, or for those of the file or of ours.
#[derive(Debug, thiserror::Error)]
pub enum FromServer {
    /// The server's.
    #[error(transparent)]
    Server(#[from] ServerFailure),
    /// The file's, or ours.
    #[error(transparent)]
    Parse(#[from] ParseError),
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

fn too_large(size: u64, limit: u64) -> Missing {
    let detail = format!("its {size} bytes exceed the limit of {limit} bytes for a file");
    Missing::new(Cause::TooLarge { limit }, detail)
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
