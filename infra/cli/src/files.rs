//! Files on this machine: reading them within a limit, and searching folders for debug files.

use std::fs::{File, FileType};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use symbolic::common::ByteView;
use symdepot::debuginfo::may_be_auxiliary;

use crate::error::CliError;
use crate::visible::visible;

/// The path of standard input.
pub(crate) const STANDARD_INPUT: &str = "/dev/stdin";

/// The maximum depth of folders below the one that is searched.
const DEPTH: usize = 64;

/// The first bytes of the files that may be debug files, or contain some.
const MAGICS: [&[u8]; 21] = [
    b"\x7fELF",
    b"MZ",
    b"\xfe\xed\xfa\xce",
    b"\xfe\xed\xfa\xcf",
    b"\xce\xfa\xed\xfe",
    b"\xcf\xfa\xed\xfe",
    b"\xca\xfe\xba\xbe",
    b"\xca\xfe\xba\xbf",
    b"\0asm",
    b"Microsoft C/C++ MSF",
    b"BSJB",
    b"MODULE ",
    b"SYSB",
    b"PK\x03\x04",
    b"MSCF",
    b"\x1f\x8b",
    b"\x28\xb5\x2f\xfd",
    // zlib, by the level of compression.
    b"\x78\x01",
    b"\x78\x5e",
    b"\x78\x9c",
    b"\x78\xda",
];

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

/// The files below some paths.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The files that were named, and those in folders that may be debug files, in their order.
    /// Files and folders that cannot be read are among them: the attempt to read one gives the
    /// reason.
    pub(crate) files: Vec<PathBuf>,
    /// What else is in folders.
    pub(crate) others: Vec<Other>,
}

/// Something in a folder that is no debug file, and why it is passed over.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Other {
    pub(crate) path: PathBuf,
    pub(crate) reason: &'static str,
}

/// Returns the files that paths name, and the debug files in the folders among them. Symbolic links
/// in folders are not followed, and hidden folders in them are not searched: those are the data of
/// tools, for example of `serve`. Fails if a path does not exist.
pub(crate) fn search(paths: &[PathBuf]) -> Result<Found, CliError> {
    let mut found = Found::default();
    for path in paths {
        let failed = |error| CliError::File {
            path: path.clone(),
            error,
        };
        match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => search_folder(path, 0, &mut found),
            Ok(_) => found.files.push(path.clone()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                found.files.push(path.clone());
            }
            Err(_) if path == Path::new("-") => found.files.push(STANDARD_INPUT.into()),
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(found)
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

fn search_folder(folder: &Path, depth: usize, found: &mut Found) {
    let Ok(entries) = entries(folder) else {
        found.files.push(folder.to_owned());
        return;
    };
    for (path, kind) in entries {
        let name = path.file_name().unwrap_or_default();
        let is_hidden = name.as_encoded_bytes().starts_with(b".");
        let reason = if kind.is_symlink() {
            "a symbolic link, which is not followed"
        } else if kind.is_dir() && is_hidden {
            "a hidden folder, which is searched only if it is named"
        } else if kind.is_dir() && depth < DEPTH {
            search_folder(&path, depth + 1, found);
            continue;
        } else if kind.is_dir() {
            "a folder below too many others"
        } else if kind.is_file() && may_be_debug_file(&path).unwrap_or(true) {
            found.files.push(path);
            continue;
        } else {
            "it does not begin like a debug file"
        };
        found.others.push(Other { path, reason });
    }
}

/// Returns what is in a folder, in the order of the names.
fn entries(folder: &Path) -> io::Result<Vec<(PathBuf, FileType)>> {
    let entries = std::fs::read_dir(folder)?.map(|entry| {
        let entry = entry?;
        Ok((entry.path(), entry.file_type()?))
    });
    let mut entries = entries.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by(|(one, _), (other, _)| one.file_name().cmp(&other.file_name()));
    Ok(entries)
}

fn may_be_debug_file(path: &Path) -> io::Result<bool> {
    let mut head = Vec::new();
    File::open(path)?.take(32).read_to_end(&mut head)?;
    // Those of programs for Windows are object files, which have no magic number.
    let is_split = path
        .extension()
        .is_some_and(|ending| ending.eq_ignore_ascii_case("dwo"));
    let begins_like_one = MAGICS.iter().any(|magic| head.starts_with(magic));
    Ok(is_split || begins_like_one || may_be_auxiliary(&path.to_string_lossy(), &head))
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
    fn a_folder_is_searched_for_debug_files_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("b/c")).unwrap();
        std::fs::write(at("b/c/lib.so"), b"\x7fELF....").unwrap();
        std::fs::write(at("b/notes.txt"), b"text").unwrap();
        std::fs::write(at("b/shop.dwo"), b"\x64\x86\x03\0").unwrap();
        std::fs::write(at("a.exe"), b"MZ").unwrap();
        std::fs::write(at("empty"), b"").unwrap();
        std::fs::create_dir(at(".data")).unwrap();
        std::fs::write(at(".data/lib.so"), b"\x7fELF....").unwrap();
        std::os::unix::fs::symlink(folder.path(), at("b/loop")).unwrap();
        let found = search(&[folder.path().to_owned(), at("empty")]).unwrap();
        let files = ["a.exe", "b/c/lib.so", "b/shop.dwo", "empty"];
        assert_eq!(found.files, files.map(at));
        let others = found.others.iter();
        let others: Vec<_> = others.map(|it| (it.path.clone(), it.reason)).collect();
        let passed_over = |name: &str, reason| (at(name), reason);
        assert_eq!(
            others,
            [
                passed_over(
                    ".data",
                    "a hidden folder, which is searched only if it is named"
                ),
                passed_over("b/loop", "a symbolic link, which is not followed"),
                passed_over("b/notes.txt", "it does not begin like a debug file"),
                passed_over("empty", "it does not begin like a debug file"),
            ]
        );
        let named = search(&[at(".data")]).unwrap();
        assert_eq!(named.files, [at(".data/lib.so")]);
        let error = search(&[at("absent")]).unwrap_err();
        assert!(error.to_string().contains("absent"), "{error}");
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
