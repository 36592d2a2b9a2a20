//! Sends files to the store by requests that the service has signed.
//!
//! Files are read while they are sent. A request fails when it makes no progress for a time, and is
//! sent again if the store may accept it then.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use futures::stream::StreamExt;
use indicatif::ProgressBar;
use reqwest::{Body, StatusCode};
use symdepot::domain::SignedPut;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::io::ReaderStream;

use crate::client::http_client;
use crate::error::{CliError, chain};
use crate::retry::PAUSES;

/// The number of attempts of a request whose connection fails, or that the store refuses for a
/// moment.
const ATTEMPTS: u32 = 4;

/// The time without progress after which a request has failed.
const STALLED: Duration = Duration::from_secs(60);

/// The code of S3's error for a part of an upload that was completed or aborted (S3 API reference,
/// `UploadPart`).
const NO_SUCH_UPLOAD: &str = "<Code>NoSuchUpload</Code>";

/// The bytes of a read from a file.
const READ_BYTES: usize = 256 * 1024;

/// Sends files. The requests are signed for the store, and have no credentials of the service.
pub(crate) struct Sender {
    http: reqwest::Client,
}

/// A range of a file to send.
pub(crate) struct Piece<'a> {
    /// The path of the file, for people.
    pub(crate) path: &'a Path,
    pub(crate) file: &'a File,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) put: &'a SignedPut,
    /// Whether it is a part of an upload that another client may complete.
    pub(crate) is_part: bool,
}

/// How an attempt failed.
enum Attempt {
    /// Another one may succeed.
    Transient(String),
    Refused(String),
}

impl Sender {
    pub(crate) fn new() -> Result<Self, CliError> {
        Ok(Self {
            http: http_client()?,
        })
    }

    /// Sends a range of a file, and moves a bar meanwhile.
    pub(crate) async fn send(&self, piece: &Piece<'_>, bar: &ProgressBar) -> Result<(), CliError> {
        let failed = |cause: String| CliError::NotSent {
            path: piece.path.to_owned(),
            cause,
        };
        for attempt in 1.. {
            let (sent, progress) = watch::channel(0);
            match self.attempt(piece, sent, progress.clone(), bar).await {
                Ok(()) => break,
                Err(Attempt::Transient(_)) if attempt < ATTEMPTS => {
                    bar.set_position(bar.position().saturating_sub(*progress.borrow()));
                    tokio::time::sleep(PAUSES.after(attempt - 1)).await;
                }
                Err(Attempt::Transient(cause) | Attempt::Refused(cause)) => {
                    return Err(failed(cause));
                }
            }
        }
        Ok(())
    }

    async fn attempt(
        &self,
        piece: &Piece<'_>,
        sent: watch::Sender<u64>,
        progress: watch::Receiver<u64>,
        bar: &ProgressBar,
    ) -> Result<(), Attempt> {
        let body = body_of(piece, sent, bar.clone()).await;
        let body = body.map_err(|error| Attempt::Refused(error.to_string()))?;
        let SignedPut { url, headers } = piece.put;
        let mut request = self.http.put(url).header("content-length", piece.bytes);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let response = while_it_moves(request.body(body).send(), progress, STALLED).await;
        let response = response.ok_or_else(|| {
            let seconds = STALLED.as_secs();
            Attempt::Transient(format!("the store accepted nothing for {seconds} s"))
        })?;
        let response = response.map_err(|error| {
            let cause = chain(&error.without_url());
            Attempt::Transient(cause)
        })?;
        let status = response.status();
        // 412: it is there already, from another client or from an attempt without a response.
        if status.is_success() || status == StatusCode::PRECONDITION_FAILED {
            return Ok(());
        }
        let text = timeout(STALLED, response.text()).await;
        let text = text.ok().and_then(Result::ok).unwrap_or_default();
        // Another client with the same file was faster. The service says what became of it.
        if piece.is_part && status == StatusCode::NOT_FOUND && text.contains(NO_SUCH_UPLOAD) {
            return Ok(());
        }
        let cause = format!("the store answered {status}: {}", message_of(&text));
        let is_of_a_moment = status.is_server_error()
            || matches!(status, StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS);
        Err(if is_of_a_moment {
            Attempt::Transient(cause)
        } else {
            Attempt::Refused(cause)
        })
    }
}

/// Returns the result of a request; `None` once its progress has not changed for a time. The
/// timeouts of the HTTP client count from the beginning of a request, whose body may take hours.
async fn while_it_moves<T>(
    request: impl Future<Output = T>,
    mut progress: watch::Receiver<u64>,
    limit: Duration,
) -> Option<T> {
    tokio::pin!(request);
    loop {
        tokio::select! {
            biased;
            result = &mut request => return Some(result),
            moved = timeout(limit, progress.changed()) => match moved {
                Ok(Ok(())) => {}
                // The body is complete.
                Ok(Err(_)) => return timeout(limit, request).await.ok(),
                Err(_) => return None,
            },
        }
    }
}

/// Returns the bytes of a piece as a stream that moves a bar, and counts what was sent.
async fn body_of(
    piece: &Piece<'_>,
    sent: watch::Sender<u64>,
    bar: ProgressBar,
) -> io::Result<Body> {
    // A clone would share the position in the file with the other pieces.
    let mut file = reopened(piece.file).await?;
    file.seek(io::SeekFrom::Start(piece.start)).await?;
    let bytes = ReaderStream::with_capacity(file.take(piece.bytes), READ_BYTES);
    let counted = bytes.inspect(move |chunk| {
        let count = chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        bar.inc(count);
        sent.send_modify(|sent| *sent += count);
    });
    Ok(Body::wrap_stream(counted))
}

/// Opens a file once more, which may have no name.
async fn reopened(file: &File) -> io::Result<tokio::fs::File> {
    use std::os::fd::AsRawFd as _;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    tokio::fs::File::open(Path::new(&path)).await
}

/// Returns the message in an error of S3, or the beginning of the text.
fn message_of(text: &str) -> String {
    const SHOWN: usize = 300;
    let message = text.split_once("<Message>").map(|(_, rest)| rest);
    let message = message.and_then(|rest| rest.split_once("</Message>"));
    let message = message.map_or(text, |(message, _)| message);
    message.chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_request_that_makes_progress_may_take_longer_than_the_limit() {
        let (sent, progress) = watch::channel(0);
        let request = async move {
            for _ in 0..10 {
                tokio::time::advance(LIMIT / 2).await;
                sent.send_modify(|sent| *sent += 1);
            }
            drop(sent);
            tokio::time::advance(LIMIT / 2).await;
            "stored"
        };
        assert_eq!(
            while_it_moves(request, progress, LIMIT).await,
            Some("stored")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_progress_or_an_answer_ends_after_the_limit() {
        let (sent, progress) = watch::channel(0);
        let began = tokio::time::Instant::now();
        let stalled = std::future::pending::<()>();
        assert_eq!(while_it_moves(stalled, progress.clone(), LIMIT).await, None);
        assert_eq!(began.elapsed(), LIMIT);
        drop(sent);
        let unanswered = std::future::pending::<()>();
        assert_eq!(while_it_moves(unanswered, progress, LIMIT).await, None);
        assert_eq!(began.elapsed(), 2 * LIMIT);
    }

    #[test]
    fn the_message_of_the_store_is_shown() {
        let error = "<Error><Code>AccessDenied</Code><Message>no</Message></Error>";
        assert_eq!(message_of(error), "no");
        assert_eq!(message_of(&"x".repeat(1000)).len(), 300);
    }
}
