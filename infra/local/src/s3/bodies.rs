//! The files that contain the objects' bytes. A file is written once under a random name, never
//! changed, and removed when no row refers to it.
//!
//! - A body is staged, its checksums are verified, and only then is it renamed to its final path.
//! - A row refers to a file only after the rename; a file is unlinked only after its row is
//!   deleted. A stack that is killed in between leaves files without a row: [`Bodies::sweep`]
//!   removes them at the next start.
//! - An object may consist of several files, the parts of its multipart upload: completing it
//!   copies no bytes.
//! - A file that is being read is pinned: its removal is delayed until the reader ends.
//! - Files are not synced: they survive a crash of the process, but not of the machine.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use md5::{Digest, Md5};
use s3s::dto::StreamingBlob;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::checksums::{Checksums, Claims};
use super::failure::{Failure, body_failure};

/// The number of chunks that may wait between the network and the disk.
const CHUNKS_IN_FLIGHT: usize = 4;

/// The number of bytes that one read from the disk returns.
const READ_BYTES: u64 = 256 * 1024;

/// A range up to this size is read completely before the response begins.
const SMALL_BYTES: u64 = 1024 * 1024;

/// One file of a body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Segment {
    /// The file's name; see [`Bodies`].
    pub(crate) file: String,
    /// Its length in bytes.
    pub(crate) size: u64,
}

/// The folder of bodies. Clones share the pins.
#[derive(Clone, Debug)]
pub(crate) struct Bodies {
    root: Arc<Path>,
    pins: Arc<Mutex<Pins>>,
}

#[derive(Debug, Default)]
struct Pins {
    readers: HashMap<String, usize>,
    doomed: HashSet<String>,
}

impl Bodies {
    /// Opens the folder, creates it if it does not exist, and removes staged files of an earlier
    /// run.
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        let staged = root.join("staged");
        match std::fs::remove_dir_all(&staged) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::fs::create_dir_all(&staged)?;
        for shard in 0..=u8::MAX {
            std::fs::create_dir_all(root.join("bodies").join(format!("{shard:02x}")))?;
        }
        Ok(Self {
            root: root.into(),
            pins: Arc::default(),
        })
    }

    /// Writes a body to a new file, verifies it against `claims`, and moves it to its final path.
    /// The file is removed again if the result is dropped before [`NewBody::keep`].
    pub(crate) async fn write<S, E>(
        &self,
        mut stream: S,
        claims: &mut Claims,
        length: Option<u64>,
        limit: u64,
    ) -> Result<NewBody, Failure>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let file = new_name();
        let staged = Staged {
            path: self.root.join("staged").join(&file),
        };
        let mut hasher = claims.hasher();
        let (chunks, mut queue) = mpsc::channel::<Bytes>(CHUNKS_IN_FLIGHT);
        let writer = tokio::task::spawn_blocking(move || {
            let mut output = File::create(&staged.path)?;
            let mut md5 = Md5::new();
            let mut size = 0_u64;
            while let Some(chunk) = queue.blocking_recv() {
                output.write_all(&chunk)?;
                md5.update(&chunk);
                hasher.update(&chunk);
                size += chunk.len() as u64;
            }
            Ok::<_, io::Error>((staged, size, md5.finalize(), hasher.finish()))
        });

        let mut sent = 0_u64;
        let mut interrupted = None;
        while let Some(chunk) = stream.next().await {
            match chunk {
                Ok(chunk) => {
                    sent += chunk.len() as u64;
                    if sent > limit {
                        interrupted = Some(Failure::too_large(limit));
                        break;
                    }
                    // The writer ends early only if it failed; its error is returned below.
                    if chunks.send(chunk).await.is_err() {
                        break;
                    }
                }
                Err(error) => {
                    interrupted = Some(body_failure(error.into()));
                    break;
                }
            }
        }
        drop(chunks);
        let (staged, size, md5, computed) = writer.await.map_err(Failure::internal)??;
        if let Some(failure) = interrupted {
            return Err(failure);
        }
        if length.is_some_and(|length| length != size) {
            return Err(Failure::incomplete(length.unwrap_or(0), size));
        }
        claims.read_trailers();
        let checksums = claims.verify(&md5, computed)?;

        let target = self.path(&file);
        tokio::fs::rename(&staged.path, &target).await?;
        Ok(NewBody {
            bodies: self.clone(),
            file,
            size,
            md5: md5.into(),
            checksums,
            kept: false,
        })
    }

    /// Creates hard links to the files of a body, for a copy with a lifetime of its own.
    pub(crate) async fn link_all(&self, segments: &[Segment]) -> io::Result<Vec<NewLink>> {
        let mut links = Vec::with_capacity(segments.len());
        for segment in segments {
            let file = new_name();
            tokio::fs::hard_link(self.path(&segment.file), self.path(&file)).await?;
            links.push(NewLink {
                bodies: self.clone(),
                file,
                size: segment.size,
                kept: false,
            });
        }
        Ok(links)
    }

    /// Protects the files from removal until the pin is dropped.
    pub(crate) fn pin(&self, segments: &[Segment]) -> Pin {
        let mut pins = self.pins();
        for segment in segments {
            *pins.readers.entry(segment.file.clone()).or_default() += 1;
        }
        Pin {
            bodies: self.clone(),
            files: segments
                .iter()
                .map(|segment| segment.file.clone())
                .collect(),
        }
    }

    /// Returns the bytes of `range` of the body that consists of `segments`, which `pin` protects.
    ///
    /// The first file of the range is opened before this returns: a file that has just been removed
    /// is an error of kind `NotFound` here, not in the stream.
    pub(crate) async fn read(
        &self,
        segments: &[Segment],
        range: Range<u64>,
        pin: Pin,
    ) -> io::Result<StreamingBlob> {
        let mut pieces = self.pieces(segments, &range);
        if range.end - range.start <= SMALL_BYTES {
            let bytes = tokio::task::spawn_blocking(move || {
                let _pin = pin;
                read_small(&pieces)
            })
            .await
            .map_err(io::Error::other)??;
            return Ok(StreamingBlob::from(s3s::Body::from(bytes)));
        }
        let current = match pieces.pop_front() {
            Some(piece) => Some(open(piece).await?),
            None => None,
        };
        let reading = Reading {
            pieces,
            current,
            _pin: pin,
        };
        let stream = futures::stream::try_unfold(reading, |mut reading| async move {
            loop {
                let Some((file, left)) = &mut reading.current else {
                    let Some(piece) = reading.pieces.pop_front() else {
                        return Ok(None);
                    };
                    reading.current = Some(open(piece).await?);
                    continue;
                };
                if *left == 0 {
                    reading.current = None;
                    continue;
                }
                let wanted = (*left).min(READ_BYTES);
                let mut buffer =
                    BytesMut::with_capacity(usize::try_from(wanted).unwrap_or(usize::MAX));
                let count = file.take(wanted).read_buf(&mut buffer).await?;
                if count == 0 {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
                }
                *left -= count as u64;
                return Ok(Some((buffer.freeze(), reading)));
            }
        });
        Ok(StreamingBlob::wrap(stream))
    }

    /// Removes files whose rows are deleted. A file that is being read is removed after its last
    /// reader.
    pub(crate) fn remove(&self, files: impl IntoIterator<Item = String>) {
        for file in files {
            let mut pins = self.pins();
            if pins.readers.contains_key(&file) {
                pins.doomed.insert(file);
            } else {
                drop(pins);
                self.unlink(&file);
            }
        }
    }

    /// Removes every file that is not in `live`, and returns the number of removed files. The
    /// caller ensures that nothing else uses the folder.
    pub(crate) fn sweep(&self, live: &HashSet<String>) -> io::Result<usize> {
        let mut removed = 0;
        for shard in std::fs::read_dir(self.root.join("bodies"))? {
            for entry in std::fs::read_dir(shard?.path())? {
                let entry = entry?;
                let is_live = entry
                    .file_name()
                    .to_str()
                    .is_some_and(|name| live.contains(name));
                if !is_live {
                    std::fs::remove_file(entry.path())?;
                    removed += 1;
                }
            }
        }
        Ok(removed)
    }

    fn pieces(&self, segments: &[Segment], range: &Range<u64>) -> VecDeque<Piece> {
        let mut pieces = VecDeque::new();
        let mut start = 0;
        for segment in segments {
            let end = start + segment.size;
            let from = range.start.max(start);
            let to = range.end.min(end);
            if from < to {
                pieces.push_back(Piece {
                    path: self.path(&segment.file),
                    offset: from - start,
                    length: to - from,
                });
            }
            start = end;
        }
        pieces
    }

    fn path(&self, file: &str) -> PathBuf {
        let shard = file.get(..2).unwrap_or("00");
        self.root.join("bodies").join(shard).join(file)
    }

    fn pins(&self) -> MutexGuard<'_, Pins> {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unlink(&self, file: &str) {
        if let Err(error) = std::fs::remove_file(self.path(file))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(file, %error, "cannot remove unreferenced body; the next start will retry");
        }
    }
}

/// A body that no row refers to yet.
#[derive(Debug)]
pub(crate) struct NewBody {
    bodies: Bodies,
    /// The file's name.
    pub(crate) file: String,
    /// The number of bytes.
    pub(crate) size: u64,
    /// The MD5 of the bytes.
    pub(crate) md5: [u8; 16],
    /// The checksums that the request claimed or requested.
    pub(crate) checksums: Checksums,
    kept: bool,
}

impl NewBody {
    /// Keeps the file, after the transaction that refers to it is committed.
    pub(crate) fn keep(mut self) {
        self.kept = true;
    }

    /// Returns it as the only segment of a body.
    pub(crate) fn segment(&self) -> Segment {
        Segment {
            file: self.file.clone(),
            size: self.size,
        }
    }
}

impl Drop for NewBody {
    fn drop(&mut self) {
        if !self.kept {
            self.bodies.unlink(&self.file);
        }
    }
}

/// A hard link to a body's file that no row refers to yet.
#[derive(Debug)]
pub(crate) struct NewLink {
    bodies: Bodies,
    file: String,
    size: u64,
    kept: bool,
}

impl NewLink {
    /// Keeps the file, after the transaction that refers to it is committed.
    pub(crate) fn keep(mut self) {
        self.kept = true;
    }

    /// Returns it as a segment of a body.
    pub(crate) fn segment(&self) -> Segment {
        Segment {
            file: self.file.clone(),
            size: self.size,
        }
    }
}

impl Drop for NewLink {
    fn drop(&mut self) {
        if !self.kept {
            self.bodies.unlink(&self.file);
        }
    }
}

/// Protects files from removal while it exists.
#[derive(Debug)]
pub(crate) struct Pin {
    bodies: Bodies,
    files: Vec<String>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = self.bodies.pins();
        let mut unread = Vec::new();
        for file in &self.files {
            if let Some(readers) = pins.readers.get_mut(file) {
                *readers -= 1;
                if *readers == 0 {
                    pins.readers.remove(file);
                    if pins.doomed.remove(file) {
                        unread.push(file);
                    }
                }
            }
        }
        drop(pins);
        for file in unread {
            self.bodies.unlink(file);
        }
    }
}

/// A file that is being written. It is removed on drop, which has no effect after the rename.
struct Staged {
    path: PathBuf,
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove unfinished body");
        }
    }
}

struct Piece {
    path: PathBuf,
    offset: u64,
    length: u64,
}

struct Reading {
    pieces: VecDeque<Piece>,
    current: Option<(tokio::fs::File, u64)>,
    _pin: Pin,
}

async fn open(piece: Piece) -> io::Result<(tokio::fs::File, u64)> {
    let mut file = tokio::fs::File::open(&piece.path).await?;
    file.seek(SeekFrom::Start(piece.offset)).await?;
    Ok((file, piece.length))
}

fn read_small(pieces: &VecDeque<Piece>) -> io::Result<Bytes> {
    let total: u64 = pieces.iter().map(|piece| piece.length).sum();
    let mut bytes = Vec::with_capacity(usize::try_from(total).unwrap_or(0));
    for piece in pieces {
        let mut file = File::open(&piece.path)?;
        file.seek(SeekFrom::Start(piece.offset))?;
        let count = file.take(piece.length).read_to_end(&mut bytes)?;
        if count as u64 != piece.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(bytes.into())
}

fn new_name() -> String {
    Uuid::new_v4().simple().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn body(bodies: &Bodies, bytes: &'static [u8]) -> NewBody {
        let stream = futures::stream::iter([Ok::<_, io::Error>(Bytes::from_static(bytes))]);
        bodies
            .write(stream, &mut Claims::default(), None, u64::MAX)
            .await
            .unwrap()
    }

    async fn collect(mut blob: StreamingBlob) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(chunk) = blob.next().await {
            all.extend_from_slice(&chunk.unwrap());
        }
        all
    }

    #[tokio::test]
    async fn a_range_over_several_files_reads_each_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let bodies = Bodies::open(folder.path()).unwrap();
        let segments = [
            body(&bodies, b"abc").await,
            body(&bodies, b"").await,
            body(&bodies, b"defg").await,
        ]
        .map(|new| {
            let segment = new.segment();
            new.keep();
            segment
        });
        let read = bodies
            .read(&segments, 2..6, bodies.pin(&segments))
            .await
            .unwrap();
        assert_eq!(collect(read).await, b"cdef");
    }

    #[tokio::test]
    async fn a_body_that_is_being_read_is_removed_after_its_reader() {
        let folder = tempfile::tempdir().unwrap();
        let bodies = Bodies::open(folder.path()).unwrap();
        let new = body(&bodies, b"abc").await;
        let segment = new.segment();
        new.keep();
        let pin = bodies.pin(std::slice::from_ref(&segment));
        bodies.remove([segment.file.clone()]);
        assert!(bodies.path(&segment.file).exists());
        drop(pin);
        assert!(!bodies.path(&segment.file).exists());
    }

    #[tokio::test]
    async fn a_body_that_is_not_kept_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let bodies = Bodies::open(folder.path()).unwrap();
        let new = body(&bodies, b"abc").await;
        let path = bodies.path(&new.file);
        assert!(path.exists());
        drop(new);
        assert!(!path.exists());
        assert_eq!(
            std::fs::read_dir(folder.path().join("staged"))
                .unwrap()
                .count(),
            0
        );
    }

    #[tokio::test]
    async fn the_sweep_removes_only_files_that_no_row_names() {
        let folder = tempfile::tempdir().unwrap();
        let bodies = Bodies::open(folder.path()).unwrap();
        let (live, dead) = (body(&bodies, b"live").await, body(&bodies, b"dead").await);
        let (live, dead) = (
            {
                let segment = live.segment();
                live.keep();
                segment
            },
            {
                let segment = dead.segment();
                dead.keep();
                segment
            },
        );
        assert_eq!(
            bodies.sweep(&HashSet::from([live.file.clone()])).unwrap(),
            1
        );
        assert!(bodies.path(&live.file).exists());
        assert!(!bodies.path(&dead.file).exists());
    }
}
