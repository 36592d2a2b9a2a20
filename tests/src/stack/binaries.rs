//! The binaries under test, and the files of the checkout that they are used with.

use std::path::{Path, PathBuf};

use super::StackError;

/// The variable that names the folder with the binaries.
const VARIABLE: &str = "SYMDEPOT_BINARIES";

/// The folder with the binaries of the functions and of the stack.
#[derive(Clone, Debug)]
pub struct Binaries {
    folder: PathBuf,
}

impl Binaries {
    /// Finds the folder that `SYMDEPOT_BINARIES` names; a relative one is looked for here, then in
    /// the checkout.
    ///
    /// # Errors
    /// [`StackError::NoBinaries`] where it is not set, [`StackError::MissingBinary`] where one is
    /// not there.
    pub fn from_env() -> Result<Self, StackError> {
        let named = std::env::var_os(VARIABLE)
            .filter(|value| !value.is_empty())
            .ok_or(StackError::NoBinaries)?;
        let named = PathBuf::from(named);
        let here = named.is_dir().then(|| named.clone());
        Self::in_folder(&here.unwrap_or_else(|| checkout().join(&named)))
    }

    /// Takes the binaries of a folder.
    ///
    /// # Errors
    /// [`StackError::MissingBinary`] where one is not there.
    pub fn in_folder(folder: &Path) -> Result<Self, StackError> {
        let binaries = Self {
            folder: folder.canonicalize().unwrap_or_else(|_| folder.to_owned()),
        };
        for name in ["local-stack", "symbolicate", "derive", "prune"] {
            let path = binaries.get(name);
            if !path.is_file() {
                return Err(StackError::MissingBinary(path));
            }
        }
        Ok(binaries)
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of a binary.
    pub fn get(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// Returns the top folder of the checkout that this was built from.
pub fn checkout() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_owned()
}

/// Returns the path of a fixture.
pub fn fixture(name: &str) -> PathBuf {
    checkout().join("tests/fixtures").join(name)
}

/// Returns the path of the template that the stack is made from.
pub fn template() -> PathBuf {
    checkout().join("infra/template.yaml")
}
