//! The secret with which sources that requests define are named and encrypted. It is generated once
//! for each data folder. `make run` does the same, with the same file.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use tempfile::NamedTempFile;

use crate::error::CliError;

/// The setting that lets requests define sources, and its value if they may.
const ALLOWED: &str = "ALLOW_REQUEST_SOURCES";
const YES: &str = "1";

/// The setting with the secret.
const SECRET: &str = "REQUEST_SOURCES_SECRET";

/// The file with the generated secret, in the data folder.
const FILE: &str = "request-sources.secret";

/// The number of random bytes of a secret.
const BYTES: usize = 32;

/// Adds the secret of the data folder to the settings, if they need one and have none.
pub(super) fn add(settings: &mut BTreeMap<String, String>, data: &Path) -> Result<(), CliError> {
    let is_allowed = settings.get(ALLOWED).is_some_and(|value| value == YES);
    if !is_allowed || settings.contains_key(SECRET) {
        return Ok(());
    }
    let secret = of_folder(data).map_err(|error| CliError::File {
        path: data.join(FILE),
        error,
    })?;
    settings.insert(SECRET.to_owned(), secret);
    Ok(())
}

/// Returns the secret of a data folder, after generating it if there is none.
fn of_folder(data: &Path) -> io::Result<String> {
    let path = data.join(FILE);
    if let Some(secret) = read(&path)? {
        return Ok(secret);
    }
    DirBuilder::new().recursive(true).mode(0o700).create(data)?;
    // Only this user can read a temporary file.
    let mut new = NamedTempFile::new_in(data)?;
    new.write_all(generated()?.as_bytes())?;
    new.as_file().sync_all()?;
    // Another process may have written the file meanwhile: its secret is the one that counts. An
    // empty file is what a process left that was killed.
    if let Err(error) = new.persist_noclobber(&path) {
        match error.error.kind() {
            ErrorKind::AlreadyExists if read(&path)?.is_some() => {}
            ErrorKind::AlreadyExists => drop(error.file.persist(&path)?),
            _ => return Err(error.error),
        }
    }
    read(&path)?.ok_or_else(|| ErrorKind::UnexpectedEof.into())
}

/// Returns the secret in a file; `None` if the file is empty or does not exist.
fn read(path: &Path) -> io::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(secret) => Ok(Some(secret.trim().to_owned()).filter(|secret| !secret.is_empty())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn generated() -> io::Result<String> {
    let mut bytes = [0; BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(hex::encode(bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn added(settings: &[(&str, &str)], data: &Path) -> Option<String> {
        let settings = settings.iter();
        let mut settings = settings
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        add(&mut settings, data).unwrap();
        settings.remove(SECRET)
    }

    #[test]
    fn a_folder_has_one_secret_which_only_its_user_can_read() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("a/.data");
        let secret = added(&[(ALLOWED, "1")], &data).unwrap();
        assert_eq!(secret.len(), 2 * BYTES);
        assert_eq!(added(&[(ALLOWED, "1")], &data), Some(secret.clone()));
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&data), mode(&data.join(FILE))), (0o700, 0o600));
        assert_eq!(std::fs::read_dir(&data).unwrap().count(), 1);
        let other = tempfile::tempdir().unwrap();
        assert_ne!(added(&[(ALLOWED, "1")], other.path()), Some(secret));
    }

    #[test]
    fn an_empty_file_is_replaced_and_another_one_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        std::fs::write(&path, "").unwrap();
        assert!(added(&[(ALLOWED, "1")], folder.path()).is_some());
        std::fs::write(&path, "own\n").unwrap();
        let kept = added(&[(ALLOWED, "1")], folder.path());
        assert_eq!(kept.as_deref(), Some("own"));
    }

    #[test]
    fn no_secret_is_generated_if_none_is_needed_or_one_is_set() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join(".data");
        assert_eq!(added(&[], &data), None);
        assert_eq!(added(&[(ALLOWED, "0")], &data), None);
        let set = added(&[(ALLOWED, "1"), (SECRET, "own")], &data);
        assert_eq!(set.as_deref(), Some("own"));
        assert!(!data.exists());
    }
}
