//! The data folder, locked and accessible only to its owner.

use std::io;
use std::path::{Path, PathBuf};

use super::addresses::AddressesFile;
use super::error::StackError;
use super::lock::FolderLock;
use super::private;

/// The data folder of this stack, locked until it is dropped.
#[derive(Debug)]
pub(super) struct DataFolder {
    path: PathBuf,
    /// The file of this stack's addresses. That of an earlier stack is removed.
    pub(super) addresses: AddressesFile,
    _lock: FolderLock,
}

impl DataFolder {
    pub(super) async fn take(folder: &Path) -> Result<Self, StackError> {
        let lock = FolderLock::take(folder)?;
        let path = folder
            .canonicalize()
            .map_err(|source| StackError::file(folder, source))?;
        let tightened = path.clone();
        tokio::task::spawn_blocking(move || private::tighten(&tightened))
            .await
            .map_err(io::Error::other)
            .and_then(|tightened| tightened)
            .map_err(|source| StackError::file(&path, source))?;
        let addresses = AddressesFile::in_folder(&path);
        addresses.remove()?;
        Ok(Self {
            path,
            addresses,
            _lock: lock,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}
