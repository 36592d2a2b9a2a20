//! Crash files that are too large for a request: the file is stored first, and a request refers to
//! it.

use std::path::Path;

use indicatif::ProgressBar;
use symdepot::api::crash::attachment::AttachmentOffer;
use symdepot::domain::SignedPut;

use crate::body::Body;
use crate::client::Client;
use crate::error::CliError;
use crate::files::Opened;
use crate::progress::bytes_style;
use crate::store::{Piece, Sender};

/// Stores a crash file for requests of a scope, and returns the URL by which they refer to it. The
/// service removes the file after the request, or after a day.
pub(crate) async fn store(
    client: &Client,
    scope: Option<&str>,
    path: &Path,
    Opened { file, bytes }: &Opened,
) -> Result<String, CliError> {
    let query: Vec<(&str, &str)> = scope.map(|scope| ("scope", scope)).into_iter().collect();
    let request = serde_json::json!({"bytes": bytes}).to_string();
    let body = Body::json(request.into_bytes());
    let offer: AttachmentOffer = client.post("/attachments", &query, body).await?;
    let put = SignedPut {
        url: offer.upload.url,
        headers: offer.upload.headers,
    };
    let whole = Piece {
        path,
        file,
        start: 0,
        bytes: *bytes,
        put: &put,
        is_part: false,
    };
    let bar = ProgressBar::new(*bytes).with_style(bytes_style());
    let stored = Sender::new()?.send(&whole, &bar).await;
    bar.finish_and_clear();
    stored.map(|()| offer.storage_url)
}
