//! The permissions of the data folder: it holds what clients store, so only its owner has access.
//!
//! The folder and the stack's own folders in it have mode 0700; files have mode 0600. Wider
//! permissions that an earlier release left are removed at the start. Files that do not belong to
//! the stack keep their modes, and so does a data folder in which others can read such files
//! (`DATA=/tmp`).

use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use super::files::{ACCESS_FILE, ADDRESSES_FILE, LOCK_FILE, PROGRAMS};
use crate::{database, dynamodb};

/// The permission bits of everyone but the owner.
const OTHERS: u32 = 0o077;

/// The stack's folders in the data folder.
const FOLDERS: [&str; 4] = ["s3", "tmp", "logs", PROGRAMS];

/// Creates the data folder, accessible only to its owner, unless it exists.
pub(super) fn create(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Removes the permissions of everyone but the owner from the data folder and the stack's files in
/// it.
///
/// The caller holds the folder's lock. Files that are created meanwhile have the modes of their
/// creator.
pub(super) fn tighten(folder: &Path) -> io::Result<()> {
    let mut has_others = false;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if is_ours(&entry.file_name().to_string_lossy()) {
            close(&entry.path())?;
        } else if entry.metadata()?.mode() & OTHERS != 0 {
            has_others = true;
        }
    }
    let mode = fs::metadata(folder)?.mode();
    if mode & OTHERS == 0 {
        return Ok(());
    }
    if has_others {
        tracing::warn!(
            folder = %folder.display(),
            "other users can list the data folder, because it also contains other files; the stack's own files are private"
        );
        return Ok(());
    }
    fs::set_permissions(folder, Permissions::from_mode(mode & 0o7777 & !OTHERS))
}

/// Returns whether the stack creates files of this name in the data folder.
fn is_ours(name: &str) -> bool {
    let is_of = |file: &str| name.strip_prefix(file).is_some_and(is_suffix);
    FOLDERS.contains(&name)
        || [ACCESS_FILE, ADDRESSES_FILE, LOCK_FILE].contains(&name)
        || is_of(database::FILE_NAME)
        || is_of(dynamodb::FILE_NAME)
        // A file of `tempfile` that does not have its final name yet.
        || name.starts_with(".tmp")
}

/// Returns whether this is a suffix that SQLite appends to the name of a database: "Temporary Files
/// Used By SQLite", sections 2.1 to 2.3.
fn is_suffix(rest: &str) -> bool {
    ["", "-wal", "-shm", "-journal"].contains(&rest)
}

/// Restricts a file, or a folder with all its contents, to the owner. A folder that is restricted
/// already is skipped: nothing below it can be reached.
fn close(path: &Path) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        // SQLite creates and removes its own files at any time.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if metadata.is_symlink() || metadata.mode() & OTHERS == 0 {
        return Ok(());
    }
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            close(&entry?.path())?;
        }
    }
    match fs::set_permissions(path, closed(&metadata)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn closed(metadata: &Metadata) -> Permissions {
    Permissions::from_mode(metadata.mode() & 0o7777 & !OTHERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    fn open(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// Permissions that an earlier release left open are removed (docs/security.md, F13).
    #[test]
    fn wide_permissions_of_an_earlier_release_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        fs::create_dir_all(data.join("s3/bodies/ab")).unwrap();
        let files = ["stack.sqlite3", "stack.sqlite3-wal", "s3/bodies/ab/body"];
        for file in files {
            fs::write(data.join(file), "x").unwrap();
            open(&data.join(file), 0o644);
        }
        // A private file that is not the stack's does not keep the folder open.
        fs::write(data.join("secret"), "x").unwrap();
        open(&data.join("secret"), 0o600);
        for directory in ["s3/bodies/ab", "s3/bodies", "s3", ""] {
            open(&data.join(directory), 0o755);
        }
        tighten(&data).unwrap();
        for file in files {
            assert_eq!(mode(&data.join(file)), 0o600, "{file}");
        }
        for directory in ["s3/bodies/ab", "s3/bodies", "s3", ""] {
            assert_eq!(mode(&data.join(directory)), 0o700, "{directory:?}");
        }
    }

    #[test]
    fn a_folder_with_readable_files_of_others_keeps_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        for file in ["lock", "somebodys"] {
            fs::write(folder.path().join(file), "x").unwrap();
            open(&folder.path().join(file), 0o644);
        }
        open(folder.path(), 0o755);
        tighten(folder.path()).unwrap();
        assert_eq!(mode(folder.path()), 0o755);
        assert_eq!(mode(&folder.path().join("somebodys")), 0o644);
        assert_eq!(mode(&folder.path().join("lock")), 0o600);
    }
}
