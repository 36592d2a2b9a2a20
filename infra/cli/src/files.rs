//! Files on this machine: reading them within a limit, and searching folders for debug files.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::CliError;

/// The maximum depth of folders below the one that is searched.
const DEPTH: usize = 64;

/// The first bytes of the files that may be debug files, or contain some.
const MAGICS: [&[u8]; 16] = [
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
    b"PK\x03\x04",
    b"MSCF",
    b"\x1f\x8b",
    b"\x28\xb5\x2f\xfd",
];

/// Reads a file of at most `limit` bytes. The error names the limit as that of `what`.
pub(crate) fn read(path: &Path, what: &'static str, limit: u64) -> Result<Vec<u8>, CliError> {
    let failed = |error| CliError::File {
        path: path.to_owned(),
        error,
    };
    let mut bytes = Vec::new();
    let file: Box<dyn Read> = match path == Path::new("-") {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(File::open(path).map_err(failed)?),
    };
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > limit {
        return Err(CliError::TooLarge {
            path: path.to_owned(),
            what,
            limit,
        });
    }
    Ok(bytes)
}

/// The files below some paths.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The files that were named, and those in folders that may be debug files, in their order.
    pub(crate) files: Vec<PathBuf>,
    /// The number of other files in folders.
    pub(crate) others: usize,
}

/// Returns the files that paths name, and the debug files in the folders among them. Symbolic links
/// in folders are not followed, and hidden folders in them are not searched: those are the data of
/// tools, for example of `serve`.
pub(crate) fn search(paths: &[PathBuf]) -> Result<Found, CliError> {
    let mut found = Found::default();
    for path in paths {
        let failed = |error| CliError::File {
            path: path.clone(),
            error,
        };
        let metadata = std::fs::metadata(path).map_err(failed)?;
        match metadata.is_dir() {
            true => search_folder(path, 0, &mut found)?,
            false => found.files.push(path.clone()),
        }
    }
    Ok(found)
}

fn search_folder(folder: &Path, depth: usize, found: &mut Found) -> Result<(), CliError> {
    let failed = |error| CliError::File {
        path: folder.to_owned(),
        error,
    };
    let entries: Result<Vec<_>, _> = std::fs::read_dir(folder).map_err(failed)?.collect();
    let mut entries = entries.map_err(failed)?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let kind = entry.file_type().map_err(failed)?;
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if kind.is_dir() && depth < DEPTH && !is_hidden {
            search_folder(&path, depth + 1, found)?;
        } else if kind.is_file() {
            match may_be_debug_file(&path) {
                true => found.files.push(path),
                false => found.others += 1,
            }
        }
    }
    Ok(())
}

fn may_be_debug_file(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(32).read_to_end(&mut head));
    read.is_ok() && MAGICS.iter().any(|magic| head.starts_with(magic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_searched_for_debug_files_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("b/c")).unwrap();
        std::fs::write(at("b/c/lib.so"), b"\x7fELF....").unwrap();
        std::fs::write(at("b/notes.txt"), b"text").unwrap();
        std::fs::write(at("a.exe"), b"MZ").unwrap();
        std::fs::write(at("empty"), b"").unwrap();
        std::fs::create_dir(at(".data")).unwrap();
        std::fs::write(at(".data/lib.so"), b"\x7fELF....").unwrap();
        std::os::unix::fs::symlink(folder.path(), at("b/loop")).unwrap();
        let found = search(&[folder.path().to_owned(), at("empty")]).unwrap();
        assert_eq!(found.files, [at("a.exe"), at("b/c/lib.so"), at("empty")]);
        assert_eq!(found.others, 2);
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
        assert_eq!(read(&path, "reports", 5).unwrap(), b"12345");
        let error = read(&path, "reports", 4).unwrap_err().to_string();
        assert!(
            error.contains("more than 4 bytes, the limit of reports"),
            "{error}"
        );
    }
}
