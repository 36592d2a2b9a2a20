//! Crash files that are too large for a request: the file is stored first, and a request refers to
//! it.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use indicatif::ProgressBar;
use symdepot::api::crash::attachment::AttachmentOffer;

use crate::body::Body;
use crate::client::{Client, http_client};
use crate::error::{CliError, chain};
use crate::progress::bytes_style;
use crate::upload::store_message;

/// The time without an answer or progress after which the store has failed.
const STALLED: Duration = Duration::from_secs(60);

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
    let not_sent = |cause: String| CliError::NotSent {
        path: path.to_owned(),
        cause,
    };

    // The request is signed for the store, and has no credentials of the service.
    let http = http_client(|builder| builder.read_timeout(STALLED))?;
    let mut request = http.put(&offer.upload.url);
    for (name, value) in &offer.upload.headers {
        request = request.header(name, value);
    }
    let bar = ProgressBar::new(file.len() as u64).with_style(bytes_style());
    let response = request.body(chunks(file, bar.clone())).send().await;
    bar.finish_and_clear();
    let response = response.map_err(|error| not_sent(chain(&error.without_url())))?;
    let status = response.status();
    if !status.is_success() {
        let text = response.text().await.unwrap_or_default();
        let cause = format!("the store answered {status}: {}", store_message(&text));
        return Err(not_sent(cause));
    }
    Ok(offer.storage_url)
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
