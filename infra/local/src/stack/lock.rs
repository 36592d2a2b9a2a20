//! The lock of a data folder: a locked file that contains the process id of its holder.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use super::error::StackError;
use super::files::LOCK_FILE;
use super::private;

/// The lock of a data folder, held until it is dropped.
///
/// Dropping unlocks the file before it closes it. Closing alone is not enough: a process that is
/// being started has a copy of every descriptor until it executes its program, and a lock ends by
/// itself only with its last copy.
#[derive(Debug)]
pub(super) struct FolderLock {
    file: File,
}

impl FolderLock {
    /// Locks the folder. Creates it if it does not exist.
    pub(super) fn take(folder: &Path) -> Result<Self, StackError> {
        if folder.is_file() {
            return Err(StackError::NotAFolder(folder.to_owned()));
        }
        private::create(folder).map_err(|source| StackError::file(folder, source))?;
        let path = folder.join(LOCK_FILE);
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|source| StackError::file(&path, source))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                let _ = file.read_to_string(&mut pid);
                let pid = match pid.trim() {
                    "" => "unknown".to_owned(),
                    pid => pid.to_owned(),
                };
                return Err(StackError::Locked {
                    folder: folder.to_owned(),
                    pid,
                });
            }
            Err(TryLockError::Error(source)) => return Err(StackError::file(&path, source)),
        }
        let mut lock = Self { file };
        lock.write_holder()
            .map_err(|source| StackError::file(&path, source))?;
        Ok(lock)
    }

    fn write_holder(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        writeln!(self.file, "{}", std::process::id())
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        if let Err(error) = self.file.unlock() {
            tracing::warn!(%error, "cannot unlock the data folder; closing its lock file may release it");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_ends_when_it_is_dropped_though_another_descriptor_of_its_file_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let lock = FolderLock::take(folder.path()).unwrap();
        let inherited = lock.file.try_clone().unwrap();
        drop(lock);
        FolderLock::take(folder.path()).unwrap();
        drop(inherited);
    }

    #[test]
    fn a_file_in_the_place_of_the_folder_is_named_as_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = FolderLock::take(file.path()).unwrap_err().to_string();
        let expected = "is a file, not a folder: choose another with --data";
        assert!(error.ends_with(expected), "{error}");
    }

    #[test]
    fn a_full_disk_is_to_be_freed() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let error = StackError::file(Path::new("data/lock"), full).to_string();
        assert!(
            error.ends_with("free space on the disk of the data folder"),
            "{error}"
        );
    }

    #[test]
    fn a_folder_is_locked_once() {
        let folder = tempfile::tempdir().unwrap();
        let lock = FolderLock::take(folder.path()).unwrap();
        let refused = FolderLock::take(folder.path()).unwrap_err();
        assert!(matches!(refused, StackError::Locked { .. }), "{refused}");
        drop(lock);
    }
}
