//! Symbol servers in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, StreamExt};

use super::blobs::etag;
use crate::domain::{FileType, Location, Missing};
use crate::ports::{Concerns, FileQuery, IncomingDif, ListQuery, ServerFailure, SymbolServers};

/// Bytes per chunk of a response body.
const PIECE_BYTES: usize = 4096;

/// Symbol servers in memory. A location without a file is not found.
#[derive(Debug, Default)]
pub struct MemoryServers {
    state: Mutex<ServerState>,
}

#[derive(Debug, Default)]
struct ServerState {
    /// The files that sources list, or why they do not.
    listing: Option<Result<Vec<(FileType, Location)>, ServerFailure>>,
    answers: BTreeMap<Location, Result<Bytes, ServerFailure>>,
    pauses: BTreeMap<Location, Duration>,
    /// The files whose size is not stated.
    unsaid: BTreeSet<Location>,
    asked: Vec<Location>,
    /// The headers that the sources of these requests send.
    headers: Vec<BTreeMap<String, String>>,
}

impl MemoryServers {
    /// Returns servers without files.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a file, and replaces an existing one.
    pub fn put(&self, location: &Location, body: impl Into<Bytes>) {
        self.lock()
            .answers
            .insert(location.clone(), Ok(body.into()));
    }

    /// Makes sources that list their files list these from now on, for any module.
    pub fn list_files(&self, files: Result<Vec<(FileType, Location)>, ServerFailure>) {
        self.lock().listing = Some(files);
    }

    /// Makes a location fail from now on.
    pub fn fail(&self, location: &Location, failure: ServerFailure) {
        self.lock().answers.insert(location.clone(), Err(failure));
    }

    /// Makes a file arrive slowly from now on: with this pause before each chunk of 4 KiB.
    pub fn slow_down(&self, location: &Location, pause: Duration) {
        self.lock().pauses.insert(location.clone(), pause);
    }

    /// Makes a file pretend that its size is unknown from now on.
    pub fn hide_size(&self, location: &Location) {
        self.lock().unsaid.insert(location.clone());
    }

    /// Removes a file or failure.
    pub fn remove(&self, location: &Location) {
        self.lock().answers.remove(location);
    }

    /// Returns the locations that were requested since the last call, in order.
    pub fn take_asked(&self) -> Vec<Location> {
        std::mem::take(&mut self.lock().asked)
    }

    /// Returns the headers of all requests since the last call, in order.
    pub fn take_headers(&self) -> Vec<BTreeMap<String, String>> {
        std::mem::take(&mut self.lock().headers)
    }

    fn lock(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl SymbolServers for MemoryServers {
    async fn list(&self, query: ListQuery<'_>) -> Result<Vec<(FileType, Location)>, ServerFailure> {
        let mut state = self.lock();
        state.asked.push(Location::new(query.source.url.as_str()));
        state.listing.clone().unwrap_or(Ok(Vec::new()))
    }

    async fn get(&self, query: FileQuery<'_>) -> Result<IncomingDif, ServerFailure> {
        let location = query.location;
        let mut state = self.lock();
        state.asked.push(location.clone());
        state.headers.push(query.source.headers.clone());
        let nothing = || {
            Err(ServerFailure {
                missing: Missing::not_found(),
                retry_after: None,
                concerns: Concerns::Location,
            })
        };
        let body = state
            .answers
            .get(location)
            .cloned()
            .unwrap_or_else(nothing)?;
        let pause = state.pauses.get(location).copied().unwrap_or_default();
        let is_said = !state.unsaid.contains(location);
        let pieces: Vec<Bytes> = body
            .chunks(PIECE_BYTES)
            .map(Bytes::copy_from_slice)
            .collect();
        Ok(IncomingDif {
            etag: etag(&body),
            size: is_said.then_some(body.len() as u64),
            body: stream::iter(pieces)
                .then(move |piece| async move {
                    tokio::time::sleep(pause).await;
                    Ok(piece)
                })
                .boxed(),
        })
    }
}
