//! Crash files that are too large for a request: the file is stored first, and a request refers to
//! it.

use std::path::Path;

use bytes::Bytes;
use futures::stream;
use indicatif::ProgressBar;
use symdepot::api::crash::attachment::AttachmentOffer;

use crate::body::Body;
use crate::client::Client;
use crate::error::CliError;
use crate::progress::bytes_style;
use crate::upload::{NotStored, put, store_client};

/// The bytes that are sent at a time.
const CHUNK_BYTES: usize = 256 * 1024;

/// Stores a crash file for requests of a scope, and returns the URL by which they refer to it. The
/// service removes the file after the request, or after a day.
pub(crate) async fn store(
    client: &Client,
    scope: Option<&str>,
    path: &Path,
    file: Bytes,
) -> Result<String, CliError> {
    let query: Vec<(&str, &str)> = scope.map(|scope| ("scope", scope)).into_iter().collect();
    let request = serde_json::json!({"bytes": file.len()}).to_string();
    let body = Body::json(request.into_bytes());
    let offer: AttachmentOffer = client.post("/attachments", &query, body).await?;
    let request = store_client()?.put(&offer.upload.url);
    let bar = ProgressBar::new(file.len() as u64).with_style(bytes_style());
    let stored = put(request, &offer.upload.headers, chunks(file, bar.clone())).await;
    bar.finish_and_clear();
    match stored {
        Ok(()) => Ok(offer.storage_url),
        Err(NotStored::Unanswered(cause) | NotStored::Status(_, cause)) => Err(CliError::NotSent {
            path: path.to_owned(),
            cause,
        }),
    }
}

/// Returns a body that moves a bar while it is sent.
fn chunks(file: Bytes, bar: ProgressBar) -> reqwest::Body {
    let chunks = stream::unfold((file, bar), |(mut rest, bar)| async move {
        if rest.is_empty() {
            return None;
        }
        let chunk = rest.split_to(rest.len().min(CHUNK_BYTES));
        bar.inc(chunk.len() as u64);
        Some((Ok::<_, std::convert::Infallible>(chunk), (rest, bar)))
    });
    reqwest::Body::wrap_stream(chunks)
}
