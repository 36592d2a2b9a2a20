//! Plain SymCaches, for tools that read no slices.
//!
//! A blob is read whole, its slices are joined, and the result is put beside it under a name that no record has: the sweep takes it
//! for an orphan, and removes it when its time has come. Until then whoever asks is led to it.

use std::time::Duration;

use super::explain::{Explained, with_alias};
use super::symbolicate::Symbolicator;
use super::{Error, Invocation};
use crate::cache::{
    Change, Decision, Entry, Item, ItemKey, Kind, ModuleKey, Policy, Ready, Sought, decide,
};
use crate::debuginfo::{OpenCache, SliceIndex};
use crate::domain::{ObjectId, Scope};
use crate::ports::{Consistency, Fault, FaultKind};

/// The largest SymCache that is joined, in bytes of its slices: as many again are in memory once it is.
pub const MAX_PLAIN_BYTES: u64 = 256 << 20;

/// How long a URL leads to a SymCache: what its owner removes is out of every answer in a minute.
const URL_LIFETIME: Duration = Duration::from_secs(60);

/// For so long whoever asks is led to the same one: together with the lifetime of a URL less than the sweep leaves an orphan.
const KEPT: Duration = Duration::from_secs(10 * 60);

/// What there is of a SymCache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plain {
    /// Where it can be had for a minute.
    At(String),
    /// It is not ready: what the records say instead.
    Nowhere(Vec<Explained>),
    /// It would have more than [`MAX_PLAIN_BYTES`]; how many.
    TooLarge(u64),
}

impl Symbolicator {
    /// Finds the best SymCache of a module that is ready in any source, and puts it where it can be had.
    ///
    /// # Errors
    ///
    /// A store that fails, or a blob that is not what its record says: a request that needs it has it built again.
    pub async fn plain_sym_cache(
        &self,
        invocation: &Invocation,
        module: &ObjectId,
        scope: &Scope,
    ) -> Result<Plain, Error> {
        let sources: Vec<_> = self.sources().into_iter().map(|key| (key, None)).collect();
        let modules = self.places(module, scope, &sources, Sought::new);
        let aliases = with_alias(module, &modules);
        let keys = modules.iter().map(|module| module.entry(Kind::SymCache));
        let keys = keys.chain(aliases.iter().map(ModuleKey::alias)).collect();
        let (mut entries, targets) = self.sym_caches(keys).await?;
        if !targets.is_empty() {
            let keys = targets.iter().map(|module| module.entry(Kind::SymCache));
            entries.extend(self.sym_caches(keys.collect()).await?.0);
        }
        let reader = self.settings.capabilities();
        let usable = entries.iter().filter_map(|entry| {
            match decide(Some(entry), &reader, invocation.now()) {
                Decision::Use(ready)
                | Decision::UseAndUpgrade(ready)
                | Decision::UseOlder(ready) => Some((entry, ready.clone())),
                _ => None,
            }
        });
        let Some((entry, ready)) = usable.min_by_key(|(_, ready)| ready.rank) else {
            let explained = self.explain_module(invocation, module, None, scope).await?;
            let of_kind = explained
                .into_iter()
                .filter(|record| record.kind == Kind::SymCache);
            return Ok(Plain::Nowhere(of_kind.collect()));
        };
        let period = invocation.now().as_secs() / KEPT.as_secs();
        let key = entry.module().entry(Kind::SymCache);
        let path = key.plain_blob(&ready.blob.path, period);
        // What is stored is compressed: where that alone is too much, nothing is read.
        if ready.blob.bytes > MAX_PLAIN_BYTES {
            return Ok(Plain::TooLarge(ready.blob.bytes));
        }
        let is_there = self.caches.list(&path, None).await?;
        if is_there.blobs.is_empty() {
            match self.joined(&ready).await? {
                JoinOutcome::Bytes(bytes) => self.caches.create(&path, bytes.into()).await?,
                JoinOutcome::TooLarge(bytes) => return Ok(Plain::TooLarge(bytes)),
            };
        }
        if invocation.now().since(entry.last_used_at()) >= Policy::TOUCH_INTERVAL {
            self.update(invocation)
                .apply(entry.module(), entry.kind(), &Change::Touch)
                .await?;
        }
        Ok(Plain::At(
            self.caches.presign(&path, URL_LIFETIME, None).await?,
        ))
    }

    /// Loads entries, and where aliases lead to.
    async fn sym_caches(&self, keys: Vec<ItemKey>) -> Result<(Vec<Entry>, Vec<ModuleKey>), Fault> {
        let (mut entries, mut targets) = (Vec::new(), Vec::new());
        let loaded = self.records.load(&keys, Consistency::Strong).await?;
        for stored in loaded.into_iter().flatten() {
            match stored.item {
                Item::Entry(entry) => entries.push(entry),
                Item::Alias(alias) => targets.push(alias.target),
                _ => {}
            }
        }
        Ok((entries, targets))
    }

    /// Reads a blob, and joins its slices.
    async fn joined(&self, ready: &Ready) -> Result<JoinOutcome, Error> {
        let blob = self.caches.get(&ready.blob.path, None).await?;
        let blob = blob.ok_or_else(|| unreadable("it is gone"))?;
        let Some(at) = ready.blob.index else {
            let open = OpenCache::open(Kind::SymCache, ready, blob).map_err(unreadable)?;
            let plain = open
                .plain_sym_cache()
                .ok_or_else(|| unreadable("it is of another kind"))?;
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
    Fault::new(FaultKind::Bug, "reading a SymCache")
        .caused_by(fault)
        .into()
}

enum JoinOutcome {
    Bytes(Vec<u8>),
    TooLarge(u64),
}
