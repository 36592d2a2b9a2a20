//! Fetching DIFs from symbol servers.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;

use crate::domain::{HttpSource, Location, Missing, SourceKey};

/// Fetches DIFs from symbol servers.
#[async_trait]
pub trait SymbolServers: fmt::Debug + Send + Sync {
    /// Begins to fetch what is at a location of a source. The key tells whether the source is
    /// configured or defined by a request, which may do less.
    async fn get(
        &self,
        key: &SourceKey,
        source: &HttpSource,
        location: &Location,
    ) -> Result<IncomingDif, ServerFailure>;
}

/// Why a server hands nothing out: worth remembering, and never a fault of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .missing.detail)]
pub struct ServerFailure {
    /// Why.
    pub missing: Missing,
    /// How long it wants to be left alone, where it says so.
    pub retry_after: Option<Duration>,
    /// What the failure is about.
    pub concerns: Concerns,
}

/// What a failure is about: only what concerns a whole server counts against it for every scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concerns {
    /// What was asked for. Another location, or another scope, may meet something else.
    Location,
    /// The server: it cannot be reached, or says itself that it wants to be left alone.
    Server,
}

/// A DIF on its way.
pub struct IncomingDif {
    /// Identity of the bytes: what the server calls it, or what it says of their age and number.
    pub etag: String,
    /// Their number, where the server says so.
    pub size: Option<u64>,
    /// The bytes. Ends with an error where fewer come than were announced.
    pub body: BoxStream<'static, Result<Bytes, ServerFailure>>,
}

impl fmt::Debug for IncomingDif {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Download")
            .field("etag", &self.etag)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}
