//! Scratch space: unnamed files under a byte budget that the whole process shares.
//!
//! This is the only code that touches the file system. A file has no name that outlives its
//! creation, so it is gone with the last process that holds it, however that process ends.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::RawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use rustix::fs::{Mode, OFlags};

use crate::domain::{Cause, Missing};
use crate::ports::{Fault, FaultKind, ParseError, Scratch};

/// Prefix of the names of folders, and of files for the moment between creation and unlinking,
/// where the file system does not support unnamed files.
const PREFIX: &str = "symdepot-scratch-";

/// A folder for scratch files, and a budget of bytes. Clones share both.
#[derive(Clone, Debug)]
pub struct ScratchSpace {
    folder: Arc<PathBuf>,
    budget: Budget,
}

impl ScratchSpace {
    /// Returns the scratch space in a folder, after removing what a killed process left there.
    pub fn new(folder: impl Into<PathBuf>, bytes: u64) -> Self {
        let space = Self {
            folder: Arc::new(folder.into()),
            budget: Budget::new(bytes),
        };
        space.clear();
        space
    }

    /// Removes leftover files; returns how many.
    pub fn clear(&self) -> usize {
        let Ok(entries) = std::fs::read_dir(&*self.folder) else {
            return 0;
        };
        let is_ours =
            |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with(PREFIX);
        // A folder in use is locked.
        let remove = |entry: &std::fs::DirEntry| {
            std::fs::remove_file(entry.path()).is_ok()
                || lock_folder(&entry.path())
                    .is_ok_and(|_lock| std::fs::remove_dir_all(entry.path()).is_ok())
        };
        entries.flatten().filter(is_ours).filter(remove).count()
    }

    /// Returns the budget.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Returns an empty folder of at most `bytes` bytes for a third-party tool. The caller must
    /// enforce the limit.
    ///
    /// The folder is removed with the value, or by the next process if this one is killed.
    pub fn folder(&self, bytes: u64) -> Result<ScratchFolder, ParseError> {
        let reservation = self.budget.reserve(bytes)?;
        let made = tempfile::Builder::new()
            .prefix(PREFIX)
            .tempdir_in(&*self.folder);
        let folder = made.map_err(|error| failed("creating a folder in", &self.folder, error))?;
        let lock = lock_folder(folder.path());
        Ok(ScratchFolder {
            lock: lock.map_err(|error| failed("locking a folder in", &self.folder, error))?,
            folder,
            _reservation: reservation,
        })
    }

    /// Returns an empty file for at most `bytes` bytes of content; see [`Budget::reserve`] for its
    /// errors.
    pub fn reserve(&self, bytes: u64) -> Result<ScratchFile, ParseError> {
        let reservation = self.budget.reserve(bytes)?;
        Ok(ScratchFile {
            file: Arc::new(self.unnamed_file()?),
            folder: Arc::clone(&self.folder),
            written: Extents::default(),
            reservation,
        })
    }

    /// Returns an empty file that is not counted: the caller holds a [`Reservation`] for its
    /// content.
    pub fn unnamed_file(&self) -> Result<File, Fault> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::open(&*self.folder, flags, Mode::RUSR | Mode::WUSR)
            .map(File::from)
            .or_else(|_| {
                // The file system may not support unnamed files.
                let named = tempfile::Builder::new()
                    .prefix(PREFIX)
                    .tempfile_in(&*self.folder);
                let (file, path) = named
                    .map_err(|error| failed("creating a file in", &self.folder, error))?
                    .into_parts();
                drop(path);
                Ok(file)
            })
    }
}

/// Locks a folder for this process, until the file is closed.
fn lock_folder(folder: &Path) -> io::Result<File> {
    let file = rustix::fs::open(folder, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
    Ok(file.into())
}

/// A folder for a tool, removed with this value. See [`ScratchSpace::folder`].
#[derive(Debug)]
pub struct ScratchFolder {
    folder: tempfile::TempDir,
    #[expect(dead_code, reason = "held open for its lock")]
    lock: File,
    _reservation: Reservation,
}

impl ScratchFolder {
    /// Returns its path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Creates a folder in it.
    pub fn create(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path().join(name);
        #[expect(clippy::disallowed_methods, reason = "this is adapters/scratch.rs")]
        std::fs::create_dir(&path)?;
        Ok(path)
    }

    /// Copies a byte range of a file into a new file.
    pub fn copy(mut from: File, part: Range<u64>, to: &Path) -> io::Result<()> {
        #[expect(clippy::disallowed_methods, reason = "this is adapters/scratch.rs")]
        let mut to = File::options().write(true).create_new(true).open(to)?;
        from.seek(SeekFrom::Start(part.start))?;
        let length = part.end - part.start;
        match io::copy(&mut from.take(length), &mut to)? {
            copied if copied == length => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Returns all files below a folder with their sizes in bytes; unreadable entries are skipped.
    pub fn files(folder: &Path) -> Vec<(PathBuf, u64)> {
        let mut files = Vec::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                // `metadata` does not follow links, so the target of a link does not count.
                match entry.metadata() {
                    Ok(about) if about.is_dir() => folders.push(entry.path()),
                    Ok(about) if about.is_file() => files.push((entry.path(), about.len())),
                    _ => {}
                }
            }
        }
        files
    }

    /// Reads a file whose size in bytes is known. Does not follow links.
    pub fn read(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
        let no_links = OFlags::NOFOLLOW.bits().cast_signed();
        #[expect(clippy::disallowed_methods, reason = "this is adapters/scratch.rs")]
        let file = File::options()
            .read(true)
            .custom_flags(no_links)
            .open(path)?;
        let mut read = Vec::new();
        file.take(bytes).read_to_end(&mut read)?;
        if read.len() as u64 == bytes {
            Ok(read)
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
}

/// Opens a file descriptor that the parent process passed on, for reading, or for reading and
/// writing.
pub fn inherited(descriptor: RawFd, write: bool) -> io::Result<File> {
    #[expect(clippy::disallowed_methods, reason = "this is adapters/scratch.rs")]
    File::options()
        .read(true)
        .write(write)
        .open(format!("/proc/self/fd/{descriptor}"))
}

/// A limit of the bytes that are in use at a time. Clones share it.
#[derive(Clone, Debug)]
pub struct Budget {
    bytes: u64,
    used: Arc<Mutex<u64>>,
}

impl Budget {
    /// Returns an unused budget.
    pub fn new(bytes: u64) -> Self {
        Self {
            bytes,
            used: Arc::default(),
        }
    }

    /// Returns the total bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes that are reserved now.
    pub fn used(&self) -> u64 {
        *self.lock()
    }

    /// Reserves bytes.
    ///
    /// Fails with [`Cause::TooLarge`] if the whole budget is smaller, and with a transient error if
    /// other reservations use too much of it.
    pub fn reserve(&self, bytes: u64) -> Result<Reservation, ParseError> {
        let limit = self.bytes;
        if bytes > limit {
            let detail = format!("its {bytes} bytes exceed the {limit} bytes of scratch space");
            return Err(ParseError::Missing(Missing::new(
                Cause::TooLarge { limit },
                detail,
            )));
        }
        let mut used = self.lock();
        if bytes > limit - *used {
            return Err(self.contended(bytes, *used).into());
        }
        *used += bytes;
        drop(used);
        Ok(Reservation {
            budget: self.clone(),
            bytes,
        })
    }

    /// Reserves all remaining bytes, possibly none.
    pub fn reserve_rest(&self) -> Reservation {
        let mut used = self.lock();
        let bytes = self.bytes - *used;
        *used = self.bytes;
        drop(used);
        Reservation {
            budget: self.clone(),
            bytes,
        }
    }

    /// Returns the error for a budget of which other reservations use so many bytes that these
    /// cannot be reserved.
    pub fn contended(&self, bytes: u64, used: u64) -> Fault {
        let limit = self.bytes;
        let context =
            format!("reserving {bytes} bytes of scratch space: {used} of {limit} bytes are in use");
        Fault::new(FaultKind::Transient, context)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, u64> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of a [`Budget`]; released when dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: Budget,
    bytes: u64,
}

impl Reservation {
    /// Returns the bytes that are reserved.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Releases all but `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        let less = self.bytes.saturating_sub(bytes);
        self.bytes -= less;
        *self.budget.lock() -= less;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

/// A scratch file for one DIF.
///
/// Only written bytes count, wherever they are: the holes of a sparse file cost nothing.
#[derive(Debug)]
pub struct ScratchFile {
    file: Arc<File>,
    folder: Arc<PathBuf>,
    written: Extents,
    reservation: Reservation,
}

impl ScratchFile {
    /// Returns the file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the end of the last written range.
    pub fn written(&self) -> u64 {
        self.written.parts.last().map_or(0, |(_, end)| *end)
    }

    /// Returns the bytes that are reserved for it.
    pub fn reserved(&self) -> u64 {
        self.reservation.bytes()
    }

    /// Returns the means to write to it later, within what is reserved for it. The file must
    /// outlive it, because it holds the reservation.
    pub fn writer(&self) -> ScratchWriter {
        ScratchWriter {
            file: Arc::clone(&self.file),
            folder: Arc::clone(&self.folder),
        }
    }
}

#[async_trait]
impl Scratch for ScratchFile {
    async fn write_at(&mut self, offset: u64, bytes: Bytes) -> Result<(), Fault> {
        self.written
            .add(offset, bytes.len() as u64, self.reservation.bytes())?;
        self.writer().write_at(offset, bytes).await
    }
}

/// Writes to a [`ScratchFile`] without counting the bytes.
#[derive(Debug)]
pub struct ScratchWriter {
    file: Arc<File>,
    folder: Arc<PathBuf>,
}

impl ScratchWriter {
    /// Writes bytes at an offset.
    pub async fn write_at(&self, offset: u64, bytes: Bytes) -> Result<(), Fault> {
        let file = Arc::clone(&self.file);
        let written = tokio::task::spawn_blocking(move || file.write_all_at(&bytes, offset)).await;
        written
            .map_err(io::Error::other)
            .flatten()
            .map_err(|error| failed("writing to a file in", &self.folder, error))
    }
}

fn failed(what: &str, folder: &Path, error: io::Error) -> Fault {
    let folder = folder.display();
    let (kind, context) = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            let hint = "the disk is full although the budget is not: enlarge the disk or lower SCRATCH_BYTES";
            (FaultKind::Transient, format!("{what} {folder}: {hint}"))
        }
        io::ErrorKind::PermissionDenied
        | io::ErrorKind::ReadOnlyFilesystem
        | io::ErrorKind::NotFound => (
            FaultKind::Denied,
            format!("{what} {folder}, the folder in TMPDIR"),
        ),
        _ => (FaultKind::Transient, format!("{what} {folder}")),
    };
    Fault::new(kind, context).caused_by(error)
}

/// The ranges of a file that were written, so that writing a range again costs nothing.
#[derive(Debug, Default)]
pub(super) struct Extents {
    /// Start and end, sorted and disjoint.
    parts: Vec<(u64, u64)>,
}

impl Extents {
    /// Adds a range if the bytes of all ranges stay within a limit.
    pub(super) fn add(&mut self, offset: u64, length: u64, limit: u64) -> Result<(), Fault> {
        let bug = |context: String| Fault::new(FaultKind::Bug, context);
        let (mut start, Some(mut end)) = (offset, offset.checked_add(length)) else {
            return Err(bug(format!(
                "writing {length} bytes at offset {offset} of a scratch file"
            )));
        };
        let apart = |&(other_start, other_end): &(u64, u64)| {
            other_end < offset || other_start > offset + length
        };
        let (mut parts, touched): (Vec<_>, Vec<_>) = self.parts.iter().copied().partition(apart);
        for (other_start, other_end) in touched {
            (start, end) = (start.min(other_start), end.max(other_end));
        }
        parts.push((start, end));
        parts.sort_unstable();
        let bytes: u64 = parts.iter().map(|(start, end)| end - start).sum();
        if bytes > limit {
            return Err(bug(format!(
                "writing {bytes} bytes to a scratch file for which {limit} were reserved"
            )));
        }
        self.parts = parts;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn space(bytes: u64) -> (tempfile::TempDir, ScratchSpace) {
        let folder = tempfile::tempdir().unwrap();
        let space = ScratchSpace::new(folder.path(), bytes);
        (folder, space)
    }

    #[test]
    fn the_budget_is_shared_and_released() {
        let (_folder, space) = space(100);
        let first = space.reserve(60).unwrap();
        let second = space.reserve(40).unwrap();
        assert_eq!(space.budget().used(), 100);
        drop(second);
        let Err(ParseError::Fault(error)) = space.reserve(50) else {
            panic!("the reservation was accepted")
        };
        assert_eq!(error.kind(), FaultKind::Transient);
        assert!(
            error
                .to_string()
                .contains("reserving 50 bytes of scratch space: 60 of 100 bytes are in use"),
            "{error}"
        );
        let second = space.reserve(40).unwrap();
        drop(first);
        let mut rest = space.budget().reserve_rest();
        assert_eq!(rest.bytes(), 60);
        rest.shrink_to(10);
        assert_eq!(space.budget().used(), 50);
        drop((rest, second));
        assert_eq!(space.budget().used(), 0);
    }

    #[test]
    fn a_file_beyond_the_whole_budget_is_too_large() {
        let (_folder, space) = space(100);
        let Err(ParseError::Missing(missing)) = space.reserve(101) else {
            panic!("the reservation was accepted")
        };
        assert_eq!(missing.cause, Cause::TooLarge { limit: 100 });
        assert!(missing.detail.contains("101"), "{}", missing.detail);
    }

    #[tokio::test]
    async fn a_file_is_written_out_of_order_and_has_no_name() {
        let (folder, space) = space(100);
        let mut scratch = space.reserve(6).unwrap();
        scratch
            .write_at(3, Bytes::from_static(b"def"))
            .await
            .unwrap();
        scratch
            .write_at(0, Bytes::from_static(b"abc"))
            .await
            .unwrap();
        scratch
            .write_at(0, Bytes::from_static(b"abc"))
            .await
            .unwrap();
        let mut text = String::new();
        scratch.file().read_to_string(&mut text).unwrap();
        assert_eq!(text, "abcdef");
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    #[tokio::test]
    async fn holes_cost_nothing_and_more_than_was_reserved_is_refused() {
        let (_folder, space) = space(100);
        let mut scratch = space.reserve(8).unwrap();
        scratch
            .write_at(0, Bytes::from_static(b"head"))
            .await
            .unwrap();
        scratch
            .write_at(1 << 40, Bytes::from_static(b"tail"))
            .await
            .unwrap();
        assert_eq!(scratch.file().metadata().unwrap().len(), (1 << 40) + 4);
        let refused = scratch
            .write_at(100, Bytes::from_static(b"x"))
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), FaultKind::Bug);
    }

    #[test]
    fn leftovers_with_our_name_are_removed_at_the_start_and_others_kept() {
        let (folder, _) = space(0);
        for name in [
            "symdepot-scratch-1",
            "symdepot-scratch-2",
            "another-program",
        ] {
            let named = tempfile::Builder::new()
                .prefix(name)
                .tempfile_in(folder.path());
            named.unwrap().keep().unwrap();
        }
        let space = ScratchSpace::new(folder.path(), 0);
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
        assert_eq!(space.clear(), 0);
    }

    #[test]
    fn a_missing_folder_is_named_in_the_error() {
        let space = ScratchSpace::new("/nowhere/at/all", 10);
        let Err(ParseError::Fault(error)) = space.reserve(1) else {
            panic!("the reservation was accepted")
        };
        assert_eq!(error.kind(), FaultKind::Denied);
        assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    }
}
