//! Fetching of whole files from servers.

use futures::TryStreamExt;
use symdepot::adapters::http::HttpServers;
use symdepot::domain::{HttpSource, Location, Missing};
use symdepot::ports::{FileQuery, ServerFailure, SymbolServers};

/// Fetches a whole file.
pub(crate) async fn fetch(
    servers: &HttpServers,
    source: &HttpSource,
    location: &str,
) -> Result<Vec<u8>, Missing> {
    let key = source.configured_key();
    let location = Location::new(location);
    let query = FileQuery {
        key: &key,
        source,
        location: &location,
        checksum: None,
    };
    let missing = |failure: ServerFailure| failure.missing;
    let download = servers.get(query).await.map_err(missing)?;
    let pieces: Vec<_> = download.body.try_collect().await.map_err(missing)?;
    Ok(pieces.concat())
}
