//! Files on this machine: reading them within a limit.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use symbolic::common::ByteView;

use crate::error::CliError;
use crate::visible::visible;

/// The path of standard input.
pub(crate) const STANDARD_INPUT: &str = "/dev/stdin";

/// A file that is open for reading at any place.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: File,
    /// Its size.
    pub(crate) bytes: u64,
}

/// Opens a file of at most `limit` bytes. What has no size, such as standard input or a pipe, is
/// copied first to a temporary file without a name. The error names the limit as that of `what`.
pub(crate) fn open(path: &Path, what: &'static str, limit: u64) -> Result<Opened, CliError> {
    let failed = |error| CliError::File {
        path: path.to_owned(),
        error,
    };
    let opened = if path == Path::new("-") {
        copied(std::io::stdin().lock(), limit).map_err(failed)?
    } else {
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_file() {
            Opened {
                file,
                bytes: metadata.len(),
            }
        } else {
            copied(file, limit).map_err(failed)?
        }
    };
    if opened.bytes > limit {
        Err(CliError::TooLarge {
            path: path.to_owned(),
            what,
            limit,
        })
    } else {
        Ok(opened)
    }
}

/// Copies at most one byte more than `limit` to a temporary file.
fn copied(source: impl Read, limit: u64) -> io::Result<Opened> {
    let mut file = tempfile::tempfile()?;
    let bytes = io::copy(&mut source.take(limit.saturating_add(1)), &mut file)?;
    Ok(Opened { file, bytes })
}

impl Opened {
    /// Reads the first bytes, at most `limit`.
    pub(crate) fn head(&self, limit: u64) -> io::Result<Vec<u8>> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(0))?;
        let mut bytes = Vec::new();
        file.take(limit).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Maps the whole file into memory.
    pub(crate) fn map(self) -> io::Result<ByteView<'static>> {
        ByteView::map_file(self.file)
    }
}

/// Fails if one of these paths is a pipe or a device.
pub(crate) fn refuse_pipes(paths: &[PathBuf]) -> Result<(), CliError> {
    let can_be_read_again = |path: &&PathBuf| {
        // That something cannot be read is said later.
        std::fs::metadata(path).map_or(true, |metadata| metadata.is_file() || metadata.is_dir())
    };
    match paths.iter().find(|path| !can_be_read_again(path)) {
        None => Ok(()),
        Some(path) => Err(CliError::Unreadable {
            path: path.clone(),
            cause: "it can be read only once, and this command reads a file several times: write it to a file, and name that".to_owned(),
        }),
    }
}

/// Splits off what cannot be read, and says on standard error why. Returns the files that can be
/// read, and the number of the others.
pub(crate) fn split_unreadable(files: Vec<PathBuf>) -> (Vec<PathBuf>, usize) {
    let before = files.len();
    let is_readable = |path: &PathBuf| match access(path, Access::READ_OK) {
        Ok(()) => true,
        Err(error) => {
            let (path, error) = (path.display().to_string(), io::Error::from(error));
            anstream::eprintln!("skipped {}: {error}", visible(&path));
            false
        }
    };
    let readable: Vec<PathBuf> = files.into_iter().filter(is_readable).collect();
    let unreadable = before - readable.len();
    (readable, unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_read_only_once_is_refused_without_opening_it() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, file) = (folder.path().join("pipe"), folder.path().join("file"));
        let mode = rustix::fs::Mode::from_bits_truncate(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
        std::fs::write(&file, "").unwrap();
        refuse_pipes(&[file, folder.path().to_owned()]).unwrap();
        for path in [pipe, "/dev/null".into()] {
            let error = refuse_pipes(&[path]).unwrap_err().to_string();
            assert!(error.contains("write it to a file"), "{error}");
        }
    }

    #[test]
    fn a_file_over_the_limit_is_refused_with_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"12345").unwrap();
        let opened = open(&path, "reports", 5).unwrap();
        assert_eq!(opened.head(9).unwrap(), b"12345");
        assert_eq!(opened.map().unwrap().as_slice(), b"12345");
        let error = open(&path, "reports", 4).unwrap_err().to_string();
        assert!(
            error.contains("more than 4 bytes, the limit of reports"),
            "{error}"
        );
        assert!(open(folder.path(), "reports", 5).is_err());
    }

    #[test]
    fn what_has_no_size_is_copied_within_the_limit() {
        let (short, long) = (copied(&b"1234"[..], 4), copied(&b"123456"[..], 4));
        let (short, long) = (short.unwrap(), long.unwrap());
        assert_eq!((short.bytes, short.head(9).unwrap()), (4, b"1234".to_vec()));
        assert_eq!((short.head(2).unwrap(), long.bytes), (b"12".to_vec(), 5));
    }
}
