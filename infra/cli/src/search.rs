//! Searches folders for the files that the service can use.

use std::collections::HashSet;
use std::fs::{File, FileType};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use symdepot::debuginfo::may_be_auxiliary;
use symdepot::domain::Inspection;

use crate::error::CliError;
use crate::files::STANDARD_INPUT;
use crate::inspection;

/// The maximum depth of folders below the one that is searched.
const DEPTH: usize = 64;

/// The first bytes of the files that may be debug files, or contain some.
const MAGICS: [&[u8]; 17] = [
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
];

/// The beginnings of zlib streams, by the level of compression. Many other files begin like them.
const ZLIB: [&[u8]; 4] = [b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda"];

/// What the first bytes of a file say.
enum Begin {
    /// It is a debug file, or may contain some.
    Likely,
    /// It may be one, but many others begin like it: zlib streams, property lists and JSON.
    Ambiguous,
    /// It is something else.
    Foreign,
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
/// tools, for example of `serve`. A file that several paths lead to is found once. Fails if a path
/// does not exist.
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
    // In one folder, nothing leads to the same file twice.
    if paths.len() > 1 {
        let mut known = HashSet::new();
        found.files.retain(|path| {
            let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
            known.insert(real)
        });
    }
    Ok(found)
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
        } else if kind.is_file() {
            // That a file cannot be read is said when it is.
            match begin_of(&path).unwrap_or(Begin::Likely) {
                Begin::Foreign => "it does not begin like a debug file",
                Begin::Ambiguous if is_useless(&path) => "it contains nothing for the service",
                Begin::Likely | Begin::Ambiguous => {
                    found.files.push(path);
                    continue;
                }
            }
        } else {
            "it is neither a file nor a folder"
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

fn begin_of(path: &Path) -> io::Result<Begin> {
    let mut head = Vec::new();
    File::open(path)?.take(32).read_to_end(&mut head)?;
    let begins = |magics: &[&[u8]]| magics.iter().any(|magic| head.starts_with(magic));
    // Those of programs for Windows are object files, which have no magic number.
    let is_split = path
        .extension()
        .is_some_and(|ending| ending.eq_ignore_ascii_case("dwo"));
    Ok(if is_split || begins(&MAGICS) {
        Begin::Likely
    } else if begins(&ZLIB) || may_be_auxiliary(&path.to_string_lossy(), &head) {
        Begin::Ambiguous
    } else {
        Begin::Foreign
    })
}

/// Returns whether a file that can be read contains nothing that the service uses.
fn is_useless(path: &Path) -> bool {
    inspection::inspect(path, false).is_ok_and(|inspected| {
        let Inspection {
            objects,
            completes,
            auxiliary,
            ..
        } = inspected.inspection;
        objects.is_empty() && completes.is_empty() && auxiliary.is_empty()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_several_paths_lead_to_is_found_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("b")).unwrap();
        std::fs::write(at("b/lib.so"), b"\x7fELF....").unwrap();
        std::os::unix::fs::symlink(at("b/lib.so"), at("link")).unwrap();
        let paths = [
            at("b/lib.so"),
            folder.path().to_owned(),
            at("b"),
            at("link"),
        ];
        assert_eq!(search(&paths).unwrap().files, [at("b/lib.so")]);
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
}
