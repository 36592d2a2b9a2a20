//! Downloads from symbol servers.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;

use crate::domain::{CodeId, DebugId, FileType, HttpSource, Location, Missing, SourceKey};

/// Downloads DIFs from symbol servers.
#[async_trait]
pub trait SymbolServers: fmt::Debug + Send + Sync {
    /// Starts a download.
    async fn get(&self, query: FileQuery<'_>) -> Result<IncomingDif, ServerFailure>;

    /// Returns the files of a module in a source that lists them, in the order of the listing.
    async fn list(&self, query: ListQuery<'_>) -> Result<Vec<(FileType, Location)>, ServerFailure>;
}

/// A module whose files a source lists ([`HttpSource::lists_files`]).
#[derive(Clone, Copy, Debug)]
pub struct ListQuery<'a> {
    /// The key of the source.
    pub key: &'a SourceKey,
    /// The definition of the source.
    pub source: &'a HttpSource,
    /// The debug id of the module.
    pub debug_id: Option<DebugId>,
    /// The code id of the module.
    pub code_id: Option<&'a CodeId>,
}

/// A file that is sought on a symbol server.
#[derive(Clone, Copy, Debug)]
pub struct FileQuery<'a> {
    /// The key of the source. It says whether the source is configured or defined by a request; the
    /// latter is restricted more.
    pub key: &'a SourceKey,
    /// The definition of the source.
    pub source: &'a HttpSource,
    /// The location in the source.
    pub location: &'a Location,
    /// The checksum of the file, as the crash names it.
    pub checksum: Option<&'a str>,
}

/// Why a server returned no file. The reason may be cached; it is never an internal error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .missing.detail)]
pub struct ServerFailure {
    /// The reason.
    pub missing: Missing,
    /// The `Retry-After` of the server, if it sent one.
    pub retry_after: Option<Duration>,
    /// What the failure applies to.
    pub concerns: Concerns,
}

/// What a failure applies to. Only failures of the whole server count against it for every scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concerns {
    /// The requested location. Another location or another scope may get another result.
    Location,
    /// The server: it cannot be reached, or asked for a pause.
    Server,
}

/// A DIF that is being downloaded.
pub struct IncomingDif {
    /// The identity of the bytes: the server's etag, or else its date and size.
    pub etag: String,
    /// The size in bytes, if the server states it.
    pub size: Option<u64>,
    /// The bytes. The stream ends with an error if fewer arrive than were announced.
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
