//! Links in the data folder to a program that contains all functions.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::error::StackError;
use super::files::PROGRAMS;
use crate::template::Template;

/// Makes a link to `program` for each function of the template, and returns the folder with the
/// links. Links of an earlier stack are replaced: the program may have been moved.
pub(super) fn link(
    program: &Path,
    template: &Template,
    data: &Path,
) -> Result<PathBuf, StackError> {
    let folder = data.join(PROGRAMS);
    let names = template.functions.iter().map(|it| it.name.as_str());
    replace(&folder, program, names).map_err(|source| StackError::file(&folder, source))?;
    Ok(folder)
}

fn replace<'a>(
    folder: &Path,
    program: &Path,
    names: impl Iterator<Item = &'a str>,
) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let program = program.canonicalize()?;
    for name in names {
        let link = folder.join(name);
        // Only a link is replaced: any other file is not the stack's.
        if fs::symlink_metadata(&link).is_ok_and(|metadata| metadata.is_symlink()) {
            fs::remove_file(&link)?;
        }
        symlink(&program, link)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_an_earlier_stack_are_replaced() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join(PROGRAMS);
        let program = |name: &str| {
            let path = data.path().join(name);
            fs::write(&path, name).unwrap();
            path
        };
        let names = || ["orders", "bills"].into_iter();
        for text in ["first", "second"] {
            replace(&folder, &program(text), names()).unwrap();
            for name in names() {
                assert_eq!(fs::read_to_string(folder.join(name)).unwrap(), text);
            }
        }
        assert!(replace(&folder, &data.path().join("absent"), names()).is_err());
    }

    #[test]
    fn a_file_that_is_no_link_is_not_replaced() {
        let data = tempfile::tempdir().unwrap();
        let program = data.path().join("program");
        fs::write(&program, "program").unwrap();
        fs::write(data.path().join("orders"), "precious").unwrap();
        let error = replace(data.path(), &program, ["orders"].into_iter()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        let kept = fs::read_to_string(data.path().join("orders")).unwrap();
        assert_eq!(kept, "precious");
    }
}
