//! Fetches DIFs into scratch space, from the uploads bucket or from a symbol server.

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::future::{BoxFuture, FutureExt as _, try_join};
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::mpsc::Sender;
use tokio::time::Instant;

use super::dif_parser::DifParser;
use crate::cache::Dif;
use crate::debuginfo::{FileEnds, MemberPlace, needless_ranges, units_range};
use crate::domain::{
    Cause, HttpSource, Location, Missing, SourceKey, Written, WrittenFile, is_web_page,
};
use crate::ports::{
    Concerns, Deriver, DifError, DifReader, DifStat, FileQuery, IncomingDif, ParseError, Parser,
    Scratch, ServerFailure, SymbolServers,
};

/// The bytes per range read.
const RANGE_BYTES: u64 = 8 << 20;

/// The bytes of a download that are written at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// The time limit for the download of any file; each mebibyte adds a second.
const WHOLE_FILE: Duration = Duration::from_secs(5 * 60);

/// The period in which at least [`RATE_BYTES`] must arrive: 64 KiB a second.
const RATE_WINDOW: Duration = Duration::from_secs(30);
const RATE_BYTES: u64 = 30 * (64 << 10);

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

/// The most bytes of a web page that a server sends in place of a file. The beginning of a larger
/// response is not read to see what it is.
const LARGEST_PAGE: u64 = 1 << 20;

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

/// A symbol server.
#[derive(Clone, Copy, Debug)]
pub struct SymbolServer<'a> {
    /// The means to call it.
    pub servers: &'a dyn SymbolServers,
    /// The key of the source.
    pub key: &'a SourceKey,
    /// Its definition.
    pub source: &'a HttpSource,
    /// The checksum of the file, as the crash names it.
    pub checksum: Option<&'a str>,
}

impl SymbolServer<'_> {
    /// Fetches a DIF from a symbol server, and starts a parser of it. Also returns its etag and
    /// size.
    ///
    /// A file over [`Limits::max_bytes`], or over the scratch space, is [`Cause::TooLarge`]. So is
    /// one over half of the scratch space if the server does not state its size. A
    /// download that takes longer than its size allows, or arrives at less than 64 KiB a second, is
    /// [`Cause::Timeout`], and an empty one or a web page is [`Cause::DownloadFailed`]: failures of
    /// the server, not of the file. The bytes are also sent to `copy`, until its receiver is
    /// dropped.
    pub async fn fetch(
        &self,
        deriver: &dyn Deriver,
        location: &Location,
        limits: Limits,
        copy: Sender<Bytes>,
    ) -> Result<(DifStat, Box<dyn Parser>), FetchError> {
        let Limits {
            max_bytes,
            scratch_bytes,
            time,
        } = limits;
        let incoming = self.servers.get(self.query(location)).await?;
        let stated = incoming.size;
        let room = stated.unwrap_or((scratch_bytes / 2).min(max_bytes));
        if room > max_bytes {
            return Err(ParseError::Missing(too_large(room, max_bytes)).into());
        }
        let mut scratch = deriver.reserve(room)?;
        let place = WrittenFile {
            offset: 0,
            length: room,
            id: None,
        };
        let received = receive(incoming, (&mut *scratch, &place), time, Some(copy)).await?;
        let stat = received.ok_or_else(|| longer_than(room, stated, limits))?;
        Ok((stat, deriver.open(scratch, Written::Whole).await?))
    }

    /// Fetches a DIF of known size again, into scratch space, within the time limits of
    /// [`SymbolServer::fetch`]. Returns `None` if it has another size now.
    pub(super) async fn fetch_again(
        &self,
        location: &Location,
        (scratch, place): (&mut dyn Scratch, &WrittenFile),
        time: Duration,
    ) -> Result<Option<DifStat>, FetchError> {
        let incoming = self.servers.get(self.query(location)).await?;
        let received = receive(incoming, (scratch, place), time, None).await?;
        // The etag of some servers does not change with the bytes.
        Ok(received.filter(|stat| stat.size == place.length))
    }

    fn query<'q>(&'q self, location: &'q Location) -> FileQuery<'q> {
        FileQuery {
            key: self.key,
            source: self.source,
            location,
            checksum: self.checksum,
        }
    }
}

/// Writes a download to its place in scratch space, and sends the bytes to `copy`, too. Returns
/// `None` if it is longer than its place.
async fn receive(
    IncomingDif { etag, mut body, .. }: IncomingDif,
    (scratch, place): (&mut dyn Scratch, &WrittenFile),
    time: Duration,
    copy: Option<Sender<Bytes>>,
) -> Result<Option<DifStat>, FetchError> {
    let WrittenFile { offset, length, .. } = *place;
    let mut written = 0;
    let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
    let mut time_left = DownloadTime::new(length, time);
    loop {
        let next = time_left.wait_for(body.try_next()).await??;
        let is_last = next.is_none();
        chunk.extend_from_slice(&next.unwrap_or_default());
        let arrived = written + chunk.len() as u64;
        if arrived > length {
            return Ok(None);
        }
        if is_last || chunk.len() >= CHUNK_BYTES {
            let bytes = chunk.split().freeze();
            if written == 0 {
                check_begin(&bytes)?;
            }
            if let Some(copy) = &copy {
                // Fails if no copy is made, or if it could not be stored.
                let _ = copy.send(bytes.clone()).await;
            }
            let begin = offset + written;
            written = arrived;
            scratch
                .write_at(begin, bytes)
                .await
                .map_err(ParseError::from)?;
        }
        if is_last {
            let size = written;
            return Ok(Some(DifStat { etag, size }));
        }
    }
}

/// Fails if a server responded with nothing, or with a web page. What cannot be read yet may be a
/// file.
pub(super) async fn check_response(mut found: IncomingDif) -> Result<(), ServerFailure> {
    if found.size.is_some_and(|size| size > LARGEST_PAGE) {
        return Ok(());
    }
    match found.body.try_next().await {
        Ok(begin) => check_begin(&begin.unwrap_or_default()),
        Err(_) => Ok(()),
    }
}

/// Fails if a server sent nothing, or a web page. That says nothing about the file: it may be over
/// soon, as during maintenance.
fn check_begin(bytes: &[u8]) -> Result<(), ServerFailure> {
    let sent = match () {
        () if bytes.is_empty() => "nothing",
        () if is_web_page(bytes) => "a web page",
        () => return Ok(()),
    };
    let detail = format!("the server sent {sent} instead of a file");
    Err(of_the_file(Missing::new(Cause::DownloadFailed, detail)))
}

impl SymbolServer<'_> {
    /// Downloads a small file into memory. Also returns its etag.
    ///
    /// # Errors
    ///
    /// The failure of the server; [`Cause::Unsupported`] if the file has more than `max_bytes`, of
    /// which no more are read; [`Cause::Timeout`] if it does not arrive within `time`.
    pub async fn read(
        &self,
        location: &Location,
        max_bytes: usize,
        time: Duration,
    ) -> Result<(String, Vec<u8>), ServerFailure> {
        let too_large = || {
            let detail = format!("it has more than {max_bytes} bytes");
            of_the_file(Missing::new(Cause::Unsupported, detail))
        };
        let read = async {
            let IncomingDif {
                etag,
                size,
                mut body,
            } = self.servers.get(self.query(location)).await?;
            if size.is_some_and(|size| size > max_bytes as u64) {
                return Err(too_large());
            }
            let mut bytes = Vec::new();
            while let Some(next) = body.try_next().await? {
                if bytes.len() + next.len() > max_bytes {
                    return Err(too_large());
                }
                bytes.extend_from_slice(&next);
            }
            Ok((etag, bytes))
        };
        tokio::time::timeout(time, read).await.unwrap_or_else(|_| {
            let seconds = time.as_secs();
            Err(too_slow(&format!(
                "the file did not arrive within {seconds} seconds"
            )))
        })
    }
}

/// The limits of a download.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The maximum size, in bytes.
    pub max_bytes: u64,
    /// The scratch space, in bytes. Half of it is reserved for a file whose server does not state
    /// its size.
    pub scratch_bytes: u64,
    /// The time limit.
    pub time: Duration,
}

/// The time limits of a download. Only time spent waiting for the server counts, not time spent
/// processing the bytes.
struct DownloadTime {
    /// The time left for the rest of the file.
    left: Duration,
    /// The time waited in the current window, and the bytes that arrived in it.
    waited: Duration,
    bytes: u64,
}

impl DownloadTime {
    fn new(size: u64, time: Duration) -> Self {
        let for_size = WHOLE_FILE + Duration::from_secs(size >> 20);
        Self {
            left: for_size.min(time),
            waited: Duration::ZERO,
            bytes: 0,
        }
    }

    /// Waits for the next bytes of a file.
    async fn wait_for<E>(
        &mut self,
        next: impl Future<Output = Result<Option<Bytes>, E>>,
    ) -> Result<Result<Option<Bytes>, E>, ServerFailure> {
        let mut next = pin!(next);
        loop {
            let began = Instant::now();
            let most = self.left.min(RATE_WINDOW.saturating_sub(self.waited));
            let arrived = tokio::time::timeout(most, &mut next).await;
            let took = began.elapsed();
            self.waited += took;
            self.left = self.left.saturating_sub(took);
            match arrived {
                Ok(Ok(Some(bytes))) => {
                    self.bytes += bytes.len() as u64;
                    self.check()?;
                    return Ok(Ok(Some(bytes)));
                }
                // The file is complete, or the server failed in another way.
                Ok(end) => return Ok(end),
                Err(_) => self.check()?,
            }
        }
    }

    /// Fails if the server is too slow. Starts the next window at the end of one.
    fn check(&mut self) -> Result<(), ServerFailure> {
        if self.left.is_zero() {
            return Err(too_slow("the download took longer than its size allows"));
        }
        if self.waited >= RATE_WINDOW {
            if self.bytes == 0 {
                return Err(too_slow("no data arrived for 30 seconds"));
            }
            if self.bytes < RATE_BYTES {
                return Err(too_slow("the file arrives at less than 64 KiB a second"));
            }
            (self.waited, self.bytes) = (Duration::ZERO, 0);
        }
        Ok(())
    }
}

fn too_slow(how: &str) -> ServerFailure {
    let detail = format!("the server is too slow: {how}");
    of_the_file(Missing::new(Cause::Timeout, detail))
}

/// Returns a failure that concerns one file, and not its server.
pub(super) fn of_the_file(missing: Missing) -> ServerFailure {
    ServerFailure {
        missing,
        retry_after: None,
        concerns: Concerns::Location,
    }
}

/// Why a DIF could not be fetched from a server.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The server failed.
    #[error(transparent)]
    Server(#[from] ServerFailure),
    /// The file cannot be parsed, or an internal error occurred.
    #[error(transparent)]
    Parse(#[from] ParseError),
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

/// Returns why a download is not used that is longer than the scratch space reserved for it.
fn longer_than(room: u64, stated: Option<u64>, limits: Limits) -> FetchError {
    let missing =
        |limit, detail| ParseError::Missing(Missing::new(Cause::TooLarge { limit }, detail));
    match stated {
        Some(size) => {
            let detail = format!("the server stated {size} bytes, and sent more");
            of_the_file(Missing::new(Cause::DownloadFailed, detail)).into()
        }
        None if room == limits.max_bytes => {
            let detail = format!("its bytes exceed the limit of {room} bytes for a file");
            missing(room, detail).into()
        }
        None => {
            let detail = format!(
                "its server does not state its size, and it exceeds the {room} bytes of scratch space for such files"
            );
            missing(limits.scratch_bytes, detail).into()
        }
    }
}

fn too_large(size: u64, limit: u64) -> Missing {
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
    use async_trait::async_trait;

    use super::*;
    use crate::domain::FileType;
    use crate::ports::{Fault, ListQuery};

    #[test]
    fn ranges_cover_a_file_once() {
        assert_eq!(ranges(0, 0).count(), 0);
        let covered: Vec<_> = ranges(0, 2 * RANGE_BYTES + 1).collect();
        assert_eq!(covered.first().unwrap().start, 0);
        assert!(covered.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!(covered.last().unwrap().end, 2 * RANGE_BYTES + 1);
    }

    const HOUR: Duration = Duration::from_secs(3600);

    /// A server with one file, whose etag never changes.
    #[derive(Debug)]
    struct OneFile(&'static [u8]);

    #[async_trait]
    impl SymbolServers for OneFile {
        async fn get(&self, _: FileQuery<'_>) -> Result<IncomingDif, ServerFailure> {
            Ok(IncomingDif {
                etag: "1".to_owned(),
                size: None,
                body: stream::iter([Ok(Bytes::from_static(self.0))]).boxed(),
            })
        }

        async fn list(&self, _: ListQuery<'_>) -> Result<Vec<(FileType, Location)>, ServerFailure> {
            Ok(Vec::new())
        }
    }

    /// Scratch space that nothing reads.
    #[derive(Debug)]
    struct Unread;

    #[async_trait]
    impl Scratch for Unread {
        async fn write_at(&mut self, _: u64, _: Bytes) -> Result<(), Fault> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_is_fetched_again_must_have_the_size_that_it_had() {
        let source = r#"{"type": "http", "id": "company", "url": "http://symbols.test/"}"#;
        let source: HttpSource = serde_json::from_str(source).unwrap();
        for (length, is_it) in [(7, true), (8, false), (6, false)] {
            let server = SymbolServer {
                servers: &OneFile(b"7 bytes"),
                key: &source.configured_key(),
                source: &source,
                checksum: None,
            };
            let place = WrittenFile {
                offset: 0,
                length,
                id: None,
            };
            let location = Location::new("http://symbols.test/a");
            let mut unread = Unread;
            let fetched = server.fetch_again(&location, (&mut unread, &place), HOUR);
            assert_eq!(fetched.await.unwrap().is_some(), is_it, "{length}");
        }
    }

    /// Lets this many bytes arrive after each pause, until the server is too slow or `times` pauses
    /// are over. Returns the detail of the failure.
    async fn trickle(
        time_left: &mut DownloadTime,
        bytes: usize,
        pause: Duration,
        times: u32,
    ) -> Option<String> {
        for _ in 0..times {
            let next = async {
                tokio::time::sleep(pause).await;
                Ok::<_, ()>(Some(Bytes::from(vec![0; bytes])))
            };
            if let Err(failure) = time_left.wait_for(next).await {
                assert_eq!(failure.missing.cause, Cause::Timeout);
                return Some(failure.missing.detail);
            }
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn a_byte_a_second_is_too_slow_after_one_window() {
        let began = Instant::now();
        let mut time_left = DownloadTime::new(1 << 20, HOUR);
        let failed = trickle(&mut time_left, 1, Duration::from_secs(1), 1000).await;
        assert!(failed.unwrap().contains("64 KiB a second"));
        assert_eq!(began.elapsed(), RATE_WINDOW);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_sends_nothing_is_too_slow_after_one_window() {
        let mut time_left = DownloadTime::new(1 << 20, HOUR);
        let failed = trickle(&mut time_left, 1, HOUR, 1).await;
        assert!(failed.unwrap().contains("no data arrived"));
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_may_arrive_in_bursts_that_no_window_divides() {
        let mut time_left = DownloadTime::new(1 << 30, HOUR);
        // Each window ends while the next burst is awaited, and contains one burst.
        let burst = RATE_BYTES as usize;
        assert_eq!(
            trickle(&mut time_left, burst, Duration::from_secs(29), 20).await,
            None
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_may_take_five_minutes_and_a_second_more_for_each_mebibyte() {
        let began = Instant::now();
        let mut time_left = DownloadTime::new(10 << 20, HOUR);
        let failed = trickle(&mut time_left, 70 << 10, Duration::from_secs(1), 1000).await;
        assert!(failed.unwrap().contains("longer than its size allows"));
        assert_eq!(began.elapsed(), Duration::from_secs(310));
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_bytes_are_written_is_not_the_servers() {
        let mut time_left = DownloadTime::new(1 << 20, HOUR);
        for _ in 0..10 {
            assert_eq!(trickle(&mut time_left, 1, Duration::ZERO, 1).await, None);
            tokio::time::advance(Duration::from_secs(60)).await;
        }
    }
}
