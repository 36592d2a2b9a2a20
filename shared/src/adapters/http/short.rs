//! Responses that are read as a whole and are short, and the first bytes of others.

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

/// Reads the first `limit` bytes of a response, or all of a shorter one.
///
/// # Errors
///
/// The response was interrupted before them.
pub(super) async fn first_bytes(
    mut response: Response,
    limit: usize,
) -> Result<Vec<u8>, reqwest::Error> {
    let mut read = Vec::new();
    while read.len() < limit
        && let Some(part) = response.chunk().await?
    {
        read.extend_from_slice(&part);
    }
    read.truncate(limit);
    Ok(read)
}
