//! Responses that are read as a whole, and are short.

use reqwest::Response;

/// Reads a response; `None` if it has more than `limit` bytes, of which no more are kept.
///
/// # Errors
///
/// The response was interrupted.
pub(in crate::adapters) async fn bytes_within(
    mut response: Response,
    limit: usize,
) -> Result<Option<Vec<u8>>, reqwest::Error> {
    let mut read = Vec::new();
    while let Some(part) = response.chunk().await? {
        if part.len() > limit - read.len() {
            return Ok(None);
        }
        read.extend_from_slice(&part);
    }
    Ok(Some(read))
}
