//! The lock of a data folder: a file that is locked as long as its holder lives, with the holder's process id in it.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;

use super::StackError;

/// Locks the folder, creating it if it is not there.
pub(super) fn lock(folder: &Path) -> Result<File, StackError> {
    let failed = |path: &Path, source| StackError::File {
        path: path.to_owned(),
        source,
    };
    std::fs::create_dir_all(folder).map_err(|source| failed(folder, source))?;
    let path = folder.join("lock");
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(|source| failed(&path, source))?;
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
        Err(TryLockError::Error(source)) => return Err(failed(&path, source)),
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(|source| failed(&path, source))?;
    Ok(file)
}
