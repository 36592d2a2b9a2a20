//! DIFs of one source, in memory.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use super::Calls;
use super::blobs::etag;
use crate::domain::{Cause, Location, Missing};
use crate::ports::{DifError, DifReader, DifStat, StoreError, StoreErrorKind};

/// DIFs of one source, in memory. It prints as its whole state.
#[derive(Debug, Default)]
pub struct MemoryDifs {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    difs: BTreeMap<Location, Bytes>,
    calls: Calls,
}

impl MemoryDifs {
    /// Returns an empty source.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a DIF there, whatever was there before; returns the etag of its bytes.
    pub fn put(&self, location: &Location, body: impl Into<Bytes>) -> String {
        let body = body.into();
        let etag = etag(&body);
        self.lock().difs.insert(location.clone(), body);
        etag
    }

    /// Takes a DIF away.
    pub fn remove(&self, location: &Location) {
        self.lock().difs.remove(location);
    }

    /// Returns the whole state as readable text.
    pub fn state(&self) -> String {
        self.to_string()
    }

    /// Returns how often each operation was called.
    pub fn calls(&self) -> Calls {
        self.lock().calls.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, operation: &'static str, location: &Location) -> Result<Bytes, DifError> {
        let mut state = self.lock();
        state.calls.count(operation);
        let found = state.difs.get(location).cloned();
        found.ok_or_else(|| {
            DifError::Missing(Missing::new(
                Cause::NotFound,
                format!("{location} is not in the source"),
            ))
        })
    }
}

#[async_trait]
impl DifReader for MemoryDifs {
    async fn stat(&self, location: &Location) -> Result<DifStat, DifError> {
        let body = self.find("stat", location)?;
        Ok(DifStat {
            etag: etag(&body),
            size: body.len() as u64,
        })
    }

    async fn read(
        &self,
        location: &Location,
        expected: &str,
        range: Range<u64>,
    ) -> Result<Bytes, DifError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let body = self.find("read", location)?;
        if etag(&body) != expected {
            return Err(DifError::Changed);
        }
        let bounds = usize::try_from(range.start)
            .ok()
            .zip(usize::try_from(range.end).ok());
        match bounds.filter(|(_, end)| *end <= body.len()) {
            Some((start, end)) => Ok(body.slice(start..end)),
            None => {
                let error = StoreError::new(StoreErrorKind::Bug, format!("reading {location}"));
                Err(error
                    .caused_by(format!("the range {range:?} ends beyond the file"))
                    .into())
            }
        }
    }
}

impl fmt::Display for MemoryDifs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        state.difs.iter().try_for_each(|(location, body)| {
            writeln!(f, "{location} ({} bytes, etag {})", body.len(), etag(body))
        })
    }
}
