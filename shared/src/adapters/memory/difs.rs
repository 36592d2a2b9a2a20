//! DIFs of one source, in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::{Bound, Range};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::Calls;
use super::blobs::etag;
use crate::domain::{Cause, Location, Missing, SignedPut, Timestamp};
use crate::ports::{
    Created, DifError, DifListing, DifPage, DifReader, DifStat, Fault, FaultKind, ListedDif,
    UploadGate, UploadInParts, UploadPart,
};

/// DIFs per page of a listing, as in S3.
const PAGE_DIFS: usize = 1000;

/// DIFs of one source, in memory. `Display` prints the whole state.
#[derive(Debug, Default)]
pub struct MemoryDifs {
    state: Mutex<DifState>,
}

#[derive(Debug, Default)]
struct DifState {
    difs: BTreeMap<Location, StoredDif>,
    /// The uploads in parts, each with its id and its parts by number.
    in_parts: BTreeMap<Location, (String, BTreeMap<u32, Bytes>)>,
    /// The DIFs that exist, and cannot be read.
    archived: BTreeSet<Location>,
    now: Timestamp,
    calls: Calls,
}

#[derive(Debug)]
struct StoredDif {
    body: Bytes,
    /// The etag of the body, which every call needs.
    etag: String,
    modified_at: Timestamp,
}

impl MemoryDifs {
    /// Returns an empty source whose clock is at the epoch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the modification time of DIFs that are put from now on.
    pub fn set_now(&self, now: Timestamp) {
        self.lock().now = now;
    }

    /// Puts a DIF, and replaces an existing one; returns the etag of its bytes.
    pub fn put(&self, location: &Location, body: impl Into<Bytes>) -> String {
        let body = body.into();
        let etag = etag(&body);
        let mut state = self.lock();
        let dif = StoredDif {
            body,
            etag: etag.clone(),
            modified_at: state.now,
        };
        state.difs.insert(location.clone(), dif);
        state.archived.remove(location);
        etag
    }

    /// Archives a DIF, as a lifecycle rule of its bucket does. It can be read again after it was
    /// put again.
    pub fn archive(&self, location: &Location) {
        self.lock().archived.insert(location.clone());
    }

    /// Stores a part of an upload that was begun, as a client does by the request that was signed.
    pub fn put_part(&self, location: &Location, number: u32, body: impl Into<Bytes>) {
        if let Some((_, parts)) = self.lock().in_parts.get_mut(location) {
            parts.insert(number, body.into());
        }
    }

    /// Removes a DIF.
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

    fn lock(&self) -> MutexGuard<'_, DifState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bytes of a DIF, and their etag.
    fn find(
        &self,
        operation: &'static str,
        location: &Location,
    ) -> Result<(Bytes, String), DifError> {
        let mut state = self.lock();
        state.calls.count(operation);
        let found = state.difs.get(location);
        let found = found.map(|dif| (dif.body.clone(), dif.etag.clone()));
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
        let (body, etag) = self.find("stat", location)?;
        Ok(DifStat {
            etag,
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
        let (body, etag) = self.find("read", location)?;
        if etag != expected {
            return Err(DifError::Changed);
        }
        if self.lock().archived.contains(location) {
            let detail = format!("{location} is archived");
            return Err(DifError::Missing(Missing::new(
                Cause::PermissionDenied,
                detail,
            )));
        }
        let bounds = usize::try_from(range.start)
            .ok()
            .zip(usize::try_from(range.end).ok());
        match bounds.filter(|(_, end)| *end <= body.len()) {
            Some((start, end)) => Ok(body.slice(start..end)),
            None => {
                let error = Fault::new(FaultKind::Bug, format!("reading {location}"));
                Err(error
                    .caused_by(format!("the range {range:?} ends beyond the file"))
                    .into())
            }
        }
    }
}

#[async_trait]
impl DifListing for MemoryDifs {
    async fn list(&self, after: Option<&Location>) -> Result<DifPage, Fault> {
        let mut state = self.lock();
        state.calls.count("list");
        let behind = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut left = state.difs.range::<Location, _>((behind, Bound::Unbounded));
        let difs = left
            .by_ref()
            .take(PAGE_DIFS)
            .map(|(location, dif)| ListedDif {
                location: location.clone(),
                etag: dif.etag.clone(),
                modified_at: dif.modified_at,
            })
            .collect();
        Ok(DifPage {
            difs,
            more: left.next().is_some(),
        })
    }
}

#[async_trait]
impl UploadGate for MemoryDifs {
    async fn sign_create(
        &self,
        location: &Location,
        bytes: u64,
        lifetime: Duration,
    ) -> Result<SignedPut, Fault> {
        Ok(signed(format!("memory:{location}"), bytes, lifetime))
    }

    async fn begin_parts(&self, location: &Location) -> Result<UploadInParts, Fault> {
        let mut state = self.lock();
        state.calls.count("begin_parts");
        let new_id = format!("upload {}", state.in_parts.len());
        let begun = state.in_parts.entry(location.clone());
        let (id, parts) = begun.or_insert_with(|| (new_id, BTreeMap::new()));
        let stored = parts.iter().map(|(number, body)| {
            let part = UploadPart {
                number: *number,
                bytes: body.len() as u64,
                sha256: Sha256::digest(body).into(),
            };
            (part, etag(body))
        });
        Ok(UploadInParts {
            location: location.clone(),
            id: id.clone(),
            stored: stored.collect(),
        })
    }

    async fn sign_part(
        &self,
        upload: &UploadInParts,
        part: &UploadPart,
        lifetime: Duration,
    ) -> Result<SignedPut, Fault> {
        let UploadInParts { location, id, .. } = upload;
        let url = format!("memory:{location}?{id}#{}", part.number);
        Ok(signed(url, part.bytes, lifetime))
    }

    async fn join_parts(
        &self,
        upload: &UploadInParts,
        joined: &[UploadPart],
    ) -> Result<Created, Fault> {
        let body = {
            let mut state = self.lock();
            state.calls.count("join_parts");
            let parts = state.in_parts.remove(&upload.location);
            if state.difs.contains_key(&upload.location) {
                return Ok(Created::AlreadyThere);
            }
            let (_, parts) = parts.unwrap_or_default();
            let joined = joined.iter();
            let joined = joined.filter_map(|part| parts.get(&part.number));
            joined.flatten().copied().collect::<Vec<u8>>()
        };
        self.put(&upload.location, body);
        Ok(Created::New)
    }
}

fn signed(url: String, bytes: u64, lifetime: Duration) -> SignedPut {
    let headers = [
        ("content-length", bytes.to_string()),
        ("lifetime", lifetime.as_secs().to_string()),
    ];
    SignedPut {
        url,
        headers: headers.map(|(name, value)| (name.to_owned(), value)).into(),
    }
}

impl fmt::Display for MemoryDifs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        state
            .difs
            .iter()
            .try_for_each(|(location, StoredDif { body, etag, .. })| {
                writeln!(f, "{location} ({} bytes, etag {etag})", body.len())
            })
    }
}
