//! Downloads files from symbol servers as streams: DIFs into scratch space, and small files into
//! memory.
//!
//! The size, the time and the rate of a download are limited. A server that sends nothing, or a web
//! page, in place of a file has failed.

use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::TryStreamExt;
use tokio::sync::mpsc::Sender;
use tokio::time::Instant;

use super::fetch::too_large;
use crate::domain::{
    Cause, HttpSource, Location, Missing, SourceKey, Written, WrittenFile, is_web_page,
};
use crate::ports::{
    Concerns, Deriver, DifStat, FileQuery, IncomingDif, ParseError, Parser, Scratch, ServerFailure,
    SymbolServers,
};

/// The bytes of a download that are written at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// The time limit for the download of any file; each mebibyte adds a second.
const WHOLE_FILE: Duration = Duration::from_secs(5 * 60);

/// The period in which at least [`RATE_BYTES`] must arrive: 64 KiB a second.
const RATE_WINDOW: Duration = Duration::from_secs(30);
const RATE_BYTES: u64 = 30 * (64 << 10);

/// The most bytes of a web page that a server sends in place of a file. The beginning of a larger
/// response is not read to see what it is.
const LARGEST_PAGE: u64 = 1 << 20;

/// Calls to a symbol server for the contents of files.
///
/// A search makes them with a permit (`permits`). A file that was found before is fetched again
/// without one.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerCalls<'a> {
    /// The means to call it.
    pub(super) servers: &'a dyn SymbolServers,
    /// The key of the source.
    pub(super) key: &'a SourceKey,
    /// Its definition.
    pub(super) source: &'a HttpSource,
    /// The checksum of the file, as the crash names it.
    pub(super) checksum: Option<&'a str>,
}

impl ServerCalls<'_> {
    /// Fetches a DIF from a symbol server, and starts a parser of it. Also returns its etag and
    /// size.
    ///
    /// A file over [`Limits::max_bytes`], or over the scratch space, is [`Cause::TooLarge`]. So is
    /// one over half of the scratch space if the server does not state its size. A download that
    /// takes longer than its size allows, or arrives at less than 64 KiB a second, is
    /// [`Cause::Timeout`], and an empty one or a web page is [`Cause::DownloadFailed`]: failures of
    /// the server, not of the file. The bytes are also sent to `copy`, until its receiver is
    /// dropped.
    pub(super) async fn fetch(
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
    /// [`ServerCalls::fetch`]. Returns `None` if it has another size now.
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

    /// Downloads a small file into memory. Also returns its etag.
    ///
    /// # Errors
    ///
    /// The failure of the server; [`Cause::Unsupported`] if the file has more than `max_bytes`, of
    /// which no more are read; [`Cause::Timeout`] if it does not arrive within `time`.
    pub(super) async fn read(
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

    fn query<'q>(&'q self, location: &'q Location) -> FileQuery<'q> {
        FileQuery {
            key: self.key,
            source: self.source,
            location,
            checksum: self.checksum,
        }
    }
}

/// The limits of a download.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The maximum size, in bytes.
    pub(super) max_bytes: u64,
    /// The scratch space, in bytes. Half of it is reserved for a file whose server does not state
    /// its size.
    pub(super) scratch_bytes: u64,
    /// The time limit.
    pub(super) time: Duration,
}

/// Why a DIF could not be fetched from a server.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    /// The server failed.
    #[error(transparent)]
    Server(#[from] ServerFailure),
    /// The file cannot be parsed, or an internal error occurred.
    #[error(transparent)]
    Parse(#[from] ParseError),
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

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use futures::stream::{self, StreamExt};

    use super::*;
    use crate::domain::FileType;
    use crate::ports::{Fault, ListQuery};

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
            let server = ServerCalls {
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
