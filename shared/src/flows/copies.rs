//! Our copies of DIFs from symbol servers: made while a DIF is fetched, read instead of fetching it again.
//!
//! 1. *Make*: the bytes go into parts while they arrive, each sealed and created side by side with the download. When the DIF has
//!    turned out to be of the module that was sought, the item that names the parts is written: the commit point. Parts
//!    without an item are orphans for `prune`.
//! 2. *Read*: the parts are read side by side into scratch space. A copy that cannot be read whole is forgotten, and its DIF is
//!    fetched again.
//!
//! A copy saves time and a source's patience, and nothing depends on it: what goes wrong here is logged and stops no build.

use bytes::{Bytes, BytesMut};
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::mpsc;

use super::Update;
use crate::cache::{Dif, DifCopy, Item, ItemKey, Policy, Token};
use crate::debuginfo::{encode_chunk, open_chunk};
use crate::ports::{BlobStore, Deriver, Fault, FaultKind, ParseError, Scratch};

/// Bytes of a DIF in each part of its copy.
const CHUNK_BYTES: u64 = 8 << 20;

/// Parts that are sealed or read at a time.
const PARTS_IN_FLIGHT: usize = 3;

/// The parts of a copy whose item is not written yet.
#[derive(Debug)]
pub(super) struct StoredChunks {
    token: Token,
    bytes: u64,
}

/// Where a copy of a DIF goes.
#[derive(Clone, Debug)]
pub(super) struct Destination<'a> {
    /// The bucket of derived caches.
    pub(super) caches: &'a dyn BlobStore,
    /// The key of the copy.
    pub(super) key: ItemKey,
    /// What tells its blobs from those of every other copy.
    pub(super) token: Token,
}

impl Destination<'_> {
    /// Makes the parts of what is received, until the sender is dropped; `None` where a part could not be stored.
    pub(super) async fn receive(self, received: mpsc::Receiver<Bytes>) -> Option<StoredChunks> {
        let chunks = stream::unfold((received, BytesMut::new()), next_chunk);
        let stored = chunks
            .enumerate()
            .map(|(number, chunk)| self.store(number as u64, chunk))
            .buffer_unordered(PARTS_IN_FLIGHT)
            .try_fold(0, |sum, bytes| async move { Ok(sum + bytes) });
        match stored.await {
            Ok(bytes) => Some(StoredChunks {
                token: self.token.clone(),
                bytes,
            }),
            Err(error) => {
                tracing::warn!(%error, "could not keep a copy of a file");
                None
            }
        }
    }

    async fn store(&self, number: u64, chunk: Bytes) -> Result<u64, Fault> {
        let encoded = compute(move || encode_chunk(&chunk)).await?;
        let bytes = encoded.len() as u64;
        let path = self.key.chunk(&self.token, number);
        self.caches.create(&path, encoded.into()).await?;
        Ok(bytes)
    }
}

/// Returns the bytes of the next part, and what is left to receive.
async fn next_chunk(
    (mut received, mut rest): (mpsc::Receiver<Bytes>, BytesMut),
) -> Option<(Bytes, (mpsc::Receiver<Bytes>, BytesMut))> {
    let chunk_bytes = usize::try_from(CHUNK_BYTES).unwrap_or(usize::MAX);
    while rest.len() < chunk_bytes {
        match received.recv().await {
            Some(bytes) => rest.extend_from_slice(&bytes),
            None => break,
        }
    }
    let chunk = rest.split_to(rest.len().min(chunk_bytes)).freeze();
    (!chunk.is_empty()).then_some((chunk, (received, rest)))
}

/// Writes the item that names the parts of a copy.
pub(super) async fn keep(update: Update<'_>, dif: &Dif, chunks: StoredChunks) {
    let copy = DifCopy {
        dif: dif.clone(),
        token: chunks.token,
        chunk_bytes: CHUNK_BYTES,
        bytes: chunks.bytes,
        last_used_at: update.invocation.now(),
    };
    let location = &copy.dif.file.location;
    let key = copy.key();
    if let Err(error) = update.put(&key, Item::Copy(copy.clone()), |_| false).await {
        tracing::warn!(%location, %error, "could not keep a copy of a file");
    }
}

/// Reads a copy into scratch space, and notes its use; `None` where it cannot be read, and is forgotten.
///
/// # Errors
///
/// [`ParseError`] where there is no room for the DIF.
pub(super) async fn read(
    update: Update<'_>,
    caches: &dyn BlobStore,
    deriver: &dyn Deriver,
    copy: &DifCopy,
) -> Result<Option<Box<dyn Scratch>>, ParseError> {
    let mut scratch = deriver.reserve(copy.dif.size)?;
    let location = &copy.dif.file.location;
    if let Err(error) = read_chunks(caches, copy, &mut *scratch).await {
        tracing::warn!(%location, %error, "a copy of a file cannot be read: it is fetched again");
        let is_it =
            |item: &Item| matches!(item, Item::Copy(present) if present.token == copy.token);
        if let Err(error) = update.remove(&copy.key(), is_it).await {
            tracing::warn!(%location, %error, "could not forget a copy of a file");
        }
        return Ok(None);
    }
    if let Err(error) = note_use(update, copy).await {
        tracing::warn!(%location, %error, "could not note the use of a copy");
    }
    Ok(Some(scratch))
}

async fn read_chunks(
    caches: &dyn BlobStore,
    copy: &DifCopy,
    scratch: &mut dyn Scratch,
) -> Result<(), Fault> {
    let mut chunks = stream::iter(copy.chunks())
        .map(|(offset, length, path)| async move {
            let corrupt = || Fault::new(FaultKind::Corrupt, format!("reading {path}"));
            let encoded = caches.get(&path, None).await?;
            let encoded = encoded.ok_or_else(|| corrupt().caused_by("it is gone"))?;
            let chunk = compute(move || open_chunk(&encoded, length)).await;
            Ok::<_, Fault>((offset, chunk.map_err(|error| corrupt().caused_by(error))?))
        })
        .buffer_unordered(PARTS_IN_FLIGHT);
    while let Some((offset, chunk)) = chunks.try_next().await? {
        scratch.write_at(offset, chunk.into()).await?;
    }
    Ok(())
}

/// Notes that a copy was derived from, unless that was noted not long ago.
async fn note_use(update: Update<'_>, copy: &DifCopy) -> Result<(), Fault> {
    let now = update.invocation.now();
    if now.since(copy.last_used_at) < Policy::TOUCH_INTERVAL {
        return Ok(());
    }
    let used = |present: Option<&Item>| match present {
        Some(Item::Copy(present)) if present.token == copy.token => Some(Item::Copy(DifCopy {
            last_used_at: now.max(present.last_used_at),
            ..present.clone()
        })),
        _ => None,
    };
    update.put_with(&copy.key(), used).await?;
    Ok(())
}

/// Does work that takes a processor, beside what waits for the network.
async fn compute<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, Fault>
where
    T: Send + 'static,
    E: std::error::Error + Send + Sync + 'static,
{
    let bug = || Fault::new(FaultKind::Bug, "encoding or decoding a chunk of a copy");
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| bug().caused_by(error)),
        Err(error) => Err(bug().caused_by(error)),
    }
}
