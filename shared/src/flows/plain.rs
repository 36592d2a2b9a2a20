//! Serves plain SymCaches, for tools that cannot read slices.
//!
//! The blob is read whole, its slices are joined, and the result is stored under a path that no
//! record names. The pruner treats it as an orphan, and removes it after the minimum age of
//! orphans. Until then, further requests are redirected to the same blob.

use std::time::Duration;

use super::HttpService;
use super::lookup::{CacheFinder, CachePlace, Lookup};
use super::{Error, Invocation};
use crate::api::explained::Explained;
use crate::cache::{
    Criteria, Kind, Preference, Ready, SelectedState, ServerSearch, UnreadableBlobs, select,
};
use crate::debuginfo::{OpenCache, SliceIndex};
use crate::domain::{ObjectId, Scope};
use crate::ports::{Consistency, Fault, FaultKind};

/// The maximum size of a SymCache that is joined, in bytes of its slices. Joining takes twice this
/// much memory.
pub const MAX_PLAIN_BYTES: u64 = 256 << 20;

/// The lifetime of a presigned URL: a removed file disappears from all responses within a minute.
const URL_LIFETIME: Duration = Duration::from_secs(60);

/// How long requests are redirected to the same blob. Together with the lifetime of a URL, this is
/// shorter than the minimum age of orphans.
const KEPT: Duration = Duration::from_secs(10 * 60);

/// The result of a request for a plain SymCache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plain {
    /// The presigned URL, which is valid for a minute.
    At(String),
    /// It is not ready; the states of the entries.
    Nowhere(Vec<Explained>),
    /// It exceeds [`MAX_PLAIN_BYTES`]; its size.
    TooLarge(u64),
}

impl HttpService {
    /// Finds the best ready SymCache of a module in any source, and returns a URL for it.
    ///
    /// # Errors
    ///
    /// A store failed, or the blob does not match its record. A symbolication request that needs
    /// the blob has it rebuilt.
    pub async fn plain_sym_cache(
        &self,
        invocation: &Invocation,
        object: &ObjectId,
        scope: &Scope,
    ) -> Result<Plain, Error> {
        let finder = CacheFinder::without_memory(self, invocation);
        let place = |module| CachePlace::of(object, module, Kind::SymCache).without_presence();
        let modules = finder.places(object, scope, &finder.all_sources(), ServerSearch::new);
        let mut lookup = Lookup::of(modules.into_iter().map(place).collect());
        let criteria = Criteria {
            capabilities: &self.settings.capabilities(),
            preference: Preference::BestDif,
            unreadable: &UnreadableBlobs::default(),
            may_wait: false,
            now: invocation.now(),
        };
        let lookups = &mut [&mut lookup];
        let items = finder.load(lookups, &criteria, Consistency::Strong).await?;
        let best = select(&lookup.states(&items, criteria.now), &criteria).best;
        let Some(SelectedState { entry, ready, .. }) = best else {
            let explained = self.explain_module(invocation, object, None, scope).await?;
            let of_kind = explained
                .into_iter()
                .filter(|record| record.kind == Kind::SymCache);
            return Ok(Plain::Nowhere(of_kind.collect()));
        };
        let period = invocation.now().as_secs() / KEPT.as_secs();
        let key = entry.module().entry(Kind::SymCache);
        let path = key.plain_blob(&ready.blob.path, period);
        // The stored size is the compressed size. If it exceeds the limit, so does the content.
        if ready.blob.bytes > MAX_PLAIN_BYTES {
            return Ok(Plain::TooLarge(ready.blob.bytes));
        }
        let is_there = self.caches.list(&path, None).await?;
        if is_there.blobs.is_empty() {
            match self.joined(ready).await? {
                JoinOutcome::Bytes(bytes) => self.caches.create(&path, bytes.into()).await?,
                JoinOutcome::TooLarge(bytes) => return Ok(Plain::TooLarge(bytes)),
            };
        }
        finder.touch_all(vec![entry]).await;
        Ok(Plain::At(
            self.caches.presign(&path, URL_LIFETIME, None).await?,
        ))
    }

    /// Reads a blob, and joins its slices.
    async fn joined(&self, ready: &Ready) -> Result<JoinOutcome, Error> {
        let blob = self.caches.get(&ready.blob.path, None).await?;
        let blob = blob.ok_or_else(|| unreadable("the blob does not exist"))?;
        let Some(at) = ready.blob.index else {
            let open = OpenCache::open(Kind::SymCache, ready, blob).map_err(unreadable)?;
            let plain = open
                .plain_sym_cache()
                .ok_or_else(|| unreadable("the blob is not a SymCache"))?;
            return Ok(JoinOutcome::Bytes(plain.to_vec()));
        };
        let bytes = usize::try_from(at.offset)
            .ok()
            .and_then(|at| blob.get(at..));
        let index = SliceIndex::open(Kind::SymCache, ready, bytes.unwrap_or_default());
        let index = index.map_err(unreadable)?;
        match index.raw_bytes() {
            ..=MAX_PLAIN_BYTES => Ok(JoinOutcome::Bytes(index.join(&blob).map_err(unreadable)?)),
            bytes => Ok(JoinOutcome::TooLarge(bytes)),
        }
    }
}

fn unreadable(fault: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    let context =
        "reading a SymCache (POST /symbolicate of an address in the module has it rebuilt)";
    Fault::new(FaultKind::Corrupt, context)
        .caused_by(fault)
        .into()
}

enum JoinOutcome {
    Bytes(Vec<u8>),
    TooLarge(u64),
}
