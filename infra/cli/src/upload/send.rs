//! Sends files to the store by requests that the service has signed.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};
use indicatif::ProgressBar;
use reqwest::{Body, RequestBuilder, StatusCode};
use symdepot::api::uploads::Transfer;
use symdepot::domain::SignedPut;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

use super::pack::Packed;
use crate::client::http_client;
use crate::error::{CliError, chain};

/// The number of requests at a time.
const AT_A_TIME: usize = 4;

/// The number of attempts of a request whose connection fails, or that the store refuses for a
/// moment.
const ATTEMPTS: u32 = 4;

/// The pause before the second attempt; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// The time without progress after which a request has failed.
const STALLED: Duration = Duration::from_secs(60);

/// The bytes of a read from a file.
const READ_BYTES: usize = 256 * 1024;

/// Sends files. The requests are signed for the store, and have no credentials of the service.
pub(super) struct Sender {
    http: reqwest::Client,
}

/// A range of a file to send.
struct Piece<'a> {
    packed: &'a Packed,
    start: u64,
    bytes: u64,
    put: &'a SignedPut,
}

/// How an attempt failed.
enum Attempt {
    /// Another one may succeed.
    Transient(String),
    Refused(String),
}

impl<'a> Piece<'a> {
    /// Returns what a transfer asks for of a file.
    fn of(packed: &'a Packed, transfer: &'a Transfer) -> Vec<Self> {
        match transfer {
            Transfer::Put(put) => vec![Self {
                packed,
                start: 0,
                bytes: packed.bytes,
                put,
            }],
            Transfer::Parts { part_bytes, parts } => {
                let parts = parts.iter().map(|part| {
                    let start = u64::from(part.number.saturating_sub(1)) * part_bytes;
                    Self {
                        packed,
                        start,
                        bytes: (*part_bytes).min(packed.bytes.saturating_sub(start)),
                        put: &part.put,
                    }
                });
                parts.collect()
            }
        }
    }
}

impl Sender {
    pub(super) fn new() -> Result<Self, CliError> {
        Ok(Self {
            http: store_client()?,
        })
    }

    /// Sends what these transfers ask for of their files. Returns of each file whether something
    /// was sent.
    pub(super) async fn send_all(
        &self,
        files: impl Iterator<Item = (&Packed, Option<&Transfer>)>,
        bar: &ProgressBar,
    ) -> Result<Vec<bool>, CliError> {
        let files = files.map(|(packed, transfer)| match transfer {
            Some(transfer) => Piece::of(packed, transfer),
            None => Vec::new(),
        });
        let pieces: Vec<Vec<Piece<'_>>> = files.collect();
        let was_sent = pieces.iter().map(|pieces| !pieces.is_empty()).collect();
        let pieces: Vec<Piece<'_>> = pieces.into_iter().flatten().collect();
        bar.inc_length(pieces.iter().map(|piece| piece.bytes).sum());
        let sends = stream::iter(pieces).map(|piece| async move {
            self.send(&piece).await?;
            Ok::<_, CliError>(piece.bytes)
        });
        let mut sends = sends.buffer_unordered(AT_A_TIME);
        while let Some(bytes) = sends.try_next().await? {
            bar.inc(bytes);
        }
        Ok(was_sent)
    }

    async fn send(&self, piece: &Piece<'_>) -> Result<(), CliError> {
        let failed = |cause: String| CliError::NotSent {
            path: piece.packed.path.clone(),
            cause,
        };
        let mut pause = FIRST_PAUSE;
        for attempt in 1.. {
            match self.attempt(piece).await {
                Ok(()) => break,
                Err(Attempt::Transient(_)) if attempt < ATTEMPTS => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                Err(Attempt::Transient(cause) | Attempt::Refused(cause)) => {
                    return Err(failed(cause));
                }
            }
        }
        Ok(())
    }

    async fn attempt(&self, piece: &Piece<'_>) -> Result<(), Attempt> {
        let body = body_of(piece).await;
        let body = body.map_err(|error| Attempt::Refused(error.to_string()))?;
        let SignedPut { url, headers } = piece.put;
        let request = self.http.put(url).header("content-length", piece.bytes);
        match put(request, headers, body).await {
            // A client with the same file was faster.
            Err(NotStored::Status(StatusCode::PRECONDITION_FAILED, _)) | Ok(()) => Ok(()),
            Err(NotStored::Unanswered(cause)) => Err(Attempt::Transient(cause)),
            Err(NotStored::Status(status, cause)) => {
                let is_of_a_moment = status.is_server_error()
                    || matches!(status, StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS);
                Err(match is_of_a_moment {
                    true => Attempt::Transient(cause),
                    false => Attempt::Refused(cause),
                })
            }
        }
    }
}

/// Returns a client of the store. It has no credentials: its requests are signed by the service.
pub(crate) fn store_client() -> Result<reqwest::Client, CliError> {
    http_client(|builder| builder.read_timeout(STALLED))
}

/// Why the store has not stored bytes; with the cause, for people.
pub(crate) enum NotStored {
    Unanswered(String),
    Status(StatusCode, String),
}

/// Sends bytes by a signed request.
pub(crate) async fn put(
    mut request: RequestBuilder,
    headers: &BTreeMap<String, String>,
    body: Body,
) -> Result<(), NotStored> {
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let response = request.body(body).send().await;
    let response = response.map_err(|error| NotStored::Unanswered(chain(&error.without_url())))?;
    let status = response.status();
    if status.is_success() {
        return Ok(());
    }
    let text = response.text().await.unwrap_or_default();
    let cause = format!("the store answered {status}: {}", message_of(&text));
    Err(NotStored::Status(status, cause))
}

/// Returns the bytes of a piece as a stream.
async fn body_of(piece: &Piece<'_>) -> io::Result<Body> {
    // A clone would share the position in the file with the other pieces.
    let mut file = reopened(piece.packed).await?;
    file.seek(io::SeekFrom::Start(piece.start)).await?;
    let bytes = ReaderStream::with_capacity(file.take(piece.bytes), READ_BYTES);
    Ok(Body::wrap_stream(bytes))
}

/// Opens a file once more, which may have no name.
async fn reopened(packed: &Packed) -> io::Result<tokio::fs::File> {
    use std::os::fd::AsRawFd as _;
    let path = format!("/proc/self/fd/{}", packed.file.as_raw_fd());
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
