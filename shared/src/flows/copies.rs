//! Copies of DIFs from symbol servers: written while a DIF is fetched, and read instead of fetching
//! it again.
//!
//! 1. *Write*: the DIF is divided into chunks while it arrives. The chunks are encoded and created
//!    in parallel with the download. When the DIF has proved to belong to the module that is
//!    sought, the item that names the chunks is written: the commit point. Chunks without an item
//!    are orphans, which `prune` removes.
//! 2. *Read*: the chunks are read into scratch space in parallel. A copy that cannot be read
//!    completely is removed, and its DIF is fetched again.
//!
//! A copy only saves time and calls to the source. Failures here are logged and do not fail the
//! build.

use bytes::{Bytes, BytesMut};
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::mpsc;

use super::RecordWriter;
use super::update::KnownItem;
use crate::cache::{Dif, DifCopy, Item, ItemKey, Policy, Token};
use crate::debuginfo::{encode_chunk, open_chunk};
use crate::ports::{BlobStore, Deriver, Fault, FaultKind, ParseError, Scratch};

/// The bytes of a DIF in each chunk of its copy.
const CHUNK_BYTES: u64 = 8 << 20;

/// A chunk of at most this size is encoded within a millisecond.
const SMALL_CHUNK: u64 = 64 << 10;

/// The maximum number of chunks that are encoded or read at a time.
const CHUNKS_IN_FLIGHT: usize = 3;

/// The chunks of a copy whose item is not written yet.
#[derive(Debug)]
pub(super) struct StoredChunks {
    token: Token,
    bytes: u64,
}

/// Where a copy of a DIF is written.
#[derive(Clone, Debug)]
pub(super) struct Destination<'a> {
    /// The bucket of derived caches.
    pub(super) caches: &'a dyn BlobStore,
    /// The key of the copy.
    pub(super) key: ItemKey,
    /// The unique token in the paths of its chunks.
    pub(super) token: Token,
}

impl Destination<'_> {
    /// Stores what is received as chunks, until the sender is dropped; `None` if a chunk could not
    /// be stored.
    pub(super) async fn receive(self, received: mpsc::Receiver<Bytes>) -> Option<StoredChunks> {
        let chunks = stream::unfold((received, BytesMut::new()), next_chunk);
        let stored = chunks
            .enumerate()
            .map(|(number, chunk)| self.store(number as u64, chunk))
            .buffer_unordered(CHUNKS_IN_FLIGHT)
            .try_fold(0, |sum, bytes| async move { Ok(sum + bytes) });
        match stored.await {
            Ok(bytes) => Some(StoredChunks {
                token: self.token.clone(),
                bytes,
            }),
            Err(error) => {
                tracing::warn!(%error, "cannot store chunk; no copy is made");
                None
            }
        }
    }

    async fn store(&self, number: u64, chunk: Bytes) -> Result<u64, Fault> {
        let encoded = compute(chunk.len() as u64, move || encode_chunk(&chunk)).await?;
        let bytes = encoded.len() as u64;
        let path = self.key.chunk(&self.token, number);
        self.caches.create(&path, encoded.into()).await?;
        Ok(bytes)
    }
}

/// Returns the bytes of the next chunk, and the state that remains.
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

/// Writes the item that names the chunks of a copy.
pub(super) async fn keep(writer: RecordWriter<'_>, dif: &Dif, chunks: StoredChunks) {
    let copy = DifCopy {
        dif: dif.clone(),
        token: chunks.token,
        chunk_bytes: CHUNK_BYTES,
        bytes: chunks.bytes,
        last_used_at: writer.invocation.now(),
    };
    let location = &copy.dif.file.location;
    let key = copy.key();
    // A file without a copy is the usual case. A former copy is returned by the write that fails.
    let expected = KnownItem::Read(None);
    let written = writer.write(&key, expected, |_| Some(Item::Copy(copy.clone())));
    if let Err(error) = written.await {
        tracing::warn!(%location, %error, "cannot store copy");
    }
}

/// Reads a copy into new scratch space, and records its use. A copy that is damaged or incomplete
/// is removed: then returns `None`.
///
/// # Errors
///
/// [`ParseError`] if the scratch space is not sufficient for the DIF, or a store failed.
pub(super) async fn read(
    writer: RecordWriter<'_>,
    caches: &dyn BlobStore,
    deriver: &dyn Deriver,
    copy: &DifCopy,
) -> Result<Option<Box<dyn Scratch>>, ParseError> {
    let mut scratch = deriver.reserve(copy.dif.size)?;
    let is_read = read_into(writer, caches, copy, (&mut *scratch, 0)).await?;
    Ok(is_read.then_some(scratch))
}

/// Reads a copy into scratch space from an offset on, and records its use. A copy that is damaged
/// or incomplete is removed: then returns `false`.
///
/// A copy that could not be read for another reason stays: its server may no longer have the file.
pub(super) async fn read_into(
    writer: RecordWriter<'_>,
    caches: &dyn BlobStore,
    copy: &DifCopy,
    place: (&mut dyn Scratch, u64),
) -> Result<bool, Fault> {
    let location = &copy.dif.file.location;
    if let Err(error) = read_chunks(caches, copy, place).await {
        if error.kind() != FaultKind::Corrupt {
            return Err(error);
        }
        tracing::warn!(%location, %error, "cannot read copy; fetching the file again");
        let is_it =
            |item: &Item| matches!(item, Item::Copy(present) if present.token == copy.token);
        if let Err(error) = writer.remove(&copy.key(), is_it).await {
            tracing::warn!(%location, %error, "cannot remove copy");
        }
        return Ok(false);
    }
    if let Err(error) = note_use(writer, copy).await {
        tracing::warn!(%location, %error, "cannot record the use of a copy");
    }
    Ok(true)
}

async fn read_chunks(
    caches: &dyn BlobStore,
    copy: &DifCopy,
    (scratch, begin): (&mut dyn Scratch, u64),
) -> Result<(), Fault> {
    let mut chunks = stream::iter(copy.chunks())
        .map(|(offset, length, path)| async move {
            let corrupt = || Fault::new(FaultKind::Corrupt, format!("reading {path}"));
            let encoded = caches.get(&path, None).await?;
            let encoded = encoded.ok_or_else(|| corrupt().caused_by("the chunk does not exist"))?;
            let chunk = compute(length, move || open_chunk(&encoded, length)).await;
            Ok::<_, Fault>((offset, chunk.map_err(|error| corrupt().caused_by(error))?))
        })
        .buffer_unordered(CHUNKS_IN_FLIGHT);
    while let Some((offset, chunk)) = chunks.try_next().await? {
        scratch.write_at(begin + offset, chunk.into()).await?;
    }
    Ok(())
}

/// Records that a copy was used, at most hourly.
async fn note_use(writer: RecordWriter<'_>, copy: &DifCopy) -> Result<(), Fault> {
    let now = writer.invocation.now();
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
    writer.put_with(&copy.key(), used).await?;
    Ok(())
}

/// Runs CPU-bound work on a chunk of this many bytes. A large one is left to another thread, so
/// that it does not block network I/O.
async fn compute<T, E>(
    bytes: u64,
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, Fault>
where
    T: Send + 'static,
    E: std::error::Error + Send + Sync + 'static,
{
    let bug = || Fault::new(FaultKind::Bug, "encoding or decoding a chunk of a copy");
    if bytes <= SMALL_CHUNK {
        return work().map_err(|error| bug().caused_by(error));
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| bug().caused_by(error)),
        Err(error) => Err(bug().caused_by(error)),
    }
}
