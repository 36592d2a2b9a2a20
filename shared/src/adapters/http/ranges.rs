//! Downloads of large files in several ranges at a time, because many servers limit the rate of a
//! connection.
//!
//! 1. The response to the first request is the whole file. Its first 8 MiB are passed on.
//! 2. If they arrived fast enough, the next four ranges are requested at once. If the server
//!    answers all four with the requested ranges of the same bytes, the first response is dropped.
//!    Otherwise that response is read to its end, as if no range had been requested.
//! 3. Four ranges are received at a time, and their bytes are passed on in order. Bytes that arrive
//!    early are kept in memory: at most three ranges.
//! 4. A range whose connection breaks is requested again from the first byte that is missing, at
//!    most three times for each mebibyte.
//!
//! Ranges of different versions of a file are never combined: only files with a strong `ETag` are
//! requested in ranges, and each range must have the same one, and the same size of the whole file.
//!
//! Source: RFC 9110, sections 8.8.3 (`ETag`), 13.1.5 (`If-Range`), 14 (range requests) and 15.3.7
//! (206).

use std::collections::VecDeque;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::try_join_all;
use futures::stream::{self, BoxStream, Stream, StreamExt, TryStreamExt};
use reqwest::header::{
    ACCEPT_RANGES, CONTENT_RANGE, ETAG, HeaderMap, HeaderName, HeaderValue, IF_RANGE, RANGE,
};
use reqwest::{Request, Response, StatusCode, Url};
use tokio::time::Instant;

use super::attempts::{Answer, Attempts, failed, place};
use super::status::{self, Refusal};
use crate::domain::Cause;
use crate::ports::ServerFailure;

/// The size from which a file is requested in ranges, in bytes.
const LARGE_FILE_BYTES: u64 = 64 << 20;

/// The size of a range, in bytes.
const RANGE_BYTES: u64 = 8 << 20;

/// The bytes of a range after which the failures before them no longer count. A server that breaks
/// each connection after one byte would otherwise receive a request for every byte.
const PROGRESS_BYTES: u64 = 1 << 20;

/// The number of ranges that are received at a time.
const RANGES_IN_FLIGHT: usize = 4;

/// A server whose first range takes longer than this is not asked for more at once: it is
/// overloaded, or the connections share what is slow.
const FAST_ENOUGH: Duration = Duration::from_secs(8);

/// The bytes of a file as they arrive, in order.
pub(super) type FileBytes = BoxStream<'static, Result<Bytes, ServerFailure>>;

/// A file that can be requested in ranges.
pub(super) struct RangedFile {
    client: reqwest::Client,
    /// The request for the whole file.
    request: Request,
    etag: HeaderValue,
    size: u64,
    /// The time limit for the responses to the first ranges.
    answer_limit: Duration,
}

impl RangedFile {
    /// Returns the file of a response, if it is large and the server supports ranges of it.
    /// `silence` is the time after which the first response ends because it is not read: the first
    /// ranges must be answered in half of it.
    pub(super) fn of(answer: &Answer, silence: Duration) -> Option<Self> {
        let headers = answer.response.headers();
        let units = headers.get(ACCEPT_RANGES)?.to_str().ok()?;
        let mut units = units.split(',').map(str::trim);
        let has_ranges = units.any(|unit| unit.eq_ignore_ascii_case("bytes"));
        let etag = headers.get(ETAG)?;
        // The client removes the length of a response that it decodes, whose ranges would be those
        // of the encoded bytes.
        let size = answer.response.content_length()?;
        let is_large = size >= LARGE_FILE_BYTES;
        (has_ranges && is_large && etag.as_bytes().starts_with(b"\"")).then(|| Self {
            client: answer.client.clone(),
            request: answer.request.try_clone().expect("it has no body"),
            etag: etag.clone(),
            size,
            answer_limit: silence / 2,
        })
    }

    /// Requests a range.
    async fn get(&self, range: Range<u64>) -> Result<Response, Refusal> {
        let mut request = self.request.try_clone().expect("it has no body");
        let last = range.end - 1;
        let bytes = HeaderValue::from_str(&format!("bytes={}-{last}", range.start));
        let headers = request.headers_mut();
        headers.insert(RANGE, bytes.expect("it is ASCII"));
        headers.insert(IF_RANGE, self.etag.clone());
        let response = self.client.execute(request).await;
        let response = response.map_err(|error| failed(self.url(), false, &error))?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                self.check(response.headers(), &range).map(|()| response)
            }
            StatusCode::OK | StatusCode::RANGE_NOT_SATISFIABLE => Err(self.refusal(
                "the file changed during the download, or the server stopped supporting ranges",
            )),
            _ => match status::judge(response, self.url(), false) {
                Ok(_) => Err(self.refusal("the server answered without the range")),
                // That the rest of the file is missing says nothing about the file.
                Err(mut refusal) => {
                    refusal.missing.cause = Cause::DownloadFailed;
                    Err(refusal)
                }
            },
        }
    }

    /// Checks that a response has the requested range of the same bytes.
    fn check(&self, headers: &HeaderMap, range: &Range<u64>) -> Result<(), Refusal> {
        let header = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let expected = format!("bytes {}-{}/{}", range.start, range.end - 1, self.size);
        if headers.get(ETAG) != Some(&self.etag) {
            return Err(self.refusal("the file changed during the download"));
        }
        if header(CONTENT_RANGE) != Some(&expected) {
            return Err(self.refusal("the server sent a range that was not requested"));
        }
        Ok(())
    }

    fn refusal(&self, what: &str) -> Refusal {
        Refusal::forever(format!("{}: {what}", place(self.url())))
    }

    fn url(&self) -> &Url {
        self.request.url()
    }
}

/// Returns the bytes of a file in order: of a large one, in ranges, if the server supports them.
/// `whole` is the body of the first response.
pub(super) fn body(file: Option<RangedFile>, whole: FileBytes) -> FileBytes {
    let Some(file) = file else {
        return whole;
    };
    let begin = Phase::Begin(Box::new(Beginning {
        file,
        whole,
        received: 0,
        waited: Duration::ZERO,
    }));
    let bytes = stream::try_unfold(begin, |phase| async {
        let next = match phase {
            Phase::Begin(beginning) => beginning.next().await?,
            Phase::Whole(mut whole) => {
                let bytes = whole.try_next().await?;
                bytes.map(|bytes| (bytes, Phase::Whole(whole)))
            }
            Phase::Ranges(mut window) => {
                let bytes = window.try_next().await?;
                bytes.map(|bytes| (bytes, Phase::Ranges(window)))
            }
        };
        Ok::<_, ServerFailure>(next)
    });
    bytes.boxed()
}

/// How the next bytes are received.
enum Phase {
    /// From the first response, until the first range is complete.
    Begin(Box<Beginning>),
    /// From the first response, to its end.
    Whole(FileBytes),
    /// In ranges.
    Ranges(Box<Window>),
}

/// The beginning of a file.
struct Beginning {
    file: RangedFile,
    whole: FileBytes,
    received: u64,
    /// The time spent waiting for these bytes.
    waited: Duration,
}

impl Beginning {
    async fn next(mut self: Box<Self>) -> Result<Option<(Bytes, Phase)>, ServerFailure> {
        let began = Instant::now();
        let Some(bytes) = self.whole.try_next().await? else {
            return Ok(None);
        };
        self.waited += began.elapsed();
        self.received += bytes.len() as u64;
        let next = match () {
            () if self.received < RANGE_BYTES => Phase::Begin(self),
            () if self.waited > FAST_ENOUGH => Phase::Whole(self.whole),
            () => {
                let limit = self.file.answer_limit;
                let window = Window::open(self.file, self.received);
                match tokio::time::timeout(limit, window).await {
                    Ok(Ok(window)) => Phase::Ranges(Box::new(window)),
                    Ok(Err(_)) | Err(_) => Phase::Whole(self.whole),
                }
            }
        };
        Ok(Some((bytes, next)))
    }
}

/// The ranges that are received at a time.
struct Window {
    file: Arc<RangedFile>,
    /// In the order of their offsets. The bytes of the first one are passed on.
    open: VecDeque<OpenRange>,
    /// The offset of the first byte that was not requested yet.
    requested: u64,
}

/// A range that is being received.
struct OpenRange {
    body: FileBytes,
    arrived: VecDeque<Bytes>,
    is_complete: bool,
}

impl Window {
    /// Requests the first ranges after `begin`. Fails if the server does not answer each of them
    /// with its bytes.
    async fn open(file: RangedFile, begin: u64) -> Result<Self, Refusal> {
        let mut window = Self {
            file: Arc::new(file),
            open: VecDeque::new(),
            requested: begin,
        };
        let ranges: Vec<Range<u64>> = std::iter::from_fn(|| window.next_range())
            .take(RANGES_IN_FLIGHT)
            .collect();
        let file = &window.file;
        let responses = ranges.iter().map(|range| file.get(range.clone()));
        let responses = try_join_all(responses).await?;
        for (range, response) in ranges.into_iter().zip(responses) {
            let part = Part::new(&window.file, range, Some(response));
            window.open.push_back(OpenRange::of(part));
        }
        Ok(window)
    }

    /// Returns the next range to request.
    fn next_range(&mut self) -> Option<Range<u64>> {
        let begin = self.requested;
        self.requested = self.file.size.min(begin + RANGE_BYTES);
        (begin < self.requested).then_some(begin..self.requested)
    }
}

impl Stream for Window {
    type Item = Result<Bytes, ServerFailure>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            while self.open.len() < RANGES_IN_FLIGHT
                && let Some(range) = self.next_range()
            {
                let part = Part::new(&self.file, range, None);
                self.open.push_back(OpenRange::of(part));
            }
            for range in &mut self.open {
                if let Err(failure) = range.receive(context) {
                    return Poll::Ready(Some(Err(failure)));
                }
            }
            let Some(first) = self.open.front_mut() else {
                return Poll::Ready(None);
            };
            if let Some(bytes) = first.arrived.pop_front() {
                return Poll::Ready(Some(Ok(bytes)));
            }
            if !first.is_complete {
                return Poll::Pending;
            }
            self.open.pop_front();
        }
    }
}

impl OpenRange {
    fn of(part: Part) -> Self {
        Self {
            body: stream::try_unfold(part, Part::next).boxed(),
            arrived: VecDeque::new(),
            is_complete: false,
        }
    }

    /// Takes the bytes that have arrived.
    fn receive(&mut self, context: &mut Context<'_>) -> Result<(), ServerFailure> {
        while !self.is_complete {
            match self.body.poll_next_unpin(context)? {
                Poll::Ready(Some(bytes)) => self.arrived.push_back(bytes),
                Poll::Ready(None) => self.is_complete = true,
                Poll::Pending => break,
            }
        }
        Ok(())
    }
}

/// The rest of a range.
struct Part {
    file: Arc<RangedFile>,
    missing: Range<u64>,
    response: Option<Response>,
    /// The attempts that failed, and the bytes that arrived, since the last progress.
    attempts: Attempts,
    arrived: u64,
}

impl Part {
    fn new(file: &Arc<RangedFile>, missing: Range<u64>, response: Option<Response>) -> Self {
        Self {
            file: Arc::clone(file),
            missing,
            response,
            attempts: Attempts::default(),
            arrived: 0,
        }
    }

    /// Returns the next bytes. If the connection breaks, requests the rest again.
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, ServerFailure> {
        while !self.missing.is_empty() {
            match self.receive().await {
                Ok(bytes) => {
                    self.missing.start += bytes.len() as u64;
                    self.arrived += bytes.len() as u64;
                    if self.arrived >= PROGRESS_BYTES {
                        self.arrived = 0;
                        self.attempts = Attempts::default();
                    }
                    return Ok(Some((bytes, self)));
                }
                Err(refusal) => {
                    self.response = None;
                    self.attempts.pause_after(refusal).await?;
                }
            }
        }
        Ok(None)
    }

    async fn receive(&mut self) -> Result<Bytes, Refusal> {
        let response = match self.response.take() {
            Some(response) => response,
            None => self.file.get(self.missing.clone()).await?,
        };
        let response = self.response.insert(response);
        let bytes = response.chunk().await;
        let url = self.file.url();
        let bytes = bytes.map_err(|error| {
            // A timeout may be due to this side: the client counts the time in which no bytes were
            // taken, because earlier ones were being written.
            let (cause, what) = if error.is_timeout() {
                (Cause::Timeout, "stopped sending")
            } else {
                (Cause::DownloadFailed, "closed the connection while sending")
            };
            Refusal::now(cause, format!("{} {what}", place(url)))
        })?;
        match bytes {
            Some(bytes) if bytes.len() as u64 <= self.missing.end - self.missing.start => Ok(bytes),
            Some(_) => Err(self
                .file
                .refusal("the server sent more than the requested range")),
            None => {
                let detail = format!("{} sent a range in part", place(url));
                Err(Refusal::now(Cause::DownloadFailed, detail))
            }
        }
    }
}
