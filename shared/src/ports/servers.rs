//! Fetching DIFs from symbol servers.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;

use crate::domain::{HttpSource, Location, Missing};

/// Fetches DIFs from symbol servers.
#[async_trait]
pub trait SymbolServers: fmt::Debug + Send + Sync {
    /// Begins to fetch what is at a location of a source.
    async fn get(
        &self,
        source: &HttpSource,
        location: &Location,
    ) -> Result<Download, ServerFailure>;
}

/// Why a server hands nothing out: worth remembering, and never a fault of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .missing.detail)]
pub struct ServerFailure {
    /// Why.
    pub missing: Missing,
    /// How long it wants to be left alone, where it says so.
    pub retry_after: Option<Duration>,
}

/// A DIF on its way.
pub struct Download {
    /// Identity of the bytes: what the server calls it, or what it says of their age and number.
    pub etag: String,
    /// Their number, where the server says so.
    pub size: Option<u64>,
    /// The bytes. Ends with an error where fewer come than were announced.
    pub body: BoxStream<'static, Result<Bytes, ServerFailure>>,
}

impl fmt::Debug for Download {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Download")
            .field("etag", &self.etag)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}
